"""DescribeCoordinatorMemory and RemoveTransactionalIds, through a node."""

from typing import Any

from metaquorum.client.usage.coordinator_memory import CoordinatorBudget, memory_warnings
from metaquorum.wire.messages.describe_coordinator_memory import DescribeCoordinatorMemoryRequest
from metaquorum.wire.messages.remove_transactional_ids import RemoveTransactionalIdsRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.groups.clients import GroupClient, groups
from tests.dataplane.handlers.transactions.test_coordination import add, end
from tests.dataplane.handlers.transactions.test_offsets import Producer
from tests.dataplane.serving import Simulated

NAMES = ["group.memory.max.bytes", "offsets.memory.max.bytes", "transaction.memory.max.bytes"]


async def described(reader: GroupClient, **asked: Any) -> Any:
    request = DescribeCoordinatorMemoryRequest(**asked)
    return await reader.call(ApiKey.DESCRIBE_COORDINATOR_MEMORY, request)


@groups()
async def test_each_budget_is_described_with_its_clients_and_what_they_have(
    node: Simulated,
) -> None:
    first = await GroupClient.connect(node, host="first")
    await first.client.create("t", 2)
    await first.joined(group_id="joined")
    second = await GroupClient.connect(node, host="second")
    for number in range(3):
        assert await second.commit(1, group_id=f"committed-{number}") == [ErrorCode.NONE]
    await second.commit(1, group_id="committed-0", partitions=[1])
    assert await first.commit(1, group_id="committed-x") == [ErrorCode.NONE]
    await Producer.create(node, "tx", host="second")
    answer = await described(first, most_used=1)
    assert [each.name for each in answer.budgets] == NAMES
    tops = [[one.client for one in each.clients] for each in answer.budgets]
    assert tops == [["first"], ["second"], ["second"]]
    assert [each.client_count for each in answer.budgets] == [1, 2, 1]
    for each in answer.budgets:
        assert 0 < each.clients[0].counted_bytes <= each.counted_bytes < each.limit_bytes
    names = [
        sorted((await described(first, budget=name, client="second", most_names=100)).names)
        for name in NAMES
    ]
    assert names == [[], ["committed-0", "committed-1", "committed-2"], ["tx"]]
    few = await described(first, budget=NAMES[1], client="second", most_names=2)
    assert len(few.names) == 2
    assert (await described(first, budget="x", client="y")).error_code == (
        ErrorCode.INVALID_REQUEST
    )


@groups()
async def test_only_an_id_without_an_open_transaction_is_removed(node: Simulated) -> None:
    await (await node.connect()).create("t", 2)
    producer = await Producer.create(node, "tx")
    budget = node.worker.transactions.budget

    async def removed() -> Any:
        asked = RemoveTransactionalIdsRequest(transactional_ids=["tx", "x", "tx"])
        answer = await producer.client.call(ApiKey.REMOVE_TRANSACTIONAL_IDS, asked)
        codes = {each.transactional_id: each.error_code for each in answer.results}
        assert codes["x"] == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert len(answer.results) == 2
        return codes["tx"]

    assert await add(producer) == ErrorCode.NONE
    assert await removed() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert await end(producer) == ErrorCode.NONE
    while (code := await removed()) == ErrorCode.CONCURRENT_TRANSACTIONS:
        pass
    assert code == ErrorCode.NONE
    assert (budget.used_bytes, budget.clients()) == (0, [])
    assert await add(producer) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    await producer.init()
    assert await add(producer) == ErrorCode.NONE


def test_health_warns_of_a_budget_that_is_nearly_used() -> None:
    def budget(counted_bytes: int) -> CoordinatorBudget:
        return CoordinatorBudget(1, NAMES[2], 1000, counted_bytes, counted_bytes, 2, 0, 0)

    assert memory_warnings([budget(799)]) == []
    (warning,) = memory_warnings([budget(800), budget(0)])
    assert warning.startswith("worker 1 coordinates transactional ids with 80% of")
    assert "mq-admin cluster memory" in warning
