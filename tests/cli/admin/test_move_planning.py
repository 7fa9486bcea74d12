"""The throttle of a plan in clusters whose workers describe all, some or none of their limits."""

from metaquorum.cli.admin.moves.options import ThrottleChoice
from metaquorum.cli.admin.moves.planning import priced
from metaquorum.client.move_plans.measuring import limits_of
from metaquorum.metadata.moves.cluster_state import ClusterState, PartitionState, WorkerState
from metaquorum.metadata.moves.estimate import Estimate
from metaquorum.metadata.moves.plan import PartitionMove, Plan

OLDER = {"replica.fetch.response.max.bytes": 10 << 20}
NEWER = OLDER | {"replication.quota.window.num": 11, "replication.quota.window.size.seconds": 1}
NETWORK = NEWER | {"network.bytes.per.second": 1000}
PROPOSED = ThrottleChoice(None, False, None, None, 0)


def plan_of(*described: dict[str, int], chosen: ThrottleChoice = PROPOSED) -> Estimate:
    partition = PartitionState("t", 0, (1,), 1, 1000)
    state = ClusterState((WorkerState(1), WorkerState(2)), (partition,))
    plan = Plan((PartitionMove("t", 0, (1,), (2,), 1000),))
    return priced(state, plan, chosen, limits_of(described))


def test_a_throttle_is_proposed_from_the_workers_that_describe_their_limits() -> None:
    assert plan_of(NEWER, NEWER).throttle_bytes_per_s == 953_251
    assert plan_of({}, OLDER, NEWER).throttle_bytes_per_s == 953_251
    assert plan_of(OLDER, NETWORK).throttle_bytes_per_s == 500
    assert not plan_of({}, NEWER).warnings


def test_no_throttle_is_proposed_if_no_worker_describes_its_limits() -> None:
    for described in ((), ({}, {}), (OLDER, OLDER)):
        found = plan_of(*described)
        assert (found.throttle_bytes_per_s, found.move_time_s, found.refusal) == (None, None, None)
        (warning,) = found.warnings
        assert warning.startswith("No throttle is proposed: no worker describes its configs")


def test_a_chosen_throttle_needs_no_limits() -> None:
    for chosen, throttle in (
        (ThrottleChoice(700, False, None, None, 0), 700),
        (ThrottleChoice(None, False, 2.0, None, 0), 500),
        (ThrottleChoice(None, True, None, None, 0), None),
    ):
        found = plan_of({}, chosen=chosen)
        assert (found.throttle_bytes_per_s, found.warnings) == (throttle, ())
