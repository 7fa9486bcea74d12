"""Requests that name a thing twice, or contradict themselves, and the answers of a real Kafka.

    python -m tests.hostile.requests.contradictions --bootstrap HOST:PORT

asks an empty Apache Kafka of one node and writes its answers to `contradictions.json`, which
`test_contradictions` compares with the answers here. The file says which release was asked, and
when. Left out are the texts of errors, times, and names that a node draws; rows are sorted.
"""

import argparse
import datetime
import json
import sys
import time
from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from metaquorum.wire.primitives.types import ZERO_UUID
from metaquorum.wire.protocol.apis import APIS, ApiKey
from metaquorum.wire.schema.message import Message, Struct
from tests.conformance.groups.raw import Connection, subscription
from tests.dataplane.serving import WORLD_BEGAN_MS, batch_of

GOLDEN: Final = Path(__file__).with_suffix(".json")
TOPIC: Final = "once"  # has two partitions, with one record each
OTHER: Final = "other"  # has one partition, without records
GROUP: Final = "group"
# Seconds in which Kafka answers; JoinGroup takes three of them.
ANSWER_S: Final = 15.0
# Errors of a leader or coordinator that is not ready yet, for which Kafka is asked again.
LOADING: Final = frozenset((6, 14, 15, 16))
ATTEMPTS: Final = 25
UNKNOWN_ID: Final = bytes(range(16))
# Kafka's answers have these too, but they are about the node and not about the request.
_LEFT_OUT: Final = frozenset(
    (
        "base_offset",
        "cluster_id",
        "documentation",
        "error_message",
        "hmac",
        "host",
        "leader",
        "leader_epoch",
        "log_append_time_ms",
        "member_id",
        "port",
        "log_dir",
        "partition_size",
        "producer_id",
        "record_errors",
        "read_only",
        "session_id",
        "throttle_time_ms",
    )
)

Asked: TypeAlias = tuple[ApiKey, int, dict[str, Any]]
Case: TypeAlias = Callable[[Mapping[str, bytes]], Generator[Asked, Any, None]]

CASES: Final[dict[str, Case]] = {}


def case(made: Case) -> Case:
    CASES[made.__name__] = made
    return made


