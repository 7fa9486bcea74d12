"""Aborted transactions of one read of the log: complete for its records, and limited in number."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.wire.records.records import batches
from tests.dataplane.log.logs import open_log
from tests.dataplane.log.test_transactions import end, send
from tests.examples import examples

ROLLING = LogConfig(segment_bytes=2000, index_interval_bytes=200)
UNLIMITED = 1 << 40


def aborted_records(
    log: PartitionLog, offset: int, max_bytes: int, most: int
) -> tuple[set[int], int, int]:
    """Return the offsets of aborted batches read, by the list; the number of entries; the end."""
    end_offset = log.log_end_offset
    piece = log.read(offset, max_bytes, end_offset, min_one=True)
    found, limit = log.aborted_in(piece, end_offset, most)
    if limit < end_offset:
        piece = log.read(offset, max_bytes, limit, min_one=True)
    assert piece.size_bytes
    coming = sorted(found)
    open_: set[int] = set()
    aborted: set[int] = set()
    last = offset
    for _, header in batches(piece.read()):
        last = header.next_offset
        while coming and coming[0][0] <= header.last_offset:
            open_.add(coming.pop(0)[1])
        if header.is_control:
            open_.discard(header.producer_id)
        elif header.producer_id in open_:
            aborted.add(header.base_offset)
    return aborted, len(found), last


@examples(40)
@given(data=st.data())
def test_each_read_has_the_transactions_of_its_records(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    log = open_log(tmp_path_factory.mktemp("log"), ROLLING)
    try:
        opened: dict[int, list[int]] = {}
        sequences: dict[int, int] = {}
        expected: set[int] = set()
        for _ in range(data.draw(st.integers(1, 60))):
            producer = data.draw(st.integers(1, 5))
            if producer in opened and data.draw(st.booleans()):
                commit = data.draw(st.booleans())
                end(log, producer, commit)
                offsets = opened.pop(producer)
                expected |= set() if commit else set(offsets)
            else:
                sequence = sequences.get(producer, 0)
                opened.setdefault(producer, []).append(send(log, producer, sequence))
                sequences[producer] = sequence + 1
        for producer, offsets in opened.items():  # so that a marker ends each transaction
            end(log, producer)
            expected |= set(offsets)
        most = data.draw(st.sampled_from((1, 2, 5, UNLIMITED)))
        max_bytes = data.draw(st.sampled_from((1, 300, 1000, 1 << 20)))
        offset = 0
        while offset < log.log_end_offset:
            aborted, _, after = aborted_records(log, offset, max_bytes, most)
            assert aborted == {each for each in expected if offset <= each < after}
            assert after > offset
            offset = after
    finally:
        log.close()


def test_many_aborted_transactions_shorten_the_read(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig())
    for number in range(500):
        send(log, 1, number)
        end(log, 1)
    _, count, after = aborted_records(log, 0, 1 << 20, 100)
    assert (count, after) == (100, 200)
    _, count, after = aborted_records(log, 0, 1 << 20, UNLIMITED)
    assert (count, after) == (500, 1000)
    # A read that max_bytes has truncated has the transactions up to the next index entry.
    _, count, after = aborted_records(log, 0, 1000, UNLIMITED)
    assert after // 2 <= count < 100


def test_blocks_of_short_transactions_within_a_long_one_are_skipped(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig())
    expected = {send(log, 9, 0)}
    for number in range(1500):
        expected.add(send(log, 1, number))
        end(log, 1)
    end(log, 9)
    for _ in range(2):  # the second time, the blocks are known
        offset = 0
        while offset < log.log_end_offset:
            aborted, count, after = aborted_records(log, offset, 100_000, 300)
            assert aborted == {each for each in expected if offset <= each < after}
            assert 0 < count <= 300
            offset = after
    log.truncate_to(2000)
    send(log, 2, 0)
    for producer in (1, 2, 9):
        end(log, producer)
    aborted, _, _ = aborted_records(log, 1990, 100_000, 300)
    assert aborted == {each for each in expected if 1990 <= each < 2000} | {2000}


def test_a_read_within_a_transaction_has_its_row(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig())
    for number in range(3):
        send(log, 1, number)
    end(log, 1)
    assert aborted_records(log, 2, 1, UNLIMITED) == ({2}, 1, 3)
