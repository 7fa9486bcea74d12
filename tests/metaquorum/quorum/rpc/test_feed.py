"""Metadata for followers: recent batches without gaps, or a snapshot of the same image."""

from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import metaquorum.quorum.rpc.feed
from metaquorum.metadata.batch import Batch
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import PartitionRecord, TopicRecord
from metaquorum.metadata.replay import Replay, replay
from metaquorum.quorum.rpc.feed import RecentBatches, SnapshotParts
from metaquorum.quorum.storage.snapshot import unpack_records

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
COUNTS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=30)


@given(COUNTS, st.integers(1, 40), st.integers(1, 10), st.integers(0, 60), st.integers(0, 30))
def test_recent_batches_are_those_from_an_offset_on_or_none(
    counts: list[tuple[int, int]], max_bytes: int, max_batches: int, offset: int, most: int
) -> None:
    recent = RecentBatches(max_bytes, max_batches)
    everything: list[Batch] = []
    end = 0
    for count, term in counts:
        everything.append(Batch(term, 1, 0, end, count, b"x" * count))
        end += count
        recent.append(everything[-1])
    found = recent.since(offset, most)
    starts = [batch.expected_offset for batch in everything]
    if offset not in (*starts, end):
        assert found is None
    elif found is None:
        behind = [batch for batch in everything if batch.expected_offset >= offset]
        assert len(behind) > max_batches or sum(len(b.body) for b in behind) > max_bytes
    else:
        rest = [batch for batch in everything if batch.expected_offset >= offset]
        assert found == rest[: len(found)]
        assert bool(found) == bool(rest)
        assert len(found) <= 1 or sum(len(batch.body) for batch in found) <= most
        before = [batch.term for batch in everything if batch.end_offset == offset]
        assert recent.term_before(offset) in (None, *before)


def test_a_snapshot_leaves_nothing_before_its_end() -> None:
    recent = RecentBatches()
    recent.append(Batch(1, 1, 0, 0, 5, b""))
    recent.restart(9)
    assert [recent.since(offset, 100) for offset in (0, 5, 9)] == [None, None, []]
    recent.append(Batch(2, 1, 0, 9, 1, b""))
    assert [batch.term for batch in recent.since(9, 100) or ()] == [2]
    assert recent.term_before(9) is None
    assert recent.term_before(10) == 2


@pytest.mark.parametrize("seed", range(3))
def test_the_parts_of_a_snapshot_make_the_image(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metaquorum.quorum.rpc.feed, "PART_BYTES", 400)
    monkeypatch.setattr(metaquorum.quorum.rpc.feed, "SLICE_RECORDS", 5)
    topics = [TopicRecord(f"topic-{n}", n.to_bytes(16, "big")) for n in range(100)]
    parts_of = [
        PartitionRecord(t.topic_id, n, (1, 2), (1,), 1, 0, 0) for t in topics for n in (0, 1)
    ]
    Random(seed).shuffle(topics)
    image, _ = replay(MetadataImage.empty(CLUSTER), [*topics, *parts_of])

    async def load() -> None:
        parts, steps, number, is_last = SnapshotParts(image), Replay(image.empty(CLUSTER)), 0, False
        while not is_last:
            part = await parts.part(number)
            assert part is not None
            assert part == await parts.part(number)  # requested again
            data, is_last = part
            steps.apply(unpack_records(data))
            number += 1
        assert number > 3
        assert await parts.part(number) is None
        assert await parts.part(0) is None
        loaded, _ = steps.finish(parts.end_offset)
        assert list(loaded.records()) == list(image.records())
        assert loaded.end_offset == image.end_offset

    trio.run(load)
