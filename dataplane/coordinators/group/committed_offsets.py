"""Committed offsets of the groups of one shard. Plain state that follows committed records.

An offset belongs to a topic by name and, if its record has one, by topic id: after the topic was
deleted and created again, the offset is no longer returned (R10 of the invariants: a topic never
serves what belongs to its predecessor).

An offset is *pending* while its record is appended but not committed: it is not returned yet, but
it counts for deletions, and does not expire. The values are kept as bytes, and decoded when they
are read: a coordinator of a million offsets reads few of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from dataplane.coordinators.group.record_formats import (
    OffsetKey,
    OffsetValue,
    decode_offset_value,
    encode_key,
)
from dataplane.coordinators.shard import CoordinatorRecord
from wire.primitives.types import ZERO_UUID, Uuid

NO_EXPIRY: Final = -1
# Topic id of a topic's name at present; None if there is no such topic.
TopicIdOf: TypeAlias = Callable[[str], Uuid | None]
_NONE: Final[Mapping[str, dict[int, bytes]]] = {}


class CommittedOffsets:
    """Offsets by group, topic and partition."""

    def __init__(self, topic_id_of: TopicIdOf) -> None:
        self._topic_id_of = topic_id_of
        self._groups: dict[str, dict[str, dict[int, bytes]]] = {}
        self._pending: dict[str, Counter[tuple[str, int]]] = {}
        self.count = 0
        self.pending_count = 0

    def __contains__(self, group_id: str) -> bool:
        """Whether the group has offsets, or pending ones."""
        return group_id in self._groups or group_id in self._pending

    @property
    def group_ids(self) -> Iterable[str]:
        """Groups with committed offsets."""
        return self._groups.keys()

    def replay(self, key: OffsetKey, value: bytes | None) -> None:
        """Apply a committed record; `value` must be valid."""
        topics = self._groups.get(key.group)
        if value is not None:
            if topics is None:
                topics = self._groups[key.group] = {}
            of_topic = topics.get(key.topic)
            if of_topic is None:
                of_topic = topics[key.topic] = {}
            self.count += key.partition not in of_topic
            of_topic[key.partition] = value
        elif topics is not None and (of_topic := topics.get(key.topic)) is not None:
            self.count -= of_topic.pop(key.partition, None) is not None
            if not of_topic:
                del topics[key.topic]
                if not topics:
                    del self._groups[key.group]

    def appended(self, key: OffsetKey) -> None:
        """Note that a record of the offset, or its tombstone, was appended."""
        self._pending.setdefault(key.group, Counter())[key.topic, key.partition] += 1
        self.pending_count += 1

    def settled(self, key: OffsetKey) -> None:
        """Note that an appended record is committed."""
        pending = self._pending[key.group]
        place = key.topic, key.partition
        pending[place] -= 1
        self.pending_count -= 1
        if not pending[place]:
            del pending[place]
            if not pending:
                del self._pending[key.group]

    def of(self, group_id: str, topic: str, partition: int) -> OffsetValue | None:
        """Return the committed offset; None if there is none for the topic of that name."""
        value = self._groups.get(group_id, _NONE).get(topic, {}).get(partition)
        if value is None:
            return None
        committed = decode_offset_value(value)
        return committed if self._is_of_topic(topic, committed) else None

    def topics_of(self, group_id: str) -> Iterator[tuple[str, list[tuple[int, OffsetValue]]]]:
        """Yield the group's topics with their offsets, by partition."""
        for topic, partitions in self._groups.get(group_id, _NONE).items():
            rows = []
            for partition, value in sorted(partitions.items()):
                committed = decode_offset_value(value)
                if self._is_of_topic(topic, committed):
                    rows.append((partition, committed))
            if rows:
                yield topic, rows

    def _is_of_topic(self, topic: str, committed: OffsetValue) -> bool:
        """Return whether the offset is not one of a deleted topic of the same name."""
        if committed.topic_id == ZERO_UUID:
            return True
        return self._topic_id_of(topic) == committed.topic_id

    # Tombstones

    def places_of(self, group_id: str) -> list[tuple[str, int]]:
        """Return all topics and partitions with an offset of the group, or a pending one."""
        places = {
            (topic, partition)
            for topic, partitions in self._groups.get(group_id, _NONE).items()
            for partition in partitions
        }
        return sorted(places | set(self._pending.get(group_id, ())))

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        """Return whether there is an offset, or a pending one."""
        return partition in self._groups.get(group_id, _NONE).get(topic, {}) or (
            topic,
            partition,
        ) in self._pending.get(group_id, {})

    def gone(self, group_id: str) -> list[CoordinatorRecord]:
        """Return tombstones for the group's offsets whose topic was deleted or created again."""
        records = []
        for topic, partitions in self._groups.get(group_id, _NONE).items():
            topic_id = self._topic_id_of(topic)
            for partition, value in partitions.items():
                committed_id = decode_offset_value(value).topic_id
                if topic_id is None or committed_id not in (ZERO_UUID, topic_id):
                    records.append(tombstone(group_id, topic, partition))
        return records

    def expired(
        self,
        group_id: str,
        now_ms: int,
        retention_ms: int,
        since_ms: Callable[[OffsetValue], int],
        is_subscribed: Callable[[str], bool],
    ) -> list[CoordinatorRecord]:
        """Return tombstones for the offsets that have expired.

        An offset expires `retention_ms` after `since_ms` of it, unless its record says when, or a
        member is subscribed to its topic.
        """
        records = []
        pending: Mapping[tuple[str, int], int] = self._pending.get(group_id, {})
        for topic, partitions in self._groups.get(group_id, _NONE).items():
            if is_subscribed(topic):
                continue
            for partition, value in partitions.items():
                if (topic, partition) in pending:
                    continue
                committed = decode_offset_value(value)
                expires_ms = committed.expire_timestamp_ms
                if expires_ms == NO_EXPIRY:
                    expires_ms = since_ms(committed) + retention_ms
                if now_ms >= expires_ms:
                    records.append(tombstone(group_id, topic, partition))
        return records


def tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    key = OffsetKey(group_id, topic, partition)
    return CoordinatorRecord(encode_key(key), None, key)
