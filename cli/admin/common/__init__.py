"""What the commands of mq-admin share: settings, login, the session with a cluster.

Imports `cli.common` and `metaquorum.client`. I/O: the file of profiles, and the network through the
client. Start with `session`.
"""
