"""Messages between voters: msgpack arrays of a type number and the fields.

    1  PreVoteRequest         asks whether the peer would vote for the sender
    2  PreVoteResponse
    3  VoteRequest            from a candidate
    4  VoteResponse           a granted vote; a refused vote is not answered
    5  AppendEntries          entries after a position; none to announce leader and commit index
    6  Heartbeat              announces the leader to a peer whose log position is unknown
    7  AppendResponse         to AppendEntries and Heartbeat
    8  SnapshotChunk          part of a snapshot file
    9  SnapshotChunkResponse

Entries have no index: they follow the position. Type, number and types of fields, and all sizes are
checked; any other message is malformed. A response has the term of the request, or a later term,
which makes the sender of the request step down.
"""

from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from metaquorum.quorum.raft.peers import MAX_MESSAGE_BYTES, PeerProtocolError
from metaquorum.quorum.storage.journal_ops import MAX_PAYLOAD_BYTES

MAX_ENTRIES: Final = 1_024
MAX_ENTRIES_BYTES: Final = 1 << 20  # sum of payloads; a single entry may be larger
PIECE_BYTES: Final = 256 << 10
_INT64_MAX: Final = 2**63 - 1


class LogMatch(IntEnum):
    """Statement of an `AppendResponse` about its sender's log."""

    MATCHED = 0  # all of the leader's entries before `next_index` are durable in it
    REFUSED = 1  # the entries do not match, or cannot be stored now; retry from `next_index`
    HEARD = 2  # no statement; the sender follows the leader


class ChunkStatus(IntEnum):
    """Result in a `SnapshotChunkResponse`."""

    CONTINUE = 0  # `value` is the offset of the next chunk
    HAVE = 1  # the log equals the leader's up to entry `value`, the snapshot's last or a later one
    FAILED = 2  # restart the transfer later
    DAMAGED = 3  # restart the transfer with another snapshot


class PreVoteRequest(NamedTuple):
    term: int
    last_index: int
    last_term: int


class PreVoteResponse(NamedTuple):
    term: int  # term of the sender
    asked_term: int
    is_granted: bool


class VoteRequest(NamedTuple):
    term: int
    last_index: int
    last_term: int


class VoteResponse(NamedTuple):
    term: int


class AppendEntries(NamedTuple):
    """Entries from the leader. `round` numbers its messages; responses repeat it."""

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
    """Part of a snapshot file. The snapshot includes all entries up to `last_index`."""

    term: int
    transfer: int  # number of this transfer
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
    """Decode a message. Raises PeerProtocolError if it is malformed."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise PeerProtocolError(f"a Raft message of {len(data)} bytes exceeds the limit")
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
        raise PeerProtocolError(f"a Raft message is not msgpack ({error})") from None
    if type(row) is not tuple or not row:
        raise PeerProtocolError("a Raft message is not an array")
    if type(row[0]) is not int or not 1 <= row[0] <= len(_KINDS):
        raise PeerProtocolError("a Raft message has an unknown type")
    try:
        return _message(_KINDS[row[0] - 1], row[1:])
    except ValueError as error:
        raise PeerProtocolError(f"{_KINDS[row[0] - 1].__name__}: {error}") from None


def _message(kind: type[Message], fields: tuple[Any, ...]) -> Message:
    if len(fields) != len(kind._fields):
        raise ValueError("wrong number of fields")
    if kind is AppendEntries:
        term, number, index, index_term, commit_index = _numbers(fields[:-1])
        return AppendEntries(
            term, number, index, index_term, commit_index, _entries(fields[-1], term)
        )
    if kind is SnapshotChunk:
        return _piece(_numbers(fields[:-1]), fields[-1])
    if kind is PreVoteResponse:
        if type(fields[2]) is not bool:
            raise ValueError("is_granted is not a boolean")
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
            raise ValueError("a field is not a number from 0 to 2**63 - 1")
    return list(fields)


def _entries(flat: Any, last_term: int) -> tuple[tuple[int, bytes], ...]:
    if type(flat) is not tuple or len(flat) % 2:
        raise ValueError("entries are not an array of terms and payloads")
    terms, payloads = flat[::2], flat[1::2]
    _numbers(terms)
    if any(type(payload) is not bytes for payload in payloads):
        raise ValueError("the payload of an entry is not bytes")
    if any(before > after for before, after in zip(terms, (*terms[1:], last_term), strict=False)):
        raise ValueError("terms of entries decrease")
    return tuple(zip(terms, payloads, strict=True))


def _piece(numbers: list[int], data: Any) -> SnapshotChunk:
    if type(data) is not bytes or not 0 < len(data) <= PIECE_BYTES:
        raise ValueError("the data is empty or larger than a chunk may be")
    term, transfer, last_index, last_term, end_offset, file_bytes, offset = numbers
    if offset + len(data) > file_bytes:
        raise ValueError("the data extends beyond the end of the file")
    return SnapshotChunk(
        term, transfer, last_index, last_term, end_offset, file_bytes, offset, data
    )
