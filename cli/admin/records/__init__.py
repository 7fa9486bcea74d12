"""mq-admin produce, consume and records: records in and out as text.

Imports `cli.admin.common`. I/O: standard input and output, and the network through the client.
`text` is how a record is written as text.
"""
