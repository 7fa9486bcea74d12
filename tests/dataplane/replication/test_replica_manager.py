"""Topics created, deleted and created again, on failing disks; the node continues if possible."""

import errno
import logging
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from metaquorum.config.registry import Scope
from metaquorum.metadata.image import partition_record
from metaquorum.metadata.records import ConfigRecord
from metaquorum.metadata.replay import replay
from metaquorum.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.serving import (
    PRODUCE_VERSION,
    FaultyDisk,
    Simulated,
    batch_of,
    fetch_message,
    in_trio,
    produce_message,
    run_simulated,
    serving,
)


@in_trio
async def test_a_topic_made_again_never_serves_what_its_predecessor_held(tmp_path: Path) -> None:
    """The predecessor's folder also could not be renamed."""
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await client.create("t", 2)
        await client.produce("t", batch_of(b"old"))
        disk.fail("rename", "/t-0", errno.EACCES)
        assert await client.delete("t") == 0
        assert (await client.create("t", 2)).error_code == 0
        await client.produce("t", batch_of(b"new"), error=ErrorCode.KAFKA_STORAGE_ERROR)
        row = await client.fetch("t")
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await client.produce("t", batch_of(b"new"), partition=1)  # not affected
        disk.faults.clear()
        assert await client.delete("t") == 0
        await client.create("t")
        await client.produce("t", batch_of(b"newer"))
        assert await client.values("t") == [b"newer"]
    async with serving(tmp_path) as served:
        client = await served.connect()
        assert await client.values("t") == [b"newer"]


@pytest.mark.slow
def test_a_topic_made_again_while_it_is_written_to_begins_anew() -> None:
    """Deletion and creation arrive together, between small and large appends and flushes."""

    async def scenario(sim: Simulated) -> None:
        producers = [await sim.connect() for _ in range(3)]
        other, another = await sim.connect(), await sim.connect()
        await other.create("t", flush_messages=3)
        generation = 0
        allowed = {
            0,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        }
        done = False

        async def produce(number: int) -> None:
            draw = random.Random(number)
            while not done:
                before = generation
                value = b"%d" % before + bytes(draw.choice([10, 70_000]))
                message = produce_message("t", batch_of(value))
                answer = await producers[number].call(ApiKey.PRODUCE, message, PRODUCE_VERSION)
                assert answer.responses[0].partition_responses[0].error_code in allowed

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(produce, number)
            for _ in range(10):
                await trio.sleep(0.02)
                generation += 1
                async with trio.open_nursery() as both:
                    both.start_soon(other.delete, "t")
                    both.start_soon(another.create, "t")
                await another.create("t")
                row = await other.fetch("t")
                assert row.error_code == 0
                for value in await other.values("t"):
                    assert value is not None
                    assert int(value.rstrip(b"\0")) >= generation - 1
            done = True
        assert await other.delete("t") == 0
        assert not sim.worker.replica_manager._by_id
        assert not sim.worker.replica_manager._by_raw_name

    for seed in range(4):
        world = run_simulated(scenario, seed=seed)
        assert not [event for event in world.trace.events if "log: error" in event.text]


