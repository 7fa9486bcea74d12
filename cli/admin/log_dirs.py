"""mq-admin log-dirs."""

import click

from metaquorum.cli.admin.common.session import INT32_MAX, Session, complete_topics, session_command
from metaquorum.cli.common.output import Column, Row, size_text
from metaquorum.client.errors import BrokerError, UnreachableError
from metaquorum.client.values import LogDir

_DIR_COLUMNS = (
    Column("node"),
    Column("path"),
    Column("error"),
    Column("partitions"),
    Column("size_bytes", "size", size_text),
    Column("usable_bytes", "usable", size_text),
    Column("total_bytes", "volume", size_text),
)
_REPLICA_COLUMNS = (
    Column("node"),
    Column("path"),
    Column("topic"),
    Column("partition"),
    Column("size_bytes", "size", size_text),
    Column("offset_lag", "lag"),
)
# Shown if a replica moves to another directory.
_FUTURE_COLUMN = Column("future")


@click.command("log-dirs", short_help="Show the log directories of the nodes.")
@click.option(
    "--node",
    "nodes",
    type=click.IntRange(0, INT32_MAX),
    multiple=True,
    help="Only this node; repeatable.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="Only this topic; repeatable.",
    shell_complete=complete_topics,
)
@click.option("--partitions", "by_partition", is_flag=True, help="Print one line per replica.")
@click.option(
    "--move",
    "moved",
    multiple=True,
    metavar="TOPIC-PARTITION",
    help="Move this replica of the --node to the directory --to; repeatable.",
)
@click.option("--to", "target", metavar="PATH", help="Directory for --move, as it is shown.")
@session_command
def command(
    session: Session,
    nodes: tuple[int, ...],
    topics: tuple[str, ...],
    by_partition: bool,
    moved: tuple[str, ...],
    target: str | None,
) -> None:
    """Show the log directories of the nodes: errors, partitions and sizes.

    With --move, replicas of one node begin to move to another of its directories; a move to the
    directory that has the replica cancels the move in progress. --partitions shows the replica that
    is being copied as a future replica.

    \b
    Examples:
      mq-admin log-dirs
      mq-admin log-dirs --partitions --topic orders
      mq-admin log-dirs --node 1 --move orders-0 --to /disk2/log
    """
    if moved or target is not None:
        _move(session, nodes, moved, target)
    found: list[LogDir] = []
    for node_id in nodes or [node.node_id for node in session.admin.describe_cluster().nodes]:
        try:
            found += session.admin.describe_log_dirs([node_id])
        except (UnreachableError, BrokerError) as error:  # continue with the other nodes
            session.report(error)
    rows = [
        {
            "node": log_dir.node_id,
            "path": log_dir.path,
            "error": log_dir.error or None,
            "total_bytes": log_dir.total_bytes,
            "usable_bytes": log_dir.usable_bytes,
            "size_bytes": sum(replica["size_bytes"] for replica in replicas),
            "partitions": len(replicas),
            "replicas": replicas,
        }
        for log_dir in found
        for replicas in [_replicas(log_dir, topics)]
    ]
    if session.output != "text" or not by_partition:
        session.show_rows(rows, _DIR_COLUMNS)
        return
    shown = [
        replica | {"node": row["node"], "path": row["path"]}
        for row in rows
        for replica in row["replicas"]
    ]
    moves = any(replica["future"] for replica in shown)
    session.show_rows(shown, (*_REPLICA_COLUMNS, _FUTURE_COLUMN) if moves else _REPLICA_COLUMNS)


def _move(
    session: Session, nodes: tuple[int, ...], moved: tuple[str, ...], target: str | None
) -> None:
    if len(nodes) != 1 or not moved or target is None:
        raise click.UsageError("a move needs --move, --to and one --node")
    partitions = []
    for text in moved:
        topic, dash, index = text.rpartition("-")
        if not dash or not index.isdecimal():
            raise click.UsageError(f"--move takes TOPIC-PARTITION, such as orders-0, not {text!r}")
        partitions.append((topic, int(index)))
    session.admin.alter_replica_log_dirs(nodes[0], partitions, target)


def _replicas(log_dir: LogDir, topics: tuple[str, ...]) -> list[Row]:
    return [
        {
            "topic": replica.topic,
            "partition": replica.partition,
            "size_bytes": replica.size_bytes,
            "offset_lag": replica.offset_lag,
            "future": replica.is_future,
        }
        for replica in sorted(log_dir.replicas, key=lambda one: (one.topic, one.partition))
        if not topics or replica.topic in topics
    ]
