"""Codecs: decompression, compression, and bounded cost of malicious input."""

import gzip
import random
import struct
import tracemalloc
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.records.compression import (
    MAX_MEMBERS,
    PIECE_BYTES,
    SHORT_COMPRESSED_BYTES,
    Codec,
    check_produced,
    compress,
    compress_pieces,
    decompress,
    decompress_short,
    decompressed,
    has_other_header,
    set_plain_header,
)
from tests.examples import examples
from tests.wire.records.framings import FRAMINGS, REFUSED

MAX = 1 << 20
SAMPLE = b"".join(b"%d squared is %d\n" % (n, n * n) for n in range(3000))
COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
quick = examples(100)

codecs = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
compressing = pytest.mark.parametrize("codec", COMPRESSING, ids=lambda codec: codec.name.lower())


@given(
    st.sampled_from(Codec),
    st.one_of(st.binary(max_size=200), st.integers(0, 3).map(lambda n: SAMPLE * n)),
    st.sampled_from([bytes, bytearray, memoryview]),
)
@quick
def test_what_was_compressed_comes_back(codec: Codec, data: bytes, kind: type) -> None:
    assert decompress(codec, kind(compress(codec, kind(data))), MAX) == data


@codecs
@pytest.mark.parametrize("sizes", [[], [5], [5, 0, 7], [100_000] * 9, [1 << 20, 3]], ids=str)
def test_what_was_compressed_in_pieces_comes_back_in_pieces(codec: Codec, sizes: list[int]) -> None:
    pieces = [random.Random(n).randbytes(size // 2) * 2 for n, size in enumerate(sizes)]
    steps = list(compress_pieces(codec, pieces))
    assert sum(taken for taken, _ in steps) == sum(map(len, pieces))
    back = list(decompressed(codec, b"".join(made for _, made in steps)))
    assert b"".join(back) == b"".join(pieces)
    assert all(len(piece) <= PIECE_BYTES for piece in back)


@compressing
def test_a_level_is_used(codec: Codec) -> None:
    assert decompress(codec, compress(codec, SAMPLE, level=9), MAX) == SAMPLE


@codecs
def test_the_bound_itself_is_allowed_and_one_more_is_not(codec: Codec) -> None:
    packed = compress(codec, SAMPLE)
    assert decompress(codec, packed, len(SAMPLE)) == SAMPLE
    with pytest.raises(WireError, match=f"{codec.name.lower()}: decompresses to more than"):
        decompress(codec, packed, len(SAMPLE) - 1)


def zstd_without_content_size(data: bytes) -> bytes:
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


BOMB = bytes(64 << 20)


@pytest.mark.parametrize(
    ("codec", "make"),
    [
        pytest.param(Codec.GZIP, lambda: gzip.compress(BOMB, 1), id="gzip"),
        pytest.param(Codec.SNAPPY, lambda: compress(Codec.SNAPPY, BOMB), id="snappy"),
        pytest.param(Codec.LZ4, lambda: lz4.frame.compress(BOMB), id="lz4"),
        pytest.param(Codec.ZSTD, lambda: zstandard.compress(BOMB), id="zstd"),
        pytest.param(Codec.ZSTD, lambda: zstd_without_content_size(BOMB), id="zstd_streamed"),
        pytest.param(
            Codec.GZIP,
            lambda: b"".join(gzip.compress(BOMB[: 512 << 10]) for _ in range(128)),
            id="gzip_members",
        ),
    ],
)
def test_a_bomb_is_refused_within_its_bound(codec: Codec, make: object) -> None:
    assert callable(make)
    bomb = make()
    decompress(codec, compress(codec, b"import what is needed"), MAX)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="decompresses to more than 1048576 bytes"):
            decompress(codec, bomb, MAX)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * MAX


@compressing
def test_input_cut_anywhere_is_a_wire_error(codec: Codec) -> None:
    packed = compress(codec, SAMPLE[:2000])
    for end in range(len(packed)):
        if codec is Codec.SNAPPY and end in (16,):
            continue  # a framed stream without blocks is valid
        with pytest.raises(WireError):
            decompress(codec, packed[:end], MAX)


@given(st.sampled_from(COMPRESSING), st.binary(max_size=300), st.data())
@examples(300)
def test_any_bytes_give_bytes_or_a_wire_error(
    codec: Codec, data: bytes, draw: st.DataObject
) -> None:
    start = draw.draw(st.integers(0, len(SAMPLE)))
    packed = compress(codec, SAMPLE[start : start + 500])
    keep = draw.draw(st.integers(0, len(packed)))
    tail = draw.draw(st.integers(0, len(packed)))
    for bad in (data, packed[:keep] + data, packed[:keep] + data + packed[tail:]):
        try:
            assert len(decompress(codec, bad, MAX)) <= MAX
        except WireError:
            pass


@compressing
def test_flipped_bits_give_bytes_or_a_wire_error(codec: Codec) -> None:
    packed = bytearray(compress(codec, SAMPLE[:1500]))
    dice = random.Random(3)
    for _ in range(2000):
        bit = dice.randrange(len(packed) * 8)
        packed[bit // 8] ^= 1 << bit % 8
        try:
            assert len(decompress(codec, packed, MAX)) <= MAX
        except WireError:
            pass
        packed[bit // 8] ^= 1 << bit % 8


# Short input


SHORT = (Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)


@pytest.mark.parametrize("codec", SHORT, ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("size", [1, 1500, 30_000])
def test_short_input_is_decompressed_at_once_up_to_its_bound(codec: Codec, size: int) -> None:
    data = (SAMPLE * 2)[:size]
    packed = compress(codec, data)
    assert len(packed) <= SHORT_COMPRESSED_BYTES
    assert decompress_short(codec, packed, len(data) + 1) == data
    assert decompress_short(codec, packed, len(data) - 1) is None
    assert decompress_short(codec, packed, 0) is None
    assert decompress_short(codec, b"", MAX) is None


@codecs
def test_input_that_is_not_short_is_left_to_the_pieces(codec: Codec) -> None:
    packed = compress(codec, random.Random(1).randbytes(SHORT_COMPRESSED_BYTES + 1))
    assert decompress_short(codec, packed, MAX) is None
    if codec not in SHORT:
        assert decompress_short(codec, compress(codec, b"one"), MAX) is None


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (Codec.ZSTD, zstandard.compress(b"one") + zstandard.compress(b"two")),
        (Codec.ZSTD, b"\x50\x2a\x4d\x18\0\0\0\0" + zstandard.compress(b"one")),
        (Codec.ZSTD, zstd_without_content_size(b"one") + zstandard.compress(b"two")),
        (Codec.SNAPPY, b"".join(compress(Codec.SNAPPY, b"one") for _ in range(9))),
    ],
    ids=["zstd frames", "zstd skippable", "zstd streamed", "snappy blocks"],
)
def test_short_input_of_several_members_is_left_to_the_pieces(codec: Codec, packed: bytes) -> None:
    assert decompress(codec, packed, MAX)
    assert decompress_short(codec, packed, MAX) is None


@given(st.sampled_from(SHORT), st.binary(max_size=300), st.data())
@examples(500)
def test_short_input_has_the_output_of_the_pieces_or_is_left_to_them(
    codec: Codec, data: bytes, draw: st.DataObject
) -> None:
    start = draw.draw(st.integers(0, len(SAMPLE)))
    packed = compress(codec, SAMPLE[start : start + 500])
    keep = draw.draw(st.integers(0, len(packed)))
    tail = draw.draw(st.integers(0, len(packed)))
    for other in (packed, data, packed[:keep] + data + packed[tail:], packed + data):
        short = decompress_short(codec, other, 2000)
        assert short is None or short == decompress(codec, other, 2000)


@pytest.mark.parametrize("codec", SHORT, ids=lambda codec: codec.name.lower())
def test_a_flipped_bit_in_short_input_has_the_output_of_the_pieces(codec: Codec) -> None:
    packed = bytearray(compress(codec, SAMPLE[:1500]))
    dice = random.Random(3)
    same = 0
    for _ in range(2000):
        bit = dice.randrange(len(packed) * 8)
        packed[bit // 8] ^= 1 << bit % 8
        short = decompress_short(codec, packed, 2000)
        if short is not None:
            assert short == decompress(codec, packed, 2000)
            same += 1
        packed[bit // 8] ^= 1 << bit % 8
    assert same


# gzip


def test_gzip_members_are_joined_and_what_follows_is_ignored() -> None:
    members = gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(b"two")
    assert decompress(Codec.GZIP, members, MAX) == b"one two"
    assert decompress(Codec.GZIP, members + b"\0\0\0 padding", MAX) == b"one two"


def test_gzip_members_are_counted() -> None:
    with pytest.raises(WireError, match="more than 1000 members"):
        decompress(Codec.GZIP, gzip.compress(b"") * (MAX_MEMBERS + 1), MAX)


# snappy


def test_snappy_is_written_as_the_java_client_does() -> None:
    packed = compress(Codec.SNAPPY, SAMPLE)
    assert packed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    position, blocks = 16, 0
    while position < len(packed):
        position += 4 + struct.unpack_from(">i", packed, position)[0]
        blocks += 1
    assert (position, blocks) == (len(packed), -(-len(SAMPLE) // 32768))


def test_a_bare_snappy_block_is_read() -> None:
    from cramjam import snappy

    assert decompress(Codec.SNAPPY, bytes(snappy.compress_raw(SAMPLE)), MAX) == SAMPLE


def test_snappy_streams_one_after_the_other_are_joined() -> None:
    streams = compress(Codec.SNAPPY, b"one ") + compress(Codec.SNAPPY, b"two")
    assert decompress(Codec.SNAPPY, streams, MAX) == b"one two"


def test_a_snappy_block_that_claims_4_gb_is_refused() -> None:
    claim = b"\xff\xff\xff\xff\x0f" + b"\0" * 10
    with pytest.raises(WireError, match="exceeds the limit"):
        decompress(Codec.SNAPPY, claim, MAX)


@pytest.mark.parametrize("version", [0, 1, 2, 0x80000001])
def test_a_snappy_header_of_another_version_can_be_replaced(version: int) -> None:
    packed = bytearray(compress(Codec.SNAPPY, SAMPLE))
    struct.pack_into(">I", packed, 8, version)
    assert has_other_header(Codec.SNAPPY, packed) == (version != 1)
    set_plain_header(memoryview(packed))
    assert packed == compress(Codec.SNAPPY, SAMPLE)


def test_bare_snappy_and_other_codecs_have_no_such_header() -> None:
    from cramjam import snappy

    assert not has_other_header(Codec.SNAPPY, bytes(snappy.compress_raw(SAMPLE)))
    assert not any(has_other_header(codec, compress(codec, SAMPLE)) for codec in Codec)


@pytest.mark.parametrize("name", FRAMINGS)
def test_produced_data_have_a_framing_that_all_clients_read(name: str) -> None:
    """tests/conformance/test_framings.py compares the names with what clients read."""
    codec, encode = FRAMINGS[name]
    data = encode(SAMPLE)
    try:
        check_produced(codec, data)
        found = b"".join(decompressed(codec, data, is_produced=True))
    except WireError:
        assert name in REFUSED
    else:
        assert found == SAMPLE
        assert name not in REFUSED
        short = decompress_short(codec, encode(SAMPLE[:9000]), MAX)
        assert short in (None, SAMPLE[:9000])


@pytest.mark.parametrize("name", [each for each in REFUSED if each != "lz4, linked blocks"])
def test_no_other_framing_is_read_in_place(name: str) -> None:
    codec, encode = FRAMINGS[name]
    assert decompress_short(codec, encode(SAMPLE[:9000]), MAX) is None


# lz4, zstd


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("size", [False, True])
def test_every_kind_of_lz4_frame_is_read(linked: bool, checksum: bool, size: bool) -> None:
    packed = lz4.frame.compress(
        SAMPLE,
        block_linked=linked,
        content_checksum=checksum,
        block_checksum=checksum,
        store_size=size,
    )
    assert decompress(Codec.LZ4, packed, MAX) == SAMPLE


@pytest.mark.parametrize("make", [random.Random(7).randbytes, bytes])
@pytest.mark.parametrize("linked", [False, True])
def test_lz4_input_that_waits_is_never_copied_whole(
    make: Callable[[int], bytes], linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check for linear time: the library copies its unused input at each step."""
    waiting: list[int] = []

    class Watched(lz4.frame.LZ4FrameDecompressor):  # type: ignore[misc]
        def decompress(self, data: bytes, max_length: int = -1) -> bytes:
            found = super().decompress(data, max_length=max_length)
            waiting.append(len(self._unconsumed_data or b""))
            return bytes(found)

    data = make(10 * PIECE_BYTES + 1)
    packed = lz4.frame.compress(data, block_linked=linked, content_checksum=True)
    monkeypatch.setattr(lz4.frame, "LZ4FrameDecompressor", Watched)
    assert b"".join(decompressed(Codec.LZ4, packed + b"ignored")) == data
    assert max(waiting) <= PIECE_BYTES
    for cut in (1, 4, 5, 11, PIECE_BYTES):
        if cut < len(packed):
            with pytest.raises(WireError, match="truncated"):
                list(decompressed(Codec.LZ4, packed[:-cut]))


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("size", [0, 1, 255, 256, 65536 + 256, 300_000])
def test_zstd_frames_of_every_header_are_read(size: int, checksum: bool) -> None:
    data = random.Random(size).randbytes(size // 2) + bytes(size - size // 2)
    whole = zstandard.ZstdCompressor(write_checksum=checksum).compress(data)
    assert decompress(Codec.ZSTD, whole, MAX) == data
    stream = zstandard.ZstdCompressor(write_checksum=checksum).compressobj()
    packed = stream.compress(data) + stream.flush()
    assert decompress(Codec.ZSTD, packed, MAX) == data
    with pytest.raises(WireError, match="truncated"):
        decompress(Codec.ZSTD, packed[:-1], MAX)


def test_zstd_frames_are_joined_and_skippable_ones_left_out() -> None:
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"notes"
    frames = skippable + compress(Codec.ZSTD, b"one ") + skippable + compress(Codec.ZSTD, b"two")
    assert decompress(Codec.ZSTD, frames, MAX) == b"one two"
    with pytest.raises(WireError, match="truncated"):
        decompress(Codec.ZSTD, frames[:12], MAX)
    with pytest.raises(WireError, match="more than 1000 frames"):
        decompress(Codec.ZSTD, skippable * (MAX_MEMBERS + 1), MAX)


def test_a_zstd_frame_that_lies_about_its_size_is_refused() -> None:
    packed = bytearray(zstandard.compress(SAMPLE))
    assert zstandard.frame_content_size(bytes(packed)) == len(SAMPLE)
    at = packed.index(struct.pack("<I", len(SAMPLE)))
    struct.pack_into("<I", packed, at, len(SAMPLE) - 7)
    with pytest.raises(WireError, match="zstd: "):
        decompress(Codec.ZSTD, packed, MAX)
    struct.pack_into("<I", packed, at, 0xFFFFFFF0)
    with pytest.raises(WireError, match="too much memory"):
        decompress(Codec.ZSTD, packed, MAX)


@pytest.mark.parametrize("checksum", [False, True])
def test_a_zstd_frame_that_claims_to_be_empty_is_opened(checksum: bool) -> None:
    empty = zstandard.ZstdCompressor(write_checksum=checksum).compress(b"")
    assert decompress(Codec.ZSTD, empty + compress(Codec.ZSTD, b"two") + empty, MAX) == b"two"
    packed = bytearray(zstandard.compress(b"hello"))
    assert packed[4:6] == b"\x20\x05"  # one segment, and its content size
    packed[5] = 0
    with pytest.raises(WireError, match="zstd: "):
        decompress(Codec.ZSTD, compress(Codec.ZSTD, b"one") + packed, MAX)
