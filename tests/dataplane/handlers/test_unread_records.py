"""DescribeUnreadRecords through a node: records, bytes and the time of the first unread one."""

from pathlib import Path
from typing import Any

import pytest

from metaquorum.dataplane.handlers import unread_records
from metaquorum.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from metaquorum.wire.messages.describe_unread_records import (
    DescribeUnreadRecordsRequest,
    PositionInPartition,
    PositionsInTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.test_cold_reads import ColdDisk
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import (
    RawClient,
    Simulated,
    append_unvalidated,
    batch_of,
    in_trio,
    run_simulated,
    serving,
    simulated,
)

VALUE = bytes(300_000)


async def unread(client: RawClient, *offsets: int, topic: str = "t", partition: int = 0) -> Any:
    rows = [PositionInPartition(partition_index=partition, offset=each) for each in offsets]
    asked = DescribeUnreadRecordsRequest(topics=[PositionsInTopic(name=topic, partitions=rows)])
    answer = await client.call(ApiKey.DESCRIBE_UNREAD_RECORDS, asked)
    assert answer.error_code == ErrorCode.NONE
    (result,) = answer.topics
    assert result.name == topic
    return result.partitions


@simulated()
async def test_unread_records_are_measured_from_each_offset(node: Simulated) -> None:
    client = await node.connect()
    await client.create("t", segment_bytes=1 << 20)
    batches = [batch_of(VALUE, VALUE, timestamp=1000 * (1 + n)) for n in range(4)]
    for batch in batches:
        await client.produce("t", batch)
    assert len(node.worker.replica_manager.by_name("t", 0).log.segments) == 4
    size = len(batches[0])
    rows = await unread(client, 0, 2, 3, 6, 8, 99, -1)
    assert {(row.log_start_offset, row.high_watermark) for row in rows} == {(0, 8)}
    assert [(row.record_count, row.size_bytes // size, row.first_timestamp_ms) for row in rows] == [
        (8, 4, 1000),
        (6, 3, 2000),
        (5, 3, 2000),  # the batch of the first unread record counts as a whole
        (2, 1, 4000),
        (0, 0, -1),
        (0, 0, -1),
        (8, 4, 1000),
    ]


@simulated()
async def test_deleted_records_are_not_unread(node: Simulated) -> None:
    client = await node.connect()
    await client.create("t")
    for number in range(4):
        await client.produce("t", batch_of(VALUE, timestamp=1000 * (1 + number)))
    rows = [DeleteRecordsPartition(partition_index=0, offset=3)]
    asked = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="t", partitions=rows)], timeout_ms=10_000
    )
    await client.call(ApiKey.DELETE_RECORDS, asked)
    (row,) = await unread(client, 1)
    assert (row.log_start_offset, row.record_count, row.first_timestamp_ms) == (3, 1, 4000)


@simulated()
async def test_a_batch_with_append_time_has_that_time(node: Simulated) -> None:
    client = await node.connect()
    await client.create("t", message_timestamp_type="LogAppendTime")
    appended = await client.produce("t", batch_of(VALUE, timestamp=1000))
    (row,) = await unread(client, 0)
    assert row.first_timestamp_ms == appended.log_append_time_ms > 1000


@simulated()
async def test_a_batch_that_compaction_has_marked_has_its_largest_timestamp(
    node: Simulated,
) -> None:
    client = await node.connect()
    await client.create("t")
    partition = node.worker.replica_manager.by_name("t", 0)
    append_unvalidated(partition, batch_of(b"x", timestamp=1000, delete_horizon_ms=9000))
    (row,) = await unread(client, 0)
    assert row.first_timestamp_ms == 1000


@together()
async def test_errors_are_those_of_partitions(cluster: Together) -> None:
    await cluster.create("t", (1, 2))
    clients = {node_id: await cluster.connect(node_id) for node_id in (1, 2, 3)}
    leader = cluster.state("t", 1).leader
    for node_id, client in clients.items():
        (row,) = await unread(client, 0)
        is_leader = node_id == leader
        assert (row.error_code == ErrorCode.NONE) == is_leader
        assert row.record_count == (0 if is_leader else -1)
    (row,) = await unread(clients[leader], 0, topic="none")
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_request_for_too_many_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_records, "MAX_ROWS", 3)

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        await client.create("t")
        assert len(await unread(client, 0, 0)) == 2
        rows = [PositionInPartition() for _ in range(3)]
        asked = DescribeUnreadRecordsRequest(topics=[PositionsInTopic(name="t", partitions=rows)])
        answer = await client.call(ApiKey.DESCRIBE_UNREAD_RECORDS, asked)
        assert (answer.error_code, answer.topics) == (ErrorCode.INVALID_REQUEST, [])

    run_simulated(scenario)


@in_trio
async def test_the_event_loop_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ColdDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await client.create("t", 2, segment_bytes=1 << 20)
        for partition in (0, 1):
            for number in range(30):
                batch = batch_of(bytes(60_000), timestamp=1000 + number)
                await client.produce("t", batch, partition=partition)
        disk.cool()
        (row,) = await unread(client, 5)
        assert (row.record_count, row.first_timestamp_ms) == (25, 1005)
        assert disk.blocked == []
        assert disk.read_beside > 0
        # Beyond the limit of a request, rows have no time and no size.
        disk.cool()
        monkeypatch.setattr(unread_records, "MAX_COLD_READS", 0)
        (row,) = await unread(client, 5, partition=1)
        assert (row.error_code, row.record_count) == (ErrorCode.NONE, 25)
        assert (row.size_bytes, row.first_timestamp_ms) == (-1, -1)
        assert disk.blocked == []