def single(name: str, *asked: Asked) -> None:
    """Add a case of requests whose answers are compared one by one."""

    def made(_: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
        for each in asked:  # noqa: UP028 - `yield from` sends answers to the tuple
            yield each

    CASES[name] = made


def message_of(api: ApiKey, content: Mapping[str, Any]) -> Message:
    """Return the request with the fields of `content`, whose rows are dicts."""
    message: Message = _made(APIS[api].request, content)
    return message


def _made(cls: type[Struct], content: Mapping[str, Any]) -> Any:
    kinds = {field.name: field.item for field in cls.FIELDS}

    def value(name: str, given: Any) -> Any:
        item = kinds[name]
        if not isinstance(item, type) or given is None:
            return given
        return [_made(item, each) for each in given] if isinstance(given, list) else given

    return cls(**{name: value(name, given) for name, given in content.items()})


def plain(message: Struct, version: int, names: Mapping[bytes, str]) -> dict[str, Any]:
    """Return what is compared of an answer, as JSON has it."""

    def value(given: Any) -> Any:
        if isinstance(given, Struct):
            return plain(given, version, names)
        if isinstance(given, list):
            return _merged([value(each) for each in given])
        if isinstance(given, bytes | bytearray | memoryview):
            return names.get(bytes(given), len(given))
        return given

    return {
        field.name: value(getattr(message, field.name))
        for field in message.FIELDS
        if version in field.versions and field.name not in _LEFT_OUT
    }


_NAMES: Final = {"name", "topic", "topic_name", "topic_id", "transactional_id", "group_id"}


def _merged(rows: list[Any]) -> list[Any]:
    """Return each row once, with the rows within equal ones together.

    Clients look up rows by name, so they do not see how often one is answered, or whether a topic
    without partitions is.
    """
    found: dict[str, Any] = {}
    for row in rows:
        inner = {}
        if isinstance(row, dict) and row.keys() & _NAMES:
            inner = {name: value for name, value in row.items() if isinstance(value, list)}
        key = repr(row if not inner else {k: v for k, v in row.items() if k not in inner})
        if key not in found:
            found[key] = row
        for name, more in inner.items():
            found[key][name] = _merged(found[key][name] + more)
    return [
        found[key]
        for key in sorted(found)
        if not isinstance(found[key], dict)
        or "error_code" in found[key]
        or [] not in found[key].values()
    ]


def _batch() -> bytes:
    return bytes(batch_of(b"v", timestamp=WORLD_BEGAN_MS))


def ways(
    name: str, key: ApiKey, version: int, field: str, inner: str, row: Any, **more: Any
) -> None:
    """Add cases with a partition twice in a topic, and in two rows of the topic."""
    name_field = "topic" if key in _BY_TOPIC else "name"

    def topic(*rows: Any) -> dict[str, Any]:
        return {name_field: TOPIC, inner: list(rows)}

    single(f"{name}: a partition twice", (key, version, {field: [topic(row, row)], **more}))
    single(f"{name}: a topic twice", (key, version, {field: [topic(row), topic(row)], **more}))
    single(f"{name}: a topic without rows", (key, version, {field: [topic()], **more}))
    single(f"{name}: nothing", (key, version, {field: [], **more}))


_BY_TOPIC: Final = (
    ApiKey.FETCH,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.ELECT_LEADERS,
    ApiKey.DESCRIBE_LOG_DIRS,
)

# Records

PRODUCED: Final = {"index": 1, "records": _batch()}
ways("produce", ApiKey.PRODUCE, 9, "topic_data", "partition_data", PRODUCED, acks=-1)
FETCHED: Final = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
ways("fetch", ApiKey.FETCH, 12, "topics", "partitions", FETCHED, max_bytes=1000)
ways(
    "list offsets",
    ApiKey.LIST_OFFSETS,
    7,
    "topics",
    "partitions",
    {"partition_index": 0, "timestamp": -1},
    replica_id=-1,
)
ways(
    "list offsets v1",
    ApiKey.LIST_OFFSETS,
    1,
    "topics",
    "partitions",
    {"partition_index": 0, "timestamp": -2},
    replica_id=-1,
)
ways(
    "offset for leader epoch",
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    4,
    "topics",
    "partitions",
    {"partition": 0, "leader_epoch": 0},
    replica_id=-1,
)
ways(
    "delete records",
    ApiKey.DELETE_RECORDS,
    2,
    "topics",
    "partitions",
    {"partition_index": 0, "offset": 0},
    timeout_ms=9000,
)
single(
    "fetch: an unknown isolation level",
    (
        ApiKey.FETCH,
        12,
        {
            "topics": [{"topic": TOPIC, "partitions": [FETCHED]}],
            "max_bytes": 1000,
            "isolation_level": 7,
        },
    ),
)
single(
    "list offsets: an unknown isolation level",
    (
        ApiKey.LIST_OFFSETS,
        7,
        {
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
            "isolation_level": 7,
        },
    ),
)
single(
    "delete records: a partition twice, at two offsets",
    (
        ApiKey.DELETE_RECORDS,
        2,
        {
            "topics": [
                {
                    "name": TOPIC,
                    "partitions": [
                        {"partition_index": 1, "offset": 1},
                        {"partition_index": 1, "offset": 0},
                    ],
                }
            ],
            "timeout_ms": 9000,
        },
    ),
)
ways("describe producers", ApiKey.DESCRIBE_PRODUCERS, 0, "topics", "partition_indexes", 0)
ways("describe log dirs", ApiKey.DESCRIBE_LOG_DIRS, 1, "topics", "partitions", 0)


@case
def fetch_by_id(ids: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
    for named in (ids[TOPIC], ZERO_UUID, UNKNOWN_ID):
        topic = {"topic_id": named, "partitions": [FETCHED, FETCHED]}
        for topics in ([topic], [topic, topic]):
            yield ApiKey.FETCH, 13, {"topics": topics, "max_bytes": 1000}
    beyond = {**FETCHED, "partition": 9}
    for topic in (
        {"topic": "missing", "partitions": [FETCHED, FETCHED]},
        {"topic": "", "partitions": [FETCHED]},
        {"topic": TOPIC, "partitions": [beyond, FETCHED]},
        {"topic": TOPIC, "partitions": [{**FETCHED, "fetch_offset": -1}]},
        {"topic": TOPIC, "partitions": [{**FETCHED, "partition": -1}]},
    ):
        for isolation in (0, 1):
            asked = {"topics": [topic], "max_bytes": 1000, "isolation_level": isolation}
            yield ApiKey.FETCH, 12, asked


@case
def produce_by_id(ids: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
    for named in (ids[TOPIC], ZERO_UUID, UNKNOWN_ID):
        topic = {"topic_id": named, "partition_data": [PRODUCED]}
        for topics in ([topic], [topic, topic]):
            yield ApiKey.PRODUCE, 13, {"topic_data": topics, "acks": -1}


@case
def produce_oddly(ids: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
    for records in (None, b"", b"\0", _batch() * 2):
        topic = {"name": TOPIC, "partition_data": [{"index": 0, "records": records}]}
        yield ApiKey.PRODUCE, 9, {"topic_data": [topic], "acks": -1}
    for acks in (2, -2):
        topic = {"name": TOPIC, "partition_data": [PRODUCED]}
        yield ApiKey.PRODUCE, 9, {"topic_data": [topic], "acks": acks}
    for name, index in (("", 0), ("missing", 0), (TOPIC, -1), (TOPIC, 9)):
        topic = {"name": name, "partition_data": [{"index": index, "records": _batch()}]}
        yield ApiKey.PRODUCE, 9, {"topic_data": [topic], "acks": -1}


@case
def fetch_session(ids: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
    last = {"topic": OTHER, "partitions": [FETCHED]}
    topic = {"topic": TOPIC, "partitions": [FETCHED, {**FETCHED, "fetch_offset": 1}]}
    begun = yield ApiKey.FETCH, 12, {"topics": [topic, last], "max_bytes": 1000, "session_epoch": 0}
    session = {"session_id": begun.session_id, "max_bytes": 1000}
    forgotten = {"topic": TOPIC, "partitions": [0, 0]}
    topic = {"topic": TOPIC, "partitions": [FETCHED]}
    both = {"topics": [topic], "forgotten_topics_data": [forgotten, forgotten]}
    yield ApiKey.FETCH, 12, {**session, **both, "session_epoch": 1}
    yield ApiKey.FETCH, 12, {**session, "session_epoch": 1}
    produced = {"name": TOPIC, "partition_data": [{"index": 0, "records": _batch()}]}
    yield ApiKey.PRODUCE, 9, {"topic_data": [produced], "acks": -1}
    yield ApiKey.FETCH, 12, {**session, "session_epoch": 2}
    yield ApiKey.FETCH, 12, {**session, "session_epoch": -2}
    yield ApiKey.FETCH, 12, {**session, "session_epoch": -1}


# Topics

for _version in (2, 7):
    for _name, _topics in {
        "twice": [{"name": "new", "num_partitions": 1, "replication_factor": 1}] * 2,
        "twice and another": [
            *[{"name": "new", "num_partitions": 1, "replication_factor": 1}] * 2,
            {"name": "", "num_partitions": 1, "replication_factor": 1},
        ],
        "with a config twice": [
            {
                "name": "new",
                "num_partitions": 1,
                "replication_factor": 1,
                "configs": [{"name": "retention.ms", "value": "1"}] * 2,
            }
        ],
        "with a config that is null": [
            {
                "name": "new",
                "num_partitions": 1,
                "replication_factor": 1,
                "configs": [{"name": "retention.ms", "value": None}],
            }
        ],
        "with a partition assigned twice": [
            {
                "name": "new",
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 0, "broker_ids": [1]}] * 2,
            }
        ],
        "with an assignment and a count": [
            {
                "name": "new",
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [{"partition_index": 0, "broker_ids": [1]}],
            }
        ],
        "with a gap in the assignment": [
            {
                "name": "new",
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 1, "broker_ids": [1]}],
            }
        ],
        "with an empty assignment": [
            {
                "name": "new",
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 0, "broker_ids": []}],
            }
        ],
        "of no partitions": [{"name": "new", "num_partitions": 0, "replication_factor": 1}],
        "of no replicas": [{"name": "new", "num_partitions": 1, "replication_factor": 0}],
        "that exists": [{"name": TOPIC, "num_partitions": 1, "replication_factor": 1}] * 2,
        "none": [],
    }.items():
        single(
            f"create topics v{_version}: {_name}",
            (ApiKey.CREATE_TOPICS, _version, {"topics": _topics, "validate_only": True}),
        )

