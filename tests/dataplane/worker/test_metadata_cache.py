"""Cached topic rows: equal to rows encoded from the metadata, valid until it changes."""

from dataclasses import replace

import pytest
import trio

from metaquorum.dataplane.instruments.error_counts import ErrorCounts
from metaquorum.dataplane.worker.metadata_cache import (
    PARTITIONS_PER_SLICE,
    MetadataCache,
    ResponseFormat,
    TopicView,
    describe,
)
from metaquorum.metadata.image import MetadataImage, PartitionImage, TopicImage
from metaquorum.metadata.records import RegisterWorkerRecord
from metaquorum.wire.messages.metadata import MetadataResponse, MetadataResponseTopic
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.schema.codec import encode

FORM = ResponseFormat(12, False)


def worker(worker_id: int, *, fenced: bool = False) -> RegisterWorkerRecord:
    return RegisterWorkerRecord(worker_id, bytes(16), 1, (), "", None, (), (), fenced)


def view(partitions: int = 3, name: str = "t", worker_id: int = 1) -> TopicView:
    topic = TopicImage(
        name,
        b"i" * 16,
        tuple(PartitionImage((1, 2, 3), (1, 2), i % 3 + 1, 5, 6) for i in range(partitions)),
    )
    image = replace(MetadataImage.empty("c"), workers={i: worker(i) for i in (1, 2, 3)})
    return TopicView(image, topic, worker_id, frozenset(), frozenset())


def by_tables(view: TopicView, form: ResponseFormat) -> MetadataResponse:
    topic = MetadataResponseTopic(
        name=view.topic.name, topic_id=view.topic.topic_id, partitions=describe(view)
    )
    return MetadataResponse(topics=[topic, topic])


@pytest.mark.parametrize("version", range(14))
def test_an_answer_with_rows_is_the_one_of_the_tables(version: int) -> None:
    rows, seen, form = MetadataCache(), view(300), ResponseFormat(version, False)
    row = rows.row(seen, form)
    with_rows = MetadataResponse(topics=[row, row])  # type: ignore[list-item]
    assert encode(with_rows, version) == encode(by_tables(seen, form), version)


@pytest.mark.parametrize("version", [0, 12])
def test_a_row_that_is_made_in_slices_is_the_same(version: int) -> None:
    seen, form = view(2 * PARTITIONS_PER_SLICE + 1), ResponseFormat(version, False)
    rows = MetadataCache()
    slicer = []

    async def main() -> bytes:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(take_turns)
            row = await rows.make(seen, form)
            assert slicer
            return row

    async def take_turns() -> None:
        while rows.kept(seen, form) is None:
            slicer.append(None)
            await trio.lowlevel.checkpoint()

    assert trio.run(main) == MetadataCache().row(seen, form) == rows.kept(seen, form)


def test_a_row_is_kept_until_something_it_tells_is_different() -> None:
    rows, seen = MetadataCache(), view()
    row = rows.row(seen, FORM)
    assert rows.row(seen, FORM) is row
    moved = replace(seen.topic.partitions[0], leader=2)
    others = [
        seen._replace(topic=replace(seen.topic, partitions=(moved, *seen.topic.partitions[1:]))),
        seen._replace(lost=frozenset((0,))),
        seen._replace(suspects=frozenset((2,))),
        seen._replace(image=replace(seen.image, workers={1: worker(1), 2: worker(2, fenced=True)})),
    ]
    for other in others:
        assert rows.kept(seen, FORM) is not None
        assert rows.kept(other, FORM) is None
        assert rows.row(other, FORM) == MetadataCache().row(other, FORM) != row
        assert rows.kept(seen, FORM) is None
        assert rows.row(seen, FORM) == row
    assert rows.kept(seen, ResponseFormat(11, False)) is None
    assert rows.kept(seen, ResponseFormat(12, True)) is None


def test_who_leads_and_which_replicas_are_offline() -> None:
    seen = view()
    first, second, third = describe(seen._replace(lost=frozenset((0,)), suspects=frozenset((2,))))
    assert (first.error_code, first.leader_id, first.offline_replicas) == (
        ErrorCode.LEADER_NOT_AVAILABLE,
        -1,
        [1],
    )
    assert (second.error_code, second.leader_id, second.offline_replicas) == (
        ErrorCode.LEADER_NOT_AVAILABLE,
        -1,
        [],
    )
    assert (third.error_code, third.leader_id, third.isr_nodes) == (0, 3, [1, 2])


def test_what_is_kept_has_a_bound() -> None:
    rows, seen = MetadataCache(max_kept_bytes=2000), view()
    sizes = []
    for number in range(100):
        other = seen._replace(topic=replace(seen.topic, name=f"t{number}"))
        sizes.append(len(rows.row(other, FORM)))
    assert sum(sizes) > 10_000
    assert sum(len(row.data) for row in rows._rows.values()) <= 2000 + max(sizes)


@pytest.mark.parametrize("partitions", [3, 2 * PARTITIONS_PER_SLICE])
def test_errors_of_partitions_are_counted_each_time_they_are_told(partitions: int) -> None:
    rows, errors, seen = MetadataCache(), ErrorCounts(), view(partitions)

    async def told() -> None:
        row = await rows.make(seen, FORM)
        answer = MetadataResponse(topics=[row])  # type: ignore[list-item]
        errors.count(3, answer)
        assert encode(answer, FORM.version)

    trio.run(told)
    assert not errors.by_code
    seen = seen._replace(suspects=frozenset((2,)))
    trio.run(told)
    trio.run(told)
    unled = sum(each.leader == 2 for each in seen.topic.partitions)
    assert errors.by_code == {(3, ErrorCode.LEADER_NOT_AVAILABLE): 2 * unled}
