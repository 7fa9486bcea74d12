"""Checkers of what clients of transactions see: T1 to T6 of the invariants.

They compare the answers with what the clients have done (`transaction_history`) and with the true
logs (`replicas`). `decision_checkers` compares the logs with each other.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from metaquorum.metadata.internal_topics import INTERNAL_TOPICS
from metaquorum.simulations.cluster.cluster_state import ClusterChecker, ClusterState
from metaquorum.simulations.replication.partition_transactions import Kind
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replicas import Entry, Name, PartitionHistory, Place
from metaquorum.simulations.transactions.transaction_history import (
    Fence,
    Outcome,
    Producer,
    Transaction,
    TransactionHistory,
)
from metaquorum.wire.primitives.errors import ErrorCode

Found = Mapping[Place, Sequence[tuple[int, bytes]]]  # offsets and values


class TransactionChecker(WatchingChecker):
    @property
    def transactions(self) -> TransactionHistory:
        return self.cluster_state.checker(CommittedIsShown).history

    @property
    def has_lost_state(self) -> bool:
        """Whether an internal topic has lost committed records for an accepted reason."""
        return any(
            history.lost_records or history.was_unclean
            for history in self.cluster_history.histories.values()
            if history.topic in INTERNAL_TOPICS
        )

    def may_stay_open(self, history: PartitionHistory) -> bool:
        """Return whether a marker, or the state of its transaction, was lost: nothing ends it."""
        return bool(self.has_lost_state or history.lost_records or history.was_unclean)

    def is_excused(self, transaction: Transaction) -> bool:
        """Return whether a partition of the transaction has lost records for an accepted reason."""
        return self.has_lost_state or any(
            (history := self.cluster_history.history(*place)).lost_records or history.was_unclean
            for place in transaction.sent
        )


class CommittedIsShown(TransactionChecker):
    """A read_committed read shows only records whose transaction has committed.

    Its commit marker is committed in the same log, its client has asked for the commit, and no
    abort of it was acknowledged. Keeps what the clients have done for the other checkers.
    """

    invariant = "T2"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self.history = TransactionHistory()
        self.seen: dict[Transaction, str] = {}  # with the reader that has seen it first

    def shown(
        self, history: PartitionHistory, entries: Sequence[tuple[Entry, bytes]], who: str
    ) -> None:
        for (name, _), value in entries:
            ending = history.ending(name)
            self.compare(
                ending is Kind.COMMIT,
                "{}: {} shows {} of a transaction whose end is {}",
                history,
                who,
                name,
                ending.value,
            )
            transaction = self.history.by_value.get(value)
            if transaction is None:
                continue
            self.compare(
                # Without its state or its marker, a later one of its producer ends it.
                not transaction.is_never_committed or self.is_excused(transaction),
                "{}: {} shows {} of {}",
                history,
                who,
                name,
                transaction,
            )
            self.seen.setdefault(transaction, who)
            self.world.count("committed records shown")

    def finals(self) -> None:
        """Check that no transaction that a reader has seen was aborted afterwards."""
        for transaction, who in self.seen.items():
            if not self.is_excused(transaction):
                self.compare(
                    not transaction.is_never_committed, "{} has shown {}", who, transaction
                )


class AbortedIsLeftOut(TransactionChecker):
    """A read_committed read leaves out only records of aborted transactions, and all before it.

    The last stable offset of a response is not above its high watermark, nor above a record whose
    transaction has not ended; no record at or above it is returned.
    """

    invariant = "T2"

    def left_out(self, history: PartitionHistory, names: Sequence[Name], who: str) -> None:
        for name in names:
            ending = history.ending(name)
            self.world.count("aborted records left out")
            self.compare(
                ending is Kind.ABORT,
                "{}: {} leaves out {}, of a transaction whose end is {}",
                history,
                who,
                name,
                ending.value,
            )

    def bounds(
        self,
        history: PartitionHistory,
        last_stable_offset: int,
        high_watermark: int,
        last_offset: int,
        who: str,
    ) -> None:
        """Check the offsets of a response; `last_offset`: of its records, -1 without any."""
        self.compare(
            last_stable_offset <= high_watermark,
            "{}: {} gets the last stable offset {} and the high watermark {}",
            history,
            who,
            last_stable_offset,
            high_watermark,
        )
        self.compare(
            last_offset < last_stable_offset,
            "{}: {} gets records to {}, but the last stable offset is {}",
            history,
            who,
            last_offset,
            last_stable_offset,
        )


class AllOrNothing(TransactionChecker):
    """At the end, all records of a transaction are visible in all of its partitions, or none.

    All of one whose commit was acknowledged, or that a reader has seen; none of one whose commit
    was never asked for, or whose abort was acknowledged.
    """

    invariant = "T3"

    def finals(self, found: Found) -> None:
        shown = {value for reads in found.values() for _, value in reads}
        seen = self.cluster_state.checker(CommittedIsShown).seen
        for transaction in self.transactions.transactions:
            if self.is_excused(transaction) or not transaction.sent:
                continue
            visible = transaction.values & shown
            missing = self._missing(transaction, shown, found)
            if transaction.is_never_committed:
                self.world.count("transactions aborted")
                self.compare(not visible, "{} is visible: {}", transaction, sorted(visible)[:3])
            elif transaction.outcome is Outcome.COMMITTED or transaction in seen:
                self.world.count("transactions committed")
                self.compare(not missing, "{} has lost {}", transaction, sorted(missing)[:3])
            else:
                self.world.count("transactions with an unknown outcome")
                self.compare(
                    not visible or not missing,
                    "{} is torn: {} are visible, {} are not",
                    transaction,
                    sorted(visible)[:3],
                    sorted(missing)[:3],
                )

    def _missing(self, transaction: Transaction, shown: set[bytes], found: Found) -> set[bytes]:
        """Return acknowledged values that are not shown, and were neither deleted nor compacted."""
        missing: set[bytes] = set()
        for place, values in transaction.sent.items():
            history = self.cluster_history.history(*place)
            cleaned = {name.offset for name in history.cleaned}
            for value, offset in values.items():
                if value in shown or offset is None or place not in found:
                    continue
                if offset >= history.deleted_to and offset not in cleaned:
                    missing.add(value)
        return missing


class SumIsTheSame(TransactionChecker):
    """The amounts of all visible transfers add up to zero, in all partitions together."""

    invariant = "T3"

    def finals(self, found: Found, amounts: Mapping[bytes, int]) -> None:
        """Check the sum; `amounts`: of each value that a client has sent as part of a transfer."""
        # By what was sent: a partition may have lost all of its transfers.
        places = {
            place
            for transaction in self.transactions.transactions
            for place, values in transaction.sent.items()
            if not amounts.keys().isdisjoint(values)
        }
        if self.has_lost_state or any(
            (history := self.cluster_history.history(*place)).lost_records
            or history.was_unclean
            or history.deleted_to
            for place in places
        ):
            return
        legs = [amounts[v] for reads in found.values() for _, v in reads if v in amounts]
        self.world.count("transfers visible", len(legs) // 2)
        self.compare(sum(legs) == 0, "{} legs of transfers add up to {}", len(legs), sum(legs))


class TransactionsEnd(TransactionChecker):
    """Once faults have stopped, every transaction ends within its timeout and a bound.

    Then the last stable offset of each partition is its high watermark.
    """

    invariant = "T4"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        # Partitions whose leader coordinates their transactions after a loss of their states.
        self.must_end: set[Place] = set()

    def ended(self, history: PartitionHistory, offset: int, end: int, within_s: float) -> None:
        if (
            offset < end
            and self.may_stay_open(history)
            and not (history.place in self.must_end and not history.lost_records)
        ):
            return
        self.compare(
            offset >= end,
            "{}: {} s after the last request, the last stable offset is {}, the log end {}",
            history,
            round(within_s, 1),
            offset,
            end,
        )


class ZombiesAreRefused(TransactionChecker):
    """A request with an epoch below one that was acknowledged before it was sent has no effect.

    A leader learns the new epoch by a marker. After an EndTxn it accepts records until that is
    written: they are part of the transaction, and have its outcome.
    """

    invariant = "T5"

    def acknowledged(self, producer: Producer, *, by_init: bool = True) -> None:
        """Note a producer that a coordinator has given, by InitProducerId or by EndTxn."""
        fence = Fence(producer, self.world.now, by_init)
        self.transactions.fences.setdefault(producer.producer_id, []).append(fence)

    def answered(
        self,
        what: str,
        producer: Producer,
        asked_at: float,
        code: ErrorCode,
        *,
        by_leader: bool = False,
    ) -> None:
        """Check the answer of a coordinator, or of a partition's leader."""
        fence = self.transactions.fence_before(producer, asked_at, needs_markers=by_leader)
        if fence is None:
            return
        self.world.count("requests of zombies")
        self.compare(
            code is not ErrorCode.NONE or self.has_lost_state,
            "{} of {} succeeds, although {} was acknowledged before",
            what,
            tuple(producer),
            tuple(fence),
        )


