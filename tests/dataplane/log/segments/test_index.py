from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.log.segments.files import OpenFiles
from metaquorum.dataplane.log.segments.index import MAX_BUFFERED_ENTRIES, OffsetIndex, TimeIndex
from metaquorum.runtime.system import RealDisk, RealFile
from tests.dataplane.log.logs import log_file


@given(
    st.lists(st.integers(1, 9), max_size=700),
    st.lists(st.integers(-5, 4000), min_size=1, max_size=30),
    st.integers(0, 700),
)
def test_floor_is_the_last_entry_at_or_below(
    tmp_path_factory,
    gaps: list[int],
    wanted: list[int],
    cut: int,  # type: ignore[no-untyped-def]
) -> None:
    folder = tmp_path_factory.mktemp("index")
    files = OpenFiles(RealDisk(), str(folder))
    index = OffsetIndex(log_file(files, folder, "i"), 1 << 20, 0)
    keys: list[int] = []
    for gap in gaps:
        keys.append((keys[-1] if keys else 0) + gap)
        index.append(keys[-1], 2 * len(keys))
    for key in wanted:
        place = bisect_right(keys, key)
        assert index.floor(key) == ((keys[place - 1], 2 * place) if place else None)
    index.truncate_to(cut)
    keys = [key for key in keys if key < cut]
    assert len(index) == len(keys)
    index.append(5000, 1)
    index.write_buffer()
    assert (folder / "i").stat().st_size == 8 * (len(keys) + 1)
    again = OffsetIndex(log_file(files, folder, "i"), 1 << 20, 8 * (len(keys) + 1))
    assert [again.entry(n)[0] for n in range(len(again))] == [*keys, 5000]
    files.close()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 700)),
            st.tuples(st.just("find"), st.integers(-5, 6000)),
            st.tuples(st.just("truncate"), st.integers(0, 2000)),
            st.tuples(st.just("write"), st.just(0)),
        ),
        max_size=40,
    )
)
def test_the_last_entry_up_to_a_value_is_found_whatever_was_looked_up_before(
    tmp_path_factory,  # type: ignore[no-untyped-def]
    steps: list[tuple[str, int]],
) -> None:
    folder = tmp_path_factory.mktemp("index")
    files = OpenFiles(RealDisk(), str(folder))
    index = OffsetIndex(log_file(files, folder, "i"), 1 << 20, 0)
    count = 0  # entries: (n, 3 n)
    for step, number in steps:
        if step == "append":
            for key in range(count, count + number):
                index.append(key, 3 * key)
            count += number
        elif step == "find":
            last = min(number // 3, count - 1)
            assert index.last_upto(number) == ((last, 3 * last) if last >= 0 else None)
        elif step == "truncate":
            count = min(count, number)
            index.truncate_to(count)
        else:
            index.write_buffer()
    files.close()


def test_ascending_values_are_found_by_one_read_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = OffsetIndex(log_file(OpenFiles(RealDisk(), str(tmp_path)), tmp_path, "i"), 1 << 20, 0)
    for key in range(50_000):
        index.append(key, 3 * key)
    index.write_buffer()
    assert index.last_upto(1000) == (333, 999)
    reads: list[int] = []
    read = RealFile.read
    monkeypatch.setattr(
        RealFile, "read", lambda file, size, at: reads.append(size) or read(file, size, at)
    )
    for value in range(1200, 140_000, 1000):
        assert index.last_upto(value) == (value // 3, value // 3 * 3)
        assert len(reads) == 1
        reads.clear()


def test_entries_held_in_memory_are_bounded(tmp_path: Path) -> None:
    index = OffsetIndex(log_file(OpenFiles(RealDisk(), str(tmp_path)), tmp_path, "i"), 1 << 20, 0)
    for number in range(1000):
        index.append(number, number)
        assert len(index._buffer) <= 8 * MAX_BUFFERED_ENTRIES


def test_a_time_index_takes_only_later_times(tmp_path: Path) -> None:
    index = TimeIndex(log_file(OpenFiles(RealDisk(), str(tmp_path)), tmp_path, "i"), 1 << 20, 0)
    for timestamp, offset in ((5, 1), (5, 2), (4, 3), (9, 4), (-1, 5)):
        index.append_later(timestamp, offset)
    assert [index.entry(n) for n in range(len(index))] == [(5, 1), (9, 4)]
    index.truncate_to(4)
    assert index.last() == (5, 1)
