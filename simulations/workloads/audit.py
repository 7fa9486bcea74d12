"""Audit at the end of a run: read every log from start to end, and compare look-ups with it."""

import trio

from metaquorum.runtime import Runtime, sleep
from metaquorum.simulations.checkers.deletion import DeletedStaysDeleted
from metaquorum.simulations.checkers.delivery import SessionsDeliverEverything
from metaquorum.simulations.checkers.log_files import LookupsFindEverything
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.harness.environment import Environment
from metaquorum.simulations.harness.history import Final, PartitionOf, Read, Topic
from metaquorum.simulations.workloads.consumer import (
    EARLIEST,
    LATEST,
    Asked,
    end_of,
    fetch_request,
    list_offset,
    take_records,
)
from metaquorum.simulations.workloads.session_consumer import SessionConsumer
from metaquorum.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

# Virtual seconds after the last fault within which everything must be readable.
LIVENESS_S = 60.0
YOUNGEST = -3
_YOUNGEST_SINCE = 7
_RETRY_S = 0.2
# Look-ups in a partition with damaged indexes; three in others.
LOOKUPS = 30


class Auditor:
    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._draw = environment.world.stream("audit")
        self._lookups = environment.checker(LookupsFindEverything)
        self._deleted = environment.checker(DeletedStaysDeleted)

    async def run(self, runtime: Runtime) -> None:
        with trio.move_on_after(LIVENESS_S) as limit:
            for topic in list(self.environment.history.topics.values()):
                for partition in range(topic.partitions):
                    if not topic.delete_asked:
                        await self._audit(runtime, topic, partition)
        if limit.cancelled_caught:
            self.environment.world.violate(
                "liveness", f"not readable {LIVENESS_S:.0f} s after the faults"
            )

    async def _audit(self, runtime: Runtime, topic: Topic, partition: int) -> None:
        rotten = self.environment.history.rotten.get(PartitionOf(topic.topic_id, partition), [])
        if any(rot.in_header for rot in rotten):
            return  # the length of the damaged batch is unknown
        while not self.environment.world.violations:
            try:
                connection = await self.environment.connect(runtime, "auditor", self._draw)
                try:
                    if await self._audit_over(connection, topic, partition):
                        return
                    if rotten:  # damage may take a whole partition offline
                        self.environment.world.count("rotten partitions out of service")
                        return
                finally:
                    connection.close()
            except BROKEN as error:
                self.environment.world.say("auditor", f"{topic}-{partition}: {error!r}")
            await sleep(runtime.clock, _RETRY_S)

    async def _audit_over(self, connection: ClientConnection, topic: Topic, partition: int) -> bool:
        asked = Asked.now(self.environment)
        start = await self._list(connection, topic, partition, EARLIEST)
        if start is not None:
            self._deleted.begins(topic.topic_id, topic.name, partition, start, *asked)
        end = await self._list(connection, topic, partition, LATEST)
        if start is None or end is None:
            return False
        final = Final(topic, partition, start, end, began_at=self.environment.world.now)
        offset = start
        while offset < end:
            reads, next_offset = await self._fetch(connection, topic, partition, offset, 1 << 20)
            if next_offset == offset:
                return False
            final.reads += reads
            offset = next_offset
        final.ended_at = self.environment.world.now
        place = PartitionOf(topic.topic_id, partition)
        # The cleaner may be running; and look-ups by time do not find damaged batches.
        if not topic.is_compacted and place not in self.environment.history.rotten:
            await self._look_up(connection, final)
        self.environment.history.finals[place] = final
        self.environment.world.say(
            "auditor", f"{topic}-{partition}: {len(final.reads)} in {start}..{end}"
        )
        return True

    async def _list(
        self, connection: ClientConnection, topic: Topic, partition: int, timestamp: int
    ) -> int | None:
        asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        message = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=topic.name, partitions=[asked])]
        )
        response = await connection.call(ApiKey.LIST_OFFSETS, message)
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            code = ErrorCode(answer.error_code).name
            self.environment.world.say("auditor", f"list offsets of {topic}-{partition}: {code}")
            return None
        return int(answer.offset)

    async def _fetch(
        self,
        connection: ClientConnection,
        topic: Topic,
        partition: int,
        offset: int,
        max_bytes: int,
    ) -> tuple[list[Read], int]:
        """Return the records read, and the next fetch offset: the same one if there were none."""
        request = fetch_request(
            [(topic, partition, offset)],
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=max_bytes,
            partition_max_bytes=max_bytes,
        )
        asked = Asked.now(self.environment)
        response = await connection.call(ApiKey.FETCH, request)
        if response.error_code or not response.responses:
            return [], offset
        data = response.responses[0].partitions[0]
        if data.error_code:
            code = ErrorCode(data.error_code).name
            self.environment.world.say(
                "auditor", f"fetch of {topic}-{partition} at {offset}: {code}"
            )
            return [], offset
        reads = take_records(self.environment, topic, partition, offset, data, asked)
        return reads, end_of(data, offset)

    async def _look_up(self, connection: ClientConnection, final: Final) -> None:
        """Look up a few records by offset and by time; retention may delete them meanwhile."""
        draw, topic, partition = self._draw, final.topic, final.partition
        by_offset: list[tuple[int, list[Read]]] = []
        by_time: list[tuple[int, int | None]] = []
        count = LOOKUPS if self.environment.history.rotten_indexes else 3
        for _ in range(min(count, len(final.reads))):
            offset = draw.choice(final.reads).offset
            reads, _ = await self._fetch(connection, topic, partition, offset, 1)
            by_offset.append((offset, reads))
        times = [read.timestamp_ms for read in final.reads]
        around = [draw.choice(times) + draw.randint(-2, 2) for _ in range(count)] if times else []
        between = [draw.randint(min(times) - 9, max(times) + 9) for _ in range(4)] if times else [0]
        for timestamp in [*around, *between]:
            found = await self._list(connection, topic, partition, timestamp)
            by_time.append((timestamp, found))
        youngest = None
        if connection.version(ApiKey.LIST_OFFSETS) >= _YOUNGEST_SINCE:
            youngest = await self._list(connection, topic, partition, YOUNGEST)
        if await self._list(connection, topic, partition, EARLIEST) != final.log_start_offset:
            return
        for offset, reads in by_offset:
            self._lookups.by_offset(final, offset, reads)
        for timestamp, found in by_time:
            self._lookups.by_time(final, timestamp, found)
        if youngest is not None:
            self._lookups.youngest(final, youngest)


