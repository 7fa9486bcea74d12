"""Fetch: slices of segment files, with long polls.

Consumers read up to the high watermark, with read_committed up to the last stable offset, followers
up to the log end. A response does not hold
records, only their position in segment files: `connection` copies small slices and sends large ones
by sendfile. A fetch that finds less than `min_bytes` watches its partitions and reads again when
enough bytes have been appended, its wait time is over, or another event happens to one of the
partitions.

A request is a full fetch, or continues a fetch session (`dataplane.fetch.sessions`). Its partitions
are a set, as in Apache Kafka: a repeated partition is fetched once, with its last row, and answered
at its first position.

A request of many partitions is work in pieces (`dataplane.scheduling.time_slices`): it watches each
partition before it reads it, so that it misses no event between two pieces, and after a wait it
reads only the partitions with events again.
"""

from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from dataplane.fetch.long_polls import LongPolls
from dataplane.fetch.parked_polls import ParkedRequests
from dataplane.fetch.reader import (
    FetchedWorker,
    FetchReader,
    replica_of,
    size_of,
    waiters_for,
)
from dataplane.fetch.sessions import (
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    FetchSessions,
    Key,
    SessionPartition,
    has_many,
    is_whole,
)
from dataplane.log.segments.files import ColdError
from dataplane.network.delayed import DelayedResponse
from dataplane.partition.partition import NO_ERROR, FetchWaiter, Partition, Watcher
from dataplane.replication.earlier_workers import EarlierFollowers
from dataplane.replication.replica_authentication import fetch_claim_error
from dataplane.scheduling.time_slices import (
    FORGOTTEN_ROWS,
    PIECE_ROWS,
    Work,
    at_once,
    in_pieces,
    pieces,
)
from dataplane.worker.capabilities import (
    HasClock,
    HasDisk,
    HasImage,
    HasQuotas,
    ReadsPartitions,
)
from dataplane.worker.context import Request
from metaquorum.metadata.image import MetadataImage
from metaquorum.runtime import StorageError
from wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from wire.primitives.errors import ErrorCode, KafkaError
from wire.primitives.types import Uuid

_TOPIC_IDS_SINCE: Final = 13
_FOLLOWERS_SINCE: Final = 11  # consumers may read from followers: KIP-392
# Longest long poll; a client with a longer max_wait_ms gets an empty response after it.
MAX_WAIT_MS: Final = 5 * 60 * 1000
# An unauthenticated replica with more partitions gets one error for the whole request.
MAX_REFUSED_ROWS: Final = 1000
# Attempts to find the records with uncached pages read in a worker thread; then the event loop
# reads the pages.
MAX_COLD_READS: Final = 8

Answer: TypeAlias = FetchResponse | DelayedResponse | Coroutine[Any, Any, FetchResponse]
_Asked: TypeAlias = tuple[FetchTopic, FetchPartition]
# Request, partition, row, and the partition's `event_count` at its read, or _NEVER.
_Found: TypeAlias = tuple[FetchTopic, FetchPartition, Partition | None, PartitionData, int]
# Session partition, row, and the partition's `event_count` at its read, or _NEVER.
Looked: TypeAlias = tuple[SessionPartition, PartitionData, int]
_NEVER: Final = -1  # not read, or not completely
_T = TypeVar("_T")


class LimitsFetches(FetchedWorker, HasQuotas, Protocol):
    """Parts for reading partitions and counting the bytes against a client's quota."""

    @property
    def fetch_max_bytes(self) -> int: ...


class AnswersFetches(ReadsPartitions, HasDisk, HasImage, Protocol):
    """Parts for looking up partitions, long polls, and reading uncached pages in a thread."""

    @property
    def long_polls(self) -> LongPolls: ...


class KeepsSessions(AnswersFetches, HasClock, Protocol):
    """`AnswersFetches`, and parts for opening, continuing and closing fetch sessions."""

    @property
    def fetch_sessions(self) -> FetchSessions: ...


class NewestMetadata(Protocol):
    @property
    def image(self) -> MetadataImage: ...


