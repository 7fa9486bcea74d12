"""Reads with read_committed, checked against the true logs; readers at leaders and followers."""

from dataclasses import dataclass, field
from random import Random
from typing import Final

from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.harness.client import ClientConnection
from metaquorum.simulations.replication.partition_transactions import Aborted, stable_view
from metaquorum.simulations.replication.probes import records_of
from metaquorum.simulations.replication.replica_clients import (
    TOPIC_IDS_SINCE,
    ReplicaReader,
    WanderingReader,
)
from metaquorum.simulations.replication.replicas import Entry, Place
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.transactions.transaction_checkers import (
    AbortedIsLeftOut,
    CommittedIsShown,
)
from metaquorum.simulations.workloads.consumer import EARLIEST, LATEST
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.batches import batches

READ_COMMITTED: Final = 1
_ISOLATION_SINCE: Final = 2  # version of ListOffsets


@dataclass(slots=True)
class StableRead:
    """Result of one fetch of one partition with read_committed."""

    code: ErrorCode
    records: list[tuple[int, bytes]] = field(default_factory=list)  # those that are shown
    next_offset: int = 0
    last_stable_offset: int = -1
    high_watermark: int = -1


class StableReader(ReplicaReader):
    """Requests of all clients that read with read_committed."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        versions = self._versions
        versions[ApiKey.FETCH] = max(versions[ApiKey.FETCH], TOPIC_IDS_SINCE)
        list_offsets = ApiKey.LIST_OFFSETS
        versions[list_offsets] = max(versions[list_offsets], _ISOLATION_SINCE)

    async def stable_offset(
        self, connection: ClientConnection, name: str, partition: int, timestamp: int
    ) -> int:
        """Return an offset by ListOffsets with read_committed. Raises EOFError after an error."""
        return await self.list_offset(connection, name, partition, timestamp, READ_COMMITTED)

    async def fetch_stable(
        self, connection: ClientConnection, name: str, place: Place, offset: int, wait_ms: int
    ) -> StableRead:
        """Fetch one partition with read_committed, and check the response.

        Return the shown records, or an error. Raises an error of `BROKEN`.
        """
        row = FetchPartition(
            partition=place.partition,
            fetch_offset=offset,
            partition_max_bytes=self._draw.choice([1, 300, 1000, 1 << 20]),
        )
        topic = FetchTopic(topic=name, topic_id=place.topic_id, partitions=[row])
        message = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=READ_COMMITTED,
            topics=[topic],
        )
        response = await connection.call(ApiKey.FETCH, message)
        rows = [row for topic in response.responses for row in topic.partitions]
        if response.error_code or not rows or rows[0].error_code:
            code = ErrorCode(response.error_code or (rows[0].error_code if rows else 0))
            return StableRead(code, next_offset=offset)
        data = rows[0]
        aborted = [
            Aborted(row.producer_id, row.first_offset) for row in data.aborted_transactions or ()
        ]
        read = StableRead(
            ErrorCode.NONE,
            next_offset=offset,
            last_stable_offset=int(data.last_stable_offset),
            high_watermark=int(data.high_watermark),
        )
        self._check(memoryview(data.records or b""), aborted, place, offset, read)
        return read

    def _check(
        self,
        buffer: memoryview,
        aborted: list[Aborted],
        place: Place,
        offset: int,
        read: StableRead,
    ) -> None:
        state = self.cluster_state
        history = state.cluster_history.history(*place)
        view = stable_view(buffer, aborted, offset)
        found = records_of(buffer)
        contents = state.cluster_history.contents
        assert contents is not None
        contents.update((content.identity, content) for _, content in found)
        by_offset = {name.offset: (name, content) for name, content in found}
        for _, header in batches(buffer):
            read.next_offset = max(read.next_offset, header.next_offset)
        shown = [by_offset[each] for each in view.shown]
        checker = state.checker(AbortedIsLeftOut)
        last = max(by_offset, default=-1)
        checker.bounds(history, read.last_stable_offset, read.high_watermark, last, self.name)
        checker.left_out(history, [by_offset[each][0] for each in view.left_out], self.name)
        state.checker(CommittedIsShown).shown(
            history,
            [(Entry(name, content.identity), content.text) for name, content in shown],
            self.name,
        )
        read.records = [(name.offset, content.text) for name, content in shown]


class StableConsumer(StableReader, WanderingReader):
    """Consumer of one partition for a while, then another, at leaders and at followers."""

    def __init__(
        self,
        cluster_state: ReplicatedClusterState,
        name: str,
        draw: Random,
        favourite: str,
    ) -> None:
        """Create the consumer, which reads the topic `favourite` more often than others."""
        super().__init__(cluster_state, name, draw)
        self._favourite = favourite

    def _next_place(self) -> tuple[str, Place] | None:
        found = self.cluster_state.topic_outcomes.lasting.get(self._favourite)
        if found is None or self._draw.random() < 0.5:
            return self.place()
        return self._favourite, Place(found[0], self._draw.randrange(found[1]))

    async def _replica(self, runtime: Runtime, name: str, place: Place) -> tuple[int, bool]:
        """Return a replica to read from, and whether it was the leader."""
        leader = await self.leader(runtime, name, place)
        state = self.cluster_state.cluster_history.state(
            self.cluster_state.cluster_history.history(*place)
        )
        others = [] if state is None else [each for each in state.isr if each != leader]
        if others and self._draw.random() < 0.4:
            return self._draw.choice(others), False
        return leader, True

    async def _follow(self, runtime: Runtime, name: str, place: Place) -> None:
        worker_id, is_leader = await self._replica(runtime, name, place)
        async with self.connected(runtime, worker_id) as connection:
            for _ in range(self._draw.randint(1, 10)):
                if self.cluster_state.calm or self.is_over(name, place):
                    return
                if self._draw.random() < 0.2:
                    self._offsets[place] = 0
                offset = self._offsets.get(place, 0)
                wait_ms = self._draw.choice([0, 20, 200])
                if wait_ms == 0:
                    await sleep(runtime.clock, self._draw.random() * 0.05)
                read = await self.fetch_stable(connection, name, place, offset, wait_ms)
                if read.code is ErrorCode.OFFSET_OUT_OF_RANGE and is_leader:
                    first = self._draw.choice([EARLIEST, LATEST])
                    offset = await self.stable_offset(connection, name, place.partition, first)
                    self._offsets[place] = offset
                elif read.code is not ErrorCode.NONE:
                    raise EOFError(read.code.name)
                else:
                    self._offsets[place] = read.next_offset
                    where = "leaders" if is_leader else "followers"
                    count = self.cluster_state.world.count
                    count(f"read_committed records from {where}", len(read.records))
