"""Report of a load as one page of HTML, with a bar for each range.

The page is self-contained: its content security policy allows no request. All names from the
cluster are escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Final

from metaquorum.runtime.one_line import one_line
from metaquorum.spark.gaps import DATA_LOSS, GapReason
from metaquorum.spark.loader.load_report import LoadReport, RangeRow, time_text

MAX_SHOWN_GAPS: Final = 100  # for each range; the JSON form has more

# Readable on white and on black, and distinguishable with red-green color blindness.
_COLORS: Final[Mapping[GapReason, str]] = {
    GapReason.COMPACTED: "#9aa5b1",
    GapReason.CONTROL: "#8e7cc3",
    GapReason.ABORTED: "#56b4e9",
    GapReason.DELETED: "#e69f00",
    GapReason.TRUNCATED: "#d55e00",
    GapReason.REPLACED: "#cc79a7",
    GapReason.CORRUPT: "#b00020",
    GapReason.UNEXPLAINED: "#f0e442",
}
_RECORDS_COLOR: Final = "#009e73"

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --line: #d8d8d8; --soft: #666; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181b; --line: #3a3f45; --soft: #a0a6ad; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
.soft, th { color: var(--soft); font-weight: normal; }
dl { display: flex; flex-wrap: wrap; gap: .4rem 2rem; margin: 1rem 0; }
dt { color: var(--soft); font-size: .85rem; } dd { margin: 0; font-size: 1.1rem; }
section { border-top: 1px solid var(--line); padding: .7rem 0; }
h2 { font-size: 1rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
.bar { display: flex; height: 1rem; border-radius: 3px; overflow: hidden;
  background: var(--line); }
.bar i { min-width: 2px; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px;
  margin-right: .4rem; }
table { border-collapse: collapse; margin-top: .4rem; font-variant-numeric: tabular-nums; }
td, th { text-align: left; padding: .1rem 1rem .1rem 0; vertical-align: top; }
td { overflow-wrap: anywhere; }
.loss { font-weight: bold; }
"""


def html_report(report: LoadReport) -> str:
    return "".join(_page(report))


def _page(report: LoadReport) -> Iterator[str]:
    title = "Nothing to load" if report.version is None else f"Load {report.version}"
    yield "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
    yield '<meta name=viewport content="width=device-width">\n'
    yield (
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    )
    yield f"<title>{title}: {escape(report.output)}</title>\n<style>{_STYLE}</style>\n</head>\n"
    yield f"<body>\n<h1>{title} of {escape(report.output)}</h1>\n"
    yield from _totals(report)
    if report.rows:
        yield from _legend(report)
    for row in report.rows:
        yield from _range(row)
    yield "</body>\n</html>\n"


def _totals(report: LoadReport) -> Iterator[str]:
    if report.began_ms is not None and report.committed_ms is not None:
        yield (
            f"<p class=soft>Planned {escape(time_text(report.began_ms))}, committed "
            f"{escape(time_text(report.committed_ms))}, client id {escape(report.client_id)}</p>\n"
        )
    pairs = [
        ("ranges", f"{len(report.rows):,}"),
        ("records", f"{report.records:,}"),
        ("bytes of keys and values", f"{report.bytes:,}"),
        ("bytes of files", f"{report.file_bytes:,}"),
        ("offsets without a record", f"{sum(report.missing.values()):,}"),
        ("rejected records", f"{report.rejected:,}"),
        ("throttled", f"{report.throttled_ms / 1000:,.1f} s"),
    ]
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs)
    yield f"<dl>{cells}</dl>\n"


def escape(text: str) -> str:
    """Escape the text for HTML; characters that hide or reverse others are shown as escapes."""
    return html.escape(one_line(text))


