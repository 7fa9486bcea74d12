"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, DescribeTransactions and ListTransactions.

Through a node, in every version that it serves. The clients are hostile.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from metaquorum.dataplane.coordinators.transaction.transaction import State
from metaquorum.dataplane.coordinators.transaction.transaction_coordinator import MAX_ROWS
from metaquorum.dataplane.coordinators.transaction.transaction_shard import MAX_PARTITIONS, Expected
from metaquorum.metadata.internal_topics import TRANSACTION_STATE
from metaquorum.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from metaquorum.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from metaquorum.wire.messages.describe_transactions import DescribeTransactionsRequest
from metaquorum.wire.messages.end_txn import EndTxnRequest
from metaquorum.wire.messages.list_transactions import ListTransactionsRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.groups.clients import GroupClient, versions
from tests.dataplane.handlers.transactions.test_offsets import Producer, transactions
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import (
    PRODUCE_VERSION,
    Simulated,
    batch_of,
    produce_message,
    records_of,
)

NONE = ErrorCode.NONE
LONGEST = "x" * 32_767  # a request and a key of `__transaction_state` have room for it
BATCHED = 4  # the first version of AddPartitionsToTxn for several transactions

Asks = Callable[..., Awaitable[int]]


async def add(
    producer: Producer,
    partitions: Sequence[int] = (0,),
    *,
    topic: str = "t",
    version: int = 3,
    **other: Any,
) -> int:
    """Add partitions; return the error of the first, which is that of all."""
    name = other.get("name", producer.name)
    producer_id = other.get("producer_id", producer.producer_id)
    epoch = other.get("epoch", producer.epoch)
    topics = [AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))]
    if version < BATCHED:
        asked = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics,
        )
    else:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=other.get("verify_only", False),
            topics=topics,
        )
        asked = AddPartitionsToTxnRequest(transactions=[transaction])
    answer = await producer.client.call(ApiKey.ADD_PARTITIONS_TO_TXN, asked, version)
    if version < BATCHED:
        (row,) = answer.results_by_topic_v3_and_below
    else:
        assert answer.error_code == NONE
        (result,) = answer.results_by_transaction
        assert result.transactional_id == name
        (row,) = result.topic_results
    codes = [each.partition_error_code for each in row.results_by_partition]
    assert [each.partition_index for each in row.results_by_partition] == list(partitions)
    assert len(set(codes)) == 1
    return int(codes[0])


async def add_offsets(producer: Producer, *, version: int = 4, **other: Any) -> int:
    asked = AddOffsetsToTxnRequest(
        transactional_id=other.get("name", producer.name),
        producer_id=other.get("producer_id", producer.producer_id),
        producer_epoch=other.get("epoch", producer.epoch),
        group_id=other.get("group_id", "g"),
    )
    answer = await producer.client.call(ApiKey.ADD_OFFSETS_TO_TXN, asked, version)
    return int(answer.error_code)


async def ended(producer: Producer, *, version: int = 4, commit: bool = True, **other: Any) -> Any:
    asked = EndTxnRequest(
        transactional_id=other.get("name", producer.name),
        producer_id=other.get("producer_id", producer.producer_id),
        producer_epoch=other.get("epoch", producer.epoch),
        committed=commit,
    )
    return await producer.client.call(ApiKey.END_TXN, asked, version)


async def end(producer: Producer, *, version: int = 4, commit: bool = True, **other: Any) -> int:
    answer = await ended(producer, version=version, commit=commit, **other)
    return int(answer.error_code)


async def described(producer: Producer, name: str | None = None) -> Any:
    asked = DescribeTransactionsRequest(transactional_ids=[name or producer.name])
    answer = await producer.client.call(ApiKey.DESCRIBE_TRANSACTIONS, asked)
    return answer.transaction_states[0]


async def state_of(producer: Producer) -> str:
    return str((await described(producer)).transaction_state)


