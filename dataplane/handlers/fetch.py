"""Fetch: slices of segment files, up to the high watermark, waiting for more where asked to.

An answer holds no records, only where they lie: `connection` copies small slices and hands large
ones to sendfile. A fetch that finds less than `min_bytes` watches its partitions and reads again
when enough has come, its time is over, or something else happened to one of them.

A request says all it asks for, or continues a session (`dataplane.fetch_sessions`).
"""

from collections.abc import Callable, Container, Coroutine, Iterable
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from dataplane.fetch_reader import FetchReader, replica_of, size_of
from dataplane.fetch_sessions import (
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    SessionPartition,
    is_whole,
)
from dataplane.later import Later
from dataplane.log.files import ColdError
from dataplane.partition import NO_ERROR, FetchWaiter, Partition
from dataplane.replica_authentication import fetch_claim_error
from dataplane.worker import Request, Worker
from metaquorum.runtime import StorageError
from wire.errors import ErrorCode, KafkaError
from wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from wire.types import Uuid

_TOPIC_IDS_SINCE: Final = 13
_FOLLOWERS_SINCE: Final = 11  # consumers may read from followers: KIP-392
# A client that asks to wait for longer is answered, emptily, after this.
MAX_WAIT_MS: Final = 5 * 60 * 1000
# A false replica that asks for more partitions gets one error for all of them.
MAX_REFUSED_ROWS: Final = 1000
# Looking for places whose pages are not in memory reads so often beside the loop, and then in it.
MAX_COLD_READS: Final = 8

Answer: TypeAlias = FetchResponse | Later | Coroutine[Any, Any, FetchResponse]
_Asked: TypeAlias = list[tuple[FetchTopic, FetchPartition, Partition | None, ErrorCode]]
_Rows: TypeAlias = list[tuple[str, Uuid, PartitionData]]
Looked: TypeAlias = tuple[SessionPartition, PartitionData]
_Read = TypeVar("_Read")


def handle_fetch(worker: Worker, request: Request, message: FetchRequest) -> Answer:
    if (replica_id := replica_of(message)) >= 0:
        if error := fetch_claim_error(request.client, message, worker.loader.image):
            return _refuse_claim(message, error)
        worker.replication.context.heard[replica_id] = worker.clock.monotonic()
    allowed = _Allowed(worker, request, message, is_limited=replica_id < 0)
    has_topic_ids = request.version >= _TOPIC_IDS_SINCE
    if not is_whole(message):
        return _continue(worker, message, has_topic_ids, allowed)
    if message.session_id:
        worker.fetch_sessions.close(message.session_id)
    if allowed.throttle_ms:
        return FetchResponse(throttle_time_ms=allowed.throttle_ms)
    return _Whole(worker, message, has_topic_ids, allowed).answer()


