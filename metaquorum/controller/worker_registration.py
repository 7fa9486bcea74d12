"""The active controller's rules for who is in the cluster, and what becomes of partitions then.

Each decision that takes much is divisible: any prefix of its records is sound, and whoever is the
active controller when it was cut short makes up the rest. Hence the order. Where a worker goes, its
partitions go first: a worker that is not live leads nothing, ever. Where it comes, it comes first,
and partitions without a leader follow; a new active controller looks for those that are left.

Source: Kafka's ClusterControlManager and ReplicationControlManager; KIP-631.
"""

from collections.abc import Callable, Iterator, Set
from functools import cache, partial
from typing import Final, Protocol, TypeAlias

from metaquorum.controller.change_summary import PartitionChangeSummary
from metaquorum.controller.decision import Decision
from metaquorum.controller.eligible_leaders import min_isr
from metaquorum.controller.features import SUPPORTED_FEATURES, check_covered
from metaquorum.controller.leader_selection import (
    IsAllowed,
    recreated,
    restarted,
    with_workers,
    without_log,
    without_workers,
)
from metaquorum.controller.topics import check_epoch
from metaquorum.metadata.image import NO_EPOCH, MetadataImage, PartitionImage, partition_record
from metaquorum.metadata.records import (
    Endpoint,
    FeatureRange,
    MetadataRecord,
    RegisterControllerRecord,
    RegisterWorkerRecord,
    UnregisterWorkerRecord,
    WorkerChangeRecord,
)
from wire.primitives.errors import ErrorCode, KafkaError
from wire.primitives.frozen import frozen

SCAN_PARTITIONS: Final = 5000  # to look at before the loop may have its turn: 1 ms

# Whether a replica of that topic may lead that was not in sync (unclean.leader.election.enable).
MayBeUnclean: TypeAlias = Callable[[MetadataImage, str], bool]


def never_unclean(_image: MetadataImage, _topic: str) -> bool:
    return False


class _Change(Protocol):
    def __call__(
        self, partition: PartitionImage, *, unclean: IsAllowed, min_isr: int
    ) -> PartitionImage | None: ...


@frozen
class WorkerRegistration:
    """What a worker says of itself. A new incarnation id for each start of its process.

    `previous_broker_epoch`: of the process before it of which its logs have all that it wrote, as
    that was stopped in good order, or killed without a loss of power since; -1 for none (KIP-966).
    A process that registers again, as it was unregistered, need not change it: the incarnation id
    says that it never stopped.
    """

    worker_id: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    host: str
    rack: str | None = None
    log_dirs: tuple[bytes, ...] = ()
    features: tuple[FeatureRange, ...] = SUPPORTED_FEATURES
    previous_broker_epoch: int = NO_EPOCH


@frozen
class ControllerRegistration:
    """What a controller says of itself: the levels it can run at, and where its peers reach it."""

    controller_id: int
    incarnation_id: bytes
    host: str
    port: int
    features: tuple[FeatureRange, ...] = SUPPORTED_FEATURES


def register_worker(
    image: MetadataImage,
    worker: WorkerRegistration,
    *,
    is_held: bool = False,
    may_be_unclean: MayBeUnclean = never_unclean,
) -> Decision[PartitionChangeSummary]:
    """The worker is registered by this incarnation, and fenced; its broker epoch is in the image.

    What it led before is led by others, or by none until it is live, so that no incarnation leads
    in an epoch in which an earlier one did (KAFKA-10527). Where its logs may have lost something,
    as after a loss of power, it is not in sync but as the last one. Asking again with the same
    incarnation changes nothing, unless it was unregistered meanwhile: then it has a new broker
    epoch. `is_held`: another process of that number is alive. KafkaError.
    """
    known = image.workers.get(worker.worker_id)
    if known is not None and known.incarnation_id == worker.incarnation_id:
        return Decision(PartitionChangeSummary())
    if is_held:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Another process is registered as worker {worker.worker_id}, and alive. If the worker"
            " was restarted just now, this resolves itself once the session of the earlier process"
            " expires.",
        )
    check_covered(image, worker.features, f"worker {worker.worker_id}")
    summary = PartitionChangeSummary()
    records = _registration(image, worker, may_be_unclean, summary)
    return Decision(summary, records, divisible=True)


