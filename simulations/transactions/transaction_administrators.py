"""The administrator of the topics, and the auditor that reads everything at the end."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from metaquorum.dataplane.coordinators.transaction.transaction import MAX_EPOCH
from metaquorum.metadata.internal_topics import INTERNAL_TOPICS
from metaquorum.quorum.controller.features import UpgradeType
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.replication.cleanup_clients import CleanupAdministrator
from metaquorum.simulations.replication.replica_checkers import MIN_ISR
from metaquorum.simulations.replication.replicas import Place
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.replication.replication_scenario import AnyClient
from metaquorum.simulations.transactions.chains import INPUT, OUTPUT, ChainMember, read_positions
from metaquorum.simulations.transactions.transaction_checkers import (
    AllOrNothing,
    CommittedIsShown,
    ExactlyOnce,
    SumIsTheSame,
    TransactionsEnd,
)
from metaquorum.simulations.transactions.transactional_clients import (
    TRANSACTION_VERSION,
    CrashError,
    RefusedError,
    TransactionalClient,
)
from metaquorum.simulations.transactions.transactional_producers import ACCOUNTS
from metaquorum.simulations.workloads.consumer import EARLIEST, LATEST
from metaquorum.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from metaquorum.wire.messages.describe_transactions import DescribeTransactionsRequest
from metaquorum.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from metaquorum.wire.messages.list_transactions import ListTransactionsRequest
from metaquorum.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from metaquorum.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

PLAIN: Final = "plain"
COMPACTED: Final = "compacted"
EXPIRING: Final = "expiring"
# Partitions and configs of each topic.
TOPICS: Final[Mapping[str, tuple[int, Mapping[str, str]]]] = {
    PLAIN: (2, {}),
    COMPACTED: (2, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}),
    EXPIRING: (2, {"retention.bytes": "3000"}),
    ACCOUNTS: (3, {}),
    INPUT: (2, {}),
    OUTPUT: (2, {}),
}
LEVELS: Final = (0, 1, 2)
# After the longest timeout, by a clock that may be slow: abort, markers, high watermark.
BOUND_S: Final = 8.0
SLOWEST: Final = 0.7  # rate of the slowest clock


class TransactionAdministrator(CleanupAdministrator):
    """Creates the topics; then moves leaders and coordinators, and changes levels under load."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        self._small = draw.choice(["700", "2000", "100000"])
        self.level_changes = draw.choice([0.0, 0.2, 0.4])

    async def _use(self, runtime: Runtime, connection: ClientConnection) -> None:
        self._runtime = runtime
        left = [name for name in TOPICS if name not in self.cluster_state.topic_outcomes.created]
        for name in left:
            await self._create_as(connection, name)
        if not left and self._made < self.cluster_state.settings.changes:
            await self._change(connection, sorted(TOPICS))
            pause_s = self.cluster_state.settings.fault_s / self.cluster_state.settings.changes
            await sleep(runtime.clock, self._draw.random() * 2 * pause_s)

    async def _create_as(self, connection: ClientConnection, name: str) -> None:
        partitions, configs = TOPICS[name]
        replicas = min(3, len(self.cluster_state.workers))
        least = self._draw.choice([1, 2]) if replicas > 1 else 1
        overrides = {
            MIN_ISR: str(least),
            "internal.segment.bytes": self._small,
            "retention.ms": "-1",
            "delete.retention.ms": self._draw.choice(["100", "86400000"]),
            **configs,
        }
        if self._draw.random() < self.cluster_state.settings.flushed:
            overrides["flush.messages"] = "1"
        topic_id = await self._ask_creation(connection, name, partitions, replicas, overrides)
        if topic_id is not None:
            self._made_as(topic_id, partitions, least, overrides)
        elif name not in self.cluster_state.topic_outcomes.refused:
            await self._learn(connection, name)

    async def _learn(self, connection: ClientConnection, name: str) -> None:
        """Learn the id of a topic whose creation had an unclear outcome."""
        for topic in (await self.metadata(connection, name)).topics:
            if topic.name == name and not topic.error_code:
                found = bytes(topic.topic_id), len(topic.partitions)
                self.cluster_state.topic_outcomes.created[name] = found

    async def _change(self, connection: ClientConnection, lasting: list[str]) -> None:
        self._made += 1
        drawn = self._draw.random()
        if drawn < self.level_changes:
            await self._set_level(connection)
        elif drawn < 0.7:
            await self._elect_all(connection, self._draw.choice([*lasting, *INTERNAL_TOPICS]))
        elif drawn < 0.8:
            await self._delete_records(connection, EXPIRING)
        else:
            await self._inspect(connection)

    async def _set_level(self, connection: ClientConnection) -> None:
        level = self._draw.choice(LEVELS)
        key = FeatureUpdateKey(feature=TRANSACTION_VERSION, max_version_level=level)
        image = self.cluster_state.cluster_history.image
        is_lower = level < image.features.get(TRANSACTION_VERSION, 0)
        if connection.version(ApiKey.UPDATE_FEATURES) == 0:
            key.allow_downgrade = is_lower
        elif is_lower:
            key.upgrade_type = UpgradeType.SAFE_DOWNGRADE
        message = UpdateFeaturesRequest(timeout_ms=3000, feature_updates=[key])
        response = await connection.call(ApiKey.UPDATE_FEATURES, message)
        code = ErrorCode(response.error_code)
        self.say(f"{TRANSACTION_VERSION} {level}: {code.name} {response.error_message}")
        word = "lowered" if is_lower else "raised"
        self.cluster_state.world.count(f"levels {word}", code is ErrorCode.NONE)

    async def _elect_all(self, connection: ClientConnection, name: str) -> None:
        topic = self.cluster_state.cluster_history.image.topic(name)
        if topic is None:
            return
        row = TopicPartitions(topic=name, partitions=list(range(len(topic.partitions))))
        message = ElectLeadersRequest(election_type=0, topic_partitions=[row], timeout_ms=3000)
        response = await connection.call(ApiKey.ELECT_LEADERS, message)
        for found in response.replica_election_results:
            for partition in found.partition_result:
                is_moved = partition.error_code == ErrorCode.NONE
                self.cluster_state.world.count("leaders moved", is_moved)

    async def _inspect(self, connection: ClientConnection) -> None:
        """Describe and list transactions and producers; forge a marker for one that is ongoing."""
        listed = await connection.call(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest())
        self.cluster_state.world.count("transactions listed", len(listed.transaction_states))
        ids = [row.transactional_id for row in listed.transaction_states]
        if ids:
            message = DescribeTransactionsRequest(transactional_ids=ids[:3])
            described = await connection.call(ApiKey.DESCRIBE_TRANSACTIONS, message)
            for row in described.transaction_states:
                self.cluster_state.world.count(f"described: {row.transaction_state}")
        name = self._draw.choice([PLAIN, COMPACTED])
        partitions = self.cluster_state.topic_outcomes.created[name][1]
        index = self._draw.randrange(partitions)
        leader = self.leader_of(await self.metadata(connection, name), name, index)
        async with self.connected(self._runtime, leader) as at_leader:
            request = DescribeProducersRequest(
                topics=[TopicRequest(name=name, partition_indexes=[index])]
            )
            response = await at_leader.call(ApiKey.DESCRIBE_PRODUCERS, request)
            rows = response.topics[0].partitions[0].active_producers
            # The producer of an open transaction, if there is one.
            rows = sorted(rows, key=lambda row: -row.current_txn_start_offset)
            for each in rows[:2]:
                await self._forge(at_leader, name, index, each)

    async def _forge(
        self, connection: ClientConnection, name: str, index: int, producer: Any
    ) -> None:
        """Send a marker that is not a coordinator's, is late, or has epochs of the future.

        The checkers of logs see whether it ends a transaction, follows a newer one, or makes the
        markers of the coordinator late.
        """
        is_commit = self._draw.random() < 0.5
        earlier = self._draw.choice([(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1)])
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=min(max(producer.producer_epoch - earlier[0], 0), MAX_EPOCH),
            transaction_result=is_commit,
            topics=[WritableTxnMarkerTopic(name=name, partition_indexes=[index])],
            coordinator_epoch=producer.coordinator_epoch - earlier[1],
            transaction_version=self._draw.choice([0, 2]),
        )
        message = WriteTxnMarkersRequest(markers=[marker])
        response = await connection.call(ApiKey.WRITE_TXN_MARKERS, message)
        code = ErrorCode(response.markers[0].topics[0].partitions[0].error_code)
        self.cluster_state.world.count(f"forged marker: {code.name}")


