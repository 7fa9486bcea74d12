"""Metrics of groups: states, counts, and lags with the ends of partitions that others lead."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from metaquorum.dataplane.coordinators.group.record_formats import (
    OffsetKey,
    OffsetValue,
    encode_offset_value,
)
from metaquorum.dataplane.coordinators.partitioning import partition_of
from metaquorum.dataplane.prometheus import group_lags
from metaquorum.dataplane.prometheus.exposition import Page
from metaquorum.dataplane.prometheus.group_lags import REFRESH_S, GroupLags
from metaquorum.dataplane.prometheus.groups import add_groups
from metaquorum.dataplane.prometheus.slices import Slices
from metaquorum.wire.messages.delete_groups import DeleteGroupsRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.counted_work import Steps
from tests.dataplane.handlers.groups.clients import CONFIGS, GroupClient
from tests.dataplane.prometheus.test_collector import read, scrape, value
from tests.dataplane.replication.together import Together, run_together, together
from tests.dataplane.serving import WORLD_BEGAN_MS, batch_of, in_trio, serving

STATES = "kafka_coordinator_group_groupmetadatamanager_num"
COUNTS = "kafka_server_group_coordinator_metrics_"
LAG = "metaquorum_group_lag_"


@in_trio
async def test_states_counts_and_lags_of_groups_are_collected(tmp_path: Path) -> None:
    configs = CONFIGS | {"offsets_topic_num_partitions": 2}
    async with serving(tmp_path, metrics=True, **configs) as served:
        raw = await served.connect()
        client = GroupClient(raw)
        await client.find("g")
        await raw.create("t", 2)
        for partition in (0, 1):
            await raw.produce("t", batch_of(b"1", b"2", b"3"), partition=partition)
        while served.worker.groups.is_loading:
            await trio.lowlevel.checkpoint()
        await client.stable()
        for group_id, offset in (("other", 1), ("gone", 2)):
            assert await client.commit(offset, group_id=group_id) == [ErrorCode.NONE]
        deletion = DeleteGroupsRequest(groups_names=["gone"])
        await raw.call(ApiKey.DELETE_GROUPS, deletion)
        samples = await scrape(served)
        assert value(samples, STATES + "groups") == 2
        assert value(samples, STATES + "groupsstable") == 1
        assert value(samples, STATES + "groupsempty") == 1
        assert value(samples, STATES + "groupspreparingrebalance") == 0
        assert value(samples, STATES + "offsets") == 1
        assert value(samples, COUNTS + "offset_commit_count") == 2
        assert value(samples, COUNTS + "offset_deletion_count") == 1
        assert value(samples, COUNTS + "offset_expiration_count") == 0
        assert value(samples, COUNTS + "group_completed_rebalance_count") == 1
        assert value(samples, "metaquorum_group_rebalance_ms_count") == 1
        assert value(samples, COUNTS + "num_partitions", state="active") == 2
        assert value(samples, COUNTS + "num_partitions", state="failed") == 0
        assert value(samples, "metaquorum_group_partition_loads_total") == 2
        assert value(samples, COUNTS + "partition_load_time_max") > 0
        assert value(samples, COUNTS + "partition_load_time_avg") > 0
        assert value(samples, "metaquorum_group_memory_bytes") > 1000
        of = {"group": "other", "topic": "t", "partition": 0}
        assert value(samples, LAG + "records", **of) == 2
        assert value(samples, LAG + "seconds", **of) > 1000  # since the simulated epoch
        assert value(samples, "metaquorum_metrics_left_out", what="group lags") == 0


@pytest.mark.slow
@in_trio
async def test_many_offsets_do_not_hold_up_the_loop(tmp_path: Path) -> None:
    async with serving(tmp_path, metrics=True, **CONFIGS) as served:
        raw = await served.connect()
        await GroupClient(raw).find("g")
        await raw.create("t", 100)
        while served.worker.groups.is_loading:
            await trio.lowlevel.checkpoint()
        (shard, *_) = served.worker.groups.shards.values()
        for group in range(200):
            for partition in range(100):
                key = OffsetKey(f"g{group}", "t", partition)
                shard.offsets.replay(key, encode_offset_value(OffsetValue(0, -1, "", 1)))
        worker = served.worker
        steps = Steps(lambda task: "prometheus" in task)
        with steps.watching():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(GroupLags(worker).collect, Slices(worker.clock))
        assert len(steps) > 40
        assert steps.most_lines < steps.all_lines * 0.2
        found = await GroupLags(worker).collect(Slices(worker.clock))
        assert (len(found.lags), found.left_out) == (1000, 19_000)


async def page_of(worker: Any, lags: GroupLags) -> Mapping[Any, float]:
    page = Page()
    await add_groups(page, worker, lags, Slices(worker.clock))
    return read(b"".join(page.texts()).decode())


def lags_in(samples: Mapping[Any, float], unit: str = "records") -> dict[tuple[str, str], float]:
    return {
        (of["group"], of["topic"]): value
        for (name, labels), value in samples.items()
        if name == LAG + unit
        for of in (dict(labels),)
    }


async def with_topics(cluster: Together, count: int = 3) -> tuple[Any, GroupClient]:
    """Create topics with different leaders; return the coordinator of group g, and its client."""
    await cluster.create_offsets_topic()
    for number in range(1, count + 1):
        await cluster.create(f"t{number}", (number,))
        client = await cluster.connect(number)
        for batch in range(3):
            await client.produce(f"t{number}", batch_of(b"x", timestamp=WORLD_BEGAN_MS + batch))
    found = await GroupClient(await cluster.connect(1)).find("g")
    worker = cluster.worker(found.node_id)
    await cluster.until(lambda: not worker.groups.is_loading and worker.groups.shards)
    return worker, GroupClient(await cluster.connect(found.node_id))


@together(**CONFIGS)
async def test_ends_are_those_of_the_leaders_at_most_each_ten_seconds(cluster: Together) -> None:
    worker, client = await with_topics(cluster)
    for number in (1, 2, 3):
        assert await client.commit(number, topic=f"t{number}") == [ErrorCode.NONE]
    lags = GroupLags(worker)
    samples = await page_of(worker, lags)
    assert lags_in(samples) == {("g", "t1"): 2, ("g", "t2"): 1, ("g", "t3"): 0}
    seconds = lags_in(samples, "seconds")
    now_s = (worker.clock.now_ms() - WORLD_BEGAN_MS) / 1000
    assert seconds["g", "t1"] == pytest.approx(now_s, abs=1)
    assert seconds["g", "t3"] == 0
    for number in (1, 2, 3):
        leader = await cluster.connect(number)
        await leader.produce(f"t{number}", batch_of(b"x"))
    assert lags_in(await page_of(worker, lags)) == lags_in(samples)
    await cluster.world.sleep(REFRESH_S)
    assert lags_in(await page_of(worker, lags)) == {
        ("g", "t1"): 3,
        ("g", "t2"): 2,
        ("g", "t3"): 1,
    }


@together(**CONFIGS)
async def test_a_leader_that_does_not_answer_has_no_lags(cluster: Together) -> None:
    worker, client = await with_topics(cluster)
    for number in (1, 2, 3):
        await client.commit(number, topic=f"t{number}")
    lags = GroupLags(worker)
    await page_of(worker, lags)
    lost = 1 + worker.worker_id % 3
    await cluster.kill(lost)
    await cluster.world.sleep(REFRESH_S)
    samples = await page_of(worker, lags)
    assert ("g", f"t{lost}") not in lags_in(samples)
    assert len(lags_in(samples)) == 2
    assert value(samples, "metaquorum_metrics_left_out", what="group lags") == 1
    await cluster.restart(lost)
    await cluster.until(lambda: cluster.state(f"t{lost}", worker.worker_id).leader == lost)
    await cluster.world.sleep(REFRESH_S)
    assert len(lags_in(await page_of(worker, lags))) == 3


def test_the_largest_of_many_lags_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lags, "MAX_LAGS", 2)

    async def scenario(cluster: Together) -> None:
        worker, client = await with_topics(cluster)
        for number in (1, 2, 3):
            await client.commit(number, topic=f"t{number}")
        lags = GroupLags(worker)
        samples = await page_of(worker, lags)
        assert lags_in(samples) == {("g", "t1"): 2, ("g", "t2"): 1}
        assert lags_in(samples, "seconds") == {}
        assert value(samples, "metaquorum_metrics_left_out", what="group lags") == 1
        await cluster.world.sleep(REFRESH_S)
        samples = await page_of(worker, lags)
        assert lags_in(samples, "seconds").keys() == lags_in(samples).keys()
        monkeypatch.setattr(group_lags, "MAX_OFFSETS_LOOKED_AT", 1)
        await cluster.world.sleep(REFRESH_S)
        samples = await page_of(worker, lags)
        assert len(lags_in(samples)) == 1
        assert value(samples, "metaquorum_metrics_left_out", what="group lags") == 2

    run_together(scenario, **CONFIGS)


@together(**CONFIGS)
async def test_groups_with_long_ids_have_no_rows(cluster: Together) -> None:
    """A thousand of them would make a page of 60 MB."""
    worker, client = await with_topics(cluster)
    count = len(worker.image.topic("__consumer_offsets").partitions)
    long = next(
        "l" * length
        for length in range(256, 10_000)
        if partition_of("l" * length, count) == partition_of("g", count)
    )
    for group_id in ("g", long):
        await client.commit(1, topic="t1", group_id=group_id)
    samples = await page_of(worker, GroupLags(worker))
    assert lags_in(samples) == {("g", "t1"): 2}
    assert value(samples, "metaquorum_metrics_left_out", what="group lags") == 1
