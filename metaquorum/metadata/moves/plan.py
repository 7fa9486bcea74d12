"""A plan of moves, and its JSON file.

The file is a reassignment file of Kafka with further fields, which `kafka-reassign-partitions`
ignores. So either tool reads the file of the other:

    {"version": 1,
     "partitions": [
       {"topic": "orders", "partition": 0, "replicas": [2, 3],    the target, as in Kafka's files
        "current": [1, 2], "size_bytes": 1000}],                  the replicas now; bytes of one
     "cluster_id": "lJZf0hMEQwyrWjcxM9mxzA",
     "throttle_bytes_per_s": 10000000}

Fields that only metaquorum writes may be absent. Unknown fields are ignored. `log_dirs` may only
contain "any": a plan moves replicas between workers, not between log directories.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from metaquorum.metadata.records import MAX_REPLICAS
from metaquorum.metadata.topic_names import topic_name_complaint
from metaquorum.wire.primitives.frozen import frozen

VERSION: Final = 1
# Bounds of a file: twice the partitions of a large cluster, at about 320 bytes each.
MAX_MOVES: Final = 200_000
MAX_FILE_CHARS: Final = 64 << 20
ANY_LOG_DIR: Final = "any"
_MAX_ID: Final = 2**31 - 1
MAX_BYTES: Final = 2**63 - 1  # largest size, and largest throttle
_MAX_SHOWN: Final = 60  # characters of a wrong value in an error


class PlanError(ValueError):
    """Raised if a plan is malformed; the message is a sentence that says what to change."""


@frozen
class PartitionMove:
    """Move of one partition from `replicas` to `target`, the preferred leader first.

    Replicas are worker ids. If the file does not say, `replicas` is empty, and `size_bytes`, of one
    replica, is None.
    """

    topic: str
    partition: int
    replicas: tuple[int, ...]
    target: tuple[int, ...]
    size_bytes: int | None = None

    @property
    def adding(self) -> tuple[int, ...]:
        """Workers that receive a copy, in the order of the target."""
        return tuple([each for each in self.target if each not in self.replicas])

    @property
    def removing(self) -> tuple[int, ...]:
        """Workers whose copy is deleted."""
        return tuple([each for each in self.replicas if each not in self.target])

    @property
    def copied_bytes(self) -> int:
        """Bytes that are copied to other workers, as far as sizes are known."""
        return (self.size_bytes or 0) * len(self.adding)


@frozen
class Plan:
    """Moves of a cluster, each partition at most once."""

    moves: tuple[PartitionMove, ...]
    throttle_bytes_per_s: int | None = None  # limit of each worker and side
    cluster_id: str | None = None

    @property
    def copied_bytes(self) -> int:
        return sum(move.copied_bytes for move in self.moves)


def reversed_plan(plan: Plan) -> Plan:
    """Return the plan that moves all partitions back. Raises PlanError if replicas are unknown."""
    for move in plan.moves:
        if not move.replicas:
            raise PlanError(
                f"{move.topic}-{move.partition}: the plan does not have the current replicas of the"
                ' partition ("current"), so it cannot be reversed'
            )
    moves = [
        PartitionMove(move.topic, move.partition, move.target, move.replicas, move.size_bytes)
        for move in plan.moves
    ]
    return Plan(tuple(moves), plan.throttle_bytes_per_s, plan.cluster_id)


def write_plan(plan: Plan) -> str:
    """Return the plan as JSON, with one line for each partition."""
    lines = ",\n".join(f"  {json.dumps(_row(move))}" for move in plan.moves)
    head: dict[str, Any] = {"version": VERSION}
    if plan.cluster_id is not None:
        head["cluster_id"] = plan.cluster_id
    if plan.throttle_bytes_per_s is not None:
        head["throttle_bytes_per_s"] = plan.throttle_bytes_per_s
    start = json.dumps(head)[:-1]
    return f'{start},\n "partitions": [\n{lines}\n ]}}\n'


def _row(move: PartitionMove) -> dict[str, Any]:
    row: dict[str, Any] = {
        "topic": move.topic,
        "partition": move.partition,
        "replicas": list(move.target),
    }
    if move.replicas:
        row["current"] = list(move.replicas)
    if move.size_bytes is not None:
        row["size_bytes"] = move.size_bytes
    return row


def read_plan(text: str) -> Plan:
    """Return the plan in a file of `write_plan` or of `kafka-reassign-partitions`.

    Raises PlanError if the text is not one.
    """
    data = _parsed(text, "the plan")
    version = data.get("version")
    if version != VERSION or isinstance(version, bool):
        raise PlanError(
            f'the plan has "version": {_shown(version)}; this program reads version {VERSION}'
        )
    cluster_id = data.get("cluster_id")
    if cluster_id is not None and not isinstance(cluster_id, str):
        raise PlanError(f'"cluster_id" must be text, not {_shown(cluster_id)}')
    throttle = data.get("throttle_bytes_per_s")
    if throttle is not None:
        throttle = _number(throttle, MAX_BYTES, '"throttle_bytes_per_s"')
        if throttle == 0:
            raise PlanError(
                '"throttle_bytes_per_s" is 0, and nothing would move; set at least 1, or remove it'
            )
    moves = [_move(row, at) for at, row in enumerate(_rows(data, "partitions", MAX_MOVES))]
    seen: set[tuple[str, int]] = set()
    for move in moves:
        where = (move.topic, move.partition)
        if where in seen:
            raise PlanError(
                f"{move.topic}-{move.partition} is in the plan more than once; remove one of them"
            )
        seen.add(where)
    return Plan(tuple(moves), throttle, cluster_id)


def read_topics(text: str) -> list[str]:
    """Return the topics of a `--topics-to-move-json-file` of `kafka-reassign-partitions`.

    Its form is {"version": 1, "topics": [{"topic": "orders"}, ...]}. Raises PlanError for another.
    """
    data = _parsed(text, "the list of topics")
    names = []
    for at, row in enumerate(_rows(data, "topics", MAX_MOVES)):
        names.append(_topic(row, f"topic {at + 1} of the list"))
    return list(dict.fromkeys(names))


def _parsed(text: str, what: str) -> Mapping[str, Any]:
    if len(text) > MAX_FILE_CHARS:
        raise PlanError(f"{what} has more than {MAX_FILE_CHARS} characters; split it")
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise PlanError(
            f"{what} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from None
    except (ValueError, RecursionError):  # thousands of digits or of brackets
        raise PlanError(f"{what} is not JSON that this program can read") from None
    if not isinstance(data, dict):
        raise PlanError(f"{what} must be a JSON object, not {_shown(data)}")
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _rows(data: Mapping[str, Any], key: str, most: int) -> Iterable[Any]:
    rows = data.get(key)
    if not isinstance(rows, list):
        raise PlanError(f'"{key}" must be a list, not {_shown(rows)}')
    if len(rows) > most:
        raise PlanError(f'"{key}" has {len(rows)} rows; the maximum is {most}: split the file')
    return rows


def _move(row: Any, at: int) -> PartitionMove:
    topic = _topic(row, f"partition {at + 1} of the plan")
    partition = _number(row.get("partition"), _MAX_ID, f'{topic}: "partition"')
    where = f"{topic}-{partition}"
    target = _workers(row.get("replicas"), f'{where}: "replicas"')
    if not target:
        raise PlanError(f'{where}: "replicas" is empty; name at least one worker')
    current = _workers(row.get("current", []), f'{where}: "current"')
    size = row.get("size_bytes")
    if size is not None:
        size = _number(size, MAX_BYTES, f'{where}: "size_bytes"')
    log_dirs = row.get("log_dirs", [])
    if not isinstance(log_dirs, list) or any(each != ANY_LOG_DIR for each in log_dirs):
        raise PlanError(
            f'{where}: "log_dirs" may only contain "any": a plan moves replicas between workers;'
            " `kafka-reassign-partitions` moves them between log directories"
        )
    return PartitionMove(topic, partition, current, target, size)


def _topic(row: Any, where: str) -> str:
    if not isinstance(row, dict):
        raise PlanError(f"{where} must be a JSON object, not {_shown(row)}")
    name = row.get("topic")
    if not isinstance(name, str):
        raise PlanError(f'{where}: "topic" must be text, not {_shown(name)}')
    if (complaint := topic_name_complaint(name)) is not None:
        raise PlanError(f'{where}: "topic" is not a name of a topic: {complaint}')
    return name


def _workers(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise PlanError(f"{what} must be a list of worker ids, not {_shown(value)}")
    if len(value) > MAX_REPLICAS:
        raise PlanError(f"{what} has {len(value)} workers; the maximum is {MAX_REPLICAS}")
    workers = tuple([_number(each, _MAX_ID, f"a worker id in {what}") for each in value])
    if len(set(workers)) < len(workers):
        raise PlanError(f"{what} has a worker more than once: {_shown(value)}")
    return workers


def _number(value: Any, most: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise PlanError(f"{what} must be a whole number from 0 to {most}, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
