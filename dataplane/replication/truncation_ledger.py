"""The truncation ledger: a record of every truncation and loss of records on this worker.

In Kafka, a follower truncates records that its leader does not have and keeps no trace of them;
after an unclean election they may have been acknowledged. Here every truncation has an entry,
which is synced before the log is truncated:

    divergence          after an election; the leader never had the records, and they were not
                        committed
    unclean election    the leader was not in sync when it was elected, or had lost the end of its
                        log. On the leader: all records from its log end offset on may have been
                        acknowledged (from its high watermark on, if other workers led since its
                        last record, because their records at these offsets may differ; from 0 on,
                        if one of them may have been elected uncleanly, without the records that
                        this worker had committed). On its followers: the truncated records
    leader lost it      the leader was in sync but does not have committed records: a disk or power
                        failure
    leader starts later the leader has deleted all records that this replica had
    lost log            at a start, a log was missing: a new disk, a removed folder, or a folder
                        without the topic id, which a loss of power has taken
    recovery            at a start, a log had a torn or damaged tail, or ended before the committed
                        records

Two text files in the data directory, one entry a line, each line with its checksum:

    truncation-ledger       appended to by whole lines; a torn last line is skipped
    truncation-ledger.old   the previous file, renamed at MAX_FILE_BYTES; replaces the one before
"""

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias

import trio

from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication import follower_state
from metaquorum.dataplane.replication.follower_state import Truncation
from metaquorum.metadata.image import NO_LEADER, PartitionImage
from metaquorum.runtime import Disk
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.primitives.types import Uuid, uuid_from_text, uuid_to_text
from metaquorum.wire.records.crc import crc32c

log = logging.getLogger(__name__)

FILE_NAME: Final = "truncation-ledger"
OLD_FILE_NAME: Final = "truncation-ledger.old"
MAX_FILE_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = 2048
MAX_ENTRIES: Final = 8192  # in memory, and in one response
UNKNOWN: Final = -1


class Reason(Enum):
    DIVERGENCE = "divergence"
    UNCLEAN_ELECTION = "unclean election"
    LEADER_LOST_IT = "leader lost it"
    LEADER_STARTS_LATER = "leader starts later"
    RECOVERY = "recovery"
    LOST_LOG = "lost log"


LastOf: TypeAlias = "Callable[[Uuid, int], Entry | None]"  # the newest entry of a partition


class Acknowledged(Enum):
    """Whether lost records may have been acknowledged to a producer with acks=all."""

    YES = "yes"
    PERHAPS = "perhaps"
    NO = "no"  # acks=0 and acks=1 promise no replication


@frozen
class Entry:
    """Offsets [offset, end_offset) that this replica has lost; an unknown end is -1."""

    time_ms: int
    topic: str
    topic_id: Uuid
    partition: int
    reason: Reason
    offset: int
    end_offset: int
    last_epoch: int  # leader epoch of the last lost record; -1: unknown
    leader_id: int
    leader_epoch: int
    high_watermark: int  # this replica's high watermark before the loss; -1: unknown
    acknowledged: Acknowledged
    detail: str = ""

    @property
    def committed_records(self) -> int:
        """Number of lost offsets below the high watermark, which were committed."""
        end = self.high_watermark
        if self.end_offset != UNKNOWN:
            end = min(end, self.end_offset)
        return max(0, end - self.offset)

    @property
    def range_text(self) -> str:
        if self.end_offset == UNKNOWN:
            return f"offsets from {self.offset} on"
        return f"offsets {self.offset} to {self.end_offset - 1}"


def acknowledged(entry_reason: Reason, offset: int, high_watermark: int) -> Acknowledged:
    """Return whether records lost from `offset` on, for that reason, may have been acknowledged."""
    if entry_reason is Reason.LEADER_STARTS_LATER:
        return Acknowledged.NO  # the records were deleted, not lost
    if offset < high_watermark:
        return Acknowledged.YES
    return Acknowledged.NO if entry_reason is Reason.DIVERGENCE else Acknowledged.PERHAPS


# Entries for each kind of loss