class EpochsAreGivenOnce(TransactionChecker):
    """No two instances of clients get the same producer id and epoch; epochs grow.

    So it is also after a loss of states: partitions may know the epochs that were given before.
    """

    invariant = "T5"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self._given: dict[Producer, str] = {}

    def given(self, instance: str, producer: Producer, asked_at: float) -> None:
        """Check a producer that a coordinator has given to an instance; it may repeat that."""
        owner = self._given.setdefault(producer, instance)
        fence = self.transactions.fence_before(producer, asked_at)
        self.compare(
            owner == instance, "{} is given to {} and to {}", tuple(producer), owner, instance
        )
        self.compare(
            fence is None,
            "{} is given to {}, after {} was acknowledged",
            tuple(producer),
            instance,
            fence,
        )


class PositionsAreCommitted(TransactionChecker):
    """A committed offset that is read belongs to a transaction whose commit was asked for.

    With require_stable it is not below one whose commit was acknowledged before the request.
    """

    invariant = "T6"

    def read(
        self, group: str, place: Place, offset: int, asked_at: float, *, is_stable: bool
    ) -> None:
        """Check an offset that a coordinator has returned; -1: none."""
        if self.has_lost_state:
            return
        known = self.transactions.commits.get((group, place), [])
        self.world.count("committed offsets of transactions read", offset >= 0)
        if offset >= 0:
            own = [each for each in known if each.offsets[group, place] == offset]
            self.compare(
                any(not each.is_never_committed for each in own),
                "{}: the position {} of {} is that of {}",
                group,
                offset,
                self.cluster_history.history(*place),
                [str(each) for each in own],
            )
        acknowledged = [
            each.offsets[group, place]
            for each in known
            if each.outcome is Outcome.COMMITTED
            and each.ended_at is not None
            and each.ended_at <= asked_at
        ]
        history = self.cluster_history.history(*place)
        # Where records of the input were lost, its copier goes back to the end that is left.
        if is_stable and acknowledged and not (history.lost_records or history.was_unclean):
            self.compare(
                offset >= max(acknowledged),
                "{}: the position of {} is {}, but {} was acknowledged",
                group,
                history,
                offset,
                max(acknowledged),
            )


