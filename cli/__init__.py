"""Command line programs: mq-server (nodes), mq-admin (administration), mq-load, and the demos.

May import all packages except `simulations`; no other package imports it. I/O: files, processes
and the terminal. Start with `server.main` and `admin.main`; a command's module is imported when the
command is used.
"""
