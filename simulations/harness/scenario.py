"""What a scenario is: a story that follows from a world's seed, and what must have come of many."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from simulations.kernel.comparing import Comparing
from simulations.kernel.world import World

# The world, and the numbers of the faults that are left out of it; `world.faults` names them all.
Play = Callable[[World, Collection[int]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    about: str
    play: Play
    checkers: Sequence[type[Comparing]]
    # Counters that must not stay zero over a run that is large enough
    # (`simulations.scenarios.gates`).
    gates: tuple[str, ...] = ()
