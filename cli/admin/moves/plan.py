"""mq-admin moves plan: chooses targets, and estimates how long their moves take."""

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, TextIO

import click

from cli.admin.common.session import (
    INT32_MAX,
    INT64_MAX,
    REFUSED,
    Session,
    complete_topics,
    session_command,
)
from cli.common.empty_values import InputFile
from cli.common.output import Column, Row, show_pairs, show_table, size_text
from metaquorum.client.move_plans.measuring import described_limits, measured_state
from metaquorum.client.socket_transport import wait
from metaquorum.moves import balance as balancing
from metaquorum.moves.balance import Goal, crowded, staying
from metaquorum.moves.cluster_state import ClusterState
from metaquorum.moves.estimate import Estimate, estimate, throttle_within, worker_traffic
from metaquorum.moves.plan import Plan, PlanError, read_topics, write_plan
from metaquorum.runtime.whole_numbers import whole_number

_GOALS: Final = {goal.value: goal for goal in Goal}
_MOST_SHOWN: Final = 20  # moves in the table; --plan-file and -o json have all
_MOVE_COLUMNS: Final = (
    Column("topic"),
    Column("partition"),
    Column("current"),
    Column("target"),
    Column("copied_bytes", "copied", size_text),
)
_WORKER_COLUMNS: Final = (
    Column("worker"),
    Column("replicas"),
    Column("replicas_after"),
    Column("leaders"),
    Column("leaders_after"),
    Column("size_bytes", "size", size_text),
    Column("size_bytes_after", "size after", size_text),
    Column("received_bytes", "receives", size_text),
    Column("sent_bytes", "sends", size_text),
)
_WORKER_ID: Final = click.IntRange(0, INT32_MAX)
_RATE: Final = click.IntRange(1, INT64_MAX)


