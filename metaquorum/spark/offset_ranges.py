"""Offset ranges of partitions, and the plan that fixes which records a load reads.

These are plain values with a JSON form, so that a plan can be kept in a file and used again. They
hold no address and no credential. Invariants of every plan: ranges are ordered by topic, partition
and start; ranges of one partition are contiguous; no two ranges have the same name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.primitives.types import ZERO_UUID, uuid_from_text, uuid_to_text

UNKNOWN: Final = -1
MAX_OFFSET: Final = (1 << 63) - 1
MAX_PARTITION: Final = (1 << 31) - 1
FORMAT: Final = "metaquorum read plan"
FORMAT_VERSION: Final = 1
# Kafka's rule (`Topic.validate`). File names begin with the topic, so a plan read from a file must
# not have any other topic name.
_TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
_ID_BYTES: Final = 16


@frozen
class OffsetRange:
    """The records of one partition with `start` <= offset < `end`.

    Raises ValueError if a field is invalid.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes = ZERO_UUID  # 16 bytes; ZERO_UUID if the cluster has no topic ids
    leader_epoch: int = UNKNOWN  # epoch of the leader that reported the partition's end
    bytes_estimate: int = UNKNOWN  # size of the range in the log

    def __post_init__(self) -> None:
        if not is_topic_name(self.topic):
            raise ValueError(f"{self.topic[:300]!r} is not a valid topic name")
        if not 0 <= self.partition <= MAX_PARTITION:
            raise ValueError(f"topic {self.topic} has no partition {self.partition}")
        if not 0 <= self.start <= self.end <= MAX_OFFSET:
            raise ValueError(
                f"{self.topic}-{self.partition}: {self.start} to {self.end} is not an offset range"
            )
        if len(self.topic_id) != _ID_BYTES:
            raise ValueError(f"the id of topic {self.topic} has {len(self.topic_id)} bytes, not 16")
        if self.leader_epoch < UNKNOWN or self.bytes_estimate < UNKNOWN:
            raise ValueError(f"{self.name}: a leader epoch or a size below -1")

    @property
    def name(self) -> str:
        """Name of the range: unique in a plan, and ordered as the ranges of a partition."""
        return f"{self.topic}-{self.partition}-{self.start:020}-{self.end:020}"

    @property
    def offsets(self) -> int:
        return self.end - self.start


@frozen
class TopicFacts:
    """Topic id and cleanup policy of a planned topic. `is_compacted` None: unknown."""

    topic_id: bytes
    is_compacted: bool | None


@frozen
class ReadPlan:
    """Ranges ordered by topic, partition and start; those of a partition are contiguous.

    Raises ValueError for any other ranges, and for ranges of a topic that is not in `topics`.
    """

    cluster_id: str | None
    read_committed: bool
    ranges: tuple[OffsetRange, ...]
    topics: Mapping[str, TopicFacts]
    made_at_ms: int  # milliseconds since 1970 UTC

    def __post_init__(self) -> None:
        if self.made_at_ms < 0:
            raise ValueError("the plan was made before 1970")
        before: OffsetRange | None = None
        for each in self.ranges:
            facts = self.topics.get(each.topic)
            if facts is None:
                raise ValueError(f"{each.name}: the plan does not have the topic")
            if facts.topic_id != each.topic_id:
                raise ValueError(f"{each.name}: the id is not that of the topic")
            if before is not None:
                _check_order(before, each)
            before = each

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object for `json.dumps`, which `from_json` reads."""
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "cluster_id": self.cluster_id,
            "read_committed": self.read_committed,
            "made_at_ms": self.made_at_ms,
            "topics": {
                name: {"topic_id": uuid_to_text(facts.topic_id), "is_compacted": facts.is_compacted}
                for name, facts in self.topics.items()
            },
            "ranges": [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "start": each.start,
                    "end": each.end,
                    "leader_epoch": each.leader_epoch,
                    "bytes_estimate": each.bytes_estimate,
                }
                for each in self.ranges
            ],
        }

    @classmethod
    def from_json(cls, data: Any) -> ReadPlan:
        """Return the plan of a parsed JSON object.

        Raises ValueError if a field is invalid or the format has another version.
        """
        plan = _Fields(data, "the plan")
        if plan.value("format") != FORMAT:
            raise ValueError(f"not a {FORMAT}")
        version = plan.integer("version")
        if version != FORMAT_VERSION:
            raise ValueError(
                f"a {FORMAT} of version {version}; this release reads version {FORMAT_VERSION}"
            )
        plan.check_names(
            "format",
            "version",
            "cluster_id",
            "read_committed",
            "made_at_ms",
            "topics",
            "ranges",
        )
        topics = {
            name: _topic_from_json(value, f"topic {name[:300]!r}")
            for name, value in plan.object("topics").items()
        }
        return cls(
            cluster_id=plan.text_or_none("cluster_id"),
            read_committed=plan.boolean("read_committed"),
            ranges=tuple(
                _range_from_json(value, f"range {number}", topics)
                for number, value in enumerate(plan.array("ranges"))
            ),
            topics=topics,
            made_at_ms=plan.integer("made_at_ms"),
        )


def is_topic_name(text: str) -> bool:
    """Return whether `text` is a legal topic name, by Kafka's rule."""
    return _TOPIC_NAME.fullmatch(text) is not None


