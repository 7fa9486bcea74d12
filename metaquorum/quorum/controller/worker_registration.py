"""The active controller's rules for registering, fencing, draining and unregistering workers.

Each large decision is divisible: any prefix of its records leaves the metadata consistent, and if
it is cut short, the next active controller completes it. This determines the order. If a worker
leaves, the changes of its partitions come first, because a fenced worker must never be a leader. If
it joins, its own record comes first, then the partitions without a leader; a new active controller
searches for those that remain.

A worker *drains* from the request of an operator on until another request, also across restarts of
the worker and of controllers:

    creation of topics and partitions,        no new replicas; only those of an assignment that a
    automatic creation                        client gives are created
    elections, also of preferred leaders      it leads only partitions that no other worker may lead
    its leaderships                           end in the first record in which another worker may
                                              lead: at the request, or when a replica is in sync

Moves may still name it, as in Kafka, whose cordoned log directories (KIP-1066) are what placement
avoids and nothing else. Its present replicas leave it by moves that an operator plans.

Source: Kafka's ClusterControlManager and ReplicationControlManager; KIP-631.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from enum import IntEnum
from functools import cache, partial
from typing import Final, Protocol, TypeAlias

from metaquorum.metadata.image import (
    NO_EPOCH,
    MetadataImage,
    MovePlanImage,
    PartitionImage,
    partition_record,
)
from metaquorum.metadata.records import (
    METADATA_VERSION,
    Endpoint,
    FeatureRange,
    MetadataRecord,
    PlannedMove,
    RegisterControllerRecord,
    RegisterWorkerRecord,
    UnregisterWorkerRecord,
    WorkerChangeRecord,
    is_written,
)
from metaquorum.quorum.controller.change_summary import PartitionChangeSummary
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.features import (
    MOVES_LEVEL,
    UNSTATED_FEATURES,
    check_covered,
    check_level,
)
from metaquorum.quorum.controller.leaders.eligible_leaders import min_isr
from metaquorum.quorum.controller.leaders.leader_selection import (
    IsAllowed,
    IsDraining,
    IsLive,
    doubted,
    recreated,
    restarted,
    with_workers,
    without_log,
    without_workers,
)
from metaquorum.quorum.controller.topics import check_epoch
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen

SCAN_PARTITIONS: Final = 5000  # scanned between two checkpoints of the event loop: 1 ms
SCAN_MOVES: Final = 500
_NO_PLAN: Final = 0

# Whether the topic allows unclean leader election (unclean.leader.election.enable).
MayBeUnclean: TypeAlias = Callable[[MetadataImage, str], bool]


def never_unclean(_image: MetadataImage, _topic: str) -> bool:
    return False


class _Change(Protocol):
    def __call__(
        self,
        partition: PartitionImage,
        *,
        unclean: IsAllowed,
        min_isr: int,
        is_draining: IsDraining,
    ) -> PartitionImage | None: ...


class _ReplicaChange(Protocol):
    def __call__(
        self,
        partition: PartitionImage,
        worker_id: int,
        is_live: IsLive,
        *,
        unclean: IsAllowed,
        min_isr: int,
        is_draining: IsDraining,
    ) -> PartitionImage | None: ...


class WorkerAction(IntEnum):
    """Action of an operator on a worker, numbered as in AlterWorker."""

    DRAIN = 1
    RETURN = 2
    REMOVE = 3


@frozen
class WorkerRegistration:
    """Registration that a worker sends. Each start of its process has a new incarnation id.

    `previous_broker_epoch`: broker epoch of the previous process whose records are all still in the
    logs, because it stopped cleanly, or was killed without a later power loss; -1 for none
    (KIP-966). A process that registers again after it was unregistered need not change it: the same
    incarnation id proves that the process never stopped. `newest_broker_epoch`: that of the
    directories with the newest marks. Before it is unfenced, such a worker reports the partitions
    of which the records may be elsewhere (`doubt_log`).
    """

    worker_id: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    host: str
    rack: str | None = None
    log_dirs: tuple[bytes, ...] = ()
    features: tuple[FeatureRange, ...] = UNSTATED_FEATURES
    previous_broker_epoch: int = NO_EPOCH
    newest_broker_epoch: int = NO_EPOCH


@frozen
class ControllerRegistration:
    """Registration that a controller sends: its supported feature levels and its quorum address."""

    controller_id: int
    incarnation_id: bytes
    host: str
    port: int
    features: tuple[FeatureRange, ...] = UNSTATED_FEATURES


def register_worker(
    image: MetadataImage,
    worker: WorkerRegistration,
    *,
    is_held: bool = False,
    may_be_unclean: MayBeUnclean = never_unclean,
) -> Decision[PartitionChangeSummary]:
    """Decide the registration of a worker, which is fenced at first; the image has its epoch.

    Partitions that it led get another leader, or none until it is live, so that no incarnation
    leads in an epoch in which an earlier incarnation led (KAFKA-10527). If its logs may have lost
    records, for example in a power loss, it leaves the ISRs in which it is not the last replica. A
    repeated registration with the same incarnation id changes nothing, unless the worker was
    unregistered in between: then it receives a new broker epoch. `is_held`: another process with
    that worker id is alive. Raises KafkaError.
    """
    known = image.workers.get(worker.worker_id)
    if known is not None and known.incarnation_id == worker.incarnation_id:
        return Decision(PartitionChangeSummary())
    if is_held:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Another live process is registered as worker {worker.worker_id}. If the worker was"
            " restarted just now, registration succeeds once the session of the earlier process"
            " expires.",
        )
    check_covered(image, worker.features, f"worker {worker.worker_id}")
    summary = PartitionChangeSummary()
    if is_written(RegisterWorkerRecord, "previous_broker_epoch", image.features):
        # Only then the image shows to the worker whether its marks were believed, so that it knows
        # whether to report what is in directories with older marks.
        newest = max(worker.previous_broker_epoch, worker.newest_broker_epoch)
        worker = replace(worker, previous_broker_epoch=newest)
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
    marked = None
    if is_written(RegisterWorkerRecord, "previous_broker_epoch", image.features):
        marked = _marked(image.last_registration(worker.worker_id), worker)
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
        previous_broker_epoch=marked,
        draining=_still_drains(image, worker),
    )


def _still_drains(image: MetadataImage, worker: WorkerRegistration) -> bool:
    """Return whether a worker that registers was draining before.

    A restarted worker still drains. So does a process that was unregistered while it was
    suspended; but another process with the id of an unregistered worker is a new worker.
    """
    last = image.last_registration(worker.worker_id)
    is_known = worker.worker_id in image.workers
    return (
        last is not None
        and last.draining
        and (is_known or last.incarnation_id == worker.incarnation_id)
    )


def fence_workers(
    image: MetadataImage, worker_ids: Set[int], may_be_unclean: MayBeUnclean = never_unclean
) -> Decision[PartitionChangeSummary]:
    """Decide the fencing of workers, which lose their leaderships and leave the ISRs."""
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
    """Decide the unfencing of a worker, which becomes leader of partitions without one.

    Raises KafkaError if the broker epoch is not current.
    """
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
    """Decide the controlled shutdown of a worker: it loses its leaderships, but stays unfenced.

    Raises KafkaError if the broker epoch is not current.
    """
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
    """Decide the unregistration of a worker; the image keeps its last registration.

    Raises KafkaError if the worker is not fenced or has a live session (`is_alive`): otherwise any
    client could repeatedly remove its replicas from every ISR. Kafka unregisters such workers too.
    """
    worker = _registered(image, worker_id)
    _check_gone(worker, is_alive, "unregister")
    summary = PartitionChangeSummary()

    def records() -> Iterator[MetadataRecord | None]:
        yield from _leaving(image, {worker_id}, may_be_unclean, summary)
        yield UnregisterWorkerRecord(worker_id, worker.broker_epoch)

    return Decision(summary, records(), divisible=True)


def _registered(image: MetadataImage, worker_id: int) -> RegisterWorkerRecord:
    """Return the worker's registration. Raises KafkaError if it has none."""
    worker = image.workers.get(worker_id)
    if worker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"Broker ID {worker_id} is not currently registered",
        )
    return worker


