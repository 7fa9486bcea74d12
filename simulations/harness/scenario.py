"""Type of scenarios: a run that follows from a world's seed, and gates for many seeds."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from metaquorum.simulations.kernel.comparing import Comparing
from metaquorum.simulations.kernel.world import World

# Arguments: the world, and the numbers of the faults to leave out; `world.faults` has all of them.
Play = Callable[[World, Collection[int]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    about: str
    play: Play
    checkers: Sequence[type[Comparing]]
    # Counters that must be above zero after a batch with enough seeds
    # (`metaquorum.simulations.scenarios.gates`).
    gates: tuple[str, ...] = ()
