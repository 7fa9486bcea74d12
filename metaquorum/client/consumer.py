"""Consumer of assigned partitions, without a consumer group.

`poll` sends one fetch request to each leader and then reads their responses in turn. The position
of a partition is always the offset after the last record that was returned or skipped, so that a
moved leader or a failed connection neither loses nor repeats a record.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

from metaquorum.client.aborted_transactions import AbortedTransactions
from metaquorum.client.administration.admin import EARLIEST, LATEST, AdminClient
from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.connection import BrokerConnection
from metaquorum.client.errors import BrokerError, UnreachableError, broker_error
from metaquorum.client.transport import BROKEN
from metaquorum.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.primitives.types import ZERO_UUID, Buffer
from metaquorum.wire.records.records import batch_crc, batches, decode_pieces, stored_problem

MAX_WAIT_S: Final = 0.5
# Limits of one fetch response; the broker sends a larger first batch whole.
FETCH_MAX_BYTES: Final = 8 * 1024 * 1024
PARTITION_MAX_BYTES: Final = 1024 * 1024
# Memory limit of the decoded records of one response; the rest of the response is fetched again.
MAX_HELD_BYTES: Final = 1 << 28
_RECORD_BYTES: Final = 256  # estimated memory of a record in addition to its key and value
_LAST_EPOCH_SINCE: Final = 12
_NAMES_UNTIL: Final = 12  # Fetch 13 and later identify topics by topic id
_NO_SESSION_EPOCH: Final = -1


class _From(Enum):
    OFFSET = 1
    TAIL = 2
    TIME = 3


@frozen
class Start:
    """Position at which reading a partition starts."""

    kind: _From
    value: int

    @classmethod
    def beginning(cls) -> "Start":
        """Return a start at the log start offset."""
        return cls(_From.TIME, EARLIEST)

    @classmethod
    def end(cls) -> "Start":
        """Return a start at the end of the partition, after all current records."""
        return cls(_From.TAIL, 0)

    @classmethod
    def at_offset(cls, offset: int) -> "Start":
        """Return a start at `offset`.

        `assign` raises BrokerError (OFFSET_OUT_OF_RANGE) if `offset` is before the log start
        offset or after the end of the partition.
        """
        return cls(_From.OFFSET, offset)

    @classmethod
    def last(cls, count: int) -> "Start":
        """Return a start `count` offsets before the end, or at the log start offset if later."""
        return cls(_From.TAIL, count)

    @classmethod
    def at_time(cls, timestamp_ms: int) -> "Start":
        """Return a start at the first record with this timestamp or a later one, else at the end.

        `timestamp_ms` is in milliseconds since 1970 UTC.
        """
        return cls(_From.TIME, timestamp_ms)


@frozen
class ConsumedRecord:
    """A record with its partition and offset. `timestamp_ms`: milliseconds since 1970 UTC.

    `leader_epoch`: of the leader that appended the record; -1: not known.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int = -1


