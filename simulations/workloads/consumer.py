"""Consumers: they read partitions by offset, with long polls and limits that the seed draws."""

from random import Random
from typing import Any, Final, NamedTuple

import trio

from metaquorum.runtime import Runtime, sleep
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.harness.environment import Environment
from metaquorum.simulations.harness.history import Fetched, PartitionOf, Read, Topic
from metaquorum.simulations.workloads.producer import DELETED
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from metaquorum.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.records import BatchState, Record, batches, decode_records, scan

RETRY_S: Final = 0.05
# Probability that a consumer seeks back: it must read the same records again.
REREAD: Final = 0.1
EARLIEST: Final = -2
LATEST: Final = -1
# Instead of an offset: the log no longer has the requested offset.
LOST: Final = -1


def fetch_request(
    places: list[tuple[Topic, int, int]],
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    partition_max_bytes: int,
) -> FetchRequest:
    """Return a request for `places`: (topic, partition, offset) each."""
    topics = [
        FetchTopic(
            topic=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                FetchPartition(
                    partition=partition,
                    fetch_offset=offset,
                    partition_max_bytes=partition_max_bytes,
                )
            ],
        )
        for topic, partition, offset in places
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, topics=topics
    )


class Asked(NamedTuple):
    """Time at which a fetch was sent, and the run of the node."""

    at: float
    run: int

    @classmethod
    def now(cls, environment: Environment) -> "Asked":
        return cls(environment.world.now, environment.node.runs)


def take_records(
    environment: Environment, topic: Topic, partition: int, offset: int, data: Any, asked: Asked
) -> list[Read]:
    """Return the records of one partition's response from `offset` on, and notify the checkers.

    A damaged batch is a violation, unless a fault damaged it on disk: a client detects that by
    the checksum.
    """
    reads: list[Read] = []
    place = PartitionOf(topic.topic_id, partition)
    buffer = memoryview(data.records or b"")
    position = 0
    while position < len(buffer):
        found = scan(buffer, position)
        if found.state is BatchState.TORN and position:
            break  # a size limit may truncate the last batch, never the first
        if found.state is not BatchState.WHOLE or found.header is None:
            if found.header and environment.history.is_rotten(place, found.header.base_offset):
                environment.world.count("rotten batches seen through")
                position += found.header.batch_bytes
                continue
            text = f"{topic}-{partition} from {offset}: {found.problem} at byte {position}"
            environment.world.violate("L4 ServedBatchesAreSound", text)
            break
        try:
            records = decode_records(buffer, position)
        except (WireError, KafkaError) as error:
            environment.world.violate("L4 ServedBatchesAreSound", f"{topic}-{partition}: {error}")
            break
        largest = max((record.timestamp_ms for record in records), default=None)
        if largest is not None and largest != found.header.max_timestamp:
            text = f"largest timestamp {found.header.max_timestamp}, that of a record {largest}"
            environment.world.violate("L4 ServedBatchesAreSound", f"{topic}-{partition}: {text}")
            break
        epoch = found.header.leader_epoch
        reads += [
            Read(record.offset, epoch, record.timestamp_ms, _identity(record), record.key)
            for record in records
            if record.offset >= offset
        ]
        position += found.header.batch_bytes
    fetched = Fetched(
        topic,
        partition,
        offset,
        data.high_watermark,
        data.log_start_offset,
        reads,
        environment.world.now,
        *asked,
    )
    environment.fetched(fetched)
    return reads


def _identity(record: Record) -> bytes:
    """Return the unique value; a deletion has it in a header."""
    if record.value is None:
        return dict(record.headers).get(DELETED) or b""
    return record.value


def end_of(data: Any, offset: int) -> int:
    """Return the next fetch offset; batches of a compacted log may be empty."""
    try:
        for _, header in batches(data.records or b""):
            offset = max(offset, header.next_offset)
    except KafkaError:  # reported by `take_records`
        pass
    return offset