async def complete(producer: Producer) -> None:
    """Wait until the markers of the transaction are written."""
    with trio.fail_after(30):
        while (await state_of(producer)).startswith("Prepare"):
            await trio.sleep(0.01)


@asynccontextmanager
async def held(node: Simulated, producer: Producer) -> AsyncIterator[None]:
    """Add partition 1 of `t`, and let its marker wait, as behind a long append."""
    assert await add(producer, [1]) == NONE
    async with node.worker.replica_manager.by_name("t", 1).appending:
        yield


OPERATIONS = [
    pytest.param(api, function, version, id=f"{api.name.lower()}-{version}")
    for api, function in (
        (ApiKey.ADD_PARTITIONS_TO_TXN, add),
        (ApiKey.ADD_OFFSETS_TO_TXN, add_offsets),
        (ApiKey.END_TXN, end),
    )
    for version in versions(api)
]


# Producers that may change a transaction, and those that are fenced


@pytest.mark.parametrize(("api", "ask", "version"), OPERATIONS)
def test_only_the_producer_of_the_current_epoch_changes_a_transaction(
    api: ApiKey, ask: Asks, version: int
) -> None:
    """Any other changes nothing: the transaction is open as before."""

    async def scenario(node: Simulated, producer: Producer) -> None:
        await producer.init()  # a second epoch
        assert await add(producer, [1]) == NONE
        before = node.worker.transactions.describe("tx")
        fenced = ErrorCode.PRODUCER_FENCED
        if version < 2:
            fenced = ErrorCode.INVALID_PRODUCER_EPOCH
        for epoch in (-1, 0, producer.epoch + 1, 32_767, -32_768):
            assert await ask(producer, version=version, epoch=epoch) == fenced
        unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        for producer_id in (-1, 0, producer.producer_id + 1, (1 << 63) - 1, -(1 << 63)):
            if producer_id != producer.producer_id:
                assert await ask(producer, version=version, producer_id=producer_id) == unknown
        for name in ("other", "TX", "tx\0", LONGEST):
            assert await ask(producer, version=version, name=name) == unknown
        assert await ask(producer, version=version, name="") == ErrorCode.INVALID_REQUEST
        assert node.worker.transactions.describe("tx") == before
        assert await ask(producer, version=version) == NONE

    transactions(scenario)


@pytest.mark.parametrize(("api", "ask", "version"), OPERATIONS)
def test_a_transaction_whose_markers_are_missing_is_concurrent(
    api: ApiKey, ask: Asks, version: int
) -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        async with held(node, producer):
            assert await end(producer) == NONE
            assert await ask(producer, version=version) == ErrorCode.CONCURRENT_TRANSACTIONS
            assert await state_of(producer) == "PrepareCommit"
            if api is ApiKey.END_TXN:
                code = await ask(producer, version=version, commit=False)
                assert code == ErrorCode.CONCURRENT_TRANSACTIONS
        await complete(producer)
        assert await state_of(producer) == "CompleteCommit"

    transactions(scenario)


def test_a_new_instance_of_the_client_fences_the_last_one() -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        assert await add(producer) == NONE
        old = producer.epoch
        await producer.init()
        assert producer.epoch > old
        assert await state_of(producer) == "CompleteAbort" or producer.epoch == old + 2
        for ask in (add, add_offsets, end):
            assert await ask(producer, epoch=old) == ErrorCode.PRODUCER_FENCED
        assert await add(producer) == NONE
        assert await end(producer) == NONE

    transactions(scenario)


# AddPartitionsToTxn


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN))
def test_partitions_are_added_once_and_only_all_together(version: int) -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        assert await state_of(producer) == "Empty"
        assert await add(producer, [1], version=version) == NONE
        assert await add(producer, [0, 1], version=version) == NONE
        assert await add(producer, [1, 1, 1], version=version) == NONE
        open_ = await described(producer)
        assert open_.transaction_state == "Ongoing"
        assert [(row.topic, row.partitions) for row in open_.topics] == [("t", [0, 1])]
        for index in (2, -1, (1 << 31) - 1, -(1 << 31)):
            code = await add(producer, [index], version=version)
            assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await add(producer, [0], topic="", version=version) != NONE
        assert await add(producer, [0], topic="x" * 32_767, version=version) != NONE
        assert await described(producer) == open_

    transactions(scenario)


