"""Bytes that consumers send through their group: subscription and assignment.

The coordinator does not interpret them (KIP-429, KIP-792, KIP-881 extend them). Members with the
protocol type "consumer" have this format, others, such as Kafka Connect, have their own. Every
version begins with the fields of the one before, so that newer versions are decoded up to the
fields that are known here.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from metaquorum.client.cluster import TopicPartition
from metaquorum.wire.primitives.frozen import frozen

T = TypeVar("T")

CONSUMER_PROTOCOL: Final = "consumer"
# Version of what this client sends, as Kafka 4 does.
NEWEST_VERSION: Final = 3
NO_GENERATION: Final = -1
_OWNED_SINCE: Final = 1
_GENERATION_SINCE: Final = 2
_RACK_SINCE: Final = 3
# Fewest bytes of an element: a count is checked against the rest of the data before any allocation.
_STRING_BYTES: Final = 2
_TOPIC_BYTES: Final = 6
_INDEX_BYTES: Final = 4
_NULL_STRING: Final = struct.pack(">h", -1)


@frozen
class Subscription:
    """Topics that a member subscribes to, and its data for the assignor. None: not in this version.

    `owned`: partitions that it held before the rebalance. `user_data`: in a format of the assignor;
    empty also for null.
    """

    topics: tuple[str, ...]
    user_data: bytes
    owned: tuple[TopicPartition, ...] | None = None
    generation: int | None = None
    rack: str | None = None


@frozen
class Assignment:
    """Partitions that the leader of the group assigned to a member."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes


def decode_subscription(data: bytes) -> Subscription | None:
    """Return the subscription in `data`; None if the bytes are malformed."""
    return _decoded(_subscription, data)


def decode_assignment(data: bytes) -> Assignment | None:
    """Return the assignment in `data`; None if the bytes are malformed.

    A member without an assignment yet has no bytes: no partitions.
    """
    return _decoded(_assignment, data) if data else Assignment((), b"")


def encode_subscription(subscription: Subscription) -> bytes:
    """Return the bytes of a subscription, in version 3; NO_GENERATION if there is none."""
    generation = subscription.generation
    return b"".join(
        (
            struct.pack(">hi", NEWEST_VERSION, len(subscription.topics)),
            *map(_string_bytes, subscription.topics),
            _blob_bytes(subscription.user_data),
            _partition_bytes(subscription.owned or ()),
            struct.pack(">i", NO_GENERATION if generation is None else generation),
            struct.pack(">h", -1)
            if subscription.rack is None
            else _string_bytes(subscription.rack),
        )
    )


def encode_assignment(assignment: Assignment) -> bytes:
    """Return the bytes of an assignment, in version 3."""
    version = struct.pack(">h", NEWEST_VERSION)
    return version + _partition_bytes(assignment.partitions) + _blob_bytes(assignment.user_data)


def _string_bytes(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _blob_bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data if data else struct.pack(">i", -1)


def _partition_bytes(partitions: Iterable[TopicPartition]) -> bytes:
    grouped: dict[str, list[int]] = {}
    for where in partitions:
        grouped.setdefault(where.topic, []).append(where.partition)
    rows = (
        _string_bytes(topic) + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
        for topic, indexes in grouped.items()
    )
    return struct.pack(">i", len(grouped)) + b"".join(rows)


class _Malformed(Exception):  # noqa: N818 - never leaves this module
    pass


class _Reader:
    """Position in the bytes. Its methods raise struct.error at the end, and _Malformed."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def int16(self) -> int:
        (value,) = struct.unpack_from(">h", self.data, self.position)
        self.position += 2
        return int(value)

    def int32(self) -> int:
        (value,) = struct.unpack_from(">i", self.data, self.position)
        self.position += 4
        return int(value)

    def take(self, size_bytes: int) -> bytes:
        end = self.position + size_bytes
        if size_bytes < 0 or end > len(self.data):
            raise _Malformed
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def string(self) -> str:
        return self.take(self.int16()).decode()

    def nullable_string(self) -> str | None:
        size_bytes = self.int16()
        return None if size_bytes == -1 else self.take(size_bytes).decode()

    def blob(self) -> bytes:
        """Return nullable bytes; empty for null."""
        size_bytes = self.int32()
        return b"" if size_bytes == -1 else self.take(size_bytes)

    def count(self, least_bytes: int) -> int:
        """Return the count of an array whose elements take at least `least_bytes` each."""
        count = self.int32()
        if not 0 <= count * least_bytes <= len(self.data) - self.position:
            raise _Malformed
        return count

    def partitions(self) -> tuple[TopicPartition, ...]:
        found: list[TopicPartition] = []
        for _ in range(self.count(_TOPIC_BYTES)):
            topic = self.string()
            count = self.count(_INDEX_BYTES)
            indexes = struct.unpack(f">{count}i", self.take(count * _INDEX_BYTES))
            found += [TopicPartition(topic, index) for index in indexes]
        return tuple(found)


def _decoded(decode: Callable[[_Reader], T], data: bytes) -> T | None:
    try:
        return decode(_Reader(data))
    except (_Malformed, struct.error, UnicodeDecodeError):
        return None


def _version(reader: _Reader) -> int:
    version = reader.int16()
    if version < 0:
        raise _Malformed
    return version


def _subscription(reader: _Reader) -> Subscription:
    version = _version(reader)
    topics = tuple(reader.string() for _ in range(reader.count(_STRING_BYTES)))
    user_data = reader.blob()
    return Subscription(
        topics,
        user_data,
        reader.partitions() if version >= _OWNED_SINCE else None,
        reader.int32() if version >= _GENERATION_SINCE else None,
        reader.nullable_string() if version >= _RACK_SINCE else None,
    )


def _assignment(reader: _Reader) -> Assignment:
    _version(reader)
    partitions = reader.partitions()
    return Assignment(partitions, reader.blob())
