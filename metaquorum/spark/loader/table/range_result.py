"""Result of one range: its files and its report, as JSON.

A task writes the result after the data, so the files of a result are complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from metaquorum.spark.gaps import Gap, GapReason, RangeReport
from metaquorum.spark.loader.table.json_fields import (
    check_format,
    check_names,
    decode,
    encode,
    mapping,
    sequence,
    text,
    whole,
    whole_or_none,
)
from metaquorum.spark.loader.table.layout import staged_index
from metaquorum.spark.offset_ranges import OffsetRange
from metaquorum.wire.primitives.frozen import frozen

KIND: Final = "range result"
FORMAT: Final = 1
MAX_RESULT_BYTES: Final = 16 << 20
_LEAST_TIMESTAMP: Final = -(2**63)
_FIELDS: Final = (
    *("kind", "format", "index", "topic", "partition", "start", "end", "file", "rejected"),
    *("report", "elapsed_ms"),
)
_REPORT_FIELDS: Final = (
    *("records", "bytes", "first_offset", "last_offset", "min_timestamp_ms", "max_timestamp_ms"),
    *("missing", "gaps", "gap_count", "fetches", "fetched_bytes", "throttled_ms"),
)


@frozen
class StagedFile:
    """A staged file; `path` is valid until the load is published, `crc32c` is of all its bytes."""

    path: str
    bytes: int
    rows: int
    crc32c: int

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "bytes": self.bytes,
            "rows": self.rows,
            "crc32c": f"{self.crc32c:08x}",
        }


@frozen
class RangeResult:
    """Result of one range. `file` None: no record. `elapsed_ms`: of the successful attempt."""

    index: int  # index of the range in its plan
    topic: str
    partition: int
    start: int
    end: int
    file: StagedFile | None
    rejected: StagedFile | None
    report: RangeReport
    elapsed_ms: int

    def is_of(self, range_: OffsetRange) -> bool:
        mine = self.topic, self.partition, self.start, self.end
        return mine == (range_.topic, range_.partition, range_.start, range_.end)

    def to_bytes(self) -> bytes:
        return encode(
            {
                "kind": KIND,
                "format": FORMAT,
                "index": self.index,
                "topic": self.topic,
                "partition": self.partition,
                "start": self.start,
                "end": self.end,
                "file": None if self.file is None else self.file.to_json(),
                "rejected": None if self.rejected is None else self.rejected.to_json(),
                "report": report_to_json(self.report),
                "elapsed_ms": self.elapsed_ms,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> RangeResult:
        """Return the result of a file's content. Raises ValueError if it is invalid."""
        found = decode(data)
        check_format(found, KIND, FORMAT)
        check_names(found, "it", *_FIELDS)
        result = cls(
            index=whole(found, "index"),
            topic=text(found, "topic"),
            partition=whole(found, "partition"),
            start=whole(found, "start"),
            end=whole(found, "end"),
            file=_staged_file(found.get("file")),
            rejected=_staged_file(found.get("rejected")),
            report=report_from_json(mapping(found.get("report"), "report")),
            elapsed_ms=whole(found, "elapsed_ms"),
        )
        report = result.report
        range_ = OffsetRange(result.topic, result.partition, result.start, result.end)
        check_counts(range_, report.records, report.first_offset, report.last_offset)
        check_missing(range_, report.missing)
        check_rows(report.records, (result.file, result.rejected))
        for file in (result.file, result.rejected):
            if file is not None and staged_index(file.path) != result.index:
                raise ValueError(f"{file.path[:300]!r} is not a staged file of the range")
        return result


class Counted(Protocol):
    """A file with a known number of rows."""

    @property
    def rows(self) -> int: ...


