"""Clients of replicated topics: every acks level, producers that retry, consumers, administrators.

Every value is unique and begins with the id of its topic (or "by name" if it was sent with a
Produce version that has no topic ids), so that checkers find a record in the wrong topic.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

from metaquorum.metadata.records import ELIGIBLE_LEADERS
from metaquorum.quorum.controller.features import UpgradeType
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S, Administrator, ClusterClient
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.replication.loss_checkers import DamageStaysWhereItIs
from metaquorum.simulations.replication.probes import contents_of, damaged_in, seen_entries
from metaquorum.simulations.replication.replica_checkers import (
    MIN_ISR,
    UNCLEAN,
    AcknowledgedIsCommitted,
    AcknowledgedStays,
    DeliveredOnce,
    ReadsAreCommitted,
    SyncedIsKept,
    TimesAreFound,
    TopicsAreTheirOwn,
)
from metaquorum.simulations.replication.replicas import Content, Identity, Place
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.replication.throttling import FASTEST, ClientRatesHold, MutesHold
from metaquorum.simulations.workloads.consumer import EARLIEST, LATEST
from metaquorum.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from metaquorum.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from metaquorum.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from metaquorum.wire.primitives.errors import RETRIABLE, ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.batches import batches, parse_header
from metaquorum.wire.records.compression import Codec
from metaquorum.wire.records.records import Record, decode_records, encode_batch

TOPIC_IDS_SINCE: Final = 13  # version of Produce, and of Fetch
BY_NAME: Final = "by name"
ALL: Final = -1
# Error of a new leader that cannot commit, as fewer than min.insync.replicas are in sync.
NOT_KNOWN: Final = ErrorCode.OFFSET_NOT_AVAILABLE.name
LOOKUPS: Final = 4  # timestamps looked up at the end, per partition
_TOPIC: Final = 2  # resource type
_LOST_TRACK: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
)


class ReplicaClient(ClusterClient):
    cluster_state: ReplicatedClusterState
    # Last throttled connection, end of the wait, and throttle time in seconds.
    _to_wait: tuple[int, float, float] = (-1, 0.0, 0.0)

    def place(self) -> tuple[str, Place] | None:
        """Return a random partition of a topic that should exist; None if there is none."""
        lasting = self.cluster_state.topic_outcomes.lasting
        if not lasting:
            return None
        name = self._draw.choice(sorted(lasting))
        topic_id, partitions = lasting[name]
        return name, Place(topic_id, self._draw.randrange(partitions))

    def is_over(self, name: str, place: Place) -> bool:
        """Return whether the topic is deleted, or the partition cannot get a leader any longer."""
        outcome = self.cluster_state.topic_outcomes.lasting.get(name)
        if outcome is None or outcome[0] != place.topic_id:
            return True
        return self.cluster_state.calm and self.cluster_state.is_stuck(
            self.cluster_state.cluster_history.history(*place)
        )

    def throttled(self, api: ApiKey, size_bytes: int, throttle_ms: int, asked_at: float) -> None:
        """Check bytes moved and throttle time of a response on the client's last connection.

        The wait begins no earlier than `asked_at`, the time of the request. The client does not
        know when the worker responded: the network may delay a response beyond the wait.
        """
        cluster_state = self.cluster_state
        if not cluster_state.settings.throttles:
            return
        known, not_before, throttle_s = self._to_wait
        if known == self.connections and throttle_s:
            early_s = not_before - cluster_state.world.now
            cluster_state.checker(MutesHold).answered(self.name, early_s, throttle_s)
        # The worker measures the wait with its own clock, which may be fast.
        throttle_s = throttle_ms / 1000
        self._to_wait = self.connections, asked_at + throttle_s / FASTEST, throttle_s
        checker = cluster_state.checker(ClientRatesHold)
        checker.used(self.name, api, self.worker_id, self.connections, size_bytes)
        cluster_state.world.count("answers that throttle", throttle_ms > 0)

    async def leader(self, runtime: Runtime, name: str, place: Place) -> int:
        async with self.connected(runtime) as connection:
            return self.leader_of(await self.metadata(connection, name), name, place.partition)


class ReplicaAdministrator(ReplicaClient, Administrator):
    """Administrator that creates, deletes and recreates topics with one to three replicas.

    It also elects leaders, changes configs and feature levels, and deletes records.
    """

    _runtime: Runtime

    async def _use(self, runtime: Runtime, connection: ClientConnection) -> None:
        self._runtime = runtime
        settings = self.cluster_state.settings
        for _ in range(self._draw.randint(1, 5)):
            lasting = self.cluster_state.topic_outcomes.lasting
            if self._made < settings.changes or not lasting:
                await self._change(connection, sorted(lasting))
            await sleep(runtime.clock, self._draw.random() * settings.think_s)

    async def _change(self, connection: ClientConnection, lasting: list[str]) -> None:
        self._made += 1
        if not lasting or (len(lasting) < 6 and self._draw.random() < 0.4):
            await self._create(connection)
            return
        name = self._draw.choice(lasting)
        changes: list[Callable[[ClientConnection, str], Any]] = [
            self._set_min_isr,
            self._set_unclean,
            self._elect,
            self._elect,
            self._delete_records,
            self._set_eligible_leaders,
        ]
        if len(lasting) > 1:
            changes += [self._delete, self._recreate]
        await self._draw.choice(changes)(connection, name)

    async def _create(self, connection: ClientConnection) -> None:
        await self._create_as(connection, f"{self.name}-{self._made}")

    async def _create_as(self, connection: ClientConnection, name: str) -> None:
        draw = self._draw
        replicas = draw.choice([1, 2, 3, 3])
        least = draw.choice([1, 2]) if replicas > 1 else 1
        overrides = {
            MIN_ISR: str(least),
            "internal.segment.bytes": draw.choice(["1000", "1000000"]),
        }
        if draw.random() < self.cluster_state.settings.flushed:
            overrides["flush.messages"] = "1"
        partitions = draw.choice([1, 1, 2, 4])
        topic_id = await self._ask_creation(connection, name, partitions, replicas, overrides)
        if topic_id is not None:
            self._made_as(topic_id, partitions, least, overrides)

    def _made_as(
        self, topic_id: bytes, partitions: int, least: int, overrides: Mapping[str, str]
    ) -> None:
        self.cluster_state.min_isrs.setdefault(topic_id, set()).add(least)
        for index in range(partitions):
            history = self.cluster_state.cluster_history.history(topic_id, index)
            history.is_flushed = "flush.messages" in overrides

    async def _recreate(self, connection: ClientConnection, name: str) -> None:
        await self._delete(connection, name)
        if name in self.cluster_state.topic_outcomes.deleted:
            await self._create_as(connection, name)
            self.cluster_state.world.count("topics made again")

    async def _set(self, connection: ClientConnection, name: str, key: str, value: str) -> None:
        config = AlterableConfig(name=key, config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=_TOPIC, resource_name=name, configs=[config])
        message = IncrementalAlterConfigsRequest(resources=[resource])
        response = await connection.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, message)
        code = ErrorCode(response.responses[0].error_code)
        self.say(f"{key} of {name} {value}: {code.name}")
        self.cluster_state.world.count("configs changed", code is ErrorCode.NONE)

    async def _set_unclean(self, connection: ClientConnection, name: str) -> None:
        may_be = self._draw.random() < self.cluster_state.settings.unclean
        if may_be:
            partitions = range(self.cluster_state.topic_outcomes.created[name][1])
            self.cluster_state.cluster_history.unclean_asked.update(
                (name, index) for index in partitions
            )
        await self._set(connection, name, UNCLEAN, str(may_be).lower())

    async def _set_min_isr(self, connection: ClientConnection, name: str) -> None:
        topic_id = self.cluster_state.topic_outcomes.created[name][0]
        state = self.cluster_state.cluster_history.state(
            self.cluster_state.cluster_history.history(topic_id, 0)
        )
        if state is None or len(state.replicas) == 1:
            return
        least = self._draw.choice([1, 2])
        self.cluster_state.min_isrs.setdefault(topic_id, set()).add(least)
        await self._set(connection, name, MIN_ISR, str(least))

    async def _set_eligible_leaders(self, connection: ClientConnection, _name: str) -> None:
        """Enable or disable eligible leader replicas, in any state of the cluster."""
        level = int(self._draw.random() < 0.7)
        key = FeatureUpdateKey(feature=ELIGIBLE_LEADERS, max_version_level=level)
        if connection.version(ApiKey.UPDATE_FEATURES) == 0:
            key.allow_downgrade = not level
        elif not level:
            key.upgrade_type = UpgradeType.SAFE_DOWNGRADE
        message = UpdateFeaturesRequest(timeout_ms=3000, feature_updates=[key])
        response = await connection.call(ApiKey.UPDATE_FEATURES, message)
        code = ErrorCode(response.error_code)
        self.say(f"{ELIGIBLE_LEADERS} {level}: {code.name}")
        self.cluster_state.world.count("feature levels set", code is ErrorCode.NONE)

    async def _elect(self, connection: ClientConnection, name: str) -> None:
        is_unclean = self._draw.random() < self.cluster_state.settings.unclean
        partitions = range(self.cluster_state.topic_outcomes.created[name][1])
        if is_unclean and connection.version(ApiKey.ELECT_LEADERS) == 0:
            return
        if is_unclean:
            name = self._draw.choice(self._leaderless() or [name])
            partitions = range(self.cluster_state.topic_outcomes.created[name][1])
            self.cluster_state.cluster_history.unclean_asked.update(
                (name, index) for index in partitions
            )
        request = TopicPartitions(topic=name, partitions=list(partitions))
        message = ElectLeadersRequest(
            election_type=int(is_unclean), topic_partitions=[request], timeout_ms=3000
        )
        response = await connection.call(ApiKey.ELECT_LEADERS, message)
        for topic in response.replica_election_results:
            for row in topic.partition_result:
                code = ErrorCode(row.error_code)
                kind = "unclean" if is_unclean else "preferred"
                self.say(f"elects, {kind}, for {name}-{row.partition_id}: {code.name}")
                self.cluster_state.world.count(f"elected, {kind}", code is ErrorCode.NONE)

    def _leaderless(self) -> list[str]:
        image = self.cluster_state.cluster_history.image
        return [
            name
            for name in sorted(self.cluster_state.topic_outcomes.lasting)
            if (topic := image.topic(name)) and any(p.leader < 0 for p in topic.partitions)
        ]

    async def _delete_records(self, connection: ClientConnection, name: str) -> None:
        topic_id, partitions = self.cluster_state.topic_outcomes.created[name]
        index = self._draw.randrange(partitions)
        history = self.cluster_state.cluster_history.history(topic_id, index)
        end = max(history.committed, default=0)
        offset = self._draw.randint(0, end)
        asked = self.cluster_state.cluster_history.deletions
        asked[name, index] = max(asked.get((name, index), 0), offset)
        row = DeleteRecordsTopic(
            name=name, partitions=[DeleteRecordsPartition(partition_index=index, offset=offset)]
        )
        message = DeleteRecordsRequest(topics=[row], timeout_ms=2000)
        leader = self.leader_of(await self.metadata(connection, name), name, index)
        async with self.connected(self._runtime, leader) as at_leader:
            response = await at_leader.call(ApiKey.DELETE_RECORDS, message)
        code = ErrorCode(response.topics[0].partitions[0].error_code)
        self.say(f"deletes records of {name}-{index} before {offset}: {code.name}")
        self.cluster_state.world.count("records deleted", code is ErrorCode.NONE)


@dataclass(slots=True, eq=False)
class Batch:
    values: list[bytes]
    base_sequence: int
    timestamp_ms: int
    times_sent: int = 0
    contents: list[Content] = field(default_factory=list)  # empty if records have no keys


class SentBatch(NamedTuple):
    batch: Batch
    crc: int
    size: int
    at_s: float


class ReplicaProducer(ReplicaClient):
    """Producer with several batches in flight to one partition for a while, then to another."""

    def __init__(
        self,
        cluster_state: ReplicatedClusterState,
        name: str,
        draw: Random,
        *,
        is_idempotent: bool | None = None,
    ) -> None:
        """Draw the producer's settings; `is_idempotent`: drawn if None."""
        super().__init__(cluster_state, name, draw)
        drawn = draw.random() < 0.5
        self._idempotent = drawn if is_idempotent is None else is_idempotent
        self._acks = ALL if self._idempotent else draw.choice([ALL, ALL, 1, 0])
        self._retries = self._idempotent or draw.random() < 0.5
        if self._idempotent:
            versions = self._versions
            versions[ApiKey.PRODUCE] = max(versions[ApiKey.PRODUCE], TOPIC_IDS_SINCE)
        self._by_name = self._versions[ApiKey.PRODUCE] < TOPIC_IDS_SINCE
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[Place, int] = {}
        self._at: tuple[str, Place] | None = None
        self._queue: deque[Batch] = deque()
        self._left = cluster_state.settings.records
        self._written = 0
        self.timeout_ms = 3000  # request timeout for acks=all

    async def run(self, runtime: Runtime) -> None:
        while self._left > 0 or self._queue:
            if self.cluster_state.closing:
                break
            try:
                await self._work(runtime)
            except BROKEN as error:
                self.say(f"{self._where}: {error!r}, {len(self._queue)} open")
                if not self._retries:
                    self._queue.clear()
            await sleep(runtime.clock, RETRY_S * self._draw.random())
        self.done = True

    @property
    def _where(self) -> str:
        return "-" if self._at is None else f"{self._at[0]}/{self._at[1]}"

    async def _work(self, runtime: Runtime) -> None:
        """Produce to one partition for a while."""
        if not self._queue:
            self._at = self.place()
        if self._at is None:
            return
        name, place = self._at
        if self.is_over(name, place):
            self._give_up()
            if self.cluster_state.calm:  # perhaps no partition is left that accepts records
                self._left = 0
            return
        leader = await self.leader(runtime, name, place)
        async with self.connected(runtime, leader) as connection:
            if self._idempotent and self._producer_id < 0:
                await self._begin(connection)
            for _ in range(self._draw.randint(1, 5)):
                while self._left > 0 and len(self._queue) < self._draw.choice([1, 1, 2, 4]):
                    self._queue.append(self._next(runtime, place))
                await self._send_all(connection, name, place)
                await sleep(
                    runtime.clock, self._draw.random() * self.cluster_state.settings.think_s
                )

    def _give_up(self) -> None:
        """Drop unacknowledged batches; their sequence numbers cannot be used again."""
        if self._queue and self._idempotent:
            self._producer_id = -1
        self._queue.clear()

    async def _begin(self, connection: ClientConnection) -> None:
        message = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
        answer = await connection.call(ApiKey.INIT_PRODUCER_ID, message)
        if answer.error_code:
            raise EOFError(f"no producer id: {ErrorCode(answer.error_code).name}")
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        for batch in self._queue:
            batch.base_sequence = -1
        self.say(f"is producer {self._producer_id}")

    def _next(self, runtime: Runtime, place: Place) -> Batch:
        values = []
        for _ in range(min(self._left, self._draw.choice([1, 1, 3]))):
            self._written += 1
            self._left -= 1
            of = BY_NAME if self._by_name else place.topic_id.hex()
            text = f"{of} {self._where} {self.name} {self._written} "
            values.append(text.encode() + b"x" * self._draw.choice([0, 30, 300]))
        stays = self.cluster_state.checker(AcknowledgedStays)
        if self._idempotent:
            stays.idempotent.setdefault(place, set()).update(values)
        return Batch(values, -1, runtime.clock.now_ms())

    def _encoded(self, batch: Batch, place: Place) -> bytearray:
        if self._idempotent and batch.base_sequence < 0:
            batch.base_sequence = self._sequences.get(place, 0)
            self._sequences[place] = batch.base_sequence + len(batch.values)
        return encode_batch(
            self._records(batch),
            codec=self._codec(),
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=batch.base_sequence,
        )

    def _records(self, batch: Batch) -> list[Record]:
        return [
            Record(number, batch.timestamp_ms, None, value, ())
            for number, value in enumerate(batch.values)
        ]

    def _codec(self) -> Codec:
        return Codec.NONE

    def _identities(self, batch: Batch, crc: int) -> list[Identity]:
        """Return the identities by which checkers know the batch's records."""
        return [Identity(crc, number) for number in range(len(batch.values))]

    async def _send_all(self, connection: ClientConnection, name: str, place: Place) -> None:
        """Send all queued batches, and remove the acknowledged ones from the queue."""
        sent = await self._send_queued(connection, name, place)
        if self._acks == 0:
            self.cluster_state.world.count(
                "records sent with acks=0", sum(len(b.values) for b in self._queue)
            )
            self._queue.clear()
            return
        await self._answers(connection, place, sent)

    async def _send_queued(
        self, connection: ClientConnection, name: str, place: Place
    ) -> list[SentBatch]:
        sent: list[SentBatch] = []
        for batch in self._queue:
            data = self._encoded(batch, place)
            crc = parse_header(memoryview(data), 0).crc
            known_as = {identity.crc for identity in self._identities(batch, crc)}
            if self._by_name:
                self.cluster_state.checker(TopicsAreTheirOwn).by_name |= known_as
            self.cluster_state.world.count("batches sent again", batch.times_sent > 0)
            batch.times_sent += 1
            if self._idempotent:
                self.cluster_state.checker(DeliveredOnce).sent(place, self._producer_id, known_as)
            row = PartitionProduceData(index=place.partition, records=data)
            topic = TopicProduceData(name=name, topic_id=place.topic_id, partition_data=[row])
            message = ProduceRequest(
                transactional_id=None,
                acks=self._acks,
                timeout_ms=self.timeout_ms,
                topic_data=[topic],
            )
            sent.append(SentBatch(batch, crc, len(data), self.cluster_state.world.now))
            await connection.send(ApiKey.PRODUCE, message, answered=self._acks != 0)
        return sent

    async def _answers(
        self, connection: ClientConnection, place: Place, sent: Sequence[SentBatch]
    ) -> None:
        failed: ErrorCode | None = None
        for number, (batch, crc, size, asked_at) in enumerate(sent):
            response = await connection.receive()
            answer = response.responses[0].partition_responses[0]
            code = ErrorCode(answer.error_code)
            self.cluster_state.world.count(f"produce: {code.name}")
            self.throttled(ApiKey.PRODUCE, size, response.throttle_time_ms, asked_at)
            if self._acks == ALL and response.throttle_time_ms and code is ErrorCode.NONE:
                self.cluster_state.world.count("acknowledged with acks=all, and throttled")
            if failed is not None:
                continue  # after a failed batch, all are sent again in order
            if code is ErrorCode.NONE:
                assert self._queue.popleft() is batch
                self._acknowledged(place, batch, crc, int(answer.base_offset))
            else:
                failed = code
                self.say(f"{self._where}: {number} of {len(sent)}: {code.name}")
                if code not in RETRIABLE and code not in _LOST_TRACK:
                    # The error is final, and later batches may have been appended: this producer's
                    # sequences cannot be used again, for any content of the other responses.
                    break
        if failed is not None:
            self._refused(place, failed)

    def _acknowledged(self, place: Place, batch: Batch, crc: int, base_offset: int) -> None:
        count = len(batch.values)
        self.say(f"wrote {self._where} {base_offset}+{count} with acks={self._acks}")
        self.cluster_state.world.count(f"acknowledged with acks={self._acks}", count)
        if self._acks != ALL:
            return
        self.cluster_state.world.count("acknowledged records", count)
        if self._by_name:
            return  # the producer does not know which topic of that name has the record
        history = self.cluster_state.cluster_history.history(*place)
        stays = self.cluster_state.checker(AcknowledgedStays).acked.setdefault(place, {})
        identities = self._identities(batch, crc)
        for number, (value, identity) in enumerate(zip(batch.values, identities, strict=True)):
            offset = base_offset + number
            self.cluster_state.checker(AcknowledgedIsCommitted).acknowledged(
                history, offset, identity
            )
            self.cluster_state.checker(SyncedIsKept).acknowledged(history, offset, identity)
            stays[value] = offset, identity

    def _refused(self, place: Place, code: ErrorCode) -> None:
        if self._idempotent and code in _LOST_TRACK:
            history = self.cluster_state.cluster_history.history(*place)
            text = f"producer {self._producer_id}, sequence {self._queue[0].base_sequence}"
            checker = self.cluster_state.checker(DeliveredOnce)
            checker.lost_track(history, self._producer_id, f"{text}: {code.name}")
            self._give_up()
        elif not self._retries or code not in RETRIABLE:
            self._give_up()
        raise EOFError(code.name)


