"""A connection over a network that the test plays, for events that are rare on real ones."""

import gc
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import trio
import trio.testing

from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.connection import (
    RESERVE_ABOVE_BYTES,
    ClientConnection,
    ListenerContext,
)
from metaquorum.dataplane.network.delayed import DelayedResponse
from metaquorum.dataplane.network.pipeline import FRAMES_PER_LOOK, MAX_DELAYED, Wait
from metaquorum.dataplane.network.replies import (
    CloseConnectionError,
    DelayedReply,
    PendingReply,
    Reply,
)
from metaquorum.dataplane.network.unread_responses import UnreadResponses
from metaquorum.dataplane.scheduling.request_memory import RequestMemory
from metaquorum.dataplane.scheduling.time_slices import SLICE_CPU_S, TimeSlicer
from metaquorum.runtime import Buffer, File
from metaquorum.runtime.system import RealDisk
from metaquorum.wire.protocol.frames import BufferPool
from tests.dataplane.serving import in_trio

LARGE_BYTES = 1 << 20


class PlayedConnection:
    """A network connection that receives the bytes the test feeds, and takes sends or breaks."""

    peer = ("192.0.2.7", 1)

    def __init__(self) -> None:
        self.sent = bytearray()
        self.is_broken = False
        self.is_closed = False
        self.window_bytes = 1 << 30
        self.pumps = 0
        self._feed, self._source = trio.open_memory_channel[bytes](100)
        self._rest = b""
        self._waiting: trio.CancelScope | None = None
        self._soon: Callable[[], bool] | None = None
        self.blocked: Callable[[], bool] | None = None  # waits for `writable`
        self.writable = trio.Event()

    def feed(self, data: bytes) -> None:
        self._feed.send_nowait(data)

    def end(self) -> None:
        self._feed.close()

    async def receive_into(self, buffer: bytearray | memoryview) -> int:
        raise NotImplementedError

    def receive_nowait(self, buffer: bytearray | memoryview) -> int:
        count = min(len(self._rest), len(buffer))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    async def pump(self, step: Callable[[], bool]) -> None:
        self.pumps += 1
        more = True
        while more:
            if self.blocked is not None:
                await self.writable.wait()
                blocked, self.blocked = self.blocked, None
                more = blocked()
                continue
            self._soon = None
            if not self._rest:
                with trio.CancelScope() as self._waiting:
                    try:
                        self._rest = await self._source.receive()
                    except trio.EndOfChannel:
                        pass
            more = (self._soon or step)()
        self._waiting = None

    def call_soon(self, step: Callable[[], bool]) -> None:
        if self._waiting is not None:
            self._soon = step
            self._waiting.cancel()

    def call_when_writable(self, step: Callable[[], bool]) -> bool:
        return False

    def send_soon(self, data: bytes, unsent: Callable[[bytes], object]) -> bool:
        return False

    def send_nowait(self, data: Buffer) -> int:
        if self.is_broken:
            raise BrokenPipeError(32, "broken")
        taken = min(len(data), self.window_bytes - len(self.sent))
        self.sent += data[:taken]
        return taken

    async def send(self, data: Buffer) -> None:
        rest = memoryview(data)
        while rest := rest[self.send_nowait(rest) :]:
            await trio.sleep_forever()

    async def send_file(self, file: File, position: int, size: int) -> None:
        await self.send(file.read(size, position))

    def send_file_nowait(self, file: File, position: int, size: int) -> int:
        return self.send_nowait(file.read(size, position))

    def close(self) -> None:
        self.is_closed = True


class Promised(DelayedResponse):
    def __init__(self, data: bytes, *, allows_pipelining: bool) -> None:
        super().__init__(allows_pipelining=allows_pipelining)
        self.data = data
        self.is_dropped = False

    def complete(self) -> bytes:
        return self.data

    def cancel(self) -> None:
        self.is_dropped = True