def _legend(report: LoadReport) -> Iterator[str]:
    yield f'<ul class=legend><li><i style="background:{_RECORDS_COLOR}"></i>records</li>'
    for reason in GapReason:
        if count := report.missing.get(reason):
            kind = " class=loss" if reason in DATA_LOSS else ""
            yield (
                f'<li{kind}><i style="background:{_COLORS[reason]}"></i>'
                f"{escape(reason.value)}: {count:,} offsets</li>"
            )
    yield "</ul>\n"


def _range(row: RangeRow) -> Iterator[str]:
    committed, report = row.committed, row.result.report
    where = f"{committed.topic}-{committed.partition}"
    yield f"<section>\n<h2>{escape(where)}, offsets {committed.start:,} to {committed.end - 1:,}"
    yield "</h2>\n"
    yield from _bar(row)
    yield "<table>\n"
    for name, value in _facts(row):
        yield f"<tr><th>{name}</th><td>{escape(value)}</td></tr>\n"
    yield "</table>\n"
    if report.gap_count:
        yield from _gaps(row)
    yield "</section>\n"


def _bar(row: RangeRow) -> Iterator[str]:
    report = row.result.report
    parts = [("records", _RECORDS_COLOR, report.records)]
    for reason in GapReason:
        # REPLACED offsets have records, the replacing ones, and count among those already.
        if reason is not GapReason.REPLACED and (count := report.missing.get(reason)):
            parts.append((reason.value, _COLORS[reason], count))
    label = ", ".join(f"{count:,} {name}" for name, _, count in parts)
    yield f'<div class=bar role=img aria-label="{escape(label)}">'
    for name, color, count in parts:
        if count:
            share = 100 * count / max(1, row.offsets)
            title = escape(f"{name}: {count:,} of {row.offsets:,} offsets")
            yield f'<i style="width:{share:.3f}%;background:{color}" title="{title}"></i>'
    yield "</div>\n"


def _facts(row: RangeRow) -> list[tuple[str, str]]:
    committed, report = row.committed, row.result.report
    facts = [("records", f"{report.records:,}, {report.bytes:,} bytes of keys and values")]
    if report.first_offset is not None and report.last_offset is not None:
        facts.append(("offsets", f"{report.first_offset:,} to {report.last_offset:,}"))
    if report.min_timestamp_ms is not None and report.max_timestamp_ms is not None:
        first, last = time_text(report.min_timestamp_ms), time_text(report.max_timestamp_ms)
        facts.append(("timestamps", f"{first} to {last}"))
    for kind, file in (("file", committed.file), ("rejected records", committed.rejected)):
        if file is not None:
            facts.append((kind, f"{file.path}: {file.rows:,} rows, {file.bytes:,} bytes"))
    throttled = f", throttled {report.throttled_ms / 1000:.1f} s" if report.throttled_ms else ""
    facts.append(
        ("work", f"{report.fetches:,} fetches, {row.result.elapsed_ms / 1000:.1f} s{throttled}")
    )
    return facts


def _gaps(row: RangeRow) -> Iterator[str]:
    report = row.result.report
    total = sum(report.missing.values())
    is_loss = any(reason in DATA_LOSS for reason in report.missing)
    kind = " open" if is_loss else ""
    gaps = "gap" if report.gap_count == 1 else "gaps"
    yield f"<details{kind}><summary>{report.gap_count:,} {gaps}, {total:,} offsets</summary>\n"
    yield "<table>\n<tr><th>offsets</th><th>reason</th><th></th></tr>\n"
    for gap in report.gaps[:MAX_SHOWN_GAPS]:
        loss = " class=loss" if gap.reason in DATA_LOSS else ""
        yield (
            f"<tr{loss}><td>{gap.start:,} to {gap.end - 1:,}</td>"
            f"<td>{escape(gap.reason.value)}</td><td>{escape(gap.detail)}</td></tr>\n"
        )
    yield "</table>\n"
    if report.gap_count > MAX_SHOWN_GAPS:
        left = report.gap_count - MAX_SHOWN_GAPS
        yield f"<p class=soft>and {left:,} more (mq-load report --format json)</p>\n"
    yield "</details>\n"
