"""Checkers of the true logs of transactions: decisions, markers, epochs, last stable offsets.

A coordinator's decision is a record in `__transaction_state`, and each marker a record of its own;
the order in which they are committed is what makes a transaction atomic.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from metaquorum.metadata.internal_topics import TRANSACTION_STATE
from metaquorum.simulations.cluster.cluster_state import ClusterChecker, ClusterState
from metaquorum.simulations.replication.partition_transactions import Kind, Stamp
from metaquorum.simulations.replication.replicas import (
    Entry,
    Name,
    PartitionHistory,
    Place,
    ReadableEnds,
    ReplicaLog,
    Role,
)
from metaquorum.simulations.transactions.coordinator_records import (
    BEFORE,
    StateValue,
    Status,
    decode_state,
    transactional_id_of,
)
from metaquorum.simulations.transactions.transaction_checkers import TransactionChecker


@dataclass(slots=True, eq=False)
class Decision:
    """One record of `__transaction_state` that a leader has appended."""

    history: PartitionHistory
    name: Name
    transactional_id: str
    value: StateValue | None  # None: a tombstone
    # Partitions with the marker that this decision asks for, and the leader epoch of the first one.
    marked: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def is_committed(self) -> bool:
        return self.name in self.history.ever_committed

    @property
    def is_lost(self) -> bool:
        lost = self.history.gone, self.history.deposed, self.history.gone_unneeded
        return any(self.name in some for some in lost)


class StatesFollow(TransactionChecker):
    """Each state of a transactional id in the log may follow the one before; its epochs grow.

    Keeps the records of `__transaction_state` for the other checkers.
    """

    invariant = "T3"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self.decisions: dict[str, list[Decision]] = {}
        self.ids: dict[int, set[str]] = {}  # transactional ids, by producer id

    def of_producer(self, producer_id: int) -> Iterator[Decision]:
        """Yield the records of the producer id, the last one first."""
        for transactional_id in sorted(self.ids.get(producer_id, ())):
            for decision in reversed(self.decisions[transactional_id]):
                if decision.value is not None and decision.value.producer_id == producer_id:
                    yield decision

    def appended(
        self, history: PartitionHistory, replica: ReplicaLog, entries: Sequence[Entry], role: Role
    ) -> None:
        contents = self.cluster_history.contents
        if history.topic != TRANSACTION_STATE or not role.leads or contents is None:
            return
        first = entries[0].name
        for name, identity in entries:
            content = contents[identity]
            transactional_id = transactional_id_of(bytes(content.key or b""))
            if transactional_id is None or content.is_control:
                continue
            value = None if content.is_tombstone else decode_state(content.text)
            self._written(Decision(history, name, transactional_id, value), replica, first)

    def _written(self, decision: Decision, replica: ReplicaLog, first: Name) -> None:
        known = self.decisions.setdefault(decision.transactional_id, [])
        before = _last(known, replica, first)
        known.append(decision)
        value = decision.value
        if value is None:
            self.world.count("transactional ids expired")
            return
        self.world.count(f"state: {value.status.name}")
        self.ids.setdefault(value.producer_id, set()).add(decision.transactional_id)
        for checker in self.cluster_state.checkers:
            if isinstance(checker, (DecisionsComeFirst, TimeoutsAreKept)):
                checker.decided(decision, before)
        old = None if before is None else before.value
        if old is None:
            return
        self.compare(
            old.status in BEFORE[value.status],
            "{}: {} is recorded at {} after {} at {}",
            decision.transactional_id,
            value.status.name,
            decision.name,
            old.status.name,
            before and before.name,
        )
        self.compare(
            value.producer_id != old.producer_id or value.producer_epoch >= old.producer_epoch,
            "{}: epoch {} is recorded at {} after epoch {}",
            decision.transactional_id,
            value.producer_epoch,
            decision.name,
            old.producer_epoch,
        )


def _last(known: Sequence[Decision], replica: ReplicaLog, first: Name) -> Decision | None:
    """Return the last record that the replica has, or is about to append from `first` on."""
    for each in reversed(known):
        is_new = each.name.leader_epoch == first.leader_epoch and each.name.offset >= first.offset
        is_cleaned = each.name in each.history.cleaned and each.name.offset < first.offset
        if is_new or is_cleaned or replica.holds(each.name):
            return each
    return None


def _stamped_by_leader(
    history: PartitionHistory, entries: Sequence[Entry], role: Role
) -> Iterator[tuple[Name, Stamp]]:
    """Yield the markers, and the records of transactions, that a leader has appended."""
    if role.leads:
        for name, _ in entries:
            if (stamp := history.stamps.get(name)) is not None:
                yield name, stamp


class DecisionsComeFirst(TransactionChecker):
    """A marker is written after the decision is committed, and says the same.

    The end of a transaction is recorded after the markers in all of its partitions are committed.
    """

    invariant = "T3"

    def appended(
        self, history: PartitionHistory, replica: ReplicaLog, entries: Sequence[Entry], role: Role
    ) -> None:
        for name, stamp in _stamped_by_leader(history, entries, role):
            if stamp.is_marker:
                is_open = stamp.producer_id in replica.transactions.open
                self._marker(history, name, stamp, is_open=is_open)

    def _marker(
        self, history: PartitionHistory, name: Name, stamp: Stamp, *, is_open: bool
    ) -> None:
        at = history.topic, history.place.partition
        status = Status.PREPARE_COMMIT if stamp.kind is Kind.COMMIT else Status.PREPARE_ABORT
        found = None
        for decision in self.cluster_state.checker(StatesFollow).of_producer(stamp.producer_id):
            value = decision.value
            if (
                value is not None
                and value.producer_epoch == stamp.producer_epoch
                and value.status is status
                and at in value.partitions
                and decision.is_committed
            ):
                found = decision
                break
        self.world.count("markers written")
        # One of an administrator may repeat the end of a transaction, but ends none.
        self.compare(
            found is not None or not is_open or self.has_lost_state,
            "{}: the marker {} is written at {}, but no such decision is committed",
            history,
            stamp,
            name,
        )
        if found is not None:
            found.marked.setdefault(at, name.leader_epoch)

    def decided(self, decision: Decision, before: Decision | None) -> None:
        """Check the record of a transaction's end; `before`: the record before it in the log."""
        value = decision.value
        if value is None or not value.status.is_complete or before is None or before.value is None:
            return
        for topic, index in sorted(before.value.partitions):
            image = self.cluster_history.image.topic(topic)
            if image is None:
                continue
            history = self.cluster_history.history(image.topic_id, index)
            markers = history.markers.get(before.value.producer_id, ())
            is_marked = any(
                name in history.ever_committed
                and history.stamps[name].producer_epoch >= before.value.producer_epoch
                for name in markers
            )
            self.compare(
                is_marked or self.has_lost_state or bool(history.lost_records),
                "{}: {} is recorded at {}, but {} has no committed marker of {}",
                decision.transactional_id,
                value.status.name,
                decision.name,
                history,
                (before.value.producer_id, before.value.producer_epoch),
            )


