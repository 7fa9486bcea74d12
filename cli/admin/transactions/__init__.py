"""mq-admin transactions: list, describe and explain them; find and abort hanging ones.

Imports `metaquorum.cli.admin.common`, `metaquorum.cli.common` and `metaquorum.client`. I/O: the
network through the client, and the terminal. Start with `commands` (the list).
"""
