"""Helpers for tests of logs: append and read batches, open a folder after a stop or a crash."""

import os
from collections.abc import Iterable
from pathlib import Path

from metaquorum.dataplane.log.partition_log import AppendResult, PartitionLog
from metaquorum.dataplane.log.recovery.recovery import LoadedLog, load_log
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.dataplane.log.segments.files import LogFile, OpenFiles
from metaquorum.dataplane.log.segments.timestamps import TimestampOffset, latest_of
from metaquorum.runtime import File
from metaquorum.runtime.system import RealDisk, RealFile
from metaquorum.wire.records.records import BatchHeader, Record, batches, encode_batch

EPOCH = 3
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=150)


class UnsyncedFile(RealFile):
    def sync(self) -> None:
        pass


class UnsyncedDisk(RealDisk):
    """The real disk without syncs: tests with a thousand syncs do not wait for them."""

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return UnsyncedFile(path, os.open(path, flags, 0o644), self)

    def sync_dir(self, path: str) -> None:
        pass

    def sync_all(self, path: str) -> bool:
        return True


def make_batch(
    count: int = 1,
    *,
    timestamp: int = 1000,
    value: bytes = b"value",
    producer_id: int = -1,
    producer_epoch: int = 0,
    sequence: int = -1,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    records = [Record(base_offset + i, timestamp + i, b"key", value) for i in range(count)]
    return encode_batch(
        records,
        producer_id=producer_id,
        producer_epoch=producer_epoch if producer_id >= 0 else -1,
        base_sequence=sequence,
        leader_epoch=leader_epoch,
    )


def headers_of(data: bytes | bytearray) -> list[BatchHeader]:
    return [header for _, header in batches(data)]


def append(
    log: PartitionLog, data: bytearray, *, epoch: int = EPOCH, now_ms: int = 0
) -> AppendResult:
    """Append the batches of `data`; the result is that of the first, up to the end of the last."""
    view = memoryview(data)
    results = [
        log.append(view[at : at + header.batch_bytes], header, epoch, now_ms)
        for at, header in batches(data)
    ]
    return results[0]._replace(last_offset=results[-1].last_offset)


def append_many(log: PartitionLog, count: int, *, records: int = 2) -> None:
    for number in range(count):
        append(log, make_batch(records, timestamp=1000 + 10 * number))


def cut(log: PartitionLog, offset: int) -> None:
    """Truncate the log as within `LogDirs.cutting`: checkpoints are lowered before."""
    kept = log.offsets_after_truncation(offset)
    log.noted_recovery_point = min(log.noted_recovery_point, kept.recovery_point)
    log.noted_log_start_offset = min(log.noted_log_start_offset, kept.log_start_offset)
    log.truncate_to(offset)


async def close_clean(log: PartitionLog) -> None:
    """Sync and close the log, as a node does that stops cleanly."""
    log.prepare_close().sync(UnsyncedDisk())
    log.closed_clean()


def offset_for_timestamp(
    log: PartitionLog, timestamp: int, end_offset: int
) -> TimestampOffset | None:
    """Return the first record before `end_offset` with `timestamp` or a later one, or None."""
    start_offset = log.log_start_offset
    while (candidate := log.candidate_since(timestamp, start_offset, end_offset)) is not None:
        with candidate.records.pinned() as file:
            found = candidate.first_since(file, timestamp, start_offset)
        if found is not None:
            return found if found.offset < end_offset else None
        start_offset = candidate.header.last_offset + 1
    return None


def max_timestamp(log: PartitionLog, end_offset: int) -> TimestampOffset | None:
    """Return the first record with the largest timestamp, or None if it is not before the end."""
    opened = []
    for candidate in log.max_timestamp_candidates():
        with candidate.records.pinned() as file:
            opened.append(candidate.find_max_timestamp(file, log.log_start_offset))
    found = latest_of(opened)
    return found if found is not None and found.offset < end_offset else None


def load(
    folder: Path,
    config: LogConfig = SMALL,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
) -> LoadedLog:
    folder.mkdir(exist_ok=True)
    return load_log(
        UnsyncedDisk(),
        str(folder),
        config,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        now_ms=0,
    )


def open_log(
    folder: Path,
    config: LogConfig = SMALL,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    files: OpenFiles | None = None,
) -> PartitionLog:
    loaded = load(
        folder,
        config,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
    )
    files = OpenFiles(UnsyncedDisk(), str(folder.parent)) if files is None else files
    return PartitionLog(files, config, "t", 0, loaded, 0)


def read_headers(
    log: PartitionLog, offset: int | None = None, end: int | None = None, max_bytes: int = 1 << 20
) -> list[BatchHeader]:
    """Return the headers of all batches from `offset` on."""
    offset = log.log_start_offset if offset is None else offset
    end = log.log_end_offset if end is None else end
    found: list[BatchHeader] = []
    while offset < end:
        got = headers_of(log.read(offset, max_bytes, end, min_one=True).read())
        if not got:
            break
        assert got[0].last_offset >= offset
        found += got
        offset = got[-1].next_offset
    return found


def offsets(headers: Iterable[BatchHeader]) -> list[tuple[int, int]]:
    return [(header.base_offset, header.last_offset) for header in headers]


def log_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def log_file(files: OpenFiles, folder: Path, name: str) -> LogFile:
    return LogFile(files, str(folder), name, create=True)
