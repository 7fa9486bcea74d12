"""What becomes of partitions when workers come and go, counted for one line of the log.

A decision may change thousands of partitions; nobody reads as many lines.
"""

import logging
from typing import Final

from metaquorum.metadata.image import NO_LEADER, PartitionImage

logger = logging.getLogger(__name__)

MOST_NAMED: Final = 5  # partitions in one line


class Effects:
    """What one decision does. Complete once all of its records were made."""

    __slots__ = (
        "joined",
        "led_again",
        "led_by_others",
        "left",
        "unclean",
        "unclean_names",
        "unled",
    )

    def __init__(self) -> None:
        self.led_by_others = 0
        self.unled = 0  # led by nobody now
        self.led_again = 0  # by nobody before
        self.unclean = 0  # led by a replica that may lack what was committed
        self.left = 0  # ISRs that are smaller
        self.unclean_names: list[str] = []

    def note(self, topic: str, number: int, before: PartitionImage, after: PartitionImage) -> None:
        if after.leader != before.leader:
            if after.leader == NO_LEADER:
                self.unled += 1
            elif before.leader == NO_LEADER:
                self.led_again += 1
            else:
                self.led_by_others += 1
            if after.leader != NO_LEADER and after.unclean_epoch == after.leader_epoch:
                self.unclean += 1
                if len(self.unclean_names) < MOST_NAMED:
                    self.unclean_names.append(f"{topic}-{number} by {after.leader}")
        self.left += len(after.isr) < len(before.isr)

    @property
    def is_none(self) -> bool:
        return not (self.led_by_others or self.unled or self.led_again or self.left)

    def __str__(self) -> str:
        """As `5 partitions are led by others; 1 partition is led by nobody; 6 ISRs are smaller`."""
        counts = (
            (self.led_by_others, "partition is led by another", "partitions are led by others"),
            (self.unled, "partition is led by nobody", "partitions are led by nobody"),
            (self.led_again, "partition is led again", "partitions are led again"),
            (self.left, "ISR is smaller", "ISRs are smaller"),
        )
        words = [f"{count} {one if count == 1 else more}" for count, one, more in counts if count]
        return "; ".join(words) or "no partition changes"

    def unclean_text(self) -> str:
        """Which partitions may have lost records that were acknowledged."""
        names = ", ".join(self.unclean_names)
        more = ", ..." if self.unclean > len(self.unclean_names) else ""
        return (
            f"{self.unclean} partitions are led by a replica that may lack records that were "
            f"acknowledged: {names}{more}"
        )


def tell(what: str, effects: Effects, *, quietly: bool = False) -> None:
    """One line for all partitions; `quietly`: none where nothing has become of them."""
    if not effects.is_none:
        logger.info("%s: %s", what, effects)
    elif not quietly:
        logger.info("%s", what)
    if effects.unclean:
        logger.warning("%s", effects.unclean_text())
