"""Moves of partitions among the three nodes of `Together`."""

from metaquorum.quorum.controller.reassignment import Reassignment
from metaquorum.quorum.rpc.methods import REASSIGN_PARTITIONS, ReassignPartitions, RequestContext
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.dataplane.replication.together import Together

CONTEXT = RequestContext("User:ANONYMOUS", None, "127.0.0.1")


async def start(
    cluster: Together, topic: str, *target: int, partition: int = 0, through: int = 1
) -> None:
    """Ask the controller to move the partition; without a target, to cancel its move.

    Retries while the request times out, as after the loss of the active controller.
    """
    error: object = None
    for _ in range(10):
        (error,) = await cluster.worker(through).controller_client.change_each(
            REASSIGN_PARTITIONS,
            [Reassignment(topic, partition, target or None)],
            lambda part: ReassignPartitions(CONTEXT, part),
            timeout_s=10.0,
        )
        if not (isinstance(error, KafkaError) and error.code is ErrorCode.REQUEST_TIMED_OUT):
            break
    assert error is None, error


async def move(
    cluster: Together, topic: str, *target: int, partition: int = 0, through: int = 1
) -> None:
    """Move the partition to these workers, and wait until all live ones know that it has moved."""
    await start(cluster, topic, *target, partition=partition, through=through)
    live = [node for node in cluster.nodes if cluster.nodes[node].serving]

    def has_moved() -> bool:
        states = [cluster.worker(n).image.topic(topic).partitions[partition] for n in live]
        return all(state.replicas == target and not state.is_moving for state in states)

    await cluster.until(has_moved, 60.0)


def folders(cluster: Together, node: int, topic: str, partition: int = 0) -> list[str]:
    """Return the folders of the partition's logs on that node, in any state."""
    entries = cluster.nodes[node].machine.storage.folder("/data").entries
    return sorted(
        name
        for name in entries
        if name == f"{topic}-{partition}" or name.startswith(f"{topic}-{partition}.")
    )


def is_gone(cluster: Together, node: int, topic: str, partition: int = 0) -> bool:
    """Return whether the node has no log of the partition, or only one that is being deleted."""
    return all(name.endswith("-delete") for name in folders(cluster, node, topic, partition))
