"""The image is the same from the whole log and from a snapshot with the rest of the log."""

from functools import partial
from random import Random

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.metadata.batch import Batch
from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.metadata.loader import MetadataLoader, difference
from metaquorum.metadata.persistent_map import PersistentMap
from metaquorum.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
    encode_record,
)
from metaquorum.metadata.replay import Replay, replay
from metaquorum.quorum.storage.journal_ops import LogPosition
from metaquorum.quorum.storage.snapshot import SnapshotReader, write_snapshot
from tests.counted_work import allocated_bytes_of, lines_of
from tests.metaquorum.quorum.storage.crash_disk import CrashDisk
from tests.metaquorum.quorum.storage.histories import CLUSTER, SPECS, Spec, history

EMPTY = MetadataImage.empty(CLUSTER)


def fold(log: list[MetadataRecord]) -> MetadataImage:
    image, _ = replay(EMPTY, log)
    return image


@settings(deadline=None)
@given(SPECS, st.data())
def test_image_is_the_fold_of_its_log_however_the_log_is_cut(
    specs: list[Spec], data: st.DataObject
) -> None:
    log = history(specs)
    cut = data.draw(st.integers(0, len(log)))
    image, delta = replay(EMPTY, log[:cut])
    image, second = replay(image, log[cut:])
    assert image == fold(log)
    assert image.end_offset == len(log)
    assert delta.then(second).image == image


@settings(deadline=None)
@given(SPECS, st.data())
def test_snapshot_and_tail_give_the_image_of_the_whole_log(
    specs: list[Spec], data: st.DataObject
) -> None:
    log = history(specs)
    cut = data.draw(st.integers(0, len(log)))
    disk = CrashDisk()
    disk.make_dirs("/data")
    name = write_snapshot(disk, "/data", fold(log[:cut]), LogPosition(cut, 1))
    loader = MetadataLoader(CLUSTER)
    reader = SnapshotReader(disk, name.path)
    assert reader.header.end_offset == cut
    loader.begin_load()

    async def load() -> None:
        while (records := reader.next_records()) is not None:
            await loader.load(records)
        loader.end_load(cut)
        body = b"".join(encode_record(record) for record in log[cut:])
        assert await loader.apply(1, Batch(1, 1, 1, cut, len(log) - cut, body))

    trio.run(load)
    assert loader.image == fold(log)


@settings(deadline=None)
@given(SPECS)
def test_equal_images_give_equal_records_whatever_led_to_them(specs: list[Spec]) -> None:
    image = fold(history(specs))
    steps = Replay(EMPTY)
    steps.apply(image.records())
    again, _ = steps.finish(image.end_offset)
    assert again == image
    assert list(again.records()) == list(image.records())


@settings(deadline=None)
@given(SPECS, st.data())
def test_a_delta_names_exactly_what_differs(specs: list[Spec], data: st.DataObject) -> None:
    log = history(specs)
    cut = data.draw(st.integers(0, len(log)))
    before = fold(log[:cut])
    image, delta = replay(before, log[cut:])
    found = trio.run(difference, before, image)
    assert set(found.topic_ids) <= set(delta.topic_ids)
    assert set(found.resources) <= set(delta.resources)
    assert set(found.worker_ids) <= set(delta.worker_ids)
    for was, now in delta.topics():
        assert was is None or before.topics[was.name] is was
        assert now is None or image.topics[now.name] is now


def test_an_image_is_never_changed_by_what_follows() -> None:
    log = history([("register", 1, 1), ("create", "a", 3), ("config", "b", "1")])
    image = fold(log)
    copy = list(image.records())
    replay(image, history([("delete", "a", None)])[:0])
    topic = image.topics["a"]
    changed, _ = replay(image, [PartitionRecord(topic.topic_id, 1, (1, 2), (1,), 1, 9, 9)])
    assert changed.topics["a"].partitions[1].leader_epoch == 9
    assert list(image.records()) == copy


def test_a_deleted_topic_takes_its_configs_and_its_place_for_others_along() -> None:
    image = fold(history([("register", 1, 1), ("create", "c.d", 2)]))
    assert image.topic_configs("c.d") == {"retention.ms": "5"}
    assert image.partition_count == 2
    gone = fold(history([("register", 1, 1), ("create", "c.d", 2), ("delete", "c.d", None)]))
    assert not gone.topic_configs("c.d")
    assert not gone.collisions
    assert gone.partition_count == 0


