"""Positions, fetched records and pauses of assigned partitions."""

import pytest

from metaquorum.client import TopicPartition
from metaquorum.client.consumer import ConsumedRecord
from metaquorum.client.groups.assigned_partitions import AssignedPartitions, NotAssignedError
from metaquorum.client.groups.group_config import OffsetReset
from metaquorum.client.groups.values import CommittedOffset

P0, P1 = (TopicPartition("orders", index) for index in range(2))


def record(where: TopicPartition, offset: int, leader_epoch: int = 3) -> ConsumedRecord:
    return ConsumedRecord(*where, offset, 0, None, None, (), leader_epoch)


def assigned(*partitions: TopicPartition) -> AssignedPartitions:
    found = AssignedPartitions()
    found.assign(partitions)
    return found


def offsets(records: list[ConsumedRecord]) -> list[tuple[int, int]]:
    return [(each.partition, each.offset) for each in records]


def test_the_position_follows_the_records_that_were_taken() -> None:
    own = assigned(P0)
    assert (own.positions(), own.without_position()) == ({}, [P0])
    own.seek(P0, 4, leader_epoch=2)
    assert own.positions() == {P0: CommittedOffset(4, 2)}
    own.add([record(P0, 4), record(P0, 7)], {P0: 10}, {P0: 3})
    assert own.positions() == {P0: CommittedOffset(4, 2)}
    assert own.fetchable({}) == {}  # its records are taken first
    assert offsets(own.take(1)) == [(0, 4)]
    assert own.positions() == {P0: CommittedOffset(7, 3)}
    assert offsets(own.take(5)) == [(0, 7)]
    assert own.positions() == {P0: CommittedOffset(10, 3)}  # after a marker without records
    assert own.fetchable({}) == {P0: CommittedOffset(10, 3)}
    assert own.take(5) == []


def test_partitions_take_turns() -> None:
    own = assigned(P0, P1)
    for where in (P0, P1):
        own.seek(where, 0)
        own.add([record(where, offset) for offset in range(3)], {where: 3}, {where: 3})
    assert offsets(own.take(4)) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    own.add([record(P0, 3)], {P0: 4}, {P0: 3})
    assert offsets(own.take(4)) == [(1, 1), (1, 2), (0, 3)]


def test_a_paused_partition_keeps_its_records() -> None:
    own = assigned(P0)
    own.seek(P0, 0)
    own.add([record(P0, 0)], {P0: 1}, {P0: 3})
    own.pause(P0)
    assert (own.take(5), own.fetchable({}), own.paused) == ([], {}, (P0,))
    assert own.position(P0) == 0
    own.resume(P0)
    assert offsets(own.take(5)) == [(0, 0)]


def test_a_seek_drops_the_fetched_records() -> None:
    own = assigned(P0)
    own.seek(P0, 0)
    own.add([record(P0, 0)], {P0: 1}, {P0: 3})
    own.seek(P0, 9)
    assert (own.take(5), own.fetchable({})) == ([], {P0: CommittedOffset(9)})
    own.request_reset(P0, OffsetReset.LATEST)
    assert (own.awaiting_reset(), own.without_position()) == ({P0: OffsetReset.LATEST}, [])
    own.forget_position(P0)
    assert (own.awaiting_reset(), own.without_position()) == ({}, [P0])


def test_partitions_that_stay_keep_their_positions_and_others_do_not() -> None:
    own = assigned(P0, P1)
    for where in (P0, P1):
        own.seek(where, 5)
        own.add([record(where, 5)], {where: 6}, {where: 3})
    own.assign([P1])
    assert own.all == (P1,)
    assert P0 not in own
    own.assign([P0, P1])
    assert own.without_position() == [P0]
    assert offsets(own.take(5)) == [(1, 5)]
    own.assign([])
    own.add([record(P0, 5)], {P0: 6}, {P0: 3})
    assert own.take(5) == []


def test_partitions_of_deleted_topics_are_not_fetched() -> None:
    own = assigned(P0, P1)
    own.seek(P0, 0)
    own.seek(P1, 0)
    assert own.fetchable({"orders": 1}) == {P0: CommittedOffset(0)}
    assert own.fetchable({"orders": 0}) == {}


def test_a_partition_that_is_not_assigned_is_an_error() -> None:
    own = assigned(P0)
    for call in (own.position, own.pause, own.resume, lambda where: own.seek(where, 0)):
        with pytest.raises(NotAssignedError, match="orders-1 is not assigned"):
            call(P1)
