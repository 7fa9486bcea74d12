"""Records and batches: encoding and decoding, and rejection of malformed bytes."""

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.metadata.batch import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    Batch,
    BatchTooLargeError,
    decode_batch,
)
from metaquorum.metadata.records import (
    SCHEMAS,
    Array,
    Boolean,
    Data,
    Integer,
    MetadataRecord,
    NewerVersionError,
    Nullable,
    OneOf,
    Positive,
    RecordError,
    RemoveTopicRecord,
    Struct,
    Text,
    TopicRecord,
    Uuid,
    decode_record,
    encode_record,
    record_text,
)

FEW = 3  # items of an array, and bytes or characters of most strings


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Generate valid values of a field of that kind."""
    match kind:
        case Integer():
            return st.integers(kind.least, kind.most)
        case Text():
            return st.text(st.characters(codec="utf-8"), max_size=FEW)
        case OneOf():
            return st.sampled_from(kind.texts)
        case Positive():
            return st.floats(0, exclude_min=True, allow_infinity=False)
        case Nullable():
            return st.none() | values_of(kind.kind)
        case Uuid():
            return st.binary(min_size=16, max_size=16)
        case Data():
            return st.binary(max_size=FEW) | st.just(bytes(kind.max_bytes))
        case Boolean():
            return st.booleans()
        case Array():
            return st.lists(values_of(kind.kind), max_size=FEW).map(tuple)
        case Struct():
            return st.builds(kind.make, *map(values_of, kind.kinds))
    raise AssertionError(f"no values of {kind}")


RECORDS: st.SearchStrategy[MetadataRecord] = st.one_of(
    [
        st.builds(schema.record, *[values_of(field.kind) for field in schema.fields])
        for schema in SCHEMAS
    ]
)


def test_record_ids_are_used_once_and_every_field_has_its_kind() -> None:
    assert len({schema.id for schema in SCHEMAS}) == len(SCHEMAS)
    for schema in SCHEMAS:
        names = tuple(schema.record.__dataclass_fields__)
        assert tuple(field.name for field in schema.fields) == names
        assert all(field.since <= schema.version for field in schema.fields)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: MetadataRecord) -> None:
    assert decode_record(encode_record(record)) == record
    assert record_text(record)


@given(RECORDS, st.data())
def test_mutated_bytes_are_another_record_or_a_record_error(
    record: MetadataRecord, data: st.DataObject
) -> None:
    packed = bytearray(encode_record(record))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(packed[: data.draw(st.integers(0, len(packed)))])
    for mutated in (bytes(packed), cut):
        try:
            decoded = decode_record(mutated)
        except RecordError:
            continue
        assert decode_record(encode_record(decoded)) == decoded


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((99, 0), "id 99 is unknown"),
        ((2, 1, "name", bytes(16)), "TopicRecord: version 1 was written by a newer version"),
        ((2, 0, "name"), "TopicRecord: 1 fields instead of 2"),
        ((2, 0, "name", b"short"), "TopicRecord.topic_id is not 16 bytes"),
        ((2, 0, "n" * 250, bytes(16)), "TopicRecord.name is not a string of at most 249"),
        ((1, 0, "name", True), "FeatureLevelRecord.level is not an integer"),
        ((2, "0", "name", bytes(16)), "TopicRecord: the version is not a number"),
        ((), "not an array"),
        ("text", "not an array"),
    ],
)
def test_what_is_no_record_is_refused_by_name(row: Any, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        decode_record(msgpack.packb(row))


def test_a_record_of_a_newer_version_has_an_error_of_its_own() -> None:
    with pytest.raises(NewerVersionError):
        decode_record(msgpack.packb((2, 7, "name", bytes(16), "more")))


def test_what_could_not_be_read_again_is_not_written() -> None:
    with pytest.raises(ValueError, match=r"TopicRecord\.name"):
        encode_record(TopicRecord("n" * 250, bytes(16)))


def test_nested_lengths_cannot_claim_memory() -> None:
    with pytest.raises(RecordError):
        decode_record(b"\xdd\xff\xff\xff\xff" * 50)


def batch_of(records: list[MetadataRecord]) -> Batch:
    body = b"".join(encode_record(record) for record in records)
    return Batch(3, 1, 17, 100, len(records), body)


@given(st.lists(RECORDS, max_size=5))
def test_a_batch_is_read_as_it_was_written(records: list[MetadataRecord]) -> None:
    batch = batch_of(records)
    again = decode_batch(batch.encode())
    assert again == batch
    assert list(again.records()) == records
    assert again.end_offset == 100 + len(records)


@settings(deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=4), st.data())
def test_a_mutated_batch_is_a_batch_or_a_record_error(
    records: list[MetadataRecord], data: st.DataObject
) -> None:
    packed = bytearray(batch_of(records).encode())
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        list(decode_batch(bytes(packed)).records())
    except RecordError:
        pass


def test_a_batch_beyond_its_bounds_is_neither_written_nor_read() -> None:
    record = encode_record(RemoveTopicRecord(bytes(16)))
    many = Batch(1, 1, 1, 0, MAX_BATCH_RECORDS + 1, record * (MAX_BATCH_RECORDS + 1))
    large = Batch(1, 1, 1, 0, 1, bytes(MAX_BATCH_BYTES + 1))
    for batch in (many, large):
        with pytest.raises(BatchTooLargeError):
            batch.encode()
        header = (1, 1, 1, 1, 0, batch.count)
        with pytest.raises(RecordError, match="exceed the limits"):
            decode_batch(msgpack.packb(header) + batch.body)


def test_bytes_behind_the_last_record_are_refused() -> None:
    batch = batch_of([RemoveTopicRecord(bytes(16))])
    extended = Batch(1, 1, 1, 0, 1, batch.body + b"\x00")
    with pytest.raises(RecordError, match="excess bytes"):
        list(extended.records())


def test_a_batch_of_a_newer_format_is_refused_in_words() -> None:
    with pytest.raises(NewerVersionError, match="newer version"):
        decode_batch(msgpack.packb((2, 1, 1, 1, 0, 0, "more")))
