"""Checkers of worlds with compaction and retention: losses they accept, and losses they report."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from metaquorum.simulations.checkers.log_files import naive_segments
from metaquorum.simulations.kernel.storage import Storage
from metaquorum.simulations.replication.replicas import (
    TOMBSTONES_STAY_MS,
    ClusterHistory,
    Content,
    Name,
    PartitionHistory,
    Place,
    ReplicaLog,
)
from metaquorum.wire.records.records import Record, encode_batch


def cluster_history() -> ClusterHistory:
    made = ClusterHistory(cast(Any, SimpleNamespace(world=None, checkers=[])))
    made.contents = {}
    return made


def holding(
    known: ClusterHistory, *contents: Content
) -> tuple[PartitionHistory, ReplicaLog, list[Name]]:
    """Return a compacted partition with one replica that has these records, all committed."""
    history = PartitionHistory(Place(bytes(16), 0), {}, configs={"cleanup.policy": "compact"})
    replica = ReplicaLog(1, cast(Any, None))
    names = []
    assert known.contents is not None
    for offset, content in enumerate(contents):
        names.append(Name(0, offset))
        replica.epochs[offset] = 0
        history.identities[names[-1]] = content.identity
        history.ever_committed.add(names[-1])
        known.contents[content.identity] = content
    return history, replica, names


def value(key: bytes, text: bytes) -> Content:
    return Content(key, text, is_tombstone=False)


def test_a_record_may_go_where_its_key_comes_again() -> None:
    known = cluster_history()
    history, replica, names = holding(
        known, value(b"a", b"1"), value(b"b", b"2"), value(b"a", b"3")
    )
    assert known.is_superseded(history, replica, names[:2]) == [(names[0], True), (names[1], False)]


def test_a_record_may_not_go_for_one_that_is_not_committed_or_goes_too() -> None:
    known = cluster_history()
    history, replica, names = holding(known, value(b"a", b"1"), value(b"a", b"2"))
    assert known.is_superseded(history, replica, names) == [(names[0], False), (names[1], False)]
    history.ever_committed.discard(names[1])
    assert known.is_superseded(history, replica, names[:1]) == [(names[0], False)]


@pytest.mark.parametrize("retention_ms", [100, 2 * TOMBSTONES_STAY_MS])
def test_a_tombstone_goes_with_what_it_deletes_unless_it_is_to_stay(retention_ms: int) -> None:
    known = cluster_history()
    deletion = Content(b"a", b"2", is_tombstone=True)
    history, replica, names = holding(known, value(b"a", b"1"), deletion, value(b"b", b"3"))
    history.configs = {"cleanup.policy": "compact", "delete.retention.ms": str(retention_ms)}
    may_go = retention_ms < TOMBSTONES_STAY_MS
    assert known.is_superseded(history, replica, names[:2]) == [
        (names[0], may_go),
        (names[1], may_go),
    ]


def test_a_swapped_segment_stands_for_those_that_it_replaces() -> None:
    storage = Storage()
    storage.make_dirs("/log")
    for name, base_offset in (("0.log.swap", 0), ("0.log.1.deleted", 0), ("5.log", 5)):
        batch = encode_batch([Record(base_offset, 0, b"k", b"v", ())])
        storage.write(storage.create(f"/log/{name.rjust(20 + len(name) - 1, '0')}"), 0, batch)
    assert [each.base_offset for each in naive_segments(storage, "/log")] == [5]
    found = naive_segments(storage, "/log", swapping=True)
    assert [each.base_offset for each in found] == [0, 5]
    assert [batch.base_offset for each in found for batch in each.batches] == [0, 5]
