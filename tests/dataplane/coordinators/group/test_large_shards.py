"""Shards with many offsets, groups or members: no long step of the event loop.

When they are loaded, unloaded, deleted, or expire.
"""

import gc
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

import pytest
import trio

from dataplane.coordinators.group.group_coordinator import GroupCoordinator
from dataplane.coordinators.group.group_shard import (
    CommitRequest,
    GroupConfigs,
    GroupShard,
    OffsetToCommit,
)
from dataplane.coordinators.group.members import GroupMemory
from dataplane.coordinators.group.record_formats import (
    GroupKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetKey,
    OffsetValue,
    encode_group_value,
    encode_key,
    encode_offset_value,
)
from dataplane.coordinators.runtime import CoordinatorRuntime
from dataplane.worker.context import Worker
from tests.dataplane.serving import RawClient, append_unvalidated, in_trio, serving
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.primitives.errors import ErrorCode
from wire.primitives.types import ZERO_UUID
from wire.protocol.apis import ApiKey
from wire.records.records import Record, encode_batch

TOPIC = "t"
# Design limit of a step. A busy machine prolongs all steps: then a share of all their time is the
# limit, which work in a single step exceeds.
LONGEST_S = 0.010
LONGEST_SHARE = 1 / 3
BATCH_RECORDS = 20


class Steps(trio.abc.Instrument):
    """CPU time of the steps of tasks, and of connections between two turns of tasks."""

    def __init__(self) -> None:
        self.longest_s = self.total_s = 0.0
        self._began_s: float | None = None  # None: within the step that added this instrument

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._ended()

    def before_io_wait(self, timeout: float) -> None:
        self._ended()  # the steps of connections: the poller of this process is an instrument, too

    def _ended(self) -> None:
        now_s = time.thread_time()
        if self._began_s is not None:
            took_s = now_s - self._began_s
            self.longest_s = max(self.longest_s, took_s)
            self.total_s += took_s
        self._began_s = now_s

    def start_again(self) -> None:
        self.longest_s = self.total_s = 0.0

    def check(self) -> None:
        limit_s = max(LONGEST_S, self.total_s * LONGEST_SHARE)
        assert self.longest_s < limit_s, (self.longest_s, self.total_s)


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
    ("row", "rows"),
    [
        (offsets_of_many_groups, 200_000),
        (offsets_of_one_group, 200_000),
        (groups_with_members, 5000),
        (members_of_one_group, 20),
    ],
)
@in_trio
async def test_a_large_shard_is_loaded_and_unloaded_in_slices(
    tmp_path: Path, row: object, rows: int
) -> None:
    assert callable(row)
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create(TOPIC)
        worker = served.worker
        partition = worker.replica_manager.by_name(TOPIC, 0)
        for first in range(0, rows, BATCH_RECORDS):
            records = [
                Record(index, worker.clock.now_ms(), *row(first + index))
                for index in range(BATCH_RECORDS)
            ]
            append_unvalidated(partition, encode_batch(records))
        memory, ids = GroupMemory(1 << 30), count()
        runtime = CoordinatorRuntime(
            TOPIC,
            worker,
            worker.replica_manager,
            lambda index: GroupShard(
                index,
                GroupConfigs(),
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
                trio.lowlevel.add_instrument(steps)
                nursery.start_soon(runtime.run)
                while not runtime.active:
                    await trio.lowlevel.checkpoint()
                steps.check()
                shard = runtime.active[0]
                listed = sum(map(len, shard.group_id_pieces()))
                assert listed == (1 if row is offsets_of_one_group else rows)
                del shard
                await trio.lowlevel.checkpoint()
                steps.start_again()  # the list above was one step
                partition.retire()
                runtime.look()
                while worker.slicer.has_background_work:
                    await trio.lowlevel.checkpoint()
                trio.lowlevel.remove_instrument(steps)
                nursery.cancel_scope.cancel()
        assert memory.used_bytes == 0
        steps.check()


GROUP = "group"
OFFSETS = 100_000


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
    async with serving(tmp_path, offsets_topic_num_partitions=1) as served:
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
            trio.lowlevel.add_instrument(steps)
            asked = DeleteGroupsRequest(groups_names=[GROUP])
            (deleted,) = (await client.call(ApiKey.DELETE_GROUPS, asked)).results
            trio.lowlevel.remove_instrument(steps)
        assert deleted.error_code == ErrorCode.NONE
        assert worker.groups.shard(GROUP).offsets.offset_count == 0
        steps.check()


@pytest.mark.slow
@in_trio
async def test_offsets_of_deleted_topics_are_removed_in_slices(tmp_path: Path) -> None:
    async with one_large_group(tmp_path) as (_, worker):
        steps = Steps()
        with without_collections():
            trio.lowlevel.add_instrument(steps)
            other = GroupCoordinator(
                worker, worker.replica_manager, worker.groups.configs, lambda: "id"
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other.run)
                while not other.shards or other.shards[0].offsets.offset_count:
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
            trio.lowlevel.remove_instrument(steps)
        steps.check()
