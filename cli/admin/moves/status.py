"""mq-admin moves status: how far the plans are, against their estimates."""

import sys
import time

import click

from metaquorum.cli.admin.common.session import INT32_MAX, Session, session_command
from metaquorum.cli.common.output import Column, Row, show_table, size_text
from metaquorum.client.errors import broker_error
from metaquorum.client.groups.explanation.words import duration
from metaquorum.client.move_plans.values import Progress
from metaquorum.wire.primitives.errors import ErrorCode

BAR_CELLS = 20
_COLUMNS = (
    Column("plan"),
    Column("state"),
    Column("moves"),
    Column("bar", "copied"),
    Column("bytes"),
    Column("rate"),
    Column("elapsed"),
    Column("estimate"),
    Column("left"),
    Column("throttle"),
    Column("owner"),
)


@click.command("status", short_help="Show how far the plans are.")
@click.argument("plan", type=click.IntRange(1, INT32_MAX), required=False)
@click.option("--watch", is_flag=True, help="Repeat until the plans have ended, or Ctrl-C.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two updates of --watch.",
)
@session_command
def status_command(session: Session, plan: int | None, watch: bool, interval_s: float) -> None:
    """Show the plans: moves and bytes done, the rate, and the time left against the estimate.

    `copied` are bytes in the logs of the receiving workers; `rate` is their mean rate, with --watch
    that since the update before. `left` follows from it. `estimate` is the time for the whole plan
    that was computed from its throttle when it started, without the records that producers write.
    `throttle` is that of the plan, and the lowest of an operator that limits one of its moves.

    \b
    Examples:
      mq-admin moves status
      mq-admin moves status 3 --watch
      mq-admin moves status -o json
    """
    before: dict[int, Progress] = {}
    while True:
        found = session.moves.progress(None if plan is None else [plan])
        if plan is not None and not found:
            raise broker_error(ErrorCode.RESOURCE_NOT_FOUND, "it does not exist", f"plan {plan}")
        if watch and session.output == "text" and sys.stdout.isatty():
            click.clear()
        _show(session, found, before)
        if not watch or all(each.plan.has_ended for each in found):
            return
        before = {each.plan.plan_id: each for each in found}
        try:
            time.sleep(interval_s)
        except KeyboardInterrupt:
            return


def _show(session: Session, found: list[Progress], before: dict[int, Progress]) -> None:
    rows = [_data(each, before.get(each.plan.plan_id)) for each in found]
    if session.output != "text":
        session.show_data(rows)
    elif not rows:
        click.echo("No plan is known. `mq-admin moves start PLAN.json` starts one.")
    else:
        show_table([_row(row) for row in rows], _COLUMNS)


def _data(progress: Progress, before: Progress | None) -> Row:
    plan, operator = progress.plan, progress.operator
    rate = _rate(progress, before)
    return {
        "plan": plan.plan_id,
        "state": plan.state,
        "moves": plan.moves,
        "moving": plan.moving_count,
        "done": plan.done,
        "stopped": plan.stopped,
        "waiting": plan.moves - plan.begun,
        "batch_size": plan.batch_size,
        "size_bytes": plan.size_bytes,
        "copied_bytes": progress.copied_bytes,
        "rate_bytes_per_s": None if rate is None else round(rate),
        "elapsed_s": round(plan.elapsed_s, 1),
        "estimate_s": plan.estimate_s,
        "left_s": _rounded(progress.left_s(rate)),
        "throttle_bytes_per_s": plan.rate_bytes_per_s,
        "operator_throttle": operator
        and {
            "worker": operator.worker_id,
            "side": operator.side,
            "bytes_per_s": operator.rate_bytes_per_s,
        },
        "owner": plan.owner,
        "client_id": plan.client_id,
        "created_ms": plan.created_ms,
        "ended_ms": plan.ended_ms,
    }


def _rate(progress: Progress, before: Progress | None) -> float | None:
    """Return the bytes per second since `before`; without it, or after the end, since the start."""
    if before is None or before.copied_bytes is None or progress.copied_bytes is None:
        return progress.rate_bytes_per_s
    if progress.plan.has_ended:
        return progress.rate_bytes_per_s
    seconds = progress.plan.elapsed_s - before.plan.elapsed_s
    if seconds <= 0:
        return progress.rate_bytes_per_s
    return max(0, progress.copied_bytes - before.copied_bytes) / seconds


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _row(data: Row) -> Row:
    copied, rate, limit = (
        data["copied_bytes"],
        data["rate_bytes_per_s"],
        data["throttle_bytes_per_s"],
    )
    moves = f"{data['done']}/{data['moves']}"
    if data["stopped"]:
        moves += f" ({data['stopped']} stopped)"
    return data | {
        "moves": moves,
        "bar": None if copied is None else bar(copied, data["size_bytes"]),
        "bytes": f"{'-' if copied is None else size_text(copied)} of"
        f" {size_text(data['size_bytes'])}",
        "rate": None if rate is None else f"{size_text(rate)}/s",
        "elapsed": duration(data["elapsed_s"]),
        "estimate": None if data["estimate_s"] is None else duration(data["estimate_s"]),
        "left": None if data["left_s"] is None else duration(data["left_s"]),
        "throttle": _throttle(limit, data["operator_throttle"]),
    }


def _throttle(limit: int | None, operator: Row | None) -> str:
    shown = [] if limit is None else [f"{size_text(limit)}/s"]
    if operator is not None:
        shown.append(
            f"{size_text(operator['bytes_per_s'])}/s of an operator ({operator['side']} on worker"
            f" {operator['worker']})"
        )
    return ", ".join(shown) or "none"


def bar(done: int, whole: int) -> str:
    """Return a bar with the percentage, for example `##########---------- 50%`."""
    share = min(1.0, done / whole) if whole else 1.0
    full = int(share * BAR_CELLS)
    filled, empty = ("█", "░") if _draws_blocks() else ("#", "-")
    return f"{filled * full}{empty * (BAR_CELLS - full)} {int(share * 100):>3}%"


def _draws_blocks() -> bool:
    return sys.stdout.isatty() and (sys.stdout.encoding or "").lower().startswith("utf")
