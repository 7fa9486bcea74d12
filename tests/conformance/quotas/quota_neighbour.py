"""Effect of a greedy client on a polite client, without and with a quota for the greedy one.

    python -m tests.conformance.quotas.quota_neighbour --seconds 20

Starts a node; a polite client that writes a small record and reads it back 50 times per second and
measures the latency; and producers (librdkafka) that send as much as they can. All are separate
processes. Three rounds: the polite client alone, with the greedy producers, and with the greedy
producers under a quota. The results are meaningful only on an idle machine with a CPU for each of
the three.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.conformance.clients import create
from tests.conformance.quotas.quota_rates import set_quota
from tests.hostile.honest import Client, there_and_back
from tests.nodes import ROOT, Node, unique

PERIOD_S = 0.02
VALUE_BYTES = 100
GREEDY_ID = "greedy"
GREEDY_RECORD_BYTES = 10_000
QUOTA = 1_000_000  # bytes per second
SETTLED_S = 2.0  # after the start of a round
# What is sent must not fill the disk.
SETTINGS = {
    "log.retention.check.interval.ms": 2000,
    "log.segment.delete.delay.ms": 500,
    "log.retention.bytes": 64 << 20,
    "log.segment.bytes": 32 << 20,
}


def polite(host: str, port: str, topic: str, seconds: str) -> None:
    """Run the polite client; prints the milliseconds of each exchange as JSON."""
    client, took_ms = Client(host, int(port)), []
    due_s = time.monotonic()
    until_s = due_s + float(seconds)
    while due_s < until_s:
        time.sleep(max(0.0, due_s - time.monotonic()))
        began_s = time.monotonic()
        there_and_back(client, topic, bytes(VALUE_BYTES))
        took_ms.append((time.monotonic() - began_s) * 1000)
        due_s = max(due_s + PERIOD_S, began_s)
    client.close()
    print(json.dumps(took_ms))


def greedy(bootstrap: str, topic: str, seconds: str) -> None:
    """Run a greedy producer; prints the acknowledged megabytes per second."""
    sent = 0
    began_s = time.monotonic()

    def acknowledged(error: object, message: object) -> None:
        nonlocal sent
        sent += 0 if error else GREEDY_RECORD_BYTES

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": GREEDY_ID,
            "linger.ms": 5,
            "queue.buffering.max.kbytes": 16_384,
            "log_level": 0,
        }
    )
    until_s = time.monotonic() + float(seconds)
    while time.monotonic() < until_s:
        try:
            producer.produce(topic, bytes(GREEDY_RECORD_BYTES), on_delivery=acknowledged)
        except BufferError:
            producer.poll(0.05)
        producer.poll(0)
    print(sent / 1e6 / (time.monotonic() - began_s))
    producer.purge()


def _begin(role: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.conformance.quotas.quota_neighbour", role]
    return subprocess.Popen(
        [*command, *map(str, arguments)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def one_round(bootstrap: str, seconds: float, greedy_count: int) -> dict[str, float]:
    """Return the latencies of the polite client, and the throughput of the others."""
    host, port = bootstrap.split(":")
    topic, much = create(bootstrap, unique("polite")), create(bootstrap, unique("much"))
    others = [_begin("greedy", bootstrap, much, seconds + SETTLED_S) for _ in range(greedy_count)]
    time.sleep(SETTLED_S)
    output, _ = _begin("polite", host, port, topic, seconds).communicate()
    took_ms = sorted(json.loads(output))
    moved_mb_per_s = sum(float(other.communicate()[0]) for other in others)
    return {
        "p50_ms": took_ms[len(took_ms) // 2],
        "p99_ms": took_ms[len(took_ms) * 99 // 100],
        "max_ms": took_ms[-1],
        "greedy_mb_per_s": moved_mb_per_s,
    }


def measure(bootstrap: str, seconds: float, greedy_count: int = 2) -> dict[str, Any]:
    found = {"alone": one_round(bootstrap, seconds, 0)}
    found["with a greedy client"] = one_round(bootstrap, seconds, greedy_count)
    set_quota(bootstrap, "--client-id", GREEDY_ID, f"producer_byte_rate={QUOTA}")
    found["with one under a quota"] = one_round(bootstrap, seconds, greedy_count)
    return found


def main() -> None:
    if sys.argv[1:2] in (["polite"], ["greedy"]):
        {"polite": polite, "greedy": greedy}[sys.argv[1]](*sys.argv[2:])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20, help="of each of the three rounds")
    parser.add_argument("--greedy", type=int, default=2, metavar="COUNT", help="producers at once")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder) / "node", SETTINGS)
        node.start()
        try:
            for what, figures in measure(
                node.bootstrap, arguments.seconds, arguments.greedy
            ).items():
                shown = "  ".join(f"{name} {value:.2f}" for name, value in figures.items())
                print(f"{what:24} {shown}")
        finally:
            node.stop()


if __name__ == "__main__":
    main()
