"""The split of byte streams into frames."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.protocol.frames import (
    INITIAL_BYTES,
    POOL_MAX_LENT,
    POOLED_BYTES,
    BufferPool,
    FrameBuffer,
)

LIMIT = 10_000_000


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def receive(buffer: FrameBuffer, data: bytes) -> int:
    """Put as many bytes of `data` into the buffer as fit; return their number."""
    room = buffer.writable()
    assert len(room) > 0
    count = min(len(room), len(data))
    room[:count] = data[:count]
    buffer.received(count)
    assert not buffer.is_empty
    return count


def drain(buffer: FrameBuffer) -> list[bytes]:
    frames = []
    while (frame := buffer.next_frame()) is not None:
        frames.append(bytes(frame))
        assert buffer.is_empty == (buffer.pending_bytes == 0)
    return frames


@settings(deadline=None)
@given(
    contents=st.lists(st.one_of(st.binary(max_size=30), st.just(b"x" * 3000)), max_size=8),
    cuts=st.lists(st.integers(1, 700), min_size=1, max_size=20),
    initial=st.integers(4, 64),
)
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    contents: list[bytes], cuts: list[int], initial: int
) -> None:
    stream = b"".join(framed(content) for content in contents)
    buffer = FrameBuffer(LIMIT, initial)
    frames, turn = [], 0
    while stream:
        count = receive(buffer, stream[: cuts[turn % len(cuts)]])
        stream, turn = stream[count:], turn + 1
        frames += drain(buffer)
    assert frames == contents
    assert buffer.pending_bytes == 0
    assert buffer.claimed_bytes == 0


def test_many_frames_of_one_receive_are_views_of_one_buffer() -> None:
    buffer = FrameBuffer(LIMIT)
    receive(buffer, framed(b"one") + framed(b"") + framed(b"two") + b"\0\0\0")
    first, empty, second = (buffer.next_frame() for _ in range(3))
    assert (bytes(first), bytes(empty), bytes(second)) == (b"one", b"", b"two")
    assert first.obj is second.obj
    assert buffer.next_frame() is None
    assert buffer.pending_bytes == 3
    assert buffer.claimed_bytes == 0


def test_a_claim_of_much_costs_nothing_before_the_bytes_arrive() -> None:
    buffer = FrameBuffer(LIMIT)
    receive(buffer, struct.pack(">i", LIMIT))
    assert buffer.next_frame() is None
    assert buffer.claimed_bytes == LIMIT + 4
    buffer.writable()
    assert buffer.buffer_bytes == INITIAL_BYTES
    received = 4
    while received < LIMIT + 4:
        received += receive(buffer, bytes(min(65536, LIMIT + 4 - received)))
        assert buffer.buffer_bytes <= max(INITIAL_BYTES, POOLED_BYTES, 2 * received)
        if received < LIMIT + 4:
            assert buffer.next_frame() is None
    assert buffer.buffer_bytes == LIMIT + 4
    assert len(buffer.next_frame()) == LIMIT


def test_a_large_buffer_is_given_back_and_used_again() -> None:
    pool = BufferPool()
    used = []
    for _ in range(3):
        buffer = FrameBuffer(LIMIT, pool=pool)
        data = framed(bytes(300_000))
        while data:
            data = data[receive(buffer, data) :]
            frames = drain(buffer)
        assert frames == [bytes(300_000)]
        assert buffer.buffer_bytes == POOLED_BYTES
        used.append(buffer._view.obj)
        buffer.writable()
        assert buffer.buffer_bytes == INITIAL_BYTES
    assert used[0] is used[1] is used[2]


def test_a_larger_buffer_is_kept_up_to_a_size() -> None:
    buffer = FrameBuffer(LIMIT, kept_bytes=2 * POOLED_BYTES)
    used = []
    for size in (3 * POOLED_BYTES // 2, 3 * POOLED_BYTES // 2, 10, POOLED_BYTES):
        data = framed(bytes(size))
        while data:
            data = data[receive(buffer, data) :]
            frames = drain(buffer)
        assert frames == [bytes(size)]
        used.append(buffer._view.obj)
    assert all(each is used[0] for each in used)
    data = framed(bytes(3 * POOLED_BYTES))
    while data:
        data = data[receive(buffer, data) :]
        frames = drain(buffer)
    assert frames == [bytes(3 * POOLED_BYTES)]
    buffer.writable()
    assert buffer.buffer_bytes == INITIAL_BYTES


def test_the_pool_keeps_only_so_many_of_its_own_size() -> None:
    pool = BufferPool(max_free=2)
    buffers = [pool.take() for _ in range(3)]
    for buffer in (*buffers, memoryview(bytearray(10))):
        pool.give(buffer)
    assert pool.take() is buffers[1]
    assert pool.take() is buffers[0]
    fresh = pool.take()
    assert all(fresh is not buffer for buffer in buffers)


def test_what_follows_a_large_frame_is_kept() -> None:
    buffer = FrameBuffer(LIMIT)
    rest = framed(b"small")
    data = framed(bytes(100_000)) + rest
    frames: list[bytes] = []
    while data:
        data = data[receive(buffer, data[:7001]) :]
        frames += drain(buffer)
    assert frames == [bytes(100_000), b"small"]


@settings(deadline=None)
@given(
    contents=st.lists(st.one_of(st.binary(max_size=30), st.just(b"x" * 3000)), max_size=8),
    cuts=st.lists(st.integers(1, 700), min_size=1, max_size=20),
    steps=st.lists(st.sampled_from(("borrow", "rest", "shrink", "")), min_size=1, max_size=20),
)
def test_frames_come_out_as_they_went_in_wherever_their_buffer_comes_from(
    contents: list[bytes], cuts: list[int], steps: list[str]
) -> None:
    stream = b"".join(framed(content) for content in contents)
    buffer = FrameBuffer(LIMIT, 64)
    frames, turn = [], 0
    while stream:
        if step := steps[turn % len(steps)]:
            getattr(buffer, step)()
        count = receive(buffer, stream[: cuts[turn % len(cuts)]])
        stream, turn = stream[count:], turn + 1
        frames += drain(buffer)
    assert frames == contents
    assert buffer.pending_bytes == 0


def test_a_borrowed_buffer_takes_all_that_has_come_and_goes_back() -> None:
    pool = BufferPool()
    lent = pool.take()
    pool.give(lent)
    for contents in ([b"x" * 20_000, b"y" * 20_000], [b"small"]):
        buffer = FrameBuffer(LIMIT, pool=pool)
        assert buffer.buffer_bytes == 0
        stream = b"".join(map(framed, contents))
        buffer.borrow()
        assert receive(buffer, stream + b"\0\0") == len(stream) + 2
        assert drain(buffer) == contents
        assert buffer.pending_bytes == 2
        buffer.rest()
        assert buffer.buffer_bytes == INITIAL_BYTES  # room for the pending bytes
        assert pool.take() is lent
        pool.give(lent)
        receive(buffer, b"\0\1z")
        assert drain(buffer) == [b"z"]


def test_when_many_buffers_are_lent_small_ones_will_do() -> None:
    pool = BufferPool()
    many = [FrameBuffer(LIMIT, pool=pool) for _ in range(POOL_MAX_LENT + 1)]
    for buffer in many:
        buffer.borrow()
        receive(buffer, framed(bytes(20_000))[:15_000])
        assert drain(buffer) == []
        buffer.rest()
    assert [b.buffer_bytes for b in many[-2:]] == [POOLED_BYTES, INITIAL_BYTES]
    many[0].close()
    many[-1].borrow()
    assert many[-1].buffer_bytes == POOLED_BYTES
    for buffer in many:
        buffer.close()
    assert pool.lent == 0


def test_only_streams_that_bring_much_need_a_large_buffer() -> None:
    buffer = FrameBuffer(LIMIT)
    stream = framed(bytes(20_000))
    while stream:
        assert not buffer.has_much or len(stream) < 20_004
        stream = stream[receive(buffer, stream) :]
        frames = drain(buffer)
    assert frames == [bytes(20_000)]
    assert buffer.has_much
    for content, is_much in ((bytes(20_000), True), (b"small", False)):
        buffer.rest()
        buffer.borrow()
        receive(buffer, framed(content))
        assert drain(buffer) == [content]
        buffer.rest()
        assert buffer.has_much == is_much


def test_who_rests_without_a_part_of_a_frame_holds_no_buffer() -> None:
    buffer = FrameBuffer(LIMIT)
    buffer.borrow()
    receive(buffer, framed(b"all of it"))
    assert drain(buffer) == [b"all of it"]
    buffer.rest()
    assert buffer.buffer_bytes == 0
    assert not buffer.is_full


def test_much_of_a_frame_stays_where_it_is_unless_it_has_to_wait() -> None:
    buffer = FrameBuffer(LIMIT)
    data = framed(bytes(range(250)) * 1000)
    buffer.borrow()
    receive(buffer, data[:100_000])
    assert buffer.next_frame() is None
    buffer.rest()
    assert buffer.buffer_bytes == POOLED_BYTES
    buffer.shrink()
    assert buffer.buffer_bytes == 100_000
    buffer.borrow()
    assert receive(buffer, data[100_000:]) == len(data) - 100_000
    assert drain(buffer) == [data[4:]]


def test_a_frame_is_void_at_the_next_receive() -> None:
    buffer = FrameBuffer(LIMIT)
    receive(buffer, framed(b"held"))
    held = buffer.next_frame()
    receive(buffer, framed(b"next"))
    assert bytes(held) == b"next"


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (b"\xff\xff\xff\xff", "-1 is negative"),
        (struct.pack(">i", LIMIT + 1), f"exceed the limit of {LIMIT}"),
        (b"GET / HTTP/1.1\r\n", "the peer speaks HTTP, not the Kafka protocol"),
        (b"\x16\x03\x01\x02\x00\x01", "the peer speaks TLS"),
        (b"SSH-2.0-OpenSSH", "the peer speaks SSH"),
    ],
)
def test_sizes_that_make_no_sense_are_wire_errors(start: bytes, text: str) -> None:
    buffer = FrameBuffer(LIMIT)
    receive(buffer, start)
    with pytest.raises(WireError, match=text):
        buffer.next_frame()


def test_the_largest_frame_allowed_passes() -> None:
    buffer = FrameBuffer(100, 8)
    data = framed(b"x" * 100)
    while data:
        assert drain(buffer) == []
        data = data[receive(buffer, data) :]
    assert drain(buffer) == [b"x" * 100]
