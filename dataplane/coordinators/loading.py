"""Reading the records of an internal topic's partition, for a coordinator that begins to lead it.

Chunks of the log are read and checked in a worker thread; their records are decoded on the event
loop, in pieces. Memory: one chunk, and one decompressed piece of a batch.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from dataplane.coordinators.shard import CoordinatorRecord
from dataplane.log.partition_log import PartitionLog
from dataplane.log.segments.files import ColdError
from dataplane.log.segments.slices import LogSlice
from dataplane.scheduling.time_slices import PIECE_ROWS, Work
from metaquorum.runtime import Disk
from wire.primitives.errors import KafkaError, WireError
from wire.records.batches import BatchHeader, BatchState, batches, scan
from wire.records.records import record_spans

# Size of the records of one piece; PIECE_ROWS of them without values are one piece, too.
PIECE_BYTES: Final = 16_384


class LoadError(Exception):
    """Raised if a batch of the log is damaged; the message names its offset."""


class Chunk(NamedTuple):
    """Whole batches of a log, checked, with the position of each."""

    data: bytes
    batches: list[tuple[int, BatchHeader]]
    next_offset: int


async def read_chunk(
    log: PartitionLog, disk: Disk, offset: int, end_offset: int, max_bytes: int
) -> Chunk:
    """Read batches from `offset` on: at least one, and otherwise at most `max_bytes`.

    Raises LoadError, KafkaError (OFFSET_OUT_OF_RANGE), StorageError, or EOFError if the segment
    was deleted meanwhile.
    """
    while True:
        try:
            found = log.read_hot(offset, max_bytes, end_offset, min_one=True)
            break
        except ColdError as cold:
            await cold.warm(disk)
    checked = await disk.run(partial(_read_and_check, found, f"{log.topic}-{log.partition}"))
    if isinstance(checked, LoadError):
        raise checked
    return checked._replace(next_offset=max(checked.next_offset, offset))


def _read_and_check(found: LogSlice, name: str) -> Chunk | LoadError:
    """Read and check in a worker thread. Errors of the batches are returned, not raised."""
    data = found.read()
    headers: list[tuple[int, BatchHeader]] = []
    next_offset = 0
    try:
        for position, header in batches(data):
            checked = scan(data, position)
            if checked.state is not BatchState.WHOLE:
                return LoadError(
                    f"the batch at offset {header.base_offset} of {name} is damaged:"
                    f" {checked.problem}"
                )
            headers.append((position, header))
            next_offset = header.last_offset + 1
    except KafkaError as error:
        return LoadError(f"a batch after offset {next_offset} of {name} is damaged: {error}")
    if not headers:
        return LoadError(f"there is no whole batch at offset {found.first_offset} of {name}")
    return Chunk(data, headers, next_offset)


def replay_chunk(
    chunk: Chunk, offset: int, replay: Callable[[CoordinatorRecord], object]
) -> Work[int]:
    """Call `replay` with the records from `offset` on, in pieces; return their number.

    Markers of transactions are skipped. Raises LoadError if the records of a batch are malformed.
    """
    count, left = 0, PIECE_BYTES
    for position, header in chunk.batches:
        if header.is_control:
            continue
        base_offset = header.base_offset
        try:
            for data, spans in record_spans(chunk.data, position, header):
                for _, _, _, delta, _, key_at, key_length, value_at, value_length, _, _ in spans:
                    if base_offset + delta < offset or key_length < 0:
                        continue
                    value = data[value_at : value_at + value_length] if value_length >= 0 else None
                    replay(CoordinatorRecord(data[key_at : key_at + key_length], value))
                    count += 1
                    left -= PIECE_BYTES // PIECE_ROWS + max(value_length, 0)
                    if left <= 0:
                        left = PIECE_BYTES
                        yield
        except WireError as error:
            raise LoadError(
                f"the batch at offset {header.base_offset} is malformed: {error}"
            ) from error
        yield
    return count
