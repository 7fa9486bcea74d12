"""Run of one seed, with its outcome as plain data."""

import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from metaquorum.simulations.checkers.states import checked_states
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.mutants.registry import MUTANTS, mutated
from metaquorum.simulations.scenarios.registry import SCENARIOS


@dataclass(slots=True)
class Outcome:
    scenario: str
    seed: int
    digest: str
    violations: list[tuple[str, str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    comparisons: dict[str, int] = field(default_factory=dict)
    virtual_s: float = 0.0
    cpu_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Outcome":
        data["violations"] = [(name, text) for name, text in data["violations"]]
        return cls(**data)


def run_seed(
    scenario_name: str,
    seed: int,
    *,
    mutant: str | None = None,
    leave_out: Collection[int] = (),
    ends_with: Collection[str] = (),
) -> tuple[Outcome, World]:
    """Run one world to its end; return its outcome, and the world with its trace.

    The violation of an invariant in `ends_with` ends the world at once.

    The digest of the outcome depends on the arguments and the code only.
    """
    scenario = SCENARIOS[scenario_name]
    world = World(seed, ends_with=ends_with)
    began = time.process_time()
    with mutated(MUTANTS[mutant] if mutant else None), checked_states(world):
        world.run(lambda world: scenario.play(world, leave_out))
    outcome = Outcome(
        scenario_name,
        seed,
        world.trace.digest(),
        [(violation.invariant, violation.text) for violation in world.violations],
        world.counts,
        {checker.name: checker.comparisons for checker in world.checkers},
        round(world.now, 3),
        time.process_time() - began,
    )
    return outcome, world
