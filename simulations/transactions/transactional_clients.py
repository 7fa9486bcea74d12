"""Requests that all transactional clients share: one instance of a client at a time.

    InitProducerId -> begin -> AddPartitionsToTxn, Produce, TxnOffsetCommit ... -> EndTxn -> begin
          ^                                                                          |
          +------ fenced, out of sequence, or a new instance after a crash ----------+

An instance ends by a crash between any two steps, before a request is sent or before its answer is
read. It knows the answers that it has read, and nothing of earlier instances. At level 2 of
transaction.version (KIP-890) partitions are added by Produce and TxnOffsetCommit themselves, and
each end of a transaction begins another producer epoch.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_checkers import AnswersInTheirOrder
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.harness.client import BROKEN, ClientConnection, connect
from metaquorum.simulations.replication.replica_checkers import (
    AcknowledgedIsCommitted,
    AcknowledgedStays,
    SyncedIsKept,
)
from metaquorum.simulations.replication.replica_clients import TOPIC_IDS_SINCE
from metaquorum.simulations.replication.replicas import Content, Place
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.transactions.stable_reads import StableReader
from metaquorum.simulations.transactions.transaction_checkers import (
    CommittedIsShown,
    EpochsAreGivenOnce,
    ZombiesAreRefused,
)
from metaquorum.simulations.transactions.transaction_history import (
    Outcome,
    Producer,
    Transaction,
    TransactionHistory,
)
from metaquorum.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from metaquorum.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from metaquorum.wire.messages.api_versions import ApiVersionsRequest
from metaquorum.wire.messages.end_txn import EndTxnRequest
from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from metaquorum.wire.primitives.errors import RETRIABLE, ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.records import Record, encode_batch
from metaquorum.wire.schema.message import Message

TRANSACTION_VERSION: Final = "transaction.version"
BUMPS: Final = 2  # level at which each transaction has its own producer epoch
OF_GROUPS: Final = 0  # key type of FindCoordinator
OF_TRANSACTIONS: Final = 1
_BATCHED_FIND_SINCE: Final = 4
_EPOCHS_SINCE: Final = 3  # version of InitProducerId with the last producer (KIP-360)
_MEMBERS_SINCE: Final = 3  # version of TxnOffsetCommit with a generation (KIP-447)
_FEATURES_SINCE: Final = 3  # version of ApiVersions
# Newest versions of the classic protocol.
_CLASSIC: Final[Mapping[ApiKey, int]] = {
    ApiKey.PRODUCE: 11,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.TXN_OFFSET_COMMIT: 4,
    ApiKey.END_TXN: 4,
}
_BUMPING: Final[Mapping[ApiKey, int]] = {
    ApiKey.PRODUCE: TOPIC_IDS_SINCE,
    ApiKey.TXN_OFFSET_COMMIT: 5,
    ApiKey.END_TXN: 5,
}
# Requests with a producer epoch, which a newer one fences.
_OF_PRODUCERS: Final = (
    ApiKey.PRODUCE,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)
_FENCED: Final = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_TXN_STATE,
)
_ELSEWHERE: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_AGAIN: Final = (*RETRIABLE, ErrorCode.UNSTABLE_OFFSET_COMMIT)


class RefusedError(Exception):
    """Raised if a request is refused with a final error: the transaction cannot continue."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code

    @property
    def is_fatal(self) -> bool:
        """Whether the producer needs a new id or epoch."""
        return self.code in _FENCED


class CrashError(Exception):
    """Raised at the step at which an instance crashes, and at the end of the world."""


