"""Scenario `forged-producers`: clients that make up producer ids, and use those of others.

Half of the worlds have idempotent producers, the others transactional ones. Forgers send to the
same partitions:

    ids that no worker has given out            refused, finally if the leader is up to date
    ids that no other client uses, of a block   appended, until the forger's share is used up
      that a worker has (idempotent producers)
    first batches of transactions, with made-   refused by the coordinator
      up ids or with those of others

All the same, each acknowledged record is in the log once, and the others get all that they ask for:
the forgers continue after the last fault, until the others are done. A steady producer begins its
transactions then; nothing but a forger could have them refused.
"""

from collections.abc import Collection, Sequence
from random import Random
from typing import Final

from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.cluster.fault_plan import draw_faults, without
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.replication.replica_checkers import TopicsAreTheirOwn, WatchingChecker
from metaquorum.simulations.replication.replica_clients import (
    ALL,
    BY_NAME,
    TOPIC_IDS_SINCE,
    ReplicaClient,
    ReplicaProducer,
    SentBatch,
)
from metaquorum.simulations.replication.replicas import Place
from metaquorum.simulations.replication.replicated_cluster import (
    ReplicatedClusterState,
    ReplicationSettings,
)
from metaquorum.simulations.replication.replication_scenario import (
    AnyClient,
    Clients,
    play_settings,
    replication_clients,
)
from metaquorum.simulations.replication.replication_scenario import (
    draw_settings as draw_replication,
)
from metaquorum.simulations.transactions.transaction_administrators import PLAIN
from metaquorum.simulations.transactions.transaction_faults import fault_kinds
from metaquorum.simulations.transactions.transactional_clients import CrashError, RefusedError
from metaquorum.simulations.transactions.transactional_producers import TransactionalProducer
from metaquorum.simulations.transactions.transactions_scenario import (
    ALL_CHECKERS,
    clients_of_transactions,
    draw_transactions,
    small_internal_topics,
)
from metaquorum.simulations.transactions.transactions_scenario import (
    draw_settings as draw_transactional,
)
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.batches import parse_header
from metaquorum.wire.records.records import Record, encode_batch

IDEMPOTENT: Final = 0.5  # share of worlds
FORGERS: Final = (1, 2)
MOST_NEW: Final = (100, 600)  # max.producer.ids.per.client
AT_ONCE: Final = 12  # batches in flight
STEADY: Final = 25  # transactions of a steady producer
STEADY_MS: Final = 60_000  # their timeout
# Ids of a block: the first ones are given out, a run does not come to the later ones.
BLOCK: Final = 1000
UNUSED: Final = range(500, BLOCK)
MADE_UP: Final = 10**6
KINDS: Final = ("kill", "kill", "resets", "cut pair", "pause", "slow links", "restart")
FEW_FAULTS: Final = 6
LOST_ANSWERS: Final = 0.2  # share of an idempotent producer's answers
LOST_FOR_S: Final = 0.3
ELSEWHERE: Final = 0.2  # share of the floods
NOT_NEXT: Final = 10**6  # first sequence that no producer of a run comes to
FORGED: Final = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class ForgedIdsAreRefused(WatchingChecker):
    """A batch with an id that is not given out is refused, and no other batch is as forged."""

    invariant = "T1"

    def forged(self, producer_id: int, code: ErrorCode) -> None:
        self.compare(
            code is not ErrorCode.NONE,
            "a batch of the made-up producer {} is appended",
            producer_id,
        )

    def honest(self, name: str, producer_id: int, code: ErrorCode) -> None:
        self.compare(
            code is not FORGED,
            "a batch of {}, producer {}, is refused as forged",
            name,
            producer_id,
        )


class TransactionsGoOn(WatchingChecker):
    """Without faults, no transaction is refused for what other clients send."""

    invariant = "Q3"

    def ended(self, name: str, code: ErrorCode) -> None:
        self.compare(
            code is not ErrorCode.INVALID_TXN_STATE,
            "the transaction of {} is refused with {}",
            name,
            code.name,
        )


