"""A node with several log directories, of which one is full or fails."""

import errno
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from metaquorum.dataplane.node import NodeError
from metaquorum.runtime import File
from metaquorum.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from metaquorum.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.log_dirs.two_dirs import fetched, log_dirs, two_dirs
from tests.dataplane.serving import (
    FaultyDisk,
    FaultyFile,
    RawClient,
    Served,
    batch_of,
    fetch_message,
    in_trio,
    serving,
)

OFFLINE = ErrorCode.KAFKA_STORAGE_ERROR


async def metadata(client: RawClient) -> list[Any]:
    message = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    partitions = (await client.call(ApiKey.METADATA, message)).topics[0].partitions
    return sorted(partitions, key=lambda one: int(one.partition_index))


def test_a_failing_directory_goes_offline_in_one_line_and_the_other_lives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @in_trio
    async def test() -> None:
        disk = FaultyDisk()
        async with two_dirs(tmp_path, disk) as (served, client):
            ids = served.worker.replica_manager.log_dirs.ids
            assert served.worker.image.workers[1].log_dirs == ids
            disk.fail("write", "/a/t-0/", errno.EIO)
            await client.produce("t", batch_of(b"x"), error=OFFLINE)
            disk.faults.clear()  # it does not recover by itself
            row = await client.produce("t", batch_of(b"x"), error=OFFLINE)
            assert str(tmp_path) not in (row.error_message or "")
            assert (await fetched(client, 0)).error_code == OFFLINE
            await client.produce("t", batch_of(b"y"), partition=1)
            assert len((await fetched(client, 1)).records) > 0
            assert served.worker.replica_manager.log_dirs.offline_ids == ids[:1]

            lost, kept = await metadata(client)
            assert (lost.error_code, lost.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
            assert (lost.replica_nodes, lost.offline_replicas) == ([1], [1])
            assert (kept.error_code, kept.leader_id, kept.offline_replicas) == (0, 1, [])
            asked = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")])
            topic = (await client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, asked)).topics[0]
            assert [one.leader_id for one in topic.partitions] == [-1, 1]
            assert [one.offline_replicas for one in topic.partitions] == [[1], []]

            found = await log_dirs(client)
            assert (found["a"].error_code, found["a"].topics) == (OFFLINE, [])
            assert (found["a"].total_bytes, found["a"].usable_bytes) == (-1, -1)
            assert (found["b"].error_code, len(found["b"].topics)) == (0, 1)
            assert found["b"].topics[0].partitions[0].partition_size > 100
            assert 0 < found["b"].usable_bytes < found["b"].total_bytes

            await client.create("new", 2)  # all in b
            for index in range(2):
                await client.produce("new", batch_of(b"x"), partition=index)
            await client.create("again")
            assert await client.delete("t") == 0
            await client.create("t")
            await client.produce("t", batch_of(b"of b"))
        async with two_dirs(tmp_path) as (_, client):
            assert await client.values("t") == [b"of b"]  # the other t-0 is a stray of the past
            found = await log_dirs(client)
            assert {name: result.error_code for name, result in found.items()} == {"a": 0, "b": 0}

    with caplog.at_level(logging.ERROR, logger="metaquorum.dataplane"):
        test()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1, told
    assert told[0].startswith(f"log directory {tmp_path}/a is offline, with 1 partitions: cannot")
    assert len(list((tmp_path / "a").glob("t-0.*-stray"))) == 1