for _name, _topics in {
    "twice": [{"name": TOPIC, "count": 3}] * 2,
    "twice, differently": [{"name": TOPIC, "count": 3}, {"name": TOPIC, "count": 4}],
    "twice and another": [*[{"name": TOPIC, "count": 3}] * 2, {"name": OTHER, "count": 2}],
    "to the same count": [{"name": TOPIC, "count": 2}],
    "to fewer": [{"name": TOPIC, "count": -1}],
    "with too few assignments": [{"name": TOPIC, "count": 4, "assignments": [{"broker_ids": [1]}]}],
    "with a replica twice": [{"name": TOPIC, "count": 3, "assignments": [{"broker_ids": [1, 1]}]}],
    "with no assignments": [{"name": TOPIC, "count": 3, "assignments": []}],
    "none": [],
    "unnamed": [{"name": "", "count": 3}],
}.items():
    single(
        f"create partitions: {_name}",
        (
            ApiKey.CREATE_PARTITIONS,
            3,
            {"topics": _topics, "validate_only": True, "timeout_ms": 9000},
        ),
    )


@case
def delete_topics(ids: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
    key, wait = ApiKey.DELETE_TOPICS, {"timeout_ms": 9000}
    yield key, 5, {"topic_names": [TOPIC, TOPIC], **wait}
    yield key, 5, {"topic_names": ["", "missing"], **wait}
    by_name, by_id = {"name": TOPIC}, {"name": None, "topic_id": ids[TOPIC]}
    both = {"name": TOPIC, "topic_id": ids[TOPIC]}
    neither = {"name": None, "topic_id": ZERO_UUID}
    for topics in (
        [by_name, by_name],
        [by_id, by_id],
        [by_name, by_id],
        [both],
        [neither],
        [neither, neither],
        [{"name": OTHER, "topic_id": ids[TOPIC]}],
        [{"name": None, "topic_id": UNKNOWN_ID}],
        [{"name": None, "topic_id": UNKNOWN_ID}] * 2,
    ):
        yield key, 6, {"topics": topics, **wait}


@case
def metadata(ids: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
    key, still = ApiKey.METADATA, {"allow_auto_topic_creation": False}
    by_name, by_id = {"name": OTHER}, {"name": None, "topic_id": ids[OTHER]}
    for topics in (
        [by_name, by_name],
        [by_id, by_id],
        [by_name, by_id],
        [{"name": None, "topic_id": UNKNOWN_ID}],
        [{"name": ""}],
        [],
    ):
        yield key, 12, {"topics": topics, **still}


ways("describe topic partitions", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, "topics", "x", None)
for _way in ("a partition twice", "a topic twice", "a topic without rows"):
    del CASES[f"describe topic partitions: {_way}"]
single(
    "describe topic partitions: a topic twice",
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [{"name": OTHER}] * 2}),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [{"name": "missing"}] * 2 + [{"name": ""}]}),
)

