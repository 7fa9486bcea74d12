"""Arguments and options of several commands of groups."""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from cli.admin.common.session import (
    COMPLETION_TIMEOUT_S,
    INT32_MAX,
    Session,
    complete_topics,
    merged,
)
from cli.common.settings import resolve
from metaquorum.client.errors import AdminError
from metaquorum.client.groups.blocking import BlockingGroupAdmin
from metaquorum.client.groups.values import GroupList
from metaquorum.client.socket_transport import connect
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.runtime.whole_numbers import whole_number
from wire.primitives.errors import KafkaError, WireError

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def complete_groups(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the groups that start with `incomplete`; none if the cluster answers too late."""
    try:
        settings = resolve(merged(ctx, ctx.params), os.environ)
        with connect(
            settings.bootstrap, timeout_s=COMPLETION_TIMEOUT_S, security=settings.security
        ) as cluster:
            names = [each.group for each in BlockingGroupAdmin(cluster).list_groups().groups]
    except (KafkaError, AdminError, WireError, ValueError, click.UsageError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def groups_argument(*, required: bool = True) -> Decorator:
    return click.argument(
        "groups", metavar="GROUP...", nargs=-1, required=required, shell_complete=complete_groups
    )


def topics_option(text: str) -> Decorator:
    return click.option(
        "--topic",
        "topics",
        multiple=True,
        metavar="TOPIC[:PARTITION,...]",
        help=text,
        shell_complete=complete_topics,
    )


def report_missing(session: Session, found: GroupList) -> None:
    """Report the nodes and partitions whose groups are missing in a list."""
    for error in found.failures.values():
        session.report(error)
    if count := len(found.lost_partitions):
        lost = "1 partition" if count == 1 else f"{count} partitions"
        text = f"{lost} of {CONSUMER_OFFSETS} {'has' if count == 1 else 'have'} no leader"
        session.report(AdminError(f"groups are missing: {text}"))


class Scope(NamedTuple):
    """A topic, and some of its partitions (None: all)."""

    topic: str
    partitions: tuple[int, ...] | None


def parse_scopes(texts: Sequence[str]) -> list[Scope]:
    """Parse TOPIC and TOPIC:PARTITION,... texts. Raises click.UsageError for any other text."""
    return [_parse_scope(text) for text in texts]


def _parse_scope(text: str) -> Scope:
    topic, colon, indexes = text.partition(":")  # a topic name has no colon
    if not colon and topic:
        return Scope(topic, None)
    numbers = [whole_number(index, INT32_MAX) for index in indexes.split(",")]
    partitions = tuple(dict.fromkeys(number for number in numbers if number is not None))
    if not topic or None in numbers:
        raise click.UsageError(f"--topic takes TOPIC or TOPIC:PARTITION,..., not {text!r}")
    return Scope(topic, partitions)
