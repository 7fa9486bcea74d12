"""One partition's leadership, watermark and waiters, without a node around it."""

from pathlib import Path

import pytest
import trio

from dataplane.partition import FetchWaiter, Partition
from dataplane.topic_config import TopicConfig
from metaquorum.config_layers import WorkerLayers
from tests.dataplane.log.logs import append, make_batch, open_log
from tests.dataplane.serving import in_trio, serving
from wire.errors import ErrorCode, KafkaError


def config_of(**texts: str) -> TopicConfig:
    overrides = {name.replace("_", "."): text for name, text in texts.items()}
    return TopicConfig.of(WorkerLayers().topic_configs(overrides), 1000)


def partition_in(folder: Path, **texts: str) -> Partition:
    log = open_log(folder / "t-0")
    return Partition("t", bytes(16), 0, 1, log, config_of(**texts))


def refusal(partition: Partition, acks: int) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        partition.check_append(acks)
    return caught.value.code


def test_only_the_leader_takes_appends(tmp_path: Path) -> None:
    partition = partition_in(tmp_path)
    assert refusal(partition, 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.lead(1, 5, (1,), (1,))
    partition.check_append(-1)
    partition.lead(2, 6, (1, 2), (1, 2))
    assert refusal(partition, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.lead(1, 7, (1, 2), (1, 2))
    partition.fail("cannot write /srv/log")
    assert refusal(partition, 1) is ErrorCode.KAFKA_STORAGE_ERROR
    partition.log.close()


def test_acks_of_all_need_enough_replicas_in_sync(tmp_path: Path) -> None:
    partition = partition_in(tmp_path, min_insync_replicas="2")
    partition.lead(1, 0, (1, 2), (1,))
    assert refusal(partition, -1) is ErrorCode.NOT_ENOUGH_REPLICAS
    partition.check_append(1)
    partition.lead(1, 0, (1, 2), (2, 1))
    partition.check_append(-1)
    partition.log.close()


def test_an_asker_of_another_epoch_is_told_so_before_anything_else(tmp_path: Path) -> None:
    partition = partition_in(tmp_path)
    partition.lead(2, 5, (1, 2), (1, 2))
    assert partition.leader_error() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.leader_error(4) is ErrorCode.FENCED_LEADER_EPOCH
    assert partition.leader_error(6) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert partition.leader_error(5) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.lead(1, 6, (1, 2), (1, 2))
    assert partition.leader_error(6) is ErrorCode.NONE
    partition.fail("broken")
    assert partition.leader_error(6) is ErrorCode.KAFKA_STORAGE_ERROR
    partition.log.close()


@in_trio
async def test_waiters_wake_when_enough_has_come_or_something_has_happened(tmp_path: Path) -> None:
    partition = partition_in(tmp_path)
    partition.lead(1, 0, (1,), (1,))

    def waiter(missing_bytes: int) -> FetchWaiter:
        made = FetchWaiter(missing_bytes)
        partition.waiters.add(made)
        return made

    little, much = waiter(10), waiter(1000)
    append(partition.log, make_batch(1))
    partition.appended(9)
    assert not little.woken.is_set()
    partition.appended(1)
    assert little.woken.is_set()
    assert not much.woken.is_set()
    assert partition.high_watermark == 1
    partition.lead(1, 1, (1,), (1,))
    assert much.woken.is_set()
    last = waiter(1000)
    partition.fail("broken")
    assert last.woken.is_set()
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
        ids._broker_epoch += 1
        with pytest.raises(KafkaError) as caught:
            await ids.take()
        assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH
        ids._broker_epoch -= 1
        await ids.take()
