"""Who leads a partition, and who is in its ISR, when workers come and go. Pure rules.

A worker is *live* while it is registered, not fenced and not in controlled shutdown. It may have
lost the log directory of one replica or another, which are *offline* until its process is another;
or have come back without their logs, and begun them anew: they are *blank* until they are in sync.

    what happens                     leader                          ISR
    its leader is not live any more  the first live replica of the   without those gone, but never
                                     ISR, in replica order; or none  empty: the last ones stay
    a follower is not live any more  stays                           without it
    none, and one of the ISR is live that one, as above              stays
    a replica goes offline           as if its worker were gone, for this partition
    a worker restarted               as if it had been gone between: it never leads again in an
                                     epoch in which it led before (KAFKA-10527)
    so it did, and may have lost     as if gone                      without it, but never empty
    the end of its logs
    a replica is blank               as if gone                      without it, empty if need be
    all replicas are blank, and one  that one                        that one
    is live
    no leader, one is live, and the  the first live one, rather one  that one
    topic allows unclean elections   that is not blank
    somebody asks for an unclean one the same                        the same

Epochs: the leader epoch grows when the leader changes (none is another one), the partition epoch
with every change. Who leads, therefore, is live; and none leads only where none of the ISR is live.

The last of an ISR stay in it because they alone have all that was acknowledged: they lead when they
come back, and nobody else does. After a loss of power the last one stays, too, although the end of
its log may be gone: it is not known that anybody has more (KIP-966's last replica standing; with
the others' way out the one is left that was seen last). One that comes back without its log has
nothing: with it in the ISR it would lead, and the others cut their logs to nothing. So it leaves,
and where nobody else was in sync nobody leads, as others may have most of it: that is for a person
to say, or for unclean.leader.election.enable. Only where all replicas have lost their logs, as the
only one of a partition, is there nothing to choose.

`unclean_epoch` is the last leader epoch that began without certainty that its leader had all that
was committed: by an unclean election, as the last one after a loss of power, or anew. A replica
with records of an epoch before that may have been told that they were committed, and have to cut
them. (Kafka says RECOVERING instead, KIP-704, until the leader changes the ISR. That asks leaders
to recover, which none of them does yet; and it is forgotten before replicas that were away return.)

Source: Kafka's PartitionChangeBuilder and PartitionRegistration; KIP-966 on the last replica.
"""

from collections.abc import Callable, Set
from typing import TypeAlias

from metaquorum.image import NO_LEADER, PartitionImage

IsLive: TypeAlias = Callable[[int], bool]
IsAllowed: TypeAlias = Callable[[], bool]


def never() -> bool:
    return False


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


def elected_unclean(partition: PartitionImage, is_live: IsLive) -> int:
    """The first live replica, in sync or not, rather one that is not blank; or NO_LEADER.

    What it has not got of what was acknowledged is lost.
    """
    blank = NO_LEADER
    for replica in partition.replicas:
        if may_lead(partition, replica, is_live):
            if replica not in partition.blank:
                return replica
            if blank == NO_LEADER:
                blank = replica
    return blank


def settled(
    partition: PartitionImage,
    is_live: IsLive,
    *,
    isr: tuple[int, ...] | None = None,
    offline: tuple[int, ...] | None = None,
    blank: tuple[int, ...] | None = None,
    is_doubtful: bool = False,
    unclean: IsAllowed = never,
) -> PartitionImage | None:
    """The partition with what is given, led by whoever may lead then; None: as it is.

    `is_doubtful`: of who is in sync, nobody is certain to have all that was committed. `unclean`:
    where nobody in sync is live, another may lead.
    """
    after = PartitionImage(
        partition.replicas,
        partition.isr if isr is None else isr,
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
        partition.offline if offline is None else offline,
        partition.blank if blank is None else blank,
        partition.unclean_epoch,
    )
    leader = elected(after, is_live)
    is_unclean = False
    if leader == NO_LEADER and (len(after.blank) == len(after.replicas) or unclean()):
        leader = elected_unclean(after, is_live)
        is_unclean = leader != NO_LEADER
    return _with_leader(partition, after, leader, is_unclean=is_unclean, is_doubtful=is_doubtful)


def led_by(partition: PartitionImage, leader: int) -> PartitionImage | None:
    """The partition led by that replica, which is in sync; None: it is."""
    return _with_leader(partition, partition, leader)


