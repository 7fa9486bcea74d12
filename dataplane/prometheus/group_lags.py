"""Lags of the groups that a worker coordinates, in records and seconds.

    committed offsets       here, in the shards of the coordinator
    ends of partitions      here, if this worker leads the partition; otherwise one request to each
                            leader (DescribeUnreadRecords), in parts if it has many rows

Lags are collected only for a page, and are kept for `REFRESH_S` seconds, so that several Prometheus
servers cost no more requests than one. Up to `MAX_LAGS` committed offsets, the request has a row
for each of them: the answer has the end and the age of the first unread record. Beyond, it has a
row for each partition, and one for each of the largest lags of the collection before; the first
collection then has no ages.

A leader that does not answer in time has no rows in this collection.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from heapq import nlargest
from itertools import chain
from math import inf
from typing import Final, NamedTuple

import trio

from metaquorum.dataplane.handlers.unread_records import UnreadReader
from metaquorum.dataplane.prometheus.slices import Slices
from metaquorum.dataplane.worker.context import Worker
from metaquorum.metadata.image import MetadataImage
from metaquorum.wire.messages.describe_unread_records import (
    DescribeUnreadRecordsRequest,
    DescribeUnreadRecordsResponse,
    PositionInPartition,
    PositionsInTopic,
    UnreadInPartition,
)
from metaquorum.wire.primitives.errors import KafkaError
from metaquorum.wire.primitives.types import ZERO_UUID, Uuid

MAX_LAGS: Final = 1000  # rows of a page: the largest lags
MAX_GROUP_LENGTH: Final = 255  # characters; groups with a longer id, of up to 32 kB, have no rows
MAX_OFFSETS_LOOKED_AT: Final = 100_000
MAX_PARTITIONS: Final = 20_000  # partitions in the requests for log ends
MAX_ROWS: Final = 4000  # rows in one request
REFRESH_S: Final = 10.0
ASK_S: Final = 3.0  # Prometheus gives up a scrape after ten seconds by default
SLICE_ROWS: Final = 500
# An offset that no log reaches: the row of the response has the end only, without a disk read.
BEYOND: Final = 2**63 - 1


class Position(NamedTuple):
    """A committed offset of a group; `group` is empty for the end of a partition only."""

    group: str
    topic: str
    partition: int
    offset: int


class Lag(NamedTuple):
    """Lag of a group in one partition; `seconds` None: not known."""

    group: str
    topic: str
    partition: int
    records: int
    seconds: float | None


class Lags(NamedTuple):
    """The largest lags, and the number of committed offsets without a row."""

    lags: Sequence[Lag]
    left_out: int


class GroupLags:
    """Lags of one worker's groups, kept between two pages."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._lags = Lags((), 0)
        self._collected_at = -inf
        self._largest: frozenset[tuple[str, str, int]] = frozenset()

    async def collect(self, slices: Slices) -> Lags:
        """Return the lags, at most `REFRESH_S` seconds old."""
        now = self._worker.clock.monotonic()
        if now >= self._collected_at + REFRESH_S:
            self._collected_at = now
            self._lags = await self._collect(slices)
        return self._lags

    async def _collect(self, slices: Slices) -> Lags:
        positions, unseen_count = await self._positions(slices)
        if not positions:
            return Lags((), unseen_count)
        is_few = len(positions) <= MAX_LAGS
        asked = positions if is_few else await self._asked_of_many(positions, slices)
        by_leader = await self._by_leader(asked, slices)
        with slices.waiting():
            found = await self._ask_all(by_leader)
        ends: dict[tuple[str, int], int] = {}
        for number, (each, row) in enumerate(found.items(), 1):
            ends[each.topic, each.partition] = row.high_watermark
            if number % SLICE_ROWS == 0:
                await slices.rest()
        now_ms = self._worker.clock.now_ms()
        kept: list[Lag] = []
        for first in range(0, len(positions), SLICE_ROWS):
            part = positions[first : first + SLICE_ROWS]
            lags = [lag for each in part if (lag := _lag(each, found, ends, now_ms)) is not None]
            kept = nlargest(MAX_LAGS, chain(kept, lags), key=lambda lag: lag.records)
            await slices.rest()
        self._largest = frozenset((each.group, each.topic, each.partition) for each in kept)
        kept.sort(key=lambda lag: lag[:3])
        left_out = unseen_count + len(positions) - len(kept)
        self._worker.slicer.discard(found, ends, *by_leader.values(), positions)
        return Lags(kept, left_out)

    async def _positions(self, slices: Slices) -> tuple[list[Position], int]:
        """Return committed offsets, and the number of those that were not looked at."""
        positions: list[Position] = []
        all_count = 0
        for shard in list(self._worker.groups.shards.values()):
            offsets = shard.offsets
            all_count += offsets.offset_count
            for number, (group, topic, partition) in enumerate(offsets.committed_places(), 1):
                if len(positions) >= MAX_OFFSETS_LOOKED_AT:
                    break
                if number % SLICE_ROWS == 0:
                    await slices.rest()
                if len(group) > MAX_GROUP_LENGTH:
                    continue
                value = offsets.fetch(group, topic, partition, self._topic_id(topic))
                if value is not None:
                    positions.append(Position(group, topic, partition, value.offset))
        return positions, max(0, all_count - len(positions))

    def _topic_id(self, name: str) -> Uuid:
        topic = self._worker.image.topic(name)
        return ZERO_UUID if topic is None else topic.topic_id

    async def _asked_of_many(self, positions: Sequence[Position], slices: Slices) -> list[Position]:
        """Return a position for each partition, and those of the largest lags before."""
        ends: dict[tuple[str, int], Position] = {}
        largest: list[Position] = []
        for number, each in enumerate(positions, 1):
            where = each.topic, each.partition
            if where not in ends and len(ends) < MAX_PARTITIONS:
                ends[where] = Position("", *where, BEYOND)
            if each[:3] in self._largest:
                largest.append(each)
            if number % SLICE_ROWS == 0:
                await slices.rest()
        return [*ends.values(), *largest]

    # Leaders

    async def _by_leader(
        self, positions: Iterable[Position], slices: Slices
    ) -> dict[int, list[Position]]:
        by_leader: dict[int, list[Position]] = defaultdict(list)
        for number, each in enumerate(positions, 1):
            by_leader[_leader(self._worker.image, each)].append(each)
            if number % SLICE_ROWS == 0:
                await slices.rest()
        return by_leader

    async def _ask_all(
        self, by_leader: dict[int, list[Position]]
    ) -> dict[Position, UnreadInPartition]:
        """Return the rows of the leaders that answer in time."""
        found: dict[Position, UnreadInPartition] = {}
        async with trio.open_nursery() as nursery:
            for leader, own in by_leader.items():
                if leader == self._worker.worker_id:
                    nursery.start_soon(self._read_own, own, found)
                elif leader >= 0:
                    nursery.start_soon(self._ask_one, leader, own, found)
        return found

    async def _read_own(
        self, positions: Sequence[Position], found: dict[Position, UnreadInPartition]
    ) -> None:
        reader = UnreadReader(self._worker)
        for each in positions:
            await self._worker.slicer.pause()
            asked = PositionInPartition(partition_index=each.partition, offset=each.offset)
            row = await reader.row(each.topic, asked)
            if not row.error_code:
                found[each] = row

    async def _ask_one(
        self, leader: int, positions: Sequence[Position], found: dict[Position, UnreadInPartition]
    ) -> None:
        client = self._worker.isr_manager.worker_client
        with trio.move_on_after(ASK_S):
            for first in range(0, len(positions), MAX_ROWS):
                part = positions[first : first + MAX_ROWS]
                try:
                    response: DescribeUnreadRecordsResponse = await client.ask(
                        leader, _request(part), timeout_s=ASK_S
                    )
                except KafkaError:
                    return
                rows = [row for topic in response.topics for row in topic.partitions]
                if response.error_code or len(rows) != len(part):
                    return
                found |= {
                    each: row
                    for each, row in zip(part, rows, strict=True)
                    if not row.error_code and row.partition_index == each.partition
                }


