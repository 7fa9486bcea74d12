"""The active controller's rules for topics, partitions and producer ids.

Pure functions from the decided image and a request to a `Decision`: no I/O, no clock; randomness is
passed in. Records of large decisions are generated while they are consumed, so that the event loop
is not blocked; they depend only on the given image.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from random import Random
from typing import Final, TypeVar

from metaquorum.config.definition import Scope
from metaquorum.config.registry import parse_all
from metaquorum.metadata.ids import new_topic_id
from metaquorum.metadata.image import MetadataImage, TopicImage, collision_name
from metaquorum.metadata.internal_topics import check_not_internal, is_internal, not_creatable
from metaquorum.metadata.records import (
    MAX_REPLICAS,
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.metadata.topic_names import METADATA_TOPIC, check_topic_name, colliding_topic
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.replica_placement import PlacementCandidate, place
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen

T = TypeVar("T")

MAX_PARTITIONS_PER_TOPIC: Final = 10_000  # one batch creates a whole topic
MAX_SPECS: Final = 10_000  # in one request; Kafka's limit of records per operation
TOO_MANY: Final = KafkaError(
    ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
)
MAX_CONFIGS_PER_TOPIC: Final = 256
PRODUCER_ID_BLOCK: Final = 1000
USE_DEFAULT: Final = -1


@frozen
class NewTopic:
    """Topic to create. -1 requests the default; `assignments` map a partition to its replicas."""

    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: Mapping[int, tuple[int, ...]] | None = None
    configs: Mapping[str, str | None] = field(default_factory=dict)


@frozen
class NewPartitions:
    """Request to grow a topic to `count` partitions; `assignments`: replicas of the new ones."""

    topic: str
    count: int
    assignments: Sequence[tuple[int, ...]] | None = None


@frozen
class TopicDefaults:
    """Partition count and replication factor of topics that do not specify them."""

    partitions: int = 1
    replication_factor: int = 1


@frozen
class TopicOutcome:
    """Outcome for one topic of a request; with an error, name and id are those requested."""

    name: str | None
    topic_id: bytes | None = None
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)  # configs of the topic itself

    @staticmethod
    def refused(
        error: KafkaError, name: str | None, topic_id: bytes | None = None
    ) -> "TopicOutcome":
        return TopicOutcome(name, topic_id, error.code, error.message)


@frozen
class ProducerIdBlock:
    """Block of `count` producer ids, from `first` on."""

    first: int
    count: int


def create_topic(
    image: MetadataImage,
    topic: NewTopic,
    defaults: TopicDefaults,
    random: Random,
) -> Decision[TopicOutcome]:
    """Decide the creation of a topic with its partitions and configs."""
    try:
        _check_new_name(image, topic.name)
        configs = _checked_configs(topic.configs)
        if topic.assignments:
            replicas: Iterable[tuple[int, ...]] = _checked_assignments(image, topic)
            count, factor = len(topic.assignments), len(topic.assignments[0])
        else:
            count, factor = _checked_counts(topic, defaults)
            replicas = placed(image, count, factor, random)
        if count > MAX_PARTITIONS_PER_TOPIC:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"A topic can have at most {MAX_PARTITIONS_PER_TOPIC} partitions.",
            )
    except KafkaError as error:
        return Decision(TopicOutcome.refused(error, topic.name))
    topic_id = new_topic_id(random)
    outcome = TopicOutcome(
        topic.name,
        topic_id,
        partitions=count,
        replication_factor=factor,
        configs=configs,
    )
    return Decision(outcome, topic_records(image, topic.name, topic_id, configs, replicas))


def topic_records(
    image: MetadataImage,
    name: str,
    topic_id: bytes,
    configs: Mapping[str, str],
    replicas: Iterable[tuple[int, ...]],
) -> Iterator[MetadataRecord]:
    """Yield the records of a new topic; `replicas` are those of its partitions, in order."""
    yield TopicRecord(name, topic_id)
    for key, text in configs.items():
        yield ConfigRecord(int(Scope.TOPIC), name, key, text)
    yield from _partition_records(image, topic_id, 0, replicas)


def _partition_records(
    image: MetadataImage, topic_id: bytes, first: int, replicas: Iterable[tuple[int, ...]]
) -> Iterator[MetadataRecord]:
    """Yield new partitions, numbered from `first` on, led by their first live replica.

    A replica on a draining worker, which an operator has assigned, leads only if there is no other.
    """
    for number, workers in enumerate(replicas, first):
        live = workers
        if not all(map(image.is_live, workers)):
            live = tuple([worker_id for worker_id in workers if image.is_live(worker_id)])
        leader = live[0]
        if image.is_draining(leader):
            leader = next((each for each in live if not image.is_draining(each)), leader)
        yield PartitionRecord(topic_id, number, workers, live, leader, 0, 0)


def _check_new_name(image: MetadataImage, name: str) -> None:
    check_topic_name(name)
    if name == METADATA_TOPIC:  # Kafka's message
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited."
        )
    if image.topic(name) is not None:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if is_internal(name):
        raise not_creatable(name)
    if is_internal(reserved := collision_name(name)):
        raise _collision(name, f"internal topic: {reserved}")
    if (other := colliding_topic(image, name)) is not None:
        raise _collision(name, f"existing topic: {other}")


def _collision(name: str, other: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with {other}")


def _checked_configs(configs: Mapping[str, str | None]) -> dict[str, str]:
    if len(configs) > MAX_CONFIGS_PER_TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"A topic can have at most {MAX_CONFIGS_PER_TOPIC} configs."
        )
    if nulls := [name for name, text in configs.items() if text is None]:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Null value not supported for topic configs: {','.join(nulls)}",
        )
    checked = {name: text for name, text in configs.items() if text is not None}
    parse_all(Scope.TOPIC, checked)
    return checked


def draining_workers(image: MetadataImage) -> list[int]:
    """Return the workers that get no new replicas by placement, sorted."""
    return [worker_id for worker_id, worker in sorted(image.workers.items()) if worker.draining]


def placed(
    image: MetadataImage, partitions: int, factor: int, random: Random
) -> Iterator[tuple[int, ...]]:
    """Return the replicas of new partitions. Raises KafkaError if there are too few workers."""
    live: list[PlacementCandidate] = []
    away: list[PlacementCandidate] = []
    draining = draining_workers(image)
    for worker_id, worker in sorted(image.workers.items()):
        if worker_id in draining:
            continue
        if image.is_live(worker_id) or worker.fenced:  # not in controlled shutdown
            usable = away if worker.fenced else live
            usable.append(PlacementCandidate(worker_id, worker.host, worker.rack))
    reason = None
    if not live and image.workers:
        reason = (
            f"All brokers are currently fenced or draining (draining: {_listed(draining)})."
            if draining
            else "All brokers are currently fenced."
        )
    elif factor > min(len(live) + len(away), MAX_REPLICAS):
        reason = (
            f"The target replication factor of {factor} cannot be reached because only"
            f" {len(live) + len(away)} broker(s) are registered"
            + (f" and not draining (draining: {_listed(draining)})." if draining else ".")
        )
    if reason is not None:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): {reason}",
        )
    return place(live, partitions, factor, random, away)


def _listed(worker_ids: Sequence[int]) -> str:
    return ", ".join(map(str, worker_ids))


def _checked_counts(topic: NewTopic, defaults: TopicDefaults) -> tuple[int, int]:
    """Return the partition count and the replication factor."""
    count = defaults.partitions if topic.partitions == USE_DEFAULT else topic.partitions
    factor = topic.replication_factor
    if factor == USE_DEFAULT:
        factor = defaults.replication_factor
    elif factor <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    return count, factor


def _checked_assignments(image: MetadataImage, topic: NewTopic) -> list[tuple[int, ...]]:
    """Return the replicas of every partition, in partition order."""
    assert topic.assignments is not None
    if topic.replication_factor != USE_DEFAULT:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set"
            " to -1.",
        )
    if topic.partitions != USE_DEFAULT:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    if sorted(topic.assignments) != list(range(len(topic.assignments))):
        raise _bad_assignment("partitions should be a consecutive 0-based integer sequence.")
    ordered = [topic.assignments[number] for number in range(len(topic.assignments))]
    for number, workers in enumerate(ordered):
        _check_replicas(image, number, workers, len(ordered[0]))
    return ordered


def check_workers(image: MetadataImage, workers: tuple[int, ...]) -> None:
    """Raise KafkaError unless these are registered workers that may be a partition's replicas."""
    if not workers:
        raise _bad_assignment("The manual partition assignment includes an empty replica list.")
    if len(workers) > MAX_REPLICAS:
        raise _bad_assignment(f"A partition can have at most {MAX_REPLICAS} replicas.")
    for worker_id in sorted(workers):  # the message names the same worker as Kafka's
        if worker_id not in image.workers:
            raise _bad_assignment(
                f"The manual partition assignment includes broker {worker_id}, but no such"
                " broker is registered."
            )
        if workers.count(worker_id) > 1:
            raise _bad_assignment(
                f"The manual partition assignment includes the broker {worker_id} more than once."
            )


