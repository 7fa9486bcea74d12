"""Options of a load: which topics and offsets to read, and how; parsed and validated.

Names, defaults and refusals are those of Spark's Kafka connector (Structured Streaming + Kafka
Integration Guide, batch queries; `KafkaSourceProvider` of Spark 4.2). This project adds `columns`,
`maxBytesPerPartition`, `fetchMaxBytes`, `kafka.sasl.username` and `kafka.sasl.password`;
`kafka.ssl.ca.location`, `kafka.ssl.certificate.location` and `kafka.ssl.key.location` are
librdkafka's. Spark passes option names in lower case, so names are compared without case; values
are compared with case, except the words of a choice (true, earliest, SASL_SSL).

An option that is unknown, or would have no effect, is refused. The exceptions are the connector's:
of `startingTimestamp`, `startingOffsetsByTimestamp` and `startingOffsets` the first that is given
counts (likewise for the end), and options of streaming queries are only logged.

No message repeats a value that may be a secret.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, TypeAlias

from metaquorum.client.cluster import TopicPartition, parse_bootstrap
from metaquorum.client.security import PLAINTEXT, Security
from metaquorum.runtime.whole_numbers import whole_number
from metaquorum.spark.given_options import STREAMING_OPTIONS, GivenOptions
from metaquorum.spark.given_options import OptionError as OptionError
from metaquorum.spark.offset_ranges import MAX_OFFSET, MAX_PARTITION, is_topic_name
from metaquorum.spark.security_options import parse_security
from metaquorum.wire.primitives.frozen import frozen

log = logging.getLogger(__name__)

DEFAULT_FETCH_BYTES: Final = 8 << 20
MAX_FETCH_BYTES: Final = 128 << 20  # half of the largest response that the client accepts
DEFAULT_TIMEOUT_S: Final = 60.0  # Kafka's default.api.timeout.ms
DEFAULT_CLIENT_ID: Final = "metaquorum-load"
# Upper bound for the ranges of a plan: about as many tasks as one Spark job can schedule.
MAX_RANGES: Final = 200_000
MAX_TIMEOUT_MS: Final = 24 * 3600 * 1000

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS: Final = "headers"


@frozen
class Connecting:
    """Addresses, credentials and timeouts of a cluster. Only `security` holds secrets.

    `security` is written to no plan and no log.
    """

    bootstrap: str
    security: Security = PLAINTEXT
    client_id: str = DEFAULT_CLIENT_ID  # the same for all tasks: quotas apply to the job
    rack: str = ""  # "": read from the leader (KIP-392)
    timeout_s: float = DEFAULT_TIMEOUT_S  # deadline of one call with its retries


@frozen
class FetchOptions:
    """Settings for reading a range, the same for all ranges."""

    connecting: Connecting
    read_committed: bool = False
    fail_on_data_loss: bool = True
    include_headers: bool = False
    columns: tuple[str, ...] | None = None  # None: all columns
    fetch_max_bytes: int = DEFAULT_FETCH_BYTES
    # How the user sets `fail_on_data_loss` to false, for errors
    data_loss_option: str = "failOnDataLoss=false"


@frozen
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@frozen
class SubscribePattern:
    """All partitions of the topics whose name the regular expression matches at any place."""

    pattern: str


@frozen
class Assign:
    partitions: tuple[TopicPartition, ...]


class Position(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"


@frozen
class OffsetsByPartition:
    """An offset for each partition; EARLIEST_OFFSET and LATEST_OFFSET are allowed."""

    offsets: Mapping[TopicPartition, int]


@frozen
class TimestampsByPartition:
    """A timestamp for each partition, in milliseconds since 1970.

    It denotes the first offset whose record has this timestamp or a later one.
    """

    timestamps_ms: Mapping[TopicPartition, int]


@frozen
class Timestamp:
    """One timestamp for all partitions, in milliseconds since 1970."""

    timestamp_ms: int


Topics: TypeAlias = Subscribe | SubscribePattern | Assign
Limit: TypeAlias = Position | OffsetsByPartition | TimestampsByPartition | Timestamp


@frozen
class ReadOptions:
    """Options of one batch read.

    `latest_if_no_match` (`startingOffsetsByTimestampStrategy`): a partition without a record at or
    after the starting timestamp is read from its end; if False, it is an error.
    """

    fetch: FetchOptions
    topics: Topics
    starting: Limit = Position.EARLIEST
    ending: Limit = Position.LATEST
    latest_if_no_match: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Return the parsed `options`. Raises OptionError if an option is invalid."""
        given = GivenOptions(options)
        given.check_refused()
        starting, ending = _limits(given)
        read = cls(
            topics=_topics(given),
            starting=starting,
            ending=ending,
            latest_if_no_match=given.choice(
                "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"
            )
            == "latest",
            min_partitions=given.positive("minPartitions", MAX_RANGES),
            max_records_per_partition=given.positive("maxRecordsPerPartition"),
            max_bytes_per_partition=given.positive("maxBytesPerPartition"),
            fetch=_fetch_options(given),
        )
        _take_streaming_options(given)
        given.check_nothing_left()
        _check_limits(read.starting, read.ending)
        return read


