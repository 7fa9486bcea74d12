"""Kafka's formats of the records in `__consumer_offsets`: bytes to values, and back.

A key begins with the version of its format, which selects the kind of the record: 0 and 1 are a
committed offset, 2 is the metadata of a group. A value begins with the version of its own format.

    key of an offset    group string, topic string, partition int32
    key of a group      group string
    value of an offset  offset int64, leader_epoch int32 (version 3+), metadata string,
                        commit_timestamp int64, expire_timestamp int64 (only version 1),
                        topic_id (version 4+, tag 0, 16 bytes)
    value of a group    the table `GroupMetadataValue` below

Version 4 of a value has compact strings and arrays, and tagged fields; fields with unknown tags are
skipped (KIP-915). Records of other kinds (keys from version 3 on: KIP-848, share and streams
groups) are not decoded. Kafka 4.3 writes an offset as version 4, with an expiry as version 1, and a
group as version 3. A group whose deletion takes several batches is written as version 4, with
`is_being_deleted` as a tagged field: this project's own, which Kafka skips.

A coordinator loads millions of offsets at once. So the value of an offset is only checked when it
is loaded (`check_offset_value`), and decoded when it is used (`decode_offset_value`).

Source: OffsetCommitKey.json, OffsetCommitValue.json, GroupMetadataKey.json and
GroupMetadataValue.json of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from struct import Struct as Layout
from struct import error as LayoutError  # noqa: N812
from sys import intern
from typing import Final, NamedTuple, TypeAlias

from metaquorum.dataplane.scheduling.time_slices import Steps, emptied, sliced
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.primitives.types import ZERO_UUID, Uuid
from metaquorum.wire.schema import codec
from metaquorum.wire.schema.message import (
    Message,
    Struct,
    array,
    blob,
    boolean,
    int32,
    int64,
    string,
)

OFFSET_KEY_VERSIONS: Final = (0, 1)
OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
HIGHEST_VALUE_VERSION: Final = 4
# The versions of values that are written.
OFFSET_VERSION: Final = 4
EXPIRING_OFFSET_VERSION: Final = 1
GROUP_VERSION: Final = 3
DELETED_GROUP_VERSION: Final = 4
# Pairs of group and topic that a KeyDecoder remembers, and the bytes of the longest keys with them:
# some 10 MB.
MAX_CACHED_NAMES: Final = 20_000
MAX_CACHED_KEY_BYTES: Final = 512
# Values of groups above this size are decoded in pieces: some 100 members with assignments.
LONG_VALUE_BYTES: Final = 16_384

_MAX_STRING_BYTES: Final = 0x7FFF
_TOPIC_ID_TAG: Final = 0
_BEING_DELETED_TAG: Final = 10_000  # far from the tags that Kafka may give to later fields
_ONE_TOPIC_ID: Final = b"\x01\x00\x10"  # one tagged field, of tag 0 and 16 bytes
_INT16: Final = Layout(">h")
_INT32: Final = Layout(">i")
_INT64: Final = Layout(">q")
_TWO_INT32: Final = Layout(">ii")
_VERSION_LENGTH: Final = Layout(">hh")
_VERSION_OFFSET: Final = Layout(">hq")
_VERSION_OFFSET_EPOCH: Final = Layout(">hqi")
_HEAD_OF_4: Final = Layout(">hqiB")


class MalformedRecordError(ValueError):
    """Raised if a record makes no sense or has a newer version; the message says what is wrong.

    The record must be skipped with a log line: it may not stop a load.
    """


class OffsetKey(NamedTuple):
    """Key of a committed offset (OffsetCommitKey)."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """Key of the metadata of a group (GroupMetadataKey)."""

    group: str


RecordKey: TypeAlias = OffsetKey | GroupKey


class OffsetValue(NamedTuple):
    """A committed offset (OffsetCommitValue).

    `leader_epoch` and `expire_timestamp_ms` are -1, and `topic_id` is ZERO_UUID, if the record does
    not have them.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    topic_id: Uuid = ZERO_UUID


class MemberMetadata(Struct):
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32("1+", default=-1, ignorable=True)
    session_timeout: int = int32()
    subscription: bytes = blob()
    assignment: bytes = blob()


