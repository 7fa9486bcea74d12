"""Consumers that fetch from the replica in their rack, as the leader directs them (KIP-392).

    at leader --preferred_read_replica--> at follower --error, or after 12 fetches--> at leader

The consumer keeps its position when it changes the replica. Only the leader can refuse a position:
after OFFSET_OUT_OF_RANGE from a follower the consumer asks the leader, as the Java client does.
"""

from random import Random
from typing import Final

from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_setup import rack_of
from metaquorum.simulations.cluster.cluster_state import ClusterChecker
from metaquorum.simulations.harness.client import ClientConnection
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replica_clients import Read, ReplicaConsumer
from metaquorum.simulations.replication.replicas import PartitionHistory, Place
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.workloads.consumer import EARLIEST, LATEST
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

_RACKS_SINCE: Final = 11  # Fetch version that has the rack id
_FETCHES: Final = 12  # most fetches from one replica in a row


class PreferredIsNear(WatchingChecker):
    """The preferred read replica is another replica of the partition, in the consumer's rack."""

    invariant = "R13"

    def named(
        self, history: PartitionHistory, leader: int, preferred: int, rack: str, racks: int
    ) -> None:
        state = self.cluster_history.state(history)
        self.compare(
            preferred != leader
            and rack_of(preferred, racks) == rack
            and (state is None or preferred in state.replicas),
            "{}: leader {} sends a consumer in {} to worker {}; partition state: {}",
            history,
            leader,
            rack,
            preferred,
            state,
        )


class PositionsStayValid(WatchingChecker):
    """A leader refuses a position that a consumer reached by reading only if records are missing.

    They were deleted or expired, or committed records were lost for an accepted reason. Otherwise
    the log of each later leader contains the position.
    """

    invariant = "R13"

    def out_of_range(self, history: PartitionHistory, leader: int, offset: int) -> None:
        self.compare(
            offset < history.deleted_to or bool(history.lost_records) or history.was_unclean,
            "{}: worker {} refuses the position {} of a consumer; records are deleted before {}",
            history,
            leader,
            offset,
            history.deleted_to,
        )


NEAR_CHECKERS: Final[tuple[type[ClusterChecker], ...]] = (PreferredIsNear, PositionsStayValid)


class NearConsumer(ReplicaConsumer):
    """Consumer of one partition for a while, then another, at the replicas the leaders prefer."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        versions = self._versions
        versions[ApiKey.FETCH] = max(versions[ApiKey.FETCH], _RACKS_SINCE)
        self._rack = f"rack-{draw.randrange(cluster_state.settings.racks)}"
        self._epochs: dict[Place, int] = {}  # newest leader epoch in received metadata
        # Partitions whose position was reached by reading, not by ListOffsets.
        self._has_read: set[Place] = set()

    async def _leader_and_epoch(self, runtime: Runtime, name: str, place: Place) -> tuple[int, int]:
        """Return leader and leader epoch. Raises EOFError if a newer epoch is known (KIP-320)."""
        async with self.connected(runtime) as connection:
            response = await self.metadata(connection, name)
        for topic in response.topics:
            for row in topic.partitions if topic.topic_id == place.topic_id else ():
                if row.partition_index == place.partition:
                    if row.leader_epoch < self._epochs.get(place, -1):
                        raise EOFError(f"metadata of epoch {row.leader_epoch}")
                    self._epochs[place] = row.leader_epoch
                    return row.leader_id, row.leader_epoch
        raise EOFError("no such partition")

    async def _follow(self, runtime: Runtime, name: str, place: Place) -> None:
        leader, epoch = await self._leader_and_epoch(runtime, name, place)
        preferred = await self._at_leader(runtime, name, place, leader, epoch)
        if preferred >= 0:
            await self._at_follower(runtime, name, place, preferred, epoch)

    def _is_done(self, name: str, place: Place) -> bool:
        return self.cluster_state.calm or self.is_over(name, place)

    async def _read(
        self,
        connection: ClientConnection,
        runtime: Runtime,
        name: str,
        place: Place,
        epoch: int,
    ) -> Read:
        wait_ms = self._draw.choice([0, 20, 200])
        offset = self._offsets.get(place, 0)
        read = await self.fetch(
            connection, name, place, offset, wait_ms, rack=self._rack, leader_epoch=epoch
        )
        if read.code is ErrorCode.NONE and read.preferred_read_replica < 0:
            self._offsets[place] = read.next_offset
            if read.next_offset > offset:
                self._has_read.add(place)
        if wait_ms == 0:
            await sleep(runtime.clock, self._draw.random() * 0.05)
        return read

    async def _at_leader(
        self, runtime: Runtime, name: str, place: Place, leader: int, epoch: int
    ) -> int:
        """Fetch from the leader; return the preferred read replica, or -1 if there is none."""
        cluster_state = self.cluster_state
        history = cluster_state.cluster_history.history(*place)
        async with self.connected(runtime, leader) as connection:
            for _ in range(_FETCHES):
                if self._is_done(name, place):
                    break
                read = await self._read(connection, runtime, name, place, epoch)
                if read.preferred_read_replica >= 0:
                    preferred = read.preferred_read_replica
                    checker = cluster_state.checker(PreferredIsNear)
                    checker.named(
                        history, leader, preferred, self._rack, cluster_state.settings.racks
                    )
                    return preferred
                if read.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    if place in self._has_read and not self.is_over(name, place):
                        offset = self._offsets[place]
                        cluster_state.checker(PositionsStayValid).out_of_range(
                            history, leader, offset
                        )
                    first = self._draw.choice([EARLIEST, LATEST])
                    start = await self.list_offset(connection, name, place.partition, first)
                    self._offsets[place] = start
                    self._has_read.discard(place)
                elif read.code is not ErrorCode.NONE:
                    raise EOFError(read.code.name)
        return -1

    async def _at_follower(
        self, runtime: Runtime, name: str, place: Place, worker_id: int, epoch: int
    ) -> None:
        async with self.connected(runtime, worker_id) as connection:
            for _ in range(_FETCHES):
                if self._is_done(name, place):
                    return
                before = self._offsets.get(place, 0)
                read = await self._read(connection, runtime, name, place, epoch)
                if read.code is not ErrorCode.NONE:
                    self.cluster_state.world.count("followers left for the leader")
                    self.say(f"{name}/{place} at worker {worker_id}: {read.code.name}")
                    return
                if read.next_offset > before:
                    self.cluster_state.world.count("fetches from followers that gave records")
