"""Malicious client, which claims to be a replica or produces batches with false headers.

False replicas are of two kinds. A *stranger* has not authenticated, but knows worker ids, current
broker epochs and log end offsets. A *late process* has the cluster's secret and authenticates as a
worker, but the metadata have another broker epoch for that worker: the process was paused while its
successor registered. The fetches of neither may count for the ISR or the high watermark:
`ClaimsAreRefused` checks the responses, the other checkers of replication check the effects.
ListOffsets answers a stranger as it does a consumer.
`LiesStayOut` checks that no log contains a batch with a false header.
"""

from random import Random
from typing import Any, Final

from metaquorum.dataplane.replication.replica_authentication import prove
from metaquorum.quorum.channel import ChannelIdentity, Endpoint
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.cluster.voter_group import CLUSTER_ID
from metaquorum.simulations.cluster.voter_program import SECRET
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.replication.replica_checkers import ClaimsAreRefused, LiesStayOut
from metaquorum.simulations.replication.replica_clients import ALL, TOPIC_IDS_SINCE, ReplicaClient
from metaquorum.simulations.replication.replicas import Place
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.workloads.consumer import LATEST
from metaquorum.simulations.workloads.lying_batches import REFUSAL, lying_batch
from metaquorum.wire.messages.authenticate_replica import AuthenticateReplicaRequest
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from metaquorum.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from metaquorum.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.batches import BatchHeader, parse_header

LIARS: Final = 0.25  # share of the attacks that produce
MOST_CLAIMED: Final = 10_000  # records in a lying batch
LATE_PROCESSES: Final = 0.4  # share of the other attacks, if the partition has followers
CLAIMS: Final = 8  # most requests of one connection
EPOCHS_SINCE: Final = 15  # Fetch version that has the replica's broker epoch
REPLICA_IDS_SINCE: Final = 3  # OffsetForLeaderEpoch version that has the replica id
# Added to a broker epoch; a run is too short for the metadata to reach such an epoch.
FAR: Final = 1_000_000
FUTURE_EPOCH: Final = 2**62
MADE_UP_ID: Final = 4711


