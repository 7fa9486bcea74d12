"""Mutants of transactions: a test of the same rule finds each, and so does the simulator."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

import trio

from metaquorum.dataplane.coordinators.group.committed_offsets import CommittedOffsets
from metaquorum.dataplane.coordinators.transaction import (
    marker_sender,
    open_places,
    transaction_shard,
)
from metaquorum.dataplane.coordinators.transaction.marker_sender import MarkerSender
from metaquorum.dataplane.coordinators.transaction.transaction import PREPARED, Transaction
from metaquorum.dataplane.coordinators.transaction.transaction_shard import TransactionShard
from metaquorum.dataplane.handlers.transactions import markers
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments import producers, snapshots
from metaquorum.dataplane.log.segments.aborted import OpenTransactions
from metaquorum.dataplane.log.segments.producers import NO_OFFSET, ProducerStateTable
from metaquorum.dataplane.log.segments.segment import Segment
from metaquorum.dataplane.log.segments.verification import Verifications
from metaquorum.dataplane.worker.context import Worker
from metaquorum.dataplane.worker.transaction_states import TransactionStates
from metaquorum.simulations.kernel.mutation import Mutant, all_of, swapped
from metaquorum.simulations.mutants.group_mutants import budgets_without_shares
from metaquorum.wire.primitives.errors import ErrorCode

# Logs


def _open_transaction_passed() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def first_unstable_offset(self: Any, high_watermark: int) -> int | None:
            unreplicated = [first for last, first in self._unreplicated if last >= high_watermark]
            return min(unreplicated, default=None)

        return first_unstable_offset

    return swapped(OpenTransactions, "first_unstable_offset", wrong)


def _marker_not_awaited() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        return lambda self, high_watermark: self._first

    return swapped(OpenTransactions, "first_unstable_offset", wrong)


def _aborted_not_indexed() -> AbstractContextManager[None]:
    return swapped(Segment, "note_aborted", lambda _: lambda self, aborted: None)


def _snapshot_without_open_offset() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _entry(fields: tuple[int, ...]) -> Any:
            return right((*fields[:-1], NO_OFFSET))

        return _entry

    return swapped(snapshots, "_entry", wrong)


def _older_epoch_appended() -> AbstractContextManager[None]:
    """Accept batches with an older producer epoch, and do not ask the coordinator about them."""

    def wrong(right: Any) -> Any:
        def _check_next(header: Any, epoch: int, *rest: Any) -> None:
            if header.producer_epoch >= epoch:
                right(header, epoch, *rest)

        return _check_next

    return all_of(
        swapped(producers, "_check_next", wrong),
        swapped(Verifications, "check", lambda _: lambda self, *values: None),
        swapped(Worker, "verifies_transactions", lambda _: property(lambda self: False)),
    )


def _late_marker_appended() -> AbstractContextManager[None]:
    return swapped(ProducerStateTable, "check_marker", lambda _: lambda self, marker: None)


def _aborted_range_cut_short() -> AbstractContextManager[None]:
    """Leave out the aborted transactions that began before the records of a response."""

    def wrong(right: Any) -> Any:
        def aborted_in(self: Any, piece: Any, *rest: int) -> tuple[list[Any], int]:
            found, end = right(self, piece, *rest)
            return [each for each in found if each[0] >= piece.first_offset], end

        return aborted_in

    return swapped(PartitionLog, "aborted_in", wrong)


# Produce, and markers of administrators


def _last_transaction_joined() -> AbstractContextManager[None]:
    """Join an open transaction by id and epoch alone, also with an epoch per transaction."""

    def wrong(_: Any) -> Any:
        def is_verified(self: Any, producer_id: int, epoch: int, **_: Any) -> bool:
            return bool(self.in_transaction(producer_id, epoch))

        return is_verified

    return swapped(ProducerStateTable, "is_verified", wrong)


def _transaction_not_verified() -> AbstractContextManager[None]:
    """Begin transactions in a log, and pending offsets, without asking the coordinator."""
    return all_of(
        swapped(Verifications, "check", lambda _: lambda self, *values: None),
        swapped(Worker, "verifies_transactions", lambda _: property(lambda self: False)),
    )


def _administrators_raise_epochs() -> AbstractContextManager[None]:
    return swapped(markers, "_check_epochs", lambda _: lambda partition, marker: None)


def _ongoing_ended_by_administrators() -> AbstractContextManager[None]:
    """Take no transaction for one that its coordinator knows."""

    def wrong(_: Any) -> Any:
        async def open_producers(self: Any, producer_ids: Any) -> set[int]:
            await trio.lowlevel.checkpoint()
            return set()

        return open_producers

    return swapped(TransactionStates, "open_producers", wrong)


# Coordinators


def _marker_before_decision() -> AbstractContextManager[None]:
    """Send the markers once the decision is appended, not once it is committed."""

    def wrong(_: Any) -> Any:
        def appended(self: Any, records: Any) -> None:
            for record in records:
                after = record.decoded_key.after
                if after is not None and after.state in PREPARED:
                    self._on_prepared(self, record.decoded_key.transactional_id, after)

        return appended

    return swapped(TransactionShard, "appended", wrong)


def _complete_before_markers() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def send(self: Any, shard: Any, transactional_id: str, prepared: Any) -> None:
            right(self, shard, transactional_id, prepared)
            self._complete(shard, transactional_id)

        return send

    return swapped(MarkerSender, "send", wrong)


def _commit_marker_for_abort() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _marker(*values: Any) -> Any:
            marker = right(*values)
            marker.transaction_result = True
            return marker

        return _marker

    return swapped(marker_sender, "_marker", wrong)


def _epoch_not_bumped() -> AbstractContextManager[None]:
    """Give a new instance the epoch of the last one."""

    def wrong(right: Any) -> Any:
        def initialized(self: Any, *values: Any) -> Any:
            after = right(self, *values)
            return replace(after, producer_epoch=max(self.producer_epoch, 0))

        return initialized

    return swapped(Transaction, "initialized", wrong)


def _zombies_accepted() -> AbstractContextManager[None]:
    """Let coordinators accept older epochs of a producer id."""

    def wrong(right: Any) -> Any:
        def _check_producer(known: Any, producer: Any) -> ErrorCode:
            if known is not None and producer.producer_epoch < known.producer_epoch:
                producer = producer._replace(producer_epoch=known.producer_epoch)
            code: ErrorCode = right(known, producer)
            return code

        return _check_producer

    return swapped(transaction_shard, "_check_producer", wrong)


def _timeouts_ignored() -> AbstractContextManager[None]:
    return swapped(Transaction, "has_timed_out", lambda _: lambda self, now_ms: False)


def _added_partitions_extend_the_time() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def with_partitions(self: Any, added: Any, now_ms: int, *values: Any) -> Any:
            return replace(right(self, added, now_ms, *values), started_ms=now_ms)

        return with_partitions

    return swapped(Transaction, "with_partitions", wrong)


def _prepared_not_resumed() -> AbstractContextManager[None]:
    """Send no markers for the transactions that the last coordinator had prepared."""

    def wrong(_: Any) -> Any:
        def loaded(self: Any, now: float, now_ms: int) -> None:
            self._is_loaded = True

        return loaded

    return swapped(TransactionShard, "loaded", wrong)


def _loss_forgotten() -> AbstractContextManager[None]:
    """Give the next epochs of producer ids after a loss of the end of the coordinator's log."""

    def wrong(right: Any) -> Any:
        def replay(self: Any, record: Any, now: float) -> Any:
            return right(self, record._replace(is_doubtful=False), now)

        return replay

    return swapped(TransactionShard, "replay", wrong)


