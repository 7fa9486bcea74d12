"""Who leads a partition, and who is in its ISR, when workers come and go. Pure rules.

A worker is *live* while it is registered, not fenced and not in controlled shutdown. It may have
lost the log directory of one replica or another, which are *offline* until its process is another.

    what happens                     leader                          ISR
    its leader is not live any more  the first live replica of the   without those gone, but never
                                     ISR, in replica order; or none  empty: the last ones stay
    a follower is not live any more  stays                           without it
    none, and one of the ISR is live that one, as above              stays
    a replica goes offline           as if its worker were gone, for this partition
    a worker restarted               as if it had been gone between: it never leads again in an
                                     epoch in which it led before (KAFKA-10527)

Epochs: the leader epoch grows when the leader changes (none is another one), the partition epoch
with every change. Who leads, therefore, is live; and none leads only where none of the ISR is live.
The last of an ISR stay in it because they alone have all that was acknowledged: they lead when they
come back, and nobody else does.

Only where somebody asks for it (`leader_election`), or the topic's config does
(unclean.leader.election.enable), does a replica lead that was not in sync.

Source: Kafka's PartitionChangeBuilder and PartitionRegistration; KIP-966 on the last replica.
"""

from collections.abc import Callable, Set
from dataclasses import replace
from typing import TypeAlias

from metaquorum.image import NO_LEADER, PartitionImage

IsLive: TypeAlias = Callable[[int], bool]


def elected(partition: PartitionImage, is_live: IsLive) -> int:
    """Who is to lead: whoever does, while it may; else the first that may; else NO_LEADER."""
    if partition.leader in partition.isr and may_lead(partition, partition.leader, is_live):
        return partition.leader
    for replica in partition.replicas:
        if replica in partition.isr and may_lead(partition, replica, is_live):
            return replica
    return NO_LEADER


def may_lead(partition: PartitionImage, replica: int, is_live: IsLive) -> bool:
    """Its worker is live, and has the log; whether it is in sync is another question."""
    return replica not in partition.offline and is_live(replica)


def preferred(partition: PartitionImage, is_live: IsLive) -> int:
    """Who is to lead when the preferred replica is asked for: the first, where it may."""
    first = partition.replicas[0]
    if first in partition.isr and may_lead(partition, first, is_live):
        return first
    return elected(partition, is_live)


def elected_unclean(partition: PartitionImage, is_live: IsLive) -> PartitionImage | None:
    """The partition led by the first live replica, in sync or not, which alone is in sync then.

    None where no replica is live. What that one has not got of what was acknowledged is lost.
    """
    for replica in partition.replicas:
        if may_lead(partition, replica, is_live):
            return changed(partition, replica, (replica,))
    return None


def without_workers(
    partition: PartitionImage, gone: Set[int], is_live: IsLive
) -> PartitionImage | None:
    """The partition once these workers are not live any more; None where that changes nothing.

    `is_live` says False of them already.
    """
    if partition.leader not in gone and gone.isdisjoint(partition.isr):
        return None
    staying = tuple([replica for replica in partition.isr if replica not in gone])
    isr = staying if staying else partition.isr
    return changed(partition, elected(partition, is_live), isr)


def without_log(
    partition: PartitionImage, worker_id: int, is_live: IsLive
) -> PartitionImage | None:
    """The partition once that worker has lost its log; None where that is known, or not its."""
    if worker_id not in partition.replicas or worker_id in partition.offline:
        return None
    offline = tuple([r for r in partition.replicas if r == worker_id or r in partition.offline])
    isr = tuple([replica for replica in partition.isr if replica != worker_id]) or partition.isr
    after = replace(partition, offline=offline, partition_epoch=partition.partition_epoch + 1)
    leader = elected(replace(after, isr=isr), is_live)
    return replace(
        after,
        isr=isr,
        leader=leader,
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
    )


def with_log(partition: PartitionImage, worker_id: int) -> PartitionImage | None:
    """The partition where that worker may have its log again; None where it was not known lost."""
    if worker_id not in partition.offline:
        return None
    offline = tuple([replica for replica in partition.offline if replica != worker_id])
    return replace(partition, offline=offline, partition_epoch=partition.partition_epoch + 1)


def with_workers(partition: PartitionImage, is_live: IsLive) -> PartitionImage | None:
    """The partition led by whoever may lead it now; None where it is led, or nobody may."""
    if partition.leader != NO_LEADER:
        return None
    return changed(partition, elected(partition, is_live), partition.isr)


def changed(partition: PartitionImage, leader: int, isr: tuple[int, ...]) -> PartitionImage | None:
    """The partition with this leader and ISR, and the epochs that belong to it; None: as it is."""
    if leader == partition.leader and isr == partition.isr:
        return None
    return PartitionImage(
        partition.replicas,
        isr,
        leader,
        partition.leader_epoch + (leader != partition.leader),
        partition.partition_epoch + 1,
        partition.offline,
    )
