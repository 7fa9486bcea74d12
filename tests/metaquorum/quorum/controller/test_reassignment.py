"""Moves of partitions: the worked examples of KIP-455, and R11 under any sequence of events."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from metaquorum.metadata.image import NO_LEADER, MetadataImage, PartitionImage, partition_record
from metaquorum.metadata.records import (
    ELIGIBLE_LEADERS,
    MAX_REPLICAS,
    METADATA_VERSION,
    FeatureLevelRecord,
    PartitionRecord,
    TopicRecord,
)
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.features import MOVES_LEVEL
from metaquorum.quorum.controller.leaders.eligible_leaders import MIN_ISR, for_all_workers
from metaquorum.quorum.controller.leaders.leader_selection import (
    elected_unclean,
    least_isr,
    with_isr,
    with_workers,
    without_workers,
)
from metaquorum.quorum.controller.reassignment import Reassignment, cancelled, reassign, requested
from metaquorum.quorum.controller.topics import NewPartitions, create_partitions
from metaquorum.quorum.controller.worker_registration import (
    fence_workers,
    register_worker,
    unfence_worker,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.metaquorum.quorum.storage.histories import CLUSTER, registration

TOPIC_ID = bytes(15) + b"\1"


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text))


def everybody(worker_id: int) -> bool:
    return True


def live(text: str) -> Callable[[int], bool]:
    return lambda worker_id: worker_id in numbers(text)


def partition(replicas: str, isr: str, leader: int = 1, **more: str) -> PartitionImage:
    others = {name: numbers(text) for name, text in more.items()}
    return PartitionImage(numbers(replicas), numbers(isr), leader, 5, 9, **others)  # type: ignore[arg-type]


def told(state: PartitionImage | None) -> tuple[str, str, str, str, int, int]:
    assert state is not None
    texts = ["".join(map(str, each)) for each in (state.replicas, state.isr)]
    moves = ["".join(map(str, each)) for each in (state.adding, state.removing)]
    return texts[0], texts[1], moves[0], moves[1], state.leader, state.leader_epoch


@pytest.mark.parametrize(
    ("before", "target", "after"),
    [
        (partition("12", "12"), "32", ("321", "21", "3", "1", 1, 5)),
        (partition("123", "123"), "14", ("1423", "123", "4", "23", 1, 5)),
        (partition("12", "12"), "123", ("123", "12", "3", "", 1, 5)),
        (partition("12", "12"), "21", ("21", "21", "", "", 1, 5)),  # a new order
        (partition("123", "123"), "13", ("13", "13", "", "", 1, 6)),  # a smaller factor
        (partition("123", "123"), "23", ("23", "23", "", "", 2, 6)),  # without the leader
        (partition("123", "12"), "23", ("231", "21", "", "1", 1, 5)),  # 3 is not in sync yet
        (partition("321", "21", adding="3", removing="1"), "42", ("421", "21", "4", "1", 1, 6)),
        (
            partition("321", "321", adding="3", removing="1"),
            "42",
            ("4231", "231", "43", "31", 1, 5),
        ),
        (partition("312", "12", adding="3"), "12", ("12", "12", "", "", 1, 6)),  # back again
        (partition("321", "32", 3, adding="3", removing="1"), "12", ("123", "23", "3", "3", 3, 5)),
        (partition("12", "", NO_LEADER, elr="1"), "3", ("312", "", "3", "12", NO_LEADER, 5)),
    ],
)
def test_the_target_comes_first_and_then_what_is_needed_until_it_is_in_sync(
    before: PartitionImage, target: str, after: tuple[str, str, str, str, int, int]
) -> None:
    state = requested(before, numbers(target), everybody, 2)
    assert told(state) == after
    assert state is not None
    assert state.target == numbers(target)
    assert state.partition_epoch == 10
    assert requested(state, numbers(target), everybody, 2) is None, "the same request again"


@pytest.mark.parametrize(
    "moving",
    [
        partition("321", "", NO_LEADER, elr="3", adding="3", removing="1"),
        replace(partition("321", "", NO_LEADER, adding="3", removing="1"), last_leader=3),
    ],
)
def test_a_new_target_keeps_the_only_replica_with_all_committed_records(
    moving: PartitionImage,
) -> None:
    """Replica 3 is of an earlier target, and no replica is in sync until it is back."""
    state = requested(moving, numbers("42"), everybody, 2)
    assert told(state) == ("4231", "", "43", "31", NO_LEADER, 5)
    assert state is not None
    assert (state.elr, state.last_leader) == (moving.elr, moving.last_leader)


def test_a_move_is_complete_with_the_record_in_which_the_whole_target_is_in_sync() -> None:
    moving = partition("3412", "12", adding="34", removing="12", offline="2")
    one = with_isr(moving, numbers("312"), 2, everybody)
    assert told(one) == ("3412", "312", "34", "12", 1, 5)
    assert told(with_isr(one, numbers("3412"), 2, live("124"))) == ("34", "34", "", "", 4, 6)
    done = with_isr(one, numbers("3412"), 2, everybody)
    assert (told(done), done.partition_epoch) == (("34", "34", "", "", 3, 6), 11)
    assert not done.offline
    nobody_leads = with_isr(one, numbers("3412"), 2, live("12"))
    assert told(nobody_leads) == ("3412", "3412", "34", "12", 1, 5)
    assert told(with_workers(nobody_leads, live("124"))) == ("34", "34", "", "", 4, 6)


def test_the_leader_that_an_election_brings_into_sync_may_complete_a_move() -> None:
    waiting = partition("31", "", NO_LEADER, elr="3", adding="3", removing="1")
    state = with_workers(waiting, live("3"), min_isr=1)
    assert told(state) == ("3", "3", "", "", 3, 6)
    led = partition("312", "312", 1, adding="3", removing="12")
    assert told(without_workers(replace(led, isr=(3, 1)), {1}, live("23"), min_isr=1)) == (
        *("3", "3", "", ""),
        *(3, 6),  # one change of the leader, one epoch
    )


def test_an_adding_replica_leads_only_after_the_original_ones_and_before_blank_ones() -> None:
    state = partition("3124", "", NO_LEADER, adding="34", blank="1")
    assert elected_unclean(state, everybody) == 2
    assert elected_unclean(state, live("134")) == 3
    assert elected_unclean(state, live("1")) == 1
    # The log of 3 may have records, so the partition does not begin with an empty log.
    lost = partition("312", "", NO_LEADER, adding="3", blank="12")
    assert with_workers(lost, everybody) is None


def test_the_size_of_the_target_decides_how_many_must_be_in_sync() -> None:
    assert least_isr(partition("3412", "12", adding="34", removing="12"), 3) == 2
    assert least_isr(partition("123", "1", adding="23"), 2) == 2
    assert least_isr(partition("123", "1", removing="23"), 2) == 1
    state = requested(partition("12", "1", elr="2"), (1,), everybody, 2)
    assert told(state) == ("1", "1", "", "", 1, 6)
    smaller = requested(partition("12", "1", elr="2"), (3,), everybody, 2)
    assert smaller is not None
    assert not smaller.elr, "1 commits alone from here on"


@pytest.mark.parametrize(
    ("moving", "after"),
    [
        (partition("321", "21", adding="3", removing="1"), ("21", "21", "", "", 1, 6)),
        (partition("321", "31", 3, adding="3", removing="1"), ("21", "1", "", "", 1, 6)),
        (partition("4231", "231", adding="43", removing="31"), ("21", "21", "", "", 1, 6)),
        (partition("12", "21", removing="2"), ("12", "12", "", "", 1, 5)),
        (partition("321", "", -1, elr="13", adding="3"), ("21", "", "", "", NO_LEADER, 5)),
    ],
)
def test_a_cancelled_move_leaves_the_original_replicas(
    moving: PartitionImage, after: tuple[str, str, str, str, int, int]
) -> None:
    assert told(cancelled(moving, everybody, 2)) == after


@pytest.mark.parametrize(
    ("before", "target"),
    [
        (partition("123", "123"), "12"),  # at once
        (partition("123", "13"), "13"),
        (partition("321", "21", adding="3", removing="1"), "42"),  # 3 leaves, 1 stays for now
        (partition("312", "12", adding="3"), None),
        (partition("123", "123", 1), "23"),  # the leader changes, too
    ],
)
def test_a_replica_that_leaves_begins_a_leader_epoch(
    before: PartitionImage, target: str | None
) -> None:
    """A leader must not take a late fetch of a replica for one of the empty log that follows it."""
    if target is None:
        after: PartitionImage | None = cancelled(before, everybody, 2)
    else:
        after = requested(before, numbers(target), everybody, 2)
    assert after is not None
    assert after.leader_epoch == before.leader_epoch + 1
    moving = partition("3412", "412", 1, adding="34", removing="12")
    assert with_isr(moving, numbers("3412"), 2, everybody).leader_epoch == 6
    growing = partition("123", "12", adding="3")
    assert with_isr(growing, numbers("123"), 2, everybody).leader_epoch == 5


def test_no_leader_epoch_begins_while_there_is_no_leader() -> None:
    waiting = partition("321", "", NO_LEADER, elr="12", adding="3", removing="1")
    assert cancelled(waiting, everybody, 2).leader_epoch == 5


def test_a_move_is_not_cancelled_if_records_would_be_lost() -> None:
    for moving, reason in (
        (partition("321", "3", 3, adding="3", removing="1"), "all committed records"),
        (partition("321", "", -1, elr="3", adding="3"), "all committed records"),
        (partition("321", "31", 3, adding="3", removing="1"), "may lead"),
    ):
        with pytest.raises(KafkaError, match=reason) as refused:
            cancelled(moving, live("3"), 2)
        assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    with pytest.raises(KafkaError) as refused:
        cancelled(partition("12", "12"), everybody, 2)
    assert refused.value.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_replica_that_leaves_is_no_longer_blank() -> None:
    moving = partition("321", "21", adding="3", removing="1", blank="3")
    after = requested(moving, numbers("42"), everybody, 2)
    assert after is not None
    assert (after.replicas, after.blank) == ((4, 2, 1), ())


def test_a_move_to_another_target_is_no_longer_part_of_its_plan() -> None:
    planned = replace(partition("312", "12", adding="3", removing="2"), plan=4)
    other = requested(planned, numbers("41"), everybody, 2)
    assert other is not None
    assert other.plan == 0
    assert requested(planned, numbers("31"), everybody, 2) is None, "the target of the plan"


# Requests


def founded(least: int = 2, *, level: int = MOVES_LEVEL, workers: int = 6) -> MetadataImage:
    """Return an image with live workers from 1 on, and a topic with replicas on the first three."""
    image, _ = replay(
        MetadataImage.empty(CLUSTER),
        [
            FeatureLevelRecord(METADATA_VERSION, level),
            FeatureLevelRecord(ELIGIBLE_LEADERS, 1),
            for_all_workers({MIN_ISR: str(least)}),
        ],
    )
    for worker_id in range(1, workers + 1):
        image, _ = replay(image, register_worker(image, registration(worker_id)).all_records())
        image = unfenced(image, worker_id)
    topic = TopicRecord("t", TOPIC_ID)
    return replay(image, [topic, PartitionRecord(TOPIC_ID, 0, (1, 2, 3), (1, 2, 3), 1, 0, 0)])[0]


def unfenced(image: MetadataImage, worker_id: int) -> MetadataImage:
    epoch = image.broker_epoch(worker_id)
    return replay(image, unfence_worker(image, worker_id, epoch).all_records())[0]


def asked(
    image: MetadataImage, replicas: str | None, *, at: int = 0, factor: bool = True
) -> MetadataImage:
    """Return the image after the request. Raises KafkaError if it is refused."""
    target = None if replicas is None else numbers(replicas)
    decision = reassign(image, Reassignment("t", at, target, factor))
    if decision.answer is not None:
        raise decision.answer
    return replay(image, decision.all_records())[0]


def state_of(image: MetadataImage) -> PartitionImage:
    return image.topics["t"].partitions[0]


def test_moves_need_their_level_of_metadata_version() -> None:
    for target in ("124", None):
        with pytest.raises(KafkaError, match=r"needs level 4 of metadata\.version") as refused:
            asked(founded(level=MOVES_LEVEL - 1), target)
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("target", "code", "message"),
    [
        ("", ErrorCode.INVALID_REPLICA_ASSIGNMENT, "an empty replica list"),
        ("14", None, ""),
        ("17", ErrorCode.INVALID_REPLICA_ASSIGNMENT, "includes broker 7, but no such broker"),
        ("141", ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the broker 1 more than once"),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress"),
    ],
)
def test_what_cannot_be_a_target_is_refused(
    target: str | None, code: ErrorCode | None, message: str
) -> None:
    image = founded()
    if code is None:
        asked(image, target)
        return
    with pytest.raises(KafkaError, match=message) as refused:
        asked(image, target)
    assert refused.value.code is code


def test_an_unknown_partition_is_refused() -> None:
    for at in (-1, 1):
        with pytest.raises(KafkaError, match=f"Unable to find partition t:{at}") as refused:
            asked(founded(), "123", at=at)
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown = reassign(founded(), Reassignment("other", 0, (1,))).answer
    assert unknown is not None
    assert unknown.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_request_may_forbid_another_replication_factor() -> None:
    image = asked(founded(), "456", factor=False)
    assert state_of(image).replicas == numbers("456123")
    with pytest.raises(KafkaError, match="from 3 to 2") as refused:
        asked(image, "45", factor=False)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    asked(image, "145", factor=False)


def test_a_partition_has_no_more_replicas_during_a_move_than_its_record_can_have() -> None:
    image = founded(workers=MAX_REPLICAS + 3)
    most = tuple(range(4, MAX_REPLICAS + 4))
    refused = reassign(image, Reassignment("t", 0, most)).answer
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(image, Reassignment("t", 0, most[3:])).answer is None


def test_a_fenced_worker_may_be_in_a_target() -> None:
    image, _ = replay(founded(), fence_workers(founded(), {4}).all_records())
    assert state_of(asked(image, "234")).adding == (4,)


def joined(image: MetadataImage, isr: str) -> MetadataImage:
    """Return the image with that ISR of the partition, without other changes."""
    after = replace(state_of(image), isr=numbers(isr)).in_next_epoch()
    return replay(image, [partition_record(TOPIC_ID, 0, after)])[0]


def test_a_request_without_replicas_cancels_the_move() -> None:
    state = state_of(asked(joined(asked(founded(), "156"), "1235"), None))
    assert (state.replicas, state.isr, state.is_moving) == (numbers("123"), numbers("123"), False)


def test_a_new_target_keeps_what_is_in_sync_of_the_one_before() -> None:
    image = joined(asked(founded(), "45"), "1234")
    state = state_of(asked(image, "56"))
    assert told(state) == ("564123", "4123", "564", "4123", 1, 0)


def test_a_request_keeps_the_eligible_replicas() -> None:
    image = founded()
    after = replace(state_of(image), isr=(1,), elr=(2, 3)).in_next_epoch()
    image, _ = replay(image, [partition_record(TOPIC_ID, 0, after)])
    state = state_of(asked(image, "456"))
    assert (state.isr, state.elr) == ((1,), (2, 3))


def test_new_partitions_get_the_replication_factor_of_the_target() -> None:
    image = asked(founded(), "45")
    more = create_partitions(image, NewPartitions("t", 2, None), Random(1)).all_records()
    (created,) = (each for each in more if isinstance(each, PartitionRecord))
    assert len(created.replicas) == 2
