"""Coordinators of groups and of transactions: which node, and requests that follow a move.

    COORDINATOR_NOT_AVAILABLE    no coordinator yet, such as before the internal topic exists
    COORDINATOR_LOAD_IN_PROGRESS the node reads its state from the internal topic
    NOT_COORDINATOR              the key has moved: the coordinator is looked up again

These are retried until the deadline of the call. Functions take groups, or with the kind
TRANSACTIONS transactional ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from metaquorum.client.cluster import ANY_BROKER, FAILOVER_S, Cluster, Node
from metaquorum.client.errors import BrokerError, UnreachableError, broker_error
from metaquorum.wire.primitives.errors import ErrorCode

if TYPE_CHECKING:
    from metaquorum.client.connection import BrokerConnection
    from metaquorum.wire.messages.find_coordinator import FindCoordinatorResponse

T = TypeVar("T")

Outcomes: TypeAlias = dict[str, T | BrokerError]  # by group


class CoordinatorKind(NamedTuple):
    """Kind of a coordinator: its key type in FindCoordinator, and what its keys are."""

    key_type: int
    noun: str

    def subject(self, key: str) -> str:
        """Return the name of a key in errors."""
        return f"{self.noun} {key}"


GROUPS: Final = CoordinatorKind(0, "group")
TRANSACTIONS: Final = CoordinatorKind(1, "transactional id")
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
    return GROUPS.subject(group)


def is_retried(outcome: object) -> bool:
    """Return whether another attempt, perhaps at another node, may give another outcome."""
    return isinstance(outcome, BrokerError) and outcome.code in _RETRIED


async def ask_coordinators(
    cluster: Cluster,
    groups: Iterable[str],
    ask: Callable[[int, list[str]], Awaitable[Outcomes[T]]],
    deadline: float,
    kind: CoordinatorKind = GROUPS,
) -> Outcomes[T]:
    """Call `ask` with each coordinator and its keys; return the outcome of each key.

    A coordinator that cannot be reached is looked up again for FAILOVER_S seconds, after which
    UnreachableError is raised.
    """
    asked = list(dict.fromkeys(groups))
    waiting = asked
    outcomes: Outcomes[T] = {}
    patience = min(deadline, cluster.deadline(FAILOVER_S))
    attempt = 0
    while True:
        by_node, unknown = await _by_coordinator(cluster, waiting, deadline, kind)
        outcomes.update(unknown)
        for node_id, own in by_node.items():
            try:
                outcomes.update(await ask(node_id, own))
            except UnreachableError as error:
                if cluster.transport.monotonic() >= patience:
                    raise
                code = ErrorCode.NETWORK_EXCEPTION
                outcomes.update(
                    {key: BrokerError(code, str(error), kind.subject(key)) for key in own}
                )
        waiting = [group for group in waiting if is_retried(outcomes.get(group))]
        if not waiting or not await cluster.back_off(attempt, deadline):
            return {group: outcomes[group] for group in asked}
        attempt += 1


async def find_coordinators(
    cluster: Cluster, groups: Sequence[str], deadline: float, kind: CoordinatorKind = GROUPS
) -> Outcomes[int]:
    """Return the node id of each key's coordinator; one request for all keys.

    Brokers before Kafka 3.0 get a request per key.
    """
    from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest

    connection = await cluster.connection(ANY_BROKER, deadline)
    if connection.version_of(FindCoordinatorRequest) >= _MANY_KEYS_SINCE:
        request = FindCoordinatorRequest(key_type=kind.key_type, coordinator_keys=list(groups))
        return _found(await cluster.call(request, deadline=deadline), groups, kind)
    found: Outcomes[int] = {}
    for group in groups:
        request = FindCoordinatorRequest(key=group, key_type=kind.key_type)
        found |= _found_one(await cluster.call(request, deadline=deadline), group, kind)
    return found


async def find_coordinator_on(connection: BrokerConnection, group: str, deadline: float) -> Node:
    """Return the coordinator of a group, by a request on a given connection.

    Raises BrokerError if there is none, and the errors of the connection.
    """
    from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest

    has_many_keys = connection.version_of(FindCoordinatorRequest) >= _MANY_KEYS_SINCE
    request = (
        FindCoordinatorRequest(key_type=GROUPS.key_type, coordinator_keys=[group])
        if has_many_keys
        else FindCoordinatorRequest(key=group, key_type=GROUPS.key_type)
    )
    await connection.send(request, deadline)
    response: FindCoordinatorResponse = await connection.receive(deadline)
    found = (
        _found(response, [group], GROUPS) if has_many_keys else _found_one(response, group, GROUPS)
    )
    outcome = found[group]
    if isinstance(outcome, BrokerError):
        raise outcome
    place = response.coordinators[0] if has_many_keys else response
    return Node(outcome, place.host, place.port, None)


def _found(
    response: FindCoordinatorResponse, keys: Sequence[str], kind: CoordinatorKind
) -> Outcomes[int]:
    found: Outcomes[int] = {
        one.key: broker_error(one.error_code, one.error_message, kind.subject(one.key))
        if one.error_code
        else one.node_id
        for one in response.coordinators
    }
    return answered(found, keys, kind)


def _found_one(response: FindCoordinatorResponse, key: str, kind: CoordinatorKind) -> Outcomes[int]:
    if response.error_code:
        return {key: broker_error(response.error_code, response.error_message, kind.subject(key))}
    return {key: response.node_id}


def _unanswered(key: str, kind: CoordinatorKind) -> BrokerError:
    text = f"the response does not contain the {kind.noun}"
    return BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, text, kind.subject(key))


async def _by_coordinator(
    cluster: Cluster, keys: Sequence[str], deadline: float, kind: CoordinatorKind
) -> tuple[dict[int, list[str]], dict[str, BrokerError]]:
    """Return the keys by coordinator, and an error for those without one."""
    by_node: dict[int, list[str]] = {}
    unknown: dict[str, BrokerError] = {}
    found = await find_coordinators(cluster, keys, deadline, kind) if keys else {}
    if any(
        not isinstance(node, BrokerError) and node not in cluster.nodes for node in found.values()
    ):
        await cluster.refresh(deadline=deadline)
    for key, node in found.items():
        if isinstance(node, BrokerError):
            unknown[key] = node
        elif node in cluster.nodes:
            by_node.setdefault(node, []).append(key)
        else:
            text = f"its coordinator, node {node}, is not in the metadata of the cluster"
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            unknown[key] = BrokerError(code, text, kind.subject(key))
    return by_node, unknown


def answered(
    outcomes: Outcomes[T], keys: Sequence[str], kind: CoordinatorKind = GROUPS
) -> Outcomes[T]:
    """Return the outcomes in the order of `keys`, with an error for those without an outcome."""
    return {key: outcomes[key] if key in outcomes else _unanswered(key, kind) for key in keys}
