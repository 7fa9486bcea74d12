"""mq-admin quotas simulate: the effect of a quota on a client's traffic."""

import json
from typing import Any, Final

import click

from metaquorum.cli.admin.common.session import Session, session_command
from metaquorum.cli.admin.quotas.entities import BYTE_RATES, amount_text, number, parse_amount
from metaquorum.cli.admin.quotas.plots import text_plot, write_image
from metaquorum.cli.admin.quotas.traffic import (
    MAX_CONNECTIONS,
    MAX_SECONDS,
    TICK_S,
    Client,
    Profile,
    Timeline,
    run,
)
from metaquorum.cli.common.output import Column, Row, show_pairs, show_table, size_text
from metaquorum.metadata.quota_lookup import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE

MAX_INTERVALS: Final = 1_000_000
MAX_PROFILE_BYTES: Final = 64 << 20
MAX_QUOTAS: Final = 10

_COLUMNS: Final = (
    Column("at_s", "second"),
    Column("offered"),
    Column("rate"),
    Column("longest_delay", "delay"),
    Column("delayed"),
    Column("queue"),
)


@click.command("simulate", short_help="Simulate the effect of a quota on a client.")
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    metavar="RATE",
    required=True,
    help="Bytes per second, such as 100kB; repeatable, to compare.",
)
@click.option("--constant", metavar="RATE", help="Traffic: bytes per second, constantly.")
@click.option("--burst", metavar="BYTES", help="Traffic: bytes per burst.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.1, MAX_SECONDS),
    metavar="SECONDS",
    help="Time between two bursts.  [default: 10]",
)
@click.option(
    "--profile-file",
    metavar="FILE",
    help='Traffic: {"interval_s": 1, "bytes": [...]}; - is standard input.',
)
@click.option("--consumer", is_flag=True, help="Simulate a consumer with consumer_byte_rate.")
@click.option("--request", "request_", metavar="BYTES", default="16KiB", help="[default: 16KiB]")
@click.option(
    "--connections", type=click.IntRange(1, MAX_CONNECTIONS), default=1, help="[default: 1]"
)
@click.option(
    "--seconds", type=click.FloatRange(1, MAX_SECONDS), default=60.0, help="[default: 60]"
)
@click.option(
    "--step",
    "step_s",
    type=click.FloatRange(TICK_S, 60),
    default=1.0,
    metavar="SECONDS",
    help="Step of the timeline.  [default: 1]",
)
@click.option(
    "--samples", type=click.IntRange(1, 1000), default=11, help="quota.window.num  [default: 11]"
)
@click.option(
    "--sample-seconds",
    "sample_s",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    help="quota.window.size.seconds  [default: 1]",
)
@click.option("--table", is_flag=True, help="Print the timeline as a table, too.")
@click.option("--image", metavar="FILE", help="Draw the timeline to a .png or .svg file.")
@session_command
def command(
    session: Session,
    quotas: tuple[str, ...],
    constant: str | None,
    burst: str | None,
    every_s: float | None,
    profile_file: str | None,
    consumer: bool,
    request_: str,
    connections: int,
    seconds: float,
    step_s: float,
    samples: int,
    sample_s: float,
    table: bool,
    image: str | None,
) -> None:
    """Simulate a client's traffic with the quota code of the workers, without a cluster.

    The simulation takes no real time. Bytes that the client cannot send yet wait in its queue. The
    output shows the resulting rate, the delays and the queue.

    \b
    Examples:
      mq-admin quotas simulate --quota 100kB --constant 1MB --request 10kB
      mq-admin quotas simulate --quota 100kB --quota 200kB --burst 5MB --every 20 --table
      mq-admin quotas simulate --quota 1MB --profile-file traffic.json --image traffic.svg
      mq-admin quotas simulate --quota 100kB --constant 1MB --consumer -o json
    """
    if len(quotas) > MAX_QUOTAS:
        raise click.UsageError(f"at most {MAX_QUOTAS} quotas can be compared")
    key = CONSUMER_BYTE_RATE if consumer else PRODUCER_BYTE_RATE
    values = [_positive("--quota", text) for text in quotas]
    client = Client(consumer, connections, _positive("--request", request_))
    profile = _profile(constant, burst, every_s, profile_file)
    timelines = [
        run(profile, value, client, seconds, step_s=step_s, samples=samples, sample_s=sample_s)
        for value in values
    ]
    if image is not None:
        write_image(image, timelines)
    if session.output != "text":
        session.show_data([_data(key, timeline) for timeline in timelines])
        return
    for index, timeline in enumerate(timelines):
        if index:
            click.echo()
        _show(key, timeline, table=table)


