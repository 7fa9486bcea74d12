"""Produce in transactions: verification by the coordinator, the order of batches, markers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.dataplane.worker.transaction_states import TransactionStates
from metaquorum.dataplane.worker.transaction_verifier import TransactionVerifier
from metaquorum.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from metaquorum.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from metaquorum.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from metaquorum.wire.messages.produce import PartitionProduceData
from metaquorum.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.coordinators.transaction.answers import added
from tests.dataplane.serving import (
    RawClient,
    Served,
    batch_of,
    in_trio,
    produce_message,
    serving,
)

PRODUCER = 7
VERIFIES, ABORTABLE, ADDS = 10, 11, 12
NO_WORKERS: Any = None


class Coordinator:
    """A coordinator that answers as the test says, and keeps what it was asked."""

    def __init__(self, worker: Any) -> None:
        self.asked: list[AddPartitionsToTxnRequest] = []
        self.codes = [ErrorCode.NONE]  # codes of the next answers; the last one stays
        self.may_answer = trio.Event()
        self.may_answer.set()
        self.was_asked = trio.Event()
        self.states: dict[int, str] = {}
        worker.transactions = self
        worker.transaction_verifier = TransactionVerifier(
            worker.worker_id,
            NO_WORKERS,
            lambda _: worker.worker_id,
            self.add_partitions,
            worker.clock.monotonic,
        )
        topic = SimpleNamespace(partitions=[SimpleNamespace(leader=worker.worker_id)])
        image: Any = SimpleNamespace(topic=lambda _: topic)
        worker.transaction_states = TransactionStates(
            worker.worker_id, NO_WORKERS, lambda: image, self.list_transactions
        )

    async def add_partitions(
        self, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        self.asked.append(request)
        self.was_asked.set()
        await self.may_answer.wait()
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        return added(request, code)

    def close(self) -> None: ...

    async def publish(self, delta: Any, image: Any) -> None: ...

    async def run(self) -> None: ...

    async def list_transactions(self, request: ListTransactionsRequest) -> ListTransactionsResponse:
        return ListTransactionsResponse(
            transaction_states=[
                TransactionState(producer_id=each, transaction_state=self.states[each])
                for each in request.producer_id_filters
                if each in self.states
            ]
        )


def batch(
    sequence: int, *, epoch: int = 0, producer_id: int = PRODUCER, transactional: bool = True
) -> bytearray:
    return batch_of(
        b"%d" % sequence,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def message(*batches: bytearray, acks: int = -1, transactional_id: str | None = "tx") -> Any:
    asked = produce_message("t", batches[0], acks=acks)
    asked.transactional_id = transactional_id
    asked.topic_data[0].partition_data = [
        PartitionProduceData(index=index, records=each) for index, each in enumerate(batches)
    ]
    return asked


async def codes(client: RawClient, asked: Any, version: int) -> list[int]:
    answer = await client.call(ApiKey.PRODUCE, asked, version)
    return [row.error_code for row in answer.responses[0].partition_responses]


def marker(served: Served, *, epoch: int = 0, index: int = 0, is_commit: bool = True) -> None:
    partition = served.worker.replica_manager.by_name("t", index)
    log = partition.log
    log.append_marker(TransactionMarker(PRODUCER, epoch, 0, is_commit), partition.leader_epoch, 1)
    partition.appended(78)


@asynccontextmanager
async def marker_before_answer(
    served: Served, coordinator: Coordinator, **options: Any
) -> AsyncIterator[None]:
    """Append a marker after the coordinator is asked next, and let it answer then."""
    coordinator.may_answer, coordinator.was_asked = trio.Event(), trio.Event()

    async def answer() -> None:
        await coordinator.was_asked.wait()
        marker(served, **options)
        coordinator.may_answer.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        yield


async def started(served: Served, partitions: int = 1) -> tuple[RawClient, Coordinator]:
    client = await served.connect()
    await client.create("t", partitions)
    return client, Coordinator(served.worker)


@in_trio
async def test_the_coordinator_is_asked_once_per_transaction_and_partition(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, coordinator = await started(served, 2)
        assert await codes(client, message(batch(0)), VERIFIES) == [0]
        for sequence in (1, 2):
            assert await codes(client, message(batch(sequence)), VERIFIES) == [0]
        assert await codes(client, message(batch(3), batch(0)), VERIFIES) == [0, 0]
        marker(served)
        assert await codes(client, message(batch(4), batch(1)), VERIFIES) == [0, 0]
        assert [
            [(topic.name, topic.partitions) for topic in request.transactions[0].topics]
            for request in coordinator.asked
        ] == [[("t", [0])], [("t", [1])], [("t", [0])]]
        (first,) = coordinator.asked[0].transactions
        assert first.transactional_id == "tx"
        assert (first.producer_id, first.producer_epoch) == (PRODUCER, 0)
        assert all(request.transactions[0].verify_only for request in coordinator.asked)


@in_trio
async def test_from_version_12_on_the_question_adds_the_partition(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, coordinator = await started(served)
        assert await codes(client, message(batch(0)), ADDS) == [0]
        assert not coordinator.asked[0].transactions[0].verify_only


@pytest.mark.parametrize(
    ("answered", "version", "reported"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, VERIFIES, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_TXN_STATE, ADDS, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.NOT_COORDINATOR, VERIFIES, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ADDS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ABORTABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ADDS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, ADDS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ADDS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ErrorCode.PRODUCER_FENCED, VERIFIES, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ADDS, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_errors_of_the_coordinator_are_reported_as_the_client_knows_them(
    tmp_path: Path, answered: ErrorCode, version: int, reported: ErrorCode
) -> None:
    @in_trio
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            client, coordinator = await started(served)
            coordinator.codes = [answered]
            assert await codes(client, message(batch(0)), version) == [reported]
            # A later batch must not take the place of the first.
            coordinator.codes = [ErrorCode.NONE]
            later = await codes(client, message(batch(1)), version)
            assert later[0] in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, reported)
            assert await codes(client, message(batch(0)), version) == [0]
            assert await codes(client, message(batch(1)), version) == [0]
            assert await client.values("t") == [b"0", b"1"]

    scenario()


@in_trio
async def test_a_transaction_that_is_being_completed_is_waited_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, coordinator = await started(served)
        coordinator.codes = [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE]
        assert await codes(client, message(batch(0)), ADDS) == [0]
        assert len(coordinator.asked) == 2


@in_trio
async def test_the_marker_of_the_last_transaction_does_not_refuse_the_next(tmp_path: Path) -> None:
    """It arrives while the coordinator completes that transaction, after the first question."""
    async with serving(tmp_path) as served:
        client, coordinator = await started(served)
        coordinator.codes = [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE]
        async with marker_before_answer(served, coordinator, is_commit=False):
            assert await codes(client, message(batch(0, epoch=1)), ADDS) == [0]
        assert len(coordinator.asked) == 2


@in_trio
async def test_a_marker_before_the_answer_of_a_coordinator_that_adds_causes_another_question(
    tmp_path: Path,
) -> None:
    """The marker of the last transaction may be written just before the coordinator adds."""
    async with serving(tmp_path) as served:
        client, coordinator = await started(served)
        async with marker_before_answer(served, coordinator, epoch=1, is_commit=False):
            assert await codes(client, message(batch(0, epoch=1)), ADDS) == [0]
        assert len(coordinator.asked) == 2


@in_trio
async def test_a_client_that_changes_to_version_12_does_not_join_its_last_transaction(
    tmp_path: Path,
) -> None:
    """That has the same epoch, and its marker may not be written yet (transactions 770036)."""
    async with serving(tmp_path) as served:
        client, coordinator = await started(served)
        assert await codes(client, message(batch(0)), VERIFIES) == [0]
        coordinator.codes = [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE]
        async with marker_before_answer(served, coordinator):
            assert await codes(client, message(batch(1)), ADDS) == [0]
        asked = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
        described = await client.call(ApiKey.DESCRIBE_PRODUCERS, asked)
        (row,) = described.topics[0].partitions[0].active_producers
        assert row.current_txn_start_offset == 2
        # The log has seen the first batch of this transaction: no more questions.
        count = len(coordinator.asked)
        assert await codes(client, message(batch(2)), ADDS) == [0]
        assert len(coordinator.asked) == count


@in_trio
async def test_requests_that_do_not_agree_with_their_batches_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, coordinator = await started(served, 2)
        refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        plain = batch(0, producer_id=8, transactional=False)
        asked = message(batch(0), plain, transactional_id=None)
        assert await codes(client, asked, ADDS) == [refused, refused]
        refused = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        asked = message(batch(0), batch(0, producer_id=8))
        assert await codes(client, asked, ADDS) == [refused, refused]
        assert coordinator.asked == []
        # Without a transactional batch, the transactional id has no meaning.
        assert await codes(client, message(plain, plain), ADDS) == [0, 0]
        assert coordinator.asked == []


@in_trio
async def test_a_marker_between_the_answer_and_the_append_refuses_the_batch(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, coordinator = await started(served)
        coordinator.may_answer = trio.Event()
        await client.ask(ApiKey.PRODUCE, message(batch(0)), VERIFIES)
        await coordinator.was_asked.wait()
        marker(served)
        coordinator.may_answer.set()
        answer = await client.answer(ApiKey.PRODUCE, VERIFIES)
        (row,) = answer.responses[0].partition_responses
        assert row.error_code == ErrorCode.INVALID_TXN_STATE
        assert len(await client.values("t")) == 1  # the marker
        assert await codes(client, message(batch(0)), VERIFIES) == [0]


@in_trio
async def test_batches_behind_the_first_keep_their_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, coordinator = await started(served)
        coordinator.may_answer = trio.Event()
        for sequence in range(5):
            await client.ask(ApiKey.PRODUCE, message(batch(sequence)), ADDS)
        await coordinator.was_asked.wait()
        coordinator.may_answer.set()
        for _ in range(5):
            answer = await client.answer(ApiKey.PRODUCE, ADDS)
            assert answer.responses[0].partition_responses[0].error_code == 0
        assert await client.values("t") == [b"%d" % number for number in range(5)]
        assert len(coordinator.asked) == 1


@in_trio
async def test_with_an_epoch_per_transaction_the_first_batch_of_a_producer_has_sequence_0(
    tmp_path: Path,
) -> None:
    """A partition without state of the producer would else take a batch whose first is missing."""
    async with serving(tmp_path) as served:
        client, _ = await started(served, 2)
        refused = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        asked = message(batch(1), batch(0))
        assert await codes(client, asked, ADDS) == [refused, ErrorCode.NONE]
        assert await codes(client, message(batch(0), batch(1)), ADDS) == [0, 0]
        # The state of an older client may have expired meanwhile: its sequences continue.
        asked = message(batch(5, producer_id=8))
        assert await codes(client, asked, VERIFIES) == [0]


@in_trio
async def test_an_older_epoch_is_refused_before_the_coordinator_is_asked(tmp_path: Path) -> None:
    """A coordinator that has forgotten the producer would answer with a fatal error."""
    async with serving(tmp_path) as served:
        client, coordinator = await started(served)
        marker(served, epoch=2)
        coordinator.codes = [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        for version in (VERIFIES, ADDS):
            asked = message(batch(0, epoch=1))
            assert await codes(client, asked, version) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert coordinator.asked == []


@in_trio
async def test_every_number_of_acks_is_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, _ = await started(served)
        await client.ask(ApiKey.PRODUCE, message(batch(0), acks=0), VERIFIES)
        assert await codes(client, message(batch(1), acks=1), VERIFIES) == [0]
        await client.ask(ApiKey.PRODUCE, message(batch(2), acks=0), VERIFIES)
        assert await codes(client, message(batch(3), acks=-1), VERIFIES) == [0]
        assert await client.values("t") == [b"0", b"1", b"2", b"3"]


@in_trio
async def test_a_refusal_with_acks_0_closes_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, coordinator = await started(served)
        coordinator.codes = [ErrorCode.INVALID_TXN_STATE]
        await client.ask(ApiKey.PRODUCE, message(batch(0), acks=0), VERIFIES)
        assert await client.is_closed()


@in_trio
async def test_a_client_that_leaves_during_verification_leaves_a_partition_that_works(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        client, coordinator = await started(served)
        coordinator.may_answer = trio.Event()
        await client.ask(ApiKey.PRODUCE, message(batch(0)), VERIFIES)
        await coordinator.was_asked.wait()
        client.connection.close()
        coordinator.may_answer.set()
        client = await served.connect()
        assert await codes(client, message(batch(0)), VERIFIES) == [0]
        assert await codes(client, message(batch(1)), VERIFIES) == [0]
        assert await client.values("t") == [b"0", b"1"]


@in_trio
async def test_large_batches_are_verified_and_ended_by_markers_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, coordinator = await started(served)
        large = [
            batch_of(
                bytes(300_000),
                producer_id=PRODUCER,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
            for sequence in range(2)
        ]
        assert await codes(client, message(large[0]), VERIFIES) == [0]
        assert await codes(client, message(large[1]), VERIFIES) == [0]
        assert len(coordinator.asked) == 1


@pytest.mark.parametrize("version", [VERIFIES, ADDS])
def test_a_request_leaves_no_verification_behind(tmp_path: Path, version: int) -> None:
    """10,000 refused ones once filled the table of a partition, and refused all transactions."""

    @in_trio
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            client, coordinator = await started(served, 2)
            pending = [
                served.worker.replica_manager.by_name("t", index).log.producers.verifications
                for index in range(2)
            ]
            for refusal in (ErrorCode.INVALID_TXN_STATE, ErrorCode.NOT_COORDINATOR):
                coordinator.codes = [refusal]
                for producer_id in range(20):
                    asked = message(*(batch(0, producer_id=producer_id) for _ in range(2)))
                    assert ErrorCode.NONE not in await codes(client, asked, version)
                assert not any(table.pending for table in pending)
            # The coordinator confirms, and the log refuses: the batch is damaged.
            coordinator.codes = [ErrorCode.NONE]
            damaged = batch(0)
            damaged[-1] ^= 1
            assert await codes(client, message(damaged), version) == [ErrorCode.CORRUPT_MESSAGE]
            assert not pending[0].pending

    scenario()


@pytest.mark.parametrize("version", [VERIFIES, ADDS])
def test_a_forged_request_takes_nothing_from_the_producer_whose_id_it_has(
    tmp_path: Path, version: int
) -> None:
    """It is refused while the producer's own request waits for the coordinator."""

    @in_trio
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            client, coordinator = await started(served)
            stranger = await served.connect()
            coordinator.may_answer = may_answer_client = trio.Event()
            await client.ask(ApiKey.PRODUCE, message(batch(0)), version)
            await coordinator.was_asked.wait()
            coordinator.may_answer = trio.Event()
            coordinator.may_answer.set()
            coordinator.codes = [ErrorCode.TRANSACTION_ABORTABLE]
            for epoch, sequence in ((0, 0), (0, 2**31 - 1), (7, 0)):
                forged = message(batch(sequence, epoch=epoch), transactional_id="another")
                assert ErrorCode.NONE not in await codes(stranger, forged, version)
            coordinator.codes = [ErrorCode.NONE]
            may_answer_client.set()
            answer = await client.answer(ApiKey.PRODUCE, version)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
            assert await client.values("t") == [b"0"]

    scenario()


