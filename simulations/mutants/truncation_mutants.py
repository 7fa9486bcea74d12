"""Mutants of the truncation and deletion of logs, which a crash reveals."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import trio

from metaquorum.dataplane.log.dirs.offset_checkpoints import OffsetCheckpoints
from metaquorum.dataplane.log.local_log import LocalLog
from metaquorum.dataplane.replication import follower_state
from metaquorum.simulations.kernel.mutation import Mutant, all_of, swapped


def _recovery_point_above_cut() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        @contextmanager
        def holding(self: Any, kept: Any) -> Iterator[None]:
            yield

        return holding

    def unasserted(_: Any) -> Any:
        def _distrust_from(self: Any, offset: int) -> None:
            self.recovery_point = min(self.recovery_point, offset)

        return _distrust_from

    return all_of(
        swapped(OffsetCheckpoints, "holding", wrong),
        swapped(OffsetCheckpoints, "exceed", lambda _: lambda self, logs, kept: False),
        swapped(LocalLog, "_distrust_from", unasserted),
    )


def _deleted_topics_noted() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        async def write_deletions(self: Any, logs: Any) -> None:
            await trio.lowlevel.checkpoint()

        return write_deletions

    return swapped(OffsetCheckpoints, "write_deletions", wrong)


def _unmatched_log_kept() -> AbstractContextManager[None]:
    return swapped(follower_state, "ends_at_leaders_start", lambda _: lambda *_: False)


CUT_MUTANTS: Final = tuple(
    Mutant(name, about, "crossings", found_as, apply)
    for name, about, found_as, apply in (
        (
            "recovery-point-above-cut",
            "the recovery point on disk is not lowered before a follower truncates below it",
            ("L4",),
            _recovery_point_above_cut,
        ),
        (
            "deleted-topics-noted",
            "checkpoints name a deleted topic until the next topic of its name is written to",
            ("L4", "R9"),
            _deleted_topics_noted,
        ),
        (
            "unmatched-log-kept",
            "a follower whose log ends at its leader's log start keeps records it cannot compare",
            ("L3", "R7"),
            _unmatched_log_kept,
        ),
    )
)
