"""Admin APIs about the quorum, its feature levels and its workers, from the active controller.

DescribeQuorum describes the one partition of the metadata log. Its offsets are those of metadata
records, as in other APIs; a voter's uncommitted entries count as if they were committed.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from metaquorum.dataplane.handlers.topics import timeout_seconds
from metaquorum.dataplane.scheduling.time_slices import TimeSlicer, each_of, in_pieces
from metaquorum.dataplane.worker.capabilities import (
    AsksController,
    HasControllerClient,
    HasImage,
    HasSlicer,
)
from metaquorum.dataplane.worker.context import Request
from metaquorum.dataplane.worker.feature_levels import needs_level
from metaquorum.metadata.records import RegisterWorkerRecord
from metaquorum.metadata.topic_names import METADATA_TOPIC
from metaquorum.quorum.controller.features import MOVES_LEVEL, FeatureUpdate, UpgradeType
from metaquorum.quorum.controller.topics import MAX_SPECS, TOO_MANY
from metaquorum.quorum.rpc.methods import (
    ALTER_WORKER,
    DESCRIBE_QUORUM,
    UNREGISTER_WORKER,
    UPDATE_FEATURES,
    AlterWorker,
    DescribeQuorum,
    QuorumDescription,
    ReplicaView,
    UnregisterWorker,
    UpdateFeatures,
    WorkerView,
)
from metaquorum.wire.messages.alter_worker import AlterWorkerRequest, AlterWorkerResponse
from metaquorum.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)
from metaquorum.wire.messages.describe_workers import (
    DescribedWorker,
    DescribeWorkersRequest,
    DescribeWorkersResponse,
    WorkerListener,
)
from metaquorum.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from metaquorum.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

METADATA_PARTITION: Final = 0
LISTENER_NAME: Final = "CONTROLLER"
# Seconds for requests without a timeout of their own. Clients give up after 30 s or later.
TIMEOUT_S: Final = 10.0

_MESSAGES_SINCE: Final = 2  # DescribeQuorum, UpdateFeatures: KIP-853, KIP-1022
_UPGRADE_TYPE_SINCE: Final = 1
_NOT_HERE: Final = "This server does not host this topic-partition."


class DescribesWorkers(HasControllerClient, HasImage, Protocol):
    """Capability to ask the controller about the quorum, and read the registered workers."""


class DescribesQuorum(DescribesWorkers, HasSlicer, Protocol):
    """`DescribesWorkers`, for any number of topics in a request."""


async def handle_describe_quorum(
    worker: DescribesQuorum, request: Request, message: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    if not _asks_for_metadata(message.topics):
        return await _unknown(worker.slicer, message.topics)
    try:
        found = await worker.controller_client.ask(
            DESCRIBE_QUORUM, DescribeQuorum(), timeout_s=TIMEOUT_S
        )
    except KafkaError as error:
        return DescribeQuorumResponse(error_code=error.code, error_message=error.message)
    partition = PartitionData(
        partition_index=METADATA_PARTITION,
        leader_id=found.leader_id,
        leader_epoch=found.term,
        high_watermark=found.end_offset,
        current_voters=_states(found.voters),
        observers=_states(found.observers),
    )
    return DescribeQuorumResponse(
        topics=[TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        nodes=_nodes(worker, found),
    )


def _asks_for_metadata(topics: list[DescribeQuorumTopic]) -> bool:
    """Return whether the request names the metadata partition and no other."""
    if len(topics) != 1 or topics[0].topic_name != METADATA_TOPIC:
        return False
    asked = topics[0].partitions
    return len(asked) == 1 and asked[0].partition_index == METADATA_PARTITION


async def _unknown(slicer: TimeSlicer, topics: list[DescribeQuorumTopic]) -> DescribeQuorumResponse:
    found = await each_of(
        topics,
        lambda topic: topic.partitions,
        lambda _, asked: PartitionData(
            partition_index=asked.partition_index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=_NOT_HERE,
        ),
    )
    described = await in_pieces(
        found, lambda each: TopicData(topic_name=each[0].topic_name, partitions=each[1])
    )
    slicer.discard(found)
    return DescribeQuorumResponse(topics=described)


def _states(replicas: Sequence[ReplicaView]) -> list[ReplicaState]:
    return [
        ReplicaState(
            replica_id=each.node_id,
            log_end_offset=each.end_offset,
            last_fetch_timestamp=each.heard_ms,
            last_caught_up_timestamp=each.caught_up_ms,
        )
        for each in replicas
    ]


def _nodes(worker: HasImage, found: QuorumDescription) -> list[Node]:
    """Return the quorum addresses of the voters that have registered them."""
    controllers = worker.image.controllers
    return [
        Node(
            node_id=each.node_id,
            listeners=[Listener(name=LISTENER_NAME, host=known.host, port=known.port)],
        )
        for each in found.voters
        if (known := controllers.get(each.node_id)) is not None
    ]


async def handle_update_features(
    worker: AsksController, request: Request, message: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Change all of the feature levels, or none."""

    def update_of(each: FeatureUpdateKey) -> FeatureUpdate:
        upgrade_type = each.upgrade_type
        if request.version < _UPGRADE_TYPE_SINCE:
            upgrade_type = (
                UpgradeType.SAFE_DOWNGRADE if each.allow_downgrade else UpgradeType.UPGRADE
            )
        return FeatureUpdate(each.feature, each.max_version_level, upgrade_type)

    if len(message.feature_updates) > MAX_SPECS:
        return UpdateFeaturesResponse(error_code=TOO_MANY.code, error_message=TOO_MANY.message)
    updates = await in_pieces(message.feature_updates, update_of)
    try:
        await worker.controller_client.change(
            UPDATE_FEATURES,
            UpdateFeatures(request.context, updates, message.validate_only),
            timeout_s=timeout_seconds(message.timeout_ms),
        )
    except KafkaError as error:
        text = error.message
        if error.code is ErrorCode.INVALID_UPDATE_VERSION:
            text = (
                "The update failed for all features since the following feature had an error: "
                + text
            )
        return UpdateFeaturesResponse(error_code=error.code, error_message=text)
    results = []
    if request.version < _MESSAGES_SINCE:
        results = [UpdatableFeatureResult(feature=each.name) for each in updates]
    return UpdateFeaturesResponse(results=results)


