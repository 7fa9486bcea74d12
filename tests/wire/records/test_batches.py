"""Batch headers: patched in place, checked for producers, scanned in logs."""

import struct

import pytest

from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.batches import PREFIX_BYTES
from metaquorum.wire.records.records import (
    HEADER_BYTES,
    BatchState,
    Codec,
    TimestampType,
    assign,
    check_batch,
    decode_records,
    parse_header,
    produced_batch,
    scan,
    set_log_append_time,
)
from tests.wire.records.sample_batches import NOW, damaged, legacy, rewritten, sample

# Patching in place


def test_the_place_in_the_log_is_patched_outside_the_checksum() -> None:
    received = bytearray(b"before" + sample() + b"after")
    view = memoryview(received)
    header = parse_header(view, 6)
    check_batch(view, 6, header)
    assign(view, 6, 1 << 40, header.batch_bytes - PREFIX_BYTES, 77)
    assert received[:6] + received[-5:] == b"beforeafter"
    assert parse_header(view, 6) == header._replace(base_offset=1 << 40, leader_epoch=77)
    assert scan(view[:-5], 6).state is BatchState.WHOLE
    assert [record.offset - (1 << 40) for record in decode_records(view, 6)] == [0, 1, 2]


def test_log_append_time_is_patched_with_the_checksum() -> None:
    view = memoryview(bytearray(b"before" + sample(codec=Codec.LZ4, producer_id=4)))
    header = parse_header(view, 6)
    set_log_append_time(view, 6, header, NOW + 99)
    patched = parse_header(view, 6)
    assert patched.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert patched.max_timestamp == NOW + 99
    assert patched.codec is Codec.LZ4
    assert scan(view, 6).state is BatchState.WHOLE
    assert {record.timestamp_ms for record in decode_records(view, 6)} == {NOW + 99}


# Batches of producers. The codes are the responses of Apache Kafka 4.3.1 to the same bytes. Kafka
# differs for unknown codecs (UNKNOWN_SERVER_ERROR), and accepts bits that only workers set, a
# producer id without an epoch, and a few bytes after the batch.

IDEMPOTENT = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}


@pytest.mark.parametrize(
    "batch",
    [
        sample(),
        sample(1, codec=Codec.ZSTD),
        sample(**IDEMPOTENT),
        sample(transactional=True, **IDEMPOTENT),
        sample(leader_epoch=9),
        sample(base_sequence=0),
        sample(producer_epoch=0),
        rewritten(sample(), attributes=0x80),
        rewritten(sample(), producer_id=-2),
    ],
)
def test_a_sound_batch_is_accepted(batch: bytearray) -> None:
    assert produced_batch(batch, 7) == parse_header(batch)
    check_batch(batch, 0, parse_header(batch))


