"""Full fetches: requests that name all their partitions.

The partitions are a set, as in Apache Kafka: a repeated partition is fetched once, with its last
row, and answered at its first position.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

from metaquorum.dataplane.fetch.reader import FetchReader, size_of, waiters_for
from metaquorum.dataplane.fetch.sessions import INITIAL_EPOCH, NO_SESSION, Key
from metaquorum.dataplane.fetch.throttled_reads import ThrottledReads
from metaquorum.dataplane.handlers.fetch.allowance import FetchAllowance
from metaquorum.dataplane.handlers.fetch.capabilities import KeepsSessions
from metaquorum.dataplane.handlers.fetch.cold_reads import MAX_COLD_READS, warm
from metaquorum.dataplane.handlers.fetch.delayed_fetch import Answer, DelayedFetch
from metaquorum.dataplane.handlers.fetch.response_rows import Rows
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.partition.waiting import FetchWaiter, Watcher
from metaquorum.dataplane.scheduling.time_slices import (
    FORGOTTEN_ROWS,
    PIECE_ROWS,
    Steps,
    at_once,
    for_each_of,
    pause,
    pieces,
)
from metaquorum.metadata.image import MetadataImage
from metaquorum.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from metaquorum.wire.primitives.errors import KafkaError

_Asked: TypeAlias = tuple[FetchTopic, FetchPartition]
# Request, partition, row, and the partition's `event_count` at its read, or _NEVER.
_Found: TypeAlias = tuple[FetchTopic, FetchPartition, Partition | None, PartitionData, int]
_NEVER: Final = -1  # not read, or not completely


class FullFetch:
    """A request that names all its partitions, without a session or to open one."""

    __slots__ = ("allowed", "found", "has_topic_ids", "image", "message", "watched", "worker")

    def __init__(
        self,
        worker: KeepsSessions,
        message: FetchRequest,
        has_topic_ids: bool,
        allowed: FetchAllowance,
    ) -> None:
        self.worker = worker
        self.allowed = allowed
        self.message = message
        self.has_topic_ids = has_topic_ids
        self.found: list[_Found] = []
        self.watched: list[set[Watcher]] = []  # sets that hold its poll's waiter
        self.image: MetadataImage | None = None  # used to look up the partitions

    def answer(self) -> Answer | Steps[Answer]:
        topics = self.message.topics
        if len(topics) == 1 and len(topics[0].partitions) == 1:
            return self._answer_few([(topics[0], topics[0].partitions[0])])
        if len(topics) > PIECE_ROWS or sum([len(t.partitions) for t in topics]) > PIECE_ROWS:
            return self._answer_many()
        asked: Iterable[_Asked] = [(topic, data) for topic in topics for data in topic.partitions]
        if self._names_any_twice(topics):
            kept: dict[Key, _Asked] = {}
            for topic, data in asked:
                self._keep_last(kept, topic, data)
            asked = kept.values()
        return self._answer_few(asked)

    def _answer_few(self, asked: Iterable[_Asked]) -> Answer | Steps[Answer]:
        message = self.message
        reader = self.allowed.reader(message)
        self.found = self._look(reader, asked)
        if reader.cold:
            return self._answer_cold(reader)
        min_bytes = self.allowed.min_bytes
        if (
            reader.size_bytes >= min_bytes
            or reader.must_answer
            or message.max_wait_ms <= 0
            or self.worker.long_polls.is_closed
        ):
            return self._respond(reader)
        omitted = reader.throttled.omitted if reader.throttled is not None else ()
        self.watched = [
            waiters_for(message, partition)
            for _, _, partition, _, _ in self.found
            if partition is not None and partition not in omitted
        ]
        if not self.watched and not omitted:
            return self._respond(reader)
        poll = self._poll(min_bytes - reader.size_bytes)
        for watchers in self.watched:
            watchers.add(poll.waiter)
        poll.wait_for_quota(reader)
        return poll

    async def _answer_many(self) -> Answer:
        asked: dict[Key, _Asked] = {}
        # The request loses its rows, so that repeated ones are not held during the wait.
        try:
            await for_each_of(self.message.topics, _taken, partial(self._keep_last, asked))
        except BaseException:  # the connection has ended
            self.worker.slicer.discard(asked)
            raise
        self.worker.slicer.discard(self.message.topics)
        self.message.topics = []
        poll = self._poll(self.allowed.min_bytes) if self._may_wait else None
        is_waiting = False
        try:
            reader = self.allowed.reader(self.message)
            for piece in pieces(list(asked.values())):
                self.found += self._look(reader, piece, poll)
                await pause()
            self.worker.slicer.discard(asked)
            if reader.cold:
                return await self._answer_cold(reader)
            if poll is not None and self.watched and not self._is_enough(reader):
                poll.waiter.note(reader.size_bytes)  # may complete the poll
                is_waiting = True
                poll.wait_for_quota(reader)
                return poll.park(self.worker.long_polls.parked, len(self.found))
        finally:
            if poll is not None and not is_waiting:
                poll.end()
        return await self._respond_in_pieces(reader)

    @property
    def _may_wait(self) -> bool:
        return self.message.max_wait_ms > 0 and not self.worker.long_polls.is_closed

    def _is_enough(self, reader: FetchReader) -> bool:
        return reader.must_answer or reader.size_bytes >= self.allowed.min_bytes

    def _poll(self, missing_bytes: int) -> DelayedFetch:
        return DelayedFetch(
            self.worker.long_polls,
            self.message,
            missing_bytes,
            self._answer_again,
            self._unwatch,
            self._dropped,
        )

    def _dropped(self) -> None:
        self.worker.slicer.discard(self.found)

    def _watch(self, poll: DelayedFetch, partition: Partition | None) -> None:
        if partition is not None:
            watchers = waiters_for(self.message, partition)
            watchers.add(poll.waiter)
            self.watched.append(watchers)

    def _unwatch(self, poll: DelayedFetch) -> None:
        watched, self.watched = self.watched, []
        if len(watched) > FORGOTTEN_ROWS:
            self.worker.slicer.finish_in_background(_unwatched(watched, poll.waiter))
            return
        for watchers in watched:
            watchers.discard(poll.waiter)

    def _answer_again(self) -> FetchResponse | Steps[FetchResponse]:
        if self.allowed.ask_again():
            return FetchResponse(throttle_time_ms=self.allowed.throttle_ms)
        reader = self.allowed.reader(self.message)
        reader.may_block = True
        if len(self.found) > PIECE_ROWS:
            return self._answer_many_again(reader)
        self.found = self._look_again(reader, self.found)
        return self._respond(reader)

    async def _answer_many_again(self, reader: FetchReader) -> FetchResponse:
        await self._look_again_in_pieces(reader)
        return await self._respond_in_pieces(reader)

    async def _answer_cold(self, reader: FetchReader) -> FetchResponse:
        """Answer after a worker thread has read the pages that are needed to find the records."""
        reads = 0
        while reader.cold:
            reads += 1
            has_all = await warm(self.worker, reader.cold)
            reader = self.allowed.reader(self.message)
            reader.may_block = reads == MAX_COLD_READS or not has_all
            await self._look_again_in_pieces(reader)
        return await self._respond_in_pieces(reader)

    def _names_any_twice(self, topics: Sequence[FetchTopic]) -> bool:
        by_id = self.has_topic_ids
        if len({topic.topic_id if by_id else topic.topic for topic in topics}) < len(topics):
            return True
        return any(
            len({data.partition for data in t.partitions}) < len(t.partitions) for t in topics
        )

    def _keep_last(self, kept: dict[Key, _Asked], topic: FetchTopic, data: FetchPartition) -> None:
        """Keep each partition once: at its first position, with its last row."""
        kept[topic.topic_id if self.has_topic_ids else topic.topic, data.partition] = topic, data

    def _look(
        self, reader: FetchReader, asked: Iterable[_Asked], poll: DelayedFetch | None = None
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
            try:
                if by_id:
                    partition = partitions.by_id(topic.topic_id, data.partition)
                else:
                    partition = partitions.by_name(topic.topic, data.partition)
            except KafkaError as error:
                row = read(data, None, error)
                found.append((topic, data, None, row, _NEVER))
                continue
            if poll is not None:
                self._watch(poll, partition)
            cold_before = len(cold)
            row = read(data, partition, None)
            if poll is not None and reader.throttled is not None:
                self._stop_watching_omitted(poll, partition, reader.throttled)
            seen = partition.event_count if len(cold) == cold_before else _NEVER
            found.append((topic, data, partition, row, seen))
        return found

    def _stop_watching_omitted(
        self, poll: DelayedFetch, partition: Partition, throttled: ThrottledReads
    ) -> None:
        """Let appends to a partition that its quota has omitted not end the wait."""
        if partition in throttled.omitted:
            waiters_for(self.message, partition).discard(poll.waiter)

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

    async def _look_again_in_pieces(self, reader: FetchReader) -> None:
        again: list[_Found] = []
        for piece in pieces(self.found):
            again += self._look_again(reader, piece)
            if len(piece) == PIECE_ROWS:
                await pause()
        self.worker.slicer.discard(self.found)
        self.found = again

    def _respond(self, reader: FetchReader) -> FetchResponse:
        rows = Rows()
        _add_found(rows, self.found)
        self.allowed.given(reader)
        response = rows.response(reader)
        if self.message.session_epoch == INITIAL_EPOCH:
            response.session_id = at_once(self._new_session(reader))
        return response

    async def _respond_in_pieces(self, reader: FetchReader) -> FetchResponse:
        rows = Rows()
        for piece in pieces(self.found):
            _add_found(rows, piece)
            if len(piece) == PIECE_ROWS:
                await pause()
        self.allowed.given(reader)
        response = rows.response(reader)
        if self.message.session_epoch == INITIAL_EPOCH:
            response.session_id = await self._new_session(reader)
        self.worker.slicer.discard(self.found)
        return response

    async def _new_session(self, reader: FetchReader) -> int:
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
                await pause()
            if not session.is_open:  # evicted by other sessions, or above the limit
                return NO_SESSION
        return session.id


def _add_found(rows: Rows, found: Iterable[_Found]) -> None:
    before: FetchTopic | None = None
    partitions: list[PartitionData] = []
    for topic, _, _, row, _ in found:
        if topic is not before:
            rows.add([(topic.topic, topic.topic_id, row)])
            before, partitions = topic, rows.responses[-1].partitions
        else:
            partitions.append(row)


async def _unwatched(watched: list[set[Watcher]], waiter: FetchWaiter) -> None:
    """Remove `waiter` from all sets in `watched` and empty `watched`, in pieces."""
    while watched:
        for watchers in watched[-FORGOTTEN_ROWS:]:
            watchers.discard(waiter)
        del watched[-FORGOTTEN_ROWS:]
        await pause()


def _taken(topic: FetchTopic) -> Iterator[FetchPartition]:
    """Yield the rows of the topic, and remove them from it."""
    rows = topic.partitions
    rows.reverse()
    while rows:
        yield rows.pop()
