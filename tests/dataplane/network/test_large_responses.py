"""Responses with records of segment files: parts, sent in the step as far as the socket takes them.

The socket is played: a script says how many bytes it takes of each send. The files are real.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.log.segments.files import LogFile, OpenFiles
from metaquorum.dataplane.log.segments.slices import LogSlice
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.pipeline import (
    COPY_LIMIT_BYTES,
    MAX_PARTS_AT_ONCE,
    SEND_AT_BYTES,
    Wait,
    read_at_once,
)
from metaquorum.dataplane.network.replies import DelayedReply, Parts, PendingReply, Reply
from metaquorum.dataplane.network.response_sender import (
    COLD_READ_BYTES,
    PARTS_PER_LOOK,
    PARTS_PER_SEND,
    STEP_BYTES,
    ResponseSender,
)
from metaquorum.dataplane.network.unread_responses import UnreadResponses
from metaquorum.dataplane.scheduling.time_slices import SLICE_CPU_S, TimeSlicer
from metaquorum.runtime import Buffer, File, StorageError
from metaquorum.runtime.system import RealDisk, RealFile
from metaquorum.security.tls_context import client_context, server_context
from tests.dataplane.network.test_pipeline import Handler, PlayedConnection, Setting, framed
from tests.dataplane.serving import in_trio
from tests.examples import examples
from tests.metaquorum.security.certificates import Authority
from tests.metaquorum.security.test_tls import read_all, tls_pair
from tests.nodes import PATIENCE_S

FILE_BYTES: Final = 7 << 20
CONTENT: Final = os.urandom(1 << 16) * (FILE_BYTES >> 16)
ALL: Final = 1 << 30


class ScriptedConnection(PlayedConnection):
    """A socket that takes `script[i]` bytes at most of the i-th send, then all bytes.

    The task's sends wait for a turn of the event loop after each send that was cut short.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        super().__init__()
        self.writable.set()
        self.script = list(script)
        self.offered = 0  # number of sends
        self.in_task_bytes = 0  # bytes that the task had to send

    def call_when_writable(self, step: Callable[[], bool]) -> bool:
        self.blocked = step
        return True

    def send_nowait(self, data: Buffer) -> int:
        self.offered += 1
        taken = min(len(data), self.script.pop(0) if self.script else ALL)
        self.sent += data[:taken]
        return taken

    async def send(self, data: Buffer) -> None:
        rest = memoryview(data)
        self.in_task_bytes += len(rest)
        while rest:
            rest = rest[self.send_nowait(rest) :]
            await trio.lowlevel.checkpoint()


class ProbedDisk(RealDisk):
    """A disk on which the i-th probe of the page cache fails if `cold[i]`."""

    def __init__(self) -> None:
        self.cold: list[bool] = []
        self.probes = 0

    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        assert isinstance(file, RealFile)
        return ProbedFile(path, file.fileno(), self)


class ProbedFile(RealFile):
    __slots__ = ("_disk",)

    def __init__(self, path: str, fd: int, disk: ProbedDisk) -> None:
        super().__init__(path, fd, disk)
        self._disk = disk

    def is_cached(self, size: int, position: int) -> bool:
        self._disk.probes += 1
        return not (self._disk.cold and self._disk.cold.pop(0))


class Segment:
    """A segment file of FILE_BYTES, and a sender of its records."""

    def __init__(self, folder: Path) -> None:
        self.disk = ProbedDisk()
        self.files = OpenFiles(self.disk, str(folder))
        (folder / "0.log").write_bytes(CONTENT)
        self.file = LogFile(self.files, str(folder), "0.log")
        self.used_s = 0.0
        self.unread = UnreadResponses()
        self.network = ScriptedConnection()
        self.slicer = TimeSlicer(lambda: self.used_s)
        self.sender = ResponseSender(self.network, self.disk, self.unread, self)

    def close_unread(self, unread_bytes: int) -> None:
        raise AssertionError

    def slice(self, size_bytes: int, position: int = 0) -> LogSlice:
        return LogSlice(self.file, position, size_bytes, 0)

    def send_nowait(self, parts: Parts, limit_bytes: int = STEP_BYTES) -> int:
        self.slicer.start()
        return self.sender.send_parts_nowait(parts, limit_bytes, self.slicer)


