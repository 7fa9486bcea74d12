"""Where the rules of eligible leader replicas are in force, and what keeps them true (KIP-966).

The controller keeps who has everything that is committed (`elections`) by the min.insync.replicas
that leaders commit by. So both must read the same, record for record of the metadata log: with the
feature, the config is in the log for all workers, and no worker may have one of its own. And where
fewer are needed from some record on, the same batch empties the ELRs of those partitions in which
enough are in sync by then.

    the feature comes     all workers have the config, what single workers have goes
    the feature goes      ELRs go; where nobody is in sync, who was eligible is again

Source: Kafka's ConfigurationControlManager and ReplicationControlManager.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from metaquorum.config.definition import Scope
from metaquorum.config.resolution import WorkerLayers
from metaquorum.controller.leader_selection import OFF, needing, without_elr
from metaquorum.metadata.image import MetadataImage, PartitionImage, TopicImage, partition_record
from metaquorum.metadata.records import ELIGIBLE_LEADERS, ConfigRecord, MetadataRecord
from wire.primitives.errors import ErrorCode, KafkaError

MIN_ISR: Final = "min.insync.replicas"
SCAN_PARTITIONS: Final = 5000  # to look at before the loop may have its turn: 1 ms

_PLAIN: Final = frozenset(map(str, range(1, 10)))

_Change = Callable[[PartitionImage], PartitionImage | None]


def min_isr(image: MetadataImage, topic: str) -> int:
    """The topic's min.insync.replicas; OFF where the cluster is without eligible leaders."""
    if ELIGIBLE_LEADERS not in image.features:
        return OFF
    return _min_isr(image.topic_configs(topic), image.worker_configs(None))


def _min_isr(own: Mapping[str, str], of_workers: Mapping[str, str]) -> int:
    text = own.get(MIN_ISR) or of_workers.get(MIN_ISR, "")
    if text in _PLAIN:  # of thousands of topics at a time
        return int(text)
    return WorkerLayers(dynamic_default=of_workers).topic_configs(own).integer(MIN_ISR)


def for_all_workers(static: Mapping[str, str]) -> ConfigRecord:
    """What the config is for all workers where nobody has said so; `static` are a controller's."""
    value = WorkerLayers(static).topic_configs({}).integer(MIN_ISR)
    return ConfigRecord(int(Scope.WORKER), "", MIN_ISR, str(value))


def beginning(image: MetadataImage, static: Mapping[str, str]) -> Iterator[MetadataRecord]:
    """What has to be said before the cluster is at a level of the feature."""
    if MIN_ISR not in image.worker_configs(None):
        yield for_all_workers(static)
    for (scope, name), configs in image.configs.in_order():
        if scope == Scope.WORKER and name and MIN_ISR in configs:
            yield ConfigRecord(int(Scope.WORKER), name, MIN_ISR, None)


def ending(image: MetadataImage) -> Iterator[MetadataRecord | None]:
    """What has to be said before the cluster is without the feature."""
    return _changes((topic, without_elr) for topic in image.topics.each())


def check_configs(
    image: MetadataImage,
    scope: Scope,
    name: str,
    own: Mapping[str, str],
    wanted: Mapping[str, str],
) -> None:
    """KafkaError where leaders could go by another min.insync.replicas than the controller."""
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
    """What becomes of partitions once the topic, or all workers, have these configs."""
    own, of_workers = image.configs.get((scope, name), {}), image.worker_configs(None)
    if ELIGIBLE_LEADERS not in image.features or wanted.get(MIN_ISR) == own.get(MIN_ISR):
        return iter(())
    if scope is Scope.TOPIC:
        topic = image.topic(name)
        needed = _min_isr(wanted, of_workers)
        return _changes([] if topic is None else [(topic, partial(needing, min_isr=needed))])
    if name:
        return iter(())
    return _changes(
        (topic, partial(needing, min_isr=_min_isr(image.topic_configs(topic.name), wanted)))
        for topic in image.topics.each()
    )


def _changes(topics: Iterable[tuple[TopicImage, _Change]]) -> Iterator[MetadataRecord | None]:
    """A record for each partition that the topic's change changes."""
    looked_at = 0
    for topic, change in topics:
        for number, partition in enumerate(topic.partitions):
            looked_at += 1
            if looked_at % SCAN_PARTITIONS == 0:
                yield None
            if (after := change(partition)) is not None:
                yield partition_record(topic.topic_id, number, after)
