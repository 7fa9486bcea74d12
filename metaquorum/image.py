"""The metadata as it stands after so many records: an immutable image, and what changed since one.

Image = fold(log). `Replay` is the one fold, for controllers and workers: it takes records in order
and never refuses one, since every rule was applied when the record was decided. What it asserts is
our own doing. Images share what they have in common, so that keeping one costs what changed.

    end_offset    the number of records replayed; the offset of the next one
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from metaquorum.config_def import Scope
from metaquorum.persistent_map import PersistentMap
from metaquorum.quota_rules import QuotaEntity
from metaquorum.records import (
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterControllerRecord,
    RegisterWorkerRecord,
    RemoveScramCredentialRecord,
    RemoveTopicRecord,
    ScramCredentialRecord,
    TopicRecord,
    UnregisterWorkerRecord,
    WorkerChangeRecord,
)

NO_LEADER: Final = -1
NO_EPOCH: Final = -1
MAX_OPEN_TOPICS: Final = 300  # of a replay, so that its last step is a short one


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition; `leader` is NO_LEADER (-1) where none is there."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    offline: tuple[int, ...] = ()  # replicas on log directories that failed
    blank: tuple[int, ...] = ()  # those that began anew, and were not in sync since
    unclean_epoch: int = NO_EPOCH  # the last that began with a possible loss (`elections`)
    # Not in sync any more, but they have all that is committed (KIP-966).
    elr: tuple[int, ...] = ()
    last_leader: int = NO_LEADER  # of a partition that is led by nobody, where it is known

    def in_next_epoch(self) -> "PartitionImage":
        return PartitionImage(
            self.replicas,
            self.isr,
            self.leader,
            self.leader_epoch,
            self.partition_epoch + 1,
            self.offline,
            self.blank,
            self.unclean_epoch,
            self.elr,
            self.last_leader,
        )


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic; `partitions` in order of their number, from 0."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]


ConfigResource = tuple[int, str]  # a `config.Scope` and a name
ScramUser = tuple[str, int]  # a name and a `scram.ScramMechanism`
_NO_CONFIGS: Final[Mapping[str, str]] = {}


def _name_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _id_bytes(topic_id: bytes) -> bytes:
    return topic_id


def _resource_bytes(resource: ConfigResource) -> bytes:
    return b"%d:%s" % (resource[0], _name_bytes(resource[1]))


def _entity_bytes(entity: QuotaEntity) -> bytes:
    return b"".join(
        b"%d:%s;" % (len(word), word)
        for kind, name in entity.parts()
        for word in (kind.encode(), b"" if name is None else _name_bytes(name))
    )


def _scram_user_bytes(user: ScramUser) -> bytes:
    return b"%s:%d" % (_name_bytes(user[0]), user[1])


def collision_name(name: str) -> str:
    """Topics of equal collision names would have the same metric names ('.' and '_' are one)."""
    return name.replace(".", "_")


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """Everything the metadata log says, after `end_offset` records. Never changed."""

    cluster_id: str
    end_offset: int
    features: Mapping[str, int]
    topics: PersistentMap[str, TopicImage]
    topic_names: PersistentMap[bytes, str]  # by topic id
    # Of the topics with a '.' or '_' in their name: collision name to topic name.
    collisions: PersistentMap[str, str]
    configs: PersistentMap[ConfigResource, Mapping[str, str]]  # only resources with configs
    workers: Mapping[int, RegisterWorkerRecord]
    controllers: Mapping[int, RegisterControllerRecord]
    next_producer_id: int
    producer_ids: ProducerIdsRecord | None  # the last block given
    partition_count: int
    # Of users, client-ids and addresses; only entities that have any.
    client_quotas: PersistentMap[QuotaEntity, Mapping[str, float]]
    scram: PersistentMap[ScramUser, ScramCredentialRecord]

    @staticmethod
    def empty(cluster_id: str) -> "MetadataImage":
        """The image of no records at all."""
        return MetadataImage(
            cluster_id,
            0,
            {},
            PersistentMap(_name_bytes),
            PersistentMap(_id_bytes),
            PersistentMap(_name_bytes),
            PersistentMap(_resource_bytes),
            {},
            {},
            0,
            None,
            0,
            PersistentMap(_entity_bytes),
            PersistentMap(_scram_user_bytes),
        )

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def is_live(self, worker_id: int) -> bool:
        """The worker is registered, and may lead."""
        worker = self.workers.get(worker_id)
        return worker is not None and not worker.fenced and not worker.in_controlled_shutdown

    def broker_epoch(self, worker_id: int) -> int:
        """Of the worker's registration; -1 where there is none."""
        worker = self.workers.get(worker_id)
        return -1 if worker is None else worker.broker_epoch

    def fenced_workers(self) -> set[int]:
        return {worker_id for worker_id, worker in self.workers.items() if worker.fenced}

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """The topic's own configs, as text: the first layer for `WorkerLayers.topic_configs`."""
        return self.configs.get((Scope.TOPIC, name), _NO_CONFIGS)

    def worker_configs(self, worker_id: int | None) -> Mapping[str, str]:
        """The worker's dynamic configs; None: those of all workers."""
        name = "" if worker_id is None else str(worker_id)
        return self.configs.get((Scope.WORKER, name), _NO_CONFIGS)

    def records(self) -> Iterator[MetadataRecord]:
        """Records that replay into this image (but for its end offset), in an order of their own.

        Equal images give equal records, whatever the history that led to them.
        """
        for name, level in sorted(self.features.items()):
            yield FeatureLevelRecord(name, level)
        for _, worker in sorted(self.workers.items()):
            yield worker
        for _, controller in sorted(self.controllers.items()):
            yield controller
        for _, topic in self.topics.in_order():
            yield TopicRecord(topic.name, topic.topic_id)
            for number, partition in enumerate(topic.partitions):
                yield partition_record(topic.topic_id, number, partition)
        for (scope, resource), configs in self.configs.in_order():
            for name, value in sorted(configs.items()):
                yield ConfigRecord(scope, resource, name, value)
        for entity, quotas in self.client_quotas.in_order():
            for key, quota in sorted(quotas.items()):
                yield ClientQuotaRecord(entity.parts(), key, quota)
        if self.producer_ids is not None:
            yield self.producer_ids
        for _, credential in self.scram.in_order():
            yield credential


