"""Client that moves partitions all the time: targets, other factors, cancels, new targets."""

from random import Random
from typing import Final, NamedTuple

from metaquorum.metadata.image import PartitionImage, TopicImage
from metaquorum.metadata.internal_topics import INTERNAL_TOPICS
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.moves.move_checkers import (
    AddingAreNotBehind,
    ListedMovesExist,
    MovesKeepCopies,
    WrongMovesAreRefused,
)
from metaquorum.simulations.replication.replica_clients import ReplicaClient
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from metaquorum.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

PAUSES_S: Final = (0.02, 0.1, 0.4)
CANCELS: Final = 0.15  # share of requests
WRONG: Final = 0.05
AGAIN: Final = 0.3  # share of requests for a partition that moves already
LISTS: Final = 0.1
MOST: Final = 4  # partitions in one request
STRANGER: Final = 99  # no worker has this id
REFUSED: Final = (ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.INVALID_REPLICATION_FACTOR)


class Asked(NamedTuple):
    """Request to move one partition; without a target its move is cancelled."""

    topic: TopicImage
    partition: int
    target: tuple[int, ...] | None
    is_wrong: bool = False

    @property
    def state(self) -> PartitionImage:
        return self.topic.partitions[self.partition]

    def __str__(self) -> str:
        to = "nowhere" if self.target is None else ",".join(map(str, self.target))
        return f"{self.topic.name}-{self.partition} to {to}"


class Mover(ReplicaClient):
    """Client that asks for moves until the faults are over."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        self._pause_s = draw.choice(PAUSES_S)

    async def run(self, runtime: Runtime) -> None:
        while not self.cluster_state.calm:
            try:
                async with self.connected(runtime) as connection:
                    await self._use(runtime, connection)
            except BROKEN as error:
                self.say(repr(error))
            await sleep(runtime.clock, RETRY_S)
        self.done = True

    async def _use(self, runtime: Runtime, connection: ClientConnection) -> None:
        for _ in range(self._draw.randint(1, 8)):
            if self.cluster_state.calm:
                return
            self.cluster_state.checker(AddingAreNotBehind).look()
            asked = self._draw_moves()
            if asked:
                await self._ask(connection, asked)
            if self._draw.random() < LISTS:
                await self._list(connection)
            await sleep(runtime.clock, self._pause_s * 2 * self._draw.random())

    def _draw_moves(self) -> list[Asked]:
        draw, image = self._draw, self.cluster_state.cluster_history.image
        lasting = self.cluster_state.topic_outcomes.lasting
        places = [
            (topic, index)
            for topic in image.topics.values()
            if topic.name in lasting or topic.name in INTERNAL_TOPICS
            for index in range(len(topic.partitions))
        ]
        moving = [(topic, index) for topic, index in places if topic.partitions[index].is_moving]
        if moving and draw.random() < AGAIN:
            places = moving
        chosen = draw.sample(places, min(len(places), draw.choice([1, 1, 1, MOST])))
        return [self._draw_move(topic, index) for topic, index in chosen]

    def _draw_move(self, topic: TopicImage, index: int) -> Asked:
        draw, state = self._draw, topic.partitions[index]
        workers = sorted(member.config.node_id for member in self.cluster_state.workers)
        chance = draw.random()
        if chance < CANCELS:
            return Asked(topic, index, None)
        if chance < CANCELS + WRONG:
            wrong = draw.choice([(), (workers[0], workers[0]), (workers[-1], STRANGER)])
            return Asked(topic, index, wrong, is_wrong=True)
        known = list(state.target)
        others = [worker_id for worker_id in workers if worker_id not in known]
        match draw.choice(["any", "any", "any", "swap", "swap", "order", "grow", "shrink"]):
            case "swap" if others:
                known[draw.randrange(len(known))] = draw.choice(others)
            case "order":
                draw.shuffle(known)
            case "grow" if others:
                known.insert(draw.randint(0, len(known)), draw.choice(others))
            case "shrink" if len(known) > 1:
                del known[draw.randrange(len(known))]
            case _:
                known = draw.sample(workers, min(len(workers), draw.choice([1, 2, 3, 3])))
        return Asked(topic, index, tuple(known))

    async def _ask(self, connection: ClientConnection, asked: list[Asked]) -> None:
        world, has_version_1 = (
            self.cluster_state.world,
            connection.version(ApiKey.ALTER_PARTITION_REASSIGNMENTS) > 0,
        )
        keeps_factor = has_version_1 and self._draw.random() < 0.1
        checker = self.cluster_state.checker(MovesKeepCopies)
        topics: dict[str, ReassignableTopic] = {}
        for one in asked:
            checker.asked(one.topic.topic_id, one.partition, one.target, one.topic.name)
            topics.setdefault(one.topic.name, ReassignableTopic(name=one.topic.name))
            topics[one.topic.name].partitions.append(
                ReassignablePartition(
                    partition_index=one.partition,
                    replicas=None if one.target is None else list(one.target),
                )
            )
        message = AlterPartitionReassignmentsRequest(
            timeout_ms=3000,
            allow_replication_factor_change=not keeps_factor,
            topics=list(topics.values()),
        )
        self.say(f"asks to move {', '.join(map(str, asked))}")
        response = await connection.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, message)
        if response.error_code:
            self.say(f"is refused: {ErrorCode(response.error_code).name}")
            return
        codes = {
            (topic.name, row.partition_index): ErrorCode(row.error_code)
            for topic in response.responses
            for row in topic.partitions
        }
        for one in asked:
            code = codes[one.topic.name, one.partition]
            self.say(f"{one}: {code.name}")
            world.count(f"moves: {code.name}")
            if one.is_wrong:
                self.cluster_state.checker(WrongMovesAreRefused).answered(str(one), code)
            elif code is ErrorCode.NONE:
                world.count("moves cancelled" if one.target is None else "moves asked for")

    async def _list(self, connection: ClientConnection) -> None:
        message = ListPartitionReassignmentsRequest(timeout_ms=3000, topics=None)
        response = await connection.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, message)
        if response.error_code:
            raise EOFError(ErrorCode(response.error_code).name)
        checker = self.cluster_state.checker(ListedMovesExist)
        for topic in response.topics:
            for row in topic.partitions:
                checker.listed(
                    topic.name,
                    row.partition_index,
                    (
                        tuple(row.replicas),
                        tuple(row.adding_replicas),
                        tuple(row.removing_replicas),
                    ),
                )
