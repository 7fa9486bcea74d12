"""Clients of a cluster: they know all workers, find leaders by Metadata, and record responses."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Final

from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_checkers import (
    AnswersHold,
    AnswersInTheirOrder,
    CreatedIsVisible,
    RecordsAreKept,
)
from metaquorum.simulations.cluster.cluster_state import ClusterState
from metaquorum.simulations.harness.client import BROKEN, ClientConnection, connect, draw_versions
from metaquorum.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from metaquorum.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from metaquorum.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from metaquorum.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.records import Record, decode_records, encode_batch, parse_header

RETRY_S: Final = 0.05
# Timeout of a change, in seconds.
PATIENCE_S: Final = 3.0
_LATEST: Final = -1
_CONFIGS: Final = {"flush.messages": "1", "internal.segment.bytes": "4096"}
# Errors after which a client does not know whether the change was made, or will be.
_AMBIGUOUS: Final = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR)


class ClusterClient:
    def __init__(self, cluster_state: ClusterState, name: str, draw: Random) -> None:
        self.cluster_state = cluster_state
        self.name = name
        self.done = False
        # Worker of the last connection, and number of connections.
        self.worker_id = -1
        self.connections = 0
        self._draw = draw
        self._versions = draw_versions(draw)

    def say(self, text: str) -> None:
        self.cluster_state.world.say(self.name, text)

    @asynccontextmanager
    async def connected(
        self, runtime: Runtime, worker_id: int | None = None
    ) -> AsyncIterator[ClientConnection]:
        """Hold a connection to a worker, a random one if None. Raises an error of `BROKEN`."""
        known = {worker.config.node_id: worker for worker in self.cluster_state.workers}
        if worker_id is None:
            worker_id = self._draw.choice(sorted(known))
        elif worker_id not in known:
            raise EOFError("the partition has no leader")
        address = known[worker_id].name, known[worker_id].config.listen[1]
        order = self.cluster_state.checker(AnswersInTheirOrder)
        connection = await connect(runtime, address, self.name, dict(self._versions), order)
        self.worker_id, self.connections = worker_id, self.connections + 1
        try:
            yield connection
        finally:
            connection.close()

    async def metadata(self, connection: ClientConnection, name: str) -> MetadataResponse:
        """Return the Metadata response of one topic."""
        topic = MetadataRequestTopic(name=name)
        message = MetadataRequest(topics=[topic], allow_auto_topic_creation=False)
        response: MetadataResponse = await connection.call(ApiKey.METADATA, message)
        return response

    @staticmethod
    def leader_of(response: MetadataResponse, name: str, partition: int) -> int:
        for topic in response.topics:
            for each in topic.partitions if topic.name == name else ():
                if each.partition_index == partition:
                    return int(each.leader_id)
        return -1


class Administrator(ClusterClient):
    """Administrator that creates and deletes topics, each name once, through any worker."""

    def __init__(self, cluster_state: ClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        self._made = 0

    async def run(self, runtime: Runtime) -> None:
        while not self.cluster_state.closing:
            changes_left = self._made < self.cluster_state.settings.changes
            if (
                self.cluster_state.calm
                and not changes_left
                and self.cluster_state.topic_outcomes.lasting
            ):
                break
            try:
                async with self.connected(runtime) as connection:
                    await self._use(runtime, connection)
            except BROKEN as error:
                self.say(f"connection lost: {error!r}")
            await sleep(runtime.clock, RETRY_S)
        self.done = True

    async def _use(self, runtime: Runtime, connection: ClientConnection) -> None:
        for _ in range(self._draw.randint(1, 5)):
            lasting = self.cluster_state.topic_outcomes.lasting
            if len(lasting) > 2 and self._draw.random() < 0.4:
                await self._delete(connection, self._draw.choice(sorted(lasting)))
            elif self._made < self.cluster_state.settings.changes or not lasting:
                await self._create(connection)
            await sleep(runtime.clock, self._draw.random() * self.cluster_state.settings.think_s)

    async def _create(self, connection: ClientConnection) -> None:
        self._made += 1
        name, partitions = f"{self.name}-{self._made}", self._draw.choice([1, 2, 4])
        await self._ask_creation(connection, name, partitions, 1, _CONFIGS)

    async def _ask_creation(
        self,
        connection: ClientConnection,
        name: str,
        partitions: int,
        replicas: int,
        overrides: Mapping[str, str],
    ) -> bytes | None:
        """Create a topic; return its id, or None if the response has an error."""
        topic_outcomes, world = self.cluster_state.topic_outcomes, self.cluster_state.world
        topic_outcomes.asked.add(name)
        was_unclear = name in topic_outcomes.unclear
        topic_outcomes.unclear.add(name)  # until the answer says which
        for outcomes in (
            topic_outcomes.deletion_asked,
            topic_outcomes.deleted,
            topic_outcomes.refused,
        ):  # outcomes of an earlier topic with this name
            outcomes.discard(name)
        topic_outcomes.created.pop(name, None)
        configs = [CreatableTopicConfig(name=key, value=text) for key, text in overrides.items()]
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replicas, configs=configs
        )
        message = CreateTopicsRequest(topics=[topic], timeout_ms=round(PATIENCE_S * 1000))
        asked_at = world.now
        answer = (await connection.call(ApiKey.CREATE_TOPICS, message)).topics[0]
        code = ErrorCode(answer.error_code)
        self.say(f"creates {name}: {code.name} {answer.error_message}")
        world.count(f"create: {code.name}")
        if was_unclear and code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return None  # an earlier request has created it
        self.cluster_state.checker(AnswersHold).answered(name, code)
        if code not in _AMBIGUOUS:
            topic_outcomes.unclear.discard(name)
        if code is ErrorCode.NONE:
            topic_id = bytes(answer.topic_id)
            topic_outcomes.created[name] = topic_id, partitions
            world.count("topics created")
            world.count("commits")
            if world.now - asked_at > PATIENCE_S / 2:  # a late response may precede visibility
                return topic_id
            shown = await self.metadata(connection, name)
            names = {each.name or "": bytes(each.topic_id) for each in shown.topics}
            # Another administrator may have deleted the topic, and created another of its name.
            is_still_wanted = topic_outcomes.created.get(name) == (topic_id, partitions)
            if is_still_wanted and name not in topic_outcomes.deletion_asked:
                self.cluster_state.checker(CreatedIsVisible).shown(name, topic_id, names)
            return topic_id
        if code not in _AMBIGUOUS:
            topic_outcomes.refused.add(name)
        return None

    async def _delete(self, connection: ClientConnection, name: str) -> None:
        topic_outcomes = self.cluster_state.topic_outcomes
        topic_outcomes.deletion_asked.add(name)
        topic_id = topic_outcomes.created[name][0]
        by_id = connection.version(ApiKey.DELETE_TOPICS) >= 6
        message = DeleteTopicsRequest(
            topics=[DeleteTopicState(topic_id=topic_id)] if by_id else [],
            topic_names=[name],
            timeout_ms=3000,
        )
        answer = (await connection.call(ApiKey.DELETE_TOPICS, message)).responses[0]
        code = ErrorCode(answer.error_code)
        self.say(f"deletes {name}: {code.name}")
        if code is ErrorCode.NONE:
            topic_outcomes.deleted.add(name)
            self.cluster_state.world.count("topics deleted")
            self.cluster_state.world.count("commits")


class ClusterProducer(ClusterClient):
    """Producer that sends each record once, without retries."""

    def __init__(self, cluster_state: ClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        self._left = cluster_state.settings.records
        self._written = 0

    async def run(self, runtime: Runtime) -> None:
        """Send all records, and, after the faults, one record to each existing partition."""
        while self._left > 0 and not self.cluster_state.calm and not self.cluster_state.closing:
            lasting = self.cluster_state.topic_outcomes.lasting
            if lasting:
                name = self._draw.choice(sorted(lasting))
                self._left -= 1
                await self._try(runtime, name, self._draw.randrange(lasting[name][1]))
            await sleep(runtime.clock, RETRY_S + self._draw.random() * 0.1)
        while not self.cluster_state.calm and not self.cluster_state.closing:
            await sleep(runtime.clock, RETRY_S)
        for name, (_, partitions) in self.cluster_state.topic_outcomes.lasting.items():
            for partition in range(partitions):
                while (
                    name in self.cluster_state.topic_outcomes.lasting
                    and not self.cluster_state.closing
                ):
                    if await self._try(runtime, name, partition):
                        break
                    await sleep(runtime.clock, RETRY_S)
        self.done = True

    async def _try(self, runtime: Runtime, name: str, partition: int) -> bool:
        """Send a record; return whether it was acknowledged."""
        try:
            async with self.connected(runtime) as connection:
                leader = self.leader_of(await self.metadata(connection, name), name, partition)
            async with self.connected(runtime, leader) as connection:
                return await self._write(runtime, connection, name, partition)
        except BROKEN as error:
            self.say(f"{name}-{partition}: {error!r}")
            return False

    async def _write(
        self, runtime: Runtime, connection: ClientConnection, name: str, partition: int
    ) -> bool:
        self._written += 1
        value = f"{name}-{partition} {self.name} {self._written}".encode()
        record = Record(0, runtime.clock.now_ms(), None, value, ())
        data = PartitionProduceData(index=partition, records=encode_batch([record]))
        topic_id = self.cluster_state.topic_outcomes.created[name][0]
        topic = TopicProduceData(name=name, topic_id=topic_id, partition_data=[data])
        message = ProduceRequest(
            transactional_id=None, acks=-1, timeout_ms=3000, topic_data=[topic]
        )
        response = await connection.call(ApiKey.PRODUCE, message)
        answer = response.responses[0].partition_responses[0]
        code = ErrorCode(answer.error_code)
        self.cluster_state.world.count(f"produce: {code.name}")
        if code is not ErrorCode.NONE:
            self.say(f"{name}-{partition}: {code.name}")
            return False
        self.say(f"wrote {name}-{partition} at {answer.base_offset}")
        self.cluster_state.checker(RecordsAreKept).acked[value] = (
            name,
            partition,
            answer.base_offset,
        )
        self.cluster_state.world.count("acknowledged records")
        return True


class Inspector(ClusterClient):
    """Client that reads all partitions of all existing topics."""

    def __init__(self, cluster_state: ClusterState, draw: Random) -> None:
        super().__init__(cluster_state, "inspector", draw)
        self.found: dict[tuple[str, int], list[tuple[int, bytes]]] = {}

    async def run(self, runtime: Runtime) -> None:
        for name, (_, partitions) in self.cluster_state.topic_outcomes.lasting.items():
            for partition in range(partitions):
                while (
                    name,
                    partition,
                ) not in self.found and not self.cluster_state.world.violations:
                    try:
                        await self._read(runtime, name, partition)
                    except BROKEN as error:
                        self.say(f"{name}-{partition}: {error!r}")
                        await sleep(runtime.clock, RETRY_S)

    async def _read(self, runtime: Runtime, name: str, partition: int) -> None:
        async with self.connected(runtime) as connection:
            leader = ClusterClient.leader_of(await self.metadata(connection, name), name, partition)
        async with self.connected(runtime, leader) as connection:
            end = await self._end(connection, name, partition)
            records: list[tuple[int, bytes]] = []
            offset = 0
            while offset < end:
                fetched = await self._fetch(connection, name, partition, offset)
                if not fetched:
                    raise EOFError(f"nothing at {offset}, before {end}")
                records += fetched
                offset = fetched[-1][0] + 1
        self.found[name, partition] = records
        self.cluster_state.world.count("records read", len(records))

    async def _end(self, connection: ClientConnection, name: str, partition: int) -> int:
        asked = ListOffsetsPartition(partition_index=partition, timestamp=_LATEST)
        topic = ListOffsetsTopic(name=name, partitions=[asked])
        message = ListOffsetsRequest(replica_id=-1, topics=[topic])
        response = await connection.call(ApiKey.LIST_OFFSETS, message)
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise EOFError(ErrorCode(answer.error_code).name)
        return int(answer.offset)

    async def _fetch(
        self, connection: ClientConnection, name: str, partition: int, offset: int
    ) -> list[tuple[int, bytes]]:
        asked = FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        topic_id = self.cluster_state.topic_outcomes.created[name][0]
        topic = FetchTopic(topic=name, topic_id=topic_id, partitions=[asked])
        message = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[topic])
        response = await connection.call(ApiKey.FETCH, message)
        if response.error_code or not response.responses:
            raise EOFError(ErrorCode(response.error_code).name)
        data = response.responses[0].partitions[0]
        if data.error_code:
            raise EOFError(ErrorCode(data.error_code).name)
        buffer, position = memoryview(data.records or b""), 0
        found: list[tuple[int, bytes]] = []
        while position < len(buffer):
            for record in decode_records(buffer, position):
                if record.offset >= offset:
                    found.append((record.offset, bytes(record.value or b"")))
            position += parse_header(buffer, position).batch_bytes
        return found
