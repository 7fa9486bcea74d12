"""CPU time of worker threads is charged to the client with its next request."""

from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.quotas.cpu_meter import CpuMeter


class Stopwatch:
    def __init__(self) -> None:
        self.now_s = 0.0

    def cpu_s(self) -> float:
        return self.now_s


def test_the_time_of_a_worker_thread_is_charged_once_to_who_caused_it() -> None:
    stopwatch = Stopwatch()
    meter = CpuMeter(stopwatch.cpu_s, lambda client: None)
    meter.is_on = True
    client, other = (Client(("10.0.0.1", port), "PLAINTEXT") for port in (1, 2))
    meter.resume(client)
    stopwatch.now_s += 0.25
    meter.pause(client)
    meter.add(client, 0.5)
    meter.resume(other)
    assert meter.charge(other) == 0
    meter.resume(client)
    stopwatch.now_s += 0.125
    assert meter.charge(client) == 100 * 0.875
    assert meter.charge(client) == 0


def test_nobody_is_charged_for_a_thread_where_nobody_cares() -> None:
    meter = CpuMeter(Stopwatch().cpu_s, lambda client: None)
    client = Client(("10.0.0.1", 1), "PLAINTEXT")
    meter.add(client, 0.5)
    meter.is_on = True
    meter.resume(client)
    assert meter.charge(client) == 0