class Handler:
    """A handler that answers each frame as its first byte specifies."""

    def __init__(self) -> None:
        self.handled: list[bytes] = []
        self.go_on = trio.Event()
        self.laters: list[Promised] = []

    def __call__(self, frame: memoryview, client: Client) -> Reply | PendingReply | DelayedReply:
        data = bytes(frame)
        self.handled.append(data[:8])
        match data[:1]:
            case b"w":
                return PendingReply(self._later(data))
            case b"n":
                return None
            case b"P" | b"L":  # a produce, say, and a long poll
                later = Promised(data[:8], allows_pipelining=data[:1] == b"P")
                self.laters.append(later)
                return DelayedReply(later, lambda answer: answer)
            case b"B":
                return bytes(LARGE_BYTES)
            case b"D":  # the same in pieces
                return [bytes(LARGE_BYTES // 8) for _ in range(8)]
            case b"x":
                raise CloseConnectionError("nonsense")
        return data[:8]

    async def _later(self, data: bytes) -> Reply:
        await self.go_on.wait()
        return data[:8]


def framed(*contents: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(c)) + c for c in contents)


class Setting:
    def __init__(self, memory_bytes: int = 1 << 20) -> None:
        self.network = PlayedConnection()
        self.handler = Handler()
        self.memory = RequestMemory(memory_bytes)
        self.buffers = BufferPool()
        self.unread = UnreadResponses(int(2.5 * LARGE_BYTES))
        self.used_s = 0.0
        self.connection = self.another(self.network)

    def another(self, network: PlayedConnection) -> ClientConnection:
        return ClientConnection(
            network,
            ListenerContext("PLAINTEXT", self.handler),
            RealDisk(),
            self.memory,
            self.buffers,
            1 << 24,
            TimeSlicer(self.cpu_s),
            unread=self.unread,
        )

    def cpu_s(self) -> float:
        """Return the CPU time, advanced by a quarter of a slice at each call."""
        self.used_s += SLICE_CPU_S / 4
        return self.used_s


@in_trio
async def test_an_answer_to_wait_for_is_closed_when_what_goes_before_it_cannot_be_sent() -> None:
    setting = Setting()
    setting.network.is_broken = True
    setting.network.feed(framed(b"a", b"wait"))
    await setting.connection.serve()
    assert setting.network.is_closed
    gc.collect()  # a coroutine that was never awaited is a warning, and warnings are errors


@pytest.mark.parametrize("request_", [b"B", b"D"])
@in_trio
async def test_who_has_read_nothing_for_longest_is_closed_when_large_answers_are_too_many(
    request_: bytes,
) -> None:
    setting = Setting()
    networks = [PlayedConnection() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for network in networks:
            network.window_bytes = 1000
            network.feed(framed(request_))
            nursery.start_soon(setting.another(network).serve)
            await trio.testing.wait_all_tasks_blocked()
        assert [network.is_closed for network in networks] == [True, False, False]
        assert len(setting.unread) == 2
        assert 1.5 * LARGE_BYTES <= setting.unread.used_bytes <= 2 * LARGE_BYTES
        nursery.cancel_scope.cancel()
    assert (len(setting.unread), setting.unread.used_bytes) == (0, 0)


@in_trio
async def test_a_later_reply_that_takes_more_work_is_given_when_that_is_done() -> None:
    """The metrics of a long poll of many partitions must include the time to answer it."""
    handler = Handler()
    later = Promised(b"wait", allows_pipelining=False)
    reply = DelayedReply(later, lambda data: PendingReply(handler._later(data)))
    given: list[str] = []
    reply.on_complete(lambda: given.append("given"))
    pending = reply.complete()
    assert isinstance(pending, PendingReply)
    assert not given
    handler.go_on.set()
    assert await pending == b"wait"
    assert given == ["given"]


@in_trio
async def test_an_answer_that_is_read_at_once_or_small_is_not_counted() -> None:
    setting = Setting()
    setting.network.window_bytes = LARGE_BYTES + 5
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.connection.serve)
        setting.network.feed(framed(b"B"))
        setting.network.feed(framed(b"a" * 8))
        await trio.testing.wait_all_tasks_blocked()
        assert len(setting.network.sent) == LARGE_BYTES + 5
        assert not setting.unread.used_bytes
        nursery.cancel_scope.cancel()


def test_whoever_reads_goes_behind_those_who_do_not() -> None:
    closed: list[str] = []

    class Reader:
        def __init__(self, name: str) -> None:
            self.name = name

        def close_unread(self, unread_bytes: int) -> None:
            closed.append(f"{self.name} {unread_bytes}")

    a, b, c = Reader("a"), Reader("b"), Reader("c")
    unread = UnreadResponses(100)
    unread.note(a, 60)
    unread.note(b, 30)
    unread.note(a, 50)
    unread.note(c, 40)
    assert closed == ["b 30"]
    unread.note(c, 500)  # the only response may exceed the limit
    assert closed == ["b 30", "a 50"]
    unread.remove(c)
    unread.remove(c)
    assert unread.used_bytes == 0


@in_trio
async def test_what_came_before_a_reason_to_close_is_sent() -> None:
    for before in ((b"a", b"b"), (b"a", b"n", b"wait"), (b"wait", b"b")):
        setting = Setting()
        setting.handler.go_on.set()
        setting.network.feed(framed(*before, b"x", b"behind"))
        await setting.connection.serve()
        answered = [frame for frame in before if frame != b"n"]
        assert bytes(setting.network.sent) == b"".join(answered)
        assert b"behind" not in setting.handler.handled


@in_trio
async def test_draining_answers_what_was_read_and_reads_no_more() -> None:
    setting = Setting()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.connection.serve)
        setting.network.feed(framed(b"a", b"wait", b"b"))
        await trio.testing.wait_all_tasks_blocked()
        setting.connection.drain()
        setting.network.feed(framed(b"c"))
        await trio.testing.wait_all_tasks_blocked()
        assert not setting.network.is_closed
        setting.handler.go_on.set()
    assert bytes(setting.network.sent) == b"awaitb"


