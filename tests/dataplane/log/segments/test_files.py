import errno
from pathlib import Path

import pytest
import trio

from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.dataplane.log.segments.files import (
    DirectoryFailedError,
    DiskFullError,
    OpenFiles,
    storage_error,
)
from metaquorum.runtime.interfaces import StorageError
from metaquorum.runtime.system import RealDisk
from tests.dataplane.log.logs import append_many, log_file, open_log, read_headers


def test_no_more_files_are_open_than_the_bound(tmp_path: Path) -> None:
    files = OpenFiles(RealDisk(), str(tmp_path), max_open=8)
    logs = [
        open_log(tmp_path / str(n), LogConfig(index_interval_bytes=0), files=files)
        for n in range(40)
    ]
    for _ in range(3):
        for log in logs:
            append_many(log, 2)
            assert len(files) <= 8
    for log in logs:
        assert len(read_headers(log)) == 6
        assert len(files) <= 8


def test_a_file_in_use_is_not_closed_under_its_reader(tmp_path: Path) -> None:
    files = OpenFiles(RealDisk(), str(tmp_path), max_open=2)
    pinned = log_file(files, tmp_path, "pinned")
    pinned.get().write(b"here", 0)
    with pinned.pinned() as file:
        for number in range(10):
            log_file(files, tmp_path, str(number)).get()
            assert file.read(4, 0) == b"here"
        assert len(files) <= 2
    for number in range(10):
        log_file(files, tmp_path, str(number)).get()
    assert not pinned.is_open


def test_when_all_are_in_use_one_more_is_opened(tmp_path: Path) -> None:
    files = OpenFiles(RealDisk(), str(tmp_path), max_open=2)
    held = [log_file(files, tmp_path, str(number)) for number in range(3)]
    for one in held:
        one.acquire()
    assert len(files) == 3
    for one in held:
        one.release()
    log_file(files, tmp_path, "next").get()
    assert len(files) <= 2


def test_a_removed_file_stays_for_who_holds_it(tmp_path: Path) -> None:
    files = OpenFiles(RealDisk(), str(tmp_path))
    one = log_file(files, tmp_path, "one")
    one.get().write(b"here", 0)
    with one.pinned() as file:
        one.remove()
        assert not (tmp_path / "one").exists()
        assert file.read(4, 0) == b"here"
    assert not one.is_open
    with pytest.raises(FileNotFoundError):
        one.get()


def test_files_used_lately_are_kept(tmp_path: Path) -> None:
    files = OpenFiles(RealDisk(), str(tmp_path), max_open=4)
    hot = log_file(files, tmp_path, "hot")
    for number in range(50):
        log_file(files, tmp_path, str(number)).get()
        hot.get()
    for number in range(3):
        log_file(files, tmp_path, f"more{number}").get()
        hot.get()
        assert hot.is_open


def test_errors_of_the_disk_say_what_to_do() -> None:
    full = storage_error(OSError(errno.ENOSPC, "No space left on device"), "append to", "/d/x.log")
    unkept = storage_error(OSError(errno.ENOSPC, "No space left on device"), "sync", "/d/x.log")
    assert isinstance(unkept, DirectoryFailedError)
    # A failure to open a file for a sync does not mean that the device lost bytes.
    for number in (errno.EMFILE, errno.ENOENT):
        assert type(storage_error(OSError(number, "no"), "sync", "/d/x.log")) is StorageError
    assert isinstance(full, DiskFullError)
    assert str(full) == (
        "cannot append to /d/x.log: No space left on device; "
        "free some space on this disk or enlarge it"
    )
    limit = storage_error(OSError(errno.EMFILE, "Too many open files"), "open", "/d/x.log")
    assert "ulimit -n" in str(limit)
    assert not isinstance(limit, DiskFullError)


def test_slices_survive_that_their_file_was_closed_meanwhile(tmp_path: Path) -> None:
    files = OpenFiles(RealDisk(), str(tmp_path), max_open=1)
    log = open_log(tmp_path / "a", files=files)
    other = open_log(tmp_path / "b", files=files)
    append_many(log, 3)
    slice_ = log.read(0, 1 << 20, 6)
    before = slice_.read()
    append_many(other, 3)
    assert slice_.read() == before
    assert trio.run(log.flush, RealDisk()) is None
