"""The real network: the poller that calls steps while trio waits."""

import contextlib
import ctypes
import functools
import itertools
import logging
import mmap
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from metaquorum.runtime import Connection, system
from metaquorum.runtime.interfaces import SMALL_WRITE_BYTES, Buffer
from metaquorum.runtime.system import (
    HELD_UP_S,
    SLOW_WRITE_S,
    RealConnection,
    RealDisk,
    RealFile,
    RealNetwork,
)
from metaquorum.runtime.write_waits import throttles_writers, waits_of_thread
from tests.nodes import PATIENCE_S, needs_ipv6

# Seconds that trio would sleep without a wake-up, which takes about 50 microseconds.
LOST_S = PATIENCE_S


async def _pair(network: RealNetwork) -> tuple[Connection, socket.socket]:
    """Return a `RealConnection` and the socket of its peer."""
    listener = await network.listen("127.0.0.1", 0)
    other = socket.create_connection(listener.address)
    ours = await listener.accept()
    listener.close()
    return ours, other


def test_a_step_wakes_the_task_of_another_connection_at_once() -> None:
    """A fetch waits for records on one connection, and a produce on another brings them."""
    woken_by_step = trio.Event()

    async def pump(connection: Connection) -> None:
        def step() -> bool:
            if connection.receive_nowait(bytearray(10)) > 0:
                woken_by_step.set()
            return True  # the task of this connection has nothing to do

        await connection.pump(step)

    async def main() -> None:
        network = RealNetwork()
        ours, other = await _pair(network)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump, ours)
            await trio.testing.wait_all_tasks_blocked()
            # Only the step, or the timeout, ends this wait.
            with trio.move_on_after(LOST_S) as limit:
                other.send(b"records")
                await woken_by_step.wait()
            nursery.cancel_scope.cancel()
        assert trio.current_time() < limit.deadline
        assert woken_by_step.is_set()
        ours.close()
        other.close()

    trio.run(main)


class _Resolver(trio.abc.HostnameResolver):
    """Resolves every name to these addresses."""

    def __init__(self, *addresses: tuple[str, int]) -> None:
        self._addresses = addresses

    async def getaddrinfo(self, *_: object, **__: object) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", each) for each in self._addresses]

    async def getnameinfo(self, *_: object) -> Any:
        raise NotImplementedError


def test_where_one_address_of_a_name_is_silent_or_refuses_the_next_one_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "NEXT_ADDRESS_S", 0.05)

    async def main() -> None:
        network = RealNetwork()
        listener = await network.listen("127.0.0.1", 0)
        with contextlib.ExitStack() as stack:
            silent = stack.enter_context(socket.socket())
            silent.bind(("127.0.0.1", 0))
            silent.listen(0)  # more than one or two connections are not answered
            for _ in range(4):
                sock = stack.enter_context(socket.socket())
                sock.setblocking(False)
                sock.connect_ex(silent.getsockname())
            closed = stack.enter_context(socket.socket())
            closed.bind(("127.0.0.1", 0))
            addresses = (silent.getsockname(), closed.getsockname(), listener.address)
            trio.socket.set_custom_hostname_resolver(_Resolver(*addresses))
            connection = await network.connect("log.example.org", 9092)
            assert connection.peer == listener.address
            connection.close()
        listener.close()

    trio.run(main)


@needs_ipv6
def test_by_a_socket_for_both_families_each_address_is_known_as_what_it_is() -> None:
    async def main() -> None:
        listener = await RealNetwork().listen("::", 0)
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, listener.address[1])) as other:
                ours = await listener.accept()
                assert ours.peer == other.getsockname()[:2]
                ours.close()
        listener.close()

    trio.run(main)


