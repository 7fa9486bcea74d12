"""Checker of moves between the log directories of a node."""

from collections.abc import Sequence

from metaquorum.simulations.harness.environment import Checker
from metaquorum.simulations.harness.history import Topic


class MovesEnd(Checker):
    """A move between log directories ends after the faults; a cancelled one leaves nothing."""

    invariant = "R11"

    def cancelled(self, topic: Topic, index: int, futures: Sequence[str]) -> None:
        """Compare the directories with a future replica, right after the move was cancelled."""
        self.compare(
            not futures,
            "{}-{}: a cancelled move left a future replica in {}",
            topic,
            index,
            futures,
        )

    def inspected(self, left: Sequence[str], seconds: float) -> None:
        self.compare(not left, "moves do not end within {} s after the faults: {}", seconds, left)
