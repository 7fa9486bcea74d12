"""Fetch sessions: what a client fetches is remembered, so that it asks for changes and hears news.

    epoch 0    the client asks for everything; the answer names a session, or 0 when it gets none
    epoch n>0  the client names what it adds, changes or forgets; the answer holds partitions with
               news: records, an error, another high watermark or log start. n counts up
    epoch -1   the client asks for everything and wants no session; the one it names is closed

Here a partition of a session is quiet, or among the session's `news`:

    quiet -> news  what the client asks of it changed, or it told its watchers that something did
    news -> quiet  looked at: there is nothing to read, and all else has been told

A session watches its partitions from the moment it looks at them, between requests, too. A fetch
therefore looks at `news` only, and an idle one of a thousand partitions costs as much as of one.
Partitions that gave records go to the end of `news`, so that none starves behind a small max_bytes.

A follower's session wakes for what is appended; that more is committed it hears with the next
answer, which otherwise would be two for each append.

Sessions end by eviction, not with their connections: the one unused longest when that is longer
than MIN_AGE_S, else the smallest that is older than MIN_AGE_S if the new one is larger. Beyond
Kafka's rules, their partitions have a bound in all. Source: KIP-227.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from random import Random
from typing import Final, TypeAlias

from dataplane.partition.partition import NO_ERROR, FetchWaiter, Partition
from dataplane.scheduling.time_slices import FORGOTTEN_ROWS, PIECE_ROWS, Work, at_once
from wire.messages.fetch import FetchPartition, FetchRequest, PartitionData
from wire.primitives.errors import ErrorCode, KafkaError
from wire.primitives.types import Uuid

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1
MIN_AGE_S: Final = 120.0
# Over all sessions; some 500 bytes each. Whoever would exceed it gets no session.
PARTITIONS_MAX: Final = 250_000
_NEVER_SENT: Final = -1

Key: TypeAlias = tuple[Uuid | str, int]  # topic id or name, and index


def is_whole(message: FetchRequest) -> bool:
    """Whether the request says everything it asks for, without regard to a session."""
    return message.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)


def has_many(message: FetchRequest) -> bool:
    """Whether the request changes more partitions of its session than are changed in one go."""
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
    """Watches for a follower what is committed: news to be told, but not to be woken for."""

    __slots__ = ("_part",)

    def __init__(self, part: "SessionPartition") -> None:
        self._part = part

    def note(self, new_bytes: int) -> bool:
        part = self._part
        part.session.news[part] = None
        if part.partition is not None and part.partition.is_leader:
            return True
        part.stop_watching_commits()  # the follower has another leader, of which it has not told us
        return False

    def wake(self) -> None:
        """It watches what is appended, too, and is woken there."""


class SessionPartition:
    """What a session asks of one partition, and what it was told last. Watches the partition."""

    __slots__ = (
        "_commit_watcher",
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
        self.topic = topic  # may be unknown ("") to a session that goes by ids
        self.topic_id = topic_id
        self.asked = asked
        self.partition: Partition | None = None
        self._commit_watcher: _CommitWatcher | None = None
        self.high_watermark = _NEVER_SENT
        self.log_start_offset = _NEVER_SENT

    def watch(self, partition: Partition | None) -> None:
        """Whatever happens to `partition` from now on is news."""
        before = self.partition
        if partition is not before:
            if before is not None:
                before.waiters.discard(self)
                before.end_waiters.discard(self)
                if self._commit_watcher is not None:
                    before.waiters.discard(self._commit_watcher)
                    self._commit_watcher = None
            if self.session.is_open:
                self.session.present_count += (partition is not None) - (before is not None)
            self.partition = partition
        if partition is None or not self.session.is_open:
            return
        if not self.session.is_followers:
            partition.waiters.add(self)
            return
        partition.end_waiters.add(self)
        if self._commit_watcher is None:
            self._commit_watcher = _CommitWatcher(self)
            partition.waiters.add(self._commit_watcher)

    def end(self) -> None:
        """Its session is closed: it watches nothing, and knows the session no more.

        In a circle both would stay in memory until the garbage collector comes by, which it hardly
        ever does (`mq-server`).
        """
        self.watch(None)
        self.session = _CLOSED

    def stop_watching_commits(self) -> None:
        self._commit_watcher = None

    def note(self, new_bytes: int) -> bool:
        session = self.session
        session.news[self] = None
        if session.waiter is None:
            return False  # it is news already when the next request comes
        return session.waiter.note(new_bytes)

    def wake(self) -> None:
        session = self.session
        session.news[self] = None
        if session.waiter is not None:
            session.waiter.wake()

    def is_quiet(self, end_offset: int) -> bool:
        """There is nothing to read before `end_offset`, and the rest has been told."""
        partition = self.partition
        return (
            partition is not None
            and self.asked.fetch_offset == end_offset
            and self.high_watermark == partition.high_watermark
            and self.log_start_offset == partition.log.log_start_offset
        )

    def update(self, answer: PartitionData, size_bytes: int) -> bool:
        """Whether the client has to be told `answer`; it counts as told then."""
        is_news = size_bytes > 0 or answer.preferred_read_replica >= 0
        if self.high_watermark != answer.high_watermark:
            self.high_watermark = answer.high_watermark
            is_news = True
        if self.log_start_offset != answer.log_start_offset:
            self.log_start_offset = answer.log_start_offset
            is_news = True
        if answer.error_code != NO_ERROR or answer.diverging_epoch is not None:
            self.high_watermark = _NEVER_SENT  # when that is over, it is told again
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
        self.epoch = next_epoch(INITIAL_EPOCH)  # that the next request must have
        self.has_topic_ids = has_topic_ids
        self.partitions: dict[Key, SessionPartition] = {}
        self.present_count = 0  # of its partitions, while it is open, those that are known here
        self.news: dict[SessionPartition, None] = {}
        self.is_open = True
        self.waiter: FetchWaiter | None = None  # of the long poll under way
        self.reader: tuple[int, int] | None = None  # how far it may read: replica, isolation
        self.created_s = self.used_s = now_s
        self.evictable_size: int | None = None

    @property
    def is_followers(self) -> bool:
        return self.reader is not None and self.reader[0] >= 0

    def ask(self, topic: str, topic_id: Uuid, asked: FetchPartition) -> SessionPartition:
        """The partition is fetched as `asked` from now on."""
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
        """It is closed: its partitions watch nothing."""
        for part in self.partitions.values():
            part.end()

    def end_in_pieces(self) -> Work[None]:
        """As `end`, and nothing is left of its partitions, for a session of many."""
        while self.partitions:
            for _ in range(min(FORGOTTEN_ROWS, len(self.partitions))):
                _, part = self.partitions.popitem()
                part.end()
                self.news.pop(part, None)
            yield

    def read_as(self, reader: tuple[int, int]) -> None:
        """Another isolation level, say, ends elsewhere: everything is looked at again."""
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
        """As `update`, one partition after the other."""
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
    """The sessions of one worker, at most `slots`. Times are the caller's, in seconds."""

    def __init__(
        self,
        slots: int,
        random: Random,
        partitions_max: int = PARTITIONS_MAX,
        finish_in_background: Callable[[Work[None]], object] = at_once,
    ) -> None:
        """`finish_in_background` does work that nobody waits for: the end of a large session."""
        self._slots = slots
        self._finish_unawaited = finish_in_background
        self._random = random
        self._partitions_max = partitions_max
        self._sessions: dict[int, FetchSession] = {}  # the one unused longest first
        self._evictable: list[tuple[int, int]] = []  # (partitions, id), the smallest first
        self.partition_count = 0
        self.eviction_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def create(
        self, partition_count: int, now_s: float, *, has_topic_ids: bool
    ) -> FetchSession | None:
        """An empty session; None if so many partitions shall not have one. See `resized`."""
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
        """The session had `before` partitions; it is closed if there are too many now."""
        self.partition_count += len(session.partitions) - before
        if not session.partitions or self.partition_count > self._partitions_max:
            self.close(session.id)

    def use(self, message: FetchRequest, now_s: float, *, has_topic_ids: bool) -> FetchSession:
        """The session that the request continues, with what it asks for. KafkaError if it cannot.

        It may have come to an end thereby, when all was forgotten: it has no partitions then.
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

    def use_in_pieces(
        self, message: FetchRequest, now_s: float, *, has_topic_ids: bool
    ) -> Work[FetchSession]:
        """As `use`, of a request that changes many partitions."""
        session = self._session_of(message, has_topic_ids=has_topic_ids)
        self._touch(session, now_s)
        # Nobody else goes on with this one meanwhile; whoever has the next one overtakes.
        epoch = session.epoch = next_epoch(session.epoch)
        changes = session.changes(message)
        while some := list(islice(changes, PIECE_ROWS)):
            before = len(session.partitions)
            for change in some:
                change()
            is_empty = not session.partitions
            self.resized(session, before)
            if is_empty:
                break  # it was closed for that
            if session.is_open:
                yield  # in which it may be closed: its partitions are not counted any more then
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
        """Nobody can continue the session, if it was one."""
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
        self._sessions[session.id] = self._sessions.pop(session.id)
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
