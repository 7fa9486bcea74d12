"""Batches encoded here and decoded by kio, kafka-python and aiokafka, and the reverse."""

from typing import Any

import kio.records.readers
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.codec import has_snappy
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from metaquorum.wire.records.records import (
    Codec,
    Record,
    decode_records,
    encode_batch,
    parse_header,
    produced_batch,
)
from tests.examples import examples

quick = examples(60)
data = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8), data), max_size=3).map(tuple)
contents = st.lists(
    st.tuples(st.integers(0, 1 << 40), data, data, headers), min_size=1, max_size=12
)
records = contents.map(lambda rows: [Record(offset, *row) for offset, row in enumerate(rows)])

LIBRARIES = [
    pytest.param(AiokafkaBatch, AiokafkaBuilder, set(Codec), id="aiokafka"),
    pytest.param(
        KafkaPythonBatch,
        KafkaPythonBuilder,
        set(Codec) if has_snappy() else set(Codec) - {Codec.SNAPPY},
        id="kafka_python",
    ),
]


@pytest.mark.parametrize(("reader", "builder", "codecs"), LIBRARIES)
@given(ours=records, choice=st.sampled_from(Codec), transactional=st.booleans())
@quick
def test_a_client_library_reads_what_we_write(
    reader: Any,
    builder: Any,
    codecs: set[Codec],
    ours: list[Record],
    choice: Codec,
    transactional: bool,
) -> None:
    codec = choice if choice in codecs else Codec.NONE
    batch = encode_batch(
        ours,
        codec=codec,
        producer_id=77,
        producer_epoch=3,
        base_sequence=12,
        transactional=transactional,
    )
    theirs = reader(bytes(batch))
    assert theirs.validate_crc()
    header = parse_header(batch)
    assert theirs.is_transactional == transactional
    assert theirs.producer_id == header.producer_id
    assert theirs.max_timestamp == header.max_timestamp
    assert theirs.next_offset == header.next_offset
    assert [
        Record(each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
        for each in theirs
    ] == ours


@pytest.mark.parametrize(("reader", "builder", "codecs"), LIBRARIES)
@given(ours=records, choice=st.sampled_from(Codec), transactional=st.booleans())
@quick
def test_we_read_what_a_client_library_writes(
    reader: Any,
    builder: Any,
    codecs: set[Codec],
    ours: list[Record],
    choice: Codec,
    transactional: bool,
) -> None:
    codec = choice if choice in codecs else Codec.NONE
    theirs = builder(
        magic=2,
        compression_type=codec,
        is_transactional=transactional,
        producer_id=77,
        producer_epoch=3,
        base_sequence=12,
        batch_size=1 << 20,
    )
    for each in ours:
        theirs.append(
            each.offset,
            timestamp=each.timestamp_ms,
            key=each.key,
            value=each.value,
            headers=list(each.headers),
        )
    batch = bytes(theirs.build())
    header = produced_batch(batch, 9)
    assert header.codec in (
        codec,
        Codec.NONE,
    )  # these clients store incompressible data without compression
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 12)
    assert header.is_transactional == transactional
    assert decode_records(batch) == ours


@given(ours=records)
@quick
def test_kio_reads_what_we_write(ours: list[Record]) -> None:
    # kio drops fractions of a second.
    batch = encode_batch(ours, producer_id=7, producer_epoch=1, base_sequence=5, leader_epoch=4)
    theirs, size = kio.records.readers.read_batch(bytes(batch), 0)
    assert size == len(batch)
    assert theirs.partition_leader_epoch == 4
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (7, 1, 5)
    assert [
        (each.offset, int(each.timestamp.timestamp()), each.key, each.value)
        for each in theirs.records
    ] == [(each.offset, each.timestamp_ms // 1000, each.key, each.value) for each in ours]
    assert [
        tuple(((header.key or b"").decode(), header.value) for header in each.headers)
        for each in theirs.records
    ] == [each.headers for each in ours]
