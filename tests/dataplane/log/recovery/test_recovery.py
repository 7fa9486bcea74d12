import errno
import logging
import shutil
from pathlib import Path

import pytest
import trio

from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.recovery.recovery import load_log
from metaquorum.dataplane.log.segments.config import NEVER, LogConfig
from metaquorum.dataplane.log.segments.names import LOG, SNAPSHOT, file_name
from metaquorum.runtime.interfaces import StorageError
from tests.dataplane.log.logs import (
    EPOCH,
    SMALL,
    UnsyncedDisk,
    append,
    append_many,
    close_clean,
    headers_of,
    load,
    log_files,
    make_batch,
    offsets,
    open_log,
    read_headers,
)
from tests.dataplane.serving import FaultyDisk

ONE_SEGMENT = LogConfig(index_interval_bytes=150)


def written(folder: Path, config: LogConfig = SMALL, count: int = 30) -> PartitionLog:
    """Write a log whose node is then killed: no file was synced or closed."""
    log = open_log(folder, config)
    for number in range(count):
        append(
            log,
            make_batch(2, timestamp=1000 + 10 * number, producer_id=7, sequence=2 * number),
            epoch=1 + number // 10,
        )
    return log


def ends_of(data: bytes) -> list[int]:
    ends = [0]
    for header in headers_of(data):
        ends.append(ends[-1] + header.batch_bytes)
    return ends


def test_a_torn_tail_is_cut_wherever_it_is_torn(tmp_path: Path) -> None:
    written(tmp_path / "whole", ONE_SEGMENT, 3)
    data = log_files(tmp_path / "whole")[0].read_bytes()
    ends = ends_of(data)
    for size in range(ends[1], len(data) + 1):
        folder = tmp_path / "torn"
        shutil.copytree(tmp_path / "whole", folder)
        log_files(folder)[0].write_bytes(data[:size])
        whole = sum(end <= size for end in ends) - 1
        log = open_log(folder, ONE_SEGMENT)
        assert log.log_end_offset == 2 * whole
        assert offsets(read_headers(log)) == [(2 * n, 2 * n + 1) for n in range(whole)]
        assert log_files(folder)[0].stat().st_size == ends[whole]
        duplicate = append(log, make_batch(2, producer_id=7, sequence=2 * max(whole - 1, 0)))
        assert duplicate.is_duplicate == (whole > 0)
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "tail", [b"\0" * 5000, b"\xff" * 300, b"\0" * 8 + b"\0\0\0\x31" + b"\2" * 90]
)
def test_a_tail_of_rubbish_is_cut(
    tmp_path: Path, tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, ONE_SEGMENT, 4)
    with log_files(tmp_path)[0].open("ab") as file:
        file.write(tail)
    assert open_log(tmp_path, ONE_SEGMENT).log_end_offset == 8
    assert f"torn tail of {len(tail)} bytes" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("position", [0, 7, 8, 11, 12, 15, 16, 17, 22, 26, 60, 70, 87])