class GroupMetadataValue(Message, api=-1, versions="0-4", flexible="4+"):
    """A generation of a group: members with assignments.

    A group without members has no protocol and no leader. `current_state_timestamp` is the time of
    the last change of state in ms, -1 if the record does not have it. `is_being_deleted`: the
    deletion of the group and of all its offsets has begun, and must be completed.
    """

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable="0+", default=None)
    leader: str | None = string(nullable="0+", default=None)
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata)
    is_being_deleted: bool = boolean("4+", tag=_BEING_DELETED_TAG, ignorable=True)


class RecordedGeneration(NamedTuple):
    """A generation as this coordinator writes it: the record's value, and what it says."""

    value: bytes
    generation: int
    assignments: dict[str, bytes]  # assignments by member id


def encode_key(key: RecordKey) -> bytes:
    """Return the bytes of a key. Raises ValueError if a name is too long."""
    if isinstance(key, GroupKey):
        return _INT16.pack(GROUP_KEY_VERSION) + _string("group", key.group)
    group_id, topic_name, partition = key
    group, topic = group_id.encode(), topic_name.encode()
    if len(group) > _MAX_STRING_BYTES or len(topic) > _MAX_STRING_BYTES:
        return _string("group", group_id) + _string("topic", topic_name)  # one of them raises
    head = _VERSION_LENGTH.pack(OFFSET_KEY_VERSION, len(group)) + group
    return head + _INT16.pack(len(topic)) + topic + _INT32.pack(partition)


def decode_key(key: bytes) -> RecordKey | None:
    """Return the key, None for a record of another kind. Raises MalformedRecordError."""
    try:
        version = _INT16.unpack_from(key)[0]
        if version in OFFSET_KEY_VERSIONS:
            return _decode_offset_key(key)
        if version == GROUP_KEY_VERSION:
            group, end = _read_string(key, 2)
            if end != len(key):
                raise MalformedRecordError(f"{len(key) - end} bytes follow the key of a group")
            return GroupKey(group)
    except (LayoutError, IndexError, ValueError) as error:
        raise MalformedRecordError(f"the key is malformed: {error}") from error
    return None


def _decode_offset_key(key: bytes) -> OffsetKey:
    """Return the key. This is the slowest step of a load, so it compares one length."""
    group_end = 4 + (key[2] << 8 | key[3])
    topic_end = group_end + 2 + (key[group_end] << 8 | key[group_end + 1])
    if topic_end + 4 != len(key) or (key[2] | key[group_end]) > 0x7F:  # lengths are signed
        raise MalformedRecordError("the lengths of group and topic do not fit the key")
    topic = intern(str(key[group_end + 2 : topic_end], "utf-8"))
    return OffsetKey(str(key[4:group_end], "utf-8"), topic, _INT32.unpack_from(key, topic_end)[0])


class KeyDecoder:
    """Decodes keys of a partition, and remembers names: an offset is committed again and again."""

    def __init__(self, max_names: int = MAX_CACHED_NAMES) -> None:
        self._max_names = max_names
        # Group and topic, by the bytes of a key before its partition.
        self._names: dict[bytes, tuple[str, str]] = {}

    def decode(self, key: bytes) -> RecordKey | None:
        """Return the same as `decode_key`."""
        names = self._names.get(key[:-4])
        if names is not None:
            return OffsetKey(names[0], names[1], _INT32.unpack_from(key, len(key) - 4)[0])
        decoded = decode_key(key)
        if isinstance(decoded, OffsetKey) and len(key) <= MAX_CACHED_KEY_BYTES:
            if len(self._names) >= self._max_names:
                self._names.clear()
            self._names[key[:-4]] = (decoded.group, decoded.topic)
        return decoded

    def emptied(self) -> Steps[None]:
        """Forget all names, in pieces."""
        return emptied(self._names)


def encode_offset_value(value: OffsetValue, version: int | None = None) -> bytes:
    """Return the bytes of a value, in the version that Kafka writes unless another is requested.

    A field that the version does not have is dropped, as by Kafka: version 1 has no leader epoch
    and no topic id. Raises ValueError if the metadata is too long.
    """
    offset, leader_epoch, text, commit_timestamp_ms, expire_timestamp_ms, topic_id = value
    if version is None and expire_timestamp_ms == -1 and topic_id != ZERO_UUID:
        metadata = text.encode()
        if len(metadata) < 0x7F:  # its length is one byte; nearly all values are such
            head = _HEAD_OF_4.pack(OFFSET_VERSION, offset, leader_epoch, len(metadata) + 1)
            return head + metadata + _INT64.pack(commit_timestamp_ms) + _ONE_TOPIC_ID + topic_id
    if version is None:
        version = EXPIRING_OFFSET_VERSION if value.expire_timestamp_ms != -1 else OFFSET_VERSION
    if version >= 3:
        head = _VERSION_OFFSET_EPOCH.pack(version, value.offset, value.leader_epoch)
    else:
        head = _VERSION_OFFSET.pack(version, value.offset)
    timestamp = _INT64.pack(value.commit_timestamp_ms)
    if version < 4:
        expiry = _INT64.pack(value.expire_timestamp_ms) if version == 1 else b""
        return head + _string("metadata", value.metadata) + timestamp + expiry
    tags = b"\0" if value.topic_id == ZERO_UUID else _ONE_TOPIC_ID + value.topic_id
    return head + _compact_string("metadata", value.metadata) + timestamp + tags


