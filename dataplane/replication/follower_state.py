"""Follower's handling of fetch responses: truncate, append, advance the high watermark.

The logs of two replicas agree up to an offset at which both have the end of the same leader epoch.
So a follower sends the epoch of its last record with each fetch. If that epoch ends before the
fetch offset in the leader's log, or is unknown there, the leader answers with the diverging epoch
and its end offset instead of records; the follower truncates its log there and fetches again. No
records are fetched before the logs agree (KIP-101, KIP-320; part of Fetch since KIP-595).

    leader's log start offset     until the logs are known to agree
    before the follower's end     compare the follower's last epoch: truncate, or append
    at the follower's end         nothing to compare: truncate fully, start there, append
    after the follower's end      OFFSET_OUT_OF_RANGE: truncate fully, start there

Plain state around the log. The caller chooses whether an append is small enough for the event loop.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from metaquorum.dataplane.fetch.session_client import RequestedPartition
from metaquorum.dataplane.log.recovery.checkpoints import LogOffsets
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.runtime import Disk
from metaquorum.wire.messages.fetch import EpochEndOffset
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.types import Buffer
from metaquorum.wire.records.batches import BatchHeader, batch_crc, batches, stored_problem

NO_EPOCH: Final = -1
# More bytes are written in a worker thread. Below, the handover to the thread costs more than the
# write, which takes 0.2 ms a megabyte, or 5 ms in a virtual machine that first gets the memory.
BESIDE_BYTES: Final = (1 << 20) + (64 << 10)


class Truncation(NamedTuple):
    """Records [offset, end_offset) that a follower truncates: its leader does not have them."""

    offset: int
    end_offset: int
    leader_epoch: int  # leader epoch in which the follower truncates
    high_watermark: int  # before the truncation; records below it were committed
    last_epoch: int = NO_EPOCH  # epoch of the last truncated record
    starts_anew: bool = False  # full truncation: the leader's log starts later


def wanted(partition: Partition, leader_epoch: int, max_bytes: int) -> RequestedPartition:
    """Return the parameters of the partition's next fetch."""
    log = partition.log
    return RequestedPartition(
        partition.topic_id,
        partition.index,
        leader_epoch,
        log.log_end_offset,
        last_epoch(partition),
        log.log_start_offset,
        max_bytes,
    )


def last_epoch(partition: Partition) -> int:
    """Return the epoch of the last record; NO_EPOCH for an empty log, which matches any other."""
    log = partition.log
    if log.log_end_offset == log.log_start_offset:
        return NO_EPOCH
    return log.epochs.epoch_at(log.log_end_offset - 1)


def diverging_cut(partition: Partition, leader_epoch: int, diverging: EpochEndOffset) -> Truncation:
    """Return the truncation that the leader's diverging epoch requires; change nothing yet.

    If the follower does not have the leader's epoch, its previous epoch decides, and the next fetch
    compares again. A batch of the follower may span the offset, because a leader that has deleted
    the start of its epoch reports its log start as the end of the previous epoch: such a batch is
    truncated as a whole. Raises StorageError if the directory fails.
    """
    log = partition.log
    _, end_offset = log.epochs.end_offset_for(diverging.epoch, log.log_end_offset)
    if end_offset < 0:  # all local epochs are older
        end_offset = log.log_end_offset
    offset = log.first_cut_at(min(end_offset, diverging.end_offset))
    return Truncation(
        offset, log.log_end_offset, leader_epoch, partition.high_watermark, last_epoch(partition)
    )


def full_truncation(partition: Partition, leader_epoch: int) -> Truncation:
    """Return the truncation of the whole log, for a leader whose log starts after its end."""
    log = partition.log
    return Truncation(
        log.log_start_offset,
        log.log_end_offset,
        leader_epoch,
        partition.high_watermark,
        last_epoch(partition),
        starts_anew=True,
    )


def offsets_after(partition: Partition, cut: Truncation) -> LogOffsets:
    """Return the offsets that checkpoints may hold at most before the truncation.

    Raises StorageError if the directory fails.
    """
    log = partition.log
    return (
        log.offsets_after_full_truncation(cut.offset)
        if cut.starts_anew
        else log.offsets_after_truncation(cut.offset)
    )


def truncate(partition: Partition, cut: Truncation, kept: LogOffsets) -> bool:
    """Truncate the log to `cut.offset`; the caller flushes it before the next append.

    `kept` are the offsets that the checkpoints were limited to (`offsets_after`). Returns False
    without truncating if the log start offset has moved since, so that fewer records would remain.
    Raises StorageError if the directory fails.
    """
    log = partition.log
    if offsets_after(partition, cut) != kept:
        return False
    log.truncate_to(cut.offset)
    partition.cut_to(min(partition.high_watermark, log.log_end_offset))
    return True


def start_anew(partition: Partition, offset: int) -> bool:
    """Delete all records, start the log at `offset` and return True.

    The caller has limited the checkpoints, and flushes the log before the next append. Raises
    StorageError if the directory fails.
    """
    partition.log.truncate_fully_and_start_at(offset)
    partition.cut_to(offset)
    return True


