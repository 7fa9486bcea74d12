"""Committed offsets of a shard, compared with a list of its records, and rule by rule."""

import gc
import sys
from itertools import product
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metaquorum.dataplane.coordinators.client_budget import UNKNOWN, ClientBudget
from metaquorum.dataplane.coordinators.group.committed_offsets import (
    MAX_PENDING_OFFSETS,
    OFFSET_BYTES,
    PIECE_OFFSETS,
    USUAL_VALUE_BYTES,
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
from metaquorum.dataplane.scheduling.time_slices import FORGOTTEN_ROWS
from metaquorum.wire.primitives.types import ZERO_UUID
from tests.dataplane.stepped import stepped
from tests.examples import examples

FIRST_ID, SECOND_ID = b"\1" * 16, b"\2" * 16
KEY = OffsetKey("g", "t", 0)


def unlimited() -> ClientBudget:
    return ClientBudget("offsets.memory.max.bytes", lambda: 1 << 60)


def value(offset: int = 5, **more: Any) -> bytes:
    return encode_offset_value(OffsetValue(offset, -1, "", 1000)._replace(**more))


def groups_of(offsets: CommittedOffsets) -> list[str]:
    return [group for groups in offsets.groups() for group in groups]


def keys(tombstones: list[bytes]) -> set[OffsetKey]:
    decoded = [decode_key(key) for key in tombstones]
    assert len(set(decoded)) == len(decoded)
    return {key for key in decoded if isinstance(key, OffsetKey)}


GROUPS = st.sampled_from(["g", "h"])
TOPICS = st.sampled_from(["t", "u"])
PARTITIONS = st.integers(0, 2)
CLIENTS = st.sampled_from([UNKNOWN, "a", "b"])
IDS = st.sampled_from([ZERO_UUID, FIRST_ID, SECOND_ID])
TIMES = st.integers(0, 40)
KEYS = st.builds(OffsetKey, GROUPS, TOPICS, PARTITIONS)
VALUES = st.builds(
    OffsetValue,
    st.integers(0, 9),
    st.integers(-1, 3),
    st.sampled_from(["", "m", "é", "x" * 200]),
    TIMES,
    st.just(-1),
    IDS,
)
EXPIRING = st.builds(
    OffsetValue, st.integers(0, 9), st.just(-1), st.just(""), TIMES, TIMES, st.just(ZERO_UUID)
)
RETENTIONS = st.none() | st.builds(
    OffsetRetention, st.none() | TIMES, st.frozensets(TOPICS, max_size=2)
)


class OffsetsModel(RuleBasedStateMachine):
    """The naive model: a dict of committed values, and the list of records not committed yet."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = unlimited()
        self.offsets = CommittedOffsets(self.budget, max_pending=20)
        self.owners: dict[OffsetKey, str] = {}  # clients of committed offsets
        self.payers: dict[str, str] = {}  # clients of groups
        self.committed: dict[OffsetKey, OffsetValue] = {}
        self.log: list[tuple[OffsetKey, OffsetValue | None]] = []

    def append(self, key: OffsetKey, decoded: OffsetValue | None) -> None:
        self.log.append((key, decoded))
        self.offsets.appended(key, None if decoded is None else encode_offset_value(decoded))

    def pending(self) -> list[OffsetKey]:
        return [key for key, decoded in self.log if decoded is not None]

    def existing(self) -> set[OffsetKey]:
        return {*self.committed, *self.pending()}

    def last(self, key: OffsetKey) -> OffsetValue | None:
        """Return the value after all records of the log, if a commit is among them."""
        if key not in self.pending():
            return self.committed.get(key)
        return [decoded for logged, decoded in self.log if logged == key][-1]

    @rule(key=KEYS, decoded=VALUES | EXPIRING)
    def commit(self, key: OffsetKey, decoded: OffsetValue) -> None:
        self.append(key, decoded)

    @rule(key=KEYS, decoded=st.none() | VALUES | EXPIRING, client=CLIENTS)
    @precondition(lambda self: not self.log)
    def load(self, key: OffsetKey, decoded: OffsetValue | None, client: str) -> None:
        """Replay a record that an earlier leader appended."""
        encoded = None if decoded is None else encode_offset_value(decoded)
        self.offsets.replay(key, encoded, client)
        self.apply(key, decoded, client)

    @rule(count=st.integers(1, 4), client=CLIENTS)
    def replay(self, count: int, client: str) -> None:
        for _ in range(min(count, len(self.log))):
            key, decoded = self.log.pop(0)
            encoded = None if decoded is None else encode_offset_value(decoded)
            self.offsets.replay(key, encoded, client)
            self.apply(key, decoded, client)

    def apply(self, key: OffsetKey, decoded: OffsetValue | None, client: str) -> None:
        if decoded is None:
            self.committed.pop(key, None)
            self.owners.pop(key, None)
            if not any(each.group == key.group for each in self.committed):
                self.payers.pop(key.group, None)
        else:
            self.committed[key] = decoded
            self.owners[key] = self.owners.get(key) or client
            self.payers[key.group] = self.payers.get(key.group) or client

    @invariant()
    def memory_is_that_of_the_clients_that_have_created_the_offsets(self) -> None:
        counted = dict.fromkeys(("", "a", "b"), (0, 0))
        for key, decoded in self.committed.items():
            admitted, grown = counted[self.owners[key]]
            excess = max(0, len(encode_offset_value(decoded)) - USUAL_VALUE_BYTES)
            counted[self.owners[key]] = admitted + OFFSET_BYTES, grown + excess
        for group, client in self.payers.items():
            admitted, grown = counted[client]
            counted[client] = admitted + group_bytes(group), grown
        for client, use in counted.items():
            assert self.budget.use_of(client) == (client, *use)

    @rule(group=GROUPS, is_appended=st.booleans())
    def delete_group(self, group: str, is_appended: bool) -> None:
        expected = {key for key in self.existing() if key.group == group}
        self.check_tombstones(self.offsets.delete_group(group), expected, is_appended)

    @rule(group=GROUPS, topic=TOPICS, partitions=st.sets(PARTITIONS), is_appended=st.booleans())
    def delete_offsets(
        self, group: str, topic: str, partitions: set[int], is_appended: bool
    ) -> None:
        expected = {OffsetKey(group, topic, p) for p in partitions} & self.existing()
        found = self.offsets.delete_offsets(group, topic, partitions)
        self.check_tombstones(found, expected, is_appended)

    @rule(topic=TOPICS, topic_id=st.sampled_from([FIRST_ID, SECOND_ID]), is_appended=st.booleans())
    def delete_topic(self, topic: str, topic_id: bytes, is_appended: bool) -> None:
        expected = {
            key
            for key in self.existing()
            if key.topic == topic
            and (last := self.last(key)) is not None
            and last.topic_id in (ZERO_UUID, topic_id)
        }
        found = [
            key
            for group in groups_of(self.offsets)
            for key in self.offsets.delete_topic(group, topic, topic_id)
        ]
        self.check_tombstones(found, expected, is_appended)

    @rule(group=GROUPS, current_id=IDS, is_appended=st.booleans())
    def delete_stale(self, group: str, current_id: bytes, is_appended: bool) -> None:
        expected = {
            key
            for key in self.existing()
            if key.group == group
            and (last := self.last(key)) is not None
            and (current_id == ZERO_UUID or last.topic_id not in (ZERO_UUID, current_id))
        }
        found = [
            key
            for places in self.offsets.place_pieces(group)
            for key in self.offsets.delete_stale(group, lambda _: current_id, places)
        ]
        self.check_tombstones(found, expected, is_appended)

    @rule(group=GROUPS, retention=RETENTIONS, now_ms=TIMES, is_appended=st.booleans())
    def expire(
        self, group: str, retention: OffsetRetention | None, now_ms: int, is_appended: bool
    ) -> None:
        found = self.offsets.expire(group, retention, now_ms=now_ms, retention_ms=10)
        expected = set()
        for key, decoded in self.committed.items():
            if key.group != group or retention is None or key.topic in retention.subscribed:
                continue
            since_ms = retention.since_ms
            end_ms = 10 + (decoded.commit_timestamp_ms if since_ms is None else since_ms)
            if decoded.expire_timestamp_ms != -1:
                end_ms = decoded.expire_timestamp_ms
            if now_ms >= end_ms and key not in self.pending():
                expected.add(key)
        left = {key for key in self.existing() if key.group == group} - expected
        assert found.is_all == (retention is not None and not left)
        self.check_tombstones(found.keys, expected, is_appended)

    def check_tombstones(
        self, found: list[bytes], expected: set[OffsetKey], is_appended: bool
    ) -> None:
        assert keys(found) == expected
        if is_appended:
            for key in sorted(expected):
                self.append(key, None)

    @rule(key=KEYS, topic_id=IDS)
    def fetch(self, key: OffsetKey, topic_id: bytes) -> None:
        expected = self.committed.get(key)
        if expected is not None and expected.topic_id not in (ZERO_UUID, topic_id):
            expected = None
        assert self.offsets.fetch(*key, topic_id) == expected

    @rule(group=GROUPS, topic_ids=st.fixed_dictionaries({"t": IDS, "u": IDS}))
    def fetch_group(self, group: str, topic_ids: dict[str, bytes]) -> None:
        found = {
            OffsetKey(group, topic, partition): decoded
            for topic, partitions in self.offsets.fetch_group(group, topic_ids.__getitem__).items()
            for partition, decoded in partitions.items()
        }
        assert found == {
            key: decoded
            for key, decoded in self.committed.items()
            if key.group == group and decoded.topic_id in (ZERO_UUID, topic_ids[key.topic])
        }

    @invariant()
    def counts_and_existence_are_those_of_the_model(self) -> None:
        pending, existing = self.pending(), self.existing()
        assert self.offsets.offset_count == len(self.committed)
        assert self.offsets.pending_count == len(pending)
        assert self.offsets.has_room(20 - len(pending))
        assert not self.offsets.has_room(21 - len(pending))
        assert sorted(groups_of(self.offsets)) == sorted({key.group for key in existing})
        for group in ("g", "h"):
            assert self.offsets.has_group(group) == any(key.group == group for key in existing)
            assert self.offsets.has_pending(group) == any(key.group == group for key in pending)
            for topic in ("t", "u"):
                for partition in range(3):
                    key = OffsetKey(group, topic, partition)
                    assert self.offsets.has_offset(*key) == (key in existing)


OffsetsModel.TestCase.settings = examples(60, stateful_step_count=40)
TestOffsetsModel = OffsetsModel.TestCase


def test_an_offset_is_fetched_only_after_its_record_is_committed() -> None:
    offsets = CommittedOffsets(unlimited())
    offsets.appended(KEY, value(5))
    assert offsets.fetch(*KEY, ZERO_UUID) is None
    assert offsets.fetch_group("g", lambda _: ZERO_UUID) == {}
    offsets.replay(KEY, value(5))
    assert offsets.fetch(*KEY, ZERO_UUID) == OffsetValue(5, -1, "", 1000)


def test_an_offset_of_a_recreated_topic_is_not_fetched() -> None:
    offsets = CommittedOffsets(unlimited())
    offsets.replay(KEY, value(topic_id=FIRST_ID))
    offsets.replay(KEY._replace(partition=1), value(6))
    assert offsets.fetch(*KEY, FIRST_ID) is not None
    assert offsets.fetch(*KEY, SECOND_ID) is None
    assert offsets.fetch(*KEY, ZERO_UUID) is None  # deleted, and not created again so far
    assert list(offsets.fetch_group("g", lambda _: SECOND_ID)["t"]) == [1]


def test_a_deleted_topic_keeps_the_offsets_of_its_successor() -> None:
    offsets = CommittedOffsets(unlimited())
    offsets.replay(KEY, value(topic_id=FIRST_ID))
    offsets.appended(KEY, value(topic_id=SECOND_ID))
    assert offsets.delete_topic("g", "t", FIRST_ID) == []
    assert keys(offsets.delete_topic("g", "t", SECOND_ID)) == {KEY}


def test_the_places_of_a_group_are_listed_in_pieces_while_offsets_change() -> None:
    offsets = CommittedOffsets(unlimited())
    for partition in range(2 * PIECE_OFFSETS):
        offsets.replay(KEY._replace(partition=partition), value())
    pending = [KEY._replace(topic="u", partition=partition) for partition in range(10)]
    for key in pending:
        offsets.appended(key, value())
    pieces = offsets.place_pieces("g")
    places = next(pieces)
    assert len(places) == PIECE_OFFSETS
    for key in pending:
        offsets.replay(key, value())
    for topic, partition in places[10:]:
        offsets.replay(OffsetKey("g", topic, partition), None)
    for piece in pieces:
        assert len(piece) <= PIECE_OFFSETS
        places += piece
    assert len(places) == len(set(places)) == 2 * PIECE_OFFSETS + 10
    assert list(offsets.place_pieces("x")) == [[]]


def test_a_pending_commit_does_not_expire_and_keeps_its_group() -> None:
    offsets = CommittedOffsets(unlimited())
    offsets.replay(KEY, value())
    offsets.appended(KEY, value())
    found = offsets.expire("g", OffsetRetention(), now_ms=10**9, retention_ms=1)
    assert found == ExpiredOffsets([], is_all=False)
    offsets.replay(KEY, value())
    found = offsets.expire("g", OffsetRetention(), now_ms=10**9, retention_ms=1)
    assert (keys(found.keys), found.is_all) == ({KEY}, True)


def test_a_malformed_value_changes_nothing() -> None:
    offsets = CommittedOffsets(unlimited())
    offsets.replay(KEY, value(5))
    for malformed in (b"", value(6)[:-1], b"\0\5" + value(6)[2:]):
        with pytest.raises(MalformedRecordError):
            offsets.replay(KEY, malformed)
        with pytest.raises(MalformedRecordError):
            offsets.replay(OffsetKey("other", "t", 0), malformed)
    fetched = offsets.fetch(*KEY, FIRST_ID)
    assert fetched is not None
    assert fetched.offset == 5
    assert groups_of(offsets) == ["g"]


def test_pending_commits_are_bounded() -> None:
    offsets = CommittedOffsets(unlimited())
    assert offsets.has_room(MAX_PENDING_OFFSETS)
    offsets.appended(KEY, value())
    assert not offsets.has_room(MAX_PENDING_OFFSETS)
    offsets.replay(KEY, value())
    assert offsets.has_room(MAX_PENDING_OFFSETS)


def test_a_tombstone_of_an_absent_offset_changes_nothing() -> None:
    offsets = CommittedOffsets(unlimited())
    offsets.replay(KEY, value())
    for key in (KEY._replace(group="x"), KEY._replace(topic="x"), KEY._replace(partition=9)):
        offsets.replay(key, None)
        offsets.appended(key, None)
    assert offsets.offset_count == 1
    assert groups_of(offsets) == ["g"]


def test_the_groups_are_listed_in_short_pieces_also_while_offsets_are_committed() -> None:
    offsets = CommittedOffsets(unlimited())
    groups = [f"group-{number}" for number in range(20_000)]
    for group in groups:
        offsets.replay(OffsetKey(group, "t", 0), value())
    pending = OffsetKey("pending", "t", 0)
    offsets.appended(pending, value())
    listed: list[str] = []
    for piece in offsets.groups():
        assert len(piece) < 200
        listed += piece
        if len(listed) == 1:
            offsets.replay(pending, value())
            offsets.replay(OffsetKey("later", "t", 0), value())
    assert len(listed) == len(set(listed))
    assert set(groups) | {"pending"} <= set(listed)


@pytest.mark.parametrize(
    ("groups", "topics", "partitions"), [(5000, 1, 1), (5, 900, 1), (2, 2, 3000)]
)
def test_offsets_are_freed_in_short_pieces(groups: int, topics: int, partitions: int) -> None:
    offsets = CommittedOffsets(unlimited())
    for group, topic, partition in product(range(groups), range(topics), range(partitions)):
        offsets.replay(OffsetKey(f"g{group}", f"t{topic}", partition), value())
    gc.collect()
    blocks, steps = sys.getallocatedblocks(), 0
    for _ in stepped(offsets.emptied()):
        left = sys.getallocatedblocks()
        assert blocks - left < 6 * FORGOTTEN_ROWS
        blocks = left
        steps += 1
    assert steps >= 3
    assert groups_of(offsets) == []
