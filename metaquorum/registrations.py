"""The active controller's rules for who is in the cluster, and what becomes of partitions then.

Each decision that takes much is divisible: any prefix of its records is sound, and whoever is the
active controller when it was cut short makes up the rest. Hence the order. Where a worker goes, its
partitions go first: a worker that is not live leads nothing, ever. Where it comes, it comes first,
and partitions without a leader follow; a new active controller looks for those that are left.

Source: Kafka's ClusterControlManager and ReplicationControlManager; KIP-631.
"""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Final

from metaquorum.decisions import Decision, check_epoch
from metaquorum.elections import with_log, with_workers, without_log, without_workers
from metaquorum.features import SUPPORTED_FEATURES, check_covered
from metaquorum.image import MetadataImage, PartitionImage, partition_record
from metaquorum.records import (
    Endpoint,
    FeatureRange,
    MetadataRecord,
    RegisterControllerRecord,
    RegisterWorkerRecord,
    UnregisterWorkerRecord,
    WorkerChangeRecord,
)
from wire.errors import ErrorCode, KafkaError

SCAN_PARTITIONS: Final = 5000  # to look at before the loop may have its turn: 1 ms


@dataclass(frozen=True, slots=True)
class WorkerRegistration:
    """What a worker says of itself. A new incarnation id for each start of its process."""

    worker_id: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    host: str
    rack: str | None = None
    log_dirs: tuple[bytes, ...] = ()
    features: tuple[FeatureRange, ...] = SUPPORTED_FEATURES


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    """What a controller says of itself: the levels it can run at, and where its peers reach it."""

    controller_id: int
    incarnation_id: bytes
    host: str
    port: int
    features: tuple[FeatureRange, ...] = SUPPORTED_FEATURES


def register_worker(
    image: MetadataImage, worker: WorkerRegistration, *, is_held: bool = False
) -> Decision[None]:
    """The worker is registered by this incarnation, and fenced; its broker epoch is in the image.

    What it led before is led by others, or by none until it is live, so that no incarnation leads
    in an epoch in which an earlier one did (KAFKA-10527). Asking again with the same incarnation
    changes nothing. `is_held`: another process of that number is alive. KafkaError.
    """
    known = image.workers.get(worker.worker_id)
    if known is not None and known.incarnation_id == worker.incarnation_id:
        return Decision(None)
    if is_held:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Another process is registered as worker {worker.worker_id}, and alive. If the worker"
            " was restarted just now, this resolves itself once the session of the earlier process"
            " expires.",
        )
    check_covered(image, worker.features, f"worker {worker.worker_id}")
    return Decision(None, _registration(image, worker), divisible=True)


def _registration(
    image: MetadataImage, worker: WorkerRegistration
) -> Iterator[MetadataRecord | None]:
    end_offset = image.end_offset
    known = image.workers.get(worker.worker_id)
    if known is not None:
        for record in _replaced(image, worker.worker_id, is_live=not known.fenced):
            yield record
            end_offset += record is not None
    yield RegisterWorkerRecord(
        worker.worker_id,
        worker.incarnation_id,
        end_offset,
        worker.endpoints,
        worker.host,
        worker.rack,
        worker.log_dirs,
        worker.features,
        fenced=True,
    )


def fence_workers(image: MetadataImage, worker_ids: Set[int]) -> Decision[None]:
    """None of these workers leads, or is thought to be in sync, until it is unfenced."""
    gone = [
        worker_id
        for worker_id in sorted(worker_ids)
        if worker_id in image.workers and not image.workers[worker_id].fenced
    ]
    if not gone:
        return Decision(None)

    def records() -> Iterator[MetadataRecord | None]:
        yield from _leaving(image, frozenset(gone))
        for worker_id in gone:
            yield WorkerChangeRecord(worker_id, image.workers[worker_id].broker_epoch, fenced=True)

    return Decision(None, records(), divisible=True)


def unfence_worker(image: MetadataImage, worker_id: int, broker_epoch: int) -> Decision[None]:
    """The worker is live, and leads what only it can. KafkaError when it is not that one."""
    check_epoch(image, worker_id, broker_epoch)
    worker = image.workers[worker_id]
    if not worker.fenced:
        return Decision(None)
    in_shutdown = False if worker.in_controlled_shutdown else None

    def records() -> Iterator[MetadataRecord | None]:
        yield WorkerChangeRecord(worker_id, broker_epoch, False, in_shutdown)
        yield from _coming(image, worker_id)

    return Decision(None, records(), divisible=True)


