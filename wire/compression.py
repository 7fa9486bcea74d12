"""The five codecs of record batches, each library imported when first needed.

Whatever comes from outside may be a bomb: every `decompress` takes a bound and gives up there.
Input that is cut, damaged or not of the codec at all is a WireError, nothing else.
"""

import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Final

from wire.errors import WireError
from wire.types import Buffer


class Codec(IntEnum):
    """As the three low bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# Concatenated gzip members or zstd frames in one batch; every known client writes one.
MAX_MEMBERS: Final = 1000


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """`data` as Apache Kafka's own client would write it; `level` None is the codec's default."""
    return _COMPRESS[codec](data, level)


def decompress(codec: Codec, data: Buffer, max_bytes: int) -> bytes:
    """What was compressed, at most `max_bytes` of it; more, or nonsense, is a WireError."""
    return _DECOMPRESS[codec](memoryview(data), max_bytes)


def _too_large(codec: Codec, max_bytes: int) -> WireError:
    return WireError(f"{codec.name.lower()}: decompresses to more than {max_bytes} bytes")


# none


def _copy(data: Buffer, level: int | None) -> bytes:
    return bytes(data)


def _copy_bounded(data: memoryview, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise _too_large(Codec.NONE, max_bytes)
    return bytes(data)


# gzip

_GZIP_WBITS: Final = 31
_GZIP_CHUNK_BYTES: Final = 65536


def _gzip(data: Buffer, level: int | None) -> bytes:
    stream = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
    return stream.compress(data) + stream.flush()


def _gunzip(data: memoryview, max_bytes: int) -> bytes:
    """Members one after the other; what follows them and is no member is ignored, as Java does."""
    output: list[bytes] = []
    position = size = 0
    for member in range(MAX_MEMBERS):
        if member and bytes(data[position : position + 2]) != b"\x1f\x8b":
            return b"".join(output)
        stream = zlib.decompressobj(_GZIP_WBITS)
        while not stream.eof:
            chunk = data[position : position + _GZIP_CHUNK_BYTES]
            if not chunk:
                raise WireError("gzip: the stream is cut short")
            try:
                output.append(stream.decompress(chunk, max_bytes - size + 1))
            except zlib.error as error:
                raise WireError(f"gzip: {error}") from None
            size += len(output[-1])
            if size > max_bytes:
                raise _too_large(Codec.GZIP, max_bytes)
            position += len(chunk) - len(stream.unused_data)
    raise WireError(f"gzip: more than {MAX_MEMBERS} members")


# snappy: raw blocks, framed as the xerial library of the Java client does, or one bare block

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
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


def _unsnappy(data: memoryview, max_bytes: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unsnappy_block(data, max_bytes, max_bytes)
    output: list[bytes] = []
    left = max_bytes
    for block in _xerial_blocks(data):
        output.append(_unsnappy_block(block, left, max_bytes))
        left -= len(output[-1])
    return b"".join(output)


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


def _unsnappy_block(block: memoryview, left: int, max_bytes: int) -> bytes:
    from cramjam import DecompressionError, snappy

    try:
        if snappy.decompress_raw_len(block) > left:
            raise _too_large(Codec.SNAPPY, max_bytes)
        return bytes(snappy.decompress_raw(block))
    except DecompressionError as error:
        raise WireError(f"snappy: {error}") from None


# lz4, one frame; what follows it is ignored, as Java does


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


def _unlz4(data: memoryview, max_bytes: int) -> bytes:
    from lz4 import frame

    stream = frame.LZ4FrameDecompressor()
    try:
        output = bytes(stream.decompress(data, max_length=max_bytes + 1))
    except (RuntimeError, ValueError, EOFError) as error:
        raise WireError(f"lz4: {error}") from None
    if len(output) > max_bytes:
        raise _too_large(Codec.LZ4, max_bytes)
    if not stream.eof:
        raise WireError("lz4: the frame is cut short")
    return output


# zstd

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE: Final = 0x184D2A50  # the low four bits are free
_ZSTD_MAX_WINDOW_BYTES: Final = 1 << 27  # what the zstd command and Java's library accept
_ZSTD_CHUNK_BYTES: Final = 1 << 18
_LITTLE: Final = Struct("<I")


def _zstd(data: Buffer, level: int | None) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


def _unzstd(data: memoryview, max_bytes: int) -> bytes:
    import zstandard

    output: list[bytes] = []
    left = max_bytes
    for frame in _zstd_frames(data):
        stream = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
        try:
            size = zstandard.frame_content_size(frame)
            if size > left:
                raise _too_large(Codec.ZSTD, max_bytes)
            if size >= 0:
                output.append(stream.decompress(frame))
                left -= size
                continue
            reader = stream.stream_reader(frame)
            while chunk := reader.read(min(left + 1, _ZSTD_CHUNK_BYTES)):
                output.append(chunk)
                left -= len(chunk)
                if left < 0:
                    raise _too_large(Codec.ZSTD, max_bytes)
        except zstandard.ZstdError as error:
            raise WireError(f"zstd: {error}") from None
    return b"".join(output)


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
_DECOMPRESS: Final[dict[Codec, Callable[[memoryview, int], bytes]]] = {
    Codec.NONE: _copy_bounded,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