def test_no_flipped_byte_is_served(
    tmp_path: Path, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, ONE_SEGMENT, 10)
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    ends = ends_of(bytes(data))
    at = ends[4] + position
    data[at] ^= 0x41
    path.write_bytes(data)
    log = open_log(tmp_path, ONE_SEGMENT)
    assert offsets(read_headers(log)) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    (error,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert f"damaged at position {ends[4]}" in error.message
    assert "offsets from 8 to at least 11" in error.message


def test_damage_in_what_had_been_synced_is_not_cut_but_reported(tmp_path: Path) -> None:
    log = written(tmp_path)
    trio.run(log.flush, UnsyncedDisk())
    path = log_files(tmp_path)[-1]
    before = path.read_bytes()
    path.write_bytes(before[:-3])
    for _ in range(2):
        with pytest.raises(StorageError, match=rf"{path.name} is damaged at position \d+"):
            load(tmp_path, recovery_point=60)
    assert path.read_bytes() == before[:-3]


@pytest.mark.parametrize("clean", [False, True])
def test_a_segment_that_cannot_be_read_is_not_taken_for_a_shorter_one(
    tmp_path: Path, clean: bool
) -> None:
    log = written(tmp_path)
    if clean:
        trio.run(close_clean, log)
    before = {path.name: path.read_bytes() for path in log_files(tmp_path)}
    disk = FaultyDisk()
    for path in log_files(tmp_path)[-2:]:
        disk.fail("read", path.name, errno.EIO)
        with pytest.raises(StorageError, match="Input/output error"):
            load_log(
                disk,
                str(tmp_path),
                SMALL,
                clean=False,
                recovery_point=0,
                log_start_offset=0,
                now_ms=0,
            )
    assert {path.name: path.read_bytes() for path in log_files(tmp_path)} == before
    assert open_log(tmp_path, clean=clean).log_end_offset == 60


def test_damage_in_a_complete_segment_takes_what_follows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = written(tmp_path)
    first, second = log._segments._bases[0], log._segments._bases[1]
    assert first == 0
    path = log_files(tmp_path)[1]
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    log = open_log(tmp_path)
    assert log.log_end_offset == second
    assert len(log_files(tmp_path)) == 2
    assert "follow a gap" in caplog.text
    append(log, make_batch(2, producer_id=7, sequence=second))
    assert offsets(read_headers(open_log(tmp_path)))[-1] == (second, second + 1)


def test_a_segment_that_lost_its_end_is_not_followed_by_the_next(tmp_path: Path) -> None:
    """A loss of power may keep a later file and lose the end of an earlier one."""
    written(tmp_path)
    path = log_files(tmp_path)[0]
    ends = ends_of(path.read_bytes())
    path.write_bytes(path.read_bytes()[: ends[-2]])
    log = open_log(tmp_path)
    assert log.log_end_offset == 2 * (len(ends) - 2)
    assert len(log_files(tmp_path)) == 1


def test_only_segments_from_the_recovery_point_on_are_scanned(tmp_path: Path) -> None:
    log = written(tmp_path)
    trio.run(log.flush, UnsyncedDisk())
    append(log, make_batch(2, producer_id=7, sequence=60))
    sizes = [path.stat().st_size for path in log_files(tmp_path)]
    assert load(tmp_path, recovery_point=61).scanned_bytes == sizes[-1]
    # A segment that ends there may have been sealed since, with indexes that were not synced.
    assert load(tmp_path, recovery_point=60).scanned_bytes == sum(sizes[-2:])
    assert load(tmp_path, recovery_point=0).scanned_bytes == sum(sizes)


def test_after_a_clean_stop_nothing_is_scanned(tmp_path: Path) -> None:
    log = written(tmp_path)
    trio.run(close_clean, log)
    loaded = load(tmp_path, clean=True, recovery_point=60)
    assert loaded.scanned_bytes == 0
    reopened = open_log(tmp_path, clean=True, recovery_point=60)
    assert offsets(read_headers(reopened)) == [(o, o + 1) for o in range(0, 60, 2)]
    assert reopened.epochs.entries == [(1, 0), (2, 20), (3, 40)]
    assert append(reopened, make_batch(2, producer_id=7, sequence=50)).first_offset == 50


def test_a_log_that_was_not_left_as_the_mark_says_is_scanned(tmp_path: Path) -> None:
    log = written(tmp_path)
    trio.run(close_clean, log)
    path = log_files(tmp_path)[-1]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match="damaged"):
        load(tmp_path, clean=True, recovery_point=60)
    reopened = open_log(tmp_path, clean=True, recovery_point=0)
    assert reopened.log_end_offset == 58


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("damage", ["missing", "odd", "zeros", "beyond"])
def test_indexes_are_made_again(tmp_path: Path, clean: bool, suffix: str, damage: str) -> None:
    log = written(tmp_path, ONE_SEGMENT, 60)
    trio.run(close_clean, log)
    (path,) = tmp_path.glob(f"*.{suffix}")
    whole = path.read_bytes()
    assert len(whole) >= 24
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {
                "odd": whole + b"\1",
                "zeros": bytes(len(whole)),
                "beyond": whole + b"\x7f" * len(whole[:24]),
            }[damage]
        )
    log = open_log(tmp_path, ONE_SEGMENT, clean=clean, recovery_point=120)
    for offset in range(0, 120, 7):
        assert read_headers(log, offset)[0].last_offset >= offset
    assert offsets(read_headers(log)) == [(o, o + 1) for o in range(0, 120, 2)]
    if not clean or damage in ("missing", "odd"):
        assert path.read_bytes() == whole


def test_the_index_of_appends_is_the_index_of_a_scan(tmp_path: Path) -> None:
    log = written(tmp_path)
    trio.run(close_clean, log)
    files = sorted([*tmp_path.glob("*.index"), *tmp_path.glob("*.timeindex")])
    appended = {path.name: path.read_bytes() for path in files}
    load(tmp_path, clean=False)
    assert {path.name: path.read_bytes() for path in files} == appended


def test_leftovers_of_an_interrupted_change_go(tmp_path: Path) -> None:
    written(tmp_path)
    for ending in (".deleted", ".cleaned", ".tmp"):
        (tmp_path / f"00000000000000000000.log{ending}").write_bytes(b"rubbish")
    (tmp_path / "00000000000000000777.index").write_bytes(b"12345678")
    log = open_log(tmp_path)
    assert log.log_end_offset == 60
    names = [path.name for path in tmp_path.iterdir()]
    assert not [name for name in names if name.endswith((".deleted", ".cleaned", ".tmp"))]
    assert "00000000000000000777.index" not in names


@pytest.mark.parametrize("content", [None, b"", b"0\n9\n1 0\n", b"nonsense"])
def test_epochs_are_read_from_the_log_if_their_file_is_lost(
    tmp_path: Path, content: bytes | None
) -> None:
    written(tmp_path)
    path = tmp_path / "leader-epoch-checkpoint"
    path.unlink() if content is None else path.write_bytes(content)
    for clean in (True, False):
        log = open_log(tmp_path, clean=clean, recovery_point=60)
        assert log.epochs.entries == [(1, 0), (2, 20), (3, 40)]


