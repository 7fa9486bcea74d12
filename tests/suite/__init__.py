"""Plugins of the test run: what it costs, how it reports failures, and what it leaves behind."""
