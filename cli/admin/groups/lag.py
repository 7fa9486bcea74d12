"""mq-admin groups lag."""

import fnmatch

import click

from metaquorum.cli.admin.common.scopes import Scope, parse_scopes, topics_option
from metaquorum.cli.admin.common.session import Session, session_command
from metaquorum.cli.admin.groups.options import groups_argument, report_missing
from metaquorum.cli.common.output import Column, Row
from metaquorum.client.groups.values import GroupLag, PartitionLag

_COLUMNS = (
    Column("group"),
    Column("topic"),
    Column("partition"),
    Column("committed"),
    Column("start_offset"),
    Column("end_offset"),
    Column("lag"),
    Column("client_id", "client-id"),
    Column("host"),
)
_SUMMARY_COLUMNS = (
    Column("group"),
    Column("state"),
    Column("partitions"),
    Column("lag"),
    Column("unknown"),
)


@click.command("lag", short_help="Show committed offsets, log ends and lag.")
@groups_argument(required=False)
@click.option("--match", "pattern", metavar="PATTERN", help="Groups that match (with * and ?).")
@topics_option("Only this topic, or some of its partitions; repeatable.")
@click.option("--summary", is_flag=True, help="One line per group.")
@session_command
def lag_command(
    session: Session,
    groups: tuple[str, ...],
    pattern: str | None,
    topics: tuple[str, ...],
    summary: bool,
) -> None:
    """Show the lag of groups in records: the log end offset minus the committed offset.

    The partitions are those with a committed offset, and those that a member owns. A dash is an
    unknown value: no commit, no owner, or a partition that does not exist or has no leader. The lag
    is negative if the log ends before the committed offset.

    \b
    Examples:
      mq-admin groups lag billing
      mq-admin groups lag billing --topic orders:0,1
      mq-admin groups lag --match '*' --summary
    """
    if bool(groups) == (pattern is not None):
        raise click.UsageError("specify either groups or --match PATTERN")
    scopes = parse_scopes(topics)
    chosen = groups if pattern is None else _matching(session, pattern)
    found = [
        lag
        for outcome in session.groups.describe_lag(chosen).values()
        if (lag := session.keep(outcome)) is not None
    ]
    if summary:
        session.show_rows([_summary(lag, scopes) for lag in found], _SUMMARY_COLUMNS)
        return
    rows = [_row(lag, each) for lag in found for each in lag.partitions if _is_in(each, scopes)]
    if rows or session.output != "text":
        session.show_rows(rows, _COLUMNS)
    elif found or not groups:
        session.note("No committed offsets, and no owned partitions.")


def _matching(session: Session, pattern: str) -> list[str]:
    found = session.groups.list_groups()
    report_missing(session, found)
    return [each.group for each in found.groups if fnmatch.fnmatchcase(each.group, pattern)]


def _is_in(lag: PartitionLag, scopes: list[Scope]) -> bool:
    return not scopes or any(scope.contains(lag.where) for scope in scopes)


def _row(group: GroupLag, lag: PartitionLag) -> Row:
    owner = lag.owner
    return {
        "group": group.group,
        "topic": lag.where.topic,
        "partition": lag.where.partition,
        "committed": None if lag.committed is None else lag.committed.offset,
        "start_offset": lag.log_start,
        "end_offset": lag.log_end,
        "lag": lag.lag,
        "metadata": None if lag.committed is None else lag.committed.metadata,
        "client_id": None if owner is None else owner.client_id,
        "host": None if owner is None else owner.host,
        "member_id": None if owner is None else owner.member_id,
    }


def _summary(group: GroupLag, scopes: list[Scope]) -> Row:
    lags = [each.lag for each in group.partitions if _is_in(each, scopes)]
    known = [lag for lag in lags if lag is not None]
    return {
        "group": group.group,
        "state": group.state,
        "partitions": len(lags),
        "lag": sum(known) if known else None,
        "unknown": len(lags) - len(known),
    }
