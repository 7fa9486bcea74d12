"""A plan of moves as text and for programs."""

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

import click

from metaquorum.cli.admin.common.session import Session
from metaquorum.cli.admin.moves.planning import MadePlan
from metaquorum.cli.common.output import Column, Row, show_pairs, show_table, size_text
from metaquorum.metadata.moves.balance import Goal, crowded, staying
from metaquorum.metadata.moves.cluster_state import ClusterState
from metaquorum.metadata.moves.estimate import Estimate, worker_traffic
from metaquorum.metadata.moves.plan import Plan

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


def data(made: MadePlan) -> dict[str, Any]:
    """Return the plan for programs: its estimate, the workers before and after, and its moves."""
    return {
        "estimate": _data(made.estimate),
        "workers": _worker_rows(made.state, made.plan),
        "moves": _move_rows(made.plan),
    }


def show(made: MadePlan, where_all: str = "") -> None:
    """Print the first moves, the workers before and after, and the estimate.

    `where_all` says where the user finds all moves.
    """
    if not made.plan.moves:
        click.echo("Nothing has to move.")
        return
    moves = _move_rows(made.plan)
    show_table(moves[:_MOST_SHOWN], _MOVE_COLUMNS)
    if len(moves) > _MOST_SHOWN:
        click.echo(f"... and {len(moves) - _MOST_SHOWN} more{where_all}")
    click.echo()
    show_table(_worker_rows(made.state, made.plan), _WORKER_COLUMNS)
    click.echo()
    show_pairs(_pairs(made.estimate))


def note_warnings(session: Session, made: MadePlan, drained: Collection[int]) -> None:
    """Print the warnings about a plan on stderr."""
    for warning in made.estimate.warnings:
        session.note(f"Warning: {warning}")
    if less := crowded(made.state, made.plan):
        session.note(
            f"Warning: {len(less)} partitions, such as {less[0].topic}-{less[0].partition}, will be"
            " on fewer hosts or racks: the remaining workers have no others."
        )
    if stay := staying(made.state, drained):
        session.note(
            f"Warning: {len(stay)} partitions, such as {stay[0].name}, stay on the drained workers:"
            " they have no leader, or are moving already. Plan again later."
        )


def _move_rows(plan: Plan) -> list[Row]:
    return [
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
    found: dict[str, Counter[int]] = {goal.value: Counter() for goal in Goal}
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