def led_unclean_by(partition: PartitionImage, leader: int) -> PartitionImage:
    """The partition led by that replica, which alone is in sync then."""
    after = _with_leader(partition, partition, leader, is_unclean=True)
    assert after is not None
    return after


def _with_leader(
    before: PartitionImage,
    after: PartitionImage,
    leader: int,
    *,
    is_unclean: bool = False,
    is_doubtful: bool = False,
) -> PartitionImage | None:
    leader_epoch = before.leader_epoch + (leader != before.leader)
    isr, blank, unclean_epoch = after.isr, after.blank, before.unclean_epoch
    if is_unclean:
        isr, unclean_epoch = (leader,), leader_epoch
        blank = tuple([replica for replica in blank if replica != leader])
    elif is_doubtful:
        unclean_epoch = leader_epoch + (leader == NO_LEADER)  # when one of them leads
    settled = PartitionImage(
        before.replicas,
        isr,
        leader,
        leader_epoch,
        before.partition_epoch,
        after.offline,
        blank,
        unclean_epoch,
    )
    if settled == before:
        return None
    return settled.in_next_epoch()


def without_workers(
    partition: PartitionImage, gone: Set[int], is_live: IsLive, *, unclean: IsAllowed = never
) -> PartitionImage | None:
    """The partition once these workers are not live any more; None where that changes nothing.

    `is_live` says False of them already.
    """
    if partition.leader not in gone and gone.isdisjoint(partition.isr):
        return None
    staying = tuple([replica for replica in partition.isr if replica not in gone])
    return settled(partition, is_live, isr=staying or partition.isr, unclean=unclean)


def without_log(
    partition: PartitionImage, worker_id: int, is_live: IsLive, *, unclean: IsAllowed = never
) -> PartitionImage | None:
    """The partition once that worker has lost its log; None where that is known, or not its."""
    if worker_id not in partition.replicas or worker_id in partition.offline:
        return None
    offline = tuple([r for r in partition.replicas if r == worker_id or r in partition.offline])
    isr = tuple([replica for replica in partition.isr if replica != worker_id]) or partition.isr
    return settled(partition, is_live, isr=isr, offline=offline, unclean=unclean)


def begun_anew(
    partition: PartitionImage, worker_id: int, is_live: IsLive, *, unclean: IsAllowed = never
) -> PartitionImage | None:
    """The partition once that worker's log of it is an empty one; None: that is known, or not its.

    For a worker that is not live, as one that has just come back.
    """
    if worker_id not in partition.replicas or worker_id in partition.blank:
        return None
    blank = tuple([r for r in partition.replicas if r == worker_id or r in partition.blank])
    isr = tuple([replica for replica in partition.isr if replica != worker_id])
    return settled(partition, is_live, isr=isr, blank=blank, unclean=unclean)


def restarted(
    partition: PartitionImage,
    worker_id: int,
    is_live: IsLive,
    *,
    was_live: bool,
    is_intact: bool,
    is_new: bool = False,
    unclean: IsAllowed = never,
) -> PartitionImage | None:
    """The partition once that worker is another process, not live yet; None: nothing changes.

    The next process has its own news of its log directories. `is_intact`: all that the one before
    had written is still there, so that it may be the last in sync without a doubt. `is_new`: none
    of it is, as the process will tell (`begun_anew`).
    """
    if worker_id not in partition.replicas:
        return None
    isr, offline, is_doubtful = partition.isr, partition.offline, False
    if worker_id in isr and (was_live or not is_intact):
        isr = tuple([replica for replica in isr if replica != worker_id]) or isr
        is_doubtful = isr == (worker_id,) and not is_intact and not is_new
    if worker_id in offline:
        offline = tuple([replica for replica in offline if replica != worker_id])
    stays = isr is partition.isr and offline is partition.offline and not is_doubtful
    if stays and partition.leader != worker_id:
        return None
    return settled(
        partition, is_live, isr=isr, offline=offline, is_doubtful=is_doubtful, unclean=unclean
    )


def with_workers(
    partition: PartitionImage, is_live: IsLive, *, unclean: IsAllowed = never
) -> PartitionImage | None:
    """The partition led by whoever may lead it now; None where it is led, or nobody may."""
    if partition.leader != NO_LEADER:
        return None
    return settled(partition, is_live, unclean=unclean)
