"""The log line about throttled clients, and observed quotas, which delay no client."""

import logging

import pytest
import trio

from metaquorum.dataplane.quotas.muting import ClientName
from metaquorum.dataplane.quotas.quota_log import MOST_NAMED, QuotaLog
from metaquorum.dataplane.quotas.quota_status import QuotaStatus
from metaquorum.wire.messages.fetch import FetchRequest
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.quotas.test_quota_enforcement import STRANGER, send, set_quota, topic
from tests.dataplane.serving import Simulated, batch_of, run_simulated, simulated


@simulated()
async def test_an_observed_quota_counts_what_it_would_have_delayed_and_delays_nobody(
    node: Simulated,
) -> None:
    client = await topic(node)
    await set_quota(node, "observed_producer_byte_rate", 1_000)
    began = node.now
    for _ in range(3):
        assert await send(client, batch_of(bytes(15_000))) == 0
    assert node.now - began < 0.5
    assert not node.worker.quotas.mutes
    (use,) = QuotaStatus(node.worker.quotas).uses()
    assert (use.key, use.quota) == ("observed_producer_byte_rate", 1_000)
    assert use.used > 45_000
    assert use.throttle_count == 3
    assert 30 < use.throttle_longest_s < 40
    await set_quota(node, "observed_producer_byte_rate", None)
    assert not list(QuotaStatus(node.worker.quotas).uses())
    assert await send(client, batch_of(bytes(15_000))) == 0
    assert not list(QuotaStatus(node.worker.quotas).uses())


@simulated()
async def test_an_observed_quota_stands_beside_one_that_limits(node: Simulated) -> None:
    client = await topic(node)
    await set_quota(node, "producer_byte_rate", 10_000)
    await set_quota(node, "observed_producer_byte_rate", 1_000)
    assert await send(client, batch_of(bytes(20_000))) == 0
    uses = {use.key: use for use in QuotaStatus(node.worker.quotas).uses()}
    assert uses["producer_byte_rate"].throttle_count == 0
    assert uses["observed_producer_byte_rate"].throttle_count == 1


@simulated()
async def test_consumers_and_the_loops_time_can_be_observed(node: Simulated) -> None:
    client = await topic(node)
    await send(client, batch_of(bytes(50_000)))
    await set_quota(node, "observed_consumer_byte_rate", 1_000)
    await set_quota(node, "observed_request_percentage", 1e-6)
    for _ in range(2):
        row = await client.fetch("t")
        assert len(row.records) > 50_000
    uses = {use.key: use for use in QuotaStatus(node.worker.quotas).uses()}
    assert uses["observed_consumer_byte_rate"].throttle_count == 2
    assert uses["observed_request_percentage"].throttle_count > 0
    answer = await client.call(ApiKey.FETCH, FetchRequest(topics=[], max_wait_ms=0), 12)
    assert answer.throttle_time_ms == 0


def test_a_worker_says_once_a_minute_who_is_held_to_which_quota(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "metaquorum.dataplane.maintenance.background_tasks")

    def told() -> list[str]:
        return [r.message for r in caplog.records if r.message.startswith("quotas: ")]

    async def scenario(node: Simulated) -> None:
        client = await topic(node)
        await set_quota(node, "producer_byte_rate", 1_000)
        await trio.sleep(61)
        assert told() == []
        assert await send(client, batch_of(bytes(30_000))) > 0
        await trio.sleep(60)
        (line,) = told()
        assert "1 responses delayed by 2" in line
        assert "as producer_byte_rate is 1000 (rule " in line
        assert line.endswith("connections are muted now")
        await trio.sleep(120)
        assert told() == [line]

    run_simulated(scenario)


@simulated()
async def test_a_report_names_those_who_waited_longest_on_one_line(node: Simulated) -> None:
    quotas = node.worker.quotas
    await set_quota(node, "producer_byte_rate", 1_000)
    reports = QuotaLog(quotas)
    assert reports.line() is None
    for number in range(MOST_NAMED + 5):
        name = ClientName("User:ANONYMOUS", f"client {number}\n")
        quotas.produce.use(name, 1, quotas.produce.now(), STRANGER)
        quotas.produce.throttled(name, number + 1.0)
    line = reports.line()
    assert line is not None
    assert line.isprintable()
    assert r"quotas: client-id 'client 14\n': 1 responses delayed by 15.0 s" in line
    assert "client 4" not in line
    assert "; and 5 more; 0 connections are muted now" in line
    assert reports.line() is None