def partition_record(topic_id: bytes, number: int, partition: PartitionImage) -> PartitionRecord:
    """The record that gives the partition this state."""
    return PartitionRecord(
        topic_id,
        number,
        partition.replicas,
        partition.isr,
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
        partition.offline,
        partition.blank,
        partition.unclean_epoch,
        partition.elr,
        partition.last_leader,
    )


@dataclass(frozen=True, slots=True)
class MetadataDelta:
    """What is different in `image` from `before`, by name; the values stand in the images.

    Mappings to None serve as sets that keep their order, which is the log's.
    """

    before: MetadataImage
    image: MetadataImage
    topic_ids: Mapping[bytes, None]
    resources: Mapping[ConfigResource, None]
    worker_ids: Mapping[int, None]
    features: Mapping[str, None]
    quota_entities: Mapping[QuotaEntity, None]

    @staticmethod
    def none(image: MetadataImage) -> "MetadataDelta":
        return MetadataDelta(image, image, {}, {}, {}, {}, {})

    def then(self, later: "MetadataDelta") -> "MetadataDelta":
        """Both changes as one; `later` begins where this one ends."""
        assert later.before.end_offset == self.image.end_offset
        return MetadataDelta(
            self.before,
            later.image,
            {**self.topic_ids, **later.topic_ids},
            {**self.resources, **later.resources},
            {**self.worker_ids, **later.worker_ids},
            {**self.features, **later.features},
            {**self.quota_entities, **later.quota_entities},
        )

    def topics(self) -> Iterator[tuple[TopicImage | None, TopicImage | None]]:
        """Every touched topic as (before, after); None where it is not there.

        A topic that was deleted and made again appears twice, under its two ids.
        """
        for topic_id in self.topic_ids:
            yield self.before.topic_by_id(topic_id), self.image.topic_by_id(topic_id)


