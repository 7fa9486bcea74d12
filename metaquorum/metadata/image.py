"""Immutable image of the metadata after a number of records, and the delta between two images.

Images share unchanged parts, so keeping an older image costs memory only for the changes. `replay`
creates images.

    end_offset    number of replayed records, which is the offset of the next record
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Final

from metaquorum.config.definition import Scope
from metaquorum.metadata.persistent_map import PersistentMap
from metaquorum.metadata.quota_lookup import QuotaEntity
from metaquorum.metadata.records import (
    FINAL_STATES,
    MAX_PLANNED_MOVES,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    MovePlanRecord,
    PartitionRecord,
    PlannedMove,
    PlannedMovesRecord,
    ProducerIdsRecord,
    RegisterControllerRecord,
    RegisterWorkerRecord,
    RemoveScramCredentialRecord,
    ScramCredentialRecord,
    TopicRecord,
    UnregisterWorkerRecord,
)
from metaquorum.wire.primitives.frozen import frozen

NO_LEADER: Final = -1
NO_EPOCH: Final = -1


@frozen
class PartitionImage:
    """State of one partition; `leader` is NO_LEADER (-1) if there is none."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    offline: tuple[int, ...] = ()  # replicas in failed log directories
    blank: tuple[int, ...] = ()  # replicas that restarted with an empty log and are not yet in sync
    # Last leader epoch that began with a possible loss of records (`controller.leader_selection`).
    unclean_epoch: int = NO_EPOCH
    # Eligible leader replicas: no longer in sync, but with all committed records (KIP-966).
    elr: tuple[int, ...] = ()
    last_leader: int = NO_LEADER  # while the partition has no leader, if known
    # While the partition moves, `replicas` has the target in its order, then `removing`.
    adding: tuple[int, ...] = ()  # replicas that the move adds
    removing: tuple[int, ...] = ()  # replicas that leave once the whole target is in sync
    plan: int = 0  # plan that the move is part of

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """Return the replicas that remain once the move is complete."""
        if not self.removing:
            return self.replicas
        return tuple([replica for replica in self.replicas if replica not in self.removing])

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
            self.adding,
            self.removing,
            self.plan,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        replicas, isr, elr = set(self.replicas), set(self.isr), set(self.elr)
        assert len(replicas) == len(self.replicas), self
        assert len(isr) == len(self.isr), self
        assert isr <= replicas, self
        assert elr <= replicas - isr, self
        assert self.leader == NO_LEADER or self.leader in isr, self
        assert self.last_leader == NO_LEADER or self.leader == NO_LEADER, self
        assert {*self.offline} <= replicas, self
        assert self.leader not in self.offline, self
        assert {*self.blank} <= replicas, self
        # Without a leader, the next epoch may already be known to begin with a loss.
        assert self.unclean_epoch <= self.leader_epoch + (self.leader == NO_LEADER), self
        assert self.leader_epoch >= 0 <= self.partition_epoch, self
        assert {*self.adding} <= replicas, self
        assert {*self.removing} <= replicas, self  # also what an earlier move was adding
        assert self.target, self
        assert not self.plan or self.is_moving, self