def _verifications_not_found() -> AbstractContextManager[None]:
    """Find only open transactions after a loss, and no verifications."""

    def wrong(right: Any) -> Any:
        def _producers(partition: Any) -> Any:
            transactions = partition.log.producers.transactions
            return (
                () if transactions is None else {*right(partition)} & {*transactions.open.values()}
            )

        return _producers

    return swapped(open_places, "_producers", wrong)


def _last_partitions_only() -> AbstractContextManager[None]:
    """Forget the earlier partitions of a transaction when others are added."""

    def wrong(right: Any) -> Any:
        def with_partitions(self: Any, *values: Any) -> Any:
            return right(replace(self, partitions=frozenset()), *values)

        return with_partitions

    return swapped(Transaction, "with_partitions", wrong)


def _verified_without_look() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def verify_partitions(self: Any, transactional_id: str, producer: Any, places: Any) -> Any:
            return dict.fromkeys(places, ErrorCode.NONE)

        return verify_partitions

    return swapped(TransactionShard, "verify_partitions", wrong)


def _removed_counted() -> AbstractContextManager[None]:
    """Count ids in the budget also after they are removed or belong to another worker."""

    def wrong(_: Any) -> Any:
        def _uncount(self: Any, transactional_id: str) -> None:
            self._clients.pop(transactional_id, None)

        return _uncount

    return swapped(TransactionShard, "_uncount", wrong)


# Groups


def _offsets_outside_of_transactions() -> AbstractContextManager[None]:
    """Commit the offsets of a transaction at once."""

    def wrong(_: Any) -> Any:
        def replay_transactional(self: Any, key: Any, value: Any, producer_id: int) -> None:
            self.replay(key, value)

        return replay_transactional

    return swapped(CommittedOffsets, "replay_transactional", wrong)


def _aborted_offsets_committed() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        return lambda self, producer_id, *, is_commit: right(self, producer_id, is_commit=True)

    return swapped(CommittedOffsets, "replay_marker", wrong)


def _unstable_offsets_returned() -> AbstractContextManager[None]:
    return swapped(CommittedOffsets, "is_unstable", lambda _: lambda self, *place: False)