def parse_fetch_options(options: Mapping[str, str]) -> FetchOptions:
    """Return the options for reading the ranges of an existing plan.

    Raises OptionError if an option is invalid, or selects topics or offsets.
    """
    given = GivenOptions(options)
    given.check_refused()
    fetch = _fetch_options(given)
    given.check_nothing_left("; what is read is fixed by the plan")
    return fetch


# Topics and offsets


def _topics(given: GivenOptions) -> Topics:
    names = ("assign", "subscribe", "subscribePattern")
    found = [(name, value) for name in names if (value := given.take(name)) is not None]
    if not found:
        raise OptionError(
            f"one of the options {', '.join(names)} is required: it selects the topics to read"
        )
    if len(found) > 1:
        there = " and ".join(name for name, _ in found)
        raise OptionError(f"only one of the options {', '.join(names)} may be given, not {there}")
    ((name, value),) = found
    if name == "assign":
        return _assign(value)
    if name == "subscribe":
        topics = tuple(dict.fromkeys(filter(None, map(str.strip, value.split(",")))))
        if not topics:
            raise OptionError("option subscribe names no topic: give topic1,topic2")
        for topic in topics:
            _check_topic(name, topic)
        return Subscribe(topics)
    return SubscribePattern(_pattern(value.strip()))


def _assign(text: str) -> Assign:
    expected = 'option assign is not of the form {"topicA":[0,1],"topicB":[2,4]}'
    data = _json_object(text, expected)
    partitions: dict[TopicPartition, None] = {}
    for topic, numbers in data.items():
        _check_topic("assign", topic)
        if not isinstance(numbers, list):
            raise OptionError(expected)
        for number in numbers:
            if not _is_int(number) or not 0 <= number <= MAX_PARTITION:
                raise OptionError(expected)
            partitions[TopicPartition(topic, number)] = None
    if not partitions:
        raise OptionError("option assign names no partition: " + expected.partition("form ")[2])
    return Assign(tuple(sorted(partitions)))


_GROUP_NAME: Final = re.compile(r"\(\?<(?=[A-Za-z])")  # of Java; "(?P<" in Python
# Syntax of Java that Python accepts with another meaning.
_ONLY_IN_JAVA: Final = re.compile(r"(?<!\\)(?:\\\\)*(?:\\[pPQERhHGXzk]|\[[^\]]*&&)")


def _pattern(text: str) -> str:
    """Return a Java regular expression in Python's syntax.

    Raises OptionError if Python cannot express it.
    """
    if not text:
        raise OptionError("option subscribePattern is empty: give a regular expression")
    translated = _GROUP_NAME.sub("(?P<", text)
    problem = ""
    if _ONLY_IN_JAVA.search(text):
        problem = "it uses syntax that only Java has, such as \\p{Alpha} or &&"
    else:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                re.compile(translated)
        except (re.error, Warning, RecursionError, OverflowError) as error:
            problem = str(error)
    if problem:
        raise OptionError(
            f"option subscribePattern cannot be used as a regular expression of Python: {problem}; "
            "use only syntax that Java and Python share, or name the topics by subscribe"
        )
    return translated


def _limits(given: GivenOptions) -> tuple[Limit, Limit]:
    """Return the starting and the ending limit, each validated alone."""
    starting = _limit(given, "starting", Position.EARLIEST)
    if starting is Position.LATEST:
        raise OptionError("startingOffsets can't be latest in a batch read: give earliest or JSON")
    ending = _limit(given, "ending", Position.LATEST)
    if ending is Position.EARLIEST:
        raise OptionError("endingOffsets can't be earliest in a batch read: give latest or JSON")
    for name, limit, refused, word in (
        ("startingOffsets", starting, LATEST_OFFSET, "latest (-1)"),
        ("endingOffsets", ending, EARLIEST_OFFSET, "earliest (-2)"),
    ):
        if isinstance(limit, OffsetsByPartition):
            for where, offset in limit.offsets.items():
                if offset == refused:
                    raise OptionError(f"{name} of {where} can't be {word} in a batch read")
    return starting, ending


