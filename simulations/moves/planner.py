"""Client that starts plans of moves with throttles, and pauses, resumes and cancels them."""

from random import Random
from typing import Final

from metaquorum.metadata.internal_topics import INTERNAL_TOPICS
from metaquorum.metadata.records import CANCELLING, LOADING, PAUSED
from metaquorum.quorum.controller.plans.move_plans import CANCEL, PAUSE, RESUME, THROTTLE
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.moves.move_checkers import MovesKeepCopies
from metaquorum.simulations.replication.replica_clients import ReplicaClient
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.wire.messages.alter_move_plan import AlterMovePlanRequest
from metaquorum.wire.messages.start_move_plan import (
    PlannedPartition,
    PlannedTopic,
    StartMovePlanRequest,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

PAUSES_S: Final = (0.1, 0.4, 1.0)
RATES: Final = (-1, 200, 5_000, 200_000)  # bytes per second; a plan can be slower than its world
FASTEST: Final = 10**9


class Planner(ReplicaClient):
    """Client that uses plans until the faults are over, and then lets all of them end."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        self._pause_s = draw.choice(PAUSES_S)

    async def run(self, runtime: Runtime) -> None:
        while not self.done:
            try:
                async with self.connected(runtime) as connection:
                    if self.cluster_state.calm:
                        self.done = await self._finish(connection)
                    else:
                        await self._use(runtime, connection)
            except BROKEN as error:
                self.say(repr(error))
            await sleep(runtime.clock, RETRY_S)

    def _active(self) -> list[int]:
        plans = self.cluster_state.cluster_history.image.plans
        return [plan_id for plan_id, plan in plans.items() if not plan.has_ended]

    async def _use(self, runtime: Runtime, connection: ClientConnection) -> None:
        for _ in range(self._draw.randint(1, 4)):
            if self.cluster_state.calm:
                return
            active = self._active()
            if not active or self._draw.random() < 0.3:
                await self._start(connection)
            else:
                plan_id = self._draw.choice(active)
                action = self._draw.choice([PAUSE, RESUME, RESUME, THROTTLE, CANCEL])
                await self._alter(connection, plan_id, action, self._draw.choice(RATES))
            await sleep(runtime.clock, self._pause_s * 2 * self._draw.random())

    async def _finish(self, connection: ClientConnection) -> bool:
        """Resume all plans without a limit; return whether the cluster has accepted that.

        A plan whose sender died is cancelled: by itself it expires later than a world may last.
        """
        plans = self.cluster_state.cluster_history.image.plans
        for plan_id in self._active():
            if plans[plan_id].header.state == LOADING:
                await self._alter(connection, plan_id, CANCEL)
                continue
            if plans[plan_id].header.state == PAUSED:
                await self._alter(connection, plan_id, RESUME)
            await self._alter(connection, plan_id, THROTTLE, FASTEST)
        plans = self.cluster_state.cluster_history.image.plans
        return all(
            plan.has_ended
            or plan.header.state == CANCELLING
            or (
                plan.header.state not in (LOADING, PAUSED)
                and plan.header.rate_bytes_per_s == FASTEST
            )
            for plan in plans.values()
        )

    async def _start(self, connection: ClientConnection) -> None:
        draw, image = self._draw, self.cluster_state.cluster_history.image
        checker = self.cluster_state.checker(MovesKeepCopies)
        workers = sorted(member.config.node_id for member in self.cluster_state.workers)
        lasting = self.cluster_state.topic_outcomes.lasting
        topics = []
        for topic in image.topics.values():
            if topic.name not in lasting and topic.name not in INTERNAL_TOPICS:
                continue
            rows = []
            for index in range(len(topic.partitions)):
                target = draw.sample(workers, min(len(workers), draw.choice([1, 2, 3, 3])))
                if draw.random() < 0.8:
                    checker.asked(topic.topic_id, index, tuple(target), topic.name)
                    # A cancelled plan takes it back.
                    checker.asked(topic.topic_id, index, None, topic.name)
                    rows.append(PlannedPartition(partition_index=index, replicas=target))
            if rows:
                topics.append(PlannedTopic(name=topic.name, partitions=rows))
        if not topics:
            return
        message = StartMovePlanRequest(
            timeout_ms=3000,
            rate_bytes_per_s=draw.choice(RATES),
            batch_size=draw.choice([1, 2, 5]),
            topics=topics,
        )
        response = await connection.call(ApiKey.START_MOVE_PLAN, message)
        code = ErrorCode(response.error_code)
        self.say(f"starts plan {response.plan_id}: {code.name} {response.error_message or ''}")
        self.cluster_state.world.count("plans started", code is ErrorCode.NONE)

    async def _alter(
        self, connection: ClientConnection, plan_id: int, action: str, rate: int = -1
    ) -> None:
        message = AlterMovePlanRequest(
            timeout_ms=3000, plan_id=plan_id, action=action, rate_bytes_per_s=rate
        )
        response = await connection.call(ApiKey.ALTER_MOVE_PLAN, message)
        code = ErrorCode(response.error_code)
        self.say(f"{action} of plan {plan_id}: {code.name}")
        self.cluster_state.world.count(f"plans: {action}", code is ErrorCode.NONE)
