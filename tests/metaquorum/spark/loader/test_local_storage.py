"""A table in a folder: exclusive creation, and folders that are refused."""

import errno
import os
import threading
from pathlib import Path

import pytest

from metaquorum.spark.loader.driver_lock import hold
from metaquorum.spark.loader.errors import OutputError, RefusedError
from metaquorum.spark.loader.storage.interface import open_storage
from metaquorum.spark.loader.storage.local_storage import LocalStorage
from metaquorum.spark.loader.table.committed_table import Table
from metaquorum.spark.loader.table.layout import FORMAT_FILE, META_FOLDER


def test_of_many_creators_one_creates(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    won: list[int] = []
    start = threading.Barrier(16)

    def create(number: int) -> None:
        start.wait()
        try:
            storage.create("folder/file", b"%d" % number * 100)
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = won
    assert storage.read("folder/file", 1000) == b"%d" % winner * 100
    assert os.listdir(tmp_path / "folder") == ["file"]


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.create("file", b"12345")
    assert storage.read("file", 5) == b"12345"
    with pytest.raises(OutputError, match="more than 4 bytes"):
        storage.read("file", 4)


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/x")
    storage.create("file", b"1")
    assert (tmp_path / "x" / "file").read_bytes() == b"1"


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("dear")
    with pytest.raises(OutputError, match="has other files"):
        Table(LocalStorage(str(tmp_path))).open_or_make()
    assert os.listdir(tmp_path) == ["letters"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="choose an output that is a folder"):
        Table(LocalStorage(str(tmp_path / "file"))).open_or_make()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="choose an output that you may write to"):
        Table(LocalStorage(str(tmp_path))).open_or_make()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"kind": "metaquorum table", "format": 2}', b"\xff", b"[" * 5000]
)
def test_a_table_of_another_format_is_refused(tmp_path: Path, content: bytes) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.create(FORMAT_FILE, content[:4000])
    with pytest.raises(OutputError, match="cannot be used"):
        Table(storage).open_or_make()


class Forgetful(LocalStorage):
    """A storage that overwrites existing files, like stores without conditional writes."""

    def create(self, path: str, data: bytes) -> None:
        self.overwrite(path, data)


def test_a_store_that_only_seems_to_create_exclusively_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="allows a file to be created twice"):
        Table(Forgetful(str(tmp_path))).open_or_make()


def test_a_second_driver_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    Table(storage).open_or_make()
    with (
        hold(storage, "first"),
        pytest.raises(RefusedError, match=f"process {os.getpid()} on"),
        hold(storage, "second"),
    ):
        pass
    with hold(storage, "third"):
        pass


def test_what_creators_that_died_left_is_swept(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    Table(storage).open_or_make()
    (tmp_path / META_FOLDER / "manifests").mkdir()
    left = tmp_path / META_FOLDER / "manifests" / ".1.json.0123.tmp"
    left.write_text("in part")
    assert list(storage.list_files(META_FOLDER)) == [FORMAT_FILE]
    with hold(storage, "first"):
        assert not left.exists()


class Full:
    """A full disk."""

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_says_what_to_do(tmp_path: Path) -> None:
    output = LocalStorage(str(tmp_path)).open_output("data")
    file, output._file = output._file, Full()  # type: ignore[assignment]
    with pytest.raises(OutputError, match="free some space, and run the load again"):
        output.write(b"123")
    output._file = file
    output.discard()
    assert os.listdir(tmp_path) == []
