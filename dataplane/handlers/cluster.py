"""DescribeCluster, and FindCoordinator while there are no coordinators."""

from typing import Final, Protocol

from dataplane.network.worker_addresses import WorkerAddress
from dataplane.scheduling.time_slices import Work, in_pieces
from dataplane.worker.capabilities import HasImage, HasWorkerId
from dataplane.worker.context import Request
from wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from wire.primitives.errors import ErrorCode

BROKERS: Final = 1
_BATCHED_SINCE: Final = 4
# Until there are ACLs, everybody may do all: CREATE, ALTER, DESCRIBE, CLUSTER_ACTION,
# DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE (KIP-430).
CLUSTER_OPERATIONS: Final = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
# Why there is no coordinator, by type of key.
_NO_COORDINATOR: Final = {
    GROUP: "this version of metaquorum has no groups",
    TRANSACTION: "this version of metaquorum has no transactions",
    SHARE: "this version of metaquorum has no share groups",
}
# The newest version that librdkafka has. Its transactional producers retry every error of this
# request until init_transactions() times out, but for failed authorizations, which are fatal.
_OF_LIBRDKAFKA: Final = 2


class DescribesCluster(HasImage, HasWorkerId, Protocol):
    """May read the metadata; this worker is the coordinator and controller that clients see."""


def handle_describe_cluster(
    worker: DescribesCluster, request: Request, message: DescribeClusterRequest
) -> DescribeClusterResponse:
    image = worker.image
    response = DescribeClusterResponse(
        cluster_id=image.cluster_id, endpoint_type=message.endpoint_type
    )
    if message.endpoint_type != BROKERS:
        response.error_code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        response.error_message = "This is a broker endpoint; controllers have none of their own."
        return response
    response.controller_id = worker.worker_id  # administration may be sent to any worker
    response.brokers = [
        DescribeClusterBroker(
            broker_id=address.worker_id,
            host=address.host,
            port=address.port,
            rack=address.rack,
            is_fenced=record.fenced,
        )
        for record in image.workers.values()
        if message.include_fenced_brokers or not record.fenced
        for address in (WorkerAddress.of(record, request.client.listener),)
        if address is not None
    ]
    if message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def handle_find_coordinator(
    worker: DescribesCluster, request: Request, message: FindCoordinatorRequest
) -> FindCoordinatorResponse | Work[FindCoordinatorResponse]:
    """Groups are this worker's; there is no coordinator of anything else.

    No request to join a group is served: a client that is to join one finds that ApiVersions does
    not list what it needs, and says so at once. An error here would tell it no sooner, and would
    reach librdkafka's consumers that only name a group (as they must) and take their partitions
    themselves; one that is retriable keeps all others waiting without a word. aiokafka, of the
    clients that ask in older versions, looks for another coordinator over and over instead: it
    takes the error for final.
    """
    if message.key_type == GROUP and request.version >= _OF_LIBRDKAFKA:
        found = _coordinator_of_groups(worker, request)
    else:
        found = _no_coordinator(message.key_type, request.version)
    if request.version < _BATCHED_SINCE:
        return FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=found.error_message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )
    return _for_each(message.coordinator_keys, found)


def _for_each(keys: list[str], found: Coordinator) -> Work[FindCoordinatorResponse]:
    coordinators = yield from in_pieces(
        keys,
        lambda key: Coordinator(
            key=key,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
            error_code=found.error_code,
            error_message=found.error_message,
        ),
    )
    return FindCoordinatorResponse(coordinators=coordinators)


def _coordinator_of_groups(worker: DescribesCluster, request: Request) -> Coordinator:
    own = worker.image.workers.get(worker.worker_id)
    at = None if own is None else WorkerAddress.of(own, request.client.listener)
    if at is None:  # it was unregistered, and is about to register again
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return Coordinator(
            node_id=-1, host="", port=-1, error_code=code, error_message="ask another node"
        )
    return Coordinator(
        node_id=at.worker_id, host=at.host, port=at.port, error_code=0, error_message=None
    )


def _no_coordinator(key_type: int, version: int) -> Coordinator:
    code, reason = ErrorCode.INVALID_REQUEST, f"key_type {key_type} is unknown"
    if key_type in _NO_COORDINATOR:
        code, reason = ErrorCode.UNSUPPORTED_VERSION, _NO_COORDINATOR[key_type]
        if key_type == TRANSACTION and version == _OF_LIBRDKAFKA:
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return Coordinator(node_id=-1, host="", port=-1, error_code=code, error_message=reason)