class FollowerContacts(Protocol):
    @property
    def earlier_followers(self) -> EarlierFollowers: ...

    def heard_from(self, replica_id: int) -> None: ...


class Fetches(LimitsFetches, KeepsSessions, Protocol):
    """All parts that Fetch may use."""

    @property
    def loader(self) -> NewestMetadata:
        """The newest metadata received, so that a follower's registration counts at once."""

    @property
    def isr_manager(self) -> FollowerContacts: ...


def handle_fetch(worker: Fetches, request: Request, message: FetchRequest) -> Answer | Work[Answer]:
    if (replica_id := replica_of(message)) >= 0:
        image, followers = worker.loader.image, worker.isr_manager
        if error := fetch_claim_error(request.client, message, image, followers.earlier_followers):
            return _refuse_claim(message, error)
        followers.heard_from(replica_id)
    allowed = _Allowed(worker, request, message, is_limited=replica_id < 0)
    has_topic_ids = request.version >= _TOPIC_IDS_SINCE
    if not is_whole(message):
        return _continue(worker, message, has_topic_ids, allowed)
    if message.session_id:
        worker.fetch_sessions.close(message.session_id)
    if allowed.throttle_ms:
        return FetchResponse(throttle_time_ms=allowed.throttle_ms)
    return _FullFetch(worker, message, has_topic_ids, allowed).answer()


def _refuse_claim(message: FetchRequest, error: ErrorCode) -> FetchResponse:
    """Return the error for a client that may not fetch as the replica that it names."""
    row_count = sum(len(topic.partitions) for topic in message.topics)
    if error is ErrorCode.STALE_BROKER_EPOCH or row_count > MAX_REFUSED_ROWS:
        return FetchResponse(error_code=error)
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(
                        partition_index=data.partition,
                        error_code=error,
                        high_watermark=-1,
                        aborted_transactions=None,
                        records=b"",
                    )
                    for data in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


class _Allowed:
    """Bytes that the quotas allow a fetch to return. Followers are not limited (KIP-13).

    If `throttle_ms` is not 0, the fetch reads nothing.
    """

    __slots__ = (
        "_from_followers",
        "_listener",
        "_request",
        "_worker",
        "max_bytes",
        "throttle_ms",
    )

    def __init__(
        self, worker: LimitsFetches, request: Request, message: FetchRequest, *, is_limited: bool
    ) -> None:
        self.throttle_ms = 0
        self.max_bytes = min(message.max_bytes, worker.fetch_max_bytes)
        self._worker = worker
        self._listener = request.client.listener  # the client's listener
        self._from_followers = request.version >= _FOLLOWERS_SINCE and replica_of(message) == -1
        self._request: Request | None = None
        quotas = worker.quotas
        if is_limited and quotas.is_on_for_fetches:
            self._request = request
            self.throttle_ms = quotas.may_fetch(request.client, request.client_id)
            most = quotas.fetch_bytes(request.client, request.client_id)
            if most is not None:
                self.max_bytes = min(self.max_bytes, most)

    def reader(self, message: FetchRequest) -> FetchReader:
        return FetchReader(
            self._worker,
            self._listener,
            message,
            self.max_bytes,
            from_followers=self._from_followers,
        )

    def ask_again(self) -> int:
        """Return the new `throttle_ms` after a wait: other clients may have used the quota."""
        request = self._request
        if request is not None:
            quotas = self._worker.quotas
            self.throttle_ms = quotas.may_fetch(request.client, request.client_id)
        return self.throttle_ms

    def given(self, reader: FetchReader) -> None:
        """Count the bytes that the reader has read against the quota."""
        request = self._request
        if request is not None:
            self._worker.quotas.fetched(request.client, request.client_id, reader.size_bytes)


def _min_bytes(message: FetchRequest, allowed: _Allowed) -> int:
    """Return the bytes to wait for, at most `max_bytes`, the limit of the response."""
    return min(message.min_bytes, allowed.max_bytes)