def _check_gone(worker: RegisterWorkerRecord, is_alive: bool, verb: str) -> None:
    """Raise KafkaError (INVALID_REQUEST) if the worker may be alive."""
    if is_alive or not worker.fenced:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Worker {worker.worker_id} is alive, or its session has not timed out yet: stop the"
            f" worker, and {verb} it once it is fenced and broker.session.timeout.ms have passed"
            " since its last heartbeat. A controller that has just become active waits as long.",
        )


def drain_worker(
    image: MetadataImage, worker_id: int, may_be_unclean: MayBeUnclean = never_unclean
) -> Decision[PartitionChangeSummary]:
    """Decide that a worker drains, and that others lead its partitions where they may.

    Raises KafkaError if it is not registered, no other worker would be left for its replicas, or
    the cluster's level is too low.
    """
    worker = _registered(image, worker_id)
    check_level(image, METADATA_VERSION, MOVES_LEVEL, "a draining worker")
    others = [each for each in image.workers.values() if each.worker_id != worker_id]
    if not any(not each.draining for each in others):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Worker {worker_id} cannot drain because no other worker could take its replicas:"
            " it is the last one that is not draining. Start another worker first.",
        )
    summary = PartitionChangeSummary()

    def is_draining(other: int) -> bool:
        return other == worker_id or image.is_draining(other)

    def records() -> Iterator[MetadataRecord | None]:
        if not worker.draining:
            yield WorkerChangeRecord(worker_id, worker.broker_epoch, draining=True)
        change = partial(with_workers, is_live=image.is_live)
        yield from _changes(image, may_be_unclean, change, summary, is_draining)

    return Decision(summary, records(), divisible=True)


