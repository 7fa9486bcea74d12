"""mq-admin quotas: set, show, explain, record and simulate quotas.

Imports `metaquorum.cli.admin.common` and, to simulate a quota, `metaquorum.dataplane.quotas`. I/O:
files and the network through the client. Start with `commands`.
"""
