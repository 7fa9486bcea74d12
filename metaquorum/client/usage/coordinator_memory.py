"""Memory of the coordinators of groups and transactions, by client, and what frees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from metaquorum.client.errors import broker_error
from metaquorum.wire.primitives.frozen import frozen

if TYPE_CHECKING:
    from metaquorum.client.cluster import Cluster
    from metaquorum.wire.messages.describe_coordinator_memory import (
        DescribeCoordinatorMemoryResponse,
    )

# Share of a budget from which on it is a risk.
FULL_SHARE: Final = 0.8
# Kinds of state by the budget's name, and the command that frees it.
STATE_OF: Final = {
    "group.memory.max.bytes": "groups",
    "offsets.memory.max.bytes": "committed offsets",
    "transaction.memory.max.bytes": "transactional ids",
}


@frozen
class ClientMemory:
    """Memory of one client in bytes; `client` is empty for what was loaded and not used since."""

    client: str
    counted_bytes: int
    admitted_bytes: int
    grown_bytes: int


@frozen
class CoordinatorBudget:
    """One budget of a worker, with the clients that have the most."""

    worker: int
    name: str
    limit_bytes: int
    counted_bytes: int
    used_bytes: int
    client_count: int
    refused_share_count: int
    refused_full_count: int
    clients: Sequence[ClientMemory] = ()

    @property
    def share(self) -> float:
        """Counted part of the limit; above 1 after the load of another worker's state."""
        return self.counted_bytes / self.limit_bytes if self.limit_bytes else 1.0

    @property
    def state(self) -> str:
        return STATE_OF.get(self.name, self.name)


@frozen
class CoordinatorMemory:
    """Budgets of one worker, and names of what the client has that was asked for."""

    budgets: Sequence[CoordinatorBudget]
    names: Sequence[str] = ()


async def describe_coordinator_memory(
    cluster: Cluster,
    worker: int,
    *,
    most_used: int = 0,
    budget: str | None = None,
    client: str | None = None,
    most_names: int = 0,
) -> CoordinatorMemory:
    """Return the budgets of one worker; see `AdminClient.describe_coordinator_memory`.

    Raises NotServedError if the cluster is Apache Kafka, and BrokerError if the worker refuses.
    """
    from metaquorum.wire.messages.describe_coordinator_memory import (
        DescribeCoordinatorMemoryRequest,
    )

    request = DescribeCoordinatorMemoryRequest(
        most_used=most_used, budget=budget, client=client, most_names=most_names
    )
    response: DescribeCoordinatorMemoryResponse = await cluster.call(request, to=worker)
    if response.error_code:
        raise broker_error(response.error_code, response.error_message, f"worker {worker}")
    budgets = [
        CoordinatorBudget(
            worker,
            row.name,
            row.limit_bytes,
            row.counted_bytes,
            row.used_bytes,
            row.client_count,
            row.refused_share_count,
            row.refused_full_count,
            [
                ClientMemory(each.client, each.counted_bytes, each.admitted_bytes, each.grown_bytes)
                for each in row.clients
            ],
        )
        for row in response.budgets
    ]
    return CoordinatorMemory(budgets, response.names)


def memory_warnings(budgets: Sequence[CoordinatorBudget]) -> list[str]:
    """Return a sentence for each budget that is nearly used."""
    return [
        f"worker {each.worker} coordinates {each.state} with {each.share:.0%} of"
        f" {each.name}={each.limit_bytes}: new ones will be refused, first to the"
        " clients with the most; `mq-admin cluster memory` shows them"
        for each in budgets
        if each.share >= FULL_SHARE
    ]
