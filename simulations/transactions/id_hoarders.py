"""Clients that make coordinators keep transactional ids, and newcomers that must find room.

The budget of these worlds is small. All hoarders together create ids for most of one budget, since
one worker may have all of them after failovers, and never refuses what it has loaded.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from metaquorum.dataplane.coordinators.transaction.configs import TransactionConfigs
from metaquorum.dataplane.coordinators.transaction.transaction_coordinator import (
    TransactionCoordinator,
)
from metaquorum.dataplane.coordinators.transaction.transaction_shard import (
    PARTITION_BYTES,
    id_bytes,
)
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.groups.budget_checkers import (
    BudgetsCountAll,
    BudgetsHaveRoom,
    settled_worker,
)
from metaquorum.simulations.harness.client import BROKEN
from metaquorum.simulations.kernel.mutation import swapped
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.transactions.transactional_clients import (
    OF_TRANSACTIONS,
    CrashError,
    TransactionalClient,
)
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

HOARDERS: Final = 0.2  # share of the worlds with hoarders
MOST_HOARDERS: Final = 2
NEWCOMERS: Final = 2
MEMORY_BYTES: Final = 100_000
HOARD_BYTES: Final = 85_000
_ID_LENGTH: Final = 400  # its records fit the smallest segment of these worlds
_TIMEOUT_MS: Final = 60_000
_ATTEMPTS: Final = 10  # InitProducerIds of one turn
_REFUSED: Final = (ErrorCode.POLICY_VIOLATION, ErrorCode.COORDINATOR_NOT_AVAILABLE)


@dataclass(slots=True)
class Hoard:
    """Allowance of all hoarders of a world together, and the ids of all clients."""

    left_bytes: int = HOARD_BYTES
    ids: set[str] = field(default_factory=set)


class IdHoarder(TransactionalClient):
    """Creates transactional ids as long as it is not refused, and uses those that it has."""

    def __init__(
        self, cluster_state: ReplicatedClusterState, name: str, draw: Random, hoard: Hoard
    ) -> None:
        super().__init__(cluster_state, name, draw, name, _TIMEOUT_MS)
        self._hoard = hoard
        self._ids: list[str] = []
        self._made = 0

    async def run(self, runtime: Runtime) -> None:
        while not self.cluster_state.closing and not self.cluster_state.calm:
            try:
                await self._use(runtime)
            except BROKEN as error:
                self.say(repr(error))
            except CrashError:
                break
            await sleep(runtime.clock, RETRY_S * self._draw.random())
        self.close_links()
        self.done = True

    async def _use(self, runtime: Runtime) -> None:
        for _ in range(_ATTEMPTS):
            self._made += 1
            transactional_id = f"{self.name}-{self._made}".ljust(_ID_LENGTH, "x")
            size_bytes = id_bytes(transactional_id)
            if self._hoard.left_bytes < size_bytes:
                break
            self._hoard.left_bytes -= size_bytes  # also if no answer comes
            code = await self.init(runtime, transactional_id)
            if code is ErrorCode.NONE:
                self._ids.append(transactional_id)
            elif code is ErrorCode.POLICY_VIOLATION:
                self._hoard.left_bytes += size_bytes
                break
        if self._ids:
            code = await self.init(runtime, self._draw.choice(self._ids))
            is_refused = code is ErrorCode.POLICY_VIOLATION
            checker = self.cluster_state.checker(BudgetsHaveRoom)
            checker.known(self.name, code, is_refused=is_refused)

    async def init(self, runtime: Runtime, transactional_id: str) -> ErrorCode:
        """Ask for a producer id and epoch, once. Raises CrashError, or an error of `BROKEN`."""
        message = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=_TIMEOUT_MS
        )
        self._hoard.ids.add(transactional_id)
        worker_id = await self._coordinator(runtime, OF_TRANSACTIONS, transactional_id)
        response = await self._ask(runtime, worker_id, ApiKey.INIT_PRODUCER_ID, message)
        code = ErrorCode(response.error_code)
        if code is not ErrorCode.NONE:
            self._coordinators.pop((OF_TRANSACTIONS, transactional_id), None)
        self.cluster_state.world.count(f"id of {self._kind}: {code.name}")
        for member in self.cluster_state.workers:
            self._look(member.config.node_id)
        return code

    _kind = "a hoarder"

    def coordinator(self, worker_id: int) -> TransactionCoordinator | None:
        """Return the coordinator of a worker, if it has settled."""
        worker = settled_worker(self.cluster_state, worker_id)
        if worker is None or worker.transactions.runtime.is_loading:
            return None
        known = worker.transactions
        return known if len(known.shards) == known.runtime.hosted_count else None

    def _look(self, worker_id: int) -> None:
        known = self.coordinator(worker_id)
        if known is None:
            return
        self.cluster_state.checker(BudgetsHaveRoom).look(known.budget)
        used_bytes = 0
        for shard in known.shards.values():
            for transactional_id, each in shard.transactions.items():
                used_bytes += id_bytes(transactional_id) + len(each.partitions) * PARTITION_BYTES
            for transactional_id in self._hoard.ids.difference(shard.transactions):
                if shard.is_pending(transactional_id):  # its first record is not committed
                    used_bytes += id_bytes(transactional_id)
        self.cluster_state.checker(BudgetsCountAll).look(worker_id, known.budget, used_bytes)


class IdNewcomer(IdHoarder):
    """Comes with one id, at a time when others may have most of the budget."""

    _kind = "a newcomer"

    async def _use(self, runtime: Runtime) -> None:
        await sleep(runtime.clock, self.cluster_state.settings.fault_s * self._draw.random())
        worker_id = await self._coordinator(runtime, OF_TRANSACTIONS, self.name)
        before = self.coordinator(worker_id)
        is_new = before is not None and not before.budget.use_of(self.name).counted_bytes
        code = await self.init(runtime, self.name)
        known = self.coordinator(worker_id)
        checker, is_refused = self.cluster_state.checker(BudgetsHaveRoom), code in _REFUSED
        if is_new and known is before and known is not None:
            checker.created(self.name, known.budget, code, is_refused=is_refused)


def hoarders(
    cluster_state: ReplicatedClusterState, count: int, others: Sequence[object]
) -> list[IdHoarder]:
    """Return hoarders and newcomers; `others` are the clients that use ids for transactions."""
    hoard, world = Hoard(), cluster_state.world
    hoard.ids.update(
        each.transactional_id for each in others if isinstance(each, TransactionalClient)
    )
    found: list[IdHoarder] = []
    for kind, number in ((IdHoarder, count), (IdNewcomer, NEWCOMERS)):
        for each in range(number):
            name = f"{'newcomer' if kind is IdNewcomer else 'hoarder'}-{each}"
            found.append(kind(cluster_state, name, world.stream(name), hoard))
    return found


@contextmanager
def small_budget() -> Iterator[None]:
    """Give workers a smaller budget of ids than operators can."""

    def shorten(right: Any) -> Any:
        def update(self: TransactionConfigs, configs: Any) -> None:
            right(self, configs)
            self.memory_bytes = MEMORY_BYTES

        return update

    with swapped(TransactionConfigs, "update", shorten):
        yield
