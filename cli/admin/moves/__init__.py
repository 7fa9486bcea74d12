"""mq-admin moves: start, watch, explain and change plans of moves of partitions.

Imports `metaquorum.cli.admin.common`, `metaquorum.cli.common`, `metaquorum.metadata.moves` and
`metaquorum.client`. I/O: the network through the client, a file of a plan, and the terminal. Start
with `commands` (the list).
"""
