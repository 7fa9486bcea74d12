"""The five compression codecs of record batches. Each library is imported at its first use.

Input may be a decompression bomb: it is decompressed in pieces (`decompressed`) or up to a limit
(`decompress`). Input that is truncated, corrupt or of another codec raises WireError, and no other
error.
"""

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from itertools import chain, islice
from struct import Struct
from typing import Final, TypeAlias

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.primitives.types import Buffer


class Codec(IntEnum):
    """Compression codec, numbered as in the three low bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# Maximum output of one step of decompression
PIECE_BYTES: Final = 1 << 18
# A snappy block is decompressed as a whole. Java's client writes blocks of 32 KiB, librdkafka one
# block for all records of a batch.
MAX_BLOCK_BYTES: Final = 1 << 27
# Two functions: add a piece, and finish. Both return the output that is available.
Compressor: TypeAlias = tuple[Callable[[bytes], bytes], Callable[[], bytes]]
# Limit on concatenated gzip members or zstd frames in one batch; all known clients write one.
MAX_MEMBERS: Final = 1000
# Limit on the input of `decompress_short`.
SHORT_COMPRESSED_BYTES: Final = 1 << 14
_SHORT_BLOCKS: Final = 8  # Java writes snappy blocks of 32 KiB, zstd's largest block is 128 KiB


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` as Kafka's Java client does; `level` None means the codec's default."""
    return _COMPRESS[codec](data, level)


