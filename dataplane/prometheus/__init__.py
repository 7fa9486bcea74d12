"""Metrics for Prometheus: the catalogue of names, the collector, the HTTP endpoint.

Imports `handlers.unread_records`, `worker` and below; only `metaquorum.dataplane.node` and
`metaquorum.dataplane.worker_server` import it. Network I/O in `endpoint`, and through the worker
client in `group_lags`. Start with `catalog`: names and meanings are Kafka's where Kafka has them.
"""
