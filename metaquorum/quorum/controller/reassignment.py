"""Moves of partitions to other workers, as a client requests them (KIP-455, KIP-860).

A request names the *target*, the replicas that the partition shall have. The *original* are the
replicas that it had when it did not move. Until the move is complete the partition has the replicas
of the target, in their order, and then `removing`, the others that are still needed:

    request                replicas            adding    removing
    1,2 to 3,2             3,2,1               3         1
    then 3 is in sync      3,2                                      complete, in one record
    1,2,3 to 1,4           1,4,2,3             4         2,3
    1,2 to 1,2,3           1,2,3               3                    a larger replication factor
    1,2 to 2,1             2,1                                      complete at once
    1,2 to 3,2, then 4,2   4,2,1               4         1          3 was not in sync yet
    1,2 to 3,2, then 4,2   4,2,3,1             4,3       3,1        3 was in sync, and stays for now
    1,2 to 3,2, cancelled  2,1                                      without `adding`, at once

So the target is always `replicas` without `removing`, and the original `replicas` without `adding`.
A replica of an earlier target that is in sync stays until the new target is in sync, or fewer
replicas than the target has would be in sync on the way. (Kafka counts it to the original.) A move
is complete with the first record in which the whole target is in sync (`leader_selection.moved`).

Each record without a replica of the record before begins a new leader epoch, as in Kafka. The
replica may be added again, with an empty log, before the leader learns of either change, and
fetches of its former log may arrive even later: the leader would take the new log for complete.

A move cannot be cancelled if no replica of the original has all committed records: they would be
lost. (Kafka cancels it with unclean.leader.election.enable.)

Source: Kafka's ReplicationControlManager, PartitionReassignmentReplicas and
PartitionReassignmentRevert.
"""

from dataclasses import replace

from metaquorum.metadata.image import (
    NO_LEADER,
    MetadataImage,
    PartitionImage,
    TopicImage,
    partition_record,
)
from metaquorum.metadata.records import MAX_REPLICAS, METADATA_VERSION
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.features import MOVES_LEVEL, check_level
from metaquorum.quorum.controller.leaders.eligible_leaders import min_isr
from metaquorum.quorum.controller.leaders.leader_selection import (
    IsDraining,
    IsLive,
    elected,
    least_isr,
    left,
    moved,
    nobody,
)
from metaquorum.quorum.controller.topics import check_workers
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen


