"""mq-admin quotas: set, show, explain, record and simulate quotas.

Imports `cli.admin.common` and, to simulate a quota, `dataplane.quotas`. I/O: files and the
network through the client. Start with `commands`.
"""
