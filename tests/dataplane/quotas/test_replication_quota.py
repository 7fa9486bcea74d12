"""The quota of throttled replication, in virtual time: rates, excess and bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.quotas.replication_quota import ReplicationQuota

MB = 1_000_000


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
    """100 B/s: 300 bytes are the use of 3 s, of which the first second is allowed at once."""
    quota = quota_of(100)
    quota.record(100, 0.0)
    assert not quota.is_exceeded(0.0)
    quota.record(200, 0.0)
    assert quota.delay_s(0.0) == pytest.approx(2.0)
    assert quota.is_exceeded(1.99)
    assert not quota.is_exceeded(2.01)


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