class ReplicaAttacker(ReplicaClient):
    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        self._checker = cluster_state.checker(ClaimsAreRefused)
        self._lies = cluster_state.checker(LiesStayOut)

    async def run(self, runtime: Runtime) -> None:
        while not self.cluster_state.closing and not self.cluster_state.calm:
            at = self.place()
            if at is not None:
                try:
                    await self._attack(runtime, *at)
                except BROKEN as error:
                    self.say(f"{at[0]}/{at[1]}: {error!r}")
            await sleep(runtime.clock, RETRY_S * self._draw.random())
        self.done = True

    def may_attack(self, leader: int) -> bool:
        """Return whether the leader's version must refuse the attacks."""
        return True

    async def _attack(self, runtime: Runtime, name: str, place: Place) -> None:
        leader = await self.leader(runtime, name, place)
        state = self.cluster_state.cluster_history.state(
            self.cluster_state.cluster_history.history(*place)
        )
        others = [] if state is None else [r for r in state.replicas if r != leader]
        async with self.connected(runtime, leader) as connection:
            if not self.may_attack(leader):
                return
            if self._draw.random() < LIARS:
                await self._lie(runtime, connection, name, place)
                return
            proven = None
            if others and self._draw.random() < LATE_PROCESSES:
                proven = self._draw.choice(others)
                await self._prove(runtime, connection, proven, leader)
            for _ in range(self._draw.randint(1, CLAIMS)):
                if proven is not None:
                    epochs = (-1, 0, FAR + self._epoch(proven), FUTURE_EPOCH)
                    epoch = self._draw.choice(epochs)
                    await self._fetch(connection, name, place, leader, proven, epoch, "late")
                else:
                    await self._claim(connection, name, place, leader, others)
                await sleep(
                    runtime.clock, self._draw.random() * self.cluster_state.settings.think_s
                )

    async def _lie(
        self, runtime: Runtime, connection: ClientConnection, name: str, place: Place
    ) -> None:
        for _ in range(self._draw.randint(1, CLAIMS)):
            acks = self._draw.choice((ALL, 1, 0))
            data, header = self._lying_batch(runtime)
            self._lies.crcs.add(header.crc)
            row = PartitionProduceData(index=place.partition, records=data)
            topic = TopicProduceData(name=name, topic_id=place.topic_id, partition_data=[row])
            message = ProduceRequest(
                transactional_id=None, acks=acks, timeout_ms=3000, topic_data=[topic]
            )
            if acks == 0:
                await connection.send(ApiKey.PRODUCE, message, answered=False)
                continue
            answer = await connection.call(ApiKey.PRODUCE, message)
            code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
            self.say(f"a lying batch for {place}: {code.name}")
            self.cluster_state.world.count("lying batches refused", code is REFUSAL)
            self._lies.answered(
                self.cluster_state.cluster_history.history(*place), header.crc, code.name
            )

    def _lying_batch(self, runtime: Runtime) -> tuple[bytes, BatchHeader]:
        while True:
            data = lying_batch(self._draw, timestamp_ms=runtime.clock.now_ms())
            header = parse_header(memoryview(data), 0)
            # The cluster history would follow each of the two billion records that a header may
            # claim, if a worker accepted the batch by mistake.
            if header.record_count < MOST_CLAIMED:
                return data, header

    def _epoch(self, worker_id: int) -> int:
        """Return the broker epoch in the metadata, which any client can request; -1 if unknown."""
        known = self.cluster_state.cluster_history.image.workers.get(worker_id)
        return -1 if known is None else known.broker_epoch

    async def _prove(
        self, runtime: Runtime, connection: ClientConnection, worker_id: int, leader: int
    ) -> None:
        """Authenticate the connection as `worker_id`. Raises EOFError if the leader refuses."""
        endpoint = Endpoint(runtime, ChannelIdentity(CLUSTER_ID, worker_id, SECRET))
        config = self.cluster_state.members[leader].config
        dialing = prove(endpoint, leader, (str(config.advertise[0]), config.listen[1]))
        while dialing.established is None:
            message = AuthenticateReplicaRequest(auth_bytes=dialing.data_to_send())
            answer = await connection.call(ApiKey.AUTHENTICATE_REPLICA, message)
            if answer.error_code:
                raise EOFError(answer.error_message)
            dialing.receive(bytes(answer.auth_bytes))

    async def _claim(
        self,
        connection: ClientConnection,
        name: str,
        place: Place,
        leader: int,
        others: list[int],
    ) -> None:
        """Send one request of a stranger, which claims to be a replica."""
        draw = self._draw
        replica_id = draw.choice((*others, *others, leader, 0, MADE_UP_ID))
        kind = draw.random()
        if kind < 0.1:
            await self._list_offsets(connection, name, place, replica_id)
        elif kind < 0.2 and connection.version(ApiKey.OFFSET_FOR_LEADER_EPOCH) >= REPLICA_IDS_SINCE:
            await self._epoch_end(connection, name, place, replica_id)
        else:
            true_epoch = self._epoch(replica_id)
            epoch = draw.choice((true_epoch, true_epoch, true_epoch + 1, -1, FUTURE_EPOCH))
            await self._fetch(connection, name, place, leader, replica_id, epoch, "stranger")

    async def _fetch(
        self,
        connection: ClientConnection,
        name: str,
        place: Place,
        leader: int,
        replica_id: int,
        epoch: int,
        who: str,
    ) -> None:
        draw, history = self._draw, self.cluster_state.cluster_history.history(*place)
        replica = history.replicas.get(leader)
        end = 0 if replica is None else replica.end
        state = self.cluster_state.cluster_history.state(history)
        version = connection.version(ApiKey.FETCH)
        if who == "late" or draw.random() < 0.5:
            version = draw.randint(EPOCHS_SINCE, EPOCHS_SINCE + 3)
        row = FetchPartition(
            partition=place.partition,
            current_leader_epoch=-1 if state is None else draw.choice((-1, state.leader_epoch)),
            fetch_offset=draw.choice((end, end, end, end + 1, draw.randint(0, end))),
            log_start_offset=draw.choice((-1, 0, end)),
            partition_max_bytes=1 << 20,
        )
        message = FetchRequest(
            replica_id=replica_id if version < EPOCHS_SINCE else -1,
            max_wait_ms=draw.choice((0, 0, 20)),
            min_bytes=draw.choice((0, 1)),
            max_bytes=1 << 20,
            session_epoch=draw.choice((-1, -1, 0)),
            topics=[
                FetchTopic(
                    topic=name if version < TOPIC_IDS_SINCE else "",
                    topic_id=place.topic_id,
                    partitions=[row],
                )
            ],
        )
        if version >= EPOCHS_SINCE:
            message.replica_state = ReplicaState(replica_id=replica_id, replica_epoch=epoch)
        own_version = connection.version(ApiKey.FETCH)
        connection.use_version(ApiKey.FETCH, version)
        answer = await connection.call(ApiKey.FETCH, message)
        connection.use_version(ApiKey.FETCH, own_version)
        rows = [each for topic in answer.responses for each in topic.partitions]
        codes = [answer.error_code] if answer.error_code else [each.error_code for each in rows]
        kind = "late process" if who == "late" else "stranger"
        self._check_refused(place, f"a fetch v{version} as {replica_id} by a {kind}", codes, rows)

    async def _list_offsets(
        self, connection: ClientConnection, name: str, place: Place, replica_id: int
    ) -> None:
        asked = ListOffsetsPartition(partition_index=place.partition, timestamp=LATEST)
        message = ListOffsetsRequest(
            replica_id=replica_id, topics=[ListOffsetsTopic(name=name, partitions=[asked])]
        )
        answer = await connection.call(ApiKey.LIST_OFFSETS, message)
        row = answer.topics[0].partitions[0]  # a consumer's answer
        names = [ErrorCode(row.error_code).name]
        self._count(place, f"ListOffsets as {replica_id} by a stranger", names)

    async def _epoch_end(
        self, connection: ClientConnection, name: str, place: Place, replica_id: int
    ) -> None:
        asked = OffsetForLeaderPartition(partition=place.partition, leader_epoch=0)
        message = OffsetForLeaderEpochRequest(
            replica_id=replica_id, topics=[OffsetForLeaderTopic(topic=name, partitions=[asked])]
        )
        answer = await connection.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, message)
        codes = [answer.topics[0].partitions[0].error_code]
        self._check_refused(place, f"OffsetForLeaderEpoch as {replica_id} by a stranger", codes)

    def _check_refused(self, place: Place, claim: str, codes: list[int], rows: Any = ()) -> None:
        names = [ErrorCode(code).name for code in codes]
        self._count(place, claim, names)
        history = self.cluster_state.cluster_history.history(*place)
        self._checker.claimed(history, claim, names, any(bytes(row.records or b"") for row in rows))

    def _count(self, place: Place, claim: str, names: list[str]) -> None:
        self.say(f"{claim} for {place}: {names}")
        is_late = claim.endswith("late process")
        self.cluster_state.world.count(
            "claims of late processes" if is_late else "claims of strangers"
        )