@dataclass(slots=True)
class Read:
    """Result of one fetch of one partition."""

    code: ErrorCode
    records: list[tuple[int, bytes]] = field(default_factory=list)  # offsets and texts
    next_offset: int = 0  # after the last batch, whose last records may be compacted away
    preferred_read_replica: int = -1
    times: list[tuple[int, int]] = field(default_factory=list)  # timestamps in ms, and offsets


class ReplicaReader(ReplicaClient):
    """Requests that all reading clients share."""

    async def list_offset(
        self,
        connection: ClientConnection,
        name: str,
        partition: int,
        timestamp: int,
        isolation_level: int = 0,
    ) -> int:
        """Return an offset by ListOffsets. Raises EOFError if the response has an error."""
        asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topic = ListOffsetsTopic(name=name, partitions=[asked])
        message = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[topic])
        answer = (await connection.call(ApiKey.LIST_OFFSETS, message)).topics[0].partitions[0]
        if answer.error_code:
            raise EOFError(ErrorCode(answer.error_code).name)
        return int(answer.offset)

    async def fetch(
        self,
        connection: ClientConnection,
        name: str,
        place: Place,
        offset: int,
        wait_ms: int,
        *,
        rack: str = "",
        leader_epoch: int = -1,
    ) -> Read:
        """Fetch one partition from `offset` on, and check the records.

        Return the records or the error OFFSET_OUT_OF_RANGE; with `rack` also other errors, and the
        preferred read replica. `leader_epoch` is the current leader epoch that the reader knows.
        Raises an error of `BROKEN` if the connection breaks or the response has another error.
        """
        row = FetchPartition(
            partition=place.partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            partition_max_bytes=self._draw.choice([1, 500, 1 << 20]),
        )
        topic = FetchTopic(topic=name, topic_id=place.topic_id, partitions=[row])
        message = FetchRequest(
            max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[topic], rack_id=rack
        )
        asked_at = self.cluster_state.world.now
        response = await connection.call(ApiKey.FETCH, message)
        rows = [row for topic in response.responses for row in topic.partitions]
        size_bytes = sum(len(row.records or b"") for row in rows)
        self.throttled(ApiKey.FETCH, size_bytes, response.throttle_time_ms, asked_at)
        if not rows and not response.error_code:
            return Read(ErrorCode.NONE, next_offset=offset)  # throttled: an empty response
        code = ErrorCode(response.error_code or response.responses[0].partitions[0].error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE or (rack and code is not ErrorCode.NONE):
            return Read(code)
        if code is not ErrorCode.NONE:
            raise EOFError(code.name)
        data = response.responses[0].partitions[0]
        buffer = memoryview(data.records or b"")
        cluster_history = self.cluster_state.cluster_history
        history = cluster_history.history(*place)
        for damaged in damaged_in(buffer):
            self.cluster_state.checker(DamageStaysWhereItIs).read_damaged(
                history, damaged, self.name
            )
            raise EOFError(f"the batch at {damaged} is damaged")
        found = seen_entries(cluster_history, buffer)
        entries = [entry for entry in found if entry.name.offset >= offset]
        if connection.version(ApiKey.FETCH) >= TOPIC_IDS_SINCE:
            checker = self.cluster_state.checker(ReadsAreCommitted)
            checker.read(history, int(data.high_watermark), entries, self.name)
        read = Read(code, next_offset=offset, preferred_read_replica=data.preferred_read_replica)
        for position, header in batches(buffer):
            read.next_offset = max(offset, header.next_offset)
            for record in decode_records(buffer, position):
                if record.offset >= offset:
                    if not header.is_control:
                        read.records.append((record.offset, contents_of(record).text))
                    read.times.append((record.timestamp_ms, record.offset))
        self.cluster_state.world.count("records read", len(read.records))
        return read


class WanderingReader(ReplicaReader):
    """Reader of one partition for a while, then another; it keeps its positions."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        self._offsets: dict[Place, int] = {}

    def _next_place(self) -> tuple[str, Place] | None:
        return self.place()

    async def _follow(self, runtime: Runtime, name: str, place: Place) -> None:
        """Read the partition for a while. Raises an error of `BROKEN`."""
        raise NotImplementedError

    async def run(self, runtime: Runtime) -> None:
        while not self.cluster_state.closing and not self.cluster_state.calm:
            at = self._next_place()
            if at is not None:
                try:
                    await self._follow(runtime, *at)
                except BROKEN as error:
                    self.say(f"{at[0]}/{at[1]}: {error!r}")
            await sleep(runtime.clock, RETRY_S)
        self.done = True


class ReplicaConsumer(WanderingReader):
    """Consumer at leaders, without read_committed."""

    async def _follow(self, runtime: Runtime, name: str, place: Place) -> None:
        leader = await self.leader(runtime, name, place)
        async with self.connected(runtime, leader) as connection:
            for _ in range(self._draw.randint(1, 10)):
                if self.cluster_state.calm or self.is_over(name, place):
                    return
                if self._draw.random() < 0.1:
                    self._offsets[place] = 0
                offset = self._offsets.get(place, 0)
                wait_ms = self._draw.choice([0, 20, 200])
                read = await self.fetch(connection, name, place, offset, wait_ms)
                if read.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    first = self._draw.choice([EARLIEST, LATEST])
                    offset = await self.list_offset(connection, name, place.partition, first)
                else:
                    offset = read.next_offset
                self._offsets[place] = offset
                if wait_ms == 0:
                    await sleep(runtime.clock, self._draw.random() * 0.05)


class ReplicaInspector(ReplicaReader):
    """Client that reads all partitions of all existing topics from log start to log end."""

    def __init__(self, cluster_state: ReplicatedClusterState, draw: Random) -> None:
        super().__init__(cluster_state, "inspector", draw)
        versions = self._versions
        versions[ApiKey.FETCH] = max(versions[ApiKey.FETCH], TOPIC_IDS_SINCE)
        self.found: dict[Place, list[tuple[int, bytes]]] = {}

    async def run(self, runtime: Runtime) -> None:
        for name, (topic_id, partitions) in self.cluster_state.topic_outcomes.lasting.items():
            for partition in range(partitions):
                place = Place(topic_id, partition)
                while place not in self.found and not self.cluster_state.world.violations:
                    if self.cluster_state.is_lost(
                        self.cluster_state.cluster_history.history(*place)
                    ):
                        break
                    try:
                        self.found[place] = await self._read(runtime, name, place)
                    except BROKEN as error:
                        self.say(f"{name}-{partition}: {error!r}")
                        if NOT_KNOWN in error.args and self.is_over(name, place):
                            break
                        if self._cannot_commit(place):
                            break
                        await sleep(runtime.clock, RETRY_S)

    def _cannot_commit(self, place: Place) -> bool:
        """Return whether offline replicas keep the partition below its min.insync.replicas.

        Its leader then cannot commit its first offsets, and returns no log end offset (KIP-207).
        """
        topic = self.cluster_state.cluster_history.image.topic_by_id(place.topic_id)
        if topic is None:
            return False
        state = topic.partitions[place.partition]
        least = max(self.cluster_state.min_isrs.get(place.topic_id, {1}))
        return bool(state.offline) and len({*state.replicas}.difference(state.offline)) < least

    async def _read(self, runtime: Runtime, name: str, place: Place) -> list[tuple[int, bytes]]:
        leader = await self.leader(runtime, name, place)
        async with self.connected(runtime, leader) as connection:
            offset = await self.list_offset(connection, name, place.partition, EARLIEST)
            end = await self.list_offset(connection, name, place.partition, LATEST)
            records: list[tuple[int, bytes]] = []
            times: list[tuple[int, int]] = []
            start = offset
            while offset < end:
                read = await self.fetch(connection, name, place, offset, 0)
                if read.next_offset <= offset:
                    raise EOFError(f"nothing at {offset}, before {end}")
                records += read.records
                times += read.times
                offset = read.next_offset
            await self._look_up(connection, name, place, start, times)
            return records

    async def _look_up(
        self,
        connection: ClientConnection,
        name: str,
        place: Place,
        start: int,
        times: list[tuple[int, int]],
    ) -> None:
        """Look up some timestamps and check the offsets, unless the log start moved meanwhile."""
        history = self.cluster_state.cluster_history.history(*place)
        if history.compacts:
            return
        draw = self.cluster_state.world.stream(f"lookups {history}")
        asked = [timestamp for timestamp, _ in draw.sample(times, min(len(times), LOOKUPS))]
        found = [
            await self.list_offset(connection, name, place.partition, timestamp)
            for timestamp in asked
        ]
        if await self.list_offset(connection, name, place.partition, EARLIEST) == start:
            for timestamp, offset in zip(asked, found, strict=True):
                self.cluster_state.checker(TimesAreFound).looked_up(
                    history, timestamp, offset, times
                )