@in_trio
async def test_partitions_of_a_directory_that_failed_are_there_again_after_a_restart(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    async with two_dirs(tmp_path, disk, log_flush_interval_messages=1) as (_, client):
        disk.fail("sync", "/b/t-1/", errno.EIO)
        await client.produce("t", batch_of(b"x"), partition=1, error=OFFLINE)
        disk.faults.clear()
    assert (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / "b" / ".kafka_cleanshutdown").exists()
    async with two_dirs(tmp_path) as (_, client):
        assert [one.leader_id for one in await metadata(client)] == [1, 1]
        assert (await fetched(client, 1)).error_code == 0
        await client.produce("t", batch_of(b"y"), partition=1)


@pytest.mark.parametrize("happening", ["removed", "unmounted"])
@in_trio
async def test_a_directory_that_was_removed_goes_offline_and_is_not_created_again(
    tmp_path: Path, happening: str
) -> None:
    """Writes to the removed files succeed, and a new folder would look like a lost log."""
    (a, aside) = tmp_path / "a", tmp_path / "aside"
    async with two_dirs(tmp_path) as (served, client):
        await client.create("later", 6)
        a.rename(aside)
        if happening == "unmounted":
            a.mkdir()  # the empty mount point
        log_dirs_here = served.worker.replica_manager.log_dirs
        while not log_dirs_here.failed:
            await trio.sleep(0.05)
        await client.produce("t", batch_of(b"x"), error=OFFLINE)
        await client.produce("t", batch_of(b"x"), partition=1)
        await client.create("new", 2)
        for index in range(2):
            await client.produce("new", batch_of(b"x"), partition=index)
        found = await log_dirs(client)
        assert {name: result.error_code for name, result in found.items()} == {"a": OFFLINE, "b": 0}
    assert a.exists() == (happening == "unmounted")
    assert not a.exists() or not list(a.iterdir())
    async with two_dirs(tmp_path) as (_, client):
        assert [one.leader_id for one in await metadata(client)] == [-1, 1]
        assert not a.exists() or not (a / "meta.properties").exists()
    shutil.rmtree(a, ignore_errors=True)
    aside.rename(a)
    async with two_dirs(tmp_path) as (_, client):
        assert await client.values("t") == [b"0"]


@in_trio
async def test_a_log_is_not_created_in_a_directory_that_was_removed(tmp_path: Path) -> None:
    async with two_dirs(tmp_path) as (served, client):
        await client.create("later", 2)
        (tmp_path / "a").rename(tmp_path / "aside")
        worker = served.worker.replica_manager
        for index in range(2):
            in_a = worker.log_dirs.dir_of(("later", index)).path.endswith("/a")
            error = OFFLINE if in_a else 0
            await client.produce("later", batch_of(b"x"), partition=index, error=error)
        assert not (tmp_path / "a").exists()
        assert [one.path for one in worker.log_dirs.failed] == [f"{tmp_path}/a"]


@pytest.mark.parametrize(
    ("name", "dirs"), [("data", ["a"]), ("a", ["a"]), ("data", ["data", "b"]), ("data", ["data"])]
)
@in_trio
async def test_a_node_ends_if_its_data_directory_or_last_log_directory_is_removed(
    tmp_path: Path, name: str, dirs: list[str]
) -> None:
    async def scenario() -> None:
        folders = [tmp_path / each for each in dirs]
        async with serving(tmp_path / "data", log_dirs=folders) as served:
            client = await served.connect()
            (tmp_path / name).rename(tmp_path / "aside")
            while not await client.is_closed():
                await trio.sleep(0.05)

    with pytest.raises(ExceptionGroup) as caught:
        await scenario()
    assert caught.group_contains(NodeError, match=f"{tmp_path}/{name} was removed or unmounted")
    assert not (tmp_path / name).exists()


@in_trio
async def test_a_node_without_a_log_directory_left_ends_with_a_sentence(tmp_path: Path) -> None:
    async def fail_both() -> None:
        disk = FaultyDisk()
        async with two_dirs(tmp_path, disk) as (_, client):
            disk.fail("write", "/t-", errno.EIO)
            await client.produce("t", batch_of(b"x"), error=OFFLINE)
            await client.produce("t", batch_of(b"x"), partition=1, error=OFFLINE)
            assert await client.is_closed()

    with pytest.raises(ExceptionGroup) as caught:
        await fail_both()
    assert caught.group_contains(
        NodeError, match=f"^all log directories have failed: .*{tmp_path}/b/t-1"
    )


@in_trio
async def test_a_full_directory_stays_and_is_written_to_again_when_there_is_room(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    async with two_dirs(tmp_path, disk) as (served, client):
        disk.fail("write", "/a/", errno.ENOSPC)
        await client.produce("t", batch_of(b"x"), error=OFFLINE)
        assert len((await fetched(client, 0)).records) > 0
        await client.produce("t", batch_of(b"x"), partition=1)
        assert [one.leader_id for one in await metadata(client)] == [1, 1]
        disk.faults.clear()
        await client.produce("t", batch_of(b"x"))
        assert served.worker.replica_manager.log_dirs.offline_ids == ()


@in_trio
async def test_a_worker_without_descriptors_gives_that_reason_and_keeps_the_partition(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    async with two_dirs(tmp_path, disk, log_flush_interval_messages=1) as (_, client):
        await client.create("u")
        for action in ("create", "sync_dir"):
            disk.fail(action, "/u-0", errno.EMFILE)
            row = await client.produce("u", batch_of(b"x"), error=OFFLINE)
            assert "no file descriptor left" in row.error_message
            disk.faults.clear()
        await client.produce("u", batch_of(b"x"))


class ColdDisk(FaultyDisk):
    """A disk without a page cache, so that every large read goes to the device."""

    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        assert isinstance(file, FaultyFile)
        file.__class__ = ColdFile
        return file


class ColdFile(FaultyFile):
    def is_cached(self, size: int, position: int) -> bool:
        return False


async def cannot_be_read(served: Served, client: RawClient, disk: FaultyDisk) -> RawClient:
    """Fail a fetch of u-0, which is in a, by a read error. Return a new connection."""
    await client.create("u", 2)
    await client.produce("u", batch_of(bytes(200_000)))
    disk.fail("read", "/u-0/", errno.EIO)
    await client.ask(ApiKey.FETCH, fetch_message({"u": [(0, 0)]}), 12)
    assert await client.is_closed()  # a part of the response was sent
    return await served.connect()


@in_trio
async def test_records_that_cannot_be_read_take_their_partition_offline_alone(
    tmp_path: Path,
) -> None:
    disk = ColdDisk()
    async with two_dirs(tmp_path, disk) as (served, client):
        client = await cannot_be_read(served, client, disk)
        await client.produce("u", batch_of(b"x"), error=OFFLINE)
        await client.produce("t", batch_of(b"x"))
        while not any(path.startswith(f"{tmp_path}/a/recovery-point") for path in disk.synced):
            await trio.sleep(0.01)  # the node writes to the directory to check it
        assert served.worker.replica_manager.log_dirs.offline_ids == ()
        await client.produce("t", batch_of(b"x"))


@pytest.mark.slow
@in_trio
async def test_a_directory_that_takes_nothing_when_it_gives_nothing_is_offline(
    tmp_path: Path,
) -> None:
    disk = ColdDisk()
    async with two_dirs(tmp_path, disk) as (served, client):
        disk.fail("sync", f"{tmp_path}/a/", errno.EIO)
        client = await cannot_be_read(served, client, disk)
        while not served.worker.replica_manager.log_dirs.offline_ids:
            await trio.sleep(0.01)
        await client.produce("t", batch_of(b"x"), error=OFFLINE)
        await client.produce("t", batch_of(b"x"), partition=1)


@in_trio
async def test_what_lies_in_an_absent_directory_is_not_begun_anew_in_another(
    tmp_path: Path,
) -> None:
    async with two_dirs(tmp_path):
        pass
    (tmp_path / "b").rename(tmp_path / "unmounted")
    async with two_dirs(tmp_path) as (served, client):
        # The worker's leadership was published again when it was unfenced.
        await client.produce("t", batch_of(b"x"))
        await client.produce("t", batch_of(b"x"), partition=1, error=OFFLINE)
        assert served.worker.replica_manager.log_dirs.log(("t", 1)) is None
    assert not (tmp_path / "a" / "t-1").exists()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize(
    "path",
    ["b/.lock", "b/t-1/00000000000000000000.log", ".journal", "b/recovery-point-offset-checkpoint"],
)
@in_trio
async def test_a_node_without_a_descriptor_at_its_start_says_so_and_takes_nothing_offline(
    tmp_path: Path, number: int, path: str
) -> None:
    disk = FaultyDisk()
    async with two_dirs(tmp_path, disk):
        pass
    (tmp_path / "a" / ".kafka_cleanshutdown").unlink()  # its logs are scanned
    (tmp_path / "b" / ".kafka_cleanshutdown").unlink()
    for action in ("open", "read"):
        disk.fail(action, path, number)
    with pytest.raises(ExceptionGroup) as caught:
        async with two_dirs(tmp_path, disk):
            pass
    assert caught.group_contains(
        NodeError, match=r"Too many open files.*; raise the .*limit of open files \("
    )
    disk.faults.clear()
    async with two_dirs(tmp_path, disk) as (served, client):
        dirs = served.worker.replica_manager.log_dirs
        assert not dirs.lost_paths
        for index in range(2):
            assert (await fetched(client, index)).records