def test_the_partitions_of_a_request_are_limited() -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        with trio.fail_after(60):
            many = [0] * (MAX_PARTITIONS + 1)
            assert await add(producer, many) == ErrorCode.INVALID_REQUEST
            assert await state_of(producer) == "Empty"
            unknown = range(2, 100_000)
            code = await add(producer, unknown)
            assert code in (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            assert await add(producer, [0] * MAX_PARTITIONS) == NONE

    transactions(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN, BATCHED))
def test_partitions_are_verified_without_being_added(version: int) -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        async def verify(partitions: Sequence[int], **other: Any) -> int:
            return await add(producer, partitions, version=version, verify_only=True, **other)

        assert await verify([0]) == ErrorCode.TRANSACTION_ABORTABLE
        assert await state_of(producer) == "Empty"
        assert await add(producer, [0], version=version) == NONE
        assert await verify([0, 0]) == NONE
        assert await verify([1]) == ErrorCode.TRANSACTION_ABORTABLE
        assert await verify([2]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await verify([0], epoch=producer.epoch + 1) == ErrorCode.PRODUCER_FENCED
        assert await verify([0], name="other") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await verify([0], name="") == ErrorCode.INVALID_REQUEST
        (topic,) = (await described(producer)).topics
        assert topic.partitions == [0]
        async with held(node, producer):
            assert await end(producer) == NONE
            assert await verify([0]) == ErrorCode.CONCURRENT_TRANSACTIONS
        await complete(producer)

    transactions(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN, BATCHED))
def test_partitions_are_added_to_several_transactions(version: int) -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        other = await Producer.create(node, "other")

        def row(of: Producer, *partitions: int, **more: Any) -> AddPartitionsToTxnTransaction:
            return AddPartitionsToTxnTransaction(
                transactional_id=of.name,
                producer_id=of.producer_id,
                producer_epoch=of.epoch,
                topics=[AddPartitionsToTxnTopic(name="t", partitions=list(partitions))],
                **more,
            )

        async def call(*rows: AddPartitionsToTxnTransaction) -> list[tuple[str, list[int]]]:
            asked = AddPartitionsToTxnRequest(transactions=list(rows))
            answer = await producer.client.call(ApiKey.ADD_PARTITIONS_TO_TXN, asked, version)
            assert answer.error_code == NONE
            return [
                (
                    each.transactional_id,
                    [
                        found.partition_error_code
                        for topic in each.topic_results
                        for found in topic.results_by_partition
                    ],
                )
                for each in answer.results_by_transaction
            ]

        assert await call() == []
        unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        refused = [int(ErrorCode.OPERATION_NOT_ATTEMPTED), unknown]
        assert await call(row(producer, 0, 1), row(other, 0, 2)) == [
            ("tx", [NONE, NONE]),
            ("other", refused),
        ]
        assert (await state_of(producer), await state_of(other)) == ("Ongoing", "Empty")
        again = row(producer, 1, verify_only=True)
        assert await call(row(other, 0), again) == [("other", [NONE]), ("tx", [NONE])]
        assert (await end(producer), await end(other)) == (NONE, NONE)
        await complete(producer)
        await complete(other)

    transactions(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN, BATCHED))
