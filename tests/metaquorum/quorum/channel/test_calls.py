"""Encoding of calls and replies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.quorum.channel.calls import (
    Call,
    Kind,
    decode_reply,
    decode_request,
    encode_answer,
    encode_call,
    encode_cancel,
    encode_error,
    encode_refusal,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError

ids = st.integers(0, 2**64 - 1)


@given(ids, st.text("abc_", min_size=1, max_size=64), st.binary(max_size=300))
def test_a_call_is_read_as_it_was_written(call_id: int, method: str, payload: bytes) -> None:
    assert decode_request(encode_call(call_id, method, payload)) == Call(call_id, method, payload)
    assert decode_request(encode_cancel(call_id)) == call_id


@given(ids, st.binary(max_size=300), st.sampled_from(ErrorCode), st.text(max_size=300))
def test_a_reply_is_read_as_it_was_written(
    call_id: int, payload: bytes, code: ErrorCode, text: str
) -> None:
    answer = decode_reply(encode_answer(call_id, payload))
    assert (answer.kind, answer.call_id, answer.payload) == (Kind.ANSWER, call_id, payload)
    error = KafkaError(code, text)
    reply = decode_reply(encode_error(call_id, error))
    assert (reply.kind, reply.code) == (Kind.ERROR, code)
    assert reply.text == error.message.encode("utf-8", "replace").decode()
    assert decode_reply(encode_refusal(call_id, "busy")).text == "busy"


def test_an_error_code_of_a_newer_version_is_an_unknown_error() -> None:
    message = bytearray(encode_error(5, KafkaError(ErrorCode.NONE, "new")))
    message[9:11] = (9999).to_bytes(2, "big")
    reply = decode_reply(bytes(message))
    assert (reply.code, reply.text) == (ErrorCode.UNKNOWN_SERVER_ERROR, "error 9999: new")


def test_long_texts_are_cut() -> None:
    error = KafkaError(ErrorCode.INVALID_REQUEST, "x" * 10_000)
    assert len(decode_reply(encode_error(1, error)).text) == 4096


@given(st.binary(max_size=90))
def test_no_bytes_crash_the_readers(message: bytes) -> None:
    for decode in (decode_request, decode_reply):
        try:
            decode(message)
        except WireError:
            pass


@pytest.mark.parametrize(
    "message",
    [
        b"",
        encode_cancel(1)[:-1],
        encode_cancel(1) + b"x",
        encode_answer(1, b""),
        encode_call(1, "m", b"")[:9],
        encode_call(1, "method", b"")[:-1],
        encode_call(1, "m", b"")[:9] + b"\x00",
        encode_call(1, "m", b"")[:-1] + b"\xff",
    ],
)
def test_what_is_no_request_is_refused(message: bytes) -> None:
    with pytest.raises(WireError):
        decode_request(message)
