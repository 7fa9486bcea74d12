"""Model of a Kafka broker's partition, in memory, with all cases that a reader must handle.

`PartitionLog` is a list of encoded batches with the other facts that the broker reports.
`ModelBroker` is a `Transport` to any number of brokers, which answer by the protocol from the logs.
Tests change the log between requests: `before_fetch` is called with each Fetch request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from metaquorum.client.transport import Attempt
from metaquorum.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from metaquorum.wire.messages.describe_truncations import (
    DescribedTruncation,
    DescribeTruncationsResponse,
)
from metaquorum.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from metaquorum.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from metaquorum.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from metaquorum.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.types import Buffer
from metaquorum.wire.protocol.apis import APIS, ApiKey
from metaquorum.wire.protocol.headers import encode_response
from metaquorum.wire.protocol.request_header import decode_request_header
from metaquorum.wire.records.records import parse_header
from metaquorum.wire.schema.codec import decoder

C = TypeVar("C")

TOPIC = "t"
TOPIC_ID = bytes(range(16))
EARLIEST, LATEST = -2, -1
SERVED = {
    ApiKey.API_VERSIONS: 4,
    ApiKey.METADATA: 12,
    ApiKey.FETCH: 16,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
}


@dataclass
class PartitionLog:
    """`epochs`: (epoch, first offset), ascending, as the leader epoch cache has them."""

    batches: list[bytes] = field(default_factory=list)
    log_start: int = 0
    log_end: int = 0
    high_watermark: int = 0
    last_stable_offset: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)  # producer, first, last

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the result of Kafka's LeaderEpochFileCache.endOffsetFor."""
        if not self.epochs or epoch > self.epochs[-1][0]:
            return -1, -1
        if epoch == self.epochs[-1][0]:
            return epoch, self.log_end
        higher = next(start for number, start in self.epochs if number > epoch)
        floor = [number for number, _ in self.epochs if number <= epoch]
        return (floor[-1] if floor else epoch), higher


