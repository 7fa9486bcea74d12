"""Offsets of open transactions, compared with Kafka's rules on a list of records."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from metaquorum.dataplane.coordinators.client_budget import ClientBudget
from metaquorum.dataplane.coordinators.group.committed_offsets import (
    OFFSET_BYTES,
    CommittedOffsets,
    ExpiredOffsets,
    group_bytes,
)
from metaquorum.dataplane.coordinators.group.offset_retention import OffsetRetention
from metaquorum.dataplane.coordinators.group.record_formats import (
    MalformedRecordError,
    OffsetKey,
    OffsetValue,
    decode_key,
    encode_offset_value,
)
from metaquorum.dataplane.coordinators.group.transactional_offsets import (
    ENDED_AT_ONCE,
    waiting_bytes,
)
from metaquorum.dataplane.scheduling.time_slices import at_once
from metaquorum.wire.primitives.types import ZERO_UUID
from tests.dataplane.stepped import stepped
from tests.examples import examples

KEY = OffsetKey("g", "t", 0)
FIRST_ID, SECOND_ID = b"\1" * 16, b"\2" * 16
KEYS = st.builds(
    OffsetKey, st.sampled_from(["g", "h"]), st.sampled_from(["t", "u"]), st.integers(0, 1)
)
PRODUCERS = st.integers(1, 3)


def unlimited() -> ClientBudget:
    return ClientBudget("offsets.memory.max.bytes", lambda: 1 << 60)


def value(offset: int = 5, **more: Any) -> bytes:
    return encode_offset_value(OffsetValue(offset, -1, "", 1000)._replace(**more))


def end(offsets: CommittedOffsets, producer_id: int, *, is_commit: bool) -> None:
    work = offsets.replay_marker(producer_id, is_commit=is_commit)
    if work is not None:
        at_once(work)


class TransactionsModel(RuleBasedStateMachine):
    """Kafka's OffsetMetadataManager: each value with the offset of its record in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = unlimited()
        self.offsets = CommittedOffsets(self.budget)
        self.committed: dict[OffsetKey, tuple[int, int]] = {}  # record offset, committed offset
        self.open: dict[int, dict[OffsetKey, tuple[int, int]]] = {}
        self.end_offset = 0

    def append(self, key: OffsetKey, *, is_appended: bool) -> bytes:
        self.end_offset += 1
        encoded = value(self.end_offset)
        if is_appended:  # else an earlier leader did
            self.offsets.appended(key, encoded)
        return encoded

    @rule(key=KEYS, is_appended=st.booleans())
    def commit(self, key: OffsetKey, is_appended: bool) -> None:
        self.offsets.replay(key, self.append(key, is_appended=is_appended))
        self.committed[key] = self.end_offset, self.end_offset

    @rule(key=KEYS)
    def commit_at_once(self, key: OffsetKey) -> None:
        self.offsets.replay_appended(key, self.append(key, is_appended=False))
        self.committed[key] = self.end_offset, self.end_offset

    @rule(key=KEYS, producer_id=PRODUCERS, is_appended=st.booleans())
    def commit_in_transaction(self, key: OffsetKey, producer_id: int, is_appended: bool) -> None:
        encoded = self.append(key, is_appended=is_appended)
        self.offsets.replay_transactional(key, encoded, producer_id)
        self.open.setdefault(producer_id, {})[key] = self.end_offset, self.end_offset

    @rule(key=KEYS, producer_id=st.none() | PRODUCERS, is_committed=st.booleans())
    def delete(self, key: OffsetKey, producer_id: int | None, is_committed: bool) -> None:
        if producer_id is not None:
            self.offsets.replay_transactional(key, None, producer_id)
        elif is_committed:
            self.offsets.replay_appended(key, None)
        else:
            self.offsets.replay(key, None)
        self.committed.pop(key, None)
        for of_producer in self.open.values():
            of_producer.pop(key, None)

    @rule(producer_id=PRODUCERS, is_commit=st.booleans())
    def marker(self, producer_id: int, is_commit: bool) -> None:
        end(self.offsets, producer_id, is_commit=is_commit)
        for key, (record_offset, offset) in self.open.pop(producer_id, {}).items():
            if is_commit and record_offset > self.committed.get(key, (-1, -1))[0]:
                self.committed[key] = record_offset, offset

    def used_bytes(self) -> int:
        offsets = [each for waiting in self.offsets._waiting.values() for each in waiting.values()]
        values = [one.value for each in offsets for one in each.values()]
        assert sum(map(len, self.open.values())) == len(values)
        waiting = sum(
            waiting_bytes(key.group, 0) for of_producer in self.open.values() for key in of_producer
        )
        waiting += sum(len(each) for each in values if each is not None)
        groups = {key.group for key in self.committed}
        return waiting + len(self.committed) * OFFSET_BYTES + sum(map(group_bytes, groups))

    @invariant()
    def offsets_are_those_of_kafka(self) -> None:
        waiting = [key for of_producer in self.open.values() for key in of_producer]
        found = self.offsets
        assert found.offset_count == len(self.committed)
        assert found.transactional.count == len(waiting)
        assert self.budget.used_bytes == self.used_bytes()
        assert found.pending_count == 0
        existing = {*self.committed, *waiting}
        listed = [group for groups in found.groups() for group in groups]
        assert sorted(listed) == sorted({key.group for key in existing})
        for group in ("g", "h"):
            assert found.has_group(group) == any(key.group == group for key in existing)
            tombstones = [decode_key(key) for key in found.delete_group(group)]
            places = [place for piece in found.place_pieces(group) for place in piece]
            assert len(tombstones) == len(set(tombstones)) == len(places) == len(set(places))
            assert set(tombstones) == {key for key in existing if key.group == group}
            assert {OffsetKey(group, *place) for place in places} == set(tombstones)
            expired = found.expire(group, OffsetRetention(), now_ms=10**9, retention_ms=1)
            assert {decode_key(key) for key in expired.keys} == {
                key for key in self.committed if key.group == group and key not in waiting
            }
            assert expired.is_all == (not any(key.group == group for key in waiting))
            held = at_once(found.transactional.producers(group))
            assert held == {
                producer_id: count
                for producer_id, of_producer in self.open.items()
                if (count := sum(key.group == group for key in of_producer))
            }
            for topic in ("t", "u"):
                for partition in range(2):
                    key = OffsetKey(group, topic, partition)
                    assert found.is_unstable(*key) == (key in waiting)
                    assert found.has_offset(*key) == (key in existing)
                    fetched = found.fetch(*key, ZERO_UUID)
                    known = self.committed.get(key)
                    assert (fetched and fetched.offset) == (known and known[1])


