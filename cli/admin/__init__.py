"""mq-admin: one module for each group of commands, imported when a command is used.

Imports `metaquorum.cli.common` and `metaquorum.client`. I/O: the network through the client, and
the terminal. Start with `main` (the table of commands); `quotas` and `records` are groups of
several modules.
"""
