"""Retention by age and size: the log start offset by `retention.ms` and `retention.bytes`."""

from collections.abc import Iterable

from metaquorum.dataplane.log.local_log import SegmentSpan

UNLIMITED = -1


def retention_start(
    segments: Iterable[SegmentSpan],
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
) -> int:
    """Return the log start offset after deletion of the segments that retention no longer keeps.

    Whole segments are deleted, oldest first, none with records at or after the high watermark. By
    size, a segment is deleted only if at least `retention_bytes` remain; by age, if all its records
    are older than `retention_ms`. The first segment to keep ends the deletion. -1 means no limit.
    Source: Kafka's UnifiedLog.
    """
    spans = list(segments)
    surplus = sum(span.size_bytes for span in spans) - retention_bytes
    start = log_start_offset
    for span in spans:
        if not span.size_bytes or span.end_offset > high_watermark:
            break
        too_old = retention_ms != UNLIMITED and now_ms - span.newest_ms > retention_ms
        too_much = retention_bytes != UNLIMITED and surplus >= span.size_bytes
        if not too_old and not too_much:
            break
        surplus -= span.size_bytes
        start = max(start, span.end_offset)
    return start
