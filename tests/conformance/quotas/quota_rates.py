"""Throughput of an unmodified librdkafka under a quota: for a test, and for longer manual runs.

    python -m tests.conformance.quotas.quota_rates --seconds 33

Starts a node, sets quotas of 1 MB/s for a producer and a consumer, and prints the bytes that each
transferred in that time, from the first record on, as a share of its quota.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.conformance.clients import create
from tests.nodes import Node, unique

RECORD_BYTES = 4_000
REQUEST_BYTES = 16_000
RATE = 1_000_000


@dataclass
class Moved:
    """Seconds since the client started, and the bytes transferred by then."""

    steps: list[tuple[float, int]] = field(default_factory=list)
    throttles: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.steps)

    def between(self, begin_s: float, end_s: float) -> float:
        """Return the bytes per second."""
        return sum(size for at, size in self.steps if begin_s <= at < end_s) / (end_s - begin_s)

    def most_ahead(self, rate: float) -> float:
        """Return the largest number of bytes above `rate` times the time since the client started.

        A paused client counts bytes late and never early, so the node let at least this number
        pass.
        """
        total, most = 0, 0.0
        for at, size in self.steps:
            total += size
            most = max(most, total - rate * at)
        return most


def set_quota(bootstrap: str, *arguments: str) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "metaquorum.cli.admin.main",
            "--bootstrap",
            bootstrap,
            "quotas",
            "set",
            *arguments,
        ],
        check=True,
        capture_output=True,
    )


# Returns whether a client has transferred enough; its seconds since the start are given.
Enough = Callable[[float, Moved], bool]


def produce(bootstrap: str, topic: str, client_id: str, is_enough: Enough) -> Moved:
    """Return the acknowledged bytes over time, of a producer that always has more records."""
    moved, began = Moved(), time.monotonic()

    def acknowledged(error: object, message: object) -> None:
        assert error is None, error
        moved.steps.append((time.monotonic() - began, RECORD_BYTES))

    def throttled(event: object) -> None:
        moved.throttles += 1

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "batch.size": REQUEST_BYTES,
            "linger.ms": 5,
            "queue.buffering.max.messages": 100,
            "max.in.flight": 1,
            "throttle_cb": throttled,
        }
    )
    while not is_enough(time.monotonic() - began, moved):
        try:
            producer.produce(topic, bytes(RECORD_BYTES), on_delivery=acknowledged)
        except BufferError:
            producer.poll(0.05)
        producer.poll(0)
    producer.purge()  # drop the remaining records
    return moved


def consume(bootstrap: str, topic: str, client_id: str, is_enough: Enough) -> Moved:
    """Return the consumed bytes over time, from the beginning of a topic that has more records."""
    moved = Moved()

    def throttled(event: object) -> None:
        moved.throttles += 1

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "group.id": client_id,
            "enable.auto.commit": False,
            "fetch.message.max.bytes": REQUEST_BYTES,
            "check.crcs": True,
            "throttle_cb": throttled,
        }
    )
    began = time.monotonic()
    consumer.assign([TopicPartition(topic, 0, 0)])
    while not is_enough(time.monotonic() - began, moved):
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            moved.steps.append((time.monotonic() - began, len(message.value())))
    consumer.close()
    return moved


def fill(bootstrap: str, topic: str, size_bytes: int) -> None:
    """Fill a topic with batches slightly larger than a fetch: each response has one batch."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "filler",
            "batch.num.messages": REQUEST_BYTES // RECORD_BYTES,
            "linger.ms": 1000,
        }
    )
    for _ in range(size_bytes // RECORD_BYTES):
        producer.produce(topic, bytes(RECORD_BYTES))
        producer.poll(0)
        if len(producer) > 10_000:
            producer.flush()
    producer.flush()


def measure(bootstrap: str, rate: int, size_bytes: int, is_enough: Enough) -> dict[str, Moved]:
    """Measure both at the same time, each with its own quota.

    `size_bytes`: more than the consumer transfers until `is_enough`.
    """
    full, topic = create(bootstrap, unique("full")), create(bootstrap, unique("empty"))
    fill(bootstrap, full, size_bytes)
    moved: dict[str, Moved] = {}
    work: dict[str, Callable[[str], Moved]] = {
        "producer": lambda client_id: produce(bootstrap, topic, client_id, is_enough),
        "consumer": lambda client_id: consume(bootstrap, full, client_id, is_enough),
    }

    def run(kind: str, client_id: str) -> None:
        moved[kind] = work[kind](client_id)

    threads = []
    for kind in work:
        client_id = unique(kind)
        set_quota(bootstrap, "--client-id", client_id, f"{kind}_byte_rate={rate}")
        threads.append(threading.Thread(target=run, args=(kind, client_id)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return moved


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=33)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder) / "node")
        node.start()
        try:
            seconds = arguments.seconds + 2
            size_bytes = int(RATE * (seconds + 15))
            for kind, moved in measure(
                node.bootstrap, RATE, size_bytes, lambda passed_s, _: passed_s >= seconds
            ).items():
                first = moved.steps[0][0]
                share = moved.between(first, first + arguments.seconds) / RATE
                print(
                    f"{kind}: {100 * share:.1f} % of its quota, {moved.throttles} throttle events"
                )
        finally:
            node.stop()


if __name__ == "__main__":
    main()
