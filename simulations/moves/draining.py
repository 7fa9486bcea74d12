"""Operator that drains workers and lets them return, and the checker of draining workers."""

from typing import Final

from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.harness.client import BROKEN
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replica_clients import ReplicaAdministrator
from metaquorum.simulations.replication.replicas import changed_partitions
from metaquorum.wire.messages.alter_worker import AlterWorkerRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

DRAIN: Final = 1
RETURN: Final = 2
DRAINS: Final = 0.4  # share of worlds
LASTS_S: Final = (0.3, 1.0, 2.5)  # time for which a worker drains
CREATIONS: Final = 3  # most topics that the operator creates meanwhile


class DrainingTakesNothing(WatchingChecker):
    """A draining worker gets no new replicas, and leads only where no other worker may.

    New replicas are those of new partitions: moves may name the worker.
    """

    invariant = "R14"

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        draining = {
            worker_id
            for worker_id, worker in image.workers.items()
            if worker.draining
            and worker_id in before.workers
            and before.workers[worker_id].draining
        }
        if not draining:
            return
        for topic_id, index, was, now in changed_partitions(before, image):
            history = self.cluster_history.history(topic_id, index)
            if was is None:
                self.cluster_state.world.count("partitions created during a drain")
                self.compare(
                    draining.isdisjoint(now.replicas),
                    "{} is created on {}, of which {} drain",
                    history,
                    now.replicas,
                    sorted(draining),
                )
            if now.leader not in draining:
                continue
            self.cluster_state.world.count("changes of partitions that a draining worker leads")
            able = [
                replica
                for replica in now.isr
                if replica not in draining
                and replica not in now.offline
                and (worker := image.workers.get(replica)) is not None
                and not worker.fenced
                and not worker.in_controlled_shutdown
            ]
            self.compare(
                not able, "{}: {} may lead instead of a draining worker: {}", history, able, now
            )


class Drainer(ReplicaAdministrator):
    """Operator that drains one worker after another, and creates topics meanwhile.

    The last one may drain until the end of the world.
    """

    async def run(self, runtime: Runtime) -> None:
        world, draw = self.cluster_state.world, self._draw
        while not self.cluster_state.calm:
            worker_id = draw.choice(self.cluster_state.workers).config.node_id
            drained = await self._alter(runtime, worker_id, DRAIN)
            world.count("workers drained", drained)
            for _ in range(draw.randint(1, CREATIONS)):
                await sleep(runtime.clock, draw.choice(LASTS_S) / CREATIONS)
                await self._create_another(runtime)
            returned = False
            while not returned and not self.cluster_state.calm:
                returned = await self._alter(runtime, worker_id, RETURN)
                await sleep(runtime.clock, RETRY_S)
            world.count("workers returned", returned)
        self.done = True

    async def _create_another(self, runtime: Runtime) -> None:
        self._made += 1
        if self._made > self.cluster_state.settings.changes:
            return
        try:
            async with self.connected(runtime) as connection:
                await self._create(connection)
        except BROKEN as error:
            self.say(repr(error))

    async def _alter(self, runtime: Runtime, worker_id: int, action: int) -> bool:
        """Request the action through any worker, and return whether it is done."""
        try:
            async with self.connected(runtime) as connection:
                message = AlterWorkerRequest(worker_id=worker_id, action=action)
                answer = await connection.call(ApiKey.ALTER_WORKER, message)
        except BROKEN as error:
            self.say(repr(error))
            return False
        code = ErrorCode(answer.error_code)
        self.say(f"{'drains' if action == DRAIN else 'returns'} worker {worker_id}: {code.name}")
        return code is ErrorCode.NONE


DRAINING_CHECKERS: Final = (DrainingTakesNothing,)
