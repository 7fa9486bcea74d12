"""Log lines for ISR changes of the partitions that this worker leads.

A worker that fails leaves thousands of ISRs at once: changes logged together make one line for each
replica, direction and reason, with the names of the first partitions.

    left      slow: not caught up for replica.lag.time.max.ms, with the largest lag; or the state in
              the metadata: fenced, shutting down, restarted, log lost, unregistered
    joined    caught up
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from metaquorum.dataplane.partition.leader_state import IsrChange
from metaquorum.metadata.image import MetadataImage, PartitionImage

log = logging.getLogger(__name__)

MOST_NAMED: Final = 5  # partitions in one line
MOST_LINES: Final = 20  # in one `log_changes`; the failure of one worker causes one or two


@dataclass(slots=True)
class _Row:
    count: int = 0
    names: list[str] = field(default_factory=list)
    behind_records: int = 0
    behind_s: float = 0.0


class IsrLog:
    """ISR changes to be logged: `note` adds those of a partition, `log_changes` logs them all."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str, str], _Row] = {}

    def note(
        self,
        name: str,
        before: tuple[int, ...],
        after: PartitionImage,
        own: IsrChange | None,
        image: MetadataImage,
    ) -> None:
        """Add the change of one ISR; `own` is this leader's proposal if it caused the change."""
        for replica_id in before:
            if replica_id in after.isr:
                continue
            lag = None if own is None else own.lags.get(replica_id)
            why = "slow" if lag is not None else _removal_reason(replica_id, after, image)
            row = self._note(name, replica_id, "left", why)
            if lag is not None:
                row.behind_records = max(row.behind_records, lag.records)
                row.behind_s = max(row.behind_s, lag.seconds)
        for replica_id in after.isr:
            if replica_id not in before:
                self._note(name, replica_id, "joined", "caught up")

    def _note(self, name: str, replica_id: int, what: str, why: str) -> _Row:
        row = self._rows.setdefault((replica_id, what, why), _Row())
        row.count += 1
        if len(row.names) < MOST_NAMED:
            row.names.append(name)
        return row

    def log_changes(self) -> None:
        rows, self._rows = self._rows, {}
        for number, ((replica_id, what, why), row) in enumerate(rows.items()):
            if number == MOST_LINES:
                log.info("%d more kinds of ISR changes are not logged", len(rows) - number)
                return
            if why == "slow":
                why = (
                    f"not caught up for {row.behind_s:.1f} s, {row.behind_records} records behind"
                    f"{' at most' if row.count > 1 else ''}"
                )
            isrs = "the ISR" if row.count == 1 else f"{row.count} ISRs"
            log.info(
                "replica %d %s %s (%s): %s%s",
                replica_id,
                what,
                isrs,
                why,
                ", ".join(row.names),
                ", ..." if row.count > len(row.names) else "",
            )


def _removal_reason(replica_id: int, state: PartitionImage, image: MetadataImage) -> str:
    worker = image.workers.get(replica_id)
    if replica_id in state.offline:
        return "its log directory failed"
    if replica_id in state.blank:
        return "its log is lost"
    if replica_id not in state.replicas:
        return "no longer a replica"
    if worker is None:
        return "its worker is unregistered"
    if worker.in_controlled_shutdown:
        return "its worker is shutting down"
    if worker.fenced:
        return "its worker is fenced"
    return "its worker is shutting down or has restarted"  # fenced after its removal
