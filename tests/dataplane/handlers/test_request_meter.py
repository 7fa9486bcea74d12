"""`RequestMeter`: all requests are counted, of many a sample is timed."""

import random
import struct
from pathlib import Path

import pytest

from metaquorum.dataplane.handlers.request_meter import MOST_UNTIMED, RequestMeter
from metaquorum.dataplane.instruments.histogram import GROWTH
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.replies import PendingReply
from metaquorum.wire.messages.api_versions import ApiVersionsRequest
from metaquorum.wire.messages.metadata import MetadataRequest
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.prometheus.test_collector import scrape, value
from tests.dataplane.serving import RawClient, frame, in_trio, request, serving

REQUESTS = "kafka_network_requestmetrics_"

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
        assert timed <= requests / 20


async def wait(clock: Clock) -> bytes:
    """Return a response after 0.5 s."""
    clock.now += 0.5
    return b"response"


def test_the_wait_of_a_response_counts_for_the_requests_that_are_not_timed() -> None:
    clock = Clock()
    meter = RequestMeter(clock)
    client = Client(("127.0.0.1", 1), "PLAINTEXT")
    counter = meter.counter(ApiKey.FETCH, 12)
    requests = 20_000

    def handle(frame: memoryview, client: Client) -> PendingReply:
        counter.credit -= 1
        clock.now += 0.000_01
        return PendingReply(wait(clock))

    for _ in range(requests):
        if counter.credit:
            handle(_FRAME, client).close()
            continue
        reply = meter.timed(counter, handle, _FRAME, client)
        assert isinstance(reply, PendingReply)
        began = clock.now
        for _ in reply.__await__():
            pass
        clock.now = began + 0.000_01  # others wait at the same time
    local, remote = meter.local_times[ApiKey.FETCH], meter.remote_times[ApiKey.FETCH]
    assert requests - MOST_UNTIMED <= local.count == remote.count <= requests
    assert local.total_s == pytest.approx(local.count * 0.000_01)
    assert remote.total_s == pytest.approx(remote.count * 0.5)
    times = meter.times[ApiKey.FETCH]
    assert times.total_s == pytest.approx(local.total_s + remote.total_s)
    assert clock.reads < requests  # most were not timed


async def send_many(client: RawClient, data: bytes, count: int) -> None:
    for _ in range(count // 50):
        await client.send(data * 50)
        for _ in range(50):
            await client.frame()


@in_trio
async def test_requests_of_every_kind_are_counted_under_load(tmp_path: Path) -> None:
    known = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    unknown = struct.pack(">ihhihb", 11, ApiKey.API_VERSIONS, 99, 1, -1, 0)
    all_topics = MetadataRequest(topics=None)
    malformed = frame(ApiKey.METADATA, 1, 1, b"\x7f\xff\xff\xff")

    async with serving(tmp_path, metrics=True) as served:
        client = await served.connect()
        await send_many(client, request(ApiKey.API_VERSIONS, known, 3), 5000)
        await send_many(client, unknown, 2500)
        await send_many(client, request(ApiKey.METADATA, all_topics, 1), 5000)
        await send_many(client, request(ApiKey.METADATA, all_topics, 4), 2500)
        for _ in range(5):
            other = await served.connect()
            await other.send(malformed)
            assert await other.is_closed()
        samples = await scrape(served)

        def count(api: str, version: int) -> float:
            return value(samples, REQUESTS + "requests_total", request=api, version=version)

        assert (count("ApiVersions", 3), count("ApiVersions", -1)) == (5000, 2500)
        assert (count("Metadata", 1), count("Metadata", 4)) == (5005, 2500)
        timed = {}
        for api in ("ApiVersions", "Metadata"):
            timed[api] = value(samples, REQUESTS + "totaltimems_count", request=api)
            assert 7500 - 2 * MOST_UNTIMED <= timed[api] <= 7505
        for _ in range(3):  # after a page, the next request is timed, also if the load was high
            await send_many(client, request(ApiKey.API_VERSIONS, known, 3), 1000)
            before = await scrape(served)
            await client.call(ApiKey.API_VERSIONS, known, 3)
            after = await scrape(served)
            row = {"name": REQUESTS + "totaltimems_count", "request": "ApiVersions"}
            assert value(after, **row) > value(before, **row)
