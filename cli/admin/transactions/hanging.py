"""mq-admin transactions hanging."""

import time
from typing import Final

import click

from metaquorum.cli.admin.common.scopes import parse_scopes, topics_option
from metaquorum.cli.admin.common.session import Session, session_command
from metaquorum.cli.common.output import Column, Row
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.errors import AdminError, BrokerError
from metaquorum.client.groups.explanation.words import duration
from metaquorum.client.transactions.hanging import DEFAULT_MAX_TIMEOUT_S
from metaquorum.client.transactions.values import HangingTransaction, OpenTransaction
from metaquorum.wire.primitives.errors import ErrorCode

_COLUMNS: Final = (
    Column("topic"),
    Column("partition"),
    Column("start_offset"),
    Column("producer_id", "producer-id"),
    Column("producer_epoch", "epoch"),
    Column("coordinator_epoch", "coordinator-epoch"),
    Column("idle_s", "last-record", lambda seconds: f"{duration(seconds)} ago"),
    Column("transactional_id", "transactional-id"),
    Column("why"),
)


@click.command("hanging", short_help="Find transactions that no coordinator will end.")
@topics_option("Topic, or some of its partitions, to search; repeatable.  [default: all topics]")
@click.option("--node", "node_id", type=int, help="Only partitions with a replica on this node.")
@click.option(
    "--max-transaction-timeout",
    "minutes",
    type=click.FloatRange(0, 1e9),
    default=DEFAULT_MAX_TIMEOUT_S / 60,
    show_default=True,
    metavar="MINUTES",
    help="Longest transaction timeout in use: younger transactions are not searched.",
)
@session_command
def hanging_command(
    session: Session, topics: tuple[str, ...], node_id: int | None, minutes: float
) -> None:
    """Find transactions that are open in a partition, and that no coordinator will end.

    read_committed does not advance in their partitions until `mq-admin transactions abort`. The
    search is that of Kafka's kafka-transactions (KIP-664).

    \b
    Examples:
      mq-admin transactions hanging
      mq-admin transactions hanging --topic orders:0 --max-transaction-timeout 1
      mq-admin transactions hanging --node 2 -o json
    """
    partitions = _partitions(session, topics, node_id)
    found = session.transactions.find_hanging(
        partitions, node_id=node_id, max_timeout_s=minutes * 60
    )
    for failure in found.failures:
        session.report(failure)
    for unknown in found.unknown:
        text = f"the transaction at offset {unknown.start_offset} of {unknown.where} may hang"
        session.report(AdminError(f"{text}: not all coordinators answered"))
    now_ms = time.time() * 1000
    rows = [_row(each, now_ms) for each in found.hanging]
    if rows or session.output != "text":
        session.show_rows(rows, _COLUMNS)
        for each in found.hanging:
            session.note(f"`{abort_text(each.open)}` aborts it")
    elif not session.has_failed:
        session.note("No hanging transactions.")


def abort_text(open_: OpenTransaction) -> str:
    """Return the command that aborts a transaction in its partition."""
    where = f"{open_.where.topic}:{open_.where.partition}"
    return f"mq-admin transactions abort {where} --start-offset {open_.start_offset}"


def _partitions(
    session: Session, texts: tuple[str, ...], node_id: int | None
) -> list[TopicPartition]:
    """Return the partitions of the scopes with a replica on the node; report absent ones."""
    scopes = parse_scopes(texts)
    if scopes:
        described = session.admin.describe_topics([scope.topic for scope in scopes])
        topics = {name: each for name, one in described.items() if (each := session.keep(one))}
        chosen = {}
        for scope in scopes:
            if (topic := topics.get(scope.topic)) is None:
                continue
            there = {partition.index: partition for partition in topic.partitions}
            for index in there if scope.partitions is None else scope.partitions:
                where = TopicPartition(scope.topic, index)
                if index in there:
                    chosen[where] = there[index]
                else:
                    session.report(AdminError(f"partition {where} does not exist"))
    else:
        chosen = {
            TopicPartition(topic.name, partition.index): partition
            for topic in session.admin.topics()
            for partition in topic.partitions
        }
    if node_id is not None:
        if node_id not in session.cluster.nodes:
            text = "there is no such node"
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, text, f"node {node_id}")
        return [where for where, partition in chosen.items() if node_id in partition.replicas]
    for where in [where for where, partition in chosen.items() if partition.leader is None]:
        session.report(AdminError(f"partition {where} has no leader, and is not searched"))
        del chosen[where]
    return list(chosen)


def _row(each: HangingTransaction, now_ms: float) -> Row:
    producer = each.open.producer
    return {
        "topic": each.open.where.topic,
        "partition": each.open.where.partition,
        "start_offset": each.open.start_offset,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": producer.coordinator_epoch,
        "last_timestamp_ms": producer.last_timestamp_ms,
        "idle_s": max(0.0, round((now_ms - producer.last_timestamp_ms) / 1000, 3)),
        "transactional_id": each.transactional_id,
        "why": each.why,
    }
