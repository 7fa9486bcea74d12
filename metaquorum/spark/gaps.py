"""Gaps: offsets of a range without a record, and the reason.

    COMPACTED   a newer record has the same key, or delete.retention.ms of a tombstone has passed
    CONTROL     the marker that ends a transaction
    ABORTED     the record's transaction was aborted (read_committed only)
    DELETED     below the log start offset: by retention, or by DeleteRecords
    TRUNCATED   the log was truncated since the plan was made, and ends before the range
    REPLACED    truncated as above, but other records have these offsets now; they were read
    CORRUPT     a batch that cannot be decoded
    UNEXPLAINED missing inside the log of a topic that is not compacted

The last five are data loss: an error, unless `failOnDataLoss` is false.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from metaquorum.wire.primitives.frozen import frozen

# Gaps of one range that the report lists; later gaps only count in the sums.
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
    """A gap of offsets `start` to `end` - 1; `detail`: e.g. the entry of the truncation ledger."""

    start: int
    end: int
    reason: GapReason
    detail: str = ""

    @property
    def offsets(self) -> int:
        return self.end - self.start


@frozen
class RangeReport:
    """Report of one range that was read. Offsets and timestamps are None if it has no record.

    `bytes` counts keys and values, `missing` the offsets of all gaps by reason; `gaps` lists the
    first MAX_LISTED_GAPS gaps in order, `gap_count` counts all of them. Throttle time is in
    milliseconds.
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
