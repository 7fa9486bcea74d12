"""mq-admin groups: list and describe consumer groups, show their lag, reset and delete offsets.

Imports `metaquorum.cli.admin.common`, `metaquorum.cli.common` and `metaquorum.client`. I/O: the
network through the client, the terminal, and the file of `reset --from-file`. Start with `commands`
(the list).
"""
