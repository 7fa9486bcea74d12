"""mq-admin records."""

import time

import click

from metaquorum.cli.admin.common.session import (
    INT32_MAX,
    INT64_MAX,
    Session,
    session_command,
    topic_argument,
    yes_option,
)
from metaquorum.cli.common.output import Column, Row
from metaquorum.cli.common.times import time_value
from metaquorum.client.administration.admin import HIGH_WATERMARK
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.socket_transport import wait
from metaquorum.runtime.whole_numbers import whole_number

_COLUMNS = (Column("topic"), Column("partition"), Column("start_offset"))


@click.group("records", short_help="Delete records from the start of partitions.")
def command() -> None:
    """Delete records from the start of partitions."""


@command.command("delete")
@topic_argument()
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0, INT32_MAX),
    multiple=True,
    help="[default: all]",
)
@click.option("--before", metavar="OFFSET|end", help="First offset to keep.")
@click.option(
    "--before-time", callback=time_value, metavar="TIME", help="Keep records from this time on."
)
@yes_option
@session_command
def delete(
    session: Session,
    topic: str,
    partitions: tuple[int, ...],
    before: str | None,
    before_time: int | None,
    yes: bool,
) -> None:
    """Delete the records of a topic before an offset or a time.

    TIME is 2026-01-31, 2026-01-31T10:30, 2026-01-31T10:30Z, milliseconds since 1970, or a time ago:
    90s, 15m, 2h, 7d.

    \b
    Examples:
      mq-admin records delete orders --before end
      mq-admin records delete orders --partition 3 --before 15000
      mq-admin records delete orders --before-time 7d --yes
    """
    if (before is None) == (before_time is None):
        raise click.UsageError("specify one of --before and --before-time")
    offset = None if before is None else _offset(before)
    found = wait(session.cluster.topic(topic))
    indexes = partitions or sorted(p.partition_index for p in found.partitions)
    places = [TopicPartition(topic, index) for index in indexes]
    if offset is None:
        assert before_time is not None
        offsets = _offsets_at(session, places, before_time)
    else:
        offsets = dict.fromkeys(places, offset)
    session.ask(f"Delete records of {topic} before {_limit(before, before_time)}?", yes)
    rows: list[Row] = []
    for where, outcome in session.admin.delete_records(offsets).items():
        start = session.keep(outcome)
        if start is not None:
            rows.append({"topic": topic, "partition": where.partition, "start_offset": start})
    session.show_rows(rows, _COLUMNS)


def _offset(text: str) -> int:
    if text == "end":
        return HIGH_WATERMARK
    if (offset := whole_number(text, INT64_MAX)) is None:
        raise click.UsageError(f"--before takes an offset or `end`, not {text!r}")
    return offset


def _offsets_at(
    session: Session, places: list[TopicPartition], time_ms: int
) -> dict[TopicPartition, int]:
    """Return the first offset from that time on; the high watermark if there is none."""
    offsets = {}
    for where, outcome in session.admin.list_offsets(dict.fromkeys(places, time_ms)).items():
        answer = session.keep(outcome)
        if answer is not None:
            offsets[where] = HIGH_WATERMARK if answer.offset < 0 else answer.offset
    return offsets


def _limit(before: str | None, before_time: int | None) -> str:
    if before is not None:
        return "the end" if before == "end" else f"offset {before}"
    assert before_time is not None
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(before_time / 1000))
