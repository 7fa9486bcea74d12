"""Counts of partition changes caused by one decision, for one log line.

A decision may change thousands of partitions, too many for a line each.
"""

import logging
from typing import Final

from metaquorum.metadata.image import NO_LEADER, PartitionImage

logger = logging.getLogger(__name__)

MOST_NAMED: Final = 5  # partitions in one line


class PartitionChangeSummary:
    """Partition changes of one decision. Complete once all its records are generated."""

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
        self.lost_leaders = 0  # partitions that have no leader now
        self.regained_leaders = 0  # partitions that had no leader before
        self.unclean = 0  # leaders that may miss committed records
        self.isr_shrinks = 0  # partitions
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
        """Return, for example, `5 leaders changed; 1 partition has no leader; 6 ISRs shrank`."""
        counts = (
            (self.changed_leaders, "leader changed", "leaders changed"),
            (self.lost_leaders, "partition has no leader", "partitions have no leader"),
            (
                self.regained_leaders,
                "partition has a leader again",
                "partitions have leaders again",
            ),
            (self.isr_shrinks, "ISR shrank", "ISRs shrank"),
        )
        words = [f"{count} {one if count == 1 else more}" for count, one, more in counts if count]
        return "; ".join(words) or "no partition changes"

    def unclean_text(self) -> str:
        """Return a warning that names partitions which may have lost acknowledged records."""
        names = ", ".join(self.unclean_names)
        more = ", ..." if self.unclean > len(self.unclean_names) else ""
        return (
            f"the leaders of {self.unclean} partitions may miss acknowledged records, after an "
            f"unclean election or a loss of data: {names}{more}"
        )


def log_summary(event: str, summary: PartitionChangeSummary, *, quietly: bool = False) -> None:
    """Log `event` and `summary` in one line, and possible losses of records as a warning.

    With `quietly`, an event that changed no partition is not logged.
    """
    if not summary.is_empty:
        logger.info("%s: %s", event, summary)
    elif not quietly:
        logger.info("%s", event)
    if summary.unclean:
        logger.warning("%s", summary.unclean_text())