CORRUPT, INVALID = ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("batch", "code", "words"),
    [
        pytest.param(damaged(sample(), 70), CORRUPT, "checksum", id="checksum"),
        pytest.param(legacy(0), INVALID, "format v0", id="format_v0"),
        pytest.param(legacy(1), INVALID, "format v1", id="format_v1"),
        pytest.param(legacy(0) * 3, INVALID, "format v0", id="formats_v0"),
        pytest.param(rewritten(sample(), magic=3), CORRUPT, "magic 3", id="magic_3"),
        pytest.param(rewritten(sample(), magic=-1), CORRUPT, "magic -1", id="magic_-1"),
        pytest.param(sample()[:-3], INVALID, "bytes of records", id="cut"),
        pytest.param(sample()[:40], INVALID, "40 bytes", id="cut_header"),
        pytest.param(b"", INVALID, "0 bytes", id="nothing"),
        pytest.param(sample() + sample(), INVALID, "first batch", id="two"),
        pytest.param(sample() + b"abc", INVALID, "first batch", id="tail"),
        pytest.param(
            rewritten(sample(), last_offset_delta=5), INVALID, "3 records with", id="delta"
        ),
        pytest.param(rewritten(sample(), last_offset_delta=-1), INVALID, "delta -1", id="delta_-1"),
        pytest.param(rewritten(sample(), record_count=0), INVALID, "0 records", id="count_0"),
        pytest.param(rewritten(sample(), record_count=-1), INVALID, "-1 records", id="count_-1"),
        pytest.param(rewritten(sample(), base_offset=7), INVALID, "base offset 7", id="offset"),
        pytest.param(sample(control=True), INVALID, "bit that only workers", id="control"),
        pytest.param(sample(log_append_time_ms=1), INVALID, "only workers", id="append_time"),
        pytest.param(sample(delete_horizon_ms=1), INVALID, "only workers", id="horizon"),
        pytest.param(
            sample(producer_id=5, producer_epoch=0), INVALID, "producer id 5", id="no_sequence"
        ),
        pytest.param(sample(producer_id=5, base_sequence=0), INVALID, "producer id", id="no_epoch"),
        pytest.param(sample(transactional=True), INVALID, "without a producer", id="no_producer"),
        pytest.param(
            rewritten(sample(), attributes=5),
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            "codec 5",
            id="codec_5",
        ),
        pytest.param(
            sample(codec=Codec.ZSTD),
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            "Produce version 7",
            id="zstd_for_old_clients",
        ),
    ],
)
def test_an_unsound_batch_gets_kafkas_code(batch: bytes, code: ErrorCode, words: str) -> None:
    with pytest.raises(KafkaError, match=words) as raised:
        produced_batch(batch, 6)
    assert raised.value.code is code


@pytest.mark.parametrize("size", [-(1 << 31), -5, 0, 10, 48])
def test_a_size_too_small_for_a_header_is_corrupt(size: int) -> None:
    batch = sample()
    struct.pack_into(">i", batch, 8, size)
    with pytest.raises(KafkaError) as raised:
        produced_batch(batch, 7)
    assert raised.value.code is CORRUPT
    assert scan(batch).state is BatchState.CORRUPT


def test_a_batch_that_leaves_its_buffer_is_corrupt() -> None:
    batch = sample()
    header = parse_header(batch)
    with pytest.raises(KafkaError) as raised:
        check_batch(batch[:-1], 0, header)
    assert raised.value.code is CORRUPT


@pytest.mark.parametrize("magic", [0, 1])
def test_the_older_formats_are_named_as_such(magic: int) -> None:
    for buffer in (legacy(magic), legacy(magic) * 3):
        with pytest.raises(KafkaError) as raised:
            parse_header(buffer)
        assert raised.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_every_flipped_bit_behind_the_checksum_is_found() -> None:
    batch = sample(2, **IDEMPOTENT)
    for bit in range(17 * 8, len(batch) * 8):
        batch[bit // 8] ^= 1 << bit % 8
        with pytest.raises(KafkaError) as raised:
            check_batch(batch, 0, parse_header(batch))
        assert raised.value.code is CORRUPT
        assert scan(batch).state is BatchState.CORRUPT
        batch[bit // 8] ^= 1 << bit % 8
    check_batch(batch, 0, parse_header(batch))


# Batches in a log


def test_a_scan_tells_whole_torn_and_corrupt() -> None:
    batch = sample()
    header = parse_header(batch)
    assert scan(b"12345678" + batch, 8) == (BatchState.WHOLE, header, "")
    for end in range(len(batch)):
        torn = scan(batch[:end])
        assert torn.state is BatchState.TORN
        assert torn.header == (header if end >= HEADER_BYTES else None)
    assert scan(bytes(200)).state is BatchState.CORRUPT
    assert scan(bytes(20)).state is BatchState.TORN
    problem = "message format v1 is not supported; use v2"
    assert scan(legacy(1) * 3) == (BatchState.CORRUPT, None, problem)
    assert scan(damaged(sample(), 75)).problem == "the checksum does not match"
    for lie in ({"base_offset": -1}, {"record_count": 4}, {"record_count": -1}):
        assert scan(rewritten(sample(), **lie)).state is BatchState.CORRUPT
    for fine in ({"record_count": 0}, {"record_count": 1}, {"last_offset_delta": 99}):
        assert scan(rewritten(sample(), **fine)).state is BatchState.WHOLE
