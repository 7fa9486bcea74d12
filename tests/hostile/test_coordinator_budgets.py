"""One client that makes a coordinator keep as much as it can: others are served as before."""

import gc
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from metaquorum.dataplane.coordinators.client_budget import MAX_NEW_ID_BYTES, UNKNOWN
from metaquorum.dataplane.network.connection import ClientConnection
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.protocol.frames import INITIAL_BYTES
from tests.dataplane.handlers.groups.clients import GroupClient, groups, run_groups
from tests.dataplane.handlers.transactions.test_coordination import add, end
from tests.dataplane.handlers.transactions.test_offsets import Producer
from tests.dataplane.serving import Simulated, in_trio
from tests.hostile.test_groups import OLD_JOIN, coordinator, join_of
from tests.suite.first_argument import given_first

LIMIT: Final = 1 << 20
ATTACKERS: Final = [f"attacker-{number}" for number in range(8)]
REFUSED: Final = (ErrorCode.POLICY_VIOLATION, ErrorCode.COORDINATOR_NOT_AVAILABLE)


async def fill_groups(node: Simulated, host: str) -> int:
    """Let members join, large ones first, until no more is accepted; return their number."""
    joined = 0
    for size_bytes in (100_000, 10_000, 1000, 10):
        while True:
            client = await GroupClient.connect(node, host=host)
            answer = await client.join(
                version=OLD_JOIN,
                group_id=f"{host}-{joined}",
                session_ms=1_800_000,
                metadata=bytes(size_bytes),
            )
            client.client.connection.close()
            if answer.error_code != ErrorCode.NONE:
                break
            joined += 1
    return joined


@groups(group_memory_max_bytes=LIMIT)
async def test_members_of_many_clients_keep_no_other_from_joining(
    node: Simulated, caplog: pytest.LogCaptureFixture
) -> None:
    honest = await GroupClient.connect(node, host="honest")
    joined = await honest.stable()
    budget = node.worker.groups.budget
    counts = [await fill_groups(node, host) for host in ATTACKERS]
    assert all(counts)
    assert budget.counted_bytes > LIMIT * 3 // 4
    other = await GroupClient.connect(node, host="other")
    assert (await other.join(version=OLD_JOIN, group_id="new")).error_code == ErrorCode.NONE
    # A known member continues, also with a longer subscription.
    again = await honest.join(joined.member_id, metadata=bytes(1000))
    assert again.error_code == ErrorCode.NONE
    assignment = {joined.member_id: bytes(1000)}
    assert (await honest.sync(again, assignment)).error_code == ErrorCode.NONE
    refusals = [each for each in caplog.messages if each.startswith("refused the client")]
    assert "'attacker-0' a member of group" in refusals[0]
    assert f"group.memory.max.bytes={LIMIT}" in refusals[0]


@in_trio
async def test_a_connection_that_waits_for_a_group_holds_no_large_buffer(tmp_path: Path) -> None:
    """Each held the megabyte in which it had received its JoinGroup."""
    async with coordinator(tmp_path) as (served, _):
        clients = [await served.connect() for _ in range(20)]
        for number, client in enumerate(clients):
            asked = join_of(f"g-{number}", metadata=bytes(500_000))
            await client.ask(ApiKey.JOIN_GROUP, asked, OLD_JOIN)
        while len(served.worker.groups.shards[0].groups) < len(clients):
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        waiting = [each for each in gc.get_objects() if type(each) is ClientConnection]
        assert len(waiting) > len(clients)
        assert max(each._frames.buffer_bytes for each in waiting) <= INITIAL_BYTES


def run_transactions(scenario: Callable[[Simulated], Awaitable[None]], **configs: object) -> None:
    async def with_topic(node: Simulated) -> None:
        await (await node.connect()).create("t", 2)
        await scenario(node)

    run_groups(with_topic, **configs)


def transactions(
    **configs: object,
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    return given_first(partial(run_transactions, **configs))


async def init(client: GroupClient, name: str) -> Any:
    asked = InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=60_000, producer_id=-1
    )
    while True:
        answer = await client.call(ApiKey.INIT_PRODUCER_ID, asked, 5)
        if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return answer


async def fill_ids(node: Simulated, host: str) -> int:
    client = await GroupClient.connect(node, host=host)
    created = 0
    for length in (MAX_NEW_ID_BYTES, 20):
        while True:
            answer = await init(client, f"{host}-{created}".ljust(length, "x"))
            if answer.error_code != ErrorCode.NONE:
                assert answer.error_code in REFUSED
                break
            created += 1
    return created


