"""Coordinators of groups: which node, and requests to them that follow a move.

    COORDINATOR_NOT_AVAILABLE    no coordinator yet, such as before the topic of offsets exists
    COORDINATOR_LOAD_IN_PROGRESS the node reads the groups from the topic of offsets
    NOT_COORDINATOR              the group has moved: the coordinator is looked up again

These are retried until the deadline of the call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from metaquorum.client.cluster import ANY_BROKER, FAILOVER_S, Cluster, Node
from metaquorum.client.errors import BrokerError, UnreachableError, broker_error
from wire.primitives.errors import ErrorCode

if TYPE_CHECKING:
    from metaquorum.client.connection import BrokerConnection
    from wire.messages.find_coordinator import FindCoordinatorResponse

T = TypeVar("T")

Outcomes: TypeAlias = dict[str, T | BrokerError]  # by group

GROUP_KEY: Final = 0
_MANY_KEYS_SINCE: Final = 4  # FindCoordinator: KIP-699
_RETRIED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


def subject(group: str) -> str:
    """Return the name of a group in errors."""
    return f"group {group}"


def is_retried(outcome: object) -> bool:
    """Return whether another attempt, perhaps at another node, may give another outcome."""
    return isinstance(outcome, BrokerError) and outcome.code in _RETRIED


async def ask_coordinators(
    cluster: Cluster,
    groups: Iterable[str],
    ask: Callable[[int, list[str]], Awaitable[Outcomes[T]]],
    deadline: float,
) -> Outcomes[T]:
    """Call `ask` with each coordinator and its groups; return the outcome of each group.

    A coordinator that cannot be reached is looked up again for FAILOVER_S seconds, after which
    UnreachableError is raised.
    """
    asked = list(dict.fromkeys(groups))
    waiting = asked
    outcomes: Outcomes[T] = {}
    patience = min(deadline, cluster.deadline(FAILOVER_S))
    attempt = 0
    while True:
        by_node, unknown = await _by_coordinator(cluster, waiting, deadline)
        outcomes.update(unknown)
        for node_id, own in by_node.items():
            try:
                outcomes.update(await ask(node_id, own))
            except UnreachableError as error:
                if cluster.transport.monotonic() >= patience:
                    raise
                code = ErrorCode.NETWORK_EXCEPTION
                outcomes.update(
                    {group: BrokerError(code, str(error), subject(group)) for group in own}
                )
        waiting = [group for group in waiting if is_retried(outcomes.get(group))]
        if not waiting or not await cluster.back_off(attempt, deadline):
            return {group: outcomes[group] for group in asked}
        attempt += 1


async def find_coordinators(
    cluster: Cluster, groups: Sequence[str], deadline: float
) -> Outcomes[int]:
    """Return the node id of each group's coordinator; one request for all groups.

    Brokers before Kafka 3.0 get a request per group.
    """
    from wire.messages.find_coordinator import FindCoordinatorRequest

    connection = await cluster.connection(ANY_BROKER, deadline)
    if connection.version_of(FindCoordinatorRequest) >= _MANY_KEYS_SINCE:
        request = FindCoordinatorRequest(key_type=GROUP_KEY, coordinator_keys=list(groups))
        return _found(await cluster.call(request, deadline=deadline), groups)
    found: Outcomes[int] = {}
    for group in groups:
        request = FindCoordinatorRequest(key=group, key_type=GROUP_KEY)
        found |= _found_one(await cluster.call(request, deadline=deadline), group)
    return found


async def find_coordinator_on(connection: BrokerConnection, group: str, deadline: float) -> Node:
    """Return the coordinator of a group, by a request on a given connection.

    Raises BrokerError if there is none, and the errors of the connection.
    """
    from wire.messages.find_coordinator import FindCoordinatorRequest

    has_many_keys = connection.version_of(FindCoordinatorRequest) >= _MANY_KEYS_SINCE
    request = (
        FindCoordinatorRequest(key_type=GROUP_KEY, coordinator_keys=[group])
        if has_many_keys
        else FindCoordinatorRequest(key=group, key_type=GROUP_KEY)
    )
    await connection.send(request, deadline)
    response: FindCoordinatorResponse = await connection.receive(deadline)
    outcome = (_found(response, [group]) if has_many_keys else _found_one(response, group))[group]
    if isinstance(outcome, BrokerError):
        raise outcome
    place = response.coordinators[0] if has_many_keys else response
    return Node(outcome, place.host, place.port, None)


def _found(response: FindCoordinatorResponse, groups: Sequence[str]) -> Outcomes[int]:
    found: Outcomes[int] = {
        one.key: broker_error(one.error_code, one.error_message, subject(one.key))
        if one.error_code
        else one.node_id
        for one in response.coordinators
    }
    return {group: found[group] if group in found else _unanswered(group) for group in groups}


def _found_one(response: FindCoordinatorResponse, group: str) -> Outcomes[int]:
    if response.error_code:
        return {group: broker_error(response.error_code, response.error_message, subject(group))}
    return {group: response.node_id}


def _unanswered(group: str) -> BrokerError:
    text = "the response does not contain the group"
    return BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, text, subject(group))


async def _by_coordinator(
    cluster: Cluster, groups: Sequence[str], deadline: float
) -> tuple[dict[int, list[str]], dict[str, BrokerError]]:
    """Return the groups by coordinator, and an error for those without one."""
    by_node: dict[int, list[str]] = {}
    unknown: dict[str, BrokerError] = {}
    found = await find_coordinators(cluster, groups, deadline) if groups else {}
    if any(
        not isinstance(node, BrokerError) and node not in cluster.nodes for node in found.values()
    ):
        await cluster.refresh(deadline=deadline)
    for group, node in found.items():
        if isinstance(node, BrokerError):
            unknown[group] = node
        elif node in cluster.nodes:
            by_node.setdefault(node, []).append(group)
        else:
            text = f"its coordinator, node {node}, is not in the metadata of the cluster"
            unknown[group] = BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text, subject(group))
    return by_node, unknown


def answered(outcomes: Outcomes[T], groups: Sequence[str]) -> Outcomes[T]:
    """Return the outcomes in the order of `groups`, with an error for those without an outcome."""
    return {group: outcomes[group] if group in outcomes else _unanswered(group) for group in groups}
