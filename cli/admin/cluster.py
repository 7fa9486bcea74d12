"""mq-admin cluster."""

import click

from metaquorum.cli.admin.common.session import INT32_MAX, Session, session_command
from metaquorum.cli.admin.memory import memory_command
from metaquorum.cli.common.output import Column, Row, show_pairs, show_table
from metaquorum.client.administration.quorum import MAX_LEVEL
from metaquorum.client.connection import VersionRange
from metaquorum.runtime.whole_numbers import whole_number

_NODE_COLUMNS = (
    Column("node"),
    Column("host"),
    Column("port"),
    Column("rack"),
    Column("controller"),
)
_API_COLUMNS = (Column("key"), Column("api"), Column("served"), Column("spoken", "spoken here"))


@click.group("cluster", short_help="Describe the cluster, its nodes, its health and its APIs.")
def command() -> None:
    """Describe the cluster, its nodes, its health and its APIs."""


@command.command("describe")
@session_command
def describe(session: Session) -> None:
    """Show the cluster id, the nodes, the active controller and the feature levels.

    \b
    Examples:
      mq-admin cluster describe
      mq-admin cluster describe -o json
    """
    described = session.admin.describe_cluster()
    nodes: list[Row] = [
        {
            "node": node.node_id,
            "host": node.host,
            "port": node.port,
            "rack": node.rack,
            "controller": node.node_id == described.controller,
        }
        for node in described.nodes
    ]
    features = dict(sorted(described.features.items()))
    data = {
        "cluster_id": described.cluster_id,
        "controller": described.controller,
        "features": features,
        "nodes": nodes,
    }
    if session.output != "text":
        session.show_data(data)
        return
    levels = " ".join(f"{name}={level}" for name, level in features.items())
    show_pairs([("cluster", described.cluster_id), ("features", levels)])
    click.echo()
    show_table(nodes, _NODE_COLUMNS)


@command.command("health")
@session_command
def health(session: Session) -> None:
    """Show the number of live workers, and of unhealthy partitions and log directories.

    `mq-admin topics list --unhealthy` shows the topics, `mq-admin topics describe --health` the
    reason for each partition. A log directory is full if the largest batch (message.max.bytes) has
    no room in it. Warnings are printed on stderr: which log directory is full or offline; an
    internal topic has fewer replicas than the live workers permit, or is not compacted; or
    coordinators have little memory left.

    \b
    Examples:
      mq-admin cluster health
      mq-admin cluster health -o json
    """
    found = session.admin.describe_cluster_health(session.admin.topics())
    data = {
        "healthy": found.is_healthy,
        "workers": found.workers,
        "live_workers": found.live_workers,
        "partitions": found.partitions,
    } | {trouble.name.lower(): count for trouble, count in found.counts.items()}
    data |= {"full_log_dirs": found.full_log_dirs, "offline_log_dirs": found.offline_log_dirs}
    if session.output != "text":
        session.show_data(data | {"warnings": list(found.warnings)})
        return
    show_pairs((key.replace("_", " "), value) for key, value in data.items())
    for warning in found.warnings:
        session.note(f"Warning: {warning}")


@command.command("upgrade")
@click.argument("levels", nargs=-1, required=True, metavar="FEATURE=LEVEL...")
@click.option("--dry-run", is_flag=True, help="Let the cluster check the change without making it.")
@session_command
def upgrade(session: Session, levels: tuple[str, ...], dry_run: bool) -> None:
    """Raise feature levels of the cluster, when all nodes run the new version.

    The levels change together or not at all. A level of metadata.version is never lowered again;
    nodes of versions that do not support it can no longer join.

    \b
    Examples:
      mq-admin cluster upgrade metadata.version=4 --dry-run
      mq-admin cluster upgrade metadata.version=4 transaction.version=2
    """
    wanted = dict(map(_feature_level, levels))
    session.admin.raise_features(wanted, validate_only=dry_run)
    for name, level in wanted.items():
        session.say(f"{name} {'can be' if dry_run else 'is'} {level}")


def _feature_level(text: str) -> tuple[str, int]:
    name, _, level = text.partition("=")
    number = whole_number(level, MAX_LEVEL)
    if not name or number is None:
        raise click.BadParameter(f"{text!r} is not FEATURE=LEVEL, such as metadata.version=4")
    return name, number


@command.command("apis")
@click.option("--node", type=click.IntRange(0, INT32_MAX), help="[default: the first that answers]")
@session_command
def apis(session: Session, node: int | None) -> None:
    """Show the APIs of the Kafka protocol that a node supports, with their versions.

    \b
    Examples:
      mq-admin cluster apis
      mq-admin cluster apis --node 2 -o json
    """
    rows: list[Row] = [
        {
            "key": api.key,
            "api": api.name,
            "served": _text(api.served),
            "spoken": _text(api.spoken),
        }
        for api in session.admin.apis(node)
    ]
    session.show_rows(rows, _API_COLUMNS)


def _text(versions: VersionRange | None) -> str | None:
    return None if versions is None else f"{versions.first}-{versions.last}"


command.add_command(memory_command)