for _version in (0, 2):
    for _name, _rows in {
        "a partition twice": [{"topic": TOPIC, "partitions": [0, 0]}],
        "a topic twice": [{"topic": TOPIC, "partitions": [0]}] * 2,
        "unknown": [
            {"topic": "missing", "partitions": [0, 0]},
            {"topic": TOPIC, "partitions": [-1]},
        ],
        "without rows": [{"topic": TOPIC, "partitions": []}],
        "nothing": [],
    }.items():
        single(
            f"elect leaders v{_version}: {_name}",
            (ApiKey.ELECT_LEADERS, _version, {"topic_partitions": _rows}),
        )
single(
    "elect leaders: an unknown type",
    (
        ApiKey.ELECT_LEADERS,
        2,
        {"topic_partitions": [{"topic": TOPIC, "partitions": [0]}], "election_type": 7},
    ),
)

# Configs

for _kind, _resource in {
    "topic": (2, TOPIC),
    "worker": (4, "1"),
    "cluster": (4, ""),
    "group": (32, GROUP),
    "no group": (32, ""),
    "client metrics": (16, "m"),
    "no client metrics": (16, ""),
    "unknown type": (99, "x"),
}.items():
    _row = {
        "resource_type": _resource[0],
        "resource_name": _resource[1],
        "configuration_keys": ["min.insync.replicas", "interval.ms", "share.isolation.level"],
    }
    _described = {"resources": [_row], "include_synonyms": True}
    single(
        f"describe configs of a {_kind}",
        (ApiKey.DESCRIBE_CONFIGS, 1, _described),
        (ApiKey.DESCRIBE_CONFIGS, 4, _described),
    )
for _kind in (16, 32):
    for _keys in (None, [], ["x", "x"]):
        _row = {"resource_type": _kind, "resource_name": "g", "configuration_keys": _keys}
        single(
            f"describe configs of type {_kind}: {_keys}",
            (ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [_row], "include_synonyms": True}),
        )


def _alteration(
    key: ApiKey, version: int, *rows: tuple[str, list[tuple[str, str | None, int]]]
) -> Asked:
    def config(name: str, value: str | None, operation: int) -> dict[str, Any]:
        found: dict[str, Any] = {"name": name, "value": value}
        return (
            {**found, "config_operation": operation}
            if key == ApiKey.INCREMENTAL_ALTER_CONFIGS
            else found
        )

    resources = [
        {"resource_type": 2, "resource_name": name, "configs": [config(*each) for each in configs]}
        for name, configs in rows
    ]
    return key, version, {"resources": resources, "validate_only": True}


