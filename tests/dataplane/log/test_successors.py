"""Checkpoint entries of a deleted log do not apply to the next log with its name."""

import shutil
from pathlib import Path
from random import Random

import trio

from metaquorum.dataplane.log.dirs.log_dir import LogDir, NewPartition
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from tests.dataplane.log.logs import SMALL, UnsyncedDisk, append_many, log_files

AT = ("t", 0)
FIRST = bytes(range(16))
SECOND = bytes(range(1, 17))


async def opened(path: Path) -> LogDir:
    log_dir = LogDir.open(UnsyncedDisk(), str(path))
    await log_dir.load(lambda topic: SMALL, 0)
    return log_dir


async def made_again(path: Path) -> LogDir:
    """Create a topic again whose deleted log had forty records and checkpoint entries."""
    log_dir = await opened(path)
    await log_dir.create([NewPartition(*AT, FIRST, SMALL)], 0)
    log = log_dir.partitions[AT]
    append_many(log, 20)
    await log.flush(UnsyncedDisk())
    log.advance_log_start(30)
    await log_dir.checkpoint(lambda: {AT: 40})
    log_dir.delete(*AT, Random(1))
    await log_dir.create([NewPartition(*AT, SECOND, SMALL)], 0)
    return log_dir


def test_a_topic_made_again_that_was_never_written_to_is_not_taken_for_lost(tmp_path: Path) -> None:
    async def main() -> None:
        (await made_again(tmp_path)).abandon()
        log_dir = await opened(tmp_path)
        assert log_dir.missing == {}
        log_dir.abandon()

    trio.run(main)


def test_a_topic_made_again_is_recovered_by_what_is_known_of_itself(tmp_path: Path) -> None:
    async def main() -> None:
        log_dir = await made_again(tmp_path)
        append_many(log_dir.partitions[AT], 2)
        log_dir.abandon()
        with log_files(tmp_path / "t-0")[0].open("r+b") as file:
            file.truncate(file.seek(0, 2) - 10)  # the end of its last write is lost
        log_dir = await opened(tmp_path)
        assert not log_dir.offline
        assert log_dir.checkpoints.high_watermarks == {}
        log = log_dir.partitions[AT]
        assert (log.topic_id, log.log_start_offset, log.log_end_offset) == (SECOND, 0, 2)
        log_dir.abandon()

    trio.run(main)


# Logs that are lost


async def begun_anew_in_place_of_a_lost_one(path: Path) -> LogDirs:
    """Create a log again that had forty records and checkpoint entries, and whose folder was moved
    away between two processes.
    """
    log_dir = await opened(path)
    await log_dir.create([NewPartition(*AT, FIRST, SMALL)], 0)
    append_many(log_dir.partitions[AT], 20)
    await log_dir.partitions[AT].flush(UnsyncedDisk())
    await log_dir.checkpoint(lambda: {AT: 40})
    log_dir.abandon()
    shutil.rmtree(path / "t-0")
    dirs = LogDirs([await opened(path)], (), (), UnsyncedDisk(), Random(0))
    assert dirs.noted_end(AT) == 40
    await dirs.create([NewPartition(*AT, FIRST, SMALL)], 0)
    return dirs


def test_a_log_that_began_anew_is_recovered_by_what_is_known_of_itself(tmp_path: Path) -> None:
    """Seed 1042 of `data rot`: after a kill before the next checkpoint, the log did not open."""

    async def main() -> None:
        dirs = await begun_anew_in_place_of_a_lost_one(tmp_path)
        await dirs.settle()  # the controller knows the lost logs
        (log_dir,) = dirs.online
        append_many(log_dir.partitions[AT], 2)
        dirs.abandon()
        log_dir = await opened(tmp_path)
        assert not log_dir.offline
        assert log_dir.partitions[AT].log_end_offset == 4
        assert log_dir.checkpoints.high_watermarks == {}
        log_dir.abandon()

    trio.run(main)


def test_a_lost_log_is_lost_for_every_process_until_the_quorum_knows(tmp_path: Path) -> None:
    async def main() -> None:
        (await begun_anew_in_place_of_a_lost_one(tmp_path)).abandon()
        log_dir = await opened(tmp_path)
        assert log_dir.missing == {AT: 40}
        log_dir.abandon()

    trio.run(main)
