"""FindCoordinator; requests when the coordinator ends; requests at a level without groups."""

from typing import Any

import pytest
import trio

from metaquorum.metadata.records import ELIGIBLE_LEADERS, METADATA_VERSION, FeatureRange
from metaquorum.quorum.controller import features
from metaquorum.wire.messages.delete_groups import DeleteGroupsRequest
from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.messages.leave_group import MemberIdentity
from metaquorum.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.groups.clients import NONE, GroupClient, groups, run_groups, versions
from tests.dataplane.serving import (
    Simulated,
)


def test_coordinators_are_found_in_every_version() -> None:
    """The response to each type of key is final for the clients that use the version."""

    def expected(kind: int, version: int) -> ErrorCode:
        if kind not in (0, 1, 2):
            return ErrorCode.INVALID_REQUEST
        return NONE if kind in (0, 1) else ErrorCode.UNSUPPORTED_VERSION

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        address = node.worker.image.workers[1].endpoints[0]
        for version in versions(ApiKey.FIND_COORDINATOR):
            for kind in (0, 1, 2, 77, -128) if version else (0,):
                asked = FindCoordinatorRequest(
                    key="g" if version < 4 else "",
                    key_type=kind,
                    coordinator_keys=["g", "h"] if version >= 4 else [],
                )
                answer = await client.call(ApiKey.FIND_COORDINATOR, asked, version)
                rows = answer.coordinators if version >= 4 else [answer]
                if version >= 4:
                    assert [row.key for row in rows] == ["g", "h"]
                code = expected(kind, version)
                assert {row.error_code for row in rows} == {code}
                at = {(row.node_id, row.host, row.port) for row in rows}
                here = (1, address.host, address.port)
                assert at == ({here} if code is NONE else {(-1, "", -1)})
                reasons = {getattr(row, "error_message", None) for row in rows}
                if version and code and kind == 2:
                    assert "this version of metaquorum has no" in str(reasons)

    run_groups(scenario)


@groups()
async def test_the_offsets_topic_is_created_by_the_first_search_only(node: Simulated) -> None:
    client = GroupClient(await node.connect())
    assert await client.commit(1) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (await client.join()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert node.worker.image.topic("__consumer_offsets") is None
    assert (await client.find("g")).error_code == NONE
    topic = node.worker.image.topic("__consumer_offsets")
    assert topic is not None
    assert len(topic.partitions) == 3


@groups()
async def test_waiting_requests_end_with_not_coordinator_when_the_worker_stops(
    node: Simulated,
) -> None:
    one, two = await GroupClient.connect(node), await GroupClient.connect(node)
    await one.stable()
    answers: list[Any] = []

    async def wait_for_the_other() -> None:
        required = await two.join()
        answers.append(await two.join(required.member_id))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_the_other)
        while (await one.describe()).group_state != "PreparingRebalance":
            await trio.sleep(0.1)
        node.worker.stop_waiting()
    assert [answer.error_code for answer in answers] == [ErrorCode.NOT_COORDINATOR]
    assert await one.commit(1) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (await one.join()).error_code == ErrorCode.NOT_COORDINATOR


def test_groups_need_a_raised_metadata_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """At level 1 other nodes may be of an earlier version, which would not protect the topic."""

    async def scenario(node: Simulated) -> None:
        monkeypatch.undo()
        client = GroupClient(await node.connect())
        await client.client.create("t", 1)
        too_low = ErrorCode.UNSUPPORTED_VERSION
        # A consumer that assigns its partitions itself continues as before.
        assert (await client.find("g")).error_code == NONE
        old = FindCoordinatorRequest(key="g")
        assert (await client.call(ApiKey.FIND_COORDINATOR, old, 1)).error_code == too_low
        assert await client.committed() == {}
        joined = await client.join()
        assert joined.error_code == too_low
        assert (await client.sync(joined)).error_code == too_low
        assert await client.heartbeat(joined) == too_low
        left = await client.leave(MemberIdentity(member_id="x"))
        assert left.error_code == too_low
        assert await client.commit(1) == [too_low]
        described = await client.describe()
        assert described.error_code == too_low
        assert "mq-admin cluster upgrade metadata.version=2" in described.error_message
        deleted = await client.call(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=["g"]))
        assert [row.error_code for row in deleted.results] == [too_low]
        assert await client.listed() == {}
        assert node.worker.image.topic("__consumer_offsets") is None
        update = FeatureUpdateKey(feature="metadata.version", max_version_level=2, upgrade_type=1)
        answer = await client.call(
            ApiKey.UPDATE_FEATURES, UpdateFeaturesRequest(feature_updates=[update])
        )
        assert answer.error_code == NONE
        client = await GroupClient.connect(node)
        await client.stable()

    earlier = (FeatureRange(METADATA_VERSION, 1, 1), FeatureRange(ELIGIBLE_LEADERS, 0, 1))
    monkeypatch.setattr(features, "SUPPORTED_FEATURES", earlier)
    run_groups(scenario)