@frozen
class TopicImage:
    """State of one topic; `partitions` are in order of their number, from 0."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]


PartitionKey = tuple[bytes, int]  # a topic id and the partition's number


@frozen
class MovePlanImage:
    """State of a plan of moves. `moving`: the partitions that move as part of it."""

    header: MovePlanRecord
    parts: tuple[tuple[PlannedMove, ...], ...] = ()  # none once the plan has ended
    moving: Mapping[PartitionKey, None] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        return self.header.state in FINAL_STATES

    def moves(self, first: int = 0) -> Iterator[PlannedMove]:
        """Yield the moves from that number on; all parts but the last are full."""
        number, skipped = divmod(first, MAX_PLANNED_MOVES)
        for part in self.parts[number:]:
            yield from part[skipped:]
            skipped = 0


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
    """Return the name by which topics collide: metric names do not distinguish '.' and '_'."""
    return name.replace(".", "_")


@frozen
class MetadataImage:
    """Immutable state of the metadata log after `end_offset` records."""

    cluster_id: str
    end_offset: int
    features: Mapping[str, int]
    topics: PersistentMap[str, TopicImage]
    topic_names: PersistentMap[bytes, str]  # by topic id
    # Collision name to topic name, for topics with a '.' or '_' in their name.
    collisions: PersistentMap[str, str]
    configs: PersistentMap[ConfigResource, Mapping[str, str]]  # only resources with configs
    workers: Mapping[int, RegisterWorkerRecord]
    # Last registration of each unregistered worker. If a process registers under that id again, it
    # decides whether the process has all records that the worker wrote. Entries are never removed
    # otherwise.
    departed: Mapping[int, RegisterWorkerRecord]
    controllers: Mapping[int, RegisterControllerRecord]
    next_producer_id: int
    producer_ids: ProducerIdsRecord | None  # last allocated block
    partition_count: int
    # Quotas of users, client ids and IP addresses; only entities with quotas.
    client_quotas: PersistentMap[QuotaEntity, Mapping[str, float]]
    scram: PersistentMap[ScramUser, ScramCredentialRecord]
    # Salt and iteration count of deleted users, which authentication continues to send.
    deleted_scram: PersistentMap[ScramUser, RemoveScramCredentialRecord]
    plans: Mapping[int, MovePlanImage]  # plans of moves; those that have ended until there are many

    @staticmethod
    def empty(cluster_id: str) -> "MetadataImage":
        """Return the image of an empty log."""
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
            {},
            0,
            None,
            0,
            PersistentMap(_entity_bytes),
            PersistentMap(_scram_user_bytes),
            PersistentMap(_scram_user_bytes),
            {},
        )

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def is_live(self, worker_id: int) -> bool:
        """Return whether the worker is registered, not fenced and not in controlled shutdown."""
        worker = self.workers.get(worker_id)
        return worker is not None and not worker.fenced and not worker.in_controlled_shutdown

    def is_draining(self, worker_id: int) -> bool:
        """Return whether the worker is registered, and is being emptied by an operator."""
        worker = self.workers.get(worker_id)
        return worker is not None and worker.draining

    def last_registration(self, worker_id: int) -> RegisterWorkerRecord | None:
        """Return the worker's registration, or its last one if it is unregistered."""
        return self.workers.get(worker_id) or self.departed.get(worker_id)

    def broker_epoch(self, worker_id: int) -> int:
        """Return the broker epoch of the worker's registration; -1 if it is not registered."""
        worker = self.workers.get(worker_id)
        return -1 if worker is None else worker.broker_epoch

    def fenced_workers(self) -> set[int]:
        return {worker_id for worker_id, worker in self.workers.items() if worker.fenced}

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """Return the topic's own configs as text, for `WorkerLayers.topic_configs`."""
        return self.configs.get((Scope.TOPIC, name), _NO_CONFIGS)

    def worker_configs(self, worker_id: int | None) -> Mapping[str, str]:
        """Return the worker's dynamic configs; with None, the cluster-wide ones."""
        name = "" if worker_id is None else str(worker_id)
        return self.configs.get((Scope.WORKER, name), _NO_CONFIGS)

    def records(self) -> Iterator[MetadataRecord]:
        """Yield records that replay into this image, except for its end offset, as for a snapshot.

        Equal images yield equal records in equal order, regardless of their history.
        """
        for name, level in sorted(self.features.items()):
            yield FeatureLevelRecord(name, level)
        for _, worker in sorted(self.workers.items()):
            yield worker
        for _, departed in sorted(self.departed.items()):
            yield departed
            yield UnregisterWorkerRecord(departed.worker_id, departed.broker_epoch)
        for _, controller in sorted(self.controllers.items()):
            yield controller
        for plan_id, plan in sorted(self.plans.items()):
            yield plan.header  # before the partitions, which refer to it
            for part in plan.parts:
                yield PlannedMovesRecord(plan_id, part)
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
        for _, deleted in self.deleted_scram.in_order():
            yield deleted

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        count, moving = 0, set()
        for name, topic in self.topics.items():
            assert topic.name == name
            assert self.topic_names.get(topic.topic_id) == name
            assert topic.partitions, name
            count += len(topic.partitions)
            for number, partition in enumerate(topic.partitions):
                partition.check_invariants()
                if partition.plan:
                    moving.add((partition.plan, topic.topic_id, number))
        assert count == self.partition_count, (count, self.partition_count)
        assert len(self.topics) == len(self.topic_names)
        assert all(name in self.topics for name in self.collisions.values())
        for plan_id, plan in self.plans.items():
            assert plan.header.plan_id == plan_id
            assert {(plan_id, *each) for each in plan.moving} <= moving
        assert all(plan_id in self.plans for plan_id, _, _ in moving)
        assert all(self.configs.values())
        assert all(self.client_quotas.values())
        assert not self.workers.keys() & self.departed.keys()
        for worker_id, worker in self.workers.items():
            assert worker.worker_id == worker_id
            assert 0 <= worker.broker_epoch < self.end_offset, worker
        assert self.scram.keys().isdisjoint(self.deleted_scram.keys())
        assert self.producer_ids is None or self.next_producer_id > 0


def partition_record(topic_id: bytes, number: int, partition: PartitionImage) -> PartitionRecord:
    """Return the record that sets the partition to this state."""
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
        partition.adding,
        partition.removing,
        partition.plan,
    )


@frozen
class MetadataDelta:
    """Names and ids of everything that differs between `before` and `image`.

    The values are in the images. Mappings to None serve as sets in log order.
    """

    before: MetadataImage
    image: MetadataImage
    topic_ids: Mapping[bytes, None]
    resources: Mapping[ConfigResource, None]
    worker_ids: Mapping[int, None]
    features: Mapping[str, None]
    quota_entities: Mapping[QuotaEntity, None]
    plan_ids: Mapping[int, None] = field(default_factory=dict)

    @staticmethod
    def none(image: MetadataImage) -> "MetadataDelta":
        return MetadataDelta(image, image, {}, {}, {}, {}, {})

    def then(self, later: "MetadataDelta") -> "MetadataDelta":
        """Return the combined delta; `later` must begin at the end offset of this delta."""
        assert later.before.end_offset == self.image.end_offset
        return MetadataDelta(
            self.before,
            later.image,
            {**self.topic_ids, **later.topic_ids},
            {**self.resources, **later.resources},
            {**self.worker_ids, **later.worker_ids},
            {**self.features, **later.features},
            {**self.quota_entities, **later.quota_entities},
            {**self.plan_ids, **later.plan_ids},
        )

    def topics(self) -> Iterator[tuple[TopicImage | None, TopicImage | None]]:
        """Yield every changed topic as (before, after); None where it does not exist.

        A topic that was deleted and created again appears twice, once for each id.
        """
        for topic_id in self.topic_ids:
            yield self.before.topic_by_id(topic_id), self.image.topic_by_id(topic_id)
