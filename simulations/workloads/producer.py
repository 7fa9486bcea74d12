"""Producers: pipelined batches, responses in order, and retries if responses do not come.

An idempotent producer sends unanswered batches again, with the same sequences, until they are
answered; one without sequences sends them again (duplicates are possible) or gives up, depending
on the seed.
"""

import zlib
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Final

from metaquorum.runtime import Runtime, sleep
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.harness.environment import Environment
from metaquorum.simulations.harness.history import Attempt, PartitionOf, Topic
from metaquorum.simulations.workloads.lying_batches import wrong_max_timestamp
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import RETRIABLE, ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.records import Codec, Record, encode_batch

RETRY_S: Final = 0.05
# Seconds after which a producer gives up a partition that damage may have taken offline.
DELIVERY_TIMEOUT_S: Final = 20.0
# One batch of this many has a wrong largest timestamp in its header.
WRONG_HEADERS: Final = 8
# Header of a deletion, with the unique value that the record would have.
DELETED: Final = "deleted"
_ZSTD_SINCE: Final = 7
_TOPIC_IDS_SINCE: Final = 13
# The producer's state on the node differs from the client's: start with a new producer id.
_LOST_TRACK: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
)


@dataclass(slots=True, eq=False)
class Batch:
    topic: Topic
    partition: int
    attempts: list[Attempt]
    base_sequence: int
    codec: Codec

    def encoded(self, producer_id: int, epoch: int) -> bytes | bytearray:
        records = [
            Record(
                number,
                attempt.timestamp_ms,
                attempt.key,
                None if attempt.is_deletion else attempt.value,
                ((DELETED, attempt.value),) if attempt.is_deletion else (),
            )
            for number, attempt in enumerate(self.attempts)
        ]
        batch = encode_batch(
            records,
            codec=self.codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self.base_sequence,
        )
        if zlib.crc32(self.attempts[0].value) % WRONG_HEADERS == 0:
            return wrong_max_timestamp(batch, self.attempts[0].timestamp_ms + 5)
        return batch

    def __str__(self) -> str:
        first = self.attempts[0]
        return f"{self.topic}-{self.partition} records {first.number}+{len(self.attempts)}"


