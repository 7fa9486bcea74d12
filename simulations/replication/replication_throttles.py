"""Worlds with replication quotas (KIP-73): throttled replicas, and rates below what they need.

`ThrottleAdministrator` throttles all replicas of all topics, on the leaders' side, the followers'
or both, and removes the throttles when the faults are over: then all replicas get in sync.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from metaquorum.dataplane.fetch.throttled_reads import ThrottledReads
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.quotas.replication_quota import UNLIMITED, ReplicationQuota
from metaquorum.dataplane.replication.followed_partitions import Followed, FollowedPartitions
from metaquorum.simulations.cluster.cluster_state import ClusterChecker, ClusterState
from metaquorum.simulations.kernel.mutation import swapped
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState

# Responses that may be under way when a quota is exceeded: one of each fetcher.
UNDER_WAY: Final = 12


class InSyncIsNeverHeldBack(WatchingChecker):
    """Neither a leader nor a follower holds an in-sync replica back, however low the rate."""

    invariant = "Q5"

    def omitted(self, replica_id: int, partition: Partition) -> None:
        self.cluster_state.world.count("partitions omitted by leaders")
        self.compare(
            replica_id not in partition.state.isr,
            "the leader of {} omits it for replica {}, which is in the ISR {}",
            partition,
            replica_id,
            partition.state.isr,
        )

    def left_out(self, partition: Partition) -> None:
        self.cluster_state.world.count("partitions left out by followers")
        self.compare(
            partition.worker_id not in partition.state.isr,
            "worker {} does not fetch {}, although it is in the ISR {}",
            partition.worker_id,
            partition,
            partition.state.isr,
        )


@dataclass(slots=True)
class _Bucket:
    rate: int
    level: float = 0.0
    largest: int = 0
    at: float = 0.0


class ThrottledRatesHold(WatchingChecker):
    """Out-of-sync throttled replicas get at most rate x (time + sample) bytes in any time.

    The responses that were under way when the quota was exceeded are added.
    """

    invariant = "Q1"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self._buckets: dict[Any, _Bucket] = {}  # by quota

    def recorded(self, quota: Any, size_bytes: int, rate: int, now: float) -> None:
        if rate == UNLIMITED:
            return
        bucket = self._buckets.get(quota)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[quota] = _Bucket(rate, at=now)
        bucket.level = max(0.0, bucket.level - rate * (now - bucket.at)) + size_bytes
        bucket.at, bucket.largest = now, max(bucket.largest, size_bytes)
        most = rate * 1.0 + UNDER_WAY * bucket.largest
        self.compare(
            bucket.level <= most, "{:.0f} bytes above a rate of {} bytes/s", bucket.level, rate
        )


REPLICATION_QUOTA_CHECKERS: Final[tuple[type[ClusterChecker], ...]] = (
    InSyncIsNeverHeldBack,
    ThrottledRatesHold,
)


@contextmanager
def watched_throttles(cluster_state: ReplicatedClusterState) -> Iterator[None]:
    """Report what quotas count, and which partitions are held back, while the block runs."""
    held = cluster_state.checker(InSyncIsNeverHeldBack)
    rates = cluster_state.checker(ThrottledRatesHold)

    def omits(right: Any) -> Callable[..., bool]:
        def watched(self: Any, partition: Partition) -> bool:
            answer: bool = right(self, partition)
            if answer:
                held.omitted(self._replica_id, partition)
            return answer

        return watched

    def leaves_out(right: Any) -> Callable[..., None]:
        def watched(self: Any, key: Any, followed: Followed, now: float) -> None:
            held.left_out(followed.partition)
            right(self, key, followed, now)

        return watched

    def records(right: Any) -> Callable[..., None]:
        def watched(self: Any, size_bytes: int, now: float, *, in_sync_bytes: int = 0) -> None:
            rates.recorded(self, size_bytes - in_sync_bytes, self.rate_limit, now)
            right(self, size_bytes, now, in_sync_bytes=in_sync_bytes)

        return watched

    with ExitStack() as stack:
        stack.enter_context(swapped(ThrottledReads, "omits", omits))
        stack.enter_context(swapped(FollowedPartitions, "_leave_out", leaves_out))
        stack.enter_context(swapped(ReplicationQuota, "record", records))
        yield
