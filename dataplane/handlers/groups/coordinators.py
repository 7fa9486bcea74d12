"""FindCoordinator: the workers that coordinate groups and transactions.

The coordinator of a group is the leader of the group's partition of `__consumer_offsets`. The first
request for a group has the topic created.

    metadata.version 1   the connected worker, as in versions without groups: consumers that assign
                         their partitions themselves must name a group, and continue; JoinGroup
                         then answers UNSUPPORTED_VERSION
    no topic             it is created; COORDINATOR_NOT_AVAILABLE if that fails
    no leader            COORDINATOR_NOT_AVAILABLE
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from metaquorum.dataplane.coordinators.partitioning import REMEMBERED_CHARACTERS, partition_of
from metaquorum.dataplane.network.worker_addresses import WorkerAddress
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, Steps, in_pieces
from metaquorum.dataplane.worker.capabilities import HasImage, HasWorkerId
from metaquorum.dataplane.worker.context import Request
from metaquorum.dataplane.worker.feature_levels import has_level, needs_level
from metaquorum.dataplane.worker.internal_topics import InternalTopics
from metaquorum.metadata.image import MetadataImage, TopicImage
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from metaquorum.quorum.controller.internal_topics import GROUPS_LEVEL, TRANSACTIONS_LEVEL
from metaquorum.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

Find: TypeAlias = Callable[[str], Coordinator]

_BATCHED_SINCE: Final = 4  # KIP-699
GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
# Topic that has the state, by type of key.
_TOPICS: Final = {GROUP: CONSUMER_OFFSETS, TRANSACTION: TRANSACTION_STATE}
# Error message by type of key.
_NO_COORDINATOR: Final = {
    SHARE: "this version of metaquorum has no share groups",
}
# The newest version that librdkafka supports. Its transactional producers retry every error of this
# request until init_transactions() times out, except failed authorizations, which are fatal.
_OF_LIBRDKAFKA: Final = 2


class FindsCoordinators(HasImage, HasWorkerId, Protocol):
    """Capability to read the metadata, and to have internal topics created."""

    @property
    def internal_topics(self) -> InternalTopics: ...


async def handle_find_coordinator(
    worker: FindsCoordinators, request: Request, message: FindCoordinatorRequest
) -> FindCoordinatorResponse | Steps[FindCoordinatorResponse]:
    image, listener = worker.image, request.client.listener
    find: Find
    name = _TOPICS.get(message.key_type)
    if name is None:
        find = _always(_no_coordinator(message.key_type))
    elif message.key_type == TRANSACTION and not has_level(image, TRANSACTIONS_LEVEL):
        find = _always(_without_transactions(image, request.version))
    elif not has_level(image, GROUPS_LEVEL):
        find = _always(_without_groups(worker, request))
    elif (topic := image.topic(name)) is not None:
        find = _finder(image, topic, listener)
    else:
        return _create_and_find(worker, request, message, name)
    return await _respond(request.version, message, find)


async def _create_and_find(
    worker: FindsCoordinators, request: Request, message: FindCoordinatorRequest, name: str
) -> FindCoordinatorResponse:
    find: Find
    try:
        topic = await worker.internal_topics.ensure(name)
        find = _finder(worker.image, topic, request.client.listener)
    except KafkaError as error:
        find = _always(_failed(error.code, error.message))
    return await _respond(request.version, message, find)


async def _respond(
    version: int, message: FindCoordinatorRequest, find: Find
) -> FindCoordinatorResponse:
    if version >= _BATCHED_SINCE:
        return await _respond_to_all(message.coordinator_keys, find)
    found = find(message.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _respond_to_all(keys: list[str], find: Find) -> FindCoordinatorResponse:
    is_long = any(len(key) > REMEMBERED_CHARACTERS for key in keys)
    found = await in_pieces(keys, find, 1 if is_long else PIECE_ROWS)
    return FindCoordinatorResponse(coordinators=found)


def _always(found: Coordinator) -> Find:
    """Return the function that finds the same for every key."""

    def find(key: str) -> Coordinator:
        return Coordinator(
            key=key,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
            error_code=found.error_code,
            error_message=found.error_message,
        )

    return find


def _finder(image: MetadataImage, topic: TopicImage, listener: str) -> Find:
    """Return the function that finds the coordinator of a group or id in the metadata."""

    def find(group_id: str) -> Coordinator:
        index = partition_of(group_id, len(topic.partitions))
        leader = image.workers.get(topic.partitions[index].leader)
        address = None if leader is None else WorkerAddress.of(leader, listener)
        if address is None:
            found = _failed(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{topic.name}-{index} has no leader"
                if leader is None
                else f"worker {leader.worker_id} has no address on listener {listener}",
            )
            found.key = group_id
            return found
        return _at(address, group_id)

    return find


def _without_groups(worker: FindsCoordinators, request: Request) -> Coordinator:
    """Return the connected worker as the coordinator, in a cluster without groups so far.

    A consumer of librdkafka that assigns its partitions itself would fail on an error. aiokafka,
    with an older version of the request, would look for another coordinator forever without one.
    """
    if request.version < _OF_LIBRDKAFKA:
        return _failed(ErrorCode.UNSUPPORTED_VERSION, "this cluster does not have groups yet")
    own = worker.image.workers.get(worker.worker_id)
    address = None if own is None else WorkerAddress.of(own, request.client.listener)
    if address is None:  # this worker was unregistered and is about to register again
        return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this node is not registered")
    return _at(address)


def _without_transactions(image: MetadataImage, version: int) -> Coordinator:
    """Return the error of a cluster whose metadata.version is too low."""
    try:
        needs_level(image, TRANSACTIONS_LEVEL, "a transaction")
    except KafkaError as error:
        code = error.code
        if version == _OF_LIBRDKAFKA:
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return _failed(code, error.message)
    raise AssertionError("the cluster has transactions")


def _no_coordinator(key_type: int) -> Coordinator:
    if key_type not in _NO_COORDINATOR:
        return _failed(ErrorCode.INVALID_REQUEST, f"key_type {key_type} is unknown")
    return _failed(ErrorCode.UNSUPPORTED_VERSION, _NO_COORDINATOR[key_type])


def _at(address: WorkerAddress, key: str = "") -> Coordinator:
    return Coordinator(
        key=key,
        node_id=address.worker_id,
        host=address.host,
        port=address.port,
        error_code=ErrorCode.NONE,
        error_message=None,
    )


def _failed(code: ErrorCode, reason: str) -> Coordinator:
    return Coordinator(node_id=-1, host="", port=-1, error_code=code, error_message=reason)
