"""What every checker is: an invariant, and how often it was compared with what happened.

A checker that never had anything to compare in a whole batch of seeds fails that batch: it proves
nothing.
"""

from typing import ClassVar

from simulations.kernel.world import World


class Comparing:
    invariant: ClassVar[str]

    def __init__(self, world: World) -> None:
        self.world = world
        self.comparisons = 0
        world.checkers.append(self)

    @property
    def name(self) -> str:
        return f"{self.invariant} {type(self).__name__}"

    def compare(self, holds: bool, text: str, *values: object) -> bool:
        """`text` is formatted with `values` when it does not hold."""
        self.comparisons += 1
        if not holds:
            self.world.violate(self.name, text.format(*values))
        return holds
