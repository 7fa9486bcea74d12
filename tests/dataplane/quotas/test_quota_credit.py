"""Batch request accounting for busy clients: counted rarely, but completely."""

from random import Random

import pytest
import trio

from metaquorum.config.resolution import WorkerLayers
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.quotas.client_quota_manager import CREDIT_S, MAX_CREDIT, ClientQuotas
from metaquorum.dataplane.quotas.muting import ClientName
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.quota_lookup import CLIENT_ID, EntityPart
from metaquorum.metadata.records import ClientQuotaRecord
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.quota_changes import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE

SIZE = 1000


class Time:
    """A `Clock` that a test sets."""

    def __init__(self) -> None:
        self.now = self.cpu = 1000.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def cpu_s(self) -> float:
        return self.cpu

    async def sleep_until(self, deadline: float) -> None:
        raise NotImplementedError


class Story:
    def __init__(self, **quotas: float) -> None:
        records = [
            ClientQuotaRecord((EntityPart(CLIENT_ID, None),), key, value)
            for key, value in quotas.items()
        ]
        image, _ = replay(MetadataImage.empty("cluster"), records)
        self.time = Time()
        configs = WorkerLayers({}).worker_configs()
        self.quotas = ClientQuotas(image, self.time, Random(7), configs)
        self.client = Client(("host", 1), "PLAINTEXT")

    def ask(self, client_id: str = "pump", *, after_s: float, takes_s: float = 0.0) -> int:
        """Handle one request, alone in its slice; return its throttle time."""
        self.time.now += after_s
        is_metered = self.quotas.meter.resume(self.client)
        self.time.cpu += takes_s
        throttle_ms = self.quotas.answering(self.client, client_id, SIZE)
        if is_metered:
            self.quotas.meter.pause(self.client)
        return throttle_ms

    def used(self, key: str = PRODUCER_BYTE_RATE, client_id: str = "pump") -> float:
        kind = self.quotas.produce if key == PRODUCER_BYTE_RATE else self.quotas.request
        assert kind is not None
        allowance = kind.seen(ClientName(self.client.principal, client_id))
        assert allowance is not None
        return allowance.used


def test_who_asks_now_and_then_is_counted_at_once() -> None:
    scenario = Story(producer_byte_rate=1e9)
    for number in range(1, 100):
        scenario.ask(after_s=1.01 * CREDIT_S)
        assert scenario.used() == number * SIZE


def test_all_that_was_produced_is_counted_in_the_end() -> None:
    scenario, most_left = Story(producer_byte_rate=1e9), 0.0
    for number in range(1, 1000):
        assert scenario.ask(after_s=0.0001) == 0
        most_left = max(most_left, number * SIZE - scenario.used())
    assert SIZE < most_left <= MAX_CREDIT * SIZE
    scenario.quotas.meter.end(scenario.client)
    assert scenario.used() == 999 * SIZE


def test_each_name_is_counted_for_what_it_did() -> None:
    scenario = Story(producer_byte_rate=1e9)
    for number in range(3000):
        scenario.ask("pump" if number % 300 < 200 else "sink", after_s=0.0001)
    scenario.quotas.meter.end(scenario.client)
    assert scenario.used(client_id="pump") == 2000 * SIZE
    assert scenario.used(client_id="sink") == 1000 * SIZE


def test_credit_is_some_milliseconds_of_the_quota() -> None:
    async def throttled_after() -> int:
        scenario, count = Story(producer_byte_rate=1_000_000.0), 0
        while not scenario.ask(after_s=0.0001):  # ten times the quota
            count += 1
        return count

    # The quota of ten seconds is free, then a request is throttled.
    assert 10_000 <= trio.run(throttled_after) <= 10_001 + 1_000_000 * CREDIT_S / SIZE


@pytest.mark.parametrize("heavy_every", [1, 10, 1000])
def test_the_time_of_who_asks_often_is_right_on_the_average(heavy_every: int) -> None:
    scenario, spent_s = Story(request_percentage=1e6), 0.0
    for number in range(100_000):
        takes_s = 0.0002 if number % heavy_every == 0 else 0.00002
        spent_s += takes_s
        scenario.ask(after_s=0.0003, takes_s=takes_s)
    assert scenario.used(REQUEST_PERCENTAGE) / 100 == pytest.approx(spent_s, rel=0.05)
    assert scenario.client.quota.unmetered <= MAX_CREDIT
