"""Committed offsets of the groups of one shard: a partition of `__consumer_offsets`.

An offset changes only by the replay of its committed record:

    appended(commit)     pending + 1
    replay(commit)       pending - 1, the offset has the value
    replay(tombstone)    the offset is removed

A deletion returns the keys of tombstones that the shard must append. It covers pending commits as
well, because their records precede the tombstones in the log. A pending commit keeps its offset
from expiring.

An offset belongs to the topic with the id in its record. It is not returned for a topic of the same
name with another id, nor while no topic has this id (R10, KIP-516): that topic was deleted, and its
tombstone is to follow. Records of older versions have no id, and match any topic.

Memory: a value stays in the bytes of its record, 42 without metadata, and is decoded when a client
asks for it. Four bytes before it are the number of the client that has created the offset, in the
budget of offsets (`client_budget`); long metadata is growth. A group counts for the client of its
first offset. A group with a single offset has one object, and no dicts. Measured with 1,000,000
offsets, names and dicts included (64-bit CPython 3.11): 130 bytes per offset if groups have ten or
more partitions of a topic, 350 if they have one partition of each of 100 topics, 210 if each group
has a single offset.

Offsets of open transactions are pending, too, until they are replicated, and then wait for the
markers of their transactions in `transactional_offsets`. Until then the offset is *unstable*: no
one can know its next value (KIP-447). A group without transactions needs no memory for this.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from struct import Struct
from sys import intern
from typing import Final, NamedTuple, TypeAlias

from metaquorum.dataplane.coordinators.client_budget import UNKNOWN, ClientBudget, text_bytes
from metaquorum.dataplane.coordinators.group.group_table import GroupTable
from metaquorum.dataplane.coordinators.group.offset_retention import OffsetRetention
from metaquorum.dataplane.coordinators.group.record_formats import (
    OffsetKey,
    OffsetValue,
    check_offset_value,
    decode_offset_value,
    encode_key,
    offset_timestamps,
    offset_topic_id,
)
from metaquorum.dataplane.coordinators.group.transactional_offsets import (
    Place,
    TransactionalOffsets,
)
from metaquorum.dataplane.scheduling.time_slices import FORGOTTEN_ROWS, Steps, emptied, pause
from metaquorum.wire.primitives.types import ZERO_UUID, Uuid

# Commits that are appended and not committed yet, at most: some 50 MB. A commit of more offsets is
# refused (`has_room`), as while the in-sync replicas are too few.
MAX_PENDING_OFFSETS: Final = 200_000
# Memory of an offset with its part of the dicts, and of a group without its id; and the bytes of a
# value that are counted in the first.
OFFSET_BYTES: Final = 200
GROUP_BYTES: Final = 120
USUAL_VALUE_BYTES: Final = 64
# Offsets of one piece of a group: their tombstones are encoded and appended in some milliseconds.
PIECE_OFFSETS: Final = 256
# Bytes of the group id in the keys of one piece.
PIECE_ID_BYTES: Final = 256 << 10

# Current id of the topic of a name, ZERO_UUID if there is none.
TopicIdOf: TypeAlias = Callable[[str], Uuid]
# Values by topic and partition, each after the number of its client. No dict is empty.
_Topics: TypeAlias = dict[str, dict[int, bytes]]
_NO_TOPICS: Final[_Topics] = {}
# The only offset of a group is kept as bytes: partition, length of the topic, topic, value.
_PLACE: Final = Struct(">iH")
_NUMBER_BYTES: Final = 4
_NO_CLIENT: Final = bytes(_NUMBER_BYTES)


def piece_rows(group: str) -> int:
    """Return the number of offsets of one piece of the group: fewer if its id is long."""
    if len(group) * PIECE_OFFSETS * 4 <= PIECE_ID_BYTES:
        return PIECE_OFFSETS
    return max(1, min(PIECE_OFFSETS, PIECE_ID_BYTES // len(group.encode())))


class ExpiredOffsets(NamedTuple):
    """Keys of tombstones, and whether the group has no offset that is not expired."""

    keys: list[bytes]
    is_all: bool


class Added(NamedTuple):
    """Memory that a commit needs, and the client for which it counts."""

    client: str
    admitted_bytes: int
    grown_bytes: int


def group_bytes(group: str) -> int:
    """Return the memory of a group without its offsets."""
    return GROUP_BYTES + text_bytes(group)


def _excess(size_bytes: int) -> int:
    """Return the bytes of a value that OFFSET_BYTES does not have."""
    return max(0, size_bytes - USUAL_VALUE_BYTES)


class _Pending:
    """Commits of one offset that are appended and not committed."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count = 0
        self.value: bytes | None = None  # last appended value, None if a tombstone follows it


