"""Response headers, and the encoding of whole frames for clients and servers.

Request headers are decoded in `metaquorum.wire.protocol.request_header`.
"""

import struct
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar, cast

from metaquorum.wire.primitives.errors import ErrorCode, WireError
from metaquorum.wire.primitives.types import BUFFERS, RecordsHole
from metaquorum.wire.protocol.apis import APIS, Api, ApiKey
from metaquorum.wire.schema.codec import (
    decoder,
    encoder,
    encoder_in_pieces,
    hole_positions,
    join_runs,
    parts_encoder,
)
from metaquorum.wire.schema.decoding import Malformed, skip_tags
from metaquorum.wire.schema.message import Message

M = TypeVar("M", bound=Message)

_START_BYTES: Final = 10
_read_correlation_id = struct.Struct(">i").unpack_from
_read_error_code = struct.Struct(">h").unpack_from
_pack_request = struct.Struct(">ihhih").pack
_pack_response = struct.Struct(">ii").pack
_pack_flexible_response = struct.Struct(">iix").pack

_PIECES_JOINED: Final = 4096  # per step of a response that is encoded in pieces


def encode_response(api: Api, version: int, correlation_id: int, message: Message) -> bytes:
    """Return the response as a frame."""
    body = encoder(type(message), version)(message)
    return _frame_start(api, version, correlation_id, len(body)) + body


def response_encoder(api: Api, version: int) -> Callable[[int, Message], bytes]:
    """Return a function of correlation id and message that does what `encode_response` does."""
    encode = encoder(api.response, version)
    pack, start_bytes = _pack_response, 4
    if api.response_header_version(version):
        pack, start_bytes = _pack_flexible_response, 5

    def encoded(correlation_id: int, message: Message) -> bytes:
        body = encode(message)
        return pack(start_bytes + len(body), correlation_id) + body

    return encoded


def encode_response_parts(
    api: Api, version: int, correlation_id: int, message: Message
) -> list[bytes | RecordsHole]:
    """Return the response as a frame without copying records: bytes and holes in send order.

    The size field of the frame includes the `size_bytes` of each hole.
    """
    pieces = parts_encoder(type(message), version)(message)
    holes = hole_positions(pieces)
    size = _size_of(pieces, holes)
    pieces.insert(0, _frame_start(api, version, correlation_id, size))
    return join_runs(pieces, [hole + 1 for hole in holes])


def encode_response_in_pieces(
    api: Api, version: int, correlation_id: int, message: Message
) -> Generator[None, None, list[bytes | RecordsHole]]:
    """Encode a long response in steps: yield after every few elements, then return the parts.

    The result is that of `encode_response_parts`.
    """
    pieces = yield from encoder_in_pieces(type(message), version)(message)
    parts: list[bytes | RecordsHole] = [b""]
    size = 0
    some: list[Any] = []
    for first in range(0, len(pieces), _PIECES_JOINED):
        some = pieces[first : first + _PIECES_JOINED]
        holes = hole_positions(some)
        size += _size_of(some, holes)
        parts += join_runs(some, holes)
        yield
    del some
    while pieces:  # in steps, because freeing all of them at once takes long, too
        del pieces[-_PIECES_JOINED:]
        yield
    parts[0] = _frame_start(api, version, correlation_id, size)
    return parts


def _size_of(pieces: list[Any], holes: list[int]) -> int:
    size: int = sum([pieces[hole].size_bytes for hole in holes])
    return size + sum(map(len, pieces if not holes else [p for p in pieces if type(p) in BUFFERS]))


def encode_unsupported_api_versions(correlation_id: int) -> bytes:
    """Return the frame that answers an ApiVersions request in an unsupported version.

    The response has the format of version 0: UNSUPPORTED_VERSION, and the supported versions of
    ApiVersions itself (KIP-511).
    """
    from metaquorum.wire.messages.api_versions import ApiVersion, ApiVersionsResponse

    api = APIS[ApiKey.API_VERSIONS]
    served = ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
    message = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[served])
    return encode_response(api, 0, correlation_id, message)


def _frame_start(api: Api, version: int, correlation_id: int, body_bytes: int) -> bytes:
    if api.response_header_version(version):
        return _pack_flexible_response(body_bytes + 5, correlation_id)
    return _pack_response(body_bytes + 4, correlation_id)


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Message
) -> bytes:
    """Return the request as a frame. Records must be buffers, not holes.

    The API needs a message class, but need not be in the table of supported APIs.
    """
    name = b"" if client_id is None else client_id.encode()
    body = encoder(type(message), version)(message)
    tags = b"\0" if version in message.FLEXIBLE else b""
    size = _START_BYTES + len(name) + len(tags) + len(body)
    length = -1 if client_id is None else len(name)
    return _pack_request(size, api_key, version, correlation_id, length) + name + tags + body


def decode_response(api_key: int, version: int, frame: memoryview) -> tuple[int, Any]:
    """Return the correlation id and the message of a response frame of a supported API."""
    return decode_response_as(APIS[api_key].response, version, frame)


def decode_response_as(cls: type[M], version: int, frame: memoryview) -> tuple[int, M]:
    """Return the correlation id and the message of a response frame (without its size).

    An ApiVersions response with UNSUPPORTED_VERSION is decoded as version 0, whose format it has.
    Raises WireError if the frame is malformed.
    """
    is_api_versions = cls.API == ApiKey.API_VERSIONS
    position = 4
    try:
        (correlation_id,) = _read_correlation_id(frame, 0)
        if version in cls.FLEXIBLE and not is_api_versions:
            position += 1
            if frame[4]:
                position = skip_tags(frame, position, frame[4])
        if is_api_versions and version:
            (error_code,) = _read_error_code(frame, position)
            if error_code == ErrorCode.UNSUPPORTED_VERSION:
                version = 0
    except (struct.error, IndexError, Malformed):
        raise WireError("response header: the header is too short or malformed") from None
    message, end = decoder(cls, version)(frame, position)
    if end != len(frame):
        raise WireError(f"{cls.__name__} v{version}: {len(frame) - end} bytes after the message")
    return correlation_id, cast(M, message)
