"""Bytes to messages and back, for every message and version that has a table.

The functions are generated at the first use of (message, version, direction) and kept. `decoder`
and `encoder` hand them out for hot paths; `decode` and `encode` are for everybody else.
"""

from typing import Any, TypeVar, cast

from wire.primitives.errors import WireError
from wire.primitives.types import BUFFERS, Buffer, RecordsHole
from wire.schema.compiling import check_served
from wire.schema.decoding import (
    Decoder,
    DecoderInPieces,
    compile_decoder,
    compile_decoder_in_pieces,
)
from wire.schema.encoding import (
    Encoder,
    EncoderInPieces,
    PartsEncoder,
    compile_encoder,
    compile_encoder_in_pieces,
    compile_item_encoder,
    compile_parts_encoder,
)
from wire.schema.message import Message, Struct

M = TypeVar("M", bound=Message)

_decoders: dict[tuple[type[Message], int], Decoder] = {}
_encoders: dict[tuple[type[Message], int], Encoder] = {}
_decoders_in_pieces: dict[tuple[type[Message], int], DecoderInPieces] = {}
_encoders_in_pieces: dict[tuple[type[Message], int], EncoderInPieces] = {}
_parts_encoders: dict[tuple[type[Message], int], PartsEncoder] = {}
_item_encoders: dict[tuple[type[Struct], int], Encoder] = {}


def decoder(cls: type[Message], version: int) -> Decoder:
    """A function of (data, position): the message there and where it ends.

    Records in it are slices of `data`. It raises WireError, naming the field, and nothing else.
    """
    try:
        return _decoders[cls, version]
    except KeyError:
        check_served(cls, version)
        made = _decoders[cls, version] = compile_decoder(cls, version)
        return made


def decoder_in_pieces(cls: type[Message], version: int) -> DecoderInPieces:
    """As `decoder`, for what may be long: a generator function that yields every few elements."""
    try:
        return _decoders_in_pieces[cls, version]
    except KeyError:
        check_served(cls, version)
        made = _decoders_in_pieces[cls, version] = compile_decoder_in_pieces(cls, version)
        return made


def encoder(cls: type[Message], version: int) -> Encoder:
    """A function of the message: its bytes. WireError for what this version cannot carry."""
    try:
        return _encoders[cls, version]
    except KeyError:
        check_served(cls, version)
        made = _encoders[cls, version] = compile_encoder(cls, version)
        return made


def parts_encoder(cls: type[Message], version: int) -> PartsEncoder:
    """A function of the message: its pieces in order, buffers and the holes given as records."""
    try:
        return _parts_encoders[cls, version]
    except KeyError:
        check_served(cls, version)
        made = _parts_encoders[cls, version] = compile_parts_encoder(cls, version)
        return made


def encoder_in_pieces(cls: type[Message], version: int) -> EncoderInPieces:
    """As `parts_encoder`, for what may be long: a generator function."""
    try:
        return _encoders_in_pieces[cls, version]
    except KeyError:
        check_served(cls, version)
        made = _encoders_in_pieces[cls, version] = compile_encoder_in_pieces(cls, version)
        return made


def item_encoder(cls: type[Message], item: type[Struct], version: int) -> Encoder:
    """A function of one such struct of `cls`: its bytes, which its array takes in its place."""
    try:
        return _item_encoders[item, version]
    except KeyError:
        check_served(cls, version)
        made = compile_item_encoder(item, version, flexible=version in cls.FLEXIBLE)
        _item_encoders[item, version] = made
        return made


def decode(cls: type[M], version: int, data: Buffer) -> M:
    """The message that `data` is; bytes behind it are a WireError."""
    message, end = decoder(cls, version)(memoryview(data), 0)
    if end != len(data):
        raise WireError(f"{cls.__name__} v{version}: {len(data) - end} bytes behind its end")
    return cast(M, message)


def encode(message: Message, version: int) -> bytes:
    return encoder(type(message), version)(message)


def encode_parts(message: Message, version: int) -> list[bytes | RecordsHole]:
    """The message with its holes left open: bytes and holes in order, no two bytes in a row."""
    pieces = parts_encoder(type(message), version)(message)
    return join_runs(pieces, hole_positions(pieces))


def hole_positions(pieces: list[Any]) -> list[int]:
    return [index for index, piece in enumerate(pieces) if type(piece) not in BUFFERS]


def join_runs(pieces: list[Any], holes: list[int]) -> list[bytes | RecordsHole]:
    """The same, with the buffers between holes joined."""
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
