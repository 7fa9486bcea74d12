"""Members join, synchronize, keep their sessions and leave, in every version that is served."""

from dataclasses import replace
from typing import Any

import pytest
import trio

from metaquorum.dataplane.coordinators.client_budget import MAX_NEW_ID_BYTES
from metaquorum.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from metaquorum.wire.messages.list_groups import ListGroupsRequest
from metaquorum.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from metaquorum.wire.messages.sync_group import SyncGroupRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.records import Record, encode_batch
from tests.dataplane.handlers.groups.clients import NONE, GroupClient, groups, joining, versions
from tests.dataplane.quotas.test_quota_enforcement import set_quota
from tests.dataplane.serving import (
    Simulated,
    append_unvalidated,
    batch_of,
    produce_message,
)


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
@groups()
async def test_a_member_joins_in_every_version(node: Simulated, version: int) -> None:
    client = await GroupClient.connect(node)
    first = await client.join(version=version)
    if version >= 4:
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        first = await client.join(first.member_id, version=version)
    assert (first.error_code, first.generation_id) == (NONE, 1)
    assert first.protocol_name == "range"
    assert first.leader == first.member_id
    assert [(each.member_id, each.metadata) for each in first.members] == [(first.member_id, b"m")]
    refused = await client.join("stranger", version=version)
    assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert refused.member_id == "stranger"
    assert refused.protocol_name == (None if version >= 7 else "")
    empty = await client.join(group_id="", version=version)
    assert empty.error_code == ErrorCode.INVALID_GROUP_ID


@groups()
async def test_a_member_with_the_longest_instance_id_has_a_member_id_that_fits_responses(
    node: Simulated,
) -> None:
    client = await GroupClient.connect(node)
    joined = await client.join(instance_id="i" * MAX_NEW_ID_BYTES)
    assert joined.error_code == NONE
    assert len(joined.member_id) < 300
    assert len(joined.members) == 1
    longer = await client.join(group_id="h", instance_id="i" * (MAX_NEW_ID_BYTES + 1))
    assert longer.error_code == ErrorCode.INVALID_REQUEST
    of_group = await client.join(group_id="h" * (MAX_NEW_ID_BYTES + 1))
    assert of_group.error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
@groups()
async def test_two_members_get_their_assignments_in_every_version(
    node: Simulated, version: int
) -> None:
    one, two = await GroupClient.connect(node), await GroupClient.connect(node)
    first = await one.stable()
    joined: list[Any] = []
    async with trio.open_nursery() as nursery:

        async def join_as_second() -> None:
            joined.append(await two.joined())

        nursery.start_soon(join_as_second)
        while await one.heartbeat(first) == NONE:
            await trio.sleep(0.1)
        assert await one.heartbeat(first) == ErrorCode.REBALANCE_IN_PROGRESS
        first = await one.join(first.member_id)
    (second,) = joined
    assert first.generation_id == second.generation_id == 2
    assert len(first.members) == 2
    assert second.members == []
    synced: list[Any] = []
    async with trio.open_nursery() as nursery:

        async def sync_as_second() -> None:
            synced.append(await two.sync(second, version=version))

        nursery.start_soon(sync_as_second)
        shares = {first.member_id: b"one", second.member_id: b"two"}
        answer = await one.sync(first, shares, version=version)
    assert (answer.assignment, synced[0].assignment) == (b"one", b"two")
    assert answer.protocol_name == ("range" if version >= 5 else None)
    assert (await one.sync(first, version=version)).assignment == b"one"


@groups()
async def test_a_sync_without_protocol_is_refused_since_version_5(node: Simulated) -> None:
    client = await GroupClient.connect(node)
    joined = await client.stable()
    asked = SyncGroupRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    answer = await client.call(ApiKey.SYNC_GROUP, asked, 5)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (await client.call(ApiKey.SYNC_GROUP, asked, 4)).assignment == b"mine"
    asked = SyncGroupRequest(generation_id=1, member_id=joined.member_id)
    answer = await client.call(ApiKey.SYNC_GROUP, asked, 4)
    assert answer.error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
