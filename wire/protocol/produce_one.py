# cython: language_level=3, annotation_typing=False, boundscheck=True, wraparound=False
# cython: initializedcheck=False, show_performance_hints=False
"""Fast codec of Produce requests with one topic: nearly all requests and responses.

The results equal those of `metaquorum.wire.messages.produce`, byte for byte (a test checks it),
without an object for each level of nesting. For a request of any other form the decoder returns
None, and the caller uses the general codec.

    v3-8    transactional id | acks, timeout | 1 topic: name | partitions: index, records
    v9-12   the same fields in compact encoding, no tagged fields
    v13     as v9-12, with the topic id instead of the name

The transactional id stays encoded: only the first batch of a transaction in a partition needs it.

This file has two forms with the same results: interpreted, and compiled by Cython with the C types
of `_produce_one.pxd` as `metaquorum.wire.protocol._produce_one`
(`metaquorum.wire.protocol.request_form` chooses). Each read of the compiled form is checked against
the frame's size, and numbers have 64 bits.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as struct_error
from typing import TypeAlias

if __name__.rpartition(".")[2].startswith("_"):  # compiled
    import cython
    from cython.cimports.metaquorum.wire.primitives._reading import (
        new_bytes,
        number,
        piece,
        put,
        put_bytes,
        start_of,
    )
else:
    from metaquorum.wire.records import interpreted as cython

FIRST_FLEXIBLE = 9
FIRST_WITH_TOPIC_ID = 13
_ID_BYTES = 16
_MAX_COUNT = 126  # partitions; a compact count (count + 1) of one byte

_unpack_start = Struct(">hhiih").unpack_from
_unpack_count = Struct(">i").unpack_from
_unpack_partition = Struct(">ii").unpack_from
_unpack_named_start = Struct(">bhibb").unpack_from
_unpack_id_start = Struct(">bhib16s").unpack_from
_unpack_compact_partition = Struct(">iB").unpack_from
_END_BYTES = 2  # empty tagged fields of the topic and of the request, a 0 each


# acks, timeout in ms, topic name (from v13: topic id), (index, records) of each partition, and the
# transactional id or None
ProduceOne: TypeAlias = tuple[int, int, bytes, list[tuple[int, memoryview]], memoryview | None]


def decode_one(frame: memoryview, position: int, version: int) -> ProduceOne | None:
    """Return the request whose body begins at `position`.

    Return None if the request has another form or is malformed.
    """
    try:
        if version < FIRST_FLEXIBLE:
            return _decode_plain(frame, frame, position)
        return _decode_compact(frame, frame, position, version)
    except (struct_error, IndexError):
        return None


# `data` is the frame, with a C type if compiled: reads beyond its end raise IndexError.


def _decode_plain(frame: memoryview, data: memoryview, position: int) -> ProduceOne | None:
    end = len(data)
    if cython.compiled:
        start = cython.address(data[0])
        transactional, acks, timeout_ms, topics, length = _start(start, end, position)
    else:
        transactional, acks, timeout_ms, topics, length = _unpack_start(frame, position)
    transactional_id = None
    if transactional >= 0:
        transactional_id = frame[position + 2 : position + 2 + transactional]
        position += transactional
        if cython.compiled:
            _, acks, timeout_ms, topics, length = _start(start, end, position)
        else:
            _, acks, timeout_ms, topics, length = _unpack_start(frame, position)
    at = position + 14 + length
    if transactional < -1 or topics != 1 or length < 0:
        return None
    if cython.compiled:
        topic = piece(start, end, position + 14, length)
        count = number(start, end, at, 4)
    else:
        topic = frame[position + 14 : at].tobytes()
        (count,) = _unpack_count(frame, at)
    at += 4
    partitions = []
    while count > 0:
        if cython.compiled:
            index, size = number(start, end, at, 4), number(start, end, at + 4, 4)
        else:
            index, size = _unpack_partition(frame, at)
        at += 8 + size
        if size < 0:
            return None
        partitions.append((index, frame[at - size : at]))
        count -= 1
    if not partitions or at != end:
        return None
    return acks, timeout_ms, topic, partitions, transactional_id


def _decode_compact(
    frame: memoryview, data: memoryview, position: int, version: int
) -> ProduceOne | None:
    end = len(data)
    if cython.compiled:
        start = cython.address(data[0])
    transactional = data[position]
    transactional_id = None
    if transactional:
        if transactional > 127:
            return None
        transactional_id = frame[position + 1 : position + transactional]
        position += transactional - 1
    if version >= FIRST_WITH_TOPIC_ID:
        if cython.compiled:
            acks = number(start, end, position + 1, 2)
            timeout_ms = number(start, end, position + 3, 4)
            topics = number(start, end, position + 7, 1)
            topic = piece(start, end, position + 8, _ID_BYTES)
        else:
            _, acks, timeout_ms, topics, topic = _unpack_id_start(frame, position)
        at = position + 8 + _ID_BYTES
    else:
        if cython.compiled:
            acks = number(start, end, position + 1, 2)
            timeout_ms = number(start, end, position + 3, 4)
            topics = number(start, end, position + 7, 1)
            length = number(start, end, position + 8, 1)
        else:
            _, acks, timeout_ms, topics, length = _unpack_named_start(frame, position)
        if length < 1:
            return None
        at = position + 8 + length
        if cython.compiled:
            topic = piece(start, end, position + 9, length - 1)
        else:
            topic = frame[position + 9 : at].tobytes()
    count = data[at] - 1
    if topics != 2 or not 1 <= count <= _MAX_COUNT:
        return None
    at += 1
    partitions = []
    for _ in range(count):
        if cython.compiled:
            index, size = number(start, end, at, 4), data[at + 4]
        else:
            index, size = _unpack_compact_partition(frame, at)
        at += 5
        if size > 127:
            size &= 127
            shift = 7
            while (more := data[at]) > 127:
                size |= (more & 127) << shift
                shift += 7
                at += 1
                if shift > 28:
                    return None
            size |= more << shift
            at += 1
        stop = at + size - 1
        if size < 1 or data[stop]:  # null records, or tagged fields
            return None
        partitions.append((index, frame[at:stop]))
        at = stop + 1
    if end != at + _END_BYTES or data[at] or data[at + 1]:
        return None
    return acks, timeout_ms, topic, partitions, transactional_id


def _start(start: memoryview, end: int, at: int) -> tuple[int, int, int, int, int]:
    """Return the same as `_unpack_start`; compiled form only."""
    return (
        number(start, end, at, 2),
        number(start, end, at + 2, 2),
        number(start, end, at + 4, 4),
        number(start, end, at + 8, 4),
        number(start, end, at + 12, 2),
    )


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


# The whole response for one partition, in one call: `pack` and the frame's size, by version and
# length of the topic's name. As many as there are such lengths, at most 249, times versions.
_singles: dict[int, tuple[Callable[..., bytes], int]] = {}


def encode_one(
    version: int,
    correlation_id: int,
    topic: bytes,
    appended: Sequence[Appended],
    throttle_time_ms: int = 0,
) -> bytes:
    """Return the response frame for successful appends; `topic` is that of the `ProduceOne`."""
    if len(appended) == 1:
        return _encode_single(version, correlation_id, topic, appended[0], throttle_time_ms)
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
    rows = [_pack_compact(i, 0, base, time, start, 1) for i, base, time, start in appended]
    rest = bytes((len(rows) + 1,)) + b"".join(rows) + _pack_compact_end(throttle_time_ms)
    if version < FIRST_WITH_TOPIC_ID:
        topic = bytes((len(topic) + 1,)) + topic
    size = 6 + len(topic) + len(rest)
    return _pack_compact_start(size, correlation_id, 2) + topic + rest


def _encode_single(
    version: int, correlation_id: int, topic: bytes, appended: Appended, throttle_time_ms: int
) -> bytes:
    index, base, time, start = appended
    length = len(topic)
    if cython.compiled:
        return _write_single(
            version, correlation_id, topic, index, base, time, start, throttle_time_ms
        )
    single = _singles.get(version << 16 | length)
    if single is None:
        single = _singles[version << 16 | length] = _single(version, length)
    pack, size = single
    if version >= FIRST_FLEXIBLE:
        if version < FIRST_WITH_TOPIC_ID:
            return pack(
                size, correlation_id, 2, length + 1, topic, 2, index, 0, base, time, start, 1,
                throttle_time_ms,
            )  # fmt: skip
        return pack(
            size, correlation_id, 2, topic, 2, index, 0, base, time, start, 1, throttle_time_ms
        )
    if version >= 8:
        return pack(
            size, correlation_id, 1, length, topic, 1, index, 0, base, time, start, 0, -1,
            throttle_time_ms,
        )  # fmt: skip
    if version >= 5:
        return pack(
            size, correlation_id, 1, length, topic, 1, index, 0, base, time, start, throttle_time_ms
        )
    return pack(size, correlation_id, 1, length, topic, 1, index, 0, base, time, throttle_time_ms)


def _single(version: int, length: int) -> tuple[Callable[..., bytes], int]:
    if version >= FIRST_FLEXIBLE:
        name = "B" if version < FIRST_WITH_TOPIC_ID else ""
        form = Struct(f">iixb{name}{length}sBihqqqbxxxix")
    else:
        row = "ihqqqih" if version >= 8 else "ihqqq" if version >= 5 else "ihqq"
        form = Struct(f">iiih{length}si{row}i")
    return form.pack, form.size - 4


def _write_single(
    version: int,
    correlation_id: int,
    topic: bytes,
    index: int,
    base: int,
    time: int,
    start: int,
    throttle_time_ms: int,
) -> bytes:
    """Return the same as `_encode_single`; compiled form only."""
    compact = version >= FIRST_FLEXIBLE
    named = compact and version < FIRST_WITH_TOPIC_ID
    size = len(topic) + (38 if compact else 46 if version >= 8 else 40)
    size += (8 if version >= 5 else 0) + (1 if named else 0)
    frame: bytes = new_bytes(4 + size)
    data = start_of(frame)
    at = put(data, put(data, 0, 4, size), 4, correlation_id)
    if compact:
        at = put(data, put(data, at, 1, 0), 1, 2)  # tags of the header; one topic
        if named:
            at = put(data, at, 1, len(topic) + 1)
    else:
        at = put(data, put(data, at, 4, 1), 2, len(topic))
    at = put_bytes(data, at, topic)
    at = put(data, at, 1, 2) if compact else put(data, at, 4, 1)  # one partition
    at = put(data, put(data, at, 4, index), 2, 0)
    at = put(data, put(data, at, 8, base), 8, time)
    if version >= 5:
        at = put(data, at, 8, start)
    if compact:
        at = put(data, at, 4, 1 << 24)  # no record errors, no message, no tags; tags of the topic
    elif version >= 8:
        at = put(data, put(data, at, 4, 0), 2, -1)
    at = put(data, at, 4, throttle_time_ms)
    if compact:
        at = put(data, at, 1, 0)
    assert at == 4 + size
    return frame
