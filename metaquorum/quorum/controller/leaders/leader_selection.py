"""Pure rules that compute a partition's leader and ISR when workers join, restart or leave.

A worker is *live* while it is registered, not fenced and not in controlled shutdown; otherwise it
is called *dead* here. A replica is *offline* if its worker has lost the log directory; it stays
offline until the worker's process restarts. A replica is *blank* if its worker restarted without
the log and created an empty one; it stays blank until it is in sync.

    event                            leader                          ISR
    the leader is no longer live     the first live replica of the   without the dead replicas; or,
                                     ISR, in replica order; or none  if there is no ELR, at least
                                                                     the last replicas stay
    a follower is no longer live     unchanged                       without that replica
    no leader, and a replica of the  that replica, as above          unchanged
    ISR is live
    the ISR is empty, and a replica  the first live replica of the   that replica
    of the ELR is live               ELR
    both are empty, and the last     the last leader                 the last leader
    leader is live
    a replica goes offline           as if its worker were dead, for this partition
    a worker restarted               as if it had been dead in between: it never leads again in an
                                     epoch in which it led before (KAFKA-10527)
    a worker restarted, and may have as if dead                      without it; or, if there is no
    lost the end of its logs                                         ELR, never empty
    a replica is blank               as if dead                      without it, possibly empty
    all replicas are blank, and one  that replica                    that replica
    is live
    no leader, a replica is live,    the first live replica that is  that replica
    and the topic allows unclean     not blank; if there is none,
    leader election                  the first live blank replica
    a client requests an unclean     the same                        the same
    election
    the leader's worker drains, and  that replica                    unchanged
    another replica of the ISR may
    lead, now or later

A worker *drains* while an operator empties it (`worker_registration`). In each of these elections
but the unclean ones, its replicas come after those of all other workers, in any order of replicas.

Epochs: the leader epoch increases when the leader changes (to another replica or to none) and when
a move removes replicas, the partition epoch with every change. So a leader is always live, and a
partition has no leader only if no replica of the ISR is live.

*Eligible leader replicas* (ELR) are no longer in sync, but have all committed records: no record is
committed while the ISR is smaller than min.insync.replicas (or than the number of replicas, if that
is smaller). So a replica that leaves an ISR too small to commit misses no committed record:

    the ISR is too small             the replicas that left since, and all replicas that were in
                                     sync last
    the ISR is large enough          the ELR is empty: more records may be committed from here on
    a replica of the ELR is in sync  it leaves the ELR
    again
    a replica may have lost records  it leaves the ELR, and no replica takes its place
    (power loss, blank, or offline)

Because the ELR remembers them, dead replicas need not stay in the ISR. While a partition has no
leader, `last_leader` holds the replica that led last. If no replica certainly has all records, the
last leader has most of them, and leads once it is live (KIP-966's balanced recovery, which is all
that Kafka 4.3 has). If the log of the last ISR or ELR member goes offline, the replica keeps its
eligibility, because the log may become readable again.

A *move* changes the replicas (`reassignment`). Meanwhile the partition has the replicas of the
target and those that leave, and all of them follow the rules above:

    all replicas of the target are   the leader; or, if it leaves,   the target
    in sync, and one may lead        the first replica of the target
                                     that may lead

That is one record, so no reader of the metadata log sees fewer replicas than the target has. The
smallest ISR that commits follows from the size of the target. An adding replica that is not in sync
leads only in an unclean election, and after the replicas that have been there before.

`min_isr` is the topic's min.insync.replicas in the same metadata (`eligible_leaders`), or OFF if
the cluster is not at that level of eligible.leader.replicas.version. With OFF, the last replicas of
an ISR stay in it because only they have all acknowledged records: they lead when they return, and
no other replica may lead. After a power loss the last replica also stays, although the end of its
log may be lost: no other replica is known to have more. (It is the last replica standing in the
words of KIP-966. The others left the ISR before it, so it was live last.)

A replica that returns without its log has no records. In the ISR it could become the leader, and
the others would truncate their logs to nothing. So it leaves the ISR. If no other replica was in
sync or eligible, the partition has no leader, because other replicas may have most of the records:
an operator must decide, or unclean.leader.election.enable. Nothing has to be decided if all
replicas have lost their logs, for example the single replica of a partition.

`unclean_epoch` is the last leader epoch that began without certainty that its leader had all
committed records: after an unclean election, a power loss of the last replica, or with an empty
log. A replica with records of earlier epochs may have learned that they were committed, and may
have to truncate them. (Kafka marks such a partition as RECOVERING instead, KIP-704, until the
leader changes the ISR. RECOVERING asks the leader to recover, which no leader does yet, and the
mark is removed before replicas that were away return.)

Source: Kafka's PartitionChangeBuilder and PartitionRegistration; KIP-966.
"""