def _check_replicas(
    image: MetadataImage, number: int, workers: tuple[int, ...], factor: int
) -> None:
    check_workers(image, workers)
    if len(workers) != factor:
        raise _bad_assignment(
            f"The manual partition assignment includes a partition with {len(workers)}"
            f" replica(s), but this is not consistent with previous partitions, which have"
            f" {factor} replica(s)."
        )
    if not any(map(image.is_live, workers)):
        raise _bad_assignment(
            "All brokers specified in the manual partition assignment for partition"
            f" {number} are fenced or in controlled shutdown."
        )


def _bad_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def create_partitions(
    image: MetadataImage, spec: NewPartitions, random: Random
) -> Decision[KafkaError | None]:
    """Decide the addition of partitions (KIP-195); existing partitions do not change."""
    topic = image.topic(spec.topic)
    try:
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "This server does not host this topic-partition.",
            )
        check_not_internal(topic.name, "given more partitions")
        present = len(topic.partitions)
        _check_increase(spec, present)
        factor = len(topic.partitions[0].target)
        if spec.assignments is None:
            replicas: Iterable[tuple[int, ...]] = placed(
                image, spec.count - present, factor, random
            )
        else:
            replicas = _checked_additions(
                image, spec.assignments, present, spec.count - present, factor
            )
    except KafkaError as error:
        return Decision(error)
    return Decision(None, _partition_records(image, topic.topic_id, present, replicas))


