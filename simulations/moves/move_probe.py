"""Clients of moves during an upgrade, and the checker that moves need their level."""

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.quorum.controller.features import MOVES_LEVEL
from metaquorum.quorum.controller.plans.move_plans import CANCEL, PAUSE, RESUME, THROTTLE
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.groups.upgrade_checkers import LevelsAreSupported, level_of
from metaquorum.simulations.groups.upgrade_clients import UpgradeOperator
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.moves.draining import DRAIN, RETURN
from metaquorum.simulations.moves.move_checkers import MovesKeepCopies
from metaquorum.simulations.moves.mover import Mover
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replica_clients import ReplicaClient
from metaquorum.simulations.replication.replicas import Place
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.replication.replication_scenario import AnyClient
from metaquorum.wire.messages.alter_move_plan import AlterMovePlanRequest
from metaquorum.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from metaquorum.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from metaquorum.wire.messages.alter_worker import AlterWorkerRequest
from metaquorum.wire.messages.describe_move_plans import DescribeMovePlansRequest
from metaquorum.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from metaquorum.wire.messages.start_move_plan import (
    PlannedPartition,
    PlannedTopic,
    StartMovePlanRequest,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

TIMEOUT_MS: Final = 3000
NOWHERE: Final = "/no-such-directory"
NEEDED: Final = f"needs level {MOVES_LEVEL} of metadata.version"
# Errors that only say that the request has not reached the active controller.
NOT_ASKED: Final = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER)


class MovesNeedTheirLevel(WatchingChecker):
    """Below the level of moves, no partition moves, no plan exists, and no worker drains.

    Requests for these are refused with an error that names the level.
    """

    invariant = "M7"

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        if level_of(image) >= MOVES_LEVEL:
            return
        moving = [
            f"{topic.name}-{index}"
            for topic in image.topics.values()
            for index, state in enumerate(topic.partitions)
            if state.is_moving or state.plan
        ]
        draining = [worker_id for worker_id, each in image.workers.items() if each.draining]
        self.compare(
            not moving and not image.plans and not draining,
            "at level {} partitions {} move, plans {} exist, and workers {} drain",
            level_of(image),
            moving,
            sorted(image.plans),
            draining,
        )

    def answered(self, request: str, worker_id: int, code: ErrorCode, message: str | None) -> None:
        self.world.count(f"early moves: {code.name}")
        if code in NOT_ASKED:
            return
        self.compare(
            code is ErrorCode.UNSUPPORTED_VERSION and NEEDED in (message or ""),
            "worker {} is below the level of moves, and answers {} with {} ({})",
            worker_id,
            request,
            code.name,
            message,
        )

    def listed(self, request: str, worker_id: int, code: ErrorCode, rows: list[Any]) -> None:
        self.compare(
            code is ErrorCode.NONE and not rows,
            "worker {} is below the level of moves, and answers {} with {} {}",
            worker_id,
            request,
            code.name,
            rows,
        )


Probe = Callable[[ClientConnection, str, Place], Coroutine[Any, Any, None]]