@given(st.lists(st.tuples(st.text(max_size=3), st.none() | st.integers()), max_size=60))
def test_the_persistent_map_is_a_dict(changes: list[tuple[str, int | None]]) -> None:
    model: dict[str, int] = {}
    mapping: PersistentMap[str, int] = PersistentMap(lambda key: key.encode())
    for number, (key, value) in enumerate(changes):
        edit = mapping.edit()
        if value is None:
            edit.discard(key)
            model.pop(key, None)
        else:
            edit[key] = value
            model[key] = value
        assert edit.get(key) == model.get(key)
        before = dict(mapping)
        changed = edit.finish()
        assert dict(mapping) == before
        mapping = changed
        assert len(mapping) == len(model), number
    assert mapping == model
    assert dict(mapping.in_order()) == model


def large_image(topics: int, partitions: int) -> MetadataImage:
    random = Random(1)

    def records() -> list[MetadataRecord]:
        made: list[MetadataRecord] = []
        for number in range(topics):
            topic_id = random.randbytes(16)
            made.append(TopicRecord(f"topic-{number}", topic_id))
            made += [
                PartitionRecord(topic_id, each, (1, 2, 3), (1, 2, 3), 1, 0, 0)
                for each in range(partitions)
            ]
        return made

    image, _ = replay(EMPTY, records())
    return image


def test_a_small_change_is_as_much_work_in_a_large_image_as_in_a_small_one() -> None:
    images = [large_image(10, 1), large_image(10_000, 1)]
    lines: list[list[int]] = [[], []]
    size_bytes: list[list[int]] = [[], []]
    for number in range(20):
        change = [
            TopicRecord(f"new-{number}", Random(number).randbytes(16)),
            ConfigRecord(2, f"new-{number}", "retention.ms", "1"),
        ]
        for size, image in enumerate(images):
            work = partial(replay, image, change)
            lines[size].append(lines_of(work))
            size_bytes[size].append(allocated_bytes_of(work))
            images[size], _ = work()
    for counts in (lines, size_bytes):
        small, large = (sorted(each)[len(each) // 2] for each in counts)
        assert large < 2 * small  # a copy of one dict of all topics has fifteen times as many bytes


async def apply(loader: MetadataLoader, log: list[MetadataRecord]) -> None:
    body = b"".join(encode_record(record) for record in log)
    offset = loader.image.end_offset
    assert await loader.apply(1, Batch(1, 1, 1, offset, len(log), body))


def test_publishers_are_told_of_everything_in_order_and_busy_ones_of_several_changes_at_once() -> (
    None
):
    log = history([("register", 1, 1), ("create", "a", 1), ("create", "b", 2), ("delete", "a", 0)])
    told: list[MetadataDelta] = []
    may_go = trio.Event()

    class Slow:
        async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
            assert delta.image is image
            told.append(delta)
            await may_go.wait()

    async def main() -> None:
        loader = MetadataLoader(CLUSTER)
        loader.register(Slow())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loader.run)
            await trio.testing.wait_all_tasks_blocked()
            for record in log:
                await apply(loader, [record])
                await trio.testing.wait_all_tasks_blocked()
            assert loader.visible.end_offset == 0
            may_go.set()
            await loader.wait_visible(len(log))
            nursery.cancel_scope.cancel()
        assert loader.visible is loader.image

    trio.run(main)
    assert len(told) == 2
    assert told[0].before.end_offset == 0
    assert told[1].before is told[0].image
    assert told[1].image.end_offset == len(log)
    assert [now.name for _, now in told[1].topics() if now] == ["b"]


def test_batches_of_another_term_or_offset_are_dropped() -> None:
    async def main() -> None:
        loader = MetadataLoader(CLUSTER)
        body = encode_record(TopicRecord("a", bytes(16)))
        assert not await loader.apply(2, Batch(1, 1, 1, 0, 1, body))
        assert not await loader.apply(1, Batch(1, 1, 1, 1, 1, body))
        assert loader.image.end_offset == 0
        assert await loader.apply(1, Batch(1, 1, 1, 0, 1, body))
        assert not await loader.apply(1, Batch(1, 1, 1, 0, 1, body)), "a second copy"
        assert loader.dropped_batches == 3

    trio.run(main)
