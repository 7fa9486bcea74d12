"""Operations in the frames of a journal, as msgpack arrays.

Format 1. The body of a frame is the array of its operations:

    [0, index, term, payload]     entry at `index`, which follows the last one
    [1, term, vote]               hard state; vote -1 means no vote
    [2, end_index, term]          removal of entries from `end_index` on; `term` of the one before
    [3, index, term]              removal of all entries; the next one follows (index, term)
    [4, format, cluster_id, index, term, term', vote]
                                  header of a segment: the last entry so far, and the hard state
    [5]                           end marker of a clean shutdown
"""

from typing import Any, Final, TypeAlias

import msgpack

from metaquorum.wire.primitives.frozen import frozen

FORMAT: Final = 1
NO_VOTE: Final = -1
MAX_PAYLOAD_BYTES: Final = 4 << 20
MAX_FRAME_OPS: Final = 4096
MAX_CLUSTER_ID_CHARS: Final = 64
_INT64_MAX: Final = 2**63 - 1


@frozen
class LogPosition:
    """A position in the replicated log: after the entry at `index`, which has the term `term`."""

    index: int
    term: int


@frozen
class Entry:
    """One entry of the replicated log."""

    index: int
    term: int
    payload: bytes


@frozen
class HardState:
    """Durable state of a voter: its current term, and its vote in that term."""

    term: int
    vote: int


@frozen
class Truncate:
    """Removal of the entries from `end_index` on; the one before them has the term `last_term`."""

    end_index: int
    last_term: int


@frozen
class Reset:
    """Removal of all entries; the next one follows this position."""

    index: int
    term: int


@frozen
class Begin:
    """Header of a segment: the last log position before it, and the hard state."""

    format: int
    cluster_id: str
    index: int
    term: int
    hard_state: HardState


@frozen
class Closed:
    """End marker of a clean shutdown."""


Op: TypeAlias = Entry | HardState | Truncate | Reset | Begin | Closed


def op_bytes(op: Op) -> int:
    """Return an upper bound of the bytes that the operation takes in a frame."""
    return (
        64
        + (len(op.payload) if isinstance(op, Entry) else 0)
        + (4 * MAX_CLUSTER_ID_CHARS if isinstance(op, Begin) else 0)
    )


def encode_ops(ops: list[Op]) -> bytes:
    packed = msgpack.packb([_row(op) for op in ops])
    assert isinstance(packed, bytes)
    return packed


def _row(op: Op) -> tuple[object, ...]:
    match op:
        case Entry():
            return 0, op.index, op.term, op.payload
        case HardState():
            return 1, op.term, op.vote
        case Truncate():
            return 2, op.end_index, op.last_term
        case Reset():
            return 3, op.index, op.term
        case Begin():
            hard = op.hard_state
            return 4, op.format, op.cluster_id, op.index, op.term, hard.term, hard.vote
        case Closed():
            return (5,)


def decode_ops(body: memoryview) -> list[Op]:
    """Return the operations of a frame.

    Raises ValueError if they are malformed, which is damage, since the frame is complete.
    """
    try:
        rows = msgpack.unpackb(
            body,
            use_list=False,
            max_array_len=MAX_FRAME_OPS,
            max_bin_len=MAX_PAYLOAD_BYTES,
            max_str_len=4 * MAX_CLUSTER_ID_CHARS,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"not msgpack ({error})") from None
    if type(rows) is not tuple:
        raise ValueError("not an array of operations")
    return [_op(row) for row in rows]


def _op(row: Any) -> Op:
    match row:
        case (0, int(index), int(term), bytes(payload)):
            _check(index, term)
            return Entry(index, term, payload)
        case (1, int(term), int(vote)):
            _check(term, vote + 1)
            return HardState(term, vote)
        case (2, int(end_index), int(term)):
            _check(end_index, term)
            return Truncate(end_index, term)
        case (3, int(index), int(term)):
            _check(index, term)
            return Reset(index, term)
        case (4, int(form), str(cluster_id), int(index), int(term), int(own), int(vote)):
            _check(form, index, term, own, vote + 1)
            return Begin(form, cluster_id, index, term, HardState(own, vote))
        case (5,):
            return Closed()
        case (4, int(form), *_) if form > FORMAT:
            return Begin(form, "", 0, 0, HardState(0, NO_VOTE))
    raise ValueError("an operation that format 1 does not define")


def _check(*numbers: int) -> None:
    if any(type(number) is not int or not 0 <= number <= _INT64_MAX for number in numbers):
        raise ValueError("a number is out of range")
