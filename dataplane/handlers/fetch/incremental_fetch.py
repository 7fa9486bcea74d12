"""Incremental fetches: requests that continue a fetch session (KIP-227).

Only partitions with events since their last read are read (`metaquorum.dataplane.fetch.sessions`).
A request ends the wait of the one before it in the session, which then answers
INVALID_FETCH_SESSION_EPOCH.
"""

from collections.abc import Coroutine, Iterable
from typing import Final, TypeAlias

from metaquorum.dataplane.fetch.reader import FetchReader, replica_of, size_of
from metaquorum.dataplane.fetch.sessions import FetchSession, SessionPartition, has_many
from metaquorum.dataplane.handlers.fetch.allowance import FetchAllowance
from metaquorum.dataplane.handlers.fetch.capabilities import AnswersFetches, KeepsSessions
from metaquorum.dataplane.handlers.fetch.cold_reads import MAX_COLD_READS, warm
from metaquorum.dataplane.handlers.fetch.delayed_fetch import Answer, DelayedFetch
from metaquorum.dataplane.handlers.fetch.response_rows import Rows
from metaquorum.dataplane.partition.partition import NO_ERROR, Partition
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, Steps, pause, pieces
from metaquorum.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

# Session partition, row, and the partition's `event_count` at its read, or _NEVER.
_Looked: TypeAlias = tuple[SessionPartition, PartitionData, int]
_NEVER: Final = -1  # not read, or not completely


def continue_session(
    worker: KeepsSessions, message: FetchRequest, has_topic_ids: bool, allowed: FetchAllowance
) -> Answer | Steps[Answer]:
    sessions, now_s = worker.fetch_sessions, worker.clock.monotonic()
    try:
        if has_many(message):
            work = sessions.use_in_pieces(message, now_s, has_topic_ids=has_topic_ids)
            return _continue_later(worker, message, work, allowed)
        session = sessions.use(message, now_s, has_topic_ids=has_topic_ids)
    except KafkaError as error:
        return FetchResponse(error_code=error.code, throttle_time_ms=allowed.throttle_ms)
    return _continue_with(worker, message, session, allowed)


async def _continue_later(
    worker: AnswersFetches, message: FetchRequest, use: Steps[FetchSession], allowed: FetchAllowance
) -> Answer:
    try:
        session = await use
    except KafkaError as error:
        return FetchResponse(error_code=error.code, throttle_time_ms=allowed.throttle_ms)
    answer = _continue_with(worker, message, session, allowed)
    if isinstance(answer, Coroutine):
        answer = await answer
    return answer


def _continue_with(
    worker: AnswersFetches, message: FetchRequest, session: FetchSession, allowed: FetchAllowance
) -> Answer | Steps[Answer]:
    if not session.partitions:
        return FetchResponse(throttle_time_ms=allowed.throttle_ms)
    if session.waiter is not None:
        session.waiter.wake()  # this request overtakes a waiting one
    if allowed.throttle_ms:
        return FetchResponse(throttle_time_ms=allowed.throttle_ms, session_id=session.id)
    return IncrementalFetch(worker, message, session, allowed).answer()


