"""Frames arrive as they were sent and in their order, or the stream ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.quorum.channel.frames import MAX_FRAME_BYTES, OVERHEAD_BYTES, Opener, Sealer
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.protocol.frames import FrameBuffer
from tests.examples import examples

KEY = bytes(range(32))
MESSAGES = [b"", b"a", b"bb" * 100, b"", b"c" * 20_000]


def sealed(messages: list[bytes], key: bytes = KEY) -> list[bytes]:
    sealer = Sealer(key)
    return [sealer.seal(message) + message for message in messages]


def opened(data: bytes, key: bytes = KEY) -> list[bytes]:
    """Return the messages before the first frame that is not authentic."""
    frames, opener, found = FrameBuffer(MAX_FRAME_BYTES), Opener(key), []
    rest = memoryview(data)
    while True:
        try:
            while (frame := frames.next_frame()) is not None:
                found.append(bytes(opener.open(frame)))
        except WireError:
            return found
        if not rest:
            return found
        space = frames.writable()
        count = min(len(space), len(rest))
        space[:count] = rest[:count]
        frames.received(count)
        rest = rest[count:]


def test_what_is_sealed_is_opened() -> None:
    frames = sealed(MESSAGES)
    assert opened(b"".join(frames)) == MESSAGES
    assert len(frames[0]) == OVERHEAD_BYTES


@pytest.mark.parametrize(
    "order", [[0, 1, 1, 2], [0, 2], [1, 0], [0, 1, 3], [2, 1, 0]], ids=lambda order: str(order)
)
def test_repeated_missing_or_moved_frames_are_noticed(order: list[int]) -> None:
    frames = sealed(MESSAGES)
    found = opened(b"".join(frames[index] for index in order))
    kept = 0
    while kept < len(order) and order[kept] == kept:
        kept += 1
    assert found == MESSAGES[:kept]


def test_frames_of_another_direction_are_not_believed() -> None:
    assert opened(b"".join(sealed(MESSAGES, b"another key" * 3))) == []


def test_a_size_beyond_the_bound_is_refused_before_its_bytes_come() -> None:
    frames = FrameBuffer(MAX_FRAME_BYTES)
    claim = (MAX_FRAME_BYTES + 1).to_bytes(4, "big")
    frames.writable()[:4] = claim
    frames.received(4)
    with pytest.raises(WireError, match="exceed"):
        frames.next_frame()


@examples(200)
@given(data=st.data())
def test_of_changed_bytes_only_what_is_before_the_change_is_believed(data: st.DataObject) -> None:
    frames = sealed(MESSAGES[:4])
    whole = bytearray(b"".join(frames))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    end, kept = 0, 0
    for frame in frames:
        end += len(frame)
        if end > at:
            break
        kept += 1
    assert opened(bytes(whole)) == MESSAGES[:kept]


@examples(200)
@given(st.binary(max_size=200))
def test_a_cut_stream_gives_whole_messages_only(tail: bytes) -> None:
    whole = b"".join(sealed(MESSAGES[:3]))
    cut = whole[: len(whole) - len(tail) % 60]
    assert opened(cut) in (MESSAGES[:2], MESSAGES[:3])
    assert opened(whole + tail)[:3] == MESSAGES[:3]
    assert len(opened(whole + tail)) == 3


@examples(100)
@given(st.binary(max_size=100))
def test_no_bytes_crash_the_opener(frame: bytes) -> None:
    with pytest.raises(WireError):
        Opener(KEY).open(memoryview(frame))
