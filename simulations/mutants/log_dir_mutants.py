"""Mutants of moves between log directories: rules of the copy, the swap and the end."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from dataplane.replication.log_dir_mover import LogDirMover
from simulations.kernel.mutation import Mutant, swapped


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
    )
)
