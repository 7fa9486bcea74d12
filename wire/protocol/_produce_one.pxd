# C types for wire/protocol/produce_one.py, which Cython compiles as metaquorum.wire.protocol._produce_one. The
# interpreter never reads this file. Positions and lengths have 64 bits, so that the sum of a
# position and a length in a frame cannot overflow.

cimport cython

from metaquorum.wire.primitives._reading cimport Bytes, Written

cdef long long FIRST_FLEXIBLE
cdef long long FIRST_WITH_TOPIC_ID
cdef long long _ID_BYTES
cdef long long _MAX_COUNT
cdef long long _END_BYTES

cpdef object decode_one(object frame, long long position, long long version)

@cython.locals(
    transactional=cython.longlong, acks=cython.longlong, timeout_ms=cython.longlong,
    topics=cython.longlong, length=cython.longlong, at=cython.longlong, count=cython.longlong,
    index=cython.longlong, size=cython.longlong, partitions=list, end=cython.longlong, start=Bytes,
)
cdef object _decode_plain(object frame, const unsigned char[::1] data, long long position)

@cython.locals(
    transactional=cython.longlong, acks=cython.longlong, timeout_ms=cython.longlong,
    topics=cython.longlong, length=cython.longlong, at=cython.longlong, count=cython.longlong,
    index=cython.longlong, size=cython.longlong, shift=cython.longlong, more=cython.longlong,
    end=cython.longlong, stop=cython.longlong, partitions=list, start=Bytes,
)
cdef object _decode_compact(
    object frame, const unsigned char[::1] data, long long position, long long version
)

cdef (long long, long long, long long, long long, long long) _start(
    Bytes start, long long end, long long at
) except *

@cython.locals(
    compact=cython.bint, named=cython.bint, size=cython.longlong, at=cython.longlong,
    data=Written, frame=bytes,
)
cdef bytes _write_single(
    long long version, long long correlation_id, bytes topic, long long index, long long base,
    long long time, long long start, long long throttle_time_ms
)
