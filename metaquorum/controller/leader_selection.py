"""Who leads a partition, and who is in its ISR, when workers come and go. Pure rules.

A worker is *live* while it is registered, not fenced and not in controlled shutdown. It may have
lost the log directory of one replica or another, which are *offline* until its process is another;
or have come back without their logs, and begun them anew: they are *blank* until they are in sync.

    what happens                     leader                          ISR
    its leader is not live any more  the first live replica of the   without those gone; or, without
                                     ISR, in replica order; or none  an ELR, at least the last ones
    a follower is not live any more  stays                           without it
    none, and one of the ISR is live that one, as above              stays
    the ISR is empty, and one of     the first live one of the ELR   that one
    the ELR is live
    both are empty, and the last     that one                        that one
    leader is live
    a replica goes offline           as if its worker were gone, for this partition
    a worker restarted               as if it had been gone between: it never leads again in an
                                     epoch in which it led before (KAFKA-10527)
    so it did, and may have lost     as if gone                      without it; or, without an
    the end of its logs                                              ELR, never empty
    a replica is blank               as if gone                      without it, empty if need be
    all replicas are blank, and one  that one                        that one
    is live
    no leader, one is live, and the  the first live one, rather one  that one
    topic allows unclean elections   that is not blank
    somebody asks for an unclean one the same                        the same

Epochs: the leader epoch grows when the leader changes (none is another one), the partition epoch
with every change. Who leads, therefore, is live; and none leads only where none of the ISR is live.

*Eligible leader replicas* (ELR) are not in sync any more, and have all that was ever committed. For
nothing is committed while fewer are in sync than min.insync.replicas (or than there are replicas),
so that whoever leaves an ISR and leaves it with fewer misses nothing:

    fewer are in sync than needed    those who left since, also all that were in sync last
    enough are in sync               the ELR is empty: more may be committed from here on
    one of the ELR is in sync again  it leaves the ELR
    it has lost something: it comes  it leaves the ELR, and nobody takes its place
    back after a loss of power, is
    blank, or its log is offline

As the ELR keeps them, nobody who is gone needs to stay in an ISR. Who leads last is remembered
(`last_leader`) while nobody leads: where nobody is left that has everything without a doubt, it has
most, and leads once it is live (KIP-966's balanced recovery, which is all that Kafka 4.3 has).
Where its log is offline that of the last one counts as being away only: it may be seen again.

`min_isr` is what the topic needs by the same metadata (`eligible_leaders`), or OFF where the
cluster is not at that level of eligible.leader.replicas.version. There the last of an ISR stay in
it because they alone have all that was acknowledged: they lead when they come back, and nobody else
does. After a loss of power the last one stays, too, although the end of its log may be gone: it is
not known that anybody has more (the last replica standing; with the others' way out the one is left
that was seen last).

One that comes back without its log has nothing: with it in the ISR it would lead, and the others
cut their logs to nothing. So it leaves, and where nobody else was in sync or eligible nobody leads,
as others may have most of it: that is for a person to say, or for unclean.leader.election.enable.
Only where all replicas have lost their logs, as the only one of a partition, is there nothing to
choose.

`unclean_epoch` is the last leader epoch that began without certainty that its leader had all that
was committed: by an unclean election, as the last one after a loss of power, or anew. A replica
with records of an epoch before that may have been told that they were committed, and have to cut
them. (Kafka says RECOVERING instead, KIP-704, until the leader changes the ISR. That asks leaders
to recover, which none of them does yet; and it is forgotten before replicas that were away return.)

Source: Kafka's PartitionChangeBuilder and PartitionRegistration; KIP-966.
"""

from collections.abc import Callable, Collection, Set
from dataclasses import replace
from typing import Final, TypeAlias

from metaquorum.metadata.image import NO_LEADER, PartitionImage

IsLive: TypeAlias = Callable[[int], bool]
IsAllowed: TypeAlias = Callable[[], bool]

OFF: Final = 0  # in place of min.insync.replicas: there are no eligible leader replicas


def never() -> bool:
    return False


