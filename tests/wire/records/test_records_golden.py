"""Segments written by a real Kafka, see capture_batches.py."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from metaquorum.wire.records.batches import DELETE_HORIZON, LOG_APPEND_TIME
from metaquorum.wire.records.records import (
    HEADER_BYTES,
    BatchHeader,
    BatchState,
    Codec,
    Record,
    batch_crc,
    batches,
    decode_marker,
    decode_records,
    encode_batch,
    parse_header,
    scan,
)

GOLDEN = Path(__file__).parent / "golden_batches"


def golden(name: str) -> tuple[bytes, dict[str, Any]]:
    expected = json.loads((GOLDEN / f"{name}.json").read_text())
    return (GOLDEN / f"{name}.bin").read_bytes(), expected


def as_record(seen: dict[str, Any]) -> Record:
    def unbase(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    return Record(
        seen["offset"],
        seen["timestamp_ms"],
        unbase(seen["key"]),
        unbase(seen["value"]),
        tuple((name, unbase(value)) for name, value in seen["headers"]),
    )


NAMES = sorted(path.stem for path in GOLDEN.glob("*.bin"))


def test_the_golden_batches_are_there() -> None:
    java = {f"java_{codec.name.lower()}" for codec in Codec}
    assert java | {"log_append_time", "transactions"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_segment_of_kafkas_is_read_as_its_clients_read_it(name: str) -> None:
    segment, expected = golden(name)
    records: list[Record] = []
    markers: dict[str, str] = {}
    end = 0
    for position, header in batches(segment):
        assert scan(segment, position) == (BatchState.WHOLE, header, "")
        assert header.codec.name.lower() == ("none" if header.is_control else expected["codec"])
        end = position + header.batch_bytes
        decoded = decode_records(segment, position)
        if not header.is_control:
            records += decoded
            continue
        marker = decode_marker(decoded[0])
        assert marker is not None
        markers[str(header.base_offset)] = marker.control_type.name
    assert end == len(segment)
    assert records == [as_record(seen) for seen in expected["records"]]
    assert markers == expected["markers"]
    stamped = {parse_header(segment).timestamp_type.value}
    assert stamped == {seen["timestamp_type"] for seen in expected["records"]}


def again(batch: bytes, header: BatchHeader) -> bytearray:
    """Encode a batch with the same content."""
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    assert not header.attributes & DELETE_HORIZON
    return encode_batch(
        decode_records(batch),
        codec=header.codec,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        log_append_time_ms=append_time,
    )


@pytest.mark.parametrize("name", ["java_none", "librdkafka_none", "transactions"])
def test_what_kafka_wrote_is_written_again_byte_for_byte(name: str) -> None:
    segment, _ = golden(name)
    for position, header in batches(segment):
        batch = segment[position : position + header.batch_bytes]
        assert again(batch, header) == batch
        assert batch_crc(batch, 0, len(batch)) == header.crc


def test_snappy_is_written_as_kafka_wrote_it_but_for_the_compressor() -> None:
    segment, _ = golden("java_snappy")
    header = parse_header(segment)
    assert again(segment, header)[HEADER_BYTES : HEADER_BYTES + 16] == segment[61:77]
    assert decode_records(again(segment, header)) == decode_records(segment)