for _key, _version in ((ApiKey.ALTER_CONFIGS, 2), (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)):
    _one = (TOPIC, [("retention.ms", "5", 0)])
    for _name, _rows in {
        "a resource twice": (_one, _one),
        "a resource twice and another": (_one, _one, (OTHER, [("retention.ms", "5", 0)])),
        "a config twice": ((TOPIC, [("retention.ms", "5", 0), ("retention.ms", "6", 0)]),),
        "a config twice, of two operations": (
            (TOPIC, [("retention.ms", "5", 0), ("retention.ms", None, 1)]),
        ),
        "a null value": ((TOPIC, [("retention.ms", None, 0)]),),
        "no configs": ((TOPIC, []),),
        "no name": (("", [("retention.ms", "5", 0)]),),
        "an unnamed config": ((TOPIC, [("", "5", 0)]),),
        "an unknown operation": ((TOPIC, [("retention.ms", "5", 9)]),),
        "a list of a number": ((TOPIC, [("retention.ms", "5", 2)]),),
        "an item twice": ((TOPIC, [("cleanup.policy", "delete,delete", 0)]),),
        "an item appended twice": ((TOPIC, [("cleanup.policy", "compact,compact", 2)]),),
    }.items():
        single(f"{_key.name.lower()}: {_name}", _alteration(_key, _version, *_rows))

# Quotas and users


def _quota(*entities: tuple[str, str | None], ops: list[tuple[str, float, bool]]) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entities],
        "ops": [{"key": key, "value": value, "remove": gone} for key, value, gone in ops],
    }


