"""Changes of configs, partitions and logs, and the node's behaviour after them."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from metaquorum.dataplane.handlers import records
from metaquorum.dataplane.handlers.partitions_api import MAX_DESCRIBED_PARTITIONS
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.runtime import sleep
from metaquorum.runtime.system import RealDisk
from metaquorum.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from metaquorum.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from metaquorum.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from metaquorum.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from metaquorum.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from metaquorum.wire.messages.list_config_resources import ListConfigResourcesRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.serving import (
    RawClient,
    Served,
    Simulated,
    batch_of,
    in_trio,
    run_simulated,
    serving,
    simulated,
)
from tests.nodes import PATIENCE_S

T = TypeVar("T")

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
ALL = ""


async def change(
    client: RawClient, type_: int, name: str, configs: Mapping[str, object | None], **options: Any
) -> int:
    """Alter configs; None deletes one. Return the resource's error code."""
    resource = AlterConfigsResource(
        resource_type=type_,
        resource_name=name,
        configs=[
            AlterableConfig(name=config, config_operation=DELETE)
            if value is None
            else AlterableConfig(name=config, config_operation=SET, value=str(value))
            for config, value in configs.items()
        ],
    )
    asked = IncrementalAlterConfigsRequest(resources=[resource], **options)
    answer = await client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, asked)
    return int(answer.responses[0].error_code)


async def sources(client: RawClient, type_: int, name: str, config: str) -> list[tuple[Any, ...]]:
    """Return (name, value, source) of the config and of its synonyms."""
    resource = DescribeConfigsResource(
        resource_type=type_, resource_name=name, configuration_keys=[config]
    )
    asked = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    answer = await client.call(ApiKey.DESCRIBE_CONFIGS, asked)
    return [
        place
        for entry in answer.results[0].configs
        for place in (
            (entry.name, entry.value, entry.config_source),
            *((s.name, s.value, s.source) for s in entry.synonyms),
        )
    ]


async def delete_records(client: RawClient, topic: str, offset: int) -> tuple[int, int]:
    """Delete records; return the error code and the low watermark."""
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [DeleteRecordsTopic(name=topic, partitions=[partition])]
    asked = DeleteRecordsRequest(topics=topics, timeout_ms=10_000)
    row = (await client.call(ApiKey.DELETE_RECORDS, asked)).topics[0].partitions[0]
    return row.error_code, row.low_watermark


class HeldDisk(RealDisk):
    """A disk whose calls in worker threads wait for `go_on` while it `holds`."""

    def __init__(self) -> None:
        self.holds = False
        self.is_held = trio.Event()
        self.go_on = threading.Event()

    async def run(self, function: Callable[[], T]) -> T:
        if self.holds:
            self.is_held.set()
            return await super().run(lambda: (self.go_on.wait(PATIENCE_S), function())[1])
        return await super().run(function)


async def many_segments(served: Served, client: RawClient, count: int) -> PartitionLog:
    """Create topic "t" with sealed segments of one record each; return its log."""
    await client.create("t")
    log: PartitionLog = served.worker.replica_manager.by_name("t", 0).log
    for number in range(count):
        await client.produce("t", batch_of(b"old"))
        log.roll(number)
    return log