def elected(partition: PartitionImage, is_live: IsLive) -> int:
    """Who is to lead: whoever does, while it may; else the first that may; else NO_LEADER.

    One of the ISR; where that is empty, one of those that have everything all the same.
    """
    candidates = partition.isr or partition.elr
    if partition.leader in candidates and may_lead(partition, partition.leader, is_live):
        return partition.leader
    for replica in partition.replicas:
        if replica in candidates and may_lead(partition, replica, is_live):
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
    distrusted: int = NO_LEADER,
    is_doubtful: bool = False,
    unclean: IsAllowed = never,
    min_isr: int = OFF,
) -> PartitionImage | None:
    """The partition with what is given, led by whoever may lead then; None: as it is.

    `distrusted`: a replica that may lack what was committed. `is_doubtful`: of who is in sync,
    nobody is certain to have all of it. `unclean`: where nobody in sync is live, another may lead.
    """
    isr = partition.isr if isr is None else isr
    blank = partition.blank if blank is None else blank
    elr: tuple[int, ...] = ()
    if len(isr) < min_isr:  # of thousands of partitions at a time, mostly not
        elr = _eligible(partition, isr, min_isr, lacking=(*blank, distrusted))
    last_leader = partition.last_leader
    if min_isr and not isr:
        if last_leader == NO_LEADER:
            # Where nobody led, the last of whom it was thought that it has everything.
            last_leader = partition.leader
            if last_leader == NO_LEADER and not elr:
                last_leader = distrusted
        if last_leader in blank:
            last_leader = NO_LEADER
    after = PartitionImage(
        partition.replicas,
        isr,
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
        partition.offline if offline is None else offline,
        blank,
        partition.unclean_epoch,
        elr,
        last_leader,
    )
    leader = elected(after, is_live)
    is_unclean = False
    if leader == NO_LEADER:
        leader = _elected_doubtful(after, is_live, unclean)
        is_unclean = leader != NO_LEADER
    return _with_leader(
        partition, after, leader, is_unclean=is_unclean, is_doubtful=is_doubtful, min_isr=min_isr
    )


def _elected_doubtful(partition: PartitionImage, is_live: IsLive, unclean: IsAllowed) -> int:
    """Who leads where nobody is live that has everything; or NO_LEADER."""
    last = partition.last_leader
    nobody_has_all = not partition.isr and not partition.elr
    if nobody_has_all and last != NO_LEADER and may_lead(partition, last, is_live):
        return last
    if len(partition.blank) == len(partition.replicas) or unclean():
        return elected_unclean(partition, is_live)
    return NO_LEADER


def least_isr(partition: PartitionImage, min_isr: int) -> int:
    """So many have to be in sync for anything to be committed."""
    return min(min_isr, len(partition.replicas))


def _eligible(
    before: PartitionImage,
    isr: tuple[int, ...],
    min_isr: int,
    *,
    lacking: Collection[int] = (),
) -> tuple[int, ...]:
    """Who has all that is committed, though not in sync, once these are."""
    if len(isr) >= least_isr(before, min_isr):
        return ()
    return tuple(
        [
            replica
            for replica in before.replicas
            if (replica in before.isr or replica in before.elr)
            and replica not in isr
            and replica not in lacking
        ]
    )


def with_isr(partition: PartitionImage, isr: tuple[int, ...], min_isr: int) -> PartitionImage:
    """The partition with the ISR that its leader, which is in it, asks for."""
    return replace(
        partition,
        isr=isr,
        blank=tuple([replica for replica in partition.blank if replica not in isr]),
        elr=_eligible(partition, isr, min_isr),
        last_leader=NO_LEADER,
    ).in_next_epoch()


def needing(partition: PartitionImage, min_isr: int) -> PartitionImage | None:
    """The partition once so many have to be in sync; None: as it is."""
    if not partition.elr or len(partition.isr) < least_isr(partition, min_isr):
        return None
    return replace(partition, elr=()).in_next_epoch()


def without_elr(partition: PartitionImage) -> PartitionImage | None:
    """The partition by the rules without an ELR, where the last of an ISR stay; None: as it is."""
    if partition.isr and not partition.elr and partition.last_leader == NO_LEADER:
        return None
    isr, unclean_epoch = partition.isr or partition.elr, partition.unclean_epoch
    if not isr and partition.last_leader != NO_LEADER:
        isr, unclean_epoch = (partition.last_leader,), partition.leader_epoch + 1
    after = replace(partition, isr=isr, elr=(), last_leader=NO_LEADER, unclean_epoch=unclean_epoch)
    return None if after == partition else after.in_next_epoch()


def led_by(partition: PartitionImage, leader: int, min_isr: int = OFF) -> PartitionImage | None:
    """The partition led by that replica, which is in sync or eligible; None: it is."""
    return _with_leader(partition, partition, leader, min_isr=min_isr)


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
    min_isr: int = OFF,
) -> PartitionImage | None:
    leader_epoch = before.leader_epoch + (leader != before.leader)
    isr, blank, unclean_epoch = after.isr, after.blank, before.unclean_epoch
    elr = after.elr
    if is_unclean:
        isr, elr, unclean_epoch = (leader,), (), leader_epoch
        blank = tuple([replica for replica in blank if replica != leader])
    elif leader in elr:
        isr = (leader,)
        elr = _eligible(after, isr, min_isr)
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
        elr,
        after.last_leader if leader == NO_LEADER else NO_LEADER,
    )
    if settled == before:
        return None
    return settled.in_next_epoch()


