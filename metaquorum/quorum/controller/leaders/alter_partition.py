"""The controller's rule for ISR changes that leaders request (AlterPartition, KIP-497).

A request applies to exactly one state of the partition: it names the leader epoch and the partition
epoch in which the leader made it. Each worker of the new ISR must still have the broker epoch that
the leader has seen, and be neither fenced nor in controlled shutdown (KIP-841, KIP-903). Otherwise
a replica that has just lost its disk could be treated as the replica that held all records.
"""

from typing import Final

from metaquorum.metadata.image import MetadataImage, PartitionImage, partition_record
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.leaders.eligible_leaders import min_isr
from metaquorum.quorum.controller.leaders.leader_selection import with_isr
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.frozen import frozen

NO_EPOCH: Final = -1


@frozen
class PartitionChange:
    """ISR that a leader requests.

    `broker_epochs` has one entry for each worker of `isr`; -1 if the leader does not know it.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]


def alter_partition(
    image: MetadataImage, worker_id: int, broker_epoch: int, change: PartitionChange
) -> Decision[ErrorCode]:
    """Decide a leader's ISR change: the new ISR in the next partition epoch, or an error code."""
    topic = image.topic_by_id(change.topic_id)
    if topic is None:
        return Decision(ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= change.partition < len(topic.partitions):
        return Decision(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = topic.partitions[change.partition]
    code = _refusal(image, partition, worker_id, broker_epoch, change)
    if code is not ErrorCode.NONE:
        return Decision(code)
    # The ISR keeps the order of the replicas, with the preferred leader first.
    isr = tuple(replica for replica in partition.replicas if replica in change.isr)
    needed = min_isr(image, topic.name)
    changed = with_isr(partition, isr, needed, image.is_live, image.is_draining)
    return Decision(ErrorCode.NONE, [partition_record(change.topic_id, change.partition, changed)])


def _refusal(
    image: MetadataImage,
    partition: PartitionImage,
    worker_id: int,
    broker_epoch: int,
    change: PartitionChange,
) -> ErrorCode:
    worker = image.workers.get(worker_id)
    if worker is None or worker.broker_epoch != broker_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    if partition.leader != worker_id:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if change.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if change.leader_epoch > partition.leader_epoch:
        return ErrorCode.NOT_CONTROLLER  # this controller has not seen that epoch yet
    if change.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if change.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if (
        worker_id not in change.isr
        or len(set(change.isr)) != len(change.isr)
        or len(change.isr) != len(change.broker_epochs)
        or not set(change.isr) <= set(partition.replicas)
    ):
        return ErrorCode.INVALID_REQUEST
    for replica_id, epoch in zip(change.isr, change.broker_epochs, strict=True):
        if replica_id in partition.offline or not image.is_live(replica_id):
            return ErrorCode.INELIGIBLE_REPLICA
        if epoch not in (NO_EPOCH, image.workers[replica_id].broker_epoch):
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE
