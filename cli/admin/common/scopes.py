"""Topics and partitions as arguments: TOPIC or TOPIC:PARTITION,..."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import click

from metaquorum.cli.admin.common.session import INT32_MAX, complete_topics
from metaquorum.cli.common.output import Row
from metaquorum.client.cluster import TopicPartition
from metaquorum.runtime.whole_numbers import whole_number


class Scope(NamedTuple):
    """A topic, and some of its partitions (None: all)."""

    topic: str
    partitions: tuple[int, ...] | None

    def contains(self, where: TopicPartition) -> bool:
        return where.topic == self.topic and (
            self.partitions is None or where.partition in self.partitions
        )


def topics_option(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option --topic, whose texts `parse_scopes` parses."""
    return click.option(
        "--topic",
        "topics",
        multiple=True,
        metavar="TOPIC[:PARTITION,...]",
        help=text,
        shell_complete=complete_topics,
    )


def parse_scopes(texts: Sequence[str]) -> list[Scope]:
    """Parse the texts of --topic. Raises click.UsageError for any that is not a scope."""
    scopes = []
    for text in texts:
        if (scope := _scope_of(text)) is None:
            raise click.UsageError(f"--topic takes TOPIC or TOPIC:PARTITION,..., not {text!r}")
        scopes.append(scope)
    return scopes


def parse_scope(text: str) -> Scope:
    """Parse TOPIC or TOPIC:PARTITION,... Raises click.UsageError for any other text."""
    if (scope := _scope_of(text)) is None:
        raise click.UsageError(f"{text!r} is not TOPIC or TOPIC:PARTITION,...")
    return scope


def parse_partition(text: str) -> TopicPartition:
    """Parse TOPIC:PARTITION. Raises click.UsageError for any other text."""
    scope = parse_scope(text)
    if scope.partitions is None or len(scope.partitions) != 1:
        raise click.UsageError(f"{text!r} is not TOPIC:PARTITION")
    return TopicPartition(scope.topic, scope.partitions[0])


def _scope_of(text: str) -> Scope | None:
    topic, colon, indexes = text.partition(":")  # a topic name has no colon
    if not colon and topic:
        return Scope(topic, None)
    numbers = [whole_number(index, INT32_MAX) for index in indexes.split(",")]
    partitions = tuple(dict.fromkeys(number for number in numbers if number is not None))
    return Scope(topic, partitions) if topic and None not in numbers else None


def by_topic(partitions: Iterable[TopicPartition]) -> list[Row]:
    """Return partitions as data: a row per topic, with its indexes, both in order."""
    grouped = groupby(sorted(partitions), key=lambda where: where.topic)
    return [
        {"topic": topic, "partitions": [where.partition for where in own]} for topic, own in grouped
    ]