def test_epochs_of_a_lost_tail_are_forgotten(tmp_path: Path) -> None:
    log = written(tmp_path, ONE_SEGMENT)
    log.assign_epoch(9)
    path = log_files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[: ends_of(path.read_bytes())[15]])
    assert open_log(tmp_path, ONE_SEGMENT).epochs.entries == [(1, 0), (2, 20)]


def test_a_bad_snapshot_is_passed_over_for_an_older_one(tmp_path: Path) -> None:
    log = written(tmp_path)
    trio.run(close_clean, log)
    newest = sorted(tmp_path.glob(f"*{SNAPSHOT}"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"\xff")
    log = open_log(tmp_path, clean=True, recovery_point=60)
    assert append(log, make_batch(2, producer_id=7, sequence=50)).is_duplicate
    assert not append(log, make_batch(2, producer_id=7, sequence=60)).is_duplicate


def test_a_snapshot_of_a_lost_tail_is_not_believed(tmp_path: Path) -> None:
    log = written(tmp_path, ONE_SEGMENT, 5)
    trio.run(close_clean, log)
    path = log_files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[: ends_of(path.read_bytes())[3]])
    log = open_log(tmp_path, ONE_SEGMENT)
    assert log.log_end_offset == 6
    assert not append(log, make_batch(2, producer_id=7, sequence=6)).is_duplicate
    assert not list(tmp_path.glob(f"*{SNAPSHOT}"))


def test_a_log_whose_start_was_advanced_keeps_it(tmp_path: Path) -> None:
    written(tmp_path)
    log = open_log(tmp_path, log_start_offset=33)
    assert log.log_start_offset == 33
    assert log.epochs.entries == [(2, 33), (3, 40)]
    assert read_headers(log)[0].base_offset == 32


def test_a_log_that_ends_before_its_start_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path)
    log = open_log(tmp_path, log_start_offset=100)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    assert "before its log start offset" in caplog.text
    append(log, make_batch(1))
    assert offsets(read_headers(open_log(tmp_path, log_start_offset=100))) == [(100, 100)]


def test_an_empty_folder_is_an_empty_log(tmp_path: Path) -> None:
    log = open_log(tmp_path, log_start_offset=12)
    assert (log.log_start_offset, log.log_end_offset) == (12, 12)
    assert [path.name for path in log_files(tmp_path)] == ["00000000000000000012.log"]


def test_segments_that_overlap_are_not_served(tmp_path: Path) -> None:
    written(tmp_path, ONE_SEGMENT, 5)
    shutil.copy(log_files(tmp_path)[0], tmp_path / "00000000000000000004.log")
    with pytest.raises(StorageError, match="begins at offset 4"):
        load(tmp_path, recovery_point=NEVER)


def test_batches_larger_than_a_step_of_the_scan(tmp_path: Path) -> None:
    config = LogConfig()
    log = open_log(tmp_path, config)
    for number in range(5):
        append(log, make_batch(1, value=bytes([number]) * ((1 << 20) + 100 * number)))
        append_many(log, 1)
    path = log_files(tmp_path)[0]
    data = path.read_bytes()
    assert len(read_headers(open_log(tmp_path, config))) == 10
    path.write_bytes(data[:-200])
    assert len(read_headers(open_log(tmp_path, config))) == 8
    damaged = bytearray(data)
    damaged[ends_of(data)[4] + (1 << 20)] ^= 1
    path.write_bytes(damaged)
    assert len(read_headers(open_log(tmp_path, config))) == 4


def test_recovering_twice_gives_the_same(tmp_path: Path) -> None:
    written(tmp_path)
    path = log_files(tmp_path)[-1]
    path.write_bytes(path.read_bytes()[:-5])
    first = read_headers(open_log(tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert read_headers(open_log(tmp_path)) == first
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_synced_batches_that_are_missing_at_the_end_are_not_papered_over(tmp_path: Path) -> None:
    """The missing batches may be a part of a segment, a whole segment, or all segments."""
    log = open_log(tmp_path)
    append_many(log, 40)
    log.close()
    for path in reversed(log_files(tmp_path)):
        content = path.read_bytes()
        path.write_bytes(content[: headers_of(content)[0].batch_bytes])
        end = int(path.stem) + 2
        for clean in (False, True):
            with pytest.raises(StorageError, match=f"ends at offset {end}, but had been synced"):
                load(tmp_path, clean=clean, recovery_point=80)
        path.unlink()
        with pytest.raises(StorageError, match="but had been synced up to offset 80"):
            load(tmp_path, recovery_point=80)


def test_a_segment_that_was_cut_and_is_back_does_not_follow_what_came_since(tmp_path: Path) -> None:
    """Leader epochs never decrease, from one segment to the next either."""
    for base_offset, epoch in ((0, EPOCH), (2, EPOCH + 1), (4, EPOCH)):
        data = make_batch(2, base_offset=base_offset, leader_epoch=epoch)
        (tmp_path / file_name(base_offset, LOG)).write_bytes(data)
    loaded = load(tmp_path)
    assert loaded.log_end_offset == 4
    assert loaded.epochs.entries == [(EPOCH, 0), (EPOCH + 1, 2)]
