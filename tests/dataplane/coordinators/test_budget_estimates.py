"""The estimates of budgets are within a factor of 2 of the memory that Python allocates."""

import gc
import tracemalloc
from collections.abc import Callable
from itertools import count

import pytest

from metaquorum.dataplane.coordinators.client_budget import UNKNOWN, ClientBudget
from metaquorum.dataplane.coordinators.group.committed_offsets import CommittedOffsets
from metaquorum.dataplane.coordinators.group.group_shard import GroupConfigs, GroupShard
from metaquorum.dataplane.coordinators.group.record_formats import (
    KeyDecoder,
    OffsetKey,
    OffsetValue,
    RecordKey,
    encode_offset_value,
)
from metaquorum.dataplane.coordinators.group.record_formats import encode_key as encode_offset_key
from metaquorum.dataplane.coordinators.group.requests import JoinRequest, Protocol
from metaquorum.dataplane.coordinators.shard import CoordinatorRecord
from metaquorum.dataplane.coordinators.transaction.record_formats import encode_key, encode_value
from metaquorum.dataplane.coordinators.transaction.transaction import Transaction
from metaquorum.dataplane.coordinators.transaction.transaction_shard import TransactionShard
from metaquorum.wire.primitives.types import ZERO_UUID

NOW_MS = 1_700_000_000_000


def measured(make: Callable[[ClientBudget], object]) -> tuple[int, int]:
    """Return the bytes that `make` has allocated for its result, and their estimate."""
    budget = ClientBudget("x", lambda: 1 << 40)
    make(ClientBudget("x", lambda: 1 << 40))  # fills caches, which are not counted
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        made = make(budget)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del made
    return after - before, budget.used_bytes


def check(make: Callable[[ClientBudget], object]) -> None:
    size_bytes, estimate = measured(make)
    assert size_bytes / 2 < estimate < size_bytes * 2, (size_bytes, estimate)


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize(
    ("ids", "id_length", "partitions"),
    [(500, 10, 0), (500, 1000, 0), (500, 10, 1), (200, 50, 10), (5, 10, 1000)],
)
def test_transactional_ids(ids: int, id_length: int, partitions: int, is_loaded: bool) -> None:
    def make(budget: ClientBudget) -> TransactionShard:
        shard = TransactionShard(0, 1, budget, lambda: 2, lambda *_: None)
        for number in range(ids):
            transactional_id = f"{number:06}".ljust(id_length, "x")
            after = Transaction(1_000_000 + number, 0, 60_000 + number, NOW_MS + number)
            places = [("t", 1000 + index) for index in range(partitions)]
            if places:
                after = after.with_partitions(places, NOW_MS + number, 2)
            if is_loaded:
                record = CoordinatorRecord(encode_key(transactional_id), encode_value(after, 1))
                shard.replay(record, 0.0)
            else:
                shard._apply(transactional_id, after)
        return shard

    check(make)


@pytest.mark.parametrize("needs_member_id", [False, True])
@pytest.mark.parametrize(
    ("groups", "members", "metadata_bytes"),
    [(300, 1, 10), (1, 500, 10), (10, 30, 100), (2, 50, 20_000)],
)
def test_groups_and_members(
    groups: int, members: int, metadata_bytes: int, needs_member_id: bool
) -> None:
    def make(budget: ClientBudget) -> GroupShard:
        drawn = count()
        shard = GroupShard(
            0,
            GroupConfigs(),
            budget,
            budget,
            lambda name: ZERO_UUID,
            lambda: NOW_MS,
            lambda: f"{next(drawn):036}",
        )
        for group in range(groups):
            for member in range(members):
                metadata = bytes(metadata_bytes)
                asked = JoinRequest(
                    f"group-{group:06}",
                    "",
                    None,
                    f"consumer-of-a-group-{member:06}",
                    f"/192.0.2.{member % 255}",
                    300_000 + member,
                    45_000 + member,
                    "consumer",
                    (Protocol("range", metadata), Protocol("sticky", metadata + b"x")),
                    needs_member_id=needs_member_id,
                    client="User:x",
                )
                shard.join(0.0, asked, lambda answer: None)
        return shard

    check(make)


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize(
    ("groups", "topics", "partitions", "id_length", "metadata"),
    [
        (2000, 1, 1, 20, ""),
        (500, 1, 2, 20, ""),
        (200, 1, 10, 20, ""),
        (5, 1, 300, 20, ""),
        (10, 100, 1, 20, ""),
        (200, 1, 1, 4000, ""),
        (200, 1, 1, 20, "m" * 4000),
    ],
)
def test_committed_offsets(
    groups: int, topics: int, partitions: int, id_length: int, metadata: str, is_loaded: bool
) -> None:
    names = [f"topic-{number}" for number in range(topics)]

    def make(budget: ClientBudget) -> CommittedOffsets:
        offsets, keys = CommittedOffsets(budget), KeyDecoder()
        for group in range(groups):
            group_id = f"{group:06}".ljust(id_length, "g")
            for topic in names:
                for partition in range(1000, 1000 + partitions):
                    value = encode_offset_value(
                        OffsetValue(group + partition, 1, metadata, NOW_MS, -1, b"\1" * 16)
                    )
                    key: RecordKey | None = OffsetKey(group_id, topic, partition)
                    if is_loaded:
                        assert key is not None
                        key = keys.decode(encode_offset_key(key))
                    assert isinstance(key, OffsetKey)
                    offsets.replay(key, value, UNKNOWN if is_loaded else "User:x")
        return offsets

    check(make)


@pytest.mark.parametrize("producers", [1, 500])
def test_offsets_of_open_transactions(producers: int) -> None:
    def make(budget: ClientBudget) -> CommittedOffsets:
        offsets = CommittedOffsets(budget)
        for number in range(2000):
            key = OffsetKey(f"group-{number % 20:016}", "t", 1000 + number)
            value = encode_offset_value(OffsetValue(number, 1, "", NOW_MS, -1, b"\1" * 16))
            offsets.replay_transactional(key, value, 1000 + number % producers, "User:x")
        return offsets

    check(make)