def check_offset_value(value: bytes) -> None:
    """Raise MalformedRecordError if `decode_offset_value` would; cheap for a value as written."""
    if not (_has_topic_id_at_end(value) and value[15:-27].isascii()):
        decode_offset_value(value)


def offset_timestamps(value: bytes) -> tuple[int, int]:
    """Return the commit timestamp and the expiry (-1: none) in ms, of a value that was checked."""
    if _has_topic_id_at_end(value):
        return _INT64.unpack_from(value, len(value) - 27)[0], -1
    decoded = decode_offset_value(value)
    return decoded.commit_timestamp_ms, decoded.expire_timestamp_ms


def offset_topic_id(value: bytes) -> Uuid:
    """Return the topic id of a value that was checked, ZERO_UUID if it has none."""
    return value[-16:] if _has_topic_id_at_end(value) else decode_offset_value(value).topic_id


def _has_topic_id_at_end(value: bytes) -> bool:
    """Return whether this is version 4 with less than 127 bytes of metadata, and only a topic id.

    Nearly all values are. Commit timestamp and topic id are then at fixed distances from the end,
    and only the characters of the metadata can be malformed.
    """
    return (
        len(value) >= 42
        and value[1] == 4
        and value[0] == 0
        and len(value) == 41 + value[14]  # the length of the metadata + 1
        and value[14] < 128
        and value[-19:-16] == _ONE_TOPIC_ID
    )


def decode_offset_value(value: bytes) -> OffsetValue:
    """Return the committed offset. Raises MalformedRecordError."""
    try:
        decoded, end = _read_offset_value(value)
    except (LayoutError, IndexError, ValueError) as error:
        raise MalformedRecordError(f"the value of an offset is malformed: {error}") from error
    if end != len(value):
        raise MalformedRecordError(f"{len(value) - end} bytes follow the value of an offset")
    return decoded


def _read_offset_value(value: bytes) -> tuple[OffsetValue, int]:
    version, offset = _VERSION_OFFSET.unpack_from(value)
    if not 0 <= version <= HIGHEST_VALUE_VERSION:
        raise MalformedRecordError(f"version {version} is not supported")
    position, leader_epoch = 10, -1
    if version >= 3:
        leader_epoch = _INT32.unpack_from(value, position)[0]
        position += 4
    metadata, position = (_read_string if version < 4 else _read_compact_string)(value, position)
    commit_timestamp_ms = _INT64.unpack_from(value, position)[0]
    position += 8
    expire_timestamp_ms, topic_id = -1, ZERO_UUID
    if version == 1:
        expire_timestamp_ms = _INT64.unpack_from(value, position)[0]
        position += 8
    elif version == 4:
        topic_id, position = _read_topic_id(value, position)
    decoded = OffsetValue(
        offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms, topic_id
    )
    return decoded, position


def _read_topic_id(value: bytes, position: int) -> tuple[Uuid, int]:
    """Return the topic id among the tagged fields at `position`, and the position after them."""
    topic_id = ZERO_UUID
    count, position = _read_uvarint(value, position)
    for _ in range(count):
        tag, position = _read_uvarint(value, position)
        size, position = _read_uvarint(value, position)
        field = _slice(value, position, size)
        position += size
        if tag == _TOPIC_ID_TAG:
            if size != len(ZERO_UUID):
                raise ValueError(f"a topic id of {size} bytes")
            topic_id = field
    return topic_id, position


def encode_group_value(value: GroupMetadataValue, version: int = GROUP_VERSION) -> bytes:
    """Return the bytes of a value. Raises WireError if a field of it is too long."""
    return _INT16.pack(version) + codec.encode(value, version)


