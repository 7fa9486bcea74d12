# Readers of the compiled forms, in the place of `struct` in the interpreted ones. Each read is
# checked against the size of the data. The interpreter never reads this file.

from cpython.buffer cimport PyBuffer_IsContiguous, Py_buffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_Check, PyMemoryView_GET_BUFFER
from cpython.unicode cimport PyUnicode_DecodeUTF8

ctypedef const unsigned char* Bytes


cdef inline Bytes bytes_of(object view, long long size) except NULL:
    """Return the first of the `size` bytes of a memoryview, which must not be released meanwhile.

    `size` is its length: Python refuses that of a released view.
    """
    if not PyMemoryView_Check(view):
        raise TypeError("not a memoryview")
    cdef Py_buffer* buffer = PyMemoryView_GET_BUFFER(view)
    if buffer.len != size or not PyBuffer_IsContiguous(buffer, b"C"):
        raise TypeError("not a contiguous view of bytes")
    if buffer.buf == NULL:
        raise TypeError("a view without memory")
    return <Bytes>buffer.buf


cdef inline long long number(
    Bytes data, long long end, long long at, int size
) except? -1:
    """Return the signed big-endian number of `size` bytes at `at`; IndexError beyond `end`."""
    if at < 0 or at > end - size:
        raise IndexError
    cdef long long value = <signed char>data[at]
    cdef int place
    for place in range(1, size):
        value = value * 256 + data[at + place]
    return value


cdef inline int byte(Bytes data, long long end, long long at) except -1:
    """Return the byte at `at`; IndexError beyond `end`."""
    if at < 0 or at >= end:
        raise IndexError
    return data[at]


cdef inline object text(Bytes data, long long end, long long at, long long size):
    """Return the UTF-8 text of `size` bytes at `at`, cut at `end` as a slice is."""
    if at < 0 or at > end or size < 0:
        raise IndexError
    return PyUnicode_DecodeUTF8(<const char*>data + at, min(size, end - at), NULL)


cdef inline object piece(Bytes data, long long end, long long at, long long size):
    """Return `size` bytes at `at`, cut at `end` as a slice is."""
    if at < 0 or at > end or size < 0:
        raise IndexError
    return PyBytes_FromStringAndSize(<const char*>data + at, min(size, end - at))
