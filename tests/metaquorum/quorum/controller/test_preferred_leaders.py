"""Automatic preferred leader election: affected partitions and times."""

import pytest

from metaquorum.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from metaquorum.metadata.records import PartitionRecord, TopicRecord
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.preferred_leaders import MAX_RETURNED, return_leaders
from metaquorum.quorum.controller.worker_registration import register_worker, unfence_worker
from tests.metaquorum.quorum.storage.histories import CLUSTER, registration

TOPIC_ID = bytes(16)


def cluster(*partitions: PartitionImage, live: str = "123") -> MetadataImage:
    image = MetadataImage.empty(CLUSTER)
    for worker_id in map(int, live):
        image, _ = replay(image, register_worker(image, registration(worker_id)).all_records())
        epoch = image.broker_epoch(worker_id)
        image, _ = replay(image, unfence_worker(image, worker_id, epoch).all_records())
    records = [
        PartitionRecord(TOPIC_ID, number, each.replicas, each.isr, each.leader, 0, 0)
        for number, each in enumerate(partitions)
    ]
    return replay(image, [TopicRecord("t", TOPIC_ID), *records])[0]


def led(replicas: str, isr: str, leader: int) -> PartitionImage:
    return PartitionImage(tuple(map(int, replicas)), tuple(map(int, isr)), leader, 0, 0)


def leaders_after(image: MetadataImage, percent: int = 10) -> list[int]:
    decision = return_leaders(image, percent)
    after, _ = replay(image, decision.all_records())
    partitions = after.topics["t"].partitions
    moved = [
        (old, new)
        for old, new in zip(image.topics["t"].partitions, partitions, strict=True)
        if new != old
    ]
    assert len(moved) == decision.answer.total
    for old, new in moved:
        assert (new.leader_epoch, new.partition_epoch) == (
            old.leader_epoch + 1,
            old.partition_epoch + 1,
        )
        assert new.isr == old.isr
    return [partition.leader for partition in partitions]


def test_who_should_lead_leads_where_it_is_live_and_in_sync() -> None:
    image = cluster(
        led("123", "123", 2),
        led("123", "23", 2),  # not in sync
        led("213", "213", 1),
        led("213", "213", 2),
        led("312", "312", 2),  # not live
        led("123", "1", NO_LEADER),
        live="12",
    )
    assert leaders_after(image) == [1, 2, 2, 2, 2, 1]


@pytest.mark.parametrize(("percent", "moved"), [(0, 1), (9, 1), (10, 0), (100, 0)])
def test_a_small_share_may_be_led_by_others(percent: int, moved: int) -> None:
    image = cluster(led("12", "12", 2), *[led("12", "12", 1)] * 9, live="12")
    assert leaders_after(image, percent).count(2) == 1 - moved


def test_so_many_leaders_return_at_a_time() -> None:
    image = cluster(*[led("12", "12", 2)] * (MAX_RETURNED + 5), live="12")
    assert leaders_after(image).count(1) == MAX_RETURNED
