"""Fetches of records that are not cached: only the requesting client waits for the disk."""

import errno
import threading
from pathlib import Path
from typing import Any

from metaquorum.dataplane.handlers.fetch.cold_reads import MAX_COLD_READS
from metaquorum.runtime import File
from metaquorum.runtime.system import RealDisk, RealFile
from metaquorum.wire.messages.fetch import FetchRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.fetch.test_read_committed import Transactions
from tests.dataplane.serving import (
    FETCH_VERSION,
    FaultyDisk,
    FaultyFile,
    RawClient,
    batch_of,
    fetch_message,
    in_trio,
    records_of,
    serving,
)

BATCHES = 60
BATCH_BYTES = 60_000


class ColdDisk(RealDisk):
    """A disk whose pages, after `cool`, are cached only if read in a worker thread."""

    def __init__(self) -> None:
        self.is_cold = False
        self.forgets = False  # whether read pages are uncached at once
        self.warm: dict[str, list[tuple[int, int]]] = {}
        self.blocked: list[str] = []  # reads that the event loop has waited for
        self.read_beside = 0

    def cool(self) -> None:
        self.is_cold = True
        self.warm.clear()

    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        assert isinstance(file, RealFile)
        return ColdFile(path, file.fileno(), self)


class ColdFile(RealFile):
    __slots__ = ("_disk",)

    def __init__(self, path: str, fd: int, disk: ColdDisk) -> None:
        super().__init__(path, fd, disk)
        self._disk = disk

    def is_cached(self, size: int, position: int) -> bool:
        end = min(position + size, self.size())
        return not self._disk.is_cold or any(
            first <= position and end <= last for first, last in self._disk.warm.get(self.path, ())
        )

    def read(self, size: int, position: int) -> bytes:
        disk = self._disk
        if threading.current_thread() is threading.main_thread():
            if not self.is_cached(size, position):
                disk.blocked.append(f"{self.path} {size} at {position}")
        elif disk.is_cold:
            disk.read_beside += 1
            if not disk.forgets:
                disk.warm.setdefault(self.path, []).append((position, position + size))
        return super().read(size, position)


async def fill(client: RawClient) -> None:
    """Fill each partition with three whole segments and the start of a fourth."""
    await client.create("t", 2, segment_bytes=1 << 20)
    for partition in (0, 1):
        for _ in range(BATCHES):
            await client.produce("t", batch_of(bytes(BATCH_BYTES)), partition=partition)


def offsets_of(row: Any) -> list[int]:
    assert row.error_code == 0
    return [record.offset for record in records_of(row)]


@in_trio
async def test_the_loop_does_not_wait_for_the_disk_to_find_what_was_asked_for(
    tmp_path: Path,
) -> None:
    disk = ColdDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await fill(client)
        for offset in (0, 7, 23, 41):
            disk.cool()
            message = fetch_message(
                {"t": [(0, offset), (1, offset)]}, partition_max_bytes=4 * BATCH_BYTES
            )
            answer = await client.call(ApiKey.FETCH, message, FETCH_VERSION)
            for row in answer.responses[0].partitions:
                assert offsets_of(row)[:3] == [offset, offset + 1, offset + 2]
        assert disk.blocked == []
        assert disk.read_beside


@in_trio
async def test_nor_does_it_in_a_session(tmp_path: Path) -> None:
    disk = ColdDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await fill(client)
        disk.cool()
        first = fetch_message({"t": [(0, 0), (1, 30)]}, partition_max_bytes=2 * BATCH_BYTES)
        first.session_epoch = 0
        answer = await client.call(ApiKey.FETCH, first, FETCH_VERSION)
        assert [offsets_of(row)[0] for row in answer.responses[0].partitions] == [0, 30]
        assert answer.session_id
        for epoch in (1, 2, 3):
            disk.cool()
            again = FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=1 << 20,
                session_id=answer.session_id,
                session_epoch=epoch,
            )
            more = await client.call(ApiKey.FETCH, again, FETCH_VERSION)
            assert more.error_code == 0
            firsts = sorted(offsets_of(row)[0] for row in more.responses[0].partitions)
            assert firsts == [0, 30]
        assert disk.blocked == []


@in_trio
async def test_no_page_is_read_for_partitions_that_no_longer_fit(tmp_path: Path) -> None:
    disk = ColdDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await fill(client)
        disk.cool()
        batch_bytes = len(batch_of(bytes(BATCH_BYTES)))
        await client.fetch("t", 7, max_bytes=batch_bytes)
        for left_bytes in (0, 20):
            message = fetch_message({"t": [(0, 7), (1, 30)]}, max_bytes=batch_bytes + left_bytes)
            message.topics[0].partitions[0].partition_max_bytes = batch_bytes
            answer = await client.call(ApiKey.FETCH, message, FETCH_VERSION)
            rows = answer.responses[0].partitions
            assert [offsets_of(row) for row in rows] == [[7], []]
        assert not [path for path in disk.warm if "/t-1/" in path]


@in_trio
async def test_who_asks_is_answered_even_if_memory_forgets_at_once(tmp_path: Path) -> None:
    disk = ColdDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await fill(client)
        disk.forgets = True
        disk.cool()
        assert offsets_of(await client.fetch("t", 5, partition_max_bytes=BATCH_BYTES))[:1] == [5]
        # And again for the records themselves.
        assert MAX_COLD_READS <= disk.read_beside <= MAX_COLD_READS + 1


class FaultyColdFile(FaultyFile):
    def is_cached(self, size: int, position: int) -> bool:
        return False


class FaultyColdDisk(FaultyDisk):
    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        assert isinstance(file, FaultyFile)
        file.__class__ = FaultyColdFile
        return file


@in_trio
async def test_a_place_that_cannot_be_read_is_an_error_of_its_partition(tmp_path: Path) -> None:
    disk = FaultyColdDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await fill(client)
        disk.fail("read", "/t-0/", errno.EIO)
        row = await client.fetch("t", 5)
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        asked = fetch_message({"t": [(1, 5)]})
        answer = await client.call(ApiKey.FETCH, asked, FETCH_VERSION)
        assert offsets_of(answer.responses[0].partitions[0])[:1] == [5]


@in_trio
async def test_aborted_transactions_are_found_in_a_worker_thread(tmp_path: Path) -> None:
    disk = ColdDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await fill(client)
        log = Transactions(served.worker.replica_manager.by_name("t", 0))
        first = log.send(7)
        log.end(7, commit=False)
        for _ in range(BATCHES):
            await client.produce("t", batch_of(bytes(BATCH_BYTES)))
        last = log.send(8, bytes(BATCH_BYTES))
        log.end(8, commit=False)
        for offset in (0, first, last):
            disk.cool()
            row = await client.fetch("t", offset, isolation_level=1, partition_max_bytes=6 << 20)
            assert offsets_of(row)[0] == offset
            listed = [a.first_offset for a in row.aborted_transactions]
            end = offsets_of(row)[-1]
            assert {each for each in (first, last) if offset <= each <= end} <= set(listed)
        assert disk.blocked == []
