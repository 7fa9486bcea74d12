"""What the leader of a partition knows of its replicas: who is in sync, and what that commits.

    a follower fetches at offset F   =>  it holds everything before F
    high watermark                    =  the least that any in-sync replica holds

The in-sync replicas (ISR) are the quorum's to say; the leader proposes changes. Between a proposal
and the news of its outcome either set may be in force, and a leader be elected from it, so that
meanwhile the *maximal* ISR, both together, has to hold what is committed (KIP-497).

    settled --propose--> proposed --the partition epoch has moved--> settled
                            |------ refused -----------------------> settled, as before
                            '------ nobody knows ------------------> proposed, and asked once more

Who was in a proposal whose outcome nobody knew counts, even if a later one is refused, until the
partition epoch moves: the first may still be made.

A follower joins when it holds all that is committed and where this leader's own epoch began (what
it has from earlier epochs may still have to be cut), and it is the incarnation that the metadata
knows, neither fenced nor going (KIP-903). It leaves when for `lag_s` it was never *caught up*: its
fetch at one time reached what was the log's end at that time or, since records never stop coming,
at the time of its fetch before. A follower that stands at the end does not ask anew for each
partition; that it still fetches at all (`heard`) tells that it stood there until then.

While fewer than `min.insync.replicas` are in sync nothing new is committed (KIP-966), so that the
last of them knows all that ever was.

Plain state: `now` is monotonic seconds. Offsets are ends, the offset of the next record.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from wire.primitives.frozen import frozen

UNKNOWN: Final = -1

# Whether this incarnation (broker epoch) of a worker may be in an ISR, as the metadata has it.
Eligible: TypeAlias = Callable[[int, int], bool]
# This worker's own, as its session has been given it last. It is asked for at each use: a process
# that was unregistered registers again, and has another from then on.
BrokerEpoch: TypeAlias = Callable[[], int]


@dataclass(slots=True)
class Follower:
    """A replica as its fetches show it."""

    replica_id: int
    caught_up_at: float
    log_end_offset: int = UNKNOWN
    log_start_offset: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    fetched_at: float = 0.0
    _end_at_fetch: int = 0  # the leader's, at `fetched_at`

    def fetched(self, offset: int, log_start_offset: int, leader_end: int, now: float) -> None:
        """It asked for what comes at `offset`."""
        if offset >= leader_end:
            self.caught_up_at = now
        elif offset >= self._end_at_fetch:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.fetched_at = now
        self._end_at_fetch = leader_end

    def is_caught_up(self, leader_end: int, now: float, lag_s: float) -> bool:
        return self.log_end_offset == leader_end or now - self.caught_up_at <= lag_s


@frozen
class Lag:
    """How far a replica is behind, and how long it has not been caught up."""

    records: int
    seconds: float


@frozen
class IsrChange:
    """A proposal to the quorum: this set, as a successor of that of `partition_epoch`.

    `lags`: of those that are to leave.
    """

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]  # of each; UNKNOWN for one that has not fetched
    leader_epoch: int
    partition_epoch: int
    lags: Mapping[int, Lag] = field(default_factory=dict)


class LeaderState:
    """One leader's view in one leader epoch."""

    __slots__ = (
        "_end",
        "_followers",
        "_lag_s",
        "_own_broker_epoch",
        "_perhaps",
        "epoch_start_offset",
        "isr",
        "leader_epoch",
        "made",
        "partition_epoch",
        "proposed",
        "replica_id",
        "replicas",
    )

    def __init__(
        self,
        replica_id: int,
        broker_epoch: BrokerEpoch,
        leader_epoch: int,
        epoch_start_offset: int,
        lag_s: float,
    ) -> None:
        """`epoch_start_offset` is where the log ended when this replica began to lead."""
        self.replica_id: Final = replica_id
        self._own_broker_epoch: Final = broker_epoch
        self.leader_epoch: Final = leader_epoch
        self.epoch_start_offset: Final = epoch_start_offset
        self._lag_s = lag_s
        self._end = epoch_start_offset  # of the log, as it was told last
        self._followers: dict[int, Follower] = {}
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.partition_epoch = UNKNOWN
        self.proposed: IsrChange | None = None
        self.made: IsrChange | None = None  # the partition is in that state
        self._perhaps: frozenset[int] = frozenset()  # in sync, if an outcome were known

    @property
    def followers(self) -> Iterable[Follower]:
        return self._followers.values()

    def follower(self, replica_id: int) -> Follower | None:
        return self._followers.get(replica_id)

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Everybody who may be in sync, as far as this leader can know."""
        proposed = self.proposed.isr if self.proposed is not None else ()
        return self._perhaps.union(self.isr, proposed)

    # What the metadata says

    def assign(
        self, replicas: Sequence[int], isr: Sequence[int], partition_epoch: int, now: float
    ) -> bool:
        """The partition is as the metadata log says at `partition_epoch`; False if that is old."""
        if partition_epoch < self.partition_epoch:
            return False
        for replica_id in replicas:
            if replica_id != self.replica_id and replica_id not in self._followers:
                # Who was not in sync has been away for ever.
                self._followers[replica_id] = Follower(replica_id, float("-inf"))
        for replica_id in set(isr).difference(self.isr) & self._followers.keys():
            # In sync until time tells. Who joins has all that is committed, perhaps not the end.
            follower = self._followers[replica_id]
            follower.caught_up_at = max(follower.caught_up_at, now)
        for replica_id in self._followers.keys() - set(replicas):
            del self._followers[replica_id]
        self.replicas, self.isr = tuple(replicas), tuple(isr)
        if partition_epoch > self.partition_epoch:
            self.made = self.proposed if self._is_made(partition_epoch, isr) else None
            self.proposed, self._perhaps = None, frozenset()  # made, or overtaken
        self.partition_epoch = partition_epoch
        return True

    def _is_made(self, partition_epoch: int, isr: Sequence[int]) -> bool:
        return (
            self.proposed is not None
            and partition_epoch == self.proposed.partition_epoch + 1
            and set(isr) == set(self.proposed.isr)
        )

    def forget(self, replica_id: int) -> None:
        """What that replica had is gone: only what it fetches from now on counts.

        This spares wishes that would be refused. The controller takes no replica into an ISR that
        is offline, and it is offline until its worker is another process, whose broker epoch is
        not the one that was seen here (KIP-903).
        """
        if replica_id in self._followers:
            self._followers[replica_id] = Follower(replica_id, float("-inf"))

    # What followers show

    def appended(self, log_end_offset: int, heard: Mapping[int, float]) -> None:
        """The log ends there now; `heard`: when each replica was last heard of at all."""
        for follower in self._followers.values():
            if follower.log_end_offset == self._end:
                at = heard.get(follower.replica_id, follower.caught_up_at)
                follower.caught_up_at = max(follower.caught_up_at, at)
        self._end = log_end_offset

    def fetched(
        self,
        replica_id: int,
        broker_epoch: int,
        offset: int,
        log_start_offset: int,
        log_end_offset: int,
        now: float,
    ) -> bool:
        """The replica holds all before `offset`; False if it is none of this partition's.

        A fetch by an older incarnation than one that was seen tells nothing.
        """
        follower = self._followers.get(replica_id)
        if follower is None:
            return False
        if broker_epoch >= follower.broker_epoch:
            follower.broker_epoch = broker_epoch
            follower.fetched(offset, log_start_offset, log_end_offset, now)
        return True

    def committed(
        self, high_watermark: int, log_end_offset: int, min_isr: int, now: float, eligible: Eligible
    ) -> int:
        """The high watermark, which never goes back.

        A follower that is about to join is waited for like one that is in sync, or the end would
        run away from it while few are.
        """
        if len(self.isr) < min(min_isr, len(self.replicas)):
            return high_watermark
        least = log_end_offset
        maximal = self.maximal_isr
        for follower in self._followers.values():
            if follower.log_end_offset < least and (
                follower.replica_id in maximal
                or self._waits_for(follower, log_end_offset, now, eligible)
            ):
                least = follower.log_end_offset
        return max(high_watermark, least)

    def _waits_for(
        self, follower: Follower, log_end_offset: int, now: float, eligible: Eligible
    ) -> bool:
        return (
            follower.log_end_offset != UNKNOWN
            and follower.is_caught_up(log_end_offset, now, self._lag_s)
            and eligible(follower.replica_id, follower.broker_epoch)
        )

    # Changes of the ISR

    def joins(self, replica_id: int, high_watermark: int, eligible: Eligible) -> bool:
        """Whether the replica, not in sync yet, should be."""
        follower = self._followers.get(replica_id)
        return (
            follower is not None
            and replica_id not in self.isr
            and follower.log_end_offset >= max(high_watermark, self.epoch_start_offset)
            and eligible(replica_id, follower.broker_epoch)
        )

    def lagging(self, log_end_offset: int, now: float) -> list[int]:
        """Members of the ISR that have not been caught up for too long."""
        return [
            f.replica_id
            for f in self._followers.values()
            if f.replica_id in self.isr and not f.is_caught_up(log_end_offset, now, self._lag_s)
        ]

    def propose(
        self, high_watermark: int, log_end_offset: int, now: float, eligible: Eligible
    ) -> IsrChange | None:
        """The change that is due, now proposed; None if none is, or one is on its way."""
        if self.proposed is not None:
            return None
        gone = self.lagging(log_end_offset, now)
        isr = tuple(r for r in self.isr if r not in gone)
        isr += tuple(r for r in self._followers if self.joins(r, high_watermark, eligible))
        if isr == self.isr:
            return None
        self.proposed = IsrChange(
            isr,
            tuple(self._broker_epoch(replica_id) for replica_id in isr),
            self.leader_epoch,
            self.partition_epoch,
            {r: self._lag(self._followers[r], log_end_offset, now) for r in gone},
        )
        return self.proposed

    def _lag(self, follower: Follower, log_end_offset: int, now: float) -> Lag:
        return Lag(log_end_offset - max(0, follower.log_end_offset), now - follower.caught_up_at)

    def _broker_epoch(self, replica_id: int) -> int:
        if replica_id == self.replica_id:
            return self._own_broker_epoch()
        return self._followers[replica_id].broker_epoch

    def refused(self, change: IsrChange) -> None:
        """This attempt at `change` was not made and never will be."""
        if self.proposed is change:
            self.proposed = None

    def lost(self, change: IsrChange) -> None:
        """An attempt at `change` may be made, now or later."""
        if self.proposed is change:
            self._perhaps = self._perhaps.union(change.isr)
