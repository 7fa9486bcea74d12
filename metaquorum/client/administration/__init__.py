"""Administration of a cluster by a client: topics, configs, quotas, users, workers, health.

Imports `metaquorum.client.usage` and the connections of `metaquorum.client`. I/O: the network
through the client. Start with `admin`.
"""
