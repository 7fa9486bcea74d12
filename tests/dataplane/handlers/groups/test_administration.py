"""Groups are described, listed and deleted, in every version that is served."""

import pytest
import trio

from metaquorum.dataplane.handlers.groups.admin import handle_list_groups
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.scheduling.time_slices import at_once, step
from metaquorum.dataplane.worker.context import Request
from metaquorum.wire.messages.delete_groups import DeleteGroupsRequest
from metaquorum.wire.messages.describe_groups import DescribeGroupsRequest
from metaquorum.wire.messages.leave_group import MemberIdentity
from metaquorum.wire.messages.list_groups import ListGroupsRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.groups.clients import NONE, GroupClient, groups, joining, versions
from tests.dataplane.serving import (
    Simulated,
)


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
@groups()
async def test_groups_are_described_in_every_version(node: Simulated, version: int) -> None:
    client = await GroupClient.connect(node)
    joined = await client.stable()
    found = await client.describe(version=version)
    assert (found.error_code, found.group_state) == (NONE, "Stable")
    assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
    (member,) = found.members
    assert (member.member_id, member.client_host) == (joined.member_id, "/client")
    assert (member.member_metadata, member.member_assignment) == (b"m", b"mine")
    unknown = await client.describe("h", version)
    assert unknown.group_state == "Dead"
    if version >= 6:
        assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert unknown.error_message == "Group h not found."
    else:
        assert unknown.error_code == NONE
    if version >= 3:
        asked = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
        (found,) = (await client.call(ApiKey.DESCRIBE_GROUPS, asked, version)).groups
        assert found.authorized_operations > 0


@groups()
async def test_assignments_are_described_during_a_rebalance(node: Simulated) -> None:
    one, two = await GroupClient.connect(node), await GroupClient.connect(node)
    first = await one.stable()
    second = await two.join()
    await two.client.ask(ApiKey.JOIN_GROUP, joining(second.member_id))
    while len((found := await one.describe()).members) < 2:
        await trio.sleep(0.01)
    assert found.group_state == "PreparingRebalance"
    shown = {row.member_id: (row.member_metadata, row.member_assignment) for row in found.members}
    assert shown == {first.member_id: (b"", b"mine"), second.member_id: (b"", b"")}


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
@groups()
async def test_groups_are_listed_in_every_version(node: Simulated, version: int) -> None:
    client = await GroupClient.connect(node)
    await client.client.create("t", 1)
    await client.stable()
    for number in range(5):
        assert await client.commit(1, group_id=f"offsets-{number}") == [NONE]
    listed = await client.listed(version)
    states = {"g": "Stable"} | {f"offsets-{number}": "Empty" for number in range(5)}
    assert listed.keys() == states.keys()
    if version >= 4:
        assert listed == states
        assert await client.listed(version, states_filter=["sTable"]) == {"g": "Stable"}
        assert await client.listed(version, states_filter=["Dead"]) == {}
    if version >= 5:
        assert await client.listed(version, types_filter=["Classic"]) == states
        assert await client.listed(version, types_filter=["consumer"]) == {}


@groups(offsets_topic_num_partitions=1)
async def test_groups_are_not_listed_by_a_coordinator_that_has_ended_meanwhile(
    node: Simulated,
) -> None:
    """The shard is emptied: groups would be shown without their members."""
    client = await GroupClient.connect(node)
    await client.client.create("t", 1)
    await client.stable()
    request = Request(5, "c", Client(("10.0.0.1", 1), "PLAINTEXT"))
    work = handle_list_groups(node.worker, request, ListGroupsRequest())
    step(work)
    node.worker.groups.close()
    assert at_once(work).groups == []


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
@groups()
async def test_empty_groups_are_deleted_in_every_version(node: Simulated, version: int) -> None:
    client = await GroupClient.connect(node)
    await client.client.create("t", 1)
    joined = await client.stable()
    assert await client.commit(1, group_id="h") == [NONE]
    asked = DeleteGroupsRequest(groups_names=["g", "h", "absent"])
    answer = await client.call(ApiKey.DELETE_GROUPS, asked, version)
    assert {row.group_id: row.error_code for row in answer.results} == {
        "g": ErrorCode.NON_EMPTY_GROUP,
        "h": NONE,
        "absent": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert await client.committed("h") == {}
    assert await client.listed() == {"g": "Stable"}
    await client.leave(MemberIdentity(member_id=joined.member_id))
    asked = DeleteGroupsRequest(groups_names=["g"])
    answer = await client.call(ApiKey.DELETE_GROUPS, asked, version)
    assert [row.error_code for row in answer.results] == [NONE]
    assert await client.listed() == {}
