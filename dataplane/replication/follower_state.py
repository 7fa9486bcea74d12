"""What a follower does with its leader's answers: cut what the leader has not, append, follow.

Logs of two replicas agree up to an offset at which both say that an epoch ended. So a follower
tells with each fetch which epoch its last record is of. If the leader's log knows an end of that
epoch before the fetch offset, or never had that epoch, it answers where the logs may part instead
of records; the follower cuts its log there, and asks again. Nothing is fetched before the logs
agree (KIP-101, KIP-320; carried by Fetch itself since KIP-595).

    the leader's log begins     until the logs are known to agree
    before our end              our last epoch is compared: cut, or append
    at our end                  nothing can be compared: begin anew there, then append
    behind our end              OFFSET_OUT_OF_RANGE: begin anew there

Plain state around the log; its writes are small enough for the loop.
"""

from typing import Final, NamedTuple

from dataplane.fetch.session_client import RequestedPartition
from dataplane.log.recovery.checkpoints import LogOffsets
from dataplane.partition.partition import Partition
from wire.messages.fetch import EpochEndOffset
from wire.primitives.errors import ErrorCode, KafkaError
from wire.primitives.types import Buffer
from wire.records.batches import BatchHeader, batch_crc, batches, stored_problem

NO_EPOCH: Final = -1


class Truncation(NamedTuple):
    """Records that a follower had and its leader has not: [offset, end_offset)."""

    offset: int
    end_offset: int
    leader_epoch: int  # of the leader for whom it was cut
    high_watermark: int  # before; records below it had been committed
    last_epoch: int = NO_EPOCH  # of the last of them
    starts_anew: bool = False  # the leader's log begins behind all of them


def wanted(partition: Partition, leader_epoch: int, max_bytes: int) -> RequestedPartition:
    """What is to be fetched next."""
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
    """The epoch of the last record; an empty log agrees with every other."""
    log = partition.log
    if log.log_end_offset == log.log_start_offset:
        return NO_EPOCH
    return log.epochs.epoch_at(log.log_end_offset - 1)


def diverging_cut(partition: Partition, leader_epoch: int, diverging: EpochEndOffset) -> Truncation:
    """What has to go as the logs may part there; nothing has changed yet. StorageError.

    Where the leader's epoch is unknown here, the epoch before it decides, and the next fetch asks
    again. A batch of ours may go across the offset, as a leader that has removed the start of its
    epoch says that the epoch before ended where its log begins: such a batch goes as a whole.
    """
    log = partition.log
    _, end_offset = log.epochs.end_offset_for(diverging.epoch, log.log_end_offset)
    if end_offset < 0:  # nothing here is as new as that
        end_offset = log.log_end_offset
    offset = log.first_cut_at(min(end_offset, diverging.end_offset))
    return Truncation(
        offset, log.log_end_offset, leader_epoch, partition.high_watermark, last_epoch(partition)
    )


def full_truncation(partition: Partition, leader_epoch: int) -> Truncation:
    """What has to go where the leader's log begins behind the end of ours: all of it."""
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
    """What checkpoints on disk may say at most before that cut is made. StorageError."""
    log = partition.log
    return (
        log.offsets_after_full_truncation(cut.offset)
        if cut.starts_anew
        else log.offsets_after_truncation(cut.offset)
    )


def truncate(partition: Partition, cut: Truncation, kept: LogOffsets) -> bool:
    """The log is cut there. StorageError. A flush follows before anything is appended.

    `kept` is what checkpoints were made to say (`offsets_after`); False, and nothing is cut, where
    the start of the log has moved since, so that less is left.
    """
    log = partition.log
    if offsets_after(partition, cut) != kept:
        return False
    log.truncate_to(cut.offset)
    partition.cut_to(min(partition.high_watermark, log.log_end_offset))
    return True


def start_anew(partition: Partition, offset: int) -> bool:
    """All of the log is gone, and begins there, which checkpoints know already. StorageError.

    A flush follows before anything is appended.
    """
    partition.log.truncate_fully_and_start_at(offset)
    partition.cut_to(offset)
    return True


def append(partition: Partition, records: Buffer, now_ms: int) -> int:
    """The whole batches in `records` are in the log; their bytes. KafkaError, StorageError.

    What was damaged on its way is not written. CORRUPT_MESSAGE: to be fetched again.
    """
    headers: list[BatchHeader] = []
    end = 0
    for position, header in batches(records):
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
    if headers:
        partition.log.append_as_follower(memoryview(records)[:end], headers, now_ms)
        partition.is_growing(end)
        partition.replicated_bytes_in += end
    return end


def ends_at_leaders_start(want: RequestedPartition, leader_log_start_offset: int) -> bool:
    """Whether the leader had no record to compare the last one here with.

    It knows epochs from its log's start on, and agrees to a fetch from there whatever is before it.
    The last records here may be of a deposed leader, in the place of others that the leader had and
    has deleted.
    """
    return want.last_fetched_epoch >= 0 and want.fetch_offset <= leader_log_start_offset


def begins_within(partition: Partition, records: Buffer) -> int | None:
    """Where an empty log has to begin for the first of these batches; None: where it does.

    A leader whose log begins within a batch, where records were deleted, sends all of that batch.
    """
    log = partition.log
    if log.log_start_offset == log.log_end_offset:
        at, first = next(batches(records), (0, None))
        if (
            first is not None
            and first.base_offset < log.log_end_offset < first.next_offset
            and batch_crc(records, at, first.batch_bytes) == first.crc
        ):
            return first.base_offset
    return None


def follow(partition: Partition, high_watermark: int, log_start_offset: int) -> None:
    """What the leader says is committed, or gone at the start, is so here."""
    partition.follow_to(high_watermark)
    log = partition.log
    # As the leader's log never begins above its high watermark, this waits for no more than the
    # records themselves: with these here, `follow_to` has made the high watermark reach as far.
    if log.log_start_offset < log_start_offset <= partition.high_watermark:
        log.advance_log_start(log_start_offset)
        partition.log_start_moved()
