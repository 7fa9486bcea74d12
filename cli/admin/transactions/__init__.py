"""mq-admin transactions: list and describe them, find and abort hanging ones, explain why readers wait.

Imports `cli.admin.common`, `cli.common` and `metaquorum.client`. I/O: the network through the
client, and the terminal. Start with `commands` (the list).
"""
