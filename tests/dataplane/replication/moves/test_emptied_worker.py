"""A worker is drained, emptied by a plan and removed, with the client library of mq-admin."""

from contextlib import suppress

import pytest

from metaquorum.client import connect
from metaquorum.client.administration.admin import AdminClient
from metaquorum.client.errors import BrokerError
from metaquorum.client.move_plans.admin import MoveAdmin
from metaquorum.client.move_plans.measuring import described_limits, measured_state
from metaquorum.metadata.moves.balance import drain
from metaquorum.metadata.moves.estimate import estimate
from metaquorum.metadata.moves.plan import read_plan, write_plan
from tests.dataplane.replication.together import PORT, Together, together
from tests.dataplane.serving import batch_of

TOPICS = ("a", "b", "c", "d")
NETWORK_BYTES_PER_S = 100_000


@together(
    broker_session_timeout_ms=2000,
    broker_heartbeat_interval_ms=500,
    leader_imbalance_check_interval_seconds=5,
)
async def test_a_worker_is_drained_emptied_by_a_plan_and_removed(cluster: Together) -> None:
    producer = await cluster.connect(1)
    for number, topic in enumerate(TOPICS):
        await cluster.create(topic, (3, 1 + number % 2))
        leading = await cluster.connect(3)
        for _ in range(20):
            await leading.produce(topic, batch_of(bytes(1000)), acks=-1)
    async with connect(f"node-1:{PORT}", timeout_s=30, runtime=cluster.runtime) as known:
        admin, moves = AdminClient(known), MoveAdmin(known)
        await admin.drain_worker(3)
        await cluster.until(lambda: all(cluster.state(t, 1).leader != 3 for t in TOPICS))
        with pytest.raises(BrokerError, match="still has 4 replicas: no move is planned for 4"):
            await admin.remove_worker(3)
        state = await measured_state(admin, 1.0)
        made = drain(state, [3])
        limits = await described_limits(admin, NETWORK_BYTES_PER_S)
        rate = estimate(state, made, None, limits).proposed_bytes_per_s
        assert rate is not None
        plan = read_plan(write_plan(made))  # as in a file
        plan_id = await moves.start(plan, rate_bytes_per_s=rate, batch_size=1)
        with pytest.raises(BrokerError, match=f"leaves? by plan {plan_id}, of which"):
            await admin.remove_worker(3)
        await cluster.until(lambda: cluster.worker(1).image.plans[plan_id].has_ended, 60)
        (progress,) = await moves.progress([plan_id])
        assert (progress.plan.state, progress.plan.done) == ("complete", 4)
        assert progress.copied_bytes == progress.plan.size_bytes > 80_000
        for topic in TOPICS:
            assert sorted(cluster.state(topic, 1).replicas) == [1, 2]
            assert len(cluster.state(topic, 1).isr) == 2
        with pytest.raises(BrokerError, match="Worker 3 is alive"):
            await admin.remove_worker(3)
        await cluster.nodes[3].stop()
        await cluster.until(lambda: 3 in cluster.worker(1).image.fenced_workers())
        for _ in range(40):
            if 3 not in cluster.worker(1).image.workers:
                break
            with suppress(BrokerError):  # a new active controller waits for the session
                await admin.remove_worker(3)
            await cluster.world.sleep(0.25)
        assert sorted(each.worker_id for each in await admin.workers()) == [1, 2]
    for topic in TOPICS:
        leader = await cluster.connect(cluster.state(topic, 1).leader)
        assert len(await leader.values(topic)) == 20
    producer.connection.close()