def of_follower(partition: Partition, cut: Truncation, now_ms: int) -> Entry:
    """Return the entry for records that a follower is about to truncate."""
    if cut.starts_anew:
        reason = Reason.LEADER_STARTS_LATER
    elif partition.state.unclean_epoch > cut.last_epoch:
        reason = Reason.UNCLEAN_ELECTION  # after the last of these records was written
    elif cut.offset < cut.high_watermark:
        reason = Reason.LEADER_LOST_IT
    else:
        reason = Reason.DIVERGENCE
    return Entry(
        now_ms,
        partition.topic,
        partition.topic_id,
        partition.index,
        reason,
        cut.offset,
        cut.end_offset,
        cut.last_epoch,
        partition.leader_id,
        cut.leader_epoch,
        cut.high_watermark,
        acknowledged(reason, cut.offset, cut.high_watermark),
    )


def of_unclean_leader(
    partition: Partition, before: PartitionImage, high_watermark: int, now_ms: int
) -> Entry:
    """Return the entry for an unclean election that made this worker the partition's leader.

    Records of other replicas after this log's end are lost. If this log does not end in the epoch
    of the previous leader, other replicas may have had different records at its last offsets; these
    are lost, too. They had the same ones below the high watermark of this log, unless a leader
    since then was elected uncleanly: it may have begun at any offset.
    """
    offset, end = partition.log.log_end_offset, partition.log.log_end_offset
    if follower_state.last_epoch(partition) != _last_led(partition, before):
        offset = min(high_watermark, end) if _had_committed(partition, before) else 0
    return Entry(
        now_ms,
        partition.topic,
        partition.topic_id,
        partition.index,
        Reason.UNCLEAN_ELECTION,
        offset,
        UNKNOWN,
        follower_state.last_epoch(partition),
        partition.leader_id,
        partition.leader_epoch,
        high_watermark,
        Acknowledged.PERHAPS,
        "; ".join(filter(None, (_doubt(partition, before), _instead(offset, end)))),
    )


def _last_led(partition: Partition, before: PartitionImage) -> int:
    """Return the last epoch before the current one in which a worker may have led."""
    epoch = partition.leader_epoch - 1
    was_led_by_nobody = before.leader == NO_LEADER and before.leader_epoch == epoch
    return epoch - 1 if was_led_by_nobody else epoch


def _had_committed(partition: Partition, before: PartitionImage) -> bool:
    """Return whether all leaders since this log's last record had its committed records.

    Only the last unclean election of a partition is known. So that is not certain if `before` is
    not of the epoch before the unclean election of this worker. A replica that was in sync then had
    followed the last leader, however that one was elected.
    """
    if before.leader_epoch != partition.state.unclean_epoch - 1:
        return False
    return _was_in_sync(partition, before) or (
        before.unclean_epoch <= follower_state.last_epoch(partition)
    )


def _was_in_sync(partition: Partition, before: PartitionImage) -> bool:
    return partition.leader_id in (*before.isr, before.last_leader)


def _instead(offset: int, end: int) -> str:
    if offset == end:
        return ""
    return f"its records up to offset {end - 1} are from an earlier epoch than the last leader's"


def _doubt(partition: Partition, before: PartitionImage) -> str:
    if _was_in_sync(partition, before):
        return "the leader was in sync and may have lost the end of its log"
    if before.isr:
        return f"previous ISR: {', '.join(map(str, before.isr))[:100]}"
    if before.elr:
        return f"previous eligible leader replicas: {', '.join(map(str, before.elr))[:100]}"
    return ""


def of_recovery(partition: Partition, now_ms: int, last_of: LastOf) -> Entry | None:
    """Return the entry for records that were missing when the log was opened, if any.

    Returns None if the loss is recorded already: checkpoints may contain offsets of records that a
    full truncation was deleting when the process was killed. The log starts at or after the end of
    that truncation, so checkpoints up to this end are older than the truncation.
    """
    log = partition.log
    end, known_end = log.log_end_offset, max(log.lost_end_offset, partition.known_high_watermark)
    if not log.lost_bytes:
        if known_end <= end:
            return None
        last = last_of(partition.topic_id, partition.index)
        if (
            last is not None
            and last.reason is Reason.LEADER_STARTS_LATER
            and known_end <= last.end_offset
        ):
            return None
    # How many records followed `known_end` is unknown.
    known = f"; the log had reached at least offset {known_end}" if known_end > end else ""
    return Entry(
        now_ms,
        partition.topic,
        partition.topic_id,
        partition.index,
        Reason.RECOVERY,
        end,
        UNKNOWN,
        log.epochs.latest,
        UNKNOWN,
        log.epochs.latest,
        partition.known_high_watermark,
        acknowledged(Reason.RECOVERY, end, partition.known_high_watermark),
        (f"{log.lost_bytes} bytes could not be read" if log.lost_bytes else "its end is missing")
        + known,
    )


