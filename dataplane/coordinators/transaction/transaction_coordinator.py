"""The transactional ids of one worker: the runtime of `__transaction_state`, markers and time.

    transactional id -> partition of `__transaction_state` -> shard, if this worker leads it

An operation takes a new producer id only if the shard answers that it needs one, and
is then repeated: the state may have changed meanwhile. Background tasks abort transactions that
have been open for too long, and remove ids that no client uses any longer.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Protocol

import trio

from metaquorum.dataplane.coordinators.asked import Asked
from metaquorum.dataplane.coordinators.background_writes import BackgroundWrites
from metaquorum.dataplane.coordinators.budget_log import BudgetLog
from metaquorum.dataplane.coordinators.client_budget import UNKNOWN
from metaquorum.dataplane.coordinators.partitioning import REMEMBERED_CHARACTERS, partition_of
from metaquorum.dataplane.coordinators.runtime import CoordinatorRuntime, Partitions, RuntimeParts
from metaquorum.dataplane.coordinators.shard import Write
from metaquorum.dataplane.coordinators.transaction.configs import TransactionConfigs
from metaquorum.dataplane.coordinators.transaction.id_patterns import IdPattern, PatternError
from metaquorum.dataplane.coordinators.transaction.marker_sender import MarkerSender, WritesMarkers
from metaquorum.dataplane.coordinators.transaction.open_places import OpenPlaces, PlacesOf
from metaquorum.dataplane.coordinators.transaction.transaction import (
    BY_NAME,
    Place,
    State,
    Transaction,
)
from metaquorum.dataplane.coordinators.transaction.transaction_shard import (
    Expected,
    Outcome,
    TransactionShard,
    is_too_long,
)
from metaquorum.dataplane.coordinators.transaction.transaction_statistics import (
    TransactionStatistics,
)
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication.worker_client import WorkerClient
from metaquorum.dataplane.scheduling.time_slices import pause, pieces
from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.metadata.internal_topics import TRANSACTION_STATE
from metaquorum.metadata.records import METADATA_VERSION, TRANSACTION_VERSION
from metaquorum.quorum.controller.features import TRANSACTIONS_LEVEL, check_level
from metaquorum.runtime.interfaces import sleep
from metaquorum.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from metaquorum.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

# Seconds until the record of a change must be committed.
COMMIT_S: Final = 30.0
# Transactions, topics and partitions in a request of a worker: up to three rows for each of the
# partitions that `TransactionVerifier` sends.
MAX_ROWS: Final = 6_000
# Transactions of one partition that a background task ends, or ids that it removes, at a time.
ABORTED_AT_ONCE: Final = 100
REMOVED_AT_ONCE: Final = 100
# Transactional ids whose partitions are remembered, because every request asks for one.
MAX_REMEMBERED: Final = 10_000


class CoordinatorParts(RuntimeParts, Protocol):
    """Parts of the worker that the coordinator uses."""

    @property
    def worker_id(self) -> int: ...

    @property
    def image(self) -> MetadataImage:
        """Metadata image that all parts of this worker have applied."""


class AllPartitions(Partitions, Protocol):
    """The partitions of the worker, of all topics."""

    def __iter__(self) -> Iterator[Partition]: ...


class TransactionCoordinator:
    """Coordinator of the ids whose partition this worker leads; a publisher of the loader."""

    def __init__(
        self,
        parts: CoordinatorParts,
        partitions: AllPartitions,
        configs: TransactionConfigs,
        client: WorkerClient,
        marker_writer: WritesMarkers,
        take_producer_id: Callable[[], Awaitable[int]],
    ) -> None:
        self.configs = configs
        self.budget = BudgetLog(parts.clock.monotonic).budget(
            "transaction.memory.max.bytes", lambda: configs.memory_bytes
        )
        self.statistics = TransactionStatistics()
        self._parts = parts
        self._partitions = partitions
        self._client = client
        # Partitions of transactional ids, with the image that they were looked up in.
        self._image: MetadataImage | None = None
        self._indexes: dict[str, int] = {}
        self._take_producer_id = take_producer_id
        self._open_places = OpenPlaces(partitions, parts.slicer)
        self.markers = MarkerSender(
            parts, client, marker_writer, self._complete, self.statistics.marker_times
        )
        self.runtime = CoordinatorRuntime(
            TRANSACTION_STATE,
            parts,
            partitions,
            self._make_shard,
            load_bytes=configs.load_bytes,
            time_limit_s=lambda: COMMIT_S,
            on_loaded=self._loaded,
        )

    def _make_shard(self, index: int) -> TransactionShard:
        epochs = [
            each.leader_epoch
            for each in self._partitions.of_topic(TRANSACTION_STATE)
            if each.index == index
        ]
        return TransactionShard(
            index,
            epochs[0],
            self.budget,
            self._transaction_version,
            self.markers.send,
            self.statistics,
            self._find_open,
        )

    def _find_open(self, shard: TransactionShard) -> None:
        """Search for open transactions in the partitions of this worker, for the shard."""

        def found(places: PlacesOf) -> None:
            if self._is_active(shard):
                self.runtime.call(
                    shard.index, lambda each: each.found_open(places), _nothing, _nothing
                )

        self._open_places.ask(found)

    def _transaction_version(self) -> int:
        return self._parts.image.features.get(TRANSACTION_VERSION, 0)

    def _loaded(self, shard: TransactionShard) -> None:
        self.statistics.load_times.record(self.runtime.load_s, self._parts.clock.monotonic())
        if shard.doubtful_count:
            log.warning(
                "%s-%d may have lost the end of its log: %d transactional ids get new producer ids"
                " when their clients continue, and what they left open is aborted",
                TRANSACTION_STATE,
                shard.index,
                shard.doubtful_count,
            )
        if shard.unreadable_count:
            log.warning(
                "skipped %d malformed records of %s-%d; the first: %s",
                shard.unreadable_count,
                TRANSACTION_STATE,
                shard.index,
                shard.first_problem,
            )

    def partition_of(self, transactional_id: str) -> int:
        """Return the partition of a transactional id.

        Raises KafkaError: INVALID_REQUEST, UNSUPPORTED_VERSION if the cluster's metadata.version is
        too low, COORDINATOR_NOT_AVAILABLE before the topic exists.
        """
        image = self._parts.image
        if image is not self._image:
            self._image, self._indexes = image, {}
        index = self._indexes.get(transactional_id)
        if index is None:
            index = self._find_partition(transactional_id, image)
            if len(transactional_id) <= REMEMBERED_CHARACTERS:
                if len(self._indexes) == MAX_REMEMBERED:
                    self._indexes.clear()
                self._indexes[transactional_id] = index
        return index

    def _find_partition(self, transactional_id: str, image: MetadataImage) -> int:
        if not transactional_id or is_too_long(transactional_id):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty or too long")
        check_level(image, METADATA_VERSION, TRANSACTIONS_LEVEL, "a transaction")
        topic = image.topic(TRANSACTION_STATE)
        if topic is None:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{TRANSACTION_STATE} does not exist yet"
            )
        return partition_of(transactional_id, len(topic.partitions))

    def shard(self, transactional_id: str) -> TransactionShard:
        """Return the shard of an id. Raises KafkaError unless this worker coordinates it."""
        return self.runtime.shard(self.partition_of(transactional_id))

    @property
    def shards(self) -> Mapping[int, TransactionShard]:
        """Active shards, by partition."""
        return self.runtime.active

    def _begin(
        self,
        index: int,
        operation: Callable[[TransactionShard, int | None], Outcome | Write[Outcome]],
        new_id: int | None = None,
    ) -> Outcome | ErrorCode | Asked[Outcome]:
        """Run the operation, whose answer may have to wait for its commit."""
        try:
            outcome = operation(self.runtime.shard(index), new_id)
        except KafkaError as error:
            return error.code
        if isinstance(outcome, Write):
            return self.runtime.commit(index, outcome, self._parts.clock.now_ms())
        return outcome

    async def _with_id(
        self,
        index: int,
        operation: Callable[[TransactionShard, int | None], Outcome | Write[Outcome]],
        begun: Outcome | ErrorCode | Asked[Outcome] | None = None,
    ) -> Outcome:
        """Run an operation that may need a new producer id; `begun`: its first attempt."""
        found = self._begin(index, operation) if begun is None else begun
        while True:
            if isinstance(found, Asked):
                found = await found.wait()
            if not isinstance(found, Outcome):
                return Outcome(found)
            if not found.needs_id:
                return found
            try:
                new_id = await self._take_producer_id()
            except KafkaError as error:
                # The only retriable error that all clients retry.
                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error.retriable else error.code
                return Outcome(code)
            found = self._begin(index, operation, new_id)

    # Operations

    async def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Expected | None,
        client: str = UNKNOWN,
    ) -> Outcome:
        """Return a producer id and an epoch that fence all earlier instances of the client.

        `client` is its name in the budget.
        """
        index = self._index_of(transactional_id)
        if isinstance(index, ErrorCode):
            return Outcome(index)
        if not 0 < timeout_ms <= self.configs.max_timeout_ms:
            return Outcome(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        now_ms = self._parts.clock.now_ms
        return await self._with_id(
            index,
            lambda shard, new_id: shard.init_producer_id(
                transactional_id, timeout_ms, expected, now_ms(), new_id, client
            ),
        )

    async def add_to(
        self,
        transactional_id: str,
        producer: Expected,
        places: Collection[Place],
        client_version: int = 0,
        client: str = UNKNOWN,
    ) -> ErrorCode:
        """Add partitions to the transaction."""
        added = self.begin_add(transactional_id, producer, places, client_version, client)
        return await added.wait() if isinstance(added, Asked) else added

    def begin_add(
        self,
        transactional_id: str,
        producer: Expected,
        places: Collection[Place],
        client_version: int = 0,
        client: str = UNKNOWN,
    ) -> ErrorCode | Asked[ErrorCode]:
        """Do what `add_to` does, without waiting for the commit."""
        now_ms = self._parts.clock.now_ms()
        try:
            index = self.partition_of(transactional_id)
            outcome = self.runtime.shard(index).add_partitions(
                transactional_id, producer, places, client_version, now_ms, client
            )
        except KafkaError as error:
            return error.code
        return (
            self.runtime.commit(index, outcome, now_ms) if isinstance(outcome, Write) else outcome
        )

    async def end(
        self, transactional_id: str, producer: Expected, *, is_commit: bool, client_version: int
    ) -> Outcome:
        """Commit or abort the transaction; the answer is true once the decision is committed."""
        ended = self.begin_end(
            transactional_id, producer, is_commit=is_commit, client_version=client_version
        )
        return ended if isinstance(ended, Outcome) else await ended

    def begin_end(
        self,
        transactional_id: str,
        producer: Expected,
        *,
        is_commit: bool,
        client_version: int,
        client: str = UNKNOWN,
    ) -> Outcome | Coroutine[Any, Any, Outcome]:
        """Do what `end` does; return a coroutine if the answer has to wait."""
        clock = self._parts.clock
        now_ms = clock.now_ms()
        try:
            index = self.partition_of(transactional_id)
            outcome = self.runtime.shard(index).end(
                transactional_id,
                producer,
                is_commit=is_commit,
                client_version=client_version,
                now_ms=now_ms,
                client=client,
            )
        except KafkaError as error:
            return Outcome(error.code)
        ended: Outcome | ErrorCode | Asked[Outcome]
        if isinstance(outcome, Write):
            self.markers.hold()
            try:
                ended = self.runtime.commit(index, outcome, now_ms)
            finally:
                self.markers.release()
        else:
            ended = outcome
        if isinstance(ended, Outcome) and not ended.needs_id:
            return ended
        return self._with_id(
            index,
            lambda shard, new_id: shard.end(
                transactional_id,
                producer,
                is_commit=is_commit,
                client_version=client_version,
                now_ms=clock.now_ms(),
                new_id=new_id,
                client=client,
            ),
            ended,
        )

    def _index_of(self, transactional_id: str) -> int | ErrorCode:
        try:
            return self.partition_of(transactional_id)
        except KafkaError as error:
            return error.code

    async def add_partitions(
        self, request: AddPartitionsToTxnRequest, client: str = UNKNOWN
    ) -> AddPartitionsToTxnResponse:
        """Answer a request of a worker: add partitions to transactions, or verify them.

        As in Kafka, nothing is added to a transaction if one of its partitions is unknown. This
        worker's metadata may be older than the requester's, and the end of a transaction writes no
        markers to partitions that do not exist. INVALID_REQUEST answers more than MAX_ROWS rows.
        """
        response = AddPartitionsToTxnResponse()
        if _has_too_many_rows(request):
            response.error_code = ErrorCode.INVALID_REQUEST
            return response
        results = [AddPartitionsToTxnResult() for _ in request.transactions]
        response.results_by_transaction = results
        added: list[
            tuple[
                AddPartitionsToTxnTransaction,
                AddPartitionsToTxnResult,
                ErrorCode | Asked[ErrorCode],
            ]
        ]
        added = []
        for each, result in zip(request.transactions, results, strict=True):
            result.transactional_id = each.transactional_id
            if unknown := self._unknown(each):
                codes = dict.fromkeys(_places(each), ErrorCode.OPERATION_NOT_ATTEMPTED)
                _answer(each, result, codes | unknown)
            elif each.verify_only:
                self._verify(each, result)
            else:
                added.append((each, result, self._add(each, client)))
            await pause()
        for each, result, asked in added:
            code = await asked.wait() if isinstance(asked, Asked) else asked
            _answer(each, result, dict.fromkeys(_places(each), code))
        return response

    def _unknown(self, asked: AddPartitionsToTxnTransaction) -> dict[Place, ErrorCode]:
        topic_of = self._parts.image.topic
        return {
            (name, index): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for name, index in _places(asked)
            if (topic := topic_of(name)) is None or not 0 <= index < len(topic.partitions)
        }

    def _verify(
        self, asked: AddPartitionsToTxnTransaction, result: AddPartitionsToTxnResult
    ) -> None:
        producer = Expected(asked.producer_id, asked.producer_epoch)
        codes = self.verified(asked.transactional_id, producer, _places(asked))
        _answer(asked, result, codes)

    def verified(
        self, transactional_id: str, producer: Expected, places: Collection[Place]
    ) -> Mapping[Place, ErrorCode]:
        """Return for each existing partition whether it is part of the transaction."""
        try:
            shard = self.shard(transactional_id)
        except KafkaError as error:
            return dict.fromkeys(places, error.code)
        return shard.verify_partitions(transactional_id, producer, places)

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        places: Collection[Place],
    ) -> Mapping[Place, ErrorCode] | None:
        """Return for each of a few existing partitions whether it is part of the transaction.

        Return None unless this worker coordinates the id.
        """
        try:
            shard = self.shard(transactional_id)
        except KafkaError:
            return None
        return shard.verify_partitions(
            transactional_id, Expected(producer_id, producer_epoch), places
        )

    def confirmed(
        self, transactional_id: str, producer_id: int, producer_epoch: int
    ) -> Collection[Place]:
        """Return the partitions for which `verify` finds no error; none if that returns None."""
        try:
            shard = self.runtime.shard(self.partition_of(transactional_id))
        except KafkaError:
            return ()
        return shard.confirmed(transactional_id, producer_id, producer_epoch)

    def _add(
        self, asked: AddPartitionsToTxnTransaction, requester: str
    ) -> ErrorCode | Asked[ErrorCode]:
        topic_of = self._parts.image.topic
        return self.begin_add(
            asked.transactional_id,
            Expected(asked.producer_id, asked.producer_epoch),
            # With the topics' names in the metadata: those of the request would be kept.
            [(known.name, each) for name, each in _places(asked) if (known := topic_of(name))],
            client_version=2,
            client=requester,
        )

    async def list_transactions(self, request: ListTransactionsRequest) -> ListTransactionsResponse:
        """Return the transactions of this worker that all filters select."""
        response = ListTransactionsResponse()
        if self.runtime.is_loading:
            response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return response
        try:
            pattern = IdPattern(request.transactional_id_pattern or "")
        except PatternError:
            response.error_code = ErrorCode.INVALID_REGULAR_EXPRESSION
            return response
        await self._select(request, pattern, response)
        return response

    async def _select(
        self,
        request: ListTransactionsRequest,
        pattern: IdPattern,
        response: ListTransactionsResponse,
    ) -> None:
        """Add the transactions that all filters select to the response, and unknown states."""
        selected = response.transaction_states
        states: set[State] = set()
        for names in pieces(request.state_filters):
            states.update(BY_NAME[each] for each in names if each in BY_NAME)
            response.unknown_state_filters += [each for each in names if each not in BY_NAME]
            await pause()
        producer_ids: set[int] = set()
        for ids in pieces(request.producer_id_filters):
            producer_ids.update(ids)
            await pause()
        now_ms = self._parts.clock.now_ms()
        for shard in list(self.shards.values()):
            for piece in shard.pieces():
                for transactional_id, known in piece:
                    if (
                        (not producer_ids or known.producer_id in producer_ids)
                        and (not request.state_filters or known.state in states)
                        and (
                            request.duration_filter < 0
                            or now_ms - known.started_ms > request.duration_filter
                        )
                        and (await pattern.matching(transactional_id))
                    ):
                        selected.append(
                            TransactionState(
                                transactional_id=transactional_id,
                                producer_id=known.producer_id,
                                transaction_state=known.state.title,
                            )
                        )
                    if request.transactional_id_pattern:
                        await pause()
                await pause()

    def describe(self, transactional_id: str) -> Transaction:
        """Return the transaction of an id. Raises KafkaError."""
        known = self.shard(transactional_id).transactions.get(transactional_id)
        if known is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"{transactional_id!r} is not known"
            )
        return known

    def begin_remove(
        self, transactional_id: str, client: str = UNKNOWN
    ) -> ErrorCode | Asked[ErrorCode]:
        """Remove an id without an open transaction; return its error, or what waits for that."""
        try:
            index = self.partition_of(transactional_id)
            outcome = self.runtime.shard(index).remove(transactional_id, client)
        except KafkaError as error:
            return error.code
        if not isinstance(outcome, Write):
            return outcome
        return self.runtime.commit(index, outcome, self._parts.clock.now_ms())

    def ids_of(self, client: str) -> Iterator[list[str]]:
        """Yield the ids that count for a client in the budget, in pieces."""
        for shard in list(self.shards.values()):
            for piece in shard.pieces():
                yield [each for each, _ in piece if shard.client_of(each) == client]

    def counts(self) -> dict[State, int]:
        """Return the number of transactional ids by state."""
        shards = self.shards.values()
        return {state: sum(each.state_counts[state.number] for each in shards) for state in State}

    # Background

    def _complete(self, shard: TransactionShard, transactional_id: str) -> None:
        """Write that the transaction is complete; a refused write is repeated by the shard."""
        if not self._is_active(shard):
            return
        now_ms = self._parts.clock.now_ms()
        outcome = shard.complete(transactional_id, now_ms)
        if outcome is not None:
            self.runtime.commit(shard.index, outcome, now_ms)

    def _is_active(self, shard: TransactionShard) -> bool:
        try:
            return self.runtime.shard(shard.index) is shard
        except KafkaError:
            return False

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Follow the leadership of partitions."""
        await self.runtime.publish(delta, image)

    async def run(self) -> None:
        self.runtime.look()  # at what was assigned before
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.runtime.run)
            nursery.start_soon(self.markers.run)
            nursery.start_soon(self._keep_aborting)
            nursery.start_soon(self._keep_removing)

    def close(self) -> None:
        """Answer everything that waits with NOT_COORDINATOR, because the worker stops."""
        self.runtime.close()
        self._client.close()

    async def _keep_aborting(self) -> None:
        while True:
            await sleep(self._parts.clock, self.configs.timeout_check_s)
            async with trio.open_nursery() as nursery:
                for shard in self.shards.values():
                    nursery.start_soon(self._abort_all_timed_out, shard)

    async def _abort_all_timed_out(self, shard: TransactionShard) -> None:
        """Abort several transactions at a time: their records are committed together."""
        work = shard.timed_out(self._parts.clock.now_ms())
        timed_out = await work
        for at in range(0, len(timed_out), ABORTED_AT_ONCE):
            async with trio.open_nursery() as nursery:
                for transactional_id in timed_out[at : at + ABORTED_AT_ONCE]:
                    nursery.start_soon(self._abort_timed_out, shard, transactional_id)
                    await trio.lowlevel.checkpoint()  # its record may be large

    async def _abort_timed_out(self, shard: TransactionShard, transactional_id: str) -> None:
        if not self._is_active(shard):
            return
        now_ms = self._parts.clock.now_ms
        outcome = await self._with_id(
            shard.index,
            lambda each, new_id: each.abort_timed_out(transactional_id, now_ms(), new_id),
        )
        if outcome.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            self.statistics.timed_out_count += 1
            log.info("aborted the transaction of %r, which has timed out", transactional_id)

    async def _keep_removing(self) -> None:
        while True:
            await sleep(self._parts.clock, self.configs.expiry_check_s)
            for shard in self.shards.values():
                await self._remove_expired(shard)

    async def _remove_expired(self, shard: TransactionShard) -> None:
        expiration_ms, clock = self.configs.id_expiration_ms, self._parts.clock
        writes = BackgroundWrites(self.runtime, shard.index)
        expired = await shard.expired(clock.now_ms(), expiration_ms)
        for at in range(0, len(expired), REMOVED_AT_ONCE):
            if not await writes.wait_room() or not self._is_active(shard):
                return
            some = expired[at : at + REMOVED_AT_ONCE]
            outcome = shard.remove_expired(some, clock.now_ms(), expiration_ms)
            if isinstance(outcome, Write):
                writes.write(outcome.records)
            await pause()
        await writes.wait_all()


def _nothing(answer: object) -> None: ...


def _places(asked: AddPartitionsToTxnTransaction) -> list[Place]:
    return [(topic.name, index) for topic in asked.topics for index in topic.partitions]


def _has_too_many_rows(request: AddPartitionsToTxnRequest) -> bool:
    count = len(request.transactions)
    for asked in islice(request.transactions, MAX_ROWS):
        count += len(asked.topics)
        if count > MAX_ROWS:
            break
        count += sum([len(topic.partitions) for topic in asked.topics])
    return count > MAX_ROWS


def _answer(
    asked: AddPartitionsToTxnTransaction,
    result: AddPartitionsToTxnResult,
    codes: Mapping[Place, ErrorCode],
) -> None:
    result.topic_results = [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=codes[topic.name, index]
                )
                for index in topic.partitions
            ],
        )
        for topic in asked.topics
    ]
