"""Data of a load's report, by range: the source of its text, JSON and HTML forms."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

from metaquorum.spark.gaps import GapReason
from metaquorum.spark.loader.table.manifest import CommittedRange, Manifest
from metaquorum.spark.loader.table.range_result import RangeResult, gap_to_json
from metaquorum.wire.primitives.frozen import frozen

KIND: Final = "load report"
FORMAT: Final = 1
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@frozen
class RangeRow:
    """A committed range with the result of its task."""

    committed: CommittedRange
    result: RangeResult

    @property
    def offsets(self) -> int:
        return self.committed.end - self.committed.start

    @property
    def rejected(self) -> int:
        return 0 if self.committed.rejected is None else self.committed.rejected.rows

    def to_json(self) -> dict[str, Any]:
        committed, report = self.committed, self.result.report
        return {
            "topic": committed.topic,
            "partition": committed.partition,
            "start": committed.start,
            "end": committed.end,
            "records": report.records,
            "bytes": report.bytes,
            "first_offset": report.first_offset,
            "last_offset": report.last_offset,
            "min_timestamp_ms": report.min_timestamp_ms,
            "max_timestamp_ms": report.max_timestamp_ms,
            "missing": {reason.name.lower(): n for reason, n in report.missing.items()},
            "gap_count": report.gap_count,
            "gaps": [gap_to_json(gap) for gap in report.gaps],
            "rejected": self.rejected,
            "file": None if committed.file is None else committed.file.to_json(),
            "rejected_file": None if committed.rejected is None else committed.rejected.to_json(),
            "fetches": report.fetches,
            "fetched_bytes": report.fetched_bytes,
            "throttled_ms": report.throttled_ms,
            "elapsed_ms": self.result.elapsed_ms,
        }


@frozen
class LoadReport:
    """Report of one committed load. `version` None: there was nothing to load."""

    output: str
    version: int | None
    client_id: str
    resumed: bool
    began_ms: int | None
    committed_ms: int | None
    rows: Sequence[RangeRow]

    @classmethod
    def of(
        cls,
        output: str,
        manifest: Manifest | None,
        results: Sequence[RangeResult],
        *,
        client_id: str,
        resumed: bool = False,
    ) -> LoadReport:
        if manifest is None:
            return cls(output, None, client_id, resumed, None, None, ())
        rows = tuple(
            RangeRow(committed, result)
            for committed, result in zip(manifest.ranges, results, strict=True)
        )
        return cls(
            output,
            manifest.version,
            client_id,
            resumed,
            manifest.began_ms,
            manifest.committed_ms,
            rows,
        )

    @property
    def records(self) -> int:
        return sum(row.result.report.records for row in self.rows)

    @property
    def bytes(self) -> int:
        return sum(row.result.report.bytes for row in self.rows)

    @property
    def file_bytes(self) -> int:
        return sum(file.bytes for row in self.rows for file in row.committed.files)

    @property
    def offsets(self) -> int:
        return sum(row.offsets for row in self.rows)

    @property
    def rejected(self) -> int:
        return sum(row.rejected for row in self.rows)

    @property
    def throttled_ms(self) -> int:
        return sum(row.result.report.throttled_ms for row in self.rows)

    @property
    def task_ms(self) -> int:
        """Sum over all tasks, which run in parallel, in milliseconds."""
        return sum(row.result.elapsed_ms for row in self.rows)

    @property
    def missing(self) -> dict[GapReason, int]:
        found: dict[GapReason, int] = {}
        for row in self.rows:
            for reason, count in row.result.report.missing.items():
                found[reason] = found.get(reason, 0) + count
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "format": FORMAT,
            "output": self.output,
            "load": self.version,
            "client_id": self.client_id,
            "resumed": self.resumed,
            "began": None if self.began_ms is None else time_text(self.began_ms),
            "committed": None if self.committed_ms is None else time_text(self.committed_ms),
            "totals": {
                "ranges": len(self.rows),
                "offsets": self.offsets,
                "records": self.records,
                "bytes": self.bytes,
                "file_bytes": self.file_bytes,
                "rejected": self.rejected,
                "missing": {reason.name.lower(): n for reason, n in self.missing.items()},
                "throttled_ms": self.throttled_ms,
                "task_ms": self.task_ms,
            },
            "ranges": [row.to_json() for row in self.rows],
        }


def time_text(time_ms: int) -> str:
    """Return the UTC time with milliseconds; the number itself if it is out of range."""
    try:
        moment = _EPOCH + datetime.timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
