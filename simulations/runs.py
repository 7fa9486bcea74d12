"""One seed played, and what came of it as plain data."""

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from simulations.checkers.all import CHECKERS
from simulations.checkers.metadata import AppliedStays
from simulations.checkers.retention import RetentionIsDue
from simulations.defects import DEFECTS, planted
from simulations.observing import small_sizes, watched, watched_retirement
from simulations.room import Room
from simulations.scenarios import SCENARIOS
from simulations.story import play
from simulations.world import World


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


def run_seed(scenario_name: str, seed: int, *, defect: str | None = None) -> tuple[Outcome, World]:
    """One world from its beginning to its end. The same arguments give the same digest."""
    scenario = SCENARIOS[scenario_name]
    world = World(seed)
    rooms: list[Room] = []

    async def story(world: World) -> None:
        settings = scenario.settings(world.stream(f"settings {scenario.name}"))
        room = Room(world, settings, CHECKERS)
        rooms.append(room)
        with (
            watched(room.checker(AppliedStays).seen),
            watched_retirement(room.checker(RetentionIsDue).retired),
            small_sizes(world.stream("sizes")),
        ):
            await play(room)

    began = time.process_time()
    with planted(DEFECTS[defect] if defect else None):
        world.run(story)
    outcome = Outcome(
        scenario_name,
        seed,
        world.trace.digest(),
        [(violation.invariant, violation.text) for violation in world.violations],
        world.counts,
        {c.name: c.comparisons for room in rooms for c in room.checkers},
        round(world.now, 3),
        time.process_time() - began,
    )
    return outcome, world
