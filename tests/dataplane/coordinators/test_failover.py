"""Three nodes in a simulated world: writes of a coordinator that moves to another worker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from dataplane.coordinators.delayed_write import DelayedWrite, wait_answer
from dataplane.coordinators.runtime import CoordinatorRuntime
from tests.dataplane.coordinators.counters import (
    TOPIC,
    Counters,
    CounterShard,
    add,
    error_of,
    result_of,
    value_of,
)
from tests.dataplane.replication.test_deposed_leaders import cut_off
from tests.dataplane.replication.together import NODES, Together, together
from wire.primitives.errors import ErrorCode, KafkaError

E = ErrorCode
LONG_MS = 600_000


class Coordinators:
    """The runtimes of all nodes."""

    def __init__(self, cluster: Together, nursery: trio.Nursery) -> None:
        self.cluster = cluster
        self.at: dict[int, Counters] = {}
        self._scopes: dict[int, trio.CancelScope] = {}
        for node in NODES:
            counters = CoordinatorRuntime(cluster.worker(node), TOPIC, CounterShard)
            self.at[node] = counters
            self._scopes[node] = scope = trio.CancelScope()
            nursery.start_soon(self._run, counters, scope)

    @staticmethod
    async def _run(counters: Counters, scope: trio.CancelScope) -> None:
        with scope:
            await counters.run()

    async def kill(self, node: int) -> None:
        del self.at[node]
        self._scopes[node].cancel()
        await self.cluster.kill(node)

    def leader(self) -> int | None:
        """Return the node with an active shard; of two, the one with the newer leader epoch."""
        active = [
            (self.cluster.replica(node, TOPIC).leader_epoch, node)
            for node, counters in self.at.items()
            if counters.shards()
        ]
        return max(active)[1] if active else None

    async def until_led(self, *, not_by: int | None = None) -> int:
        await self.cluster.until(lambda: self.leader() not in (None, not_by), 60)
        leader = self.leader()
        assert leader is not None
        return leader

    def shard(self, node: int) -> CounterShard:
        return self.at[node].shards()[0]


@asynccontextmanager
async def coordinators(cluster: Together, **configs: Any) -> AsyncIterator[Coordinators]:
    await cluster.create(TOPIC, **configs)
    async with trio.open_nursery() as nursery:
        found = Coordinators(cluster, nursery)
        await found.until_led()
        yield found
        nursery.cancel_scope.cancel()


async def written(counters: Counters, key: bytes) -> int:
    result = counters.call(0, add(key), LONG_MS)
    return await wait_answer(result)


@pytest.mark.parametrize("seed", range(5))
def test_a_load_after_a_failover_sees_the_answered_writes_and_each_once(seed: int) -> None:
    async def scenario(cluster: Together) -> None:
        async with coordinators(cluster) as found:
            first = await found.until_led()
            answered: list[bytes] = []
            asked: list[bytes] = []

            async def write(number: int) -> None:
                await cluster.world.sleep(0.002 * number)
                key = b"%d" % number
                asked.append(key)
                with_counters = found.at.get(first)
                if with_counters is None:
                    return
                try:
                    await written(with_counters, key)
                except KafkaError:
                    return
                answered.append(key)

            async with trio.open_nursery() as writers:
                for number in range(100):
                    writers.start_soon(write, number)
                await cluster.world.sleep(0.1)
                await found.kill(first)
                writers.cancel_scope.cancel()
            assert len(answered) > 5
            second = await found.until_led(not_by=first)
            replayed = [key for key, _ in found.shard(second).replayed or []]
            assert len(replayed) == len(set(replayed))
            assert set(answered) <= set(replayed) <= set(asked)
            assert replayed[: len(answered)] == answered
            assert await written(found.at[second], b"after") == 1

    together(scenario, seed=seed, broker_session_timeout_ms=2000)


def test_no_write_is_answered_while_the_followers_are_down() -> None:
    async def scenario(cluster: Together) -> None:
        async with coordinators(cluster) as found:
            leader = await found.until_led()
            counters = found.at[leader]
            await written(counters, b"before")
            others = [node for node in NODES if node != leader]
            for node in others:
                await found.kill(node)
            write: Any = counters.call(0, add(b"a"), LONG_MS)
            late: Any = counters.call(0, add(b"b"), 1000)
            await cluster.world.sleep(60)
            assert not write.is_ready
            assert result_of(late) == E.COORDINATOR_NOT_AVAILABLE
            assert counters.call(0, value_of(b"a"), 0) == 0
            for node in others:
                await cluster.restart(node)
            assert await wait_answer(write) == 1
            assert found.shard(leader).counters == {b"before": 1, b"a": 1, b"b": 1}

    together(scenario)


def test_a_write_of_a_deposed_leader_is_answered_not_coordinator_and_replayed_nowhere() -> None:
    async def scenario(cluster: Together) -> None:
        async with coordinators(cluster) as found:
            first = await found.until_led()
            await written(found.at[first], b"a")
            old_shard = found.shard(first)
            cut_off(cluster, first)
            write = found.at[first].call(0, add(b"lost"), LONG_MS)
            assert isinstance(write, DelayedWrite)
            second = await found.until_led(not_by=first)
            await written(found.at[second], b"b")
            assert not write.is_ready
            cluster.world.internet.heal_all()
            with pytest.raises(KafkaError) as caught:
                await wait_answer(write)
            assert caught.value.code == E.NOT_COORDINATOR
            call = partial(found.at[first].call, 0, value_of(b"a"), 0)
            assert error_of(call) == E.NOT_COORDINATOR
            assert old_shard.replayed == [(b"a", b"1")]
            assert old_shard.is_unloaded
            assert found.shard(second).counters == {b"a": 1, b"b": 1}
            # The first leader has truncated the record: it loads without it when it leads again.
            await cluster.until(lambda: len(cluster.state(TOPIC, second).isr) == 3, 60)
            await found.kill(second)
            third = await found.until_led(not_by=second)
            assert found.shard(third).replayed == [(b"a", b"1"), (b"b", b"1")]

    together(scenario, broker_session_timeout_ms=2000)


def test_a_write_in_flight_that_the_followers_have_is_replayed_by_the_next_leader() -> None:
    """The leader dies between the fetches of its followers and its own commit."""

    async def scenario(cluster: Together) -> None:
        async with coordinators(cluster) as found:
            first = await found.until_led()
            write = found.at[first].call(0, add(b"a"), LONG_MS)
            assert isinstance(write, DelayedWrite)
            others = [node for node in NODES if node != first]

            def have_it() -> bool:
                return all(cluster.replica(n, TOPIC).log.log_end_offset == 1 for n in others)

            while not have_it():
                await cluster.world.sleep(0.0001)
            assert not write.is_ready
            await found.kill(first)
            second = await found.until_led(not_by=first)
            assert found.shard(second).replayed == [(b"a", b"1")]

    together(scenario, broker_session_timeout_ms=2000)


def test_a_write_is_refused_when_too_few_replicas_are_in_sync() -> None:
    async def scenario(cluster: Together) -> None:
        async with coordinators(cluster, min_insync_replicas=3) as found:
            leader = await found.until_led()
            await written(found.at[leader], b"a")
            other = next(node for node in NODES if node != leader)
            await found.kill(other)
            await cluster.until(lambda: len(cluster.replica(leader, TOPIC).isr) == 2, 60)
            call = partial(found.at[leader].call, 0, add(b"a"), LONG_MS)
            assert error_of(call) == E.COORDINATOR_NOT_AVAILABLE
            assert found.at[leader].call(0, value_of(b"a"), 0) == 1
            await cluster.restart(other)
            await cluster.until(lambda: len(cluster.replica(leader, TOPIC).isr) == 3, 60)
            assert await written(found.at[leader], b"a") == 2

    together(scenario, broker_session_timeout_ms=2000, replica_lag_time_max_ms=2000)