# WriteTxnMarkers


def markers(
    *, epoch: int = 0, coordinator_epoch: int = 0, commit: bool = False, partitions: int = 1
) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=PRODUCER,
                producer_epoch=epoch,
                transaction_result=commit,
                coordinator_epoch=coordinator_epoch,
                topics=[
                    WritableTxnMarkerTopic(name="t", partition_indexes=list(range(partitions)))
                ],
            )
        ]
    )


async def ended(client: RawClient, asked: WriteTxnMarkersRequest) -> list[int]:
    answer = await client.call(ApiKey.WRITE_TXN_MARKERS, asked)
    (of_marker,) = answer.markers
    assert of_marker.producer_id == PRODUCER
    return [row.error_code for topic in of_marker.topics for row in topic.partitions]


@in_trio
async def test_an_administrator_ends_a_hanging_transaction(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, coordinator = await started(served)
        assert await codes(client, message(batch(0)), VERIFIES) == [0]
        partition = served.worker.replica_manager.by_name("t", 0)
        assert (partition.last_stable_offset, partition.high_watermark) == (0, 1)
        asked = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
        answer = await client.call(ApiKey.DESCRIBE_PRODUCERS, asked)
        (row,) = answer.topics[0].partitions[0].active_producers
        assert (row.coordinator_epoch, row.current_txn_start_offset) == (-1, 0)
        for state in ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"):
            coordinator.states = {PRODUCER: state}
            assert await ended(client, markers()) == [ErrorCode.INVALID_TXN_STATE]
        coordinator.states = {PRODUCER: "CompleteAbort"}
        # Epochs of the future would make the coordinator's own markers late forever.
        fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert await ended(client, markers(coordinator_epoch=1)) == [fenced]
        wrong_epoch = ErrorCode.INVALID_PRODUCER_EPOCH
        assert await ended(client, markers(epoch=1)) == [wrong_epoch]
        assert partition.high_watermark == 1
        # Partition 7 does not exist.
        several = markers()
        several.markers[0].topics[0].partition_indexes.append(7)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await ended(client, several) == [0, unknown]
        assert partition.last_stable_offset == partition.high_watermark == 2
        assert await ended(client, markers()) == [0]  # the answer may have been lost
        assert await ended(client, markers(coordinator_epoch=-1)) == [fenced]
        assert await ended(client, markers(coordinator_epoch=1)) == [fenced]
        assert await ended(client, markers(epoch=1)) == [wrong_epoch]
        assert await ended(client, markers(epoch=-1)) == [wrong_epoch]
        stranger = markers()
        stranger.markers[0].producer_id = PRODUCER + 1
        answer = await client.call(ApiKey.WRITE_TXN_MARKERS, stranger)
        row = answer.markers[0].topics[0].partitions[0]
        assert row.error_code == ErrorCode.INVALID_TXN_STATE
        answer = await client.call(ApiKey.DESCRIBE_PRODUCERS, asked)
        (row,) = answer.topics[0].partitions[0].active_producers
        assert (row.coordinator_epoch, row.current_txn_start_offset) == (0, -1)


@in_trio
async def test_without_verification_only_new_clients_cause_a_question(tmp_path: Path) -> None:
    configs = {"transaction_partition_verification_enable": "false"}
    async with serving(tmp_path, **configs) as served:  # type: ignore[arg-type]
        client, coordinator = await started(served, 2)
        assert await codes(client, message(batch(0)), ABORTABLE) == [0]
        assert coordinator.asked == []
        assert await codes(client, message(batch(1), batch(0)), ADDS) == [0, 0]
        assert len(coordinator.asked) == 1
