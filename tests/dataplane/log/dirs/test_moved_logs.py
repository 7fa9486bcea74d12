"""Starts after a move between log directories was interrupted."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from metaquorum.dataplane.log.dirs.moved_logs import (
    LogId,
    UnfinishedMove,
    future_folder,
    read_log_id,
    settle_moves,
)
from metaquorum.dataplane.log.recovery.checkpoints import encode_partition_metadata
from metaquorum.runtime import Disk
from metaquorum.runtime.system import RealDisk

TOPIC_ID = bytes(range(16))
BEFORE = LogId("before")
AFTER = BEFORE.successor("after")
FUTURE = future_folder("t", 0, "0" * 32) or ""
RNG = random.Random(0)
STRAY = "t-0.0000018f000000000000000000000000-stray"


def make(folder: Path, log_id: LogId | None = None, topic_id: bytes = TOPIC_ID) -> None:
    folder.mkdir(parents=True)
    (folder / "partition.metadata").write_bytes(encode_partition_metadata(topic_id))
    if log_id is not None:
        (folder / ".metaquorum_moved").write_bytes(log_id.encode())


def settle(
    path: Path, *, are_all: bool = True, in_doubt: str = "", disk: Disk | None = None
) -> list[UnfinishedMove]:
    """`in_doubt`: names of directories of which a sync may have failed."""
    paths = [str(path / name) for name in ("a", "b") if (path / name).is_dir()]
    doubtful = [str(path / name) for name in in_doubt]
    settled = settle_moves(disk or RealDisk(), paths, are_all=are_all, rng=RNG, in_doubt=doubtful)
    return settled.unfinished


def unfinished(path: Path) -> list[UnfinishedMove]:
    return [UnfinishedMove(("t", 0), str(path / "b"), FUTURE)]


def names(path: Path) -> dict[str, list[str]]:
    """Return the folders in a and b; those of deleted logs without their unique part."""
    return {
        name: sorted(
            "deleted" if each.endswith("-delete") else each for each in os.listdir(path / name)
        )
        for name in ("a", "b")
        if (path / name).is_dir()
    }


def nothing_renamed(path: Path) -> None:
    make(path / "a/t-0", BEFORE)
    make(path / "b" / FUTURE, AFTER)


def only_future_renamed(path: Path) -> None:
    make(path / "a/t-0", BEFORE)
    make(path / "b/t-0", AFTER)


def both_renamed(path: Path) -> None:
    make(path / "a" / STRAY, BEFORE)
    make(path / "b/t-0", AFTER)


def only_former_renamed(path: Path) -> None:
    make(path / "a" / STRAY, BEFORE)
    make(path / "b" / FUTURE, AFTER)


@pytest.mark.parametrize(
    ("state", "found", "continues"),
    [
        (nothing_renamed, {"a": ["t-0"], "b": ["deleted", FUTURE]}, True),
        (only_future_renamed, {"a": ["deleted"], "b": ["t-0"]}, False),
        (both_renamed, {"a": ["deleted"], "b": ["t-0"]}, False),
        (only_former_renamed, {"a": ["deleted"], "b": ["t-0"]}, False),
    ],
)
def test_each_step_of_the_swap_leaves_one_log(
    tmp_path: Path,
    state: Callable[[Path], None],
    found: dict[str, list[str]],
    continues: bool,
) -> None:
    state(tmp_path)
    left = unfinished(tmp_path) if continues else []
    assert settle(tmp_path) == left
    assert names(tmp_path) == found
    assert settle(tmp_path) == left  # also after a kill during the start
    assert names(tmp_path) == found


def test_a_log_is_not_replaced_while_a_directory_is_absent(tmp_path: Path) -> None:
    make(tmp_path / "b" / FUTURE, AFTER)
    assert settle(tmp_path, are_all=False) == []
    assert names(tmp_path) == {"b": [FUTURE]}
    make(tmp_path / "a/t-0", BEFORE)  # the directory is back, with later records
    assert settle(tmp_path) == unfinished(tmp_path)
    assert names(tmp_path) == {"a": ["t-0"], "b": ["deleted", FUTURE]}


class UnsyncedNames(RealDisk):
    """A disk that notes the renames that a loss of power would undo."""

    def __init__(self) -> None:
        self.renames: list[tuple[str, str]] = []

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self.renames.append((source, target))

    def sync_dir(self, path: str) -> None:
        super().sync_dir(path)
        self.renames = [each for each in self.renames if os.path.dirname(each[0]) != path]

    def lose_power(self) -> None:
        for source, target in reversed(self.renames):
            os.rename(target, source)


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_copy_that_was_nearly_complete_cannot_become_the_log_later(
    tmp_path: Path, loses_power: bool
) -> None:
    disk = UnsyncedNames()
    nothing_renamed(tmp_path)
    (tmp_path / "b" / FUTURE / "00000000000000000000.log").write_bytes(b"records")
    assert settle(tmp_path, disk=disk) == unfinished(tmp_path)
    if loses_power:
        disk.lose_power()
    if (tmp_path / "b" / FUTURE).exists():
        assert os.listdir(tmp_path / "b" / FUTURE) == ["partition.metadata"]
    (tmp_path / "a/t-0").rename(tmp_path / "a" / STRAY)  # for another reason
    assert settle(tmp_path) == []
    assert "t-0" not in names(tmp_path)["b"]


@pytest.mark.parametrize("in_doubt", ["a", "b"])
def test_a_copy_that_may_not_be_on_the_device_is_not_continued(
    tmp_path: Path, in_doubt: str
) -> None:
    make(tmp_path / "a/t-0")
    make(tmp_path / "b" / FUTURE)
    log = tmp_path / "b" / FUTURE / "00000000000000000000.log"
    log.write_bytes(b"records")
    for _ in range(2):  # also after a kill during the start
        assert settle(tmp_path, in_doubt=in_doubt) == unfinished(tmp_path)
        assert log.exists() == (in_doubt == "a")
    assert settle(tmp_path) == unfinished(tmp_path)
    assert log.exists() == (in_doubt == "a")


class UnreadableDisk(RealDisk):
    """A disk on which reads of paths with `part` fail."""

    def __init__(self, part: str) -> None:
        self._part = part

    def read_file(self, path: str) -> bytes:
        self._check(path)
        return super().read_file(path)

    def list(self, path: str) -> list[str]:
        self._check(path)
        return super().list(path)

    def _check(self, path: str) -> None:
        if self._part in path:
            raise OSError(errno.EIO, "Input/output error", path)


@pytest.mark.parametrize("failing", ["b/t-0.", "a/t-0."])
def test_a_folder_that_cannot_be_read_holds_up_the_moves_of_no_other_partition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    only_former_renamed(tmp_path)
    make(tmp_path / "a/z-0", LogId("z"))
    make(tmp_path / "b/z-0", LogId("z").successor("later z"))
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    settled = settle_moves(UnreadableDisk(failing), paths, are_all=True, rng=RNG)
    assert settled.unfinished == []
    assert list(settled.failed) == [("t", 0)]  # it is not created again, empty
    assert names(tmp_path) == {"a": ["deleted", STRAY], "b": [FUTURE, "z-0"]}
    assert f"moves between log directories of {tmp_path / failing}" in caplog.text
    assert settle(tmp_path) == []
    assert names(tmp_path) == {"a": ["deleted", "deleted"], "b": ["t-0", "z-0"]}


def test_a_directory_that_cannot_be_read_counts_as_absent(tmp_path: Path) -> None:
    only_former_renamed(tmp_path)
    (tmp_path / "b/z-0").mkdir()
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    settled = settle_moves(UnreadableDisk(paths[0]), paths, are_all=True, rng=RNG)
    assert list(settled.failed) == [("t", 0)]
    assert names(tmp_path) == {"a": [STRAY], "b": [FUTURE, "z-0"]}


def test_files_with_the_names_of_folders_are_passed_over(tmp_path: Path) -> None:
    nothing_renamed(tmp_path)
    (tmp_path / "a" / STRAY.replace("t-0", "t-1")).touch()
    (tmp_path / "b/t-0").touch()
    (tmp_path / "b" / FUTURE.replace("t-0", "t-2")).symlink_to(tmp_path / "nowhere")
    assert settle(tmp_path) == unfinished(tmp_path)


class FullDisk(RealDisk):
    def make_dirs(self, path: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)


def test_a_full_disk_ends_a_move_that_would_begin_again_but_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nothing_renamed(tmp_path)
    other = future_folder("z", 0, "0" * 32) or ""
    make(tmp_path / "a" / STRAY.replace("t-", "z-"), BEFORE)
    make(tmp_path / "b" / other, AFTER)
    assert settle(tmp_path, disk=FullDisk()) == []
    assert names(tmp_path) == {"a": ["deleted", "t-0"], "b": ["deleted", "z-0"]}
    assert "t-0: its move to " in caplog.text


def test_a_directory_that_comes_back_has_the_former_log(tmp_path: Path) -> None:
    make(tmp_path / "b/t-0", AFTER.successor("later"))
    assert settle(tmp_path, are_all=False) == []
    make(tmp_path / "a/t-0", BEFORE)
    assert settle(tmp_path) == []
    assert names(tmp_path) == {"a": ["deleted"], "b": ["t-0"]}


@pytest.mark.parametrize("log_id", [None, LogId("other")])
def test_two_logs_that_do_not_know_each_other_stay(tmp_path: Path, log_id: LogId | None) -> None:
    make(tmp_path / "a/t-0", log_id)
    make(tmp_path / "b/t-0", AFTER)
    assert settle(tmp_path) == []
    assert names(tmp_path) == {"a": ["t-0"], "b": ["t-0"]}


def test_the_move_of_a_former_topic_does_not_begin_again(tmp_path: Path) -> None:
    make(tmp_path / "a/t-0", topic_id=bytes(16))
    make(tmp_path / "b" / FUTURE)
    assert settle(tmp_path) == []
    assert names(tmp_path) == {"a": ["t-0"], "b": ["deleted"]}


def test_an_unfinished_copy_without_a_log_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    make(tmp_path / "b" / FUTURE)
    assert settle(tmp_path) == []
    assert names(tmp_path) == {"a": [], "b": ["deleted"]}


def test_a_copy_whose_log_was_lost_with_its_directory_does_not_become_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log may have had more records when its directory was replaced by a new one."""
    (tmp_path / "a").mkdir()
    make(tmp_path / "b" / FUTURE, AFTER)
    (tmp_path / "b" / FUTURE / "00000000000000000000.log").write_bytes(b"a batch")
    make(tmp_path / "b" / STRAY, LogId("of another move"))
    assert settle(tmp_path) == []
    assert names(tmp_path) == {"a": [], "b": [FUTURE, STRAY]}
    assert "t-0: its log is lost" in caplog.text


def test_an_empty_copy_whose_log_had_no_folder_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A log without records has none, until its first append."""
    (tmp_path / "a").mkdir()
    make(tmp_path / "b" / FUTURE, AFTER)
    (tmp_path / "b" / FUTURE / "00000000000000000000.log").touch()
    assert settle(tmp_path) == []
    assert names(tmp_path) == {"a": [], "b": ["deleted"]}
    assert not caplog.text


def test_ids_are_written_and_read(tmp_path: Path) -> None:
    make(tmp_path / "a/t-0", AFTER)
    assert read_log_id(RealDisk(), str(tmp_path / "a/t-0")) == AFTER
    assert LogId("after", ("before",)) == AFTER
    many = BEFORE
    for number in range(100):
        many = many.successor(str(number))
    assert len(many.replaced) == 64
    assert many.replaced[0] == "98"