TransactionsModel.TestCase.settings = examples(100, stateful_step_count=40)
TestTransactionsModel = TransactionsModel.TestCase


def test_a_commit_after_the_transactional_one_wins_over_the_marker() -> None:
    offsets = CommittedOffsets(unlimited())
    offsets.replay_transactional(KEY, value(5), 1)
    offsets.replay(KEY, value(7))
    assert offsets.is_unstable(*KEY)
    end(offsets, 1, is_commit=True)
    fetched = offsets.fetch(*KEY, ZERO_UUID)
    assert fetched is not None
    assert fetched.offset == 7
    assert not offsets.is_unstable(*KEY)


def test_a_transactional_commit_is_unstable_before_it_is_replicated() -> None:
    offsets = CommittedOffsets(unlimited())
    offsets.appended(KEY, value())
    assert offsets.is_unstable(*KEY)
    assert offsets.pending_count == 1
    offsets.replay_transactional(KEY, value(), 1)
    assert (offsets.pending_count, offsets.transactional.count) == (0, 1)
    assert offsets.is_unstable(*KEY)
    end(offsets, 1, is_commit=False)
    assert not offsets.has_group("g")


def test_a_group_of_only_transactional_offsets_does_not_expire() -> None:
    offsets = CommittedOffsets(unlimited())
    offsets.replay_transactional(KEY, value(), 1)
    found = offsets.expire("g", OffsetRetention(), now_ms=10**9, retention_ms=1)
    assert found == ExpiredOffsets([], is_all=False)


def test_a_deleted_topic_takes_the_offsets_of_open_transactions_along() -> None:
    offsets = CommittedOffsets(unlimited())
    offsets.replay(KEY, value(topic_id=FIRST_ID))
    offsets.replay_transactional(KEY, value(topic_id=FIRST_ID), 1)
    assert offsets.delete_stale("g", lambda _: FIRST_ID) == []
    assert [decode_key(key) for key in offsets.delete_stale("g", lambda _: SECOND_ID)] == [KEY]
    offsets.replay_transactional(KEY, value(topic_id=SECOND_ID), 1)
    assert offsets.delete_stale("g", lambda _: SECOND_ID) == []


def test_a_long_transaction_ends_in_short_pieces() -> None:
    offsets = CommittedOffsets(unlimited())
    keys = [KEY._replace(partition=index) for index in range(3 * ENDED_AT_ONCE)]
    for key in keys:
        offsets.replay_transactional(key, value(), 1)
    work = offsets.replay_marker(1, is_commit=True)
    assert work is not None
    for step, _ in enumerate(stepped(work), 1):
        assert offsets.offset_count == step * ENDED_AT_ONCE
        assert offsets.transactional.count == len(keys) - step * ENDED_AT_ONCE
    assert offsets.offset_count == len(keys)
    assert offsets.replay_marker(1, is_commit=True) is None


def test_offsets_of_open_transactions_count_until_their_end() -> None:
    budget = unlimited()
    offsets = CommittedOffsets(budget, max_pending=10)
    long = value(metadata="x" * 900)
    offsets.replay_transactional(KEY, long, 1, "a")
    offsets.replay_transactional(KEY, long, 1, "a")
    once = budget.use_of("a").admitted_bytes
    assert once > 900
    offsets.replay_transactional(KEY, long, 2, "b")
    assert budget.use_of("b").admitted_bytes == once
    offsets.replay(KEY, value(), "c")
    assert budget.use_of("a").admitted_bytes < once - 900, "the long values are overtaken"
    other = KEY._replace(group="g" * 1000)
    offsets.replay_transactional(other, long, 2, "b")
    assert budget.use_of("b").admitted_bytes > once + 1000
    offsets.replay(other, None)
    for producer_id in (1, 2):
        offsets.replay_marker(producer_id, is_commit=True)
    assert budget.clients() == ["c"]
    assert offsets.has_room(10)


def test_a_malformed_transactional_value_changes_nothing() -> None:
    offsets = CommittedOffsets(unlimited())
    with pytest.raises(MalformedRecordError):
        offsets.replay_transactional(KEY, b"", 1)
    assert not offsets.has_group("g")


def test_all_is_freed() -> None:
    offsets = CommittedOffsets(unlimited())
    for partition in range(5000):
        offsets.replay_transactional(KEY._replace(partition=partition), value(), partition % 3)
    assert len(list(stepped(offsets.emptied()))) > 3
    assert not offsets.has_group("g")
    assert not offsets._budget.used_bytes