class _DelayedFetch(DelayedResponse):
    """Long poll: ready when enough bytes are available, at its timeout, or at another event."""

    __slots__ = ("_answer", "_dropped", "_parked", "_polls", "_timer", "_unwatch", "waiter")

    def __init__(
        self,
        polls: LongPolls,
        message: FetchRequest,
        missing_bytes: int,
        answer: Callable[[], FetchResponse | Work[FetchResponse]],
        unwatch: Callable[["_DelayedFetch"], None],
        dropped: Callable[[], None] | None = None,
    ) -> None:
        """Start the long poll; the caller adds `waiter` to partitions or a session.

        `unwatch` removes `waiter` again. `dropped` is called if the response is not needed.
        """
        super().__init__()
        self.waiter = FetchWaiter(missing_bytes, self.ready)
        self._answer = answer
        self._unwatch = unwatch
        self._dropped = dropped
        self._parked: ParkedRequests | None = None
        self._polls = polls
        wait_s = min(message.max_wait_ms, MAX_WAIT_MS) / 1000
        self._timer = polls.hold(self.waiter, wait_s, self.ready)

    def park(self, parked: ParkedRequests, row_count: int) -> "_DelayedFetch":
        """Count the waiting request and its rows in `parked`."""
        self._parked = parked
        parked.add(self, row_count)
        return self

    def complete(self) -> FetchResponse | Work[FetchResponse]:
        self.end()
        return self._answer()

    def cancel(self) -> None:
        self.end()
        if self._dropped is not None:
            self._dropped()

    def end(self) -> None:
        """End the wait: stop the timer and the watch."""
        self._timer.cancel()
        if self._parked is not None:
            self._parked.remove(self)
        self._polls.release(self.waiter)
        self._unwatch(self)
        self.waiter.end()  # breaks a reference cycle


class _Rows:
    """Rows of a response. Consecutive rows of one topic are grouped, as in Kafka."""

    __slots__ = ("responses",)

    def __init__(self) -> None:
        self.responses: list[FetchableTopicResponse] = []

    def add(self, rows: Iterable[tuple[str, Uuid, PartitionData]]) -> None:
        last = self.responses[-1] if self.responses else None
        for topic, topic_id, row in rows:
            if last is None or last.topic != topic or last.topic_id != topic_id:
                last = FetchableTopicResponse(topic=topic, topic_id=topic_id)
                self.responses.append(last)
            last.partitions.append(row)

    def add_found(self, found: Iterable[_Found]) -> None:
        before: FetchTopic | None = None
        partitions: list[PartitionData] = []
        for topic, _, _, row, _ in found:
            if topic is not before:
                self.add([(topic.topic, topic.topic_id, row)])
                before, partitions = topic, self.responses[-1].partitions
            else:
                partitions.append(row)

    def response(self, reader: FetchReader) -> FetchResponse:
        reader.count_given()
        return FetchResponse(responses=self.responses, node_endpoints=reader.endpoints())


def _unwatched(watched: list[set[Watcher]], waiter: FetchWaiter) -> Work[None]:
    """Remove `waiter` from all sets in `watched` and empty `watched`, in pieces."""
    while watched:
        for watchers in watched[-FORGOTTEN_ROWS:]:
            watchers.discard(waiter)
        del watched[-FORGOTTEN_ROWS:]
        yield


def _forget_partitions(topic: FetchTopic) -> None:
    topic.partitions = []


def _each(topics: Iterable[FetchTopic]) -> Iterator[_Asked]:
    for topic in topics:
        for data in topic.partitions:
            yield topic, data


async def _warm(worker: HasDisk, cold: Iterable[ColdError]) -> bool:
    """Read uncached pages into memory. Return whether all reads succeeded.

    The error of a failed read is reported when the partition is read.
    """
    try:
        for each in cold:
            await each.warm(worker.disk)
    except (StorageError, OSError):
        return False
    return True


# Full fetches


