"""mq-server: run a node, manage local clusters, format data directories, dump logs.

Imports `metaquorum.cli.common`, and `dataplane` and below. I/O: files and processes. Start with
`main`.
"""