def _registration(
    image: MetadataImage,
    worker: WorkerRegistration,
    may_be_unclean: MayBeUnclean,
    summary: PartitionChangeSummary,
) -> Iterator[MetadataRecord | None]:
    end_offset = image.end_offset
    for record in _restarted(image, worker, may_be_unclean, summary):
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
        previous_broker_epoch=_marked(image.last_registration(worker.worker_id), worker),
    )


def fence_workers(
    image: MetadataImage, worker_ids: Set[int], may_be_unclean: MayBeUnclean = never_unclean
) -> Decision[PartitionChangeSummary]:
    """None of these workers leads, or is thought to be in sync, until it is unfenced."""
    gone = [
        worker_id
        for worker_id in sorted(worker_ids)
        if worker_id in image.workers and not image.workers[worker_id].fenced
    ]
    if not gone:
        return Decision(PartitionChangeSummary())

    summary = PartitionChangeSummary()

    def records() -> Iterator[MetadataRecord | None]:
        yield from _leaving(image, frozenset(gone), may_be_unclean, summary)
        for worker_id in gone:
            yield WorkerChangeRecord(worker_id, image.workers[worker_id].broker_epoch, fenced=True)

    return Decision(summary, records(), divisible=True)


def unfence_worker(
    image: MetadataImage,
    worker_id: int,
    broker_epoch: int,
    may_be_unclean: MayBeUnclean = never_unclean,
) -> Decision[PartitionChangeSummary]:
    """The worker is live, and leads what only it can. KafkaError when it is not that one."""
    check_epoch(image, worker_id, broker_epoch)
    worker = image.workers[worker_id]
    if not worker.fenced:
        return Decision(PartitionChangeSummary())
    in_shutdown = False if worker.in_controlled_shutdown else None

    summary = PartitionChangeSummary()

    def records() -> Iterator[MetadataRecord | None]:
        yield WorkerChangeRecord(worker_id, broker_epoch, False, in_shutdown)
        yield from _coming(image, worker_id, may_be_unclean, summary)

    return Decision(summary, records(), divisible=True)


def shut_down_worker(
    image: MetadataImage,
    worker_id: int,
    broker_epoch: int,
    may_be_unclean: MayBeUnclean = never_unclean,
) -> Decision[PartitionChangeSummary]:
    """The worker leads nothing and will not, while it serves what it still has. KafkaError."""
    check_epoch(image, worker_id, broker_epoch)
    worker = image.workers[worker_id]
    if worker.fenced or worker.in_controlled_shutdown:
        return Decision(PartitionChangeSummary())

    summary = PartitionChangeSummary()

    def records() -> Iterator[MetadataRecord | None]:
        yield from _leaving(image, {worker_id}, may_be_unclean, summary)
        yield WorkerChangeRecord(worker_id, broker_epoch, in_controlled_shutdown=True)

    return Decision(summary, records(), divisible=True)


def unregister_worker(
    image: MetadataImage,
    worker_id: int,
    may_be_unclean: MayBeUnclean = never_unclean,
    *,
    is_alive: bool = False,
) -> Decision[PartitionChangeSummary]:
    """The worker is not registered any more; its last registration is kept in the image.

    A worker that is not fenced, or of which the controller has a live session (`is_alive`), is not
    unregistered: any client could take its replicas out of every ISR, over and over. Kafka
    unregisters every worker. KafkaError.
    """
    worker = image.workers.get(worker_id)
    if worker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"Broker ID {worker_id} is not currently registered",
        )
    if is_alive or not worker.fenced:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Worker {worker_id} is alive, or was within its session timeout: stop it first, and"
            " unregister it once it is fenced and was not heard of for broker.session.timeout.ms."
            " A controller that has just become active waits as long.",
        )

    summary = PartitionChangeSummary()

    def records() -> Iterator[MetadataRecord | None]:
        yield from _leaving(image, {worker_id}, may_be_unclean, summary)
        yield UnregisterWorkerRecord(worker_id, worker.broker_epoch)

    return Decision(summary, records(), divisible=True)


def elect_leaders(
    image: MetadataImage, may_be_unclean: MayBeUnclean = never_unclean
) -> Decision[PartitionChangeSummary]:
    """Every partition that somebody live may lead is led."""
    summary = PartitionChangeSummary()
    change = partial(with_workers, is_live=image.is_live)
    records = _changes(image, may_be_unclean, change, summary)
    return Decision(summary, records, divisible=True)


