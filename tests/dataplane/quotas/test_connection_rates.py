"""Connection rate limits of addresses and of all clients together, in virtual time."""

from contextlib import suppress

import pytest
import trio

from metaquorum.config.definition import Scope
from metaquorum.dataplane.quotas import connection_rates
from metaquorum.metadata.quota_lookup import IP, EntityPart
from metaquorum.quorum.controller.config_changes import ConfigChange, ConfigOp, ResourceChange
from metaquorum.quorum.controller.quota_changes import QuotaChange, QuotaOp
from metaquorum.quorum.rpc.methods import CHANGE_CONFIGS, ChangeConfigs, RequestContext
from metaquorum.wire.protocol.apis import APIS, ApiKey
from tests.dataplane.changes import change_quotas
from tests.dataplane.serving import RawClient, Simulated, run_simulated, simulated

ASKED = APIS[ApiKey.API_VERSIONS].request()


async def set_rate(node: Simulated, value: float | None) -> None:
    change = QuotaChange((EntityPart(IP, None),), [QuotaOp("connection_creation_rate", value)])
    await change_quotas(node.worker.controller_client, change)


async def is_served(client: RawClient) -> bool:
    try:
        await client.call(ApiKey.API_VERSIONS, ASKED, 0)
    except (OSError, EOFError, trio.BrokenResourceError):
        return False
    finally:
        client.connection.close()
    return True


def test_who_connects_too_often_is_refused_late_and_served_again_later() -> None:
    quota = 2.0

    async def scenario(node: Simulated) -> None:
        await set_rate(node, quota)
        began, served, refused = node.now, 0, 0
        while node.now - began < 44:
            asked_at = node.now
            if await is_served(await node.connect()):
                served += 1
            else:
                refused += 1
                assert 0.2 < node.now - asked_at < 1.1  # capped at one sample
        assert refused
        assert node.worker.quotas.connections.throttled == refused
        spent_s = node.now - began
        assert 0.7 * quota * spent_s <= served <= quota * (spent_s + 11) + 1
        await set_rate(node, None)
        for _ in range(100):
            assert await is_served(await node.connect())

    run_simulated(scenario)


@simulated(max_connections_per_ip=100)
async def test_refused_connections_are_counted_nowhere(node: Simulated) -> None:
    """Q9."""
    await set_rate(node, 1.0)
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(is_served, await node.connect())
    rates = node.worker.quotas.connections
    assert 80 < rates.throttled <= 90
    await trio.sleep(25)
    # As many as at first: a leak would exceed max.connections.per.ip.
    for _ in range(10):
        assert await is_served(await node.connect())


@simulated(max_connection_creation_rate=5)
async def test_all_together_wait_for_their_turn(node: Simulated) -> None:
    began = node.now
    for _ in range(100):
        assert await is_served(await node.connect())
    assert node.now - began == pytest.approx(100 / 5 - 10, abs=3)


LISTENERS = {
    "listeners": "INSIDE://server:9092,OUTSIDE://server:9093,OTHER://server:9094",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,OTHER:PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
}


async def seconds_for(node: Simulated, port: int, count: int) -> float:
    began = node.now
    for _ in range(count):
        assert await is_served(RawClient(await node.runtime.network.connect("server", port)))
    return node.now - began


async def configure(node: Simulated, name: str, value: str | None) -> None:
    op = ConfigOp.DELETE if value is None else ConfigOp.SET
    change = ResourceChange(Scope.WORKER, "1", [ConfigChange(name, op, value)])
    answers = await node.worker.controller_client.change_each(
        CHANGE_CONFIGS,
        [change],
        lambda part: ChangeConfigs(RequestContext(), part),
        timeout_s=20,
    )
    assert not any(answers), answers


def test_one_listener_has_a_limit_of_its_own_which_changes_while_all_runs() -> None:
    name = "listener.name.outside.max.connection.creation.rate"

    async def scenario(node: Simulated) -> None:
        assert await seconds_for(node, 9093, 100) == pytest.approx(100 / 5 - 10, abs=3)
        assert await seconds_for(node, 9094, 100) < 3
        await configure(node, name, "20")
        assert 4 < await seconds_for(node, 9093, 300) < 16  # with the quota of the start: 60
        await configure(node, name, None)  # back to the value of the start
        assert await seconds_for(node, 9093, 20) > 1
        with pytest.raises(AssertionError, match="INVALID_REQUEST"):
            await configure(node, name, "0")

    run_simulated(scenario, dotted=LISTENERS | {name: "5"})


