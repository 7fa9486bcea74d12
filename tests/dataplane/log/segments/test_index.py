from bisect import bisect_right
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dataplane.log.segments.files import OpenFiles
from dataplane.log.segments.index import MAX_BUFFERED_ENTRIES, OffsetIndex, TimeIndex
from metaquorum.runtime.system import RealDisk
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
