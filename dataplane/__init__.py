"""A worker (Kafka's broker): listeners, partition logs, replication, and the client APIs.

Imports `metaquorum` and `wire`; may be imported by `cli` and `simulations`. I/O only through the
interfaces of `metaquorum.runtime`. Packages, each of which may import those before it:
`scheduling`, `instruments`, `quotas`, `log`, `config`, `partition`, `network`, `fetch`,
`replication`, `worker`, `handlers`, then `prometheus` and `maintenance`, which do not import each
other. Start with `node` (one process) and `worker_server` (its worker role).
"""
