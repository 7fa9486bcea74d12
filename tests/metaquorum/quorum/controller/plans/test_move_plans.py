"""Plans of moves: begun in batches, paused, cancelled, and never left with a moving partition."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.image import MetadataImage, PartitionImage, partition_record
from metaquorum.metadata.records import (
    CANCELLED,
    CANCELLING,
    COMPLETE,
    LOADING,
    MAX_BATCH_MOVES,
    MAX_PLANNED_MOVES,
    MAX_STOPS,
    PAUSED,
    RUNNING,
    STOPPED_BY_CANCEL,
    STOPPED_BY_DELETION,
    STOPPED_BY_REQUEST,
    MetadataRecord,
    PartitionRecord,
    PlannedMove,
    RecordEncoder,
    RemoveTopicRecord,
    StoppedMove,
    TopicRecord,
    decode_record,
)
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.features import MOVES_LEVEL
from metaquorum.quorum.controller.leaders.leader_selection import with_isr
from metaquorum.quorum.controller.plans.move_plans import (
    CANCEL,
    MAX_ACTIVE_PLANS,
    MAX_PLAN_MOVES,
    MAX_PLANS,
    PAUSE,
    RESUME,
    START,
    STEP_MOVES,
    THROTTLE,
    MovePlanChange,
    MovePlanPart,
    NewMovePlan,
    PlanStep,
    append_moves,
    change_plan,
    create_plan,
    expire_plan,
    step_plan,
)
from metaquorum.quorum.controller.reassignment import Reassignment, reassign
from metaquorum.quorum.controller.worker_registration import fence_workers, unregister_worker
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.metaquorum.quorum.controller.test_reassignment import founded

TOPIC_ID = bytes(15) + b"\2"


def made(count: int = 10, *, level: int = MOVES_LEVEL) -> MetadataImage:
    """Return an image with a topic `p` whose partitions have replicas 1 and 2."""
    image = founded(level=level)
    records: list[MetadataRecord] = [TopicRecord("p", TOPIC_ID)]
    records += [PartitionRecord(TOPIC_ID, at, (1, 2), (1, 2), 1, 0, 0) for at in range(count)]
    return replay(image, records)[0]


def moves(count: int = 10, target: tuple[int, ...] = (3, 2)) -> list[PlannedMove]:
    return [PlannedMove(TOPIC_ID, at, target, 100) for at in range(count)]


def new(count: int = 10, *, batch: int = 3, rate: int | None = 1000) -> NewMovePlan:
    return NewMovePlan("User:a", "mq-admin", rate, batch, count, 100 * count, 60)


def after(image: MetadataImage, decision: Decision[KafkaError | None]) -> MetadataImage:
    if decision.answer is not None:
        raise decision.answer
    return replay(image, decision.all_records())[0]


def loaded(image: MetadataImage, planned: list[PlannedMove], **more: int) -> MetadataImage:
    """Return the image with a plan of these moves, which has not started."""
    created = create_plan(image, new(len(planned), **more), 5)
    image = replay(image, created.all_records())[0]
    for number, first in enumerate(range(0, len(planned), MAX_PLANNED_MOVES)):
        part = MovePlanPart(created.answer, number, planned[first : first + MAX_PLANNED_MOVES])
        image = after(image, append_moves(image, part))
    return image


def started(count: int = 10, *, batch: int = 3, partitions: int = 10) -> MetadataImage:
    image = loaded(made(partitions), moves(count), batch=batch)
    return changed(image, START)


def changed(image: MetadataImage, action: str, rate: int | None = None) -> MetadataImage:
    return after(image, change_plan(image, MovePlanChange(1, action, rate)))


def stepped(image: MetadataImage) -> tuple[MetadataImage, PlanStep]:
    decision = step_plan(image, 1, 9)
    return replay(image, decision.all_records())[0], decision.answer


def settled(image: MetadataImage) -> MetadataImage:
    """Return the image after all steps that are possible now."""
    while decision := step_plan(image, 1, 9):
        records = decision.all_records()
        if not records:
            return image
        image, _ = replay(image, records)
    raise AssertionError


def state(image: MetadataImage, at: int) -> PartitionImage:
    return image.topics["p"].partitions[at]


def in_sync(image: MetadataImage, at: int) -> MetadataImage:
    """Return the image after the whole target of the partition has come in sync."""
    known = state(image, at)
    isr = tuple([r for r in known.replicas if r in {*known.isr, *known.target}])
    complete = with_isr(known, isr, 2, image.is_live)
    return replay(image, [partition_record(TOPIC_ID, at, complete)])[0]


def moving(image: MetadataImage) -> list[int]:
    return sorted(at for _, at in image.plans[1].moving)


def counts(image: MetadataImage) -> tuple[str, int, int, int]:
    header = image.plans[1].header
    return header.state, header.begun, header.done, header.stopped


def test_a_plan_moves_its_partitions_a_few_at_a_time_in_their_order() -> None:
    image = settled(started())
    assert moving(image) == [0, 1, 2]
    assert all(state(image, at).plan == 1 for at in range(3))
    image = settled(in_sync(image, 1))
    assert moving(image) == [0, 2, 3], "the next begins when one is done"
    assert state(image, 1).plan == 0
    for at in range(10):
        image = settled(in_sync(image, at) if state(image, at).is_moving else image)
    while moving(image):
        image = settled(in_sync(image, moving(image)[0]))
    assert counts(image) == (COMPLETE, 10, 10, 0)
    assert image.plans[1].header.ended_ms == 9
    assert not image.plans[1].parts, "an ended plan takes little memory"
    assert all(state(image, at).replicas == (3, 2) for at in range(10))


def test_the_moves_of_a_plan_obey_the_rules_of_all_moves() -> None:
    image = settled(started())
    assert state(image, 0) == replace(state(image, 0), replicas=(3, 2, 1), isr=(2, 1), leader=1)
    assert (state(image, 0).adding, state(image, 0).removing) == ((3,), (1,))


def test_moves_that_need_no_copy_are_done_at_once() -> None:
    image = loaded(made(), moves(4, (2, 1)), batch=2)
    image = settled(changed(image, START))
    assert counts(image) == (COMPLETE, 4, 4, 0)
    assert state(image, 3).replicas == (2, 1)
    same = settled(changed(loaded(made(), moves(4, (1, 2))), START))
    assert counts(same) == (COMPLETE, 4, 4, 0)
    assert state(same, 0).plan == 0


def test_a_paused_plan_begins_nothing_and_its_moves_go_on() -> None:
    image = changed(settled(started()), PAUSE)
    assert settled(image) is image
    image = settled(in_sync(image, 0))
    assert (moving(image), counts(image)) == ([1, 2], (PAUSED, 3, 1, 0))
    assert moving(settled(changed(image, RESUME))) == [1, 2, 3]
    assert change_plan(image, MovePlanChange(1, PAUSE)).all_records() == []
    last = in_sync(changed(settled(started(1)), PAUSE), 0)
    assert counts(settled(last))[0] == COMPLETE


def test_a_cancelled_plan_takes_its_partitions_back() -> None:
    image = settled(in_sync(settled(started()), 0))
    image = settled(changed(image, CANCEL))
    assert counts(image) == (CANCELLED, 4, 1, 3)
    assert not image.plans[1].header.stops, "the cancel is the reason"
    assert state(image, 0).replicas == (3, 2), "what is done stays"
    assert [state(image, at).replicas for at in (1, 2, 3)] == [(2, 1)] * 3
    assert not any(each.plan for each in image.topics["p"].partitions)
    with pytest.raises(KafkaError, match="Plan 1 is cancelled; 'resume' needs a plan that is"):
        changed(image, RESUME)


def test_a_move_that_cannot_be_cancelled_keeps_its_plan_until_it_is_complete() -> None:
    image = settled(started(1))
    only = replace(state(image, 0), isr=(3,), leader=3)  # the original replicas are not in sync
    image, _ = replay(image, [partition_record(TOPIC_ID, 0, only)])
    image = settled(changed(image, CANCEL))
    assert (counts(image)[0], moving(image)) == (CANCELLING, [0])
    image = settled(in_sync(image, 0))
    assert counts(image) == (CANCELLED, 1, 1, 0)


@pytest.mark.parametrize("target", [None, (4, 2)])
def test_another_client_takes_a_partition_out_of_the_plan(target: tuple[int, ...] | None) -> None:
    image = settled(started())
    image = after(image, reassign(image, Reassignment("p", 1, target)))
    assert (moving(image), counts(image)) == ([0, 2], (RUNNING, 3, 0, 1))
    assert state(image, 1).plan == 0
    assert moving(settled(image)) == [0, 2, 3]
    why = STOPPED_BY_CANCEL if target is None else STOPPED_BY_REQUEST
    assert image.plans[1].header.stops == (StoppedMove("p", 1, why),)


def test_the_same_request_by_another_client_leaves_the_partition_in_the_plan() -> None:
    image = settled(started())
    decision = reassign(image, Reassignment("p", 1, (3, 2)))
    assert (decision.answer, decision.all_records()) == (None, [])


def test_a_partition_that_moves_already_is_given_up() -> None:
    image = started()
    image = after(image, reassign(image, Reassignment("p", 1, (4, 2))))
    image, step = stepped(image)
    assert step.given_up == (StoppedMove("p", 1, "it moves already"),)
    assert image.plans[1].header.stops == step.given_up
    assert (moving(image), counts(image)) == ([0, 2, 3], (RUNNING, 4, 0, 1))
    twice = loaded(made(), moves(2) + moves(1), batch=5)
    image, step = stepped(changed(twice, START))
    assert (moving(image), step.given_up) == ([0, 1], (StoppedMove("p", 0, "it moves already"),))


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_deleted_topic_leaves_the_plan(is_created_again: bool) -> None:
    image = settled(started())
    image, _ = replay(image, [RemoveTopicRecord(TOPIC_ID)])
    assert (moving(image), counts(image)) == ([], (RUNNING, 3, 0, 3))
    stops = tuple([StoppedMove("p", at, STOPPED_BY_DELETION) for at in range(3)])
    assert image.plans[1].header.stops == stops
    if is_created_again:
        other = bytes(15) + b"\7"
        record = PartitionRecord(other, 0, (1, 2), (1, 2), 1, 0, 0)
        image, _ = replay(image, [TopicRecord("p", other), record])
    image = settled(image)
    assert counts(image) == (COMPLETE, 10, 0, 10)
    if is_created_again:
        assert not state(image, 0).is_moving


def test_a_worker_that_is_unregistered_ends_the_moves_to_it() -> None:
    image = settled(started())
    image, _ = replay(image, fence_workers(image, {3}).all_records())
    assert moving(settled(image)) == [0, 1, 2], "it may come back"
    gone = unregister_worker(image, 3, lambda *_: False, is_alive=False)
    image, _ = replay(image, gone.all_records())
    image, step = stepped(image)
    assert (moving(image), step.has_more) == ([], True)
    why = "worker 3 of its target is no longer registered"
    stops = tuple([StoppedMove("p", at, why) for at in range(3)])
    assert image.plans[1].header.stops == stops, "and not as cancelled by another client"
    image, step = stepped(image)
    assert len(step.given_up) == 7
    assert "no such broker" in step.given_up[0].reason
    assert image.plans[1].header.stops == (*stops, *step.given_up)
    assert counts(settled(image)) == (COMPLETE, 10, 0, 10)


def test_a_plan_remembers_the_last_of_many_stopped_moves() -> None:
    image = started(30, partitions=30)
    image, _ = replay(image, [RemoveTopicRecord(TOPIC_ID)])
    image = settled(image)
    assert counts(image) == (COMPLETE, 30, 0, 30)
    stops = [StoppedMove("", at, STOPPED_BY_DELETION) for at in range(30)]
    assert image.plans[1].header.stops == tuple(stops[-MAX_STOPS:])


def test_the_throttle_of_a_plan_can_be_changed_and_removed() -> None:
    image = changed(started(), THROTTLE, 50)
    assert image.plans[1].header.rate_bytes_per_s == 50
    assert changed(image, THROTTLE).plans[1].header.rate_bytes_per_s is None
    with pytest.raises(KafkaError, match="at least 1 byte per second; 0 would never finish"):
        changed(image, THROTTLE, 0)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (new(0), "from 1 to 200000 moves; this one has 0"),
        (new(MAX_PLAN_MOVES + 1), "Split a larger one"),
        (new(batch=0), "from 1 to 500 partitions at the same time"),
        (new(batch=MAX_BATCH_MOVES + 1), "the batch size is 501"),
        (new(rate=0), "0 would never finish"),
        (new(rate=-5), "-5 would never finish"),
        (replace(new(), size_bytes=-1), "from 0 to"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(asked: NewMovePlan, message: str) -> None:
    with pytest.raises(KafkaError, match=message):
        create_plan(made(), asked, 5)


def test_plans_need_their_level_of_metadata_version() -> None:
    image = made(level=MOVES_LEVEL - 1)
    with pytest.raises(KafkaError, match=r"A plan of moves needs level 4 of metadata\.version"):
        create_plan(image, new(), 5)
    refused = change_plan(image, MovePlanChange(1, START)).answer
    assert refused is not None
    assert refused.code is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (MovePlanPart(2, 0, moves(10)), "There is no plan 2; known plans: 1"),
        (MovePlanPart(1, 1, moves(10)), "part 1 is not the next one"),
        (MovePlanPart(1, 0, moves(9)), "has 9 moves instead of 10"),
        (MovePlanPart(1, 0, moves(11)), "has 11 moves instead of 10"),
        (MovePlanPart(1, 0, moves(10, (3, 3))), "the broker 3 more than once"),
        (MovePlanPart(1, 0, moves(10, (3, 9))), "includes broker 9"),
        (MovePlanPart(1, 0, moves(10, ())), "an empty replica list"),
    ],
)
def test_moves_that_no_plan_can_have_are_refused(part: MovePlanPart, message: str) -> None:
    image, _ = replay(made(), create_plan(made(), new(), 5).all_records())
    refused = append_moves(image, part).answer
    assert refused is not None
    assert message in str(refused.message)


def test_a_plan_starts_with_all_its_moves_and_takes_no_more() -> None:
    image, _ = replay(made(), create_plan(made(), new(), 5).all_records())
    with pytest.raises(KafkaError, match="has 0 of its 10 moves"):
        changed(image, START)
    part = MovePlanPart(1, 0, moves())
    image = after(image, append_moves(image, part))
    assert append_moves(image, part) == Decision(None), "a repeated request"
    assert step_plan(image, 1, 9).all_records() == []
    with pytest.raises(KafkaError, match="Plan 1 is running; it takes no more moves"):
        after(changed(image, START), append_moves(changed(image, START), part))


def test_a_plan_whose_sender_vanishes_is_cancelled() -> None:
    image, _ = replay(made(), create_plan(made(), new(), 5).all_records())
    image, _ = replay(image, expire_plan(image, 1).all_records())
    assert counts(settled(image))[0] == CANCELLED
    assert expire_plan(started(), 1).all_records() == []


def test_few_plans_run_and_few_that_have_ended_are_kept() -> None:
    image = made()
    for _ in range(MAX_ACTIVE_PLANS):
        image, _ = replay(image, create_plan(image, new(), 5).all_records())
    with pytest.raises(KafkaError, match=r"plans 1, 2, 3, 4 have not ended") as refused:
        create_plan(image, new(), 5)
    assert refused.value.code == ErrorCode.INVALID_REQUEST, "mq-admin adds no hint at configs"
    for number in range(1, 3 * MAX_PLANS):
        image, _ = replay(image, expire_plan(image, number).all_records())
        image, _ = replay(image, step_plan(image, number, 1).all_records())
        decision = create_plan(image, new(), 5)
        assert decision.answer == number + MAX_ACTIVE_PLANS, "an id is never used again"
        image, _ = replay(image, decision.all_records())
    assert len(image.plans) == MAX_PLANS


def test_a_large_plan_has_bounded_records_and_steps() -> None:
    count = 2 * MAX_PLANNED_MOVES + 1
    planned = [PlannedMove(TOPIC_ID, at, (3, 2), 2**62) for at in range(count)]
    image = changed(loaded(made(count), planned, batch=MAX_BATCH_MOVES), START)
    assert [len(part) for part in image.plans[1].parts] == [100, 100, 1]
    for expected in (STEP_MOVES, STEP_MOVES, 1):
        decision = step_plan(image, 1, 9)
        assert decision.answer.begun == expected
        assert decision.answer.has_more
        image, _ = replay(image, decision.all_records())
    assert list(image.plans[1].moves(150)) == planned[150:]


# Random histories


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    events = ("step", "sync", "sync", "pause", "resume", "cancel", "other", "stop", "delete")
    one = st.tuples(st.sampled_from(events), st.integers(0, 5))
    return draw(st.lists(one, max_size=40))


def played(image: MetadataImage, event: str, at: int) -> Iterator[Decision[KafkaError | None]]:
    exists = "p" in image.topics
    if event in (PAUSE, RESUME, CANCEL):
        yield change_plan(image, MovePlanChange(1, event))
    elif event == "other" and exists:
        yield reassign(image, Reassignment("p", at, (4, 1 + at % 2)))
    elif event == "stop" and exists:
        yield reassign(image, Reassignment("p", at, None))
    elif event == "delete" and exists and at == 5:
        yield Decision(None, [RemoveTopicRecord(TOPIC_ID)])
    elif event == "step":
        yield Decision(None, step_plan(image, 1, 9).all_records())


@given(histories())
def test_every_history_ends_without_a_moving_partition_in_a_plan(
    history: list[tuple[str, int]],
) -> None:
    image = changed(loaded(made(6), moves(6), batch=2), START)
    encoder = RecordEncoder(image.features)
    for event, at in history:
        if event == "sync" and "p" in image.topics and state(image, at).is_moving:
            image = in_sync(image, at)
        for decision in played(image, event, at):
            records = [decode_record(encoder.encode(each)) for each in decision.all_records()]
            image, _ = replay(image, records)
        check(image)
    if image.plans[1].header.state == PAUSED:
        image = changed(image, RESUME)
    image = settled(image)
    while image.plans[1].moving:
        image = settled(in_sync(image, moving(image)[0]))
    assert image.plans[1].has_ended
    check(image)


def check(image: MetadataImage) -> None:
    plan = image.plans[1]
    throttled = {
        (topic.topic_id, at)
        for topic in image.topics.each()
        for at, partition in enumerate(topic.partitions)
        if partition.plan
    }
    assert throttled == set(plan.moving), "the partitions and the plan agree"
    for topic_id, at in throttled:
        topic = image.topic_by_id(topic_id)
        assert topic is not None
        assert topic.partitions[at].is_moving, "no partition of a plan without a move"
    header = plan.header
    assert header.begun == header.done + header.stopped + len(plan.moving)
    if plan.has_ended:
        assert not throttled
    copy, _ = replay(MetadataImage.empty(image.cluster_id), image.records())
    assert copy.plans == image.plans, "a snapshot has the plan"
    assert image.plans[1].header.state != LOADING
