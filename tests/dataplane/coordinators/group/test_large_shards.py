"""Shards with many offsets, groups or members: no long step of the event loop.

When they are loaded, unloaded, deleted, or expire.
"""

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

import pytest
import trio

from metaquorum.dataplane.coordinators.client_budget import ClientBudget
from metaquorum.dataplane.coordinators.group.group_coordinator import GroupCoordinator
from metaquorum.dataplane.coordinators.group.group_shard import (
    CommitRequest,
    GroupConfigs,
    GroupShard,
    OffsetToCommit,
)
from metaquorum.dataplane.coordinators.group.record_formats import (
    GroupKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetKey,
    OffsetValue,
    encode_group_value,
    encode_key,
    encode_offset_value,
)
from metaquorum.dataplane.coordinators.runtime import CoordinatorRuntime
from metaquorum.dataplane.worker.context import Worker
from metaquorum.wire.messages.delete_groups import DeleteGroupsRequest
from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.types import ZERO_UUID
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.records import Record, encode_batch
from tests.counted_work import Steps
from tests.dataplane.serving import RawClient, append_unvalidated, in_trio, serving
from tests.hostile.slices import MAX_SLICE_OBJECTS, CountedClock

TOPIC = "t"
# A line takes some 50 ns: 5 ms.
MOST_LINES = 100_000


def check(steps: Steps) -> None:
    """Check that no step was long: it executes some lines, and creates or frees some objects."""
    assert steps.most_lines < MOST_LINES
    assert steps.most_objects < MAX_SLICE_OBJECTS