from collections.abc import Callable, Collection, Set
from dataclasses import replace
from typing import Final, TypeAlias

from metaquorum.metadata.image import NO_LEADER, PartitionImage

IsLive: TypeAlias = Callable[[int], bool]
IsDraining: TypeAlias = Callable[[int], bool]
IsAllowed: TypeAlias = Callable[[], bool]

OFF: Final = 0  # in place of min.insync.replicas: the cluster does not use ELRs


def never() -> bool:
    return False


def nobody(worker_id: int) -> bool:
    """Return False, as a predicate of workers.

    `is_draining` where no worker drains, and `is_live` where a move needs no other leader.
    """
    return False


def elected(partition: PartitionImage, is_live: IsLive, is_draining: IsDraining = nobody) -> int:
    """Return the present leader if it may lead, otherwise the first candidate, or NO_LEADER.

    Candidates are the replicas of the ISR that may lead; if the ISR is empty, those of the ELR.
    Replicas on draining workers, the present leader too, come after all others.
    """
    candidates = partition.isr or partition.elr
    leader = NO_LEADER
    if partition.leader in candidates and may_lead(partition, partition.leader, is_live):
        if not is_draining(partition.leader):
            return partition.leader
        leader = partition.leader
    other = _first_able(partition, candidates, is_live, is_draining)
    return leader if leader != NO_LEADER and is_draining(other) else other


def _first_able(
    partition: PartitionImage, candidates: Collection[int], is_live: IsLive, is_draining: IsDraining
) -> int:
    """Return the first replica that may lead, one on a draining worker only if there is no other.

    Only candidates may lead; NO_LEADER if none of them may.
    """
    leader = NO_LEADER
    for replica in partition.replicas:
        if replica in candidates and may_lead(partition, replica, is_live):
            if not is_draining(replica):
                return replica
            if leader == NO_LEADER:
                leader = replica
    return leader


def may_lead(partition: PartitionImage, replica: int, is_live: IsLive) -> bool:
    """Return whether the replica's worker is live and the replica is not offline.

    The replica need not be in sync.
    """
    return replica not in partition.offline and is_live(replica)


def elected_unclean(partition: PartitionImage, is_live: IsLive) -> int:
    """Return the first live replica, one that a move adds only if there is no other; or NO_LEADER.

    A blank replica is the last resort. Acknowledged records that the replica does not have are
    lost.
    """
    adding = blank = NO_LEADER
    for replica in partition.replicas:
        if may_lead(partition, replica, is_live):
            if replica in partition.blank:
                blank = replica if blank == NO_LEADER else blank
            elif replica not in partition.adding:
                return replica
            elif adding == NO_LEADER:
                adding = replica
    return blank if adding == NO_LEADER else adding


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
    is_draining: IsDraining = nobody,
) -> PartitionImage | None:
    """Return the partition with the given changes and the leader that follows; None: no change.

    `distrusted`: a replica that may miss committed records. `is_doubtful`: no replica of the ISR
    certainly has all committed records. `unclean`: whether unclean leader election is allowed.
    """
    isr = partition.isr if isr is None else isr
    blank = partition.blank if blank is None else blank
    elr: tuple[int, ...] = ()
    if len(isr) < min_isr:  # rarely true, and called for thousands of partitions
        elr = _eligible(partition, isr, min_isr, lacking=(*blank, distrusted))
    last_leader = partition.last_leader
    if min_isr and not isr:
        if last_leader == NO_LEADER:
            # Without a leader, the distrusted replica was the last one thought to be complete.
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
        partition.adding,
        partition.removing,
        partition.plan,
    )
    leader = elected(after, is_live, is_draining)
    is_unclean = False
    if leader == NO_LEADER:
        leader = _elected_doubtful(after, is_live, unclean)
        is_unclean = leader != NO_LEADER
    return _with_leader(
        partition,
        after,
        leader,
        is_live,
        is_unclean=is_unclean,
        is_doubtful=is_doubtful,
        min_isr=min_isr,
        is_draining=is_draining,
    )