def _request(positions: Sequence[Position]) -> DescribeUnreadRecordsRequest:
    """Return a request with the positions in their order, as are the rows of its response."""
    request = DescribeUnreadRecordsRequest()
    for each in positions:
        if not request.topics or request.topics[-1].name != each.topic:
            request.topics.append(PositionsInTopic(name=each.topic))
        request.topics[-1].partitions.append(
            PositionInPartition(partition_index=each.partition, offset=each.offset)
        )
    return request


def _lag(
    position: Position,
    found: dict[Position, UnreadInPartition],
    ends: dict[tuple[str, int], int],
    now_ms: int,
) -> Lag | None:
    """Return the lag of a committed offset; None if the end of the partition is not known."""
    group, topic, partition, offset = position
    row = found.get(position)
    if row is None:
        end = ends.get((topic, partition))
        return None if end is None else Lag(group, topic, partition, max(0, end - offset), None)
    seconds = None
    if not row.record_count:
        seconds = 0.0
    elif row.first_timestamp_ms >= 0:
        seconds = max(0, now_ms - row.first_timestamp_ms) / 1000
    return Lag(group, topic, partition, row.record_count, seconds)


def _leader(image: MetadataImage, position: Position) -> int:
    """Return the leader of the partition; -1 if there is none."""
    topic = image.topic(position.topic)
    if topic is None or not 0 <= position.partition < len(topic.partitions):
        return -1
    return topic.partitions[position.partition].leader
