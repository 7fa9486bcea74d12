"""Encoding of calls and replies inside a stream.

kind 1 | correlation id 8 | ...
    CALL     size of the method name 1 | method name | payload
    ANSWER   payload
    ERROR    error code 2 | message
    REFUSED  message; the server has not executed and will not execute the call
    CANCEL   the caller no longer waits for the answer to this call
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from metaquorum.quorum.channel.frames import MAX_MESSAGE_BYTES
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError

MAX_METHOD_BYTES: Final = 64
MAX_TEXT_BYTES: Final = 4096
_HEAD: Final = struct.Struct(">BQ")
_CODE: Final = struct.Struct(">h")
MAX_PAYLOAD_BYTES: Final = MAX_MESSAGE_BYTES - _HEAD.size - 1 - MAX_METHOD_BYTES


class Kind(IntEnum):
    CALL = 1
    ANSWER = 2
    ERROR = 3
    REFUSED = 4
    CANCEL = 5


class Call(NamedTuple):
    call_id: int
    method: str
    payload: bytes


class Reply(NamedTuple):
    kind: Kind
    call_id: int
    payload: bytes = b""
    code: ErrorCode = ErrorCode.NONE
    text: str = ""


def encode_call(call_id: int, method: str, payload: bytes) -> bytes:
    name = method.encode("ascii")
    assert 0 < len(name) <= MAX_METHOD_BYTES
    assert len(payload) <= MAX_PAYLOAD_BYTES
    return b"".join((_HEAD.pack(Kind.CALL, call_id), bytes((len(name),)), name, payload))


def encode_cancel(call_id: int) -> bytes:
    return _HEAD.pack(Kind.CANCEL, call_id)


def encode_answer(call_id: int, payload: bytes) -> bytes:
    assert len(payload) <= MAX_PAYLOAD_BYTES
    return _HEAD.pack(Kind.ANSWER, call_id) + payload


def encode_error(call_id: int, error: KafkaError) -> bytes:
    return _HEAD.pack(Kind.ERROR, call_id) + _CODE.pack(error.code) + _text(error.message)


def encode_refusal(call_id: int, text: str) -> bytes:
    return _HEAD.pack(Kind.REFUSED, call_id) + _text(text)


def _text(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:MAX_TEXT_BYTES]


def decode_request(message: bytes) -> Call | int:
    """Return the call, or the id of the call to cancel.

    Raises WireError if `message` is neither.
    """
    kind, call_id = _head(message)
    if kind is Kind.CANCEL and len(message) == _HEAD.size:
        return call_id
    if kind is not Kind.CALL or len(message) <= _HEAD.size:
        raise WireError("call: the message is neither a call nor a cancellation")
    start = _HEAD.size + 1
    end = start + message[_HEAD.size]
    name = message[start:end]
    if not 0 < len(name) <= MAX_METHOD_BYTES or len(message) < end or not name.isascii():
        raise WireError("call: the method name is malformed")
    return Call(call_id, name.decode("ascii"), message[end:])


def decode_reply(message: bytes) -> Reply:
    """Return the reply. Raises WireError if `message` is not a reply."""
    kind, call_id = _head(message)
    rest = message[_HEAD.size :]
    if kind is Kind.ANSWER:
        return Reply(kind, call_id, rest)
    if kind is Kind.REFUSED:
        return Reply(kind, call_id, text=rest[:MAX_TEXT_BYTES].decode("utf-8", "replace"))
    if kind is not Kind.ERROR or len(rest) < _CODE.size:
        raise WireError("reply: the message is not a reply")
    (number,) = _CODE.unpack_from(rest)
    text = rest[_CODE.size :][:MAX_TEXT_BYTES].decode("utf-8", "replace")
    try:
        code = ErrorCode(number)
    except ValueError:  # a newer version may send error codes that this version does not know
        code, text = ErrorCode.UNKNOWN_SERVER_ERROR, f"error {number}: {text}"
    return Reply(kind, call_id, code=code, text=text)


def _head(message: bytes) -> tuple[Kind, int]:
    if len(message) < _HEAD.size:
        raise WireError("call: the message is shorter than its header")
    kind, call_id = _HEAD.unpack_from(message)
    try:
        return Kind(kind), call_id
    except ValueError:
        raise WireError(f"call: kind {kind} is unknown") from None
