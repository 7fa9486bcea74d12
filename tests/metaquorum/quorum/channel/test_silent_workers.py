"""Three nodes: a suspended worker keeps its session until the timeout, a killed one does not."""

from typing import Any

import pytest

from tests.dataplane.replication.together import Together, together

SESSION_S = 30.0
HEARTBEAT_S = 2.0
# Longer than the channel waits for a silent peer.
SILENT_S = 10.0
SETTINGS = {"broker_session_timeout_ms": int(SESSION_S * 1000)}


def follower_of_the_quorum(cluster: Together) -> tuple[int, int]:
    """Return a node that is not the active controller, and the node that is."""
    active = next(n for n, node in cluster.nodes.items() if role_of(node).quorum.is_active)
    return next(n for n in cluster.nodes if n != active), active


def role_of(node: Any) -> Any:
    return node.node.controller_role


async def why_fenced(cluster: Together, worker_id: int, active: int) -> str:
    lifecycle = role_of(cluster.nodes[active]).controller.worker_lifecycle
    statuses = await lifecycle.worker_statuses()
    return next(each.why_fenced for each in statuses if each.worker_id == worker_id)


@together(**SETTINGS)
async def test_a_suspended_worker_is_fenced_when_its_session_times_out(cluster: Together) -> None:
    """Its connections are silent, and this end closes them: no evidence that the process ended."""
    await cluster.create("t", (1, 2, 3))
    silent, active = follower_of_the_quorum(cluster)
    began = cluster.world.now
    cluster.nodes[silent].machine.pause()
    await cluster.world.sleep(SILENT_S)
    assert silent not in cluster.worker(active).image.fenced_workers()
    await cluster.until(lambda: silent in cluster.worker(active).image.fenced_workers(), SESSION_S)
    assert SESSION_S - HEARTBEAT_S - 1 < cluster.world.now - began < SESSION_S + 1
    assert "session timed out: no heartbeat for 30" in await why_fenced(cluster, silent, active)


@together(**SETTINGS)
async def test_a_worker_that_is_resumed_in_time_was_never_fenced(cluster: Together) -> None:
    await cluster.create("t", (1, 2, 3))
    silent, active = follower_of_the_quorum(cluster)
    epoch = cluster.worker(silent).session.broker_epoch
    cluster.nodes[silent].machine.pause()
    for is_over in (False, True):
        await cluster.world.sleep(SESSION_S + 1 if is_over else SILENT_S)
        assert silent not in cluster.worker(active).image.fenced_workers()
        cluster.nodes[silent].machine.resume()
    assert cluster.worker(silent).session.broker_epoch == epoch


@pytest.mark.parametrize("is_silent_first", [False, True])
@together(**SETTINGS)
async def test_a_closed_connection_is_evidence(cluster: Together, *, is_silent_first: bool) -> None:
    """Killed while it was connected: fenced at once. Killed after the silence: by the timeout."""
    await cluster.create("t", (1, 2, 3))
    victim, active = follower_of_the_quorum(cluster)
    if is_silent_first:
        cluster.nodes[victim].machine.pause()
        await cluster.world.sleep(SILENT_S)
    await cluster.kill(victim)
    await cluster.world.sleep(1)
    is_fenced = victim in cluster.worker(active).image.fenced_workers()
    assert is_fenced == (not is_silent_first)
    if is_fenced:
        assert "its connection closed" in await why_fenced(cluster, victim, active)
