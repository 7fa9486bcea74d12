"""Leader's side of fetch sessions: incremental fetch requests and responses.

    epoch 0    full request; the response gives a session id, or 0 if no session was created
    epoch n>0  incremental request: partitions added, changed or forgotten; the response holds the
               changed partitions: records, an error, a new high watermark or log start offset.
               n increases by one with each request
    epoch -1   full request without a session; closes the session that it names

A partition of a session is either quiet or in the session's set `news`:

    quiet -> `news`  the client changed its fetch parameters, or the partition notified its watchers
    `news` -> quiet  examined: nothing to read, and all other changes have been sent; for a
                     follower outside the ISR, the metadata do not let it join

A session watches its partitions from their first examination, also between requests. A fetch
therefore examines `news` only, and an idle fetch of a thousand partitions costs as much as one of a
single partition. Partitions that returned records move to the end of `news`, so that a small
max_bytes starves none.

An append wakes a follower's session; a new high watermark does not, but is sent with the next
response. Otherwise each append would cause two responses. In the same way, a session with
read_committed is woken by a new last stable offset.

Sessions end by eviction, not with their connections: first the least recently used if unused for
more than MIN_AGE_S, else the smallest one older than MIN_AGE_S if the new session is larger. Beyond
Kafka's rules, the partitions of all sessions together are limited. Source: KIP-227.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from random import Random
from typing import Final, TypeAlias

from metaquorum.dataplane.fetch.reader import READ_COMMITTED
from metaquorum.dataplane.partition.partition import NO_ERROR, Partition
from metaquorum.dataplane.partition.waiting import FetchWaiter, Watcher
from metaquorum.dataplane.scheduling.time_slices import (
    FORGOTTEN_ROWS,
    PIECE_ROWS,
    Steps,
    at_once,
    pause,
)
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, PartitionData
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.types import Uuid

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1
MIN_AGE_S: Final = 120.0
# Partitions of all sessions, some 500 bytes each. A client that would exceed it gets no session.
PARTITIONS_MAX: Final = 250_000
_NEVER_SENT: Final = -1

Key: TypeAlias = tuple[Uuid | str, int]  # topic id or name, and index


def is_whole(message: FetchRequest) -> bool:
    """Return whether the request is a full one, independent of a session."""
    return message.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)


def has_many(message: FetchRequest) -> bool:
    """Return whether the request changes more than PIECE_ROWS partitions of its session."""
    topics, gone = message.topics, message.forgotten_topics_data
    if not (topics or gone):
        return False
    if len(topics) + len(gone) > PIECE_ROWS:
        return True
    count = sum([len(topic.partitions) for topic in topics])
    return count + sum([len(topic.partitions) for topic in gone]) > PIECE_ROWS


def next_epoch(epoch: int) -> int:
    return 1 if epoch == _EPOCH_MAX else epoch + 1


class _CommitWatcher:
    """Watcher of the high watermark for a session that waits for another offset.

    It does not wake the session.
    """

    __slots__ = ("_part",)

    def __init__(self, part: "SessionPartition") -> None:
        self._part = part

    def note(self, new_bytes: int) -> bool:
        part = self._part
        part.session.news[part] = None
        if not part.session.is_followers:
            return True
        if part.partition is not None and part.partition.is_leader:
            return True
        part.stop_watching_commits()  # this worker no longer leads the partition
        return False

    def wake(self) -> None:
        """Do nothing: the session is woken by its watcher of the other offset."""


class SessionPartition:
    """Fetch parameters and last sent state of one partition of a session; watches the partition."""

    __slots__ = (
        "_commit_watcher",
        "_watched",
        "asked",
        "high_watermark",
        "log_start_offset",
        "partition",
        "session",
        "topic",
        "topic_id",
    )

    def __init__(
        self, session: "FetchSession", topic: str, topic_id: Uuid, asked: FetchPartition
    ) -> None:
        self.session = session
        self.topic = topic  # may be "" in a session with topic ids
        self.topic_id = topic_id
        self.asked = asked
        self.partition: Partition | None = None
        self._watched: set[Watcher] | None = None  # the set that may hold this object
        self._commit_watcher: _CommitWatcher | None = None
        self.high_watermark = _NEVER_SENT
        self.log_start_offset = _NEVER_SENT

    def watch(self, partition: Partition | None) -> None:
        """Watch `partition` from now on, instead of the one watched before."""
        before = self.partition
        if partition is not before:
            self.stop_watching()
            if self.session.is_open:
                self.session.present_count += (partition is not None) - (before is not None)
            self.partition = partition
        if partition is None or not self.session.is_open:
            return
        if self.session.is_followers:
            watchers = partition.end_waiters
        elif self.session.is_committed:
            watchers = partition.stable_waiters
        else:
            watchers = partition.waiters
        if watchers is not self._watched:
            self.stop_watching()  # the isolation level has changed
            self._watched = watchers
        watchers.add(self)
        if watchers is not partition.waiters and self._commit_watcher is None:
            self._commit_watcher = _CommitWatcher(self)
            partition.waiters.add(self._commit_watcher)

    def stop_watching(self) -> None:
        """Stop the notifications of the partition until the next `watch`."""
        if self._watched is not None:
            self._watched.discard(self)
            self._watched = None
        if self._commit_watcher is not None and self.partition is not None:
            self.partition.waiters.discard(self._commit_watcher)
            self._commit_watcher = None

    def end(self) -> None:
        """Stop watching and drop the reference to the closed session.

        The reference cycle would keep both in memory until a run of the garbage collector, which
        is rare in `mq-server`.
        """
        self.watch(None)
        self.session = _CLOSED

    def stop_watching_commits(self) -> None:
        self._commit_watcher = None

    def note(self, new_bytes: int) -> bool:
        session = self.session
        session.news[self] = None
        if session.waiter is None:
            return False  # already in `news` for the next request
        return session.waiter.note(new_bytes)

    def wake(self) -> None:
        session = self.session
        session.news[self] = None
        if session.waiter is not None:
            session.waiter.wake()

    def is_quiet(self, end_offset: int) -> bool:
        """Return whether nothing can be read before `end_offset` and all state has been sent."""
        partition = self.partition
        return (
            partition is not None
            and self.asked.fetch_offset == end_offset
            and self.high_watermark == partition.high_watermark
            and self.log_start_offset == partition.log.log_start_offset
            and not (self.session.is_followers and self._is_awaited(partition))
        )

    def _is_awaited(self, partition: Partition) -> bool:
        reader = self.session.reader
        return reader is not None and partition.awaits_fetch(reader[0])

    def update(self, answer: PartitionData, size_bytes: int) -> bool:
        """Return whether the client needs the row `answer`; record its state as sent."""
        is_news = size_bytes > 0 or answer.preferred_read_replica >= 0
        if self.high_watermark != answer.high_watermark:
            self.high_watermark = answer.high_watermark
            is_news = True
        if self.log_start_offset != answer.log_start_offset:
            self.log_start_offset = answer.log_start_offset
            is_news = True
        if answer.error_code != NO_ERROR or answer.diverging_epoch is not None:
            self.high_watermark = _NEVER_SENT  # sent again when the error is over
            is_news = True
        return is_news


class FetchSession:
    __slots__ = (
        "created_s",
        "epoch",
        "evictable_size",
        "has_topic_ids",
        "id",
        "is_open",
        "news",
        "partitions",
        "present_count",
        "reader",
        "used_s",
        "waiter",
    )

    def __init__(self, session_id: int, now_s: float, *, has_topic_ids: bool) -> None:
        self.id = session_id
        self.epoch = next_epoch(INITIAL_EPOCH)  # expected in the next request
        self.has_topic_ids = has_topic_ids
        self.partitions: dict[Key, SessionPartition] = {}
        self.present_count = 0  # partitions found on this worker, while open
        self.news: dict[SessionPartition, None] = {}
        self.is_open = True
        self.waiter: FetchWaiter | None = None  # pending long poll
        self.reader: tuple[int, int] | None = None  # replica id and isolation level
        self.created_s = self.used_s = now_s
        self.evictable_size: int | None = None

    @property
    def is_followers(self) -> bool:
        return self.reader is not None and self.reader[0] >= 0

    @property
    def is_committed(self) -> bool:
        return self.reader is not None and self.reader[1] == READ_COMMITTED

    def ask(self, topic: str, topic_id: Uuid, asked: FetchPartition) -> SessionPartition:
        """Add the partition, or change its fetch parameters to `asked`."""
        key = (topic_id if self.has_topic_ids else topic, asked.partition)
        part = self.partitions.get(key)
        if part is None:
            part = self.partitions[key] = SessionPartition(self, topic, topic_id, asked)
        else:
            part.asked = asked
        self.news[part] = None
        return part

    def forget(self, key: Key) -> None:
        part = self.partitions.pop(key, None)
        if part is not None:
            self.news.pop(part, None)
            part.watch(None)

    def end(self) -> None:
        """Stop the watches of all partitions after the session was closed."""
        for part in self.partitions.values():
            part.end()

    async def end_in_pieces(self) -> None:
        """Stop the watches and remove the partitions in pieces, for a large session."""
        while self.partitions:
            for _ in range(min(FORGOTTEN_ROWS, len(self.partitions))):
                _, part = self.partitions.popitem()
                part.end()
                self.news.pop(part, None)
            await pause()

    def read_as(self, reader: tuple[int, int]) -> None:
        """Set replica id and isolation level; after a change, all partitions are examined again."""
        if reader != self.reader:
            self.reader = reader
            self.news.update(dict.fromkeys(self.partitions.values()))

    def update(self, message: FetchRequest) -> None:
        for topic in message.topics:
            for asked in topic.partitions:
                self.ask(topic.topic, topic.topic_id, asked)
        for gone in message.forgotten_topics_data:
            name = gone.topic_id if self.has_topic_ids else gone.topic
            for index in gone.partitions:
                self.forget((name, index))

    def changes(self, message: FetchRequest) -> Iterator[Callable[[], object]]:
        """Yield the changes of `update`, one callable for each partition."""
        for topic in message.topics:
            for asked in topic.partitions:
                yield partial(self.ask, topic.topic, topic.topic_id, asked)
        for gone in message.forgotten_topics_data:
            name = gone.topic_id if self.has_topic_ids else gone.topic
            for index in gone.partitions:
                yield partial(self.forget, (name, index))


_CLOSED: Final = FetchSession(NO_SESSION, 0.0, has_topic_ids=False)
_CLOSED.is_open = False


class FetchSessions:
    """Fetch sessions of one worker, at most `slots`; the caller passes times in seconds."""

    def __init__(
        self,
        slots: int,
        random: Random,
        partitions_max: int = PARTITIONS_MAX,
        finish_in_background: Callable[[Steps[None]], object] = at_once,
    ) -> None:
        """Create the table; `finish_in_background` runs the cleanup of large closed sessions."""
        self._slots = slots
        self._finish_unawaited = finish_in_background
        self._random = random
        self._partitions_max = partitions_max
        # Least recently used first.
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._evictable: list[tuple[int, int]] = []  # (partitions, id), the smallest first
        self.partition_count = 0
        self.eviction_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def create(
        self, partition_count: int, now_s: float, *, has_topic_ids: bool
    ) -> FetchSession | None:
        """Return a new empty session; None without partitions, or without room for them.

        The caller adds the partitions and then calls `resized`.
        """
        room = self._partitions_max - partition_count
        if not partition_count or room < 0:
            return None
        while len(self._sessions) >= self._slots or self.partition_count > room:
            if not self._evict_for(partition_count, now_s):
                return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._random.randrange(1, 2**31)
        session = FetchSession(session_id, now_s, has_topic_ids=has_topic_ids)
        self._sessions[session_id] = session
        return session

    def resized(self, session: FetchSession, before: int) -> None:
        """Update the partition count after a change from `before` partitions.

        Closes the session if it is empty or all sessions together exceed the limit.
        """
        self.partition_count += len(session.partitions) - before
        if not session.partitions or self.partition_count > self._partitions_max:
            self.close(session.id)

    def use(self, message: FetchRequest, now_s: float, *, has_topic_ids: bool) -> FetchSession:
        """Apply an incremental request and return its session.

        A request that forgets all partitions closes the session, which is then empty. Raises
        KafkaError if the session id, epoch or kind of topic key does not match.
        """
        session = self._session_of(message, has_topic_ids=has_topic_ids)
        if message.topics or message.forgotten_topics_data:
            before = len(session.partitions)
            session.update(message)
            is_empty = not session.partitions
            self.resized(session, before)
            if is_empty:
                return session
            if session.id not in self._sessions:
                raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._touch(session, now_s)
        session.epoch = next_epoch(session.epoch)
        return session

    async def use_in_pieces(
        self, message: FetchRequest, now_s: float, *, has_topic_ids: bool
    ) -> FetchSession:
        """Apply a request like `use`, in pieces, for many changed partitions."""
        session = self._session_of(message, has_topic_ids=has_topic_ids)
        self._touch(session, now_s)
        # Another request with this epoch is refused; one with the next epoch overtakes this one.
        epoch = session.epoch = next_epoch(session.epoch)
        changes = session.changes(message)
        while some := list(islice(changes, PIECE_ROWS)):
            before = len(session.partitions)
            for change in some:
                change()
            is_empty = not session.partitions
            self.resized(session, before)
            if is_empty:
                break  # `resized` has closed it
            if session.is_open:
                await (
                    pause()
                )  # the session may be closed meanwhile; its partitions then no longer count
            if not session.is_open:
                raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if session.epoch != epoch:
                raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        return session

    def _session_of(self, message: FetchRequest, *, has_topic_ids: bool) -> FetchSession:
        session = self._sessions.get(message.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if message.session_epoch != session.epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.has_topic_ids != has_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return session

    def close(self, session_id: int) -> None:
        """Close the session if it exists; later requests for it fail."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self._set_evictable(session, None)
        session.is_open = False
        session.present_count = 0
        self.partition_count -= len(session.partitions)
        if len(session.partitions) > FORGOTTEN_ROWS:
            self._finish_unawaited(session.end_in_pieces())
        else:
            session.end()
        if session.waiter is not None:
            session.waiter.wake()

    def _touch(self, session: FetchSession, now_s: float) -> None:
        session.used_s = now_s
        self._sessions.move_to_end(session.id)
        if now_s - session.created_s > MIN_AGE_S:
            self._set_evictable(session, len(session.partitions))

    def _set_evictable(self, session: FetchSession, size: int | None) -> None:
        before = session.evictable_size
        if size == before:
            return
        if before is not None:
            del self._evictable[bisect_left(self._evictable, (before, session.id))]
        if size is not None:
            insort(self._evictable, (size, session.id))
        session.evictable_size = size

    def _evict_for(self, partition_count: int, now_s: float) -> bool:
        stalest = next(iter(self._sessions.values()), None)
        if stalest is not None and now_s - stalest.used_s > MIN_AGE_S:
            self._evict(stalest.id)
            return True
        if self._evictable and self._evictable[0][0] < partition_count:
            self._evict(self._evictable[0][1])
            return True
        return False

    def _evict(self, session_id: int) -> None:
        self.eviction_count += 1
        self.close(session_id)
