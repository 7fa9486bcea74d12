"""Send rate of a throttled producer in virtual time, which is comb-shaped: counts and a plot.

    python -m metaquorum.simulations.single_node.snapback docs/images/snapback.svg

A producer that always has another record sends one at a time and waits for the throttle time. The
throttle time comes from the code that workers run (`metaquorum.dataplane.quotas.rate_window`); a
test compares the result with a whole node. The plot needs matplotlib: pip install
'metaquorum[plot]'.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from metaquorum.dataplane.quotas.rate_window import RateWindow


@dataclass(frozen=True, slots=True)
class Sent:
    at_s: float
    delay_s: float  # throttle time of the response
    used_bytes: float  # within the window
    allowed_bytes: float  # quota x T


def producer(
    record_bytes: int, quota: float, seconds: float, *, samples: int = 11, trip_s: float = 0.005
) -> Iterator[Sent]:
    """Yield the requests that a producer sends in `seconds`.

    `quota`: bytes per second. `trip_s`: seconds between request and response, without throttling.
    """
    window = RateWindow(samples)
    at_s = 0.0
    while at_s < seconds:
        delay_s = window.use(record_bytes, quota, at_s)
        yield Sent(at_s, delay_s, window.total(at_s), quota * window.window_s(at_s))
        at_s += trip_s + delay_s


def per_second(sent: list[Sent], seconds: int) -> list[int]:
    """Return the number of requests sent in each of the first `seconds` seconds."""
    counts = Counter(int(one.at_s) for one in sent)
    return [counts[second] for second in range(seconds)]


def draw(path: str, seconds: int = 44) -> None:
    from matplotlib import pyplot

    sent = list(producer(10_000, 100_000, seconds))
    counts = per_second(sent, seconds)
    figure, (rates, sums) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 6))
    rates.bar([second + 0.5 for second in range(seconds)], counts, width=0.9, color="#4477aa")
    rates.axhline(10, color="#cc3311", label="quota: 10 records/s")
    averages = [sum(counts[: second + 1]) / (second + 1) for second in range(seconds)]
    rates.plot(range(1, seconds + 1), averages, color="#222222", label="average since the start")
    rates.set_ylabel("records in each second")
    rates.legend()
    times = [one.at_s for one in sent]
    sums.plot(times, [one.used_bytes / 1000 for one in sent], ".-", label="U T: used in the window")
    sums.plot(times, [one.allowed_bytes / 1000 for one in sent], label="Q T: allowed in the window")
    sums.set_ylabel("kB")
    sums.set_xlabel("seconds")
    sums.legend()
    figure.suptitle("A producer of 10 kB records with a quota of 100 kB/s")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


if __name__ == "__main__":
    draw(sys.argv[1])
