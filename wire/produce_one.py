"""Produce of one batch to one partition, by hand: what nearly every request and answer is.

Equal to the tables of `wire.messages.produce`, byte for byte (a test says so), without an object
for each level of nesting. Whatever has another form is None here, and left to the tables.

    v3-8    transactional id null | acks, timeout | 1 topic: name | 1 partition: index, records
    v9-12   the same, compact, and tags (none)
    v13     as v9, the topic by its id
"""

from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

FIRST_FLEXIBLE: Final = 9
FIRST_WITH_TOPIC_ID: Final = 13
_ID_BYTES: Final = 16
_NAME_MAX_BYTES: Final = 126  # whose length plus one is still one byte

_unpack_start = Struct(">hhiih").unpack_from
_unpack_partition = Struct(">iii").unpack_from
_unpack_named_start = Struct(">bhibb").unpack_from
_unpack_id_start = Struct(">bhib16s").unpack_from
_unpack_compact_partition = Struct(">bi").unpack_from
_NO_TAGS: Final = b"\0\0\0"  # of partition, topic and request


class ProduceOne(NamedTuple):
    acks: int
    topic: bytes  # its name or, from v13 on, its id
    partition: int
    records: memoryview


def decode_one(frame: memoryview, position: int, version: int) -> ProduceOne | None:
    """The request whose body begins at `position`; None if it has another form, or none."""
    try:
        if version < FIRST_FLEXIBLE:
            return _decode_plain(frame, position)
        return _decode_compact(frame, position, version)
    except (struct_error, IndexError):
        return None


def _decode_plain(frame: memoryview, position: int) -> ProduceOne | None:
    transactional, acks, _, topics, length = _unpack_start(frame, position)
    start = position + 14 + length
    if transactional != -1 or topics != 1 or length < 0:
        return None
    partitions, index, size = _unpack_partition(frame, start)
    if partitions != 1 or size < 0 or start + 12 + size != len(frame):
        return None
    return ProduceOne(acks, frame[position + 14 : start].tobytes(), index, frame[start + 12 :])


def _decode_compact(frame: memoryview, position: int, version: int) -> ProduceOne | None:
    if version >= FIRST_WITH_TOPIC_ID:
        transactional, acks, _, topics, topic = _unpack_id_start(frame, position)
        start = position + 8 + _ID_BYTES
    else:
        transactional, acks, _, topics, length = _unpack_named_start(frame, position)
        if length < 1:
            return None
        start = position + 8 + length
        topic = frame[position + 9 : start].tobytes()
    partitions, index = _unpack_compact_partition(frame, start)
    if transactional or topics != 2 or partitions != 2:
        return None
    start += 5
    size = frame[start]
    start += 1
    if size > 127:
        size &= 127
        shift = 7
        while (more := frame[start]) > 127:
            size |= (more & 127) << shift
            shift += 7
            start += 1
            if shift > 28:
                return None
        size |= more << shift
        start += 1
    end = start + size - 1
    if size < 1 or end + 3 != len(frame) or frame[end:].tobytes() != _NO_TAGS:
        return None
    return ProduceOne(acks, topic, index, frame[start:end])


_pack_start = Struct(">iiih").pack
_pack_compact_start = Struct(">iixb").pack
# One partition: count, index, no error, offset, append time, log start, no record errors, no
# message; then the throttle time. Older versions have less of it.
_pack_v3 = Struct(">iihqqi").pack
_pack_v5 = Struct(">iihqqqi").pack
_pack_v8 = Struct(">iihqqqihi").pack
_pack_compact = Struct(">bihqqqbbxxix").pack


def encode_one(
    version: int,
    correlation_id: int,
    topic: bytes,
    index: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
) -> bytes:
    """The whole frame that says the batch was appended; `topic` as it came in `ProduceOne`."""
    if version < FIRST_FLEXIBLE:
        if version >= 8:
            rest = _pack_v8(
                1, index, 0, base_offset, log_append_time_ms, log_start_offset, 0, -1, 0
            )
        elif version >= 5:
            rest = _pack_v5(1, index, 0, base_offset, log_append_time_ms, log_start_offset, 0)
        else:
            rest = _pack_v3(1, index, 0, base_offset, log_append_time_ms, 0)
        size = 10 + len(topic) + len(rest)
        return _pack_start(size, correlation_id, 1, len(topic)) + topic + rest
    rest = _pack_compact(2, index, 0, base_offset, log_append_time_ms, log_start_offset, 1, 0, 0)
    if version < FIRST_WITH_TOPIC_ID:
        topic = bytes((len(topic) + 1,)) + topic
    size = 6 + len(topic) + len(rest)
    return _pack_compact_start(size, correlation_id, 2) + topic + rest
