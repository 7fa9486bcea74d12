"""Fault `unregister`: requests to unregister live workers and workers that seem to be down.

    paused, cut off or killed --fenced, session expired--> unregistered --resumes--> registered

The controllers must refuse to unregister a live worker. A process that was only paused or cut off
must register again without help, replicate, and record no loss. A killed process must not record a
loss, either.
"""

from collections.abc import Callable
from typing import Final

import trio

from metaquorum.runtime.interfaces import Runtime
from metaquorum.simulations.cluster.cluster_clients import ClusterClient
from metaquorum.simulations.cluster.cluster_state import Member
from metaquorum.simulations.cluster.faults import ActiveFault, stop_machine
from metaquorum.simulations.harness.client import BROKEN
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.wire.messages.unregister_broker import UnregisterBrokerRequest
from metaquorum.wire.protocol.apis import ApiKey

# Time beyond two session timeouts: the worker's, and that of a newly active controller.
PATIENCE_S: Final = 4.0
RETRY_S: Final = 0.15
ANSWERED_S: Final = 1.5
# Longest time from resuming to the kill: before or after the worker has registered again.
KILLED_WITHIN_S: Final = 1.0
_HOW: Final = ("pause", "pause", "cut off", "kill")


class Operator(ClusterClient):
    """Client that unregisters workers through another worker."""

    async def ask(self, runtime: Runtime, worker_id: int) -> None:
        """Request to unregister a worker; wait for the response or the loss of the connection."""
        others = [member.config.node_id for member in self.cluster_state.workers]
        through = self._draw.choice([other for other in others if other != worker_id])
        try:
            async with self.connected(runtime, through) as connection:
                message = UnregisterBrokerRequest(broker_id=worker_id)
                answer = await connection.call(ApiKey.UNREGISTER_BROKER, message, ANSWERED_S)
        except BROKEN as error:
            self.say(f"connection lost: {error!r}")
        else:
            self.say(f"unregisters worker {worker_id}: {answer.error_code}")


async def unregister(cluster_state: ReplicatedClusterState, fault: ActiveFault) -> None:
    """Stop or cut off a worker until it can be unregistered, unregister it, and let it resume."""
    member = _choose(cluster_state, fault)
    kept, worker_id = member.supervisor, member.config.node_id
    operator = Operator(cluster_state, f"operator-{fault.plan.number}", fault.draw)
    machine = fault.world.machine(operator.name)

    async def ask(asked: int) -> None:
        async def run(runtime: Runtime) -> None:
            await operator.ask(runtime, asked)

        await machine.start(run).done.wait()

    def registered() -> int:
        return cluster_state.cluster_history.image.broker_epoch(worker_id)

    await ask(fault.draw.choice(cluster_state.workers).config.node_id)
    before = registered()
    go_on = _begin(cluster_state, fault, worker_id)
    with trio.move_on_after(2 * cluster_state.settings.session_timeout_ms / 1000 + PATIENCE_S):
        while registered() == before >= 0:
            await fault.world.sleep(RETRY_S)
            await ask(worker_id)
    if registered() < 0 <= before:
        fault.count()
    await fault.last()
    go_on()
    if fault.draw.random() < 0.4:
        await fault.world.sleep(fault.draw.uniform(0.0, KILLED_WITHIN_S))
        stop_machine(fault, kept, "kill")


def _choose(cluster_state: ReplicatedClusterState, fault: ActiveFault) -> Member:
    """Return a worker, preferably the only replica of some partition: only it can record losses."""
    alone = {
        state.replicas[0]
        for topic in cluster_state.cluster_history.image.topics.values()
        for state in topic.partitions
        if len(state.replicas) == 1
    }
    some = [member for member in cluster_state.workers if member.config.node_id in alone]
    return fault.draw.choice(some if some and fault.draw.random() < 0.7 else cluster_state.workers)


def _begin(
    cluster_state: ReplicatedClusterState, fault: ActiveFault, worker_id: int
) -> Callable[[], None]:
    """Pause, cut off or kill the worker; return the function that ends the fault."""
    kept = cluster_state.members[worker_id].supervisor
    how = fault.draw.choice(_HOW)
    process = kept.machine.process
    if how == "pause" and process is not None and not process.paused:
        kept.machine.pause()

        def resume() -> None:
            if kept.machine.process is process:
                kept.machine.resume()

        return resume
    if how == "cut off":
        pairs = [
            pair
            for host in fault.targets.hosts
            if host != kept.name
            for pair in ((host, kept.name), (kept.name, host))
        ]
        for pair in pairs:
            fault.world.internet.cut(*pair)

        def heal() -> None:
            for pair in pairs:
                fault.world.internet.heal(*pair)

        return heal
    kept.hold()
    stop_machine(fault, kept, "kill")
    return kept.release
