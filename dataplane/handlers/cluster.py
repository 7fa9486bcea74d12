"""DescribeCluster, and FindCoordinator in a version without group and transaction coordinators."""

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
# Without ACLs, all operations are allowed: CREATE, ALTER, DESCRIBE, CLUSTER_ACTION,
# DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE (KIP-430).
CLUSTER_OPERATIONS: Final = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
# Error message by type of key.
_NO_COORDINATOR: Final = {
    GROUP: "this version of metaquorum has no groups",
    TRANSACTION: "this version of metaquorum has no transactions",
    SHARE: "this version of metaquorum has no share groups",
}
# The newest version that librdkafka supports. Its transactional producers retry every error of this
# request until init_transactions() times out, except failed authorizations, which are fatal.
_OF_LIBRDKAFKA: Final = 2


class DescribesCluster(HasImage, HasWorkerId, Protocol):
    """Capability to read the metadata; clients see this worker as coordinator and controller."""


def handle_describe_cluster(
    worker: DescribesCluster, request: Request, message: DescribeClusterRequest
) -> DescribeClusterResponse:
    image = worker.image
    response = DescribeClusterResponse(
        cluster_id=image.cluster_id, endpoint_type=message.endpoint_type
    )
    if message.endpoint_type != BROKERS:
        response.error_code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        response.error_message = (
            "This is a broker endpoint; controllers have no endpoints for clients."
        )
        return response
    response.controller_id = worker.worker_id  # any worker accepts admin requests
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
    """Return this worker as the coordinator of groups, and an error for other types of key.

    No API to join a group is served: a client that needs one does not find it in ApiVersions and
    fails at once with a clear error. An error here would not make the client fail sooner. It would
    also fail librdkafka consumers that name a group (as they must) but assign their partitions
    themselves, and a retriable error would make all other clients wait without a message. Requests
    in older versions get an error: aiokafka uses them and treats the error as final; without an
    error, aiokafka would look for another coordinator forever.
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
    if at is None:  # this worker was unregistered and is about to register again
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return Coordinator(
            node_id=-1,
            host="",
            port=-1,
            error_code=code,
            error_message="this node is not registered",
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