def lose_log(
    image: MetadataImage,
    worker_id: int,
    broker_epoch: int,
    at: tuple[bytes, int],
    *,
    was_recreated: bool = False,
    may_be_unclean: MayBeUnclean = never_unclean,
) -> Decision[KafkaError | None]:
    """The worker cannot use its log of that partition (topic id, number): others lead, or none.

    `was_recreated`: it has come back without that log, and begun an empty one.
    Source: KIP-858, by partition instead of by directory.
    """
    check_epoch(image, worker_id, broker_epoch)
    topic_id, number = at
    topic = image.topic_by_id(topic_id)
    if topic is None or not 0 <= number < len(topic.partitions):
        return Decision(None)  # gone meanwhile
    rule = recreated if was_recreated else without_log
    unclean = partial(may_be_unclean, image, topic.name)
    after = rule(
        topic.partitions[number],
        worker_id,
        image.is_live,
        unclean=unclean,
        min_isr=min_isr(image, topic.name),
    )
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


def _leaving(
    image: MetadataImage,
    gone: Set[int],
    may_be_unclean: MayBeUnclean,
    summary: PartitionChangeSummary,
) -> Iterator[MetadataRecord | None]:
    def is_live(worker_id: int) -> bool:
        return worker_id not in gone and image.is_live(worker_id)

    change = partial(without_workers, gone=gone, is_live=is_live)
    return _changes(image, may_be_unclean, change, summary)


def _restarted(
    image: MetadataImage,
    worker: WorkerRegistration,
    may_be_unclean: MayBeUnclean,
    summary: PartitionChangeSummary,
) -> Iterator[MetadataRecord | None]:
    """The process before leads nothing, and no replica is known to be without its log."""
    known = image.workers.get(worker.worker_id)
    last = image.last_registration(worker.worker_id)
    change = partial(
        restarted,
        worker_id=worker.worker_id,
        is_live=lambda other: other != worker.worker_id and image.is_live(other),
        was_live=known is not None and not known.fenced,
        is_intact=last is not None and _has_all_of(worker, last),
        is_same=last is not None and last.incarnation_id == worker.incarnation_id,
        # With new disks it has nothing, as it will say itself: it is not the last who knows.
        is_new=last is not None and set(last.log_dirs).isdisjoint(worker.log_dirs),
    )
    return _changes(image, may_be_unclean, change, summary)


def _has_all_of(worker: WorkerRegistration, last: RegisterWorkerRecord) -> bool:
    """The logs of the process that registers have all that was written under `last`.

    The evidence: it is the same process, which never stopped (the incarnation id is drawn anew at
    each start), or the start marks of its log directories name the broker epoch of `last`. An
    older epoch is none: an earlier image of the disk may have been put back. But a process that was
    never live under `last` may have been killed before it noted that epoch.
    """
    return last.incarnation_id == worker.incarnation_id or (
        worker.previous_broker_epoch >= 0
        and worker.previous_broker_epoch in (last.broker_epoch, last.previous_broker_epoch)
    )


def _marked(last: RegisterWorkerRecord | None, worker: WorkerRegistration) -> int | None:
    """What its marks name until it notes the new broker epoch, if they are evidence."""
    if last is None or not _has_all_of(worker, last):
        return None
    is_same = last.incarnation_id == worker.incarnation_id
    return last.broker_epoch if is_same else worker.previous_broker_epoch


def _coming(
    image: MetadataImage,
    worker_id: int,
    may_be_unclean: MayBeUnclean,
    summary: PartitionChangeSummary,
) -> Iterator[MetadataRecord | None]:
    def is_live(other: int) -> bool:
        return other == worker_id or image.is_live(other)

    change = partial(with_workers, is_live=is_live)
    return _changes(image, may_be_unclean, change, summary)


def _changes(
    image: MetadataImage,
    may_be_unclean: MayBeUnclean,
    change: _Change,
    summary: PartitionChangeSummary,
) -> Iterator[MetadataRecord | None]:
    """A record for each partition that `change` changes."""
    looked_at = 0
    for topic in image.topics.each():
        unclean = cache(partial(may_be_unclean, image, topic.name))
        needed = min_isr(image, topic.name)
        for number, partition in enumerate(topic.partitions):
            looked_at += 1
            if looked_at % SCAN_PARTITIONS == 0:
                yield None
            if (after := change(partition, unclean=unclean, min_isr=needed)) is not None:
                summary.note(topic.name, number, partition, after)
                yield partition_record(topic.topic_id, number, after)
