"""Check of a whole produced batch in one call, for the most frequent kind: `plain_batch`.

    one batch, not compressed, of records whose structure, count and timestamps are as in its header

`plain_batch` accepts such a batch, and returns None for any other. That does not refuse it: the
general code decides then (`wire.records.batches.produced_batch`,
`wire.records.records.check_records`), and knows the error to report. It accepts all batches that
are accepted here, with the same header; a test compares them. On the path of each small request,
where every call counts, it replaces ten of them.
"""

from typing import Final, TypeAlias

from wire.primitives.errors import WireError
from wire.records import walk_form
from wire.records.batches import (
    CRC_START,
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    unpack_header,
)
from wire.records.crc import crc32c

# Header, least timestamp and number of null keys of a batch; the header has its largest timestamp.
PlainBatch: TypeAlias = tuple[BatchHeader, int, int]

_new_tuple: Final = tuple.__new__


def plain_batch(batch: memoryview) -> PlainBatch | None:
    """Check `batch`, all bytes of one partition in a Produce request; return None if not plain."""
    size = len(batch)
    if size < HEADER_BYTES:
        return None
    (
        base, batch_bytes, epoch, magic, crc, attributes, last, first_time, max_time, pid, pepoch,
        sequence, count,
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
    walk = walk_form.walk_class(count, last, True)
    try:
        walked = walk.check(batch[HEADER_BYTES:])
    except WireError:
        return None
    if (
        walked != size - HEADER_BYTES
        or walk.index != count
        or first_time + walk.max_timestamp_delta != max_time
    ):
        return None
    header = _new_tuple(
        BatchHeader,
        (
            base, size, epoch, magic, crc, attributes, last, first_time, max_time, pid, pepoch,
            sequence, count,
        ),
    )  # fmt: skip
    return header, first_time + walk.min_timestamp_delta, walk.null_keys
