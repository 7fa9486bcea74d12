"""The pages of `docs/reference/` that are printed from the tables of the code.

`python -m tests.documents.reference` writes them; `tests/documents/test_reference.py` fails while a
page differs from what the code would print.
"""