class TransactionalClient(StableReader):
    """One process after another with the same transactional id."""

    def __init__(
        self,
        cluster_state: ReplicatedClusterState,
        name: str,
        draw: Random,
        transactional_id: str,
        timeout_ms: int,
    ) -> None:
        super().__init__(cluster_state, name, draw)
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._drawn = dict(self._versions)
        versions = self._versions
        find = ApiKey.FIND_COORDINATOR
        versions[find] = max(versions[find], 1)
        features = ApiKey.API_VERSIONS
        versions[features] = max(versions[features], _FEATURES_SINCE)
        self._links: dict[int, ClientConnection] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._leaders: dict[Place, int] = {}
        self._instances = 0
        self._steps_left = -1  # requests until a crash; -1: none
        self._level = 0
        self._reported_level = 0
        # Whether the next level is learned during a transaction, for the next one.
        self.learns_early = False
        self._producer = Producer(-1, -1)
        self._sequences: dict[Place, int] = {}
        self._written = 0
        self._asked_at = 0.0  # time of the last request to a coordinator

    # Shared state

    @property
    def history(self) -> TransactionHistory:
        return self.cluster_state.checker(CommittedIsShown).history

    @property
    def instance(self) -> str:
        return f"{self.name}/{self._instances}"

    def _new_instance(self, steps: int) -> None:
        """Forget everything, as a new process; it crashes after `steps` requests, if not -1."""
        self.close_links()
        self._instances += 1
        self._steps_left = steps
        self._producer = Producer(-1, -1)
        self._sequences = {}

    def _step(self) -> None:
        """Count one step of the instance. Raises CrashError at the last one."""
        if self.cluster_state.closing or self._is_stuck():
            raise CrashError("the world ends")
        if self._steps_left >= 0:
            self._steps_left -= 1
            if self._steps_left < 0 and not self.cluster_state.calm:
                self.cluster_state.world.count("clients crashed")
                raise CrashError("crashed")

    def _is_stuck(self) -> bool:
        """Return whether some partition cannot be written any longer: transactions may not end."""
        state = self.cluster_state
        return state.calm and any(
            state.is_stuck(state.cluster_history.history(topic.topic_id, index))
            for topic in state.cluster_history.image.topics.values()
            for index in range(len(topic.partitions))
        )

    def _is_state_lost(self) -> bool:
        return (
            self.cluster_state.calm and self.cluster_state.checker(CommittedIsShown).has_lost_state
        )

    # Connections

    async def _link(self, runtime: Runtime, worker_id: int) -> ClientConnection:
        """Return the connection of this instance to the worker. Raises an error of `BROKEN`."""
        known = {worker.config.node_id: worker for worker in self.cluster_state.workers}
        if worker_id not in known:
            raise EOFError(f"no worker {worker_id}")
        link = self._links.get(worker_id)
        if link is None:
            address = known[worker_id].name, known[worker_id].config.listen[1]
            order = self.cluster_state.checker(AnswersInTheirOrder)
            link = await connect(runtime, address, self.name, dict(self._versions), order)
            self._links[worker_id] = link
        for api, version in self._versions.items():
            link.use_version(api, version)
        return link

    def _drop(self, worker_id: int) -> None:
        link = self._links.pop(worker_id, None)
        if link is not None:
            link.close()

    def close_links(self) -> None:
        for worker_id in list(self._links):
            self._drop(worker_id)

    async def _ask(self, runtime: Runtime, worker_id: int, api: ApiKey, message: Message) -> Any:
        """Send one request. Raises an error of `BROKEN` if no answer comes, or CrashError."""
        self._step()
        try:
            link = await self._link(runtime, worker_id)
            await link.send(api, message)
            self._step()
            return await link.receive()
        except BROKEN:
            self._drop(worker_id)
            raise

    async def _any_worker(self) -> int:
        return self._draw.choice([worker.config.node_id for worker in self.cluster_state.workers])

    async def _coordinator(self, runtime: Runtime, key_type: int, key: str) -> int:
        """Return the coordinator's worker id. Raises an error of `BROKEN` if there is none."""
        known = self._coordinators.get((key_type, key))
        if known is not None:
            return known
        is_batched = self._versions[ApiKey.FIND_COORDINATOR] >= _BATCHED_FIND_SINCE
        message = FindCoordinatorRequest(
            key="" if is_batched else key,
            key_type=key_type,
            coordinator_keys=[key] if is_batched else [],
        )
        response = await self._ask(
            runtime, await self._any_worker(), ApiKey.FIND_COORDINATOR, message
        )
        found = response.coordinators[0] if is_batched else response
        if found.error_code:
            raise EOFError(f"no coordinator: {ErrorCode(found.error_code).name}")
        self._coordinators[key_type, key] = int(found.node_id)
        return int(found.node_id)

    async def _at_coordinator(
        self,
        runtime: Runtime,
        api: ApiKey,
        message: Message,
        codes_of: Callable[[Any], list[int]],
        *,
        key_type: int = OF_TRANSACTIONS,
        key: str | None = None,
    ) -> tuple[ErrorCode, Any]:
        """Ask the coordinator until it answers without a retriable error; return the answer."""
        key = self.transactional_id if key is None else key
        producer, world = self._producer, self.cluster_state.world
        while True:
            asked_at = world.now
            worker_id = -1
            try:
                worker_id = await self._coordinator(runtime, key_type, key)
                asked_at = self._asked_at = world.now
                response = await self._ask(runtime, worker_id, api, message)
            except BROKEN as error:
                self.say(f"{api.name}: {error!r}")
                self._coordinators.pop((key_type, key), None)
                await sleep(runtime.clock, RETRY_S * (1 + self._draw.random()))
                continue
            codes = [ErrorCode(code) for code in codes_of(response)]
            code = next((each for each in codes if each is not ErrorCode.NONE), ErrorCode.NONE)
            world.count(f"{api.name}: {code.name}")
            self.say(f"{api.name} at {worker_id}: {code.name}")
            self._judge(api, producer, asked_at, code, message)
            if code not in _AGAIN:
                return code, response
            if code in _ELSEWHERE:
                self._coordinators.pop((key_type, key), None)
            if code is ErrorCode.UNSTABLE_OFFSET_COMMIT and self._is_state_lost():
                self.done = True
                raise CrashError("no coordinator will end the transaction of these offsets")
            await sleep(runtime.clock, RETRY_S * self._draw.random())

    async def ask_group(
        self,
        runtime: Runtime,
        api: ApiKey,
        message: Message,
        codes_of: Callable[[Any], list[int]],
        group_id: str,
    ) -> tuple[ErrorCode, Any, float]:
        """Ask the coordinator of a group; return error, answer, and when the last one was asked."""
        code, response = await self._at_coordinator(
            runtime, api, message, codes_of, key_type=OF_GROUPS, key=group_id
        )
        return code, response, self._asked_at

    def version(self, api: ApiKey) -> int:
        return self._versions[api]

    def _judge(
        self, api: ApiKey, producer: Producer, asked_at: float, code: ErrorCode, message: Message
    ) -> None:
        """Check an answer to a request with the epoch of this instance."""
        if api not in _OF_PRODUCERS:
            return
        if isinstance(message, EndTxnRequest):
            # The last end of a transaction may be asked for again (KIP-890).
            producer = producer._replace(epoch=producer.epoch + 1)
        checker = self.cluster_state.checker(ZombiesAreRefused)
        by_leader = api is ApiKey.PRODUCE
        what = f"{self.instance}: {api.name}"
        checker.answered(what, producer, asked_at, code, by_leader=by_leader)

    # The producer

    async def init_producer(self, runtime: Runtime) -> None:
        """Ask for a producer id and epoch. Raises RefusedError, or CrashError."""
        known = self._producer if self._draw.random() < 0.5 else Producer(-1, -1)
        if self._versions[ApiKey.INIT_PRODUCER_ID] < _EPOCHS_SINCE:
            known = Producer(-1, -1)
        message = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
        )
        asked_at = self.cluster_state.world.now
        code, response = await self._at_coordinator(
            runtime, ApiKey.INIT_PRODUCER_ID, message, lambda r: [r.error_code]
        )
        if code is not ErrorCode.NONE:
            self._producer = Producer(-1, -1)
            raise RefusedError(code)
        self._becomes(Producer(int(response.producer_id), int(response.producer_epoch)), asked_at)

    def _becomes(self, producer: Producer, asked_at: float, *, by_init: bool = True) -> None:
        self.cluster_state.checker(EpochsAreGivenOnce).given(self.instance, producer, asked_at)
        self.cluster_state.checker(ZombiesAreRefused).acknowledged(producer, by_init=by_init)
        if producer != self._producer:
            self._sequences = {}
        self._producer = producer
        self.say(f"is producer {tuple(producer)}")

    async def learn_level(self, runtime: Runtime) -> None:
        """Learn the level of transaction.version, and use its protocol from now on."""
        await self.ask_level(runtime)
        self._use_level()

    async def ask_level(self, runtime: Runtime) -> None:
        """Ask a worker for the level of transaction.version."""
        message = ApiVersionsRequest(client_software_name="sim", client_software_version="1")
        try:
            response = await self._ask(
                runtime, await self._any_worker(), ApiKey.API_VERSIONS, message
            )
        except BROKEN:
            response = None
        if response is not None:
            levels = {row.name: row.max_version_level for row in response.finalized_features}
            self._reported_level = int(levels.get(TRANSACTION_VERSION, 0))

    def _use_level(self) -> None:
        """Use the protocol of the level that was reported last."""
        self._level = self._reported_level
        for api in (*_CLASSIC, *_BUMPING):
            drawn = self._drawn.get(api, 0)
            if self._level >= BUMPS and api in _BUMPING:
                drawn = max(drawn, _BUMPING[api])
            elif api in _CLASSIC:
                drawn = min(drawn, _CLASSIC[api])
            if api is ApiKey.TXN_OFFSET_COMMIT:
                drawn = max(drawn, _MEMBERS_SINCE)
            self._versions[api] = drawn

    async def begin(self, runtime: Runtime) -> Transaction:
        if self.learns_early:
            self._use_level()
        elif self._draw.random() < 0.5:
            await self.learn_level(runtime)
        world = self.cluster_state.world
        world.count(f"transactions at level {self._level}")
        begun = self.history.begin(
            self.transactional_id,
            self.instance,
            self._producer,
            self._level,
            self._timeout_ms / 1000,
            world.now,
        )
        self.say(f"begins {begun}")
        return begun

    def new_values(self, transaction: Transaction, place: Place, count: int) -> list[bytes]:
        """Return unique values for records of the transaction in a partition."""
        values: list[bytes] = []
        for _ in range(count):
            self._written += 1
            text = f"{place.topic_id.hex()} {self.name} {self._written} in {transaction.number} "
            values.append(text.encode() + b"x" * self._draw.choice([0, 0, 30, 200]))
        return values

    async def add_partition(self, runtime: Runtime, name: str, place: Place) -> None:
        """Add a partition to the transaction (classic protocol). Raises RefusedError."""
        topic = AddPartitionsToTxnTopic(name=name, partitions=[place.partition])
        message = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._producer.producer_id,
            v3_and_below_producer_epoch=self._producer.epoch,
            v3_and_below_topics=[topic],
        )
        code, _ = await self._at_coordinator(
            runtime,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            message,
            lambda r: [
                row.partition_error_code
                for topic in r.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            ],
        )
        if code is not ErrorCode.NONE:
            raise RefusedError(code)

    async def produce(
        self,
        runtime: Runtime,
        transaction: Transaction,
        name: str,
        place: Place,
        values: list[bytes],
        keys: list[bytes | None],
    ) -> None:
        """Append one batch to a partition of the transaction; return once it is acknowledged.

        Raises RefusedError, or CrashError.
        """
        is_new = place not in transaction.sent
        if transaction.level < BUMPS and is_new:
            await self.add_partition(runtime, name, place)
        self.history.sends(transaction, place, values)
        stays = self.cluster_state.checker(AcknowledgedStays)
        stays.idempotent.setdefault(place, set()).update(values)
        data = self._batch(runtime, values, keys, self._producer, self._sequences.get(place, 0))
        first_offset = await self._send(runtime, name, place, data, self._producer)
        self._sequences[place] = self._sequences.get(place, 0) + len(values)
        self._acknowledged(transaction, place, values, keys, first_offset)

    def _batch(
        self,
        runtime: Runtime,
        values: list[bytes],
        keys: list[bytes | None],
        producer: Producer,
        sequence: int,
    ) -> bytes:
        now_ms = runtime.clock.now_ms()
        records = [
            Record(number, now_ms, key, value, ())
            for number, (key, value) in enumerate(zip(keys, values, strict=True))
        ]
        return bytes(
            encode_batch(
                records,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=sequence,
                transactional=True,
            )
        )

    async def _send(
        self, runtime: Runtime, name: str, place: Place, data: bytes, producer: Producer
    ) -> int:
        """Send a batch until it is acknowledged; return its offset. Raises RefusedError."""
        while True:
            if self.is_over(name, place):
                raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            try:
                code, offset = await self.send_once(runtime, name, place, data, producer)
            except BROKEN as error:
                self.say(f"produce to {name}/{place}: {error!r}")
                self._leaders.pop(place, None)
                await sleep(runtime.clock, RETRY_S * (1 + self._draw.random()))
                continue
            if code is ErrorCode.NONE:
                return offset
            if code not in RETRIABLE:
                raise RefusedError(code)
            self._leaders.pop(place, None)
            await sleep(runtime.clock, RETRY_S * self._draw.random())

    async def send_once(
        self, runtime: Runtime, name: str, place: Place, data: bytes, producer: Producer
    ) -> tuple[ErrorCode, int]:
        """Send a batch once; return the error and the offset. Raises an error of `BROKEN`."""
        leader = self._leaders.get(place)
        if leader is None:
            self._step()
            leader = self._leaders[place] = await self.leader(runtime, name, place)
        row = PartitionProduceData(index=place.partition, records=bytearray(data))
        topic = TopicProduceData(name=name, topic_id=place.topic_id, partition_data=[row])
        message = ProduceRequest(
            transactional_id=self.transactional_id, acks=-1, timeout_ms=2000, topic_data=[topic]
        )
        asked_at, world = self.cluster_state.world.now, self.cluster_state.world
        response = await self._ask(runtime, leader, ApiKey.PRODUCE, message)
        answer = response.responses[0].partition_responses[0]
        code = ErrorCode(answer.error_code)
        world.count(f"produce: {code.name}")
        self.say(f"produce to {name}/{place} at {leader}: {code.name} {answer.base_offset}")
        self._judge(ApiKey.PRODUCE, producer, asked_at, code, message)
        return code, int(answer.base_offset)

    def _acknowledged(
        self,
        transaction: Transaction,
        place: Place,
        values: list[bytes],
        keys: list[bytes | None],
        first_offset: int,
    ) -> None:
        state = self.cluster_state
        history = state.cluster_history.history(*place)
        stays = state.checker(AcknowledgedStays).acked.setdefault(place, {})
        state.world.count("acknowledged records", len(values))
        for number, (key, value) in enumerate(zip(keys, values, strict=True)):
            offset = first_offset + number
            identity = Content(key, value, is_tombstone=False).identity
            transaction.sent[place][value] = offset
            state.checker(AcknowledgedIsCommitted).acknowledged(history, offset, identity)
            state.checker(SyncedIsKept).acknowledged(history, offset, identity)
            stays[value] = offset, identity

    async def end(self, runtime: Runtime, transaction: Transaction, *, commits: bool) -> None:
        """Commit or abort. Raises RefusedError if the outcome is another one, or not known."""
        world = self.cluster_state.world
        if commits:
            transaction.commit_asked_at = world.now
        else:
            transaction.abort_asked_at = world.now
        self.say(f"asks to {'commit' if commits else 'abort'} {transaction.number}")
        message = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._producer.producer_id,
            producer_epoch=self._producer.epoch,
            committed=commits,
        )
        asked_at = world.now
        code, response = await self._at_coordinator(
            runtime, ApiKey.END_TXN, message, lambda r: [r.error_code]
        )
        if code is not ErrorCode.NONE:
            raise RefusedError(code)
        transaction.outcome = Outcome.COMMITTED if commits else Outcome.ABORTED
        transaction.ended_at = world.now
        world.count(f"transactions {transaction.outcome.value}, acknowledged")
        if transaction.level >= BUMPS and response.producer_id >= 0:
            producer = Producer(int(response.producer_id), int(response.producer_epoch))
            self._becomes(producer, asked_at, by_init=False)

    # Offsets of a group

    async def commit_offsets(
        self,
        runtime: Runtime,
        transaction: Transaction,
        group_id: str,
        offsets: Mapping[tuple[str, Place], int],
        *,
        generation: int = -1,
        member_id: str = "",
    ) -> None:
        """Commit offsets of a group within the transaction. Raises RefusedError."""
        if transaction.level < BUMPS:
            message: Message = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self._producer.producer_id,
                producer_epoch=self._producer.epoch,
                group_id=group_id,
            )
            code, _ = await self._at_coordinator(
                runtime, ApiKey.ADD_OFFSETS_TO_TXN, message, lambda r: [r.error_code]
            )
            if code is not ErrorCode.NONE:
                raise RefusedError(code)
        topics = [
            TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=place.partition,
                        committed_offset=offset,
                        committed_metadata=f"{transaction.number}",
                    )
                ],
            )
            for (name, place), offset in offsets.items()
        ]
        for (_, place), offset in offsets.items():
            self.history.commits_offset(transaction, group_id, place, offset)
        message = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self._producer.producer_id,
            producer_epoch=self._producer.epoch,
            generation_id=generation,
            member_id=member_id,
            topics=topics,
        )
        code, _ = await self._at_coordinator(
            runtime,
            ApiKey.TXN_OFFSET_COMMIT,
            message,
            lambda r: [row.error_code for topic in r.topics for row in topic.partitions],
            key_type=OF_GROUPS,
            key=group_id,
        )
        if code is not ErrorCode.NONE:
            raise RefusedError(code)
