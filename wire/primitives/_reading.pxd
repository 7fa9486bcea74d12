# Readers of the compiled forms, in the place of `struct` in the interpreted ones. Each read is
# checked against the size of the data. The interpreter never reads this file.

from cpython.buffer cimport PyBuffer_IsContiguous, Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_Check, PyMemoryView_GET_BUFFER
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport memcpy

cdef extern from "Python.h":
    object PyType_GenericAlloc(type form, Py_ssize_t size)

ctypedef const unsigned char* Bytes
ctypedef unsigned char* Written


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
    """Return the UTF-8 text of `size` bytes at `at`, cut at `end`; other bytes become U+FFFD."""
    if at < 0 or at > end or size < 0:
        raise IndexError
    return PyUnicode_DecodeUTF8(<const char*>data + at, min(size, end - at), "replace")


cdef inline object piece(Bytes data, long long end, long long at, long long size):
    """Return `size` bytes at `at`, cut at `end` as a slice is."""
    if at < 0 or at > end or size < 0:
        raise IndexError
    return PyBytes_FromStringAndSize(<const char*>data + at, min(size, end - at))


cdef inline object new_tuple(type form, tuple values):
    """Return a named tuple as `tuple.__new__(form, values)` does, without that call."""
    cdef Py_ssize_t place
    new = PyType_GenericAlloc(form, len(values))
    for place in range(len(values)):
        value = values[place]
        Py_INCREF(value)
        PyTuple_SET_ITEM(new, place, value)
    return new


cdef inline bytes new_bytes(long long size):
    """Return `size` bytes, to be written before anything else sees them."""
    return PyBytes_FromStringAndSize(NULL, size)


cdef inline Written start_of(bytes new):
    return <Written>PyBytes_AS_STRING(new)


cdef inline long long put(Written data, long long at, int size, long long value) noexcept:
    """Write a big-endian number of `size` bytes at `at`; return the position after it."""
    cdef int place
    for place in range(size - 1, -1, -1):
        data[at + place] = value & 255
        value >>= 8
    return at + size


cdef inline long long put_bytes(Written data, long long at, bytes piece) noexcept:
    memcpy(data + at, PyBytes_AS_STRING(piece), len(piece))
    return at + len(piece)
