"""Output of plans and reports, as text, JSON or HTML."""

import os
from collections.abc import Mapping
from typing import Any, Final

import click

from metaquorum.cli.common.output import (
    Column,
    Row,
    printable,
    show_data,
    show_pairs,
    show_table,
    size_text,
)
from metaquorum.cli.common.times import iso_text
from metaquorum.spark.gaps import DATA_LOSS, GapReason
from metaquorum.spark.loader.errors import OutputError
from metaquorum.spark.loader.html_report import html_report
from metaquorum.spark.loader.load_job import LoadJob, NextLoad
from metaquorum.spark.loader.load_report import LoadReport, RangeRow

MAX_SHOWN_GAPS: Final = 20
# Assumed rate of one process with records of 100 bytes, until the table's last load has a measured
# rate.
ASSUMED_BYTES_PER_S: Final = 50e6

_PLAN_COLUMNS: Final = (
    Column("partition"),
    Column("start"),
    Column("end"),
    Column("offsets"),
    Column("bytes", text=size_text),
)
_REPORT_COLUMNS: Final = (
    Column("partition"),
    Column("start"),
    Column("end"),
    Column("records"),
    Column("bytes"),
    Column("first_offset"),
    Column("last_offset"),
    Column("first_time", text=iso_text),
    Column("last_time", text=iso_text),
    Column("gaps"),
)


def show_plan(job: LoadJob, found: NextLoad, parallel: int | None, form: str) -> None:
    ranges = () if found.plan is None else found.plan.ranges
    rows: list[Row] = [
        {
            "partition": f"{each.topic}-{each.partition}",
            "start": each.start,
            "end": each.end,
            "offsets": each.end - each.start,
            "bytes": each.bytes_estimate,
        }
        for each in ranges
    ]
    known = all(each.bytes_estimate >= 0 for each in ranges)
    size = sum(each.bytes_estimate for each in ranges) if known else None
    workers = min(parallel or os.cpu_count() or 1, max(1, len(ranges)))
    rate = found.bytes_per_s or ASSUMED_BYTES_PER_S
    seconds = None if size is None else size / rate / workers
    if form == "json":
        show_data(
            "json",
            {
                "output": job.output,
                "unfinished_load": None if found.unfinished is None else found.unfinished.version,
                "finished_ranges": found.done,
                "ranges": rows,
                "offsets": sum(row["offsets"] for row in rows),
                "bytes": size,
                "estimated_seconds": None if seconds is None else round(seconds, 1),
                "bytes_per_second": round(rate),
                "parallel": workers,
            },
        )
        return
    if not rows:
        click.echo(f"Nothing to load: all records up to {printable(job.ending)} are in the table.")
        return
    if found.unfinished is not None:
        click.echo(
            f"Load {found.unfinished.version} is unfinished: {found.done} of {len(rows)} ranges "
            "are done; a load finishes the others first."
        )
    show_table(rows, _PLAN_COLUMNS)
    show_pairs(
        [
            ("ranges", len(rows)),
            ("offsets", f"{sum(row['offsets'] for row in rows):,}"),
            ("in the log", "unknown" if size is None else size_text(size)),
            ("estimated time", _time_words(seconds, rate, workers, found.bytes_per_s is not None)),
        ]
    )


def _time_words(seconds: float | None, rate: float, workers: int, measured: bool) -> str:
    if seconds is None:
        return "unknown: the cluster does not report the sizes of its logs"
    source = "as in the last load" if measured else "an assumption"
    return f"{seconds:.0f} s, by {workers} tasks at {rate / 1e6:.0f} MB/s each ({source})"


def show_report(report: LoadReport) -> None:
    show_table([_row(row) for row in report.rows], _REPORT_COLUMNS)
    click.echo()
    resumed = ", started by an earlier run" if report.resumed else ""
    pairs: list[tuple[str, Any]] = [
        ("table", report.output),
        ("load", f"{report.version}{resumed}"),
        ("ranges", len(report.rows)),
        ("records", f"{report.records:,}"),
        ("keys and values", size_text(report.bytes)),
        ("files", size_text(report.file_bytes)),
        ("without a record", missing_text(report.missing)),
        ("client id", report.client_id),
    ]
    if report.rejected:
        pairs.append(("rejected", f"{report.rejected:,} (in _rejected)"))
    if report.throttled_ms:
        pairs.append(("throttled", f"{report.throttled_ms / 1000:.1f} s, by a quota"))
    show_pairs(pairs)
    _show_gaps(report)


def _row(row: RangeRow) -> Row:
    committed, report = row.committed, row.result.report
    return {
        "partition": f"{committed.topic}-{committed.partition}",
        "start": committed.start,
        "end": committed.end,
        "records": report.records,
        "bytes": report.bytes,
        "first_offset": report.first_offset,
        "last_offset": report.last_offset,
        "first_time": report.min_timestamp_ms,
        "last_time": report.max_timestamp_ms,
        "gaps": missing_text(report.missing),
    }


def missing_text(missing: Mapping[GapReason, int]) -> str:
    return ", ".join(f"{count:,} {reason.value}" for reason, count in missing.items()) or "none"


def _show_gaps(report: LoadReport) -> None:
    """Print the gaps, those with data loss first."""
    listed = [(row, gap) for row in report.rows for gap in row.result.report.gaps]
    listed.sort(key=lambda each: each[1].reason not in DATA_LOSS)
    total = sum(row.result.report.gap_count for row in report.rows)
    if not total:
        return
    click.echo(f"\n{total:,} gaps:")
    for row, gap in listed[:MAX_SHOWN_GAPS]:
        where = f"{row.committed.topic}-{row.committed.partition}"
        detail = f": {gap.detail}" if gap.detail else ""
        click.echo(printable(f"  {where} {gap.start} to {gap.end - 1}: {gap.reason.value}{detail}"))
    if total > MAX_SHOWN_GAPS:
        click.echo(f"  and {total - MAX_SHOWN_GAPS:,} more: --format json, or --html")


def write_html(report: LoadReport, path: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(html_report(report))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None
