"""mq-server: nodes in the foreground, local clusters, format, log dump.

Imports `cli.common`, and `dataplane` and below. I/O: files and processes. Start with `main`.
"""