class _FullFetch:
    """A request that names all its partitions, without a session or to open one."""

    __slots__ = ("allowed", "found", "has_topic_ids", "image", "message", "watched", "worker")

    def __init__(
        self,
        worker: KeepsSessions,
        message: FetchRequest,
        has_topic_ids: bool,
        allowed: _Allowed,
    ) -> None:
        self.worker = worker
        self.allowed = allowed
        self.message = message
        self.has_topic_ids = has_topic_ids
        self.found: list[_Found] = []
        self.watched: list[set[Watcher]] = []  # sets that hold its poll's waiter
        self.image: MetadataImage | None = None  # used to look up the partitions

    def answer(self) -> Answer | Work[Answer]:
        topics = self.message.topics
        if len(topics) == 1 and len(topics[0].partitions) == 1:
            return self._answer_few([(topics[0], topics[0].partitions[0])])
        if len(topics) > PIECE_ROWS or sum([len(t.partitions) for t in topics]) > PIECE_ROWS:
            return self._answer_many()
        asked: Iterable[_Asked] = [(topic, data) for topic in topics for data in topic.partitions]
        if self._names_any_twice(topics):
            kept: dict[Key, _Asked] = {}
            self._keep_last(kept, asked)
            asked = kept.values()
        return self._answer_few(asked)

    def _answer_few(self, asked: Iterable[_Asked]) -> Answer:
        message = self.message
        reader = self.allowed.reader(message)
        self.found = self._look(reader, asked)
        if reader.cold:
            return self._answer_cold(reader)
        min_bytes = _min_bytes(message, self.allowed)
        if (
            reader.size_bytes >= min_bytes
            or reader.must_answer
            or message.max_wait_ms <= 0
            or self.worker.long_polls.is_closed
        ):
            return self._respond(reader)
        self.watched = [
            waiters_for(message, partition)
            for _, _, partition, _, _ in self.found
            if partition is not None
        ]
        if not self.watched:
            return self._respond(reader)
        poll = self._poll(min_bytes - reader.size_bytes)
        for watchers in self.watched:
            watchers.add(poll.waiter)
        return poll

    def _answer_many(self) -> Work[Answer]:
        asked: dict[Key, _Asked] = {}
        each = _each(self.message.topics)
        while some := list(islice(each, PIECE_ROWS)):
            self._keep_last(asked, some)
            yield
        # Free the rows of the request, so that repeated ones are not held during the wait.
        yield from in_pieces(self.message.topics, _forget_partitions)
        self.worker.slicer.discard(self.message.topics)
        self.message.topics = []
        poll = self._poll(_min_bytes(self.message, self.allowed)) if self._may_wait else None
        is_waiting = False
        try:
            reader = self.allowed.reader(self.message)
            for piece in pieces(list(asked.values())):
                self.found += self._look(reader, piece, poll)
                yield
            self.worker.slicer.discard(asked)
            if reader.cold:
                return self._answer_cold(reader)
            if poll is not None and self.watched and not self._is_enough(reader):
                poll.waiter.note(reader.size_bytes)  # may complete the poll
                is_waiting = True
                return poll.park(self.worker.long_polls.parked, len(self.found))
        finally:
            if poll is not None and not is_waiting:
                poll.end()
        return (yield from self._respond_in_pieces(reader))

    @property
    def _may_wait(self) -> bool:
        return self.message.max_wait_ms > 0 and not self.worker.long_polls.is_closed

    def _is_enough(self, reader: FetchReader) -> bool:
        return reader.must_answer or reader.size_bytes >= _min_bytes(self.message, self.allowed)

    def _poll(self, missing_bytes: int) -> _DelayedFetch:
        return _DelayedFetch(
            self.worker.long_polls,
            self.message,
            missing_bytes,
            self._answer_again,
            self._unwatch,
            self._dropped,
        )

    def _dropped(self) -> None:
        self.worker.slicer.discard(self.found)

    def _watch(self, poll: _DelayedFetch, partition: Partition | None) -> None:
        if partition is not None:
            watchers = waiters_for(self.message, partition)
            watchers.add(poll.waiter)
            self.watched.append(watchers)

    def _unwatch(self, poll: _DelayedFetch) -> None:
        watched, self.watched = self.watched, []
        if len(watched) > FORGOTTEN_ROWS:
            self.worker.slicer.finish_in_background(_unwatched(watched, poll.waiter))
            return
        for watchers in watched:
            watchers.discard(poll.waiter)

    def _answer_again(self) -> FetchResponse | Work[FetchResponse]:
        if self.allowed.ask_again():
            return FetchResponse(throttle_time_ms=self.allowed.throttle_ms)
        reader = self.allowed.reader(self.message)
        reader.may_block = True
        if len(self.found) > PIECE_ROWS:
            return self._answer_many_again(reader)
        self.found = self._look_again(reader, self.found)
        return self._respond(reader)

    def _answer_many_again(self, reader: FetchReader) -> Work[FetchResponse]:
        yield from self._look_again_in_pieces(reader)
        return (yield from self._respond_in_pieces(reader))

    async def _answer_cold(self, reader: FetchReader) -> FetchResponse:
        """Answer after a worker thread has read the pages that are needed to find the records."""
        reads = 0
        while reader.cold:
            reads += 1
            has_all = await _warm(self.worker, reader.cold)
            reader = self.allowed.reader(self.message)
            reader.may_block = reads == MAX_COLD_READS or not has_all
            await self._in_slices(self._look_again_in_pieces(reader))
        return await self._in_slices(self._respond_in_pieces(reader))

    async def _in_slices(self, work: Work[_T]) -> _T:
        if len(self.found) <= PIECE_ROWS:
            return at_once(work)
        return await self.worker.slicer.finish(work, 0)

    def _names_any_twice(self, topics: Sequence[FetchTopic]) -> bool:
        by_id = self.has_topic_ids
        if len({topic.topic_id if by_id else topic.topic for topic in topics}) < len(topics):
            return True
        return any(
            len({data.partition for data in t.partitions}) < len(t.partitions) for t in topics
        )

    def _keep_last(self, kept: dict[Key, _Asked], asked: Iterable[_Asked]) -> None:
        """Keep each partition once: at its first position, with its last row."""
        by_id = self.has_topic_ids
        for each in asked:
            topic, data = each
            kept[topic.topic_id if by_id else topic.topic, data.partition] = each

    def _look(
        self, reader: FetchReader, asked: Iterable[_Asked], poll: _DelayedFetch | None = None
    ) -> list[_Found]:
        """Read partitions; `poll`, unless None, watches each of them before its read."""
        found: list[_Found] = []
        if self.image is None:
            self.image = self.worker.image
        partitions, by_id, cold, read = (
            self.worker.replica_manager,
            self.has_topic_ids,
            reader.cold,
            reader.read,
        )
        for topic, data in asked:
            code = NO_ERROR
            try:
                if by_id:
                    partition = partitions.by_id(topic.topic_id, data.partition)
                else:
                    partition = partitions.by_name(topic.topic, data.partition)
            except KafkaError as error:
                row = read(data, None, error.code)
                found.append((topic, data, None, row, _NEVER))
                continue
            if poll is not None:
                self._watch(poll, partition)
            cold_before = len(cold)
            row = read(data, partition, code)
            seen = partition.event_count if len(cold) == cold_before else _NEVER
            found.append((topic, data, partition, row, seen))
        return found

    def _look_again(self, reader: FetchReader, found: Iterable[_Found]) -> list[_Found]:
        """Read again the partitions with events since their read, and those with records."""
        again = []
        # Not every change wakes the poll of a follower, or one for the last stable offset.
        is_replica = reader.replica_id >= 0 or reader.is_committed
        has_changed = self.worker.image is not self.image
        for each in found:
            topic, data, before, row, seen = each
            if before is None:
                is_same = not has_changed
            else:
                is_same = seen == before.event_count and not (is_replica or size_of(row))
            if is_same:
                again.append(each)
                continue
            reader.is_first = before is None or not before.is_served
            again += self._look(reader, ((topic, data),))
        return again

    def _look_again_in_pieces(self, reader: FetchReader) -> Work[None]:
        again: list[_Found] = []
        for piece in pieces(self.found):
            again += self._look_again(reader, piece)
            if len(piece) == PIECE_ROWS:
                yield
        self.worker.slicer.discard(self.found)
        self.found = again

    def _respond(self, reader: FetchReader) -> FetchResponse:
        rows = _Rows()
        rows.add_found(self.found)
        self.allowed.given(reader)
        response = rows.response(reader)
        if self.message.session_epoch == INITIAL_EPOCH:
            response.session_id = at_once(self._new_session(reader))
        return response

    def _respond_in_pieces(self, reader: FetchReader) -> Work[FetchResponse]:
        rows = _Rows()
        for piece in pieces(self.found):
            rows.add_found(piece)
            if len(piece) == PIECE_ROWS:
                yield
        self.allowed.given(reader)
        response = rows.response(reader)
        if self.message.session_epoch == INITIAL_EPOCH:
            response.session_id = yield from self._new_session(reader)
        self.worker.slicer.discard(self.found)
        return response

    def _new_session(self, reader: FetchReader) -> Work[int]:
        sessions, found = self.worker.fetch_sessions, self.found
        session = sessions.create(
            len(found), self.worker.clock.monotonic(), has_topic_ids=self.has_topic_ids
        )
        if session is None:
            return NO_SESSION
        session.read_as((reader.replica_id, self.message.isolation_level))
        for piece in pieces(found):
            before = len(session.partitions)
            for topic, data, partition, row, seen in piece:
                name = topic.topic if partition is None else partition.topic
                part = session.ask(name, topic.topic_id, data)
                part.watch(partition)
                part.update(row, size_of(row))
                # The partition was not watched since its read: any event since is unreported.
                if (
                    partition is not None
                    and partition.event_count == seen
                    and part.is_quiet(reader.end_offset(partition))
                ):
                    del session.news[part]
            sessions.resized(session, before)
            if len(piece) == PIECE_ROWS:
                yield
            if not session.is_open:  # evicted by other sessions, or above the limit
                return NO_SESSION
        return session.id