async def handle_unregister_broker(
    worker: HasControllerClient, request: Request, message: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    try:
        await worker.controller_client.change(
            UNREGISTER_WORKER,
            UnregisterWorker(request.context, message.broker_id),
            timeout_s=TIMEOUT_S,
        )
    except KafkaError as error:
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
    return UnregisterBrokerResponse()


async def handle_alter_worker(
    worker: DescribesWorkers, request: Request, message: AlterWorkerRequest
) -> AlterWorkerResponse:
    try:
        # A controller of an older version does not have the method.
        needs_level(worker.image, MOVES_LEVEL, "draining and removing workers")
        await worker.controller_client.change(
            ALTER_WORKER,
            AlterWorker(request.context, message.worker_id, message.action),
            timeout_s=TIMEOUT_S,
        )
    except KafkaError as error:
        return AlterWorkerResponse(error_code=error.code, error_message=error.message)
    return AlterWorkerResponse()


async def handle_describe_workers(
    worker: DescribesWorkers, request: Request, message: DescribeWorkersRequest
) -> DescribeWorkersResponse:
    response = DescribeWorkersResponse()
    views: dict[int, WorkerView] = {}
    try:
        found = await worker.controller_client.ask(
            DESCRIBE_QUORUM, DescribeQuorum(), timeout_s=TIMEOUT_S
        )
        views = {view.worker_id: view for view in found.workers}
        response.end_offset = found.end_offset
    except KafkaError as error:
        response.error_code, response.error_message = error.code, error.message
    response.workers = [
        _worker(record, views.get(worker_id))
        for worker_id, record in sorted(worker.image.workers.items())
    ]
    return response


def _worker(record: RegisterWorkerRecord, view: WorkerView | None) -> DescribedWorker:
    described = DescribedWorker(
        worker_id=record.worker_id,
        broker_epoch=record.broker_epoch,
        host=record.host,
        rack=record.rack,
        listeners=[
            WorkerListener(
                name=each.listener,
                host=each.host,
                port=each.port,
                security_protocol=each.security_protocol,
            )
            for each in record.endpoints
        ],
        is_fenced=record.fenced,
        is_shutting_down=record.in_controlled_shutdown,
        is_draining=record.draining,
    )
    if view is not None:
        described.why_fenced = view.why_fenced if record.fenced else ""
        described.applied_offset = view.applied_offset
        described.heard_ms_ago = view.heard_ms_ago
    return described