async def list_offset(
    connection: ClientConnection, topic: Topic, partition: int, timestamp: int
) -> int | None:
    """Return the offset of `timestamp`, log start or end; None if the node returns an error."""
    asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    message = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic.name, partitions=[asked])]
    )
    response = await connection.call(ApiKey.LIST_OFFSETS, message)
    answer = response.topics[0].partitions[0]
    return None if answer.error_code else int(answer.offset)


def _of(place: tuple[Topic, int, int]) -> PartitionOf:
    return PartitionOf(place[0].topic_id, place[1])


class Consumer:
    def __init__(self, environment: Environment, name: str, draw: Random) -> None:
        self.environment = environment
        self.name = name
        self._draw = draw
        self._offsets: dict[PartitionOf, int] = {}

    async def run(self, runtime: Runtime) -> None:
        while not self.environment.closing:
            try:
                connection = await self.environment.connect(runtime, self.name, self._draw)
            except BROKEN:
                await sleep(runtime.clock, RETRY_S)
                continue
            try:
                while not self.environment.closing:
                    await self._poll(runtime, connection)
            except BROKEN as error:
                self.environment.world.say(self.name, f"connection lost: {error!r}")
            finally:
                connection.close()
            await sleep(runtime.clock, RETRY_S)

    async def _poll(self, runtime: Runtime, connection: ClientConnection) -> None:
        draw = self._draw
        topics = [t for t in self.environment.history.topics.values() if not t.delete_asked]
        places = [
            (topic, index, max(self._offsets.get(PartitionOf(topic.topic_id, index), 0), 0))
            for topic in topics
            for index in range(topic.partitions)
        ]
        if not places:
            await sleep(runtime.clock, 0.1)
            return
        places = draw.sample(places, draw.randint(1, min(3, len(places))))
        if draw.random() < REREAD:
            topic, index, offset = places[0]
            places[0] = topic, index, draw.randint(0, offset)
        request = fetch_request(
            places,
            max_wait_ms=draw.choice([0, 20, 200]),
            min_bytes=draw.choice([1, 1, 500]),
            max_bytes=draw.choice([1, 1000, 1 << 20]),
            partition_max_bytes=draw.choice([1, 500, 1 << 20]),
        )
        asked = Asked.now(self.environment)
        await connection.send(ApiKey.FETCH, request)
        if draw.random() < 0.1:
            await trio.sleep(draw.random())  # a slow reader
        response = await connection.receive()
        if response.error_code:
            raise EOFError(f"fetch: {response.error_code}")
        if not self._take(places, response, asked):
            await sleep(runtime.clock, 0.02)
        for place in [place for place in places if self._offsets.get(_of(place)) == LOST]:
            start = await list_offset(connection, *place[:2], EARLIEST)
            if start is not None:
                self._offsets[_of(place)] = start

    def _take(self, places: list[tuple[Topic, int, int]], response: Any, sent: Asked) -> int:
        """Take the records of a response; return the number of new ones."""
        got = 0
        asked = {(t.name, p): (t, p, o) for t, p, o in places}
        asked_by_id = {(t.topic_id, p): (t, p, o) for t, p, o in places}
        for answer in response.responses:
            for data in answer.partitions:
                key = data.partition_index
                place = asked.get((answer.topic, key)) or asked_by_id.get((answer.topic_id, key))
                if place is None:
                    self.environment.world.violate(
                        "P1 AnswersWhatWasAsked", f"{answer.topic}-{key}"
                    )
                    continue
                got += self._take_one(*place, data, sent)
        return got

    def _take_one(self, topic: Topic, partition: int, offset: int, data: Any, asked: Asked) -> int:
        place = PartitionOf(topic.topic_id, partition)
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # Before the log start offset, or beyond the end of a log that lost unflushed records.
            self._offsets[place] = LOST
            self.environment.world.count("offset out of range")
            return 0
        if data.error_code or topic.delete_asked:  # another topic may have the name now
            return 0
        reads = take_records(self.environment, topic, partition, offset, data, asked)
        if (end := end_of(data, offset)) > offset:
            self._offsets[place] = end
        if reads:
            self.environment.world.say(
                self.name,
                f"reads {topic}-{partition} {reads[0].offset}..{reads[-1].offset}, "
                f"high watermark {data.high_watermark}",
            )
        return len(reads)
