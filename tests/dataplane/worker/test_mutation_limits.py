"""Enforcement of clients' controller_mutation_rate by a complete node, in virtual time."""

import pytest
import trio

from metaquorum.metadata.quota_lookup import CLIENT_ID, EntityPart
from metaquorum.quorum.controller.quota_changes import QuotaChange, QuotaOp
from metaquorum.quorum.rpc.methods import TAKE_MUTATIONS, RequestContext, TakeMutations
from metaquorum.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from metaquorum.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from metaquorum.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from metaquorum.wire.messages.describe_quota_use import DescribeQuotaUseRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.changes import change_quotas
from tests.dataplane.serving import RawClient, Simulated, simulated

EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED
AT_ONCE = 22  # tokens, at two a second


async def limited(node: Simulated, rate: float | None = 2.0) -> RawClient:
    change = QuotaChange(
        (EntityPart(CLIENT_ID, "test"),), [QuotaOp("controller_mutation_rate", rate)]
    )
    await change_quotas(node.worker.controller_client, change)
    return await node.connect()


def creation(*names: str, partitions: int = 10, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(name=n, num_partitions=partitions, replication_factor=1) for n in names
        ],
        timeout_ms=20_000,
        validate_only=validate_only,
    )


@simulated()
async def test_a_strict_request_is_refused_and_told_how_long_to_wait(node: Simulated) -> None:
    client = await limited(node)
    answer = await client.call(ApiKey.CREATE_TOPICS, creation("a", "b", "c", "d"), 7)
    codes = {t.name: t.error_code for t in answer.topics}
    assert codes == {"a": 0, "b": 0, "c": 0, "d": EXCEEDED}  # 22, 12, 2, -8
    assert answer.throttle_time_ms == pytest.approx(4_000, rel=0.02)
    (refused,) = [t for t in answer.topics if t.name == "d"]
    assert refused.error_message == "The throttling quota has been exceeded."
    began = node.now
    answer = await client.call(ApiKey.CREATE_TOPICS, creation("d"), 7)
    assert node.now - began >= 3.9  # the connection was muted
    assert answer.topics[0].error_code == 0
    assert answer.throttle_time_ms == 0


@simulated()
async def test_an_older_request_is_executed_and_its_client_then_left_alone(node: Simulated) -> None:
    client = await limited(node)
    answer = await client.call(ApiKey.CREATE_TOPICS, creation("a", "b", "c", "d"), 5)
    assert [t.error_code for t in answer.topics] == [0] * 4
    assert answer.throttle_time_ms == pytest.approx((40 - AT_ONCE) * 500, rel=0.02)
    assert len(node.worker.quotas.mutes) == 1
    await limited(node, None)
    with trio.fail_after(1):
        while node.worker.quotas.mutes:
            await trio.sleep(0.01)


@simulated()
async def test_deleting_and_adding_partitions_costs_as_much_and_what_is_not_done_costs_nothing(
    node: Simulated,
) -> None:
    client = await limited(node, 1e-6)
    for _ in range(20):
        answer = await client.call(
            ApiKey.CREATE_TOPICS, creation("v", partitions=1000, validate_only=True), 7
        )
        assert answer.topics[0].error_code == 0
        answer = await client.call(ApiKey.CREATE_TOPICS, creation("a b", partitions=1000), 7)
        assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        answer = await client.call(ApiKey.CREATE_TOPICS, creation("a", partitions=2**31 - 1), 7)
        assert answer.topics[0].error_code not in (0, EXCEEDED)
        asked = DeleteTopicsRequest(topics=[DeleteTopicState(name="x")], timeout_ms=20_000)
        answer = await client.call(ApiKey.DELETE_TOPICS, asked, 6)
        assert answer.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not node.worker.quotas.mutes
    await limited(node)
    answer = await client.call(ApiKey.CREATE_TOPICS, creation("a"), 7)  # 12
    more = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="a", count=25, assignments=None)], timeout_ms=20_000
    )
    answer = await client.call(ApiKey.CREATE_PARTITIONS, more, 3)  # -3
    assert answer.results[0].error_code == 0
    asked = DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=20_000)
    answer = await client.call(ApiKey.DELETE_TOPICS, asked, 6)
    assert answer.responses[0].error_code == EXCEEDED
    assert answer.throttle_time_ms == pytest.approx(1_500, rel=0.1)
    answer = await client.call(ApiKey.DELETE_TOPICS, asked, 6)
    assert answer.responses[0].error_code == 0


@simulated()
async def test_others_are_not_limited(node: Simulated) -> None:
    await limited(node, 1e-6)
    outcomes = await node.worker.controller_client.create_topics(
        RequestContext(client_id="else"), [], timeout_s=5
    )
    assert outcomes == []
    taken = await node.worker.controller_client.ask(
        TAKE_MUTATIONS,
        TakeMutations(RequestContext(client_id="else"), [1000, 1000], is_strict=True),
        timeout_s=5,
    )
    assert (taken.count, taken.throttle_s) == (2, 0)


@simulated()
async def test_every_worker_tells_who_has_used_most_of_what_the_controller_counts(
    node: Simulated,
) -> None:
    asked = DescribeQuotaUseRequest(most_used=10)
    client = await limited(node)
    assert (await client.call(ApiKey.DESCRIBE_QUOTA_USE, asked)).uses == []
    answer = await client.call(ApiKey.CREATE_TOPICS, creation("a", "b", partitions=10), 7)
    assert not any(topic.error_code for topic in answer.topics)
    (use,) = (await client.call(ApiKey.DESCRIBE_QUOTA_USE, asked)).uses
    assert (use.quota_key, use.user, use.client_id) == (
        "controller_mutation_rate",
        None,
        "test",
    )
    assert (use.quota, use.asked, use.delay_s) == (2.0, -1, 0.0)
    assert use.used == pytest.approx(20, abs=0.5)
    await client.call(ApiKey.CREATE_TOPICS, creation("c", partitions=10), 7)
    (use,) = (await client.call(ApiKey.DESCRIBE_QUOTA_USE, asked)).uses
    assert use.delay_s == pytest.approx(4, abs=0.3)
    await trio.sleep(30)
    assert (await client.call(ApiKey.DESCRIBE_QUOTA_USE, asked)).uses == []