@frozen
class LostLog:
    """A log that is created again, empty: it is missing, or its topic id is.

    `noted_end`: an offset that the lost log had reached, by a checkpoint; None if unknown.
    """

    topic: str
    topic_id: Uuid
    partition: int
    noted_end: int | None


def of_lost_log(lost: LostLog, now_ms: int) -> Entry:
    """Return the entry for a lost log."""
    noted_end = lost.noted_end
    return Entry(
        now_ms,
        lost.topic,
        lost.topic_id,
        lost.partition,
        Reason.LOST_LOG,
        0,
        UNKNOWN,
        UNKNOWN,
        UNKNOWN,
        UNKNOWN,
        UNKNOWN if noted_end is None else noted_end,
        Acknowledged.PERHAPS,
        "" if noted_end is None else f"the log had reached at least offset {noted_end}",
    )


# The file


def encode_line(entry: Entry) -> bytes:
    fields = asdict(entry)
    fields["topic_id"] = uuid_to_text(entry.topic_id)
    fields["reason"] = entry.reason.value
    fields["acknowledged"] = entry.acknowledged.value
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def decode_line(line: bytes) -> Entry:
    """Return the entry of a ledger line. Raises ValueError if the line is damaged or invalid."""
    checksum, _, text = line.partition(b" ")
    if len(line) > MAX_LINE_BYTES or int(checksum, 16) != crc32c(text):
        raise ValueError("the line is too long, or its checksum is wrong")
    fields: Any = json.loads(text)
    try:
        fields["topic_id"] = uuid_from_text(fields["topic_id"])
        fields["reason"] = Reason(fields["reason"])
        fields["acknowledged"] = Acknowledged(fields["acknowledged"])
        return Entry(**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(str(error)) from None


def decode_lines(data: bytes) -> tuple[list[Entry], int]:
    """Return the entries of the readable lines, and the number of unreadable lines."""
    entries: list[Entry] = []
    unreadable = 0
    for line in data.split(b"\n"):
        if not line:
            continue
        try:
            entries.append(decode_line(line))
        except ValueError:
            unreadable += 1
    return entries, unreadable


class TruncationLedger:
    """Ledger of one data directory; `open` reads it."""

    def __init__(
        self, disk: Disk, folder: str, entries: Iterable[Entry], size_bytes: int, forgotten: bool
    ) -> None:
        self._disk = disk
        self._path = os.path.join(folder, FILE_NAME)
        self._old_path = os.path.join(folder, OLD_FILE_NAME)
        self._folder = folder
        self._entries = deque(entries, MAX_ENTRIES)
        self._size_bytes = size_bytes
        self._writing = trio.Lock()
        self._unwritten = b""
        self._is_failing = False
        self.has_forgotten = forgotten  # older entries may have been dropped

    @classmethod
    def open(cls, disk: Disk, folder: str) -> "TruncationLedger":
        """Return the ledger with the readable entries of its files.

        Blocking: call it in a worker thread.
        """
        entries: list[Entry] = []
        size_bytes = 0
        has_old = False
        for name in (OLD_FILE_NAME, FILE_NAME):
            path = os.path.join(folder, name)
            try:
                if not disk.exists(path):
                    continue
                has_old |= name == OLD_FILE_NAME
                size_bytes = disk.size(path)
                if size_bytes > 2 * MAX_FILE_BYTES:
                    log.warning("%s is too large for a truncation ledger; ignoring the file", path)
                    continue
                data = disk.read_file(path)
                if name == OLD_FILE_NAME:
                    size_bytes = 0
                else:
                    _write_again(disk, folder, path, data)
                found, unreadable = decode_lines(data)
            except OSError as error:
                log.warning(
                    "cannot read the truncation ledger %s: %s; ignoring the file", path, error
                )
                continue
            entries += found
            if unreadable:
                log.warning("ignoring %d damaged lines of %s", unreadable, path)
        return cls(disk, folder, entries, size_bytes, has_old or len(entries) > MAX_ENTRIES)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries, oldest first."""
        return iter(tuple(self._entries))

    async def record(self, entries: Iterable[Entry]) -> None:
        """Log the entries, write them to the ledger and sync it.

        If the write fails, this is logged and the next `record` of a new entry retries it.
        """
        new = [entry for entry in entries if not self._is_known(entry)]
        if not new:
            return
        for entry in new:
            _log_entry(entry)
            if len(self._entries) == MAX_ENTRIES:
                self.has_forgotten = True
            self._entries.append(entry)
        self._unwritten += b"".join(map(encode_line, new))
        async with self._writing:
            data, self._unwritten = self._unwritten, b""
            if not data:
                return  # another task has written these entries with its own
            try:
                with trio.CancelScope(shield=True):
                    await self._disk.run(partial(self._write, data))
                self._is_failing = False
            except OSError as error:
                if not self._is_failing:
                    log.error(
                        "cannot write the truncation ledger: %s; retrying with the next entry",
                        error,
                    )
                self._is_failing = True
                self._unwritten = (data + self._unwritten)[:MAX_FILE_BYTES]

    def knows_election(self, partition: Partition) -> bool:
        """Return whether the partition's last unclean election is recorded for its leader."""
        return any(
            entry.reason is Reason.UNCLEAN_ELECTION
            and (entry.topic_id, entry.partition) == (partition.topic_id, partition.index)
            and entry.leader_id == partition.leader_id
            and entry.leader_epoch >= partition.state.unclean_epoch
            for entry in self._entries
        )

    def last_of(self, topic_id: Uuid, partition: int) -> Entry | None:
        """Return the newest entry of the partition; None if there is none in memory."""
        for entry in reversed(self._entries):
            if (entry.topic_id, entry.partition) == (topic_id, partition):
                return entry
        return None

    def _is_known(self, entry: Entry) -> bool:
        """Return whether an interrupted recovery, now repeated, has recorded the same entry."""
        if entry.reason is not Reason.RECOVERY:
            return False
        known = self.last_of(entry.topic_id, entry.partition)
        return known is not None and (
            known.reason,
            known.offset,
            known.end_offset,
            known.leader_epoch,
        ) == (entry.reason, entry.offset, entry.end_offset, entry.leader_epoch)

    def _write(self, data: bytes) -> None:
        disk = self._disk
        if self._size_bytes and self._size_bytes + len(data) > MAX_FILE_BYTES:
            disk.rename(self._path, self._old_path)
            self._size_bytes = 0
            self.has_forgotten = True
        is_new = not self._size_bytes
        if not is_new:
            data = b"\n" + data  # the last line may be torn
        file = disk.open(self._path, create=True)
        try:
            file.write(data, self._size_bytes)
            file.sync()
        finally:
            file.close()
        if is_new:
            disk.sync_dir(self._folder)
        self._size_bytes += len(data)


def _write_again(disk: Disk, folder: str, path: str, data: bytes) -> None:
    """Rewrite and sync the ledger as read, so that its entries survive a loss of power.

    A killed process may not have synced its last entry, or its sync failed; after a failed sync,
    the next one reports success even if nothing was written again. Logs are truncated only after
    their entry is synced, but a recovery that finds its entry in the ledger does not write the
    entry again. Raises OSError.
    """
    file = disk.open(path)
    try:
        file.write(data, 0)
        file.sync()
    finally:
        file.close()
    disk.sync_dir(folder)


_HOW_BAD: Final = {
    Acknowledged.YES: "%d of the records had been committed",
    Acknowledged.PERHAPS: "some of the records may have been acknowledged",
    Acknowledged.NO: "no committed records were lost",
}


def _log_entry(entry: Entry) -> None:
    how_bad = _HOW_BAD[entry.acknowledged]
    if entry.acknowledged is Acknowledged.YES:
        how_bad %= entry.committed_records
    (log.info if entry.acknowledged is Acknowledged.NO else log.warning)(
        "%s-%d: this replica loses %s (%s%s); leader %d in epoch %d; %s",
        entry.topic,
        entry.partition,
        entry.range_text,
        entry.reason.value,
        f": {entry.detail}" if entry.detail else "",
        entry.leader_id,
        entry.leader_epoch,
        how_bad,
    )
