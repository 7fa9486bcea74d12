"""Arguments of several commands of groups."""

from collections.abc import Callable

import click

from metaquorum.cli.admin.common import coordinators
from metaquorum.cli.admin.common.session import Session, completions
from metaquorum.client.groups.blocking import BlockingGroupAdmin
from metaquorum.client.groups.values import GroupList
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def complete_groups(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return completions(
        ctx,
        incomplete,
        lambda cluster: [each.group for each in BlockingGroupAdmin(cluster).list_groups().groups],
    )


def groups_argument(*, required: bool = True) -> Decorator:
    return click.argument(
        "groups", metavar="GROUP...", nargs=-1, required=required, shell_complete=complete_groups
    )


def report_missing(session: Session, found: GroupList) -> None:
    """Report the nodes and partitions whose groups are missing in a list."""
    coordinators.report_missing(session, found, "groups", CONSUMER_OFFSETS)