# Requests of a session


def _continue(
    worker: KeepsSessions, message: FetchRequest, has_topic_ids: bool, allowed: _Allowed
) -> Answer | Work[Answer]:
    sessions, now_s = worker.fetch_sessions, worker.clock.monotonic()
    try:
        if has_many(message):
            work = sessions.use_in_pieces(message, now_s, has_topic_ids=has_topic_ids)
            return _continue_later(worker, message, work, allowed)
        session = sessions.use(message, now_s, has_topic_ids=has_topic_ids)
    except KafkaError as error:
        return FetchResponse(error_code=error.code, throttle_time_ms=allowed.throttle_ms)
    return _continue_with(worker, message, session, allowed)


def _continue_later(
    worker: AnswersFetches, message: FetchRequest, use: Work[FetchSession], allowed: _Allowed
) -> Work[Answer]:
    try:
        session = yield from use
    except KafkaError as error:
        return FetchResponse(error_code=error.code, throttle_time_ms=allowed.throttle_ms)
    answer = _continue_with(worker, message, session, allowed)
    if isinstance(answer, Generator):
        answer = yield from answer
    return answer


def _continue_with(
    worker: AnswersFetches, message: FetchRequest, session: FetchSession, allowed: _Allowed
) -> Answer | Work[Answer]:
    if not session.partitions:
        return FetchResponse(throttle_time_ms=allowed.throttle_ms)
    if session.waiter is not None:
        session.waiter.wake()  # this request overtakes a waiting one
    if allowed.throttle_ms:
        return FetchResponse(throttle_time_ms=allowed.throttle_ms, session_id=session.id)
    return _IncrementalFetch(worker, message, session, allowed).answer()


