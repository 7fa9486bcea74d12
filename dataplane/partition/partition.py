"""One partition on its worker: leadership, high watermark, and the requests that wait for it.

Plain state around the log. Three offsets have waiters:

    log_end_offset    moves with every append                followers
    high_watermark    moves when all in-sync replicas have   consumers, and producers with
                      the records                            acks=all
    last_stable_offset  below it when a transaction is open  consumers with read_committed

With one replica both are equal, and the append itself commits. With more, the leader computes the
high watermark (`metaquorum.dataplane.partition.leader_state`), and followers get it in fetch
responses.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import trio

from metaquorum.dataplane.config.topic import TopicConfig
from metaquorum.dataplane.instruments.histogram import Histogram
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.partition.leader_state import UNKNOWN, BrokerEpoch, Eligible, LeaderState
from metaquorum.dataplane.partition.waiting import (
    NOTIFIED_AT_ONCE,
    CommitWaiter,
    Watcher,
    WatcherNotifier,
)
from metaquorum.metadata.image import NO_LEADER, PartitionImage
from metaquorum.metadata.internal_topics import is_internal
from metaquorum.runtime import Disk
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.types import Uuid

# Uncommitted appends with a size of their own; the sizes of older ones are added up.
MAX_UNCOMMITTED: Final = 4096
# State of a partition before the metadata log has assigned it.
NOWHERE: Final = PartitionImage((), (), NO_LEADER, -1, -1)
UNKNOWN_BYTES: Final = 1 << 30

# Looking up a member of an enum by name is slow (Python 3.11): hot paths use these constants.
NO_ERROR: Final = ErrorCode.NONE
NOT_LEADER: Final = ErrorCode.NOT_LEADER_OR_FOLLOWER


class NotLeaderOrFollowerError(KafkaError):
    """Raised if this worker has no replica; the response names the leader (KIP-951)."""

    def __init__(self, partition: str, state: PartitionImage) -> None:
        super().__init__(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this worker has no replica of {partition}"
        )
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch


@dataclass(slots=True)
class ReplicaContext:
    """Replication state shared by all partitions of one worker."""

    worker_id: int
    broker_epoch: BrokerEpoch
    monotonic: Callable[[], float]
    lag_s: float  # replica.lag.time.max.ms
    eligible: Eligible
    heard: dict[int, float]  # last fetch, monotonic seconds, by worker id
    # Called if the partition's ISR may have to change: schedules `leader_state.propose`.
    isr_due: Callable[["Partition"], None]
    # Counts since the start of the process.
    isr_shrinks: int = 0
    isr_expands: int = 0
    # Bytes of replicas that moves add, from leaders and to followers.
    reassignment_bytes_in: int = 0
    reassignment_bytes_out: int = 0
    flush_times: Histogram = field(default_factory=Histogram)
    wakes: WatcherNotifier = field(default_factory=WatcherNotifier)
    # Bytes per second of the plans of moves that have a rate, by plan id.
    plan_rates: Mapping[int, int] = field(default_factory=dict)


class Traffic(NamedTuple):
    """Records and bytes since the start of the process, counted as in Kafka."""

    records_in: int  # from producers
    bytes_in: int
    bytes_out: int  # to consumers
    replicated_bytes_in: int  # from the leader
    replicated_bytes_out: int  # to followers

    def plus(self, other: "Traffic") -> "Traffic":
        return Traffic(*map(sum, zip(self, other, strict=True)))


NO_TRAFFIC: Final = Traffic(0, 0, 0, 0, 0)


class Partition:
    __slots__ = (
        "_context",
        "_led_from",
        "_records_in",
        "_uncommitted",
        "appending",
        "bytes_in",
        "bytes_out",
        "commit_waiters",
        "config",
        "end_waiters",
        "event_count",
        "high_watermark",
        "index",
        "is_internal",
        "known_high_watermark",
        "leader_epoch",
        "leader_id",
        "leader_state",
        "leading_since",
        "log",
        "offline",
        "replicated_bytes_in",
        "replicated_bytes_out",
        "stable_waiters",
        "start_waiters",
        "state",
        "topic",
        "topic_id",
        "waiters",
        "worker_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: Uuid,
        index: int,
        context: ReplicaContext,
        log: PartitionLog,
        config: TopicConfig,
        high_watermark: int = 0,
    ) -> None:
        """Create an unassigned replica; `high_watermark` is the checkpointed one."""
        self.topic = topic
        self.topic_id = topic_id
        self.is_internal = is_internal(topic)  # clients cannot change its records
        self.index = index
        self.worker_id = context.worker_id
        self._context = context
        self.log = log
        self.config = config
        self.state = NOWHERE  # latest state in the metadata log
        self.leader_id = -1
        self.leader_epoch = -1
        self.leading_since = -1  # first epoch of the present leader's uninterrupted leadership
        # None if this worker does not lead or is the only replica.
        self.leader_state: LeaderState | None = None
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        self.known_high_watermark = high_watermark  # when this worker started
        self.offline: str | None = None  # reason, if the log directory failed
        self.waiters: set[Watcher] = set()  # notified when the high watermark moves
        self.stable_waiters: set[Watcher] = set()  # notified when the last stable offset moves
        self.end_waiters: set[Watcher] = set()  # notified when the log end offset moves
        self.event_count = 0  # notifications of these sets
        self.commit_waiters: deque[CommitWaiter] = deque()  # in the order of their offsets
        self.start_waiters: set[trio.Event] = set()  # for replicas' log starts
        # Uncommitted appends: end offset and bytes of each.
        self._uncommitted: deque[tuple[int, int]] = deque()
        self.bytes_in = self.bytes_out = 0
        self.replicated_bytes_in = self.replicated_bytes_out = 0
        self._records_in = 0  # in earlier leader epochs of this worker
        self._led_from = 0  # log end offset at the start of this leader epoch
        # Held through appends that do not finish within one slice of the loop.
        self.appending = trio.Lock()

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.worker_id

    @property
    def is_follower(self) -> bool:
        """Whether this replica fetches from another worker, the leader."""
        return (
            self.leader_id not in (NO_LEADER, self.worker_id)
            and self.worker_id in self.state.replicas
            and self.offline is None
        )

    @property
    def is_hosted(self) -> bool:
        """Whether this worker has a replica that consumers may read (KIP-392)."""
        return self.worker_id in self.state.replicas and self.offline is None

    @property
    def is_served(self) -> bool:
        return self.leader_id == self.worker_id and self.offline is None

    @property
    def is_awaited(self) -> bool:
        """Whether a consumer waits and the high watermark is below the log end offset."""
        return self.high_watermark < self.log.log_end_offset and bool(
            self.waiters or self.stable_waiters
        )

    @property
    def is_catching_up(self) -> bool:
        """Whether a new leader may not know all records committed before its epoch yet (KIP-207).

        Its high watermark may be below the one that its predecessor reported.
        """
        leadership = self.leader_state
        return leadership is not None and self.high_watermark < leadership.epoch_start_offset

    @property
    def last_stable_offset(self) -> int:
        """Offset before which all transactions have ended, and their markers are replicated.

        Consumers with read_committed read the records before it. It is the high watermark if no
        transaction is unstable, and does not decrease while this worker leads.
        """
        return self._stable_offset(self.high_watermark)

    def _stable_offset(self, high_watermark: int) -> int:
        log = self.log
        if log.producers.transactions is None:
            return high_watermark
        first = log.first_unstable_offset(high_watermark)
        return high_watermark if first is None or first > high_watermark else first

    @property
    def plan_rates(self) -> Mapping[int, int]:
        """Bytes per second of the plans of moves that have a rate, by plan id."""
        return self._context.plan_rates

    @property
    def replicas(self) -> Sequence[int]:
        return self.state.replicas

    @property
    def isr(self) -> Sequence[int]:
        return self.state.isr

    @property
    def is_under_replicated(self) -> bool:
        """Whether too few replicas are in sync, by the leader; those that a move adds do not count.

        As in Kafka, in-sync replicas that it adds count (KIP-352).
        """
        state = self.state
        is_lacking = len(state.isr) < len(state.replicas) - len(state.adding)
        return is_lacking and self.is_leader

    @property
    def least_isr(self) -> int:
        """In-sync replicas required for acks=all; at most the number of replicas, as in Kafka.

        Those that a move removes do not count: a smaller target needs no more than it has.
        """
        least, state = self.config.min_insync_replicas, self.state
        return least if least == 1 else min(least, len(state.replicas) - len(state.removing))

    @property
    def low_watermark(self) -> int:
        """Smallest log start offset of the live replicas."""
        least = self.log.log_start_offset
        if self.leader_state is not None:
            for follower in self.leader_state.followers:
                if follower.log_start_offset < least and self._context.eligible(
                    follower.replica_id, UNKNOWN
                ):
                    least = follower.log_start_offset
        return least

    @property
    def traffic(self) -> Traffic:
        led = self.log.log_end_offset - self._led_from if self.is_leader else 0
        return Traffic(
            self._records_in + led,
            self.bytes_in,
            self.bytes_out,
            self.replicated_bytes_in,
            self.replicated_bytes_out,
        )

    def assign(self, state: PartitionImage) -> None:
        """Apply leader, replicas and ISR of the metadata log.

        Raises StorageError if the leader epochs cannot be written; all else is applied then. After
        a full disk, the next append or flush writes them.
        """
        changed = state.leader_epoch != self.leader_epoch or state.leader != self.leader_id
        # A move that removes a replica begins a new epoch of the same leader.
        is_interrupted = changed and (
            state.leader != self.leader_id or state.leader_epoch != self.leader_epoch + 1
        )
        if is_interrupted:
            self.leading_since = state.leader_epoch
        if changed:
            self._records_in = self.traffic.records_in
            self._led_from = self.log.log_end_offset
        elif self.is_leader:
            self._context.isr_shrinks += len(state.isr) < len(self.state.isr)
            self._context.isr_expands += len(state.isr) > len(self.state.isr)
        self.state = state
        self.leader_id, self.leader_epoch = state.leader, state.leader_epoch
        if state.leader != self.worker_id:
            self.leader_state = None
            self._uncommitted.clear()
            if changed and state.leader_epoch >= 0:
                self.log.drop_unused_epochs()
        else:
            self._lead(state, anew=changed)
        if is_interrupted:
            self.wake_waiters()
        elif changed:
            self._wake_watchers()
        # A replica being removed writes nothing: a full disk may be the reason for the removal.
        if self.offline is None and self.worker_id in state.replicas:
            self.log.write_epochs()

    def leads_since(self, leader_epoch: int) -> bool:
        """Return whether this worker leads, and has led without interruption since that epoch.

        Its log has the records that it appended since then: those below the high watermark are
        committed.
        """
        return (
            self.leader_id == self.worker_id
            and self.offline is None
            and self.leading_since <= leader_epoch
        )

    def _lead(self, state: PartitionImage, *, anew: bool) -> None:
        context = self._context
        if anew:
            self.leader_state = None
        if len(state.replicas) == 1:
            self.leader_state = None
            self._commit(self.log.log_end_offset)
            return
        if self.leader_state is None:
            # Later appends carry this leader epoch, by which followers detect a divergence.
            self.log.assign_epoch(state.leader_epoch)
            self.leader_state = LeaderState(
                self.worker_id,
                context.broker_epoch,
                state.leader_epoch,
                self.log.log_end_offset,
                context.lag_s,
            )
        for replica_id in state.offline:
            self.leader_state.forget(replica_id)
        if self.leader_state.assign(
            state.replicas, state.isr, state.partition_epoch, context.monotonic()
        ):
            self.advance()
            self.expect_joins()

    def configure(self, config: TopicConfig) -> None:
        """Apply `config` to the partition and its log."""
        self.config = config
        self.log.configure(config.log)

    def leader_error(self, current_leader_epoch: int = -1) -> ErrorCode:
        """Return the error for a request that needs the leader; NONE if this worker can serve it.

        `current_leader_epoch` is the client's leader epoch, or -1. Source: KIP-320.
        """
        if self.offline is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if current_leader_epoch >= 0:
            if current_leader_epoch < self.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if current_leader_epoch > self.leader_epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
        if self.leader_id != self.worker_id:
            return NOT_LEADER
        return NO_ERROR

    def check_append(self, acks: int) -> None:
        """Raise KafkaError if a producer cannot append to this replica now."""
        if self.leader_id != self.worker_id or self.offline is not None:
            raise KafkaError(
                self.leader_error(), f"this worker does not lead {self}, or its replica is offline"
            )
        if (
            acks == -1
            and len(self.state.isr) < self.config.min_insync_replicas  # nearly never
            and len(self.state.isr) < self.least_isr
        ):
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"partition {self} has {len(self.isr)} in-sync replicas, fewer than its "
                f"min.insync.replicas of {self.config.min_insync_replicas}",
            )

    def retire(self) -> None:
        """End the assignment of this replica to this worker."""
        self.assign(PartitionImage((), (), NO_LEADER, self.leader_epoch, UNKNOWN))

    def appended(self, size_bytes: int) -> None:
        """Record an append to the leader's log: notify followers, or commit a single replica's."""
        self.bytes_in += size_bytes
        if self.leader_state is None:
            log, before = self.log, self.high_watermark
            high_watermark = self.high_watermark = log.log_end_offset
            if self.stable_waiters:
                self._advance_stable(before, size_bytes)
            elif (transactions := log.producers.transactions) is not None:
                transactions.forget_stable(high_watermark)
            if self.waiters:
                self._note(self.waiters, size_bytes)
            return
        self.is_growing(size_bytes)
        self.leader_state.appended(self.log.log_end_offset, self._context.heard)
        if self.end_waiters:
            self._note(self.end_waiters, size_bytes)
        self.advance()

    def replicated_in(self, size_bytes: int) -> None:
        """Count bytes that this replica has fetched from the leader and appended."""
        self.replicated_bytes_in += size_bytes
        if self.worker_id in self.state.adding:
            self._context.reassignment_bytes_in += size_bytes

    def replicated_out(self, replica_id: int, size_bytes: int) -> None:
        """Count bytes that this leader has sent to the follower."""
        self.replicated_bytes_out += size_bytes
        if replica_id in self.state.adding:
            self._context.reassignment_bytes_out += size_bytes

    def is_growing(self, size_bytes: int) -> None:
        """Record an append of `size_bytes` that is not committed yet."""
        uncommitted = self._uncommitted
        uncommitted.append((self.log.log_end_offset, size_bytes))
        if len(uncommitted) > MAX_UNCOMMITTED:
            _, first_bytes = uncommitted.popleft()
            next_end, next_bytes = uncommitted.popleft()
            uncommitted.appendleft((next_end, first_bytes + next_bytes))

    def fetched_by(
        self, replica_id: int, broker_epoch: int, offset: int, log_start_offset: int
    ) -> bool:
        """Record that a follower holds all records before `offset`.

        Returns False if the worker is not a replica, or this worker has no leader state.
        """
        leadership, context = self.leader_state, self._context
        if self.start_waiters:
            self.look_at_starts()
        if leadership is None or not leadership.fetched(
            replica_id,
            broker_epoch,
            offset,
            log_start_offset,
            self.log.log_end_offset,
            context.monotonic(),
        ):
            return False
        if offset > self.high_watermark:
            self.advance()
        if replica_id not in leadership.isr and leadership.asked_to_join(
            replica_id, self.high_watermark, context.eligible
        ):
            context.isr_due(self)
        return True

    def awaits_fetch(self, replica_id: int) -> bool:
        """Return whether the next fetch of the replica may let it join the ISR.

        A fetch session must then hand over each fetch of that replica, also at the log end.
        """
        leadership = self.leader_state
        return (
            leadership is not None
            and replica_id not in leadership.isr
            and self._context.eligible(replica_id, UNKNOWN)
        )

    def expect_joins(self) -> None:
        """Let each follower's next fetch read this partition if a replica may join the ISR by it.

        Called after a change of the ISR, or of what the metadata permits: the session of an idle
        follower would otherwise not read the partition again before the next append. Waiting
        fetches continue to wait, for at most replica.fetch.wait.max.ms.
        """
        leadership = self.leader_state
        if leadership is None or not self.end_waiters:
            return
        if any(self.awaits_fetch(each.replica_id) for each in leadership.followers):
            self._note(self.end_waiters, 0)

    def advance(self) -> None:
        """Advance the high watermark to the offset that all in-sync replicas hold."""
        leadership, context = self.leader_state, self._context
        if leadership is not None:
            self._commit(
                leadership.committed(
                    self.high_watermark,
                    self.log.log_end_offset,
                    self.least_isr,
                    context.monotonic(),
                    context.eligible,
                )
            )

    def wait_committed(self, offset: int, woken: Callable[[], object]) -> CommitWaiter:
        """Call `woken()` when the high watermark reaches `offset` or the leadership is interrupted.

        `woken` is called during the change and must not read this partition.
        """
        waiter = CommitWaiter(offset, woken)
        at = len(self.commit_waiters)
        while at and self.commit_waiters[at - 1].offset > offset:
            at -= 1  # a duplicate of an earlier batch has a smaller offset
        self.commit_waiters.insert(at, waiter)
        return waiter

    def stop_waiting(self, waiter: CommitWaiter) -> None:
        if not waiter.is_woken:
            self.commit_waiters.remove(waiter)

    def follow_to(self, high_watermark: int) -> None:
        """Apply the leader's high watermark, limited to the log end offset of this replica."""
        self._commit(min(high_watermark, self.log.log_end_offset))

    def cut_to(self, high_watermark: int) -> None:
        """Set the high watermark after a truncation of the log."""
        self.high_watermark = high_watermark
        self._uncommitted.clear()
        self.wake_waiters()

    def _commit(self, high_watermark: int) -> None:
        if high_watermark <= self.high_watermark:
            return
        before, self.high_watermark = self.high_watermark, high_watermark
        waiting = self.commit_waiters
        while waiting and waiting[0].offset <= high_watermark:
            waiting.popleft().wake()
        new_bytes = 0
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= high_watermark:
            new_bytes += uncommitted.popleft()[1]
        # The size of records from before the start or this leader epoch is unknown.
        new_bytes = new_bytes or UNKNOWN_BYTES
        if self.stable_waiters:
            self._advance_stable(before, new_bytes)
        elif (transactions := self.log.producers.transactions) is not None:
            transactions.forget_stable(high_watermark)
        if self.waiters:
            self._note(self.waiters, new_bytes)

    def _advance_stable(self, high_watermark: int, new_bytes: int) -> None:
        """Notify the watchers if the last stable offset has moved; forget what is stable.

        `high_watermark` is the one before it advanced over `new_bytes`.
        """
        transactions = self.log.producers.transactions
        if transactions is not None and transactions.are_held_at(high_watermark):
            return  # a batch while others' transactions are open: nearly all batches
        # Nothing that was appended since changes the answer for that high watermark.
        before = self._stable_offset(high_watermark)
        if self.last_stable_offset > before:
            known = before == high_watermark  # otherwise older records become stable, too
            self._note(self.stable_waiters, new_bytes if known else UNKNOWN_BYTES)

    def log_start_moved(self) -> None:
        """Notify the watchers that the log start offset has moved."""
        self._note(self.waiters, 0)
        self._note(self.stable_waiters, 0)
        self._note(self.end_waiters, 0)

    def notify_log_start(self) -> None:
        """Wake the followers' waiting fetches, so that they get the new log start offset now."""
        for watcher in tuple(self.end_waiters):
            watcher.wake()

    def look_at_starts(self) -> None:
        """Wake the waiters for replicas' log start offsets, which may have changed."""
        for woken in self.start_waiters:
            woken.set()

    def _note(self, waiters: set[Watcher], new_bytes: int) -> None:
        self.event_count += 1
        if len(waiters) > NOTIFIED_AT_ONCE:
            self._context.wakes.add(waiters, new_bytes)
            return
        done = [waiter for waiter in waiters if not waiter.note(new_bytes)]
        if done:
            waiters.difference_update(done)

    async def flush(self, disk: Disk, now_ms: int | None = None) -> None:
        """Flush the log: records appended before this call survive a power failure.

        Raises StorageError if the log directory fails.
        """
        context = self._context
        began = context.monotonic()
        while True:
            log = self.log
            await log.flush(disk, now_ms)
            if log is self.log:  # otherwise it was replaced by its copy in another directory
                break
        now = context.monotonic()
        context.flush_times.record(now - began, now)

    def fail(self, reason: str) -> None:
        """Take the replica offline; `reason` says why its log directory failed."""
        self.offline = reason
        self.wake_waiters()

    def wake_waiters(self) -> None:
        self._wake_watchers()
        while self.commit_waiters:
            self.commit_waiters.popleft().wake()

    def _wake_watchers(self) -> None:
        """Wake the waiting fetches, and the waiters for replicas' log start offsets."""
        self.event_count += 1
        for watchers in (self.waiters, self.stable_waiters, self.end_waiters):
            if len(watchers) > NOTIFIED_AT_ONCE:
                self._context.wakes.add(watchers, None)
            else:
                for watcher in tuple(watchers):
                    watcher.wake()
        self.look_at_starts()

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        log = self.log
        assert log.log_start_offset <= self.high_watermark <= log.log_end_offset, (
            log.log_start_offset,
            self.high_watermark,
            log.log_end_offset,
        )
        assert self.last_stable_offset <= self.high_watermark
        assert self.leading_since <= self.leader_epoch
        assert (self.state.leader, self.state.leader_epoch) == (self.leader_id, self.leader_epoch)
        offsets = [waiter.offset for waiter in self.commit_waiters]
        assert offsets == sorted(offsets), offsets
        assert not offsets or offsets[0] > self.high_watermark, (offsets, self.high_watermark)
        assert not any(waiter.is_woken for waiter in self.commit_waiters)
        ends = [end for end, _ in self._uncommitted]
        assert ends == sorted(ends), ends
        assert not ends or self.high_watermark < ends[0] <= ends[-1] <= log.log_end_offset, ends
        assert len(ends) <= MAX_UNCOMMITTED
        leadership = self.leader_state
        assert leadership is None or self.is_leader
        if self.is_leader:
            assert self.worker_id in self.state.replicas
            assert (leadership is None) == (len(self.state.replicas) == 1)
        if leadership is not None:
            assert leadership.leader_epoch == self.leader_epoch
            assert leadership.partition_epoch == self.state.partition_epoch
            assert leadership.epoch_start_offset <= log.log_end_offset
            leadership.check_invariants()
