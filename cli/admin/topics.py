"""mq-admin topics."""

import fnmatch
import textwrap
from collections.abc import Iterable, Sequence

import click

from metaquorum.cli.admin.common.session import (
    INT32_MAX,
    Session,
    dry_run_option,
    parse_assignments,
    session_command,
    topic_argument,
    yes_option,
)
from metaquorum.cli.admin.health import (
    TROUBLE_COLUMNS,
    health_columns,
    health_row,
    sentence_rows,
    shown_health_row,
    topic_facts,
    trouble_rows,
)
from metaquorum.cli.common.output import Column, Row, printable, show_pairs, show_table
from metaquorum.client.administration.admin import EARLIEST, LATEST
from metaquorum.client.administration.health import needs_look
from metaquorum.client.administration.topic_survival import Level, explain
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.errors import AdminError, BrokerError, InterruptedChangeError
from metaquorum.client.values import (
    BROKER_DEFAULT,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
    Topic,
)
from metaquorum.wire.primitives.errors import ErrorCode

_LIST_COLUMNS = (
    Column("topic"),
    Column("partitions"),
    Column("replication_factor", "replicas"),
    Column("under_replicated"),
)
_PARTITION_COLUMNS = (
    Column("partition"),
    Column("leader"),
    Column("leader_epoch", "epoch"),
    Column("replicas"),
    Column("isr"),
    Column("offline"),
    Column("start_offset"),
    Column("end_offset"),
)
# Shown while a partition moves.
_MOVE_COLUMNS = (Column("adding"), Column("removing"))


@click.group("topics", short_help="List, describe, create, alter and delete topics.")
def command() -> None:
    """List, describe, create, alter and delete topics."""


@command.command("list")
@click.argument("pattern", required=False)
@click.option("--internal", is_flag=True, help="Include internal topics.")
@click.option("--unhealthy", is_flag=True, help="Only topics with unhealthy partitions.")
@session_command
def list_topics(session: Session, pattern: str | None, internal: bool, unhealthy: bool) -> None:
    """List all topics, or those whose names match PATTERN (with * and ?).

    --unhealthy shows for each topic the number of partitions that are offline (no leader), under
    min ISR (acks=all is rejected), at min ISR (one more failure puts them under min ISR) and
    under-replicated; `topics describe --health` shows the reason.

    \b
    Examples:
      mq-admin topics list
      mq-admin topics list 'orders-*'
      mq-admin topics list --unhealthy
      mq-admin topics list -o json
    """
    topics = [
        topic
        for topic in session.admin.topics()
        if (internal or not topic.is_internal)
        and (pattern is None or fnmatch.fnmatchcase(topic.name, pattern))
    ]
    if unhealthy:
        _list_unhealthy(session, topics)
        return
    rows: list[Row] = [
        {
            "topic": topic.name,
            "id": topic.topic_id,
            "partitions": len(topic.partitions),
            "replication_factor": topic.replication_factor,
            "under_replicated": topic.under_replicated,
            "internal": topic.is_internal,
        }
        for topic in topics
    ]
    if rows or session.output != "text":
        session.show_rows(rows, _LIST_COLUMNS)
    else:
        session.note("No topics." if pattern is None else f"No topic matches {pattern}.")


def _list_unhealthy(session: Session, topics: Iterable[Topic]) -> None:
    ill = [topic for topic in topics if any(map(needs_look, topic.partitions))]
    rows = trouble_rows(session.admin.describe_health(ill))
    if rows or session.output != "text":
        session.show_rows(rows, TROUBLE_COLUMNS)
    else:
        session.note("All partitions have a leader, and all replicas are in sync.")


@command.command("describe")
@topic_argument(many=True)
@click.option(
    "--no-offsets", is_flag=True, help="Do not request start and end offsets from the leaders."
)
@click.option("--health", is_flag=True, help="Show the health of each partition, with reasons.")
@session_command
def describe(session: Session, topics: tuple[str, ...], no_offsets: bool, health: bool) -> None:
    """Describe topics: their configs, and each partition with its replicas and offsets.

    --health shows the replicas outside the ISR of each partition: the reason, their lag in records
    and the time when they were last caught up, if the cluster provides them.

    \b
    Examples:
      mq-admin topics describe orders
      mq-admin topics describe orders --health
      mq-admin topics describe orders payments -o yaml
    """
    if health:
        _describe_health(session, topics)
        return
    described = []
    for outcome in session.admin.describe_topics(topics).values():
        topic = session.keep(outcome)
        if topic is not None:
            described.append(_describe(session, topic, offsets=not no_offsets))
    if session.output != "text":
        session.show_data(described)
        return
    for number, data in enumerate(described):
        if number:
            click.echo()
        _show(data)


