"""Mutants of draining workers: rules of the controller, one removed at a time."""

from contextlib import AbstractContextManager
from typing import Any, Final

from metaquorum.quorum.controller import topics
from metaquorum.quorum.controller.leaders import leader_selection
from metaquorum.quorum.controller.leaders.leader_selection import nobody
from metaquorum.simulations.kernel.mutation import Mutant, swapped


def _replicas_on_draining() -> AbstractContextManager[None]:
    return swapped(topics, "draining_workers", lambda _: lambda image: [])


def _draining_elected() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _first_able(partition: Any, candidates: Any, is_live: Any, _: Any) -> Any:
            return right(partition, candidates, is_live, nobody)

        return _first_able

    return swapped(leader_selection, "_first_able", wrong)


DRAINING_MUTANTS: Final = tuple(
    Mutant(name, about, "moving-partitions", ("R14",), apply)
    for name, about, apply in (
        (
            "replicas-on-draining",
            "new partitions are placed on draining workers, too",
            _replicas_on_draining,
        ),
        (
            "draining-elected",
            "an election takes the first replica, also on a draining worker",
            _draining_elected,
        ),
    )
)