class Overseer:
    """Checks that consumers with sessions get all readable records once no producer writes."""

    def __init__(self, environment: Environment, consumers: list[SessionConsumer]) -> None:
        self.environment = environment
        self._consumers = consumers
        self._draw = environment.world.stream("overseer")
        self._delivered = environment.checker(SessionsDeliverEverything)

    async def run(self, runtime: Runtime) -> None:
        missing: list[str] = ["all"]
        with trio.move_on_after(LIVENESS_S):
            while missing and not self.environment.world.violations:
                try:
                    connection = await self.environment.connect(runtime, "overseer", self._draw)
                    try:
                        missing = await self._missing(connection)
                    finally:
                        connection.close()
                except BROKEN as error:
                    self.environment.world.say("overseer", repr(error))
                await sleep(runtime.clock, _RETRY_S)
        self._delivered.waited(missing, LIVENESS_S)

    async def _missing(self, connection: ClientConnection) -> list[str]:
        missing = []
        for topic in self.environment.history.live_topics:
            for partition in range(topic.partitions):
                place = PartitionOf(topic.topic_id, partition)
                if place in self.environment.history.rotten:
                    continue
                end = await list_offset(connection, topic, partition, LATEST)
                missing += [
                    f"{consumer.name}: {topic}-{partition} from {consumer.position(place)} to {end}"
                    for consumer in self._consumers
                    if (end is None or consumer.position(place) < end) and not topic.delete_asked
                ]
        return missing
