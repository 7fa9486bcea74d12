"""Unmodified producers and consumers are held to their quotas."""

from tests.conformance.quota_rates import RATE, measure
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