class ExactlyOnce(TransactionChecker):
    """Each committed input record before the group's position has one visible output, others none.

    The position is the end of the input.
    """

    invariant = "T6"

    def finals(
        self,
        group: str,
        inputs: Found,
        outputs: Found,
        positions: Mapping[Place, int],
        sources: Mapping[bytes, tuple[Place, int]],
    ) -> None:
        """Check a group that has ended; `sources`: input of each output that a client has sent."""
        places = [*inputs, *outputs]
        if self.has_lost_state or any(
            (history := self.cluster_history.history(*place)).lost_records
            or history.was_unclean
            or history.deleted_to
            for place in places
        ):
            return
        made: dict[tuple[Place, int], list[bytes]] = {}
        for reads in outputs.values():
            for _, value in reads:
                if value in sources:
                    made.setdefault(sources[value], []).append(value)
        for place, reads in inputs.items():
            position = positions.get(place, -1)
            for offset, value in reads:
                copies = made.pop((place, offset), [])
                self.world.count("inputs with an output", len(copies) == 1)
                self.compare(
                    len(copies) == (offset < position),
                    "{}: {} at {} of {}, with the position {}, has the outputs {}",
                    group,
                    value[:60],
                    offset,
                    self.cluster_history.history(*place),
                    position,
                    copies,
                )
        self.compare(not made, "{}: outputs without committed input: {}", group, list(made)[:3])


TRANSACTION_CHECKERS: Final[tuple[type[ClusterChecker], ...]] = (
    CommittedIsShown,
    AbortedIsLeftOut,
    AllOrNothing,
    SumIsTheSame,
    TransactionsEnd,
    ZombiesAreRefused,
    EpochsAreGivenOnce,
    PositionsAreCommitted,
    ExactlyOnce,
)