def shut_down_worker(image: MetadataImage, worker_id: int, broker_epoch: int) -> Decision[None]:
    """The worker leads nothing and will not, while it serves what it still has. KafkaError."""
    check_epoch(image, worker_id, broker_epoch)
    worker = image.workers[worker_id]
    if worker.fenced or worker.in_controlled_shutdown:
        return Decision(None)

    def records() -> Iterator[MetadataRecord | None]:
        yield from _leaving(image, {worker_id})
        yield WorkerChangeRecord(worker_id, broker_epoch, in_controlled_shutdown=True)

    return Decision(None, records(), divisible=True)


def unregister_worker(image: MetadataImage, worker_id: int) -> Decision[None]:
    """The worker is forgotten, whether or not it is alive (as Kafka does). KafkaError."""
    worker = image.workers.get(worker_id)
    if worker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"Broker ID {worker_id} is not currently registered",
        )

    def records() -> Iterator[MetadataRecord | None]:
        yield from _leaving(image, {worker_id})
        yield UnregisterWorkerRecord(worker_id, worker.broker_epoch)

    return Decision(None, records(), divisible=True)


def elect_leaders(image: MetadataImage) -> Decision[None]:
    """Every partition that somebody live may lead is led."""
    records = _changes(image, lambda partition: with_workers(partition, image.is_live))
    return Decision(None, records, divisible=True)


def lose_log(
    image: MetadataImage, worker_id: int, broker_epoch: int, at: tuple[bytes, int]
) -> Decision[KafkaError | None]:
    """The worker cannot use its log of that partition (topic id, number): others lead, or none.

    Source: KIP-858, by partition instead of by directory.
    """
    check_epoch(image, worker_id, broker_epoch)
    topic_id, number = at
    topic = image.topic_by_id(topic_id)
    if topic is None or not 0 <= number < len(topic.partitions):
        return Decision(None)  # gone meanwhile
    after = without_log(topic.partitions[number], worker_id, image.is_live)
    if after is None:
        return Decision(None)
    return Decision(None, [partition_record(topic_id, number, after)])


def register_controller(image: MetadataImage, controller: ControllerRegistration) -> Decision[None]:
    """It is known at which levels that controller can run. KafkaError."""
    check_covered(image, controller.features, f"controller {controller.controller_id}")
    record = RegisterControllerRecord(
        controller.controller_id,
        controller.incarnation_id,
        controller.host,
        controller.port,
        controller.features,
    )
    if image.controllers.get(controller.controller_id) == record:
        return Decision(None)
    return Decision(None, [record])


def _leaving(image: MetadataImage, gone: Set[int]) -> Iterator[MetadataRecord | None]:
    def is_live(worker_id: int) -> bool:
        return worker_id not in gone and image.is_live(worker_id)

    return _changes(image, lambda partition: without_workers(partition, gone, is_live))


def _replaced(
    image: MetadataImage, worker_id: int, *, is_live: bool
) -> Iterator[MetadataRecord | None]:
    """The process leads nothing, and is known to lack no log: the next one has its own news."""
    gone = {worker_id}

    def live(other: int) -> bool:
        return other != worker_id and image.is_live(other)

    def change(partition: PartitionImage) -> PartitionImage | None:
        left = without_workers(partition, gone, live) if is_live else None
        after = partition if left is None else left
        return with_log(after, worker_id) or left

    return _changes(image, change)


def _coming(image: MetadataImage, worker_id: int) -> Iterator[MetadataRecord | None]:
    def is_live(other: int) -> bool:
        return other == worker_id or image.is_live(other)

    return _changes(image, lambda partition: with_workers(partition, is_live))


def _changes(
    image: MetadataImage, change: Callable[[PartitionImage], PartitionImage | None]
) -> Iterator[MetadataRecord | None]:
    """A record for each partition that `change` changes."""
    looked_at = 0
    for topic in image.topics.each():
        for number, partition in enumerate(topic.partitions):
            looked_at += 1
            if looked_at % SCAN_PARTITIONS == 0:
                yield None
            if (after := change(partition)) is not None:
                yield partition_record(topic.topic_id, number, after)
