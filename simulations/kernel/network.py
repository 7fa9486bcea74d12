"""Simulated hosts, links between them, and TCP connections.

A connection is two pipes. A pipe carries bytes in transit, then bytes that arrived and were not
read; both count against its capacity, so a reader that does not read stops its writer.

Sent bytes are split at random places, and each piece has its own delay, in order: a receiver must
expect any split. While a link is cut its bytes wait (TCP resends), up to `GIVE_UP_S`. Closing
sends the bytes in transit first, then the end of the stream; closing with unread bytes, or sending
to a closed end, resets the connection. The kernel closes the connections of a killed process; a
machine without power sends nothing, and resets old connections once it is up again.
"""

import errno
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from metaquorum.runtime.interfaces import Buffer, File
from metaquorum.simulations.kernel.process import Process, Wait
from metaquorum.simulations.kernel.timeline import Timeline
from metaquorum.simulations.kernel.trace import Trace

BACKLOG: Final = 128
CONNECT_TIMEOUT_S: Final = 20.0
# A sender whose bytes stay unacknowledged for this long gets ETIMEDOUT (tcp_retries2 is longer).
GIVE_UP_S: Final = 60.0
RETRANSMIT_S: Final = 0.2
SEND_FILE_SLICE_BYTES: Final = 1 << 16
FIRST_EPHEMERAL_PORT: Final = 40_000
_ANY_HOST: Final = ("", "0.0.0.0", "::")  # noqa: S104 - a name to recognise, not to bind
_THIS_HOST: Final = ("localhost", "127.0.0.1", "::1")


def os_error(number: int, what: str = "") -> OSError:
    return OSError(number, os.strerror(number), what or None)


@dataclass(slots=True)
class Link:
    """One direction of the network between two hosts."""

    delay_s: float = 0.0002
    jitter_s: float = 0.0003
    bytes_per_s: float = 200e6
    capacity_bytes: int = 64 * 1024
    # Share of writes that arrive in more than one piece; of sends from a file that are cut short.
    split: float = 0.2
    cut: bool = False