@in_trio
async def test_draining_ends_a_connection_without_a_request_at_once() -> None:
    for begun in (b"", b"\0\0", framed(bytes(200_000))[:100]):
        setting = Setting(memory_bytes=1)
        setting.memory.used_bytes = 1  # no large request gets room
        if begun:
            setting.network.feed(begun)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(setting.connection.serve)
            await trio.testing.wait_all_tasks_blocked()
            setting.connection.drain()
        assert setting.network.is_closed
        assert setting.memory.used_bytes == 1


@in_trio
async def test_draining_in_the_turn_in_which_bytes_come_loses_no_answer() -> None:
    """Every handled request is answered, in either order of the two events."""
    for _ in range(30):  # the order within a turn is random
        setting = Setting()
        setting.handler.go_on.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(setting.connection.serve)
            await trio.testing.wait_all_tasks_blocked()

            async def drain(connection: ClientConnection = setting.connection) -> None:
                connection.drain()

            setting.network.feed(framed(b"n", b"wait", b"b"))
            nursery.start_soon(drain)
        answered = [frame for frame in setting.handler.handled if frame != b"n"]
        assert bytes(setting.network.sent) == b"".join(answered)


@in_trio
async def test_an_aborted_connection_ends_in_mid_answer() -> None:
    setting = Setting()
    setting.network.window_bytes = 3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.connection.serve)
        setting.network.feed(framed(b"answer", b"wait"))
        await trio.testing.wait_all_tasks_blocked()
        assert bytes(setting.network.sent) == b"ans"
        setting.connection.drain()
        await trio.testing.wait_all_tasks_blocked()
        assert not setting.network.is_closed
        setting.connection.abort()
    assert setting.network.is_closed


