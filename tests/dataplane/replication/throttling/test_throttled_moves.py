"""The test plan of KIP-73 among whole nodes, in virtual time: many partitions of two replicas."""

from functools import partial

import pytest
import trio

from metaquorum.dataplane.quotas.replication_quota import CREDIT_S
from metaquorum.metadata.moves.cluster_state import ClusterState, PartitionState, WorkerState
from metaquorum.metadata.moves.estimate import Limits, estimate
from metaquorum.metadata.moves.plan import PartitionMove, Plan
from metaquorum.wire.messages.start_move_plan import (
    PlannedPartition,
    PlannedTopic,
    StartMovePlanRequest,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.replication.throttling.experiment import (
    BATCH_BYTES,
    PARTITIONS,
    RATE,
    SMALL,
    Experiment,
    Moves,
)
from tests.dataplane.replication.together import NODES, Together, run_together, together

# Two workers: the second replica of each partition.
ONE_TO_ONE: Moves = (((1,), (1, 2)),)
# From worker 1 to both others, which have a replica of half the partitions already.
ONE_TO_TWO: Moves = (((1, 2), (3, 2)), ((1, 3), (2, 3)))
# To worker 3 from workers 1 and 2, which keep what they lead.
TWO_TO_ONE: Moves = (((1, 2), (1, 3)), ((2, 1), (2, 3)))
BATCHES = 28  # in each partition
SIZE_BYTES = BATCHES * BATCH_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moves", "limiting", "fetched", "inbound"),
    [
        pytest.param(ONE_TO_ONE, ("leader", 1), 1, 0, id="two workers, no producers"),
        pytest.param(ONE_TO_ONE, ("leader", 1), 1, RATE // 5, id="two workers"),
        # Each new record is sent twice: to the replica that is in sync, and to the new one.
        pytest.param(ONE_TO_TWO, ("leader", 1), 2, RATE // 5, id="one to two"),
        pytest.param(TWO_TO_ONE, ("follower", 3), 1, RATE // 5, id="two to one"),
    ],
)
@together(**SMALL)
async def test_replicas_move_at_the_rate_of_the_quota_less_the_inbound_rate(
    cluster: Together, moves: Moves, limiting: tuple[str, int], fetched: int, inbound: int
) -> None:
    """`fetched`: how often the limiting side counts each record that producers write."""
    experiment = Experiment(cluster, *moves)
    await experiment.fill(BATCHES)
    async with trio.open_nursery() as nursery:
        if inbound:
            nursery.start_soon(partial(experiment.produce, inbound))
        await experiment.throttle(RATE)
        await experiment.start()
        began = cluster.world.now
        await cluster.world.sleep(11)  # the first window
        throttled, caught_up, produced = await experiment.rates(20)
        # Late responses are made up, within the limit of the quota.
        made_up = CREDIT_S * RATE / 20
        assert throttled[limiting] == pytest.approx(RATE, abs=made_up)
        assert max(throttled.values()) <= RATE + made_up
        assert produced == pytest.approx(inbound, rel=0.01)
        assert caught_up == pytest.approx(RATE - fetched * inbound, abs=made_up)
        # Replicas in sync are throttled, too, but not held back (KAFKA-4313).
        assert experiment.earlier_replicas_are_in_sync()
        if moves is ONE_TO_TWO:  # both followers get their share of the leader's rate
            assert throttled["follower", 2] == pytest.approx(throttled["follower", 3], rel=0.1)
        await cluster.until(experiment.has_moved, 100)
        took_s = cluster.world.now - began
        nursery.cancel_scope.cancel()
    move_time_s = PARTITIONS * SIZE_BYTES / (RATE - fetched * inbound)
    assert took_s == pytest.approx(move_time_s, rel=0.06)
    assert experiment.lag() == 0


@pytest.mark.slow
@pytest.mark.parametrize("moves", [ONE_TO_TWO, TWO_TO_ONE], ids=["one to two", "two to one"])
def test_a_plan_keeps_its_throttle_and_its_estimate(moves: Moves) -> None:
    inbound = RATE // 5

    async def scenario(cluster: Together) -> None:
        experiment = Experiment(cluster, *moves)
        await experiment.fill(BATCHES)
        state = ClusterState(
            tuple([WorkerState(each) for each in NODES]),
            tuple(
                [
                    PartitionState("t", n, before, before[0], SIZE_BYTES, inbound / PARTITIONS)
                    for n, (before, _) in experiment.moves.items()
                ]
            ),
        )
        plan = Plan(
            tuple(
                [
                    PartitionMove("t", n, before, after, SIZE_BYTES)
                    for n, (before, after) in experiment.moves.items()
                ]
            )
        )
        expected = estimate(state, plan, RATE, Limits())
        assert expected.move_time_s is not None
        rows = [
            PlannedPartition(partition_index=n, replicas=list(after), size_bytes=SIZE_BYTES)
            for n, (_, after) in experiment.moves.items()
        ]
        request = StartMovePlanRequest(
            rate_bytes_per_s=RATE, topics=[PlannedTopic(name="t", partitions=rows)]
        )
        client = await cluster.connect(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(experiment.produce, inbound))
            began = cluster.world.now
            answer = await client.call(ApiKey.START_MOVE_PLAN, request)
            assert answer.error_code == ErrorCode.NONE
            await cluster.world.sleep(11)
            throttled, caught_up, _ = await experiment.rates(20)
            assert max(throttled.values()) == pytest.approx(RATE, rel=0.01)
            assert caught_up == pytest.approx(RATE - expected.keep_up, rel=0.01)
            await cluster.until(experiment.has_moved, 100)
            took_s = cluster.world.now - began
            nursery.cancel_scope.cancel()
        assert took_s == pytest.approx(expected.move_time_s, rel=0.06)

    run_together(scenario, **SMALL)
