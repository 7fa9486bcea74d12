"""One partition's leadership, high watermark and waiters, without a node."""

import errno
from pathlib import Path
from typing import Final

import pytest
import trio

from metaquorum.config.resolution import WorkerLayers
from metaquorum.dataplane.config.topic import TopicConfig
from metaquorum.dataplane.fetch.sessions import FetchSession
from metaquorum.dataplane.log.segments.files import DiskFullError, OpenFiles
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.partition.waiting import FetchWaiter
from metaquorum.wire.messages.fetch import FetchPartition, PartitionData
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.dataplane.log.logs import EPOCH, append, make_batch, open_log
from tests.dataplane.replication.replicas import Setting, state
from tests.dataplane.serving import FaultyDisk, in_trio, serving

EPOCHS: Final = "/leader-epoch-checkpoint"


def config_of(**texts: str) -> TopicConfig:
    overrides = {name.replace("_", "."): text for name, text in texts.items()}
    return TopicConfig.of(WorkerLayers().topic_configs(overrides), 1000)


def partition_in(folder: Path, disk: FaultyDisk | None = None, **texts: str) -> Partition:
    files = None if disk is None else OpenFiles(disk, str(folder))
    log = open_log(folder / "t-0", files=files)
    return Partition("t", bytes(16), 0, Setting().context, log, config_of(**texts))


def refusal(partition: Partition, acks: int) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        partition.check_append(acks)
    return caught.value.code


