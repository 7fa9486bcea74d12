"""Replay of the metadata log into an image, the same for controllers and workers.

Applies records in order and rejects none, because the controller checked all rules when it decided
the record. A failed assertion here is a bug.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from metaquorum.config.definition import Scope
from metaquorum.metadata.image import (
    ConfigResource,
    MetadataDelta,
    MetadataImage,
    MovePlanImage,
    PartitionImage,
    PartitionKey,
    TopicImage,
    collision_name,
)
from metaquorum.metadata.quota_lookup import QuotaEntity
from metaquorum.metadata.records import (
    CANCELLING,
    MAX_STOPS,
    STOPPED_BY_CANCEL,
    STOPPED_BY_DELETION,
    STOPPED_BY_REQUEST,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    MovePlanRecord,
    PartitionRecord,
    PlannedMovesRecord,
    ProducerIdsRecord,
    RegisterControllerRecord,
    RegisterWorkerRecord,
    RemoveMovePlanRecord,
    RemoveScramCredentialRecord,
    RemoveTopicRecord,
    ScramCredentialRecord,
    StoppedMove,
    TopicRecord,
    UnregisterWorkerRecord,
    WorkerChangeRecord,
    is_written,
)

MAX_OPEN_TOPICS: Final = 300  # topics under change in one replay; keeps `finish` short


class Replay:
    """Replay of records into an image, in any number of steps."""

    __slots__ = (
        "_before",
        "_collisions",
        "_configs",
        "_controllers",
        "_count",
        "_deleted_scram",
        "_departed",
        "_features",
        "_next_producer_id",
        "_partition_count",
        "_partitions",
        "_plan_ids",
        "_plan_moving",
        "_plans",
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
        self._departed = image.departed
        self._controllers = image.controllers
        self._next_producer_id = image.next_producer_id
        self._producer_ids = image.producer_ids
        self._partition_count = image.partition_count
        self._quotas = image.client_quotas.edit()
        self._scram = image.scram.edit()
        self._deleted_scram = image.deleted_scram.edit()
        self._plans: Mapping[int, MovePlanImage] = image.plans
        self._plan_ids: dict[int, None] = {}
        self._plan_moving: dict[int, dict[PartitionKey, None]] = {}  # by plan under change
        self._partitions: dict[
            bytes, list[PartitionImage]
        ] = {}  # partitions of topics under change
        self._topic_ids: dict[bytes, None] = {}
        self._resources: dict[ConfigResource, None] = {}
        self._worker_ids: dict[int, None] = {}
        self._touched_features: dict[str, None] = {}
        self._quota_entities: dict[QuotaEntity, None] = {}

    def apply(self, records: Iterable[MetadataRecord]) -> None:
        """Apply the records."""
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
                    self._register_worker(record)
                case WorkerChangeRecord():
                    self._change_worker(record)
                case UnregisterWorkerRecord():
                    self._unregister_worker(record.worker_id)
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
                    self._deleted_scram.discard((record.name, record.mechanism))
                case RemoveScramCredentialRecord():
                    self._remove_scram(record)
                case MovePlanRecord():
                    self._set_plan(record)
                case PlannedMovesRecord():
                    plan = self._plans[record.plan_id]
                    self._put_plan(replace(plan, parts=(*plan.parts, record.moves)))
                case RemoveMovePlanRecord():
                    self._remove_plan(record.plan_id)
        if len(self._partitions) > MAX_OPEN_TOPICS:
            last = next(reversed(self._partitions))
            self._close_topics(last)

    def finish(self, end_offset: int | None = None) -> tuple[MetadataImage, MetadataDelta]:
        """Return the image after all records, and the delta. No call may follow.

        `end_offset` is that of the snapshot if the records come from one.
        """
        self._close_topics()
        self._close_plans()
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
            self._departed,
            self._controllers,
            self._next_producer_id,
            self._producer_ids,
            self._partition_count,
            self._quotas.finish(),
            self._scram.finish(),
            self._deleted_scram.finish(),
            self._plans,
        )
        delta = MetadataDelta(
            before,
            image,
            self._topic_ids,
            self._resources,
            self._worker_ids,
            self._touched_features,
            self._quota_entities,
            self._plan_ids,
        )
        return image, delta

    def _close_topics(self, but: bytes | None = None) -> None:
        """Put the topics under change into the image, except `but`, of which more may follow."""
        for topic_id, partitions in self._partitions.items():
            if topic_id != but:
                name = self._topic_names.get(topic_id)
                assert name is not None
                self._topics[name] = TopicImage(name, topic_id, tuple(partitions))
        self._partitions = {} if but is None else {but: self._partitions[but]}

    def _add_topic(self, record: TopicRecord) -> None:
        assert self._topics.get(record.name) is None, f"topic {record.name} exists already"
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
            record.adding,
            record.removing,
            record.plan,
        )
        is_new = record.partition == len(partitions)
        plan_before = 0 if is_new else partitions[record.partition].plan
        if record.plan != plan_before:
            key = record.topic_id, record.partition
            self._leave_plan(key, None if is_new else partitions[record.partition], state)
            if record.plan:
                self._moving(record.plan)[key] = None
        if is_new:
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
        for number, partition in enumerate(partitions):
            self._partition_count -= 1
            if partition.plan:
                self._leave_plan((topic_id, number), partition, None)
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

    def _remove_scram(self, record: RemoveScramCredentialRecord) -> None:
        user = (record.name, record.mechanism)
        self._scram.discard(user)
        if record.salt and is_written(RemoveScramCredentialRecord, "salt", self._features):
            self._deleted_scram[user] = record
        else:
            self._deleted_scram.discard(user)

    def _register_worker(self, record: RegisterWorkerRecord) -> None:
        if not is_written(RegisterWorkerRecord, "previous_broker_epoch", self._features):
            record = replace(record, previous_broker_epoch=None)
        self._workers[record.worker_id] = record
        self._worker_ids[record.worker_id] = None
        if record.worker_id in self._departed:
            self._departed = {
                worker_id: departed
                for worker_id, departed in self._departed.items()
                if worker_id != record.worker_id
            }

    def _unregister_worker(self, worker_id: int) -> None:
        worker = self._workers.pop(worker_id, None)
        self._worker_ids[worker_id] = None
        if worker is not None:
            self._departed = {**self._departed, worker_id: worker}

    def _change_worker(self, record: WorkerChangeRecord) -> None:
        worker = self._workers[record.worker_id]
        assert worker.broker_epoch == record.broker_epoch, "change of an earlier registration"
        fenced, in_shutdown = record.fenced, record.in_controlled_shutdown
        draining = worker.draining if record.draining is None else record.draining
        self._workers[record.worker_id] = replace(
            worker,
            fenced=worker.fenced if fenced is None else fenced,
            previous_broker_epoch=None if fenced is False else worker.previous_broker_epoch,
            in_controlled_shutdown=(
                worker.in_controlled_shutdown if in_shutdown is None else in_shutdown
            ),
            draining=draining,
        )
        self._worker_ids[record.worker_id] = None

    def _set_plan(self, record: MovePlanRecord) -> None:
        known = self._plans.get(record.plan_id)
        plan = MovePlanImage(record) if known is None else replace(known, header=record)
        self._put_plan(replace(plan, parts=()) if plan.has_ended else plan)

    def _put_plan(self, plan: MovePlanImage) -> None:
        plan_id = plan.header.plan_id
        self._plans = {**self._plans, plan_id: plan}
        self._plan_ids[plan_id] = None

    def _remove_plan(self, plan_id: int) -> None:
        assert not self._moving(plan_id), f"removal of plan {plan_id}, which moves partitions"
        self._plans = {known: plan for known, plan in self._plans.items() if known != plan_id}
        self._plan_moving.pop(plan_id)
        self._plan_ids[plan_id] = None

    def _moving(self, plan_id: int) -> dict[PartitionKey, None]:
        """Return the partitions that move as part of the plan, to be changed."""
        moving = self._plan_moving.get(plan_id)
        if moving is None:
            moving = self._plan_moving[plan_id] = dict(self._plans[plan_id].moving)
        return moving

    def _leave_plan(
        self, key: PartitionKey, before: PartitionImage | None, after: PartitionImage | None
    ) -> None:
        """Count the end of a planned move. `after` None: the topic is deleted."""
        if before is None or not before.plan:
            return
        del self._moving(before.plan)[key]
        plan = self._plans[before.plan]
        header = plan.header
        if after is not None and not after.is_moving and after.replicas == before.target:
            header = replace(header, done=header.done + 1)
        else:
            stops = _with_stop(header, self._topic_names.get(key[0]) or "", key[1], after)
            header = replace(header, stopped=header.stopped + 1, stops=stops)
        self._put_plan(replace(plan, header=header))

    def _close_plans(self) -> None:
        for plan_id, moving in self._plan_moving.items():
            self._put_plan(replace(self._plans[plan_id], moving=moving))
        self._plan_moving = {}

    def _set_feature(self, record: FeatureLevelRecord) -> None:
        if record.level:
            self._features[record.name] = record.level
        else:
            self._features.pop(record.name, None)
        self._touched_features[record.name] = None


def _with_stop(
    header: MovePlanRecord, topic: str, partition: int, after: PartitionImage | None
) -> tuple[StoppedMove, ...]:
    """Return the stops of a plan with that of a partition; the controller may have given it."""
    if header.state == CANCELLING or any(stop[:2] == (topic, partition) for stop in header.stops):
        return header.stops
    if after is None:
        reason = STOPPED_BY_DELETION
    else:
        reason = STOPPED_BY_REQUEST if after.is_moving else STOPPED_BY_CANCEL
    return (*header.stops, StoppedMove(topic, partition, reason))[-MAX_STOPS:]


def _collision_key(name: str) -> str | None:
    return collision_name(name) if "." in name or "_" in name else None


def replay(
    image: MetadataImage, records: Iterable[MetadataRecord]
) -> tuple[MetadataImage, MetadataDelta]:
    """Return the image after these records, and the delta."""
    steps = Replay(image)
    steps.apply(records)
    return steps.finish()
