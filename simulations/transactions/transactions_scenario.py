"""Scenario `transactions`: transactional clients in clusters of one or three workers, with faults.

Producers commit and abort transactions over several partitions and topics; some crash in the
middle, share a transactional id, wait for too long, or continue although they are fenced. Transfers
add up to zero. Chains consume, transform and produce. Consumers read with both isolation levels.
Administrators move leaders and coordinators, and raise and lower transaction.version.

no faults -> faults -> no faults: within `LIVENESS_S` all clients are done; within the longest
timeout and a bound, all transactions have ended
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from metaquorum.quorum.controller import internal_topics
from metaquorum.simulations.cluster.fault_plan import PlannedFault, draw_faults, without
from metaquorum.simulations.groups.budget_checkers import BudgetsCountAll, BudgetsHaveRoom
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.mutation import swapped
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.replication.cleanup_checkers import CLEANUP_CHECKERS
from metaquorum.simulations.replication.replica_clients import ReplicaConsumer
from metaquorum.simulations.replication.replicated_cluster import (
    ReplicatedClusterState,
    ReplicationSettings,
)
from metaquorum.simulations.replication.replication_scenario import (
    CHECKERS,
    AnyClient,
    Clients,
    draw_cleaned_settings,
    play_settings,
)
from metaquorum.simulations.transactions.chains import INPUT, ChainMember
from metaquorum.simulations.transactions.decision_checkers import DECISION_CHECKERS
from metaquorum.simulations.transactions.id_hoarders import (
    HOARDERS,
    MOST_HOARDERS,
    hoarders,
    small_budget,
)
from metaquorum.simulations.transactions.stable_reads import StableConsumer
from metaquorum.simulations.transactions.transaction_administrators import (
    COMPACTED,
    EXPIRING,
    PLAIN,
    Auditor,
    TransactionAdministrator,
)
from metaquorum.simulations.transactions.transaction_checkers import TRANSACTION_CHECKERS
from metaquorum.simulations.transactions.transaction_faults import (
    SLOW_WORKERS,
    VERIFIED_BEFORE_LOSS,
    fault_kinds,
    unclean_internal_topics,
)
from metaquorum.simulations.transactions.transactional_producers import (
    TransactionalProducer,
    TransferringProducer,
)

ALL_CHECKERS: Final = (*CHECKERS, *CLEANUP_CHECKERS, *TRANSACTION_CHECKERS, *DECISION_CHECKERS)
WITH_BUDGETS: Final = (*ALL_CHECKERS, BudgetsHaveRoom, BudgetsCountAll)
# Faults that lose no disk and elect no leader uncleanly: what they lose, no transaction survives.
KINDS: Final = (
    "kill",
    "power",
    "kill everywhere",
    "kill at change",
    "power at change",
    "restart",
    "down",
    "pause",
    "wall jump",
    "clock rate",
    "slow disk",
    "cut pair",
    "cut one way",
    "isolate",
    "isolate one way",
    "split",
    "flapping",
    "slow links",
    "resets",
    "alone",
    "overtaken",
)
MOVES: Final = ("kill", "restart", "pause", "isolate", "slow links")
FEW_FAULTS: Final = 8
ALONE: Final = 0.2  # share of worlds with one worker
CROWDED: Final = 0.3
TIMEOUTS_MS: Final = (500, 1000, 3000)
CHAIN_TIMEOUTS_MS: Final = (1000, 3000)  # a copy takes more than half a second in a slow network
NARROW: Final = 0.15  # share of narrow worlds


@dataclass(slots=True)
class TransactionSettings:
    producers: int
    transfers: int
    chains: int  # members of one group
    shares: float  # share of producers whose transactional id another one has, too
    stable_consumers: int
    is_crowded: bool  # all producers write to the partitions of one topic
    topic_configs: dict[str, str] = field(default_factory=dict)
    # In a narrow world the level of transaction.version changes all the time, and producers use a
    # level that they have learned during the transaction before.
    changes_levels: bool = field(default=False, repr=False)


def draw_settings(draw: Random) -> ReplicationSettings:
    settings = draw_cleaned_settings(draw)
    settings.controllers = draw.choice([1, 3])
    settings.is_combined = draw.random() < 0.5
    settings.workers = 3
    if draw.random() < ALONE:
        settings.workers, settings.controllers, settings.is_combined = 1, 1, True
    settings.racks = settings.near_consumers = 0
    settings.configs.pop("replica.selector.class", None)
    settings.consumers = draw.randint(0, 1)
    settings.producers, settings.administrators = 0, 1
    settings.records, settings.think_s = draw.choice([20, 40]), draw.choice([0.02, 0.1])
    settings.changes = draw.choice([4, 12, 30])
    settings.unclean = 0.0
    settings.fault_s, settings.peace_s = draw.choice([3.0, 6.0]), draw.choice([1.0, 2.5])
    settings.disk_delay_s = draw.choice([0.0005, 0.005])
    settings.delay_s = draw.choice([0.002, 0.002, 0.02])
    settings.session_timeout_ms = 2000
    kinds = draw.choice([KINDS, KINDS, MOVES])
    settings.faults = draw_faults(draw, kinds, over_s=settings.fault_s, most=FEW_FAULTS)
    settings.configs |= {
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.num.partitions": draw.choice(["1", "3"]),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": draw.choice(["50", "300"]),
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "100",
    }
    return settings


def draw_transactions(draw: Random) -> TransactionSettings:
    configs = {
        "internal.segment.bytes": draw.choice(["1000", "4000", "1000000"]),
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": draw.choice(["100", "86400000"]),
        "min.insync.replicas": draw.choice(["1", "2"]),
    }
    if draw.random() < 0.5:
        configs["flush.messages"] = "1"
    return TransactionSettings(
        producers=draw.randint(1, 3),
        transfers=draw.randint(0, 1),
        chains=draw.choice([0, 1, 2, 2]),
        shares=draw.choice([0.0, 0.3, 1.0]),
        stable_consumers=draw.randint(1, 2),
        is_crowded=draw.random() < CROWDED,
        topic_configs=configs,
    )


def _raised_levels(
    settings: ReplicationSettings, transactions: TransactionSettings, draw: Random
) -> None:
    """Raise the level between two transactions of a producer, whose first marker is on the way.

    The second one then has the epoch of the first one, and a partition in common with it.
    """
    settings.workers, settings.controllers, settings.is_combined = 3, 1, False
    settings.consumers, settings.records, settings.think_s = 0, 80, 0.0
    settings.peace_s, settings.fault_s, settings.changes = 0.2, 4.0, 60
    settings.delay_s = 0.002
    settings.faults = tuple(
        PlannedFault(number, SLOW_WORKERS, 0.1 + number, round(draw.uniform(0.3, 0.9), 3))
        for number in range(4)
    )
    transactions.producers, transactions.transfers, transactions.chains = 3, 0, 0
    transactions.shares, transactions.stable_consumers = 0.0, 1
    transactions.is_crowded = transactions.changes_levels = True


def _verified_before_loss(
    settings: ReplicationSettings, transactions: TransactionSettings, draw: Random
) -> None:
    """Let a leader become the coordinator while its question to the one before is answered."""
    settings.workers, settings.controllers, settings.is_combined = 3, 1, False
    settings.consumers, settings.records, settings.changes = 0, 10, 0
    settings.delay_s = settings.disk_delay_s = 0.0005
    settings.peace_s = 0.2
    settings.configs |= {
        "replica.lag.time.max.ms": "300",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.min.isr": "1",
    }
    settings.faults = (PlannedFault(0, VERIFIED_BEFORE_LOSS, 0.0, 0.1),)
    transactions.producers = transactions.transfers = transactions.chains = 0
    transactions.shares, transactions.stable_consumers = 0.0, 1
    transactions.topic_configs["min.insync.replicas"] = "1"


# Worlds of one purpose: what they are for coincides in few of the others.
NARROW_WORLDS: Final[
    Mapping[str, Callable[[ReplicationSettings, TransactionSettings, Random], None]]
] = {
    "levels raised between transactions": _raised_levels,
    VERIFIED_BEFORE_LOSS: _verified_before_loss,
}


@contextmanager
def small_internal_topics(
    transactions: TransactionSettings, settings: ReplicationSettings
) -> Iterator[None]:
    """Add configs to those of new internal topics: shorter segments than operators can set."""
    configs = dict(transactions.topic_configs)
    if settings.workers == 1:
        configs["min.insync.replicas"] = "1"

    def more(right: Any) -> Any:
        names = (CONSUMER_OFFSETS, TRANSACTION_STATE)
        return {**right, **{name: {**right.get(name, {}), **configs} for name in names}}

    with swapped(internal_topics, "_CONFIGS", more):
        yield


@dataclass(slots=True)
class TransactionClients(Clients):
    others: list[AnyClient] = field(default_factory=list)

    @property
    def all(self) -> list[AnyClient]:
        return [*self.administrators, *self.consumers, *self.others, *self.movers]


def clients_of_transactions(
    cluster_state: ReplicatedClusterState,
    settings: TransactionSettings,
    more: Sequence[AnyClient] = (),
) -> TransactionClients:
    """Create the clients, with `more` producers, for the end of which the auditor waits."""
    cluster_state.topic_outcomes.asked |= {CONSUMER_OFFSETS, TRANSACTION_STATE}
    world, clients = cluster_state.world, TransactionClients()
    draw = world.stream("transactional clients")
    admin = TransactionAdministrator(cluster_state, "admin-0", world.stream("admin-0"))
    if settings.changes_levels:
        admin.level_changes = 1.0
    clients.administrators.append(admin)
    producers: list[AnyClient] = [*more]
    for number in range(settings.producers):
        copies = 2 if draw.random() < settings.shares else 1
        topics: tuple[str, ...] = (INPUT, PLAIN)
        if number:
            topics = (PLAIN, COMPACTED, EXPIRING, INPUT)
        if settings.is_crowded:
            topics = (PLAIN,)
        for copy in range(copies):
            name = f"producer-{number}-{copy}"
            producer = TransactionalProducer(
                cluster_state,
                name,
                world.stream(name),
                f"id-{number}",
                draw.choice(TIMEOUTS_MS),
                topics,
            )
            producer.learns_early = settings.changes_levels
            producers.append(producer)
    chains = []
    for number in range(settings.chains):
        name = f"chain-{number}"
        timeout_ms = draw.choice(CHAIN_TIMEOUTS_MS)
        stream = world.stream(name)
        chains.append(
            ChainMember(cluster_state, name, stream, "chains", timeout_ms, list(producers))
        )
    for number in range(settings.transfers):
        name = f"transfers-{number}"
        timeout_ms = draw.choice(TIMEOUTS_MS)
        stream = world.stream(name)
        producers.append(
            TransferringProducer(cluster_state, name, stream, name, timeout_ms, ("accounts",))
        )
    for number in range(cluster_state.settings.consumers):
        name = f"consumer-{number}"
        clients.consumers.append(ReplicaConsumer(cluster_state, name, world.stream(name)))
    stable = [
        StableConsumer(cluster_state, name, world.stream(name), PLAIN)
        for name in (f"stable-{number}" for number in range(settings.stable_consumers))
    ]
    others: list[AnyClient] = [*producers, *chains, *stable]
    auditor = Auditor(cluster_state, "auditor", world.stream("auditor"), list(others), chains)
    clients.others = [*others, auditor]
    return clients


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    settings = draw_settings(world.stream("settings transactions"))
    transactions = draw_transactions(world.stream("transactions"))
    draw = world.stream("narrow transactions")
    is_narrow = draw.random() < NARROW
    if is_narrow:
        purpose = draw.choice([*NARROW_WORLDS])
        NARROW_WORLDS[purpose](settings, transactions, draw)
        world.say("story", f"narrow world: {purpose}")
        world.count(f"narrow: {purpose}")
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)
    world.say("story", f"{transactions}")
    world.count(f"worlds with {settings.workers} workers")

    # A separate random stream for few worlds: the other worlds do not change.
    draw = world.stream("hoarders of ids")
    has_hoarders = draw.random() < HOARDERS and not is_narrow
    hoards = draw.randint(1, MOST_HOARDERS) if has_hoarders else 0

    def clients_of(cluster_state: ReplicatedClusterState) -> Clients:
        clients = clients_of_transactions(cluster_state, transactions)
        if hoards:
            clients.others.extend(hoarders(cluster_state, hoards, clients.others))
        return clients

    is_lost = any(fault.kind == VERIFIED_BEFORE_LOSS for fault in settings.faults)
    with (
        small_internal_topics(transactions, settings),
        unclean_internal_topics() if is_lost else nullcontext(),
        small_budget() if hoards else nullcontext(),
    ):
        await play_settings(
            world,
            settings,
            fault_kinds,
            clients_of,
            WITH_BUDGETS,
        )


TRANSACTIONS: Final = Scenario(
    "transactions",
    "transactions: commits, aborts, zombies, timeouts, chains of groups, coordinators that move",
    play,
    WITH_BUDGETS,
    gates=(
        "acknowledged records",
        "transactions committed",
        "transactions aborted",
        "transactions with an unknown outcome",
        "transactions at level 0",
        "transactions at level 1",
        "transactions at level 2",
        "transfers visible",
        "records copied",
        "inputs with an output",
        "committed offsets of transactions read",
        "requests of zombies",
        "records after the end",
        "clients crashed",
        "clients that vanish",
        "clients slower than their timeout",
        "committed records shown",
        "aborted records left out",
        "read_committed records from leaders",
        "read_committed records from followers",
        "last stable offsets held",
        "markers written",
        "levels raised",
        "levels lowered",
        "leaders moved",
        "forged marker: INVALID_TXN_STATE",
        "forged marker: INVALID_PRODUCER_EPOCH",
        "forged marker: TRANSACTION_COORDINATOR_FENCED",
        "records compacted away",
        "worlds with 1 workers",
        "id of a hoarder: NONE",
        "id of a hoarder: POLICY_VIOLATION",
        "id of a newcomer: NONE",
        *(f"narrow: {purpose}" for purpose in NARROW_WORLDS),
        f"fault: {VERIFIED_BEFORE_LOSS}",
    ),
)
