"""Records of `__consumer_offsets` in Kafka's formats, so that Kafka's tools can read them.

    key version   key                              value
    0, 1          group, topic, partition          a committed offset
    2             group                            the members and assignments of its generation
    others        newer protocols (KIP-848, share groups): ignored

Keys and values begin with their version (int16). Up to a million offsets are read when a worker
becomes coordinator; so keys are decoded by hand-written code, and values of offsets are only
checked, and decoded when they are needed. Source: Kafka's OffsetCommitKey, OffsetCommitValue,
GroupMetadataKey and GroupMetadataValue.
"""

import struct
from struct import Struct
from typing import Final, NamedTuple

from dataplane.coordinators.group.group_metadata import GroupMetadata, PersistedMember
from wire.primitives.types import ZERO_UUID, Uuid

OFFSET_KEY_VERSIONS: Final = (0, 1)
GROUP_KEY_VERSION: Final = 2
# Versions written: values with a topic id need version 4; Kafka before 4.1 reads only version 3.
OFFSET_VALUE_VERSION: Final = 3
OFFSET_WITH_EXPIRY_VERSION: Final = 1  # the only version with the time at which it expires
OFFSET_WITH_TOPIC_ID_VERSION: Final = 4
GROUP_VALUE_VERSION: Final = 3
NO_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
_NEWEST: Final = 4
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_TWO_INT16: Final = Struct(">hh")
_TWO_INT64: Final = Struct(">qq")
_OFFSET_V3: Final = Struct(">hqih")  # version, offset, leader epoch, length of the metadata
_OFFSET_V0: Final = Struct(">hqh")  # version, offset, length of the metadata
_OFFSET_V4: Final = Struct(">hqi")
_TOPIC_ID_TAG: Final = 0
_MALFORMED: Final = (ValueError, IndexError, struct.error)


class RecordFormatError(Exception):
    """Raised if a record has a known version but cannot be decoded."""


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group_id: str


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int  # NO_EPOCH if unknown
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP  # only in values of version 1
    topic_id: Uuid = ZERO_UUID  # only in values of version 4


# Keys


def encode_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    group, name = group_id.encode(), topic.encode()
    return b"".join(
        (
            _TWO_INT16.pack(1, len(group)),
            group,
            _INT16.pack(len(name)),
            name,
            _INT32.pack(partition),
        )
    )


def encode_group_key(group_id: str) -> bytes:
    group = group_id.encode()
    return _TWO_INT16.pack(GROUP_KEY_VERSION, len(group)) + group


def decode_key(key: bytes) -> OffsetKey | GroupKey | None:
    """Return the key; None if its version is not known. Raises RecordFormatError."""
    try:
        version, length = _TWO_INT16.unpack_from(key)
        if version > GROUP_KEY_VERSION or version < 0:
            return None
        end = 4 + length
        if length < 0 or end > len(key):
            raise RecordFormatError(f"the group id of a key has {length} bytes")
        group_id = key[4:end].decode()
        if version == GROUP_KEY_VERSION:
            _check_end(key, end)
            return GroupKey(group_id)
        (length,) = _INT16.unpack_from(key, end)
        first, end = end + 2, end + 2 + length
        if length < 0 or end + 4 != len(key):
            raise RecordFormatError(f"the topic of an offset's key has {length} bytes")
        return OffsetKey(group_id, key[first:end].decode(), _INT32.unpack_from(key, end)[0])
    except _MALFORMED as error:
        raise RecordFormatError(f"malformed key: {error}") from None


# Committed offsets


def encode_offset(committed: CommittedOffset) -> bytes:
    """Encode an offset; with the time at which it expires or else its topic id, if it has one."""
    metadata = committed.metadata.encode()
    offset, leader_epoch, timestamp_ms = committed[0], committed[1], committed[3]
    if committed.expire_timestamp_ms != NO_TIMESTAMP:
        return b"".join(
            (
                _OFFSET_V0.pack(OFFSET_WITH_EXPIRY_VERSION, offset, len(metadata)),
                metadata,
                _TWO_INT64.pack(timestamp_ms, committed.expire_timestamp_ms),
            )
        )
    if committed.topic_id == ZERO_UUID:
        return b"".join(
            (
                _OFFSET_V3.pack(OFFSET_VALUE_VERSION, offset, leader_epoch, len(metadata)),
                metadata,
                _INT64.pack(timestamp_ms),
            )
        )
    return b"".join(
        (
            _OFFSET_V4.pack(OFFSET_WITH_TOPIC_ID_VERSION, offset, leader_epoch),
            _varint(len(metadata) + 1),
            metadata,
            _INT64.pack(timestamp_ms),
            b"\x01\x00\x10",  # one tagged field: tag 0, 16 bytes
            committed.topic_id,
        )
    )


def is_offset(value: bytes) -> bool:
    """Return whether `value` looks like a committed offset; checks versions 3 by their length."""
    if value[:2] == b"\0\3":
        return len(value) >= 24 and len(value) == 24 + _INT16.unpack_from(value, 14)[0]
    try:
        decode_offset(value)
    except RecordFormatError:
        return False
    return True


