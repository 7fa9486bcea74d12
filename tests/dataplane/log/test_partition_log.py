import errno
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from metaquorum.dataplane.log.recovery.checkpoints import encode_damage
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.dataplane.log.segments.files import DiskFullError, OpenFiles
from metaquorum.dataplane.log.segments.index import SparseIndex
from metaquorum.dataplane.log.segments.names import DAMAGED, SYNCING
from metaquorum.dataplane.log.segments.segment import Segment
from metaquorum.runtime.interfaces import Buffer, File, StorageError
from metaquorum.runtime.system import RealDisk, RealFile
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.batches import BatchHeader
from metaquorum.wire.records.records import BatchState, TimestampType, scan
from tests.dataplane.log.logs import (
    EPOCH,
    SMALL,
    UnsyncedDisk,
    append,
    append_many,
    close_clean,
    headers_of,
    log_files,
    make_batch,
    max_timestamp,
    offset_for_timestamp,
    offsets,
    open_log,
    read_headers,
)
from tests.dataplane.serving import FaultyDisk

T = TypeVar("T")

ONE_SEGMENT = LogConfig(index_interval_bytes=150)


def test_batches_get_the_next_offsets_and_the_leader_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = append(log, make_batch(3))
    second = append(log, make_batch(2))
    assert (first.first_offset, first.last_offset) == (0, 2)
    assert (second.first_offset, second.last_offset) == (3, 4)
    headers = read_headers(log)
    assert offsets(headers) == [(0, 2), (3, 4)]
    assert {header.leader_epoch for header in headers} == {EPOCH}
    assert log.epochs.entries == [(EPOCH, 0)]


def test_several_batches_in_one_append(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    result = append(log, make_batch(3) + make_batch(1) + make_batch(2))
    assert (result.first_offset, result.last_offset) == (0, 5)
    assert offsets(read_headers(log)) == [(0, 2), (3, 3), (4, 5)]


def test_stored_bytes_are_the_sent_ones_but_for_offset_and_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    sent = make_batch(3, value=b"x" * 50)
    before = bytes(sent)
    append(log, sent)
    stored = log.read(0, 1 << 20, 3).read()
    assert stored[16:] == before[16:]


@pytest.mark.parametrize("max_bytes", [1, 100, 150, 500, 1 << 20])
def test_every_offset_is_found_whatever_the_size_asked_for(tmp_path: Path, max_bytes: int) -> None:
    log = open_log(tmp_path)
    append_many(log, 30)
    assert log.segment_count > 2
    everything = read_headers(log)
    for offset in range(log.log_end_offset):
        found = read_headers(log, offset, max_bytes=max_bytes)
        assert offsets(found) == [o for o in offsets(everything) if o[1] >= offset]


def test_reads_end_before_the_high_watermark_on_a_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path, ONE_SEGMENT)
    append_many(log, 300)
    for end in [0, 1, 2, 3, 40, 41, 500, 598, 599, 600]:
        found = read_headers(log, 0, end)
        assert offsets(found) == [(o, o + 1) for o in range(0, end - 1, 2)]


def test_reads_end_before_the_high_watermark_after_reopening(tmp_path: Path) -> None:
    log = open_log(tmp_path, ONE_SEGMENT)
    append_many(log, 50)
    log = open_log(tmp_path, ONE_SEGMENT)
    assert offsets(read_headers(log, 3, 40))[-1] == (38, 39)


def test_a_read_at_the_end_is_empty_and_beyond_it_is_out_of_range(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_many(log, 2)
    assert log.read(4, 100, 4).read() == b""
    assert log.read(3, 100, 2).read() == b""
    for offset in (-1, 5):
        with pytest.raises(KafkaError) as caught:
            log.read(offset, 100, 4)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_first_batch_larger_than_asked_for_comes_whole_or_not_at_all(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    batch = make_batch(1, value=b"x" * 300)
    append(log, batch)
    append(log, make_batch(1))
    assert log.read(0, 10, 2, min_one=True).size_bytes == len(batch)
    assert log.read(0, 10, 2).size_bytes == 0
    assert log.read(0, len(batch) + 5, 2).size_bytes == len(batch) + 5


def test_a_read_of_whole_batches_truncates_none_that_the_index_has(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=250))
    size = len(make_batch(1, value=b"x" * 300))
    for _ in range(300):
        append(log, make_batch(1, value=b"x" * 300))
    for offset in (0, 1, 7, 298):
        for batches in (2, 3, 129, 290):
            for more in (0, 1, size - 1):
                piece = log.read(offset, batches * size + more, 300, is_whole=True)
                assert piece.size_bytes == min(batches, 300 - offset) * size
        assert log.read(offset, size + 1, 300, is_whole=True).size_bytes in (size, size + 1)
    log.close()
    small = open_log(tmp_path / "small", LogConfig(index_interval_bytes=1 << 20))
    for _ in range(3):
        append(small, make_batch(1, value=b"x" * 300))
    assert small.read(0, size + 9, 3, is_whole=True).size_bytes == size + 9


def test_a_replica_that_reads_on_searches_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=150))
    size = len(make_batch(1, value=b"x" * 300))
    for _ in range(300):
        append(log, make_batch(1, value=b"x" * 300))
    offset = log.read(0, 5 * size + 9, 300, is_whole=True).size_bytes // size
    searched: list[SparseIndex] = []
    floor = SparseIndex.floor
    monkeypatch.setattr(
        SparseIndex, "floor", lambda index, key: searched.append(index) or floor(index, key)
    )
    while 0 < offset < 160:
        piece = log.read(offset, 5 * size + 9, 300, is_whole=True)
        assert (piece.position, piece.size_bytes) == (offset * size, 5 * size)
        offset += 5
    assert offset == 160
    assert not searched
    assert log.read(7, 5 * size, 300, is_whole=True).position == 7 * size
    assert searched