class TimeoutsAreKept(TransactionChecker):
    """A transaction that partitions are added to keeps the time at which it began.

    Otherwise a client that adds partitions holds the last stable offset for longer than its
    timeout. A new coordinator may set the time back, if the clock of the one before was ahead.
    """

    invariant = "T4"

    def decided(self, decision: Decision, before: Decision | None) -> None:
        """Check the record of a transaction; `before`: the record before it in the log."""
        value, old = decision.value, None if before is None else before.value
        if value is None or old is None:
            return
        if not value.status is old.status is Status.ONGOING:
            return
        self.world.count("partitions added later")
        self.compare(
            value.started_ms <= old.started_ms,
            "{}: the transaction at {} began at {} ms, but at {} ms by the record before",
            decision.transactional_id,
            decision.name,
            value.started_ms,
            old.started_ms,
        )


class EpochsInLogsGrow(TransactionChecker):
    """In a log, the producer epoch and the coordinator epoch of a producer id never decrease.

    A zombie's records and late markers are refused by the leader, then.
    """

    invariant = "T5"

    def appended(
        self, history: PartitionHistory, replica: ReplicaLog, entries: Sequence[Entry], role: Role
    ) -> None:
        for name, stamp in _stamped_by_leader(history, entries, role):
            known = replica.transactions
            epoch = known.epochs.get(stamp.producer_id, -1)
            self.compare(
                stamp.producer_epoch >= epoch,
                "{}: {} at {} follows epoch {}",
                history,
                stamp,
                name,
                epoch,
            )
            if stamp.is_marker:
                last = known.coordinator_epochs.get(stamp.producer_id, -1)
                self.compare(
                    stamp.coordinator_epoch >= last,
                    "{}: {} at {} follows coordinator epoch {}",
                    history,
                    stamp,
                    name,
                    last,
                )