def _check_increase(spec: NewPartitions, present: int) -> None:
    complaint = None
    if spec.count == present:
        complaint = f"Topic already has {present} partition(s)."
    elif spec.count < present:
        complaint = (
            f"The topic {spec.topic} currently has {present} partition(s);"
            f" {spec.count} would not be an increase."
        )
    elif spec.count > MAX_PARTITIONS_PER_TOPIC:
        complaint = f"A topic can have at most {MAX_PARTITIONS_PER_TOPIC} partitions."
    if complaint is not None:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, complaint)


def _checked_additions(
    image: MetadataImage,
    assignments: Sequence[tuple[int, ...]],
    first: int,
    count: int,
    factor: int,
) -> Sequence[tuple[int, ...]]:
    if len(assignments) != count:
        raise _bad_assignment(
            f"Attempted to add {count} additional partition(s), but only {len(assignments)}"
            " assignment(s) were specified."
        )
    for number, workers in enumerate(assignments, first):
        _check_replicas(image, number, workers, factor)
    return assignments


def delete_topic(
    image: MetadataImage, name: str | None, topic_id: bytes | None
) -> Decision[TopicOutcome]:
    """Decide the deletion of the topic with that name or that id."""
    topic: TopicImage | None
    if topic_id is not None:
        topic = image.topic_by_id(topic_id)
        error = KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    else:
        topic = None if name is None else image.topic(name)
        error = KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "This server does not host this topic-partition.",
        )
    if topic is None:
        return Decision(TopicOutcome.refused(error, name, topic_id))
    try:
        check_not_internal(topic.name, "deleted")
    except KafkaError as refused:
        return Decision(TopicOutcome.refused(refused, name, topic_id))
    outcome = TopicOutcome(topic.name, topic.topic_id, partitions=len(topic.partitions))
    return Decision(outcome, [RemoveTopicRecord(topic.topic_id)])


def allocate_producer_ids(
    image: MetadataImage, worker_id: int, broker_epoch: int
) -> Decision[ProducerIdBlock]:
    """Decide the allocation of a block of producer ids, which no other worker ever receives.

    Raises KafkaError if the broker epoch is not current.
    """
    check_epoch(image, worker_id, broker_epoch)
    first = image.next_producer_id
    return Decision(
        ProducerIdBlock(first, PRODUCER_ID_BLOCK),
        [ProducerIdsRecord(worker_id, broker_epoch, first + PRODUCER_ID_BLOCK)],
    )


def check_epoch(image: MetadataImage, worker_id: int, broker_epoch: int) -> None:
    """Raise KafkaError unless `broker_epoch` is that of the worker's current registration."""
    worker = image.workers.get(worker_id)
    if worker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Worker {worker_id} is not registered."
        )
    if worker.broker_epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Worker {worker_id} is registered with broker epoch {worker.broker_epoch},"
            f" not {broker_epoch}.",
        )
