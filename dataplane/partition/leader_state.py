"""Leader's state of a partition: replica progress, in-sync replicas (ISR), high watermark.

    a follower fetches at offset F   =>  the follower holds all records before F
    high watermark                    =  the smallest log end offset of the in-sync replicas

The controller quorum decides on the ISR; the leader proposes changes. Until the outcome of a
proposal is known, either set may be in force and a leader be elected from it. Meanwhile all members
of the *maximal* ISR, the union of both, must hold the committed records (KIP-497).

    settled --propose--> proposed --partition epoch increased--> settled
                            |------ refused -------------------> settled with the old ISR
                            '------ outcome unknown -----------> proposed, and sent again

The members of a proposal with unknown outcome stay in the maximal ISR until the partition epoch
increases, even if a later proposal is refused: the first may still be applied.

A follower joins the ISR by a fetch, as in Kafka: one that has reached the high watermark and the
start of this leader's epoch (records of earlier epochs may still be truncated), while the metadata
has its broker epoch as registered, not fenced and not in controlled shutdown (KIP-903). The fetch
was made outside the ISR, is the follower's last one, and is at most `lag_s` old. So a follower that
no longer fetches stays out, even if the high watermark has not moved since. If the controller
refuses a replica, its next fetch has it proposed again.

It leaves if it was not *caught up* for `lag_s`: no fetch reached the log end offset of that time
or, as appends never stop, of the time of its previous fetch. A follower in the ISR and at the log
end does not fetch each partition again; any fetch of that follower (`heard`) shows that it was at
the end until then.

While the ISR has fewer than `min.insync.replicas` members the high watermark does not advance
(KIP-966), so the last member holds all committed records.

Plain state: `now` is monotonic seconds. Offsets are end offsets, the offset of the next record.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from metaquorum.wire.primitives.frozen import frozen

UNKNOWN: Final = -1

# Returns whether the metadata allows a worker id with this broker epoch in an ISR.
Eligible: TypeAlias = Callable[[int, int], bool]
# Returns this worker's current broker epoch. Called at each use, because a worker that was
# unregistered registers again and gets a new one.
BrokerEpoch: TypeAlias = Callable[[], int]


@dataclass(slots=True)
class Follower:
    """Progress of a follower, from its fetches."""

    replica_id: int
    caught_up_at: float
    log_end_offset: int = UNKNOWN
    log_start_offset: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    fetched_at: float = 0.0
    is_joining: bool = False  # whether its last fetch was outside the ISR and lets it join
    _end_at_fetch: int = 0  # the leader's log end offset at `fetched_at`

    def fetched(self, offset: int, log_start_offset: int, leader_end: int, now: float) -> None:
        """Record a fetch at `offset`."""
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
    """Lag of a replica: missing records, and seconds since it was caught up."""

    records: int
    seconds: float


@frozen
class IsrChange:
    """Proposal of a new ISR to replace the ISR of `partition_epoch`.

    `lags` has the lag of each replica that leaves, by worker id.
    """

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]  # in the order of `isr`; UNKNOWN without a fetch
    leader_epoch: int
    partition_epoch: int
    lags: Mapping[int, Lag] = field(default_factory=dict)


class LeaderState:
    """State of one leader in one leader epoch."""

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
        """Create the state; `epoch_start_offset` is the log end offset at the epoch's start."""
        self.replica_id: Final = replica_id
        self._own_broker_epoch: Final = broker_epoch
        self.leader_epoch: Final = leader_epoch
        self.epoch_start_offset: Final = epoch_start_offset
        self._lag_s = lag_s
        self._end = epoch_start_offset  # log end offset of the last `appended`
        self._followers: dict[int, Follower] = {}
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.partition_epoch = UNKNOWN
        self.proposed: IsrChange | None = None
        self.made: IsrChange | None = None  # the proposal that led to the current ISR
        self._perhaps: frozenset[int] = frozenset()  # members of proposals with unknown outcome

    @property
    def followers(self) -> Iterable[Follower]:
        return self._followers.values()

    def follower(self, replica_id: int) -> Follower | None:
        return self._followers.get(replica_id)

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Worker ids that may be in the ISR, proposals without a known outcome included."""
        proposed = self.proposed.isr if self.proposed is not None else ()
        return self._perhaps.union(self.isr, proposed)

    # Changes in the metadata log

    def assign(
        self, replicas: Sequence[int], isr: Sequence[int], partition_epoch: int, now: float
    ) -> bool:
        """Apply the replicas and ISR of `partition_epoch`; return False if that epoch is old."""
        if partition_epoch < self.partition_epoch:
            return False
        for replica_id in replicas:
            if replica_id != self.replica_id and replica_id not in self._followers:
                # A new follower counts as never caught up.
                self._followers[replica_id] = Follower(replica_id, float("-inf"))
        for replica_id in set(isr).difference(self.isr) & self._followers.keys():
            # A new ISR member holds the committed records, but perhaps not the log end: its lag
            # time starts now.
            follower = self._followers[replica_id]
            follower.caught_up_at = max(follower.caught_up_at, now)
            follower.is_joining = False  # if it leaves again, that takes another fetch
        for replica_id in self._followers.keys() - set(replicas):
            del self._followers[replica_id]
        if UNKNOWN < self.partition_epoch < partition_epoch - 1:
            # In an epoch that was published together with this one, it may have joined and left.
            for replica_id in self._followers.keys() - set(isr):
                self._followers[replica_id].is_joining = False
        self.replicas, self.isr = tuple(replicas), tuple(isr)
        if partition_epoch > self.partition_epoch:
            self.made = self.proposed if self._is_made(partition_epoch, isr) else None
            self.proposed, self._perhaps = None, frozenset()  # applied or superseded
        self.partition_epoch = partition_epoch
        return True

    def _is_made(self, partition_epoch: int, isr: Sequence[int]) -> bool:
        return (
            self.proposed is not None
            and partition_epoch == self.proposed.partition_epoch + 1
            and set(isr) == set(self.proposed.isr)
        )

    def forget(self, replica_id: int) -> None:
        """Reset the progress of a replica whose log is lost.

        This avoids proposals that the controller would refuse: it takes no offline replica into an
        ISR, and the replica stays offline until its worker restarts with a new broker epoch
        (KIP-903).
        """
        if replica_id in self._followers:
            self._followers[replica_id] = Follower(replica_id, float("-inf"))

    # Appends and fetches

    def appended(self, log_end_offset: int, heard: Mapping[int, float]) -> None:
        """Record the new log end offset; `heard` has the time of each replica's last fetch."""
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
        """Record that the replica holds all records before `offset`.

        Returns False if the worker is not a replica of this partition. Ignores fetches with an
        older broker epoch.
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
        """Return the new high watermark, never less than `high_watermark`.

        A caught-up follower outside the ISR limits the high watermark like an ISR member; otherwise
        the high watermark of a small ISR would always stay ahead of that follower.
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
        """Return whether the replica is outside the ISR, and its offset lets it join."""
        follower = self._followers.get(replica_id)
        return (
            follower is not None
            and replica_id not in self.isr
            and follower.log_end_offset >= max(high_watermark, self.epoch_start_offset)
            and eligible(replica_id, follower.broker_epoch)
        )

    def asked_to_join(self, replica_id: int, high_watermark: int, eligible: Eligible) -> bool:
        """Record whether the replica may join the ISR by its fetch, just recorded; return that."""
        joins = self.joins(replica_id, high_watermark, eligible)
        self._followers[replica_id].is_joining = joins
        return joins

    def _asks_to_join(self, follower: Follower, now: float) -> bool:
        return follower.is_joining and now - follower.fetched_at <= self._lag_s

    def lagging(self, log_end_offset: int, now: float) -> list[int]:
        """Return the followers in the ISR that were not caught up for `lag_s`."""
        return [
            f.replica_id
            for f in self._followers.values()
            if f.replica_id in self.isr and not f.is_caught_up(log_end_offset, now, self._lag_s)
        ]

    def propose(
        self, high_watermark: int, log_end_offset: int, now: float, eligible: Eligible
    ) -> IsrChange | None:
        """Return a new proposal; None if the ISR needs no change or a proposal is pending."""
        if self.proposed is not None:
            return None
        gone = self.lagging(log_end_offset, now)
        isr = tuple(r for r in self.isr if r not in gone)
        isr += tuple(
            follower.replica_id
            for follower in self._followers.values()
            if self._asks_to_join(follower, now)
            and self.joins(follower.replica_id, high_watermark, eligible)
        )
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
        """Drop the proposal `change`, which the controller refused.

        The replicas that it adds need another fetch, so that they do not block the next proposal.
        """
        if self.proposed is change:
            self.proposed = None
            for replica_id in set(change.isr).difference(self.isr) & self._followers.keys():
                self._followers[replica_id].is_joining = False

    def lost(self, change: IsrChange) -> None:
        """Keep the members of `change`, whose outcome is unknown, in the maximal ISR."""
        if self.proposed is change:
            self._perhaps = self._perhaps.union(change.isr)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        assert self.partition_epoch == UNKNOWN or self.replica_id in self.replicas
        assert len(set(self.replicas)) == len(self.replicas), self.replicas
        assert len(set(self.isr)) == len(self.isr), self.isr
        assert set(self.isr) <= set(self.replicas), (self.isr, self.replicas)
        assert not self.isr or self.replica_id in self.isr, self.isr
        assert self._followers.keys() == set(self.replicas) - {self.replica_id}
        assert self._end >= self.epoch_start_offset >= 0
        assert self.maximal_isr >= set(self.isr)
        proposed = self.proposed
        if proposed is not None:
            assert proposed.leader_epoch == self.leader_epoch
            assert proposed.partition_epoch == self.partition_epoch
            assert set(proposed.isr) <= set(self.replicas)
            assert self.replica_id in proposed.isr
            assert len(proposed.isr) == len(proposed.broker_epochs)
        for replica_id, follower in self._followers.items():
            assert follower.replica_id == replica_id
            assert follower.log_end_offset >= UNKNOWN
            assert follower.log_start_offset <= max(follower.log_end_offset, 0)
            assert not (follower.is_joining and replica_id in self.isr)