@click.command("plan", short_help="Choose targets, and estimate the time of their moves.")
@click.option("--drain", type=_WORKER_ID, multiple=True, help="Empty this worker; repeatable.")
@click.option("--add", type=_WORKER_ID, multiple=True, help="Fill this new worker; repeatable.")
@click.option("--balance", "is_balance", is_flag=True, help="Balance all live workers.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="Balance this topic; repeatable.",
    shell_complete=complete_topics,
)
@click.option(
    "--topics-file",
    type=InputFile(),
    metavar="FILE",
    help="Balance the topics of a --topics-to-move-json-file; - is standard input.",
)
@click.option(
    "--workers", metavar="ID,ID,...", help="Workers for --topic and --topics-file.  [default: all]"
)
@click.option(
    "--by",
    "goals",
    type=click.Choice(list(_GOALS)),
    multiple=True,
    help="Numbers to balance; repeatable.  [default: all three]",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 100),
    default=balancing.DEFAULT_TOLERANCE * 100,
    show_default=True,
    metavar="PERCENT",
    help="Difference of a worker's bytes from the mean that is left.",
)
@click.option(
    "--throttle",
    type=_RATE,
    metavar="BYTES_PER_S",
    help="Limit of each worker for what it sends and for what it receives.  [default: proposed]",
)
@click.option("--no-throttle", is_flag=True, help="Plan without a limit.")
@click.option(
    "--within",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="The least throttle with which the plan takes at most this time.",
)
@click.option(
    "--network-bytes-per-s",
    type=_RATE,
    metavar="BYTES_PER_S",
    help="Network of a worker, one direction.  [default: config network.bytes.per.second]",
)
@click.option(
    "--measure-seconds",
    type=click.FloatRange(0, 3600),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="Time over which inbound rates are measured; 0: count as 0.",
)
@click.option(
    "--plan-file", metavar="FILE", help="Write the plan there, for `mq-admin moves start`."
)
@session_command
def plan_command(
    session: Session,
    drain: tuple[int, ...],
    add: tuple[int, ...],
    is_balance: bool,
    topics: tuple[str, ...],
    topics_file: TextIO | None,
    workers: str | None,
    goals: tuple[str, ...],
    tolerance: float,
    throttle: int | None,
    no_throttle: bool,
    within: float | None,
    network_bytes_per_s: int | None,
    measure_seconds: float,
    plan_file: str | None,
) -> None:
    """Plan moves that empty workers, fill new ones, or balance workers or topics.

    Nothing moves: `mq-admin moves start` and `kafka-reassign-partitions` carry out the file of
    --plan-file. A plan moves few bytes, and keeps the replicas of a partition on as many hosts and
    racks as now. The estimate is from sizes, and from inbound rates that are measured first. A
    throttle that can never finish is refused; without --throttle one is proposed. The columns of
    leaders count preferred leaders: partitions of which the worker is the first replica.

    \b
    Examples:
      mq-admin moves plan --drain 3 --plan-file plan.json
      mq-admin moves plan --add 4 --network-bytes-per-s 125000000
      mq-admin moves plan --balance --by replicas --within 3600
      mq-admin moves plan --topic orders --workers 1,2,3 -o json
    """
    if sum(map(bool, (drain, add, is_balance, topics or topics_file))) != 1:
        raise click.UsageError(
            "specify one of --drain, --add, --balance, and --topic or --topics-file"
        )
    if workers is not None and not (topics or topics_file):
        raise click.UsageError("--workers is only for --topic and --topics-file")
    if sum(map(bool, (throttle, no_throttle, within))) > 1:
        raise click.UsageError("--throttle, --no-throttle and --within exclude each other")
    try:
        chosen = [*topics, *(read_topics(topics_file.read()) if topics_file else ())]
        ids = None if workers is None else _worker_ids(workers)
        state = wait(measured_state(session.client, measure_seconds))
        wanted = {_GOALS[goal] for goal in goals} or balancing.ALL_GOALS
        plan = _planned(state, drain, add, chosen, ids, wanted, tolerance / 100)
        limits = wait(described_limits(session.client, network_bytes_per_s))
        if within is not None:
            throttle = throttle_within(list(worker_traffic(state, plan).values()), within)
        found = estimate(state, plan, throttle, limits)
        if throttle is None and not no_throttle:
            found = estimate(state, plan, found.proposed_bytes_per_s, limits)
    except PlanError as error:
        raise click.UsageError(str(error)) from None
    if found.refusal is not None:
        session.note(f"mq-admin: {found.refusal}")
        if found.proposed_bytes_per_s is not None:
            session.note(f"  --throttle {found.proposed_bytes_per_s} is proposed")
        click.get_current_context().exit(REFUSED)
    plan = Plan(plan.moves, found.throttle_bytes_per_s, session.cluster.cluster_id)
    if plan_file is not None:
        try:
            Path(plan_file).write_text(write_plan(plan), encoding="utf-8")
        except OSError as error:
            raise click.UsageError(f"--plan-file {plan_file}: {error.strerror}") from None
    _show(session, state, plan, found)
    _note(session, state, plan, found, drain)
    if plan_file is not None and plan.moves:
        session.say("")
        session.say(f"`mq-admin moves start {plan_file}` carries out the plan")


def _worker_ids(text: str) -> set[int]:
    ids = [whole_number(part.strip(), INT32_MAX) for part in text.split(",")]
    found = {each for each in ids if each is not None}
    if len(found) < len(ids):
        raise click.UsageError(
            f"--workers takes different worker ids with commas between them, not {text!r}"
        )
    return found


def _planned(
    state: ClusterState,
    drain: Collection[int],
    add: Collection[int],
    topics: Collection[str],
    workers: Collection[int] | None,
    goals: Collection[Goal],
    tolerance: float,
) -> Plan:
    if drain:
        return balancing.drain(state, drain)
    if add:
        return balancing.add(state, add, goals)
    if topics:
        return balancing.spread(state, topics, workers, goals, tolerance)
    return balancing.balance(state, goals, tolerance)


def _show(session: Session, state: ClusterState, plan: Plan, found: Estimate) -> None:
    workers = _worker_rows(state, plan)
    moves = [
        {
            "topic": move.topic,
            "partition": move.partition,
            "current": list(move.replicas),
            "target": list(move.target),
            "size_bytes": move.size_bytes,
            "copied_bytes": move.copied_bytes,
        }
        for move in plan.moves
    ]
    if session.output != "text":
        session.show_data({"estimate": _data(found), "workers": workers, "moves": moves})
        return
    if not moves:
        session.say("Nothing has to move.")
        return
    show_table(moves[:_MOST_SHOWN], _MOVE_COLUMNS)
    if len(moves) > _MOST_SHOWN:
        session.say(f"... and {len(moves) - _MOST_SHOWN} more; --plan-file and -o json have all")
    click.echo()
    show_table(workers, _WORKER_COLUMNS)
    click.echo()
    show_pairs(_pairs(found))


