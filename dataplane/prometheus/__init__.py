"""Metrics for Prometheus: the catalogue of names, the collector, the HTTP endpoint.

Imports `worker` and below; nothing imports it but the worker's start. Network I/O in `endpoint`
only. Names and meanings are Kafka's where Kafka has them (`catalog`).
"""
