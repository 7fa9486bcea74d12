"""The five codecs of record batches, each library imported when first needed.

Whatever comes from outside may be a bomb: it is decompressed in pieces (`decompressed`), or up to a
bound (`decompress`).
Input that is cut, damaged or not of the codec at all is a WireError, nothing else.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from itertools import chain
from struct import Struct
from typing import Final, TypeAlias

from wire.primitives.errors import WireError
from wire.primitives.types import Buffer


class Codec(IntEnum):
    """As the three low bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# What is decompressed at a time.
PIECE_BYTES: Final = 1 << 18
# A block of snappy is decompressed as a whole. Java's client makes them of 32 KiB; librdkafka makes
# one of all the records of a batch.
MAX_BLOCK_BYTES: Final = 1 << 27
# Adds a piece, or ends it: gives as much of the output as there is.
Compressor: TypeAlias = tuple[Callable[[bytes], bytes], Callable[[], bytes]]
# Concatenated gzip members or zstd frames in one batch; every known client writes one.
MAX_MEMBERS: Final = 1000


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """`data` as Apache Kafka's own client would write it; `level` None is the codec's default."""
    return _COMPRESS[codec](data, level)


def compress_pieces(
    codec: Codec, pieces: Iterable[bytes], level: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """As `compress` for all the pieces together, of which one at a time is held: in each step so
    many bytes are taken, and so much of the output is made."""
    pieces = iter(pieces)
    first = next(pieces, b"")
    second = next(pieces, None)
    if second is None:
        yield len(first), compress(codec, first, level)
        return
    add, finish = _COMPRESSORS[codec](level)
    for piece in chain((first, second), pieces):
        yield len(piece), add(piece)
    yield 0, finish()


def decompress(codec: Codec, data: Buffer, max_bytes: int) -> bytes:
    """What was compressed, at most `max_bytes` of it; more, or nonsense, is a WireError."""
    return b"".join(bounded(decompressed(codec, data), codec, max_bytes))


def bounded(pieces: Iterable[bytes], codec: Codec, max_bytes: int) -> Iterator[bytes]:
    """The pieces; WireError when they have more than `max_bytes` together."""
    left = max_bytes
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise WireError(f"{codec.name.lower()}: decompresses to more than {max_bytes} bytes")
        yield piece


def decompressed(codec: Codec, data: Buffer) -> Iterator[bytes]:
    """What was compressed, of any size, in pieces; nonsense is a WireError, where it is met.

    A piece has at most PIECE_BYTES, or is one block of snappy, at most MAX_BLOCK_BYTES.
    """
    return _DECOMPRESS[codec](memoryview(data))


def check_produced(codec: Codec, data: Buffer) -> None:
    """WireError where Java's clients could not read it, though `decompressed` can.

    Sources: Kafka's `Lz4BlockOutputStream.FLG`; `SnappyInputStream.readHeader` of snappy-java.
    """
    if codec is Codec.SNAPPY and bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
        version = int.from_bytes(data[len(_XERIAL_MAGIC) : _XERIAL_VERSION_END], "big", signed=True)
        if version < 1:
            raise WireError(f"snappy: the header is of version {version}, the least is 1")
    if codec is Codec.LZ4 and len(data) > _LZ4_FLAGS_AT:
        flags = data[_LZ4_FLAGS_AT]
        if flags & _LZ4_RESTRICTED != _LZ4_INDEPENDENT:
            raise WireError(
                f"lz4: flags {flags:#04x}: Kafka takes independent blocks without a dictionary only"
            )


# none


def _copy(data: Buffer, level: int | None) -> bytes:
    return bytes(data)


def _slices(data: memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield bytes(data[start : start + PIECE_BYTES])


# gzip

_GZIP_WBITS: Final = 31
_GZIP_CHUNK_BYTES: Final = 65536


def _gzip(data: Buffer, level: int | None) -> bytes:
    stream = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
    return stream.compress(data) + stream.flush()


def _gunzip(data: memoryview) -> Iterator[bytes]:
    """Members one after the other; what follows them and is no member is ignored, as Java does."""
    position = 0
    for member in range(MAX_MEMBERS):
        if member and bytes(data[position : position + 2]) != b"\x1f\x8b":
            return
        stream = zlib.decompressobj(_GZIP_WBITS)
        chunk = memoryview(b"")
        while not stream.eof:
            if not chunk:
                chunk = data[position : position + _GZIP_CHUNK_BYTES]
                position += len(chunk)
                if not chunk:
                    raise WireError("gzip: the stream is cut short")
            try:
                piece = stream.decompress(chunk, PIECE_BYTES)
            except zlib.error as error:
                raise WireError(f"gzip: {error}") from None
            chunk = memoryview(stream.unconsumed_tail)
            if piece:
                yield piece
        position -= len(stream.unused_data)
    raise WireError(f"gzip: more than {MAX_MEMBERS} members")


def _gzip_stream(level: int | None) -> Compressor:
    stream = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
    return stream.compress, stream.flush


# snappy: raw blocks, framed as the xerial library of the Java client does, or one bare block

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_VERSION_END: Final = 12
_XERIAL_BLOCK_BYTES: Final = 32768
_SIZE: Final = Struct(">I")


def _snappy(data: Buffer, level: int | None) -> bytes:
    from cramjam import snappy

    view = memoryview(data)
    output = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        output += _SIZE.pack(len(block))
        output += block
    return bytes(output)


def _snappy_stream(level: int | None) -> Compressor:
    waiting = bytearray()
    has_begun = False

    def add(piece: bytes) -> bytes:
        nonlocal waiting
        waiting += piece
        whole = len(waiting) // _XERIAL_BLOCK_BYTES * _XERIAL_BLOCK_BYTES
        blocks, waiting = waiting[:whole], waiting[whole:]
        return written(blocks)

    def written(data: bytearray) -> bytes:
        nonlocal has_begun
        output = _snappy(data, level)
        start = len(_XERIAL_HEADER) if has_begun else 0
        has_begun = True
        return output[start:]

    return add, lambda: written(waiting)


def _unsnappy(data: memoryview) -> Iterator[bytes]:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield _unsnappy_block(data)
        return
    for block in _xerial_blocks(data):
        yield _unsnappy_block(block)


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    """The blocks of one or more streams, each behind its own header."""
    position, end = 0, len(data)
    while position < end:
        if bytes(data[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            if position > end:
                raise WireError("snappy: the header is cut short")
            continue
        if end - position < _SIZE.size:
            raise WireError("snappy: a block size is cut short")
        (size,) = _SIZE.unpack_from(data, position)
        position += _SIZE.size
        if size > end - position:
            raise WireError(f"snappy: a block of {size} bytes, {end - position} are left")
        yield data[position : position + size]
        position += size


def _unsnappy_block(block: memoryview) -> bytes:
    from cramjam import DecompressionError, snappy

    try:
        _unsnappy_size(block)
        return bytes(snappy.decompress_raw(block))
    except DecompressionError as error:
        raise WireError(f"snappy: {error}") from None


def _unsnappy_size(block: memoryview) -> int:
    """How many bytes the block claims to have, decompressed. WireError if it may not."""
    from cramjam import DecompressionError, snappy

    try:
        size: int = snappy.decompress_raw_len(block)
    except DecompressionError as error:
        raise WireError(f"snappy: {error}") from None
    if size > MAX_BLOCK_BYTES:
        raise WireError(f"snappy: a block of {size} bytes, the most are {MAX_BLOCK_BYTES}")
    return size


def piece_sizes(codec: Codec, data: Buffer) -> Iterator[int]:
    """How many bytes each piece of `decompressed` would have that may exceed PIECE_BYTES.

    That is, what each block of snappy claims; nothing is decompressed. WireError.
    """
    if codec is not Codec.SNAPPY:
        return
    view = memoryview(data)
    is_framed = bytes(view[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC
    yield from map(_unsnappy_size, _xerial_blocks(view) if is_framed else (view,))


# lz4, one frame; what follows it is ignored, as Java does

_LZ4_CHUNK_BYTES: Final = 65536
_LZ4_FLAGS_AT: Final = 4
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_RESTRICTED: Final = _LZ4_INDEPENDENT | 0x03  # reserved, and a dictionary


def _lz4(data: Buffer, level: int | None) -> bytes:
    from lz4 import frame

    return bytes(
        frame.compress(
            data,
            compression_level=level or 0,
            block_size=frame.BLOCKSIZE_MAX64KB,
            block_linked=False,  # all that the Java client reads
            store_size=False,
        )
    )


def _lz4_stream(level: int | None) -> Compressor:
    from lz4 import frame

    stream = frame.LZ4FrameCompressor(
        compression_level=level or 0, block_size=frame.BLOCKSIZE_MAX64KB, block_linked=False
    )
    begin = bytes(stream.begin())

    def add(piece: bytes) -> bytes:
        nonlocal begin
        output, begin = begin + bytes(stream.compress(piece)), b""
        return output

    return add, lambda: begin + bytes(stream.flush())


def _unlz4(data: memoryview) -> Iterator[bytes]:
    from lz4 import frame

    stream = frame.LZ4FrameDecompressor()
    position, end = 0, len(data)
    while not stream.eof:
        # The library copies what it has not used at each step, so it is given little at a time.
        chunk = data[position : position + _LZ4_CHUNK_BYTES] if stream.needs_input else data[:0]
        position += len(chunk)
        try:
            piece = bytes(stream.decompress(chunk, max_length=PIECE_BYTES))
        except (RuntimeError, ValueError, EOFError) as error:
            raise WireError(f"lz4: {error}") from None
        if piece:
            yield piece
        elif not (chunk or stream.eof) and (position == end or not stream.needs_input):
            raise WireError("lz4: the frame is cut short")


# zstd

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE: Final = 0x184D2A50  # the low four bits are free
_ZSTD_MAX_WINDOW_BYTES: Final = 1 << 27  # what the zstd command and Java's library accept
_LITTLE: Final = Struct("<I")


def _zstd(data: Buffer, level: int | None) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


def _zstd_stream(level: int | None) -> Compressor:
    import zstandard

    stream = zstandard.ZstdCompressor(level=3 if level is None else level).compressobj()
    return stream.compress, stream.flush


def _unzstd(data: memoryview) -> Iterator[bytes]:
    import zstandard

    for frame in _zstd_frames(data):
        stream = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
        try:
            # For a content size of 0 `decompress` gives nothing, whatever the blocks hold.
            if 0 < zstandard.frame_content_size(frame) <= PIECE_BYTES:
                yield stream.decompress(frame)
                continue
            reader = stream.stream_reader(frame)
            while piece := reader.read(PIECE_BYTES):
                yield piece
        except zstandard.ZstdError as error:
            raise WireError(f"zstd: {error}") from None


def _zstd_frames(data: memoryview) -> Iterator[memoryview]:
    """The frames, skippable ones left out. Source: RFC 8878, 3.1."""
    position = 0
    for _ in range(MAX_MEMBERS):
        if len(data) - position < _LITTLE.size:
            raise WireError("zstd: the frame is cut short")
        (magic,) = _LITTLE.unpack_from(data, position)
        try:
            if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE:
                end = position + 8 + _LITTLE.unpack_from(data, position + 4)[0]
            elif magic == _ZSTD_MAGIC:
                end = _zstd_frame_end(data, position)
            else:
                raise WireError(f"zstd: no frame begins with {magic:#010x}")
        except (IndexError, ValueError):
            raise WireError("zstd: the frame is cut short") from None
        if end > len(data):
            raise WireError("zstd: the frame is cut short")
        if magic == _ZSTD_MAGIC:
            yield data[position:end]
        position = end
        if position == len(data):
            return
    raise WireError(f"zstd: more than {MAX_MEMBERS} frames")


def _zstd_frame_end(data: memoryview, start: int) -> int:
    descriptor = data[start + 4]
    single_segment = descriptor >> 5 & 1
    content_size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    dictionary_id_bytes = (0, 1, 2, 4)[descriptor & 3]
    position = start + 5 + (1 - single_segment) + dictionary_id_bytes + content_size_bytes
    last = 0
    while not last:
        block = data[position] | data[position + 1] << 8 | data[position + 2] << 16
        last, kind = block & 1, block >> 1 & 3
        position += 3 + (1 if kind == 1 else block >> 3)  # 1: one byte, repeated
    return position + (4 if descriptor & 4 else 0)


_COMPRESS: Final[dict[Codec, Callable[[Buffer, int | None], bytes]]] = {
    Codec.NONE: _copy,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_COMPRESSORS: Final[dict[Codec, Callable[[int | None], Compressor]]] = {
    Codec.NONE: lambda level: (bytes, bytes),
    Codec.GZIP: _gzip_stream,
    Codec.SNAPPY: _snappy_stream,
    Codec.LZ4: _lz4_stream,
    Codec.ZSTD: _zstd_stream,
}
_DECOMPRESS: Final[dict[Codec, Callable[[memoryview], Iterator[bytes]]]] = {
    Codec.NONE: _slices,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
