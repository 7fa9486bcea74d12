"""mq-admin transactions: list, describe and explain them; find and abort hanging ones.

Imports `cli.admin.common`, `cli.common` and `metaquorum.client`. I/O: the network through the
client, and the terminal. Start with `commands` (the list).
"""
