"""Offsets of a range for which there is no record, and why.

    COMPACTED   a newer record has the same key; or a tombstone's time was over
    CONTROL     the marker that ends a transaction
    ABORTED     the record's transaction was aborted (read_committed only)
    DELETED     before the log's start: by retention, or by DeleteRecords
    TRUNCATED   the log ends before the range does, or was cut since the plan was made
    REPLACED    cut as above, but other records have these offsets now; they were read
    CORRUPT     a batch that cannot be decoded
    UNEXPLAINED missing inside the log of a topic that is not compacted

The last five lose data: an error, unless the reader was told to go on (`failOnDataLoss`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from wire.primitives.frozen import frozen

# Gaps of a range that are listed one by one; of those behind them only the sums are known.
MAX_LISTED_GAPS: Final = 1000


class GapReason(Enum):
    COMPACTED = "compacted"
    CONTROL = "control record"
    ABORTED = "aborted"
    DELETED = "deleted"
    TRUNCATED = "truncated"
    REPLACED = "replaced"
    CORRUPT = "corrupt"
    UNEXPLAINED = "unexplained"


DATA_LOSS: Final = frozenset(
    (
        GapReason.DELETED,
        GapReason.TRUNCATED,
        GapReason.REPLACED,
        GapReason.CORRUPT,
        GapReason.UNEXPLAINED,
    )
)


@frozen
class Gap:
    """Offsets `start` to `end` - 1. `detail` says more, as of the truncation ledger's entry."""

    start: int
    end: int
    reason: GapReason
    detail: str = ""

    @property
    def offsets(self) -> int:
        return self.end - self.start


@frozen
class RangeReport:
    """What was read of one range. Offsets and timestamps are None where there is no record.

    `bytes` counts keys and values; `missing` the offsets of all gaps by reason, and `gaps` lists
    the first MAX_LISTED_GAPS of them in order.
    """

    records: int
    bytes: int
    first_offset: int | None
    last_offset: int | None
    min_timestamp_ms: int | None
    max_timestamp_ms: int | None
    missing: Mapping[GapReason, int]
    gaps: Sequence[Gap]
    gap_count: int
    fetches: int
    fetched_bytes: int
    throttled_ms: int
