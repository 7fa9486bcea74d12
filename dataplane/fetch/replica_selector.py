"""Preferred read replica of a consumer with a rack id (KIP-392, RackAwareReplicaSelector).

The leader selects an in-sync replica in the consumer's rack that holds the fetch offset: itself if
it is in that rack, otherwise the follower with the highest log end offset. Without such a replica
the leader serves the consumer.
"""

from typing import Final

from metaquorum.dataplane.partition.leader_state import Follower
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.metadata.image import MetadataImage

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def nearest_replica(
    partition: Partition, rack: str, offset: int, image: MetadataImage
) -> int | None:
    """Return the id of the follower to read `offset` from; None for the leader, this worker."""
    leadership = partition.leader_state
    if leadership is None or _rack(image, partition.leader_id) == rack:
        return None
    near = [
        follower
        for follower in leadership.followers
        if follower.replica_id in leadership.isr
        and follower.log_start_offset <= offset <= follower.log_end_offset
        and _rack(image, follower.replica_id) == rack
        and image.is_live(follower.replica_id)
    ]
    return max(near, key=_held).replica_id if near else None


def _held(follower: Follower) -> tuple[int, int]:
    return follower.log_end_offset, -follower.replica_id


def _rack(image: MetadataImage, worker_id: int) -> str | None:
    worker = image.workers.get(worker_id)
    return None if worker is None else worker.rack
