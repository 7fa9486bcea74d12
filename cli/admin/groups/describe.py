"""mq-admin groups list and describe."""

import fnmatch

import click

from metaquorum.cli.admin.common.coordinators import coordinator_text
from metaquorum.cli.admin.common.scopes import by_topic
from metaquorum.cli.admin.common.session import Session, session_command
from metaquorum.cli.admin.groups.options import groups_argument, report_missing
from metaquorum.cli.common.output import Column, Row, show_pairs, show_table
from metaquorum.client.groups.values import (
    STATES,
    TYPES,
    GroupDescription,
    GroupListing,
    MemberDescription,
)

_LIST_COLUMNS = (
    Column("group"),
    Column("state"),
    Column("type"),
    Column("protocol_type"),
    Column("coordinator"),
)
_MEMBER_COLUMNS = (
    Column("client_id", "client-id"),
    Column("host"),
    Column("instance_id", "instance-id"),
    Column("member_id", "member-id"),
    Column("partitions"),
)


@click.command("list", short_help="List groups.")
@click.option("--match", "pattern", metavar="PATTERN", help="Only names that match (with * and ?).")
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    help="Only groups in this state; repeatable.",
)
@click.option(
    "--type",
    "types",
    type=click.Choice(TYPES, case_sensitive=False),
    multiple=True,
    help="Only groups of this protocol; repeatable.",
)
@session_command
def list_command(
    session: Session, pattern: str | None, states: tuple[str, ...], types: tuple[str, ...]
) -> None:
    """List the groups of all nodes, with state, type and coordinator.

    An empty protocol type is that of a group to which only offsets were committed. A node that
    cannot be reached is reported, and its groups are missing; so are groups whose partition of
    __consumer_offsets has no leader.

    \b
    Examples:
      mq-admin groups list
      mq-admin groups list --match 'billing-*' --state Stable
      mq-admin groups list -o json
    """
    found = session.groups.list_groups(states, types)
    report_missing(session, found)
    rows = [
        _listed(listing)
        for listing in found.groups
        if pattern is None or fnmatch.fnmatchcase(listing.group, pattern)
    ]
    if rows or session.output != "text":
        session.show_rows(rows, _LIST_COLUMNS)
    elif not found.failures and not found.lost_partitions:
        filtered = states or types or pattern
        session.note("No group matches." if filtered else "No groups.")


def _listed(listing: GroupListing) -> Row:
    return {
        "group": listing.group,
        "state": listing.state,
        "type": listing.type,
        "protocol_type": listing.protocol_type,
        "coordinator": listing.coordinator,
    }


@click.command("describe", short_help="Describe groups and their members.")
@groups_argument()
@session_command
def describe_command(session: Session, groups: tuple[str, ...]) -> None:
    """Describe groups of the classic protocol: state, assignor, coordinator and members.

    -o json shows what each member subscribes to, and what it sent to the assignor.

    \b
    Examples:
      mq-admin groups describe billing
      mq-admin groups describe billing audit -o json
    """
    outcomes = session.groups.describe_groups(groups).values()
    described = [group for each in outcomes if (group := session.keep(each)) is not None]
    if session.output != "text":
        session.show_data([_described(group) for group in described])
        return
    for number, group in enumerate(described):
        if number:
            click.echo()
        _show(session, group)


def _show(session: Session, group: GroupDescription) -> None:
    show_pairs(
        [
            ("group", group.group),
            ("state", group.state),
            ("protocol type", group.protocol_type),
            ("assignor", group.protocol),
            ("coordinator", coordinator_text(session, group.coordinator)),
            ("members", len(group.members)),
        ]
    )
    if group.members:
        click.echo()
        rows = [_member(each) | {"partitions": _assigned_text(each)} for each in group.members]
        show_table(rows, _MEMBER_COLUMNS)


def _described(group: GroupDescription) -> Row:
    return {
        "group": group.group,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.protocol,
        "coordinator": group.coordinator,
        "members": [_member(member) for member in group.members],
    }


def _member(member: MemberDescription) -> Row:
    subscription, assignment = member.subscription, member.assignment
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "subscription": None
        if subscription is None
        else {
            "topics": list(subscription.topics),
            "owned": None if subscription.owned is None else by_topic(subscription.owned),
            "generation": subscription.generation,
            "rack": subscription.rack,
        },
        "metadata_bytes": member.metadata_bytes,
        "assignment": None if assignment is None else by_topic(assignment.partitions),
        "assignment_bytes": member.assignment_bytes,
    }


def _assigned_text(member: MemberDescription) -> str:
    if member.assignment is None:
        return f"{member.assignment_bytes} bytes, not decoded"
    return " ".join(
        f"{each['topic']}:{','.join(map(str, each['partitions']))}"
        for each in by_topic(member.assignment.partitions)
    )
