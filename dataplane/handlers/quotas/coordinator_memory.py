"""DescribeCoordinatorMemory: who has how much of the budgets of this worker's coordinators.

The API is this project's own, not Kafka's.
"""

from collections.abc import Callable, Iterator
from heapq import nlargest
from operator import attrgetter
from typing import Final, Protocol

from metaquorum.dataplane.coordinators.client_budget import ClientBudget, ClientUse, Refusal
from metaquorum.dataplane.coordinators.group.group_coordinator import GroupCoordinator
from metaquorum.dataplane.coordinators.transaction.transaction_coordinator import (
    TransactionCoordinator,
)
from metaquorum.dataplane.scheduling.time_slices import pause, pieces
from metaquorum.dataplane.worker.context import Request
from metaquorum.wire.messages.describe_coordinator_memory import (
    DescribeCoordinatorMemoryRequest,
    DescribeCoordinatorMemoryResponse,
    DescribedBudget,
    DescribedClient,
)
from metaquorum.wire.primitives.errors import ErrorCode

MAX_CLIENTS: Final = 1000  # described in one response, for each budget
MAX_NAMES: Final = 1000


class HasCoordinators(Protocol):
    """Capability to read the state of both coordinators."""

    @property
    def groups(self) -> GroupCoordinator: ...

    @property
    def transactions(self) -> TransactionCoordinator: ...


async def handle_describe_coordinator_memory(
    worker: HasCoordinators, request: Request, message: DescribeCoordinatorMemoryRequest
) -> DescribeCoordinatorMemoryResponse:
    groups, transactions = worker.groups, worker.transactions
    # Budgets, and what yields the names of a client, in pieces.
    named: dict[str, tuple[ClientBudget, Callable[[str], Iterator[list[str]]]]] = {
        budget.name: (budget, names)
        for budget, names in (
            (groups.budget, groups.group_ids_of),
            (groups.offsets_budget, groups.offset_groups_of),
            (transactions.budget, transactions.ids_of),
        )
    }
    response = DescribeCoordinatorMemoryResponse()
    if message.client is not None and message.budget not in named:
        response.error_code = ErrorCode.INVALID_REQUEST
        response.error_message = f"there is no budget {message.budget!r:.80}"
        return response
    for budget, _ in named.values():
        response.budgets.append(await _described(budget, message.most_used))
    if message.client is not None and message.budget is not None:
        most = max(0, min(message.most_names, MAX_NAMES))
        for piece in named[message.budget][1](message.client):
            response.names += piece[: most - len(response.names)]
            if len(response.names) >= most:
                break
            await pause()
    return response


async def _described(budget: ClientBudget, most_used: int) -> DescribedBudget:
    most, found = max(0, min(most_used, MAX_CLIENTS)), list[ClientUse]()
    for piece in pieces(budget.clients()):
        uses = [budget.use_of(client) for client in piece]
        found = nlargest(most, found + uses, key=attrgetter("counted_bytes"))
        await pause()
    return DescribedBudget(
        name=budget.name,
        limit_bytes=budget.limit_bytes(),
        counted_bytes=budget.counted_bytes,
        used_bytes=budget.used_bytes,
        client_count=budget.client_count,
        refused_share_count=budget.refused_counts[Refusal.SHARE],
        refused_full_count=budget.refused_counts[Refusal.FULL],
        clients=[
            DescribedClient(
                client=use.client,
                counted_bytes=use.counted_bytes,
                admitted_bytes=use.admitted_bytes,
                grown_bytes=use.grown_bytes,
            )
            for use in found
        ],
    )
