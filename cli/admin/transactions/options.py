"""Arguments of several commands of transactions."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

from cli.admin.common.session import COMPLETION_TIMEOUT_S, INT32_MAX, Session, merged
from cli.common.settings import resolve
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.errors import AdminError
from metaquorum.client.socket_transport import connect
from metaquorum.client.transactions.blocking import BlockingTransactionAdmin
from metaquorum.client.transactions.values import TransactionList
from metaquorum.metadata.internal_topics import TRANSACTION_STATE
from metaquorum.runtime.whole_numbers import whole_number
from wire.primitives.errors import KafkaError, WireError


def complete_transactional_ids(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the ids that start with `incomplete`; none if the cluster answers too late."""
    try:
        settings = resolve(merged(ctx, ctx.params), os.environ)
        with connect(
            settings.bootstrap, timeout_s=COMPLETION_TIMEOUT_S, security=settings.security
        ) as cluster:
            found = BlockingTransactionAdmin(cluster).list_transactions().transactions
    except (KafkaError, AdminError, WireError, ValueError, click.UsageError):
        return []
    names = [each.transactional_id for each in found]
    return [name for name in names if name.startswith(incomplete)]


class Scope(NamedTuple):
    """A topic, and some of its partitions (None: all)."""

    topic: str
    partitions: tuple[int, ...] | None


def parse_scope(text: str) -> Scope:
    """Parse TOPIC or TOPIC:PARTITION,... Raises click.UsageError for any other text."""
    topic, colon, indexes = text.partition(":")  # a topic name has no colon
    if not colon and topic:
        return Scope(topic, None)
    numbers = [whole_number(index, INT32_MAX) for index in indexes.split(",")]
    partitions = tuple(dict.fromkeys(number for number in numbers if number is not None))
    if not topic or None in numbers:
        raise click.UsageError(f"{text!r} is not TOPIC or TOPIC:PARTITION,...")
    return Scope(topic, partitions)


def parse_partition(text: str) -> TopicPartition:
    """Parse TOPIC:PARTITION. Raises click.UsageError for any other text."""
    scope = parse_scope(text)
    if scope.partitions is None or len(scope.partitions) != 1:
        raise click.UsageError(f"{text!r} is not TOPIC:PARTITION")
    return TopicPartition(scope.topic, scope.partitions[0])


def report_missing(session: Session, found: TransactionList) -> None:
    """Report the nodes and partitions whose transactional ids are missing in a list."""
    for error in found.failures.values():
        session.report(error)
    if count := len(found.lost_partitions):
        lost = "1 partition" if count == 1 else f"{count} partitions"
        text = f"{lost} of {TRANSACTION_STATE} {'has' if count == 1 else 'have'} no leader"
        session.report(AdminError(f"transactional ids are missing: {text}"))


def by_topic(partitions: Sequence[TopicPartition]) -> list[Mapping[str, object]]:
    """Return partitions as data: a row per topic, with its indexes."""
    indexes: dict[str, list[int]] = {}
    for where in partitions:
        indexes.setdefault(where.topic, []).append(where.partition)
    return [{"topic": topic, "partitions": own} for topic, own in indexes.items()]
