"""Framings of compressed records: the streams, frames and headers in which a codec's data may come.

Each is valid for at least one decoder; not all clients read all of them.
"""

import gzip
import io
import struct
from collections.abc import Callable
from typing import Final

import zstandard
from cramjam import snappy
from lz4 import frame

from metaquorum.wire.records.compression import Codec

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
HALF: Final = 700  # where streams are divided; not a limit of any codec


def _halves(encode: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda data: encode(data[:HALF]) + encode(data[HALF:])


def _lz4(**options: object) -> Callable[[bytes], bytes]:
    settings: dict[str, object] = {"block_linked": False, "store_size": False, **options}
    return lambda data: bytes(frame.compress(data, **settings))


def _xerial(version: int = 1, compatible: int = 1, size: int = 32_768) -> Callable[[bytes], bytes]:
    def encode(data: bytes) -> bytes:
        blocks = [data[at : at + size] for at in range(0, len(data), size)]
        packed = (bytes(snappy.compress_raw(block)) for block in blocks)
        framed = b"".join(struct.pack(">i", len(each)) + each for each in packed)
        return XERIAL_MAGIC + struct.pack(">ii", version, compatible) + framed

    return encode


def _zstd(**options: object) -> Callable[[bytes], bytes]:
    return lambda data: zstandard.ZstdCompressor(**options).compress(data)


def _named_gzip(data: bytes) -> bytes:
    output = io.BytesIO()
    with gzip.GzipFile("a-name", "wb", fileobj=output) as file:
        file.write(data)
    return output.getvalue()


_SKIPPED: Final = struct.pack("<II", 0x184D2A50, 5) + b"skip!"

FRAMINGS: Final[dict[str, tuple[Codec, Callable[[bytes], bytes]]]] = {
    "gzip, one member": (Codec.GZIP, gzip.compress),
    "gzip, a member with a file name": (Codec.GZIP, _named_gzip),
    "gzip, stored blocks": (Codec.GZIP, lambda data: gzip.compress(data, 0)),
    "gzip, two members": (Codec.GZIP, _halves(gzip.compress)),
    "gzip, an empty member first": (
        Codec.GZIP,
        lambda data: gzip.compress(b"") + gzip.compress(data),
    ),
    "gzip, an empty member last": (
        Codec.GZIP,
        lambda data: gzip.compress(data) + gzip.compress(b""),
    ),
    "gzip, zeros behind it": (Codec.GZIP, lambda data: gzip.compress(data) + bytes(8)),
    "gzip, bytes behind it": (Codec.GZIP, lambda data: gzip.compress(data) + b"trailing"),
    "lz4, one frame": (Codec.LZ4, _lz4()),
    "lz4, with checksums": (Codec.LZ4, _lz4(content_checksum=True)),
    "lz4, with block checksums": (Codec.LZ4, _lz4(block_checksum=True)),
    "lz4, with a content size": (Codec.LZ4, _lz4(store_size=True)),
    "lz4, blocks of 4 MiB": (Codec.LZ4, _lz4(block_size=frame.BLOCKSIZE_MAX4MB)),
    "lz4, linked blocks": (Codec.LZ4, _lz4(block_linked=True)),
    "lz4, two frames": (Codec.LZ4, _halves(_lz4())),
    "lz4, a frame to be skipped first": (Codec.LZ4, lambda data: _SKIPPED + _lz4()(data)),
    "lz4, a frame to be skipped last": (Codec.LZ4, lambda data: _lz4()(data) + _SKIPPED),
    "lz4, bytes behind it": (Codec.LZ4, lambda data: _lz4()(data) + b"trailing"),
    "snappy, a block without header": (
        Codec.SNAPPY,
        lambda data: bytes(snappy.compress_raw(data)),
    ),
    "snappy, a header of version 1": (Codec.SNAPPY, _xerial()),
    "snappy, small blocks": (Codec.SNAPPY, _xerial(size=100)),
    "snappy, a header of version 0": (Codec.SNAPPY, _xerial(0, 1)),
    "snappy, a header of version 2": (Codec.SNAPPY, _xerial(2, 1)),
    "snappy, compatible with version 0": (Codec.SNAPPY, _xerial(1, 0)),
    "snappy, compatible with version 2": (Codec.SNAPPY, _xerial(2, 2)),
    "snappy, a header of version -1": (Codec.SNAPPY, _xerial(-1, -1)),
    "snappy, two streams": (Codec.SNAPPY, _halves(_xerial())),
    "snappy, an empty block last": (
        Codec.SNAPPY,
        lambda data: _xerial()(data) + struct.pack(">i", 1) + b"\0",
    ),
    "snappy, bytes behind it": (Codec.SNAPPY, lambda data: _xerial()(data) + b"abc"),
    "zstd, one frame": (Codec.ZSTD, _zstd()),
    "zstd, without a content size": (Codec.ZSTD, _zstd(write_content_size=False)),
    "zstd, with a checksum": (Codec.ZSTD, _zstd(write_checksum=True)),
    "zstd, two frames": (Codec.ZSTD, _halves(_zstd())),
    "zstd, two frames without sizes": (Codec.ZSTD, _halves(_zstd(write_content_size=False))),
    "zstd, an empty frame first": (Codec.ZSTD, lambda data: _zstd()(b"") + _zstd()(data)),
    "zstd, an empty frame last": (Codec.ZSTD, lambda data: _zstd()(data) + _zstd()(b"")),
    "zstd, a frame to be skipped first": (Codec.ZSTD, lambda data: _SKIPPED + _zstd()(data)),
    "zstd, a frame to be skipped last": (Codec.ZSTD, lambda data: _zstd()(data) + _SKIPPED),
    "zstd, bytes behind it": (Codec.ZSTD, lambda data: _zstd()(data) + b"trailing"),
}

# Those that some client does not read: leaders refuse them.
REFUSED: Final = (
    "gzip, two members",
    "gzip, an empty member first",
    "gzip, zeros behind it",
    "gzip, bytes behind it",
    "lz4, linked blocks",
    "lz4, two frames",
    "lz4, a frame to be skipped first",
    "lz4, a frame to be skipped last",
    "lz4, bytes behind it",
    "snappy, two streams",
    "snappy, bytes behind it",
    "zstd, bytes behind it",
)