def _describe_health(session: Session, names: tuple[str, ...]) -> None:
    outcomes = session.admin.describe_topics(names).values()
    topics = [topic for outcome in outcomes if (topic := session.keep(outcome)) is not None]
    found = session.admin.describe_health(topics)
    if session.output != "text":
        session.show_data(
            [
                {
                    "topic": topic.name,
                    "id": topic.topic_id,
                    "partitions": [health_row(one) for one in found if one.topic == topic.name],
                }
                for topic in topics
            ]
        )
        return
    for number, topic in enumerate(topics):
        if number:
            click.echo()
        show_pairs([("topic", topic.name), ("partitions", len(topic.partitions))])
        click.echo()
        own = [one for one in found if one.topic == topic.name]
        show_table([shown_health_row(one) for one in own], health_columns(own))


@command.command("explain")
@topic_argument()
@session_command
def explain_topic(session: Session, topic: str) -> None:
    """Explain which failures a topic survives, with its configs and its replicas as they are now.

    \b
    Examples:
      mq-admin topics explain orders
      mq-admin topics explain orders -o json
    """
    (outcome,) = session.admin.describe_topics([topic]).values()
    if isinstance(outcome, BrokerError):
        raise outcome
    facts = topic_facts(session, outcome)
    sentences = explain(facts)
    if session.output != "text":
        data = {
            "topic": outcome.name,
            "replication_factor": facts.replication_factor,
            "min_insync_replicas": facts.min_isr,
            "unclean_leader_election": facts.unclean_election,
            "flush_messages": facts.flush_messages,
            "flush_ms": facts.flush_ms,
            "sentences": sentence_rows(sentences),
        }
        session.show_data(data)
        return
    marks = {Level.GOOD: "+", Level.NOTE: " ", Level.BAD: "!"}
    for sentence in sentences:
        indent = " " * 16
        text = f"{marks[sentence.level]} {sentence.about:<14}{sentence.text}"
        click.echo(textwrap.fill(printable(text), 96, subsequent_indent=indent))


def _describe(session: Session, topic: Topic, *, offsets: bool) -> Row:
    resource = ConfigResource(ResourceType.TOPIC, topic.name)
    own = [
        entry
        for entry in session.admin.describe_configs(resource)
        if entry.source is ConfigSource.DYNAMIC_TOPIC
    ]
    starts, ends = _offsets(session, topic) if offsets else ({}, {})
    return {
        "topic": topic.name,
        "id": topic.topic_id,
        "internal": topic.is_internal,
        "replication_factor": topic.replication_factor,
        "configs": {entry.name: entry.value for entry in own},
        "partitions": [
            {
                "partition": partition.index,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "offline": list(partition.offline),
                "adding": list(partition.adding),
                "removing": list(partition.removing),
                "start_offset": starts.get(partition.index),
                "end_offset": ends.get(partition.index),
            }
            for partition in topic.partitions
        ],
    }


def _offsets(session: Session, topic: Topic) -> tuple[dict[int, int], dict[int, int]]:
    """Return the start and end offsets of the partitions that have a leader."""
    led = [TopicPartition(topic.name, p.index) for p in topic.partitions if p.leader is not None]
    found: list[dict[int, int]] = []
    for time in (EARLIEST, LATEST):
        offsets: dict[int, int] = {}
        for where, outcome in session.admin.list_offsets(dict.fromkeys(led, time)).items():
            answer = session.keep(outcome)
            if answer is not None:
                offsets[where.partition] = answer.offset
        found.append(offsets)
    return found[0], found[1]


def _show(data: Row) -> None:
    configs = " ".join(f"{name}={value}" for name, value in data["configs"].items())
    show_pairs(
        [
            ("topic", data["topic"]),
            ("id", data["id"]),
            ("partitions", len(data["partitions"])),
            ("replicas", data["replication_factor"]),
            ("configs", configs),
        ]
    )
    click.echo()
    is_moving = any(row["adding"] or row["removing"] for row in data["partitions"])
    show_table(data["partitions"], _PARTITION_COLUMNS + (_MOVE_COLUMNS if is_moving else ()))


