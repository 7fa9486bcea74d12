"""Producer, idempotent by default: when `send` returns, each record is in the log exactly once.

Records are grouped by partition into batches. Each partition has one batch in flight at a time,
which preserves the order. Each batch has a producer id and a sequence number (KIP-98), so that the
leader does not append a batch again that is retried after a failed connection.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from metaquorum.client.cluster import ANY_BROKER, Cluster, TopicPartition
from metaquorum.client.errors import BrokerError, InterruptedChangeError, broker_error
from metaquorum.client.partitioning import partition_of
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from metaquorum.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.primitives.types import ZERO_UUID
from metaquorum.wire.records.records import NO_PRODUCER_ID, Codec, Record, encode_batch

# Size of the records before compression; the default max.message.bytes of Kafka is 1 MiB.
DEFAULT_BATCH_BYTES: Final = 512 * 1024
RECORD_OVERHEAD_BYTES: Final = 24
ALL_REPLICAS: Final = -1
_NAMES_UNTIL: Final = 12  # Produce 13 and later identify topics by topic id
_SEQUENCE_MASK: Final = 0x7FFFFFFF


@frozen
class ProducerRecord:
    """Record to send.

    `partition` None: chosen by the hash of the key or, without a key, by batch.
    `timestamp_ms`: milliseconds since 1970 UTC; None: the time of `send`.
    """

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None

    @property
    def size_bytes(self) -> int:
        """Approximate size of the record in a batch."""
        headers = sum(len(name) + len(value or b"") + 4 for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers + RECORD_OVERHEAD_BYTES


@frozen
class Appended:
    """A batch in the log.

    `base_offset` is -1 with acks=0, or if the batch is a duplicate whose offset the broker no
    longer remembers.
    """

    topic: str
    partition: int
    base_offset: int
    records: int


@dataclass(slots=True)
class _Batch:
    where: TopicPartition
    records: list[Record]
    data: bytearray


class Producer:
    """Producer without linger: `send` returns when all of its records are acknowledged."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        codec: Codec = Codec.NONE,
        acks: int = ALL_REPLICAS,
        idempotent: bool = True,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
    ) -> None:
        """Create a producer.

        `acks`: ALL_REPLICAS, 1 or 0; an idempotent producer requires ALL_REPLICAS, else ValueError
        is raised. `batch_bytes`: most bytes of records in a batch, before compression.
        """
        if idempotent and acks != ALL_REPLICAS:
            raise ValueError("an idempotent producer requires acks=all")
        self.cluster = cluster
        self._codec = codec
        self._acks = acks
        self._idempotent = idempotent
        self._batch_bytes = batch_bytes
        self._producer = (NO_PRODUCER_ID, -1)
        self._sequences: dict[TopicPartition, int] = {}
        self._transactional_id: str | None = None  # set by transactions.transactional_producer
        self._last_version: int | None = None  # newest version of Produce to send; None: any
        # Called with each batch that was appended, also if `send` raises an error for another.
        self.acknowledged: Callable[[Appended], None] = lambda _: None

    async def send(self, topic: str, records: Iterable[ProducerRecord]) -> list[Appended]:
        """Append `records` to `topic`, in their order within each partition.

        Returns the appended batches. Raises BrokerError or UnreachableError if a batch fails; some
        of the records may then be in the log. Without `idempotent`, InterruptedChangeError means
        that the connection failed and a batch may have been appended; with acks=0, this error may
        come from an earlier `send` whose batch the broker refused.
        """
        if self._idempotent and self._producer[0] == NO_PRODUCER_ID:
            await self._init_producer()
        queues = await self._group(topic, records)
        await self._prepare(queues)
        appended: list[Appended] = []
        while queues:
            batches = {where: self._batch(where, queue) for where, queue in queues.items()}
            queues = {where: queue for where, queue in queues.items() if queue}
            appended += await self._append(batches)
        return appended

    async def _prepare(self, partitions: Iterable[TopicPartition]) -> None:
        """Prepare the first batch of each partition; for producers with transactions."""

    async def _init_producer(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        deadline = self.cluster.deadline()
        attempt = 0
        while True:
            response: InitProducerIdResponse = await self.cluster.call(
                request, to=ANY_BROKER, deadline=deadline
            )
            if not response.error_code:
                break
            error = broker_error(response.error_code, None, "producer id")
            if not error.retriable or not await self.cluster.back_off(attempt, deadline):
                raise error
            attempt += 1
        self._producer = response.producer_id, response.producer_epoch

    async def _group(
        self, topic: str, records: Iterable[ProducerRecord]
    ) -> dict[TopicPartition, list[ProducerRecord]]:
        metadata = await self.cluster.topic(topic)
        count = len(metadata.partitions)
        led = [p.partition_index for p in metadata.partitions if p.leader_id >= 0]
        choices = led or list(range(count))
        anywhere, room_bytes = 0, 0
        queues: dict[TopicPartition, list[ProducerRecord]] = {}
        for record in records:
            if record.partition is not None:
                partition = record.partition
            elif record.key is not None:
                partition = partition_of(record.key, count)
            else:
                if room_bytes <= 0:  # about one batch per partition, as in Kafka's own client
                    anywhere, room_bytes = self.cluster.random.choice(choices), self._batch_bytes
                partition = anywhere
                room_bytes -= record.size_bytes
            queues.setdefault(TopicPartition(topic, partition), []).append(record)
        for queue in queues.values():
            queue.reverse()  # taken from the end
        return queues

    def _batch(self, where: TopicPartition, queue: list[ProducerRecord]) -> _Batch:
        """Return a batch of the next records of the queue that fit, at least one."""
        now = self.cluster.transport.now_ms()
        records: list[Record] = []
        size = 0
        while queue and (not records or size + queue[-1].size_bytes <= self._batch_bytes):
            taken = queue.pop()
            size += taken.size_bytes
            time = now if taken.timestamp_ms is None else taken.timestamp_ms
            records.append(Record(len(records), time, taken.key, taken.value, taken.headers))
        producer_id, producer_epoch = self._producer
        sequence = self._sequences.get(where, 0) if self._idempotent else -1
        data = encode_batch(
            records,
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            transactional=self._transactional_id is not None,
        )
        return _Batch(where, records, data)

    async def _append(self, batches: dict[TopicPartition, _Batch]) -> list[Appended]:
        deadline = self.cluster.deadline()

        async def ask(
            node_id: int, led: list[TopicPartition]
        ) -> dict[TopicPartition, Appended | BrokerError]:
            return await self._produce(node_id, [batches[where] for where in led], deadline)

        answers = await self.cluster.ask_leaders(batches, ask, deadline)
        appended: list[Appended] = []
        for where, batch in batches.items():
            answer = answers[where]
            if isinstance(answer, BrokerError):
                continue
            if self._idempotent:
                sequence = self._sequences.get(where, 0) + len(batch.records)
                self._sequences[where] = sequence & _SEQUENCE_MASK
            self.acknowledged(answer)
            appended.append(answer)
        for error in answers.values():
            if isinstance(error, BrokerError):
                raise error
        return appended

    async def _produce(
        self, node_id: int, batches: Sequence[_Batch], deadline: float
    ) -> dict[TopicPartition, Appended | BrokerError]:
        name = batches[0].where.topic
        topic_id = (await self.cluster.topic(name)).topic_id
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=int(self.cluster.timeout_s * 1000),
            topic_data=[
                TopicProduceData(
                    name=name,
                    topic_id=topic_id,
                    partition_data=[
                        PartitionProduceData(index=batch.where.partition, records=batch.data)
                        for batch in batches
                    ],
                )
            ],
        )
        max_version = self._last_version
        if topic_id == ZERO_UUID:
            max_version = min(_NAMES_UNTIL, max_version or _NAMES_UNTIL)
        if self._acks == 0:
            try:
                await self.cluster.send_unanswered(
                    request, to=node_id, deadline=deadline, max_version=max_version
                )
            except InterruptedChangeError:
                # A broker that refuses a batch, as it is not the leader, can only disconnect.
                self.cluster.forget_topic(name)
                raise
            return {batch.where: _appended(batch, -1) for batch in batches}
        response: ProduceResponse = await self.cluster.call(
            request,
            to=node_id,
            deadline=deadline,
            changes=not self._idempotent,
            max_version=max_version,
        )
        return self._outcomes(batches, response)

    def _outcomes(
        self, batches: Sequence[_Batch], response: ProduceResponse
    ) -> dict[TopicPartition, Appended | BrokerError]:
        by_index = {batch.where.partition: batch for batch in batches}
        outcomes: dict[TopicPartition, Appended | BrokerError] = {}
        for partition in response.responses[0].partition_responses:
            batch = by_index[partition.index]
            code = partition.error_code
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                outcomes[batch.where] = _appended(batch, partition.base_offset)
                continue
            error = broker_error(code, partition.error_message, f"partition {batch.where}")
            if partition.record_errors:
                first = partition.record_errors[0]
                if first.batch_index_error_message:
                    error.message = first.batch_index_error_message
            outcomes[batch.where] = error
        return outcomes


def _appended(batch: _Batch, base_offset: int) -> Appended:
    return Appended(batch.where.topic, batch.where.partition, base_offset, len(batch.records))
