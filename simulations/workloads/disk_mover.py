"""Administrator that moves replicas between the log directories of the node, and cancels moves."""

from random import Random
from typing import Final

import trio

from metaquorum.runtime import Runtime, sleep
from metaquorum.simulations.checkers.log_dir_moves import MovesEnd
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.harness.environment import Environment
from metaquorum.simulations.harness.history import Topic
from metaquorum.simulations.harness.node import LOG_DIRS
from metaquorum.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from metaquorum.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

RETRY_S: Final = 0.1
# Virtual seconds after the last fault within which all moves end: at the lowest rate of these
# worlds, 5 kB/s, for all that their producers write.
MOVES_LIMIT_S: Final = 120.0

Place = tuple[str, bool]  # path of a log directory, and whether the replica there is a future one


class DiskMover:
    def __init__(self, environment: Environment, draw: Random) -> None:
        self.environment = environment
        self._draw = draw
        self._ended = environment.checker(MovesEnd)

    async def run(self, runtime: Runtime) -> None:
        while not self.environment.closing:
            try:
                connection = await self.environment.connect(runtime, "disk-mover", self._draw)
            except BROKEN:
                await sleep(runtime.clock, RETRY_S)
                continue
            try:
                while not self.environment.closing:
                    await sleep(runtime.clock, self._draw.uniform(0.0, 0.3))
                    await self._move_one(connection)
            except BROKEN as error:
                self.environment.world.say("disk-mover", f"connection lost: {error!r}")
            finally:
                connection.close()
            await sleep(runtime.clock, RETRY_S)

    async def _move_one(self, connection: ClientConnection) -> None:
        topics = list(self.environment.history.topics.values())
        if not topics:
            return
        topic = self._draw.choice(topics)
        index = self._draw.randrange(topic.partitions)
        code = await self._alter(connection, topic, index, self._draw.choice(LOG_DIRS))
        if code is ErrorCode.NONE and self._draw.random() < 0.4:
            await self._cancel(connection, topic, index)

    async def _cancel(self, connection: ClientConnection, topic: Topic, index: int) -> None:
        """Request the directory of the current log: no future replica is left."""
        places = await self._places(connection, topic, index)
        current = [path for path, is_future in places if not is_future]
        if len(current) != 1 or await self._alter(connection, topic, index, current[0]):
            return
        places = await self._places(connection, topic, index)
        # Otherwise the move had ended before the second request, which began the next one.
        is_cancelled = (current[0], False) in places
        if is_cancelled and not topic.delete_asked:
            self._ended.cancelled(topic, index, [path for path, is_future in places if is_future])
            self.environment.world.count("disk moves cancelled")

    async def _alter(
        self, connection: ClientConnection, topic: Topic, index: int, path: str
    ) -> ErrorCode:
        topics = [AlterReplicaLogDirTopic(name=topic.name, partitions=[index])]
        message = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])
        answer = await connection.call(ApiKey.ALTER_REPLICA_LOG_DIRS, message)
        code = ErrorCode(answer.results[0].partitions[0].error_code)
        self.environment.world.say("disk-mover", f"{topic}-{index} to {path}: {code.name}")
        self.environment.world.count(f"disk moves: {code.name}")
        return code

    async def _places(self, connection: ClientConnection, topic: Topic, index: int) -> list[Place]:
        """Return the directories that have the partition's log or its future replica."""
        answer = await connection.call(
            ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None)
        )
        return [
            (result.log_dir, row.is_future_key)
            for result in answer.results
            for each in result.topics
            if each.name == topic.name
            for row in each.partitions
            if row.partition_index == index
        ]


class MoveInspector:
    """Client that waits until no replica moves, after the last fault."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._draw = environment.world.stream("move inspector")
        self._ended = environment.checker(MovesEnd)

    async def run(self, runtime: Runtime) -> None:
        left = ["nothing was asked"]
        with trio.move_on_after(MOVES_LIMIT_S):
            while left:
                try:
                    connection = await self.environment.connect(
                        runtime, "move-inspector", self._draw
                    )
                    try:
                        left = await self._left(connection)
                    finally:
                        connection.close()
                except BROKEN as error:
                    self.environment.world.say("move-inspector", repr(error))
                await sleep(runtime.clock, 0.2)
        self._ended.inspected(left, MOVES_LIMIT_S)

    async def _left(self, connection: ClientConnection) -> list[str]:
        answer = await connection.call(
            ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None)
        )
        seen: set[tuple[str, int]] = set()
        left = []
        for result in answer.results:
            for topic in result.topics:
                for row in topic.partitions:
                    at = topic.name, row.partition_index
                    if row.is_future_key or at in seen:
                        left.append(f"{topic.name}-{row.partition_index} in {result.log_dir}")
                    seen.add(at)
        return left