def _elected_doubtful(partition: PartitionImage, is_live: IsLive, unclean: IsAllowed) -> int:
    """Return the leader if no live replica certainly has all committed records; or NO_LEADER."""
    last = partition.last_leader
    nobody_has_all = not partition.isr and not partition.elr
    if nobody_has_all and last != NO_LEADER and may_lead(partition, last, is_live):
        return last
    if len(partition.blank) == len(partition.replicas) or unclean():
        return elected_unclean(partition, is_live)
    return NO_LEADER


def least_isr(partition: PartitionImage, min_isr: int) -> int:
    """Return the smallest ISR size with which records can be committed."""
    return min(min_isr, len(partition.replicas) - len(partition.removing))


def _eligible(
    before: PartitionImage,
    isr: tuple[int, ...],
    min_isr: int,
    *,
    lacking: Collection[int] = (),
) -> tuple[int, ...]:
    """Return the ELR that goes with the new ISR `isr`; replicas in `lacking` are excluded."""
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


def with_isr(
    partition: PartitionImage,
    isr: tuple[int, ...],
    min_isr: int,
    is_live: IsLive,
    is_draining: IsDraining = nobody,
) -> PartitionImage:
    """Return the partition with the ISR that its leader requests. The leader must be in it.

    A leader on a draining worker is replaced if another replica of the ISR may lead.
    """
    after = replace(
        partition,
        isr=isr,
        blank=tuple([replica for replica in partition.blank if replica not in isr]),
        elr=_eligible(partition, isr, min_isr),
        last_leader=NO_LEADER,
    )
    after = moved(after, is_live, is_draining=is_draining)
    if is_draining(after.leader):
        leader = elected(after, is_live, is_draining)
        if leader != after.leader:
            after = replace(after, leader=leader, leader_epoch=partition.leader_epoch + 1)
    return after.in_next_epoch()


def moved(
    partition: PartitionImage,
    is_live: IsLive,
    before: PartitionImage | None = None,
    is_draining: IsDraining = nobody,
) -> PartitionImage:
    """Return the partition with its move complete; unchanged if it cannot be complete yet.

    `before`: the partition before the change of which this is a part; if that has elected a leader
    already, the leader epoch does not increase again. It increases if replicas leave (`left`).
    """
    if not partition.is_moving or partition.leader == NO_LEADER:
        return partition
    target, leader, leader_epoch = partition.target, partition.leader, partition.leader_epoch
    if not set(target) <= set(partition.isr):
        return partition
    if leader not in target:
        leader = _first_able(partition, target, is_live, is_draining)
        if leader == NO_LEADER:
            return partition
    if partition.removing:
        leader_epoch = (before or partition).leader_epoch + 1
    return PartitionImage(
        target,
        target,
        leader,
        leader_epoch,
        partition.partition_epoch,
        offline=tuple([replica for replica in partition.offline if replica in target]),
        unclean_epoch=partition.unclean_epoch,
    )


def left(before: PartitionImage, after: PartitionImage) -> PartitionImage:
    """Return `after` in a new leader epoch if it is without replicas of `before`.

    A replica that leaves deletes its log, and may be added again soon. Its progress in the old
    leader epoch, and its fetches that are still in flight, must not count for the new log. Without
    a leader nothing counts, and the next one begins a new epoch anyway.
    """
    if after.leader_epoch > before.leader_epoch or after.leader == NO_LEADER:
        return after
    if set(before.replicas) <= set(after.replicas):
        return after
    return replace(after, leader_epoch=before.leader_epoch + 1)


def needing(partition: PartitionImage, min_isr: int) -> PartitionImage | None:
    """Return the partition with that min.insync.replicas; None if it does not change."""
    if not partition.elr or len(partition.isr) < least_isr(partition, min_isr):
        return None
    return replace(partition, elr=()).in_next_epoch()


def without_elr(partition: PartitionImage) -> PartitionImage | None:
    """Return the partition by the rules without an ELR (see OFF); None if it does not change."""
    if partition.isr and not partition.elr and partition.last_leader == NO_LEADER:
        return None
    isr, unclean_epoch = partition.isr or partition.elr, partition.unclean_epoch
    if not isr and partition.last_leader != NO_LEADER:
        isr, unclean_epoch = (partition.last_leader,), partition.leader_epoch + 1
    after = replace(partition, isr=isr, elr=(), last_leader=NO_LEADER, unclean_epoch=unclean_epoch)
    return None if after == partition else after.in_next_epoch()


def led_by(partition: PartitionImage, leader: int, min_isr: int = OFF) -> PartitionImage | None:
    """Return the partition led by that in-sync or eligible replica; None if it leads already."""
    return _with_leader(partition, partition, leader, nobody, min_isr=min_isr)