def test_the_end_of_a_read_is_forgotten_when_its_batch_is_truncated(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=150))
    size = len(make_batch(1, value=b"x" * 300))
    for _ in range(5):
        append(log, make_batch(1, value=b"x" * 300))
    assert log.read(0, 2 * size + 9, 5, is_whole=True).size_bytes == 2 * size
    log.truncate_to(1)
    # Where the read ended, this batch has bytes that look like a batch with a later offset.
    fake, place = bytes(make_batch(1, base_offset=3)), make_batch(1, value=b"v" * 300).index(b"vvv")
    append(log, make_batch(1, value=b"x" * (size - place) + fake + b"x" * (400 - len(fake))))
    with log.read(1, 1000, 2).pinned() as file:
        assert file.read(len(fake), 2 * size) == fake
    append_many(log, 300, records=1)  # more than the positions of the latest batches
    assert headers_of(log.read(3, 1 << 20, 302).read())[0].base_offset == 3


def test_the_end_of_a_read_that_a_changed_index_puts_within_a_batch_is_not_believed(
    tmp_path: Path,
) -> None:
    """A producer may have made the bytes there look like the batch that a replica asks for next."""
    log = open_log(tmp_path, LogConfig(index_interval_bytes=0))
    fake, place = bytes(make_batch(9, base_offset=3)), make_batch(1, value=b"v" * 300).index(b"vvv")
    append_many(log, 3, records=1)
    append(log, make_batch(1, value=fake + b"x" * 400))
    append_many(log, 300, records=1)  # more than the positions of the latest batches
    begin = log.read(3, 1 << 20, 304).position
    trio.run(close_clean, log)
    (path,) = tmp_path.glob("*.index")
    entries = bytearray(path.read_bytes())
    at = [key for key, _ in struct.iter_unpack(">ii", entries)].index(3)
    struct.pack_into(">ii", entries, at * 8, 3, begin + place)
    path.write_bytes(entries)
    log = open_log(tmp_path, clean=True, recovery_point=304)
    piece = log.read(0, begin + place + 9, 304, is_whole=True)
    assert piece.size_bytes == begin + place  # the replica drops the partial batch, and asks for 3
    assert log.read(3, 1 << 20, 304).position == begin


def test_a_tail_read_searches_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=0))
    append_many(log, 400)
    monkeypatch.setattr(SparseIndex, "count_upto", None)
    assert offsets(read_headers(log, 790)) == [(o, o + 1) for o in range(790, 800, 2)]
    append_many(log, 300)
    # The end of the last read is cached, regardless of later appends.
    assert read_headers(log, 800)[0].base_offset == 800


def test_a_segment_rolls_when_the_next_append_would_not_fit(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_many(log, 40)
    sizes = [file.stat().st_size for file in log_files(tmp_path)]
    assert len(sizes) == log.segment_count > 2
    assert max(sizes) <= SMALL.segment_bytes
    assert log.size_bytes == sum(sizes)


def test_a_batch_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(KafkaError) as caught:
        append(log, make_batch(1, value=b"x" * 2000))
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_batch_larger_than_a_segment_is_refused_as_such_after_a_later_sequence(
    tmp_path: Path,
) -> None:
    """Its producer may not have received the first answer, and sends all batches again."""
    log = open_log(tmp_path)
    large = make_batch(2, value=b"x" * 2000, producer_id=7, sequence=0)
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            append(log, large)
        assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
        append(log, make_batch(1, producer_id=7, sequence=2))
    assert log.log_end_offset == 1


def test_a_segment_rolls_by_the_age_of_its_records(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_ms=1000))
    append(log, make_batch(1, timestamp=5000))
    append(log, make_batch(1, timestamp=6000), now_ms=10**9)
    assert log.segment_count == 1
    append(log, make_batch(1, timestamp=6001))
    assert log.segment_count == 2


