"""Shrinking: which few faults a violation needs, found by leaving out others.

Each fault draws from a stream of its own, so that leaving one out does not change the others. Their
consequences may change; a world in which another checker fails first does not count. Halves are
left out first, then smaller and smaller parts, until no single fault can be left out. Source:
Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002 (ddmin).
"""

from dataclasses import dataclass, field
from typing import Final

from metaquorum.simulations.kernel.trace import Event
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.runner.runs import run_seed

MAX_RUNS: Final = 200


@dataclass(slots=True)
class Shrunk:
    violated: str
    faults: dict[int, str]
    needed: list[int]
    runs: int
    world: World = field(repr=False)

    @property
    def left_out(self) -> list[int]:
        return [number for number in self.faults if number not in self.needed]

    def events(self, last: int) -> list[Event]:
        """Return the faults, and the last `last` events before the violation."""
        events = self.world.trace.events
        at = next((n for n, event in enumerate(events) if event.who == "VIOLATION"), len(events))
        early = [event for event in events[: max(at - last, 0)] if event.who == "trouble"]
        return early + events[max(at - last, 0) : at + 1]


class _Shrinker:
    def __init__(self, scenario: str, seed: int, mutant: str | None) -> None:
        self._scenario = scenario
        self._seed = seed
        self._mutant = mutant
        self.runs = 0
        self.world, self.violated = self._run(set())
        self.faults = dict(self.world.faults)

    def _run(self, left_out: set[int]) -> tuple[World, str]:
        self.runs += 1
        outcome, world = run_seed(
            self._scenario, self._seed, mutant=self._mutant, leave_out=left_out
        )
        name, text = outcome.violations[0] if outcome.violations else ("", "")
        return world, f"{name}: {text}"

    def fails_with(self, needed: list[int]) -> bool:
        """Return whether the same checker fails first with these faults alone."""
        if self.runs >= MAX_RUNS:
            return False
        world, violated = self._run(set(self.faults) - set(needed))
        if violated.split(":")[0] != self.violated.split(":")[0]:
            return False
        self.world, self.violated = world, violated
        return True


def shrink_seed(scenario: str, seed: int, *, mutant: str | None = None) -> Shrunk | None:
    """Return the faults that the seed's violation needs; None if it violates no invariant."""
    shrinker = _Shrinker(scenario, seed, mutant)
    if not shrinker.world.violations:
        return None
    needed, parts = list(shrinker.faults), 1
    while needed and parts <= len(needed):
        size = -(-len(needed) // parts)
        for start in range(0, len(needed), size):
            rest = needed[:start] + needed[start + size :]
            if shrinker.fails_with(rest):
                needed, parts = rest, max(parts - 1, 1)
                break
        else:
            parts = parts * 2 if parts < len(needed) else len(needed) + 1
            parts = min(parts, len(needed)) if size > 1 else len(needed) + 1
    return Shrunk(shrinker.violated, shrinker.faults, needed, shrinker.runs, shrinker.world)
