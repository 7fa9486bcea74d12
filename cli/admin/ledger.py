"""mq-admin ledger."""

from typing import Any

import click

from metaquorum.cli.admin.common.session import INT32_MAX, Session, complete_topics, session_command
from metaquorum.cli.common.output import Column, Row, show_table
from metaquorum.cli.common.times import iso_text
from metaquorum.client.errors import BrokerError, UnreachableError
from metaquorum.client.values import Truncation

_COLUMNS = (
    Column("time"),
    Column("worker"),
    Column("topic"),
    Column("partition"),
    Column("offsets"),
    Column("records"),
    Column("acknowledged"),
    Column("reason"),
    Column("leader"),
    Column("leader_epoch", "epoch"),
    Column("detail"),
)


@click.command("ledger", short_help="Show the records that replicas lost, with time and reason.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="Only this topic; repeatable.",
    shell_complete=complete_topics,
)
@click.option(
    "--node",
    "nodes",
    type=click.IntRange(0, INT32_MAX),
    multiple=True,
    help="Only this worker; repeatable.",
)
@click.option(
    "--lost", "only_lost", is_flag=True, help="Only records that may have been committed."
)
@session_command
def command(
    session: Session, topics: tuple[str, ...], nodes: tuple[int, ...], only_lost: bool
) -> None:
    """Show the truncation ledger: records that replicas truncated or found missing.

    After a failure, a replica truncates records that its new leader does not have; these were never
    committed (`acknowledged` is no). `acknowledged` is yes for records that were committed, and
    perhaps if it is not known: after unclean leader elections, lost disks and power failures. The
    leader may have acknowledged any of these records to producers with acks=0 or acks=1. Only
    metaquorum has a ledger.

    \b
    Examples:
      mq-admin ledger
      mq-admin ledger --topic orders --lost
      mq-admin ledger -o json
    """
    rows: list[Row] = []
    for node_id in nodes or _live(session):
        try:
            found = session.admin.describe_truncations(node_id, topics or None)
        except (UnreachableError, BrokerError) as error:  # continue with the other workers
            session.report(error)
            continue
        if found.has_forgotten:
            session.note(f"worker {node_id} dropped the entries before its oldest entry shown here")
        rows += [_row(cut) for cut in found.truncations]
    if only_lost:
        rows = [row for row in rows if row["acknowledged"] != "no"]
    rows.sort(key=lambda row: (row["time"], row["worker"]))
    if session.output != "text":
        session.show_data(rows)
    elif rows:
        show_table([row | {"offsets": _range(row)} for row in rows], _COLUMNS)
    else:
        session.note("No lost records are known.")


def _live(session: Session) -> list[int]:
    workers = session.admin.workers()
    for worker in workers:
        if worker.is_fenced:
            session.note(f"worker {worker.worker_id} is fenced; its ledger is not shown")
    return [worker.worker_id for worker in workers if not worker.is_fenced]


def _row(cut: Truncation) -> Row:
    return {
        "time": iso_text(cut.time_ms),
        "worker": cut.node_id,
        "topic": cut.topic,
        "topic_id": cut.topic_id,
        "partition": cut.partition,
        "offset": cut.offset,
        "end_offset": cut.end_offset,
        "records": None if cut.end_offset is None else cut.end_offset - cut.offset,
        "acknowledged": cut.acknowledged,
        "reason": cut.reason,
        "last_epoch": cut.last_epoch,
        "leader": cut.leader,
        "leader_epoch": cut.leader_epoch,
        "high_watermark": cut.high_watermark,
        "detail": cut.detail,
    }


def _range(row: dict[str, Any]) -> str:
    end = row["end_offset"]
    return f"{row['offset']}-" if end is None else f"{row['offset']}-{end - 1}"