def _refuse_claim(message: FetchRequest, error: ErrorCode) -> FetchResponse:
    """The sender may not fetch as the replica that it names; nothing is read, no session begins."""
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
    """What a client may have now. Followers may have everything (KIP-13).

    `throttle_ms` not 0: nothing. Nothing is read then.
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
        self, worker: Worker, request: Request, message: FetchRequest, *, is_limited: bool
    ) -> None:
        self.throttle_ms = 0
        self.max_bytes = min(message.max_bytes, worker.fetch_max_bytes)
        self._worker = worker
        self._listener = request.client.listener  # by which it came
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
        """`throttle_ms`, after a wait, in which others may have used what it has a share of."""
        request = self._request
        if request is not None:
            quotas = self._worker.quotas
            self.throttle_ms = quotas.may_fetch(request.client, request.client_id)
        return self.throttle_ms

    def given(self, reader: FetchReader) -> None:
        """It has what the reader has read."""
        request = self._request
        if request is not None:
            self._worker.quotas.fetched(request.client, request.client_id, reader.size_bytes)


def _min_bytes(message: FetchRequest, allowed: _Allowed) -> int:
    """More than max_bytes never comes, however long we wait."""
    return min(message.min_bytes, allowed.max_bytes)


class _Poll(Later):
    """A long poll: answered when enough has come, its time is over, or something has happened."""

    __slots__ = ("_answer", "_of_worker", "_timer", "_unwatch", "waiter")

    def __init__(
        self,
        worker: Worker,
        message: FetchRequest,
        missing_bytes: int,
        answer: Callable[[], FetchResponse],
        unwatch: Callable[["_Poll"], None],
    ) -> None:
        """Somebody is to watch for `waiter`, until `unwatch`."""
        super().__init__()
        self.waiter = FetchWaiter(missing_bytes, self.ready)
        self._answer = answer
        self._unwatch = unwatch
        self._of_worker = worker.fetch_waiters
        self._of_worker.add(self.waiter)
        wait_s = min(message.max_wait_ms, MAX_WAIT_MS) / 1000
        self._timer = worker.timers.call_after(wait_s, self.ready)

    def give(self) -> FetchResponse:
        self.drop()
        return self._answer()

    def drop(self) -> None:
        self._timer.cancel()
        self._of_worker.discard(self.waiter)
        self._unwatch(self)


def _response(
    reader: FetchReader, rows: Iterable[tuple[str, Uuid, PartitionData]]
) -> FetchResponse:
    """Rows of one topic that follow each other stand together, as Kafka has it."""
    responses: list[FetchableTopicResponse] = []
    last: FetchableTopicResponse | None = None
    for topic, topic_id, row in rows:
        if last is None or last.topic != topic or last.topic_id != topic_id:
            last = FetchableTopicResponse(topic=topic, topic_id=topic_id)
            responses.append(last)
        last.partitions.append(row)
    reader.count_given()
    return FetchResponse(responses=responses, node_endpoints=reader.endpoints())


async def _warmed(
    worker: Worker, cold: list[ColdError], read: Callable[[bool], tuple[FetchReader, _Read]]
) -> tuple[FetchReader, _Read]:
    """What `read(may_block)` gives once it need not wait for the disk to know where records lie."""
    reads = 0
    while True:
        reads += 1
        may_block = reads == MAX_COLD_READS
        try:
            for each in cold:
                await each.warm(worker.disk)
        except (StorageError, OSError):
            may_block = True  # to be told of the partition that it happened to
        reader, found = read(may_block)
        if not reader.cold:
            return reader, found
        cold = reader.cold


# Whole requests


class _Whole:
    """A request that says all it asks for."""

    __slots__ = ("allowed", "has_topic_ids", "message", "worker")

    def __init__(
        self, worker: Worker, message: FetchRequest, has_topic_ids: bool, allowed: _Allowed
    ) -> None:
        self.worker = worker
        self.allowed = allowed
        self.message = message
        self.has_topic_ids = has_topic_ids

    def answer(self) -> Answer:
        worker, message = self.worker, self.message
        asked = self._resolve()
        reader, rows = self._read(asked)
        if reader.cold:
            return self._answer_cold(reader.cold)
        min_bytes = _min_bytes(message, self.allowed)
        if (
            reader.size_bytes >= min_bytes
            or reader.must_answer
            or message.max_wait_ms <= 0
            or worker.stopping
        ):
            return self._respond(reader, asked, rows)
        watched = {partition for _, _, partition, _ in asked if partition is not None}
        if not watched:
            return self._respond(reader, asked, rows)
        watchers = [p.end_waiters if reader.replica_id >= 0 else p.waiters for p in watched]

        def unwatch(poll: _Poll) -> None:
            for of_partition in watchers:
                of_partition.discard(poll.waiter)

        missing_bytes = min_bytes - reader.size_bytes
        answer = partial(self._answer_again, watched)
        poll = _Poll(worker, message, missing_bytes, answer, unwatch)
        for of_partition in watchers:
            of_partition.add(poll.waiter)
        return poll

    def _answer_again(self, watched: set[Partition]) -> FetchResponse:
        if self.allowed.ask_again():
            return FetchResponse(throttle_time_ms=self.allowed.throttle_ms)
        asked = self._resolve()
        reader, rows = self._read(asked, watched, may_block=True)
        return self._respond(reader, asked, rows)

    async def _answer_cold(self, cold: list[ColdError]) -> FetchResponse:
        def read(may_block: bool) -> tuple[FetchReader, tuple[_Asked, _Rows]]:
            asked = self._resolve()
            reader, rows = self._read(asked, {each[2] for each in asked}, may_block=may_block)
            return reader, (asked, rows)

        reader, (asked, rows) = await _warmed(self.worker, cold, read)
        return self._respond(reader, asked, rows)

    def _resolve(self) -> _Asked:
        partitions = self.worker.partitions
        asked: _Asked = []
        for topic in self.message.topics:
            for data in topic.partitions:
                partition: Partition | None = None
                code = NO_ERROR
                try:
                    partition = (
                        partitions.by_id(topic.topic_id, data.partition)
                        if self.has_topic_ids
                        else partitions.by_name(topic.topic, data.partition)
                    )
                except KafkaError as error:
                    code = error.code
                asked.append((topic, data, partition, code))
        return asked

    def _read(
        self, asked: _Asked, known: Container[Partition | None] = (), *, may_block: bool = False
    ) -> tuple[FetchReader, _Rows]:
        """`known`: those that were looked at for this request already."""
        reader = self.allowed.reader(self.message)
        reader.may_block = may_block
        rows: _Rows = []
        for topic, data, partition, code in asked:
            reader.is_first = partition not in known
            rows.append((topic.topic, topic.topic_id, reader.read(data, partition, code)))
        return reader, rows

    def _respond(self, reader: FetchReader, asked: _Asked, rows: _Rows) -> FetchResponse:
        self.allowed.given(reader)
        response = _response(reader, rows)
        if self.message.session_epoch == INITIAL_EPOCH:
            response.session_id = self._new_session(reader, asked, rows)
        return response

    def _new_session(self, reader: FetchReader, asked: _Asked, rows: _Rows) -> int:
        sessions = self.worker.fetch_sessions
        session = sessions.create(
            len(asked), self.worker.clock.monotonic(), has_topic_ids=self.has_topic_ids
        )
        if session is None:
            return NO_SESSION
        session.read_as((reader.replica_id, self.message.isolation_level))
        for (topic, data, partition, _), (_, _, row) in zip(asked, rows, strict=True):
            name = topic.topic if partition is None else partition.topic
            part = session.ask(name, topic.topic_id, data)
            part.watch(partition)
            part.tell(row, size_of(row))
            if partition is not None and part.is_quiet(reader.end_offset(partition)):
                del session.news[part]
        sessions.resized(session, 0)
        return session.id if session.is_open else NO_SESSION


# Requests of a session


def _continue(
    worker: Worker, message: FetchRequest, has_topic_ids: bool, allowed: _Allowed
) -> Answer:
    try:
        session = worker.fetch_sessions.use(
            message, worker.clock.monotonic(), has_topic_ids=has_topic_ids
        )
    except KafkaError as error:
        return FetchResponse(error_code=error.code, throttle_time_ms=allowed.throttle_ms)
    if not session.partitions:
        return FetchResponse(throttle_time_ms=allowed.throttle_ms)
    if session.waiter is not None:
        session.waiter.wake()  # whoever waits has been overtaken by this request
    if allowed.throttle_ms:
        return FetchResponse(throttle_time_ms=allowed.throttle_ms, session_id=session.id)
    return _Continued(worker, message, session, allowed).answer()


class _Continued:
    """A request that continues a session."""

    __slots__ = ("allowed", "epoch", "message", "session", "worker")

    def __init__(
        self, worker: Worker, message: FetchRequest, session: FetchSession, allowed: _Allowed
    ) -> None:
        self.worker = worker
        self.allowed = allowed
        self.message = message
        self.session = session
        self.epoch = session.epoch

    def answer(self) -> Answer:
        worker, message = self.worker, self.message
        reader, looked = self._look()
        if reader.cold:
            return self._answer_cold(reader.cold)
        min_bytes = _min_bytes(message, self.allowed)
        if (
            reader.size_bytes >= min_bytes
            or reader.must_answer
            or message.max_wait_ms <= 0
            or worker.stopping
            or not any(part.partition for part in self.session.partitions.values())
        ):
            return self._respond(reader, looked)
        missing_bytes = min_bytes - reader.size_bytes
        poll = _Poll(worker, message, missing_bytes, self._answer_again, self._unwatch)
        self.session.waiter = poll.waiter
        return poll

    def _unwatch(self, poll: _Poll) -> None:
        if self.session.waiter is poll.waiter:
            self.session.waiter = None

    def _overtaken(self) -> FetchResponse | None:
        """The answer if another connection has gone on with the session."""
        session = self.session
        if session.epoch == self.epoch:
            return None
        return FetchResponse(
            error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.id
        )

    def _answer_again(self) -> FetchResponse:
        if (overtaken := self._overtaken()) is not None:
            return overtaken
        if self.allowed.ask_again():
            throttle_ms = self.allowed.throttle_ms
            return FetchResponse(throttle_time_ms=throttle_ms, session_id=self.session.id)
        return self._respond(*self._look(is_first=False, may_block=True))

    async def _answer_cold(self, cold: list[ColdError]) -> FetchResponse:
        def read(may_block: bool) -> tuple[FetchReader, list[Looked]]:
            if self._overtaken() is not None:
                return self.allowed.reader(self.message), []
            return self._look(is_first=False, may_block=may_block)

        reader, looked = await _warmed(self.worker, cold, read)
        return self._overtaken() or self._respond(reader, looked)

    def _look(
        self, *, is_first: bool = True, may_block: bool = False
    ) -> tuple[FetchReader, list[Looked]]:
        """What is among the news, but for partitions that have turned out to be quiet."""
        session = self.session
        reader = self.allowed.reader(self.message)
        reader.may_block = may_block
        session.read_as((reader.replica_id, self.message.isolation_level))
        looked = []
        for part in list(session.news):
            before = partition = part.partition
            code = NO_ERROR
            if partition is None or not partition.is_served:
                partition, code = self._resolve(part)
            part.watch(partition)
            # Of a topic that came while a follower waited, this is the first that it tells.
            reader.is_first = is_first or partition is not before
            row = reader.read(part.asked, partition, code)
            if (
                partition is not None
                and row.error_code == NO_ERROR
                and row.diverging_epoch is None
                and row.preferred_read_replica < 0
                and part.is_quiet(reader.end_offset(partition))
            ):
                del session.news[part]
            else:
                looked.append((part, row))
        return reader, looked

    def _resolve(self, part: SessionPartition) -> tuple[Partition | None, ErrorCode]:
        partitions, index = self.worker.partitions, part.asked.partition
        try:
            if not self.session.has_topic_ids:
                return partitions.by_name(part.topic, index), NO_ERROR
            found = partitions.by_id(part.topic_id, index)
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_ID or not part.topic:
                return None, error.code
            # The session knew the topic: it is gone, and perhaps another has its name.
            if self.worker.image.topic(part.topic) is not None:
                return None, ErrorCode.INCONSISTENT_TOPIC_ID
            return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        part.topic = found.topic
        return found, NO_ERROR

    def _respond(self, reader: FetchReader, looked: list[Looked]) -> FetchResponse:
        session = self.session
        self.allowed.given(reader)
        rows: _Rows = []
        for part, row in looked:
            size_bytes = size_of(row)
            if part.tell(row, size_bytes):
                rows.append((part.topic, part.topic_id, row))
            if size_bytes:  # others have their turn before it
                del session.news[part]
                session.news[part] = None
            elif part.partition is not None and part.is_quiet(reader.end_offset(part.partition)):
                del session.news[part]
        response = _response(reader, rows)
        response.session_id = session.id
        return response
