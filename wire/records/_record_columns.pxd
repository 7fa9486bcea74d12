# C types for wire/records/record_columns.py, which Cython compiles as metaquorum.wire.records._record_columns.
# The interpreter never reads this file.

cimport cython
from libc.string cimport memcpy

cdef long long RECORD_FIELDS
cdef long long TIMESTAMP
cdef long long _HEADERS_AT
cdef long long _HEADERS
cdef long long KEY
cdef long long VALUE
cdef long long DELTA

@cython.locals(
    index=cython.longlong, low=cython.longlong, high=cython.longlong, size=cython.longlong,
    time=cython.longlong, length=cython.longlong, left=cython.longlong,
)
cpdef tuple summary(const long long[::1] fields, long long first, long long count)

cdef class BinaryColumn:
    cdef public long long rows
    cdef public long long nulls
    cdef public long long data_bytes
    cdef long long _field
    cdef object _blocks
    cdef unsigned char[::1] _data
    cdef int[::1] _offsets
    cdef unsigned char[::1] _validity

    @cython.locals(index=cython.longlong, length=cython.longlong, total=cython.longlong)
    cdef long long _measure(
        self, const long long[::1] fields, long long first, long long count
    ) noexcept nogil

    @cython.locals(
        index=cython.longlong, length=cython.longlong, start=cython.longlong, at=cython.longlong,
        row=cython.longlong, number=cython.longlong, size=cython.longlong,
    )
    cdef int _copy(
        self, const unsigned char[::1] data, const long long[::1] fields, long long first,
        long long count
    ) except -1 nogil

    cdef int _put(self, const unsigned char[::1] data, long long start, long long length) except -1

cdef class Int64Column:
    cdef public long long rows
    cdef object _block
    cdef long long[::1] _values

    @cython.locals(index=cython.longlong, row=cython.longlong, number=cython.longlong)
    cdef int _add(
        self, const long long[::1] fields, long long first, long long count, long long field,
        long long base, long long factor
    ) except -1 nogil

cdef class HeadersColumn:
    cdef public long long rows
    cdef public long long nulls
    cdef public BinaryColumn keys
    cdef public BinaryColumn values
    cdef object _blocks
    cdef int[::1] _offsets
    cdef unsigned char[::1] _validity
    cdef long long _at

    @cython.locals(
        raw=cython.ulonglong, byte=cython.ulonglong, shift=cython.int, at=cython.longlong,
        value=cython.longlong,
    )
    cdef long long _varint(self, const unsigned char[::1] data, long long at) except? -1

    @cython.locals(
        index=cython.longlong, number=cython.longlong, row=cython.longlong, left=cython.longlong,
        length=cython.longlong, headers=cython.longlong, at=cython.longlong,
    )
    cdef int _copy(
        self, const unsigned char[::1] data, const long long[::1] fields, long long first,
        long long count
    ) except -1
