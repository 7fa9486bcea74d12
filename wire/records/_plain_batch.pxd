# C types for wire/records/plain_batch.py, which Cython compiles as metaquorum.wire.records._plain_batch. The
# interpreter never reads this file. Times have no type: they are Python's integers.

cimport cython

from metaquorum.wire.primitives._reading cimport Bytes
from metaquorum.wire.records._record_walk cimport RecordWalk

cdef long long HEADER_BYTES
cdef long long MAGIC
cdef long long TRANSACTIONAL
cdef long long PREFIX_BYTES
cdef long long CRC_START

@cython.locals(
    data=Bytes, size=cython.longlong, base=cython.longlong, batch_bytes=cython.longlong, epoch=cython.longlong,
    magic=cython.longlong, crc=cython.longlong, attributes=cython.longlong, last=cython.longlong,
    pid=cython.longlong, pepoch=cython.longlong, sequence=cython.longlong, count=cython.longlong,
    walk=RecordWalk, walked=cython.longlong,
)
cpdef object plain_batch(object batch)
