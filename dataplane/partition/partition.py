"""One partition as its worker sees it: leadership, high watermark, and who waits for what.

Plain state around the log. Two ends matter, and each has those who wait for it:

    log_end_offset    moves with every append          followers
    high_watermark    moves when all in sync have it   consumers, and producers with acks=all

With one replica both are the same, and everything happens in the append. With more, the leader's
view of the others (`dataplane.partition.leader_state`) says what is committed; a follower hears it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, Protocol

import trio

from dataplane.config.topic import TopicConfig
from dataplane.instruments.histogram import Histogram
from dataplane.log.partition_log import PartitionLog
from dataplane.partition.leader_state import UNKNOWN, BrokerEpoch, Eligible, LeaderState
from metaquorum.metadata.image import NO_LEADER, PartitionImage
from metaquorum.runtime import Disk
from wire.primitives.errors import ErrorCode, KafkaError
from wire.primitives.types import Uuid

# Long polls and sessions that hear of an append in its own slice of the loop, some µs each.
NOTIFIED_AT_ONCE: Final = 1000
# Beyond so many, appends that wait for their commit are counted together.
MAX_UNCOMMITTED: Final = 4096
# A partition of which the metadata log has said nothing, or that it was taken from.
NOWHERE: Final = PartitionImage((), (), NO_LEADER, -1, -1)
UNKNOWN_BYTES: Final = 1 << 30

# Members of an enum are slow to look up by name (Python 3.11), so hot paths keep theirs at hand.
NO_ERROR: Final = ErrorCode.NONE
NOT_LEADER: Final = ErrorCode.NOT_LEADER_OR_FOLLOWER


class Watcher(Protocol):
    """Who is told what happens to a partition."""

    def note(self, new_bytes: int) -> bool:
        """So much more can be read, or (0) less from the log's start; False to hear no more."""

    def wake(self) -> None:
        """Something else has happened."""


class FetchWaiter:
    """A long poll: woken when enough bytes have come, over all partitions it watches."""

    __slots__ = ("_woken", "missing_bytes")

    def __init__(self, missing_bytes: int, woken: Callable[[], object]) -> None:
        """`woken` is called then, perhaps more than once."""
        self.missing_bytes = missing_bytes
        self._woken = woken

    def note(self, new_bytes: int) -> bool:
        self.missing_bytes -= new_bytes
        if self.missing_bytes <= 0:
            self._woken()
        return True

    def wake(self) -> None:
        self._woken()

    def end(self) -> None:
        """Nobody is woken any more, or kept in memory by it."""
        self._woken = _no_op


def _no_op() -> None:
    pass


@dataclass(slots=True, eq=False)
class _PendingNotification:
    """What the watchers of a partition have not been told yet."""

    watchers: set[Watcher]
    notified: tuple[Watcher, ...]  # those who watched when the last of it happened
    new_bytes: int | None