def return_worker(image: MetadataImage, worker_id: int) -> Decision[None]:
    """Decide that a worker no longer drains. Raises KafkaError if it is not registered."""
    worker = _registered(image, worker_id)
    if not worker.draining:
        return Decision(None)
    return Decision(None, [WorkerChangeRecord(worker_id, worker.broker_epoch, draining=False)])


def remove_worker(
    image: MetadataImage, worker_id: int, *, is_alive: bool = False
) -> Decision[None]:
    """Decide the unregistration of a worker that has no replica; its records raise the errors.

    Raises KafkaError if the worker is not registered, has a replica, also one that a move adds or
    removes, or may be alive (`is_alive`).
    """
    worker = _registered(image, worker_id)

    def records() -> Iterator[MetadataRecord | None]:
        held = moving = looked_at = 0
        leaving: Counter[int] = Counter()  # replicas that leave, by plan, or _NO_PLAN
        for topic in image.topics.each():
            for partition in topic.partitions:
                looked_at += 1
                if looked_at % SCAN_PARTITIONS == 0:
                    yield None
                if worker_id in partition.replicas:
                    held += 1
                    moving += worker_id in partition.adding or worker_id in partition.removing
                    if worker_id in partition.removing:
                        leaving[partition.plan] += 1
        if held and worker.draining:
            for plan_id, plan in image.plans.items():
                for number, move in enumerate(() if plan.has_ended else _waiting(plan)):
                    if number % SCAN_MOVES == 0:
                        yield None
                    leaving[plan_id] += _leaves(image, worker_id, move)
            raise _still_draining(worker_id, held, leaving)
        if held:
            raise _not_empty(worker_id, held, moving)
        _check_gone(worker, is_alive, "remove")
        yield UnregisterWorkerRecord(worker_id, worker.broker_epoch)

    return Decision(None, records())


def _not_empty(worker_id: int, held: int, moving: int) -> KafkaError:
    replicas = "1 replica" if held == 1 else f"{held} replicas"
    moves = f", {moving} of them in moves that are not complete" if moving else ""
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"Worker {worker_id} has {replicas}{moves}. 'mq-admin workers drain {worker_id}' keeps new"
        f" ones away, 'mq-admin moves plan --drain {worker_id}' plans the moves of the present"
        " ones, and 'mq-admin moves start' carries them out. Remove the worker after that.",
    )


def _waiting(plan: MovePlanImage) -> Iterator[PlannedMove]:
    return plan.moves(plan.header.begun)


def _leaves(image: MetadataImage, worker_id: int, move: PlannedMove) -> bool:
    """Return whether the move, which has not begun, takes a replica away from the worker."""
    topic = image.topic_by_id(move.topic_id)
    if topic is None or move.partition >= len(topic.partitions) or worker_id in move.replicas:
        return False
    partition = topic.partitions[move.partition]
    return worker_id in partition.replicas and not partition.is_moving


def _still_draining(worker_id: int, held: int, leaving: Mapping[int, int]) -> KafkaError:
    """Return an error that says how many replicas are left, and which plan moves them away."""
    parts = [
        f"{count} {'leaves' if count == 1 else 'leave'} by plan {plan_id}, of which 'mq-admin"
        f" moves status {plan_id}' shows the progress"
        for plan_id, count in sorted(leaving.items())
        if count and plan_id != _NO_PLAN
    ]
    if count := leaving.get(_NO_PLAN, 0):
        parts.append(f"{count} {'leaves' if count == 1 else 'leave'} by a reassignment")
    unplanned = held - sum(leaving.values())
    if unplanned:
        parts.append(
            f"no move is planned for {unplanned}: 'mq-admin moves plan --drain {worker_id}"
            " --plan-file FILE' plans one, and 'mq-admin moves start FILE' carries it out"
        )
    replicas = "1 replica" if held == 1 else f"{held} replicas"
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"Worker {worker_id} is draining and still has {replicas}: {'; '.join(parts)}."
        " Remove the worker when it has none.",
    )


