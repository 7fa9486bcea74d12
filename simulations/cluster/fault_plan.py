"""What a seed draws before a world of several machines begins.

A swarm: not only how much of each trouble, but which kinds there are at all. A world with every
kind at once explores less than many worlds with a few each: a machine that loses its power every
second never gets as far as a snapshot. Source: Groce et al., Swarm Testing, 2012.

Every trouble has a number, and draws from a stream of that number: taken away one by one, as the
shrinker does, the others stay as they were.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

# How often what is sent arrives in pieces: every one is an event, so most worlds have few.
SPLITS: Final = (0.02, 0.02, 0.2)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    number: int
    kind: str
    at_s: float
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.number} {self.kind} at {self.at_s:.2f} for {self.lasts_s:.2f}"


def draw_faults(
    draw: Random, kinds: Sequence[str], *, over_s: float, most: int
) -> tuple[PlannedFault, ...]:
    """At most `most`, of some of the kinds, begun within `over_s`."""
    some = draw.sample(kinds, draw.randint(1, min(6, len(kinds))))
    longest = draw.choice([0.3, 1.0, 3.0])
    count = draw.choice([0, 2, most // 2, most])
    begins = sorted(draw.uniform(0.2, over_s) for _ in range(count))
    return tuple(
        PlannedFault(
            number, draw.choice(some), round(at_s, 3), round(draw.uniform(0.02, longest), 3)
        )
        for number, at_s in enumerate(begins)
    )


def without(faults: Sequence[PlannedFault], numbers: Collection[int]) -> tuple[PlannedFault, ...]:
    return tuple(fault for fault in faults if fault.number not in numbers)