def test_one_listener_has_its_own_number_of_places_which_changes_while_all_runs() -> None:
    name = "listener.name.outside.max.connections"

    async def open_by(node: Simulated, port: int, count: int) -> int:
        """Open `count` connections at once; return how many of them are served."""
        served = 0
        kept: list[RawClient] = []
        for _ in range(count):
            client = RawClient(await node.runtime.network.connect("server", port))
            kept.append(client)
            with suppress(OSError, EOFError, trio.BrokenResourceError):
                await client.call(ApiKey.API_VERSIONS, ASKED, 0)
                served += 1
        for client in kept:
            client.connection.close()
        await trio.sleep(1)
        return served

    async def scenario(node: Simulated) -> None:
        assert await open_by(node, 9093, 10) == 3
        assert await open_by(node, 9094, 10) == 8
        await configure(node, name, "5")
        assert await open_by(node, 9093, 10) == 5
        await configure(node, name, None)
        assert await open_by(node, 9093, 10) == 3
        assert (
            await open_by(node, 9092, 10) == 10
        )  # inter-worker listener: not limited by max.connections

    run_simulated(scenario, dotted=LISTENERS | {name: "3", "max.connections": "8"})


@simulated(dotted=LISTENERS | {"max.connection.creation.rate": "3"})
async def test_clients_do_not_keep_workers_from_each_other(node: Simulated) -> None:
    """An inter-worker listener that clients do not use."""
    spent_s = await seconds_for(node, 9093, 50) + await seconds_for(node, 9094, 50)
    assert 3 * (spent_s + 11) + 2 >= 100
    assert await seconds_for(node, 9092, 100) < 3


def test_addresses_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a connection within the window, so that none is unused."""
    monkeypatch.setattr(connection_rates, "MAX_ADDRESSES", 20)

    async def scenario(node: Simulated) -> None:
        await set_rate(node, 5.0)
        rates = node.worker.quotas.connections
        for number in range(100):
            assert rates.refusal_s(f"10.0.0.{number}") == 0
            assert len(rates) <= 20
        assert len(rates) == 20
        await node.world.sleep(60)
        for number in range(20):
            rates.refusal_s(f"10.0.1.{number}")
        assert len(rates) == 20

    run_simulated(scenario)


def test_an_address_with_much_use_is_not_forgotten_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor while its quota is removed and set again."""
    monkeypatch.setattr(connection_rates, "MAX_ADDRESSES", 20)

    async def scenario(node: Simulated) -> None:
        await set_rate(node, 5.0)
        rates = node.worker.quotas.connections
        while rates.refusal_s("192.0.2.1") == 0:
            pass
        for number in range(100):
            rates.refusal_s(f"10.0.0.{number}")
        await set_rate(node, None)
        assert rates.refusal_s("192.0.2.1") == 0
        await set_rate(node, 5.0)
        rates.refusal_s("10.0.1.1")
        assert rates.refusal_s("192.0.2.1") > 0

    run_simulated(scenario)


@simulated()
async def test_connections_before_a_limit_count_when_it_is_set(node: Simulated) -> None:
    await seconds_for(node, 9092, 100)
    await configure(node, "max.connection.creation.rate", "5")
    assert node.worker.quotas.connections.pause_s("PLAINTEXT") > 0


@simulated()
async def test_addresses_whose_quota_was_removed_are_forgotten(node: Simulated) -> None:
    rates = node.worker.quotas.connections
    await set_rate(node, 5.0)
    for number in range(20):
        assert rates.refusal_s(f"192.0.2.{number}") == 0
    await set_rate(node, None)
    await trio.sleep(60)
    ip = EntityPart(IP, "198.51.100.1")
    change = QuotaChange((ip,), [QuotaOp("connection_creation_rate", 5.0)])
    await change_quotas(node.worker.controller_client, change)
    for _ in range(20 // connection_rates.LOOKED_AT + 1):
        rates._forget_some(node.worker.clock.monotonic())
    assert len(rates) == 0