class IncrementalFetch:
    """A request that continues a fetch session."""

    __slots__ = ("allowed", "epoch", "message", "session", "worker")

    def __init__(
        self,
        worker: AnswersFetches,
        message: FetchRequest,
        session: FetchSession,
        allowed: FetchAllowance,
    ) -> None:
        self.worker = worker
        self.allowed = allowed
        self.message = message
        self.session = session
        self.epoch = session.epoch

    def answer(self) -> Answer | Steps[Answer]:
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
        poll = self._poll(self.allowed.min_bytes - reader.size_bytes)
        poll.wait_for_quota(reader)
        return poll

    async def _answer_many(self) -> Answer:
        await self._read_as()
        if (overtaken := self._overtaken()) is not None:
            return overtaken
        poll = self._poll(self.allowed.min_bytes) if self._may_wait else None
        is_waiting = False
        looked: list[_Looked] = []
        try:
            reader = self._reader()
            looked = await self._look_in_pieces(reader)
            if (overtaken := self._overtaken()) is not None:
                return overtaken
            if reader.cold:
                return await self._answer_cold(reader)
            # The reads may have shown that there is nothing to wait for.
            if poll is not None and self._may_wait and not self._is_enough(reader):
                poll.waiter.note(reader.size_bytes)  # may complete the poll
                is_waiting = True
                poll.wait_for_quota(reader)
                return poll
        finally:
            if poll is not None and not is_waiting:
                poll.end()
            if is_waiting:
                self.worker.slicer.discard(looked)
        return await self._respond_in_pieces(reader, looked)

    @property
    def _may_wait(self) -> bool:
        return (
            self.message.max_wait_ms > 0
            and not self.worker.long_polls.is_closed
            and self.session.present_count > 0
        )

    def _is_enough(self, reader: FetchReader) -> bool:
        return reader.must_answer or reader.size_bytes >= self.allowed.min_bytes

    def _poll(self, missing_bytes: int) -> DelayedFetch:
        poll = DelayedFetch(
            self.worker.long_polls, self.message, missing_bytes, self._answer_again, self._unwatch
        )
        self.session.waiter = poll.waiter
        return poll

    def _unwatch(self, poll: DelayedFetch) -> None:
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

    def _answer_again(self) -> FetchResponse | Steps[FetchResponse]:
        if (overtaken := self._overtaken()) is not None:
            return overtaken
        if self.allowed.ask_again():
            throttle_ms = self.allowed.throttle_ms
            return FetchResponse(throttle_time_ms=throttle_ms, session_id=self.session.id)
        reader = self._reader(may_block=True)
        if len(self.session.news) > PIECE_ROWS:
            return self._answer_many_again(reader)
        return self._respond(reader, self._look(reader, list(self.session.news), is_first=False))

    async def _answer_many_again(self, reader: FetchReader) -> FetchResponse:
        looked = await self._look_in_pieces(reader, is_first=False)
        return self._overtaken() or (await self._respond_in_pieces(reader, looked))

    async def _answer_cold(self, reader: FetchReader) -> FetchResponse:
        """Answer after a worker thread has read the pages that are needed to find the records."""
        reads, looked = 0, list[_Looked]()
        while reader.cold and self._overtaken() is None:
            reads += 1
            has_all = await warm(self.worker, reader.cold)
            reader = self._reader(may_block=reads == MAX_COLD_READS or not has_all)
            looked = await self._look_in_pieces(reader, is_first=False)
        if (overtaken := self._overtaken()) is not None:
            return overtaken
        return await self._respond_in_pieces(reader, looked)

    def _reader(self, *, may_block: bool = False) -> FetchReader:
        reader = self.allowed.reader(self.message)
        reader.may_block = may_block
        self.session.read_as((reader.replica_id, self.message.isolation_level))
        return reader

    async def _read_as(self) -> None:
        """Mark all partitions for a read if replica id or isolation level have changed."""
        session = self.session
        reader = (replica_of(self.message), self.message.isolation_level)
        if session.reader == reader:
            return
        session.reader = None  # a request that overtakes this one reads all partitions
        for piece in pieces(list(session.partitions.values())):
            session.news.update(dict.fromkeys(piece))
            await pause()
            if self._overtaken() is not None:
                return
        session.reader = reader

    async def _look_in_pieces(self, reader: FetchReader, *, is_first: bool = True) -> list[_Looked]:
        """Read the session's changed partitions in pieces; stop if another request overtakes."""
        looked: list[_Looked] = []
        for piece in pieces(list(self.session.news)):
            if self._overtaken() is not None:
                break
            looked += self._look(reader, piece, is_first=is_first)
            if len(piece) == PIECE_ROWS:
                await pause()
        return looked

    def _look(
        self, reader: FetchReader, parts: Iterable[SessionPartition], *, is_first: bool = True
    ) -> list[_Looked]:
        """Read partitions that may have changed; return those that have changed."""
        session = self.session
        looked = []
        for part in parts:
            before = partition = part.partition
            absent = None
            if partition is None or not partition.is_served:
                partition, absent = self._resolve(part)
            part.watch(partition)
            # For a topic created during a follower's wait, this read is the first of the request.
            reader.is_first = is_first or partition is not before
            row = reader.read(part.asked, partition, absent)
            if reader.throttled is not None and partition in reader.throttled.omitted:
                part.stop_watching()  # appends do not end the wait for the quota
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

    def _resolve(self, part: SessionPartition) -> tuple[Partition | None, KafkaError | None]:
        partitions, index = self.worker.replica_manager, part.asked.partition
        try:
            if not self.session.has_topic_ids:
                return partitions.by_name(part.topic, index), None
            found = partitions.by_id(part.topic_id, index)
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_ID or not part.topic:
                return None, error
            # The topic was deleted after the session found it, and may have been recreated.
            if self.worker.image.topic(part.topic) is not None:
                return None, KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID)
            return None, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        part.topic = found.topic
        return found, None

    def _respond(self, reader: FetchReader, looked: Iterable[_Looked]) -> FetchResponse:
        rows = Rows()
        self._tell(reader, looked, rows)
        return self._response(reader, rows)

    async def _respond_in_pieces(self, reader: FetchReader, looked: list[_Looked]) -> FetchResponse:
        rows = Rows()
        for piece in pieces(looked):
            self._tell(reader, piece, rows)
            if len(piece) == PIECE_ROWS:
                await pause()
                # Another request may have removed partitions that this loop would add again.
                if (overtaken := self._overtaken()) is not None:
                    return overtaken
        self.worker.slicer.discard(looked)
        return self._response(reader, rows)

    def _response(self, reader: FetchReader, rows: Rows) -> FetchResponse:
        self.allowed.given(reader)
        response = rows.response(reader)
        response.session_id = self.session.id
        return response

    def _tell(self, reader: FetchReader, looked: Iterable[_Looked], rows: Rows) -> None:
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
