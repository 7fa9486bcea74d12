"""Messages of peers: each decodes to itself, and malformed ones are rejected."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.quorum.raft.messages import (
    MAX_ENTRIES,
    PIECE_BYTES,
    AppendEntries,
    AppendResponse,
    ChunkStatus,
    Heartbeat,
    LogMatch,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    SnapshotChunk,
    SnapshotChunkResponse,
    VoteRequest,
    VoteResponse,
    decode_message,
    encode_message,
)
from metaquorum.quorum.raft.peers import MAX_MESSAGE_BYTES, PeerProtocolError

NUMBERS = st.integers(0, 2**63 - 1)


@st.composite
def appends(draw: st.DrawFn) -> AppendEntries:
    terms = sorted(draw(st.lists(st.integers(0, 9), max_size=5)))
    entries = tuple((term, draw(st.binary(max_size=20))) for term in terms)
    return AppendEntries(draw(st.integers(9, 20)), *(draw(NUMBERS) for _ in range(4)), entries)


@st.composite
def pieces(draw: st.DrawFn) -> SnapshotChunk:
    data, offset = draw(st.binary(min_size=1, max_size=50)), draw(st.integers(0, 1000))
    numbers = [draw(NUMBERS) for _ in range(5)]
    return SnapshotChunk(*numbers, offset + len(data) + draw(st.integers(0, 9)), offset, data)


MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(PreVoteRequest, NUMBERS, NUMBERS, NUMBERS),
    st.builds(PreVoteResponse, NUMBERS, NUMBERS, st.booleans()),
    st.builds(VoteRequest, NUMBERS, NUMBERS, NUMBERS),
    st.builds(VoteResponse, NUMBERS),
    appends(),
    st.builds(Heartbeat, NUMBERS, NUMBERS),
    st.builds(AppendResponse, NUMBERS, NUMBERS, st.sampled_from(LogMatch), NUMBERS),
    pieces(),
    st.builds(SnapshotChunkResponse, NUMBERS, NUMBERS, st.sampled_from(ChunkStatus), NUMBERS),
)


@given(MESSAGES)
def test_a_message_is_read_as_it_was_written(message: Message) -> None:
    decoded = decode_message(encode_message(message))
    assert decoded == message
    assert type(decoded) is type(message)


@given(MESSAGES, st.data())
def test_no_other_bytes_do_more_than_close_the_peer(message: Message, data: st.DataObject) -> None:
    encoded = bytearray(encode_message(message))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    for damaged in (bytes(encoded), bytes(encoded[:cut]), bytes(encoded) + b"\x00"):
        try:
            decode_message(damaged)
        except PeerProtocolError:
            pass


@given(st.binary(max_size=60))
def test_noise_is_refused_or_is_a_message(noise: bytes) -> None:
    try:
        decode_message(noise)
    except PeerProtocolError:
        pass


@pytest.mark.parametrize(
    "row",
    [
        [],
        [0, 1],
        [10, 1],
        [True, 1],
        [4],
        [4, 1, 2],
        [4, -1],
        [4, 2**63],
        [4, 1.0],
        [4, True],
        [4, b"1"],
        [2, 1, 1, 1],
        [7, 1, 1, 9, 1],
        [9, 1, 1, 9, 1],
        [5, 3, 1, 1, 1, 1, [3]],
        [5, 3, 1, 1, 1, 1, [2, b"", 1, b""]],
        [5, 3, 1, 1, 1, 1, [4, b""]],
        [5, 3, 1, 1, 1, 1, [3, [b""]]],
        [5, 3, 1, 1, 1, 1, b""],
        [5, 3, 1, 1, 1, 1, [1, b""] * (MAX_ENTRIES + 1)],
        [8, 1, 1, 1, 1, 1, 9, 0, b""],
        [8, 1, 1, 1, 1, 1, 9, 8, b"ab"],
        [8, 1, 1, 1, 1, 1, 2**40, 0, bytes(PIECE_BYTES + 1)],
        {"type": 4},
        [[[[]]]],
        "text",
    ],
    ids=repr,
)
def test_what_no_voter_sends_is_refused(row: object) -> None:
    with pytest.raises(PeerProtocolError):
        decode_message(msgpack.packb(row))


def test_a_message_of_any_size_is_not_even_read() -> None:
    with pytest.raises(PeerProtocolError):
        decode_message(bytes(MAX_MESSAGE_BYTES + 1))