class MovesProbe(ReplicaClient):
    """Client that asks for moves, plans and drains at any worker, until the level is raised.

    Workers of an old version do not serve these requests. An answer counts if the worker's
    metadata are below the level at the time of the request, and at that of the answer.
    """

    async def run(self, runtime: Runtime) -> None:
        levels = self.cluster_state.checker(LevelsAreSupported)
        probes: list[Probe] = [
            self._move,
            self._cancel,
            self._list,
            self._start,
            self._alter_plan,
            self._describe_plans,
            self._drain,
            self._move_dir,
        ]
        while levels.level < MOVES_LEVEL and not self.cluster_state.closing:
            at = self.place()
            try:
                async with self.connected(runtime) as connection:
                    if at is not None and not self._is_old():
                        for _ in range(self._draw.randint(1, 4)):
                            await self._draw.choice(probes)(connection, *at)
            except BROKEN as error:
                self.say(repr(error))
            await sleep(runtime.clock, RETRY_S + self._draw.random() * 0.2)
        self.done = True

    def _is_old(self) -> bool:
        machine = self.cluster_state.members[self.worker_id].supervisor.machine
        versions = self.cluster_state.checker(LevelsAreSupported).versions
        return versions.is_old(machine.name, machine.runs)

    def _is_below(self) -> bool:
        """Return whether the worker runs, and knows a level below that of moves."""
        member = self.cluster_state.members[self.worker_id]
        if member.running is None or member.loader is None:
            return False
        return 0 < level_of(member.loader.visible) < MOVES_LEVEL

    async def _ask(self, connection: ClientConnection, api: ApiKey, message: Any) -> Any:
        """Send a request, and return the answer; check its error if the worker is below."""
        was_below = self._is_below()
        answer = await connection.call(api, message)
        code = ErrorCode(answer.error_code)
        self.say(f"asks worker {self.worker_id}, {api.name}: {code.name}")
        if was_below and self._is_below():
            self._checker.answered(api.name, self.worker_id, code, answer.error_message)
        return answer

    async def _list_none(
        self, connection: ClientConnection, api: ApiKey, message: Any, rows: Callable[[Any], Any]
    ) -> None:
        was_below = self._is_below()
        answer = await connection.call(api, message)
        if was_below and self._is_below():
            code = ErrorCode(answer.error_code)
            self._checker.listed(api.name, self.worker_id, code, rows(answer))

    @property
    def _checker(self) -> MovesNeedTheirLevel:
        return self.cluster_state.checker(MovesNeedTheirLevel)

    def _asked(self, place: Place, target: list[int] | None) -> None:
        """Record the request before it is sent: the level may be raised meanwhile."""
        checker = self.cluster_state.checker(MovesKeepCopies)
        checker.asked(*place, None)  # a cancelled plan takes it back
        if target is not None:
            checker.asked(*place, tuple(target))

    def _target(self) -> list[int]:
        workers = sorted(member.config.node_id for member in self.cluster_state.workers)
        return self._draw.sample(workers, self._draw.randint(1, len(workers)))

    async def _move(self, connection: ClientConnection, name: str, place: Place) -> None:
        await self._reassign(connection, name, place, self._target())

    async def _cancel(self, connection: ClientConnection, name: str, place: Place) -> None:
        await self._reassign(connection, name, place, None)

    async def _reassign(
        self, connection: ClientConnection, name: str, place: Place, target: list[int] | None
    ) -> None:
        self._asked(place, target)
        row = ReassignablePartition(partition_index=place.partition, replicas=target)
        message = AlterPartitionReassignmentsRequest(
            timeout_ms=TIMEOUT_MS, topics=[ReassignableTopic(name=name, partitions=[row])]
        )
        await self._ask(connection, ApiKey.ALTER_PARTITION_REASSIGNMENTS, message)

    async def _list(self, connection: ClientConnection, name: str, place: Place) -> None:
        message = ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=None)
        api = ApiKey.LIST_PARTITION_REASSIGNMENTS
        await self._list_none(connection, api, message, lambda answer: answer.topics)

    async def _start(self, connection: ClientConnection, name: str, place: Place) -> None:
        target = self._target()
        self._asked(place, target)
        row = PlannedPartition(partition_index=place.partition, replicas=target)
        message = StartMovePlanRequest(
            timeout_ms=TIMEOUT_MS,
            batch_size=1,
            topics=[PlannedTopic(name=name, partitions=[row])],
        )
        await self._ask(connection, ApiKey.START_MOVE_PLAN, message)

    async def _alter_plan(self, connection: ClientConnection, name: str, place: Place) -> None:
        action = self._draw.choice([CANCEL, PAUSE, RESUME, THROTTLE])
        message = AlterMovePlanRequest(
            timeout_ms=TIMEOUT_MS, plan_id=1, action=action, rate_bytes_per_s=-1
        )
        await self._ask(connection, ApiKey.ALTER_MOVE_PLAN, message)

    async def _describe_plans(self, connection: ClientConnection, name: str, place: Place) -> None:
        api = ApiKey.DESCRIBE_MOVE_PLANS
        message = DescribeMovePlansRequest(plan_ids=None)
        await self._list_none(connection, api, message, lambda answer: answer.plans)

    async def _drain(self, connection: ClientConnection, name: str, place: Place) -> None:
        message = AlterWorkerRequest(
            worker_id=self._draw.choice(self._target()), action=self._draw.choice([DRAIN, RETURN])
        )
        await self._ask(connection, ApiKey.ALTER_WORKER, message)

    async def _move_dir(self, connection: ClientConnection, name: str, place: Place) -> None:
        """Move a log between directories, which needs no level: only its worker takes part."""
        topic = AlterReplicaLogDirTopic(name=name, partitions=[place.partition])
        message = AlterReplicaLogDirsRequest(
            dirs=[AlterReplicaLogDir(path=NOWHERE, topics=[topic])]
        )
        answer = await connection.call(ApiKey.ALTER_REPLICA_LOG_DIRS, message)
        code = ErrorCode(answer.results[0].partitions[0].error_code)
        self.cluster_state.world.count(f"early moves to a directory: {code.name}")


class PatientOperator(UpgradeOperator):
    """Operator that begins once all workers have registered: the others would not be asked."""

    async def run(self, runtime: Runtime) -> None:
        state = self.cluster_state
        while len(state.cluster_history.image.workers) < len(state.workers) and not state.closing:
            await sleep(runtime.clock, RETRY_S)
        await super().run(runtime)


class AfterTheRaise:
    """Client that begins once the cluster has the level of moves."""

    def __init__(self, cluster_state: ReplicatedClusterState, client: AnyClient) -> None:
        self.name = client.name
        self._client = client
        self._cluster_state = cluster_state
        self.done = False

    async def run(self, runtime: Runtime) -> None:
        levels = self._cluster_state.checker(LevelsAreSupported)
        while levels.level < MOVES_LEVEL:
            if self._cluster_state.closing:
                break
            await sleep(runtime.clock, RETRY_S)
        else:
            await self._client.run(runtime)
        self.done = True


class LastingMover(Mover):
    """Mover that ends only after a move was accepted: after an upgrade, partitions do move."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        self._accepted = cluster_state.world.counts

    async def run(self, runtime: Runtime) -> None:
        await super().run(runtime)
        self.done = False
        while not self._accepted.get("moves asked for") and not self.cluster_state.closing:
            asked = self._draw_moves()
            if not asked:
                break
            try:
                async with self.connected(runtime) as connection:
                    await self._ask(connection, asked)
            except BROKEN as error:
                self.say(repr(error))
            await sleep(runtime.clock, RETRY_S)
        self.done = True