def check_counts(range_: OffsetRange, records: int, first: int | None, last: int | None) -> None:
    """Raise ValueError unless the range can have the records, from offset `first` to `last`."""
    if records > range_.offsets:
        raise ValueError(f"{range_.name} has {records} records, more than its offsets")
    if not records and (first, last) == (None, None):
        return
    if first is None or last is None or not range_.start <= first <= last < range_.end:
        raise ValueError(f"{range_.name} has records from offset {first} to {last}")
    if not 0 < records <= last - first + 1:
        raise ValueError(f"{range_.name} has {records} records from offset {first} to {last}")


def check_missing(range_: OffsetRange, missing: Mapping[GapReason, int]) -> None:
    """Raise ValueError if more offsets are without a record than the range has."""
    if sum(missing.values()) > range_.offsets:
        raise ValueError(f"{range_.name} misses more records than it has offsets")


def check_rows(records: int, files: Iterable[Counted | None]) -> None:
    """Raise ValueError unless the files have as many rows as there are records."""
    rows = [file.rows for file in files if file is not None]
    if 0 in rows or sum(rows) != records:
        raise ValueError(f"there are {records} records, but its files have {sum(rows)} rows")


def _staged_file(data: Any) -> StagedFile | None:
    if data is None:
        return None
    found = mapping(data, "file")
    check_names(found, "a file", "path", "bytes", "rows", "crc32c")
    return StagedFile(
        text(found, "path"), whole(found, "bytes"), whole(found, "rows"), checksum(found)
    )


def checksum(data: Mapping[str, Any]) -> int:
    digits = text(data, "crc32c")
    if len(digits) != 8 or any(digit not in "0123456789abcdef" for digit in digits):
        raise ValueError("crc32c is not eight hexadecimal digits")
    return int(digits, 16)


def report_to_json(report: RangeReport) -> dict[str, Any]:
    return {
        "records": report.records,
        "bytes": report.bytes,
        "first_offset": report.first_offset,
        "last_offset": report.last_offset,
        "min_timestamp_ms": report.min_timestamp_ms,
        "max_timestamp_ms": report.max_timestamp_ms,
        "missing": {reason.name.lower(): count for reason, count in report.missing.items()},
        "gaps": [gap_to_json(gap) for gap in report.gaps],
        "gap_count": report.gap_count,
        "fetches": report.fetches,
        "fetched_bytes": report.fetched_bytes,
        "throttled_ms": report.throttled_ms,
    }


def gap_to_json(gap: Gap) -> dict[str, Any]:
    found = {"start": gap.start, "end": gap.end, "reason": gap.reason.name.lower()}
    return found | ({"detail": gap.detail} if gap.detail else {})


def report_from_json(data: Mapping[str, Any]) -> RangeReport:
    check_names(data, "report", *_REPORT_FIELDS)
    missing = mapping(data.get("missing"), "missing")
    return RangeReport(
        records=whole(data, "records"),
        bytes=whole(data, "bytes"),
        first_offset=whole_or_none(data, "first_offset"),
        last_offset=whole_or_none(data, "last_offset"),
        min_timestamp_ms=whole_or_none(data, "min_timestamp_ms", least=_LEAST_TIMESTAMP),
        max_timestamp_ms=whole_or_none(data, "max_timestamp_ms", least=_LEAST_TIMESTAMP),
        missing={reason(name): whole(missing, name) for name in missing},
        gaps=tuple(_gap(mapping(gap, "a gap")) for gap in sequence(data, "gaps")),
        gap_count=whole(data, "gap_count"),
        fetches=whole(data, "fetches"),
        fetched_bytes=whole(data, "fetched_bytes"),
        throttled_ms=whole(data, "throttled_ms"),
    )


def _gap(data: Mapping[str, Any]) -> Gap:
    optional = ("detail",) if "detail" in data else ()
    check_names(data, "a gap", "start", "end", "reason", *optional)
    return Gap(
        whole(data, "start"),
        whole(data, "end"),
        reason(text(data, "reason")),
        text(data, "detail") if "detail" in data else "",
    )


def reason(name: str) -> GapReason:
    found = GapReason.__members__.get(name.upper())
    if found is None:
        raise ValueError(f"{name!r} is not a reason of a gap")
    return found
