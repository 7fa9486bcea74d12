"""ISR changes that the controller rejects, one rule at a time."""

from dataclasses import replace

import pytest

from metaquorum.metadata.image import MetadataImage, partition_record
from metaquorum.metadata.records import TopicRecord
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.leaders.alter_partition import (
    NO_EPOCH,
    PartitionChange,
    alter_partition,
)
from metaquorum.quorum.controller.worker_registration import (
    fence_workers,
    register_worker,
    unfence_worker,
)
from metaquorum.wire.primitives.errors import ErrorCode
from tests.metaquorum.quorum.controller.leaders.test_leader_selection import (
    may_be_unclean,
    partition,
)
from tests.metaquorum.quorum.storage.histories import CLUSTER, registration

TOPIC_ID = bytes(range(16))
E = ErrorCode


def cluster() -> MetadataImage:
    """Return an image: workers 1 to 4 live; 1 leads t-0 in leader epoch 5, partition epoch 9.

    The ISR is 1 and 2.
    """
    image = MetadataImage.empty(CLUSTER)
    for worker_id in (1, 2, 3, 4):
        decision = register_worker(
            image, registration(worker_id, worker_id), may_be_unclean=may_be_unclean
        )
        image, _ = replay(image, decision.all_records())
        epoch = image.workers[worker_id].broker_epoch
        decision = unfence_worker(image, worker_id, epoch, may_be_unclean)
        image, _ = replay(image, decision.all_records())
    image, _ = replay(
        image,
        [
            TopicRecord("t", TOPIC_ID),
            partition_record(TOPIC_ID, 0, partition("123", "12", 1)),
            partition_record(TOPIC_ID, 1, replace(partition("123", "12", 1), offline=(3,))),
        ],
    )
    return image


IMAGE = cluster()
EPOCHS = {worker_id: worker.broker_epoch for worker_id, worker in IMAGE.workers.items()}


def spec(isr: str, **changes: object) -> PartitionChange:
    members = tuple(map(int, isr))
    epochs = tuple(EPOCHS.get(each, NO_EPOCH) for each in members)
    return replace(PartitionChange(TOPIC_ID, 0, 5, 9, members, epochs), **changes)  # type: ignore[arg-type]


def answered(change: PartitionChange, image: MetadataImage = IMAGE, worker_id: int = 1) -> E:
    decision = alter_partition(image, worker_id, EPOCHS[worker_id], change)
    assert bool(decision.all_records()) == (decision.answer is E.NONE)
    return decision.answer


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (spec("123"), E.NONE),
        (spec("1"), E.NONE),
        (spec("13"), E.NONE),
        (spec("123", broker_epochs=(NO_EPOCH,) * 3), E.NONE),
        (spec("123", topic_id=bytes(16)), E.UNKNOWN_TOPIC_ID),
        (spec("123", partition=2), E.UNKNOWN_TOPIC_OR_PARTITION),
        (spec("123", partition=-1), E.UNKNOWN_TOPIC_OR_PARTITION),
        (spec("123", leader_epoch=4), E.FENCED_LEADER_EPOCH),
        (spec("123", leader_epoch=6), E.NOT_CONTROLLER),
        (spec("123", partition_epoch=8), E.INVALID_UPDATE_VERSION),
        (spec("123", partition_epoch=10), E.NOT_CONTROLLER),
        (spec("23"), E.INVALID_REQUEST),
        (spec("122"), E.INVALID_REQUEST),
        (spec("124"), E.INVALID_REQUEST),
        (spec("123", broker_epochs=(NO_EPOCH,) * 2), E.INVALID_REQUEST),
        (spec("123", partition=1), E.INELIGIBLE_REPLICA),
        (spec("12", partition=1), E.NONE),
        (spec("123", broker_epochs=(EPOCHS[1], EPOCHS[2], EPOCHS[3] - 1)), E.INELIGIBLE_REPLICA),
    ],
)
def test_a_change_succeeds_one_state_of_the_partition(change: PartitionChange, code: E) -> None:
    assert answered(change) is code


def test_only_the_leader_in_its_own_incarnation_changes_an_isr() -> None:
    assert answered(spec("12"), worker_id=2) is E.NOT_LEADER_OR_FOLLOWER
    for worker_id, epoch in ((1, EPOCHS[1] - 1), (1, EPOCHS[1] + 1), (7, 0)):
        decision = alter_partition(IMAGE, worker_id, epoch, spec("12"))
        assert decision.answer is E.STALE_BROKER_EPOCH
        assert not decision.all_records()


def test_nobody_joins_who_is_fenced() -> None:
    records = fence_workers(IMAGE, {3}, may_be_unclean).all_records()
    image, _ = replay(IMAGE, records)
    assert answered(spec("123"), image) is E.INELIGIBLE_REPLICA
    assert answered(spec("1"), image) is E.NONE


def test_the_isr_is_in_the_order_of_the_replicas_in_the_next_partition_epoch() -> None:
    decision = alter_partition(IMAGE, 1, EPOCHS[1], spec("321"))
    image, _ = replay(IMAGE, decision.all_records())
    after = image.topics["t"].partitions[0]
    assert (after.isr, after.partition_epoch, after.leader_epoch) == ((1, 2, 3), 10, 5)
