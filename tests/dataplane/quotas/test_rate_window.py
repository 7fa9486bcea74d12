"""The arithmetic of quotas: examples of the documents, and the pattern of throttled traffic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.quotas.rate_window import RateWindow
from metaquorum.quorum.controller.mutation_quotas import TokenBucket


@pytest.mark.parametrize(
    ("used", "delay_s", "duty"), [(14_000, 0.0, 1.0), (36_000, 8.0, 0.556), (100_000, 40.0, 0.2)]
)
def test_the_worked_examples_of_the_chapter(used: int, delay_s: float, duty: float) -> None:
    """20 kB/s, T = 10 s: 14 kB/s is not delayed, 36 kB/s by 8 s, 100 kB/s by 40 s.

    The duty cycle is T / (D + T): "just under 56%", and 20%.
    """
    window = RateWindow()
    window.record(10 * used, 0.0)
    window_s, found_s = window.window_s(0.0), window.delay_s(20_000, 0.0)
    assert window_s == 10.0
    assert found_s == pytest.approx(delay_s)
    assert window_s / (found_s + window_s) == pytest.approx(duty, abs=0.001)


def test_the_worked_example_of_kip_13() -> None:
    """5 MB/s for 9 s, then 15 MB in the tenth: "Delay Time = (60 - 50)/5 = 2 second delay"."""
    window = RateWindow()
    for second in range(9):
        assert window.use(5e6, 5e6, float(second)) == 0.0
    assert window.use(15e6, 5e6, 9.0) == pytest.approx(2.0)


@pytest.mark.parametrize("sample_s", [1.0, 3.0])
def test_the_snapback_of_the_chapter_delays_by_one_sample(sample_s: float) -> None:
    """100 kB/s and 1,100 kB: "the new delay is 10 x (1100 - 1000) / 1000", one second.

    With samples of 3 s the window varies "between 30 seconds and 33 seconds", and the delay is 3 s.
    """
    window = RateWindow(11, sample_s)
    window.record(11 * sample_s * 100_000, 0.0)
    before = sample_s - 1e-6
    assert window.window_s(before) == pytest.approx(11 * sample_s)
    assert window.delay_s(100_000, before) == pytest.approx(0.0, abs=1e-4)
    assert window.window_s(sample_s) == pytest.approx(10 * sample_s)
    assert window.delay_s(100_000, sample_s) == pytest.approx(sample_s)


def test_what_is_not_used_is_not_saved_up_beyond_the_window() -> None:
    window = RateWindow()
    window.record(1_000, 0.0)
    assert window.rate(100.0) == 0.0
    assert window.is_unused(1.0, 100.0)


def test_the_window_snaps_back_when_its_oldest_sample_goes() -> None:
    window = RateWindow()
    for second in range(11):
        window.record(1, float(second))
    assert window.window_s(10.99) == pytest.approx(10.99)
    window.record(1, 11.0)
    assert window.window_s(11.0) == 10.0


def produce(seconds: int, quota: float = 100_000.0, record: float = 10_000.0) -> list[float]:
    """Return the bytes per second of a client that sends single records as fast as allowed."""
    window, now, sent = RateWindow(), 0.0, [0.0] * seconds
    while now < seconds:
        sent[int(now)] += record
        window.record(record, now)
        now += max(window.delay_s(quota, now), 0.001)
    return sent


def test_snapback_gives_a_burst_and_then_a_comb() -> None:
    """10 kB records at 100 kB/s: a burst of the whole window, a trickle, and the next burst."""
    sent = produce(66)
    first = sent[0] + sent[1]
    assert first >= 1_000_000, "the quota of ten seconds is sent at once"
    assert all(second <= 20_000 for second in sent[2:10]), "then about one record a second"
    again = [number for number in range(2, 30) if sent[number] > 300_000]
    assert again, "until the burst has left the window"
    assert 10 <= again[0] <= 12
    assert sum(sent) / 66 == pytest.approx(100_000, rel=0.12)


@pytest.mark.parametrize("record", [250.0, 10_000.0, 1_000_000.0])
def test_the_long_run_average_is_the_quota(record: float) -> None:
    sent = produce(600, record=record)
    assert sum(sent) / 600 == pytest.approx(100_000, rel=0.03)


def naive(uses: list[tuple[float, float]], now: float) -> tuple[float, float]:
    """Return use and window, computed from the text of
    `metaquorum.dataplane.quotas.rate_window`."""
    samples: list[list[float]] = []  # start, amount
    for at, amount in uses:
        samples = [sample for sample in samples if at - sample[0] < 11]
        if not samples or at - samples[-1][0] >= 1:
            samples.append([at, 0.0])
        samples[-1][1] += amount
    samples = [sample for sample in samples[-11:] if now - sample[0] < 11]
    if not samples:
        return 0.0, 10.0
    elapsed = now - samples[0][0]
    # Fewer than ten whole seconds count as ten, plus the elapsed part of the current second.
    return sum(amount for _, amount in samples), max(elapsed, 10 + elapsed % 1)


@given(
    st.lists(st.tuples(st.integers(0, 64), st.integers(0, 10**6)), min_size=1, max_size=60),
    st.integers(0, 160),
    st.integers(1, 10**6),
)
def test_the_delay_is_what_the_documents_say(
    pauses: list[tuple[int, int]], last_pause: int, quota: int
) -> None:
    window, now = RateWindow(), 0.0
    uses: list[tuple[float, float]] = []
    for pause, amount in pauses:
        now += pause / 16  # exact in floating point
        window.record(amount, now)
        uses.append((now, float(amount)))
    now += last_pause / 16
    used, window_s = naive(uses, now)
    assert window.window_s(now) == pytest.approx(window_s)
    assert window.rate(now) == pytest.approx(used / window_s)
    expected = window_s * (used / window_s - quota) / quota
    assert window.delay_s(quota, now) == pytest.approx(max(0.0, expected), abs=1e-9)


@given(
    st.lists(st.tuples(st.integers(0, 64), st.integers(0, 10**6)), min_size=1, max_size=60),
    st.lists(st.integers(0, 160), max_size=4),
    st.integers(1, 10**6),
)
def test_what_is_within_its_quota_need_not_be_looked_at(
    uses: list[tuple[int, int]], pauses: list[int], quota: int
) -> None:
    short, long, now = RateWindow(), RateWindow(), 0.0
    for pause, amount in uses:
        now += pause / 16
        assert short.delay_s(quota, now) == pytest.approx(long.delay_s(quota, now))
        long.record(amount, now)
        # As `use` does it at length.
        long._leak(quota, now)
        long._level += amount
        assert short.use(amount, quota, now) == pytest.approx(long.delay_s(quota, now))
    for pause in pauses:
        now += pause / 16
        for asked in (quota, quota / 2, quota * 2):
            short_s = short.delay_s(asked, now)
            assert short_s == pytest.approx(max(0.0, short.delay_after_s(0.0, asked, now)))


def test_a_bucket_lets_one_go_beyond_zero_and_the_next_wait() -> None:
    bucket = TokenBucket(quota=2.0, now=0.0, samples=11, sample_s=1.0)
    assert bucket.tokens(2.0, 0.0) == 22.0
    bucket.take(30, 2.0, 0.0)
    assert bucket.delay_s(2.0, 0.0) == 4.0
    assert bucket.delay_s(2.0, 3.0) == 1.0
    assert bucket.delay_s(2.0, 4.0) == 0.0
    assert bucket.tokens(2.0, 1000.0) == 22.0
