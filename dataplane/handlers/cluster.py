"""DescribeCluster, and FindCoordinator while there are no coordinators."""

from typing import Final

from dataplane.turns import Work, in_pieces
from dataplane.worker import Request, Worker, WorkerAddress
from wire.errors import ErrorCode
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

BROKERS: Final = 1
_BATCHED_SINCE: Final = 4
# Until there are ACLs, everybody may do all: CREATE, ALTER, DESCRIBE, CLUSTER_ACTION,
# DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE (KIP-430).
CLUSTER_OPERATIONS: Final = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))

# By type of key: group, transaction, share group. Librdkafka's consumers ask for a coordinator even
# if they only name a group and take their partitions themselves, and hand any error to the
# application that does not say "try again". Others had better hear at once that there is none.
_NO_COORDINATOR: Final = {
    0: (ErrorCode.COORDINATOR_NOT_AVAILABLE, "this version has no groups"),
    1: (ErrorCode.UNSUPPORTED_VERSION, "this version has no transactions"),
    2: (ErrorCode.UNSUPPORTED_VERSION, "this version has no share groups"),
}


def handle_describe_cluster(
    worker: Worker, request: Request, message: DescribeClusterRequest
) -> DescribeClusterResponse:
    image = worker.image
    response = DescribeClusterResponse(
        cluster_id=image.cluster_id, endpoint_type=message.endpoint_type
    )
    if message.endpoint_type != BROKERS:
        response.error_code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        response.error_message = "This is a broker endpoint; controllers have none of their own."
        return response
    response.controller_id = worker.controller_id
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
    worker: Worker, request: Request, message: FindCoordinatorRequest
) -> FindCoordinatorResponse | Work[FindCoordinatorResponse]:
    unknown = ErrorCode.INVALID_REQUEST, f"key_type {message.key_type} is unknown"
    code, reason = _NO_COORDINATOR.get(message.key_type, unknown)
    if request.version < _BATCHED_SINCE:
        return FindCoordinatorResponse(
            error_code=code, error_message=reason, node_id=-1, host="", port=-1
        )
    return _none_of_each(message.coordinator_keys, code, reason)


def _none_of_each(keys: list[str], code: ErrorCode, reason: str) -> Work[FindCoordinatorResponse]:
    found = yield from in_pieces(
        keys,
        lambda key: Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=code, error_message=reason
        ),
    )
    return FindCoordinatorResponse(coordinators=found)
