"""A table in an object store; a server in this process replaces S3."""

import logging
import threading
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import pyarrow.parquet as pq
import pytest

from metaquorum.spark.loader import driver_lock
from metaquorum.spark.loader.driver_lock import hold
from metaquorum.spark.loader.errors import OutputError, RefusedError
from metaquorum.spark.loader.storage.interface import Storage, open_storage
from metaquorum.spark.loader.table.committed_table import Table
from metaquorum.spark.loader.table.layout import LOADING_FOLDER
from tests.metaquorum.spark.loader.dying import Death, Watched, When, dies_at
from tests.metaquorum.spark.loader.numbers import Log, drive, expected, request

s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
server = pytest.importorskip("moto.server", reason="moto is not installed")

BUCKET = "tables"
# Warnings of the libraries in between.
pytestmark = [
    pytest.mark.conformance,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def options() -> Iterator[Mapping[str, Any]]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        running.start()
        host, port = running.get_host_and_port()
        given = {"endpoint_url": f"http://{host}:{port}"}
        s3fs.S3FileSystem(**given).mkdir(BUCKET)
        yield given
        running.stop()


def storage_at(name: str, options: Mapping[str, Any]) -> Storage:
    return open_storage(f"s3://{BUCKET}/{name}", options)


def seen_in(storage: Storage, options: Mapping[str, Any]) -> dict[int, list[int]]:
    """Return the offsets in all objects `*.parquet` by partition."""
    files = s3fs.S3FileSystem(**options)
    found: dict[int, list[int]] = {}
    for path in sorted(storage.list_files("")):
        if path.endswith(".parquet"):
            with files.open(f"{storage.url}/{path}") as file:
                rows = pq.ParquetFile(file).read()
            partition = int(path.split("/")[1].removeprefix("partition="))
            found.setdefault(partition, []).extend(rows.column("offset").to_pylist())
    return found


def test_of_many_creators_one_creates(options: Mapping[str, Any]) -> None:
    storage = storage_at("creators", options)
    won: list[int] = []

    def create(number: int) -> None:
        try:
            storage.create("file", b"%d" % number)
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = won
    assert storage.read("file", 10) == b"%d" % winner


def test_loads_follow_one_another(options: Mapping[str, Any]) -> None:
    storage = storage_at("nightly", options)
    log = Log({0: 20, 1: 5})
    drive(storage, log, request(storage.url))
    log.ends = {0: 33, 1: 5, 2: 1}
    drive(storage, log, request(storage.url))
    assert seen_in(storage, options) == expected(log)
    assert storage.list_files(LOADING_FOLDER) == {}
    places = [place for _, _, place in Table(storage).committed()]
    assert sorted(places) == sorted(p for p in storage.list_files("") if p.endswith(".parquet"))


@pytest.mark.parametrize("when", When)
def test_a_load_that_dies_is_finished_by_its_next_run(
    options: Mapping[str, Any], when: When
) -> None:
    """The driver dies at every third operation; the test of local folders covers all operations."""
    for number in count(when is When.AFTER, 3):
        storage = storage_at(f"{when.value}-{number}", options)
        log = Log({0: 8, 1: 4}, range_offsets=7)
        try:
            drive(Watched(storage, dies_at(number, when)), log, request(storage.url))
            break
        except Death:
            pass
        drive(storage, log, request(storage.url))
        assert seen_in(storage, options) == expected(log)
        assert storage.list_files(LOADING_FOLDER) == {}
    assert number > 30


def test_a_driver_that_renews_its_lock_is_not_disturbed(
    options: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_lock, "RENEW_S", 0.05)
    monkeypatch.setattr(driver_lock, "_LOOK_S", 0.05)
    storage = storage_at("locked", options)
    with (
        hold(storage, "first"),
        pytest.raises(RefusedError, match="is in progress, by process"),
        hold(storage, "second"),
    ):
        pass
    with hold(storage, "third"):
        pass


def test_the_lock_of_a_dead_driver_is_taken_over(
    options: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_lock, "WATCH_S", 0.2)
    monkeypatch.setattr(driver_lock, "_LOOK_S", 0.05)
    storage = storage_at("left", options)
    storage.overwrite("_metaquorum/driver", b'{"driver": "of a process that was killed"}')
    with hold(storage, "next"):
        pass


def test_a_bucket_that_is_not_there_is_a_sentence(options: Mapping[str, Any]) -> None:
    with pytest.raises(OutputError, match="s3://no-such-bucket/x"):
        Table(open_storage("s3://no-such-bucket/x", options)).open_or_make()


@pytest.mark.parametrize(
    "url", ["memory://x", "ftp://host/x", "http://host/x", "hdfs://host/x", "sftp://host/x"]
)
def test_a_store_that_does_not_create_exclusively_is_refused(url: str) -> None:
    with pytest.raises(OutputError, match="cannot create a file exclusively"):
        open_storage(url)


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(OutputError) as refused:
        open_storage("s3://user:hidden@bucket/x")
    assert "hidden" not in str(refused.value)
