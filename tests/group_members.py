"""Consumers of other projects as members of groups, for tests of what the coordinator shows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import confluent_kafka

from tests.nodes import PATIENCE_S, wait_until


@contextmanager
def member(
    bootstrap: str, group: str, topics: Sequence[str], client_id: str = "app", **config: object
) -> Iterator[confluent_kafka.Consumer]:
    """Yield a consumer that is the only member of its group, with its partitions assigned."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": client_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 2,
        }
        | {name.replace("_", "."): value for name, value in config.items()}
    )
    try:
        consumer.subscribe(list(topics))
        wait_until(lambda: consumer.poll(0.01) is None and consumer.assignment(), PATIENCE_S)
        yield consumer
    finally:
        consumer.close()
