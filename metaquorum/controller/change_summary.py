"""What becomes of partitions when workers come and go, counted for one line of the log.

A decision may change thousands of partitions; nobody reads as many lines.
"""

import logging
from typing import Final

from metaquorum.metadata.image import NO_LEADER, PartitionImage

logger = logging.getLogger(__name__)

MOST_NAMED: Final = 5  # partitions in one line


class PartitionChangeSummary:
    """What one decision does. Complete once all of its records were made."""

    __slots__ = (
        "changed_leaders",
        "isr_shrinks",
        "joined",
        "lost_leaders",
        "regained_leaders",
        "unclean",
        "unclean_names",
    )

    def __init__(self) -> None:
        self.changed_leaders = 0
        self.lost_leaders = 0  # led by nobody now
        self.regained_leaders = 0  # by nobody before
        self.unclean = 0  # led by a replica that may lack what was committed
        self.isr_shrinks = 0  # ISRs that are smaller
        self.unclean_names: list[str] = []

    def note(self, topic: str, number: int, before: PartitionImage, after: PartitionImage) -> None:
        if after.leader != before.leader:
            if after.leader == NO_LEADER:
                self.lost_leaders += 1
            elif before.leader == NO_LEADER:
                self.regained_leaders += 1
            else:
                self.changed_leaders += 1
            if after.leader != NO_LEADER and after.unclean_epoch == after.leader_epoch:
                self.unclean += 1
                if len(self.unclean_names) < MOST_NAMED:
                    self.unclean_names.append(f"{topic}-{number} by {after.leader}")
        self.isr_shrinks += len(after.isr) < len(before.isr)

    @property
    def is_empty(self) -> bool:
        return not (
            self.changed_leaders or self.lost_leaders or self.regained_leaders or self.isr_shrinks
        )

    def __str__(self) -> str:
        """As `5 partitions are led by others; 1 partition is led by nobody; 6 ISRs are smaller`."""
        counts = (
            (self.changed_leaders, "partition is led by another", "partitions are led by others"),
            (self.lost_leaders, "partition is led by nobody", "partitions are led by nobody"),
            (self.regained_leaders, "partition is led again", "partitions are led again"),
            (self.isr_shrinks, "ISR is smaller", "ISRs are smaller"),
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


def log_summary(event: str, summary: PartitionChangeSummary, *, quietly: bool = False) -> None:
    """One line for all partitions; `quietly`: none where nothing has become of them."""
    if not summary.is_empty:
        logger.info("%s: %s", event, summary)
    elif not quietly:
        logger.info("%s", event)
    if summary.unclean:
        logger.warning("%s", summary.unclean_text())