@contextmanager
def a_segment(folder: Path) -> Iterator[Segment]:
    segment = Segment(folder)
    try:
        yield segment
    finally:
        segment.sender.close()
        assert not segment.file.is_pinned
        segment.files.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    with a_segment(tmp_path) as made:
        yield made


def content(parts: Parts) -> bytes:
    pieces = []
    for part in parts:
        if isinstance(part, LogSlice):
            part = CONTENT[part.position : part.position + part.size_bytes]
        assert isinstance(part, bytes)
        pieces.append(part)
    return b"".join(pieces)


@st.composite
def drawn_parts(draw: st.DrawFn, segment: Segment) -> Parts:
    """Bytes and slices with sizes around each limit."""
    sizes = st.one_of(
        st.integers(0, 300),
        st.sampled_from(
            [
                limit + more
                for limit in (COPY_LIMIT_BYTES, SEND_AT_BYTES, COLD_READ_BYTES, STEP_BYTES)
                for more in (-1, 0, 1, 1000)
            ]
        ),
    )
    parts: Parts = []
    for size in draw(st.lists(sizes, max_size=6)):
        position = draw(st.integers(0, 5000))
        if draw(st.booleans()):
            parts.append(segment.slice(size, position))
        else:
            parts.append(CONTENT[position : position + min(size, SEND_AT_BYTES + 1)])
    return parts


taken_bytes = st.one_of(
    st.just(ALL),
    st.just(0),
    st.integers(0, 300),
    st.integers(0, COLD_READ_BYTES),
)
scripts = st.lists(taken_bytes, max_size=8)
probes = st.lists(st.booleans(), max_size=8)