@in_trio
async def test_a_partition_takes_records_while_its_segments_are_deleted(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with serving(tmp_path, disk=disk) as served, trio.open_nursery() as nursery:
        client, other = await served.connect(), await served.connect()
        log = await many_segments(served, client, 3)

        async def delete() -> None:
            assert await delete_records(other, "t", -1) == (0, 3)

        disk.holds = True
        nursery.start_soon(delete)
        await disk.is_held.wait()
        try:
            assert (await client.produce("t", batch_of(b"new"))).base_offset == 3
            assert log.segment_count == 4
        finally:
            disk.holds = False
            disk.go_on.set()


@in_trio
async def test_records_are_deleted_although_their_segments_would_take_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "DELETION_S", 0.0)
    async with serving(tmp_path) as served:
        client = await served.connect()
        log = await many_segments(served, client, 3)
        assert await delete_records(client, "t", -1) == (0, 3)
        assert (await client.fetch("t", 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert log.segment_count == 4
        assert await log.delete_old_segments(RealDisk()) == 3  # as retention does


@in_trio
async def test_a_workers_configs_are_in_force_for_all_topics_that_have_none(tmp_path: Path) -> None:
    async with serving(tmp_path, log_retention_ms=1000) as served:
        client = await served.connect()
        await client.create("own", retention_ms=5)
        await client.create("none")

        def in_force() -> list[int]:
            partitions = served.worker.replica_manager
            return [partitions.by_name(t, 0).config.retention_ms for t in ("own", "none")]

        assert in_force() == [5, 1000]
        assert await change(client, BROKER, ALL, {"log.retention.ms": 2000}) == 0
        assert in_force() == [5, 2000]
        assert await change(client, BROKER, "1", {"log.retention.ms": 3000}) == 0
        assert in_force() == [5, 3000]
        assert await sources(client, TOPIC, "none", "retention.ms") == [
            ("retention.ms", "3000", 2),
            ("log.retention.ms", "3000", 2),
            ("log.retention.ms", "2000", 3),
            ("log.retention.ms", "1000", 4),
            ("log.retention.hours", "168", 5),
        ]
        assert await sources(client, BROKER, ALL, "log.retention.ms") == [
            ("log.retention.ms", "2000", 3),
            ("log.retention.ms", "2000", 3),
        ]
        assert await sources(client, BROKER, ALL, "log.roll.ms") == []
        assert await change(client, TOPIC, "own", {"retention.ms": None}) == 0
        assert in_force() == [3000, 3000]
        await client.create("later")
        assert served.worker.replica_manager.by_name("later", 0).config.retention_ms == 3000
    async with serving(tmp_path, log_retention_ms=1000) as served:
        assert served.worker.replica_manager.by_name("none", 0).config.retention_ms == 3000
        client = await served.connect()
        for name in ("1", ALL):
            assert await change(client, BROKER, name, {"log.retention.ms": None}) == 0
        assert served.worker.replica_manager.by_name("none", 0).config.retention_ms == 1000


@pytest.mark.parametrize(
    "name",
    ["leader.replication.throttled.rate", "replica.alter.log.dirs.io.max.bytes.per.second"],
)
@simulated()
async def test_limits_of_replication_are_described_only_while_they_are_set(
    served: Simulated, name: str
) -> None:
    """As in Kafka: Cruise Control sets its throttle only on workers without this config."""
    client = await served.connect()
    assert await sources(client, BROKER, "1", name) == []
    assert await change(client, BROKER, ALL, {name: 777}) == 0
    shown = (name, "777", 3)
    assert await sources(client, BROKER, "1", name) == [shown, shown]
    assert await change(client, BROKER, "1", {name: 555}) == 0
    assert await sources(client, BROKER, "1", name) == [*[(name, "555", 2)] * 2, shown]
    for each in ("1", ALL):
        assert await change(client, BROKER, each, {name: None}) == 0
    assert await sources(client, BROKER, "1", name) == []


@simulated()
async def test_throttled_replicas_have_no_synonyms_in_configs_of_workers(served: Simulated) -> None:
    client = await served.connect()
    await client.create("t")
    name = "leader.replication.throttled.replicas"
    assert await sources(client, TOPIC, "t", name) == [(name, "", 5)]
    assert await change(client, TOPIC, "t", {name: "0:1"}) == 0
    assert await sources(client, TOPIC, "t", name) == [(name, "0:1", 1)] * 2


@in_trio
async def test_limits_of_connections_count_for_the_next_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        assert await change(client, BROKER, "1", {"max.connections.per.ip": 2}) == 0
        second = await served.connect()
        await second.create("t")
        assert await (await served.connect()).is_closed()
        assert await change(client, BROKER, "1", {"max.connections.per.ip": None}) == 0
        third = await served.connect()
        await third.create("u")


@in_trio
async def test_logs_remember_producers_for_as_long_as_the_worker_says(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        plog = served.worker.replica_manager.by_name("t", 0).log
        assert plog.config.producer_id_expiration_ms == 86_400_000
        assert await change(client, BROKER, ALL, {"producer.id.expiration.ms": 120_000}) == 0
        assert plog.config.producer_id_expiration_ms == 120_000


@in_trio
async def test_resources_with_configs_are_listed(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")

        async def listed(*types: int) -> tuple[int, list[tuple[int, str]]]:
            asked = ListConfigResourcesRequest(resource_types=list(types))
            answer = await client.call(ApiKey.LIST_CONFIG_RESOURCES, asked)
            found = [(r.resource_type, r.resource_name) for r in answer.config_resources]
            return answer.error_code, found

        loggers = 8
        assert await listed() == (0, [(BROKER, "1"), (loggers, "1"), (TOPIC, "t")])
        assert await listed(loggers) == (0, [(loggers, "1")])
        assert await listed(TOPIC) == (0, [(TOPIC, "t")])
        assert await listed(16) == (0, [])
        assert await listed(TOPIC, 99) == (ErrorCode.UNSUPPORTED_VERSION, [])
        oldest = ListConfigResourcesRequest()  # client metrics
        assert (await client.call(ApiKey.LIST_CONFIG_RESOURCES, oldest, 0)).config_resources == []


@in_trio
async def test_added_partitions_are_led_when_the_answer_comes(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t", 2)
        grown = [CreatePartitionsTopic(name="t", count=5, assignments=None)]
        for version in range(4):
            grown[0].count += 1
            asked = CreatePartitionsRequest(topics=grown, timeout_ms=10_000)
            answer = await client.call(ApiKey.CREATE_PARTITIONS, asked, version)
            assert answer.results[0].error_code == 0
            row = await client.produce("t", batch_of(b"v"), partition=grown[0].count - 1)
            assert row.base_offset == 0
        twice = CreatePartitionsRequest(topics=grown * 2, timeout_ms=10_000)
        (result,) = (await client.call(ApiKey.CREATE_PARTITIONS, twice)).results
        assert result.error_code == ErrorCode.INVALID_REQUEST
        late = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="t", count=99)], timeout_ms=0
        )
        (result,) = (await client.call(ApiKey.CREATE_PARTITIONS, late)).results
        assert result.error_code == ErrorCode.REQUEST_TIMED_OUT


@in_trio
async def test_topics_are_described_in_pages(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        for name, count in (("a", 2), ("b", 1), ("c", MAX_DESCRIBED_PARTITIONS + 1)):
            await client.create(name, count)

        async def page(
            names: str, limit: int, cursor: tuple[str, int] | None = None
        ) -> tuple[list[tuple[str, int, int]], tuple[str, int] | None]:
            """Return (topic, error, partitions) of each topic, and the next cursor."""
            asked = DescribeTopicPartitionsRequest(
                topics=[TopicRequest(name=name) for name in names],
                response_partition_limit=limit,
                cursor=cursor and Cursor(topic_name=cursor[0], partition_index=cursor[1]),
            )
            answer = await client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, asked)
            after = answer.next_cursor
            return (
                [(t.name, t.error_code, len(t.partitions)) for t in answer.topics],
                after and (after.topic_name, after.partition_index),
            )

        unknown, bad = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST
        assert await page("ba", 9) == ([("a", 0, 2), ("b", 0, 1)], None)
        assert await page("ba", 2) == ([("a", 0, 2)], ("b", 0))
        assert await page("ba", 1, ("a", 1)) == ([("a", 0, 1)], ("b", 0))
        assert await page("", 2, ("a", 1)) == ([("a", 0, 1), ("b", 0, 1)], ("c", 0))
        assert await page("ax", 2) == ([("a", 0, 2)], ("x", 0))
        assert await page("ax", 3) == ([("a", 0, 2), ("x", unknown, 0)], None)
        assert await page("a", 3, ("b", 0)) == ([("a", bad, 0)], None)
        assert await page("a", 3, ("a", -1)) == ([("a", bad, 0)], None)
        assert await page("a", 0) == ([("a", 0, 1)], ("a", 1))
        limit = MAX_DESCRIBED_PARTITIONS
        assert await page("c", 2 * limit) == ([("c", 0, limit)], ("c", limit))


@simulated()
async def test_files_of_deleted_records_go_after_the_delay(served: Simulated) -> None:
    client = await served.connect()
    await client.create("t", internal_segment_bytes=300, file_delete_delay_ms=5000)
    for number in range(10):
        await client.produce("t", batch_of(b"%d" % number * 60))
    disk = served.worker.disk
    folder = served.worker.replica_manager.by_name("t", 0).log.folder
    before = len(disk.list(folder))
    assert await delete_records(client, "t", 9) == (0, 9)
    waiting = [name for name in disk.list(folder) if name.endswith(".deleted")]
    assert len([name for name in waiting if ".log" in name]) == 4
    await sleep(served.runtime.clock, 4)
    assert set(waiting) <= set(disk.list(folder))
    await sleep(served.runtime.clock, 3)
    assert not [name for name in disk.list(folder) if name.endswith(".deleted")]
    assert len(disk.list(folder)) < before


@pytest.mark.slow
def test_deleted_records_do_not_come_back_after_a_loss_of_power() -> None:
    async def scenario(served: Simulated) -> None:
        client = await served.connect()
        await client.create("inside", internal_segment_bytes=300)
        await client.create("whole", internal_segment_bytes=300)
        for number in range(10):
            for topic in ("inside", "whole"):
                await client.produce(topic, batch_of(b"%d" % number * 60))
        assert await delete_records(client, "inside", 5) == (0, 5)
        assert await delete_records(client, "inside", 4) == (0, 5)
        assert await delete_records(client, "whole", -1) == (0, 10)
        out = int(ErrorCode.OFFSET_OUT_OF_RANGE)
        assert await delete_records(client, "whole", 11) == (out, -1)
        assert served.worker.replica_manager.by_name("whole", 0).log.segment_count == 1
        served.on_machine.machine.power_cut()
        await sleep(served.runtime.clock, 1)
        await served.on_machine.start()
        client = await served.connect()
        assert len(await client.values("inside", 5)) == 5
        assert (await client.fetch("inside", 4)).error_code == out
        assert await client.values("whole", 10) == []
        row = await client.produce("whole", batch_of(b"after"))
        assert (row.base_offset, row.log_start_offset) == (10, 10)

    for seed in range(1, 9):
        run_simulated(scenario, seed=seed)