class Auditor(TransactionalClient):
    """Waits for the end of all transactions, then reads everything with read_committed."""

    def __init__(
        self,
        cluster_state: ReplicatedClusterState,
        name: str,
        draw: Random,
        others: Sequence[AnyClient],
        chains: Sequence[ChainMember],
    ) -> None:
        super().__init__(cluster_state, name, draw, name, 1000)
        fetch = ApiKey.OFFSET_FETCH
        self._versions[fetch] = max(self._versions[fetch], 8)
        self._others = others
        self._groups = sorted({chain.group_id for chain in chains})

    async def run(self, runtime: Runtime) -> None:
        state = self.cluster_state
        while not state.closing and not (state.calm and all(each.done for each in self._others)):
            await sleep(runtime.clock, RETRY_S)
        if not state.closing and not self._is_stuck():
            try:
                await self._audit(runtime)
            except (CrashError, RefusedError) as error:
                self.say(f"{error!r}")
        self.close_links()
        self.done = True

    async def _audit(self, runtime: Runtime) -> None:
        state = self.cluster_state
        lasting = state.topic_outcomes.lasting
        places = [
            (name, Place(topic_id, index))
            for name, (topic_id, partitions) in lasting.items()
            for index in range(partitions)
        ]
        places = [at for at in places if not self.is_over(*at)]
        found: dict[Place, list[tuple[int, bytes]]] = {}
        began = state.world.now
        limit_s = self.history.longest_timeout_s / SLOWEST + BOUND_S
        for at in places:
            records = await self._read(runtime, *at, began, limit_s)
            if records is not None:
                found[at[1]] = records
        self.say(f"reads {[(str(place), len(reads)) for place, reads in found.items()]}")
        state.checker(CommittedIsShown).finals()
        state.checker(AllOrNothing).finals(found)
        state.checker(SumIsTheSame).finals(found, self.history.amounts)
        for group_id in self._groups:
            await self._audit_chain(runtime, group_id, found)

    async def _audit_chain(
        self, runtime: Runtime, group_id: str, found: dict[Place, list[tuple[int, bytes]]]
    ) -> None:
        lasting = self.cluster_state.topic_outcomes.lasting
        if INPUT not in lasting or OUTPUT not in lasting:
            return
        inputs = [Place(lasting[INPUT][0], index) for index in range(lasting[INPUT][1])]
        outputs = [Place(lasting[OUTPUT][0], index) for index in range(lasting[OUTPUT][1])]
        if not all(place in found for place in (*inputs, *outputs)):
            return
        at = [(INPUT, place) for place in inputs]
        positions = await read_positions(self, runtime, group_id, at)
        self.cluster_state.checker(ExactlyOnce).finals(
            group_id,
            {place: found[place] for place in inputs},
            {place: found[place] for place in outputs},
            {place: offset for (_, place), offset in positions.items()},
            self.history.sources,
        )

    async def _read(
        self, runtime: Runtime, name: str, place: Place, began: float, limit_s: float
    ) -> list[tuple[int, bytes]] | None:
        """Wait until the last stable offset is the end, and read to it; None if that is lost."""
        state = self.cluster_state
        history = state.cluster_history.history(*place)
        checker = state.checker(TransactionsEnd)
        while not self.is_over(name, place):
            self._step()
            try:
                leader = await self.leader(runtime, name, place)
                link = await self._link(runtime, leader)
                end = await self.list_offset(link, name, place.partition, LATEST)
                stable = await self.stable_offset(link, name, place.partition, LATEST)
                if stable < end:
                    if state.world.now - began > limit_s:
                        checker.ended(history, stable, end, limit_s)
                        return None
                    await sleep(runtime.clock, RETRY_S)
                    continue
                checker.ended(history, stable, end, limit_s)
                return await self._read_to(link, name, place, end)
            except BROKEN as error:
                self.say(f"{name}/{place}: {error!r}")
                self.close_links()
                await sleep(runtime.clock, RETRY_S)
        return None

    async def _read_to(
        self, link: ClientConnection, name: str, place: Place, end: int
    ) -> list[tuple[int, bytes]]:
        offset = await self.stable_offset(link, name, place.partition, EARLIEST)
        records: list[tuple[int, bytes]] = []
        while offset < end:
            read = await self.fetch_stable(link, name, place, offset, 0)
            if read.code is not ErrorCode.NONE or read.next_offset <= offset:
                raise EOFError(f"{read.code.name} at {offset}, before {end}")
            records += read.records
            offset = read.next_offset
        return records
