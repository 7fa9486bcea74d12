# cython: language_level=3, annotation_typing=False, boundscheck=True, wraparound=False
# cython: initializedcheck=False, show_performance_hints=False
"""Check of a whole produced batch in one call, for the most frequent kind: `plain_batch`.

    one batch, not compressed, of records whose structure, count and timestamps are as in its header

`plain_batch` accepts such a batch, and returns None for any other. That does not refuse it: the
general code decides then (`metaquorum.wire.records.batches.produced_batch`,
`metaquorum.wire.records.records.check_records`), and knows the error to report. It accepts all
batches that are accepted here, with the same header; a test compares them. On the path of each
small request, where every call counts, it replaces ten of them.

This file has two forms with the same results, as `record_walk` has: interpreted, and compiled by
Cython with the C types of `_plain_batch.pxd` as `metaquorum.wire.records._plain_batch`
(`metaquorum.wire.protocol.request_form` chooses).
"""

from typing import Any, Final, TypeAlias

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.records import batches, walk_form
from metaquorum.wire.records.batches import BatchHeader, unpack_header
from metaquorum.wire.records.crc import crc32c

if __name__.rpartition(".")[2].startswith("_"):  # compiled
    import cython
    from cython.cimports.metaquorum.wire.primitives._reading import bytes_of, new_tuple, number
else:
    from metaquorum.wire.records import interpreted as cython

# Header, least timestamp and number of null keys of a batch; the header has its largest timestamp.
PlainBatch: TypeAlias = tuple[BatchHeader, int, int]

HEADER_BYTES = batches.HEADER_BYTES
MAGIC = batches.MAGIC
TRANSACTIONAL = batches.TRANSACTIONAL
PREFIX_BYTES = batches.PREFIX_BYTES
CRC_START = batches.CRC_START

_new_tuple: Final = tuple.__new__
_compiled_walk: Any = walk_form.compiled_walk()


def plain_batch(batch: memoryview) -> PlainBatch | None:
    """Check `batch`, all bytes of one partition in a Produce request; return None if not plain."""
    size = len(batch)
    if size < HEADER_BYTES:
        return None
    if cython.compiled:
        data = bytes_of(batch, size)
        base = number(data, size, 0, 8)
        batch_bytes = number(data, size, 8, 4)
        epoch = number(data, size, 12, 4)
        magic = number(data, size, 16, 1)
        crc = number(data, size, 17, 4) & 0xFFFFFFFF
        attributes = number(data, size, 21, 2)
        last = number(data, size, 23, 4)
        first_time = number(data, size, 27, 8)
        max_time = number(data, size, 35, 8)
        pid = number(data, size, 43, 8)
        pepoch = number(data, size, 51, 2)
        sequence = number(data, size, 53, 4)
        count = number(data, size, 57, 4)
    else:
        (
            base, batch_bytes, epoch, magic, crc, attributes, last, first_time, max_time, pid,
            pepoch, sequence, count,
        ) = unpack_header(batch)  # fmt: skip
    if (
        magic != MAGIC
        or batch_bytes != size - PREFIX_BYTES
        or base
        or attributes & ~TRANSACTIONAL
        or last != count - 1
        or count < 1
        or (pid < 0 and attributes)
        or (pid >= 0 and (sequence < 0 or pepoch < 0))
        or crc32c(batch[CRC_START:]) != crc
    ):
        return None
    if cython.compiled:
        walk = _compiled_walk(count, last, True)
        try:
            walked = walk._walk(batch, HEADER_BYTES, count)
        except IndexError:
            return None
        if walk._problem:
            return None
    else:
        walk = walk_form.walk_class(count, last, True)
        try:
            walked = walk.check(batch[HEADER_BYTES:]) + HEADER_BYTES
        except WireError:
            return None
    # Times are Python's integers in both forms: their sums may have more than 64 bits.
    if walked != size or walk.index != count or first_time + walk.max_timestamp_delta != max_time:
        return None
    values = (
        base, size, epoch, magic, crc, attributes, last, first_time, max_time, pid, pepoch,
        sequence, count,
    )  # fmt: skip
    header = new_tuple(BatchHeader, values) if cython.compiled else _new_tuple(BatchHeader, values)
    return header, first_time + walk.min_timestamp_delta, walk.null_keys
