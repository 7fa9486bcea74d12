"""Where a consumer is to read that says which rack it is in (KIP-392, RackAwareReplicaSelector).

The leader chooses, of the replicas in sync that hold what is asked for, one in the consumer's rack:
itself if it is there, else the one that has most. Where none is there, it serves the consumer
itself.
"""

from typing import Final

from dataplane.partition.leader_state import Follower
from dataplane.partition.partition import Partition
from metaquorum.metadata.image import MetadataImage

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def nearest_replica(
    partition: Partition, rack: str, offset: int, image: MetadataImage
) -> int | None:
    """The follower to read from at `offset`; None: the leader, which is this worker."""
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