def elect_leaders(
    image: MetadataImage, may_be_unclean: MayBeUnclean = never_unclean
) -> Decision[PartitionChangeSummary]:
    """Decide elections for all partitions that have no leader and a live replica that may lead."""
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
    """Decide the loss of a worker's log of the partition `at` (topic id, number).

    The replica stops leading and leaves the ISR. `was_recreated`: the worker restarted without the
    log and created an empty one. Source: KIP-858, by partition instead of by directory. Raises
    KafkaError if the broker epoch is not current.
    """
    rule = recreated if was_recreated else without_log
    return _change_replica(image, worker_id, broker_epoch, at, rule, may_be_unclean)


def doubt_log(
    image: MetadataImage,
    worker_id: int,
    broker_epoch: int,
    at: tuple[bytes, int],
    *,
    may_be_unclean: MayBeUnclean = never_unclean,
) -> Decision[KafkaError | None]:
    """Decide what follows if a worker that is not live yet may miss records of the partition `at`.

    For this partition the worker has then restarted as after a loss of power, although its other
    log directories are intact. Raises KafkaError if the broker epoch is not current.
    """
    return _change_replica(image, worker_id, broker_epoch, at, doubted, may_be_unclean)


def _change_replica(
    image: MetadataImage,
    worker_id: int,
    broker_epoch: int,
    at: tuple[bytes, int],
    rule: _ReplicaChange,
    may_be_unclean: MayBeUnclean,
) -> Decision[KafkaError | None]:
    check_epoch(image, worker_id, broker_epoch)
    topic_id, number = at
    topic = image.topic_by_id(topic_id)
    if topic is None or not 0 <= number < len(topic.partitions):
        return Decision(None)  # deleted in the meantime
    unclean = partial(may_be_unclean, image, topic.name)
    after = rule(
        topic.partitions[number],
        worker_id,
        image.is_live,
        unclean=unclean,
        min_isr=min_isr(image, topic.name),
        is_draining=image.is_draining,
    )
    if after is None:
        return Decision(None)
    return Decision(None, [partition_record(topic_id, number, after)])


def register_controller(image: MetadataImage, controller: ControllerRegistration) -> Decision[None]:
    """Decide the registration of a controller. Raises KafkaError if it misses a feature level."""
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
    """Yield the changes of partitions whose replica is on a worker that has restarted."""
    known = image.workers.get(worker.worker_id)
    last = image.last_registration(worker.worker_id)
    change = partial(
        restarted,
        worker_id=worker.worker_id,
        is_live=lambda other: other != worker.worker_id and image.is_live(other),
        was_live=known is not None and not known.fenced,
        is_intact=last is not None and _has_all_of(worker, last),
        is_same=last is not None and last.incarnation_id == worker.incarnation_id,
        # A worker with only new log directories has no records, which it will report itself; so it
        # is not the last replica with all records.
        is_new=last is not None and set(last.log_dirs).isdisjoint(worker.log_dirs),
    )
    return _changes(image, may_be_unclean, change, summary)


def _has_all_of(worker: WorkerRegistration, last: RegisterWorkerRecord) -> bool:
    """Return whether the logs of the registering process have all records written under `last`.

    Evidence is the same process, which never stopped (each start draws a new incarnation id), or
    start marks in its log directories with the broker epoch of `last`. An older epoch is not
    evidence, because an earlier disk image may have been restored. Exception: the epoch before
    `last` counts if no process was live under `last`, because that process may have been killed
    before it wrote the new epoch (`previous_broker_epoch` of `last`).
    """
    return last.incarnation_id == worker.incarnation_id or (
        worker.previous_broker_epoch >= 0
        and worker.previous_broker_epoch in (last.broker_epoch, last.previous_broker_epoch)
    )


def _marked(last: RegisterWorkerRecord | None, worker: WorkerRegistration) -> int | None:
    """Return the broker epoch in the start marks before this start; None if they prove nothing."""
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
    is_draining: IsDraining | None = None,
) -> Iterator[MetadataRecord | None]:
    """Yield a record for each partition that `change` affects, and count it in `summary`.

    `is_draining`: in place of that of the image.
    """
    is_draining = is_draining or image.is_draining
    looked_at = 0
    for topic in image.topics.each():
        unclean = cache(partial(may_be_unclean, image, topic.name))
        needed = min_isr(image, topic.name)
        for number, partition in enumerate(topic.partitions):
            looked_at += 1
            if looked_at % SCAN_PARTITIONS == 0:
                yield None
            after = change(partition, unclean=unclean, min_isr=needed, is_draining=is_draining)
            if after is not None:
                summary.note(topic.name, number, partition, after)
                yield partition_record(topic.topic_id, number, after)