TRANSACTION_MUTANTS: Final = tuple(
    Mutant(name, about, "transactions", found_as, apply)
    for name, about, found_as, apply in (
        (
            "open-transaction-passed",
            "the last stable offset passes a transaction that is open",
            ("T2", "T4"),
            _open_transaction_passed,
        ),
        (
            "marker-not-awaited",
            "the last stable offset passes a transaction whose marker is not replicated",
            ("T2", "T4"),
            _marker_not_awaited,
        ),
        (
            "aborted-not-indexed",
            "an aborted transaction is missing from the index of its segment",
            ("T2", "T3", "T6"),
            _aborted_not_indexed,
        ),
        (
            "aborted-range-cut-short",
            "a response leaves out the aborted transactions that began before its records",
            ("T2", "T3", "T6"),
            _aborted_range_cut_short,
        ),
        (
            "snapshot-without-open-offset",
            "a producer snapshot does not keep the first offset of the open transaction",
            ("T2", "T3", "T4", "T5"),
            _snapshot_without_open_offset,
        ),
        (
            "older-epoch-appended",
            "a leader appends the records of an older producer epoch",
            ("T5",),
            _older_epoch_appended,
        ),
        (
            "late-marker-appended",
            "a leader appends markers of older producer epochs and of older coordinators",
            ("T5",),
            _late_marker_appended,
        ),
        (
            "last-transaction-joined",
            "the first batch after a change to an epoch per transaction joins the last transaction",
            ("T2", "T3", "T5", "T6"),
            _last_transaction_joined,
        ),
        (
            "transaction-not-verified",
            "a leader begins transactions that their coordinator does not know",
            ("T4", "T5"),
            _transaction_not_verified,
        ),
        (
            "administrators-raise-epochs",
            "a marker of an administrator raises the epochs of a producer in the log",
            ("T4", "T5", "liveness"),
            _administrators_raise_epochs,
        ),
        (
            "ongoing-ended-by-administrators",
            "the marker of an administrator ends a transaction that its coordinator knows",
            ("T2", "T3"),
            _ongoing_ended_by_administrators,
        ),
        (
            "marker-before-decision",
            "markers are sent when the decision is appended, not when it is committed",
            ("T3",),
            _marker_before_decision,
        ),
        (
            "complete-before-markers",
            "the end of a transaction is recorded before all of its markers are written",
            ("T3",),
            _complete_before_markers,
        ),
        (
            "commit-marker-for-abort",
            "an abort is written to the partitions as a commit",
            ("T2", "T3"),
            _commit_marker_for_abort,
        ),
        (
            "epoch-not-bumped",
            "a new instance of a producer gets the epoch of the one before",
            ("T5",),
            _epoch_not_bumped,
        ),
        (
            "zombies-accepted",
            "a coordinator accepts requests of an older producer epoch",
            ("T5",),
            _zombies_accepted,
        ),
        (
            "transaction-timeouts-ignored",
            "a transaction whose client has vanished is never aborted",
            ("T4",),
            _timeouts_ignored,
        ),
        (
            "added-partitions-extend-the-time",
            "each partition that is added to a transaction restarts its timeout",
            ("T4",),
            _added_partitions_extend_the_time,
        ),
        (
            "prepared-not-resumed",
            "a new coordinator sends no markers for what the last one had decided",
            ("T4", "liveness"),
            _prepared_not_resumed,
        ),
        (
            "lost-epochs-given-again",
            "a coordinator gives the epochs again that a loss has taken from its log",
            ("R6", "T5"),
            _loss_forgotten,
        ),
        (
            "verified-begins-after-loss",
            "a transaction begins that was verified before a loss, and nothing ends it",
            ("T4",),
            _verifications_not_found,
        ),
        (
            "last-partitions-only",
            "a transaction forgets its earlier partitions when others are added",
            ("T3", "T4", "T5"),
            _last_partitions_only,
        ),
        (
            "verified-without-look",
            "a coordinator confirms partitions that are not part of the transaction",
            ("T5",),
            _verified_without_look,
        ),
        (
            "offsets-outside-of-transactions",
            "offsets of a transaction are committed before it ends",
            ("T6",),
            _offsets_outside_of_transactions,
        ),
        (
            "aborted-offsets-committed",
            "offsets of an aborted transaction are committed",
            ("T6",),
            _aborted_offsets_committed,
        ),
        (
            "unstable-offsets-returned",
            "a committed offset is returned that an open transaction may still change",
            ("T6",),
            _unstable_offsets_returned,
        ),
        (
            "ids-without-shares",
            "one client may use the whole budget of transactional ids",
            ("B1",),
            budgets_without_shares,
        ),
        (
            "removed-ids-counted",
            "ids of a partition that has moved to another worker count in the budget",
            ("B2",),
            _removed_counted,
        ),
    )
)