def led_unclean_by(partition: PartitionImage, leader: int) -> PartitionImage:
    """Return the partition led by that replica, which becomes the only replica of the ISR."""
    after = _with_leader(partition, partition, leader, nobody, is_unclean=True)
    assert after is not None
    return after


def _with_leader(
    before: PartitionImage,
    after: PartitionImage,
    leader: int,
    is_live: IsLive,
    *,
    is_unclean: bool = False,
    is_doubtful: bool = False,
    min_isr: int = OFF,
    is_draining: IsDraining = nobody,
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
        unclean_epoch = leader_epoch + (
            leader == NO_LEADER
        )  # the epoch of the next leader if there is none now
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
        after.adding,
        after.removing,
        after.plan,
    )
    settled = moved(settled, is_live, before, is_draining)
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
    is_draining: IsDraining = nobody,
) -> PartitionImage | None:
    """Return the partition once these workers are no longer live; None if it does not change.

    `is_live` already returns False for them.
    """
    if partition.leader not in gone and gone.isdisjoint(partition.isr):
        return None
    isr = _staying(partition, gone, min_isr)
    return settled(
        partition, is_live, isr=isr, unclean=unclean, min_isr=min_isr, is_draining=is_draining
    )


def _staying(partition: PartitionImage, gone: Set[int], min_isr: int) -> tuple[int, ...]:
    """Return the ISR without these replicas; unchanged if it would be empty without an ELR."""
    staying = tuple([replica for replica in partition.isr if replica not in gone])
    return staying if staying or min_isr else partition.isr


def without_log(
    partition: PartitionImage,
    worker_id: int,
    is_live: IsLive,
    *,
    unclean: IsAllowed = never,
    min_isr: int = OFF,
    is_draining: IsDraining = nobody,
) -> PartitionImage | None:
    """Return the partition after the worker has lost its log of it.

    None if the replica is already offline, or the worker has no replica.
    """
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
        is_draining=is_draining,
    )


def recreated(
    partition: PartitionImage,
    worker_id: int,
    is_live: IsLive,
    *,
    unclean: IsAllowed = never,
    min_isr: int = OFF,
    is_draining: IsDraining = nobody,
) -> PartitionImage | None:
    """Return the partition after the worker has created an empty log for it.

    None if the replica is already blank, or the worker has no replica. The worker must not be live:
    it has just restarted.
    """
    if worker_id not in partition.replicas or worker_id in partition.blank:
        return None
    blank = tuple([r for r in partition.replicas if r == worker_id or r in partition.blank])
    isr = tuple([replica for replica in partition.isr if replica != worker_id])
    return settled(
        partition,
        is_live,
        isr=isr,
        blank=blank,
        unclean=unclean,
        min_isr=min_isr,
        is_draining=is_draining,
    )


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
    is_draining: IsDraining = nobody,
) -> PartitionImage | None:
    """Return the partition after that worker has restarted, fenced so far; None if no change.

    The new process reports failed log directories itself. `is_intact`: all records that the
    previous process wrote are still on disk, so the replica may be the last one in sync without
    doubt. `is_new`: none of them is, as the process will report (`recreated`). `is_same`: the same
    process has registered again, so a failed log directory is still offline.
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
        is_draining=is_draining,
    )


def doubted(
    partition: PartitionImage,
    worker_id: int,
    is_live: IsLive,
    *,
    unclean: IsAllowed = never,
    min_isr: int = OFF,
    is_draining: IsDraining = nobody,
) -> PartitionImage | None:
    """Return the partition after its replica on a restarted worker may have lost records.

    The outcome is as if the worker had registered without proof of its records. None if nothing
    changes. The worker must not be live: it has just restarted.
    """
    return restarted(
        partition,
        worker_id,
        is_live,
        was_live=False,
        is_intact=False,
        is_same=True,
        unclean=unclean,
        min_isr=min_isr,
        is_draining=is_draining,
    )


def with_workers(
    partition: PartitionImage,
    is_live: IsLive,
    *,
    unclean: IsAllowed = never,
    min_isr: int = OFF,
    is_draining: IsDraining = nobody,
) -> PartitionImage | None:
    """Return the partition with a leader elected; None if it has one, or no replica may lead.

    If it has one and moves, the move may be complete because a replica of the target may lead. A
    leader on a draining worker is replaced if another replica may lead.
    """
    has_leader = partition.leader != NO_LEADER and not is_draining(partition.leader)
    if has_leader and not partition.is_moving:
        return None
    return settled(partition, is_live, unclean=unclean, min_isr=min_isr, is_draining=is_draining)