@examples(150)
@given(data=st.data())
def test_a_step_sends_a_prefix_and_leaves_the_rest(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with a_segment(tmp_path_factory.mktemp("log")) as segment:
        parts = data.draw(drawn_parts(segment))
        whole = content(parts)
        sent = segment.network.sent
        for _ in range(data.draw(st.integers(1, 3))):
            segment.network.script = data.draw(scripts)
            segment.disk.cold = data.draw(probes)
            before = len(sent)
            count = segment.send_nowait(parts)
            assert len(sent) - before == count < STEP_BYTES + COLD_READ_BYTES
            assert bytes(sent) + content(parts) == whole
            # Only a slice of which a part is sent or refused by the socket keeps its file open.
            if not parts or isinstance(parts[0], bytes):
                assert not segment.file.is_pinned
        segment.network.script = data.draw(scripts)

        async def main() -> None:
            await segment.sender.send_parts(parts, segment.slicer)

        trio.run(main)
        assert bytes(sent) == whole
        assert not segment.file.is_pinned
        assert not segment.unread.used_bytes


class Fetches(Handler):
    """A handler that answers "F0", "F1" ... with parts, other frames as `Handler`."""

    def __init__(self, responses: list[Parts]) -> None:
        super().__init__()
        self.responses = responses

    def __call__(self, frame: memoryview, client: Client) -> Reply | PendingReply | DelayedReply:
        request = bytes(frame)
        if request[:1] != b"F":
            return super().__call__(frame, client)
        return list(self.responses[int(request[1:])])


@examples(80)
@given(data=st.data())
def test_pipelined_fetches_are_answered_in_order_whatever_the_socket_takes(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with a_segment(tmp_path_factory.mktemp("log")) as segment:
        responses = [data.draw(drawn_parts(segment)) for _ in range(3)]
        frames = data.draw(st.lists(st.sampled_from([b"F0", b"F1", b"F2", b"a", b"n"]), max_size=8))
        expected = b"".join(
            content(responses[int(frame[1:])]) if frame[:1] == b"F" else frame
            for frame in frames
            if frame != b"n"
        )
        script, cold = data.draw(scripts), data.draw(probes)

        async def main() -> None:
            setting = Setting()
            network = ScriptedConnection(script)
            setting.handler = Fetches(responses)
            segment.disk.cold = cold
            whole = framed(*frames)
            cut = data.draw(st.integers(0, len(whole)))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(setting.another(network).serve)
                for piece in (whole[:cut], whole[cut:]):
                    if piece:
                        network.feed(piece)
                        await trio.testing.wait_all_tasks_blocked(0.001)
                with trio.fail_after(PATIENCE_S):  # cold reads are in worker threads
                    while len(network.sent) < len(expected):
                        await trio.lowlevel.checkpoint()
                network.end()
            assert bytes(network.sent) == expected
            assert not setting.unread.used_bytes

        trio.run(main)


@in_trio
async def test_the_rest_is_sent_in_steps_when_the_socket_takes_bytes_again(
    tmp_path: Path,
) -> None:
    with a_segment(tmp_path) as segment:
        setting = Setting()
        network = ScriptedConnection([4, 300_000, 0, 500_000, 200_000])
        response: Parts = [b"head", segment.slice(1 << 20), b"tail"]
        setting.handler = Fetches([response])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(setting.another(network).serve)
            network.feed(framed(b"F0", b"a"))
            await trio.testing.wait_all_tasks_blocked()
            assert bytes(network.sent) == content(response) + b"a"
            assert (network.pumps, network.in_task_bytes) == (1, 0)
            network.end()


@in_trio
async def test_a_connection_that_waits_for_its_socket_is_drained(tmp_path: Path) -> None:
    with a_segment(tmp_path) as segment:
        setting = Setting()
        network = ScriptedConnection([4, 300_000])
        response: Parts = [b"head", segment.slice(1 << 20), b"tail"]
        setting.handler = Fetches([response])
        network.writable = trio.Event()
        connection = setting.another(network)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.serve)
            network.feed(framed(b"F0", b"a"))
            await trio.testing.wait_all_tasks_blocked()
            assert (len(network.sent), connection.waits_for) == (4 + 300_000, Wait.RESPONSE)
            connection.drain()
            network.writable.set()
        assert bytes(network.sent) == content(response) + b"a"


def test_a_whole_response_is_sent_in_the_step(segment: Segment) -> None:
    parts: Parts = [b"head", segment.slice(1 << 20), b"tail"]
    whole = content(parts)
    assert segment.send_nowait(parts) == len(whole)
    assert (parts, bytes(segment.network.sent), segment.network.offered) == ([], whole, 3)
    assert segment.sender.sent_pieces == 1
    assert not segment.file.is_pinned


def test_a_step_sends_no_more_than_its_limit(segment: Segment) -> None:
    """The task sends the rest, one piece per turn of the event loop."""
    parts: Parts = [b"head", segment.slice(FILE_BYTES)]
    assert segment.send_nowait(parts) == 4 + (5 << 20)
    (rest,) = parts
    assert isinstance(rest, LogSlice)
    assert (rest.position, rest.size_bytes) == (5 << 20, FILE_BYTES - (5 << 20))


def test_a_step_sends_a_usual_response_for_four_partitions(segment: Segment) -> None:
    parts: Parts = []
    for _ in range(4):
        parts += [bytes(50), segment.slice(1 << 20)]
    parts.append(b"tail")
    assert segment.send_nowait(parts) == (4 << 20) + 4 * 50 + 4
    assert not parts


def test_a_step_sends_nothing_more_after_its_time_slice(segment: Segment) -> None:
    class Slow(ScriptedConnection):
        def send_file_nowait(self, file: File, position: int, size: int) -> int:
            segment.used_s += SLICE_CPU_S
            return super().send_file_nowait(file, position, size)

    segment.sender.connection = segment.network = Slow()
    parts: Parts = [segment.slice(FILE_BYTES)]
    assert segment.send_nowait(parts) == COLD_READ_BYTES


def test_a_step_with_many_small_slices_ends_with_its_time_slice(segment: Segment) -> None:
    def cpu_s() -> float:
        segment.used_s += SLICE_CPU_S
        return segment.used_s

    segment.slicer = TimeSlicer(cpu_s)
    parts: Parts = [segment.slice(1, position) for position in range(3 * PARTS_PER_SEND)]
    assert segment.send_nowait(parts) == 2 * PARTS_PER_SEND  # the first check starts the slice
    assert content(parts) == CONTENT[2 * PARTS_PER_SEND : 3 * PARTS_PER_SEND]


@in_trio
async def test_the_task_sends_many_small_slices_in_several_turns(tmp_path: Path) -> None:
    """Whole small slices are gathered up to SEND_AT_BYTES, and the socket takes everything."""
    with a_segment(tmp_path) as segment:

        def cpu_s() -> float:
            segment.used_s += SLICE_CPU_S
            return segment.used_s

        segment.slicer = TimeSlicer(cpu_s)
        count = 10 * PARTS_PER_LOOK
        parts: Parts = [segment.slice(1, position) for position in range(count)]
        turns: list[int] = []  # parts that are read, at each turn of the event loop

        class TaskSteps(trio.abc.Instrument):
            def before_io_wait(self, timeout: float) -> None:
                turns.append(segment.disk.probes)

        trio.lowlevel.add_instrument(TaskSteps())
        await segment.sender.send_parts(parts, segment.slicer)
        assert bytes(segment.network.sent) == CONTENT[:count]
        steps = [after - before for before, after in pairwise([0, *turns, segment.disk.probes])]
        assert max(steps) <= 2 * PARTS_PER_LOOK  # the first check starts the slice


def test_a_response_with_many_parts_is_not_read_at_once(segment: Segment) -> None:
    for count, is_read in ((MAX_PARTS_AT_ONCE, True), (MAX_PARTS_AT_ONCE + 1, False)):
        parts: Parts = [segment.slice(1, position) for position in range(count)]
        assert read_at_once(parts) == (CONTENT[:count] if is_read else None)


def test_a_step_reads_no_page_that_is_not_cached(segment: Segment) -> None:
    for size in (COPY_LIMIT_BYTES, COPY_LIMIT_BYTES + 1):
        segment.disk.cold = [True] * 3
        parts: Parts = [b"head", segment.slice(size), b"tail"]
        assert segment.send_nowait(parts) == len(b"head")
        assert content(parts) == CONTENT[:size] + b"tail"


@in_trio
async def test_a_slice_sent_in_part_stays_readable_when_its_segment_is_deleted(
    tmp_path: Path,
) -> None:
    for size in (COPY_LIMIT_BYTES + 5, COLD_READ_BYTES + 5):
        for leaves in (1, 100_000):
            with a_segment(tmp_path) as segment:
                parts: Parts = [b"head", segment.slice(size), b"tail"]
                segment.network.script = [4, COLD_READ_BYTES - leaves]
                if size < COLD_READ_BYTES:
                    segment.network.script = [4, size - leaves]
                segment.send_nowait(parts)
                assert segment.file.is_pinned
                segment.file.remove()
                await segment.sender.send_parts(parts, segment.slicer)
                assert bytes(segment.network.sent) == b"head" + CONTENT[:size] + b"tail"
                assert not segment.file.is_pinned
                assert not segment.file.is_open


def test_a_slice_that_is_not_sent_to_the_end_is_unpinned_when_the_connection_closes(
    segment: Segment,
) -> None:
    segment.network.script = [1000]
    parts: Parts = [segment.slice(COLD_READ_BYTES)]
    assert segment.send_nowait(parts) == 1000
    assert segment.file.is_pinned
    segment.sender.close()
    assert not segment.file.is_pinned


def test_a_slice_of_a_removed_segment_raises_the_same_error_as_in_the_task(
    segment: Segment,
) -> None:
    segment.file.remove()
    with pytest.raises(EOFError, match="was removed"):
        segment.send_nowait([segment.slice(COLD_READ_BYTES)])
    # Small slices are left to the task.
    small = segment.slice(10)
    parts: Parts = [small]
    assert segment.send_nowait(parts) == 0
    assert parts == [small]


def test_a_file_that_cannot_be_opened_raises_a_storage_error(segment: Segment) -> None:
    segment.files.close()
    segment.files.shut()
    with pytest.raises(StorageError):
        segment.send_nowait([segment.slice(COLD_READ_BYTES)])


@in_trio
async def test_a_fetch_is_answered_without_the_task(tmp_path: Path) -> None:
    """The task is scheduled only for bytes in memory that the socket did not take."""
    for script, in_task_bytes in (([], 0), ([ALL, 1000], 0), ([1], 1 << 20)):
        with a_segment(tmp_path) as segment:
            setting = Setting()
            network = ScriptedConnection(script)
            setting.handler = Fetches([[b"head", segment.slice(1 << 20), b"tail"]])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(setting.another(network).serve)
                for _ in range(3):
                    network.feed(framed(b"F0"))
                    await trio.testing.wait_all_tasks_blocked()
                network.end()
            assert bytes(network.sent) == (b"head" + CONTENT[: 1 << 20] + b"tail") * 3
            assert network.in_task_bytes == in_task_bytes


class Fast(PlayedConnection):
    """A socket that is never full; each send takes a time slice."""

    used_s = 0.0

    def send_nowait(self, data: Buffer) -> int:
        self.used_s += SLICE_CPU_S
        return super().send_nowait(data)


async def longest_turn_s(segment: Segment, parts: Parts) -> float:
    """Send the parts; return the longest CPU time between two turns of another task."""
    segment.sender.connection = network = Fast()
    slicer = TimeSlicer(lambda: network.used_s)
    whole, turns_s = content(parts), [0.0]

    async def take_turns() -> None:
        while True:
            turns_s.append(network.used_s)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        await segment.sender.send_parts(parts, slicer)
        nursery.cancel_scope.cancel()
    assert bytes(network.sent) == whole
    return max(after - before for before, after in pairwise([*turns_s, network.used_s]))


@in_trio
async def test_the_task_lets_others_run_after_each_time_slice_of_sends_to_a_fast_reader(
    tmp_path: Path,
) -> None:
    """Each response takes 14 slices. Trio shuffles the tasks of a turn: two are sent at most."""
    small = [(COPY_LIMIT_BYTES, number * COPY_LIMIT_BYTES) for number in range(40)]
    for slices in ([(FILE_BYTES, 0)] * 2, small):
        with a_segment(tmp_path) as segment:
            parts: Parts = [segment.slice(*place) for place in slices]
            assert await longest_turn_s(segment, parts) < 6 * SLICE_CPU_S


@in_trio
async def test_the_rest_is_sent_where_the_step_ended_with_tls(
    tmp_path: Path, authority: Authority
) -> None:
    """OpenSSL must be given the bytes again that it has encrypted and the socket has not taken."""
    files = authority.files("node")
    head = CONTENT[: 4 << 20]  # more than the socket takes
    for parts in (
        [head, b"between", b"tail"],
        [b"head", COPY_LIMIT_BYTES + 1, b"tail"],
        [head, COPY_LIMIT_BYTES, COLD_READ_BYTES + 1, b"tail"],
    ):
        with a_segment(tmp_path) as segment:
            asked: Parts = [
                segment.slice(part) if isinstance(part, int) else part for part in parts
            ]
            whole = content(asked)
            async with tls_pair(server_context(files), client_context(files)) as (ours, theirs):
                segment.sender.connection = ours
                assert 0 < segment.send_nowait(asked) < len(whole)
                async with trio.open_nursery() as nursery:

                    async def send(segment: Segment = segment, asked: Parts = asked) -> None:
                        await segment.sender.send_parts(asked, segment.slicer)
                        segment.sender.connection.close()

                    nursery.start_soon(send)
                    assert await read_all(theirs) == whole