@contextmanager
def without_collections() -> Iterator[None]:
    """Turn the garbage collector off: its thresholds are those of the process."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def offsets_of_many_groups(number: int) -> tuple[bytes, bytes]:
    value = OffsetValue(number, 1, "", 1_700_000_000_000, -1, b"\1" * 16)
    key = OffsetKey(f"group-{number}", f"topic-{number % 100}", 0)
    return encode_key(key), encode_offset_value(value)


def offsets_of_one_group(number: int) -> tuple[bytes, bytes]:
    value = OffsetValue(number, 1, "", 1_700_000_000_000, -1, b"\1" * 16)
    key = OffsetKey("group", f"topic-{number % 100}", number // 100)
    return encode_key(key), encode_offset_value(value)


def groups_with_members(number: int) -> tuple[bytes, bytes]:
    members = [
        MemberMetadata(member_id=f"{number}-{index}", session_timeout=45_000, assignment=bytes(40))
        for index in range(5)
    ]
    value = GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol="range", leader="", members=members
    )
    return encode_key(GroupKey(f"group-{number}")), encode_group_value(value)


def members_of_one_group(number: int) -> tuple[bytes, bytes]:
    """Return the record of a group with 5000 members, in one row; others are small."""
    members = [
        MemberMetadata(member_id=f"{number}-{index}", session_timeout=45_000, assignment=bytes(40))
        for index in range(5000 if number == 0 else 1)
    ]
    value = GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol="range", leader="", members=members
    )
    return encode_key(GroupKey(f"group-{number}")), encode_group_value(value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "rows", "batch_records"),
    [
        (offsets_of_many_groups, 24_000, 20),
        (offsets_of_many_groups, 10_000, 1),
        (offsets_of_one_group, 40_000, 20),
        (groups_with_members, 1500, 20),
        (members_of_one_group, 20, 20),
    ],
)
@in_trio
async def test_a_large_shard_is_loaded_and_unloaded_in_slices(
    tmp_path: Path, row: object, rows: int, batch_records: int
) -> None:
    assert callable(row)
    async with serving(tmp_path, clock=CountedClock()) as served:
        client = await served.connect()
        await client.create(TOPIC)
        worker = served.worker
        partition = worker.replica_manager.by_name(TOPIC, 0)
        for first in range(0, rows, batch_records):
            records = [
                Record(index, worker.clock.now_ms(), *row(first + index))
                for index in range(batch_records)
            ]
            append_unvalidated(partition, encode_batch(records))
        memory, ids = ClientBudget("group.memory.max.bytes", lambda: 1 << 30), count()
        runtime = CoordinatorRuntime(
            TOPIC,
            worker,
            worker.replica_manager,
            lambda index: GroupShard(
                index,
                GroupConfigs(),
                memory,
                memory,
                lambda topic: ZERO_UUID,
                worker.clock.now_ms,
                lambda: str(next(ids)),
            ),
            load_bytes=5 << 20,
            time_limit_s=lambda: 5.0,
        )
        runtime.look()
        steps = Steps()
        with without_collections():
            async with trio.open_nursery() as nursery:
                with steps.watching():
                    nursery.start_soon(runtime.run)
                    while not runtime.active:  # asleep while a thread reads, whose objects count
                        await trio.sleep(0.001)
                check(steps)
                shard = runtime.active[0]
                listed = sum(map(len, shard.group_id_pieces()))
                assert listed == (1 if row is offsets_of_one_group else rows)
                del shard
                steps.clear()
                with steps.watching():
                    partition.retire()
                    runtime.look()
                    while worker.slicer.has_background_work:
                        await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        assert memory.used_bytes == 0
        check(steps)


GROUP = "group"
OFFSETS = 16_000


async def commit_many(worker: Worker) -> None:
    """Commit OFFSETS offsets of one group."""
    clock = worker.clock
    for first in range(0, OFFSETS, 200):
        rows = [
            OffsetToCommit(f"topic-{number % 100}", bytes(16), number // 100, 5, -1, "")
            for number in range(first, first + 200)
        ]
        request = CommitRequest(GROUP, "", None, -1, rows)
        worker.groups.call(
            GROUP,
            lambda shard, request=request: shard.commit(  # type: ignore[misc]
                clock.monotonic(), clock.now_ms(), request
            ),
            lambda _: None,
            lambda code: pytest.fail(str(code)),
        )
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def one_large_group(tmp_path: Path) -> AsyncIterator[tuple[RawClient, Worker]]:
    clock = CountedClock()
    async with serving(tmp_path, clock=clock, offsets_topic_num_partitions=1) as served:
        client, worker = await served.connect(), served.worker
        asked = FindCoordinatorRequest(coordinator_keys=[GROUP])
        await client.call(ApiKey.FIND_COORDINATOR, asked)
        while not worker.groups.shards:
            await trio.sleep(0.01)
        await commit_many(worker)
        offsets = worker.groups.shard(GROUP).offsets
        while offsets.offset_count < OFFSETS:
            await trio.sleep(0.01)
        yield client, worker


@pytest.mark.slow
@in_trio
async def test_a_group_with_many_offsets_is_deleted_in_slices(tmp_path: Path) -> None:
    async with one_large_group(tmp_path) as (client, worker):
        steps = Steps()
        with without_collections():
            asked = DeleteGroupsRequest(groups_names=[GROUP])
            with steps.watching():
                (deleted,) = (await client.call(ApiKey.DELETE_GROUPS, asked)).results
        assert deleted.error_code == ErrorCode.NONE
        assert worker.groups.shard(GROUP).offsets.offset_count == 0
        check(steps)


@pytest.mark.slow
@in_trio
async def test_offsets_of_deleted_topics_are_removed_in_slices(tmp_path: Path) -> None:
    async with one_large_group(tmp_path) as (_, worker):
        steps = Steps()
        with without_collections():
            other = GroupCoordinator(
                worker, worker.replica_manager, worker.groups.configs, lambda: "id"
            )
            async with trio.open_nursery() as nursery:
                with steps.watching():
                    nursery.start_soon(other.run)
                    while not other.shards or other.shards[0].offsets.offset_count:
                        await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
        check(steps)
