"""Unmodified producers and consumers are held to their quotas."""

from tests.conformance.quota_neighbour import GREEDY_ID, QUOTA, one_round
from tests.conformance.quota_rates import RATE, measure, set_quota
from tests.conftest import NewNode

WARM_UP_S = 1.5
MEASURED_S = 8.0


def test_librdkafka_is_held_to_its_byte_rates(start_node: NewNode) -> None:
    # With one sample, which is also the least window, rates are even within a second.
    node = start_node({"quota.window.num": 1})
    for kind, moved in measure(node.bootstrap, WARM_UP_S + MEASURED_S + 0.5).items():
        assert moved.throttles, kind
        first = moved.steps[0][0] + WARM_UP_S
        rate = moved.between(first, first + MEASURED_S)
        assert rate <= RATE * 1.05, kind
        # How near it comes depends on the machine's load; in simulated time it is exact.
        assert rate >= RATE * 0.5, kind


def test_a_neighbour_is_served_while_a_greedy_client_waits(start_node: NewNode) -> None:
    """How well, `python -m tests.conformance.quota_neighbour` says, on a machine of its own."""
    node = start_node({"quota.window.num": 1})
    set_quota(node.bootstrap, "--client-id", GREEDY_ID, f"producer_byte_rate={QUOTA}")
    seen = one_round(node.bootstrap, 2.0, 1)
    assert 0 < seen["greedy_mb_per_s"] < 2 * QUOTA / 1e6
    assert seen["p50_ms"] < 1000