@transactions(transaction_memory_max_bytes=LIMIT)
async def test_transactional_ids_of_many_clients_keep_no_other_from_transactions(
    node: Simulated,
) -> None:
    honest = await Producer.create(node, "honest", host="honest")
    budget = node.worker.transactions.budget
    for host in ATTACKERS:
        assert await fill_ids(node, host)
    assert budget.counted_bytes > LIMIT * 3 // 4
    first = await GroupClient.connect(node, host=ATTACKERS[0])
    assert (await init(first, "more")).error_code == ErrorCode.POLICY_VIOLATION
    # Known ids continue, and others get new ones.
    for _ in range(2):
        assert await add(honest) == ErrorCode.NONE
        assert await end(honest) == ErrorCode.NONE
        await honest.init()
    other = await Producer.create(node, "other", host="other")
    assert await add(other) == ErrorCode.NONE
    assert await end(other) == ErrorCode.NONE


@transactions()
async def test_an_id_that_is_longer_than_any_client_has_is_refused(node: Simulated) -> None:
    producer = await Producer.create(node)
    longest = await init(producer.client, "x" * MAX_NEW_ID_BYTES)
    assert longest.error_code == ErrorCode.NONE
    longer = await init(producer.client, "x" * (MAX_NEW_ID_BYTES + 1))
    assert longer.error_code == ErrorCode.INVALID_REQUEST


@transactions(transaction_memory_max_bytes=LIMIT)
async def test_loaded_ids_count_and_are_refused_nothing(node: Simulated) -> None:
    honest = await Producer.create(node, "honest", host="honest")
    for host in ATTACKERS[:2]:
        await fill_ids(node, host)
    before = node.worker.transactions.budget.counted_bytes
    node.on_machine.machine.kill()
    await node.on_machine.start()
    honest.client = await GroupClient.connect(node, host="honest")
    budget = node.worker.transactions.budget
    while node.worker.transactions.runtime.is_loading or not budget.counted_bytes:
        await trio.sleep(0.1)
    assert budget.counted_bytes == budget.use_of(UNKNOWN).counted_bytes == before
    await honest.init()
    assert budget.use_of("honest").counted_bytes > 0
    assert await add(honest) == ErrorCode.NONE
    assert await end(honest) == ErrorCode.NONE
    await Producer.create(node, "other", host="other")


async def fill_offsets(node: Simulated, host: str) -> int:
    """Commit for groups without members until it is refused; return the number of commits."""
    client = await GroupClient.connect(node, host=host)
    committed = 0
    for id_length, metadata in ((MAX_NEW_ID_BYTES, "m" * 4000), (20, "")):
        while True:
            group_id = f"{host}-{committed}".ljust(id_length, "x")
            (code,) = await client.commit(1, group_id=group_id, metadata=metadata)
            if code:
                assert code in REFUSED
                break
            committed += 1
    return committed


@groups(
    offsets_memory_max_bytes=LIMIT,
    offsets_retention_minutes=5,
    offsets_retention_check_interval_ms=10_000,
)
async def test_offsets_of_made_up_groups_keep_no_other_from_commits(node: Simulated) -> None:
    await (await node.connect()).create("t", 2)
    honest = await GroupClient.connect(node, host="honest")
    assert await honest.commit(1) == [ErrorCode.NONE]
    budget = node.worker.groups.offsets_budget
    for host in ATTACKERS:
        assert await fill_offsets(node, host)
    assert LIMIT * 3 // 4 < budget.counted_bytes <= LIMIT
    first = await GroupClient.connect(node, host=ATTACKERS[0])
    assert await first.commit(1, group_id="more") == [ErrorCode.POLICY_VIOLATION]
    # Known offsets are committed again, also those of attackers, and other clients have room.
    assert await honest.commit(2) == [ErrorCode.NONE]
    assert await first.commit(2) == [ErrorCode.NONE]
    other = await GroupClient.connect(node, host="other")
    assert await other.commit(1, group_id="new") == [ErrorCode.NONE]
    assert await honest.commit(3, group_id="new") == [ErrorCode.NONE]
    too_long = "x" * (MAX_NEW_ID_BYTES + 1)
    assert await other.commit(1, group_id=too_long) == [ErrorCode.INVALID_GROUP_ID]
    await trio.sleep(400)
    assert budget.counted_bytes == 0
