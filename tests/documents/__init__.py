"""Tests of the documents, and of the language in code, messages and documents."""