@in_trio
async def test_a_topic_that_cannot_be_made_leaves_the_node_and_other_topics_alone(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await client.create("before")
        disk.fail("create", "/full-", errno.ENOSPC)
        await client.create("full", 3)
        row = await client.produce("full", batch_of(b"x"), error=ErrorCode.KAFKA_STORAGE_ERROR)
        assert str(tmp_path) not in (row.error_message or "")
        assert not (await client.fetch("full")).records
        await client.produce("before", batch_of(b"x"))
        disk.faults.clear()
        await client.produce("full", batch_of(b"x"))
        assert await client.values("full") == [b"x"]


@in_trio
async def test_a_topic_whose_folder_a_full_disk_left_unfinished_can_be_deleted_and_made_again(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await client.create("full")
        disk.fail("write", "partition.metadata", errno.ENOSPC)
        await client.produce("full", batch_of(b"x"), error=ErrorCode.KAFKA_STORAGE_ERROR)
        assert list((tmp_path / "full-0").iterdir())
        disk.faults.clear()
        assert await client.delete("full") == ErrorCode.NONE
        assert not (tmp_path / "full-0").exists()
        await client.create("full")
        await client.produce("full", batch_of(b"y"))
        assert await client.values("full") == [b"y"]


@pytest.mark.slow
@in_trio
async def test_a_topic_whose_epoch_a_full_disk_kept_from_being_written_can_be_deleted(
    tmp_path: Path,
) -> None:
    """Its log drops an epoch without records, but the leader epoch checkpoint cannot be written."""
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await client.create("full")
        await client.produce("full", batch_of(b"x"))
    async with serving(tmp_path, disk=disk) as served:  # a new leader epoch
        client = await served.connect()
        await client.create("other")
        disk.fail("create", "/full-0/leader-epoch", errno.ENOSPC)
        await client.produce("full", batch_of(b"y"), error=ErrorCode.KAFKA_STORAGE_ERROR)
        assert await client.delete("full") == ErrorCode.NONE
        await client.produce("other", batch_of(b"z"))
        assert await client.values("other") == [b"z"]
        assert not (tmp_path / "full-0").exists()


@in_trio
async def test_a_directory_that_cannot_be_synced_does_not_end_the_node(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await client.create("before")
        disk.faults["sync_dir"] = str(tmp_path), errno.EIO
        await client.create("t")
        await client.produce("before", batch_of(b"x"))
        assert await client.values("before") == [b"x"]
        disk.faults.clear()


def test_a_full_disk_refuses_appends_tells_so_now_and_then_and_recovers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyDisk()

    @in_trio
    async def test() -> None:
        async with serving(tmp_path, disk=disk) as served:
            client = await served.connect()
            await client.create("t")
            await client.produce("t", batch_of(b"before"))
            disk.fail("write", "/t-0/0", errno.ENOSPC)
            for size in [10, 100_000] * 20:
                row = await client.produce(
                    "t", batch_of(bytes(size)), error=ErrorCode.KAFKA_STORAGE_ERROR
                )
                assert str(tmp_path) not in (row.error_message or "")
            assert await client.values("t") == [b"before"]
            disk.faults.clear()
            await client.produce("t", batch_of(b"after"))
            assert await client.values("t") == [b"before", b"after"]

    with caplog.at_level(logging.ERROR, logger="metaquorum.dataplane"):
        test()
    told = [record.getMessage() for record in caplog.records]
    assert 1 <= len(told) <= 3
    assert "free some space" in told[0]


@in_trio
async def test_a_directory_in_which_a_sync_failed_is_offline_alone(tmp_path: Path) -> None:
    disk = FaultyDisk()
    folders = (tmp_path / "a", tmp_path / "b")
    async with serving(tmp_path, disk=disk, log_dirs=folders) as served:
        client, poller = await served.connect(), await served.connect()
        await client.create("synced", flush_messages=1)
        await client.create("other")
        await client.produce("synced", batch_of(b"x"))
        await poller.ask(ApiKey.FETCH, fetch_message({"synced": [(0, 1)]}, max_wait_ms=20_000), 12)
        disk.fail("sync", "/synced-0/", errno.EIO)
        error = ErrorCode.KAFKA_STORAGE_ERROR
        await client.produce("synced", batch_of(b"y"), error=error)
        answer = await poller.answer(ApiKey.FETCH, 12)  # without waiting for the timeout
        assert answer.responses[0].partitions[0].error_code in (0, error)
        disk.faults.clear()
        await client.produce("synced", batch_of(b"z"), error=error)  # the file's content is unknown
        assert (await client.fetch("synced")).error_code == error
        await client.produce("other", batch_of(b"x"))


def losses(caplog: pytest.LogCaptureFixture) -> str:
    lines = [record.getMessage() for record in caplog.records]
    return "\n".join(line for line in lines if "may miss" in line or "may have lost" in line)


@in_trio
async def test_an_empty_directory_that_returns_makes_no_partition_look_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, c = tmp_path / "a", tmp_path / "c"
    async with serving(tmp_path, log_dirs=(a,)) as served:
        client = await served.connect()
        await client.create("t")
        await client.create("unused")
        await client.produce("t", batch_of(b"x"))
    for folders in ((a, c), (a,), (a, c)):
        async with serving(tmp_path, log_dirs=folders) as served:
            client = await served.connect()
            assert await client.values("t") == [b"x"]
    assert losses(caplog) == ""


@in_trio
async def test_an_older_image_of_one_disk_makes_its_partitions_doubtful_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    c = tmp_path / "c"
    folders = (tmp_path / "a", c)

    async def produce(value: bytes) -> None:
        async with serving(tmp_path, log_dirs=folders) as served:
            client = await served.connect()
            for topic in ("these", "those"):
                await client.produce(topic, batch_of(value))

    async with serving(tmp_path, log_dirs=folders) as served:
        client = await served.connect()
        await client.create("these")
        await client.create("those")
    await produce(b"x")
    shutil.copytree(c, tmp_path / "image")
    (older,) = [path.name[:-2] for path in c.iterdir() if path.name.startswith("th")]
    (newer,) = {"these", "those"} - {older}
    await produce(b"y")
    shutil.rmtree(c)
    (tmp_path / "image").rename(c)
    caplog.clear()
    async with serving(tmp_path, log_dirs=folders) as served:
        client = await served.connect()
        assert await client.values(newer) == [b"x", b"y"]
        assert await client.values(older) == [b"x"]
    assert f"{older}-0: this replica loses offsets from 1 on" in losses(caplog)
    assert f"{newer}-0" not in losses(caplog)
    caplog.clear()
    await produce(b"z")
    assert losses(caplog) == ""


@pytest.mark.slow
@in_trio
async def test_a_damaged_log_is_offline_and_can_be_deleted_with_its_topic(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t", 2)
        for partition in range(2):
            for _ in range(3):
                await client.produce("t", batch_of(b"x"), partition=partition)
    (path,) = (tmp_path / "t-0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    async with serving(tmp_path) as served:
        client = await served.connect()
        error = ErrorCode.KAFKA_STORAGE_ERROR
        assert (await client.fetch("t")).error_code == error
        row = await client.produce("t", batch_of(b"y"), error=error)
        assert str(tmp_path) not in (row.error_message or "")
        await client.produce("t", batch_of(b"y"), partition=1)
        assert await client.delete("t") == 0
        await client.create("t", 2)
        await client.produce("t", batch_of(b"new"))
        assert await client.values("t") == [b"new"]


@in_trio
async def test_unknown_topics_are_made_when_asked_for_where_both_sides_want_it(
    tmp_path: Path,
) -> None:
    async def ask(name: str, wanted: bool) -> tuple[int, int]:
        message = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=wanted
        )
        (topic,) = (await client.call(ApiKey.METADATA, message)).topics
        return topic.error_code, len(topic.partitions)

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    async with serving(tmp_path, num_partitions=3) as served:
        client = await served.connect()
        assert await ask("made", False) == (unknown, 0)
        assert await ask("made", True) == (0, 3)
        await client.produce("made", batch_of(b"x"), partition=2)
        assert await ask("not a name", True) == (ErrorCode.INVALID_TOPIC_EXCEPTION, 0)
        assert await ask("", True) == (ErrorCode.INVALID_TOPIC_EXCEPTION, 0)
    async with serving(tmp_path, auto_create_topics_enable="false") as served:
        client = await served.connect()
        assert await ask("other", True) == (unknown, 0)
        assert await ask("made", True) == (0, 3)


@in_trio
async def test_min_isr_and_isr_of_one_publication_are_in_force_together(tmp_path: Path) -> None:
    """The new ISR and the old min.insync.replicas do not commit a record of the leader alone."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        worker = served.worker
        partition = worker.replica_manager.by_name("t", 0)
        away = worker.worker_id + 1

        async def publish(isr: tuple[int, ...], least: int) -> None:
            state = partition.state
            after = replace(state, replicas=(worker.worker_id, away), isr=isr).in_next_epoch()
            image, delta = replay(
                worker.image,
                [
                    ConfigRecord(int(Scope.TOPIC), "t", "min.insync.replicas", str(least)),
                    partition_record(partition.topic_id, 0, after),
                ],
            )
            await worker.replica_manager.publish(delta, image)

        await publish((worker.worker_id, away), 1)
        await client.produce("t", batch_of(b"mine alone"), acks=1)
        assert (partition.log.log_end_offset, partition.high_watermark) == (1, 0)
        await publish((worker.worker_id,), 2)
        assert partition.high_watermark == 0
        await publish((worker.worker_id, away), 1)
        assert partition.high_watermark == 0
        await publish((worker.worker_id,), 1)
        assert partition.high_watermark == 1


@in_trio
async def test_a_lower_min_isr_commits_what_waited_for_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        worker = served.worker
        partition = worker.replica_manager.by_name("t", 0)
        replicas = worker.worker_id, worker.worker_id + 1
        state = replace(partition.state, replicas=replicas).in_next_epoch()
        key = int(Scope.TOPIC), "t", "min.insync.replicas"
        image, delta = replay(
            worker.image,
            [ConfigRecord(*key, "2"), partition_record(partition.topic_id, 0, state)],
        )
        await worker.replica_manager.publish(delta, image)
        await client.produce("t", batch_of(b"x"), acks=1)
        assert partition.high_watermark == 0
        image, delta = replay(image, [ConfigRecord(*key, "1")])
        await worker.replica_manager.publish(delta, image)
        assert partition.high_watermark == 1
