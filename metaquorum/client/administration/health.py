"""Health of partitions: problems and their causes, as pure functions of what a cluster reports.

    offline           no leader: consumers and producers cannot use the partition
    under min ISR     fewer replicas in sync than min.insync.replicas: acks=all is refused
    at min ISR        replicas are out of sync, and acks=all is refused if one more is
    under-replicated  replicas are out of sync

The effective `min.insync.replicas` is at most the number of replicas, without those that a move
removes. Replicas that a move adds need not be in sync yet (KIP-352).
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from metaquorum.client.values import (
    Eligible,
    FollowerView,
    Partition,
    PartitionView,
    Topic,
    WorkerDescription,
)
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from metaquorum.wire.primitives.frozen import frozen

# Config with the most replicas of an internal topic.
REPLICATION_CONFIGS: Final = {
    CONSUMER_OFFSETS: "offsets.topic.replication.factor",
    TRANSACTION_STATE: "transaction.state.log.replication.factor",
}
_STORED: Final = {
    CONSUMER_OFFSETS: "committed offsets of consumer groups",
    TRANSACTION_STATE: "states of transactions",
}


class Trouble(Enum):
    """Problems of a partition, the worst first."""

    OFFLINE = "offline"
    UNDER_MIN_ISR = "under min ISR"
    AT_MIN_ISR = "at min ISR"
    UNDER_REPLICATED = "under-replicated"


@frozen
class MissingReplica:
    """A replica that is not in sync, and the cause. None: not known."""

    node: int
    why: str
    lag: int | None  # records
    since_ms_ago: int | None


@frozen
class PartitionHealth:
    """State of a partition, and the replicas that are not in sync or offline."""

    topic: str
    index: int
    leader: int | None
    replicas: Sequence[int]
    isr: Sequence[int]
    min_isr: int | None  # None: not known
    missing: Sequence[MissingReplica]
    eligible: Eligible
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()

    @property
    def troubles(self) -> list[Trouble]:
        """Problems of the partition, the worst first."""
        return troubles(
            self.leader,
            self.replicas,
            self.isr,
            self.min_isr,
            adding=self.adding,
            removing=self.removing,
        )


@frozen
class ClusterHealth:
    """Numbers of workers, partitions and problems of a cluster.

    A log directory is full if the largest batch (message.max.bytes) has no room in it.
    """

    live_workers: int
    workers: int
    partitions: int
    counts: Mapping[Trouble, int]
    full_log_dirs: int = 0
    offline_log_dirs: int = 0
    warnings: Sequence[str] = ()  # on log directories, and risks, as sentences

    @property
    def is_healthy(self) -> bool:
        """Whether no worker is fenced and no partition or log directory has a problem."""
        return self.live_workers == self.workers and not any(
            (*self.counts.values(), self.full_log_dirs, self.offline_log_dirs)
        )


def troubles(
    leader: int | None,
    replicas: Sequence[int],
    isr: Sequence[int],
    min_isr: int | None,
    *,
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
) -> list[Trouble]:
    """Return the problems of a partition, the worst first.

    A move adds and removes the replicas `adding` and `removing`.
    """
    found = []
    if leader is None:
        found.append(Trouble.OFFLINE)
    is_short = len(isr) < len(replicas) - len(adding)
    if min_isr is not None:
        least = min(min_isr, len(replicas) - len(removing))
        if len(isr) < least:  # also while a move adds the replicas that are short of it
            found.append(Trouble.UNDER_MIN_ISR)
        elif is_short and len(isr) == least:
            found.append(Trouble.AT_MIN_ISR)
    if is_short:
        found.append(Trouble.UNDER_REPLICATED)
    return found


def internal_topic_warnings(
    topic: Topic, live_workers: int, most_replicas: int | None, cleanup_policy: str | None
) -> list[str]:
    """Return the risks for the state of groups or transactions that is stored in `topic`.

    `most_replicas`: value of the config in REPLICATION_CONFIGS. None: not known.
    """
    stored = _STORED[topic.name]
    found = []
    fewest = min((len(each.replicas) for each in topic.partitions), default=0)
    wanted = 0 if most_replicas is None else min(most_replicas, live_workers)
    if fewest < wanted:
        short = sum(len(each.replicas) < wanted for each in topic.partitions)
        found.append(
            f"{short} partitions of {topic.name} have fewer replicas than {wanted}, the number that"
            f" {live_workers} live workers and {REPLICATION_CONFIGS[topic.name]}={most_replicas}"
            f" permit: {stored} are lost if the workers that have them lose their disks"
        )
    if cleanup_policy is not None and "compact" not in cleanup_policy.split(","):
        found.append(
            f"{topic.name} has cleanup.policy={cleanup_policy}: retention deletes {stored}"
            f" that are in use; set it with `mq-admin configs set topic {topic.name}"
            " cleanup.policy=compact`"
        )
    return found


def needs_look(partition: Partition) -> bool:
    """Return whether the metadata alone shows a problem of the partition."""
    return partition.leader is None or partition.is_under_replicated


def partition_health(
    topic: Topic,
    partition: Partition,
    min_isr: int | None,
    workers: Mapping[int, WorkerDescription],
    view: PartitionView | None,
    eligible: Eligible | None = None,
) -> PartitionHealth:
    """Return the health of one partition.

    `workers`: registered workers by id. `view`: state of the followers at the leader; None: not
    known. `eligible`: eligible leader replicas; None: not known.
    """
    followers = {} if view is None else {one.node: one for one in view.followers}
    return PartitionHealth(
        topic.name,
        partition.index,
        partition.leader,
        partition.replicas,
        partition.isr,
        min_isr,
        [
            _missing(replica, partition, workers, view, followers.get(replica))
            for replica in partition.replicas
            if replica not in (*partition.isr, *partition.adding)
            or (replica in partition.offline and partition.leader is None)
        ],
        eligible or Eligible(),
        partition.adding,
        partition.removing,
    )


def _missing(
    replica: int,
    partition: Partition,
    workers: Mapping[int, WorkerDescription],
    view: PartitionView | None,
    follower: FollowerView | None,
) -> MissingReplica:
    worker = workers.get(replica)
    lag = None
    if view is not None and follower is not None and follower.log_end_offset is not None:
        lag = max(0, view.log_end_offset - follower.log_end_offset)
    since = None if follower is None else follower.caught_up_ms_ago
    if worker is None:
        return MissingReplica(replica, "its worker is not registered", lag, since)
    if worker.is_fenced:
        why = f": {worker.why_fenced}" if worker.why_fenced else ""
        heard = worker.heard_ms_ago if since is None else since
        return MissingReplica(replica, f"its worker is fenced{why}", lag, heard)
    if worker.is_shutting_down:
        return MissingReplica(replica, "its worker is shutting down", lag, since)
    if replica in partition.offline:
        return MissingReplica(replica, "its log directory is offline", lag, since)
    if follower is None:
        return MissingReplica(replica, "not in sync", None, None)
    if follower.log_end_offset is None:
        return MissingReplica(replica, "it has not fetched yet", None, since)
    if follower.fetched_ms_ago is not None and follower.fetched_ms_ago > SILENT_MS:
        return MissingReplica(replica, "it has stopped fetching", lag, since)
    return MissingReplica(
        replica, "it lags behind" if lag else "it is about to join the ISR", lag, since
    )


# A follower that has not fetched for this time has stopped; a fetch waits for half a second.
SILENT_MS: Final = 5000