def _worker_rows(state: ClusterState, plan: Plan) -> list[Row]:
    traffic = worker_traffic(state, plan)
    before, after = _numbers(state), _numbers(state.moved(plan))
    return [
        {
            "worker": each,
            "replicas": before["replicas"][each],
            "replicas_after": after["replicas"][each],
            "leaders": before["leaders"][each],
            "leaders_after": after["leaders"][each],
            "size_bytes": before["bytes"][each],
            "size_bytes_after": after["bytes"][each],
            "received_bytes": one.received_bytes,
            "sent_bytes": one.sent_bytes,
            "bytes_in_per_s": round(one.bytes_in_per_s),
        }
        for each, one in traffic.items()
    ]


def _numbers(state: ClusterState) -> dict[str, Counter[int]]:
    found: dict[str, Counter[int]] = {each: Counter() for each in _GOALS}
    for each in state.partitions:
        found["leaders"][each.replicas[0]] += 1
        for worker in each.replicas:
            found["replicas"][worker] += 1
            found["bytes"][worker] += each.size_bytes
    return found


def _data(found: Estimate) -> dict[str, Any]:
    return {
        "moved_partitions": found.moved_partitions,
        "partitions": found.partitions,
        "move_ratio": found.move_ratio,
        "copied_bytes": found.copied_bytes,
        "log_bytes": found.log_bytes,
        "inbound_bytes_per_s": round(found.most_bytes_in_per_s),
        "keep_up_bytes_per_s": round(found.keep_up),
        "network_bytes_per_s": found.network_bytes_per_s,
        "upper_bound_bytes_per_s": found.upper_bound,
        "throttle_bytes_per_s": found.throttle_bytes_per_s,
        "proposed_bytes_per_s": found.proposed_bytes_per_s,
        "network_share": found.network_share,
        "move_time_s": found.move_time_s,
        "kip73_move_time_s": None if found.kip73_time_s in (None, _NEVER) else found.kip73_time_s,
        "slowest_worker": found.slowest_worker,
        "warnings": list(found.warnings),
    }


_NEVER: Final = float("inf")


def _pairs(found: Estimate) -> list[tuple[str, str]]:
    upper = "N - IN/R is not known: --network-bytes-per-s sets N"
    if found.upper_bound is not None:
        upper = f"N - IN/R = {_rate(found.upper_bound)}"
    pairs = [
        ("moves", f"{found.moved_partitions} of {found.partitions} partitions"),
        ("MoveRatio", f"{found.move_ratio:.4f}"),
        ("copied", f"{size_text(found.copied_bytes)} of {size_text(found.log_bytes)}"),
        ("bounds", f"IN = {_rate(found.lower_bound)} < throttle < {upper}"),
    ]
    if found.throttle_bytes_per_s is None:
        return [*pairs, ("throttle", "none"), ("MoveTime", "not known without a throttle")]
    share = "" if found.network_share is None else f", {found.network_share:.0%} of the network"
    slowest = "" if found.slowest_worker is None else f" (worker {found.slowest_worker})"
    assert found.move_time_s is not None
    assert found.kip73_time_s is not None
    return [
        *pairs,
        ("throttle", f"{_rate(found.throttle_bytes_per_s)}{share}"),
        ("MoveTime", f"{_duration(found.move_time_s)}{slowest}"),
        ("MoveTime of KIP-73", f"about {_duration(found.kip73_time_s)}"),
    ]


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s:,.0f} B/s"


def _duration(seconds: float) -> str:
    if seconds == _NEVER:
        return "no end"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _note(
    session: Session, state: ClusterState, plan: Plan, found: Estimate, drained: Collection[int]
) -> None:
    for warning in found.warnings:
        session.note(f"Warning: {warning}")
    if less := crowded(state, plan):
        session.note(
            f"Warning: {len(less)} partitions, such as {less[0].topic}-{less[0].partition}, will be"
            " on fewer hosts or racks: the remaining workers have no others."
        )
    if stay := staying(state, drained):
        session.note(
            f"Warning: {len(stay)} partitions, such as {stay[0].name}, stay on the drained workers:"
            " they have no leader, or are moving already. Plan again later."
        )
