"""DescribeCluster: the live workers, and this worker as the controller."""

from typing import Final, Protocol

from metaquorum.dataplane.network.worker_addresses import WorkerAddress
from metaquorum.dataplane.worker.capabilities import HasImage, HasWorkerId
from metaquorum.dataplane.worker.context import Request
from metaquorum.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode

BROKERS: Final = 1
# Without ACLs, all operations are allowed: CREATE, ALTER, DESCRIBE, CLUSTER_ACTION,
# DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE (KIP-430).
CLUSTER_OPERATIONS: Final = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


class DescribesCluster(HasImage, HasWorkerId, Protocol):
    """Capability to read the metadata; clients see this worker as the controller."""


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