def test_a_client_of_the_highest_versions_runs_transactions(version: int) -> None:
    """`@platformatic/kafka` takes the highest version of each API, also of those of brokers."""

    async def scenario(node: Simulated, producer: Producer) -> None:
        client = producer.client.client

        async def read() -> list[bytes | None]:
            row = await client.fetch("t", isolation_level=1)
            return [record.value for record in records_of(row) if record.value in (b"a", b"c")]

        for value, commit in ((b"a", False), (b"c", True)):
            assert await add(producer, [0], version=version) == NONE
            batch = batch_of(
                value,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=0,
                transactional=True,
            )
            asked = produce_message("t", batch)
            asked.transactional_id = producer.name
            answer = await client.call(ApiKey.PRODUCE, asked, PRODUCE_VERSION)
            assert answer.responses[0].partition_responses[0].error_code == NONE
            assert value not in await read()
            answer = await ended(producer, version=5, commit=commit)
            assert answer.error_code == NONE
            assert (answer.producer_id, answer.producer_epoch) == (
                producer.producer_id,
                producer.epoch + 1,
            )
            producer.epoch = answer.producer_epoch
            await complete(producer)
        assert (await client.fetch("t")).high_watermark == 4  # two batches, two markers
        row = await client.fetch("t", isolation_level=1)
        aborted = [each.first_offset for each in row.aborted_transactions]
        assert (row.last_stable_offset, aborted) == (4, [0])

    transactions(scenario)


def _of_worker(*rows: tuple[str, int, int, list[int]]) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=producer_id,
                producer_epoch=epoch,
                topics=[AddPartitionsToTxnTopic(name="t", partitions=partitions)],
            )
            for name, producer_id, epoch, partitions in rows
        ]
    )


