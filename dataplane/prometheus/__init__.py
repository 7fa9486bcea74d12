"""Metrics for Prometheus: the catalogue of names, the collector, the HTTP endpoint.

Imports `worker` and below; only `dataplane.node` and `dataplane.worker_server` import it. Network
I/O in `endpoint` only. Start with `catalog`: names and meanings are Kafka's where Kafka has them.
"""