def _check_order(before: OffsetRange, each: OffsetRange) -> None:
    if (before.topic, before.partition) == (each.topic, each.partition):
        if before.end != each.start:
            raise ValueError(f"{each.name} does not begin where {before.name} ends")
        if before.name == each.name:
            raise ValueError(f"the plan has the range {each.name} twice")
    elif (before.topic, before.partition) > (each.topic, each.partition):
        raise ValueError(f"{each.name} comes after {before.name}: ranges are not in order")


def _topic_from_json(data: Any, what: str) -> TopicFacts:
    fields = _Fields(data, what)
    fields.check_names("topic_id", "is_compacted")
    try:
        topic_id = uuid_from_text(fields.text("topic_id"))
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    return TopicFacts(topic_id, fields.boolean_or_none("is_compacted"))


def _range_from_json(data: Any, what: str, topics: Mapping[str, TopicFacts]) -> OffsetRange:
    fields = _Fields(data, what)
    fields.check_names("topic", "partition", "start", "end", "leader_epoch", "bytes_estimate")
    topic = fields.text("topic")
    if topic not in topics:
        raise ValueError(f"{what}: the plan does not have the topic {topic[:300]!r}")
    try:
        return OffsetRange(
            topic=topic,
            partition=fields.integer("partition"),
            start=fields.integer("start"),
            end=fields.integer("end"),
            topic_id=topics[topic].topic_id,
            leader_epoch=fields.integer("leader_epoch"),
            bytes_estimate=fields.integer("bytes_estimate"),
        )
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


class _Fields:
    """A JSON object with typed access to its fields. Its ValueErrors name the field."""

    def __init__(self, data: Any, what: str) -> None:
        if not isinstance(data, dict):
            raise ValueError(f"{what} is not a JSON object")  # noqa: TRY004 - of the text
        self._data: dict[str, Any] = data
        self._what = what

    def check_names(self, *names: str) -> None:
        """Raise ValueError unless the object has exactly the fields `names`."""
        for name in names:
            self.value(name)
        for name in self._data:
            if name not in names:
                raise ValueError(f"{self._what} has an unknown field {str(name)[:100]!r}")

    def value(self, name: str) -> Any:
        if name not in self._data:
            raise ValueError(f"{self._what} has no {name!r}")
        return self._data[name]

    def integer(self, name: str) -> int:
        value = self.value(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, "a whole number")
        return value

    def text(self, name: str) -> str:
        value = self.value(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self.value(name) is None else self.text(name)

    def boolean(self, name: str) -> bool:
        value = self.value(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def boolean_or_none(self, name: str) -> bool | None:
        return None if self.value(name) is None else self.boolean(name)

    def object(self, name: str) -> dict[str, Any]:
        value = self.value(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return value

    def array(self, name: str) -> list[Any]:
        value = self.value(name)
        if not isinstance(value, list):
            raise self._wrong(name, "an array")
        return value

    def _wrong(self, name: str, expected: str) -> ValueError:
        return ValueError(f"{self._what}: {name!r} is not {expected}")
