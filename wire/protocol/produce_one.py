"""Fast codec of Produce requests with one topic: nearly all requests and responses.

The results equal those of `wire.messages.produce`, byte for byte (a test checks it), without an
object for each level of nesting. For a request of any other form the decoder returns None, and the
caller uses the general codec.

    v3-8    transactional id | acks, timeout | 1 topic: name | partitions: index, records
    v9-12   the same fields in compact encoding, no tagged fields
    v13     as v9-12, with the topic id instead of the name

The transactional id stays encoded: only the first batch of a transaction in a partition needs it.
"""

from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error
from typing import Final, TypeAlias

FIRST_FLEXIBLE: Final = 9
FIRST_WITH_TOPIC_ID: Final = 13
_ID_BYTES: Final = 16
_MAX_COUNT: Final = 126  # partitions; a compact count (count + 1) of one byte

_unpack_start = Struct(">hhiih").unpack_from
_unpack_count = Struct(">i").unpack_from
_unpack_partition = Struct(">ii").unpack_from
_unpack_named_start = Struct(">bhibb").unpack_from
_unpack_id_start = Struct(">bhib16s").unpack_from
_unpack_compact_partition = Struct(">iB").unpack_from
_END_BYTES: Final = 2  # empty tagged fields of the topic and of the request, a 0 each


# acks, timeout in ms, topic name (from v13: topic id), (index, records) of each partition, and the
# transactional id or None
ProduceOne: TypeAlias = tuple[int, int, bytes, list[tuple[int, memoryview]], memoryview | None]


def decode_one(frame: memoryview, position: int, version: int) -> ProduceOne | None:
    """Return the request whose body begins at `position`.

    Return None if the request has another form or is malformed.
    """
    try:
        if version < FIRST_FLEXIBLE:
            return _decode_plain(frame, position)
        return _decode_compact(frame, position, version)
    except (struct_error, IndexError):
        return None


def _decode_plain(frame: memoryview, position: int) -> ProduceOne | None:
    transactional, acks, timeout_ms, topics, length = _unpack_start(frame, position)
    transactional_id = None
    if transactional >= 0:
        transactional_id = frame[position + 2 : position + 2 + transactional]
        position += transactional
        _, acks, timeout_ms, topics, length = _unpack_start(frame, position)
    at = position + 14 + length
    if transactional < -1 or topics != 1 or length < 0:
        return None
    topic = frame[position + 14 : at].tobytes()
    (count,) = _unpack_count(frame, at)
    at += 4
    partitions = []
    while count > 0:
        index, size = _unpack_partition(frame, at)
        at += 8 + size
        if size < 0:
            return None
        partitions.append((index, frame[at - size : at]))
        count -= 1
    if not partitions or at != len(frame):
        return None
    return acks, timeout_ms, topic, partitions, transactional_id


def _decode_compact(frame: memoryview, position: int, version: int) -> ProduceOne | None:
    transactional = frame[position]
    transactional_id = None
    if transactional:
        if transactional > 127:
            return None
        transactional_id = frame[position + 1 : position + transactional]
        position += transactional - 1
    if version >= FIRST_WITH_TOPIC_ID:
        _, acks, timeout_ms, topics, topic = _unpack_id_start(frame, position)
        at = position + 8 + _ID_BYTES
    else:
        _, acks, timeout_ms, topics, length = _unpack_named_start(frame, position)
        if length < 1:
            return None
        at = position + 8 + length
        topic = frame[position + 9 : at].tobytes()
    count = frame[at] - 1
    if topics != 2 or not 1 <= count <= _MAX_COUNT:
        return None
    at += 1
    partitions = []
    for _ in range(count):
        index, size = _unpack_compact_partition(frame, at)
        at += 5
        if size > 127:
            size &= 127
            shift = 7
            while (more := frame[at]) > 127:
                size |= (more & 127) << shift
                shift += 7
                at += 1
                if shift > 28:
                    return None
            size |= more << shift
            at += 1
        end = at + size - 1
        if size < 1 or frame[end]:  # null records, or tagged fields
            return None
        partitions.append((index, frame[at:end]))
        at = end + 1
    if len(frame) != at + _END_BYTES or frame[at] or frame[at + 1]:
        return None
    return acks, timeout_ms, topic, partitions, transactional_id


# One partition of the response: index, base offset, log append time, log start offset
Appended: TypeAlias = tuple[int, int, int, int]

# A partition of the response by version: no error, no record errors, no message, no tagged fields
_pack_v3 = Struct(">ihqq").pack
_pack_v5 = Struct(">ihqqq").pack
_pack_v8 = Struct(">ihqqqih").pack
_pack_compact = Struct(">ihqqqbxx").pack
# Fields before the topic: size, correlation id, number of topics, length of the name
_pack_start = Struct(">iiih").pack
_pack_compact_start = Struct(">iixb").pack
_pack_count = _pack_throttle_time = Struct(">i").pack
_pack_compact_end = Struct(">xix").pack  # tags of the topic, throttle time, tags of the response
_pack_compact_one = Struct(">Bihqqqbxxxix").pack  # number of partitions, the only one, the end


def encode_one(
    version: int,
    correlation_id: int,
    topic: bytes,
    appended: Sequence[Appended],
    throttle_time_ms: int = 0,
) -> bytes:
    """Return the response frame for successful appends; `topic` is that of the `ProduceOne`."""
    if version < FIRST_FLEXIBLE:
        if version >= 8:
            rows = [_pack_v8(i, 0, base, time, start, 0, -1) for i, base, time, start in appended]
        elif version >= 5:
            rows = [_pack_v5(i, 0, base, time, start) for i, base, time, start in appended]
        else:
            rows = [_pack_v3(i, 0, base, time) for i, base, time, _ in appended]
        rest = _pack_count(len(rows)) + b"".join(rows) + _pack_throttle_time(throttle_time_ms)
        size = 10 + len(topic) + len(rest)
        return _pack_start(size, correlation_id, 1, len(topic)) + topic + rest
    if len(appended) == 1:
        index, base, time, start = appended[0]
        rest = _pack_compact_one(2, index, 0, base, time, start, 1, throttle_time_ms)
    else:
        rows = [_pack_compact(i, 0, base, time, start, 1) for i, base, time, start in appended]
        rest = bytes((len(rows) + 1,)) + b"".join(rows) + _pack_compact_end(throttle_time_ms)
    if version < FIRST_WITH_TOPIC_ID:
        topic = bytes((len(topic) + 1,)) + topic
    size = 6 + len(topic) + len(rest)
    return _pack_compact_start(size, correlation_id, 2) + topic + rest
