"""Mutants of transactions: a test of the same rule finds each, and so does the simulator."""

from contextlib import AbstractContextManager
from typing import Any, Final

import trio

from dataplane.log.partition_log import PartitionLog
from dataplane.log.segments import producers, snapshots
from dataplane.log.segments.aborted import OpenTransactions
from dataplane.log.segments.producers import NO_OFFSET, ProducerStateTable
from dataplane.log.segments.segment import Segment
from dataplane.log.segments.verification import Verifications
from dataplane.worker.transaction_states import TransactionStates
from simulations.kernel.mutation import Mutant, swapped

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


def _aborted_range_cut_short() -> AbstractContextManager[None]:
    """Return only the aborted transactions whose markers are before the end of the range."""

    def wrong(right: Any) -> Any:
        def aborted_in(self: Any, *values: Any) -> Any:
            found, end = right(self, *values)
            return [each for each in found if each.last_offset < end], end

        return aborted_in

    return swapped(PartitionLog, "aborted_in", wrong)


def _snapshot_without_open_offset() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _entry(fields: tuple[int, ...]) -> Any:
            return right((*fields[:-1], NO_OFFSET))

        return _entry

    return swapped(snapshots, "_entry", wrong)


def _older_epoch_appended() -> AbstractContextManager[None]:
    """Accept batches with an older producer epoch."""

    def wrong(right: Any) -> Any:
        def _check_next(header: Any, epoch: int, *rest: Any) -> None:
            if header.producer_epoch >= epoch:
                right(header, epoch, *rest)

        return _check_next

    return swapped(producers, "_check_next", wrong)


def _late_marker_appended() -> AbstractContextManager[None]:
    return swapped(ProducerStateTable, "check_marker", lambda _: lambda self, marker: None)


# Produce, and markers of administrators


def _not_verified() -> AbstractContextManager[None]:
    return swapped(Verifications, "check", lambda _: lambda self, *values: None)


def _ongoing_ended_by_administrators() -> AbstractContextManager[None]:
    """Take no transaction for one that its coordinator knows."""

    def wrong(_: Any) -> Any:
        async def open_producers(self: Any, producer_ids: Any) -> set[int]:
            await trio.lowlevel.checkpoint()
            return set()

        return open_producers

    return swapped(TransactionStates, "open_producers", wrong)


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
            "a transaction whose abort marker is beyond the fetched range is not in the response",
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
            "transaction-not-verified",
            "a leader appends the first batch of a transaction without a valid verification",
            ("T4", "T5"),
            _not_verified,
        ),
        (
            "ongoing-ended-by-administrators",
            "the marker of an administrator ends a transaction that its coordinator knows",
            ("T2", "T3"),
            _ongoing_ended_by_administrators,
        ),
    )
)
