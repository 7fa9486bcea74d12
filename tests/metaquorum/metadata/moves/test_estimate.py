"""The worked numbers and the test plan of KIP-73, and the estimate by worker."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.config.resolution import WorkerLayers
from metaquorum.metadata.moves.cluster_state import (
    ClusterState,
    PartitionState,
    WorkerState,
    measured_rates,
)
from metaquorum.metadata.moves.estimate import (
    Limits,
    estimate,
    largest_response_bytes,
    move_ratio,
    move_time_s,
    throttle_bounds,
    throttle_within,
    worker_traffic,
)
from metaquorum.metadata.moves.plan import PartitionMove, Plan, PlanError

MB = 1_000_000
GB = 1000 * MB
UNKNOWN = Limits()
DEFAULTS = Limits(None, 10 << 20, 11)


# The proposal's own numbers


def test_question_5_a_gigabit_network_of_5_nodes() -> None:
    """ "the largest permissible replica.fetch.response.max.bytes would be 1MB/s * 10s = 10MB" """
    assert largest_response_bytes(MB, 10, 5, 100 * MB) == 10 * MB
    # "Note that this calculation is independent of the number of brokers."
    for workers in (1, 2, 5, 50, 100):
        assert largest_response_bytes(MB, 10, workers, 100 * MB) == 10 * MB
    assert largest_response_bytes(MB, 10) == 10 * MB


def test_question_5_a_gigabit_network_of_500_nodes() -> None:
    """ "total-window-size * NetworkSpeed / #brokers = 10s * 100MB/s / 500 = 2MB" """
    assert largest_response_bytes(MB, 10, 500, 100 * MB) == 2 * MB


def test_the_default_response_supports_throttles_over_1_mb() -> None:
    """ "the default value, of 10MB, is small enough to support leader quotas over 1MB/s" """
    configs = WorkerLayers().worker_configs()
    window = ("replication.quota.window.num", "replication.quota.window.size.seconds")
    samples, sample_s = (configs.integer(name) for name in window)
    # "By default the total window is 11 x 1s and replica.fetch.response.max.bytes = 10MB."
    assert (samples, sample_s) == (11, 1)
    assert configs.integer("replica.fetch.response.max.bytes") == 10 << 20
    window_s = samples * sample_s
    assert largest_response_bytes(MB, window_s) >= 10 << 20
    assert largest_response_bytes(0.9 * MB, window_s) < 10 * MB


def test_question_1_a_throttle_of_30_percent_costs_clients_30_percent() -> None:
    state, plan = moved_to_one_other(leads=0.0)
    found = estimate(state, plan, 30 * MB, Limits(network_bytes_per_s=100 * MB))
    assert found.network_share == pytest.approx(0.3)
    assert estimate(state, plan, 30 * MB, UNKNOWN).network_share is None


def test_question_1_the_move_ratio_and_the_move_time() -> None:
    assert move_ratio(25, 100) == 0.25
    assert move_ratio(0, 0) == 0
    # MoveRatio x TotalLogSizePerBroker x #Brokers / (replication-quota - max(BytesInPerSec))
    assert move_time_s(0.25, 40 * GB, 5, 12 * MB, 2 * MB) == 5000
    # "(replication-quota - max(BytesInPerSec)) -> 0": it never ends
    assert move_time_s(0.25, 40 * GB, 5, 2 * MB + 1, 2 * MB) == 50 * GB
    assert move_time_s(0.25, 40 * GB, 5, 2 * MB, 2 * MB) == inf
    assert move_time_s(0.25, 40 * GB, 5, MB, 2 * MB) == inf
    assert move_time_s(0, 40 * GB, 5, MB, 2 * MB) == 0


def test_question_4_the_bounds_of_a_throttle() -> None:
    """ "IN < T < N - IN/R" """
    assert throttle_bounds(6 * MB, 100 * MB, 3) == (6 * MB, 98 * MB)


# The proposal's test plan: 100 partitions


def cluster(workers: int, partitions: list[PartitionState]) -> ClusterState:
    return ClusterState(
        tuple([WorkerState(each) for each in range(1, workers + 1)]), tuple(partitions)
    )


def partition(index: int, replicas: tuple[int, ...], leads: float = 0.0) -> PartitionState:
    return PartitionState("p", index, replicas, replicas[0], 10 * MB, leads)


def moved(state: ClusterState, *targets: tuple[int, ...]) -> Plan:
    """Return the plan that moves the partitions to the targets, in turn."""
    moves = [
        PartitionMove(
            each.topic, each.partition, each.replicas, targets[at % len(targets)], each.size_bytes
        )
        for at, each in enumerate(state.partitions)
    ]
    return Plan(tuple(moves))


def moved_to_one_other(leads: float) -> tuple[ClusterState, Plan]:
    state = cluster(2, [partition(index, (1,), leads) for index in range(100)])
    return state, moved(state, (2,))


@pytest.mark.parametrize(("inbound", "seconds"), [(0, 100), (2 * MB, 125)])
def test_two_nodes_move_at_the_rate_minus_the_inbound_rate(inbound: int, seconds: int) -> None:
    state, plan = moved_to_one_other(inbound / 100)
    found = estimate(state, plan, 10 * MB, UNKNOWN)
    assert found.copied_bytes == GB
    assert found.move_ratio == 1
    assert found.move_time_s == pytest.approx(seconds)
    assert found.kip73_time_s == pytest.approx(seconds)
    assert found.refusal is None


@pytest.mark.parametrize(("inbound", "seconds"), [(0, 100), (2 * MB, 125)])
def test_one_node_sends_to_two_others_at_its_rate(inbound: int, seconds: int) -> None:
    state = cluster(3, [partition(index, (1,), inbound / 100) for index in range(100)])
    found = estimate(state, moved(state, (2,), (3,)), 10 * MB, UNKNOWN)
    assert found.move_time_s == pytest.approx(seconds)
    assert found.slowest_worker == 1


@pytest.mark.parametrize(("inbound", "seconds"), [(0, 100), (2 * MB, 125)])
def test_one_node_receives_from_two_others_at_its_rate(inbound: int, seconds: int) -> None:
    state = cluster(3, [partition(index, (1 + index % 2,), inbound / 100) for index in range(100)])
    found = estimate(state, moved(state, (3,)), 10 * MB, UNKNOWN)
    assert found.move_time_s == pytest.approx(seconds)
    assert found.slowest_worker == 3


def test_a_bootstrapping_worker_takes_replicas_of_two_others() -> None:
    """The throttle of a plan counts what is sent to the new replica, not to the one in sync."""
    state = cluster(3, [partition(index, (1, 2), 10_000.0) for index in range(100)])
    traffic = worker_traffic(state, moved(state, (1, 3)))
    assert traffic[3].received_keep_up == pytest.approx(MB)
    assert traffic[1].sent_keep_up == pytest.approx(MB)
    assert traffic[2].time_s(10 * MB) == 0
    found = estimate(state, moved(state, (1, 3)), 10 * MB, UNKNOWN)
    assert found.move_time_s == pytest.approx(GB / (9 * MB))
    assert found.keep_up == pytest.approx(MB)


def test_a_large_partition_takes_longer_than_the_proposal_says() -> None:
    large = PartitionState("p", 0, (1,), 1, 10 * MB, 0.0)
    small = [PartitionState("p", index, (1,), 1, 0, 0.0) for index in range(1, 10)]
    state = cluster(2, [large, *small])
    plan = Plan((PartitionMove("p", 0, (1,), (2,), 10 * MB),))
    found = estimate(state, plan, MB, UNKNOWN)
    assert found.move_time_s == pytest.approx(10)
    assert found.kip73_time_s == pytest.approx(1), "an average, and not a bound"


def test_a_replica_that_only_leaves_costs_nothing() -> None:
    state = cluster(2, [partition(0, (1, 2), MB)])
    found = estimate(state, moved(state, (2,)), 1, UNKNOWN)
    assert (found.copied_bytes, found.move_time_s, found.refusal) == (0, 0.0, None)
    assert found.warnings == ()


# Refusals, proposals and warnings


def test_a_throttle_at_the_inbound_rate_is_refused_with_the_reason() -> None:
    state, plan = moved_to_one_other(leads=20_000)
    for throttle in (MB, 2 * MB):
        found = estimate(state, plan, throttle, DEFAULTS)
        assert found.move_time_s == inf
        assert found.refusal is not None
        assert found.refusal.startswith(
            f"With a throttle of {throttle:,} B/s the move never ends: worker 1 sends 2,000,000 B/s"
        )
    assert found.proposed_bytes_per_s == 4 * MB
    assert estimate(state, plan, 2 * MB + 1, UNKNOWN).refusal is None


def test_the_refusal_names_the_worker_that_receives() -> None:
    state = cluster(3, [partition(0, (1,), MB), partition(1, (2,), MB)])
    found = estimate(state, moved(state, (3,)), 2 * MB, UNKNOWN)
    assert found.refusal is not None
    assert "to the partitions that worker 3 receives" in found.refusal


def test_the_proposal_is_the_middle_of_the_bounds() -> None:
    state, plan = moved_to_one_other(leads=20_000)
    found = estimate(state, plan, None, Limits(network_bytes_per_s=10 * MB))
    assert (found.lower_bound, found.upper_bound) == (2 * MB, 8 * MB)
    assert found.proposed_bytes_per_s == 5 * MB
    assert (found.move_time_s, found.kip73_time_s) == (None, None)


def test_no_throttle_is_proposed_if_the_network_has_no_room() -> None:
    state, plan = moved_to_one_other(leads=20_000)
    found = estimate(state, plan, None, Limits(network_bytes_per_s=3 * MB))
    assert found.proposed_bytes_per_s is None
    assert "move fewer partitions at a time" in found.warnings[0]


@pytest.mark.parametrize("leads", [0, 3, 20_000])
def test_no_throttle_is_proposed_if_no_worker_describes_its_limits(leads: float) -> None:
    """Producers may write little or nothing while it is measured: 1 B/s would never finish."""
    state, plan = moved_to_one_other(leads)
    for limits in (UNKNOWN, Limits(None, 10 << 20, None), Limits(None, None, 11)):
        assert estimate(state, plan, None, limits).proposed_bytes_per_s is None
    assert (estimate(state, plan, None, DEFAULTS).proposed_bytes_per_s or 0) >= 953_251


def test_the_response_size_is_checked_and_the_config_named() -> None:
    state, plan = moved_to_one_other(leads=0)
    limits = DEFAULTS
    (warning,) = estimate(state, plan, 500_000, limits).warnings
    assert "Set replica.fetch.response.max.bytes=5500000 on all workers, or choose" in warning
    assert "a throttle of at least 953,251 B/s" in warning
    assert estimate(state, plan, 953_251, limits).warnings == ()
    assert estimate(state, plan, None, limits).proposed_bytes_per_s == 953_251
    (warning,) = estimate(state, plan, 953_251, replace(limits, network_bytes_per_s=MB)).warnings
    assert "=5500000 on all workers: the network" in warning


def test_a_throttle_outside_the_bounds_is_warned_about() -> None:
    state = cluster(3, [partition(0, (1,), MB), partition(1, (2,), MB)])
    state = replace(state, partitions=(*state.partitions, partition(2, (2,), 3 * MB)))
    plan = Plan((PartitionMove("p", 0, (1,), (2,), 10 * MB),))
    (warning,) = estimate(state, plan, 2 * MB, UNKNOWN).warnings
    assert "not above the 5,000,000 B/s that producers write to all replicas of worker 2" in warning
    (warning,) = estimate(state, plan, 15 * MB, Limits(20 * MB)).warnings
    assert "not below N - IN/R = 15,000,000 B/s" in warning


def test_a_worker_without_room_for_its_copies_is_warned_about() -> None:
    state, plan = moved_to_one_other(leads=0.0)
    for free_bytes, is_warned in ((None, False), (GB, False), (GB - 1, True), (0, True)):
        workers = (state.workers[0], replace(state.workers[1], free_bytes=free_bytes))
        warnings = estimate(replace(state, workers=workers), plan, None, UNKNOWN).warnings
        if not is_warned:
            assert warnings == ()
            continue
        (warning,) = warnings
        assert warning.startswith(
            f"Worker 2 receives 1,000,000,000 bytes, and its log directories have {free_bytes:,} "
        )


def test_the_throttle_for_a_time() -> None:
    state, plan = moved_to_one_other(leads=20_000)
    traffic = list(worker_traffic(state, plan).values())
    assert throttle_within(traffic, 125) == 10 * MB
    assert throttle_within([], 125) == 1
    for seconds in (1e-12, 5e-324):
        with pytest.raises(PlanError, match="no throttle is high enough for this time"):
            throttle_within(traffic, seconds)


def test_a_plan_for_another_cluster_is_refused() -> None:
    state = cluster(2, [partition(0, (1,))])
    with pytest.raises(PlanError, match="q-0 does not exist"):
        estimate(state, Plan((PartitionMove("q", 0, (1,), (2,)),)), 1, UNKNOWN)
    with pytest.raises(PlanError, match="p-0: there is no worker 7"):
        estimate(state, Plan((PartitionMove("p", 0, (1,), (7,)),)), 1, UNKNOWN)


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 10**6)), min_size=1, max_size=8),
    st.integers(1, 10**8),
    st.integers(1, 10**5),
)
def test_a_throttle_is_refused_exactly_if_the_move_does_not_end(
    partitions: list[tuple[int, float]], throttle: int, seconds: int
) -> None:
    state = cluster(
        3,
        [
            PartitionState("p", at, (1 + at % 2,), None, size, rate)
            for at, (size, rate) in enumerate(partitions)
        ],
    )
    plan = moved(state, (3,), (2,))
    found = estimate(state, plan, throttle, UNKNOWN)
    assert (found.refusal is None) == (found.move_time_s != inf)
    proposed = estimate(state, plan, throttle, DEFAULTS).proposed_bytes_per_s
    if proposed is not None:
        assert estimate(state, plan, proposed, UNKNOWN).refusal is None
    traffic = list(worker_traffic(state, plan).values())
    enough = throttle_within(traffic, seconds)
    time_s = estimate(state, plan, enough, UNKNOWN).move_time_s
    assert time_s is not None
    assert time_s <= seconds * 1.001 + 0.001


# Measured rates


def test_rates_leave_out_the_intervals_in_which_retention_deleted() -> None:
    where = ("p", 0)
    sizes = [1000, 1500, 200, 700]
    samples = [(float(at), {where: size}) for at, size in enumerate(sizes)]
    assert measured_rates(samples) == {where: 500.0}


def test_a_log_that_only_shrinks_or_is_new_has_no_rate() -> None:
    samples = [(0.0, {("p", 0): 5}), (1.0, {("p", 0): 3, ("p", 1): 7})]
    assert measured_rates(samples) == {}
    assert measured_rates([]) == {}
