"""mq-admin transactions explain: why read_committed does not advance."""

from collections.abc import Sequence
from typing import Any, Final

import click

from metaquorum.cli.admin.common.scopes import by_topic, parse_scope
from metaquorum.cli.admin.common.session import Session, complete_topics, session_command
from metaquorum.cli.admin.transactions.describe import producer_row
from metaquorum.cli.common.output import Column, Row, printable, show_table
from metaquorum.cli.common.times import iso_text
from metaquorum.client.administration.topic_survival import Level, Sentence
from metaquorum.client.transactions.stall_explanation import explain
from metaquorum.client.transactions.stall_facts import StallFacts, StallingTransaction

MAX_TRANSACTIONS: Final = 20  # in the table of a partition
_MARKS: Final = {Level.GOOD: "+", Level.NOTE: "-", Level.BAD: "!"}
_TRANSACTIONS: Final = (
    Column("start_offset"),
    Column("transactional_id", "transactional-id"),
    Column("state"),
    Column("producer_id", "producer-id"),
    Column("producer_epoch", "epoch"),
    Column("start_time_ms", "began", iso_text),
    Column("timeout_at_ms", "times-out", iso_text),
    Column("coordinator"),
)


@click.command("explain", short_help="Explain why read_committed does not advance.")
@click.argument("scope", metavar="TOPIC[:PARTITION,...]", shell_complete=complete_topics)
@session_command
def explain_command(session: Session, scope: str) -> None:
    """Explain why read_committed does not advance: which transaction holds it, and what ends it.

    Sentences with ! name a problem, those with - something to know. Without partitions, those of
    the topic in which nothing waits are counted only. Offsets include the markers of transactions.

    \b
    Examples:
      mq-admin transactions explain orders
      mq-admin transactions explain orders:0
      mq-admin transactions explain orders -o json
    """
    topic, partitions = parse_scope(scope)
    found = session.transactions.gather_stalls(topic, partitions)
    for failure in found.failures:
        session.report(failure)
    explained = [(each, explain(each)) for each in found.partitions]
    if session.output != "text":
        session.show_data([_data(facts, sentences) for facts, sentences in explained])
        return
    _show(session, explained, partitions is None)


def _show(
    session: Session, explained: Sequence[tuple[StallFacts, list[Sentence]]], whole_topic: bool
) -> None:
    shown = 0
    for facts, sentences in explained:
        if whole_topic and len(explained) > 1 and sentences[0].level is Level.GOOD:
            continue
        if shown:
            click.echo()
        shown += 1
        click.echo(printable(f"{facts.where.topic}:{facts.where.partition}"))
        for each in sentences:
            click.echo(printable(f"{_MARKS[each.level]} {each.about}: {each.text}"))
        if len(facts.transactions) > 1:
            click.echo()
            first = facts.transactions[:MAX_TRANSACTIONS]
            show_table([_transaction(each) for each in first], _TRANSACTIONS)
    if rest := len(explained) - shown:
        if shown:
            click.echo()
        what = "1 partition" if rest == 1 else f"{rest} partitions"
        click.echo(f"{_MARKS[Level.GOOD]} read_committed reads everything in {what}")


def _transaction(each: StallingTransaction) -> Row:
    description = each.description
    is_own = description is not None and each.why_hanging is None
    start_ms = description.start_time_ms if description is not None and is_own else None
    return {
        **producer_row(each.open.producer),
        "transactional_id": None if description is None else description.transactional_id,
        "state": "hanging"
        if each.why_hanging
        else "unknown"
        if description is None
        else description.state,
        "start_time_ms": start_ms,
        "timeout_at_ms": None
        if start_ms is None or description is None or description.is_prepared
        else start_ms + description.timeout_ms,
        "coordinator": None if description is None else description.coordinator,
        "why_hanging": each.why_hanging,
    }


def _data(facts: StallFacts, sentences: list[Sentence]) -> dict[str, Any]:
    health = facts.health
    return {
        "topic": facts.where.topic,
        "partition": facts.where.partition,
        "leader": health.leader,
        "isr": list(health.isr),
        "min_isr": health.min_isr,
        "last_stable_offset": facts.last_stable_offset,
        "high_watermark": facts.high_watermark,
        "is_moving": facts.is_moving,
        "findings": [
            {"about": each.about, "level": each.level.value, "text": each.text}
            for each in sentences
        ],
        "transactions": [
            {
                **_transaction(each),
                "partitions": []
                if each.description is None
                else by_topic(each.description.partitions),
            }
            for each in facts.transactions
        ],
    }