class Producer:
    def __init__(self, environment: Environment, name: str, draw: Random) -> None:
        self.environment = environment
        self.name = name
        self.done = False
        self._draw = draw
        self._idempotent = draw.random() < environment.settings.idempotent
        self._acks = -1 if self._idempotent else draw.choice([-1, 1, 1, 0])
        self._retries = self._idempotent or draw.random() < 0.5
        self._codec = draw.choice(environment.settings.codecs)
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[tuple[str, int], int] = {}
        self._numbers: dict[tuple[bytes, int], int] = {}
        self._left = environment.settings.records
        self._unanswered: deque[Batch] = deque()

    async def run(self, runtime: Runtime) -> None:
        while self._left > 0 or self._unanswered:
            try:
                connection = await self.environment.connect(runtime, self.name, self._draw)
            except BROKEN:
                await sleep(runtime.clock, RETRY_S)
                continue
            try:
                await self._use(runtime, connection)
            except BROKEN as error:
                self._say(f"connection lost: {error!r}, {len(self._unanswered)} unanswered")
                if not self._retries:
                    self._unanswered.clear()
            finally:
                connection.close()
            await sleep(runtime.clock, RETRY_S * self._draw.random())
            if self.environment.closing:
                break
        self._give_up(*self._unanswered)
        self.done = True

    def _say(self, text: str) -> None:
        self.environment.world.say(self.name, text)

    async def _use(self, runtime: Runtime, connection: ClientConnection) -> None:
        if self._idempotent and self._producer_id < 0:
            await self._begin(connection)
        for batch in list(self._unanswered):
            self._say(f"sends again: {batch}")
            self.environment.world.count("batches sent again")
            await self._send(connection, batch)
        while self._left > 0 or self._unanswered:
            while self._left > 0 and len(self._unanswered) < self.environment.settings.pipeline:
                fresh = self._next_batch(runtime, connection)
                if fresh is None:
                    break
                if self._acks != 0:
                    self._unanswered.append(fresh)
                await self._send(connection, fresh)
                if self._draw.random() < 0.5:
                    break
            if self._unanswered:
                await self._answer(connection)
                self._perhaps_begin_anew()
            elif not self.environment.history.topics:
                await sleep(runtime.clock, RETRY_S)
            await sleep(runtime.clock, self._draw.random() * self.environment.settings.think_s)
            if self.environment.closing:
                self._left = 0

    async def _begin(self, connection: ClientConnection) -> None:
        answer = await connection.call(
            ApiKey.INIT_PRODUCER_ID,
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1),
        )
        if answer.error_code:
            raise EOFError(f"no producer id: {answer.error_code}")
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        self._say(f"is producer {self._producer_id} epoch {self._epoch}")

    def _give_up(self, *batches: Batch) -> None:
        if self._idempotent:
            for batch in batches:
                for attempt in batch.attempts:
                    attempt.given_up = True

    def _perhaps_begin_anew(self) -> None:
        """Start again, perhaps, as a restarted client. Raises EOFError in this case."""
        share = self.environment.settings.begins_anew
        if share and self._idempotent and not self._unanswered and self._draw.random() < share:
            self._producer_id = -1
            raise EOFError("takes a new producer id")

    def _next_batch(self, runtime: Runtime, connection: ClientConnection) -> Batch | None:
        topics = [t for t in self.environment.history.topics.values() if not t.delete_asked]
        if not topics:
            return None
        topic = self._draw.choice(topics)
        place = topic.topic_id, self._draw.randrange(topic.partitions)
        settings = self.environment.settings
        count = min(self._draw.randint(1, settings.max_batch_records), self._left)
        self._left -= count
        now_ms = runtime.clock.now_ms()
        attempts = [self._attempt(topic, place, now_ms) for _ in range(count)]
        sequence = -1
        if self._idempotent:
            # By name, as real clients do: sequences continue in a topic that is created again.
            key = topic.name, place[1]
            sequence = self._sequences.get(key, 0)
            self._sequences[key] = sequence + count
        codec = self._codec
        if codec is Codec.ZSTD and connection.version(ApiKey.PRODUCE) < _ZSTD_SINCE:
            codec = Codec.LZ4
        return Batch(topic, place[1], attempts, sequence, codec)

    def _attempt(self, topic: Topic, place: tuple[bytes, int], now_ms: int) -> Attempt:
        draw, settings = self._draw, self.environment.settings
        number = self._numbers.get(place, 0)
        self._numbers[place] = number + 1
        big = draw.random() < settings.big_value
        size = settings.big_value_bytes if big else draw.randint(0, settings.max_value_bytes)
        start = f"{topic.name}-{place[1]} {self.name} {number} {topic.topic_id.hex()[:6]} ".encode()
        # Filler that does not compress well and differs between records.
        seed = zlib.crc32(start)
        filler = Random(seed).randbytes(size // 2).hex().encode()
        attempt = Attempt(
            topic,
            place[1],
            self.name,
            self._producer_id,
            number,
            start + filler,
            now_ms + draw.randint(-settings.time_scatter_ms, settings.time_scatter_ms),
            self._acks,
            self._idempotent,
        )
        if topic.is_compacted:
            attempt.key = b"key %d" % draw.randrange(settings.keys)
            attempt.is_deletion = draw.random() < settings.deletions
        self.environment.history.attempts[attempt.value] = attempt
        return attempt

    async def _send(self, connection: ClientConnection, batch: Batch) -> None:
        for attempt in batch.attempts:
            if attempt.times_sent == 0:
                attempt.first_sent_at = self.environment.world.now
            attempt.times_sent += 1
            if connection.version(ApiKey.PRODUCE) < _TOPIC_IDS_SINCE:
                attempt.sent_by_name = True
        topic = TopicProduceData(
            name=batch.topic.name,
            topic_id=batch.topic.topic_id,
            partition_data=[
                PartitionProduceData(
                    index=batch.partition, records=batch.encoded(self._producer_id, self._epoch)
                )
            ],
        )
        message = ProduceRequest(
            transactional_id=None, acks=self._acks, timeout_ms=5000, topic_data=[topic]
        )
        await connection.send(ApiKey.PRODUCE, message, answered=self._acks != 0)

    async def _answer(self, connection: ClientConnection) -> None:
        response = await connection.receive()
        batch = self._unanswered[0]
        answer = response.responses[0].partition_responses[0]
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE:
            self._unanswered.popleft()
            self._say(f"acknowledged: {batch} at {answer.base_offset}")
            self.environment.acked(batch.attempts, answer.base_offset)
            return
        self._say(f"refused: {batch}: {code.name} {answer.error_message or ''}")
        self.environment.world.count(f"refused: {code.name}")
        if self._is_out_of_service(batch, code):
            self.environment.world.count("producers that gave up a rotten partition")
            self._left = 0
        elif code in RETRIABLE and self._retries and not batch.topic.delete_asked:
            # Later batches cannot succeed before this one: all are sent again, in order.
            raise EOFError(f"to be tried again: {code.name}")
        self._unanswered.popleft()
        if code not in _LOST_TRACK:
            self._give_up(batch, *self._unanswered)
        if self._idempotent:
            # Sequences after a gap are always refused: take a new id, and drop open batches.
            if code in _LOST_TRACK:
                self.environment.world.count("producers that lost track")
            self._unanswered.clear()
            self._producer_id = -1
            raise EOFError(f"takes a new producer id: {code.name}")

    def _is_out_of_service(self, batch: Batch, code: ErrorCode) -> bool:
        """Return whether damage may have taken the partition offline until an operator acts."""
        place = PartitionOf(batch.topic.topic_id, batch.partition)
        return (
            code is ErrorCode.KAFKA_STORAGE_ERROR
            and place in self.environment.history.rotten
            and self.environment.world.now - batch.attempts[0].first_sent_at > DELIVERY_TIMEOUT_S
        )