@pytest.mark.parametrize("more", [True, False])
def test_a_step_may_cancel_the_task_that_waits_for_it(
    more: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        network = RealNetwork()
        ours, other = await _pair(network)
        with trio.CancelScope() as scope:

            def step() -> bool:
                scope.cancel()
                return more

            other.send(b"records")
            await ours.pump(step)
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        # The loop still waits for this connection.
        await ours.pump(lambda: ours.receive_nowait(bytearray(10)) < 0)
        ours.close()
        other.close()

    with caplog.at_level(logging.DEBUG):
        trio.run(main)
    assert caplog.records == []


@pytest.mark.parametrize("is_reset", [False, True])
def test_the_end_of_a_connection_shows_behind_unread_bytes(is_reset: bool) -> None:
    async def main() -> None:
        ours, other = await _pair(RealNetwork())
        assert not ours.is_ended()
        other.send(b"records")
        assert not ours.is_ended()
        if is_reset:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        assert ours.is_ended()
        if not is_reset:
            assert ours.receive_nowait(bytearray(10)) == len(b"records")
        ours.close()

    trio.run(main)


def test_a_loop_ends_without_complaint_from_the_instrument(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """trio drops an instrument that raises, and logs it."""

    async def main() -> None:
        network = RealNetwork()
        ours, other = await _pair(network)
        with trio.move_on_after(0.01):
            await ours.pump(lambda: True)
        ours.close()
        other.close()

    with caplog.at_level(logging.DEBUG):
        trio.run(main)
    assert caplog.records == []


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a turn have all steps that fit into it, also on a busy machine."""
    monkeypatch.setattr(system, "MAX_STEPS_S", PATIENCE_S)


@pytest.mark.parametrize("is_soon", [False, True])
def test_steps_that_take_long_leave_turns_to_tasks_and_to_each_other(
    monkeypatch: pytest.MonkeyPatch, is_soon: bool
) -> None:
    """With any number of readable connections. Only the steps advance the clock of the poller."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    count, rounds = 12, 4
    calls = [0] * count
    slicer: list[int] = []  # number of steps called in each turn of a task

    async def main() -> None:
        network = RealNetwork()
        pairs = [await _pair(network) for _ in range(count)]

        async def pump(number: int) -> None:
            ours = pairs[number][0]

            def step() -> bool:
                nonlocal now
                now += system.MAX_STEPS_S
                calls[number] += 1
                if is_soon and calls[number] < rounds:
                    ours.call_soon(step)
                return calls[number] < rounds  # there is always something to read

            await ours.pump(step)

        async def other() -> None:
            while True:
                await trio.lowlevel.checkpoint()
                slicer.append(sum(calls))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            async with trio.open_nursery() as pumping:
                for number in range(count):
                    pumping.start_soon(pump, number)
                for _, theirs in pairs:
                    theirs.send(b"records")
            nursery.cancel_scope.cancel()
        for ours, theirs in pairs:
            ours.close()
            theirs.close()

    trio.run(main)
    assert calls == [rounds] * count
    assert max(b - a for a, b in itertools.pairwise(slicer)) <= 4


def test_a_step_is_called_soon_without_anything_to_read() -> None:
    """The answer is ready because of bytes on another connection."""

    async def main() -> None:
        network = RealNetwork()
        (ours, other), (theirs, another) = await _pair(network), await _pair(network)
        calls: list[str] = []

        def answer() -> bool:
            calls.append("answer")
            return len(calls) < 3  # a step called by `call_soon` can also end the pump

        def pumped() -> bool:
            calls.append("pumped")
            return True

        def bring() -> bool:
            theirs.receive_nowait(bytearray(10))
            ours.call_soon(answer)
            return True

        async def pump_theirs() -> None:
            await theirs.pump(bring)

        async with trio.open_nursery() as nursery:
            ours.call_soon(pumped)  # without a pump this has no effect
            nursery.start_soon(pump_theirs)
            with trio.fail_after(LOST_S):
                async with trio.open_nursery() as waiting:

                    async def pump_ours() -> None:
                        await ours.pump(pumped)
                        waiting.cancel_scope.cancel()

                    waiting.start_soon(pump_ours)
                    await trio.testing.wait_all_tasks_blocked()
                    for count in (1, 2, 3):
                        another.send(b"records")
                        while len(calls) < count:
                            await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
        assert calls == ["answer"] * 3
        for end in (ours, other, theirs, another):
            end.close()

    trio.run(main)


def test_a_file_is_sent_without_waiting_as_far_as_the_socket_takes_it(tmp_path: Path) -> None:
    content = os.urandom(1 << 20) * 32
    (tmp_path / "segment").write_bytes(content)

    async def main() -> None:
        ours, other = await _pair(RealNetwork())
        file = RealDisk().open(str(tmp_path / "segment"))
        position = 5
        while sent := ours.send_file_nowait(file, position, len(content) - position):
            position += sent
        assert 5 < position < len(content)  # the socket is full
        received = bytearray()
        other.settimeout(PATIENCE_S)
        while len(received) < len(content) - 5:
            received += other.recv(1 << 20)
            if position < len(content):
                position += ours.send_file_nowait(file, position, 1 << 20)
        assert received == content[5:]
        with pytest.raises(EOFError, match="ends at byte"):
            ours.send_file_nowait(file, len(content), 10)
        ours.close()
        with pytest.raises(OSError, match="descriptor"):
            ours.send_file_nowait(file, 0, 10)
        other.close()
        file.close()

    trio.run(main)


def test_a_step_is_called_when_the_socket_takes_bytes_again() -> None:
    async def main() -> None:
        ours, other = await _pair(RealNetwork())
        other.settimeout(PATIENCE_S)
        sent, calls = 0, []
        assert not ours.call_when_writable(lambda: True)  # no task pumps

        def fill() -> None:
            nonlocal sent
            while count := ours.send_nowait(bytes(1 << 20)):
                sent += count

        def start() -> bool:
            calls.append("start")
            fill()
            return ours.call_when_writable(again)

        def again() -> bool:
            calls.append("again")
            return ours.send_nowait(b"end") == 3

        def received() -> bool:
            calls.append("received")
            return ours.receive_nowait(bytearray(10)) < 0

        def step() -> bool:
            return received() if calls else start()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.pump, step)
            other.send(b"x")
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert calls == ["start"]  # although bytes can be received
            got = 0
            while got < sent + 3:
                got += len(await trio.to_thread.run_sync(other.recv, 1 << 20))
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert calls[:3] == ["start", "again", "received"]
        ours.close()
        other.close()

    trio.run(main)


def _request(pairs: Sequence[tuple[Connection, socket.socket]]) -> None:
    """Send a request to each connection; return once all can be received in the same turn."""
    for ours, other in pairs:
        other.send(b"request")
        assert isinstance(ours, RealConnection)
        assert select.select([ours._socket], [], [], PATIENCE_S)[0]


def _held_back(other: socket.socket) -> bool:
    """Return whether nothing has arrived."""
    try:
        return not other.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True


def _fail(unsent: bytes) -> None:
    pytest.fail(f"{unsent!r} was not sent")


@pytest.mark.usefixtures("unhurried")
def test_responses_of_a_turn_are_sent_after_its_steps_or_when_many_are_held() -> None:
    async def main() -> None:
        network = RealNetwork()
        pairs = [await _pair(network) for _ in range(system.MAX_HOLDING + 3)]
        held: list[int] = []  # responses that had not been sent, when each step was called

        def step(number: int) -> bool:
            held.append(sum(_held_back(other) for _, other in pairs))
            ours, _ = pairs[number]
            assert ours.receive_nowait(bytearray(10)) > 0
            assert not ours.send_soon(bytes(system.MAX_HELD_BYTES + 1), _fail)
            is_last = len(held) == len(pairs)
            assert ours.send_soon(b"response", _fail) is not is_last
            return not is_last or ours.send_nowait(b"response") == 8

        async with trio.open_nursery() as nursery:
            for number, (ours, _) in enumerate(pairs):
                assert not ours.send_soon(b"response", _fail)
                nursery.start_soon(ours.pump, functools.partial(step, number))
            await trio.testing.wait_all_tasks_blocked()
            _request(pairs)
            await trio.testing.wait_all_tasks_blocked(0.01)
            most = len(pairs)
            assert held == [most] * system.MAX_HOLDING + [most - system.MAX_HOLDING] * 3
            assert [other.recv(100) for _, other in pairs] == [b"response"] * most
            nursery.cancel_scope.cancel()
        for ours, other in pairs:
            ours.close()
            other.close()

    trio.run(main)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("is_pumping", [True, False])
def test_bytes_of_a_turn_that_the_peer_does_not_take_are_given_back_before_tasks_run(
    is_pumping: bool,
) -> None:
    async def main() -> None:
        network = RealNetwork()
        pairs = [await _pair(network) for _ in range(2)]
        sent, called, given = 0, [], []

        def step(number: int) -> bool:
            nonlocal sent
            ours, _ = pairs[number]
            called.append(number)
            ours.receive_nowait(bytearray(10))
            if len(called) > 1:
                assert not given, "the other step of the turn comes first"
                return True
            while count := ours.send_nowait(bytes(1 << 20)):
                sent += count
            assert ours.send_soon(b"held", given.append)
            assert not ours.send_soon(b"more", _fail)
            assert ours.send_nowait(b"more") == 0  # held bytes are sent before all others
            return is_pumping

        async def pump(number: int) -> None:
            await pairs[number][0].pump(functools.partial(step, number))
            assert given == [b"held"]
            await pairs[number][0].send(given[0] + b"end")

        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(pump, number)
            await trio.testing.wait_all_tasks_blocked()
            _request(pairs)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert len(called) == 2
            assert given == [b"held"]
            _, other = pairs[called[0]]
            expected = bytes(sent) + (b"" if is_pumping else b"heldend")
            received = b""
            while len(received) < len(expected):
                received += await trio.to_thread.run_sync(other.recv, 1 << 20)
            assert received == expected
            nursery.cancel_scope.cancel()
        for ours, other in pairs:
            ours.close()
            other.close()

    trio.run(main)


@pytest.mark.usefixtures("unhurried")
def test_bytes_sent_at_once_follow_those_that_are_held() -> None:
    async def main() -> None:
        network = RealNetwork()
        pairs = [await _pair(network) for _ in range(2)]
        called: list[int] = []

        def step(number: int) -> bool:
            ours, _ = pairs[number]
            called.append(number)
            ours.receive_nowait(bytearray(10))
            if len(called) == 1:
                assert ours.send_soon(b"held", _fail)
                assert ours.send_nowait(b"more") == 4  # after the held bytes
            return True

        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(pairs[number][0].pump, functools.partial(step, number))
            await trio.testing.wait_all_tasks_blocked()
            _request(pairs)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert pairs[called[0]][1].recv(100) == b"heldmore"
            nursery.cancel_scope.cancel()
        for ours, other in pairs:
            ours.close()
            other.close()

    trio.run(main)


@pytest.mark.usefixtures("unhurried")
def test_a_stream_that_fails_while_its_bytes_are_held_has_ended() -> None:
    async def main() -> None:
        network = RealNetwork()
        pairs = [await _pair(network) for _ in range(2)]
        called: list[int] = []
        ends: list[int] = []

        def step(number: int) -> bool:
            ours, other = pairs[number]
            called.append(number)
            count = ours.receive_nowait(bytearray(10))
            if len(called) == 1:
                assert ours.send_soon(b"held", _fail)
                _reset(other)
            elif number == called[0]:
                ends.append(count)
            return not ends

        async def pump(number: int) -> None:
            try:
                await pairs[number][0].pump(functools.partial(step, number))
            except ConnectionError:
                ends.append(0)
            nursery.cancel_scope.cancel()

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for number in range(2):
                    nursery.start_soon(pump, number)
                await trio.testing.wait_all_tasks_blocked()
                _request(pairs)
        assert ends == [0]
        for ours, other in pairs:
            ours.close()
            other.close()

    trio.run(main)


def _reset(other: socket.socket) -> None:
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()


def test_a_pump_that_waits_for_a_full_socket_may_be_cancelled_and_started_again() -> None:
    async def main() -> None:
        ours, other = await _pair(RealNetwork())

        def block() -> bool:
            while ours.send_nowait(bytes(1 << 20)):
                pass
            return ours.call_when_writable(lambda: False)

        other.send(b"records")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ours.pump, block)
                await trio.testing.wait_all_tasks_blocked(0.01)
                scope.cancel()
        assert scope.cancelled_caught
        await ours.pump(lambda: ours.receive_nowait(bytearray(10)) < 0)
        ours.close()
        other.close()

    trio.run(main)