class WatcherNotifier:
    """Watchers of partitions that have so many that they are told in slices of the loop.

    What happens before a telling has begun is part of it, so that at most one telling is under way
    and one waits for each set of watchers, however fast producers append.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, _PendingNotification] = {}  # by the id of their set
        self._added = trio.Event()

    def add(self, watchers: set[Watcher], new_bytes: int | None) -> None:
        """Those who watch now are told what has come; None: that something else has happened.

        Who began to watch after an earlier call may be told of that, too.
        """
        waiting = self._waiting.get(id(watchers))
        if waiting is None:
            self._waiting[id(watchers)] = _PendingNotification(watchers, tuple(watchers), new_bytes)
        else:
            waiting.notified = tuple(watchers)
            if waiting.new_bytes is None or new_bytes is None:
                waiting.new_bytes = None
            else:
                waiting.new_bytes += new_bytes
        self._added.set()

    async def run(self) -> None:
        while True:
            await self._added.wait()
            while self._waiting:
                notification = self._waiting.pop(next(iter(self._waiting)))
                watchers, new_bytes = notification.watchers, notification.new_bytes
                each = iter(notification.notified)
                while some := list(islice(each, NOTIFIED_AT_ONCE)):
                    for watcher in some:
                        if watcher not in watchers:  # it has stopped watching since
                            continue
                        if new_bytes is None:
                            watcher.wake()
                        elif not watcher.note(new_bytes):
                            watchers.discard(watcher)
                    await trio.lowlevel.checkpoint()
            self._added = trio.Event()


class CommitWaiter:
    """A producer that waits until everything before `offset` is committed, or can never be."""

    __slots__ = ("_woken", "is_woken", "offset")

    def __init__(self, offset: int, woken: Callable[[], object]) -> None:
        self.offset = offset
        self.is_woken = False
        self._woken = woken

    def wake(self) -> None:
        self.is_woken = True
        self._woken()


@dataclass(slots=True)
class ReplicaContext:
    """What all partitions of one worker need to know about the others."""

    worker_id: int
    broker_epoch: BrokerEpoch
    monotonic: Callable[[], float]
    lag_s: float  # replica.lag.time.max.ms
    eligible: Eligible
    heard: dict[int, float]  # when each other replica fetched anything here last
    # The partition's ISR may have to change: somebody is to ask `leader_state.propose`.
    isr_due: Callable[["Partition"], None]
    # What was seen so far.
    isr_shrinks: int = 0
    isr_expands: int = 0
    flush_times: Histogram = field(default_factory=Histogram)
    wakes: WatcherNotifier = field(default_factory=WatcherNotifier)


class Traffic(NamedTuple):
    """What has come and gone since the process began, as Kafka counts it."""

    records_in: int  # of producers
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
        "known_high_watermark",
        "leader_epoch",
        "leader_id",
        "leader_state",
        "log",
        "offline",
        "replicated_bytes_in",
        "replicated_bytes_out",
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
        """`high_watermark`: as it was known last; a single replica commits all that it holds."""
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.worker_id = context.worker_id
        self._context = context
        self.log = log
        self.config = config
        self.state = NOWHERE  # as the metadata log has it
        self.leader_id = -1
        self.leader_epoch = -1
        # None where this worker does not lead, or is the only replica.
        self.leader_state: LeaderState | None = None
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        self.known_high_watermark = high_watermark  # when this worker started
        self.offline: str | None = None  # why, when its log directory failed
        self.waiters: set[Watcher] = set()  # for what is committed
        self.end_waiters: set[Watcher] = set()  # for what is appended
        self.event_count = 0  # of what any of these was told
        self.commit_waiters: deque[CommitWaiter] = deque()  # in the order of their offsets
        self.start_waiters: set[trio.Event] = set()  # for replicas' log starts
        # Appends that are not committed: where each ends, and its bytes.
        self._uncommitted: deque[tuple[int, int]] = deque()
        self.bytes_in = self.bytes_out = 0
        self.replicated_bytes_in = self.replicated_bytes_out = 0
        self._records_in = 0  # in reigns that are over
        self._led_from = 0  # where the log ended when this reign began
        # Held through appends that do not finish within one slice of the loop.
        self.appending = trio.Lock()

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.worker_id

    @property
    def is_follower(self) -> bool:
        """It is to fetch from another worker, which leads."""
        return (
            self.leader_id not in (NO_LEADER, self.worker_id)
            and self.worker_id in self.state.replicas
            and self.offline is None
        )

    @property
    def is_hosted(self) -> bool:
        """It has a replica here, leader or not, which consumers may read (KIP-392)."""
        return self.worker_id in self.state.replicas and self.offline is None

    @property
    def is_served(self) -> bool:
        return self.leader_id == self.worker_id and self.offline is None

    @property
    def is_awaited(self) -> bool:
        """Somebody waits here to read what may be committed by now."""
        return bool(self.waiters) and self.high_watermark < self.log.log_end_offset

    @property
    def is_catching_up(self) -> bool:
        """A new leader that does not know yet all that was committed before it led (KIP-207).

        Its high watermark may lie behind what its predecessor has told.
        """
        leadership = self.leader_state
        return leadership is not None and self.high_watermark < leadership.epoch_start_offset

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed stops: no transaction is ever open while there are none."""
        return self.high_watermark

    @property
    def replicas(self) -> Sequence[int]:
        return self.state.replicas

    @property
    def isr(self) -> Sequence[int]:
        return self.state.isr

    @property
    def least_isr(self) -> int:
        """So many have to be in sync for acks=all; no more than there are replicas, as in Kafka."""
        least = self.config.min_insync_replicas
        return least if least == 1 else min(least, len(self.state.replicas))

    @property
    def low_watermark(self) -> int:
        """Where the log begins, at every replica that is live."""
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
        """Leader, replicas and ISR are as the metadata log says. StorageError."""
        changed = state.leader_epoch != self.leader_epoch or state.leader != self.leader_id
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
            # Of a log that goes nothing is written: it may be for a full disk that it goes.
            if changed and state.leader_epoch >= 0 and self.worker_id in state.replicas:
                self.log.drop_unused_epochs()
        else:
            self._lead(state, anew=changed)
        if changed:
            self.wake_waiters()

    def _lead(self, state: PartitionImage, *, anew: bool) -> None:
        context = self._context
        if anew:
            self.leader_state = None
        if len(state.replicas) == 1:
            self.leader_state = None
            self._commit(self.log.log_end_offset)
            return
        if self.leader_state is None:
            # From here on what is appended is of this epoch, and followers can tell by it.
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

    def configure(self, config: TopicConfig) -> None:
        """The partition, and its log, do as `config` says from now on."""
        self.config = config
        self.log.configure(config.log)

    def leader_error(self, current_leader_epoch: int = -1) -> ErrorCode:
        """Why the asker may not be served here; NONE when it may.

        `current_leader_epoch` is the asker's, or -1. Source: KIP-320.
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
        """KafkaError unless a producer may append here now."""
        if self.leader_id != self.worker_id or self.offline is not None:
            raise KafkaError(self.leader_error(), f"{self} is not led or not usable here")
        if acks == -1 and len(self.state.isr) < self.least_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} replicas of {self} are in sync, "
                f"min.insync.replicas is {self.config.min_insync_replicas}",
            )

    def retire(self) -> None:
        """This worker hosts it no more."""
        self.assign(PartitionImage((), (), NO_LEADER, self.leader_epoch, UNKNOWN))

    def appended(self, size_bytes: int) -> None:
        """The leader's log has grown by so much: followers hear, or all is committed already."""
        self.bytes_in += size_bytes
        if self.leader_state is None:
            self.high_watermark = self.log.log_end_offset
            if self.waiters:
                self._note(self.waiters, size_bytes)
            return
        self.is_growing(size_bytes)
        self.leader_state.appended(self.log.log_end_offset, self._context.heard)
        if self.end_waiters:
            self._note(self.end_waiters, size_bytes)
        self.advance()

    def is_growing(self, size_bytes: int) -> None:
        """The log has grown by so much that is not committed yet."""
        uncommitted = self._uncommitted
        uncommitted.append((self.log.log_end_offset, size_bytes))
        if len(uncommitted) > MAX_UNCOMMITTED:
            _, first_bytes = uncommitted.popleft()
            next_end, next_bytes = uncommitted.popleft()
            uncommitted.appendleft((next_end, first_bytes + next_bytes))

    def fetched_by(
        self, replica_id: int, broker_epoch: int, offset: int, log_start_offset: int
    ) -> bool:
        """A follower holds everything before `offset`; False if it is no replica of this one."""
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
        if replica_id not in leadership.isr and leadership.joins(
            replica_id, self.high_watermark, context.eligible
        ):
            context.isr_due(self)
        return True

    def advance(self) -> None:
        """What all in sync hold by now is committed."""
        leadership, context = self.leader_state, self._context
        if leadership is not None:
            self._commit(
                leadership.committed(
                    self.high_watermark,
                    self.log.log_end_offset,
                    self.config.min_insync_replicas,
                    context.monotonic(),
                    context.eligible,
                )
            )

    def wait_committed(self, offset: int, woken: Callable[[], object]) -> CommitWaiter:
        """`woken()` when everything before `offset` is committed, or something else has happened.

        It is called in the middle of what has happened: it looks at nothing here.
        """
        waiter = CommitWaiter(offset, woken)
        at = len(self.commit_waiters)
        while at and self.commit_waiters[at - 1].offset > offset:
            at -= 1  # a batch that was sent again: its offset is an earlier one
        self.commit_waiters.insert(at, waiter)
        return waiter

    def stop_waiting(self, waiter: CommitWaiter) -> None:
        if not waiter.is_woken:
            self.commit_waiters.remove(waiter)

    def follow_to(self, high_watermark: int) -> None:
        """The leader says what is committed; this replica may not have all of it yet."""
        self._commit(min(high_watermark, self.log.log_end_offset))

    def cut_to(self, high_watermark: int) -> None:
        """The log has been cut, and what is known to be committed with it."""
        self.high_watermark = high_watermark
        self._uncommitted.clear()
        self.wake_waiters()

    def _commit(self, high_watermark: int) -> None:
        if high_watermark <= self.high_watermark:
            return
        self.high_watermark = high_watermark
        waiting = self.commit_waiters
        while waiting and waiting[0].offset <= high_watermark:
            waiting.popleft().wake()
        new_bytes = 0
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= high_watermark:
            new_bytes += uncommitted.popleft()[1]
        if self.waiters:
            # Of what was there before this worker led or started, nobody knows how much it is.
            self._note(self.waiters, new_bytes or UNKNOWN_BYTES)

    def log_start_moved(self) -> None:
        """Records at the start of the log are gone."""
        self._note(self.waiters, 0)
        self._note(self.end_waiters, 0)

    def notify_log_start(self) -> None:
        """Followers hear at once where the log begins now."""
        for watcher in tuple(self.end_waiters):
            watcher.wake()

    def look_at_starts(self) -> None:
        """Replicas may have moved the start of their logs, or be gone."""
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
        """What was appended before this call survives a loss of power. StorageError."""
        context = self._context
        began = context.monotonic()
        await self.log.flush(disk, now_ms)
        now = context.monotonic()
        context.flush_times.record(now - began, now)

    def fail(self, reason: str) -> None:
        """The log directory cannot be used any more."""
        self.offline = reason
        self.wake_waiters()

    def wake_waiters(self) -> None:
        self.event_count += 1
        for watchers in (self.waiters, self.end_waiters):
            if len(watchers) > NOTIFIED_AT_ONCE:
                self._context.wakes.add(watchers, None)
            else:
                for watcher in tuple(watchers):
                    watcher.wake()
        while self.commit_waiters:
            self.commit_waiters.popleft().wake()
        self.look_at_starts()
