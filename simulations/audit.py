"""When all is over: what can be read, from start to end, and whether lookups find it."""

import trio

from metaquorum.runtime import Runtime, sleep
from simulations.checkers.log_files import LookupsFindEverything
from simulations.client import BROKEN, ClientConnection
from simulations.consumer import end_of, fetch_request, take_records
from simulations.history import Final, PartitionOf, Read, Topic
from simulations.room import Room
from wire.apis import ApiKey
from wire.errors import ErrorCode
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

# After the last fault healed, everything must be readable within so many virtual seconds.
LIVENESS_S = 60.0
_RETRY_S = 0.2
_EARLIEST = -2
_LATEST = -1


class Auditor:
    def __init__(self, room: Room) -> None:
        self.room = room
        self._draw = room.world.stream("audit")
        self._lookups = room.checker(LookupsFindEverything)

    async def run(self, runtime: Runtime) -> None:
        with trio.move_on_after(LIVENESS_S) as limit:
            for topic in list(self.room.history.topics.values()):
                for partition in range(topic.partitions):
                    if not topic.delete_asked:
                        await self._audit(runtime, topic, partition)
        if limit.cancelled_caught:
            self.room.world.violate("liveness", f"not readable {LIVENESS_S:.0f} s after the faults")

    async def _audit(self, runtime: Runtime, topic: Topic, partition: int) -> None:
        while not self.room.world.violations:
            try:
                connection = await self.room.connect(runtime, "auditor", self._draw)
                try:
                    if await self._audit_over(connection, topic, partition):
                        return
                finally:
                    connection.close()
            except BROKEN as error:
                self.room.world.say("auditor", f"{topic}-{partition}: {error!r}")
            await sleep(runtime.clock, _RETRY_S)

    async def _audit_over(self, connection: ClientConnection, topic: Topic, partition: int) -> bool:
        start = await self._list(connection, topic, partition, _EARLIEST)
        end = await self._list(connection, topic, partition, _LATEST)
        if start is None or end is None:
            return False
        final = Final(topic, partition, start, end, began_at=self.room.world.now)
        offset = start
        while offset < end:
            reads, next_offset = await self._fetch(connection, topic, partition, offset, 1 << 20)
            if next_offset == offset:
                return False
            final.reads += reads
            offset = next_offset
        final.ended_at = self.room.world.now
        if not topic.is_compacted:  # the cleaner may be at work
            await self._look_up(connection, final)
        place = PartitionOf(topic.topic_id, partition)
        self.room.history.finals[place] = final
        self.room.world.say("auditor", f"{topic}-{partition}: {len(final.reads)} in {start}..{end}")
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
            self.room.world.say("auditor", f"list offsets of {topic}-{partition}: {code}")
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
        """What was read, and where to go on: at the same offset where nothing came."""
        request = fetch_request(
            [(topic, partition, offset)],
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=max_bytes,
            partition_max_bytes=max_bytes,
        )
        response = await connection.call(ApiKey.FETCH, request)
        if response.error_code or not response.responses:
            return [], offset
        data = response.responses[0].partitions[0]
        if data.error_code:
            code = ErrorCode(data.error_code).name
            self.room.world.say("auditor", f"fetch of {topic}-{partition} at {offset}: {code}")
            return [], offset
        return take_records(self.room, topic, partition, offset, data), end_of(data, offset)

    async def _look_up(self, connection: ClientConnection, final: Final) -> None:
        """From a few places in the middle, by offset and by time."""
        for _ in range(min(3, len(final.reads))):
            wanted = self._draw.choice(final.reads)
            reads, _ = await self._fetch(connection, final.topic, final.partition, wanted.offset, 1)
            self._lookups.by_offset(final, wanted.offset, reads)
            found = await self._list(connection, final.topic, final.partition, wanted.timestamp_ms)
            self._lookups.by_time(final, wanted.timestamp_ms, found)
