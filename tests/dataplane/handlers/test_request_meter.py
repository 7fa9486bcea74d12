"""`RequestMeter`: all requests are counted, of many a sample is timed."""

import random

import pytest

from dataplane.handlers.request_meter import MOST_UNTIMED, RequestMeter
from dataplane.instruments.histogram import GROWTH
from dataplane.network.client import Client
from wire.protocol.apis import ApiKey

_FRAME = memoryview(b"")  # not read


class Clock:
    """A clock that a request moves on by `taken_s`; `reads` counts how often it was asked."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.reads = 0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        self.reads += 1
        return self.now

    def cpu_s(self) -> float:
        return self.now

    async def sleep_until(self, deadline: float) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("per_second", [1, 50, 500, 5_000, 50_000])
def test_counts_are_exact_and_times_right_on_average(per_second: int) -> None:
    clock, dice = Clock(), random.Random(per_second)
    meter = RequestMeter(clock)
    client = Client(("127.0.0.1", 1), "PLAINTEXT")
    all_s = 0.0
    requests = 20_000

    def handle(frame: memoryview, client: Client) -> bytes:
        nonlocal all_s
        counter.credit -= 1
        taken_s = dice.choice((0.1, 0.3)) / per_second
        clock.now += taken_s
        all_s += taken_s
        return b"response"

    counter = meter.counter(ApiKey.PRODUCE, 7)
    for _ in range(requests):
        if counter.credit:
            handle(_FRAME, client)
        else:
            meter.timed(counter, handle, _FRAME, client)
        clock.now += 0.8 / per_second
    assert list(meter.counts()) == [(ApiKey.PRODUCE, 7, requests)]
    times = meter.times[ApiKey.PRODUCE]
    assert requests - MOST_UNTIMED <= times.count <= requests
    assert times.total_s == pytest.approx(all_s, rel=0.03)
    (median,) = times.quantiles((0.25,), clock.now)
    assert 0.1 / per_second <= median <= 0.1 / per_second * GROWTH
    timed = clock.reads / 2
    if per_second <= 50:
        assert timed == requests  # no sampling
    else:
        seconds = requests / per_second
        assert timed >= min(requests / (MOST_UNTIMED + 1), 125 * seconds)
    if per_second >= 50_000:
        assert timed <= requests / 10