class CommittedOffsets:
    """Committed offsets by group, topic and partition, and pending commits."""

    def __init__(
        self,
        budget: ClientBudget,
        max_pending: int = MAX_PENDING_OFFSETS,
    ) -> None:
        self._budget = budget
        self._max_pending = max_pending
        self.transactional = TransactionalOffsets(budget)
        # Numbers of the clients for which groups with dicts count, but for UNKNOWN.
        self._payers: dict[str, bytes] = {}
        self._waiting = self.transactional.groups
        self._groups: GroupTable[_Topics | bytes] = GroupTable()
        self._pending: dict[str, dict[tuple[str, int], _Pending]] = {}
        self.offset_count = 0
        self.pending_count = 0

    # Records

    def has_room(self, offsets: int) -> bool:
        """Return whether commits of this number of offsets may be appended."""
        return self.pending_count + offsets <= self._max_pending

    def added(self, key: OffsetKey, value_bytes: int, client: str) -> Added | None:
        """Return the memory that a commit of the client adds; None if nothing.

        A new offset counts for the client, and longer metadata for the one that created the offset.
        """
        stored = self._topics(key.group).get(key.topic, {}).get(key.partition)
        if stored is None:
            return Added(client, OFFSET_BYTES, _excess(value_bytes))
        grown = _excess(value_bytes) - _excess(len(stored) - _NUMBER_BYTES)
        return Added(self._client_of(stored), 0, grown) if grown > 0 else None

    def appended(self, key: OffsetKey, value: bytes | None) -> None:
        """Count a commit that is appended, and not committed yet."""
        group, topic, partition = key
        if value is None:
            pending = self._pending.get(group, {}).get((topic, partition))
            if pending is not None:
                pending.value = None
            return
        pending = self._pending.setdefault(group, {}).setdefault((topic, partition), _Pending())
        pending.count += 1
        pending.value = value
        self.pending_count += 1

    def replay(self, key: OffsetKey, value: bytes | None, client: str = UNKNOWN) -> None:
        """Apply a committed record of the client; None is a tombstone.

        Raises MalformedRecordError, and changes nothing, if the value is malformed.
        """
        group, topic, partition = key
        if value is None:
            self._remove(group, topic, partition)
            return
        check_offset_value(value)
        if self._pending:
            self._committed(group, topic, partition)
        if self._waiting:
            self.transactional.overtake(group, (topic, partition))
        self._set(group, topic, partition, value, client)

    def replay_transactional(
        self, key: OffsetKey, value: bytes | None, producer_id: int, client: str = UNKNOWN
    ) -> None:
        """Apply a replicated record of a transaction; the offset waits for its marker.

        Raises MalformedRecordError, and changes nothing, if the value is malformed.
        """
        group, topic, partition = key
        if value is None:
            self._remove(group, topic, partition)
            return
        check_offset_value(value)
        if self._pending:
            self._committed(group, topic, partition)
        self.transactional.add(producer_id, group, (topic, partition), value, client)

    def replay_marker(self, producer_id: int, *, is_commit: bool) -> Steps[None] | None:
        """End a transaction; return the rest of the work if it has many offsets."""
        return self.transactional.end(producer_id, self._commit if is_commit else None)

    def _commit(self, group: str, place: Place, value: bytes, client: str) -> None:
        self._set(group, *place, value, client)

    def replay_appended(self, key: OffsetKey, value: bytes | None, client: str = UNKNOWN) -> None:
        """Apply a record that this coordinator has encoded, and that its append has committed.

        It was not counted by `appended`.
        """
        if value is None:
            self._remove(*key)
            return
        if self._waiting:
            self.transactional.overtake(key.group, key[1:])
        self._set(*key, value, client)

    def _set(self, group: str, topic: str, partition: int, value: bytes, client: str) -> None:
        groups = self._groups.bucket(group)
        topics = groups.get(group)
        if topics is None:
            stored = self._created(value, client, group_bytes(group))
            groups[group] = _place(topic, partition) + stored
            return
        if isinstance(topics, bytes):
            place = _place(topic, partition)
            if topics.startswith(place):
                stored = topics[len(place) :]
                groups[group] = place + self._changed(stored, value, client, group_bytes(group))
                return
            payer, topics = _opened(topics)
            groups[group] = topics
            if payer != _NO_CLIENT:
                self._payers[group] = payer
        if client != UNKNOWN and group not in self._payers:
            self._pay(group, client)
        if (partitions := topics.get(topic)) is None:
            topics[topic] = {partition: self._created(value, client)}
        elif (stored := partitions.get(partition, b"")) == b"":
            partitions[partition] = self._created(value, client)
        else:
            partitions[partition] = self._changed(stored, value, client)

    def _created(self, value: bytes, client: str, more_bytes: int = 0) -> bytes:
        """Count a new offset, and `more_bytes` with it; return what is stored."""
        self.offset_count += 1
        self._budget.use(client, OFFSET_BYTES + more_bytes, _excess(len(value)))
        return self._number_of(client) + value

    def _changed(self, stored: bytes, value: bytes, client: str, more_bytes: int = 0) -> bytes:
        """Count the change of an offset; return what is stored."""
        number, before = stored[:_NUMBER_BYTES], _excess(len(stored) - _NUMBER_BYTES)
        if number == _NO_CLIENT and client != UNKNOWN:
            owner = self._budget.take_over(UNKNOWN, client, OFFSET_BYTES + more_bytes, before)
            number = self._number_of(owner)
        if (after := _excess(len(value))) != before:
            self._budget.use(self._client_of(number), 0, after - before)
        return number + value

    def _pay(self, group: str, client: str) -> None:
        """Count a group that was loaded for the client that uses it, if that has room."""
        if self._budget.take_over(UNKNOWN, client, group_bytes(group)) == client:
            self._payers[group] = self._number_of(client)

    def _number_of(self, client: str) -> bytes:
        return self._budget.number_of(client).to_bytes(_NUMBER_BYTES, "big")

    def _client_of(self, stored: bytes) -> str:
        return self._budget.client_of(int.from_bytes(stored[:_NUMBER_BYTES], "big"))

    def _committed(self, group: str, topic: str, partition: int) -> None:
        """Count a pending commit as committed. Records of earlier leaders are not pending."""
        of_group = self._pending.get(group, {})
        pending = of_group.get((topic, partition))
        if pending is None:
            return
        pending.count -= 1
        self.pending_count -= 1
        if not pending.count:
            del of_group[topic, partition]
            if not of_group:
                del self._pending[group]

    def _remove(self, group: str, topic: str, partition: int) -> None:
        if self._waiting:
            self.transactional.remove(group, (topic, partition))
        groups = self._groups.bucket(group)
        payer, topics = _NO_CLIENT, groups.get(group)
        if isinstance(topics, bytes):
            payer, topics = _opened(topics)
        partitions = {} if topics is None else topics.get(topic, {})
        stored = partitions.pop(partition, None)
        if topics is None or stored is None:
            return
        self._forget(stored)
        if not partitions:
            del topics[topic]
            if not topics:
                del groups[group]
                self._forget_group(group, payer)

    def _forget(self, stored: bytes) -> None:
        """Stop counting an offset."""
        self.offset_count -= 1
        excess = _excess(len(stored) - _NUMBER_BYTES)
        self._budget.use(self._client_of(stored), -OFFSET_BYTES, -excess)

    def _forget_group(self, group: str, payer: bytes) -> None:
        """Stop counting a group; `payer` is the number of the client of an only offset."""
        payer = self._payers.pop(group, payer)
        self._budget.use(self._client_of(payer), -group_bytes(group))

    def _topics(self, group: str) -> _Topics:
        """Return the group's values; a copy if there is only one."""
        topics = self._groups.get(group)
        if isinstance(topics, bytes):
            return _opened(topics)[1]
        return _NO_TOPICS if topics is None else topics

    def value(self, group: str, topic: str, partition: int) -> bytes | None:
        """Return the value of the committed offset; None if there is none."""
        stored = self._topics(group).get(topic, {}).get(partition)
        return None if stored is None else stored[_NUMBER_BYTES:]

    async def emptied(self) -> None:
        """Free all offsets, in pieces; no other method may be called afterwards."""
        left = FORGOTTEN_ROWS
        for groups in self._groups.buckets:
            while groups:
                group, topics = groups.popitem()
                payer = _NO_CLIENT
                if isinstance(topics, bytes):
                    payer, topics = _opened(topics)
                self._forget_group(group, payer)
                left -= 1
                while topics:
                    _, partitions = topics.popitem()
                    while partitions:
                        self._forget(partitions.popitem()[1])
                        left -= 1
                        if left <= 0:
                            left = FORGOTTEN_ROWS
                            await pause()
                if left <= 0:
                    left = FORGOTTEN_ROWS
                    await pause()
        await emptied(self._pending)
        await self.transactional.emptied()

    # Reading

    def client_of(self, group: str) -> str | None:
        """Return the client of the group in the budget; None without committed offsets."""
        topics = self._groups.get(group)
        if isinstance(topics, bytes):
            return self._client_of(_opened(topics)[0])
        return None if topics is None else self._client_of(self._payers.get(group, _NO_CLIENT))

    def groups(self) -> Iterator[list[str]]:
        """Yield the groups that have committed offsets, pending ones or open transactions.

        They come in pieces.
        Offsets may change between two steps; a group whose offsets existed at the first step, and
        still do, is yielded.
        """
        pending = {**dict.fromkeys(self._pending), **dict.fromkeys(self._waiting)}
        yield list(pending)
        for groups in self._groups.pieces():
            yield [group for group in groups if group not in pending]

    def committed_places(self) -> Iterator[tuple[str, str, int]]:
        """Yield group, topic and partition of committed offsets; changes may happen meanwhile."""
        for groups in self._groups.pieces():
            for group in groups:
                for topic, partitions in self.places(group):
                    for partition in partitions:
                        yield group, topic, partition

    @property
    def group_count(self) -> int:
        """Number of groups with committed offsets."""
        return len(self._groups)

    def has_committed(self, group: str) -> bool:
        """Return whether the group has committed offsets."""
        return group in self._groups

    def has_group(self, group: str) -> bool:
        """Return whether the group has committed offsets, pending ones or open transactions."""
        return group in self._groups or group in self._pending or group in self._waiting

    def has_pending(self, group: str) -> bool:
        """Return whether the group has pending commits."""
        return group in self._pending

    def has_offset(self, group: str, topic: str, partition: int) -> bool:
        """Return whether the offset is committed or unstable."""
        return self.is_unstable(group, topic, partition) or partition in self._topics(group).get(
            topic, {}
        )

    def is_unstable(self, group: str, topic: str, partition: int) -> bool:
        """Return whether the offset has a pending commit, or one in an open transaction."""
        place = topic, partition
        return place in self._pending.get(group, ()) or (
            bool(self._waiting) and place in self.transactional.places(group)
        )

    def fetch(self, group: str, topic: str, partition: int, topic_id: Uuid) -> OffsetValue | None:
        """Return the committed offset; None if there is none for the topic with this id.

        `topic_id` is ZERO_UUID if the topic does not exist: the offset then has no id, either.
        """
        value = self.value(group, topic, partition)
        return None if value is None else _of_topic(value, topic_id)

    def places(self, group: str) -> list[tuple[str, list[int]]]:
        """Return the topics and partitions with a committed offset of the group."""
        topics = self._topics(group)
        return [(topic, list(partitions)) for topic, partitions in topics.items()]

    def fetch_group(self, group: str, topic_id_of: TopicIdOf) -> dict[str, dict[int, OffsetValue]]:
        """Return all committed offsets of the group, by topic and partition.

        `topic_id_of` returns the current id of a topic, ZERO_UUID for one that does not exist.
        """
        found: dict[str, dict[int, OffsetValue]] = {}
        for topic, partitions in self._topics(group).items():
            topic_id = topic_id_of(topic)
            matching = {
                partition: decoded
                for partition, stored in partitions.items()
                if (decoded := _of_topic(stored[_NUMBER_BYTES:], topic_id)) is not None
            }
            if matching:
                found[topic] = matching
        return found

    # Tombstones

    def delete_group(self, group: str) -> list[bytes]:
        """Return the keys of tombstones for all offsets of the group, also unstable ones."""
        return [encode_key(OffsetKey(group, *place)) for place in self._places(group)]

    def delete_offsets(self, group: str, topic: str, partitions: Iterable[int]) -> list[bytes]:
        """Return the keys of tombstones for those of these offsets that exist or are unstable."""
        return [
            encode_key(OffsetKey(group, topic, partition))
            for partition in partitions
            if self.has_offset(group, topic, partition)
        ]

    def delete_topic(self, group: str, topic: str, topic_id: Uuid) -> list[bytes]:
        """Return the keys of tombstones for the group's offsets of a topic that was deleted.

        The last commit decides, also an unstable one: the offset belongs to the topic if it has the
        id of the topic or none. A shard may have a million groups, so this is done for one of them.
        """
        return [
            encode_key(OffsetKey(group, topic, partition))
            for partition in self._partitions(group, topic)
            if self._last_topic_id(group, topic, partition) in (ZERO_UUID, topic_id)
        ]

    def delete_stale(
        self, group: str, topic_id_of: TopicIdOf, places: Iterable[Place] | None = None
    ) -> list[bytes]:
        """Return the keys of tombstones for the group's offsets of topics that no longer exist.

        Of all its offsets, or of those in one piece of `place_pieces`. Topics are also deleted
        while no worker coordinates the group. An offset without topic id belongs to any topic of
        its name.
        """
        keys = []
        for topic, partition in self._places(group) if places is None else places:
            current_id = topic_id_of(topic)
            last_id = self._last_topic_id(group, topic, partition)
            if last_id is not None and (
                current_id == ZERO_UUID or last_id not in (ZERO_UUID, current_id)
            ):
                keys.append(encode_key(OffsetKey(group, topic, partition)))
        return keys

    def _last_topic_id(self, group: str, topic: str, partition: int) -> Uuid | None:
        """Return the topic id of the last commit, also an unstable one; None if it is deleted."""
        pending = self._pending.get(group, {}).get((topic, partition))
        if pending is None:
            value = self.transactional.last_value(group, (topic, partition))
            if value is None:
                value = self.value(group, topic, partition)
        else:
            value = pending.value
        return None if value is None else offset_topic_id(value)

    def expire(
        self,
        group: str,
        retention: OffsetRetention | None,
        *,
        now_ms: int,
        retention_ms: int,
        places: Sequence[Place] | None = None,
    ) -> ExpiredOffsets:
        """Return the keys of tombstones for the expired offsets of the group.

        Of all its offsets, or of those in one piece of `place_pieces`. `retention` is the result of
        `offset_retention` for the group. None: no offset is expired.
        """
        if retention is None:
            return ExpiredOffsets([], is_all=False)
        if places is None:
            places = list(self._places(group))
        topics = self._topics(group)
        keys = []
        for topic, partition in places:
            stored = topics.get(topic, {}).get(partition)
            if stored is None or topic in retention.subscribed:
                continue
            is_expired = retention.is_expired(
                *offset_timestamps(stored[_NUMBER_BYTES:]), now_ms, retention_ms
            )
            if is_expired and not self.is_unstable(group, topic, partition):
                keys.append(encode_key(OffsetKey(group, topic, partition)))
        is_all = not self._has_unstable(group) and len(keys) == len(places)
        return ExpiredOffsets(keys, is_all and len(keys) == sum(map(len, topics.values())))

    def is_large(self, group: str) -> bool:
        """Return whether the group has more offsets than one piece."""
        most = piece_rows(group)
        return len(list(islice(self._places(group), most + 1))) > most

    def place_pieces(self, group: str) -> Iterator[list[Place]]:
        """Yield the places of the group's offsets, also unstable ones, in pieces; at least one.

        Offsets may change between two steps. Those that existed at the first step are yielded, some
        of them after they were removed.
        """
        most = piece_rows(group)
        unstable = dict.fromkeys(self._unstable(group))
        topics = list(self._topics(group).items())
        places = chain(
            unstable,
            (
                (topic, partition)
                for topic, partitions in topics
                for partition in list(partitions)
                if (topic, partition) not in unstable
            ),
        )
        yield list(islice(places, most))
        while piece := list(islice(places, most)):
            yield piece

    def _places(self, group: str) -> Iterator[Place]:
        """Yield topic and partition of each offset of the group, committed or unstable."""
        topics = self._topics(group)
        for topic, partitions in topics.items():
            for partition in partitions:
                yield topic, partition
        for topic, partition in self._unstable(group):
            if partition not in topics.get(topic, {}):
                yield topic, partition

    def _unstable(self, group: str) -> Iterable[Place]:
        """Return the places of pending commits and of those in open transactions, each once."""
        waiting, pending = self.transactional.places(group), self._pending.get(group, {})
        if not waiting:
            return pending
        return {**dict.fromkeys(pending), **dict.fromkeys(waiting)}

    def _has_unstable(self, group: str) -> bool:
        return group in self._pending or group in self._waiting

    def _partitions(self, group: str, topic: str) -> list[int]:
        """Return the partitions of the topic with an offset that is committed or unstable."""
        committed = self._topics(group).get(topic, {})
        unstable = [
            partition
            for of_topic, partition in self._unstable(group)
            if of_topic == topic and partition not in committed
        ]
        return [*committed, *unstable]


def _place(topic: str, partition: int) -> bytes:
    name = topic.encode()
    return _PLACE.pack(partition, len(name)) + name


def _opened(single: bytes) -> tuple[bytes, _Topics]:
    """Return the number of the client, and the dicts, of a group's only offset."""
    partition, length = _PLACE.unpack_from(single)
    end = _PLACE.size + length
    stored = single[end:]
    topic = intern(str(single[_PLACE.size : end], "utf-8"))
    return stored[:_NUMBER_BYTES], {topic: {partition: stored}}


def _of_topic(value: bytes, topic_id: Uuid) -> OffsetValue | None:
    """Return the offset unless it belongs to another topic with the same name."""
    decoded = decode_offset_value(value)
    return decoded if decoded.topic_id in (ZERO_UUID, topic_id) else None
