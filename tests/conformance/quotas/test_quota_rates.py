"""Unmodified producers and consumers are limited by their quotas."""

from tests.conformance.quotas.quota_neighbour import GREEDY_ID, QUOTA, one_round
from tests.conformance.quotas.quota_rates import REQUEST_BYTES, measure, set_quota
from tests.conftest import NewNode

RATE = 200_000
SECONDS = 8.0
WINDOWS_S = 2  # the burst of the window, and the current window


def test_librdkafka_is_held_to_its_byte_rates(start_node: NewNode) -> None:
    # With one sample, which is also the smallest window, rates are even within a second.
    node = start_node({"quota.window.num": 1})
    for kind, moved in measure(node.bootstrap, SECONDS, RATE).items():
        assert moved.throttles, kind
        assert moved.most_ahead(RATE) <= WINDOWS_S * RATE + 2 * REQUEST_BYTES, kind
        # The deviation depends on the load of the machine; it is exact in simulated time.
        assert sum(size for _, size in moved.steps) >= SECONDS * RATE * 0.2, kind


def test_a_neighbour_is_served_while_a_greedy_client_waits(start_node: NewNode) -> None:
    """`quota_neighbour` measures the latencies."""
    node = start_node({"quota.window.num": 1})
    set_quota(node.bootstrap, "--client-id", GREEDY_ID, f"producer_byte_rate={QUOTA}")
    seen = one_round(node.bootstrap, 2.0, 1)
    assert 0 < seen["greedy_mb_per_s"] < 2 * QUOTA / 1e6
    assert seen["p50_ms"] < 5000
