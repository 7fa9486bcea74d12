"""A plan of moves is made although a live worker does not answer the client."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from metaquorum.client import connect
from metaquorum.client.administration.admin import AdminClient
from metaquorum.client.errors import UnreachableError
from metaquorum.client.move_plans.measuring import described_limits, measured_state
from metaquorum.metadata.moves.balance import spread
from metaquorum.metadata.moves.estimate import estimate
from tests.dataplane.replication.together import PORT, Together, together
from tests.dataplane.serving import batch_of

SILENT = 2
RECORD_BYTES = 1000
RECORDS = 20


@contextmanager
def silent(cluster: Together) -> Iterator[None]:
    """Hold back packets from the worker to the client, but none to the other nodes."""
    internet = cluster.world.internet
    internet.cut(f"node-{SILENT}", "client")
    try:
        yield
    finally:
        internet.heal(f"node-{SILENT}", "client")


async def filled(cluster: Together, topic: str, replicas: tuple[int, ...]) -> None:
    await cluster.create(topic, replicas)
    leader = await cluster.connect(replicas[0])
    for _ in range(RECORDS):
        await leader.produce(topic, batch_of(bytes(RECORD_BYTES)), acks=-1)
    leader.connection.close()


@together()
async def test_other_replicas_have_the_sizes_of_a_worker_that_does_not_answer(
    cluster: Together,
) -> None:
    await filled(cluster, "led", (SILENT, 1))
    await filled(cluster, "followed", (1, SILENT))
    async with connect(f"node-1:{PORT}", timeout_s=2, runtime=cluster.runtime) as known:
        admin = AdminClient(known)
        before = await measured_state(admin, 0)
        assert all(worker.answers for worker in before.workers)
        with silent(cluster):
            began = cluster.world.now
            state = await measured_state(admin, 1.0)
            assert cluster.world.now - began < 5.0  # it is asked once
            assert [each.worker_id for each in state.workers if not each.answers] == [SILENT]
            assert state.partitions == before.partitions
            assert all(each.size_bytes > RECORDS * RECORD_BYTES for each in state.partitions)
            limits = await described_limits(admin, 100_000, [SILENT])
            plan = spread(state, ["led"], {1, 3})
            assert estimate(state, plan, None, limits).copied_bytes > RECORDS * RECORD_BYTES


@together()
async def test_a_worker_that_has_the_only_replica_and_does_not_answer_is_named(
    cluster: Together,
) -> None:
    await filled(cluster, "alone", (SILENT,))
    await filled(cluster, "led", (SILENT, 1))
    async with connect(f"node-1:{PORT}", timeout_s=2, runtime=cluster.runtime) as known:
        with silent(cluster), pytest.raises(UnreachableError) as refused:
            await measured_state(AdminClient(known), 0)
    assert str(refused.value).endswith(
        "; the plan needs the size of alone-0, which no other worker has: restart worker"
        f" {SILENT}, or use a longer --timeout"
    )
