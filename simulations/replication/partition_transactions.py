"""Transactions in a true log: which are open, how each record's transaction ended, the LSO.

A deliberately plain second implementation of what brokers derive from their producer state. Records
of a producer id between two of its markers are one transaction; the marker after them ends it.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from metaquorum.wire.records.batches import BatchHeader, batches
from metaquorum.wire.records.records import decode_records


class Kind(Enum):
    DATA = "data"
    COMMIT = "commit"
    ABORT = "abort"


class Stamp(NamedTuple):
    """Producer of a transactional record, or of a marker with its outcome."""

    producer_id: int
    producer_epoch: int
    kind: Kind
    coordinator_epoch: int = -1  # in markers

    @property
    def is_marker(self) -> bool:
        return self.kind is not Kind.DATA


def marker_stamp(header: BatchHeader, key: bytes, value: bytes) -> Stamp:
    """Return the stamp of a control record: key and value begin with a version (int16)."""
    kind = Kind.COMMIT if int.from_bytes(key[2:4], "big") else Kind.ABORT
    coordinator_epoch = int.from_bytes(value[2:6], "big", signed=True)
    return Stamp(header.producer_id, header.producer_epoch, kind, coordinator_epoch)


def stamps_of(records: Any) -> Iterator[tuple[int, int, Stamp]]:
    """Yield leader epoch, offset and stamp of each transactional record in these batches."""
    for position, header in batches(records):
        if header.is_control:
            for record in decode_records(records, position):
                stamp = marker_stamp(header, bytes(record.key or b""), bytes(record.value or b""))
                yield header.leader_epoch, record.offset, stamp
        elif header.is_transactional:
            stamp = Stamp(header.producer_id, header.producer_epoch, Kind.DATA)
            for offset in range(header.base_offset, header.next_offset):
                yield header.leader_epoch, offset, stamp


@dataclass(slots=True)
class LogTransactions:
    """Transactions in the log of one replica, from its first record on."""

    open: dict[int, int] = field(default_factory=dict)  # first offset, by producer id
    last: dict[int, int] = field(default_factory=dict)  # last offset, by producer id
    # First offset and offset of the marker of each transaction that has ended.
    ended: list[tuple[int, int]] = field(default_factory=list)
    # The same of transactions whose records were all cleaned away before the replica copied them:
    # it has only those whose batches are left, without records.
    hollow: dict[int, int] = field(default_factory=dict)
    hollow_ended: list[tuple[int, int]] = field(default_factory=list)
    # Highest producer epoch of each producer id, and highest coordinator epoch of its markers.
    epochs: dict[int, int] = field(default_factory=dict)
    coordinator_epochs: dict[int, int] = field(default_factory=dict)
    # Number of the first of `ended` whose marker was appended since the log was read from disk.
    first_new: int = 0

    def add(self, offset: int, stamp: Stamp) -> None:
        producer_id = stamp.producer_id
        known = self.epochs.get(producer_id, -1)
        self.epochs[producer_id] = max(known, stamp.producer_epoch)
        if not stamp.is_marker:
            self.open.setdefault(producer_id, offset)
            self.last[producer_id] = offset
            return
        last = self.coordinator_epochs.get(producer_id, -1)
        self.coordinator_epochs[producer_id] = max(last, stamp.coordinator_epoch)
        first = self.open.pop(producer_id, None)
        if first is not None:
            self.ended.append((first, offset))
        self._end_hollow(offset, producer_id)

    def add_cleaned(self, offset: int, stamp: Stamp) -> None:
        """Note a record that was cleaned away before the replica copied what follows it."""
        if stamp.is_marker:
            self._end_hollow(offset, stamp.producer_id)
        else:
            self.hollow.setdefault(stamp.producer_id, offset)

    def _end_hollow(self, offset: int, producer_id: int) -> None:
        first = self.hollow.pop(producer_id, None)
        if first is not None:
            self.hollow_ended.append((first, offset))

    def last_stable_offset(
        self, high_watermark: int, log_start: int, *, awaits_old: bool = True
    ) -> int:
        """Return the high watermark, or the first offset of what is not known to have ended.

        A transaction has ended for readers once its marker is below the high watermark. Without
        `awaits_old`, markers that were read from disk count as if they were: a broker that was
        restarted does not know that they are not replicated (nor does Kafka's). Nor does it know
        open transactions whose records were all deleted or cleaned away.
        """
        unstable = [
            first
            for producer_id, first in self.open.items()
            if awaits_old or self.last[producer_id] >= log_start
        ]
        ended = self.ended if awaits_old else self.ended[self.first_new :]
        if awaits_old:
            unstable += self.hollow.values()
            ended = ended + self.hollow_ended
        unstable += [first for first, marker in ended if marker >= high_watermark]
        return min([high_watermark, *(max(first, log_start) for first in unstable)])


def transactions_of(
    stamps: Iterable[tuple[int, Stamp]], cleaned: Container[int] = ()
) -> LogTransactions:
    """Return the transactions of a log with these stamps, by ascending offsets.

    `cleaned`: offsets that were cleaned away, perhaps before the log was copied.
    """
    found = LogTransactions()
    for offset, stamp in stamps:
        add = found.add_cleaned if offset in cleaned else found.add
        add(offset, stamp)
    found.first_new = len(found.ended)
    return found


class Aborted(NamedTuple):
    """Row of a Fetch response: a producer's records from `first_offset` to its marker."""

    producer_id: int
    first_offset: int


@dataclass(slots=True)
class StableView:
    """Records of fetched batches that a consumer with read_committed shows, and the others."""

    shown: list[int] = field(default_factory=list)  # offsets
    left_out: list[int] = field(default_factory=list)


def stable_view(records: Any, aborted: Iterable[Aborted], fetch_offset: int) -> StableView:
    """Filter batches as Kafka's consumer does: by the aborted ranges of the same response."""
    waiting = sorted(aborted, key=lambda row: row.first_offset)
    active: set[int] = set()
    view = StableView()
    for position, header in batches(records):
        while waiting and waiting[0].first_offset <= header.last_offset:
            active.add(waiting.pop(0).producer_id)
        decoded = list(decode_records(records, position))
        if header.is_control:
            if decoded and bytes(decoded[0].key or b"")[2:4] == b"\0\0":
                active.discard(header.producer_id)
            continue
        is_out = header.is_transactional and header.producer_id in active
        offsets = [record.offset for record in decoded if record.offset >= fetch_offset]
        (view.left_out if is_out else view.shown).extend(offsets)
    return view
