"""A loss of power, or a kill, at every disk operation of a cleaning."""

from copy import deepcopy
from random import Random

import pytest
import trio

from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.recovery.recovery import load_log
from metaquorum.dataplane.log.segments.files import OpenFiles
from metaquorum.wire.records.records import Record
from tests.dataplane.log.compaction.compacted import (
    SEGMENTS,
    append_records,
    assert_reads_at_every_offset,
    clean,
    stored_batches,
    stored_records,
)
from tests.dataplane.log.logs import headers_of
from tests.metaquorum.quorum.storage.crash_disk import Crash, CrashDisk

pytestmark = pytest.mark.slow  # loses power at every write

FOLDER = "/data/t-0"
END = 41


def open_log(disk: CrashDisk, recovery_point: int = 0) -> PartitionLog:
    disk.make_dirs(FOLDER)
    loaded = load_log(
        disk,
        FOLDER,
        SEGMENTS,
        clean=False,
        recovery_point=recovery_point,
        log_start_offset=0,
        now_ms=0,
    )
    return PartitionLog(OpenFiles(disk, "/"), SEGMENTS, "t", 0, loaded, 0)


async def written(disk: CrashDisk) -> PartitionLog:
    """Write forty records to several segments, clean twenty of them, and sync all."""
    log = open_log(disk)
    for number in range(40):
        if number == 20:
            log.roll(0)
            await clean(log, disk=disk)
        value = None if number % 7 == 3 else b"value %d" % number
        key = b"own %d" % number if number % 5 == 1 else b"k%d" % (number % 4)
        append_records(log, [(key, value)], producer_id=7, sequence=number)
    log.roll(0)
    append_records(log, [(b"active", b"v")])
    await log.flush(disk)
    log.remove_deleted()
    return log


async def cleaned(disk: CrashDisk, log: PartitionLog) -> None:
    await clean(log, first_dirty=20, end=40, now_ms=1, disk=disk)
    log.remove_deleted()


def check(log: PartitionLog, before: list[Record], after: list[Record]) -> None:
    """Assert that the log has all records that a cleaning keeps, and perhaps others."""
    stored = stored_records(log)
    assert log.log_end_offset == END
    offsets = [record.offset for record in stored]
    assert offsets == sorted(set(offsets))
    assert all(record in before for record in stored)
    assert all(record in stored for record in after)
    assert headers_of(stored_batches(log)[-1])[0].last_offset == END - 1
    assert log.producers.entries[7].last_sequence == 39
    assert_reads_at_every_offset(log)


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_any_point_of_a_cleaning_loses_nothing_that_it_keeps(power: bool) -> None:
    disk = CrashDisk()
    log = trio.run(written, disk)
    before = stored_records(log)
    began = disk.operations
    trio.run(cleaned, disk, log)
    after = stored_records(log)
    assert len(after) < len(before)
    operations = disk.operations - began
    assert operations > 30
    for at in range(operations):
        killed, log = _killed_at(at)
        for seed in range(3 if power else 1):
            random = Random(1000 * at + seed) if power else None
            _recovered(killed.survivor(random), log.recovery_point, random, before, after)


def test_power_that_fails_while_the_next_process_recovers_from_a_kill_loses_nothing() -> None:
    """A loss of power may still undo the renames of a killed process that recovery has seen."""
    disk = CrashDisk()
    log = trio.run(written, disk)
    before = stored_records(log)
    began = disk.operations
    trio.run(cleaned, disk, log)
    after = stored_records(log)
    for at in range(disk.operations - began):
        killed, _ = _killed_at(at)
        seen: set[frozenset[tuple[str, bytes]]] = set()
        for seed in range(20 if _has_unsynced_names(killed) else 1):
            random = Random(1000 * at + seed)
            found = deepcopy(killed).survivor(None)
            found.fail_at = random.randrange(20)
            try:
                open_log(found, log.recovery_point)
            except Crash:
                pass
            survivor = found.survivor(random)
            if (contents := survivor.contents()) not in seen:
                seen.add(contents)
                check(open_log(survivor, log.recovery_point), before, after)


def _has_unsynced_names(disk: CrashDisk) -> bool:
    return any(path.endswith(".log.swap") for change in disk.pending_names for path, _ in change)


def _killed_at(at: int) -> tuple[CrashDisk, PartitionLog]:
    disk = CrashDisk()
    log = trio.run(written, disk)
    disk.fail_at = disk.operations + at
    with pytest.raises(Crash):
        trio.run(cleaned, disk, log)
    return disk, log


def _recovered(
    found: CrashDisk,
    recovery_point: int,
    random: Random | None,
    before: list[Record],
    after: list[Record],
) -> None:
    _recover(found, recovery_point, random)
    again = open_log(found, recovery_point)
    check(again, before, after)
    assert not [name for name in found.list(FOLDER) if name.endswith((".swap", ".cleaned"))]
    trio.run(cleaned, found, again)
    assert stored_records(again) == after


def _recover(disk: CrashDisk, recovery_point: int, random: Random | None) -> None:
    """Recover the log, with another crash at some point of the recovery."""
    if random is None:
        return
    fail_at = disk.operations + random.randrange(12)
    attempt = disk.survivor(None)
    attempt.fail_at = fail_at - disk.operations
    try:
        open_log(attempt, recovery_point)
    except Crash:
        pass
    again = attempt.survivor(random)
    disk.files, disk.synced_files = again.files, again.synced_files
    disk.pending_names = again.pending_names
