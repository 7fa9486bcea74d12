"""mq-admin quorum."""

import time

import click

from metaquorum.cli.admin.common.session import Session, session_command
from metaquorum.cli.common.output import Column, Row, show_pairs, show_table
from metaquorum.cli.common.times import ago_text, iso_text
from metaquorum.client.values import Quorum, QuorumReplica

_COLUMNS = (
    Column("node"),
    Column("role"),
    Column("address"),
    Column("end_offset"),
    Column("lag"),
    Column("heard_ms_ago", "heard", ago_text),
    Column("caught_up_ms_ago", "caught up", ago_text),
)


@click.command("quorum", short_help="Show the controllers: the leader, and the lag of each voter.")
@session_command
def command(session: Session) -> None:
    """Show the quorum of the metadata log: the leader, the voters, and the lag of each replica.

    Offsets are offsets of metadata records. Observers are nodes that replicate the log and do not
    vote: nodes with the worker role only.

    \b
    Examples:
      mq-admin quorum
      mq-admin quorum -o json
    """
    cluster_id = session.admin.describe_cluster().cluster_id
    quorum = session.admin.describe_quorum()
    now_ms = int(time.time() * 1000)
    rows = _rows(quorum, now_ms)
    data = {
        "cluster_id": cluster_id,
        "leader": quorum.leader if quorum.leader >= 0 else None,
        "term": quorum.term,
        "committed_offset": quorum.committed_offset,
        "replicas": rows,
    }
    if session.output != "text":
        session.show_data(data)
        return
    show_pairs([(key.replace("_", " "), data[key]) for key in data if key != "replicas"])
    click.echo()
    show_table(rows, _COLUMNS)


def _rows(quorum: Quorum, now_ms: int) -> list[Row]:
    leader = next((each for each in quorum.voters if each.node_id == quorum.leader), None)
    end_offset = None if leader is None else leader.end_offset
    voters = [
        _row(each, "leader" if each is leader else "voter", end_offset, now_ms)
        for each in quorum.voters
    ]
    return voters + [_row(each, "observer", end_offset, now_ms) for each in quorum.observers]


def _row(replica: QuorumReplica, role: str, end_offset: int | None, now_ms: int) -> Row:
    is_known = end_offset is not None and replica.end_offset is not None
    return {
        "node": replica.node_id,
        "role": role,
        "address": replica.address,
        "end_offset": replica.end_offset,
        "lag": max(0, end_offset - replica.end_offset) if is_known else None,  # type: ignore[operator]
        "heard_at": _time(replica.heard_ms),
        "heard_ms_ago": _ago(replica.heard_ms, now_ms),
        "caught_up_at": _time(replica.caught_up_ms),
        "caught_up_ms_ago": _ago(replica.caught_up_ms, now_ms),
    }


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else iso_text(at_ms)


def _ago(at_ms: int | None, now_ms: int) -> int | None:
    return None if at_ms is None else max(0, now_ms - at_ms)