def test_the_rows_of_a_request_of_a_worker_are_limited() -> None:
    """All rows were looked up and answered in one step."""

    async def scenario(node: Simulated, producer: Producer) -> None:
        ask = node.worker.transactions.add_partitions
        row = "tx", producer.producer_id, producer.epoch
        for asked in (
            _of_worker((*row, [0] * MAX_ROWS)),
            _of_worker(*[(*row, [0])] * (MAX_ROWS // 3 + 1)),
            AddPartitionsToTxnRequest(
                transactions=[AddPartitionsToTxnTransaction()] * (MAX_ROWS + 1)
            ),
        ):
            answer = await ask(asked)
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert not answer.results_by_transaction
        assert await state_of(producer) == "Empty"
        answer = await ask(_of_worker((*row, [0] * (MAX_ROWS - 2))))
        assert answer.error_code == NONE
        assert await state_of(producer) == "Ongoing"

    transactions(scenario)


def test_a_request_of_a_worker_has_an_error_for_each_transaction() -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        producer_id, epoch = producer.producer_id, producer.epoch
        answer = await node.worker.transactions.add_partitions(
            _of_worker(
                ("", 0, 0, [0]),
                ("tx", producer_id + 1, epoch, [0]),
                ("tx", producer_id, epoch + 1, [0]),
                ("tx", producer_id, epoch, [0, 1]),
                *[("other", 1, 1, [0])] * 100,
            )
        )
        codes = [
            {each.partition_error_code for each in row.topic_results[0].results_by_partition}
            for row in answer.results_by_transaction
        ]
        unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert codes[:3] == [{ErrorCode.INVALID_REQUEST}, {unknown}, {ErrorCode.PRODUCER_FENCED}]
        assert codes[3:] == [{NONE}] + [{unknown}] * 100

    transactions(scenario)


# AddOffsetsToTxn


@pytest.mark.parametrize("version", versions(ApiKey.ADD_OFFSETS_TO_TXN))
def test_the_partition_of_the_group_is_added(version: int) -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        for _ in range(2):
            assert await add_offsets(producer, version=version) == NONE
        (topic,) = (await described(producer)).topics
        assert topic.topic == "__consumer_offsets"
        assert topic.partitions == [node.worker.groups.partition_of("g")]
        assert await add_offsets(producer, version=version, group_id=LONGEST) == NONE

    transactions(scenario)


# EndTxn


@pytest.mark.parametrize("version", versions(ApiKey.END_TXN))
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_ends_once(version: int, commit: bool) -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        old = producer.epoch
        assert await add(producer) == NONE
        answer = await ended(producer, version=version, commit=commit)
        assert answer.error_code == NONE
        await complete(producer)
        assert await state_of(producer) == ("CompleteCommit" if commit else "CompleteAbort")
        repeated = await ended(producer, version=version, commit=commit)
        assert repeated.error_code == NONE
        if version >= 5:
            for each in (answer, repeated):
                assert (each.producer_id, each.producer_epoch) == (producer.producer_id, old + 1)
            assert await add(producer) == ErrorCode.PRODUCER_FENCED
        code = await end(producer, version=version, commit=not commit)
        assert code == ErrorCode.INVALID_TXN_STATE
        assert await state_of(producer) == ("CompleteCommit" if commit else "CompleteAbort")

    transactions(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.END_TXN))
def test_a_transaction_that_was_not_begun_cannot_be_committed(version: int) -> None:
    """From version 5 on it can be aborted: the epoch grows, as the client expects."""

    async def scenario(node: Simulated, producer: Producer) -> None:
        assert await end(producer, version=version) == ErrorCode.INVALID_TXN_STATE
        answer = await ended(producer, version=version, commit=False)
        if version < 5:
            assert answer.error_code == ErrorCode.INVALID_TXN_STATE
            assert await state_of(producer) == "Empty"
            return
        assert (answer.error_code, answer.producer_epoch) == (NONE, producer.epoch + 1)
        await complete(producer)
        assert await state_of(producer) == "CompleteAbort"
        for _ in range(3):  # with the epoch of the answer, which is the current one
            answer = await ended(producer, version=version, epoch=answer.producer_epoch)
            assert answer.error_code == ErrorCode.INVALID_TXN_STATE
            answer.producer_epoch = producer.epoch + 1

    transactions(scenario)


# DescribeTransactions and ListTransactions


def test_each_id_is_described_once() -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        assert await add(producer, [0]) == NONE
        asked = ["tx", "", "unknown", LONGEST, "tx", "unknown"]
        message = DescribeTransactionsRequest(transactional_ids=asked)
        answer = await producer.client.call(ApiKey.DESCRIBE_TRANSACTIONS, message)
        rows = {row.transactional_id: row for row in answer.transaction_states}
        assert len(rows) == len(answer.transaction_states) == 4
        assert rows["unknown"].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert rows[LONGEST].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert rows[""].error_code == ErrorCode.INVALID_REQUEST
        row = rows["tx"]
        assert (row.error_code, row.transaction_state) == (NONE, "Ongoing")
        assert (row.producer_id, row.producer_epoch) == (producer.producer_id, producer.epoch)
        assert row.transaction_timeout_ms == 60_000
        assert 0 <= node.worker.clock.now_ms() - row.transaction_start_time_ms < 10_000
        empty = await producer.client.call(
            ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest()
        )
        assert empty.transaction_states == []

    transactions(scenario)


async def listed(producer: Producer, *, version: int = 2, **filters: Any) -> Any:
    asked = ListTransactionsRequest(**filters)
    return await producer.client.call(ApiKey.LIST_TRANSACTIONS, asked, version)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_TRANSACTIONS))
