"""Budgets of coordinators with a share for each client: they have room, and count all state."""

from metaquorum.dataplane.coordinators.client_budget import UNKNOWN, ClientBudget
from metaquorum.dataplane.worker.context import Worker
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.wire.primitives.errors import ErrorCode


class BudgetsHaveRoom(WatchingChecker):
    """A client without state is not refused, and known state may grow, in any budget."""

    invariant = "B1"

    def created(
        self, name: str, budget: ClientBudget, code: ErrorCode, *, is_refused: bool
    ) -> None:
        """Take the answer to a client without state that creates some, and the budget after it.

        Loaded state is never refused, and may fill a budget after a failover: not compared.
        """
        limit_bytes = budget.limit_bytes()
        is_loaded = budget.use_of(UNKNOWN).counted_bytes * 10 > limit_bytes
        if is_loaded or budget.counted_bytes * 2 < limit_bytes:
            return
        self.compare(
            not is_refused,
            "{} has no state and is refused: {}; {} of {} bytes are used by {} clients",
            name,
            code.name,
            budget.counted_bytes,
            limit_bytes,
            budget.client_count,
        )

    def look(self, budget: ClientBudget) -> None:
        """Compare what each client has: at most half, by creation, growth and taking over."""
        for client in budget.clients():
            used_bytes = budget.use_of(client).counted_bytes
            self.compare(
                client == UNKNOWN or 2 * used_bytes <= budget.limit_bytes(),
                "{} has {} of {} bytes of {}",
                client,
                used_bytes,
                budget.limit_bytes(),
                budget.name,
            )

    def known(self, name: str, code: ErrorCode, *, is_refused: bool) -> None:
        """Take the answer to a client that uses known state, or has it grow by as much again."""
        self.compare(not is_refused, "{} is known, and is refused: {}", name, code.name)


class BudgetsCountAll(WatchingChecker):
    """The memory that a budget has counted is that of the state which its worker has."""

    invariant = "B2"

    def look(self, worker_id: int, budget: ClientBudget, used_bytes: int) -> None:
        """Compare a budget of a worker whose shards are all active with the bytes of its state."""
        self.compare(
            budget.used_bytes == used_bytes,
            "worker {} counts {} bytes for {}, its state has {}",
            worker_id,
            budget.used_bytes,
            budget.name,
            used_bytes,
        )
        self.compare(
            budget.counted_bytes
            == sum(budget.use_of(client).counted_bytes for client in budget.clients()),
            "worker {} counts {} bytes against {}, its clients have others",
            worker_id,
            budget.counted_bytes,
            budget.name,
        )


def settled_worker(state: ReplicatedClusterState, worker_id: int) -> Worker | None:
    """Return what runs on a worker, if no background work changes it."""
    for member in state.workers:
        node = member.running
        if member.config.node_id == worker_id and node is not None and node.worker is not None:
            return None if node.worker.slicer.has_background_work else node.worker
    return None
