"""mq-admin quotas top: current usage of quotas, and muted connections."""

import sys
import time

import click

from metaquorum.cli.admin.common.session import Session, session_command
from metaquorum.cli.admin.quotas.entities import amount_text, number
from metaquorum.cli.common.output import Column, Row, show_table
from metaquorum.client.usage.quota_use import MutedConnection, QuotaUse
from metaquorum.metadata.quota_lookup import CONTROLLER_MUTATION_RATE

_USES = (
    Column("worker"),
    Column("quota"),
    Column("user"),
    Column("client_id", "client-id"),
    Column("rate"),
    Column("limit", "quota"),
    Column("share", "used"),
    Column("delay"),
    Column("throttle_count", "delayed"),
    Column("mean"),
)
_MUTED = (
    Column("worker"),
    Column("address"),
    Column("user"),
    Column("client_id", "client-id"),
    Column("quota"),
    Column("told"),
    Column("left"),
)


@click.command("top", short_help="Watch the usage of quotas, and muted connections.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, help="Rows.  [default: 20]")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    metavar="SECONDS",
    help="[default: 2]",
)
@click.option(
    "--count",
    type=click.IntRange(1),
    help="Number of updates.  [default: until Ctrl-C on a terminal, otherwise 1]",
)
@session_command
def command(session: Session, limit: int, interval_s: float, count: int | None) -> None:
    """Show the most used quotas on each worker, and the muted connections.

    Quotas with the highest share of usage come first. `delay` is the delay of the next request;
    `delayed` is the number of delayed requests since the worker started to count, `mean` their
    recent mean delay. The active controller reports controller_mutation_rate for all workers,
    without the number of delayed requests.

    \b
    Examples:
      mq-admin quotas top
      mq-admin quotas top --count 1 -o json
    """
    is_live = session.output == "text" and sys.stdout.isatty()
    left = count if count is not None or is_live else 1
    while True:
        uses, muted, left_out = _look(session, limit)
        if is_live:
            click.clear()
        _show(session, uses, muted, left_out)
        if left is not None:
            left -= 1
            if left == 0:
                return
        try:
            time.sleep(interval_s)
        except KeyboardInterrupt:
            return


def _look(session: Session, limit: int) -> tuple[list[QuotaUse], list[MutedConnection], int]:
    uses: list[QuotaUse] = []
    muted: list[MutedConnection] = []
    left_out = 0
    for node in session.admin.describe_cluster().nodes:
        described = session.admin.describe_quota_use(
            node.node_id, most_used=limit, include_muted=True
        )
        uses += described.most_used
        muted += described.muted
        left_out += described.left_out
    uses = list({_place(use): use for use in uses}.values())
    uses.sort(key=lambda use: -use.utilization)
    muted.sort(key=lambda one: -one.left_s)
    left_out += max(0, len(uses) - limit) + max(0, len(muted) - limit)
    return uses[:limit], muted[:limit], left_out


def _place(use: QuotaUse) -> tuple[object, ...]:
    """Return the identity of a usage; each worker repeats those that the controller counts."""
    worker = None if use.key == CONTROLLER_MUTATION_RATE else use.worker
    return worker, use.key, use.user, use.client_id


def _show(
    session: Session, uses: list[QuotaUse], muted: list[MutedConnection], left_out: int
) -> None:
    if session.output != "text":
        session.show_data(
            {
                "uses": [_use_data(use) for use in uses],
                "muted": [_muted_data(one) for one in muted],
                "left_out": left_out,
            }
        )
        return
    if uses:
        show_table([_use_row(use) for use in uses], _USES)
    else:
        click.echo("No client with a quota used it recently.")
    if muted:
        click.echo()
        show_table([_muted_row(one) for one in muted], _MUTED)
    if left_out:
        click.echo(f"and {left_out} more")


def _use_data(use: QuotaUse) -> Row:
    return {
        "worker": None if use.key == CONTROLLER_MUTATION_RATE else use.worker,
        "quota": use.key,
        "user": use.user,
        "client_id": use.client_id,
        "rule": use.precedence,
        "value": number(use.quota),
        "rate": use.rate,
        "utilization": use.utilization,
        "delay_s": use.delay_s,
        "throttle_count": use.throttle_count,
        "throttle_total_s": use.throttle_total_s,
        "throttle_longest_s": use.throttle_longest_s,
        "throttle_recent_s": use.throttle_recent_s,
    }


def _use_row(use: QuotaUse) -> Row:
    data = _use_data(use)
    return data | {
        "worker": "all" if data["worker"] is None else use.worker,
        "user": "*" if use.user is None else use.user,
        "client_id": "*" if use.client_id is None else use.client_id or "(none)",
        "rate": amount_text(use.key, use.rate, is_measured=True),
        "limit": amount_text(use.key, use.quota),
        "share": f"{use.utilization:.0%}",
        "delay": f"{use.delay_s:.1f} s",
        "mean": f"{use.throttle_recent_s:.1f} s",
    }


def _muted_data(one: MutedConnection) -> Row:
    return {
        "worker": one.worker,
        "address": f"{one.host}:{one.port}",
        "user": one.user,
        "client_id": one.client_id,
        "quota": one.key,
        "throttle_s": one.throttle_s,
        "left_s": one.left_s,
    }


def _muted_row(one: MutedConnection) -> Row:
    return _muted_data(one) | {"told": f"{one.throttle_s:.1f} s", "left": f"{one.left_s:.1f} s"}
