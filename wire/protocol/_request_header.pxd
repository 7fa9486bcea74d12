# C types for wire/protocol/request_header.py, which Cython compiles as
# metaquorum.wire.protocol._request_header. The interpreter never reads this file.

cimport cython

from metaquorum.wire.primitives._reading cimport Bytes

cdef long long _START_BYTES
cdef long long _NEVER_FLEXIBLE

@cython.locals(
    data=Bytes, end=cython.longlong, api_key=cython.longlong, version=cython.longlong,
    correlation_id=cython.longlong, length=cython.longlong, position=cython.longlong,
    tags=cython.longlong,
)
cpdef object decode_request_header(object frame)
