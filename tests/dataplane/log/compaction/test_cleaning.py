import errno
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.log.compaction.cleaning import (
    Cleaning,
    CleaningAborted,
    CleaningOrder,
    UncleanableError,
)
from metaquorum.dataplane.log.compaction.compaction import (
    MAX_GROUP_SEGMENTS,
    CompactionLimits,
    SegmentAges,
    SegmentSizes,
    cleanable,
    groups,
)
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.names import DELETED
from metaquorum.runtime.interfaces import StorageError
from metaquorum.runtime.system import RealClock
from metaquorum.wire.records.compression import Codec
from metaquorum.wire.records.records import (
    ControlType,
    EndTransactionMarker,
    Record,
    encode_batch,
    encode_marker,
)
from tests.dataplane.log.compaction.compacted import (
    REAL_CLOCK,
    RETENTION_MS,
    SEGMENTS,
    Model,
    ModelBatch,
    append_records,
    assert_reads_at_every_offset,
    clean,
    stored_batches,
    stored_records,
)
from tests.dataplane.log.logs import UnsyncedDisk, close_clean, cut, headers_of, log_files, open_log
from tests.dataplane.serving import in_trio
from tests.examples import examples

T = TypeVar("T")
KEYS = [b"a", b"b", b"c", b"key-d"]
VALUES = [b"1", b"22", b"v" * 60, None]

_records = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), min_size=1, max_size=5
)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), _records, st.sampled_from(list(Codec))),
        st.tuples(st.just("clean"), st.sampled_from([24 * 3, 24 * 6, 1 << 16])),
        st.tuples(st.just("roll")),
        st.tuples(st.just("wait"), st.integers(1, RETENTION_MS)),
        st.tuples(st.just("reopen"), st.booleans()),
    ),
    max_size=25,
)


