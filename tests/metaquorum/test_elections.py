"""Who leads when workers come and go: the rules alone, and over random histories of a cluster."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.elections import (
    elected,
    preferred,
    with_log,
    with_workers,
    without_log,
    without_workers,
)
from metaquorum.image import NO_LEADER, MetadataImage, PartitionImage, replay
from metaquorum.records import MetadataRecord, PartitionRecord, TopicRecord
from metaquorum.registrations import (
    elect_leaders,
    fence_workers,
    register_worker,
    shut_down_worker,
    unfence_worker,
    unregister_worker,
)
from tests.metaquorum.histories import CLUSTER, registration
from wire.errors import KafkaError

WORKERS = range(1, 5)
ISRS = st.lists(st.sampled_from(WORKERS), min_size=1, max_size=4, unique=True).flatmap(
    lambda replicas: st.tuples(
        st.just(tuple(replicas)),
        st.lists(st.sampled_from(replicas), min_size=1, unique=True).map(tuple),
    )
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["restart", "unfence", "fence", "shut down", "unregister", "elect"]),
        st.sampled_from(WORKERS),
        st.integers(0, 30),
    ),
    max_size=30,
)


def partition(replicas: str, isr: str, leader: int) -> PartitionImage:
    return PartitionImage(tuple(map(int, replicas)), tuple(map(int, isr)), leader, 5, 9)


@pytest.mark.parametrize(
    ("before", "gone", "isr", "leader"),
    [
        (partition("123", "123", 1), {1}, "23", 2),
        (partition("123", "132", 1), {1}, "32", 2),  # in the order of the replicas
        (partition("123", "13", 1), {1}, "3", 3),  # 2 is not in sync
        (partition("123", "123", 1), {1, 2}, "3", 3),
        (partition("123", "123", 1), {1, 2, 3}, "123", NO_LEADER),  # the last ones stay
        (partition("123", "1", 1), {1}, "1", NO_LEADER),
        (partition("123", "123", 1), {3}, "12", 1),
    ],
)
def test_who_leads_without_whom(
    before: PartitionImage, gone: set[int], isr: str, leader: int
) -> None:
    after = without_workers(before, gone, lambda worker_id: worker_id not in gone)
    assert after is not None
    assert (after.isr, after.leader) == (tuple(map(int, isr)), leader)
    assert after.leader_epoch == 5 + (leader != before.leader)
    assert after.partition_epoch == 10


def test_what_concerns_a_partition_not_leaves_it_as_it_is() -> None:
    led, unled = partition("12", "12", 1), partition("12", "1", NO_LEADER)
    assert without_workers(led, {3}, lambda _: True) is None
    assert with_workers(led, lambda _: True) is None
    assert with_workers(unled, lambda worker_id: worker_id == 2) is None  # it is not in sync
    assert with_workers(unled, lambda _: True) == PartitionImage((1, 2), (1,), 1, 6, 10)


def test_the_preferred_replica_is_the_first_where_it_may_lead() -> None:
    assert preferred(partition("123", "321", 3), lambda _: True) == 1
    assert elected(partition("123", "321", 3), lambda _: True) == 3
    assert preferred(partition("123", "32", 3), lambda _: True) == 3
    assert preferred(partition("123", "321", 3), lambda worker_id: worker_id != 1) == 3


def assert_sound(image: MetadataImage, *, settled: bool) -> None:
    for topic in image.topics.values():
        for each in topic.partitions:
            assert each.isr
            assert set(each.isr) <= set(each.replicas)
            if each.leader == NO_LEADER:
                assert not settled or not any(map(image.is_live, each.isr))
            else:
                assert image.is_live(each.leader)
                assert each.leader in each.isr


def decided(image: MetadataImage, what: str, worker_id: int, number: int) -> list[MetadataRecord]:
    epoch = image.workers[worker_id].broker_epoch if worker_id in image.workers else -1
    match what:
        case "restart":
            decision = register_worker(image, registration(worker_id, number))
        case "unfence":
            decision = unfence_worker(image, worker_id, epoch)
        case "fence":
            decision = fence_workers(image, {worker_id, number})
        case "shut down":
            decision = shut_down_worker(image, worker_id, epoch)
        case "unregister":
            decision = unregister_worker(image, worker_id)
        case _:
            decision = elect_leaders(image)
    return decision.all_records()


def assert_epochs(before: MetadataImage, after: MetadataImage) -> None:
    """A leader epoch has one leader, and no incarnation leads in one of an earlier incarnation."""
    for topic in before.topics.values():
        for old, new in zip(topic.partitions, after.topics[topic.name].partitions, strict=True):
            if new.leader_epoch == old.leader_epoch:
                assert new.leader == old.leader
                if new.leader != NO_LEADER:
                    one, other = before.workers[new.leader], after.workers[new.leader]
                    assert one.incarnation_id == other.incarnation_id
            if new != old:
                assert new.partition_epoch > old.partition_epoch


@given(st.lists(ISRS, min_size=1, max_size=6), STEPS, st.booleans())
def test_who_leads_is_live_whatever_happens_and_wherever_it_is_cut_short(
    partitions: list[tuple[tuple[int, ...], tuple[int, ...]]],
    steps: list[tuple[str, int, int]],
    cut: bool,
) -> None:
    topic_id, random = bytes(16), Random(1)
    image, _ = replay(
        MetadataImage.empty(CLUSTER),
        [
            TopicRecord("t", topic_id),
            *(
                PartitionRecord(topic_id, number, replicas, isr, NO_LEADER, 0, 0)
                for number, (replicas, isr) in enumerate(partitions)
            ),
        ],
    )
    for what, worker_id, number in steps:
        before = image
        try:
            records = decided(image, what, worker_id, number)
        except KafkaError:  # it is not registered
            continue
        for record in records:
            image, _ = replay(image, [record])
            assert_sound(image, settled=False)
            if cut and random.random() < 0.1:
                break  # this active controller is gone, and the next one begins
        else:
            assert_sound(image, settled=not cut)
        assert_epochs(before, image)
        if cut:
            image, _ = replay(image, elect_leaders(image).all_records())
        assert_sound(image, settled=True)


@pytest.mark.parametrize(
    ("before", "lost", "isr", "leader"),
    [
        (partition("123", "123", 1), 1, "23", 2),
        (partition("123", "123", 1), 2, "13", 1),
        (partition("123", "1", 1), 1, "1", NO_LEADER),  # the last one stays
        (partition("123", "1", 1), 2, "1", 1),
    ],
)
def test_who_leads_when_a_replica_loses_its_log(
    before: PartitionImage, lost: int, isr: str, leader: int
) -> None:
    after = without_log(before, lost, lambda _: True)
    assert after is not None
    assert (after.isr, after.leader) == (tuple(map(int, isr)), leader)
    assert (after.offline, after.partition_epoch) == ((lost,), 10)
    assert after.leader_epoch == 5 + (leader != before.leader)
    assert without_log(after, lost, lambda _: True) is None
    assert with_workers(after, lambda _: True) is None, "it is live, and cannot lead"
    back = with_log(after, lost)
    assert back is not None
    assert back.offline == ()
    led = with_workers(back, lambda _: True)
    assert (led or back).leader == (lost if leader == NO_LEADER else leader)