class Consumer:
    """Consumer of assigned partitions. `positions`: next offset of each partition.

    `last_epochs`: leader epoch of the record before the position. The leader of a partition with an
    entry compares it with its log, and `note_truncation` is called if they diverge (KIP-320, 595).
    """

    def __init__(self, cluster: Cluster, *, read_committed: bool = False) -> None:
        """Create a consumer without partitions.

        With `read_committed`, records of open and aborted transactions are not returned.
        """
        self.cluster = cluster
        self.positions: dict[TopicPartition, int] = {}
        self.last_epochs: dict[TopicPartition, int] = {}
        self._admin = AdminClient(cluster)
        self._read_committed = read_committed
        self._stale = False
        self._failures = 0
        self._patience = 0.0

    async def assign(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Replace the assigned partitions, each with the position at which reading starts.

        Raises BrokerError if a partition does not exist or an offset is out of range.
        """
        named = {w: start.value for w, start in starts.items() if start.kind is _From.OFFSET}
        await self._check_range(named)
        times = {
            where: start.value if start.kind is _From.TIME else LATEST
            for where, start in starts.items()
            if start.kind is not _From.OFFSET
        }
        found = await self._offsets(times)
        unbounded = [where for where, offset in found.items() if offset < 0]
        ends = await self._offsets(dict.fromkeys(unbounded, LATEST))
        tails = [where for where in starts if starts[where].kind is _From.TAIL]
        firsts = await self._offsets(dict.fromkeys(tails, EARLIEST))
        self.positions = {}
        for where, start in starts.items():
            if start.kind is _From.OFFSET:
                self.positions[where] = start.value
            elif start.kind is _From.TAIL:
                self.positions[where] = max(firsts[where], found[where] - start.value)
            else:
                self.positions[where] = ends.get(where, found[where])

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the current end offset of each assigned partition.

        The end is the last stable offset with `read_committed`, else the high watermark.
        """
        return await self._offsets(dict.fromkeys(self.positions, LATEST))

    def release(self, where: TopicPartition) -> None:
        """Stop reading the partition `where`."""
        self.positions.pop(where, None)

    async def _offsets(
        self, times: Mapping[TopicPartition, int], *, read_committed: bool | None = None
    ) -> dict[TopicPartition, int]:
        if not times:
            return {}
        if read_committed is None:
            read_committed = self._read_committed
        found = await self._admin.list_offsets(times, read_committed=read_committed)
        offsets: dict[TopicPartition, int] = {}
        for where, answer in found.items():
            if isinstance(answer, BrokerError):
                raise answer
            offsets[where] = answer.offset
        return offsets

    # Reading

    async def poll(self, max_wait_s: float = MAX_WAIT_S) -> list[ConsumedRecord]:
        """Return the next records, in order within each partition.

        Returns an empty list if no record arrives within `max_wait_s` seconds. Raises BrokerError
        or UnreachableError if retries fail for the timeout of the cluster, and BrokerError
        immediately if the error is not retriable.
        """
        if not self.positions:
            return []
        cluster = self.cluster
        deadline = cluster.deadline() + max_wait_s
        failures: list[Exception] = []
        records: list[ConsumedRecord] = []
        asked: list[tuple[BrokerConnection, list[TopicPartition]]] = []
        try:
            refresh, self._stale = self._stale, False
            grouped, leaderless = await cluster.leaders(
                self.positions, refresh=refresh, deadline=deadline
            )
            failures += leaderless.values()
            for node_id, led in grouped.items():
                try:
                    connection = await cluster.connection(node_id, deadline)
                    await self._ask(connection, led, max_wait_s, deadline)
                except UnreachableError as error:
                    failures.append(error)
                except BROKEN as error:
                    cluster.drop(connection)
                    failures.append(UnreachableError(f"node {node_id}: {error}", [error]))
                else:
                    asked.append((connection, led))
            while asked:
                connection, led = asked[0]
                try:
                    response: FetchResponse = await connection.receive(deadline)
                    records += await self._take(led, response, failures)
                except BROKEN as error:
                    cluster.drop(connection)
                    failures.append(
                        UnreachableError(f"node at {connection.address}: {error}", [error])
                    )
                asked.pop(0)
        finally:
            for connection, _ in asked:  # their responses will not be read
                cluster.drop(connection)
        await self._raise_or_back_off(failures)
        return records

    async def _ask(
        self,
        connection: BrokerConnection,
        led: Sequence[TopicPartition],
        max_wait_s: float,
        deadline: float,
    ) -> None:
        topics: dict[str, FetchTopic] = {}
        has_epochs = connection.version_of(FetchRequest) >= _LAST_EPOCH_SINCE
        ids_known = True
        for where in led:
            topic = topics.get(where.topic)
            if topic is None:
                topic_id = (await self.cluster.topic(where.topic)).topic_id
                ids_known = ids_known and topic_id != ZERO_UUID
                topic = topics[where.topic] = FetchTopic(topic=where.topic, topic_id=topic_id)
            topic.partitions.append(
                FetchPartition(
                    partition=where.partition,
                    fetch_offset=self.positions[where],
                    last_fetched_epoch=self.last_epochs.get(where, -1) if has_epochs else -1,
                    partition_max_bytes=PARTITION_MAX_BYTES,
                )
            )
        request = FetchRequest(
            max_wait_ms=int(max_wait_s * 1000),
            min_bytes=1,
            max_bytes=FETCH_MAX_BYTES,
            isolation_level=int(self._read_committed),
            session_epoch=_NO_SESSION_EPOCH,
            topics=list(topics.values()),
        )
        max_version = None if ids_known else _NAMES_UNTIL
        await connection.send(request, deadline, max_version=max_version)

    async def _take(
        self,
        led: Sequence[TopicPartition],
        response: FetchResponse,
        failures: list[Exception],
    ) -> list[ConsumedRecord]:
        if response.error_code:
            failures.append(broker_error(response.error_code, None, "fetch"))
            return []
        places: dict[tuple[bytes | str, int], TopicPartition] = {}
        for where in led:
            topic_id = (await self.cluster.topic(where.topic)).topic_id
            places[topic_id, where.partition] = places[where.topic, where.partition] = where
        records: list[ConsumedRecord] = []
        for topic in response.responses:
            for data in topic.partitions:
                where_or_none = places.get((topic.topic or topic.topic_id, data.partition_index))
                if where_or_none is None:
                    raise WireError("the response contains a partition that was not requested")
                records += await self._take_partition(where_or_none, data, failures)
        return records

    async def _take_partition(
        self, where: TopicPartition, data: PartitionData, failures: list[Exception]
    ) -> list[ConsumedRecord]:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self.move_into_range(where)
            return []
        if data.error_code:
            failures.append(broker_error(data.error_code, None, f"partition {where}"))
            return []
        if (diverging := data.diverging_epoch) is not None and diverging.end_offset >= 0:
            offset = min(diverging.end_offset, self.positions[where])
            self.note_truncation(where, offset, diverging.epoch)
            return []
        if not data.records:
            return []
        assert not hasattr(data.records, "size_bytes")  # only encoded messages have holes
        records: list[ConsumedRecord] = []
        held_bytes = 0
        try:
            for batch, position, leader_epoch in self._decode(where, data, data.records):
                records += batch
                self.positions[where] = position
                if where in self.last_epochs:
                    self.last_epochs[where] = leader_epoch
                for record in batch:
                    held_bytes += len(record.key or b"") + len(record.value or b"") + _RECORD_BYTES
                if held_bytes >= MAX_HELD_BYTES:
                    break
        except (KafkaError, WireError) as error:
            if not records:  # else return the records before the damage; the next poll raises
                text = f"the data at offset {self.positions[where]} is damaged: {error}"
                raise BrokerError(ErrorCode.CORRUPT_MESSAGE, text, f"partition {where}") from error
        return records

    def _decode(
        self, where: TopicPartition, data: PartitionData, buffer: Buffer
    ) -> Iterator[tuple[list[ConsumedRecord], int, int]]:
        """Yield records from the position on, some at a time.

        With them are the position after them and the leader epoch before that position.
        """
        position = self.positions[where]
        aborted = AbortedTransactions(data.aborted_transactions)
        for start, header in batches(buffer):
            if batch_crc(buffer, start, header.batch_bytes) != header.crc:
                raise WireError("the record batch's checksum does not match")
            if problem := stored_problem(header):
                raise WireError(problem)
            if header.next_offset <= position:
                continue
            if header.is_control:
                aborted.on_marker(buffer, start, header)
            elif not aborted.covers(header):
                for records in decode_pieces(buffer, start):
                    consumed = [
                        ConsumedRecord(
                            where.topic,
                            where.partition,
                            record.offset,
                            record.timestamp_ms,
                            record.key,
                            record.value,
                            record.headers,
                            header.leader_epoch,
                        )
                        for record in records
                        if record.offset >= position
                    ]
                    if consumed:
                        yield consumed, consumed[-1].offset + 1, header.leader_epoch
            yield [], header.next_offset, header.leader_epoch

    async def _check_range(self, offsets: Mapping[TopicPartition, int]) -> None:
        firsts = await self._offsets(dict.fromkeys(offsets, EARLIEST))
        ends = await self._offsets(dict.fromkeys(offsets, LATEST), read_committed=False)
        for where, offset in offsets.items():
            if not firsts[where] <= offset <= ends[where]:
                raise BrokerError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"offset {offset} is out of range: the partition begins at {firsts[where]} "
                    f"and ends before {ends[where]}",
                    f"partition {where}",
                )

    async def move_into_range(self, where: TopicPartition) -> None:
        """Move a position below the log start offset to it: records were deleted before the read.

        Raises BrokerError if the position is after the end of the partition.
        """
        first = (await self._offsets({where: EARLIEST}))[where]
        self.positions[where] = max(first, self.positions[where])
        await self._check_range({where: self.positions[where]})

    def note_truncation(self, where: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Note that the log has other records, or none, from `offset` up to the position.

        The record before `offset` has this leader epoch. The position stays.
        """
        raise NotImplementedError  # `last_epochs` is empty unless a subclass has filled it

    async def _raise_or_back_off(self, failures: Sequence[Exception]) -> None:
        """Sleep before the next attempt if all failures are retriable; else raise the failure."""
        if not failures:
            self._failures = 0
            return
        if not self._failures:
            self._patience = self.cluster.deadline()
        for failure in failures:
            if isinstance(failure, KafkaError) and not failure.retriable:
                raise failure
        self._stale = True
        if not await self.cluster.back_off(self._failures, self._patience):
            raise failures[0]
        self._failures += 1
