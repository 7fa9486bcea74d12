"""Faults that a seed draws before a world of several machines begins.

Swarm testing: a seed draws which kinds of faults occur at all, and not only how many of each. A
world with all kinds explores less than many worlds with a few kinds each: a machine that loses its
power every second never writes a snapshot. Source: Groce et al., Swarm Testing, 2012.

Every fault has a number, and draws from the random stream of that number: when the shrinker removes
a fault, the others do not change.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

# Probability that a packet arrives in pieces. Each piece is an event, so most worlds have few.
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
    """Draw at most `most` faults of some of the kinds, which begin within `over_s` seconds."""
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