class Forger(ReplicaClient):
    """Client that floods partitions with batches of made-up producers."""

    def __init__(
        self,
        cluster_state: ReplicatedClusterState,
        name: str,
        draw: Random,
        others: Sequence[AnyClient],
        *,
        begins: bool,
    ) -> None:
        """`others` do honest work; `begins`: it sends batches of transactions, and none that is
        appended."""
        super().__init__(cluster_state, name, draw)
        self._others = others
        self._begins = begins
        self._sent = 0
        versions = self._versions
        versions[ApiKey.PRODUCE] = max(versions[ApiKey.PRODUCE], TOPIC_IDS_SINCE - 1)

    async def run(self, runtime: Runtime) -> None:
        while not self.cluster_state.closing and not all(each.done for each in self._others):
            at = self.place()
            if at is not None:
                try:
                    await self._flood(runtime, *at)
                except BROKEN as error:
                    self.say(f"{at[0]}/{at[1]}: {error!r}")
            await sleep(runtime.clock, RETRY_S * self._draw.random())
        self.done = True

    def place(self) -> tuple[str, Place] | None:
        """Return a partition, mostly one in which transactions begin."""
        lasting = self.cluster_state.topic_outcomes.lasting
        if not self._begins or PLAIN not in lasting or self._draw.random() < ELSEWHERE:
            return super().place()
        topic_id, partitions = lasting[PLAIN]
        return PLAIN, Place(topic_id, self._draw.randrange(partitions))

    async def _flood(self, runtime: Runtime, name: str, place: Place) -> None:
        kinds = [self._make_up, self._begin if self._begins else self._use_unused]
        leader = await self.leader(runtime, name, place)
        async with self.connected(runtime, leader) as connection:
            for _ in range(self._draw.randint(1, 4)):
                await self._draw.choice(kinds)(runtime, connection, name, place)

    async def _make_up(
        self, runtime: Runtime, connection: ClientConnection, name: str, place: Place
    ) -> None:
        ids = [MADE_UP + self._draw.randrange(MADE_UP) for _ in range(AT_ONCE)]
        for producer_id in ids:
            await self._send(runtime, connection, name, place, producer_id)
        for producer_id in ids:
            code = await self._answered(connection, "made up")
            self.cluster_state.checker(ForgedIdsAreRefused).forged(producer_id, code)

    async def _use_unused(
        self, runtime: Runtime, connection: ClientConnection, name: str, place: Place
    ) -> None:
        asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
        answer = await connection.call(ApiKey.INIT_PRODUCER_ID, asked)
        if answer.error_code:
            return
        block = answer.producer_id - answer.producer_id % BLOCK
        for _ in range(AT_ONCE):
            producer_id = block + self._draw.choice(UNUSED)
            await self._send(runtime, connection, name, place, producer_id)
        for _ in range(AT_ONCE):
            await self._answered(connection, "unused")

    async def _begin(
        self, runtime: Runtime, connection: ClientConnection, name: str, place: Place
    ) -> None:
        """Send first batches of a transaction that does not exist; some with the id of another."""
        known = self._known_ids(name, place)
        for _ in range(AT_ONCE):
            unused = BLOCK * self._draw.randrange(3) + self._draw.choice(UNUSED)
            await self._send(
                runtime,
                connection,
                name,
                place,
                self._draw.choice((self._draw.choice(known or [unused]), unused)),
                epoch=self._draw.choice((0, 1, 30_000)),
                sequence=self._draw.randrange(NOT_NEXT, 2**31),
                transactional_id="nobody",
            )
        for _ in range(AT_ONCE):
            await self._answered(connection, "of a transaction")

    def _known_ids(self, name: str, place: Place) -> list[int]:
        """Return the ids that the leader knows; a client can get them by DescribeProducers."""
        for member in self.cluster_state.workers:
            worker = None if member.running is None else member.running.worker
            if worker is not None and member.config.node_id == self.worker_id:
                try:
                    partition = worker.replica_manager.by_name(name, place.partition)
                except KafkaError:
                    return []
                return sorted(partition.log.producers.entries)
        return []

    async def _send(
        self,
        runtime: Runtime,
        connection: ClientConnection,
        name: str,
        place: Place,
        producer_id: int,
        *,
        epoch: int = 0,
        sequence: int = 0,
        transactional_id: str | None = None,
    ) -> None:
        self._sent += 1
        by_name = connection.version(ApiKey.PRODUCE) < TOPIC_IDS_SINCE
        of = BY_NAME if by_name else place.topic_id.hex()
        value = f"{of} {name}/{place} {self.name} {self._sent} ".encode()
        data = encode_batch(
            [Record(0, runtime.clock.now_ms(), None, value)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional_id is not None,
        )
        if by_name:
            crc = parse_header(memoryview(data), 0).crc
            self.cluster_state.checker(TopicsAreTheirOwn).by_name.add(crc)
        row = PartitionProduceData(index=place.partition, records=data)
        topic = TopicProduceData(name=name, topic_id=place.topic_id, partition_data=[row])
        message = ProduceRequest(
            transactional_id=transactional_id,
            acks=self._draw.choice((ALL, 1)),
            timeout_ms=1000,
            topic_data=[topic],
        )
        await connection.send(ApiKey.PRODUCE, message)

    async def _answered(self, connection: ClientConnection, kind: str) -> ErrorCode:
        answer = await connection.receive()
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        self.cluster_state.world.count(f"forged, {kind}: {code.name}")
        return code


class IdempotentProducer(ReplicaProducer):
    """Producer whose id comes from another worker than the leader that it produces to."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw, is_idempotent=True)

    async def _begin(self, connection: ClientConnection) -> None:
        async with self.connected(self._runtime) as other:
            await super()._begin(other)

    async def _work(self, runtime: Runtime) -> None:
        self._runtime = runtime
        await super()._work(runtime)

    async def _answers(
        self, connection: ClientConnection, place: Place, sent: Sequence[SentBatch]
    ) -> None:
        """Read the answers, or have them lost: all are sent again when many others have sent."""
        if self._draw.random() < LOST_ANSWERS:
            await sleep(self._runtime.clock, LOST_FOR_S)
            raise EOFError("the answers are lost")
        await super()._answers(connection, place, sent)

    def _refused(self, place: Place, code: ErrorCode) -> None:
        checker = self.cluster_state.checker(ForgedIdsAreRefused)
        checker.honest(self.name, self._producer_id, code)
        super()._refused(place, code)


class SteadyProducer(TransactionalProducer):
    """Producer that commits some transactions after the last fault."""

    async def run(self, runtime: Runtime) -> None:
        left = STEADY
        while left and not self.cluster_state.closing and not self._is_stuck():
            await sleep(runtime.clock, RETRY_S)
            if not self.cluster_state.calm:
                continue
            self._new_instance(-1)
            try:
                await self.learn_level(runtime)
                await self.init_producer(runtime)
                while left:
                    left -= await self._commit_one(runtime)
            except CrashError as error:
                self.say(f"{error}")
            except RefusedError as error:
                self.cluster_state.checker(TransactionsGoOn).ended(self.name, error.code)
        self.close_links()
        self.done = True

    async def _commit_one(self, runtime: Runtime) -> int:
        """Commit a transaction; return how many were committed: none if there is no topic."""
        self._step()
        places = self._draw_places()[:1]
        if not places:
            await sleep(runtime.clock, RETRY_S)
            return 0
        transaction = await self.begin(runtime)
        for name, place in places:
            values = self.new_values(transaction, place, 1)
            await self.produce(runtime, transaction, name, place, values, [b"key 0"])
        await self.end(runtime, transaction, commits=True)
        self.cluster_state.checker(TransactionsGoOn).ended(self.name, ErrorCode.NONE)
        return 1


def _forgers(
    cluster_state: ReplicatedClusterState, others: Sequence[AnyClient], *, begins: bool
) -> list[Forger]:
    world = cluster_state.world
    names = [f"forger-{n}" for n in range(world.stream("forgers").choice(FORGERS))]
    return [
        Forger(cluster_state, name, world.stream(f"{name} draws"), others, begins=begins)
        for name in names
    ]


def _faults(settings: ReplicationSettings, draw: Random) -> None:
    settings.faults = draw_faults(draw, KINDS, over_s=settings.fault_s, most=FEW_FAULTS)
    settings.configs["max.producer.ids.per.client"] = str(draw.choice(MOST_NEW))


def _idempotent_clients(cluster_state: ReplicatedClusterState) -> Clients:
    world = cluster_state.world
    clients = replication_clients(cluster_state)
    for number in range(2):
        name = f"idempotent-{number}"
        clients.producers.append(IdempotentProducer(cluster_state, name, world.stream(name)))
    clients.movers.extend(_forgers(cluster_state, clients.all, begins=False))
    return clients


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    draw = world.stream("settings forged-producers")
    if draw.random() < IDEMPOTENT:
        settings = draw_replication(draw)
        settings.producers, settings.administrators, settings.changes = 0, 1, 3
        settings.records, settings.think_s = 80, draw.choice([0.0, 0.05])
        settings.unclean = 0.0
        _faults(settings, draw)
        world.faults = {fault.number: str(fault) for fault in settings.faults}
        settings.faults = without(settings.faults, leave_out)
        world.count("worlds with idempotent producers")
        await play_settings(world, settings, clients_of=_idempotent_clients, checkers=CHECKERS)
        return
    settings = draw_transactional(draw)
    transactions = draw_transactions(world.stream("transactions"))
    transactions.producers, transactions.chains = max(1, transactions.producers), 0
    transactions.is_crowded = True
    _faults(settings, draw)
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)
    world.count("worlds with transactional producers")

    def clients_of(cluster_state: ReplicatedClusterState) -> Clients:
        stream = world.stream("steady")
        steady = SteadyProducer(cluster_state, "steady", stream, "steady", STEADY_MS, (PLAIN,))
        clients = clients_of_transactions(cluster_state, transactions, [steady])
        clients.others.extend(_forgers(cluster_state, clients.all, begins=True))
        return clients

    with small_internal_topics(transactions, settings):
        await play_settings(world, settings, fault_kinds, clients_of, CHECKERS)


CHECKERS: Final = (*ALL_CHECKERS, ForgedIdsAreRefused, TransactionsGoOn)

FORGED_PRODUCERS: Final = Scenario(
    "forged-producers",
    "clients that flood partitions with made-up producers, or with those of others",
    play,
    CHECKERS,
    gates=(
        "acknowledged records",
        "transactions committed",
        "worlds with idempotent producers",
        "worlds with transactional producers",
        f"forged, made up: {FORGED.name}",
        "forged, unused: NONE",
        f"forged, unused: {ErrorCode.NOT_ENOUGH_REPLICAS.name}",
        f"forged, of a transaction: {FORGED.name}",
    ),
)