def test_a_segment_without_timestamps_rolls_by_its_own_age(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_ms=1000))
    append(log, make_batch(1, timestamp=-1))
    append(log, make_batch(1, timestamp=-1), now_ms=1000)
    assert log.segment_count == 1
    append(log, make_batch(1, timestamp=-1), now_ms=1001)
    assert log.segment_count == 2


def test_a_segment_rolls_when_its_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_index_bytes=24, index_interval_bytes=0))
    append_many(log, 10)
    assert log.segment_count > 2
    assert len(read_headers(log)) == 10


def test_a_segment_rolls_before_relative_offsets_overflow(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, make_batch(1))
    far = make_batch(1, base_offset=2**31, leader_epoch=EPOCH)
    log.append_as_follower(memoryview(far), headers_of(far), 0)
    assert log.segment_count == 2
    assert offsets(read_headers(log)) == [(0, 0), (2**31, 2**31)]
    assert offsets(read_headers(open_log(tmp_path))) == [(0, 0), (2**31, 2**31)]


def test_log_append_time_replaces_the_producers_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(log_append_time=True))
    result = append(log, make_batch(2, timestamp=5), now_ms=777)
    assert result.log_append_time_ms == 777
    stored = log.read(0, 1000, 2).read()
    (header,) = headers_of(stored)
    assert scan(stored).state is BatchState.WHOLE
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == 777
    found = offset_for_timestamp(log, 777, 2)
    assert found is not None
    assert (found.offset, found.timestamp) == (0, 777)


# Followers


@pytest.mark.parametrize("beside", [False, True])
def test_a_follower_keeps_offsets_epochs_and_gaps(tmp_path: Path, beside: bool) -> None:
    log = open_log(tmp_path)
    data = make_batch(2, base_offset=5, leader_epoch=1) + make_batch(
        1, base_offset=9, leader_epoch=4
    )
    view, headers = memoryview(data), headers_of(data)
    if beside:
        result = trio.run(log.append_as_follower_beside, RealDisk(), view, headers, 0)
    else:
        result = log.append_as_follower(view, headers, 0)
    assert (result.first_offset, result.last_offset) == (5, 9)
    assert offsets(read_headers(log, 0)) == [(5, 6), (9, 9)]
    assert log.log_end_offset == 10
    assert log.epochs.entries == [(1, 5), (4, 9)]
    assert offsets(read_headers(log, 7)) == [(9, 9)]


def test_a_follower_refuses_offsets_that_go_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_many(log, 2)
    data = make_batch(1, base_offset=3, leader_epoch=EPOCH)
    with pytest.raises(KafkaError) as caught:
        log.append_as_follower(memoryview(data), headers_of(data), 0)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 4


# Producers


