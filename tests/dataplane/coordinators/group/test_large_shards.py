"""Shards with many offsets and groups: no long step of the event loop when they come and go."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
import trio

from dataplane.coordinators.group.group_shard import GroupConfigs, GroupShard
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
from tests.dataplane.serving import append_unvalidated, in_trio, serving
from wire.primitives.types import ZERO_UUID
from wire.records.records import Record, encode_batch

TOPIC = "t"
LONGEST_S = 0.010
BATCH_RECORDS = 20


class Steps(trio.abc.Instrument):
    """CPU time of the longest step of a task."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._began_s: float | None = None  # None: within the step that added this instrument

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._began_s is not None:
            self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "rows"),
    [
        (offsets_of_many_groups, 200_000),
        (offsets_of_one_group, 200_000),
        (groups_with_members, 5000),
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
                assert steps.longest_s < LONGEST_S
                shard = runtime.active[0]
                listed = sum(map(len, shard.group_id_pieces()))
                assert listed == (1 if row is offsets_of_one_group else rows)
                del shard
                await trio.lowlevel.checkpoint()
                steps.longest_s = 0.0  # the list above was one step
                partition.retire()
                runtime.look()
                while worker.slicer.has_background_work:
                    await trio.lowlevel.checkpoint()
                trio.lowlevel.remove_instrument(steps)
                nursery.cancel_scope.cancel()
        assert memory.used_bytes == 0
        assert steps.longest_s < LONGEST_S
