"""Common parts of the commands of mq-admin: the session with a cluster, and what several print.

Imports `metaquorum.cli.common` and `metaquorum.client`. I/O: the network through the client. Start
with `session`.
"""