class Pipe:
    """One direction of a connection."""

    def __init__(self, net: "Internet", source: str, target: str) -> None:
        self._net = net
        self._timeline = net.timeline
        self._random = net.random
        self._link_key = (source, target)
        self.link = net.link(source, target)
        self.arrived: deque[memoryview] = deque()
        self.arrived_bytes = 0
        self.travelling_bytes = 0
        self._last_arrival = 0.0
        self._stalled: deque[tuple[int, Callable[[], None]]] = deque()
        self.ended = False  # the end has arrived
        self.error: int | None = None
        self.closed_for_reading = False
        self.reader: Wait | None = None
        self.writer: Wait | None = None
        self.on_refused: Callable[[], None] = lambda: None

    @property
    def readable(self) -> bool:
        return bool(self.arrived) or self.ended or self.error is not None

    @property
    def environment(self) -> int:
        """Number of bytes that the pipe has room for; negative if its capacity was lowered."""
        return self.link.capacity_bytes - self.arrived_bytes - self.travelling_bytes

    def put(self, data: memoryview) -> int:
        """Send as many bytes as the pipe has room for, and return their number."""
        taken = min(len(data), max(self.environment, 0))
        if taken == 0:
            return 0
        copy = memoryview(bytes(data[:taken]))
        self._net.trace.mix(copy)
        self.travelling_bytes += taken
        if taken < 2 or self._random.random() >= self.link.split:
            self._travel(taken, self._arrival_of(copy))
        else:
            for piece in self._pieces(copy):
                self._travel(len(piece), self._arrival_of(piece))
        return taken

    def _pieces(self, data: memoryview) -> list[memoryview]:
        draw = self._random
        cuts = sorted({draw.randrange(1, len(data)) for _ in range(draw.randint(1, 3))})
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def _arrival_of(self, piece: memoryview) -> Callable[[], None]:
        size = len(piece)

        def arrive() -> None:
            self.travelling_bytes -= size
            if self.error is not None:
                return
            if self.closed_for_reading:
                self.on_refused()
                return
            self.arrived.append(piece)
            self.arrived_bytes += size
            if self.reader is not None:
                self.reader.wake()

        return arrive

    def put_end(self) -> None:
        def arrive() -> None:
            self.ended = True
            self._wake_reader()

        self._travel(0, arrive)

    def put_reset(self, back: "Pipe") -> None:
        """Send a reset: once it arrives, the peer cannot read (this pipe) or write (`back`)."""

        def arrive() -> None:
            self.breaks(errno.ECONNRESET)
            back.breaks(errno.ECONNRESET)

        self._travel(0, arrive)

    def _travel(self, size: int, arrive: Callable[[], None]) -> None:
        if self._stalled or self.link.cut:
            if not self._stalled:
                self._net.timeline.after(GIVE_UP_S, self._give_up)
                self._net.when_healed(self._link_key, self._go_on)
            self._stalled.append((size, arrive))
            return
        self._schedule(size, arrive)

    def _schedule(self, size: int, arrive: Callable[[], None]) -> None:
        link, timeline = self.link, self._timeline
        travel = link.delay_s + self._random.random() * link.jitter_s + size / link.bytes_per_s
        when = timeline.now + travel
        least = self._last_arrival + 1e-7
        if when < least:
            when = least
        self._last_arrival = when
        timeline.at(when, arrive)

    def _go_on(self) -> None:
        stalled, self._stalled = self._stalled, deque()
        self._last_arrival = self._net.timeline.now + self._net.random.random() * RETRANSMIT_S
        for size, arrive in stalled:
            self._schedule(size, arrive)

    def _give_up(self) -> None:
        if self._stalled and self.link.cut:
            self._stalled.clear()
            self.breaks(errno.ETIMEDOUT)

    def breaks(self, error: int) -> None:
        """Fail reader and writer of this pipe with `error`, an errno."""
        if self.error is None:
            self.error = error
            self.arrived.clear()
            self.arrived_bytes = 0
            self._wake_reader()
            self._wake_writer()

    def take(self, buffer: memoryview) -> int:
        """Move bytes that arrived to the start of `buffer`; return their number."""
        got = 0
        while self.arrived and got < len(buffer):
            piece = self.arrived[0]
            part = min(len(piece), len(buffer) - got)
            buffer[got : got + part] = piece[:part]
            got += part
            if part == len(piece):
                self.arrived.popleft()
            else:
                self.arrived[0] = piece[part:]
        self.arrived_bytes -= got
        if self.writer is not None:
            self._net.timeline.after(self.link.delay_s, self._wake_writer)
        return got

    def _wake_reader(self) -> None:
        if self.reader is not None:
            self.reader.wake()

    def _wake_writer(self) -> None:
        if self.writer is not None and (self.environment > 0 or self.error is not None):
            self.writer.wake()


def _drop(_: bytes) -> None: ...