def test_only_the_leader_takes_appends(tmp_path: Path) -> None:
    partition = partition_in(tmp_path)
    assert refusal(partition, 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.assign(state(1, 5, (1,), (1,)))
    partition.check_append(-1)
    partition.assign(state(2, 6, (1, 2), (1, 2)))
    assert refusal(partition, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.assign(state(1, 7, (1, 2), (1, 2)))
    partition.fail("cannot write /srv/log")
    assert refusal(partition, 1) is ErrorCode.KAFKA_STORAGE_ERROR
    partition.log.close()


def test_acks_of_all_need_enough_replicas_in_sync(tmp_path: Path) -> None:
    partition = partition_in(tmp_path, min_insync_replicas="2")
    partition.assign(state(1, 0, (1, 2), (1,)))
    assert refusal(partition, -1) is ErrorCode.NOT_ENOUGH_REPLICAS
    partition.check_append(1)
    partition.assign(state(1, 0, (1, 2), (2, 1), 1))
    partition.check_append(-1)
    partition.log.close()


def test_an_asker_of_another_epoch_is_told_so_before_anything_else(tmp_path: Path) -> None:
    partition = partition_in(tmp_path)
    partition.assign(state(2, 5, (1, 2), (1, 2)))
    assert partition.leader_error() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.leader_error(4) is ErrorCode.FENCED_LEADER_EPOCH
    assert partition.leader_error(6) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert partition.leader_error(5) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.assign(state(1, 6, (1, 2), (1, 2)))
    assert partition.leader_error(6) is ErrorCode.NONE
    partition.fail("broken")
    assert partition.leader_error(6) is ErrorCode.KAFKA_STORAGE_ERROR
    partition.log.close()


def test_a_leader_without_room_for_its_epoch_waits_for_its_followers(tmp_path: Path) -> None:
    disk = FaultyDisk()
    partition = partition_in(tmp_path, disk)
    append(partition.log, make_batch(1))
    disk.fail("create", EPOCHS, errno.ENOSPC)
    with pytest.raises(DiskFullError):
        partition.assign(state(1, 7, (1, 2), (1, 2)))
    partition.check_append(-1)
    with pytest.raises(DiskFullError):
        append(partition.log, make_batch(1), epoch=7)
    disk.faults.clear()
    append(partition.log, make_batch(1), epoch=7)
    partition.appended(100)
    assert (partition.high_watermark, partition.log.log_end_offset) == (0, 2)
    assert partition.fetched_by(2, 102, 2, 0)
    assert partition.high_watermark == 2
    assert open_log(tmp_path / "t-0").epochs.entries == [(EPOCH, 0), (7, 1)]
    partition.log.close()


def test_a_leader_without_room_for_its_epoch_writes_it_with_its_next_state(tmp_path: Path) -> None:
    disk = FaultyDisk()
    partition = partition_in(tmp_path, disk)
    append(partition.log, make_batch(1))
    disk.fail("create", EPOCHS, errno.ENOSPC)
    with pytest.raises(DiskFullError):
        partition.assign(state(1, 7, (1, 2), (1, 2)))
    disk.faults.clear()
    partition.assign(state(1, 7, (1, 2), (1,), 8))
    assert partition.high_watermark == 1
    text = (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text()
    assert text.splitlines()[2:] == [f"{EPOCH} 0", "7 1"]
    partition.log.close()


@in_trio
async def test_a_deposed_leader_whose_disk_is_full_wakes_all_waiters(tmp_path: Path) -> None:
    disk = FaultyDisk()
    partition = partition_in(tmp_path, disk)
    append(partition.log, make_batch(1))
    partition.assign(state(1, 7, (1, 2), (1, 2)))
    woken = trio.Event()
    partition.wait_committed(1, woken.set)
    disk.fail("create", EPOCHS, errno.ENOSPC)
    with pytest.raises(DiskFullError):
        partition.assign(state(2, 8, (1, 2), (1, 2)))
    assert woken.is_set()
    assert partition.leader_error() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.log.epochs.entries == [(EPOCH, 0)]
    partition.log.close()


@in_trio
async def test_waiters_wake_when_enough_has_come_or_something_has_happened(tmp_path: Path) -> None:
    partition = partition_in(tmp_path)
    partition.assign(state(1, 0, (1,), (1,)))

    def waiter(missing_bytes: int) -> trio.Event:
        woken = trio.Event()
        partition.waiters.add(FetchWaiter(missing_bytes, woken.set))
        return woken

    little, much = waiter(10), waiter(1000)
    append(partition.log, make_batch(1))
    partition.appended(9)
    assert not little.is_set()
    partition.appended(1)
    assert little.is_set()
    assert not much.is_set()
    assert partition.high_watermark == 1
    partition.assign(state(1, 1, (1,), (1,)))
    assert much.is_set()
    last = waiter(1000)
    partition.fail("broken")
    assert last.is_set()
    partition.log.close()


def test_a_topics_config_is_resolved_once_and_whole() -> None:
    config = config_of(
        segment_index_bytes="4",
        retention_ms="5",
        cleanup_policy="",
        message_timestamp_type="LogAppendTime",
    )
    assert config.log.segment_index_bytes == 12  # one entry must fit
    assert (config.retention_ms, config.retention_bytes) == (-1, -1)
    assert config.log_append_time
    assert config.log.log_append_time
    assert config.log.producer_id_expiration_ms == 1000
    assert config_of(retention_ms="5").retention_ms == 5


@in_trio
async def test_producer_ids_are_unique_across_blocks_callers_and_lives(tmp_path: Path) -> None:
    taken: list[int] = []
    for _ in range(2):
        async with serving(tmp_path) as served:

            async def take(ids: object = served.worker.producer_ids) -> None:
                taken.append(await ids.take())  # type: ignore[attr-defined]

            async with trio.open_nursery() as nursery:
                for _ in range(1500):
                    nursery.start_soon(take)
    assert len(set(taken)) == 3000


@in_trio
async def test_producer_ids_of_a_worker_that_was_replaced_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        ids = served.worker.producer_ids
        ids._session.broker_epoch += 1
        with pytest.raises(KafkaError) as caught:
            await ids.take()
        assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH
        ids._session.broker_epoch -= 1
        await ids.take()


# With replicas


REPLICAS = (1, 2, 3)


def led(folder: Path, setting: Setting, **texts: str) -> Partition:
    log = open_log(folder / "t-0")
    partition = Partition("t", bytes(16), 0, setting.context, log, config_of(**texts))
    partition.assign(state(1, 3, REPLICAS))
    return partition


def grow(partition: Partition, batches: int = 1) -> None:
    for _ in range(batches):
        append(partition.log, make_batch(1), epoch=partition.leader_epoch)
        partition.appended(80)


def test_what_is_appended_is_committed_once_all_in_sync_have_it(tmp_path: Path) -> None:
    partition = led(tmp_path, Setting())
    grow(partition, 2)
    assert partition.high_watermark == 0
    assert partition.fetched_by(2, 102, 2, 0)
    assert partition.high_watermark == 0
    assert partition.fetched_by(3, 103, 1, 0)
    assert partition.high_watermark == 1
    partition.log.close()


def test_who_follows_is_woken_by_appends_and_who_consumes_by_commits(tmp_path: Path) -> None:
    partition = led(tmp_path, Setting())
    follower, consumer = trio.Event(), trio.Event()
    partition.end_waiters.add(FetchWaiter(1, follower.set))
    partition.waiters.add(FetchWaiter(100, consumer.set))
    grow(partition, 2)
    assert follower.is_set()
    assert not consumer.is_set()
    partition.fetched_by(2, 102, 2, 0)
    partition.fetched_by(3, 103, 1, 0)
    assert not consumer.is_set(), "80 of 100 bytes are committed"
    partition.fetched_by(3, 103, 2, 0)
    assert consumer.is_set()
    partition.log.close()


def test_a_producer_that_waits_is_woken_in_order_of_offsets(tmp_path: Path) -> None:
    partition = led(tmp_path, Setting())
    grow(partition, 3)
    third, first = trio.Event(), trio.Event()
    partition.wait_committed(3, third.set)
    partition.wait_committed(1, first.set)
    for replica_id in (2, 3):
        partition.fetched_by(replica_id, 100 + replica_id, 1, 0)
    assert first.is_set()
    assert not third.is_set()
    partition.assign(state(2, 4, REPLICAS))
    assert third.is_set()
    assert not partition.commit_waiters
    partition.log.close()


def test_a_new_leader_waits_for_the_others_before_it_commits_more(tmp_path: Path) -> None:
    setting = Setting()
    log = open_log(tmp_path / "t-0")
    append(log, make_batch(5), epoch=2)
    partition = Partition("t", bytes(16), 0, setting.context, log, config_of(), high_watermark=3)
    partition.assign(state(1, 3, REPLICAS))
    assert partition.high_watermark == 3
    assert partition.is_catching_up
    assert log.epochs.entries[-1] == (3, 5)
    for replica_id in (2, 3):
        partition.fetched_by(replica_id, 100 + replica_id, 5, 0)
    assert partition.high_watermark == 5
    assert not partition.is_catching_up
    log.close()


def test_an_isr_of_one_commits_by_itself(tmp_path: Path) -> None:
    setting = Setting()
    setting.ineligible = {2, 3}
    partition = led(tmp_path, setting)
    grow(partition)
    assert partition.high_watermark == 0
    partition.assign(state(1, 3, REPLICAS, (1,), 4))
    assert partition.high_watermark == 1
    partition.log.close()


def test_a_follower_that_has_caught_up_is_due_to_join(tmp_path: Path) -> None:
    setting = Setting()
    partition = led(tmp_path, setting)
    partition.assign(state(1, 3, REPLICAS, (1, 2), 4))
    grow(partition, 2)
    partition.fetched_by(3, 103, 1, 0)
    partition.fetched_by(2, 102, 2, 0)
    assert not setting.due or setting.due == [partition]
    setting.due.clear()
    partition.fetched_by(3, 103, 2, 0)
    assert setting.due == [partition]
    partition.log.close()


def test_a_session_reads_the_partition_at_the_next_fetch_of_a_follower_that_may_join(
    tmp_path: Path,
) -> None:
    setting = Setting()
    partition = led(tmp_path, setting)
    grow(partition)
    for replica_id in (2, 3):
        partition.fetched_by(replica_id, 100 + replica_id, 1, 0)
    session = FetchSession(7, 0.0, has_topic_ids=True)
    session.read_as((3, 0))
    part = session.ask("t", bytes(16), FetchPartition(partition=0, fetch_offset=1))
    part.watch(partition)
    part.update(PartitionData(partition_index=0, high_watermark=1, log_start_offset=0), 0)
    session.news.clear()
    assert part.is_quiet(1)
    setting.ineligible = {3}
    partition.assign(state(1, 3, REPLICAS, (1, 2), 4))
    assert not session.news, "a fenced follower costs nothing"
    assert part.is_quiet(1)
    setting.ineligible = set()
    partition.expect_joins()
    assert list(session.news) == [part]
    assert not part.is_quiet(1), "until it has joined"
    session.news.clear()
    part.watch(partition)
    partition.assign(state(1, 3, REPLICAS, REPLICAS, 5))
    assert not session.news
    assert part.is_quiet(1)
    partition.assign(state(1, 3, REPLICAS, (1, 2), 6))
    assert list(session.news) == [part], "it may join at once"
    partition.log.close()


def test_who_led_and_follows_now_forgets_an_epoch_in_which_it_wrote_nothing(
    tmp_path: Path,
) -> None:
    partition = led(tmp_path, Setting())
    assert partition.log.epochs.latest == 3
    partition.assign(state(2, 4, REPLICAS))
    assert partition.log.epochs.entries == []
    assert partition.is_follower
    partition.log.close()
