"""What must always hold, one small class each, named by its invariant.

A checker counts what it compared. One that never had anything to compare in a whole batch of seeds
fails that batch: it proves nothing.
"""

from typing import TYPE_CHECKING, ClassVar

from simulations.history import Attempt, Fetched

if TYPE_CHECKING:
    from simulations.room import Room


class Checker:
    invariant: ClassVar[str]

    def __init__(self, room: "Room") -> None:
        self.room = room
        self.comparisons = 0

    @property
    def name(self) -> str:
        return f"{self.invariant} {type(self).__name__}"

    def compare(self, holds: bool, text: str, *values: object) -> bool:
        """`text` is formatted with `values` when it does not hold."""
        self.comparisons += 1
        if not holds:
            self.room.world.violate(self.name, text.format(*values))
        return holds

    # What happens, in the order of the world.

    def acked(self, attempts: list[Attempt]) -> None:
        """These records, one batch, were acknowledged."""

    def fetched(self, fetched: Fetched) -> None:
        """A client read this."""

    def finished(self) -> None:
        """All is over, and `history.finals` is what is left."""
