"""mq-admin transactions list, describe and producers."""

import fnmatch
import time
from typing import Final

import click

from metaquorum.cli.admin.common.coordinators import coordinator_text, report_missing
from metaquorum.cli.admin.common.scopes import by_topic, parse_partition
from metaquorum.cli.admin.common.session import INT64_MAX, Session, complete_topics, session_command
from metaquorum.cli.admin.transactions.options import complete_transactional_ids
from metaquorum.cli.common.output import Column, Row, show_pairs
from metaquorum.cli.common.times import iso_text
from metaquorum.client.groups.explanation.words import duration, ranges
from metaquorum.client.transactions.values import STATES, ProducerState, TransactionDescription
from metaquorum.metadata.internal_topics import TRANSACTION_STATE

_LIST_COLUMNS: Final = (
    Column("transactional_id", "transactional-id"),
    Column("state"),
    Column("producer_id", "producer-id"),
    Column("coordinator"),
)
_PRODUCER_COLUMNS: Final = (
    Column("producer_id", "producer-id"),
    Column("producer_epoch", "epoch"),
    Column("coordinator_epoch", "coordinator-epoch"),
    Column("last_sequence", "last-sequence"),
    Column("last_timestamp_ms", "last-time", iso_text),
    Column("start_offset", "open-since-offset"),
)


@click.command("list", short_help="List transactional ids.")
@click.option("--match", "pattern", metavar="PATTERN", help="Only ids that match (with * and ?).")
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    metavar="STATE",
    help="Only ids in this state, such as Ongoing; repeatable.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    type=click.IntRange(0, INT64_MAX),
    multiple=True,
    metavar="NUMBER",
    help="Only the id with this producer id; repeatable.",
)
@click.option(
    "--longer-than",
    type=click.FloatRange(0, 1e9),
    metavar="SECONDS",
    help="Only transactions that are open for longer.",
)
@session_command
def list_command(
    session: Session,
    pattern: str | None,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than: float | None,
) -> None:
    """List the transactional ids of all nodes, with state, producer id and coordinator.

    A node that cannot be reached is reported, and its ids are missing; so are ids whose partition
    of __transaction_state has no leader.

    \b
    Examples:
      mq-admin transactions list
      mq-admin transactions list --match 'billing-*' --state Ongoing
      mq-admin transactions list --longer-than 300 -o json
    """
    found = session.transactions.list_transactions(
        states=states,
        producer_ids=producer_ids,
        min_duration_ms=-1 if longer_than is None else int(longer_than * 1000),
    )
    report_missing(session, found, "transactional ids", TRANSACTION_STATE)
    rows = [
        {
            "transactional_id": each.transactional_id,
            "state": each.state,
            "producer_id": each.producer_id,
            "coordinator": each.coordinator,
        }
        for each in found.transactions
        if pattern is None or fnmatch.fnmatchcase(each.transactional_id, pattern)
        # The filter of brokers keeps ids without a transaction.
        if longer_than is None or each.is_active
    ]
    if rows or session.output != "text":
        session.show_rows(rows, _LIST_COLUMNS)
    elif found.is_complete:
        filtered = states or producer_ids or pattern or longer_than is not None
        session.note("No transactional id matches." if filtered else "No transactional ids.")


@click.command("describe", short_help="Describe transactional ids and their transactions.")
@click.argument(
    "transactional_ids",
    metavar="TRANSACTIONAL-ID...",
    nargs=-1,
    required=True,
    shell_complete=complete_transactional_ids,
)
@session_command
def describe_command(session: Session, transactional_ids: tuple[str, ...]) -> None:
    """Describe transactional ids: state, producer, timeout, and the partitions of a transaction.

    The partitions of a prepared transaction are those without a marker.

    \b
    Examples:
      mq-admin transactions describe billing-1
      mq-admin transactions describe billing-1 billing-2 -o json
    """
    outcomes = session.transactions.describe_transactions(transactional_ids).values()
    described = [each for outcome in outcomes if (each := session.keep(outcome)) is not None]
    now_ms = int(time.time() * 1000)
    if session.output != "text":
        session.show_data([_data(each, now_ms) for each in described])
        return
    for number, each in enumerate(described):
        if number:
            click.echo()
        _show(session, each, now_ms)


def _show(session: Session, each: TransactionDescription, now_ms: int) -> None:
    pairs: list[tuple[str, object]] = [
        ("transactional id", each.transactional_id),
        ("state", each.state),
        ("producer id", each.producer_id),
        ("producer epoch", each.producer_epoch),
        ("timeout", duration(each.timeout_ms / 1000)),
        ("coordinator", coordinator_text(session, each.coordinator)),
    ]
    if each.start_time_ms is not None:
        ago = duration(max(0, now_ms - each.start_time_ms) / 1000)
        title = "started" if each.is_active else "last started"
        pairs.append((title, f"{iso_text(each.start_time_ms)} ({ago} ago)"))
    if each.partitions:
        title = "without marker" if each.is_prepared else "partitions"
        pairs.append((title, ranges(each.partitions)))
    show_pairs(pairs)


def _data(each: TransactionDescription, now_ms: int) -> Row:
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "timeout_ms": each.timeout_ms,
        "start_time_ms": each.start_time_ms,
        "duration_ms": max(0, now_ms - each.start_time_ms)
        if each.is_active and each.start_time_ms is not None
        else None,
        "coordinator": each.coordinator,
        "partitions": by_topic(each.partitions),
    }


@click.command("producers", short_help="Show the producers that a partition remembers.")
@click.argument("partition", metavar="TOPIC:PARTITION", shell_complete=complete_topics)
@click.option("--node", "node_id", type=int, help="Of the replica on this node.  [default: leader]")
@session_command
def producers_command(session: Session, partition: str, node_id: int | None) -> None:
    """Show the idempotent and transactional producers of a partition, and their open transactions.

    \b
    Examples:
      mq-admin transactions producers orders:0
      mq-admin transactions producers orders:0 --node 2 -o json
    """
    where = parse_partition(partition)
    outcome = session.transactions.describe_producers([where], node_id)[where]
    producers = session.keep(outcome)
    if producers is None:
        return
    rows = [producer_row(each) for each in sorted(producers, key=lambda one: one.producer_id)]
    if rows or session.output != "text":
        session.show_rows(rows, _PRODUCER_COLUMNS)
    else:
        session.note("No producers.")


def producer_row(producer: ProducerState) -> Row:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": producer.coordinator_epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp_ms": producer.last_timestamp_ms,
        "start_offset": producer.start_offset,
    }