def _positive(option: str, text: str) -> float:
    value = parse_amount(PRODUCER_BYTE_RATE, text)
    if value <= 0:
        raise click.UsageError(f"{option} must be greater than 0")
    return value


def _profile(
    constant: str | None, burst: str | None, every_s: float | None, file: str | None
) -> Profile:
    if sum(given is not None for given in (constant, burst, file)) != 1:
        raise click.UsageError("specify the traffic: one of --constant, --burst, --profile-file")
    if every_s is not None and burst is None:
        raise click.UsageError("--every needs --burst")
    if constant is not None:
        return Profile.constant(_positive("--constant", constant))
    if burst is not None:
        return Profile.burst(_positive("--burst", burst), every_s or 10.0)
    assert file is not None
    return _read_profile(file)


def _read_profile(path: str) -> Profile:
    try:
        with click.open_file(path, "rb") as opened:
            content = opened.read(MAX_PROFILE_BYTES + 1)
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from None
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict) or data.keys() != {"interval_s", "bytes"}:
        raise click.UsageError(f'{path} must be {{"interval_s": SECONDS, "bytes": [NUMBER, ...]}}')
    interval_s, sizes = data["interval_s"], data["bytes"]
    if not _is_number(interval_s) or not TICK_S <= interval_s <= MAX_SECONDS:
        raise click.UsageError(f"{path}: interval_s must be from {TICK_S} to {MAX_SECONDS}")
    if (
        not isinstance(sizes, list)
        or not 0 < len(sizes) <= MAX_INTERVALS
        or not all(_is_number(size) and 0 <= size < 1e15 for size in sizes)
    ):
        raise click.UsageError(f"{path}: bytes must be a list of non-negative numbers")
    return Profile(float(interval_s), sizes)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _show(key: str, timeline: Timeline, *, table: bool) -> None:
    assert key in BYTE_RATES
    show_pairs(
        [
            ("quota", amount_text(key, timeline.quota)),
            ("average rate", amount_text(key, timeline.average_rate, is_measured=True)),
            ("delayed requests", timeline.delayed),
            ("longest delay", f"{timeline.longest_delay_s:.2f} s"),
            ("delays together", f"{timeline.total_delay_s:.1f} s"),
            ("longest queue", size_text(round(timeline.most_queued_bytes))),
        ]
    )
    click.echo()
    for line in text_plot(timeline):
        click.echo(line)
    if table:
        click.echo()
        show_table([_row(key, timeline, row) for row in _steps(timeline)], _COLUMNS)


def _steps(timeline: Timeline) -> list[Row]:
    return [
        {
            "at_s": number(round(step.at_s, 3)),
            "offered_rate": step.offered_bytes / timeline.step_s,
            "rate": step.passed_bytes / timeline.step_s,
            "delay_s": step.delay_s,
            "delayed": step.delayed,
            "queue_bytes": step.queue_bytes,
        }
        for step in timeline.steps
    ]


def _row(key: str, timeline: Timeline, row: Row) -> Row:
    return row | {
        "offered": amount_text(key, row["offered_rate"]),
        "rate": amount_text(key, row["rate"], is_measured=True),
        "longest_delay": f"{row['delay_s']:.2f} s",
        "queue": size_text(round(row["queue_bytes"])),
    }


def _data(key: str, timeline: Timeline) -> Row:
    return {
        "quota": key,
        "value": number(timeline.quota),
        "average_rate": timeline.average_rate,
        "delayed": timeline.delayed,
        "longest_delay_s": timeline.longest_delay_s,
        "total_delay_s": timeline.total_delay_s,
        "most_queued_bytes": timeline.most_queued_bytes,
        "timeline": _steps(timeline),
    }
