"""Leader selection: single rules, and random histories of a cluster."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from metaquorum.metadata.records import ConfigRecord, MetadataRecord, PartitionRecord, TopicRecord
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.leaders.leader_selection import (
    elected,
    elected_unclean,
    may_lead,
    recreated,
    restarted,
    with_workers,
    without_log,
    without_workers,
)
from metaquorum.quorum.controller.worker_registration import (
    elect_leaders,
    fence_workers,
    lose_log,
    register_worker,
    shut_down_worker,
    unfence_worker,
    unregister_worker,
)
from metaquorum.wire.primitives.errors import KafkaError
from tests.metaquorum.quorum.storage.histories import CLUSTER, registration

WORKERS = range(1, 5)
ISRS = st.lists(st.sampled_from(WORKERS), min_size=1, max_size=4, unique=True).flatmap(
    lambda replicas: st.tuples(
        st.just(tuple(replicas)),
        st.lists(st.sampled_from(replicas), min_size=1, unique=True).map(tuple),
    )
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["restart", "unfence", "fence", "shut down", "unregister", "elect", "lose", "forget"]
        ),
        st.sampled_from(WORKERS),
        st.integers(0, 30),
    ),
    max_size=30,
)


def partition(replicas: str, isr: str, leader: int, blank: str = "") -> PartitionImage:
    numbers = [tuple(map(int, each)) for each in (replicas, isr, blank)]
    return PartitionImage(numbers[0], numbers[1], leader, 5, 9, blank=numbers[2])


def allowed() -> bool:
    return True


def live(workers: str) -> Callable[[int], bool]:
    return lambda worker_id: str(worker_id) in workers


@pytest.mark.parametrize(
    ("before", "gone", "isr", "leader"),
    [
        (partition("123", "123", 1), {1}, "23", 2),
        (partition("123", "132", 1), {1}, "32", 2),  # in replica order
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


def test_who_leads_goes_on_while_it_may() -> None:
    assert elected(partition("123", "321", 3), lambda _: True) == 3
    assert elected(partition("123", "321", 3), live("12")) == 1


@pytest.mark.parametrize(
    ("before", "living", "leader"),
    [
        (partition("123", "1", 1), "23", 2),
        (partition("123", "1", 1), "3", 3),
        (partition("123", "1", 1, blank="2"), "23", 3),  # 2 has nothing
        (partition("123", "1", 1, blank="2"), "2", 2),  # but no other replica is live
    ],
)
def test_who_leads_uncleanly_where_that_is_allowed(
    before: PartitionImage, living: str, leader: int
) -> None:
    after = without_workers(before, {1}, live(living), unclean=allowed)
    assert after is not None
    assert (after.leader, after.isr, after.leader_epoch) == (leader, (leader,), 6)
    assert (after.partition_epoch, after.unclean_epoch) == (10, 6)
    assert leader not in after.blank
    unled = without_workers(before, {1}, live(living))
    assert unled is not None
    assert (unled.leader, unled.isr, unled.unclean_epoch) == (NO_LEADER, (1,), -1)
    assert elected_unclean(unled, live(living)) == leader
    later = with_workers(unled, live(living), unclean=allowed)
    assert later is not None
    assert (later.leader, later.isr, later.unclean_epoch) == (leader, (leader,), 7)


def test_nobody_leads_uncleanly_while_somebody_is_in_sync_or_nobody_is_live() -> None:
    after = without_workers(partition("123", "13", 1), {1}, live("23"), unclean=allowed)
    assert after is not None
    assert (after.leader, after.isr, after.unclean_epoch) == (3, (3,), -1)
    after = without_workers(partition("123", "1", 1), {1}, live(""), unclean=allowed)
    assert after is not None
    assert (after.leader, after.isr, after.unclean_epoch) == (NO_LEADER, (1,), -1)


@pytest.mark.parametrize(
    ("before", "isr"),
    [
        (partition("123", "12", NO_LEADER), "2"),  # both were dead; 2 has all records
        (
            partition("123", "1", NO_LEADER),
            "",
        ),  # no replica has all records, but others may have most
        (partition("123", "23", 2), "23"),
    ],
)
def test_who_comes_back_without_its_log_is_blank_and_leaves_even_as_the_last(
    before: PartitionImage, isr: str
) -> None:
    others = live("3" if before.leader == NO_LEADER else "23")
    after = recreated(before, 1, others)
    assert after is not None
    assert (after.isr, after.leader) == (tuple(map(int, isr)), before.leader)
    assert (after.blank, after.leader_epoch, after.partition_epoch) == ((1,), 5, 10)
    assert recreated(after, 1, others) is None
    if before.leader == NO_LEADER:
        led = with_workers(after, live("123"))
        assert (NO_LEADER if led is None else led.leader) == (2 if isr else NO_LEADER)
        unclean = with_workers(after, live("13"), unclean=allowed)
        assert unclean is not None
        assert unclean.leader == 3, "it is not in sync, but it has records"


def test_where_all_have_lost_their_logs_the_first_to_come_begins_anew() -> None:
    before = partition("12", "2", NO_LEADER, blank="1")
    after = recreated(before, 2, live("1"))
    assert after is not None
    assert (after.leader, after.isr, after.blank, after.unclean_epoch) == (1, (1,), (2,), 6)
    alone = recreated(partition("1", "1", NO_LEADER), 1, live(""))
    assert alone is not None
    assert (alone.leader, alone.isr, alone.blank) == (NO_LEADER, (), (1,))
    led = with_workers(alone, live("1"))
    assert led is not None
    assert (led.leader, led.isr, led.blank, led.unclean_epoch) == (1, (1,), (), 6)


@pytest.mark.parametrize(
    ("before", "was_live", "is_intact", "isr", "leader", "unclean_epoch"),
    [
        (partition("123", "123", 1), True, True, "23", 2, -1),
        (partition("123", "12", NO_LEADER), False, True, "12", NO_LEADER, -1),
        (partition("123", "12", NO_LEADER), False, False, "2", NO_LEADER, -1),
        (partition("123", "1", NO_LEADER), False, True, "1", NO_LEADER, -1),
        (partition("123", "1", NO_LEADER), False, False, "1", NO_LEADER, 6),  # the last one
        (partition("123", "1", 1), True, False, "1", NO_LEADER, 7),
        (partition("123", "1", 1), True, True, "1", NO_LEADER, -1),
    ],
)
def test_who_may_have_lost_something_stays_in_sync_only_as_the_last(
    before: PartitionImage,
    was_live: bool,
    is_intact: bool,
    isr: str,
    leader: int,
    unclean_epoch: int,
) -> None:
    others = live("" if before.leader == NO_LEADER else "23")
    after = restarted(before, 1, others, was_live=was_live, is_intact=is_intact) or before
    assert (after.isr, after.leader) == (tuple(map(int, isr)), leader)
    assert after.unclean_epoch == unclean_epoch
    again = restarted(after, 1, others, was_live=False, is_intact=is_intact)
    assert again is None, "a second restart changes nothing"
    if isr == "1":
        led = with_workers(after, live("1"))
        assert led is not None
        assert (led.leader, led.unclean_epoch) == (1, unclean_epoch)
        assert unclean_epoch in (-1, led.leader_epoch)


def assert_sound(image: MetadataImage, *, settled: bool) -> None:
    for topic in image.topics.values():
        for each in topic.partitions:
            assert set(each.isr) <= set(each.replicas)
            assert each.isr or each.leader == NO_LEADER
            assert not set(each.isr) & set(each.blank)
            assert each.unclean_epoch <= each.leader_epoch + (each.leader == NO_LEADER)
            if each.leader == NO_LEADER:
                assert not settled or not any(
                    may_lead(each, replica, image.is_live) for replica in each.isr
                )
            else:
                assert image.is_live(each.leader)
                assert each.leader in each.isr


def decided(image: MetadataImage, what: str, worker_id: int, number: int) -> list[MetadataRecord]:
    epoch = image.workers[worker_id].broker_epoch if worker_id in image.workers else -1
    match what:
        case "restart":
            process = registration(worker_id, number)
            if number % 2:
                process = replace(process, previous_broker_epoch=epoch)
            decision = register_worker(image, process, may_be_unclean=may_be_unclean)
        case "unfence":
            decision = unfence_worker(image, worker_id, epoch, may_be_unclean)
        case "fence":
            decision = fence_workers(image, {worker_id, number}, may_be_unclean)
        case "shut down":
            decision = shut_down_worker(image, worker_id, epoch, may_be_unclean)
        case "unregister":
            decision = unregister_worker(image, worker_id, may_be_unclean)
        case "elect":
            decision = elect_leaders(image, may_be_unclean)
        case _:
            was_recreated = what == "forget"
            if was_recreated and not image.workers[worker_id].fenced:
                return []  # only a restarted worker reports that
            topic = image.topics["t"]
            at = topic.topic_id, number % len(topic.partitions)
            return lose_log(
                image,
                worker_id,
                epoch,
                at,
                was_recreated=was_recreated,
                may_be_unclean=may_be_unclean,
            ).all_records()
    return decision.all_records()


def may_be_unclean(image: MetadataImage, topic: str) -> bool:
    return image.topic_configs(topic).get("unclean.leader.election.enable") == "true"


def assert_epochs(before: MetadataImage, after: MetadataImage) -> None:
    """Check that a leader epoch has one leader, and only one incarnation of it."""
    for topic in before.topics.values():
        for old, new in zip(topic.partitions, after.topics[topic.name].partitions, strict=True):
            if new.leader_epoch == old.leader_epoch:
                assert new.leader == old.leader
                if new.leader != NO_LEADER:
                    one, other = before.workers[new.leader], after.workers[new.leader]
                    assert one.incarnation_id == other.incarnation_id
            if new != old:
                assert new.partition_epoch > old.partition_epoch


@given(st.lists(ISRS, min_size=1, max_size=6), STEPS, st.booleans(), st.booleans())
def test_who_leads_is_live_whatever_happens_and_wherever_it_is_cut_short(
    partitions: list[tuple[tuple[int, ...], tuple[int, ...]]],
    steps: list[tuple[str, int, int]],
    cut: bool,
    unclean: bool,
) -> None:
    topic_id, random = bytes(16), Random(1)
    image, _ = replay(
        MetadataImage.empty(CLUSTER),
        [
            TopicRecord("t", topic_id),
            ConfigRecord(2, "t", "unclean.leader.election.enable", str(unclean).lower()),
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
        except (KafkaError, KeyError):  # it is not registered
            continue
        for record in records:
            image, _ = replay(image, [record])
            assert_sound(image, settled=False)
            if cut and random.random() < 0.1:
                break  # this active controller fails, and the next one takes over
        else:
            assert_sound(image, settled=not cut)
        assert_epochs(before, image)
        if cut:
            image, _ = replay(image, elect_leaders(image, may_be_unclean).all_records())
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
    others = live("123".replace(str(lost), ""))
    back = restarted(after, lost, others, was_live=True, is_intact=True)
    assert back is not None
    assert back.offline == ()
    led = with_workers(back, lambda _: True)
    assert (led or back).leader == (lost if leader == NO_LEADER else leader)