@frozen
class Reassignment:
    """Request to move one partition; without `replicas` its move is cancelled."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None
    allows_factor_change: bool = True  # whether the number of replicas may change (KIP-860)


def reassign(image: MetadataImage, asked: Reassignment) -> Decision[KafkaError | None]:
    """Decide the requested move; the answer is None or the error."""
    try:
        check_level(image, METADATA_VERSION, MOVES_LEVEL, "a move of a partition")
        topic = image.topic(asked.topic)
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Unable to find a topic named {asked.topic}.",
            )
        if not 0 <= asked.partition < len(topic.partitions):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Unable to find partition {asked.topic}:{asked.partition}.",
            )
        after: PartitionImage | None
        if asked.replicas is None:
            after = cancelled_move(image, topic, asked.partition)
        else:
            if not asked.allows_factor_change:
                check_workers(image, asked.replicas)
                _check_factor(topic.partitions[asked.partition], asked.replicas)
            after = requested_move(image, topic, asked.partition, asked.replicas)
    except KafkaError as error:
        return Decision(error)
    if after is None:
        return Decision(None)
    return Decision(None, [partition_record(topic.topic_id, asked.partition, after)])


def requested_move(
    image: MetadataImage, topic: TopicImage, number: int, target: tuple[int, ...], plan: int = 0
) -> PartitionImage | None:
    """Return the partition that moves to these replicas, or has done so; None: no change.

    `plan`: the plan that begins the move. Raises KafkaError if the move is refused.
    """
    check_workers(image, target)
    partition = topic.partitions[number]
    needed = min_isr(image, topic.name)
    after = requested(partition, target, image.is_live, needed, image.is_draining, plan)
    _check_count(partition if after is None else after)
    return after


def cancelled_move(image: MetadataImage, topic: TopicImage, number: int) -> PartitionImage:
    """Return the partition with its original replicas. Raises KafkaError as `cancelled`."""
    needed = min_isr(image, topic.name)
    return cancelled(topic.partitions[number], image.is_live, needed, image.is_draining)


def _check_factor(partition: PartitionImage, target: tuple[int, ...]) -> None:
    present = len(partition.target)
    if len(target) != present:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {present} to {len(target)}",
        )


def _check_count(partition: PartitionImage) -> None:
    if len(partition.replicas) > MAX_REPLICAS:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The partition would have {len(partition.replicas)} replicas during the move;"
            f" it can have at most {MAX_REPLICAS}. Move it in steps.",
        )


def requested(
    partition: PartitionImage,
    target: tuple[int, ...],
    is_live: IsLive,
    min_isr: int,
    is_draining: IsDraining = nobody,
    plan: int = 0,
) -> PartitionImage | None:
    """Return the partition that moves to these replicas, or has done so; None: no change.

    `min_isr`: as in `leader_selection`. `plan`: the plan that begins the move. A move to another
    target is no longer part of an earlier plan. The workers of the target must exist.
    """
    original = [each for each in partition.replicas if each not in partition.adding]
    needed = {*original, *partition.isr, *partition.elr, partition.last_leader}
    removing = tuple([r for r in partition.replicas if r not in target and r in needed])
    replicas = (*target, *removing)
    adding = tuple([each for each in replicas if each not in original])
    if not plan and partition.target == target:
        plan = partition.plan
    after = moved(
        _with_replicas(
            replace(
                partition,
                replicas=replicas,
                adding=adding,
                removing=removing,
                plan=plan if adding or removing else 0,
            ),
            min_isr,
        ),
        is_live,
        is_draining=is_draining,
    )
    return None if after == partition else left(partition, after).in_next_epoch()


def cancelled(
    partition: PartitionImage, is_live: IsLive, min_isr: int, is_draining: IsDraining = nobody
) -> PartitionImage:
    """Return the partition with its original replicas.

    Raises KafkaError if it does not move, or none of them has all committed records, or may lead.
    """
    if not partition.is_moving:
        raise KafkaError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
        )
    original = tuple([each for each in partition.replicas if each not in partition.adding])
    complete = partition.isr or partition.elr or (partition.last_leader,)
    if not set(original) & set(complete):
        raise _not_cancelled("none of the original replicas has all committed records")
    after = _with_replicas(
        replace(partition, replicas=original, adding=(), removing=(), plan=0), min_isr
    )
    if partition.leader != NO_LEADER and partition.leader not in original:
        leader = elected(replace(after, elr=()), is_live, is_draining)
        if leader == NO_LEADER:
            raise _not_cancelled("none of the original replicas in sync may lead")
        after = replace(after, leader=leader, leader_epoch=partition.leader_epoch + 1)
    return left(partition, after).in_next_epoch()


def _not_cancelled(reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"The move cannot be cancelled because {reason}. It may be moved to other replicas.",
    )


def _with_replicas(partition: PartitionImage, min_isr: int) -> PartitionImage:
    """Return the partition with only its replicas in all other fields, in their order."""

    def of(replicas: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([each for each in partition.replicas if each in replicas])

    isr = of(partition.isr)
    last_leader = partition.last_leader
    return replace(
        partition,
        isr=isr,
        offline=of(partition.offline),
        blank=of(partition.blank),
        elr=of(partition.elr) if len(isr) < least_isr(partition, min_isr) else (),
        last_leader=last_leader if last_leader in partition.replicas else NO_LEADER,
    )
