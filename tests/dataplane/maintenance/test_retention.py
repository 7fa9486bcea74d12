"""The log start offset by retention, against a model that removes one segment at a time."""

from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.log.local_log import SegmentSpan
from metaquorum.dataplane.log.retention import UNLIMITED, retention_start

NOW = 1_000_000


def spans(*rows: tuple[int, int, int]) -> list[SegmentSpan]:
    """Return spans from (records, bytes, newest time) of each segment, oldest first."""
    made, offset = [], 0
    for records, size, newest in rows:
        made.append(SegmentSpan(offset, offset + records, size, newest))
        offset += records
    return made


def start(
    segments: list[SegmentSpan], ms: int = -1, size: int = -1, high: int = 10**9, low: int = 0
) -> int:
    return retention_start(segments, low, high, NOW, ms, size)


def test_segments_whose_newest_record_is_too_old_go_from_the_start_on() -> None:
    log = spans((10, 100, 0), (10, 100, NOW - 500), (10, 100, 0), (10, 100, NOW))
    assert start(log, ms=1000) == 10  # the third has expired, but not the second
    assert start(log, ms=500) == 10  # exactly as old as allowed
    assert start(log, ms=499) == 30
    assert start(log, ms=0) == 30
    assert start(log) == 0


def test_at_least_retention_bytes_stay() -> None:
    log = spans(*[(10, 100, NOW)] * 4)
    assert start(log, size=400) == 0
    assert start(log, size=399) == 0
    assert start(log, size=300) == 10
    assert start(log, size=101) == 20
    assert start(log, size=0) == 40


def test_nothing_beyond_the_high_watermark_goes() -> None:
    log = spans(*[(10, 100, 0)] * 4)
    assert start(log, ms=1, high=29) == 20
    assert start(log, ms=1, high=0) == 0


def test_the_start_never_moves_back() -> None:
    log = spans(*[(10, 100, 0), (10, 100, NOW)])
    assert start(log, ms=1, low=15) == 15
    assert start(log, low=5) == 5
    assert start([SegmentSpan(7, 7, 0, 0)], ms=0, size=0, low=7) == 7


_rows = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 50), st.integers(NOW - 100, NOW + 10)), max_size=8
)


@given(_rows, st.integers(-1, 120), st.integers(-1, 200), st.integers(0, 40))
def test_it_is_what_removing_one_after_the_other_gives(
    rows: list[tuple[int, int, int]], ms: int, size: int, high: int
) -> None:
    log = spans(*rows)
    left = list(log)
    expected = 0
    while left:
        first = left[0]
        old = ms != UNLIMITED and NOW - first.newest_ms > ms
        rest_bytes = sum(span.size_bytes for span in left[1:])
        much = size != UNLIMITED and rest_bytes >= size
        if first.end_offset > high or not (old or much):
            break
        expected = left.pop(0).end_offset
    assert start(log, ms, size, high) == expected