@groups()
async def test_heartbeats_are_checked_in_every_version(node: Simulated, version: int) -> None:
    client = await GroupClient.connect(node)
    joined = await client.stable()
    expected = {
        (): NONE,
        (("generation_id", 7),): ErrorCode.ILLEGAL_GENERATION,
        (("member_id", "x"),): ErrorCode.UNKNOWN_MEMBER_ID,
        (("group_id", "other"),): ErrorCode.UNKNOWN_MEMBER_ID,
        (("group_id", ""),): ErrorCode.INVALID_GROUP_ID,
    }
    for other, code in expected.items():
        assert await client.heartbeat(joined, version, **dict(other)) == code


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
@groups()
async def test_members_leave_in_every_version(node: Simulated, version: int) -> None:
    client = await GroupClient.connect(node)
    joined = await client.stable()
    if version < 3:
        for member_id, code in (("x", ErrorCode.UNKNOWN_MEMBER_ID), (joined.member_id, NONE)):
            asked = LeaveGroupRequest(group_id="g", member_id=member_id)
            answer = await client.call(ApiKey.LEAVE_GROUP, asked, version)
            assert answer.error_code == code
    else:
        both = [MemberIdentity(member_id=each) for each in ("x", joined.member_id)]
        answer = await client.leave(*both, version=version)
        assert answer.error_code == NONE
        assert [(each.member_id, each.error_code) for each in answer.members] == [
            ("x", ErrorCode.UNKNOWN_MEMBER_ID),
            (joined.member_id, NONE),
        ]
    assert (await client.describe()).group_state == "Empty"


@groups()
async def test_a_session_ends_without_heartbeats(node: Simulated) -> None:
    client = await GroupClient.connect(node)
    joined = await client.joined(session_ms=6000)
    await client.sync(joined)
    for _ in range(3):
        await trio.sleep(4)
        assert await client.heartbeat(joined) == NONE
    await trio.sleep(6.1)
    assert await client.heartbeat(joined) == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await client.describe()).group_state == "Empty"


@groups(connections_max_idle_ms=8000)
async def test_a_waiting_join_survives_idle_connections_and_ends_with_its_own(
    node: Simulated,
) -> None:
    one, two = await GroupClient.connect(node), await GroupClient.connect(node)
    first = await one.joined(session_ms=1_000_000)
    await one.sync(first)
    required = await two.join()
    await two.client.ask(ApiKey.JOIN_GROUP, joining(required.member_id))
    for _ in range(5):
        await trio.sleep(5)  # the member that waits is alive, although it sends nothing
        one = await GroupClient.connect(node)
        assert len((await one.describe()).members) == 2
    two.client.connection.close()
    await trio.sleep(10.1)
    one = await GroupClient.connect(node)
    assert [each.member_id for each in (await one.describe()).members] == [first.member_id]


@groups()
async def test_a_process_whose_instance_id_another_one_uses_is_fenced_by_every_request(
    node: Simulated,
) -> None:
    client = await GroupClient.connect(node)
    await client.client.create("t", 1)
    first = await client.joined(instance_id="a")
    await client.sync(first, {first.member_id: b"mine"}, instance_id="a")
    assert await client.heartbeat(first, group_instance_id="a") == NONE
    second = await client.joined(instance_id="a")
    assert second.member_id != first.member_id
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert await client.heartbeat(first, group_instance_id="a") == fenced
    assert (await client.sync(first, instance_id="a")).error_code == fenced
    own = {"generation": first.generation_id, "member_id": first.member_id, "instance_id": "a"}
    assert await client.commit(5, **own) == [fenced]
    assert (await client.join(first.member_id, instance_id="a")).error_code == fenced
    leaving = MemberIdentity(member_id=first.member_id, group_instance_id="a")
    assert (await client.leave(leaving)).members[0].error_code == fenced
    assert await client.heartbeat(second, group_instance_id="a") == NONE