@examples(60)
@given(_steps)
def test_what_stays_is_what_a_naive_model_keeps(steps: list[tuple]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trio.run(_beside_a_model, Path(folder), steps)


async def _beside_a_model(folder: Path, steps: list[tuple]) -> None:
    log, model = open_log(folder, SEGMENTS), Model()
    now_ms = cleaned_to = 0
    for step in steps:
        match step:
            case ("append", records, codec):
                base = append_records(log, records, now_ms=now_ms, codec=codec)
                model.append(
                    ModelBatch(
                        base,
                        base + len(records) - 1,
                        [Record(base + i, now_ms + i, k, v) for i, (k, v) in enumerate(records)],
                    )
                )
            case ("roll",):
                log.roll(now_ms)
            case ("wait", ms):
                now_ms += ms
            case ("clean", map_bytes) if len(log.sealed_segments()):
                end = log.sealed_segments()[-1][1]
                result = await clean(
                    log, first_dirty=cleaned_to, now_ms=now_ms, map_bytes=map_bytes
                )
                assert cleaned_to <= result.cleaned_to <= end
                # Whole segments are read, the last of them to its end.
                model.clean(cleaned_to, result.cleaned_to, result.cleaned_to, now_ms)
                cleaned_to = result.cleaned_to
            case ("reopen", is_clean):
                if is_clean:
                    await close_clean(log)
                else:
                    await log.flush(UnsyncedDisk())
                    log.close()
                end = log.log_end_offset
                log = open_log(folder, SEGMENTS, clean=is_clean, recovery_point=log.recovery_point)
                assert log.log_end_offset == end
        assert stored_records(log) == model.records()
    assert_reads_at_every_offset(log)
    await log.flush(UnsyncedDisk())
    log.remove_deleted()
    log.close()
    again = open_log(folder, SEGMENTS, recovery_point=log.recovery_point)
    assert stored_records(again) == model.records()
    assert_reads_at_every_offset(again)
    again.close()


@in_trio
async def test_offsets_and_order_stay_and_segments_become_few(tmp_path: Path) -> None:
    log = open_log(tmp_path, SEGMENTS)
    for number in range(60):
        append_records(log, [(b"k%d" % (number % 5), b"value %d" % number)], now_ms=number)
    log.roll(0)
    before = {record.offset: record for record in stored_records(log)}
    assert len(log.sealed_segments()) > 5
    result = await clean(log)
    assert result.counts.read_records == 60
    assert result.counts.kept_records == 5
    await clean(log, first_dirty=60)  # groups are formed by the sizes before the cleaning
    assert len(log.sealed_segments()) <= 2
    assert [record.offset for record in stored_records(log)] == [55, 56, 57, 58, 59]
    assert all(before[record.offset] == record for record in stored_records(log))


@in_trio
async def test_what_is_not_changed_is_not_written_again(tmp_path: Path) -> None:
    log = open_log(tmp_path, SEGMENTS)
    for number in range(4):
        append_records(log, [(b"k%d" % number, b"v")])
    log.roll(0)
    files = log_files(tmp_path)
    inodes = [file.stat().st_ino for file in files]
    result = await clean(log)
    assert result.replaced_segments == 0
    assert [file.stat().st_ino for file in log_files(tmp_path)] == inodes


@in_trio
async def test_a_tombstone_stays_for_delete_retention_ms_from_its_first_cleaning(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path, SEGMENTS)
    append_records(log, [(b"k", b"v")], now_ms=0)
    append_records(log, [(b"k", None), (b"other", b"v")], now_ms=5)
    append_records(log, [(b"last", b"v")], now_ms=5)
    log.roll(0)
    await clean(log, now_ms=50_000)  # long after it was written
    tombstone = stored_records(log)[0]
    assert (tombstone.offset, tombstone.timestamp_ms, tombstone.value) == (1, 5, None)
    assert headers_of(stored_batches(log)[0])[0].delete_horizon_ms == 50_000 + RETENTION_MS
    await clean(log, first_dirty=4, end=4, now_ms=50_000 + RETENTION_MS - 1)
    assert [record.offset for record in stored_records(log)] == [1, 2, 3]
    await clean(log, first_dirty=4, end=4, now_ms=50_000 + RETENTION_MS)
    assert [record.offset for record in stored_records(log)] == [2, 3]
    assert [record.timestamp_ms for record in stored_records(log)] == [6, 5]


@in_trio
async def test_the_last_batch_of_a_producer_stays_as_an_empty_one(tmp_path: Path) -> None:
    log = open_log(tmp_path, SEGMENTS)
    append_records(log, [(b"k", b"1"), (b"k", b"2")], producer_id=7, sequence=0)
    append_records(log, [(b"k", b"3")], producer_id=7, sequence=2)
    append_records(log, [(b"k", b"4")])
    log.roll(0)
    await clean(log)
    assert [headers_of(b)[0].record_count for b in stored_batches(log)] == [0, 1]
    await log.flush(UnsyncedDisk())
    for snapshot in tmp_path.glob("*.snapshot"):
        snapshot.unlink()
    again = open_log(tmp_path, SEGMENTS, recovery_point=log.recovery_point)
    entry = again.producers.entries[7]
    assert (entry.last_sequence, entry.batches[-1].first_offset) == (2, 2)


@in_trio
async def test_batches_of_forgotten_producers_go(tmp_path: Path) -> None:
    log = open_log(tmp_path, SEGMENTS)
    append_records(log, [(b"k", b"1")], producer_id=7, sequence=0)
    append_records(log, [(b"k", b"4")])
    log.roll(0)
    log.expire_producers(1 << 50)
    await clean(log)
    assert [headers_of(b)[0].base_offset for b in stored_batches(log)] == [1]


@in_trio
async def test_producer_snapshots_inside_the_new_segment_go(tmp_path: Path) -> None:
    log = open_log(tmp_path, SEGMENTS)
    for number in range(40):
        append_records(log, [(b"k", b"v" * 50)], producer_id=7, sequence=number)
    log.roll(0)
    assert len(list(tmp_path.glob("*.snapshot"))) > 3
    await clean(log)
    await clean(log)
    (snapshot,) = tmp_path.glob("*.snapshot")
    assert snapshot.name == f"{log.log_end_offset:020d}.snapshot"


def _append_marker(log: PartitionLog, producer_id: int, control_type: ControlType) -> None:
    marker = EndTransactionMarker(control_type, 0)
    batch = encode_marker(
        marker,
        producer_id=producer_id,
        producer_epoch=0,
        timestamp_ms=0,
        offset=log.log_end_offset,
        leader_epoch=1,
    )
    log.append_as_follower(batch, headers_of(batch), 0)


@in_trio
async def test_aborted_records_go_and_shadow_none_and_markers_outlive_them(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path, SEGMENTS)
    append_records(log, [(b"k", b"committed")])
    append_records(log, [(b"k", b"aborted")], producer_id=7, sequence=0, transactional=True)
    _append_marker(log, 7, ControlType.ABORT)
    append_records(log, [(b"j", b"1")], producer_id=7, sequence=1, transactional=True)
    _append_marker(log, 7, ControlType.COMMIT)
    append_records(log, [(b"j", b"2")], producer_id=7, sequence=2, transactional=True)
    _append_marker(log, 7, ControlType.COMMIT)
    append_records(log, [(b"end", b"v")])
    log.roll(0)

    def stored() -> list[tuple[int, bool, int]]:
        headers = [headers_of(batch)[0] for batch in stored_batches(log)]
        return [(h.base_offset, h.is_control, h.record_count) for h in headers]

    await clean(log, now_ms=0)
    assert stored() == [
        (0, False, 1), (2, True, 1), (4, True, 1), (5, False, 1), (6, True, 1), (7, False, 1)
    ]  # fmt: skip
    await clean(log, first_dirty=8, end=8, now_ms=10)  # no batch of 2's and 4's is left
    horizons = [headers_of(batch)[0].delete_horizon_ms for batch in stored_batches(log)]
    assert horizons == [None, 10 + RETENTION_MS, 10 + RETENTION_MS, None, None, None]
    await clean(log, first_dirty=8, end=8, now_ms=10 + RETENTION_MS)
    assert stored() == [(0, False, 1), (5, False, 1), (6, True, 1), (7, False, 1)]
    assert [record.value for record in stored_records(log) if record.key == b"k"] == [b"committed"]


@in_trio
async def test_a_batch_that_cannot_be_opened_ends_the_cleaning_and_nothing_else(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path, SEGMENTS)
    append_records(log, [(b"k", b"1")])
    lying = bytearray(bytes.fromhex(BOMB))
    log.append(memoryview(lying), headers_of(lying)[0], 1, 0)
    append_records(log, [(b"k", b"2")])
    log.roll(0)
    before = stored_batches(log)
    with pytest.raises(UncleanableError, match=r"00000000000000000000\.log"):
        await clean(log)
    assert stored_batches(log) == before
    assert not list(tmp_path.glob("*.cleaned"))


@pytest.mark.parametrize("damage", ["header", "control type", "marker"])
@in_trio
async def test_damage_in_the_search_for_markers_makes_a_log_uncleanable(
    tmp_path: Path, damage: str
) -> None:
    """The damaged batch is in a segment after those that are cleaned."""
    log = open_log(tmp_path, SEGMENTS)
    append_records(log, [(b"k", b"kept")])
    append_records(log, [(b"k", b"aborted")], producer_id=7, sequence=0, transactional=True)
    log.roll(0)
    end = log.log_end_offset
    _append_marker(log, 7, ControlType.ABORT)
    path = log_files(tmp_path)[-1]
    data = bytearray(path.read_bytes())
    if damage == "header":
        data[16] ^= 1  # the magic byte
    elif damage == "control type":
        assert data[-10] == ControlType.ABORT.value
        data[-10] = ControlType.COMMIT.value  # and the checksum is that of the other marker
    else:
        keyless = Record(2, 0, b"", b"v" * 10)
        malformed = encode_batch([keyless], producer_id=7, transactional=True, control=True)
        assert len(malformed) == len(data)
        data = malformed
    path.write_bytes(data)
    before = [file.read_bytes() for file in log_files(tmp_path)]
    with pytest.raises(UncleanableError, match=rf"/{path.name}\b"):
        await clean(log, end=end)
    assert [file.read_bytes() for file in log_files(tmp_path)] == before
    assert not list(tmp_path.glob("*.cleaned"))


def _lying() -> str:
    from metaquorum.wire.records.batches import HEADER_BYTES, pack_batch, parse_header
    from metaquorum.wire.records.records import encode_batch

    batch = encode_batch([Record(0, 0, b"k", b"v")], codec=Codec.GZIP)
    return pack_batch(parse_header(batch), bytes(batch[HEADER_BYTES:-4])).hex()


BOMB = _lying()


@pytest.mark.parametrize("happening", ["retention", "truncation", "moved", "unwanted"])
@in_trio
async def test_a_log_that_changes_meanwhile_is_not_replaced(tmp_path: Path, happening: str) -> None:
    folder = tmp_path / "t-0"
    log = open_log(folder, SEGMENTS)
    for number in range(60):
        append_records(log, [(b"k%d" % (number % 5), b"value %d" % number)], now_ms=number)
    log.roll(0)
    wanted = True

    async def happen() -> None:
        nonlocal wanted
        if happening == "retention":
            log.advance_log_start(20)
            await log.delete_old_segments(UnsyncedDisk())
        elif happening == "truncation":
            log.truncate_to(50)
        elif happening == "moved":
            (tmp_path / "t-0").rename(tmp_path / "t-0.x-delete")
            log.moved(str(tmp_path / "t-0.x-delete"))
        else:
            wanted = False

    pauses = 0

    async def pause(size: int) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:  # nothing was replaced yet
            await happen()
        await trio.lowlevel.checkpoint()

    order = CleaningOrder(0, log.log_end_offset, 0, RETENTION_MS, 1 << 16, 0.75, 1000)
    before = stored_records(log)
    with pytest.raises(CleaningAborted):
        await Cleaning(log, UnsyncedDisk(), REAL_CLOCK, order, pause, lambda: wanted).run()
    after = [record for record in stored_records(log) if record.offset >= log.log_start_offset]
    inside = range(log.log_start_offset, log.log_end_offset)
    assert after == [record for record in before if record.offset in inside]
    assert happening == "moved" or not list(folder.glob("*.cleaned"))


@in_trio
async def test_a_segment_that_is_truncated_while_it_is_read_is_not_taken_for_damaged(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path, SEGMENTS)
    for number in range(60):
        append_records(log, [(b"k%d" % (number % 5), b"value %d" % number)], now_ms=number)
    log.roll(0)
    base = log.segments[0].base_offset

    class Truncated(UnsyncedDisk):
        async def run(self, function: Callable[[], T]) -> T:
            if log.truncations == 0:
                cut(log, base + 3)
            return await super().run(function)

    with pytest.raises(CleaningAborted):
        await clean(log, disk=Truncated())


class _KilledError(Exception):
    """Raised to end the process: no later operation is made."""


@pytest.mark.parametrize("end", [5, 55])
@pytest.mark.parametrize("happening", ["cut and killed", "cut", "no descriptor, cut"])
@in_trio
async def test_a_log_that_is_cut_is_not_replaced_by_what_it_was(
    tmp_path: Path, happening: str, end: int
) -> None:
    """The next start would find the .swap that was to replace its segments."""
    folder = tmp_path / "t-0"
    log = open_log(folder, SEGMENTS)
    for number in range(60):
        append_records(log, [(b"k%d" % (number % 5), b"value %d" % number)], now_ms=number)
    log.roll(0)
    before = stored_records(log)[:end]

    def is_cut() -> None:
        cut(log, end)
        append_records(log, [(b"other", b"value")])

    class Disturbed(UnsyncedDisk):
        async def run(self, function: Callable[[], T]) -> T:
            result = await super().run(function)
            if happening != "no descriptor, cut" and list(folder.glob("*.log.swap")):
                is_cut()
                if happening == "cut and killed":
                    raise _KilledError
            return result

        def sync_dir(self, path: str) -> None:
            if happening == "no descriptor, cut" and list(folder.glob("*.log.swap")):
                raise OSError(errno.EMFILE, "too many open files")

    with pytest.raises((_KilledError, StorageError, CleaningAborted)):
        await clean(log, disk=Disturbed())
    if happening == "no descriptor, cut":
        is_cut()
    after = stored_records(log)
    assert (after[:-1], after[-1].key) == (before, b"other")
    assert stored_records(open_log(folder, SEGMENTS)) == after


class WithoutDescriptors(UnsyncedDisk):
    """A disk that `tries` times has no descriptor for the folder after the names were changed."""

    def __init__(self, folder: Path, tries: int) -> None:
        super().__init__()
        self.tries = tries
        self._folder = folder

    def sync_dir(self, path: str) -> None:
        if list(self._folder.glob("*.deleted")) and self.tries:
            self.tries -= 1
            raise OSError(errno.EMFILE, "too many open files")


class VirtualClock(RealClock):
    """A clock whose sleeps take no time; `on_sleep` is called at the begin of each."""

    def __init__(self, on_sleep: Callable[[], object]) -> None:
        self._on_sleep = on_sleep

    async def sleep_until(self, deadline: float) -> None:
        self._on_sleep()
        await trio.lowlevel.checkpoint()


def with_old_values(folder: Path) -> PartitionLog:
    log = open_log(folder, SEGMENTS)
    for number in range(60):
        append_records(log, [(b"k%d" % (number % 5), b"value %d" % number)], now_ms=number)
    log.roll(0)
    return log


@in_trio
async def test_a_swap_waits_for_a_descriptor(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = with_old_values(folder)
    disk = WithoutDescriptors(folder, 2)
    sleeps: list[None] = []
    await clean(log, disk=disk, clock=VirtualClock(lambda: sleeps.append(None)))
    assert (disk.tries, len(sleeps)) == (0, 2)
    assert log.failure is None
    assert not list(folder.glob("*.swap"))
    append_records(log, [(b"other", b"value")])
    assert stored_records(open_log(folder, SEGMENTS)) == stored_records(log)


@pytest.mark.parametrize("is_clean", [True, False])
@in_trio
async def test_a_node_that_stops_does_not_wait_for_a_descriptor(
    tmp_path: Path, *, is_clean: bool
) -> None:
    folder = tmp_path / "t-0"
    log = with_old_values(folder)
    before = stored_records(log)
    with trio.CancelScope() as stopping:
        disk = WithoutDescriptors(folder, 1000)
        await clean(log, disk=disk, clock=VirtualClock(stopping.cancel))
    assert disk.tries == 999
    assert log.failure is None
    assert list(folder.glob("*.swap"))
    after = stored_records(log)
    assert len(after) < len(before)
    if is_clean:
        await close_clean(log)
    reopened = open_log(folder, SEGMENTS, clean=is_clean)
    assert stored_records(reopened) == after
    assert not list(folder.glob("*.swap"))


@in_trio
async def test_readers_of_old_segments_go_on(tmp_path: Path) -> None:
    log = open_log(tmp_path, SEGMENTS)
    for number in range(30):
        append_records(log, [(b"k", b"value %d" % number)])
    log.roll(0)
    slices = [log.read(offset, 1000, log.log_end_offset) for offset in range(0, 30, 3)]
    contents = [slice_.read() for slice_ in slices]
    await clean(log)
    append_records(log, [(b"k", b"again")])
    log.roll(0)
    await clean(log)  # retired files of the same name get different names
    assert [slice_.read() for slice_ in slices] == contents
    assert len(list(tmp_path.glob("*.log.*" + DELETED))) > 5
    log.remove_deleted()
    assert not list(tmp_path.glob("*" + DELETED))


@pytest.mark.slow
@in_trio
async def test_appends_and_reads_go_on_meanwhile(tmp_path: Path) -> None:
    log = open_log(tmp_path, SEGMENTS)
    random = Random(1)
    expected: dict[bytes, bytes] = {}

    def put() -> None:
        key, value = b"k%d" % random.randrange(20), b"%d" % log.log_end_offset
        append_records(log, [(key, value)])
        expected[key] = value

    for _ in range(200):
        put()
    cleaned_to = 0
    for _ in range(5):
        order = CleaningOrder(
            cleaned_to, log.sealed_segments()[-1][1], 0, RETENTION_MS, 1 << 16, 0.75, 1000
        )

        async def pause(size: int) -> None:
            for _ in range(4):
                put()
            await trio.lowlevel.checkpoint()
            offset = random.randrange(log.log_end_offset)
            data = log.read(offset, 500, log.log_end_offset, min_one=True).read()
            assert headers_of(data)[0].last_offset >= offset

        result = await Cleaning(log, UnsyncedDisk(), REAL_CLOCK, order, pause, lambda: True).run()
        cleaned_to = result.cleaned_to
        assert {r.key: r.value for r in stored_records(log)} == expected
        assert_reads_at_every_offset(log)
    assert log.log_end_offset > 250


@in_trio
async def test_nothing_is_decided_beyond_where_the_map_was_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, SEGMENTS)
    append_records(log, [(b"a", b"1"), (b"b", b"1"), (b"c", None), (b"a", b"2"), (b"c", b"1")])
    append_records(log, [(b"c", None)])
    log.roll(0)
    result = await clean(log, map_bytes=3 * 24)  # two entries
    assert result.cleaned_to == 2
    assert headers_of(stored_batches(log)[0])[0].delete_horizon_ms is None
    assert [record.offset for record in stored_records(log)] == [0, 1, 2, 3, 4, 5]
    result = await clean(log, first_dirty=2, map_bytes=3 * 24)
    assert result.cleaned_to == 6
    assert [record.offset for record in stored_records(log)] == [1, 3, 5]


def test_only_what_is_stable_and_old_enough_may_be_cleaned() -> None:
    """Segments that end after the last stable offset or the recovery point are not cleaned."""
    segments = [SegmentAges(base, base + 10, 100, 1000 + base, 1009 + base) for base in (0, 10, 20)]
    limits = CompactionLimits(min_lag_ms=0, max_lag_ms=1 << 40, min_dirty_ratio=0.5)

    def end(stable_end: int, min_lag_ms: int = 0) -> int:
        asked = replace(limits, min_lag_ms=min_lag_ms)
        return cleanable(segments, 0, stable_end, 2000, asked).end

    assert [end(stable) for stable in (0, 9, 10, 15, 29, 30, 99)] == [0, 0, 10, 10, 20, 30, 30]
    assert [end(99, lag) for lag in (1, 971, 972, 981, 982, 992)] == [30, 30, 20, 20, 10, 0]
    part = cleanable(segments, 10, 25, 2000, limits)
    assert (part.first_dirty, part.end) == (10, 20)
    assert (part.clean_bytes, part.dirty_bytes) == (100, 100)


def test_segments_are_merged_within_the_limits_of_one_segment() -> None:
    def merged(*segments: SegmentSizes) -> list[list[int]]:
        return list(groups(segments, max_log_bytes=100, max_index_bytes=40))

    def sizes(base: int, end: int, log: int = 1, index: int = 1, times: int = 1) -> SegmentSizes:
        return SegmentSizes(base, end, log, index, times)

    assert merged() == []
    assert merged(sizes(0, 5), sizes(5, 9)) == [[0, 1]]
    assert merged(sizes(0, 5, 50), sizes(5, 9, 50), sizes(9, 12, 1)) == [[0, 1], [2]]
    assert merged(sizes(0, 5, 1, 20), sizes(5, 9, 1, 20), sizes(9, 12)) == [[0, 1], [2]]
    assert merged(sizes(0, 5, 1, 1, 20), sizes(5, 9, 1, 1, 20), sizes(9, 12)) == [[0, 1], [2]]
    assert merged(sizes(0, 5, 200), sizes(5, 9, 200)) == [[0], [1]]
    many = [sizes(base, base + 1, 0, 0, 0) for base in range(2 * MAX_GROUP_SEGMENTS + 1)]
    assert [len(each) for each in merged(*many)] == [MAX_GROUP_SEGMENTS, MAX_GROUP_SEGMENTS, 1]


@pytest.mark.parametrize("base", [0, 7_000_000_000])
def test_merged_segments_have_offsets_of_31_bits(base: int) -> None:
    """Indexes and batches hold offsets relative to the base of their segment, as int32."""

    def merged(*ends: int) -> list[list[int]]:
        starts = (0, *ends)
        segments = [
            SegmentSizes(base + start, base + end, 1, 1, 1)
            for start, end in zip(starts, ends, strict=False)
        ]
        return list(groups(segments, max_log_bytes=100, max_index_bytes=40))

    assert merged(10, 2**31) == [[0, 1]]
    assert merged(10, 2**31 + 1) == [[0], [1]]
    # The next group has its own base.
    assert merged(10, 2**31 + 1, 2**31 + 10, 2**32) == [[0], [1, 2], [3]]
