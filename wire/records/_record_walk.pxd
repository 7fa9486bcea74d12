# C types for wire/records/record_walk.py, which Cython compiles as metaquorum.wire.records._record_walk. The
# interpreter never reads this file. Positions and lengths have 64 bits, so that the sum of a
# position and a length in a record cannot overflow; `raw` holds the unsigned bits of a varint.

cimport cython

cdef long long RECORD_MIN_BYTES
cdef long long MAX_RECORD_BYTES
cdef long long BODY_MIN_BYTES
cdef long long RECORD_FIELDS
cdef int _LENGTH
cdef int _VARINT
cdef int _DELTA
cdef int _KEY
cdef int _VALUE
cdef int _HEADERS
cdef int _HEADER_KEY
cdef int _HEADER_VALUE
cdef int _FIELDS
cdef int _BEYOND

cdef class RecordWalk:
    cdef public long long count
    cdef public long long last_offset_delta
    cdef public bint dense
    cdef public long long index
    cdef public long long offset_delta
    cdef public long long min_timestamp_delta
    cdef public long long max_timestamp_delta
    cdef public long long null_keys
    cdef public int _problem
    cdef public long long _found
    cdef public long long _most
    cdef long long _at
    cdef public long long _key_length
    cdef public list _spans
    cdef public long long filled
    cdef long long[::1] _fields
    cdef public long long _first

    cdef long long _feed(
        self, const unsigned char[::1] data, long long position, long long stop_index, list spans
    ) except -1
    cdef long long _run(self, const unsigned char[::1] data, long long position, long long stop_index) except -1

    @cython.locals(
        size=cython.longlong, index=cython.longlong, last_delta=cython.longlong,
        most_delta=cython.longlong, is_dense=cython.bint, low=cython.longlong,
        high=cython.longlong, collects=cython.bint, at=cython.longlong,
        raw=cython.ulonglong, byte=cython.ulonglong, length=cython.longlong, end=cython.longlong,
        timestamp=cython.longlong, rest=cython.longlong, delta=cython.longlong,
        key_length=cython.longlong, key_at=cython.longlong, value_length=cython.longlong,
        value_at=cython.longlong, headers=cython.longlong, headers_at=cython.longlong,
        left=cython.longlong, fills=cython.bint, filled=cython.longlong,
    )
    cdef long long _walk(
        self, const unsigned char[::1] data, long long position, long long stop_index
    ) except -1 nogil

    @cython.locals(
        raw=cython.ulonglong, byte=cython.ulonglong, shift=cython.int, end=cython.longlong
    )
    cdef unsigned long long _varint(
        self, const unsigned char[::1] data, long long at, int max_bytes
    ) except? 0 nogil

    cdef long long _fail(
        self, int problem, long long found, long long most, long long position
    ) noexcept nogil

    cdef int _append(
        self, long long start, long long end, long long rest, long long offset_delta,
        long long timestamp_delta, long long key_at, long long key_length, long long value_at,
        long long value_length, long long headers_at, long long headers
    ) except -1 with gil