def decode_offset(value: bytes) -> CommittedOffset:
    """Raises RecordFormatError."""
    reader = _Reader(value)
    try:
        version = reader.int16()
        if not 0 <= version <= _NEWEST:
            raise RecordFormatError(f"version {version} of an offset's value is not known")
        reader.is_flexible = version >= 4
        offset = reader.int64()
        leader_epoch = reader.int32() if version >= 3 else NO_EPOCH
        metadata = reader.text()
        timestamp_ms = reader.int64()
        expire_ms = reader.int64() if version == 1 else NO_TIMESTAMP
        tags = reader.tags()
        reader.end()
    except _MALFORMED as error:
        raise RecordFormatError(f"malformed offset: {error}") from None
    topic_id = tags.get(_TOPIC_ID_TAG, ZERO_UUID)
    if len(topic_id) != len(ZERO_UUID):
        raise RecordFormatError(f"the topic id of an offset has {len(topic_id)} bytes")
    return CommittedOffset(offset, leader_epoch, metadata, timestamp_ms, expire_ms, topic_id)


# Groups


def encode_group(group: GroupMetadata) -> bytes:
    parts = [
        _INT16.pack(GROUP_VALUE_VERSION),
        _text(group.protocol_type),
        _INT32.pack(group.generation),
        _text(group.protocol),
        _text(group.leader),
        _INT64.pack(group.state_timestamp_ms),
        _INT32.pack(len(group.members)),
    ]
    for member in group.members:
        parts += (
            _text(member.member_id),
            _text(member.instance_id),
            _text(member.client_id),
            _text(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _INT32.pack(len(member.subscription)),
            member.subscription,
            _INT32.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def decode_group(value: bytes) -> GroupMetadata:
    """Raises RecordFormatError."""
    reader = _Reader(value)
    try:
        version = reader.int16()
        if not 0 <= version <= _NEWEST:
            raise RecordFormatError(f"version {version} of a group's value is not known")
        reader.is_flexible = version >= 4
        protocol_type, generation = reader.text(), reader.int32()
        protocol, leader = reader.nullable_text(), reader.nullable_text()
        timestamp_ms = reader.int64() if version >= 2 else NO_TIMESTAMP
        members = tuple(_decode_member(reader, version) for _ in range(reader.count()))
        reader.tags()
        reader.end()
    except _MALFORMED as error:
        raise RecordFormatError(f"malformed group: {error}") from None
    return GroupMetadata(protocol_type, generation, protocol, leader, timestamp_ms, members)


def _decode_member(reader: "_Reader", version: int) -> PersistedMember:
    member_id = reader.text()
    instance_id = reader.nullable_text() if version >= 3 else None
    client_id, client_host = reader.text(), reader.text()
    rebalance_ms = reader.int32() if version >= 1 else -1
    session_ms = reader.int32()
    member = PersistedMember(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_ms if version >= 1 else session_ms,
        session_ms,
        reader.blob(),
        reader.blob(),
    )
    reader.tags()
    return member


def _check_end(data: bytes, end: int) -> None:
    if end != len(data):
        raise RecordFormatError(f"{len(data) - end} bytes too many")


def _text(text: str | None) -> bytes:
    if text is None:
        return _INT16.pack(-1)
    data = text.encode()
    return _INT16.pack(len(data)) + data


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


class _Reader:
    """Reads fields one after the other; `is_flexible`: compact lengths and tagged fields."""

    __slots__ = ("_at", "_data", "is_flexible")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.is_flexible = False

    def int16(self) -> int:
        self._at += 2
        value: int = _INT16.unpack_from(self._data, self._at - 2)[0]
        return value

    def int32(self) -> int:
        self._at += 4
        value: int = _INT32.unpack_from(self._data, self._at - 4)[0]
        return value

    def int64(self) -> int:
        self._at += 8
        value: int = _INT64.unpack_from(self._data, self._at - 8)[0]
        return value

    def unsigned(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number has more than five bytes")

    def count(self) -> int:
        """Read the length of an array; its items have at least one byte each."""
        count = self.unsigned() - 1 if self.is_flexible else self.int32()
        if not 0 <= count <= len(self._data) - self._at:
            raise ValueError(f"an array has {count} items")
        return count

    def _take(self, length: int) -> bytes:
        first, self._at = self._at, self._at + length
        if length < 0 or self._at > len(self._data):
            raise ValueError(f"a field has {length} bytes")
        return self._data[first : self._at]

    def nullable_text(self) -> str | None:
        length = self.unsigned() - 1 if self.is_flexible else self.int16()
        return None if length == -1 else self._take(length).decode()

    def text(self) -> str:
        text = self.nullable_text()
        if text is None:
            raise ValueError("a string is null")
        return text

    def blob(self) -> bytes:
        return self._take(self.unsigned() - 1 if self.is_flexible else self.int32())

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields; none in versions that are not flexible."""
        if not self.is_flexible:
            return {}
        tags: dict[int, bytes] = {}
        for _ in range(self.unsigned()):
            tag = self.unsigned()
            tags[tag] = self._take(self.unsigned())
        return tags

    def end(self) -> None:
        _check_end(self._data, self._at)
