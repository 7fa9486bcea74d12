"""Base class of all checkers: an invariant and the number of comparisons made for it.

A checker that compared nothing in a whole batch of seeds proves nothing, so it fails that batch.
"""

from typing import ClassVar

from metaquorum.simulations.kernel.world import World


class Comparing:
    """Checker of one invariant; creating it adds it to the checkers of the world."""

    invariant: ClassVar[str]

    def __init__(self, world: World) -> None:
        self.world = world
        self.comparisons = 0
        world.checkers.append(self)

    @property
    def name(self) -> str:
        return f"{self.invariant} {type(self).__name__}"

    def compare(self, holds: bool, text: str, *values: object) -> bool:
        """Count a comparison; if `holds` is false, report `text`, formatted with `values`."""
        self.comparisons += 1
        if not holds:
            self.world.violate(self.name, text.format(*values))
        return holds