def test_transactions_are_listed_by_state_and_producer_id(version: int) -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        other = await Producer.create(node, "other")
        assert await add(producer) == NONE

        async def ids(**filters: Any) -> set[str]:
            answer = await listed(producer, version=version, **filters)
            assert answer.error_code == NONE
            return {row.transactional_id for row in answer.transaction_states}

        assert await ids() == {"tx", "other"}
        assert await ids(state_filters=["Ongoing"]) == {"tx"}
        assert await ids(state_filters=["Empty", "Ongoing"]) == {"tx", "other"}
        assert await ids(producer_id_filters=[other.producer_id]) == {"other"}
        assert await ids(producer_id_filters=[-1]) == set()
        assert (
            await ids(producer_id_filters=[other.producer_id], state_filters=["Ongoing"]) == set()
        )
        answer = await listed(producer, version=version, state_filters=["ongoing", "", LONGEST])
        assert answer.unknown_state_filters == ["ongoing", "", LONGEST]
        assert answer.transaction_states == []
        if version >= 1:
            await trio.sleep(5)
            assert await ids(duration_filter=4000, state_filters=["Ongoing"]) == {"tx"}
            assert await ids(duration_filter=6000, state_filters=["Ongoing"]) == set()
        if version >= 2:
            assert await ids(transactional_id_pattern="t.") == {"tx"}
            assert await ids(transactional_id_pattern="") == {"tx", "other"}
            answer = await listed(producer, transactional_id_pattern="(")
            assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION

    transactions(scenario)


def test_filters_and_ids_of_very_many_rows_are_answered() -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        with trio.fail_after(60):
            states = [f"s{number}" for number in range(30_000)]
            answer = await listed(producer, state_filters=states)
            assert answer.unknown_state_filters == states
            ids = [str(number) for number in range(30_000)]
            answer = await producer.client.call(
                ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest(transactional_ids=ids)
            )
            assert [row.transactional_id for row in answer.transaction_states] == ids

    transactions(scenario)


# Several workers


@together(transaction_state_log_num_partitions=1)
async def test_other_workers_than_the_coordinator_refuse_a_transaction(cluster: Together) -> None:
    """Clients look for the coordinator after these errors; nothing is changed."""
    topic = await cluster.worker(1).internal_topics.ensure(TRANSACTION_STATE)
    await cluster.create("t")
    leader = topic.partitions[0].leader
    coordinator = cluster.worker(leader).transactions
    await cluster.until(lambda: 0 in coordinator.shards)
    begun = await coordinator.init_producer_id("tx", 60_000, None)
    other = next(each for each in (1, 2, 3) if each != leader)
    producers = []
    for node_id in (other, leader):
        producer = Producer(GroupClient(await cluster.connect(node_id)), "tx")
        producer.producer_id, producer.epoch = begun.producer_id, begun.producer_epoch
        producers.append(producer)
    wrong, right = producers
    for _, ask, version in (each.values for each in OPERATIONS):
        assert await ask(wrong, version=version) == ErrorCode.NOT_COORDINATOR
    assert (await described(wrong)).error_code == ErrorCode.NOT_COORDINATOR
    empty = await listed(wrong)
    assert (empty.error_code, empty.transaction_states) == (NONE, [])
    assert await state_of(right) == "Empty"
    assert await add(right) == NONE


@together(transaction_state_log_num_partitions=1)
async def test_the_next_coordinator_has_the_transaction_and_completes_it(cluster: Together) -> None:
    topic = await cluster.worker(1).internal_topics.ensure(TRANSACTION_STATE)
    await cluster.create("t")
    leader = topic.partitions[0].leader
    coordinator = cluster.worker(leader).transactions
    await cluster.until(lambda: 0 in coordinator.shards)
    begun = await coordinator.init_producer_id("tx", 60_000, None)
    producer = Expected(begun.producer_id, begun.producer_epoch)
    assert await coordinator.add_to("tx", producer, [("t", 0)]) == NONE
    await cluster.kill(leader)
    others = [each for each in (1, 2, 3) if each != leader]
    clients = [GroupClient(await cluster.connect(each)) for each in others]
    answers = set()
    while NONE not in answers:
        for client in clients:
            asking = Producer(client, "tx")
            asking.producer_id, asking.epoch = producer
            answers.add(await end(asking))
            found = await listed(asking)
            assert found.error_code in (NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        await cluster.world.sleep(0.001)
    assert answers <= {
        NONE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
    coordinators = [cluster.worker(each).transactions for each in others]
    await cluster.until(
        lambda: sum(each.counts()[State.COMPLETE_COMMIT] for each in coordinators) == 1
    )
