"""Mutants without one check of a log: of compaction, deletion, recovery and producers."""

from contextlib import AbstractContextManager
from typing import Any, Final

from metaquorum.dataplane.handlers import produce
from metaquorum.dataplane.handlers.produce_outcome import Outcome
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.recovery import recovery
from metaquorum.dataplane.log.segments import producers
from metaquorum.dataplane.log.segments.config import NEVER
from metaquorum.dataplane.maintenance import log_cleaner
from metaquorum.dataplane.partition.rejected_batches import RejectedBatches
from metaquorum.simulations.kernel.mutation import Mutant, swapped


def _unstable_cleaned() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def cleanable(segments: Any, cleaned_to: int, stable_end: int, *rest: Any) -> Any:
            return right(segments, cleaned_to, NEVER, *rest)

        return cleanable

    return swapped(log_cleaner, "cleanable", wrong)


def _removals_not_synced() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def retire_all(self: Any) -> None:
            while self._has_old_segment():
                right(self)

        return retire_all

    return swapped(PartitionLog, "_retire_first", wrong)


class _EndsAtErrors:
    """File that seems to end at the first position that the disk cannot read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._end = file.size()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def size(self) -> int:
        return int(self._end)

    def read(self, size: int, position: int) -> bytes:
        try:
            return bytes(self._file.read(size, position))
        except OSError:
            self._end = min(self._end, position)
            raise


def _unreadable_is_the_end() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def scan_segment(file: Any, *rest: Any, **named: Any) -> Any:
            short = _EndsAtErrors(file)
            try:
                return right(short, *rest, **named)
            except OSError:
                return right(short, *rest, **named)

        return scan_segment

    return swapped(recovery, "scan_segment", wrong)


def _sequence_not_checked() -> AbstractContextManager[None]:
    return swapped(producers, "_check_next", lambda _: lambda *_: None)


def _refused_not_remembered() -> AbstractContextManager[None]:
    return swapped(RejectedBatches, "check", lambda _: lambda *_: None)


class _TellsLate(Outcome):
    """Reports failures when the request is answered, not when they happen."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._late: list[Any] = []

    def fail(self, *failure: Any) -> None:
        self._late.append(failure)

    def answer(self) -> bytes:
        for failure in self._late:
            super().fail(*failure)
        return super().answer()


def _failed_directory_appended_to() -> AbstractContextManager[None]:
    return swapped(produce, "Outcome", lambda _: _TellsLate)


class _Whatever:
    """Equal to every number."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


def _fast_path_not_flushed() -> AbstractContextManager[None]:
    return swapped(produce, "NEVER", lambda _: _Whatever())


LOG_MUTANTS: Final = tuple(
    Mutant(name, about, scenario, found_as, apply)
    for name, about, scenario, found_as, apply in (
        (
            "unstable-cleaned",
            "compaction removes records before the newer records of their keys are flushed",
            "compaction",
            ("L2", "R6"),
            _unstable_cleaned,
        ),
        (
            "removals-not-synced",
            "retention renames several segments without a sync between",
            "administration",
            ("R6", "L1", "L5"),
            _removals_not_synced,
        ),
        (
            "unreadable-is-the-end",
            "recovery treats a failed read as the end of the segment",
            "failing-disk",
            ("R6", "L1", "L2", "L5", "liveness"),
            _unreadable_is_the_end,
        ),
        (
            "sequence-not-checked",
            "a known producer's batches are appended in any order of their sequences",
            "disk-full",
            ("T1",),
            _sequence_not_checked,
        ),
        (
            "refused-not-remembered",
            "the second batch of a producer is appended although the first was refused",
            "disk-full",
            ("T1",),
            _refused_not_remembered,
        ),
        (
            "failed-directory-appended-to",
            "the fast path of Produce appends in a log directory that failed within the request",
            "log-dirs",
            ("L7",),
            _failed_directory_appended_to,
        ),
        (
            "fast-path-not-flushed",
            "the fast path of Produce accepts topics that flush before the response",
            "syncs",
            ("R6",),
            _fast_path_not_flushed,
        ),
    )
)