class ModelBroker:
    """A transport to `nodes` brokers, of which one leads the only partition."""

    def __init__(self, log: PartitionLog, *, nodes: int = 1, fetch_version: int = 16) -> None:
        self.log = log
        self.nodes = nodes
        self.leader = 0
        self.topic_id = TOPIC_ID
        self.exists = True
        self.throttle_ms = 0
        self.is_empty_when_throttled = False  # limits of a fetch, as in Kafka
        self.preferred: int | None = None
        self.fetches: list[tuple[int, FetchRequest]] = []  # node and request
        self.max_bytes: int | None = None
        self.before_fetch: Callable[[int, FetchRequest], ErrorCode | None] = lambda _n, _r: None
        self.down: set[int] = set()
        self.silent: set[int] = set()  # nodes without power: their connections stay open
        self.truncations: list[
            tuple[int, int]
        ] = []  # first and last offset, in the truncation ledger
        self.slept_s = 0.0
        self._now = 1000.0
        self._served = {**SERVED, ApiKey.FETCH: fetch_version}

    # The transport

    def monotonic(self) -> float:
        return self._now

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_until(self, deadline: float) -> None:
        self.slept_s += max(0.0, deadline - self._now)
        self._now = max(self._now, deadline)

    async def connect(self, host: str, port: int, deadline: float) -> ModelStream:
        if port in self.down:
            raise ConnectionRefusedError("down")
        return ModelStream(self, port)

    async def race(self, attempts: Sequence[Attempt[Any]], stagger_s: float) -> Any:
        return await attempts[0]()

    # The brokers

    def answer(self, node: int, frame: bytes) -> bytes:
        view = memoryview(frame)
        header, at = decode_request_header(view)
        api = APIS[ApiKey(header.api_key)]
        request, _ = decoder(api.request, header.api_version)(view, at)
        response = getattr(self, f"_{ApiKey(header.api_key).name.lower()}")(node, request)
        return encode_response(api, header.api_version, header.correlation_id, response)

    def _api_versions(self, node: int, request: Any) -> ApiVersionsResponse:
        keys = [
            ApiVersion(api_key=key, min_version=APIS[key].min_version, max_version=version)
            for key, version in self._served.items()
        ]
        if self.truncations:
            key = ApiKey.DESCRIBE_TRUNCATIONS
            keys.append(ApiVersion(api_key=key, min_version=0, max_version=0))
        return ApiVersionsResponse(api_keys=keys)

    def _metadata(self, node: int, request: Any) -> MetadataResponse:
        topic = MetadataResponseTopic(
            error_code=0 if self.exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            name=TOPIC,
            topic_id=self.topic_id,
            partitions=[
                MetadataResponsePartition(
                    partition_index=0,
                    leader_id=self.leader,
                    leader_epoch=self.log.epochs[-1][0] if self.log.epochs else 0,
                    replica_nodes=list(range(self.nodes)),
                    isr_nodes=list(range(self.nodes)),
                )
            ],
        )
        brokers = [
            MetadataResponseBroker(node_id=number, host="model", port=number)
            for number in range(self.nodes)
        ]
        asked = request.topics is None or any(one.name == TOPIC for one in request.topics)
        return MetadataResponse(
            brokers=brokers, cluster_id="model", topics=[topic] if asked else []
        )

    def _list_offsets(self, node: int, request: Any) -> ListOffsetsResponse:
        time_ms = request.topics[0].partitions[0].timestamp
        log = self.log
        latest = log.last_stable_offset if request.isolation_level else log.high_watermark
        found = ListOffsetsPartitionResponse(
            partition_index=0, offset=log.log_start if time_ms == EARLIEST else latest
        )
        return ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse(name=TOPIC, partitions=[found])]
        )

    def _offset_for_leader_epoch(self, node: int, request: Any) -> OffsetForLeaderEpochResponse:
        epoch, end = self.log.end_of_epoch(request.topics[0].partitions[0].leader_epoch)
        found = EpochEndOffset(partition=0, leader_epoch=epoch, end_offset=end)
        return OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderTopicResult(topic=TOPIC, partitions=[found])]
        )

    def _describe_truncations(self, node: int, request: Any) -> DescribeTruncationsResponse:
        rows = [
            DescribedTruncation(
                topic=TOPIC,
                topic_id=self.topic_id,
                reason="unclean election",
                offset=first,
                end_offset=last + 1,
                acknowledged="perhaps",
            )
            for first, last in self.truncations
        ]
        return DescribeTruncationsResponse(truncations=rows)

    def _fetch(self, node: int, request: FetchRequest) -> FetchResponse:
        self.fetches.append((node, request))
        error = self.before_fetch(node, request)
        topic = request.topics[0]
        asked = topic.partitions[0]
        data = self._data(node, request) if error is None else _refusal(error)
        if topic.topic_id != self.topic_id and not topic.topic:
            data = _refusal(ErrorCode.UNKNOWN_TOPIC_ID)
        data.partition_index = asked.partition
        response = FetchableTopicResponse(
            topic=topic.topic, topic_id=topic.topic_id, partitions=[data]
        )
        if self.throttle_ms and self.is_empty_when_throttled:
            return FetchResponse(throttle_time_ms=self.throttle_ms)
        if not data.records:
            self._now += request.max_wait_ms / 1000
        return FetchResponse(throttle_time_ms=self.throttle_ms, responses=[response])

    def _data(self, node: int, request: FetchRequest) -> PartitionData:
        log, asked = self.log, request.topics[0].partitions[0]
        if node != self.leader and node != self.preferred:
            return _refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not log.log_start <= asked.fetch_offset <= log.log_end:
            return _refusal(ErrorCode.OFFSET_OUT_OF_RANGE)
        data = PartitionData(
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start,
        )
        if node == self.leader and self.preferred is not None and request.rack_id:
            data.preferred_read_replica = self.preferred
            return data
        limit = log.last_stable_offset if request.isolation_level else log.high_watermark
        max_bytes = self.max_bytes or asked.partition_max_bytes
        records, upto = bytearray(), asked.fetch_offset
        for batch in log.batches:
            header = parse_header(batch)
            if header.next_offset <= asked.fetch_offset or header.base_offset >= limit:
                continue
            if records and len(records) + len(batch) > max_bytes:
                records += batch[: max_bytes - len(records)]
                break
            records += batch
            upto = header.next_offset
        data.records = bytes(records)
        if request.isolation_level:
            data.aborted_transactions = [
                AbortedTransaction(producer_id=producer, first_offset=first)
                for producer, first, last in log.aborted
                if last >= asked.fetch_offset and first < upto
            ]
        return data


def _refusal(error: ErrorCode) -> PartitionData:
    return PartitionData(error_code=error, high_watermark=-1, records=b"")


class ModelStream:
    """A connection: whole requests in, their answers out, in order."""

    def __init__(self, broker: ModelBroker, node: int) -> None:
        self._broker = broker
        self._node = node
        self._in = bytearray()
        self._out = bytearray()

    async def send(self, data: Buffer, deadline: float) -> None:
        self._in += data
        while len(self._in) >= 4:
            size = int.from_bytes(self._in[:4], "big")
            if len(self._in) < 4 + size:
                return
            frame = bytes(self._in[4 : 4 + size])
            del self._in[: 4 + size]
            if self._node in self._broker.down:
                raise ConnectionResetError("down")
            if self._node in self._broker.silent:
                continue
            self._out += self._broker.answer(self._node, frame)

    async def receive_into(self, buffer: memoryview, deadline: float) -> int:
        if self._node in self._broker.down:
            raise ConnectionResetError("down")
        if self._node in self._broker.silent:
            await self._broker.sleep_until(deadline)
            raise TimeoutError("timed out")
        count = min(len(buffer), len(self._out))
        assert count, "nothing was asked for"
        buffer[:count] = self._out[:count]
        del self._out[:count]
        return count

    def close(self) -> None:
        self._in.clear()
        self._out.clear()


def blocking(coroutine: Coroutine[Any, Any, C]) -> C:
    from metaquorum.client.socket_transport import wait

    return wait(coroutine)
