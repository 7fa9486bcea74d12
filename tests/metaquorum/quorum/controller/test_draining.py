"""Draining workers: no new replicas or leaderships, until they return or are removed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.metadata.records import (
    METADATA_VERSION,
    RUNNING,
    FeatureLevelRecord,
    MetadataRecord,
    MovePlanRecord,
    PartitionRecord,
    PlannedMove,
    PlannedMovesRecord,
    RecordEncoder,
    TopicRecord,
    WorkerChangeRecord,
    decode_record,
)
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.features import MOVES_LEVEL
from metaquorum.quorum.controller.internal_topics import CreateInternalTopic, create_internal_topic
from metaquorum.quorum.controller.leaders.alter_partition import PartitionChange, alter_partition
from metaquorum.quorum.controller.leaders.elect_leaders import (
    ElectionSpec,
    ElectionType,
    elect_leader,
)
from metaquorum.quorum.controller.leaders.leader_selection import (
    with_isr,
    with_workers,
    without_workers,
)
from metaquorum.quorum.controller.preferred_leaders import return_leaders
from metaquorum.quorum.controller.reassignment import Reassignment, cancelled, reassign, requested
from metaquorum.quorum.controller.topics import (
    NewPartitions,
    NewTopic,
    TopicDefaults,
    create_partitions,
    create_topic,
)
from metaquorum.quorum.controller.worker_registration import (
    drain_worker,
    elect_leaders,
    fence_workers,
    register_worker,
    remove_worker,
    return_worker,
    unfence_worker,
    unregister_worker,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.metaquorum.quorum.storage.histories import CLUSTER, registration

TOPIC_ID = bytes(15) + b"\1"


def after(image: MetadataImage, *records: MetadataRecord) -> MetadataImage:
    return replay(image, records)[0]


def registered(image: MetadataImage, worker_id: int, incarnation: int = 0) -> MetadataImage:
    return after(image, *register_worker(image, registration(worker_id, incarnation)).all_records())


def unfenced(image: MetadataImage, worker_id: int) -> MetadataImage:
    epoch = image.broker_epoch(worker_id)
    return after(image, *unfence_worker(image, worker_id, epoch).all_records())


def cluster(
    *partitions: PartitionRecord, workers: int = 3, level: int = MOVES_LEVEL
) -> MetadataImage:
    image = after(MetadataImage.empty(CLUSTER), FeatureLevelRecord(METADATA_VERSION, level))
    for worker_id in range(1, workers + 1):
        image = unfenced(registered(image, worker_id), worker_id)
    return after(image, TopicRecord("t", TOPIC_ID), *partitions) if partitions else image


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text))


def led(number: int, replicas: str, isr: str, leader: int, **moves: str) -> PartitionRecord:
    more = {name: numbers(text) for name, text in moves.items()}
    return PartitionRecord(
        TOPIC_ID,
        number,
        numbers(replicas),
        numbers(isr),
        leader,
        5,
        9,
        **more,  # type: ignore[arg-type]
    )


def drained(image: MetadataImage, *worker_ids: int) -> MetadataImage:
    for worker_id in worker_ids:
        image = after(image, *drain_worker(image, worker_id).all_records())
    return image


def leaders(image: MetadataImage) -> list[int]:
    return [partition.leader for partition in image.topics["t"].partitions]


def everybody(worker_id: int) -> bool:
    return True


def refused(decide: Callable[[], object]) -> KafkaError:
    with pytest.raises(KafkaError) as error:
        decide()
    return error.value


# Leaderships


def test_other_workers_lead_what_a_draining_one_led_where_they_may() -> None:
    image = cluster(
        led(0, "123", "123", 1),
        led(1, "123", "13", 1),
        led(2, "123", "1", 1),  # no other replica is in sync
        led(3, "231", "231", 2),  # it does not lead
        led(4, "1", "1", 1),
        led(5, "41", "1", 1, adding="4", removing="1"),
    )
    decision = drain_worker(image, 1)
    assert leaders(after(image, *decision.all_records())) == [2, 3, 1, 2, 1, 1]
    assert decision.answer.changed_leaders == 2
    now = drained(image, 1)
    for old, new in zip(image.topics["t"].partitions, now.topics["t"].partitions, strict=True):
        changed = old.leader != new.leader
        assert new.leader_epoch == old.leader_epoch + changed
        assert new.partition_epoch == old.partition_epoch + changed
        assert (new.isr, new.replicas) == (old.isr, old.replicas)


def test_a_draining_leader_hands_over_to_the_first_replica_in_sync() -> None:
    image = drained(cluster(led(0, "123", "1", 1)), 1)
    (state,) = image.topics["t"].partitions
    epochs = image.broker_epoch(1), image.broker_epoch(3)
    change = PartitionChange(TOPIC_ID, 0, 5, 9, (1, 3), epochs)
    decision = alter_partition(image, 1, image.broker_epoch(1), change)
    assert decision.answer is ErrorCode.NONE
    (state,) = after(image, *decision.all_records()).topics["t"].partitions
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (3, 6, 10)
    assert state.isr == (1, 3)


def test_a_draining_worker_leads_where_nobody_else_may() -> None:
    image = drained(cluster(led(0, "213", "21", 2), led(1, "312", "312", 3)), 1)
    image = after(image, *fence_workers(image, {2}).all_records())
    assert leaders(image) == [1, 3]
    image = after(image, *fence_workers(image, {3}).all_records())
    assert leaders(image) == [1, 1]


def test_preferred_leader_elections_pass_over_draining_workers() -> None:
    image = drained(cluster(led(0, "123", "123", 2), led(1, "213", "213", 3)), 1)
    decision = elect_leader(image, ElectionSpec("t", 0, ElectionType.PREFERRED))
    assert decision.answer is not None
    assert decision.answer.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert decision.answer.message == "The preferred leader 1 is draining."
    assert leaders(after(image, *return_leaders(image, 0).all_records())) == [2, 2]
    image = after(image, *return_worker(image, 1).all_records())
    assert leaders(after(image, *return_leaders(image, 0).all_records())) == [1, 2]


def test_a_drain_that_was_cut_short_is_completed_by_the_next_controller() -> None:
    image = cluster(led(0, "123", "123", 1), led(1, "123", "123", 1))
    first, *rest = drain_worker(image, 1).all_records()
    assert len(rest) == 2
    image = after(image, first)
    assert (leaders(image), image.is_draining(1)) == ([1, 1], True)
    assert leaders(after(image, *elect_leaders(image).all_records())) == [2, 2]


def test_moves_and_cancelled_moves_are_led_by_others_than_draining_workers() -> None:
    state = PartitionImage((1, 2), (1, 2), 1, 5, 9)

    def is_draining(worker_id: int) -> bool:
        return worker_id in (1, 2)

    moved = requested(state, (3, 1), everybody, 1, is_draining)
    assert moved is not None
    complete = with_isr(moved, (3, 1, 2), 1, everybody, is_draining)
    assert (complete.replicas, complete.leader, complete.is_moving) == ((3, 1), 3, False)
    shrunk = requested(PartitionImage((1, 2, 3), (1, 2, 3), 1, 5, 9), (2, 3), everybody, 1)
    assert shrunk is not None
    assert shrunk.leader == 2
    shrunk = requested(
        PartitionImage((1, 2, 3), (1, 2, 3), 1, 5, 9), (2, 3), everybody, 1, is_draining
    )
    assert shrunk is not None
    assert shrunk.leader == 3
    moving = PartitionImage((4, 2, 3), (4, 2, 3), 4, 5, 9, adding=(4,), removing=(2, 3))
    assert cancelled(moving, everybody, 1, is_draining).leader == 3


@st.composite
def partitions(draw: st.DrawFn) -> PartitionImage:
    replicas = draw(st.permutations([1, 2, 3, 4]).map(lambda ids: tuple(ids[: draw_size(draw)])))
    isr = tuple([each for each in replicas if draw(st.booleans())]) or replicas[:1]
    leader = draw(st.sampled_from([*isr, NO_LEADER]))
    return PartitionImage(replicas, isr, leader, 5, 9)


def draw_size(draw: st.DrawFn) -> int:
    return draw(st.integers(1, 4))


WORKERS = st.frozensets(st.integers(1, 4))


@given(partitions(), WORKERS, WORKERS, st.booleans())
def test_a_draining_worker_leads_only_what_nobody_else_in_sync_may_lead(
    before: PartitionImage, draining: frozenset[int], gone: frozenset[int], is_fenced: bool
) -> None:
    def is_live(worker_id: int) -> bool:
        return worker_id not in gone

    changed = (
        without_workers(before, gone, is_live, is_draining=draining.__contains__)
        if is_fenced
        else with_workers(before, is_live, is_draining=draining.__contains__)
    )
    state = changed or before
    if changed is None and (before.leader in gone or is_fenced):
        return  # as before: not affected
    if state.leader in draining:
        others = [each for each in state.isr if is_live(each) and each not in draining]
        assert not others
    assert (state.leader == NO_LEADER) == (not any(map(is_live, state.isr)))
    assert set(state.isr) <= set(before.isr)
    assert state.leader_epoch - before.leader_epoch == (state.leader != before.leader)


# Replicas


@given(
    st.integers(2, 7),
    st.frozensets(st.integers(1, 7)),
    st.frozensets(st.integers(1, 7)),
    st.integers(1, 5),
    st.integers(0, 5),
)
def test_no_new_replica_is_placed_on_a_draining_worker(
    workers: int, draining: frozenset[int], fenced: frozenset[int], factor: int, seed: int
) -> None:
    image = cluster(workers=workers)
    image = after(image, *fence_workers(image, fenced).all_records())
    for worker_id in sorted(draining):
        try:
            image = drained(image, worker_id)
        except KafkaError:
            assert worker_id > workers or len(draining) >= workers
    drains = {each for each in image.workers if image.is_draining(each)}
    usable = set(image.workers) - drains
    random = Random(seed)
    topic = create_topic(image, NewTopic("t", 5, factor), TopicDefaults(), random)
    if factor > len(usable) or not any(map(image.is_live, usable)):
        assert topic.answer.code is ErrorCode.INVALID_REPLICATION_FACTOR
        assert topic.answer.message is not None
        assert "draining" in topic.answer.message or not drains
        return
    grown = after(image, *topic.all_records())
    spec = create_partitions(grown, NewPartitions("t", 9), random)
    assert spec.answer is None
    grown = after(grown, *spec.all_records())
    live = next(each for each in sorted(image.workers) if image.is_live(each))
    internal = CreateInternalTopic(live, image.broker_epoch(live), CONSUMER_OFFSETS, 5, 3, 1 << 20)
    grown = after(grown, *create_internal_topic(grown, internal, random).all_records())
    placed = [p for topic in grown.topics.each() for p in topic.partitions]
    assert len(placed) == 14
    assert drains.isdisjoint(replica for p in placed for replica in p.replicas)


def test_too_few_workers_that_are_not_draining_are_named_in_the_refusal() -> None:
    image = drained(cluster(), 2, 3)
    answer = create_topic(image, NewTopic("t", 1, 2), TopicDefaults(), Random(1)).answer
    assert answer.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert answer.message == (
        "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be"
        " reached because only 1 broker(s) are registered and not draining (draining: 2, 3)."
    )
    image = after(image, *fence_workers(image, {1}).all_records())
    answer = create_topic(image, NewTopic("t", 1, 1), TopicDefaults(), Random(1)).answer
    assert answer.message is not None
    assert "All brokers are currently fenced or draining (draining: 2, 3)." in answer.message
    asked = CreateInternalTopic(2, image.broker_epoch(2), CONSUMER_OFFSETS, 5, 3, 1 << 20)
    error = refused(lambda: create_internal_topic(image, asked, Random(1)))
    assert error.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_an_assignment_and_a_move_may_name_a_draining_worker() -> None:
    """As Kafka places replicas on a cordoned broker only if a client names it (KIP-1066)."""
    image = drained(cluster(led(0, "12", "12", 1)), 3)
    for replicas, leader in (((3, 2), 2), ((3,), 3)):
        asked = NewTopic("new", assignments={0: replicas})
        topic = create_topic(image, asked, TopicDefaults(), Random(1))
        assert topic.answer.code is ErrorCode.NONE
        (created,) = after(image, *topic.all_records()).topics["new"].partitions
        assert (created.replicas, created.leader) == (replicas, leader)
    grown = create_partitions(image, NewPartitions("t", 2, [(3, 1)]), Random(1))
    assert grown.answer is None
    assert leaders(after(image, *grown.all_records())) == [1, 1]
    assert reassign(image, Reassignment("t", 0, (3, 2))).answer is None


# The state in the metadata


def test_a_worker_drains_until_it_returns_also_after_a_restart_and_in_a_snapshot() -> None:
    image = drained(cluster(), 3)
    image = unfenced(registered(image, 3, incarnation=1), 3)
    assert image.is_draining(3)
    encoder = RecordEncoder(image.features)
    decoded = [decode_record(encoder.encode(record)) for record in image.records()]
    image = after(MetadataImage.empty(CLUSTER), *decoded)
    assert image.is_draining(3)
    assert not drain_worker(image, 3).all_records(), "again"
    image = after(image, *return_worker(image, 3).all_records())
    assert not image.is_draining(3)
    assert not return_worker(image, 3).all_records(), "again"
    assert not registered(image, 3, incarnation=2).is_draining(3)


@pytest.mark.parametrize(("incarnation", "is_draining"), [(0, True), (1, False)])
def test_only_the_same_process_still_drains_after_it_was_unregistered(
    incarnation: int, is_draining: bool
) -> None:
    image = drained(cluster(), 3)
    image = after(image, *fence_workers(image, {3}).all_records())
    image = after(image, *unregister_worker(image, 3).all_records())
    assert not image.is_draining(3)
    assert registered(image, 3, incarnation).is_draining(3) == is_draining


def test_a_level_below_moves_has_no_draining_workers() -> None:
    image = cluster(level=MOVES_LEVEL - 1)
    error = refused(lambda: drain_worker(image, 3))
    assert error.code is ErrorCode.UNSUPPORTED_VERSION
    assert "metadata.version=4" in error.message
    encoder = RecordEncoder(image.features)
    assert not return_worker(image, 3).all_records()
    for record in image.records():
        encoder.encode(record)
    with pytest.raises(ValueError, match="does not exist in version 0"):
        encoder.encode(WorkerChangeRecord(3, image.broker_epoch(3), draining=True))


def test_the_last_worker_that_is_not_draining_does_not_drain() -> None:
    image = drained(cluster(), 1, 2)
    error = refused(lambda: drain_worker(image, 3))
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "last one that is not draining" in error.message


@pytest.mark.parametrize("worker_id", [4, -1, 2**31 - 1])
def test_only_a_registered_worker_is_drained_returned_or_removed(worker_id: int) -> None:
    image = cluster()
    rules: Sequence[Callable[[MetadataImage, int], object]] = (
        drain_worker,
        return_worker,
        remove_worker,
    )
    for rule in rules:
        error = refused(lambda rule=rule: rule(image, worker_id))  # type: ignore[misc]
        assert error.code is ErrorCode.BROKER_ID_NOT_REGISTERED


# Removal


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([led(0, "123", "12", 1)], "Worker 3 has 1 replica. "),
        ([led(0, "12", "12", 1), led(1, "13", "1", 1), led(2, "3", "", -1)], "has 2 replicas. "),
        (
            [led(0, "132", "12", 1, removing="2"), led(1, "312", "12", 1, adding="3")],
            "has 2 replicas, 1 of them in moves that are not complete. ",
        ),
        ([led(0, "123", "12", 1, removing="3")], "has 1 replica, 1 of them in moves"),
    ],
)
def test_a_worker_with_a_replica_is_not_removed(states: list[PartitionRecord], words: str) -> None:
    image = cluster(*states)
    image = after(image, *fence_workers(image, {3}).all_records())
    error = refused(lambda: remove_worker(image, 3).all_records())
    assert error.code is ErrorCode.INVALID_REQUEST
    assert words in error.message
    assert "'mq-admin moves plan --drain 3'" in error.message
    unregister_worker(image, 3)  # Kafka's request removes it all the same


def test_a_draining_worker_is_not_advised_to_drain_but_told_what_is_left() -> None:
    states = [led(at, "123", "12", 1) for at in range(4)]
    image = drained(cluster(*states, led(4, "123", "13", 1, removing="3")), 3)
    error = refused(lambda: remove_worker(image, 3).all_records())
    assert error.message == (
        "Worker 3 is draining and still has 5 replicas: 1 leaves by a reassignment; no move is"
        " planned for 4: 'mq-admin moves plan --drain 3 --plan-file FILE' plans one, and 'mq-admin"
        " moves start FILE' carries it out. Remove the worker when it has none."
    )
    header = MovePlanRecord(7, "a", "b", RUNNING, None, 1, 4, 0, -1, 0)
    planned = tuple([PlannedMove(TOPIC_ID, at, numbers("12"), 0) for at in range(4)])
    begun = led(0, "123", "13", 1, removing="3")
    image = after(image, header, PlannedMovesRecord(7, planned))
    image = after(image, replace(header, begun=1), replace(begun, partition_epoch=1, plan=7))
    error = refused(lambda: remove_worker(image, 3).all_records())
    assert error.message == (
        "Worker 3 is draining and still has 5 replicas: 4 leave by plan 7, of which 'mq-admin moves"
        " status 7' shows the progress; 1 leaves by a reassignment. Remove the worker when it has"
        " none."
    )


def test_an_empty_worker_is_removed_once_it_is_stopped() -> None:
    image = drained(cluster(led(0, "12", "12", 1)), 3)
    error = refused(lambda: remove_worker(image, 3).all_records())
    assert "stop the worker, and remove it" in error.message
    image = after(image, *fence_workers(image, {3}).all_records())
    error = refused(lambda: remove_worker(image, 3, is_alive=True).all_records())
    assert "Worker 3 is alive" in error.message
    image = after(image, *remove_worker(image, 3).all_records())
    assert 3 not in image.workers
