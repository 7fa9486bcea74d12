"""mq-admin produce, consume and records: input and output of records as text.

Imports `metaquorum.cli.admin.common`. I/O: standard input and output, and the network through the
client. `text` converts records to text and back.
"""