class AppendedIsInTransaction(TransactionChecker):
    """A transaction begins in a log only while its coordinator has the partition in it (KIP-890).

    Otherwise nothing would end it, and the last stable offset would not move again.
    """

    invariant = "T5"

    def appended(
        self, history: PartitionHistory, replica: ReplicaLog, entries: Sequence[Entry], role: Role
    ) -> None:
        seen: set[int] = set()
        for name, stamp in _stamped_by_leader(history, entries, role):
            if stamp.is_marker or stamp.producer_id in seen:
                continue
            seen.add(stamp.producer_id)
            if stamp.producer_id not in replica.transactions.open:
                self._begins(history, replica, name, stamp)

    def _begins(
        self, history: PartitionHistory, replica: ReplicaLog, name: Name, stamp: Stamp
    ) -> None:
        state = self.cluster_history.state(history)
        if state is not None and (
            state.leader_epoch > name.leader_epoch and state.leader != replica.worker_id
        ):
            return  # another replica leads by now and has ended it; this one will truncate
        at = history.topic, history.place.partition
        log = self.cluster_state.checker(StatesFollow)
        last = next((d for d in log.of_producer(stamp.producer_id) if d.is_committed), None)
        value = None if last is None else last.value
        is_ongoing = value is not None and last is not None and at in value.partitions
        if value is not None and is_ongoing:
            is_same = value.producer_epoch == stamp.producer_epoch
            is_bumped = value.producer_epoch == stamp.producer_epoch + 1
            is_ongoing = (value.status is Status.ONGOING and is_same) or (
                value.status.is_prepared
                and (is_same or is_bumped)
                and last is not None
                # The leader of an earlier epoch does not know the marker, and cannot commit.
                and last.marked.get(at, name.leader_epoch + 1) > name.leader_epoch
            )
        self.compare(
            is_ongoing or self.has_lost_state,
            "{}: {} at {} begins a transaction, but the coordinator has {}",
            history,
            stamp,
            name,
            value,
        )


class StableOffsetIsThatOfTheLog(TransactionChecker):
    """The last stable offset of a replica is that of a scan of its log, and never moves back."""

    invariant = "T4"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self._last: dict[tuple[Place, int, int, int], int] = {}

    def stable(
        self, history: PartitionHistory, replica: ReplicaLog, ends: ReadableEnds, role: Role
    ) -> None:
        last_stable_offset, high_watermark = ends
        known = replica.transactions
        least = known.last_stable_offset(high_watermark, replica.start)
        most = known.last_stable_offset(high_watermark, replica.start, awaits_old=False)
        self.compare(
            least <= last_stable_offset <= most,
            "{}: worker {} has the last stable offset {} with the high watermark {}; open: {}",
            history,
            replica.worker_id,
            last_stable_offset,
            high_watermark,
            known.open,
        )
        self.world.count("last stable offsets held", last_stable_offset < high_watermark)
        if role.leads:
            at = history.place, role.leader_epoch, replica.worker_id, replica.machine.runs
            last = self._last.get(at, -1)
            self.compare(
                last_stable_offset >= last,
                "{}: worker {} moves its last stable offset from {} back to {}",
                history,
                replica.worker_id,
                last,
                last_stable_offset,
            )
            self._last[at] = max(last, last_stable_offset)


DECISION_CHECKERS: Final[tuple[type[ClusterChecker], ...]] = (
    StatesFollow,
    DecisionsComeFirst,
    TimeoutsAreKept,
    EpochsInLogsGrow,
    AppendedIsInTransaction,
    StableOffsetIsThatOfTheLog,
)
