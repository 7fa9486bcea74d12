"""Descriptions of the quorum and of the workers, from the APIs that the cluster serves.

metaquorum      DescribeWorkers returns all fields of the workers
Apache Kafka    DescribeCluster returns the brokers and which are fenced, DescribeQuorum their
                metadata offsets; the other fields are None
"""

from collections.abc import Iterable, Mapping
from typing import Final

from metaquorum.client.cluster import ANY_BROKER, CONTROLLER, Cluster, address_text
from metaquorum.client.errors import NotServedError, broker_error
from metaquorum.client.values import Quorum, QuorumReplica, WorkerDescription
from metaquorum.wire.primitives.errors import ErrorCode

METADATA_TOPIC: Final = "__cluster_metadata"
_FENCED_SINCE: Final = 2  # DescribeCluster: KIP-1073
DRAIN: Final = 1  # actions of AlterWorker
RETURN: Final = 2
REMOVE: Final = 3
MAX_LEVEL: Final = 2**15 - 1  # highest feature level that UpdateFeatures can set


async def describe_quorum(cluster: Cluster) -> Quorum:
    """Return the state of the quorum. Raises BrokerError if the cluster cannot describe it."""
    from metaquorum.wire.messages.describe_quorum import (
        DescribeQuorumPartition,
        DescribeQuorumRequest,
        DescribeQuorumResponse,
        DescribeQuorumTopic,
        ReplicaState,
    )

    topic = DescribeQuorumTopic(topic_name=METADATA_TOPIC, partitions=[DescribeQuorumPartition()])
    response: DescribeQuorumResponse = await cluster.call(DescribeQuorumRequest(topics=[topic]))
    _check(response.error_code, response.error_message)
    if not response.topics or not response.topics[0].partitions:
        _check(ErrorCode.UNKNOWN_SERVER_ERROR, "the response does not contain the quorum")
    (partition,) = response.topics[0].partitions
    _check(partition.error_code, partition.error_message)
    addresses = {
        node.node_id: address_text((node.listeners[0].host, node.listeners[0].port))
        for node in response.nodes
        if node.listeners
    }

    def replicas(states: Iterable[ReplicaState]) -> list[QuorumReplica]:
        return sorted(
            (
                QuorumReplica(
                    state.replica_id,
                    _known_or_none(state.log_end_offset),
                    _known_or_none(state.last_fetch_timestamp),
                    _known_or_none(state.last_caught_up_timestamp),
                    addresses.get(state.replica_id),
                )
                for state in states
            ),
            key=lambda replica: replica.node_id,
        )

    return Quorum(
        partition.leader_id,
        partition.leader_epoch,
        partition.high_watermark,
        replicas(partition.current_voters),
        replicas(partition.observers),
    )


async def describe_workers(cluster: Cluster) -> list[WorkerDescription]:
    """Return all registered workers in the order of their ids. Raises BrokerError on refusal."""
    from metaquorum.wire.messages.describe_workers import (
        DescribeWorkersRequest,
        DescribeWorkersResponse,
    )

    connection = await cluster.connection(ANY_BROKER, cluster.deadline())
    if DescribeWorkersRequest.API not in connection.versions:
        return await _from_kafka(cluster)
    response: DescribeWorkersResponse = await cluster.call(DescribeWorkersRequest())
    _check(response.error_code, response.error_message)
    return [
        WorkerDescription(
            worker.worker_id,
            ",".join(address_text((each.host, each.port)) for each in worker.listeners),
            worker.rack,
            worker.is_fenced,
            worker.why_fenced or None,
            worker.host,
            worker.broker_epoch,
            worker.is_shutting_down,
            _known_or_none(worker.applied_offset),
            _known_or_none(worker.heard_ms_ago),
            worker.is_draining,
        )
        for worker in sorted(response.workers, key=lambda worker: worker.worker_id)
    ]


async def _from_kafka(cluster: Cluster) -> list[WorkerDescription]:
    from metaquorum.wire.messages.describe_cluster import (
        DescribeClusterRequest,
        DescribeClusterResponse,
    )

    connection = await cluster.connection(ANY_BROKER, cluster.deadline())
    fenced = connection.version_of(DescribeClusterRequest) >= _FENCED_SINCE
    response: DescribeClusterResponse = await cluster.call(
        DescribeClusterRequest(include_fenced_brokers=fenced)
    )
    _check(response.error_code, response.error_message)
    known: dict[int, QuorumReplica] = {}
    try:
        quorum = await describe_quorum(cluster)
        known = {each.node_id: each for each in (*quorum.observers, *quorum.voters)}
    except NotServedError:
        pass  # a Kafka cluster without KRaft
    now_ms = cluster.transport.now_ms()
    workers = []
    for broker in sorted(response.brokers, key=lambda broker: broker.broker_id):
        replica = known.get(broker.broker_id)
        heard_ms = None if replica is None else replica.heard_ms
        workers.append(
            WorkerDescription(
                broker.broker_id,
                address_text((broker.host, broker.port)),
                broker.rack,
                broker.is_fenced,
                None,
                None,
                None,
                None,
                None if replica is None else replica.end_offset,
                None if heard_ms is None else max(0, now_ms - heard_ms),
            )
        )
    return workers


async def unregister_worker(cluster: Cluster, worker_id: int) -> None:
    """Remove the registration of a worker; the request is sent at most once.

    Raises BrokerError if the cluster refuses.
    """
    from metaquorum.wire.messages.unregister_broker import (
        UnregisterBrokerRequest,
        UnregisterBrokerResponse,
    )

    request = UnregisterBrokerRequest(broker_id=worker_id)
    response: UnregisterBrokerResponse = await cluster.call(request, to=CONTROLLER, changes=True)
    if response.error_code:
        raise broker_error(response.error_code, response.error_message, f"worker {worker_id}")


async def alter_worker(cluster: Cluster, worker_id: int, action: int) -> None:
    """DRAIN, RETURN or REMOVE a worker; the request is sent at most once.

    Raises BrokerError if the cluster refuses, NotServedError if it is Apache Kafka.
    """
    from metaquorum.wire.messages.alter_worker import AlterWorkerRequest, AlterWorkerResponse

    request = AlterWorkerRequest(worker_id=worker_id, action=action)
    response: AlterWorkerResponse = await cluster.call(request, to=CONTROLLER, changes=True)
    if response.error_code:
        raise broker_error(response.error_code, response.error_message, f"worker {worker_id}")


async def raise_features(
    cluster: Cluster, levels: Mapping[str, int], *, validate_only: bool
) -> None:
    """Raise feature levels, all or none; the request is sent at most once.

    Raises BrokerError if the cluster refuses.
    """
    from metaquorum.wire.messages.update_features import (
        FeatureUpdateKey,
        UpdateFeaturesRequest,
        UpdateFeaturesResponse,
    )

    request = UpdateFeaturesRequest(
        timeout_ms=int(cluster.timeout_s * 1000),
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level)
            for name, level in levels.items()
        ],
        validate_only=validate_only,
    )
    response: UpdateFeaturesResponse = await cluster.call(request, to=CONTROLLER, changes=True)
    if response.error_code:
        raise broker_error(response.error_code, response.error_message, "the feature levels")
    for result in response.results:  # before version 2 of the API
        if result.error_code:
            raise broker_error(result.error_code, result.error_message, result.feature)


def _check(code: int, message: str | None) -> None:
    if code:
        raise broker_error(code, message, "the quorum")


def _known_or_none(value: int) -> int | None:
    return None if value < 0 else value