@groups()
async def test_heartbeats_are_accepted_while_the_coordinator_loads_and_other_requests_are_not(
    node: Simulated,
) -> None:
    client = await GroupClient.connect(node)
    await client.client.create("t", 1)
    member = await client.stable()
    index = node.worker.groups.partition_of("g")
    partition = node.worker.replica_manager.by_name("__consumer_offsets", index)
    state = partition.state
    # Another worker is in sync and has not fetched the end of the log.
    elected = replace(state, leader_epoch=state.leader_epoch + 1, replicas=(1, 2), isr=(1, 2))
    partition.assign(elected)
    append_unvalidated(partition, encode_batch([Record(0, 1, b"k", b"v")]))
    partition.assign(replace(elected, leader_epoch=elected.leader_epoch + 2))
    node.worker.groups.runtime.look()
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert await client.heartbeat(member) == NONE
    assert (await client.sync(member)).error_code == loading
    assert (await client.join(member.member_id)).error_code == loading
    own = {"generation": member.generation_id, "member_id": member.member_id}
    assert await client.commit(5, **own) == [loading]
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    (group,) = (await client.call(ApiKey.OFFSET_FETCH, asked, 9)).groups
    assert group.error_code == loading
    listed = await client.call(ApiKey.LIST_GROUPS, ListGroupsRequest(), 5)
    assert listed.error_code == loading


@groups()
async def test_a_throttled_client_keeps_its_session(node: Simulated) -> None:
    """Q6: the requests of a muted connection are handled after the mute, heartbeats as well."""
    client = await GroupClient.connect(node)
    await client.client.create("t", 1)
    joined = await client.joined(session_ms=6000)
    await client.sync(joined)
    await set_quota(node, "producer_byte_rate", 1000)
    batch = batch_of(bytes(40_000))
    answer = await client.call(ApiKey.PRODUCE, produce_message("t", batch), 9)
    assert answer.throttle_time_ms > 20_000
    began = node.now
    assert await client.heartbeat(joined) == NONE
    assert node.now - began > 20
    await trio.sleep(5.9)
    assert await client.heartbeat(joined) == NONE
    await trio.sleep(6.1)
    assert await client.heartbeat(joined) == ErrorCode.UNKNOWN_MEMBER_ID


@groups()
async def test_a_throttled_client_that_vanishes_loses_its_session(node: Simulated) -> None:
    client, other = await GroupClient.connect(node), await GroupClient.connect(node)
    await client.client.create("t", 1)
    joined = await client.joined(session_ms=6000)
    await client.sync(joined)
    await set_quota(node, "producer_byte_rate", 1000)
    batch = batch_of(bytes(40_000))
    answer = await client.call(ApiKey.PRODUCE, produce_message("t", batch), 9)
    assert answer.throttle_time_ms > 20_000
    client.client.connection.close()
    await trio.sleep(6.5)
    assert (await other.describe()).group_state == "Empty"


@groups(group_memory_max_bytes=1 << 20)
async def test_the_members_of_one_host_use_half_of_the_memory_at_most(node: Simulated) -> None:
    client = await GroupClient.connect(node)
    assert (await client.join(metadata=bytes(400_000))).error_code == (ErrorCode.MEMBER_ID_REQUIRED)
    await client.joined(metadata=bytes(400_000))
    for group_id in ("g", "h"):
        refused = await client.join(group_id=group_id, metadata=bytes(400_000))
        assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


@groups(group_memory_max_bytes=1 << 20)
async def test_ids_that_are_given_and_not_used_are_counted(node: Simulated) -> None:
    client = await GroupClient.connect(node)
    budget = node.worker.groups.budget
    given = 0
    while (await client.join(group_id=f"g-{given}")).error_code == ErrorCode.MEMBER_ID_REQUIRED:
        given += 1
    assert 100 < given < 1000
    assert budget.used_bytes > 500_000
    assert (await client.join(group_id="h")).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    await trio.sleep(10.1)  # the session timeout that the clients asked for
    assert budget.used_bytes < 3500 * given  # the groups, until offsets are checked for expiry
    assert (await client.join(group_id="h")).error_code == ErrorCode.MEMBER_ID_REQUIRED