class _IncrementalFetch:
    """A request that continues a fetch session."""

    __slots__ = ("allowed", "epoch", "message", "session", "worker")

    def __init__(
        self,
        worker: AnswersFetches,
        message: FetchRequest,
        session: FetchSession,
        allowed: _Allowed,
    ) -> None:
        self.worker = worker
        self.allowed = allowed
        self.message = message
        self.session = session
        self.epoch = session.epoch

    def answer(self) -> Answer | Work[Answer]:
        session = self.session
        if len(session.news) > PIECE_ROWS or (
            len(session.partitions) > PIECE_ROWS
            and session.reader != (replica_of(self.message), self.message.isolation_level)
        ):
            return self._answer_many()
        reader = self._reader()
        looked = self._look(reader, list(self.session.news))
        if reader.cold:
            return self._answer_cold(reader)
        if self._is_enough(reader) or not self._may_wait:
            return self._respond(reader, looked)
        return self._poll(_min_bytes(self.message, self.allowed) - reader.size_bytes)

    def _answer_many(self) -> Work[Answer]:
        yield from self._read_as()
        if (overtaken := self._overtaken()) is not None:
            return overtaken
        poll = self._poll(_min_bytes(self.message, self.allowed)) if self._may_wait else None
        is_waiting = False
        looked: list[Looked] = []
        try:
            reader = self._reader()
            looked = yield from self._look_in_pieces(reader)
            if (overtaken := self._overtaken()) is not None:
                return overtaken
            if reader.cold:
                return self._answer_cold(reader)
            # The reads may have shown that there is nothing to wait for.
            if poll is not None and self._may_wait and not self._is_enough(reader):
                poll.waiter.note(reader.size_bytes)  # may complete the poll
                is_waiting = True
                return poll
        finally:
            if poll is not None and not is_waiting:
                poll.end()
            if is_waiting:
                self.worker.slicer.discard(looked)
        return (yield from self._respond_in_pieces(reader, looked))

    @property
    def _may_wait(self) -> bool:
        return (
            self.message.max_wait_ms > 0
            and not self.worker.long_polls.is_closed
            and self.session.present_count > 0
        )

    def _is_enough(self, reader: FetchReader) -> bool:
        return reader.must_answer or reader.size_bytes >= _min_bytes(self.message, self.allowed)

    def _poll(self, missing_bytes: int) -> _DelayedFetch:
        poll = _DelayedFetch(
            self.worker.long_polls, self.message, missing_bytes, self._answer_again, self._unwatch
        )
        self.session.waiter = poll.waiter
        return poll

    def _unwatch(self, poll: _DelayedFetch) -> None:
        if self.session.waiter is poll.waiter:
            self.session.waiter = None

    def _overtaken(self) -> FetchResponse | None:
        """Return the error if another connection has continued the session, otherwise None."""
        session = self.session
        if session.epoch == self.epoch:
            return None
        return FetchResponse(
            error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.id
        )

    def _answer_again(self) -> FetchResponse | Work[FetchResponse]:
        if (overtaken := self._overtaken()) is not None:
            return overtaken
        if self.allowed.ask_again():
            throttle_ms = self.allowed.throttle_ms
            return FetchResponse(throttle_time_ms=throttle_ms, session_id=self.session.id)
        reader = self._reader(may_block=True)
        if len(self.session.news) > PIECE_ROWS:
            return self._answer_many_again(reader)
        return self._respond(reader, self._look(reader, list(self.session.news), is_first=False))

    def _answer_many_again(self, reader: FetchReader) -> Work[FetchResponse]:
        looked = yield from self._look_in_pieces(reader, is_first=False)
        return self._overtaken() or (yield from self._respond_in_pieces(reader, looked))

    async def _answer_cold(self, reader: FetchReader) -> FetchResponse:
        """Answer after a worker thread has read the pages that are needed to find the records."""
        reads, looked = 0, list[Looked]()
        while reader.cold and self._overtaken() is None:
            reads += 1
            has_all = await _warm(self.worker, reader.cold)
            reader = self._reader(may_block=reads == MAX_COLD_READS or not has_all)
            looked = await self._in_slices(self._look_in_pieces(reader, is_first=False))
        if (overtaken := self._overtaken()) is not None:
            return overtaken
        return await self._in_slices(self._respond_in_pieces(reader, looked))

    async def _in_slices(self, work: Work[_T]) -> _T:
        if len(self.session.news) <= PIECE_ROWS:
            return at_once(work)
        return await self.worker.slicer.finish(work, 0)

    def _reader(self, *, may_block: bool = False) -> FetchReader:
        reader = self.allowed.reader(self.message)
        reader.may_block = may_block
        self.session.read_as((reader.replica_id, self.message.isolation_level))
        return reader

    def _read_as(self) -> Work[None]:
        """Mark all partitions for a read if replica id or isolation level have changed."""
        session = self.session
        reader = (replica_of(self.message), self.message.isolation_level)
        if session.reader == reader:
            return
        session.reader = None  # a request that overtakes this one reads all partitions
        for piece in pieces(list(session.partitions.values())):
            session.news.update(dict.fromkeys(piece))
            yield
            if self._overtaken() is not None:
                return
        session.reader = reader

    def _look_in_pieces(self, reader: FetchReader, *, is_first: bool = True) -> Work[list[Looked]]:
        """Read the session's changed partitions in pieces; stop if another request overtakes."""
        looked: list[Looked] = []
        for piece in pieces(list(self.session.news)):
            if self._overtaken() is not None:
                break
            looked += self._look(reader, piece, is_first=is_first)
            if len(piece) == PIECE_ROWS:
                yield
        return looked

    def _look(
        self, reader: FetchReader, parts: Iterable[SessionPartition], *, is_first: bool = True
    ) -> list[Looked]:
        """Read partitions that may have changed; return those that have changed."""
        session = self.session
        looked = []
        for part in parts:
            before = partition = part.partition
            code = NO_ERROR
            if partition is None or not partition.is_served:
                partition, code = self._resolve(part)
            part.watch(partition)
            # For a topic created during a follower's wait, this read is the first of the request.
            reader.is_first = is_first or partition is not before
            row = reader.read(part.asked, partition, code)
            if (
                partition is not None
                and row.error_code == NO_ERROR
                and row.diverging_epoch is None
                and row.preferred_read_replica < 0
                and part.is_quiet(reader.end_offset(partition))
            ):
                session.news.pop(part, None)
            else:
                seen = _NEVER if partition is None else partition.event_count
                looked.append((part, row, seen))
        return looked

    def _resolve(self, part: SessionPartition) -> tuple[Partition | None, ErrorCode]:
        partitions, index = self.worker.replica_manager, part.asked.partition
        try:
            if not self.session.has_topic_ids:
                return partitions.by_name(part.topic, index), NO_ERROR
            found = partitions.by_id(part.topic_id, index)
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_ID or not part.topic:
                return None, error.code
            # The topic was deleted after the session found it, and may have been recreated.
            if self.worker.image.topic(part.topic) is not None:
                return None, ErrorCode.INCONSISTENT_TOPIC_ID
            return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        part.topic = found.topic
        return found, NO_ERROR

    def _respond(self, reader: FetchReader, looked: Iterable[Looked]) -> FetchResponse:
        rows = _Rows()
        self._tell(reader, looked, rows)
        return self._response(reader, rows)

    def _respond_in_pieces(self, reader: FetchReader, looked: list[Looked]) -> Work[FetchResponse]:
        rows = _Rows()
        for piece in pieces(looked):
            self._tell(reader, piece, rows)
            if len(piece) == PIECE_ROWS:
                yield
                # Another request may have removed partitions that this loop would add again.
                if (overtaken := self._overtaken()) is not None:
                    return overtaken
        self.worker.slicer.discard(looked)
        return self._response(reader, rows)

    def _response(self, reader: FetchReader, rows: _Rows) -> FetchResponse:
        self.allowed.given(reader)
        response = rows.response(reader)
        response.session_id = self.session.id
        return response

    def _tell(self, reader: FetchReader, looked: Iterable[Looked], rows: _Rows) -> None:
        session = self.session
        changed_rows = []
        for part, row, seen in looked:
            partition = part.partition
            size_bytes = size_of(row)
            if part.update(row, size_bytes):
                changed_rows.append((part.topic, part.topic_id, row))
            if size_bytes:  # move it to the end: other partitions are read first
                session.news.pop(part, None)
                session.news[part] = None
            elif (
                partition is not None
                and partition.event_count == seen  # later events are still to be reported
                and part.is_quiet(reader.end_offset(partition))
            ):
                session.news.pop(part, None)
        rows.add(changed_rows)
