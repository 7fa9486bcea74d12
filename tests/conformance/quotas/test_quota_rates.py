"""Unmodified producers and consumers are held to their quotas."""

from tests.conformance.quotas.quota_neighbour import GREEDY_ID, QUOTA, one_round
from tests.conformance.quotas.quota_rates import REQUEST_BYTES, measure, set_quota
from tests.conftest import NewNode

RATE = 200_000
SECONDS = 8.0
WINDOWS_S = 2  # the window that may be used at once, and the one that goes on


def test_librdkafka_is_held_to_its_byte_rates(start_node: NewNode) -> None:
    # With one sample, which is also the least window, rates are even within a second.
    node = start_node({"quota.window.num": 1})
    for kind, moved in measure(node.bootstrap, SECONDS, RATE).items():
        assert moved.throttles, kind
        assert moved.most_ahead(RATE) <= WINDOWS_S * RATE + 2 * REQUEST_BYTES, kind
        # How near it comes depends on the machine's load; in simulated time it is exact.
        assert sum(size for _, size in moved.steps) >= SECONDS * RATE * 0.2, kind


def test_a_neighbour_is_served_while_a_greedy_client_waits(start_node: NewNode) -> None:
    """`python -m tests.conformance.quotas.quota_neighbour` says how well."""
    node = start_node({"quota.window.num": 1})
    set_quota(node.bootstrap, "--client-id", GREEDY_ID, f"producer_byte_rate={QUOTA}")
    seen = one_round(node.bootstrap, 2.0, 1)
    assert 0 < seen["greedy_mb_per_s"] < 2 * QUOTA / 1e6
    assert seen["p50_ms"] < 5000
