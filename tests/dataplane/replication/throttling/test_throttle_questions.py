"""Questions 1 and 4 of KIP-73 among whole nodes, in virtual time: throttles that stop a move."""

from functools import partial

import pytest
import trio

from metaquorum.wire.messages.elect_leaders import ElectLeadersRequest
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.replication.throttling.experiment import RATE, SMALL, Experiment
from tests.dataplane.replication.together import Together, together

INBOUND = RATE // 5
PREFERRED = 0


@pytest.mark.slow
@pytest.mark.parametrize("throttle", [INBOUND, INBOUND * 4 // 5], ids=["equal", "below"])
@together(**SMALL)
async def test_a_throttle_up_to_the_inbound_rate_stalls_until_it_is_raised(
    cluster: Together, throttle: int
) -> None:
    """Question 1: "If this stops reducing, [...] the admin must simply increase the throttle"."""
    experiment = Experiment(cluster, ((1,), (1, 2)))
    await experiment.fill(15)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(experiment.produce, INBOUND))
        await experiment.throttle(throttle)
        await experiment.start()
        await cluster.world.sleep(11)  # the first window
        lag = experiment.lag()
        throttled, caught_up, _ = await experiment.rates(30)
        assert throttled["leader", 1] == pytest.approx(throttle, rel=0.02)
        assert caught_up == pytest.approx(throttle - INBOUND, abs=0.02 * INBOUND)
        assert experiment.lag() >= lag * 0.99
        assert not any(2 in state.isr for state in experiment.states())
        await experiment.limit(RATE)
        await cluster.world.sleep(5)
        assert experiment.lag() < lag
        await cluster.until(experiment.has_moved, 60)
        nursery.cancel_scope.cancel()
    assert experiment.lag() == 0


@pytest.mark.slow
@pytest.mark.parametrize("low", [RATE, INBOUND * 3 // 2], ids=["symmetric", "asymmetric"])
@together(auto_leader_rebalance_enable=False, **SMALL)
async def test_moved_leaders_matter_only_under_different_throttles(
    cluster: Together, low: int
) -> None:
    """Question 4: with the same value on all nodes "it should not matter if leaders move".

    Otherwise a bootstrapping worker and the first leader have a high one, the second a low one.
    """
    experiment = Experiment(cluster, ((1, 2), (1, 3)))
    await experiment.fill(35)
    await cluster.restart(1)
    await cluster.until(lambda: all(s.leader == 2 for s in experiment.states(2)))
    await cluster.until(lambda: all(1 in s.isr for s in experiment.states(2)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(experiment.produce, INBOUND))
        await experiment.throttle(RATE)
        await experiment.limit(low, "leader", worker=1)
        await experiment.start()
        await cluster.world.sleep(11)  # the first window
        # Worker 2 sends each new record to workers 1 and 3.
        _, caught_up, _ = await experiment.rates(15)
        assert caught_up == pytest.approx(RATE - 2 * INBOUND, rel=0.02)

        client = await cluster.connect(2)
        election = ElectLeadersRequest(election_type=PREFERRED, timeout_ms=10_000)
        election.topic_partitions = None
        answer = await client.call(ApiKey.ELECT_LEADERS, election)
        assert answer.error_code == 0
        await cluster.until(lambda: all(s.leader == 1 for s in experiment.states()))
        await cluster.world.sleep(11)
        lag = experiment.lag()
        throttled, caught_up, _ = await experiment.rates(15)
        assert throttled["leader", 1] == pytest.approx(low, rel=0.02)
        assert caught_up == pytest.approx(low - 2 * INBOUND, abs=0.02 * RATE)
        assert (experiment.lag() < lag) == (low == RATE)

        await experiment.limit(RATE, "leader", worker=1)
        await cluster.until(experiment.has_moved, 120)
        nursery.cancel_scope.cancel()
    assert experiment.lag() == 0