def without_workers(
    partition: PartitionImage,
    gone: Set[int],
    is_live: IsLive,
    *,
    unclean: IsAllowed = never,
    min_isr: int = OFF,
) -> PartitionImage | None:
    """The partition once these workers are not live any more; None where that changes nothing.

    `is_live` says False of them already.
    """
    if partition.leader not in gone and gone.isdisjoint(partition.isr):
        return None
    isr = _staying(partition, gone, min_isr)
    return settled(partition, is_live, isr=isr, unclean=unclean, min_isr=min_isr)


def _staying(partition: PartitionImage, gone: Set[int], min_isr: int) -> tuple[int, ...]:
    """The ISR without these. Without an ELR the last ones stay."""
    staying = tuple([replica for replica in partition.isr if replica not in gone])
    return staying if staying or min_isr else partition.isr


def without_log(
    partition: PartitionImage,
    worker_id: int,
    is_live: IsLive,
    *,
    unclean: IsAllowed = never,
    min_isr: int = OFF,
) -> PartitionImage | None:
    """The partition once that worker has lost its log; None where that is known, or not its."""
    if worker_id not in partition.replicas or worker_id in partition.offline:
        return None
    offline = tuple([r for r in partition.replicas if r == worker_id or r in partition.offline])
    is_last = {*partition.isr, *partition.elr} == {worker_id}
    return settled(
        partition,
        is_live,
        isr=_staying(partition, {worker_id}, min_isr),
        offline=offline,
        distrusted=NO_LEADER if is_last else worker_id,
        unclean=unclean,
        min_isr=min_isr,
    )


def recreated(
    partition: PartitionImage,
    worker_id: int,
    is_live: IsLive,
    *,
    unclean: IsAllowed = never,
    min_isr: int = OFF,
) -> PartitionImage | None:
    """The partition once that worker's log of it is an empty one; None: that is known, or not its.

    For a worker that is not live, as one that has just come back.
    """
    if worker_id not in partition.replicas or worker_id in partition.blank:
        return None
    blank = tuple([r for r in partition.replicas if r == worker_id or r in partition.blank])
    isr = tuple([replica for replica in partition.isr if replica != worker_id])
    return settled(partition, is_live, isr=isr, blank=blank, unclean=unclean, min_isr=min_isr)


def restarted(
    partition: PartitionImage,
    worker_id: int,
    is_live: IsLive,
    *,
    was_live: bool,
    is_intact: bool,
    is_new: bool = False,
    is_same: bool = False,
    unclean: IsAllowed = never,
    min_isr: int = OFF,
) -> PartitionImage | None:
    """The partition once that worker is another process, not live yet; None: nothing changes.

    The next process has its own news of its log directories. `is_intact`: all that the one before
    had written is still there, so that it may be the last in sync without a doubt. `is_new`: none
    of it is, as the process will tell (`recreated`). `is_same`: the process has only registered
    again, so that a log directory that failed has not come back.
    """
    if worker_id not in partition.replicas:
        return None
    isr, offline, is_doubtful = partition.isr, partition.offline, False
    if worker_id in isr and (was_live or not is_intact):
        isr = _staying(partition, {worker_id}, min_isr)
        is_doubtful = isr == (worker_id,) and not is_intact and not is_new
    if worker_id in offline and not is_same:
        offline = tuple([replica for replica in offline if replica != worker_id])
    is_held = worker_id in partition.isr or worker_id in partition.elr
    is_distrusted = min_isr != OFF and is_held and not is_intact
    stays = isr is partition.isr and offline is partition.offline
    if stays and partition.leader != worker_id and not (is_doubtful or is_distrusted):
        return None
    return settled(
        partition,
        is_live,
        isr=isr,
        offline=offline,
        distrusted=worker_id if is_distrusted else NO_LEADER,
        is_doubtful=is_doubtful,
        unclean=unclean,
        min_isr=min_isr,
    )


def with_workers(
    partition: PartitionImage,
    is_live: IsLive,
    *,
    unclean: IsAllowed = never,
    min_isr: int = OFF,
) -> PartitionImage | None:
    """The partition led by whoever may lead it now; None where it is led, or nobody may."""
    if partition.leader != NO_LEADER:
        return None
    return settled(partition, is_live, unclean=unclean, min_isr=min_isr)
