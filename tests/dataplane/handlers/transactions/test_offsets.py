"""TxnOffsetCommit and the markers of its transactions, through a node with its coordinators."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio

from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from metaquorum.wire.messages.delete_groups import DeleteGroupsRequest
from metaquorum.wire.messages.describe_group_activity import DescribeGroupActivityRequest
from metaquorum.wire.messages.end_txn import EndTxnRequest
from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.messages.list_groups import ListGroupsRequest
from metaquorum.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from metaquorum.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from metaquorum.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.groups.clients import GroupClient, run_groups
from tests.dataplane.serving import Simulated

NONE = ErrorCode.NONE
RETRIABLE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
ADDS = 5
TRANSACTIONS = 1  # type of a key in FindCoordinator


class Producer:
    """A transactional producer with one connection."""

    def __init__(self, client: GroupClient, name: str) -> None:
        self.client = client
        self.name = name
        self.producer_id = self.epoch = -1

    @classmethod
    async def create(cls, node: Simulated, name: str = "tx", host: str | None = None) -> "Producer":
        producer = cls(await GroupClient.connect(node, host=host), name)
        asked = FindCoordinatorRequest(coordinator_keys=[name], key_type=TRANSACTIONS)
        await producer.client.call(ApiKey.FIND_COORDINATOR, asked)
        await producer.init()
        return producer

    async def init(self) -> None:
        asked = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=60_000, producer_id=-1
        )
        answer = await self._retried(ApiKey.INIT_PRODUCER_ID, asked, 5)
        assert answer.error_code == NONE
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    async def _retried(self, api: ApiKey, asked: Any, version: int) -> Any:
        while True:
            answer = await self.client.call(api, asked, version)
            if answer.error_code not in RETRIABLE:
                return answer
            await trio.sleep(0.01)

    async def add_offsets(self, group_id: str = "g") -> None:
        asked = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group_id,
        )
        assert (await self._retried(ApiKey.ADD_OFFSETS_TO_TXN, asked, 3)).error_code == NONE

    async def commit(
        self,
        offset: int,
        *,
        version: int = 3,
        partitions: Sequence[int] = (0,),
        topic: str = "t",
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
        metadata: str | None = "note",
        group_id: str = "g",
    ) -> list[int]:
        asked = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=index,
                            committed_offset=offset,
                            committed_metadata=metadata,
                        )
                        for index in partitions
                    ],
                )
            ],
        )
        answer = await self.client.call(ApiKey.TXN_OFFSET_COMMIT, asked, version)
        return [row.error_code for each in answer.topics for row in each.partitions]

    async def end(self, *, commit: bool = True) -> None:
        """End the transaction, and wait until its markers are written."""
        asked = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        assert (await self._retried(ApiKey.END_TXN, asked, 4)).error_code == NONE
        while await self.fetched(stable=True) == [ErrorCode.UNSTABLE_OFFSET_COMMIT]:
            await trio.sleep(0.01)

    async def fetched(
        self, *, stable: bool, version: int = 9, everything: bool = False, partition: int = 0
    ) -> list[int]:
        """Return the offset of the partition, or its error."""
        if version < 8:
            topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[partition])]
            asked = OffsetFetchRequest(
                group_id="g", topics=None if everything else topics, require_stable=stable
            )
            answer = await self.client.call(ApiKey.OFFSET_FETCH, asked, version)
            rows = [row for each in answer.topics for row in each.partitions]
        else:
            of_group = OffsetFetchRequestGroup(
                group_id="g",
                topics=None
                if everything
                else [OffsetFetchRequestTopics(name="t", partition_indexes=[partition])],
            )
            asked = OffsetFetchRequest(groups=[of_group], require_stable=stable)
            answer = await self.client.call(ApiKey.OFFSET_FETCH, asked, version)
            rows = [row for each in answer.groups[0].topics for row in each.partitions]
        return [row.error_code or row.committed_offset for row in rows]


def transactions(scenario: Callable[[Simulated, Producer], Awaitable[None]]) -> None:
    async def with_producer(node: Simulated) -> None:
        client = await GroupClient.connect(node)
        await client.client.create("t", 2)
        await scenario(node, await Producer.create(node))

    run_groups(with_producer)


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_offsets_are_committed_by_the_end_of_the_transaction(version: int, is_commit: bool) -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        client = producer.client
        await client.commit(1)
        if version < ADDS:
            await producer.add_offsets()
        assert await producer.commit(5, version=version) == [NONE]
        assert await client.committed() == {0: 1}
        for fetch_version in (7, 9):
            unstable = [ErrorCode.UNSTABLE_OFFSET_COMMIT]
            for everything in (False, True):
                options = {"version": fetch_version, "everything": everything}
                assert await producer.fetched(stable=True, **options) == unstable
                assert await producer.fetched(stable=False, **options) == [1]
        assert await producer.fetched(stable=True, partition=1) == [-1]
        await producer.end(commit=is_commit)
        assert await client.committed() == {0: 5 if is_commit else 1}
        assert await producer.fetched(stable=True) == [5 if is_commit else 1]

    transactions(scenario)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (0, ErrorCode.INVALID_TXN_STATE),
        (3, ErrorCode.INVALID_TXN_STATE),
        (4, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_a_group_that_is_not_part_of_the_transaction_is_refused(
    version: int, code: ErrorCode
) -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        assert await producer.commit(5, version=version) == [code]
        assert await producer.fetched(stable=True) == [-1]

    transactions(scenario)


def test_a_fenced_producer_commits_no_offsets() -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        await producer.add_offsets()
        assert await producer.commit(5) == [NONE]
        other = await Producer.create(node)
        assert (other.producer_id, other.epoch) != (producer.producer_id, producer.epoch)
        for version in (3, ADDS):
            assert await producer.commit(6, version=version) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        while await producer.fetched(stable=True) != [-1]:  # aborted
            await trio.sleep(0.01)

    transactions(scenario)


def test_an_older_epoch_is_refused_before_the_coordinator_is_asked() -> None:
    """A coordinator that does not know the producer any longer would answer a fatal error."""

    async def scenario(node: Simulated, producer: Producer) -> None:
        old = await Producer.create(node, "other")
        old.producer_id, old.epoch = producer.producer_id, producer.epoch
        await producer.init()
        await producer.add_offsets()
        assert await producer.commit(5) == [NONE]
        await producer.end()
        for version in (0, 3, ADDS):
            code = ErrorCode.INVALID_PRODUCER_EPOCH
            assert await old.commit(6, version=version) == [code]

    transactions(scenario)


def test_a_client_that_changes_to_version_5_does_not_join_its_last_transaction() -> None:
    """That has the same epoch, and its marker may not be written yet."""

    async def scenario(node: Simulated, producer: Producer) -> None:
        await producer.add_offsets()
        assert await producer.commit(5) == [NONE]
        producers = node.worker.replica_manager.by_name(
            CONSUMER_OFFSETS, node.worker.groups.partition_of("g")
        ).log.producers
        place = producer.producer_id, producer.epoch
        assert producers.is_verified(*place, has_own_epoch=False)
        assert not producers.is_verified(*place, has_own_epoch=True)
        # The coordinator knows that it is the same transaction.
        assert await producer.commit(6, version=ADDS) == [NONE]
        assert producers.is_verified(*place, has_own_epoch=True)
        await producer.end()
        assert await producer.client.committed() == {0: 6}
        assert not producers.is_verified(*place, has_own_epoch=True)

    transactions(scenario)


def test_members_are_fenced_by_member_generation_and_instance() -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        await producer.add_offsets()
        illegal, unknown = ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID
        assert await producer.commit(1, generation=0, member_id="m") == [illegal]
        client = producer.client
        joined = await client.joined(instance_id="i")
        generation, member_id = joined.generation_id, joined.member_id
        member: dict[str, Any] = {"member_id": member_id, "instance_id": "i"}
        # The assignment is missing, which refuses commits without a transaction.
        assert await client.commit(1, generation=generation, **member) == [
            ErrorCode.REBALANCE_IN_PROGRESS
        ]
        assert await producer.commit(2, generation=generation, **member) == [NONE]
        assert await producer.commit(3, generation=generation + 1, **member) == [illegal]
        assert await producer.commit(3, generation=generation, member_id="x") == [unknown]
        fenced = await producer.commit(3, generation=generation, member_id="x", instance_id="i")
        assert fenced == [ErrorCode.FENCED_INSTANCE_ID]
        assert await producer.commit(3, generation=-1, member_id=member_id) == [illegal]
        # Clients that know no members.
        assert await producer.commit(4, version=2) == [NONE]
        assert await producer.commit(5) == [NONE]
        await producer.end()
        assert await client.committed() == {0: 5}

    transactions(scenario)


def test_each_row_has_its_own_error() -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        await producer.add_offsets()
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await producer.commit(1, partitions=[0, 9, 1]) == [NONE, unknown, NONE]
        assert await producer.commit(1, topic="missing", partitions=[0, 1]) == [unknown, unknown]
        too_large = await producer.commit(1, metadata="x" * 4097)
        assert too_large == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
        assert await producer.commit(1, group_id="") == [ErrorCode.INVALID_GROUP_ID]
        producer.producer_id = -1
        assert await producer.commit(1) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]

    transactions(scenario)


def test_too_many_offsets_of_open_transactions_are_refused() -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        budget = node.worker.groups.offsets_budget
        assert await producer.client.commit(1, partitions=[1]) == [NONE]
        await producer.add_offsets()
        assert await producer.commit(1) == [NONE]
        limit_bytes, budget.limit_bytes = budget.limit_bytes, lambda: budget.counted_bytes
        refused = await producer.commit(1, partitions=[1])
        assert refused == [ErrorCode.POLICY_VIOLATION]
        assert await producer.client.commit(2, partitions=[1]) == [NONE]
        await producer.end()
        budget.limit_bytes = limit_bytes
        await producer.add_offsets()
        assert await producer.commit(2, partitions=[1]) == [NONE]

    transactions(scenario)


def test_a_group_of_only_transactional_offsets_is_listed_and_can_be_deleted() -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        client = producer.client
        await producer.add_offsets()
        assert await producer.commit(1) == [NONE]
        listed = (await client.call(ApiKey.LIST_GROUPS, ListGroupsRequest())).groups
        assert [(each.group_id, each.group_state) for each in listed] == [("g", "Empty")]
        assert (await client.describe()).group_state == "Empty"
        asked = DescribeGroupActivityRequest(groups=["g"])
        (activity,) = (await client.call(ApiKey.DESCRIBE_GROUP_ACTIVITY, asked)).groups
        assert activity.state == "Empty"
        assert [(each.producer_id, each.offsets) for each in activity.transactions] == [
            (producer.producer_id, 1)
        ]
        (deleted,) = (
            await client.call(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=["g"]))
        ).results
        assert deleted.error_code == NONE
        assert await producer.fetched(stable=True) == [-1]
        await producer.end()
        assert await client.committed() == {}
        assert (await client.describe()).error_code == ErrorCode.GROUP_ID_NOT_FOUND

    transactions(scenario)


def test_offset_delete_takes_transactional_offsets_along() -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        client = producer.client
        await producer.add_offsets()
        assert await producer.commit(1, partitions=[0, 1]) == [NONE, NONE]
        asked = OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(
                    name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
                )
            ],
        )
        answer = await client.call(ApiKey.OFFSET_DELETE, asked)
        assert answer.topics[0].partitions[0].error_code == NONE
        await producer.end()
        while await producer.fetched(stable=True, partition=1) != [1]:
            await trio.sleep(0.01)
        assert await client.committed() == {1: 1}

    transactions(scenario)


def test_a_commit_of_many_offsets_is_one_transaction() -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        client = producer.client
        await client.client.create("many", 1500)
        await producer.add_offsets()
        codes = await producer.commit(3, topic="many", partitions=range(1500))
        assert codes == [NONE] * 1500
        assert await client.committed(topic="many") == {}
        await producer.end()
        with trio.fail_after(30):
            while len(await client.committed(topic="many")) != 1500:
                await trio.sleep(0.01)

    transactions(scenario)


def test_transactions_follow_each_other_without_a_wait() -> None:
    async def scenario(node: Simulated, producer: Producer) -> None:
        for number in range(5):
            await producer.add_offsets()
            codes = await producer.commit(number)
            assert codes == [NONE]
            await producer.end(commit=number % 2 == 0)
        assert await producer.client.committed() == {0: 4}

    transactions(scenario)
