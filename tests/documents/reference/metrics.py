"""Metrics for Prometheus, from `metaquorum.dataplane.prometheus.catalog`."""

from metaquorum.dataplane.prometheus.catalog import METRICS
from tests.documents.reference.markdown import code, prose, table


def page() -> str:
    rows = [
        (
            code(one.name),
            one.kind.value,
            ", ".join(map(code, one.labels)) or "-",
            prose(one.help),
        )
        for one in METRICS.values()
    ]
    return f"""# Metrics

A node with `metrics.listen` serves these at `/metrics` for Prometheus; [Watch nodes with
Prometheus](../howto/watch-with-prometheus.md) says how. A metric of Kafka has the name that Kafka's
MBean gets by the rules that come with Prometheus' JMX exporter, in lower case; its meaning is
Kafka's. Other names begin with `metaquorum_`.

{table(("Metric", "Type", "Labels", "Value"), rows)}"""
