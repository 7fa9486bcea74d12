"""TCP proxies that interrupt connections as a network partition does.

While a link is interrupted, no bytes and no close of a connection arrive, and new connections get
no response. Bytes in flight arrive when the link is restored, unless the connections were reset
meanwhile.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from tests.nodes import PATIENCE_S

T = TypeVar("T")

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 64 * 1024


class Link:
    """One listening port and its target. If the target is down, connections are closed."""

    def __init__(self, links: "Links", target: Callable[[], tuple[str, int]]) -> None:
        self._links = links
        self._target = target
        self._whole = asyncio.Event()
        self._whole.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_accepting(self) -> None:
        """Accept no more connections.

        The server is closed later: closed while asyncio accepts a connection, it would leave its
        socket open.
        """
        if self._server is not None:
            for listening in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())

    def end_connections(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._reset()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def cut(self) -> None:
        self._links.call(self._set(False))

    def heal(self, *, reset: bool) -> None:
        self._links.call(self._set(True, reset=reset))

    async def _set(self, whole: bool, *, reset: bool = False) -> None:
        if reset:
            self._reset()
        if whole:
            self._whole.set()
        else:
            self._whole.clear()

    def _reset(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._whole.wait()
            there, to = await asyncio.open_connection(*self._target())
            self._writers.add(to)
            try:
                pumps = [self._pump(reader, to), self._pump(there, writer)]
                tasks = [asyncio.ensure_future(pump) for pump in pumps]
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
            finally:
                self._forget(to)
        except OSError:
            pass  # the target is down
        finally:
            self._forget(writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy until one side closes; the other side sees the close when the link is restored."""
        try:
            while data := await reader.read(CHUNK_BYTES):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        await self._whole.wait()

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.transport.abort()


class Links:
    """All links of a test; their event loop runs in a separate thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._links: list[Link] = []

    def call(self, step: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(PATIENCE_S)

    def add(self, target: Callable[[], tuple[str, int]]) -> Link:
        """Return a new link; each connection goes to the current address from `target`."""

        async def make() -> Link:
            link = Link(self, target)
            await link.open()
            return link

        self._links.append(self.call(make()))
        return self._links[-1]

    def close(self) -> None:
        async def end() -> None:
            for link in self._links:
                link.stop_accepting()
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                for link in self._links:  # also those that were accepted meanwhile
                    link.end_connections()
                await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
            for link in self._links:
                link.close()
            await asyncio.sleep(0)  # aborted connections are closed in this step

        self.call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