class Replay:
    """Records folded into an image, in as many steps as the caller likes."""

    __slots__ = (
        "_before",
        "_collisions",
        "_configs",
        "_controllers",
        "_count",
        "_features",
        "_next_producer_id",
        "_partition_count",
        "_partitions",
        "_producer_ids",
        "_quota_entities",
        "_quotas",
        "_resources",
        "_scram",
        "_topic_ids",
        "_topic_names",
        "_topics",
        "_touched_features",
        "_worker_ids",
        "_workers",
    )

    def __init__(self, image: MetadataImage) -> None:
        self._before = image
        self._count = 0
        self._features = dict(image.features)
        self._topics = image.topics.edit()
        self._topic_names = image.topic_names.edit()
        self._collisions = image.collisions.edit()
        self._configs = image.configs.edit()
        self._workers = dict(image.workers)
        self._controllers = image.controllers
        self._next_producer_id = image.next_producer_id
        self._producer_ids = image.producer_ids
        self._partition_count = image.partition_count
        self._quotas = image.client_quotas.edit()
        self._scram = image.scram.edit()
        self._partitions: dict[bytes, list[PartitionImage]] = {}  # of topics being changed
        self._topic_ids: dict[bytes, None] = {}
        self._resources: dict[ConfigResource, None] = {}
        self._worker_ids: dict[int, None] = {}
        self._touched_features: dict[str, None] = {}
        self._quota_entities: dict[QuotaEntity, None] = {}

    def apply(self, records: Iterable[MetadataRecord]) -> None:
        """The image will be that of these records, too."""
        for record in records:
            self._count += 1
            match record:
                case PartitionRecord():
                    self._set_partition(record)
                case TopicRecord():
                    self._add_topic(record)
                case RemoveTopicRecord():
                    self._remove_topic(record.topic_id)
                case ConfigRecord():
                    self._set_config(record)
                case RegisterWorkerRecord():
                    self._workers[record.worker_id] = record
                    self._worker_ids[record.worker_id] = None
                case WorkerChangeRecord():
                    self._change_worker(record)
                case UnregisterWorkerRecord():
                    self._workers.pop(record.worker_id, None)
                    self._worker_ids[record.worker_id] = None
                case ProducerIdsRecord():
                    self._next_producer_id = record.next_producer_id
                    self._producer_ids = record
                case FeatureLevelRecord():
                    self._set_feature(record)
                case RegisterControllerRecord():
                    self._controllers = {**self._controllers, record.controller_id: record}
                case ClientQuotaRecord():
                    self._set_quota(record)
                case ScramCredentialRecord():
                    self._scram[record.name, record.mechanism] = record
                case RemoveScramCredentialRecord():
                    self._scram.discard((record.name, record.mechanism))
        if len(self._partitions) > MAX_OPEN_TOPICS:
            last = next(reversed(self._partitions))
            self._close_topics(last)

    def finish(self, end_offset: int | None = None) -> tuple[MetadataImage, MetadataDelta]:
        """The image after all records, and the change that they made. Ends this replay.

        `end_offset`: where the log stands when the records were a snapshot's, not the log's.
        """
        self._close_topics()
        before = self._before
        image = MetadataImage(
            before.cluster_id,
            before.end_offset + self._count if end_offset is None else end_offset,
            self._features if self._touched_features else before.features,
            self._topics.finish(),
            self._topic_names.finish(),
            self._collisions.finish(),
            self._configs.finish(),
            self._workers if self._worker_ids else before.workers,
            self._controllers,
            self._next_producer_id,
            self._producer_ids,
            self._partition_count,
            self._quotas.finish(),
            self._scram.finish(),
        )
        delta = MetadataDelta(
            before,
            image,
            self._topic_ids,
            self._resources,
            self._worker_ids,
            self._touched_features,
            self._quota_entities,
        )
        return image, delta

    def _close_topics(self, but: bytes | None = None) -> None:
        """The topics being changed are in the image; `but` this one, if more of it may follow."""
        for topic_id, partitions in self._partitions.items():
            if topic_id != but:
                name = self._topic_names.get(topic_id)
                assert name is not None
                self._topics[name] = TopicImage(name, topic_id, tuple(partitions))
        self._partitions = {} if but is None else {but: self._partitions[but]}

    def _add_topic(self, record: TopicRecord) -> None:
        assert self._topics.get(record.name) is None, f"topic {record.name} is there already"
        self._topics[record.name] = TopicImage(record.name, record.topic_id, ())
        self._topic_names[record.topic_id] = record.name
        if (normalized := _collision_key(record.name)) is not None:
            self._collisions[normalized] = record.name
        self._topic_ids[record.topic_id] = None

    def _set_partition(self, record: PartitionRecord) -> None:
        partitions = self._partitions.get(record.topic_id)
        if partitions is None:
            partitions = self._open_topic(record.topic_id)
        replicas = record.replicas
        state = PartitionImage(
            replicas,
            replicas if record.isr == replicas else record.isr,
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            record.offline,
            record.blank,
            record.unclean_epoch,
            record.elr,
            record.last_leader,
        )
        if record.partition == len(partitions):
            partitions.append(state)
            self._partition_count += 1
        else:
            partitions[record.partition] = state

    def _open_topic(self, topic_id: bytes) -> list[PartitionImage]:
        name = self._topic_names.get(topic_id)
        assert name is not None, f"partition of an unknown topic {topic_id.hex()}"
        topic = self._topics.get(name)
        assert topic is not None
        partitions = self._partitions[topic_id] = list(topic.partitions)
        self._topic_ids[topic_id] = None
        return partitions

    def _remove_topic(self, topic_id: bytes) -> None:
        name = self._topic_names.get(topic_id)
        assert name is not None, f"removal of an unknown topic {topic_id.hex()}"
        partitions: Iterable[PartitionImage] | None = self._partitions.pop(topic_id, None)
        if partitions is None:
            topic = self._topics.get(name)
            assert topic is not None
            partitions = topic.partitions
        self._partition_count -= sum(1 for _ in partitions)
        self._topics.discard(name)
        self._topic_names.discard(topic_id)
        if (normalized := _collision_key(name)) is not None:
            self._collisions.discard(normalized)
        resource = (Scope.TOPIC, name)
        if self._configs.get(resource) is not None:
            self._configs.discard(resource)
            self._resources[resource] = None
        self._topic_ids[topic_id] = None

    def _set_config(self, record: ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        configs = dict(self._configs.get(resource) or {})
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value
        if configs:
            self._configs[resource] = configs
        else:
            self._configs.discard(resource)
        self._resources[resource] = None

    def _set_quota(self, record: ClientQuotaRecord) -> None:
        entity = QuotaEntity.of(record.entity)
        quotas = dict(self._quotas.get(entity) or {})
        if record.value is None:
            quotas.pop(record.key, None)
        else:
            quotas[record.key] = record.value
        if quotas:
            self._quotas[entity] = quotas
        else:
            self._quotas.discard(entity)
        self._quota_entities[entity] = None

    def _change_worker(self, record: WorkerChangeRecord) -> None:
        worker = self._workers[record.worker_id]
        assert worker.broker_epoch == record.broker_epoch, "a change of an earlier registration"
        fenced, in_shutdown = record.fenced, record.in_controlled_shutdown
        self._workers[record.worker_id] = replace(
            worker,
            fenced=worker.fenced if fenced is None else fenced,
            in_controlled_shutdown=(
                worker.in_controlled_shutdown if in_shutdown is None else in_shutdown
            ),
        )
        self._worker_ids[record.worker_id] = None

    def _set_feature(self, record: FeatureLevelRecord) -> None:
        if record.level:
            self._features[record.name] = record.level
        else:
            self._features.pop(record.name, None)
        self._touched_features[record.name] = None


def _collision_key(name: str) -> str | None:
    return collision_name(name) if "." in name or "_" in name else None


def replay(
    image: MetadataImage, records: Iterable[MetadataRecord]
) -> tuple[MetadataImage, MetadataDelta]:
    """The image after these records, and the change that they made."""
    steps = Replay(image)
    steps.apply(records)
    return steps.finish()
