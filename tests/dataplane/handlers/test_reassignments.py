"""Partitions move between three real workers."""

from metaquorum.controller.reassignment import Reassignment
from metaquorum.rpc.methods import REASSIGN_PARTITIONS, ReassignPartitions, RequestContext
from tests.dataplane.replication.test_replicas import fill
from tests.dataplane.replication.together import Together, together
from wire.primitives.errors import ErrorCode, KafkaError

CONTEXT = RequestContext("User:ANONYMOUS", None, "127.0.0.1")


async def moved(cluster: Together, target: tuple[int, ...] | None) -> KafkaError | None:
    errors = await cluster.worker(1).controller_client.change_each(
        REASSIGN_PARTITIONS,
        [Reassignment("t", 0, target)],
        lambda part: ReassignPartitions(CONTEXT, part),
        timeout_s=10.0,
    )
    (error,) = errors
    assert error is None or isinstance(error, KafkaError)
    return error


def test_a_partition_moves_with_its_records_to_other_workers() -> None:
    async def scenario(cluster: Together) -> None:
        await cluster.create("t", (1, 2))
        writer = await cluster.connect(1)
        await fill(writer, "t", 5)
        assert await moved(cluster, (3, 2)) is None
        await cluster.until(lambda: cluster.state("t", 1).replicas == (3, 2))
        state = cluster.state("t", 1)
        assert (state.isr, state.leader, state.is_moving) == ((3, 2), 3, False)
        await cluster.until(lambda: cluster.replica(3, "t").high_watermark == 5)
        error = await moved(cluster, None)
        assert error is not None
        assert error.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert await moved(cluster, (1, 2, 3)) is None
        await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2, 3))
        await cluster.until(lambda: cluster.replica(1, "t").high_watermark == 5)

    together(scenario)
