"""A node with two log directories, and a disk that hangs for one of them."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from metaquorum.runtime.interfaces import Identity
from metaquorum.runtime.system import RealDisk
from metaquorum.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.serving import (
    FaultyDisk,
    RawClient,
    Served,
    batch_of,
    fetch_message,
    serving,
)


@asynccontextmanager
async def two_dirs(
    tmp_path: Path,
    disk: RealDisk | None = None,
    segment_bytes: int = 1 << 20,
    **configs: object,
) -> AsyncIterator[tuple[Served, RawClient]]:
    """Serve a node with log directories a and b; topic t has partition 0 in a and 1 in b."""
    folders = (tmp_path / "a", tmp_path / "b")
    async with serving(tmp_path / "data", disk=disk, log_dirs=folders, **configs) as served:
        client = await served.connect()
        if served.worker.image.topic("t") is None:
            await client.create("t", 2, internal_segment_bytes=segment_bytes)
            for index in range(2):
                await client.produce("t", batch_of(b"%d" % index), partition=index)
        yield served, client


async def fetched(client: RawClient, index: int) -> Any:
    message = fetch_message({"t": [(index, 0)]})
    return (await client.call(ApiKey.FETCH, message, 12)).responses[0].partitions[0]


async def log_dirs(client: RawClient) -> dict[str, Any]:
    answer = await client.call(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None))
    return {Path(result.log_dir).name: result for result in answer.results}


class HangingDisk(FaultyDisk):
    """A disk whose calls in worker threads do not return for one directory, until `go_on`."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = str(path)
        self.go_on = threading.Event()
        self.hanging = 0

    def _hang(self, path: str) -> None:
        is_in_thread = threading.current_thread() is not threading.main_thread()
        if is_in_thread and f"{path}/".startswith(f"{self._path}/"):
            self.hanging += not self.go_on.is_set()
            self.go_on.wait()

    def check(self, action: str, path: str) -> None:
        self._hang(path)
        super().check(action, path)

    def identity(self, path: str) -> Identity:
        self._hang(path)
        return super().identity(path)

    def exists(self, path: str) -> bool:
        self._hang(path)
        return super().exists(path)

    def free_bytes(self, path: str) -> int:
        self._hang(path)
        return super().free_bytes(path)
