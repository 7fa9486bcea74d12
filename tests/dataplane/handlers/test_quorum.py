"""Admin requests about the quorum, feature levels and registrations."""

from pathlib import Path
from typing import Any

import pytest

from metaquorum.quorum.controller.features import METADATA_VERSION
from metaquorum.wire.messages.describe_cluster import DescribeClusterRequest
from metaquorum.wire.messages.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumTopic,
)
from metaquorum.wire.messages.unregister_broker import UnregisterBrokerRequest
from metaquorum.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import APIS, ApiKey
from tests.dataplane.serving import RawClient, in_trio, serving


async def quorum(client: RawClient, version: int = 2, name: str = "__cluster_metadata") -> Any:
    asked = DescribeQuorumTopic(topic_name=name, partitions=[DescribeQuorumPartition()])
    request = DescribeQuorumRequest(topics=[asked])
    answer = await client.call(ApiKey.DESCRIBE_QUORUM, request, version)
    assert answer.error_code == 0
    (topic,) = answer.topics
    assert topic.topic_name == name
    (partition,) = topic.partitions
    return partition


@in_trio
async def test_the_quorum_is_described_in_every_version(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("one", 3)
        for version in range(3):
            found = await quorum(client, version)
            assert (found.error_code, found.leader_id) == (0, 1)
            assert found.leader_epoch > 0
            (voter,) = found.current_voters
            assert voter.replica_id == 1
            assert voter.log_end_offset == found.high_watermark > 4
            assert (voter.last_fetch_timestamp > 0) == (version > 0)
            assert found.observers == []


@in_trio
async def test_only_the_metadata_log_has_a_quorum(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("one")
        found = await quorum(client, name="one")
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer = await client.call(ApiKey.DESCRIBE_QUORUM, DescribeQuorumRequest())
        assert answer.topics == []


@pytest.mark.parametrize(
    ("name", "level", "words"),
    [
        (METADATA_VERSION, 99, "Invalid update version 99 for feature metadata.version."),
        ("no.such", 1, "Invalid update version 1 for feature no.such."),
    ],
)
def test_levels_that_a_node_does_not_reach_are_refused(
    tmp_path: Path, name: str, level: int, words: str
) -> None:
    @in_trio
    async def test() -> None:
        async with serving(tmp_path) as served:
            client = await served.connect()
            update = FeatureUpdateKey(feature=name, max_version_level=level)
            request = UpdateFeaturesRequest(feature_updates=[update])
            for version in range(3):
                answer = await client.call(ApiKey.UPDATE_FEATURES, request, version)
                assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
                assert words in answer.error_message
                assert answer.error_message.startswith("The update failed for all features")

    test()


@in_trio
async def test_a_level_that_holds_already_may_be_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        update = FeatureUpdateKey(feature=METADATA_VERSION, max_version_level=4)
        request = UpdateFeaturesRequest(feature_updates=[update])
        for version in range(3):
            answer = await client.call(ApiKey.UPDATE_FEATURES, request, version)
            assert (answer.error_code, answer.error_message) == (0, None)
            assert [row.feature for row in answer.results] == [METADATA_VERSION] * (version < 2)


@in_trio
async def test_who_is_not_registered_cannot_be_unregistered(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        answer = await client.call(
            ApiKey.UNREGISTER_BROKER, UnregisterBrokerRequest(broker_id=4711)
        )
        assert answer.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        assert answer.error_message == "Broker ID 4711 is not currently registered"
        assert APIS[ApiKey.UNREGISTER_BROKER].max_version == 0
        described = await client.call(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
        assert [broker.broker_id for broker in described.brokers] == [1]