def test_a_repeated_batch_is_answered_with_its_place(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(0, 20, 2):
        append(log, make_batch(2, producer_id=7, sequence=sequence))
    for sequence in range(10, 20, 2):
        again = append(log, make_batch(2, producer_id=7, sequence=sequence))
        assert again.is_duplicate
        assert (again.first_offset, again.last_offset) == (sequence, sequence + 1)
    with pytest.raises(KafkaError) as caught:
        append(log, make_batch(2, producer_id=7, sequence=8))
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 20


@pytest.mark.parametrize("clean", [False, True])
def test_a_batch_of_which_the_first_records_were_deleted_is_remembered_after_a_restart(
    tmp_path: Path, clean: bool
) -> None:
    """The log start offset is within the batch: sent again, the batch is still a duplicate."""
    log = open_log(tmp_path)
    append(log, make_batch(8, producer_id=7, sequence=0))
    log.advance_log_start(2)
    if clean:
        trio.run(close_clean, log)
    log = open_log(tmp_path, clean=clean, recovery_point=8 if clean else 0, log_start_offset=2)
    again = append(log, make_batch(8, producer_id=7, sequence=0))
    assert (again.is_duplicate, again.first_offset, again.last_offset) == (True, 0, 7)
    assert log.log_end_offset == 8


@pytest.mark.parametrize("clean", [False, True])
def test_all_five_batches_are_remembered_after_a_restart(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path)
    for sequence in range(0, 20, 2):
        append(log, make_batch(2, producer_id=7, sequence=sequence))
    if clean:
        trio.run(close_clean, log)
    log = open_log(tmp_path, clean=clean, recovery_point=20 if clean else 0)
    for sequence in range(10, 20, 2):
        again = append(log, make_batch(2, producer_id=7, sequence=sequence))
        assert again.is_duplicate
        assert again.first_offset == sequence


def test_truncation_takes_back_what_producers_wrote(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(20):
        append(log, make_batch(1, producer_id=7, sequence=sequence))
    log.truncate_to(12)
    assert append(log, make_batch(1, producer_id=7, sequence=11)).is_duplicate
    assert not append(log, make_batch(1, producer_id=7, sequence=12)).is_duplicate


# Timestamps


def test_the_first_record_not_older_than_a_time_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_many(log, 40)
    for number in range(40):
        for wanted, offset in ((0, 2 * number), (1, 2 * number + 1)):
            found = offset_for_timestamp(log, 1000 + 10 * number + wanted, 80)
            assert found is not None
            assert (found.offset, found.leader_epoch) == (offset, EPOCH)
    assert offset_for_timestamp(log, 0, 80) == (0, 1000, EPOCH)
    assert offset_for_timestamp(log, 1392, 80) is None
    assert offset_for_timestamp(log, 1390, 78) is None


def test_the_youngest_record_is_the_first_of_several(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert max_timestamp(log, 0) is None
    for timestamp in (10, 90, 30, 90, 50):
        append(log, make_batch(1, timestamp=timestamp))
    assert max_timestamp(log, 5) == (1, 90, EPOCH)


def test_the_youngest_record_is_not_one_that_was_deleted(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, make_batch(1, timestamp=90))
    append(log, make_batch(4, timestamp=60))  # and 61, 62, 63
    append(log, make_batch(1, timestamp=61))
    append(log, make_batch(1, timestamp=30))
    for start, youngest in ((0, (0, 90)), (1, (4, 63)), (4, (4, 63)), (5, (5, 61)), (6, (6, 30))):
        log.advance_log_start(start)
        assert max_timestamp(log, 7) == (*youngest, EPOCH)
    log.advance_log_start(7)
    assert max_timestamp(log, 7) is None


def test_a_time_index_that_the_disk_changed_is_not_believed(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=0))
    append_many(log, 40)
    trio.run(close_clean, log)
    (path,) = tmp_path.glob("*.timeindex")
    (offset_index,) = tmp_path.glob("*.index")
    sound, sound_offsets = path.read_bytes(), offset_index.read_bytes()
    for position in range(len(sound)):
        offset_index.write_bytes(sound_offsets)
        path.write_bytes(sound[:position] + bytes([sound[position] ^ 0x10]) + sound[position + 1 :])
        log = open_log(tmp_path, clean=True, recovery_point=80)
        for offset in (0, 33, 79):
            wanted = 1000 + 10 * (offset // 2) + offset % 2
            assert offset_for_timestamp(log, wanted, 80) == (offset, wanted, EPOCH)
        assert max_timestamp(log, 80) == (79, 1391, EPOCH)
        log.close()


def test_a_time_index_that_points_to_a_later_batch_with_the_same_time_is_not_believed(
    tmp_path: Path,
) -> None:
    """One changed bit of the offset in an entry; the batch that it points to has the timestamp."""
    log = open_log(tmp_path, LogConfig(index_interval_bytes=0))
    for timestamp in (1000, 1000, 2000, 1500, 2000, 3000, 3000):
        append(log, make_batch(1, timestamp=timestamp))
    trio.run(close_clean, log)
    (path,) = tmp_path.glob("*.timeindex")
    sound = path.read_bytes()
    entries = [sound[at : at + 12] for at in range(0, len(sound), 12)]
    firsts = {1000: 0, 2000: 2, 3000: 5}
    laters = {1000: 1, 2000: 4, 3000: 6}
    for number, entry in enumerate(entries):
        (timestamp,) = struct.unpack_from(">q", entry)
        changed = list(entries)
        changed[number] = struct.pack(">qi", timestamp, laters[timestamp])
        path.write_bytes(b"".join(changed))
        log = open_log(tmp_path, clean=True, recovery_point=7)
        found = offset_for_timestamp(log, timestamp, 7)
        assert found is not None
        assert found[0] == firsts[timestamp]
        youngest = max_timestamp(log, 7)
        assert youngest is not None
        assert youngest[0] == 5
        log.close()


def test_the_check_of_a_time_index_walks_a_bounded_part_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise timestamps that do not increase would make the start walk whole segments."""
    log = open_log(tmp_path, LogConfig(index_interval_bytes=0))
    for timestamp in [1000] * 500 + [2000] * 2:
        append(log, make_batch(1, timestamp=timestamp))
    trio.run(close_clean, log)
    log = open_log(tmp_path, clean=True, recovery_point=502)
    walked: list[int] = []
    walk = Segment.walk

    def counting(self: Segment, position: int) -> Iterator[tuple[int, BatchHeader]]:
        for at, header in walk(self, position):
            walked.append(at)
            yield at, header

    monkeypatch.setattr(Segment, "walk", counting)
    assert log.segments[0].max_timestamp == 2000
    assert 1 < len(walked) < 100
    assert offset_for_timestamp(log, 2000, 502) == (500, 2000, EPOCH)
    log.close()


def test_timestamps_of_a_reopened_log_are_those_of_its_records(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_many(log, 40)
    trio.run(close_clean, log)
    log = open_log(tmp_path, clean=True, recovery_point=80)
    assert max_timestamp(log, 80) == (79, 1391, EPOCH)
    assert offset_for_timestamp(log, 1200, 80) == (40, 1200, EPOCH)


# Cutting


@pytest.mark.parametrize("offset", [0, 2, 10, 38, 40, 78])
def test_truncation_leaves_what_is_before(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path)
    append_many(log, 40)
    assert log.truncate_to(offset)
    assert log.log_end_offset == offset
    assert offsets(read_headers(log)) == [(o, o + 1) for o in range(0, offset, 2)]
    append(log, make_batch(2))
    assert offsets(read_headers(log))[-1] == (offset, offset + 1)
    reopened = open_log(tmp_path)
    assert offsets(read_headers(reopened)) == offsets(read_headers(log))


def test_truncation_inside_a_batch_takes_the_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_many(log, 3)
    log.truncate_to(3)
    assert log.log_end_offset == 2


def test_truncation_forgets_epochs_that_began_later(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in (1, 2, 5):
        append(log, make_batch(2), epoch=epoch)
    log.truncate_to(3)
    assert log.epochs.entries == [(1, 0)]
    assert open_log(tmp_path).epochs.entries == [(1, 0)]


def test_a_log_can_start_anew_elsewhere(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_many(log, 40)
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (1000, 1000, 0)
    append(log, make_batch(2))
    reopened = open_log(tmp_path)
    assert reopened.log_start_offset == 1000
    assert offsets(read_headers(reopened)) == [(1000, 1001)]


def test_old_segments_go_when_the_log_starts_behind_them(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_many(log, 40)
    slice_ = log.read(0, 100, 80)
    log.advance_log_start(45)
    assert trio.run(log.delete_old_segments, UnsyncedDisk()) == 2
    with pytest.raises(KafkaError):
        log.read(44, 100, 80)
    assert read_headers(log)[0].base_offset == 44
    # A read that began before continues until the files are removed.
    assert len(slice_.read()) == 100
    log.remove_deleted()
    with pytest.raises(EOFError):
        slice_.read()
    assert not list(tmp_path.glob("*.deleted"))
    reopened = open_log(tmp_path, log_start_offset=45)
    assert reopened.log_start_offset == 45
    assert offsets(read_headers(reopened)) == offsets(read_headers(log))


def test_segments_of_a_cancelled_deletion_are_counted_by_the_next_one(tmp_path: Path) -> None:
    """Their files are removed by number: see PendingDeletes."""
    log = open_log(tmp_path)
    append_many(log, 40)

    class Cancelling(UnsyncedDisk):
        """A disk whose third call in a worker thread is cancelled."""

        calls = 0

        async def run(self, function: Callable[[], T]) -> T:
            self.calls += 1
            if self.calls == 3:
                scope.cancel()
                await trio.lowlevel.checkpoint()
            return function()

    log.advance_log_start(75)
    scope = trio.CancelScope()

    async def main() -> None:
        with scope:
            await log.delete_old_segments(Cancelling())
        assert scope.cancelled_caught
        assert len(list(tmp_path.glob("*.log.deleted"))) == 2
        count = await log.delete_old_segments(UnsyncedDisk())
        log.remove_deleted(count)
        assert not list(tmp_path.glob("*.deleted"))
        assert await log.delete_old_segments(UnsyncedDisk()) == 0

    trio.run(main)


def test_the_active_segment_is_never_deleted(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_many(log, 2)
    log.advance_log_start(4)
    assert trio.run(log.delete_old_segments, UnsyncedDisk()) == 0
    assert log.segment_count == 1


def test_the_log_start_goes_no_further_than_the_end_and_never_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_many(log, 2)
    with pytest.raises(KafkaError):
        log.advance_log_start(5)
    assert log.advance_log_start(3)
    assert not log.advance_log_start(2)
    assert log.log_start_offset == 3


# Disks that fail


class FailingFile(RealFile):
    """File that writes some bytes and then fails with a full disk."""

    __slots__ = ("room",)

    def write(self, data: Buffer, position: int) -> None:
        room = min(self.room, len(data))
        super().write(memoryview(data)[:room], position)
        if room < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")


class FailingDisk(RealDisk):
    def __init__(self) -> None:
        self.room = 1 << 30
        self.sync_error: OSError | None = None

    def open(self, path: str, *, create: bool = False) -> File:
        real = super().open(path, create=create)
        assert isinstance(real, RealFile)
        file = FailingFile(path, real.fileno(), self)
        file.room = self.room
        return file


@pytest.mark.parametrize("beside", [False, True])
def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path, beside: bool) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, files=OpenFiles(disk, str(tmp_path)))
    append_many(log, 3)
    file = log._segments.active.file.get()
    assert isinstance(file, FailingFile)
    size, file.room = file.size(), 30
    batch = make_batch(1, producer_id=7, sequence=0)

    async def write() -> None:
        if beside:
            await log.append_beside(disk, batch, headers_of(batch)[0], EPOCH + 1, 0)
        else:
            append(log, batch, epoch=EPOCH + 1)

    with pytest.raises(DiskFullError, match="free some space"):
        trio.run(write)
    assert file.size() == size
    assert log.log_end_offset == 6
    assert len(log.producers) == 0
    file.room = 1 << 20
    append(log, make_batch(1))
    assert offsets(read_headers(log))[-1] == (6, 6)
    assert offsets(read_headers(open_log(tmp_path))) == offsets(read_headers(log))


def test_a_truncation_on_a_full_disk_is_synced_and_the_log_goes_on_once_there_is_room(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", files=OpenFiles(disk, str(tmp_path)))
    for epoch in (1, 2):
        append(log, make_batch(2), epoch=epoch)
    disk.fail("create", "/leader-epoch-checkpoint", errno.ENOSPC)
    assert log.truncate_to(2)
    with pytest.raises(DiskFullError):
        trio.run(log.flush, disk)
    assert str(tmp_path / "t-0" / "00000000000000000000.log") in disk.synced
    assert log.recovery_point == 0
    with pytest.raises(DiskFullError):
        append(log, make_batch(2), epoch=3)
    disk.faults.clear()
    append(log, make_batch(2), epoch=3)
    trio.run(log.flush, disk)
    assert log.recovery_point == 4
    assert open_log(tmp_path / "t-0").epochs.entries == [(1, 0), (3, 2)]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize(
    ("action", "path"),
    [("open", ".log"), ("sync_dir", "/t-0"), ("open", "leader-epoch-checkpoint")],
)
def test_a_sync_without_a_descriptor_is_tried_again(
    tmp_path: Path, action: str, path: str, number: int
) -> None:
    """Clients may use up all descriptors for a moment: the disk has not failed."""
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", files=OpenFiles(disk, str(tmp_path)))
    append_many(log, 3)
    log._files.close()
    disk.fail(action, path, number)
    for _ in range(2):
        with pytest.raises(StorageError, match="raise the"):
            trio.run(log.flush, disk)
    disk.faults.clear()
    append_many(log, 3)
    trio.run(log.flush, disk)
    assert log.failure is None
    assert log.recovery_point == log.log_end_offset == 12
    for name in ("00000000000000000000.log", "leader-epoch-checkpoint"):
        assert str(tmp_path / "t-0" / name) in disk.synced
    assert (tmp_path / SYNCING).read_bytes() == b"0"


@pytest.mark.parametrize(("action", "path"), [("sync_dir", "/t-0"), ("create", ".log")])
def test_a_roll_without_a_descriptor_is_tried_again(tmp_path: Path, action: str, path: str) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", files=OpenFiles(disk, str(tmp_path)))
    append_many(log, 3)
    log.roll(0)
    append_many(log, 3)
    disk.fail(action, path, errno.EMFILE)
    for _ in range(2):
        with pytest.raises(StorageError, match="raise the limit of open files"):
            log.roll(0)
    append_many(log, 3)
    disk.faults.clear()
    assert log.roll(0)
    append_many(log, 3)
    trio.run(log.flush, disk)
    assert log.recovery_point == log.log_end_offset == 24
    stored = offsets(read_headers(log))
    assert offsets(read_headers(open_log(tmp_path / "t-0"))) == stored


def test_a_followers_append_that_is_cancelled_before_its_write_changes_nothing(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    append_many(log, 2)
    data = make_batch(1, base_offset=4, leader_epoch=EPOCH) + make_batch(
        1, base_offset=5, leader_epoch=EPOCH + 1
    )

    async def write() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await log.append_as_follower_beside(RealDisk(), data, headers_of(data), 0)

    trio.run(write)
    assert not log.is_writing
    assert log.log_end_offset == 4
    assert log.epochs.latest == EPOCH
    assert offsets(read_headers(open_log(tmp_path))) == offsets(read_headers(log))
    log.append_as_follower(data, headers_of(data), 0)
    assert log.epochs.latest == EPOCH + 1


def test_an_append_beside_the_loop_is_an_append(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    batch = make_batch(4)
    result = trio.run(log.append_beside, RealDisk(), batch, headers_of(batch)[0], EPOCH, 0)
    assert (result.first_offset, result.last_offset) == (0, 3)
    assert offsets(read_headers(log)) == [(0, 3)]


# Durability


def test_a_flush_moves_the_recovery_point_to_the_end(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_many(log, 40)
    assert log.needs_flush(0)  # sealed segments are synced in any case
    trio.run(log.flush, RealDisk())
    assert log.recovery_point == 80
    assert not log.needs_flush(0)


def test_flush_messages_and_flush_ms_ask_for_a_flush(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(flush_messages=3, flush_ms=500))
    assert not log.needs_flush(10_000)
    append(log, make_batch(2))
    assert not log.needs_flush(499)
    assert log.needs_flush(500)
    append(log, make_batch(1))
    assert log.needs_flush(0)
    trio.run(log.flush, RealDisk(), 600)
    append(log, make_batch(1))
    assert not log.needs_flush(1099)
    assert log.needs_flush(1100)


def test_callers_that_flush_together_share_syncs(tmp_path: Path) -> None:
    class CountingDisk(RealDisk):
        calls = 0

        async def run(self, function):  # type: ignore[no-untyped-def]
            self.calls += 1
            return await super().run(function)

    disk = CountingDisk()
    log = open_log(tmp_path)

    async def append_and_flush() -> None:
        result = append(log, make_batch(1))
        await log.flush(disk)
        assert log.recovery_point > result.last_offset

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(append_and_flush)

    trio.run(main)
    assert disk.calls <= 3


def test_after_a_failed_sync_nothing_is_appended_or_flushed_again(tmp_path: Path) -> None:
    class BrokenFile(RealFile):
        __slots__ = ()

        def sync(self) -> None:
            raise OSError(errno.EIO, "Input/output error")

    class BrokenDisk(RealDisk):
        def open(self, path: str, *, create: bool = False) -> File:
            real = super().open(path, create=create)
            assert isinstance(real, RealFile)
            return BrokenFile(path, real.fileno(), self)

    disk = BrokenDisk()
    log = open_log(tmp_path, files=OpenFiles(disk, str(tmp_path)))
    append_many(log, 2)
    for _ in range(2):
        with pytest.raises(StorageError, match="device fails"):
            trio.run(log.flush, disk)
    with pytest.raises(StorageError, match="device fails"):
        append_many(log, 1)
    assert log.recovery_point == 0
    assert len(read_headers(log)) == 2


def test_the_end_of_a_read_in_an_earlier_segment_is_no_place_at_the_tail(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_many(log, 1)
    log.roll(0)
    append_many(log, 4)
    end = log.log_end_offset
    assert headers_of(log.read(0, 1 << 20, end).read())[-1].next_offset < end
    append_many(log, 2)
    assert log.segment_count == 2
    assert headers_of(log.read(end, 1 << 20, end + 4).read())[0].base_offset == end


def test_a_flush_that_a_truncation_overtook_promises_nothing_beyond_the_end(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    append_many(log, 5)

    class Overtaken(RealDisk):
        async def run(self, function):  # type: ignore[no-untyped-def]
            if log.log_end_offset > 4:
                log.truncate_to(4)
            return await super().run(function)

    trio.run(log.flush, Overtaken())
    assert log.recovery_point == log.log_end_offset == 4


def test_a_flush_covers_what_became_complete_while_it_was_under_way(tmp_path: Path) -> None:
    """No other flush would be due, and unsynced segments are not cleaned."""
    log = open_log(tmp_path)
    append_many(log, 25)
    assert log.segment_count > 1

    class Slow(RealDisk):
        async def run(self, function):  # type: ignore[no-untyped-def]
            while log.segment_count == count:
                append_many(log, 1)
            return await super().run(function)

    count = log.segment_count
    trio.run(log.flush, Slow())
    assert not log.needs_flush(0)
    assert log.recovery_point >= log.sealed_segments()[-1][1]


@pytest.mark.parametrize("as_a_whole", [False, True])
def test_a_sync_does_not_make_indexes_that_were_found_wrong(
    tmp_path: Path, as_a_whole: bool
) -> None:
    """The next start would use empty indexes as valid ones; it only rebuilds missing ones."""
    folder = tmp_path / "t-0"
    log = open_log(folder)
    while len(log_files(folder)) < 3:
        append_many(log, 1)
    name = log_files(folder)[1].stem
    indexes = [folder / f"{name}.index", folder / f"{name}.timeindex"]
    sound = [path.read_bytes() for path in indexes]
    indexes[0].write_bytes(b"\xff" * len(sound[0]))
    read_headers(log, int(name) + 3)
    assert not any(path.exists() for path in indexes)

    async def sync() -> None:
        if as_a_whole:
            await close_clean(log)
        else:
            await log.flush(UnsyncedDisk())

    trio.run(sync)
    assert not any(path.exists() for path in indexes)
    again = open_log(folder, clean=True, recovery_point=log.recovery_point)
    assert [path.read_bytes() for path in indexes] == sound
    assert read_headers(again) == read_headers(log)


def test_indexes_that_are_found_wrong_during_a_sync_are_gone(tmp_path: Path) -> None:
    """A sync in progress does not leave empty index files for the next start."""
    folder = tmp_path / "t-0"
    log = open_log(folder)
    while len(log_files(folder)) < 3:
        append_many(log, 1)
    name = log_files(folder)[0].stem  # the segment that is synced first
    indexes = [folder / f"{name}.index", folder / f"{name}.timeindex"]
    sound = [path.read_bytes() for path in indexes]
    found_during: list[bool] = []

    class FoundMeanwhile(UnsyncedDisk):
        async def run(self, function):  # type: ignore[no-untyped-def]
            if not found_during:
                indexes[0].write_bytes(b"\xff" * len(sound[0]))
                read_headers(log, 3)
                found_during.append(not indexes[0].exists())
            return await super().run(function)

    trio.run(log.flush, FoundMeanwhile())
    assert found_during == [True]
    assert not any(path.exists() for path in indexes)
    again = open_log(folder, clean=True, recovery_point=log.recovery_point)
    assert [path.read_bytes() for path in indexes] == sound
    assert read_headers(again) == read_headers(log)


@pytest.mark.parametrize("removed_at_once", [True, False])
def test_a_segment_whose_indexes_were_found_wrong_gets_none_when_it_is_complete(
    tmp_path: Path, removed_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With only later entries, the next start would use them as complete indexes."""
    folder, other = tmp_path / "t-0", tmp_path / "t-1"
    log = open_log(folder)
    append_many(log, 5)
    trio.run(close_clean, log)
    log = open_log(folder, clean=True, recovery_point=log.recovery_point)
    (path,) = folder.glob("*.index")
    path.write_bytes(b"\xff" * path.stat().st_size)
    remove = RealDisk.remove

    def failing(disk: RealDisk, path: str) -> None:
        raise OSError(errno.EIO, path)

    if not removed_at_once:
        monkeypatch.setattr(RealDisk, "remove", failing)
    read_headers(log, 5)
    assert path.exists() != removed_at_once
    monkeypatch.setattr(RealDisk, "remove", remove)
    while len(log_files(folder)) < 3:
        append_many(log, 1)
    trio.run(log.flush, UnsyncedDisk())
    indexes = [path, path.with_suffix(".timeindex")]
    assert not any(path.exists() for path in indexes)
    read = read_headers(log)
    again = open_log(folder, clean=True, recovery_point=log.recovery_point)
    assert read_headers(again) == read
    shutil.copytree(folder, other)
    open_log(other)  # every byte is scanned, and every index made
    assert [each.read_bytes() for each in indexes] == [
        (other / each.name).read_bytes() for each in indexes
    ]


@pytest.mark.parametrize("is_removed_by", ["a lookup", "a lookup by timestamp", "the close"])
def test_a_wrong_index_of_a_sealed_segment_is_removed_later_if_that_fails_at_first(
    tmp_path: Path, is_removed_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start would use the files again: it only rebuilds missing ones."""
    folder = tmp_path / "t-0"
    log = open_log(folder)
    while len(log_files(folder)) < 3:
        append_many(log, 1)
    trio.run(log.flush, UnsyncedDisk())
    name = log_files(folder)[1].stem
    indexes = [folder / f"{name}.index", folder / f"{name}.timeindex"]
    sound = [path.read_bytes() for path in indexes]
    indexes[0].write_bytes(b"\xff" * len(sound[0]))
    with monkeypatch.context() as patch:

        def failing(disk: RealDisk, path: str) -> None:
            raise OSError(errno.EIO, path)

        patch.setattr(RealDisk, "remove", failing)
        read_headers(log, int(name) + 3)
        read_headers(log, int(name) + 3)
        assert all(path.exists() for path in indexes)
    if is_removed_by == "a lookup":
        read_headers(log, int(name) + 3)
        assert not any(path.exists() for path in indexes)
    elif is_removed_by == "a lookup by timestamp":
        assert log.segments[1].locate_timestamp(1000) == 0
        assert not any(path.exists() for path in indexes)
    trio.run(close_clean, log)
    assert not any(path.exists() for path in indexes)
    again = open_log(folder, clean=True, recovery_point=log.recovery_point)
    assert [path.read_bytes() for path in indexes] == sound
    assert read_headers(again) == read_headers(log)


def test_damage_is_known_as_long_as_its_marker_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_many(open_log(tmp_path), 5)
    marker = tmp_path / DAMAGED
    marker.write_bytes(encode_damage(10, 20))
    log = open_log(tmp_path)
    assert log.was_damaged
    with monkeypatch.context() as patch:

        def failing(disk: RealDisk, path: str) -> None:
            raise OSError(errno.EACCES, path)

        patch.setattr(RealDisk, "remove", failing)
        with pytest.raises(StorageError):
            log.forget_damage()
    assert marker.exists()
    assert log.was_damaged
    log.forget_damage()
    assert not marker.exists()
    assert not log.was_damaged
