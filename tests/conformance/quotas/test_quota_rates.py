"""Unmodified producers and consumers are limited by their quotas."""

import contextlib

from confluent_kafka import Producer

from tests.conformance.clients import create
from tests.conformance.quotas.quota_rates import REQUEST_BYTES, Moved, measure, set_quota
from tests.conftest import NewNode
from tests.hostile.honest import Client, there_and_back
from tests.nodes import PATIENCE_S, unique, wait_until

RATE = 200_000
ENOUGH_S = 5  # seconds of the rate that each client transfers
WINDOWS_S = 2  # the burst of the window, and the current window


def test_librdkafka_is_held_to_its_byte_rates(start_node: NewNode) -> None:
    """How long it takes depends on the machine; it is exact in simulated time."""
    # With one sample, which is also the smallest window, rates are even within a second.
    node = start_node({"quota.window.num": 1})

    def is_enough(passed_s: float, moved: Moved) -> bool:
        assert passed_s < PATIENCE_S, moved.size_bytes
        return moved.size_bytes >= ENOUGH_S * RATE

    for kind, moved in measure(node.bootstrap, RATE, 2 * ENOUGH_S * RATE, is_enough).items():
        assert moved.throttles, kind
        assert moved.most_ahead(RATE) <= WINDOWS_S * RATE + 2 * REQUEST_BYTES, kind


def test_a_neighbour_is_served_while_a_greedy_client_waits(start_node: NewNode) -> None:
    """`quota_neighbour` measures the latencies of the neighbour."""
    node = start_node({"quota.window.num": 1})
    topic, much = create(node.bootstrap, unique("polite")), create(node.bootstrap, unique("much"))
    greedy_id, record_bytes = unique("greedy"), 500_000
    # The first record mutes the client for nine minutes, longer than this test may last.
    set_quota(node.bootstrap, "--client-id", greedy_id, "producer_byte_rate=900")
    throttled: list[object] = []
    greedy = Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "client.id": greedy_id,
            "linger.ms": 0,
            "throttle_cb": throttled.append,
        }
    )
    greedy.produce(much, bytes(record_bytes))
    wait_until(lambda: greedy.poll(0.01) >= 0 and throttled, what="an answer with a throttle time")
    greedy.produce(much, bytes(record_bytes))
    greedy.poll(0)
    host, port = node.bootstrap.split(":")
    with contextlib.closing(Client(host, int(port))) as polite:
        for _ in range(50):
            there_and_back(polite, topic, bytes(100))
    greedy.poll(0)
    assert len(greedy) == 1, "the second record was acknowledged"
    greedy.purge()
