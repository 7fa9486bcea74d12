"""The commands: mq-server runs nodes, mq-admin administers clusters, and the demo.

Imports everything but `simulations`; nothing of ours imports it. I/O: files, processes and the
terminal. `server.main` and `admin.main` are the two programs; their commands are imported when they
are used.
"""
