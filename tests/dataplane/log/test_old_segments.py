"""Deletion of old segments: concurrent and cancelled calls, truncation meanwhile, small steps."""

import errno
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import trio
import trio.testing

from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.files import OpenFiles
from metaquorum.dataplane.partition.pending_deletes import PendingDeletes
from tests.dataplane.log.logs import UnsyncedDisk, append, cut, make_batch, open_log
from tests.dataplane.serving import in_trio

T = TypeVar("T")
SEGMENTS = 40


class SteppedDisk(UnsyncedDisk):
    """A disk that counts removals of files, and holds the syncs of directories from `held_from`."""

    def __init__(self, held_from: int | None = None) -> None:
        self.runs = self.removed = 0
        self.removed_at: list[int] = []  # each time that a function runs in a worker thread
        self.held_from = held_from
        self.released = trio.Event()

    async def run(self, function: Callable[[], T]) -> T:
        self.removed_at.append(self.removed)
        self.runs += 1
        if self.held_from is not None and self.runs > self.held_from:
            await self.released.wait()
        await trio.lowlevel.checkpoint()
        return function()  # in no thread, so that `wait_all_tasks_blocked` waits for it

    def remove(self, path: str) -> None:
        self.removed += 1
        super().remove(path)


def with_segments(folder: Path, disk: SteppedDisk | None = None) -> PartitionLog:
    """Return a log with SEGMENTS segments of one record and a producer snapshot each."""
    log = open_log(folder, files=OpenFiles(disk or UnsyncedDisk(), str(folder.parent)))
    for number in range(SEGMENTS):
        log.roll(0)
        append(log, make_batch(producer_id=7, sequence=number))
    assert log.segment_count == SEGMENTS
    return log


@in_trio
async def test_what_a_cancelled_call_has_deleted_is_returned_by_the_next(tmp_path: Path) -> None:
    log = with_segments(tmp_path)
    log.advance_log_start(10)
    disk = SteppedDisk(held_from=4)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.delete_old_segments, disk)
            await trio.testing.wait_all_tasks_blocked()
            assert log.segment_count == SEGMENTS - 4
            scope.cancel()
    assert await log.delete_old_segments(UnsyncedDisk()) == 10
    assert await log.delete_old_segments(UnsyncedDisk()) == 0
    assert log.segment_count == SEGMENTS - 10
    log.remove_deleted(10)
    assert not list(tmp_path.glob("*.deleted"))


class BusyDisk(SteppedDisk):
    """A disk that cannot remove paths with `part`."""

    part = "/00000000000000000003.log"

    def remove(self, path: str) -> None:
        if self.part and self.part in path:
            raise OSError(errno.EBUSY, "Device or resource busy", path)
        super().remove(path)


@in_trio
async def test_a_segment_that_cannot_be_removed_holds_up_no_other(tmp_path: Path) -> None:
    disk = BusyDisk()
    log = with_segments(tmp_path, disk)
    log.advance_log_start(10)
    assert await log.delete_old_segments(disk) == 10
    failed, error = log.remove_deleted(6)
    assert failed == 1
    assert "unmount" in str(error)
    assert log.remove_deleted(4) == (0, None)  # others come first
    assert [path.name for path in tmp_path.glob("*.log.deleted")] == [
        "00000000000000000003.log.deleted"
    ]
    disk.part = ""
    assert log.remove_deleted(1) == (0, None)
    assert not list(tmp_path.glob("*.deleted"))


@in_trio
async def test_concurrent_calls_return_each_deleted_segment_once(tmp_path: Path) -> None:
    log = with_segments(tmp_path)
    log.advance_log_start(10)
    disk = SteppedDisk(held_from=4)
    counts: list[int] = []

    async def delete() -> None:
        counts.append(await log.delete_old_segments(disk))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(delete)
        await trio.testing.wait_all_tasks_blocked()
        log.advance_log_start(12)
        disk.released.set()
    assert sorted(counts) == [0, 0, 12]
    assert log.segment_count == SEGMENTS - 12


@in_trio
async def test_a_truncation_meanwhile_keeps_the_active_segment(tmp_path: Path) -> None:
    log = with_segments(tmp_path)
    log.advance_log_start(SEGMENTS)
    disk = SteppedDisk(held_from=4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.delete_old_segments, disk)
        await trio.testing.wait_all_tasks_blocked()
        cut(log, 5)
        disk.released.set()
    assert (log.segment_count, log.log_end_offset) == (1, 5)
    append(log, make_batch())
    assert log.log_end_offset == 6


@in_trio
async def test_a_deletion_of_many_segments_removes_few_files_per_step(tmp_path: Path) -> None:
    """Each segment has a producer snapshot."""
    disk = SteppedDisk()
    log = with_segments(tmp_path, disk)
    log.advance_log_start(SEGMENTS)
    disk.removed_at.clear()
    disk.removed = 0
    await log.delete_old_segments(disk)
    assert disk.removed == SEGMENTS - 2  # the newest of them is kept
    steps = [after - before for before, after in pairwise([*disk.removed_at, disk.removed])]
    assert max(steps) == 1


def test_segments_of_a_log_that_was_replaced_are_left_to_its_folder() -> None:
    """The partition has another log by the time at which the deletion ends."""
    old: Any
    files: Any = object()
    old, new = SimpleNamespace(files=files), SimpleNamespace(files=files)
    partition: Any = SimpleNamespace(log=new, config=SimpleNamespace(file_delete_delay_ms=0))
    clock: Any = SimpleNamespace(monotonic=lambda: 0.0)
    pending = PendingDeletes(clock)
    pending.add(partition, old, 3)
    pending.add(partition, new, 2)
    assert list(pending.take_due(files)) == [(partition, 2)]
