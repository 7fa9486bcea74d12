"""What must always hold, one small class each, named by its invariant.

A checker counts what it compared. One that never had anything to compare in a whole batch of seeds
fails that batch: it proves nothing.
"""

from typing import TYPE_CHECKING, ClassVar

from simulations.harness.history import Attempt, Fetched

if TYPE_CHECKING:
    from simulations.harness.environment import Room
    from simulations.kernel.world import World


class Comparing:
    invariant: ClassVar[str]

    def __init__(self, world: "World") -> None:
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


class Checker(Comparing):
    """What is told of a room with one node."""

    def __init__(self, room: "Room") -> None:
        super().__init__(room.world)
        self.room = room

    # What happens, in the order of the world.

    def acked(self, attempts: list[Attempt]) -> None:
        """These records, one batch, were acknowledged."""

    def fetched(self, fetched: Fetched) -> None:
        """A client read this."""

    def finished(self) -> None:
        """All is over, and `history.finals` is what is left."""
