"""Facts about a group from several workers, some of which do not answer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from metaquorum.client import BrokerError, TopicPartition, connect
from metaquorum.client.administration.topic_survival import Level
from metaquorum.client.groups.admin import GroupAdmin
from metaquorum.client.groups.explanation.sentences import explain
from metaquorum.wire.primitives.errors import ErrorCode
from tests.dataplane.handlers.groups.clients import CONFIGS, GroupClient
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import batch_of


@asynccontextmanager
async def admin_of(cluster: Together) -> AsyncIterator[GroupAdmin]:
    async with connect([("node-1", 9092)], runtime=cluster.runtime, timeout_s=10) as connected:
        yield GroupAdmin(connected)


async def with_topics(cluster: Together) -> int:
    """Create topics led by each worker, with commits of group g; return its coordinator."""
    await cluster.create_offsets_topic()
    for number in (1, 2, 3):
        await cluster.create(f"t{number}", (number,))
        client = await cluster.connect(number)
        await client.produce(f"t{number}", batch_of(b"1", b"2", b"3"))
    found = await GroupClient(await cluster.connect(1)).find("g")
    groups = cluster.worker(found.node_id).groups
    await cluster.until(lambda: not groups.is_loading and groups.shards)
    client = GroupClient(await cluster.connect(found.node_id))
    for number in (1, 2, 3):
        assert await client.commit(number, topic=f"t{number}") == [ErrorCode.NONE]
    return int(found.node_id)


def lags(facts: Any) -> dict[str, int | None]:
    return {each.where.topic: each.now.lag for each in facts.partitions}


@together(**CONFIGS)
async def test_progress_is_read_twice_from_every_leader(cluster: Together) -> None:
    await with_topics(cluster)
    async with admin_of(cluster) as admin:
        began = cluster.world.now
        facts = await admin.gather_facts("g", sample_s=5.0)
        assert cluster.world.now - began >= 5
        assert lags(facts) == {"t1": 2, "t2": 1, "t3": 0}
        assert [each.growth_per_s for each in facts.partitions] == [0, 0, 0]
        assert [each.age_s == 0 for each in facts.partitions] == [False, False, True]
        assert facts.failures == []
        with pytest.raises(BrokerError) as refused:
            await admin.gather_facts("none", sample_s=0)
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


@together(**CONFIGS)
async def test_facts_of_leaders_that_hang_are_missing_and_no_more(cluster: Together) -> None:
    coordinator = await with_topics(cluster)
    lost = next(number for number in (2, 3) if number != coordinator)
    async with admin_of(cluster) as admin:
        await admin.gather_facts("g", sample_s=0)
        await cluster.kill(lost)
        facts = await admin.gather_facts("g", sample_s=0)  # before the controller fences it
        assert lags(facts)[f"t{lost}"] is None
        assert sorted(each is None for each in lags(facts).values()) == [False, False, True]


@together(offsets_topic_replication_factor=1, **CONFIGS)
async def test_partitions_whose_groups_cannot_be_listed_are_named(cluster: Together) -> None:
    coordinator = await with_topics(cluster)
    async with admin_of(cluster) as admin:
        found = await admin.list_groups()
        assert ([each.group for each in found.groups], found.lost_partitions) == (["g"], [])
        lost = next(number for number in (2, 3) if number != coordinator)
        topic = cluster.worker(1).image.topic("__consumer_offsets")
        assert topic is not None
        led = [index for index, each in enumerate(topic.partitions) if each.leader == lost]
        assert led
        await cluster.kill(lost)
        await cluster.until(lambda: cluster.state(f"t{lost}", 1).leader < 0)
        found = await admin.list_groups()
        assert [each.group for each in found.groups] == ["g"]
        assert (found.failures, found.lost_partitions) == ({}, led)


@together(**CONFIGS)
async def test_facts_of_lost_workers_are_missing_and_no_more(cluster: Together) -> None:
    coordinator = await with_topics(cluster)
    lost = next(number for number in (2, 3) if number != coordinator)
    await cluster.kill(lost)
    await cluster.until(lambda: cluster.state(f"t{lost}", 1).leader < 0)
    async with admin_of(cluster) as admin:
        facts = await admin.gather_facts("g", sample_s=0)
        assert lags(facts)[f"t{lost}"] is None
        assert sorted(each is None for each in lags(facts).values()) == [False, False, True]
        (found,) = [each for each in explain(facts) if each.about == "partitions"]
        assert found.level is Level.BAD
        assert found.text == f"nothing can be read from t{lost}:0: no leader, or deleted"
        activities = await admin.describe_activity(["g", "none"])
        assert getattr(activities["none"], "code", None) is ErrorCode.GROUP_ID_NOT_FOUND
        unread = await admin.describe_unread({TopicPartition("t1", 0): 1})
        assert getattr(unread[TopicPartition("t1", 0)], "records", None) == 2
