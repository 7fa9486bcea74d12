"""DescribeGroupActivity through a node: late members, and the last rebalances."""

from typing import Any

import trio

from metaquorum.wire.messages.describe_group_activity import DescribeGroupActivityRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.groups.clients import CONFIGS, GroupClient, groups
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import Simulated


async def active(client: GroupClient, group_id: str = "g") -> Any:
    asked = DescribeGroupActivityRequest(groups=[group_id])
    (group,) = (await client.call(ApiKey.DESCRIBE_GROUP_ACTIVITY, asked)).groups
    assert group.group_id == group_id
    return group


async def two_joined(node: Simulated, one: GroupClient, two: GroupClient) -> tuple[Any, Any]:
    """Bring a stable member and a new one into a generation without assignment."""
    first = await one.stable()
    joined: list[Any] = []
    async with trio.open_nursery() as nursery:

        async def join_as_second() -> None:
            joined.append(await two.joined())

        nursery.start_soon(join_as_second)
        while await one.heartbeat(first) == ErrorCode.NONE:
            await trio.sleep(0.1)
        first = await one.join(first.member_id)
    return first, joined[0]


@groups()
async def test_a_member_that_has_not_joined_holds_the_others_up(node: Simulated) -> None:
    one, two, other = [await GroupClient.connect(node) for _ in range(3)]
    first = await one.stable()
    group = await active(other)
    assert (group.state, group.waits_for, group.left_ms) == ("Stable", "", -1)
    assert (group.generation, group.leader) == (1, first.member_id)
    await trio.sleep(5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(two.joined)
        while await one.heartbeat(first) == ErrorCode.NONE:
            await trio.sleep(0.1)
        await trio.sleep(2)
        group = await active(other)
        assert (group.state, group.waits_for) == ("PreparingRebalance", "JoinGroup")
        assert 2000 <= group.state_ms < 3000
        assert 57_000 < group.left_ms <= 58_000
        late, waiting = group.members
        assert (late.member_id, late.is_late, late.waiting_in) == (first.member_id, True, "")
        assert 2000 <= late.heard_ms_ago < 3000
        assert (waiting.is_late, waiting.waiting_in) == (False, "JoinGroup")
        assert {late.client_id, waiting.client_id} == {"test"}
        assert {late.user, waiting.user} == {"ANONYMOUS"}
        assert (late.session_timeout_ms, late.rebalance_timeout_ms) == (10_000, 60_000)
        assert (late.metadata, late.assignment) == (b"m", b"mine")
        before, last = group.rebalances
        assert (before.cause, before.generation) == ("a member has joined", 1)
        assert 0 <= before.lasted_ms < 1000 < before.began_ms_ago
        assert (last.cause, last.lasted_ms) == ("a member has joined", -1)
        assert last.member_id == waiting.member_id
        nursery.cancel_scope.cancel()


@groups()
async def test_members_without_their_sync_group_are_late(node: Simulated) -> None:
    one, two, other = [await GroupClient.connect(node) for _ in range(3)]
    first, second = await two_joined(node, one, two)
    group = await active(other)
    assert (group.state, group.waits_for) == ("CompletingRebalance", "assignment")
    assert [(each.member_id, each.is_late) for each in group.members] == [
        (first.member_id, True),
        (second.member_id, False),
    ]
    assert 0 < group.left_ms <= 60_000
    await one.sync(first, {first.member_id: b"one", second.member_id: b"two"})
    group = await active(other)
    assert (group.state, group.waits_for) == ("Stable", "SyncGroup")
    assert [each.is_late for each in group.members] == [False, True]
    assert [each.assignment for each in group.members] == [b"one", b"two"]
    await two.sync(second)
    group = await active(other)
    assert (group.waits_for, group.left_ms) == ("", -1)
    assert group.rebalances[-1].generation == 2


@groups(group_initial_rebalance_delay_ms=3000)
async def test_new_members_are_awaited_and_given_ids_are_shown(node: Simulated) -> None:
    one, other = await GroupClient.connect(node), await GroupClient.connect(node)
    given = await one.join()
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    group = await active(other)
    (pending,) = group.pending
    assert (group.state, pending.member_id) == ("Empty", given.member_id)
    assert 9000 < pending.left_ms <= 10_000
    assert pending.client_host.startswith("/")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.joined)
        while not (group := await active(other)).members:
            await trio.sleep(0.1)
        assert group.waits_for == "more members"
        assert 0 < group.left_ms <= 3000
        assert not any(each.is_late for each in group.members)
        nursery.cancel_scope.cancel()


@groups()
async def test_a_group_without_members_or_that_does_not_exist_is_told_apart(
    node: Simulated,
) -> None:
    client = await GroupClient.connect(node)
    assert (await active(client)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    await client.client.create("t")
    assert await client.commit(1) == [ErrorCode.NONE]
    group = await active(client)
    assert (group.error_code, group.state, group.members) == (ErrorCode.NONE, "Empty", [])
    assert (group.state_ms, group.generation) == (-1, -1)


@together(**CONFIGS)
async def test_only_the_coordinator_describes_a_group(cluster: Together) -> None:
    await cluster.create_offsets_topic()
    clients = {node_id: GroupClient(await cluster.connect(node_id)) for node_id in (1, 2, 3)}
    found = await clients[1].find("g")
    coordinator = cluster.worker(found.node_id).groups
    await cluster.until(lambda: not coordinator.is_loading and coordinator.shards)
    codes = {node_id: (await active(client)).error_code for node_id, client in clients.items()}
    assert codes == {
        node_id: ErrorCode.GROUP_ID_NOT_FOUND
        if node_id == found.node_id
        else ErrorCode.NOT_COORDINATOR
        for node_id in clients
    }
