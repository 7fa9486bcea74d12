"""Throttled replicas of one worker as follower: what is counted, and what is left out (KIP-73).

A response counts with all its throttled partitions. While the quota is exceeded, fetch requests
leave out the throttled partitions in which this replica is not in sync. A replica is in sync if it
is in the ISR, or had all committed records at its last fetch and so may join the ISR (as in Kafka).
"""

from typing import Final

from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.partition.plan_throttles import receives_throttled
from metaquorum.dataplane.quotas.replication_quota import ReplicationQuota

# Least seconds for which partitions are left out. Meanwhile the quota accumulates, so that the next
# responses have more bytes, and the rate is the same.
LEAST_PAUSE_S: Final = 0.05
# Then the partitions are examined again: a config may have changed.
MOST_PAUSE_S: Final = 1.0


class FollowerThrottle:
    """The follower's quota, shared by the fetchers of a worker."""

    def __init__(self, quota: ReplicationQuota) -> None:
        self._quota = quota

    def is_exceeded(self, now: float) -> bool:
        return self._quota.is_exceeded(now)

    def room_bytes(self, now: float) -> int:
        """Return the most bytes to fetch of a partition that is not left out."""
        return self._quota.room_bytes(now)

    def pause_s(self, now: float) -> float:
        """Return the seconds for which partitions are left out."""
        return min(max(LEAST_PAUSE_S, self._quota.delay_s(now)), MOST_PAUSE_S)

    def limits(self, partition: Partition, *, is_caught_up: bool) -> bool:
        """Return whether the partition is left out while the quota is exceeded."""
        return (
            is_throttled(partition)
            and not is_caught_up
            and partition.worker_id not in partition.isr
        )

    def record(self, partition: Partition, size_bytes: int, now: float) -> None:
        """Count the bytes of the partition in a response, if it is throttled."""
        if size_bytes and is_throttled(partition):
            is_in_sync = partition.worker_id in partition.isr
            in_sync_bytes = size_bytes if is_in_sync else 0
            self._quota.record(size_bytes, now, in_sync_bytes=in_sync_bytes)


def is_throttled(partition: Partition) -> bool:
    """Return whether this worker throttles the partition as follower, by a config or a plan."""
    throttled = partition.config.follower_throttled
    if throttled is not None and throttled.has(partition.index, partition.worker_id):
        return True
    return receives_throttled(partition)


def may_throttle(partition: Partition) -> bool:
    """Return whether `is_throttled` may be true; cheaper, as most partitions have no throttle."""
    return partition.config.follower_throttled is not None or partition.state.plan != 0
