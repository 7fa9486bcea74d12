"""A compacted log and a naive model of it: lists of records, and a dict as offset map."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import trio

from metaquorum.dataplane.log.compaction.cleaning import Cleaning, CleaningOrder, CleaningResult
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.runtime.interfaces import Clock, Disk
from metaquorum.runtime.system import RealClock
from metaquorum.wire.records.compression import Codec
from metaquorum.wire.records.records import Record, batches, decode_records, encode_batch
from tests.dataplane.log.logs import UnsyncedDisk, headers_of

SEGMENTS = LogConfig(segment_bytes=700, index_interval_bytes=100)
RETENTION_MS = 1000
REAL_CLOCK = RealClock()


async def clean(
    log: PartitionLog,
    *,
    first_dirty: int = 0,
    end: int | None = None,
    now_ms: int = 0,
    map_bytes: int = 1 << 20,
    disk: Disk | None = None,
    clock: Clock = REAL_CLOCK,
    retention_ms: int = RETENTION_MS,
) -> CleaningResult:
    sealed = log.sealed_segments()
    order = CleaningOrder(
        first_dirty,
        sealed[-1][1] if end is None else end,
        now_ms,
        retention_ms,
        map_bytes,
        0.75,
        io_buffer_bytes=1000,
    )
    return await Cleaning(log, disk or UnsyncedDisk(), clock, order, _no_pause, lambda: True).run()


async def _no_pause(size_bytes: int) -> None:
    await trio.lowlevel.checkpoint()


def append_records(
    log: PartitionLog,
    records: Sequence[tuple[bytes | None, bytes | None]],
    *,
    now_ms: int = 0,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> int:
    """Append the records, and return the offset of the first."""
    batch = encode_batch(
        [Record(i, now_ms + i, key, value) for i, (key, value) in enumerate(records)],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
        transactional=transactional,
    )
    return log.append(memoryview(batch), headers_of(batch)[0], 1, now_ms).first_offset


def stored_batches(log: PartitionLog) -> list[bytes]:
    """Return every batch of the log, with one read for each batch."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1, log.log_end_offset, min_one=True).read()
        if not data:
            break
        (one,) = headers_of(data)
        assert one.last_offset >= offset
        found.append(data)
        offset = one.next_offset
    return found


def stored_records(log: PartitionLog) -> list[Record]:
    return [record for batch in stored_batches(log) for record in decode_records(batch)]


@dataclass
class ModelBatch:
    base_offset: int
    last_offset: int
    records: list[Record]
    producer_id: int = -1
    horizon_ms: int | None = None


@dataclass
class Model:
    """Records that a log must have by KIP-58 and KIP-534, in the plainest code."""

    batches: list[ModelBatch] = field(default_factory=list)

    def append(self, batch: ModelBatch) -> None:
        self.batches.append(replace(batch, records=list(batch.records)))

    def clean(self, first_dirty: int, cleaned_to: int, end: int, now_ms: int) -> None:
        last: dict[bytes | None, int] = {}
        for batch in self.batches:
            for record in batch.records:
                if first_dirty <= record.offset < cleaned_to and record.key is not None:
                    last[record.key] = record.offset
        for batch in self.batches:
            if batch.base_offset < end:
                self._clean_batch(batch, last, cleaned_to, now_ms)

    def _clean_batch(
        self, batch: ModelBatch, last: dict[bytes | None, int], cleaned_to: int, now_ms: int
    ) -> None:
        expired = batch.horizon_ms is not None and now_ms >= batch.horizon_ms
        batch.records = [
            record
            for record in batch.records
            if record.offset >= cleaned_to
            or (
                record.key is not None
                and record.offset >= last.get(record.key, -1)
                and not (record.value is None and expired)
            )
        ]
        tombstones = [r for r in batch.records if r.value is None and r.offset < cleaned_to]
        if tombstones and batch.horizon_ms is None:
            batch.horizon_ms = now_ms + RETENTION_MS

    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in batch.records]


def assert_reads_at_every_offset(log: PartitionLog) -> None:
    """Assert that a read at each offset begins with the batch that has it, or with the next one."""
    whole = [
        (header.base_offset, header.last_offset)
        for b in stored_batches(log)
        for header in headers_of(b)
    ]
    for offset in range(log.log_start_offset, log.log_end_offset):
        data = log.read(offset, 1 << 20, log.log_end_offset, min_one=True).read()
        first = next((each for each in whole if each[1] >= offset), None)
        got = next((h for _, h in batches(data)), None)
        assert (got and (got.base_offset, got.last_offset)) == first
