"""What voters say to each other, as msgpack arrays: a number for the kind, then its fields.

    1  PreVote         would you vote for me in this term?
    2  PreVoteAnswer
    3  VoteRequest     a candidate's
    4  Vote            granted; what is not granted is not answered
    5  Append          entries behind a position, or none: then it only says who leads
    6  Heartbeat       who leads, to a peer whose log the leader does not know yet
    7  Answer          to Append and Heartbeat
    8  Piece           of a snapshot's file
    9  PieceAnswer

Entries have no index of their own: they follow on the position. Nothing else is understood; kinds,
number and types of fields, and all sizes are checked. A message is only ever answered in the term
it was sent in, or with a later term, upon which its sender gives way.
"""

from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from metaquorum.raft.peers import MAX_MESSAGE_BYTES, PeerProtocolError
from metaquorum.storage.journal_ops import MAX_PAYLOAD_BYTES

MAX_ENTRIES: Final = 1_024
MAX_ENTRIES_BYTES: Final = 1 << 20  # of payloads; a single entry may be larger
PIECE_BYTES: Final = 256 << 10
_INT64_MAX: Final = 2**63 - 1


class LogMatch(IntEnum):
    """What an `AppendResponse` says of the log of its sender."""

    MATCHED = 0  # it holds, durably, all of the leader's entries before `next_index`
    REFUSED = 1  # the entries do not fit, or cannot be taken now; try from `next_index`
    HEARD = 2  # nothing; it knows who leads


class ChunkStatus(IntEnum):
    """What a `SnapshotChunkResponse` says."""

    CONTINUE = 0  # `value` is the offset of the next piece
    HAVE = 1  # the log is as the leader's up to the entry `value`, the snapshot's or a later one
    FAILED = 2  # begin anew, later
    DAMAGED = 3  # begin anew, with another snapshot


class PreVoteRequest(NamedTuple):
    term: int
    last_index: int
    last_term: int


class PreVoteResponse(NamedTuple):
    term: int  # of its sender
    asked_term: int
    is_granted: bool


class VoteRequest(NamedTuple):
    term: int
    last_index: int
    last_term: int


class VoteResponse(NamedTuple):
    term: int


class AppendEntries(NamedTuple):
    """`round` numbers what a leader sends; answers repeat it."""

    term: int
    round: int
    previous_index: int
    previous_term: int
    commit_index: int
    entries: tuple[tuple[int, bytes], ...]  # (term, payload)


class Heartbeat(NamedTuple):
    term: int
    round: int


class AppendResponse(NamedTuple):
    term: int
    round: int
    match: LogMatch
    next_index: int


class SnapshotChunk(NamedTuple):
    """Bytes of the file of a snapshot that holds everything up to its last entry."""

    term: int
    transfer: int  # names this sending of it
    last_index: int
    last_term: int
    end_offset: int
    file_bytes: int
    offset: int
    data: bytes


class SnapshotChunkResponse(NamedTuple):
    term: int
    transfer: int
    taken: ChunkStatus
    value: int


Message: TypeAlias = (
    PreVoteRequest
    | PreVoteResponse
    | VoteRequest
    | VoteResponse
    | AppendEntries
    | Heartbeat
    | AppendResponse
    | SnapshotChunk
    | SnapshotChunkResponse
)

_KINDS: Final[tuple[type[Message], ...]] = (
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
    AppendEntries,
    Heartbeat,
    AppendResponse,
    SnapshotChunk,
    SnapshotChunkResponse,
)
_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS, 1)}


def encode_message(message: Message) -> bytes:
    fields: list[Any] = list(message)
    if isinstance(message, AppendEntries):
        fields[-1] = [field for entry in message.entries for field in entry]
    packed = msgpack.packb([_NUMBERS[type(message)], *fields])
    assert isinstance(packed, bytes)
    assert len(packed) <= MAX_MESSAGE_BYTES
    return packed


def decode_message(data: bytes) -> Message:
    """PeerProtocolError."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise PeerProtocolError(f"a message of {len(data)} bytes")
    try:
        row = msgpack.unpackb(
            data,
            use_list=False,
            max_array_len=2 * MAX_ENTRIES,
            max_bin_len=MAX_PAYLOAD_BYTES,
            max_str_len=0,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise PeerProtocolError(f"no msgpack ({error})") from None
    if type(row) is not tuple or not row:
        raise PeerProtocolError("a message that is no array")
    if type(row[0]) is not int or not 1 <= row[0] <= len(_KINDS):
        raise PeerProtocolError("a message of no known kind")
    try:
        return _message(_KINDS[row[0] - 1], row[1:])
    except ValueError as error:
        raise PeerProtocolError(f"{_KINDS[row[0] - 1].__name__}: {error}") from None


def _message(kind: type[Message], fields: tuple[Any, ...]) -> Message:
    if len(fields) != len(kind._fields):
        raise ValueError("the wrong number of fields")
    if kind is AppendEntries:
        term, number, index, index_term, commit_index = _numbers(fields[:-1])
        return AppendEntries(
            term, number, index, index_term, commit_index, _entries(fields[-1], term)
        )
    if kind is SnapshotChunk:
        return _piece(_numbers(fields[:-1]), fields[-1])
    if kind is PreVoteResponse:
        if type(fields[2]) is not bool:
            raise ValueError("neither granted nor refused")
        term, asked_term = _numbers(fields[:2])
        return PreVoteResponse(term, asked_term, is_granted=fields[2])
    numbers = _numbers(fields)
    if kind is AppendResponse:
        return AppendResponse(numbers[0], numbers[1], LogMatch(numbers[2]), numbers[3])
    if kind is SnapshotChunkResponse:
        return SnapshotChunkResponse(numbers[0], numbers[1], ChunkStatus(numbers[2]), numbers[3])
    simple: Any = kind
    message: Message = simple(*numbers)
    return message


def _numbers(fields: Any) -> list[int]:
    for field in fields:
        if type(field) is not int or not 0 <= field <= _INT64_MAX:
            raise ValueError("a field that is no number")
    return list(fields)


def _entries(flat: Any, last_term: int) -> tuple[tuple[int, bytes], ...]:
    if type(flat) is not tuple or len(flat) % 2:
        raise ValueError("entries that are none")
    terms, payloads = flat[::2], flat[1::2]
    _numbers(terms)
    if any(type(payload) is not bytes for payload in payloads):
        raise ValueError("an entry that is no bytes")
    if any(before > after for before, after in zip(terms, (*terms[1:], last_term), strict=False)):
        raise ValueError("terms that go back")
    return tuple(zip(terms, payloads, strict=True))


def _piece(numbers: list[int], data: Any) -> SnapshotChunk:
    if type(data) is not bytes or not 0 < len(data) <= PIECE_BYTES:
        raise ValueError("a piece of the wrong size")
    term, transfer, last_index, last_term, end_offset, file_bytes, offset = numbers
    if offset + len(data) > file_bytes:
        raise ValueError("a piece beyond the end")
    return SnapshotChunk(
        term, transfer, last_index, last_term, end_offset, file_bytes, offset, data
    )
