"""The quota of throttled replication, in virtual time: rates, excess and bounds."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.quotas.replication_quota import BURST_S, ReplicationQuota

MB = 1_000_000
LATEST_S = 0.11  # between two responses


def quota_of(rate: int, samples: int = 11, sample_s: float = 1.0) -> ReplicationQuota:
    quota = ReplicationQuota(samples, sample_s)
    quota.limit(rate, 0.0)
    return quota


def test_without_a_rate_nothing_is_exceeded_and_bytes_are_counted() -> None:
    quota = ReplicationQuota()
    quota.record(1 << 40, 0.0)
    assert not quota.is_exceeded(0.0)
    assert quota.delay_s(0.0) == 0.0
    assert quota.rate(0.5) == 1 << 40
    assert quota.bytes == 1 << 40


def test_a_quota_is_exceeded_until_the_excess_is_worked_off() -> None:
    """100 B/s: 300 bytes are the use of 3 s, of which BURST_S is allowed at once."""
    quota = quota_of(100)
    quota.record(2, 0.0)
    assert not quota.is_exceeded(0.0)
    quota.record(298, 0.0)
    assert quota.delay_s(0.0) == pytest.approx(3.0 - BURST_S)
    assert quota.is_exceeded(2.97)
    assert not quota.is_exceeded(2.99)


def transferred(quota: ReplicationQuota, begin: float, seconds: float, late: Random) -> list[float]:
    """Return the bytes after each second, with responses every 50 ms and later, of any size."""
    now, end, sent, after = begin, begin + seconds, 0.0, []
    while now < end:
        if not quota.is_exceeded(now):
            size_bytes = quota.room_bytes(now)
            quota.record(size_bytes, now)
            sent += size_bytes
        step_s = late.choice([0.001, 0.05, 0.06, LATEST_S])
        if int(now - begin) < int(now + step_s - begin):
            after.append(sent)
        now += step_s
    return after


@pytest.mark.parametrize("seed", range(5))
def test_the_rate_is_upheld_from_the_first_second_on(seed: int) -> None:
    """Within 5 % (KIP-73: "strictly upheld"), also after a pause and after a change."""
    late, quota, rate = Random(seed), quota_of(5 * MB), 5 * MB
    for begin in (0.0, 100.0):  # the second time after a pause
        for second, sent in enumerate(transferred(quota, begin, 12, late), 1):
            assert rate * (second - LATEST_S) <= sent <= rate * second * 1.05
    for rate in (2 * MB, 20 * MB):
        quota.limit(rate, 112.2)
        begin = 112.2 + quota.delay_s(112.2)
        for second, sent in enumerate(transferred(quota, begin, 5, late), 1):
            assert rate * (second - LATEST_S) <= sent <= rate * second * 1.05
        quota.limit(5 * MB, 112.2)


def test_in_sync_traffic_uses_its_part_from_the_first_second_on() -> None:
    """2 of 5 MB/s are in-sync bytes: others get 3 MB/s."""
    quota, sent, now = quota_of(5 * MB), 0, 0.0
    for tick in range(1000):
        now = tick / 100
        quota.record(20_000, now, in_sync_bytes=20_000)
        if not quota.is_exceeded(now):
            size_bytes = quota.room_bytes(now)
            quota.record(size_bytes, now)
            sent += size_bytes
        if tick % 100 == 99:
            assert sent == pytest.approx(3 * MB * (tick + 1) / 100, rel=0.05)


def test_a_response_of_any_size_is_admitted_and_its_excess_worked_off() -> None:
    """10 MB per response and 100 kB/s: KIP-73 asks for less than rate x window, 1.1 MB."""
    quota, now, sent = quota_of(100_000), 0.0, 0
    while now < 50_000.0:
        now += quota.delay_s(now) + 1e-6
        if not quota.is_exceeded(now):
            quota.record(10 * MB, now)
            sent += 10 * MB
    assert sent / now == pytest.approx(100_000, rel=0.01)


def test_the_rate_is_measured_over_at_least_one_sample_and_at_most_the_window() -> None:
    quota = quota_of(1000)
    quota.record(500, 0.0)
    assert quota.rate(0.5) == 500
    assert quota.rate(5.0) == 100
    assert quota.rate(11.0) == 0


def test_in_sync_bytes_count_but_their_excess_ends_within_the_window() -> None:
    quota = quota_of(1000)
    for second in range(60):
        quota.record(5000, float(second), in_sync_bytes=5000)
    assert quota.rate(59.9) == pytest.approx(5000, rel=0.1)
    assert quota.is_exceeded(60.0)
    assert quota.delay_s(60.0) <= 10.0
    assert not quota.is_exceeded(70.0)


def test_a_lower_quota_is_in_force_within_one_window() -> None:
    quota = quota_of(100 * MB)
    quota.record(500 * MB, 0.0)
    quota.limit(MB, 0.0)
    assert quota.delay_s(0.0) <= 11.0


def test_a_quota_of_zero_admits_one_response_per_window() -> None:
    quota = quota_of(0)
    assert not quota.is_exceeded(0.0)
    quota.record(10, 0.0)
    assert quota.is_exceeded(10.9)
    assert not quota.is_exceeded(11.0)


@given(
    st.integers(1, 10_000),
    st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 100_000)), max_size=60),
)
def test_admitted_bytes_are_bounded_in_any_time(rate: int, asked: list[tuple[float, int]]) -> None:
    quota, now = quota_of(rate), 0.0
    admitted: list[tuple[float, int]] = []
    for pause_s, size_bytes in asked:
        now += pause_s
        if not quota.is_exceeded(now):
            quota.record(size_bytes, now)
            admitted.append((now, size_bytes))
    for first, (start, _) in enumerate(admitted):
        total = 0
        for at, size_bytes in admitted[first:]:
            assert total <= rate * (at - start + 1.0) + 1e-3
            total += size_bytes