@command.command("create")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "-p", "--partitions", type=click.IntRange(1, INT32_MAX), help="[default: the cluster's]"
)
@click.option(
    "-r", "--replication-factor", type=click.IntRange(1, 32767), help="[default: the cluster's]"
)
@click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Config of the topic; repeatable.",
)
@click.option("--if-not-exists", is_flag=True, help="Do not fail if a topic exists already.")
@dry_run_option
@session_command
def create(
    session: Session,
    topics: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
) -> None:
    """Create topics.

    \b
    Examples:
      mq-admin topics create orders
      mq-admin topics create orders --partitions 6 --replication-factor 3
      mq-admin topics create latest-prices -c cleanup.policy=compact -c retention.ms=-1
    """
    wanted = [
        NewTopic(
            name,
            partitions or BROKER_DEFAULT,
            replication_factor or BROKER_DEFAULT,
            parse_assignments(configs, "--config"),
        )
        for name in topics
    ]
    outcomes = session.admin.create_topics(wanted, validate_only=dry_run)
    created: list[Row] = []
    for name, outcome in outcomes.items():
        if if_not_exists and _is(outcome, ErrorCode.TOPIC_ALREADY_EXISTS):
            session.say(f"{name} exists already")
            continue
        made = session.keep(outcome)
        if made is None:
            continue
        row = {
            "topic": name,
            "id": made.topic_id,
            "partitions": made.partitions,
            "replication_factor": made.replication_factor,
        }
        created.append(row)
        verb = "would be created" if dry_run else "created"
        session.say(f"{name} {verb}: {_size(made.partitions, made.replication_factor)}")
    if session.output != "text":
        session.show_data(created)


def _size(partitions: int, replication_factor: int) -> str:
    plural = "" if partitions == 1 else "s"
    return f"{partitions} partition{plural}, replication factor {replication_factor}"


def _is(outcome: object, code: ErrorCode) -> bool:
    return isinstance(outcome, BrokerError) and outcome.code is code


@command.command("alter")
@topic_argument()
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(1, INT32_MAX),
    help="New number of partitions, higher than the current one.",
)
@click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Config to set; repeatable.",
)
@click.option(
    "--unset", multiple=True, metavar="KEY", help="Config to reset to its default; repeatable."
)
@dry_run_option
@session_command
def alter(
    session: Session,
    topic: str,
    partitions: int | None,
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Change a topic's configs, or add partitions to it.

    Partitions can only be added; afterwards producers send keys to other partitions than before.

    \b
    Examples:
      mq-admin topics alter orders --config retention.ms=86400000
      mq-admin topics alter orders --unset retention.ms
      mq-admin topics alter orders --partitions 12
    """
    changes = [
        *_changes(parse_assignments(configs, "--config").items(), ConfigOperation.SET),
        *_changes([(name, None) for name in unset], ConfigOperation.DELETE),
    ]
    if not changes and partitions is None:
        raise click.UsageError("specify a change: --config, --unset or --partitions")
    if changes:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        session.admin.alter_configs(resource, changes, validate_only=dry_run)
    if partitions is not None:
        try:
            session.admin.create_partitions(topic, partitions, validate_only=dry_run)
        except (BrokerError, AdminError) as error:
            if changes and not dry_run:
                rest = "partitions were not added:"
                if isinstance(error, InterruptedChangeError):
                    rest = "it is not known whether partitions were added:"
                session.note(f"{topic}: its configs were altered; {rest}")
            raise
    session.say(f"{topic} would be altered" if dry_run else f"{topic} altered")


def _changes(
    pairs: Iterable[tuple[str, str | None]], operation: ConfigOperation
) -> list[ConfigChange]:
    return [ConfigChange(name, operation, value) for name, value in pairs]


@command.command("delete")
@topic_argument(many=True)
@click.option("--if-exists", is_flag=True, help="Do not fail if a topic does not exist.")
@yes_option
@session_command
def delete(session: Session, topics: tuple[str, ...], if_exists: bool, yes: bool) -> None:
    """Delete topics and all their records.

    \b
    Examples:
      mq-admin topics delete orders
      mq-admin topics delete test-1 test-2 --yes
    """
    session.ask(_question(topics), yes)
    for name, outcome in session.admin.delete_topics(topics).items():
        if outcome is None:
            session.say(f"{name} deleted")
        elif if_exists and _is(outcome, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            session.say(f"{name} does not exist")
        else:
            session.report(outcome)


def _question(topics: Sequence[str]) -> str:
    many = "topic" if len(topics) == 1 else f"{len(topics)} topics"
    return f"Delete {many} {', '.join(topics)} with all records?"
