"""Rows and columns for the health of partitions, and for the failures that a topic survives."""

from collections.abc import Iterable, Sequence
from typing import Final

from metaquorum.cli.admin.common.session import Session
from metaquorum.cli.common.output import Column, Row
from metaquorum.cli.common.times import ago_text
from metaquorum.client.administration.health import MissingReplica, PartitionHealth, Trouble
from metaquorum.client.administration.topic_survival import (
    NEVER,
    Place,
    Placed,
    Sentence,
    TopicFacts,
)
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.values import ConfigResource, Eligible, ResourceType, Topic

TROUBLE_COLUMNS: Final = (
    Column("topic"),
    Column("partitions"),
    *(Column(trouble.name.lower(), trouble.value) for trouble in Trouble),
)
HEALTH_COLUMNS: Final = (
    Column("partition"),
    Column("leader"),
    Column("replicas"),
    Column("isr"),
    Column("min_isr", "min ISR"),
    Column("troubles", "is"),
    Column("eligible", "eligible"),
    Column("last_leader", "last leader"),
    Column("missing_text", "missing"),
)
_ONLY_WHERE_ANY: Final = ("eligible", "last_leader")


def health_columns(partitions: Iterable[PartitionHealth]) -> list[Column]:
    """Return the columns, without optional ones that are empty for all these partitions."""
    rows = [health_row(each) for each in partitions]
    return [
        column
        for column in HEALTH_COLUMNS
        if column.key not in _ONLY_WHERE_ANY or any(row[column.key] for row in rows)
    ]


def health_row(partition: PartitionHealth) -> Row:
    return {
        "partition": partition.index,
        "leader": partition.leader,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "min_isr": partition.min_isr,
        "eligible": list(partition.eligible.replicas),
        "last_leader": partition.eligible.last_leader,
        "troubles": [trouble.value for trouble in partition.troubles],
        "missing": [
            {"node": one.node, "why": one.why, "lag": one.lag, "since_ms_ago": one.since_ms_ago}
            for one in partition.missing
        ],
    }


def shown_health_row(partition: PartitionHealth) -> Row:
    """Return the row of a table."""
    row = health_row(partition)
    row["troubles"] = ", ".join(row["troubles"]) or "healthy"
    row["missing_text"] = "; ".join(map(_missing_text, partition.missing))
    return row


def _missing_text(missing: MissingReplica) -> str:
    words = [f"{missing.node}: {missing.why}"]
    if missing.lag:
        words.append(f"{missing.lag} records behind")
    if missing.since_ms_ago is not None:
        words.append(f"caught up {ago_text(missing.since_ms_ago)}")
    return ", ".join(words)


def trouble_rows(found: Iterable[PartitionHealth]) -> list[Row]:
    """Return a row for each topic with unhealthy partitions."""
    by_topic: dict[str, list[PartitionHealth]] = {}
    for partition in found:
        by_topic.setdefault(partition.topic, []).append(partition)
    return [
        {"topic": topic, "partitions": len(partitions)}
        | {
            trouble.name.lower(): sum(trouble in one.troubles for one in partitions)
            for trouble in Trouble
        }
        for topic, partitions in by_topic.items()
        if any(one.troubles for one in partitions)
    ]


def topic_facts(session: Session, topic: Topic) -> TopicFacts:
    """Return the configs and replicas that determine which failures the topic survives."""
    names = ("min.insync.replicas", "unclean.leader.election.enable", "flush.messages", "flush.ms")
    configs = {
        entry.name: entry.value or ""
        for entry in session.admin.describe_configs(
            ConfigResource(ResourceType.TOPIC, topic.name), names
        )
    }
    eligible = session.admin.describe_eligible([topic.name])
    return TopicFacts(
        [
            Placed(
                one.index,
                one.leader,
                one.replicas,
                one.isr,
                eligible.get(TopicPartition(topic.name, one.index), Eligible()),
                one.adding,
                one.removing,
            )
            for one in topic.partitions
        ],
        int(configs.get("min.insync.replicas") or 1),
        configs.get("unclean.leader.election.enable") == "true",
        int(configs.get("flush.messages") or NEVER),
        int(configs.get("flush.ms") or NEVER),
        {worker.worker_id: Place(worker.host, worker.rack) for worker in session.admin.workers()},
    )


def sentence_rows(sentences: Sequence[Sentence]) -> list[Row]:
    return [{"about": one.about, "level": one.level.value, "text": one.text} for one in sentences]
