"""Encoders and decoders of all messages that have a table.

A function is generated at the first use of a (message, version, direction) and cached. Hot paths
keep the function that `decoder` or `encoder` returns; other callers use `decode` and `encode`.
"""

from typing import Any, TypeVar, cast

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.primitives.types import BUFFERS, Buffer, RecordsHole
from metaquorum.wire.schema.compiling import check_served
from metaquorum.wire.schema.decoding import (
    Decoder,
    DecoderInPieces,
    compile_decoder,
    compile_decoder_in_pieces,
)
from metaquorum.wire.schema.encoding import (
    Encoder,
    EncoderInPieces,
    PartsEncoder,
    compile_encoder,
    compile_encoder_in_pieces,
    compile_item_encoder,
    compile_parts_encoder,
)
from metaquorum.wire.schema.message import Message, Struct

M = TypeVar("M", bound=Message)

_decoders: dict[tuple[type[Message], int], Decoder] = {}
_encoders: dict[tuple[type[Message], int], Encoder] = {}
_decoders_in_pieces: dict[tuple[type[Message], int], DecoderInPieces] = {}
_encoders_in_pieces: dict[tuple[type[Message], int], EncoderInPieces] = {}
_parts_encoders: dict[tuple[type[Message], int], PartsEncoder] = {}
_item_encoders: dict[tuple[type[Struct], int], Encoder] = {}


def decoder(cls: type[Message], version: int) -> Decoder:
    """Return a function of (data, position) to the message there and the position after it.

    Records in the message are slices of `data`. The function raises WireError, which names the
    field, and no other error.
    """
    try:
        return _decoders[cls, version]
    except KeyError:
        check_served(cls, version)
        made = _decoders[cls, version] = compile_decoder(cls, version)
        return made


def decoder_in_pieces(cls: type[Message], version: int) -> DecoderInPieces:
    """Return a decoder for long messages: a generator function that yields every few elements."""
    try:
        return _decoders_in_pieces[cls, version]
    except KeyError:
        check_served(cls, version)
        made = _decoders_in_pieces[cls, version] = compile_decoder_in_pieces(cls, version)
        return made


def encoder(cls: type[Message], version: int) -> Encoder:
    """Return a function of the message to its bytes.

    The function raises WireError if `version` cannot carry a value of the message.
    """
    try:
        return _encoders[cls, version]
    except KeyError:
        check_served(cls, version)
        made = _encoders[cls, version] = compile_encoder(cls, version)
        return made


def parts_encoder(cls: type[Message], version: int) -> PartsEncoder:
    """Return a function of the message to its pieces in order: buffers, and holes for records."""
    try:
        return _parts_encoders[cls, version]
    except KeyError:
        check_served(cls, version)
        made = _parts_encoders[cls, version] = compile_parts_encoder(cls, version)
        return made


def encoder_in_pieces(cls: type[Message], version: int) -> EncoderInPieces:
    """Return a parts encoder for long messages: a generator that yields every few elements."""
    try:
        return _encoders_in_pieces[cls, version]
    except KeyError:
        check_served(cls, version)
        made = _encoders_in_pieces[cls, version] = compile_encoder_in_pieces(cls, version)
        return made


def item_encoder(cls: type[Message], item: type[Struct], version: int) -> Encoder:
    """Return a function of an `item` of `cls` to its bytes.

    The array of items accepts the bytes in place of the item (`may_be_encoded`).
    """
    try:
        return _item_encoders[item, version]
    except KeyError:
        check_served(cls, version)
        made = compile_item_encoder(item, version, flexible=version in cls.FLEXIBLE)
        _item_encoders[item, version] = made
        return made


def decode(cls: type[M], version: int, data: Buffer) -> M:
    """Return the message in `data`.

    Raises WireError if it is malformed or bytes follow it.
    """
    message, end = decoder(cls, version)(memoryview(data), 0)
    if end != len(data):
        raise WireError(f"{cls.__name__} v{version}: {len(data) - end} bytes after the message")
    return cast(M, message)


def encode(message: Message, version: int) -> bytes:
    return encoder(type(message), version)(message)


def encode_parts(message: Message, version: int) -> list[bytes | RecordsHole]:
    """Return the encoded message as bytes and holes in order, adjacent bytes joined."""
    pieces = parts_encoder(type(message), version)(message)
    return join_runs(pieces, hole_positions(pieces))


def hole_positions(pieces: list[Any]) -> list[int]:
    return [index for index, piece in enumerate(pieces) if type(piece) not in BUFFERS]


def join_runs(pieces: list[Any], holes: list[int]) -> list[bytes | RecordsHole]:
    """Return `pieces` with the adjacent buffers between holes joined."""
    parts: list[bytes | RecordsHole] = []
    start = 0
    for hole in holes:
        if start < hole:
            parts.append(b"".join(pieces[start:hole]))
        parts.append(pieces[hole])
        start = hole + 1
    if start < len(pieces):
        parts.append(b"".join(pieces[start:]))
    return parts
