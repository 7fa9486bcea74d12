"""Mutants of moves between log directories: rules of the copy, the swap and the end."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from metaquorum.dataplane.log.dirs.log_dir import LogDir
from metaquorum.dataplane.log.local_log import NO_CUT
from metaquorum.dataplane.replication import log_dir_mover
from metaquorum.dataplane.replication.log_dir_mover import LogDirMover
from metaquorum.simulations.kernel.mutation import Mutant, all_of, swapped


def _swap_before_caught_up() -> AbstractContextManager[None]:
    @contextmanager
    def both() -> Iterator[None]:
        with (
            swapped(LogDirMover, "_copy_rest", lambda right: lambda self, move: True),
            swapped(LogDirMover, "_may_swap", lambda right: lambda self, move: True),
        ):
            yield

    return both()


def _producers_left_behind() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _swap_nowait(self: Any, move: Any) -> Any:
            name = right(self, move)
            move.future.producers.entries.clear()
            return name

        return _swap_nowait

    return swapped(LogDirMover, "_swap_nowait", wrong)


def _future_kept_after_cancel() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def end(self: Any, move: Any, reason: str) -> None:
            move.scope.cancel()
            self.moves.pop(move.at, None)

        return end

    return swapped(LogDirMover, "_end", wrong)


def _copy_continued_blindly() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def continues_at(log: Any, copy: Any) -> int | None:
            common: int | None = right(log, copy)
            return None if common is None else int(copy.log_end_offset)

        return continues_at

    return swapped(log_dir_mover, "continues_at", wrong)


def _copy_not_cut() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def _follow(self: Any, move: Any) -> bool:
            if move.started_for >= 0:
                move.log.least_cut = NO_CUT
            result: bool = await right(self, move)
            return result

        return _follow

    return swapped(LogDirMover, "_follow", wrong)


def _copy_starts_earlier() -> AbstractContextManager[None]:
    def caught_up(_: Any) -> Any:
        return lambda log, future: future.log_end_offset == log.log_end_offset

    return all_of(
        swapped(LogDirMover, "_raise_log_start", lambda _: lambda self, move: None),
        swapped(log_dir_mover, "_is_caught_up", caught_up),
    )


def _replaced_log_kept() -> AbstractContextManager[None]:
    return swapped(LogDir, "delete_replaced", lambda _: lambda self, log, name: None)


def _cancelled_move_swapped() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def check(self: Any, move: Any) -> None:
            if self.moves.get(move.at) is move:
                right(self, move)

        return check

    return swapped(LogDirMover, "_check", wrong)


LOG_DIR_MUTANTS: Final = tuple(
    Mutant(name, about, scenario, found_as, apply)
    for name, about, scenario, found_as, apply in (
        (
            "swap-before-caught-up",
            "a future replica replaces its log before it has all records",
            "moving-dirs",
            ("R11",),
            _swap_before_caught_up,
        ),
        (
            "producers-left-behind",
            "a log that moves to another directory loses the state of its producers",
            "moving-dirs",
            ("T1", "T2", "T3", "T4", "T5"),
            _producers_left_behind,
        ),
        (
            "future-kept-after-cancel",
            "a move that is cancelled leaves its future replica",
            "moved-dirs",
            ("R11",),
            _future_kept_after_cancel,
        ),
        (
            "copy-continued-blindly",
            "an interrupted copy continues at its end, also if the log has other records there",
            "moving-dirs",
            ("R11",),
            _copy_continued_blindly,
        ),
        (
            "copy-not-cut",
            "a truncation of a log that moves does not reach its copy",
            "moving-dirs",
            ("R11",),
            _copy_not_cut,
        ),
        (
            "copy-starts-earlier",
            "a copy does not take over the log start offset of its log",
            "moving-dirs",
            ("R11",),
            _copy_starts_earlier,
        ),
        (
            "replaced-log-kept",
            "the former log of a replica that has moved to another directory is not deleted",
            "moving-dirs",
            ("R11",),
            _replaced_log_kept,
        ),
    )
)

COPY_MUTANTS: Final = tuple(
    Mutant(name, about, scenario, found_as, apply)
    for name, about, scenario, found_as, apply in (
        (
            "cancelled-move-swapped",
            "a move that is cancelled while it waits for a sync continues, and swaps the logs",
            "moved-dirs",
            ("R11", "bug"),
            _cancelled_move_swapped,
        ),
    )
)