def compress_pieces(
    codec: Codec, pieces: Iterable[bytes], level: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """Compress the concatenated pieces, holding one at a time.

    Yield the number of input bytes and the output bytes of each step.
    """
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
    """Decompress `data`. Raises WireError if it is malformed or has more than `max_bytes`."""
    return b"".join(bounded(decompressed(codec, data), codec, max_bytes))


def bounded(pieces: Iterable[bytes], codec: Codec, max_bytes: int) -> Iterator[bytes]:
    """Yield the pieces. Raises WireError if their total exceeds `max_bytes`."""
    left = max_bytes
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise WireError(f"{codec.name.lower()}: decompresses to more than {max_bytes} bytes")
        yield piece


def decompressed(
    codec: Codec, data: Buffer, whole_bytes: int = PIECE_BYTES, *, is_produced: bool = False
) -> Iterator[bytes]:
    """Return an iterator over the decompressed pieces of `data`, of any total size.

    A piece has at most PIECE_BYTES, or is one snappy block of at most MAX_BLOCK_BYTES, or a whole
    zstd frame that says that it has at most `whole_bytes`: that takes a sixth less time. The
    iterator raises WireError at malformed input, and with `is_produced` at input that not all
    clients read: see `check_produced`.
    """
    view = memoryview(data)
    if codec is Codec.ZSTD:
        return _unzstd(view, whole_bytes)
    return _DECOMPRESS[codec](view, is_produced)


def decompress_short(codec: Codec, data: Buffer, max_bytes: int) -> bytes | None:
    """Return the decompressed `data` if it is one short stream, as nearly all short batches are.

    None does not refuse it: it may have more than SHORT_COMPRESSED_BYTES, or `max_bytes` when
    decompressed, or several members, streams or frames, or be malformed or gzip; `decompressed`
    decides. (16 KiB of gzip, of blocks that only define codes, take two milliseconds; of other
    codecs, a tenth.)
    """
    view = memoryview(data)
    short = _DECOMPRESS_SHORT.get(codec)
    if short is None or max_bytes <= 0 or not 0 < len(view) <= SHORT_COMPRESSED_BYTES:
        return None
    return short(view, max_bytes)


def check_produced(codec: Codec, data: Buffer) -> None:
    """Raise WireError for the header of data that `decompressed` accepts and some clients do not.

    Java's clients read no linked blocks of lz4. `decompressed` checks the rest (`is_produced`):
    librdkafka reads the first gzip member only, without an error, or aborts if it is empty; it and
    others refuse bytes after the lz4 frame or after gzip members, and a second snappy
    header. Sources: Kafka's `Lz4BlockOutputStream.FLG`; tests/conformance/test_framings.py.
    """
    if codec is Codec.LZ4 and len(data) > _LZ4_FLAGS_AT:
        flags = data[_LZ4_FLAGS_AT]
        if flags & _LZ4_RESTRICTED != _LZ4_INDEPENDENT:
            raise WireError(
                f"lz4: flags {flags:#04x}: Kafka supports only independent blocks, no dictionary"
            )


def has_other_header(codec: Codec, data: Buffer) -> bool:
    """Return whether a snappy header has versions that not all clients read: aiokafka reads 1.

    Java's library and librdkafka ignore the versions, so a leader replaces them (`plain_header`).
    """
    return (
        codec is Codec.SNAPPY
        and bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC
        and bytes(data[: len(_XERIAL_HEADER)]) != _XERIAL_HEADER
    )


def set_plain_header(data: memoryview) -> None:
    """Replace the header of snappy data, in place, by the one that all clients write."""
    data[: len(_XERIAL_HEADER)] = _XERIAL_HEADER


# none


def _copy(data: Buffer, level: int | None) -> bytes:
    return bytes(data)


def _slices(data: memoryview, _: bool) -> Iterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield bytes(data[start : start + PIECE_BYTES])


# gzip

_GZIP_WBITS: Final = 31
_GZIP_CHUNK_BYTES: Final = 65536


def _gzip(data: Buffer, level: int | None) -> bytes:
    stream = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
    return stream.compress(data) + stream.flush()


def _gunzip(data: memoryview, is_produced: bool) -> Iterator[bytes]:
    """Decompress all members; other bytes after the last member are ignored, as Java does.

    In produced data, only the first member may have data, and nothing else may follow.
    """
    position = size = 0
    for member in range(MAX_MEMBERS):
        if member and bytes(data[position : position + 2]) != b"\x1f\x8b":
            if is_produced and position < len(data):
                raise WireError(f"gzip: {len(data) - position} bytes after the last member")
            return
        if member and is_produced and not size:
            raise WireError("gzip: the first of several members is empty")
        stream = zlib.decompressobj(_GZIP_WBITS)
        chunk = memoryview(b"")
        while not stream.eof:
            if not chunk:
                chunk = data[position : position + _GZIP_CHUNK_BYTES]
                position += len(chunk)
                if not chunk:
                    raise WireError("gzip: the stream is truncated")
            try:
                piece = stream.decompress(chunk, PIECE_BYTES)
            except zlib.error as error:
                raise WireError(f"gzip: {error}") from None
            chunk = memoryview(stream.unconsumed_tail)
            if piece:
                if member and is_produced:
                    raise WireError("gzip: several members; some clients read only the first")
                size += len(piece)
                yield piece
        position -= len(stream.unused_data)
    raise WireError(f"gzip: more than {MAX_MEMBERS} members")


def _gzip_stream(level: int | None) -> Compressor:
    stream = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
    return stream.compress, stream.flush


# snappy: raw blocks in the framing of the Java client's xerial library, or one block without it

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


def _unsnappy(data: memoryview, is_produced: bool) -> Iterator[bytes]:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield _unsnappy_block(data)
        return
    for block in _xerial_blocks(data, is_produced):
        yield _unsnappy_block(block)


def _xerial_blocks(data: memoryview, is_produced: bool) -> Iterator[memoryview]:
    """Yield the blocks of one or more streams, each of which has a header; produced: of one."""
    position, end = 0, len(data)
    while position < end:
        if bytes(data[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            if position and is_produced:
                raise WireError("snappy: several headers; some clients read only one")
            position += len(_XERIAL_HEADER)
            if position > end:
                raise WireError("snappy: the header is truncated")
            continue
        if end - position < _SIZE.size:
            raise WireError("snappy: a block size is truncated")
        (size,) = _SIZE.unpack_from(data, position)
        position += _SIZE.size
        if size > end - position:
            raise WireError(f"snappy: only {end - position} of {size} bytes of a block")
        yield data[position : position + size]
        position += size


def _unsnappy_short(data: memoryview, max_bytes: int) -> bytes | None:
    try:
        blocks = [data]
        if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            blocks = list(islice(_xerial_blocks(data, True), _SHORT_BLOCKS + 1))
        if len(blocks) > _SHORT_BLOCKS or sum(map(_unsnappy_size, blocks)) > max_bytes:
            return None
        return b"".join(map(_unsnappy_block, blocks))
    except WireError:
        return None


def _unsnappy_block(block: memoryview) -> bytes:
    from cramjam import DecompressionError, snappy

    try:
        _unsnappy_size(block)
        return bytes(snappy.decompress_raw(block))
    except DecompressionError as error:
        raise WireError(f"snappy: {error}") from None


def _unsnappy_size(block: memoryview) -> int:
    """Return the decompressed size in the block's header.

    Raises WireError if it exceeds MAX_BLOCK_BYTES or the header is malformed.
    """
    from cramjam import DecompressionError, snappy

    try:
        size: int = snappy.decompress_raw_len(block)
    except DecompressionError as error:
        raise WireError(f"snappy: {error}") from None
    if size > MAX_BLOCK_BYTES:
        raise WireError(f"snappy: a block of {size} bytes exceeds the limit of {MAX_BLOCK_BYTES}")
    return size


def piece_sizes(codec: Codec, data: Buffer) -> Iterator[int]:
    """Yield the size of each piece of `decompressed` that may exceed PIECE_BYTES.

    These are the sizes in the headers of snappy blocks; nothing is decompressed. Raises WireError
    if a block is malformed.
    """
    if codec is not Codec.SNAPPY:
        return
    view = memoryview(data)
    is_framed = bytes(view[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC
    yield from map(_unsnappy_size, _xerial_blocks(view, False) if is_framed else (view,))


# lz4: one frame; bytes after it are ignored, as Java does

_LZ4_CHUNK_BYTES: Final = 65536
_LZ4_FLAGS_AT: Final = 4
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_RESTRICTED: Final = _LZ4_INDEPENDENT | 0x03  # 0x03: the reserved bit, a dictionary id


def _lz4(data: Buffer, level: int | None) -> bytes:
    from lz4 import frame

    return bytes(
        frame.compress(
            data,
            compression_level=level or 0,
            block_size=frame.BLOCKSIZE_MAX64KB,
            block_linked=False,  # the Java client reads no linked blocks
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


def _unlz4(data: memoryview, is_produced: bool) -> Iterator[bytes]:
    from lz4 import frame

    stream = frame.LZ4FrameDecompressor()
    position, end = 0, len(data)
    while not stream.eof:
        # The library copies its unused input at each step, so each step gets a small chunk.
        chunk = data[position : position + _LZ4_CHUNK_BYTES] if stream.needs_input else data[:0]
        position += len(chunk)
        try:
            piece = bytes(stream.decompress(chunk, max_length=PIECE_BYTES))
        except (RuntimeError, ValueError, EOFError) as error:
            raise WireError(f"lz4: {error}") from None
        if piece:
            yield piece
        elif not (chunk or stream.eof) and (position == end or not stream.needs_input):
            raise WireError("lz4: the frame is truncated")
    if is_produced and (left := end - position + len(stream.unused_data or b"")):
        raise WireError(f"lz4: {left} bytes after the frame, which some clients do not read")


def _unlz4_short(data: memoryview, max_bytes: int) -> bytes | None:
    from lz4 import frame

    stream = frame.LZ4FrameDecompressor()
    try:
        made = bytes(stream.decompress(data, max_length=max_bytes))
    except (RuntimeError, ValueError, EOFError):
        return None
    return made if stream.eof and not stream.unused_data else None


# zstd

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE: Final = 0x184D2A50  # the low four bits are free
_ZSTD_MAX_WINDOW_BYTES: Final = 1 << 27  # the limit of the zstd command and of Java's library
_LITTLE: Final = Struct("<I")


def _zstd(data: Buffer, level: int | None) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


def _zstd_stream(level: int | None) -> Compressor:
    import zstandard

    stream = zstandard.ZstdCompressor(level=3 if level is None else level).compressobj()
    return stream.compress, stream.flush


def _unzstd(data: memoryview, whole_bytes: int) -> Iterator[bytes]:
    import zstandard

    for frame in _zstd_frames(data):
        stream = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
        try:
            # For a content size of 0 `decompress` returns nothing, even if the blocks have data.
            if 0 < zstandard.frame_content_size(frame) <= whole_bytes:
                yield stream.decompress(frame)
                continue
            reader = stream.stream_reader(frame)
            while piece := reader.read(PIECE_BYTES):
                yield piece
        except zstandard.ZstdError as error:
            raise WireError(f"zstd: {error}") from None


def _unzstd_short(data: memoryview, max_bytes: int) -> bytes | None:
    import zstandard

    try:
        # `decompress` allocates this size; -1: it is unknown, 0: also of a frame to be skipped.
        size = zstandard.frame_content_size(data)
        # The library finds bytes after the frame only if it knows that size.
        if not size or size > max_bytes or _zstd_frame_end(data, 0, _SHORT_BLOCKS) != len(data):
            return None
        stream = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
        return stream.decompress(data, max_output_size=max_bytes)
    except (zstandard.ZstdError, IndexError):
        return None


def _zstd_frames(data: memoryview) -> Iterator[memoryview]:
    """Yield the frames without the skippable ones. Source: RFC 8878, 3.1."""
    position = 0
    for _ in range(MAX_MEMBERS):
        if len(data) - position < _LITTLE.size:
            raise WireError("zstd: the frame is truncated")
        (magic,) = _LITTLE.unpack_from(data, position)
        try:
            if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE:
                end = position + 8 + _LITTLE.unpack_from(data, position + 4)[0]
            elif magic == _ZSTD_MAGIC:
                end = _zstd_frame_end(data, position)
            else:
                raise WireError(f"zstd: no frame begins with {magic:#010x}")
        except (IndexError, ValueError):
            raise WireError("zstd: the frame is truncated") from None
        if end > len(data):
            raise WireError("zstd: the frame is truncated")
        if magic == _ZSTD_MAGIC:
            yield data[position:end]
        position = end
        if position == len(data):
            return
    raise WireError(f"zstd: more than {MAX_MEMBERS} frames")


def _zstd_frame_end(data: memoryview, start: int, most_blocks: int = sys.maxsize) -> int:
    """Return the position after the frame at `start`; -1 if it has more than `most_blocks`."""
    descriptor = data[start + 4]
    single_segment = descriptor >> 5 & 1
    content_size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    dictionary_id_bytes = (0, 1, 2, 4)[descriptor & 3]
    position = start + 5 + (1 - single_segment) + dictionary_id_bytes + content_size_bytes
    last = blocks = 0
    while not last:
        blocks += 1
        if blocks > most_blocks:
            return -1
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
_DECOMPRESS: Final[dict[Codec, Callable[[memoryview, bool], Iterator[bytes]]]] = {
    Codec.NONE: _slices,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
}
_DECOMPRESS_SHORT: Final[dict[Codec, Callable[[memoryview, int], bytes | None]]] = {
    Codec.SNAPPY: _unsnappy_short,
    Codec.LZ4: _unlz4_short,
    Codec.ZSTD: _unzstd_short,
}