def encode_member_head(
    member_id: str,
    instance_id: str | None,
    client_id: str,
    client_host: str,
    rebalance_timeout_ms: int,
    session_timeout_ms: int,
) -> bytes:
    """Return the first fields of a member in a group's value of version 3.

    They stay the same for as long as the member is the same. Raises ValueError if one is too long.
    """
    instance = b"\xff\xff" if instance_id is None else _string("instance id", instance_id)
    return (
        _string("member id", member_id)
        + instance
        + _string("client id", client_id)
        + _string("client host", client_host)
        + _TWO_INT32.pack(rebalance_timeout_ms, session_timeout_ms)
    )


def encode_members(
    value: GroupMetadataValue,
    heads: Sequence[bytes],
    subscriptions: Sequence[bytes],
    assignments: Sequence[bytes],
) -> bytes:
    """Return the bytes of a value of version 3 with these members, and not those it has.

    Each sequence has one row for each member; a head is from `encode_member_head`. All members of a
    group are encoded in one step: this takes a tenth of the time of `encode_group_value`.
    """
    assert not value.members
    subscription_lengths = map(_INT32.pack, map(len, subscriptions))
    assignment_lengths = map(_INT32.pack, map(len, assignments))
    rows = zip(
        heads, subscription_lengths, subscriptions, assignment_lengths, assignments, strict=True
    )
    head = (encode_group_value(value)[: -_INT32.size], _INT32.pack(len(heads)))
    return b"".join(chain(head, chain.from_iterable(rows)))


def decode_group_value(value: bytes) -> GroupMetadataValue:
    """Return the metadata of a group. Raises MalformedRecordError."""
    try:
        return codec.decode(GroupMetadataValue, _group_version(value), memoryview(value)[2:])
    except (LayoutError, WireError, ValueError) as error:
        raise MalformedRecordError(f"the value of a group is malformed: {error}") from error


def decode_generation(value: bytes) -> RecordedGeneration:
    """Return what a group's value says of its generation. Raises MalformedRecordError."""
    metadata = decode_group_value(value)
    assignments = {each.member_id: each.assignment for each in metadata.members}
    return RecordedGeneration(value, metadata.generation, assignments)


async def decode_long_group_value(value: bytes) -> GroupMetadataValue:
    """Return the metadata of a group of many members, in pieces. Raises MalformedRecordError."""
    try:
        decode = codec.decoder_in_pieces(GroupMetadataValue, _group_version(value))
        decoded, end = await sliced(decode(memoryview(value), 2))
    except (LayoutError, WireError, ValueError) as error:
        raise MalformedRecordError(f"the value of a group is malformed: {error}") from error
    if end != len(value):
        raise MalformedRecordError(f"{len(value) - end} bytes follow the value of a group")
    assert isinstance(decoded, GroupMetadataValue)
    return decoded


def _group_version(value: bytes) -> int:
    version: int = _INT16.unpack_from(value)[0]
    if not 0 <= version <= HIGHEST_VALUE_VERSION:
        raise MalformedRecordError(f"version {version} is not supported")
    return version


def _string(name: str, text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > _MAX_STRING_BYTES:
        raise ValueError(f"the {name} has {len(encoded)} bytes, more than {_MAX_STRING_BYTES}")
    return _INT16.pack(len(encoded)) + encoded


def _compact_string(name: str, text: str) -> bytes:
    encoded = _string(name, text)[2:]
    length = bytearray()
    raw = len(encoded) + 1
    while raw > 0x7F:
        length.append(raw & 0x7F | 0x80)
        raw >>= 7
    length.append(raw)
    return bytes(length) + encoded


def _read_string(data: bytes, position: int) -> tuple[str, int]:
    size = _INT16.unpack_from(data, position)[0]
    return str(_slice(data, position + 2, size), "utf-8"), position + 2 + int(size)


def _read_compact_string(data: bytes, position: int) -> tuple[str, int]:
    length, position = _read_uvarint(data, position)
    return str(_slice(data, position, length - 1), "utf-8"), position + length - 1


def _slice(data: bytes, position: int, size: int) -> bytes:
    if not 0 <= size <= len(data) - position:
        raise ValueError(f"a length of {size} at byte {position} of {len(data)}")
    return data[position : position + size]


def _read_uvarint(data: bytes, position: int) -> tuple[int, int]:
    """Return the unsigned varint at `position`, of at most 5 bytes, and the position after it."""
    value = 0
    for shift in range(0, 35, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"a varint of more than 5 bytes before byte {position}")