@pytest.mark.parametrize("counts", [True, False], ids=["cachestat", "probes"])
def test_a_range_is_cached_unless_a_page_is_not(
    tmp_path: Path, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if counts and system._cachestat() is None:
        pytest.skip("this kernel has no cachestat")
    if not counts:
        monkeypatch.setattr(system, "_cachestat", lambda: None)
    hole_bytes, size = system.READ_AHEAD_BYTES, 1 << 20
    (tmp_path / "segment").write_bytes(bytes(size))
    file = RealDisk().open(str(tmp_path / "segment"))
    assert isinstance(file, RealFile)
    file.sync()
    assert file.is_cached(size, 0)
    assert file.is_cached(size - 2, 1)
    assert file.is_cached(size, 5)  # it ends after the file
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
    for hole in (0, size // 2, size - hole_bytes):
        was_empty, is_found = False, False
        for _ in range(100):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if any(_resident(file, size)[hole : hole + hole_bytes : system.PAGE_BYTES]):
                continue  # pages that the kernel uses at that moment stay
            was_empty = True
            file.read(hole, 0)
            file.read(size - hole - hole_bytes, hole + hole_bytes)
            # A probe starts a read, which in 2 of 100 cases ends before the probe looks.
            if is_found := not file.is_cached(size, 0):
                break
        if not was_empty:
            pytest.skip("this file system keeps its pages in memory")
        assert is_found
        assert file.is_cached(size // 8, size // 4)
        assert file.is_cached(size // 4 - 5, size // 8 * 5 + 1)
    file.close()


def _resident(file: RealFile, size: int) -> bytes:
    """Return a byte for each byte of the file, not 0 if its page is in memory."""
    library = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        place = ctypes.c_char.from_buffer(mapped)
        pages = (ctypes.c_ubyte * (size // system.PAGE_BYTES))()
        failed = library.mincore(
            ctypes.c_void_p(ctypes.addressof(place)), ctypes.c_size_t(size), pages
        )
        del place
    assert not failed, os.strerror(ctypes.get_errno())
    return b"".join(bytes([page & 1]) * system.PAGE_BYTES for page in pages)


class Device:
    """A disk whose writes last as long as a test says, on a clock that only they advance.

    A thread whose write `waits` gives up its CPU. Otherwise the machine is only busy.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.write_s = 0.0
        self.waits = False
        self.now = time.perf_counter()
        monkeypatch.setattr(os, "pwrite", self._write)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def _write(self, fd: int, data: Buffer, position: int) -> int:
        self.now += self.write_s
        if self.waits:
            before = waits_of_thread()
            while waits_of_thread() == before:
                time.sleep(0.0001)
        return len(data)


@pytest.mark.parametrize("size", [SMALL_WRITE_BYTES, SMALL_WRITE_BYTES + 1])
def test_a_disk_holds_up_writers_for_a_while_once_two_writes_have_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    disk, device = RealDisk(), Device(monkeypatch)
    file = disk.open(str(tmp_path / "f"), create=True)
    data = bytes(size)
    held_up = -1 if size == SMALL_WRITE_BYTES else SMALL_WRITE_BYTES
    file.write(data, 0)
    device.write_s, device.waits = 1.5 * SLOW_WRITE_S, True
    file.write(data, 0)  # perhaps only the CPU was busy: the next one will show
    assert disk.inline_write_bytes == sys.maxsize
    file.write(data, 0)
    assert disk.inline_write_bytes == held_up
    device.write_s, device.waits = 0.0, False
    device.now += HELD_UP_S / 2
    file.write(data, 0)
    assert disk.inline_write_bytes == held_up
    device.now += HELD_UP_S
    file.write(data, 0)
    assert disk.inline_write_bytes == sys.maxsize


def test_small_writes_in_worker_threads_do_not_limit_those_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a worker thread a small write waits for the bytes that the thread wrote before."""
    monkeypatch.setattr(system, "throttles_writers", lambda: True)
    disk, device = RealDisk(), Device(monkeypatch)
    file = disk.open(str(tmp_path / "f"), create=True)
    device.write_s, device.waits = 1.5 * SLOW_WRITE_S, True

    async def main() -> None:
        for _ in range(3):
            await disk.write(file, b"small", 0)
        assert disk.inline_write_bytes == SMALL_WRITE_BYTES
        file.write(b"small", 0)
        assert disk.inline_write_bytes == -1

    trio.run(main)


def test_a_disk_holds_up_nobody_because_threads_wait_for_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write of the loop waits for the lock that the other threads have; Linux counts that."""
    monkeypatch.setattr(system, "throttles_writers", lambda: False)
    monkeypatch.setattr(system, "SLOW_WRITE_S", 0.0)
    disk, records = RealDisk(), bytes(4 << 20)
    file = disk.open(str(tmp_path / "f"), create=True)
    is_over = threading.Event()

    started: list[int] = []

    def keep_busy() -> None:
        started.append(1)
        while not is_over.is_set():
            pass

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(disk.run, keep_busy)
            while len(started) < 2:
                await trio.lowlevel.checkpoint()
            try:
                file.write(records, 0)  # from then on the waits of a write are counted
                before = waits_of_thread()
                while waits_of_thread() < before + 3:  # the threads have the lock
                    file.write(records, 0)
                    assert disk.inline_write_bytes == sys.maxsize
            finally:
                is_over.set()

    trio.run(main)


def test_a_disk_holds_up_nobody_because_the_cpu_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, device = RealDisk(), Device(monkeypatch)
    file = disk.open(str(tmp_path / "f"), create=True)
    device.write_s = 1.5 * SLOW_WRITE_S
    for _ in range(4):
        file.write(b"slow", 0)
    assert disk.watched_until > device.now
    assert disk.inline_write_bytes == sys.maxsize


@pytest.mark.parametrize(
    ("text", "throttles"),
    [
        ("nr_dirty 60\nnr_writeback 20\nnr_other 1\n{}", True),
        ("nr_dirty 40\nnr_writeback 20\n{}", False),
        ("nr_dirty 60\n{}", False),
        ("nr_dirty many\nnr_writeback 20\n{}", False),
        ("nr_dirty\n\nnr_writeback 20\n{}", False),
        ("", False),
    ],
)
def test_what_linux_says_of_dirty_pages_is_read_or_unknown(
    tmp_path: Path, text: str, throttles: bool
) -> None:
    limits = "nr_dirty_threshold 100\nnr_dirty_background_threshold 50\n"
    (tmp_path / "vmstat").write_text(text.format(limits))
    assert throttles_writers(str(tmp_path / "vmstat")) is throttles
    assert not throttles_writers(str(tmp_path / "missing"))