def _limit(given: GivenOptions, side: str, default: Position) -> Limit:
    names = (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets")
    found = [(name, value) for name in names if (value := given.take(name)) is not None]
    if not found:
        return default
    name, value = found[0]
    for other, _ in found[1:]:
        log.warning("option %s has no effect: %s is given", other, name)
    value = value.strip()
    if name == names[0]:
        timestamp_ms = whole_number(value, MAX_OFFSET)
        if timestamp_ms is None:
            raise OptionError(
                f"option {name} is not a number of milliseconds since 1970: {value[:100]!r}"
            )
        return Timestamp(timestamp_ms)
    if name == names[1]:
        example = '{"topicA":{"0":1000,"1":1000},"topicB":{"0":2000}}'
        return TimestampsByPartition(_by_partition(name, value, 0, example))
    if value.lower() in ("earliest", "latest"):
        return Position(value.lower())
    example = '{"topicA":{"0":23,"1":-2},"topicB":{"0":-1}}'
    return OffsetsByPartition(_by_partition(name, value, EARLIEST_OFFSET, example))


def _by_partition(name: str, text: str, least: int, example: str) -> dict[TopicPartition, int]:
    expected = f"option {name} is not of the form {example}"
    found: dict[TopicPartition, int] = {}
    for topic, by_partition in _json_object(text, expected).items():
        _check_topic(name, topic)
        if not isinstance(by_partition, dict):
            raise OptionError(expected)
        for key, value in by_partition.items():
            partition = whole_number(key, MAX_PARTITION)
            if partition is None or not _is_int(value):
                raise OptionError(expected)
            where = TopicPartition(topic, partition)
            if where in found:  # as "1" and "01"
                raise OptionError(f"option {name} names {where} twice")
            if not least <= value <= MAX_OFFSET:
                shown = str(value)[:100]
                raise OptionError(f"option {name} gives {where} the number {shown}: out of range")
            found[where] = value
    return found


def _check_limits(starting: Limit, ending: Limit) -> None:
    """Raise OptionError if a partition ends before it starts.

    The same rule as the connector's `checkOffsetLimitValidity`.
    """
    if isinstance(starting, OffsetsByPartition) and isinstance(ending, OffsetsByPartition):
        what, starts, ends = "offset", starting.offsets, ending.offsets
    elif isinstance(starting, TimestampsByPartition) and isinstance(ending, TimestampsByPartition):
        what, starts, ends = "timestamp", starting.timestamps_ms, ending.timestamps_ms
    else:
        return
    if starts.keys() != ends.keys():
        raise OptionError(
            f"the starting {what}s and the ending {what}s must name the same partitions: "
            f"{partition_names(starts.keys() ^ ends.keys())} are in one of them only"
        )
    for where, start in starts.items():
        if 0 <= ends[where] < start:
            raise OptionError(
                f"the starting {what} {start} of {where} is above its ending {what} {ends[where]}"
            )


def partition_names(partitions: set[TopicPartition]) -> str:
    """Return the partitions as text for a message, sorted, at most MAX_NAMED of them."""
    listed = sorted(partitions)
    more = f" and {len(listed) - MAX_NAMED} more" if len(listed) > MAX_NAMED else ""
    return ", ".join(map(str, listed[:MAX_NAMED])) + more


MAX_NAMED: Final = 20  # partitions, in an error


def _check_topic(option: str, topic: str) -> None:
    if not is_topic_name(topic):
        raise OptionError(
            f"option {option} names the topic {topic[:300]!r}: a topic name has 1 to 249 ASCII "
            "letters, digits, dots, underscores and hyphens"
        )


# How ranges are read


def _fetch_options(given: GivenOptions) -> FetchOptions:
    include_headers = given.boolean("includeHeaders", default=False)
    return FetchOptions(
        connecting=_connecting(given),
        read_committed=given.choice(
            "kafka.isolation.level", ("read_uncommitted", "read_committed"), "read_uncommitted"
        )
        == "read_committed",
        fail_on_data_loss=given.boolean("failOnDataLoss", default=True),
        include_headers=include_headers,
        columns=_columns(given, include_headers),
        fetch_max_bytes=_fetch_max_bytes(given),
    )


def _columns(given: GivenOptions, include_headers: bool) -> tuple[str, ...] | None:
    text = given.take("columns")
    if text is None:
        return None
    columns = tuple(filter(None, map(str.strip, text.split(","))))
    known = (*COLUMNS, HEADERS) if include_headers else COLUMNS
    for column in columns:
        if column == HEADERS and not include_headers:
            raise OptionError(
                "option columns names headers: set the option includeHeaders to true as well"
            )
        if column not in known:
            raise OptionError(
                f"option columns names {column[:100]!r}; the columns are {', '.join(known)}"
            )
        if columns.count(column) > 1:
            raise OptionError(f"option columns names {column} twice")
    if not columns:
        raise OptionError(f"option columns is empty; the columns are {', '.join(known)}")
    return columns


def _fetch_max_bytes(given: GivenOptions) -> int:
    """Return the limit of one fetch response in bytes: the least of the options given.

    One request fetches one range, so the limits per partition and per response are the same.
    Kafka's options may exceed the largest response that this client accepts.
    """
    limits = [
        given.positive("fetchMaxBytes", MAX_FETCH_BYTES),
        given.positive("kafka.fetch.max.bytes"),
        given.positive("kafka.max.partition.fetch.bytes"),
    ]
    found = [limit for limit in limits if limit is not None]
    return min([*found, MAX_FETCH_BYTES]) if found else DEFAULT_FETCH_BYTES


def _connecting(given: GivenOptions) -> Connecting:
    bootstrap = given.take("kafka.bootstrap.servers")
    if bootstrap is None:
        raise OptionError(
            "option kafka.bootstrap.servers is required: the addresses of some brokers, as "
            "host1:9092,host2:9092"
        )
    try:
        parse_bootstrap(bootstrap)
    except ValueError as error:
        raise OptionError(f"option kafka.bootstrap.servers: {str(error)[:300]}") from None
    return Connecting(
        bootstrap=bootstrap,
        security=parse_security(given),
        client_id=given.take("kafka.client.id") or DEFAULT_CLIENT_ID,
        rack=given.take("kafka.client.rack") or "",
        timeout_s=_timeout_s(given),
    )


def _timeout_s(given: GivenOptions) -> float:
    """Return the deadline of one call with all its attempts: Kafka's default.api.timeout.ms.

    `kafkaConsumer.pollTimeoutMs`, the wait of the connector's executors, takes precedence.
    """
    poll_ms = given.positive("kafkaConsumer.pollTimeoutMs", MAX_TIMEOUT_MS)
    call_ms = given.positive("kafka.default.api.timeout.ms", MAX_TIMEOUT_MS)
    request_ms = given.positive("kafka.request.timeout.ms", MAX_TIMEOUT_MS)
    if call_ms is not None and request_ms is not None and call_ms < request_ms:
        raise OptionError(
            "option kafka.default.api.timeout.ms must not be less than kafka.request.timeout.ms: "
            "one call may take several requests"
        )
    for timeout_ms in (poll_ms, call_ms, request_ms):
        if timeout_ms is not None:
            return timeout_ms / 1000
    return DEFAULT_TIMEOUT_S


def _take_streaming_options(given: GivenOptions) -> None:
    """Validate the options of streaming queries and log that they have no effect.

    The connector does the same in a batch read.
    """
    found = {name: value for name in STREAMING_OPTIONS if (value := given.take(name)) is not None}
    numbers = {}
    for name in STREAMING_OPTIONS[:2]:
        if name in found:
            numbers[name] = whole_number(found[name], MAX_OFFSET)
            if numbers[name] is None:
                raise OptionError(f"option {name} is not a number: {found[name][:100]!r}")
    least, most = numbers.get("minOffsetsPerTrigger"), numbers.get("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most})")
    for name in found:
        log.warning("option %s has no effect in a batch read", name)


# JSON


def _json_object(text: str, expected: str) -> dict[str, Any]:
    try:
        data = json.loads(text, object_pairs_hook=_no_name_twice, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{expected} ({error})") from None
    if not isinstance(data, dict):
        raise OptionError(expected)
    return data


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _no_constant(name: str) -> Callable[[], None]:
    raise ValueError(f"{name} is not a number")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