def append(partition: Partition, records: Buffer, now_ms: int) -> int:
    """Append the complete batches in `records`; return their bytes.

    Raises KafkaError (CORRUPT_MESSAGE) for a damaged batch, before anything is written: the
    follower fetches again. Raises StorageError if the directory fails.
    """
    end, headers = _checked(partition, records)
    segment_bytes = partition.log.config.segment_bytes
    if end <= segment_bytes:
        if headers:
            partition.log.append_as_follower(memoryview(records)[:end], headers, now_ms)
            _appended(partition, end)
        return end
    for piece, some in _pieces(memoryview(records)[:end], headers, segment_bytes):
        partition.log.append_as_follower(piece, some, now_ms)
        _appended(partition, len(piece))
    return end


def _pieces(
    records: memoryview, headers: Sequence[BatchHeader], most_bytes: int
) -> Iterator[tuple[memoryview, list[BatchHeader]]]:
    """Yield the batches in pieces of at most `most_bytes`; a larger batch is alone in its piece.

    A leader that has not rolled its segment yet, or had a larger segment.bytes, sends more.
    """
    begin, end = 0, 0
    some: list[BatchHeader] = []
    for header in headers:
        if some and end - begin + header.batch_bytes > most_bytes:
            yield records[begin:end], some
            begin, some = end, []
        some.append(header)
        end += header.batch_bytes
    yield records[begin:end], some


async def append_piece(
    partition: Partition, disk: Disk, records: Buffer, now_ms: int, most_batches: int
) -> int:
    """Append as `append` does, but at most `most_batches` and a segment.

    A worker thread writes a piece of more than BESIDE_BYTES, or of fewer while the disk makes
    writers wait. The caller holds `partition.appending`, and keeps `records` until the call
    returns.
    """
    segment_bytes = partition.log.config.segment_bytes
    end, headers = _checked(partition, records, most_batches, segment_bytes)
    if headers:
        piece = memoryview(records)[:end]
        if end > min(BESIDE_BYTES, disk.inline_write_bytes):
            await partition.log.append_as_follower_beside(disk, piece, headers, now_ms)
        else:
            partition.log.append_as_follower(piece, headers, now_ms)
        _appended(partition, end)
    return end


def _appended(partition: Partition, size_bytes: int) -> None:
    partition.is_growing(size_bytes)
    partition.replicated_in(size_bytes)


def _checked(
    partition: Partition,
    records: Buffer,
    most_batches: int | None = None,
    most_bytes: int | None = None,
) -> tuple[int, list[BatchHeader]]:
    """Return the bytes and headers of the complete batches, up to these limits, unless None.

    The first batch may have more bytes. Raises KafkaError (CORRUPT_MESSAGE) for a damaged batch.
    """
    headers: list[BatchHeader] = []
    end = 0
    for position, header in islice(batches(records), most_batches):
        if most_bytes is not None and headers and position + header.batch_bytes > most_bytes:
            break
        if batch_crc(records, position, header.batch_bytes) != header.crc:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{partition}: the checksum of the batch at offset {header.base_offset} is wrong",
            )
        if problem := stored_problem(header):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{partition}: the batch at offset {header.base_offset}: {problem}",
            )
        headers.append(header)
        end = position + header.batch_bytes
    return end, headers


def ends_at_leaders_start(want: RequestedPartition, leader_log_start_offset: int) -> bool:
    """Return whether the leader has no record to compare with the follower's last one.

    The leader knows epochs from its log start offset on and accepts a fetch at that offset without
    a comparison. The follower's last records may come from a former leader, at offsets of other
    records that the leader has deleted.
    """
    return want.last_fetched_epoch >= 0 and want.fetch_offset <= leader_log_start_offset


def begins_within(partition: Partition, records: Buffer) -> int | None:
    """Return the offset at which an empty log must start for the first batch; None for no change.

    A leader whose log starts within a batch, after DeleteRecords, sends the whole batch. None also
    if the batch is damaged, which `append` reports.
    """
    log = partition.log
    if log.log_start_offset == log.log_end_offset:
        try:
            at, first = next(batches(records), (0, None))
        except KafkaError:
            return None
        if (
            first is not None
            and first.base_offset < log.log_end_offset < first.next_offset
            and batch_crc(records, at, first.batch_bytes) == first.crc
        ):
            return first.base_offset
    return None


def follow(partition: Partition, high_watermark: int, log_start_offset: int) -> None:
    """Apply the leader's high watermark and log start offset."""
    partition.follow_to(high_watermark)
    log = partition.log
    # The leader's log start is never above its high watermark, so this waits only for the records:
    # once they are appended, `follow_to` raises the high watermark that far.
    if log.log_start_offset < log_start_offset <= partition.high_watermark:
        log.advance_log_start(log_start_offset)
        partition.log_start_moved()