_RATE: Final = [("producer_byte_rate", 1000.0, False)]
for _name, _entries in {
    "an entity twice": [_quota(("user", "u"), ops=_RATE)] * 2,
    "an entity twice and another": [
        *[_quota(("user", "u"), ops=_RATE)] * 2,
        _quota(("user", "w"), ops=_RATE),
    ],
    "a type twice": [_quota(("user", "u"), ("user", "u"), ops=_RATE)],
    "a type twice, differently": [_quota(("user", "u"), ("user", "w"), ops=_RATE)],
    "a key twice": [_quota(("user", "u"), ops=[*_RATE, ("producer_byte_rate", 2000.0, False)])],
    "a key set and removed": [
        _quota(("user", "u"), ops=[*_RATE, ("producer_byte_rate", 0.0, True)])
    ],
    "no entity": [_quota(ops=_RATE)],
    "no operations": [_quota(("user", "u"), ops=[])],
    "nothing": [],
    "an empty name": [_quota(("user", ""), ops=_RATE)],
}.items():
    single(
        f"alter client quotas: {_name}",
        (ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": _entries, "validate_only": True}),
    )


def _scram(deleted: list[tuple[str, int]], upserted: list[tuple[str, int]]) -> Asked:
    return (
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        {
            "deletions": [{"name": name, "mechanism": which} for name, which in deleted],
            "upsertions": [
                {
                    "name": name,
                    "mechanism": which,
                    "iterations": 4096,
                    "salt": b"salt" * 4,
                    "salted_password": b"p" * 32,
                }
                for name, which in upserted
            ],
        },
    )


for _name, _asked in {
    "a deletion twice": _scram([("u", 1), ("u", 1)], []),
    "an upsertion twice": _scram([], [("u", 1), ("u", 1)]),
    "an upsertion twice and another": _scram([], [("u", 1), ("u", 1), ("", 1)]),
    "both of one credential": _scram([("u", 1)], [("u", 1)]),
    "an unknown mechanism": _scram([("u", 0)], [("w", 9)]),
    "nothing": _scram([], []),
    "no name": _scram([("", 1)], [("", 1)]),
}.items():
    single(f"alter scram credentials: {_name}", _scram([], [("u", 1)]), _asked)
for _name, _users in {
    "a user twice": [{"name": "u"}, {"name": "u"}],
    "a user twice and another": [{"name": "u"}, {"name": "u"}, {"name": "w"}],
    "no name": [{"name": ""}],
    "nothing": [],
}.items():
    single(
        f"describe scram credentials: {_name}",
        (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": _users}),
    )

# Groups

_COMMITTED: Final = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "first"}
_LATER: Final = {"partition_index": 0, "committed_offset": 7, "committed_metadata": None}


@case
def committed_offsets(ids: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
    twice = {"name": TOPIC, "partitions": [_COMMITTED, _LATER]}
    # The group has another offset: without any, it ends at once here, and later in Kafka.
    kept = {"name": OTHER, "partitions": [_COMMITTED]}
    yield ApiKey.OFFSET_COMMIT, 9, {"group_id": GROUP, "topics": [kept]}
    read = {
        "groups": [{"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0, 0]}]}]
    }
    for version in (2, 9):
        yield ApiKey.OFFSET_COMMIT, version, {"group_id": GROUP, "topics": [twice]}
        yield ApiKey.OFFSET_FETCH, 9, read
    first, second = ({"name": TOPIC, "partitions": [row]} for row in (_COMMITTED, _LATER))
    yield ApiKey.OFFSET_COMMIT, 9, {"group_id": GROUP, "topics": [first, second]}
    yield ApiKey.OFFSET_FETCH, 9, read
    by_id = {"topic_id": ids[TOPIC], "partitions": [_COMMITTED]}
    for topics in (
        [by_id, by_id],
        [{"topic_id": ZERO_UUID, "partitions": [_COMMITTED]}],
        [{"topic_id": UNKNOWN_ID, "partitions": [_COMMITTED] * 2}],
        [],
    ):
        yield ApiKey.OFFSET_COMMIT, 10, {"group_id": GROUP, "topics": topics}
    row = {"name": TOPIC, "partition_indexes": [0]}
    for topics in ([row, row], [], None, [{"name": "missing", "partition_indexes": [0, 0]}]):
        yield ApiKey.OFFSET_FETCH, 7, {"group_id": GROUP, "topics": topics}
        yield ApiKey.OFFSET_FETCH, 9, {"groups": [{"group_id": GROUP, "topics": topics}] * 2}
    yield ApiKey.OFFSET_FETCH, 9, {"groups": []}
    by_id = {"topic_id": ids[TOPIC], "partition_indexes": [0]}
    for topics in ([by_id, by_id], [{"topic_id": ZERO_UUID, "partition_indexes": [0]}], None):
        yield ApiKey.OFFSET_FETCH, 10, {"groups": [{"group_id": GROUP, "topics": topics}]}
    for topics in (
        [{"name": TOPIC, "partitions": [{"partition_index": 0}] * 2}],
        [{"name": TOPIC, "partitions": [{"partition_index": 0}]}] * 2,
        [{"name": TOPIC, "partitions": []}],
        [],
    ):
        yield ApiKey.OFFSET_DELETE, 0, {"group_id": GROUP, "topics": topics}
    yield ApiKey.DESCRIBE_GROUPS, 5, {"groups": [GROUP, GROUP]}
    yield ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["", "missing", "missing"]}
    yield (
        ApiKey.LIST_GROUPS,
        5,
        {"states_filter": ["Empty", "empty", "bogus"], "types_filter": ["classic", "classic"]},
    )
    yield ApiKey.LIST_GROUPS, 5, {"types_filter": ["bogus"]}
    yield ApiKey.DELETE_GROUPS, 2, {"groups_names": [GROUP, GROUP, "", "missing", "missing"]}
    yield ApiKey.DELETE_GROUPS, 2, {"groups_names": []}


@case
def members(ids: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
    group, metadata = {"group_id": "members"}, subscription(TOPIC)
    waits = {"session_timeout_ms": 9000, "rebalance_timeout_ms": 9000}

    def joining(*protocols: str, **more: Any) -> Asked:
        rows = [{"name": name, "metadata": metadata} for name in protocols]
        fields = {**group, **waits, "protocol_type": "consumer", "protocols": rows, **more}
        return ApiKey.JOIN_GROUP, 4, fields

    for protocols in ((), ("range", "range"), ("", "")):
        yield joining(*protocols)
    yield joining("range", protocol_type="")
    yield joining("range", group_id="")
    yield joining("range", session_timeout_ms=-1)
    asked = yield joining("range", "range", group_id="twice")
    yield joining("range", "range", group_id="twice", member_id=asked.member_id)
    asked = yield joining("range")
    joined = yield joining("range", member_id=asked.member_id)
    member = {"member_id": joined.member_id, "generation_id": joined.generation_id}
    given = {"member_id": joined.member_id, "assignment": b"one"}
    again = {"member_id": joined.member_id, "assignment": b"twice"}
    yield ApiKey.SYNC_GROUP, 3, {**group, **member, "assignments": [given, again]}
    for version in (3, 5):
        unknown = {"member_id": "unknown", "group_instance_id": None}
        yield ApiKey.LEAVE_GROUP, version, {**group, "members": [unknown, unknown]}
        yield ApiKey.LEAVE_GROUP, version, {**group, "members": []}
        nobody = {"member_id": "", "group_instance_id": None}
        yield ApiKey.LEAVE_GROUP, version, {**group, "members": [nobody]}
    leaving = {"member_id": joined.member_id, "group_instance_id": None}
    yield ApiKey.LEAVE_GROUP, 3, {**group, "members": [leaving, leaving]}


@case
def coordinators(ids: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
    for keys in (["k", "k"], [""], []):
        yield ApiKey.FIND_COORDINATOR, 6, {"coordinator_keys": keys}
    for kind in (1, 2, -1, 7):
        yield ApiKey.FIND_COORDINATOR, 6, {"coordinator_keys": ["k"], "key_type": kind}
        yield ApiKey.FIND_COORDINATOR, 3, {"key": "k", "key_type": kind}
    yield ApiKey.FIND_COORDINATOR, 3, {"key": ""}


# Transactions


def _begun(name: str) -> Generator[Asked, Any, dict[str, Any]]:
    begun = yield (
        ApiKey.INIT_PRODUCER_ID,
        2,
        {"transactional_id": name, "transaction_timeout_ms": 60_000},
    )
    return {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}


def _ended(name: str, producer: Mapping[str, Any]) -> Asked:
    return ApiKey.END_TXN, 3, {"transactional_id": name, **producer, "committed": True}


def _added(version: int, *transactions: dict[str, Any]) -> Asked:
    return ApiKey.ADD_PARTITIONS_TO_TXN, version, {"transactions": list(transactions)}


@case
def transactions_of_version_3(ids: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
    producer = yield from _begun("three")
    fields = {
        "v3_and_below_transactional_id": "three",
        "v3_and_below_producer_id": producer["producer_id"],
        "v3_and_below_producer_epoch": producer["producer_epoch"],
    }
    one = {"name": TOPIC, "partitions": [0]}
    for topics in (
        [{"name": TOPIC, "partitions": [0, 0]}],
        [one, one],
        [{"name": TOPIC, "partitions": [-1]}, one],
        [{"name": "missing", "partitions": [0, 0]}, one],
        [{"name": TOPIC, "partitions": []}],
        [],
    ):
        yield ApiKey.ADD_PARTITIONS_TO_TXN, 3, {**fields, "v3_and_below_topics": topics}
    yield _ended("three", producer)


def _transaction(
    name: str, producer: Mapping[str, Any], *topics: dict[str, Any], **more: Any
) -> dict[str, Any]:
    return {"transactional_id": name, **producer, "topics": list(topics), **more}


@case
def transactions_in_batches(ids: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
    for version in (4, 5):
        name, other_name = f"batch-{version}", f"other-{version}"
        producer = yield from _begun(name)
        other_producer = yield from _begun(other_name)
        one = {"name": TOPIC, "partitions": [0]}
        of = partial(_transaction, name, producer)
        of_other = partial(_transaction, other_name, other_producer)
        yield _added(version)
        yield _added(version, of(one, verify_only=True))
        yield _added(version, of(one), of_other(one))
        yield _added(version, of(one, verify_only=True))
        yield _added(version, of({"name": TOPIC, "partitions": [0, 1]}, verify_only=True))
        yield _added(version, of({"name": TOPIC, "partitions": [0, 0]}))
        yield _added(version, of(one, one))
        yield _added(version, of({"name": TOPIC, "partitions": [0, -1]}))
        yield _added(version, of({"name": "missing", "partitions": [0]}, one))
        yield _added(version, of({"name": "missing", "partitions": [0]}, one, verify_only=True))
        yield _added(version, of({"name": "__consumer_offsets", "partitions": [0]}, one))
        yield _added(version, of({"name": TOPIC, "partitions": []}))
        yield _added(version, of())
        yield _added(version, of(one, producer_id=4711))
        yield _added(version, of(one, producer_id=4711, verify_only=True))
        yield _added(version, of(one, producer_epoch=producer["producer_epoch"] + 1))
        yield _added(version, of(one, producer_epoch=-1))
        yield _added(version, of(one, producer_epoch=-1, verify_only=True))
        yield _added(version, {**of(one), "transactional_id": ""})
        yield _added(version, {**of(one), "transactional_id": "unknown"})
        yield _added(version, {**of(one, verify_only=True), "transactional_id": "unknown"})
        yield _added(version, of(one), of({"name": TOPIC, "partitions": [1]}))
        yield _added(version, of(one), of(one, verify_only=True))
        yield _ended(name, producer)
        yield _ended(other_name, other_producer)
    yield ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["unknown", "unknown", ""]}
    yield (
        ApiKey.LIST_TRANSACTIONS,
        2,
        {"state_filters": ["bogus", "bogus", "Dead"], "producer_id_filters": [-1, -1]},
    )


@case
def offsets_in_a_transaction(ids: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
    producer = yield from _begun("offsets")
    who = {"transactional_id": "offsets", **producer, "group_id": "in-a-transaction"}
    yield ApiKey.ADD_OFFSETS_TO_TXN, 3, who
    twice = {"name": TOPIC, "partitions": [_COMMITTED, _LATER]}
    for topics in (
        [twice],
        [twice, twice],
        [{"name": "missing", "partitions": [_COMMITTED]}],
        [{"name": TOPIC, "partitions": []}],
        [],
    ):
        yield ApiKey.TXN_OFFSET_COMMIT, 3, {**who, "topics": topics}
    yield _ended("offsets", producer)


@case
def markers(ids: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
    def marker(producer_id: int, *topics: dict[str, Any]) -> dict[str, Any]:
        return {
            "producer_id": producer_id,
            "producer_epoch": 0,
            "transaction_result": False,
            "topics": list(topics),
            "coordinator_epoch": 0,
        }

    missing = {"name": "missing", "partition_indexes": [0, 0]}
    for version in (1, 2):
        for rows in (
            [marker(4711, missing)],
            [marker(4711, missing, missing)],
            [marker(4711, missing)] * 2,
            [marker(4711)],
            [],
        ):
            yield ApiKey.WRITE_TXN_MARKERS, version, {"markers": rows}


@case
def producer_ids(ids: Mapping[str, bytes]) -> Generator[Asked, Any, None]:
    key = ApiKey.INIT_PRODUCER_ID
    yield key, 3, {"transactional_id": "", "transaction_timeout_ms": 1000}
    for timeout_ms in (0, -1, 2**31 - 1):
        yield key, 3, {"transactional_id": "p", "transaction_timeout_ms": timeout_ms}
    for producer_id, epoch in ((5, -1), (-1, 5), (-2, 0), (5, 5)):
        fields = {
            "transaction_timeout_ms": 1000,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }
        yield key, 3, {"transactional_id": "p", **fields}


# The cluster

for _name, _updates in {
    "twice": [{"feature": "transaction.version", "max_version_level": 2}] * 2,
    "unknown": [{"feature": "bogus", "max_version_level": 1}],
    "unnamed": [{"feature": "", "max_version_level": 1}],
    "negative": [{"feature": "transaction.version", "max_version_level": -1}],
    "none": [],
    "unknown type": [{"feature": "transaction.version", "max_version_level": 1, "upgrade_type": 9}],
}.items():
    single(
        f"update features: {_name}",
        (ApiKey.UPDATE_FEATURES, 1, {"feature_updates": _updates, "validate_only": True}),
        (ApiKey.UPDATE_FEATURES, 2, {"feature_updates": _updates, "validate_only": True}),
    )
for _name, _topics in {
    "another topic": [{"topic_name": TOPIC, "partitions": [{"partition_index": 0}]}],
    "nothing": [],
    "another partition": [
        {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 1}]}
    ],
}.items():
    single(f"describe quorum: {_name}", (ApiKey.DESCRIBE_QUORUM, 2, {"topics": _topics}))
single(
    "list config resources: types twice",
    (ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [16, 16, 32]}),
    (ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [4, 4]}),
    (ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [99]}),
)


def created() -> Asked:
    """Return the request that makes the topics of the cases."""
    topics = [
        {"name": name, "num_partitions": count, "replication_factor": 1}
        for name, count in ((TOPIC, 2), (OTHER, 1))
    ]
    return ApiKey.CREATE_TOPICS, 7, {"topics": topics}


def coordinated() -> tuple[Asked, ...]:
    """Return the requests after which there are coordinators of groups and transactions."""
    key = ApiKey.FIND_COORDINATOR
    return tuple((key, 6, {"coordinator_keys": ["k"], "key_type": kind}) for kind in (0, 1))


def first_records() -> Asked:
    rows = [{"index": index, "records": _batch()} for index in (0, 1)]
    return ApiKey.PRODUCE, 9, {"topic_data": [{"name": TOPIC, "partition_data": rows}], "acks": -1}


def _error_codes(answer: Struct) -> set[int]:
    found: set[int] = set()
    for field in answer.FIELDS:
        value = getattr(answer, field.name)
        if field.name.endswith("error_code"):
            found.add(value)
        elif isinstance(value, list):
            found.update(*[_error_codes(row) for row in value if isinstance(row, Struct)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    options = parser.parse_args()
    answers: dict[str, Any] = {}

    def call(connection: Connection, asked: Asked) -> Any:
        for _ in range(ATTEMPTS):
            answer = connection.call(message_of(asked[0], asked[2]), asked[1])
            if not _error_codes(answer) & LOADING:
                break
            time.sleep(0.2)
        return answer

    with Connection(options.bootstrap, ANSWER_S) as connection:
        rows = call(connection, created()).topics
        for asked in (first_records(), *coordinated()):
            call(connection, asked)
    ids = {row.name: bytes(row.topic_id) for row in rows}
    names = {topic_id: name for name, topic_id in ids.items()}
    for name, each in CASES.items():
        found: list[Any] = []
        steps = each(ids)
        answer = None
        while True:
            try:
                asked = steps.send(answer)
            except StopIteration:
                break
            with Connection(options.bootstrap, ANSWER_S) as connection:
                try:
                    answer = call(connection, asked)
                except (EOFError, TimeoutError) as error:
                    found.append("closed" if isinstance(error, EOFError) else "silent")
                    answer = None
                    print(f"{name}: {found[-1]} for {asked}", file=sys.stderr)
                    continue
            found.append(plain(answer, asked[1], names))
        answers[name] = found
    text = {"asked": f"Apache Kafka 4.3.1, {datetime.date.today()}", "answers": answers}
    GOLDEN.write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
