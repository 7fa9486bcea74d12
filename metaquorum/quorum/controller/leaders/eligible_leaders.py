"""Preconditions of eligible leader replicas (ELR, KIP-966), and the records that maintain them.

The controller computes ELRs (`leader_selection`) from the min.insync.replicas with which leaders
commit records. Controller and leaders must therefore use the same value at every offset of the
metadata log: with the feature enabled, the log holds the cluster-wide config, and no worker may
have its own. If a record lowers the value, the same batch empties the ELRs of all partitions whose
ISR is now large enough.

    the feature is enabled     the cluster-wide config is written, configs of single workers are
                               deleted
    the feature is disabled    ELRs are emptied; if the ISR is empty, the ELR becomes the ISR

Source: Kafka's ConfigurationControlManager and ReplicationControlManager.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from metaquorum.config.definition import Scope
from metaquorum.config.resolution import WorkerLayers
from metaquorum.config.state_topics import MIN_ISR as MIN_ISR
from metaquorum.metadata.image import MetadataImage, PartitionImage, TopicImage, partition_record
from metaquorum.metadata.internal_topics import is_internal
from metaquorum.metadata.records import ELIGIBLE_LEADERS, ConfigRecord, MetadataRecord
from metaquorum.quorum.controller.leaders.leader_selection import OFF, needing, without_elr
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

SCAN_PARTITIONS: Final = 5000  # scanned between two checkpoints of the event loop: 1 ms

_PLAIN: Final = frozenset(map(str, range(1, 10)))

_Change = Callable[[PartitionImage], PartitionImage | None]


def min_isr(image: MetadataImage, topic: str) -> int:
    """Return the topic's min.insync.replicas, or OFF if the cluster does not use ELRs."""
    if ELIGIBLE_LEADERS not in image.features:
        return OFF
    return _min_isr(topic, image.topic_configs(topic), image.worker_configs(None))


def _min_isr(topic: str, own: Mapping[str, str], of_workers: Mapping[str, str]) -> int:
    text, is_state = own.get(MIN_ISR) or of_workers.get(MIN_ISR, ""), is_internal(topic)
    if text in _PLAIN and not is_state:  # fast path: one decision may ask for thousands of topics
        return int(text)
    layers = WorkerLayers(dynamic_default=of_workers)
    return layers.topic_configs(own, is_internal=is_state).integer(MIN_ISR)


def for_all_workers(static: Mapping[str, str]) -> ConfigRecord:
    """Return the record of the cluster-wide value, from the controller's `static` configs."""
    value = WorkerLayers(static).topic_configs({}).integer(MIN_ISR)
    return ConfigRecord(int(Scope.WORKER), "", MIN_ISR, str(value))


def beginning(image: MetadataImage, static: Mapping[str, str]) -> Iterator[MetadataRecord]:
    """Yield the records that must precede enabling the feature."""
    if MIN_ISR not in image.worker_configs(None):
        yield for_all_workers(static)
    for (scope, name), configs in image.configs.in_order():
        if scope == Scope.WORKER and name and MIN_ISR in configs:
            yield ConfigRecord(int(Scope.WORKER), name, MIN_ISR, None)


def ending(image: MetadataImage) -> Iterator[MetadataRecord | None]:
    """Yield the records that must precede disabling the feature."""
    return _changes((topic, without_elr) for topic in image.topics.each())


def check_configs(
    image: MetadataImage,
    scope: Scope,
    name: str,
    own: Mapping[str, str],
    wanted: Mapping[str, str],
) -> None:
    """Check that leaders and controller keep the same min.insync.replicas. Raises KafkaError."""
    if ELIGIBLE_LEADERS not in image.features or scope is not Scope.WORKER:
        return
    if name and MIN_ISR in wanted and wanted[MIN_ISR] != own.get(MIN_ISR):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
        )
    if not name and MIN_ISR in own and MIN_ISR not in wanted:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
        )


def reconfigured(
    image: MetadataImage, scope: Scope, name: str, wanted: Mapping[str, str]
) -> Iterator[MetadataRecord | None]:
    """Return the partition changes if the topic, or all workers, have the configs `wanted`."""
    own, of_workers = image.configs.get((scope, name), {}), image.worker_configs(None)
    if ELIGIBLE_LEADERS not in image.features or wanted.get(MIN_ISR) == own.get(MIN_ISR):
        return iter(())
    if scope is Scope.TOPIC:
        topic = image.topic(name)
        needed = _min_isr(name, wanted, of_workers)
        return _changes([] if topic is None else [(topic, partial(needing, min_isr=needed))])
    if name:
        return iter(())
    return _changes(
        (
            topic,
            partial(needing, min_isr=_min_isr(topic.name, image.topic_configs(topic.name), wanted)),
        )
        for topic in image.topics.each()
    )


def _changes(topics: Iterable[tuple[TopicImage, _Change]]) -> Iterator[MetadataRecord | None]:
    """Yield a record for each partition that its topic's change affects."""
    looked_at = 0
    for topic, change in topics:
        for number, partition in enumerate(topic.partitions):
            looked_at += 1
            if looked_at % SCAN_PARTITIONS == 0:
                yield None
            if (after := change(partition)) is not None:
                yield partition_record(topic.topic_id, number, after)
