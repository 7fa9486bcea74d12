"""Throttled partitions of one follower's fetch: which are omitted, and what is counted (KIP-73).

    in sync      read, counted       never held back, or producers with acks=all would wait
    out of sync  read, counted       while the quota, with the bytes read so far, is not exceeded
                 omitted             while it is: the row has no records and the fetch waits

A read of a partition that is not throttled never comes here.
"""

from typing import Final

from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.partition.plan_throttles import sends_throttled
from metaquorum.dataplane.quotas.replication_quota import UNLIMITED, ReplicationQuota

# Least seconds between two fetches for omitted partitions. Meanwhile the quota accumulates, so that
# the next responses have more bytes, and the rate is the same. The follower that got the last bytes
# waits this time longer than the quota requires, as it would otherwise get the next ones, too.
LEAST_WAIT_S: Final = 0.05


class ThrottledReads:
    """Reads of throttled partitions for one fetch, by the follower `replica_id`."""

    __slots__ = ("_in_sync_bytes", "_now", "_quota", "_replica_id", "_size_bytes", "omitted")

    def __init__(self, quota: ReplicationQuota, replica_id: int, now: float) -> None:
        self.omitted: set[Partition] = set()
        self._quota = quota
        self._replica_id = replica_id
        self._now = now
        self._size_bytes = self._in_sync_bytes = 0

    def omits(self, partition: Partition) -> bool:
        """Return whether the records of a throttled partition must be omitted now."""
        if not self._is_throttled(partition) or self._is_in_sync(partition):
            return False
        if not self._quota.is_exceeded(self._now, self._size_bytes):
            return False
        self.omitted.add(partition)
        return True

    def room_bytes(self, partition: Partition) -> int:
        """Return the most bytes to read of a partition that was not omitted."""
        if not self._is_throttled(partition) or self._is_in_sync(partition):
            return UNLIMITED
        return self._quota.room_bytes(self._now, self._size_bytes)

    def add(self, partition: Partition, size_bytes: int) -> None:
        """Add bytes that were read; `record` counts them."""
        if self._is_throttled(partition):
            self._size_bytes += size_bytes
            if self._is_in_sync(partition):
                self._in_sync_bytes += size_bytes

    def record(self) -> None:
        """Count the bytes of the response."""
        if self._size_bytes:
            self._quota.record(self._size_bytes, self._now, in_sync_bytes=self._in_sync_bytes)
            if self._size_bytes > self._in_sync_bytes:
                self._quota.last_reader = self._replica_id

    @property
    def wait_s(self) -> float:
        """Seconds until an omitted partition may be read."""
        delay_s = self._quota.delay_s(self._now, self._size_bytes)
        if self._quota.last_reader == self._replica_id:
            return delay_s + LEAST_WAIT_S
        return max(LEAST_WAIT_S, delay_s)

    def _is_throttled(self, partition: Partition) -> bool:
        return is_throttled(partition) or sends_throttled(partition, self._replica_id)

    def _is_in_sync(self, partition: Partition) -> bool:
        """Return whether the follower is in the ISR, or in one that may be in force."""
        if self._replica_id in partition.isr:
            return True
        state = partition.leader_state
        return state is not None and self._replica_id in state.maximal_isr


def is_throttled(partition: Partition) -> bool:
    """Return whether a config throttles the partition on this worker as leader."""
    throttled = partition.config.leader_throttled
    return throttled is not None and throttled.has(partition.index, partition.worker_id)


def may_throttle(partition: Partition) -> bool:
    """Return whether a read may be throttled; cheaper, as most partitions have no throttle."""
    return partition.config.leader_throttled is not None or partition.state.plan != 0