@in_trio
async def test_memory_is_reserved_for_each_large_request_and_given_back() -> None:
    setting = Setting(memory_bytes=1 << 20)
    network, memory = setting.network, setting.memory
    first, second = framed(b"a" + bytes(100_000)), framed(b"b" + bytes(500_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.connection.serve)
        for data, expected in (
            (first[:1000], len(first)),
            (first[1000:] + second[:4000], len(second)),  # pipelined behind the smaller one
            (second[4000:], 0),  # answered, and nothing behind it
            (framed(b"c"), 0),
            (first[:1000], len(first)),
        ):
            network.feed(data)
            await trio.testing.wait_all_tasks_blocked()
            assert memory.used_bytes == expected
        assert network.pumps == 1  # in the steps, without waking the task
        network.end()
    assert memory.used_bytes == 0
    assert RESERVE_ABOVE_BYTES < 100_000


@in_trio
async def test_a_request_without_room_is_not_read_on_until_another_gives_some() -> None:
    setting = Setting(memory_bytes=150_000)
    other = PlayedConnection()
    data = framed(b"a" + bytes(100_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.connection.serve)
        nursery.start_soon(setting.another(other).serve)
        for network in (setting.network, other):
            network.feed(data[:1000])
            await trio.testing.wait_all_tasks_blocked()
        assert setting.network.pumps == 1
        other.feed(data[1000:])
        await trio.testing.wait_all_tasks_blocked()
        assert other.sent == b""
        assert setting.connection.waits_for is Wait.REQUEST
        setting.network.feed(data[1000:])
        await trio.testing.wait_all_tasks_blocked()
        assert len(other.sent) == len(setting.network.sent) == 8
        setting.network.end()
        other.end()
    assert setting.memory.used_bytes == 0


@in_trio
async def test_others_have_a_turn_within_a_large_pipeline() -> None:
    """A slice ends by the CPU time it took, not by the number of requests."""
    setting = Setting()
    slicer = 0

    async def count() -> None:
        nonlocal slicer
        while not setting.network.is_closed:
            slicer += 1
            await trio.lowlevel.checkpoint()

    frames = [b"%d" % (i % 10) for i in range(10 * 5 * FRAMES_PER_LOOK)]
    setting.network.feed(framed(*frames))
    setting.network.end()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await setting.connection.serve()
    assert bytes(setting.network.sent) == b"".join(frames)
    assert slicer >= 5


@in_trio
async def test_a_reply_is_awaited_or_closed_once() -> None:
    ran: list[str] = []

    async def answer() -> bytes:
        ran.append("x")
        return b"y"

    def pending() -> PendingReply:
        coroutine: Coroutine[Any, Any, bytes] = answer()
        return PendingReply(coroutine, lambda: ran.append("closed"))

    pending().close()
    assert ran == ["closed"]
    one = pending()
    one.on_complete(lambda: ran.append("complete"))
    assert await one == b"y"
    assert ran == ["closed", "x", "complete"]
    with pytest.raises(RuntimeError):
        await one


@in_trio
async def test_what_is_promised_is_answered_in_the_order_of_the_requests() -> None:
    setting = Setting()
    sent = setting.network.sent
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.connection.serve)
        setting.network.feed(framed(b"a", b"P1", b"P2", b"b", b"n", b"L3", b"c"))
        await trio.testing.wait_all_tasks_blocked()
        first, second, third = setting.handler.laters
        assert sent == b"a"
        second.ready()
        await trio.testing.wait_all_tasks_blocked()
        assert sent == b"a"
        first.ready()
        await trio.testing.wait_all_tasks_blocked()
        assert sent == b"aP1P2b"
        assert setting.handler.handled[-1] == b"L3", "a request behind a long poll waits for it"
        third.ready()
        await trio.testing.wait_all_tasks_blocked()
        assert sent == b"aP1P2bL3c"
        setting.network.end()
    assert not any(later.is_dropped for later in setting.handler.laters)


@in_trio
async def test_more_is_read_while_promises_wait_but_not_without_bound() -> None:
    setting = Setting()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.connection.serve)
        for number in range(MAX_DELAYED + 3):
            setting.network.feed(framed(b"P%d" % number))
            await trio.testing.wait_all_tasks_blocked()
        laters = setting.handler.laters
        assert len(laters) == MAX_DELAYED
        for later in laters:
            later.ready()
        await trio.testing.wait_all_tasks_blocked()
        assert len(laters) == MAX_DELAYED + 3
        for later in laters[MAX_DELAYED:]:
            later.ready()
        setting.network.end()
    assert bytes(setting.network.sent) == b"".join(later.data for later in laters)


@in_trio
async def test_answers_of_other_kinds_keep_their_place_behind_promises() -> None:
    for behind in (b"wait", b"x", b"P2"):
        setting = Setting()
        setting.handler.go_on.set()
        setting.network.window_bytes = 6  # and the unsent rest of a response, too
        setting.network.feed(framed(b"first", b"P1", b"b", behind))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(setting.connection.serve)
            await trio.testing.wait_all_tasks_blocked()
            assert setting.network.sent == b"first"
            for later in setting.handler.laters:
                later.ready()
            await trio.testing.wait_all_tasks_blocked()
            assert setting.network.sent == b"firstP"
            setting.connection.abort()


@in_trio
async def test_draining_waits_for_what_was_promised() -> None:
    setting = Setting()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.connection.serve)
        setting.network.feed(framed(b"P1", b"L2"))
        await trio.testing.wait_all_tasks_blocked()
        setting.connection.drain()
        await trio.testing.wait_all_tasks_blocked()
        assert not setting.network.is_closed
        for later in setting.handler.laters:
            later.ready()
    assert bytes(setting.network.sent) == b"P1L2"


@in_trio
async def test_promises_to_a_connection_that_ends_are_dropped() -> None:
    setting = Setting()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.connection.serve)
        setting.network.feed(framed(b"P1", b"L2"))
        await trio.testing.wait_all_tasks_blocked()
        setting.connection.abort()
    assert [later.is_dropped for later in setting.handler.laters] == [True, True]
