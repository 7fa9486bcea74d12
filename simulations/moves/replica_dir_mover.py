"""Client that moves replicas between the log directories of workers, and the checkers of that."""

from collections.abc import Sequence
from random import Random
from typing import Final

from metaquorum.dataplane.log.segments.names import STRAY_FOLDER, parse_partition_folder
from metaquorum.metadata.internal_topics import INTERNAL_TOPICS
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.harness.node import topic_id_of
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replica_clients import ReplicaClient
from metaquorum.simulations.replication.replica_files import log_folders
from metaquorum.simulations.replication.replicas import Name, PartitionHistory, ReplicaLog
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from metaquorum.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
RATES: Final = (500, 3000, 10**9)  # bytes a second
FASTEST: Final = 10**9
PAUSES_S: Final = (0.05, 0.2)
_BROKER: Final = 4  # resource type
FUTURE: Final = "-future"


class ChangedLogsAreWhole(WatchingChecker):
    """A log that replaces another one in another directory has exactly its records."""

    invariant = "R11"

    def changed_dir(
        self, history: PartitionHistory, replica: ReplicaLog, names: Sequence[Name], start: int
    ) -> None:
        known = {offset: epoch for offset, epoch in replica.epochs.items() if offset >= start}
        found = {name.offset: name.leader_epoch for name in names}
        wrong = sorted(
            offset for offset in {*known, *found} if known.get(offset) != found.get(offset)
        )
        self.compare(
            not wrong and start == replica.start,
            "{}: worker {} moves the log from {} between directories; it begins at {}, and offsets"
            " {} differ",
            history,
            replica.worker_id,
            replica.start,
            start,
            wrong[:5],
        )


class ReplicasHaveOneLog(WatchingChecker):
    """In the end no replica moves between directories, and no replica is in two of them.

    A log that was replaced is not kept either. The stray log of a deleted topic is.
    """

    invariant = "R11"

    def open_moves(self) -> list[str]:
        found = []
        topic_ids = {topic.topic_id for topic in self.cluster_history.image.topics.values()}
        for member in self.cluster_state.workers:
            if member.supervisor.impaired:
                continue
            paths, storage = log_folders(member), member.supervisor.machine.storage
            names = [path.rsplit("/", 1)[1] for path in paths]
            logs = [name for name in names if parse_partition_folder(name) is not None]
            left = [name for name in names if name.endswith(FUTURE)]
            left += [name for name in logs if logs.count(name) > 1]
            left += [
                path
                for path in paths
                if path.endswith(STRAY_FOLDER) and topic_id_of(storage, path) in topic_ids
            ]
            found += [f"worker {member.config.node_id} has {name}" for name in left]
        return found

    def finals(self) -> None:
        found = self.open_moves()
        self.compare(not found, "moves between directories have left {}", found)


class ReplicaDirMover(ReplicaClient):
    """Client that asks for other log directories, and changes the rate, until the faults end."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        self._pause_s = draw.choice(PAUSES_S)

    async def run(self, runtime: Runtime) -> None:
        is_set = False
        while not self.done:
            try:
                async with self.connected(runtime) as connection:
                    if not is_set:
                        is_set = await self._set_rate(connection, self._draw.choice(RATES))
                    if self.cluster_state.calm:
                        self.done = await self._set_rate(connection, FASTEST)
                    else:
                        await self._use(runtime, connection)
            except BROKEN as error:
                self.say(repr(error))
            await sleep(runtime.clock, RETRY_S)

    async def _use(self, runtime: Runtime, connection: ClientConnection) -> None:
        for _ in range(self._draw.randint(1, 6)):
            if self.cluster_state.calm:
                return
            if self._draw.random() < 0.1:
                await self._set_rate(connection, self._draw.choice(RATES))
            await self._move(connection)
            await sleep(runtime.clock, self._pause_s * 2 * self._draw.random())

    async def _set_rate(self, connection: ClientConnection, rate: int) -> bool:
        resource = AlterConfigsResource(
            resource_type=_BROKER,
            resource_name="",
            configs=[AlterableConfig(name=RATE, config_operation=0, value=str(rate))],
        )
        message = IncrementalAlterConfigsRequest(resources=[resource])
        answer = await connection.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, message)
        code = ErrorCode(answer.responses[0].error_code)
        self.say(f"sets the rate of moves to {rate}: {code.name}")
        return code is ErrorCode.NONE

    async def _move(self, connection: ClientConnection) -> None:
        """Move a replica of the connected worker, or cancel its move, or prefer a directory."""
        image = self.cluster_state.cluster_history.image
        lasting = self.cluster_state.topic_outcomes.lasting
        places = [
            (topic.name, index)
            for topic in image.topics.values()
            if topic.name in lasting or topic.name in INTERNAL_TOPICS
            for index, state in enumerate(topic.partitions)
            if self.worker_id in state.replicas or self._draw.random() < 0.1
        ]
        if not places:
            return
        name, index = self._draw.choice(places)
        path = self._draw.choice(self.cluster_state.members[self.worker_id].log_dirs)
        topic = AlterReplicaLogDirTopic(name=name, partitions=[index])
        message = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[topic])])
        answer = await connection.call(ApiKey.ALTER_REPLICA_LOG_DIRS, message)
        code = ErrorCode(answer.results[0].partitions[0].error_code)
        self.say(f"worker {self.worker_id}, {name}-{index} to {path}: {code.name}")
        self.cluster_state.world.count(f"moves to a directory: {code.name}")