class SimulatedConnection:
    """One end of a connection; `Connection` interface of one process."""

    def __init__(
        self, net: "Internet", process: Process, inward: Pipe, outward: Pipe, peer: tuple[str, int]
    ) -> None:
        self._net = net
        self._process = process
        self._in = inward
        self._out = outward
        self.peer = peer
        self.closed = False
        self._is_pumped = False
        self._soon: Callable[[], bool] | None = None
        self._blocked: Callable[[], bool] | None = None
        self._is_stepping = False
        self._held = b""  # from `send_soon` to the end of the step
        self._unsent: Callable[[bytes], object] = _drop
        inward.on_refused = self._refuse
        process.holdings[self] = None
        net.connections[self] = None

    @property
    def hosts(self) -> tuple[str, str]:
        """Hosts of this end and of the other end."""
        return self._process.name, self.peer[0]

    def cut_off(self) -> None:
        """Reset this connection at both ends, as if the network had lost its state."""
        for pipe in (self._in, self._out):
            pipe.breaks(errno.ECONNRESET)

    async def receive_into(self, buffer: bytearray | memoryview) -> int:
        await self._wait_readable()
        return self.receive_nowait(buffer)

    async def _wait_readable(self) -> None:
        self._check()
        pipe = self._in
        if pipe.reader is not None:
            raise trio.BusyResourceError("another task is already receiving")
        if not pipe.readable and self._soon is None:
            pipe.reader = Wait(self._process)
            try:
                await pipe.reader.park()
            finally:
                pipe.reader = None
        else:
            await trio.lowlevel.checkpoint()

    def receive_nowait(self, buffer: bytearray | memoryview) -> int:
        self._check()
        pipe = self._in
        if pipe.error is not None:
            raise os_error(pipe.error)
        return pipe.take(memoryview(buffer).cast("B")) if pipe.readable else -1

    def is_ended(self) -> bool:
        self._check()
        return self._in.ended or self._in.error is not None

    async def pump(self, step: Callable[[], bool]) -> None:
        self._soon = None
        self._is_pumped = more = True
        try:
            while more:
                if self._blocked is not None:
                    if self._out.environment <= 0 and self._out.error is None:
                        await self._wait_writable()
                    blocked, self._blocked = self._blocked, None
                    more = self._call(blocked)
                    continue
                await self._wait_readable()
                soon, self._soon = self._soon, None
                more = self._call(soon or step)
        finally:
            self._is_pumped = False
            self._blocked = None

    def _call(self, step: Callable[[], bool]) -> bool:
        """Call a step, then send what it left for that, and give back what the peer cannot take."""
        self._is_stepping, self._held = True, b""
        try:
            more = step()
        finally:
            self._is_stepping = False
        if self._held and not self._sends_held():
            self._unsent(self._held)
        self._held, self._unsent = b"", _drop
        return more

    def _sends_held(self) -> bool:
        """Send held bytes; return whether none are left."""
        held, self._held = self._held, b""
        self._held = held[self.send_nowait(held) :]
        return not self._held

    def call_soon(self, step: Callable[[], bool]) -> None:
        if self._is_pumped:
            self._soon = step
            if self._in.reader is not None:
                self._in.reader.wake()

    def call_when_writable(self, step: Callable[[], bool]) -> bool:
        if self._is_pumped:
            self._blocked = step
        return self._is_pumped

    def send_soon(self, data: bytes, unsent: Callable[[bytes], object]) -> bool:
        if not self._is_stepping or self._held:
            return False
        self._held, self._unsent = data, unsent
        return True

    def send_nowait(self, data: Buffer) -> int:
        self._check()
        if self._held and not self._sends_held():
            return 0
        if self._out.error is not None:
            raise os_error(errno.EPIPE)
        return self._out.put(memoryview(data).cast("B"))

    async def send(self, data: Buffer) -> None:
        rest = memoryview(data).cast("B")
        while True:
            rest = rest[self.send_nowait(rest) :]
            if not rest:
                return
            await self._wait_writable()

    async def _wait_writable(self) -> None:
        pipe = self._out
        if pipe.writer is not None:
            raise trio.BusyResourceError("another task is already sending")
        pipe.writer = Wait(self._process)
        try:
            await pipe.writer.park()
        finally:
            pipe.writer = None

    async def send_file(self, file: File, position: int, size: int) -> None:
        end = position + size
        while position < end:
            environment = self._out.environment
            if environment <= 0:
                self._check()
                await self._wait_writable()
                continue
            data = file.read(min(end - position, SEND_FILE_SLICE_BYTES, environment), position)
            if not data:
                raise EOFError(f"{file.path} ends at {position}, before {end}")
            position += self.send_nowait(data)
            if position < end:
                await trio.lowlevel.checkpoint()

    def send_file_nowait(self, file: File, position: int, size: int) -> int:
        self._check()
        if self._held and not self._sends_held():
            return 0
        environment = self._out.environment
        if environment <= 0:
            return self.send_nowait(b"")  # raises the error of a broken connection
        count = min(size, environment)
        draw, link = self._net.random, self._out.link
        if draw.random() < link.split:
            count = draw.randint(1, count)
        data = file.read(count, position)
        if not data:
            raise EOFError(f"{file.path} ends at {position}, before {position + size}")
        return self.send_nowait(data)

    def close(self) -> None:
        self._process.check()
        self._hang_up()

    def _hang_up(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._process.holdings.pop(self, None)
        self._net.connections.pop(self, None)
        self._in.closed_for_reading = True
        if self._in.arrived:
            self._refuse()
        else:
            self._out.put_end()
        for wait in (self._in.reader, self._out.writer):
            if wait is not None:
                wait.fail(trio.ClosedResourceError("closed by another task"))

    def _refuse(self) -> None:
        """Answer bytes for a closed end with a reset."""
        self._in.arrived.clear()
        self._in.arrived_bytes = 0
        self._out.put_reset(self._in)

    def process_died(self, *, silent: bool) -> None:
        if not silent:
            self._hang_up()
            return
        self.closed = True
        self._net.connections.pop(self, None)
        self._in.closed_for_reading = True
        self._in.on_refused = lambda: self._net.when_up(self._process.name, self._refuse)

    def _check(self) -> None:
        self._process.check()
        if self.closed:
            raise trio.ClosedResourceError("this connection is closed")


class SimulatedListener:
    def __init__(self, net: "Internet", process: Process, address: tuple[str, int]) -> None:
        self._net = net
        self._process = process
        self.address = address
        self._queue: deque[SimulatedConnection] = deque()
        self._waiter: Wait | None = None
        self._closed = False
        process.holdings[self] = None

    def offer(self, make: Callable[[Process], SimulatedConnection]) -> bool:
        if len(self._queue) >= BACKLOG:
            return False
        self._queue.append(make(self._process))
        if self._waiter is not None:
            self._waiter.wake()
        return True

    async def accept(self) -> SimulatedConnection:
        self._check()
        if self._waiter is not None:
            raise trio.BusyResourceError("another task is already accepting")
        while not self._queue:
            self._waiter = Wait(self._process)
            try:
                await self._waiter.park()
            finally:
                self._waiter = None
            self._check()
        return self._queue.popleft()

    def close(self) -> None:
        self._process.check()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._process.holdings.pop(self, None)
        self._net.listeners.pop((self._process.name, self.address[1]), None)
        if self._waiter is not None:
            self._waiter.fail(trio.ClosedResourceError("closed by another task"))
        for connection in self._queue:
            connection.process_died(silent=False)
        self._queue.clear()

    def process_died(self, *, silent: bool) -> None:
        if silent:
            self._queue.clear()
        self._hang_up()

    def _check(self) -> None:
        self._process.check()
        if self._closed:
            raise trio.ClosedResourceError("this listener is closed")


class Internet:
    """Network between the machines of one world."""

    def __init__(self, timeline: Timeline, draw: random.Random, trace: Trace) -> None:
        self.timeline = timeline
        self.random = draw
        self.trace = trace
        self.default = Link()
        self.listeners: dict[tuple[str, int], SimulatedListener] = {}
        self.connections: dict[SimulatedConnection, None] = {}
        self.up: dict[str, bool] = {}
        # Number of connection attempts that reached a listener, by (source, target).
        self.made: dict[tuple[str, str], int] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._healed: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._booted: dict[str, list[Callable[[], None]]] = {}
        self._ports: dict[str, int] = {}

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            shape = self.default
            link = Link(
                shape.delay_s, shape.jitter_s, shape.bytes_per_s, shape.capacity_bytes, shape.split
            )
            self._links[source, target] = link
        return link

    def cut(self, source: str, target: str) -> None:
        """Hold back everything from `source` to `target`; the other direction is not affected."""
        self.link(source, target).cut = True
        self.trace.add(self.timeline.now, "network", f"cut {source} -> {target}")

    def heal(self, source: str, target: str) -> None:
        self.link(source, target).cut = False
        self.trace.add(self.timeline.now, "network", f"heal {source} -> {target}")
        for go_on in self._healed.pop((source, target), ()):
            go_on()

    def reset(self, one: str, other: str) -> int:
        """Reset every connection between two hosts; return the number of their ends."""
        ends = [c for c in self.connections if set(c.hosts) == {one, other}]
        for end in ends:
            end.cut_off()
        self.trace.add(
            self.timeline.now, "network", f"reset {one} - {other}: {len(ends)} ends of connections"
        )
        return len(ends)

    def heal_all(self) -> None:
        """End all cuts, and restore the delays of every link."""
        for (source, target), link in self._links.items():
            link.delay_s, link.jitter_s = self.default.delay_s, self.default.jitter_s
            if link.cut:
                self.heal(source, target)

    def when_healed(self, key: tuple[str, str], action: Callable[[], None]) -> None:
        self._healed.setdefault(key, []).append(action)

    def powered(self, host: str, up: bool) -> None:
        self.up[host] = up
        if up:
            for action in self._booted.pop(host, ()):
                action()

    def when_booted(self, host: str, action: Callable[[], None]) -> None:
        self._booted.setdefault(host, []).append(action)

    def when_up(self, host: str, action: Callable[[], None]) -> None:
        if self.up.get(host):
            action()
        else:
            self.when_booted(host, action)

    def free_port(self, host: str) -> int:
        port = self._ports.get(host, FIRST_EPHEMERAL_PORT)
        self._ports[host] = port + 1
        return port

    def travel_s(self, source: str, target: str) -> float:
        link = self.link(source, target)
        return link.delay_s + self.random.random() * link.jitter_s


class ProcessNetwork:
    """`Network` interface of one process."""

    def __init__(self, net: Internet, process: Process) -> None:
        self._net = net
        self._process = process

    async def listen(self, host: str, port: int) -> SimulatedListener:
        self._process.check()
        await trio.lowlevel.checkpoint()
        me = self._process.name
        if host not in (*_ANY_HOST, *_THIS_HOST, me):
            raise os_error(errno.EADDRNOTAVAIL, host)
        port = port or self._net.free_port(me)
        if (me, port) in self._net.listeners:
            raise os_error(errno.EADDRINUSE)
        listener = SimulatedListener(self._net, self._process, (host, port))
        self._net.listeners[me, port] = listener
        return listener

    async def connect(self, host: str, port: int) -> SimulatedConnection:
        self._process.check()
        net, me = self._net, self._process.name
        target = me if host in _THIS_HOST else host
        if target not in net.up:
            raise os_error(errno.EHOSTUNREACH, host)
        give_up = net.timeline.now + CONNECT_TIMEOUT_S
        while True:
            await self._process.wait_until(net.timeline.now + net.travel_s(me, target))
            reachable = net.up[target] and not net.link(me, target).cut
            if reachable and not net.link(target, me).cut:
                listener = net.listeners.get((target, port))
                connection = self._shake_hands(listener, target, port) if listener else None
                await self._answered(connection, net.travel_s(target, me))
                if listener is None:
                    raise os_error(errno.ECONNREFUSED, f"{host}:{port}")
                if connection is not None:
                    return connection
            if net.timeline.now >= give_up:
                raise os_error(errno.ETIMEDOUT, f"{host}:{port}")
            await self._process.wait_until(net.timeline.now + 5 * RETRANSMIT_S)

    async def addresses(self, host: str) -> Sequence[str]:
        self._process.check()
        await trio.lowlevel.checkpoint()
        return [self._process.name if host in _THIS_HOST else host]

    async def _answered(self, connection: SimulatedConnection | None, seconds: float) -> None:
        try:
            await self._process.wait_until(self._net.timeline.now + seconds)
        except BaseException:
            if connection is not None and self._process.alive:
                connection.close()
            raise

    def _shake_hands(
        self, listener: SimulatedListener, target: str, port: int
    ) -> SimulatedConnection | None:
        net, me = self._net, self._process.name
        there, back = Pipe(net, me, target), Pipe(net, target, me)
        my_port = net.free_port(me)
        net.made[me, target] = net.made.get((me, target), 0) + 1
        if not listener.offer(
            lambda process: SimulatedConnection(net, process, there, back, (me, my_port))
        ):
            return None
        return SimulatedConnection(net, self._process, back, there, (target, port))
