"""The active controller's rule for the creation of internal topics.

Only a worker can have one created, by an RPC of its own: the CreateTopics requests of clients reach
the controller by another RPC, whose rule refuses these names.
"""

from collections.abc import Mapping
from random import Random
from typing import Final

from metaquorum.config.definition import Scope
from metaquorum.config.registry import parse_all
from metaquorum.metadata.ids import new_topic_id
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from metaquorum.metadata.records import METADATA_VERSION
from metaquorum.metadata.topic_names import colliding_topic
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.features import GROUPS_LEVEL as GROUPS_LEVEL
from metaquorum.quorum.controller.features import TRANSACTIONS_LEVEL as TRANSACTIONS_LEVEL
from metaquorum.quorum.controller.features import check_level
from metaquorum.quorum.controller.topics import (
    MAX_PARTITIONS_PER_TOPIC,
    check_epoch,
    placed,
    topic_records,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen

# Configs of new internal topics besides those of the request, as in Kafka.
_CONFIGS: Final[Mapping[str, Mapping[str, str]]] = {
    CONSUMER_OFFSETS: {"cleanup.policy": "compact", "compression.type": "producer"},
    TRANSACTION_STATE: {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "unclean.leader.election.enable": "false",
    },
}
# Level of metadata.version from which all nodes know what a topic contains.
LEVELS: Final[Mapping[str, int]] = {
    CONSUMER_OFFSETS: GROUPS_LEVEL,
    TRANSACTION_STATE: TRANSACTIONS_LEVEL,
}


@frozen
class CreateInternalTopic:
    """Request of a worker to create an internal topic, with the values of its configs.

    `most_replicas`: replication factor, unless fewer workers are live. `min_isr`:
    min.insync.replicas of the topic; 0 if it has the default of all topics.
    """

    worker_id: int
    broker_epoch: int
    name: str
    partitions: int
    most_replicas: int
    segment_bytes: int
    min_isr: int = 0


def create_internal_topic(
    image: MetadataImage, request: CreateInternalTopic, random: Random
) -> Decision[None]:
    """Decide the creation of an internal topic; no records if it exists already.

    Raises KafkaError if the broker epoch is not current, the cluster's level is too low, or the
    topic cannot be created.
    """
    check_epoch(image, request.worker_id, request.broker_epoch)
    name = request.name
    if name not in _CONFIGS:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Workers do not create a topic named {name!r}."
        )
    check_level(image, METADATA_VERSION, LEVELS[name], f"topic '{name}'")
    if image.topic(name) is not None:
        return Decision(None)
    if (other := colliding_topic(image, name)) is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic '{other}'; delete that one.",
        )
    configs = dict(_CONFIGS[name]) | {"segment.bytes": str(request.segment_bytes)}
    if request.min_isr:
        configs["min.insync.replicas"] = str(request.min_isr)
    parse_all(Scope.TOPIC, configs)
    factor = _replicas(image, request)
    replicas = placed(image, _partitions(request), factor, random)
    return Decision(None, topic_records(image, name, new_topic_id(random), configs, replicas))


def _partitions(request: CreateInternalTopic) -> int:
    if not 1 <= request.partitions <= MAX_PARTITIONS_PER_TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"A topic can have 1 to {MAX_PARTITIONS_PER_TOPIC} partitions.",
        )
    return request.partitions


def _replicas(image: MetadataImage, request: CreateInternalTopic) -> int:
    live = sum(image.is_live(each) and not image.is_draining(each) for each in image.workers)
    if not live:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"No worker is live to host '{request.name}', except those that drain.",
        )
    return max(1, min(request.most_replicas, live))
