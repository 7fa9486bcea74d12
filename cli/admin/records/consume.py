"""mq-admin consume."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from metaquorum.cli.admin.common.session import (
    INT32_MAX,
    INT64_MAX,
    Session,
    client_id_option,
    session_command,
    topic_argument,
)
from metaquorum.cli.admin.records.text import TextError, formatter, to_json
from metaquorum.cli.common.output import json_line, yaml_text
from metaquorum.cli.common.times import time_value
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.consumer import ConsumedRecord, Consumer, Start
from metaquorum.client.socket_transport import BlockingConsumer, wait
from metaquorum.runtime.whole_numbers import whole_number

if TYPE_CHECKING:
    from metaquorum.client.groups.group_config import GroupConfig

DEFAULT_FORMAT: Final = r"{value}\n"


@click.command("consume", short_help="Print records on standard output.")
@topic_argument()
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0, INT32_MAX),
    multiple=True,
    help="[default: all]",
)
@click.option(
    "--from",
    "start",
    metavar="beginning|end|OFFSET|-N",
    help="Start position; -N is N records before the end.  [default: beginning]",
)
@click.option(
    "--from-time",
    callback=time_value,
    metavar="TIME",
    help="Start with the first record from this time on.",
)
@click.option("-n", "--limit", type=click.IntRange(1), help="Number of records.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new records at the end.")
@click.option("--format", "form", metavar="TEXT", help=r"[default: {value}\n]")
@click.option("-g", "--group", metavar="GROUP", help="Consume as a member of a consumer group.")
@click.option("--instance-id", metavar="ID", help="Static member of the group, by this id.")
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Without a committed offset of the group, start at the beginning.  [default: end]",
)
@click.option(
    "--read-committed", is_flag=True, help="Skip records of open and aborted transactions."
)
@client_id_option
@session_command
def command(
    session: Session,
    topic: str,
    client_id: str,
    partitions: tuple[int, ...],
    start: str | None,
    from_time: int | None,
    limit: int | None,
    follow: bool,
    form: str | None,
    group: str | None,
    instance_id: str | None,
    from_beginning: bool,
    read_committed: bool,
) -> None:
    """Print the records of a topic on standard output, up to the current end.

    Records are ordered within each partition. A format string may contain {topic}, {partition},
    {offset}, {timestamp} (milliseconds), {time} (UTC), {key}, {value}, {headers}, {key_size},
    {value_size}; after a name :hex, :base64 or :json; and \\n, \\t, \\0. Null is empty, or null
    with :json. -o json prints one object per line, -o yaml one list item per record.

    TIME is 2026-01-31, 2026-01-31T10:30, 2026-01-31T10:30Z, milliseconds since 1970, or a time ago:
    90s, 15m, 2h, 7d.

    With --group, the members of the group share the partitions, reading continues at the committed
    offsets, and the offsets of the printed records are committed. Ctrl-C commits, and leaves the
    group, except with --instance-id: the partitions then await the restart for 45 s.

    \b
    Examples:
      mq-admin consume orders
      mq-admin consume orders --from end --follow
      mq-admin consume orders --partition 3 --from 15000 --limit 10
      mq-admin consume orders --from-time 15m --format '{time} {key}: {value}\\n'
      mq-admin consume orders -o json | jq .value
      mq-admin consume orders --group billing --from-beginning --follow
    """
    _check_group(group, instance_id, partitions, start, from_time, from_beginning)
    if start is not None and from_time is not None:
        raise click.UsageError("--from and --from-time exclude each other")
    if form is not None and session.output != "text":
        raise click.UsageError("--format needs text output; omit --output or --format")
    session.client_id = client_id
    where_from = Start.at_time(from_time) if from_time is not None else _start(start)
    write = _writer(session.output, form)
    found = wait(session.cluster.topic(topic))
    if group is not None:
        reset = "earliest" if from_beginning else "latest"
        config = _group_config(group, instance_id, reset, read_committed)
        _consume_group(session, config, topic, write, limit=limit, follow=follow)
        return
    indexes = partitions or sorted(p.partition_index for p in found.partitions)
    consumer = BlockingConsumer(Consumer(session.cluster, read_committed=read_committed))
    consumer.assign({TopicPartition(topic, index): where_from for index in indexes})
    try:
        _copy(consumer, write, sys.stdout.buffer, limit=limit, follow=follow)
    except KeyboardInterrupt:
        if not follow:  # Ctrl-C is the normal end of --follow
            raise
    session.note_delays("Fetch")


def _check_group(
    group: str | None,
    instance_id: str | None,
    partitions: tuple[int, ...],
    start: str | None,
    from_time: int | None,
    from_beginning: bool,
) -> None:
    """Raise click.UsageError for options that do not go with, or without, a group."""
    if group is None:
        if instance_id is not None or from_beginning:
            raise click.UsageError("--instance-id and --from-beginning need --group")
        return
    if partitions:
        raise click.UsageError("--group and --partition exclude each other")
    if start is not None or from_time is not None:
        raise click.UsageError(
            "a group continues at its committed offsets: omit --from and --from-time, or move the "
            "offsets with `mq-admin groups reset`"
        )


def _group_config(
    group: str, instance_id: str | None, reset: str, read_committed: bool
) -> "GroupConfig":
    from metaquorum.client.groups.group_config import GroupConfig, OffsetReset

    try:
        return GroupConfig(
            group,
            instance_id,
            auto_offset_reset=OffsetReset(reset),
            auto_commit_interval_s=None,
            read_committed=read_committed,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _consume_group(
    session: Session,
    config: "GroupConfig",
    topic: str,
    write: Callable[[ConsumedRecord], bytes],
    *,
    limit: int | None,
    follow: bool,
) -> None:
    from metaquorum.cli.admin.records.group_output import GroupOutput, PrintedOffsets
    from metaquorum.client.groups.blocking import open_group_consumer

    printed = PrintedOffsets()
    with open_group_consumer(session.cluster, config, [topic], printed) as consumer:
        output = GroupOutput(consumer, printed, write, sys.stdout.buffer, session.note)
        output.copy(limit=limit, follow=follow)
    session.note_delays("Fetch")


def _start(text: str | None) -> Start:
    if text is None or text == "beginning":
        return Start.beginning()
    if text == "end":
        return Start.end()
    digits = text.removeprefix("-")
    if (number := whole_number(digits, INT64_MAX)) is None:
        raise click.UsageError(f"--from takes beginning, end, an offset or -N, not {text!r}")
    return Start.last(number) if text.startswith("-") else Start.at_offset(number)


def _writer(output: str, form: str | None) -> Callable[[ConsumedRecord], bytes]:
    if output == "json":
        return lambda record: json_line(to_json(record)).encode() + b"\n"
    if output == "yaml":
        return lambda record: yaml_text([to_json(record)]).encode("utf-8", "replace")
    try:
        return formatter(DEFAULT_FORMAT if form is None else form)
    except TextError as error:
        raise click.UsageError(f"--format: {error}") from None


def _copy(
    consumer: BlockingConsumer,
    write: Callable[[ConsumedRecord], bytes],
    stdout: BinaryIO,
    *,
    limit: int | None,
    follow: bool,
) -> None:
    """Write records until `limit`, or (unless `follow`) until the end offsets of the start."""
    ends = {} if follow else consumer.end_offsets()
    positions = consumer.client.positions
    written = 0
    while True:
        for where, end in ends.items():
            if where in positions and positions[where] >= end:
                consumer.client.release(where)
        if not positions:
            return
        for record in consumer.poll():
            if not follow and record.offset >= ends[TopicPartition(record.topic, record.partition)]:
                continue
            stdout.write(write(record))
            written += 1
            if written == limit:
                stdout.flush()
                return
        stdout.flush()
