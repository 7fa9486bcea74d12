"""Records of `__consumer_offsets`: bytes of a real Kafka 4.3.1, all versions, malformed bytes."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.coordinators.group.record_formats import (
    GroupKey,
    GroupMetadataValue,
    KeyDecoder,
    MalformedRecordError,
    MemberMetadata,
    OffsetKey,
    OffsetValue,
    RecordKey,
    check_offset_value,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_value,
    encode_key,
    encode_member_head,
    encode_members,
    encode_offset_value,
    offset_timestamps,
    offset_topic_id,
)
from metaquorum.dataplane.scheduling.time_slices import at_once
from metaquorum.wire.primitives.types import ZERO_UUID

GOLDEN = Path(__file__).resolve().parent / "golden_records.json"
TOPIC_ID = bytes(range(16))


def golden() -> list[tuple[bytes, bytes | None]]:
    return [
        (bytes.fromhex(row["key"]), None if row["value"] is None else bytes.fromhex(row["value"]))
        for row in json.loads(GOLDEN.read_text())
    ]


def golden_offsets() -> list[tuple[OffsetKey, bytes]]:
    decoded = [(decode_key(key), value) for key, value in golden()]
    return [(key, v) for key, v in decoded if isinstance(key, OffsetKey) and v is not None]


def golden_groups() -> list[tuple[GroupKey, bytes]]:
    decoded = [(decode_key(key), value) for key, value in golden()]
    return [(key, v) for key, v in decoded if isinstance(key, GroupKey) and v is not None]


TEXT = st.text(st.characters(codec="utf-8"), max_size=300)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
KEYS: st.SearchStrategy[RecordKey] = st.builds(OffsetKey, TEXT, TEXT, INT32) | st.builds(
    GroupKey, TEXT
)
OFFSETS = st.builds(
    OffsetValue, INT64, INT32, TEXT, INT64, INT64, st.binary(min_size=16, max_size=16)
)
MEMBERS = st.builds(
    MemberMetadata,
    member_id=TEXT,
    group_instance_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    rebalance_timeout=INT32,
    session_timeout=INT32,
    subscription=st.binary(max_size=200),
    assignment=st.binary(max_size=200),
)
GROUPS = st.builds(
    GroupMetadataValue,
    protocol_type=TEXT,
    generation=INT32,
    protocol=st.none() | TEXT,
    leader=st.none() | TEXT,
    current_state_timestamp=INT64,
    members=st.lists(MEMBERS, max_size=3),
)
VERSIONS = st.integers(0, 4)


def carried_offset(value: OffsetValue, version: int) -> OffsetValue:
    """Return the value without the fields that the version does not have."""
    return value._replace(
        leader_epoch=value.leader_epoch if version >= 3 else -1,
        expire_timestamp_ms=value.expire_timestamp_ms if version == 1 else -1,
        topic_id=value.topic_id if version == 4 else ZERO_UUID,
    )


def carried_group(value: GroupMetadataValue, version: int) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type=value.protocol_type,
        generation=value.generation,
        protocol=value.protocol,
        leader=value.leader,
        current_state_timestamp=value.current_state_timestamp if version >= 2 else -1,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id if version >= 3 else None,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout if version >= 1 else -1,
                session_timeout=member.session_timeout,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in value.members
        ],
    )


# The records of a real Kafka


def test_keys_of_kafka_are_encoded_to_the_same_bytes() -> None:
    kinds = set()
    for key, _ in golden():
        decoded = decode_key(key)
        kinds.add(type(decoded))
        assert decoded is None or encode_key(decoded) == key
    assert kinds == {OffsetKey, GroupKey, type(None)}


def test_offsets_of_kafka_are_encoded_to_the_same_bytes() -> None:
    versions = set()
    for _, value in golden_offsets():
        check_offset_value(value)
        versions.add(value[1])
        assert encode_offset_value(decode_offset_value(value)) == value
    assert versions == {1, 4}


def test_groups_of_kafka_are_encoded_to_the_same_bytes() -> None:
    counts = set()
    for _, value in golden_groups():
        decoded = decode_group_value(value)
        counts.add(len(decoded.members))
        assert encode_group_value(decoded) == value
    assert counts == {0, 1, 2}


def test_offsets_of_kafka_have_the_values_that_were_committed() -> None:
    found = [
        (key.group, key.partition, value.offset, value.leader_epoch, value.metadata.rstrip("\0"))
        for key, raw in golden_offsets()
        for value in (decode_offset_value(raw),)
    ]
    assert ("golden-two", 1, 2, 0, "") in found
    assert ("golden-ünï-組", 0, 5, -1, "mëtadata 注") in found
    assert ("golden-simple", 0, 1 << 40, -1, "x" * 4000) in found
    assert ("golden-java", 0, 4, -1, "") in found


def test_an_offset_of_kafka_with_a_retention_time_has_an_expiry() -> None:
    values = [
        decode_offset_value(raw) for key, raw in golden_offsets() if key.group == "golden-expiring"
    ]
    plain, expiring = values
    assert plain.expire_timestamp_ms == -1
    assert plain.topic_id != ZERO_UUID
    assert expiring.expire_timestamp_ms == expiring.commit_timestamp_ms + 86_400_000
    assert expiring.topic_id == ZERO_UUID


def test_a_group_of_kafka_has_its_members_and_their_assignments() -> None:
    values = [decode_group_value(raw) for key, raw in golden_groups() if key.group == "golden-two"]
    both = next(value for value in values if len(value.members) == 2)
    assert (both.protocol_type, both.protocol) == ("consumer", "range")
    assert both.leader in {member.member_id for member in both.members}
    assert all(b"golden-topic" in member.assignment for member in both.members)
    assert (values[-1].protocol, values[-1].leader, values[-1].members) == (None, None, [])


def test_a_static_member_of_kafka_has_its_instance_id() -> None:
    (member,) = (
        member
        for key, raw in golden_groups()
        if key.group == "golden-static"
        for member in decode_group_value(raw).members
    )
    assert member.group_instance_id == "instance-1"


def test_records_of_the_protocol_of_kip_848_are_not_decoded() -> None:
    kinds = {struct.unpack_from(">h", key)[0] for key, _ in golden() if decode_key(key) is None}
    assert {3, 5, 6, 7, 8} <= kinds


# All versions


@given(KEYS)
def test_a_key_is_decoded_to_what_was_encoded(key: RecordKey) -> None:
    assert decode_key(encode_key(key)) == key


def test_version_0_of_a_key_is_an_offset() -> None:
    key = OffsetKey("g", "t", 7)
    assert decode_key(b"\0\0" + encode_key(key)[2:]) == key


@pytest.mark.parametrize("version", [-1, 3, 16, 21, 22, 32767])
def test_a_key_of_another_version_is_not_decoded(version: int) -> None:
    assert decode_key(struct.pack(">h", version) + b"\0\1g") is None


@given(OFFSETS, VERSIONS)
def test_an_offset_is_decoded_to_what_its_version_carries(value: OffsetValue, version: int) -> None:
    encoded = encode_offset_value(value, version)
    check_offset_value(encoded)
    assert decode_offset_value(encoded) == carried_offset(value, version)


@given(GROUPS, VERSIONS)
def test_a_group_is_decoded_to_what_its_version_carries(
    value: GroupMetadataValue, version: int
) -> None:
    assert decode_group_value(encode_group_value(value, version)) == carried_group(value, version)


@given(GROUPS)
def test_members_are_encoded_as_the_format_says(value: GroupMetadataValue) -> None:
    expected = encode_group_value(value)
    members = [
        (
            encode_member_head(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.rebalance_timeout,
                each.session_timeout,
            ),
            each.subscription,
            each.assignment,
        )
        for each in value.members
    ]
    value.members = []
    heads, subscriptions, assignments = zip(*members, strict=True) if members else ((), (), ())
    assert encode_members(value, heads, subscriptions, assignments) == expected


def test_an_offset_is_written_in_the_version_of_kafka() -> None:
    value = OffsetValue(5, 3, "", 1000)
    assert encode_offset_value(value)[:2] == b"\0\4"
    assert encode_offset_value(value._replace(topic_id=TOPIC_ID))[:2] == b"\0\4"
    assert encode_offset_value(value._replace(expire_timestamp_ms=2000))[:2] == b"\0\1"


def test_unknown_tagged_fields_of_an_offset_are_skipped() -> None:
    value = OffsetValue(5, 3, "m", 1000, topic_id=TOPIC_ID)
    encoded = encode_offset_value(value)
    before = encoded[: -len(TOPIC_ID) - 3]
    tags = b"\x03\x00\x10" + TOPIC_ID + b"\x01\x02xy" + b"\x80\x01\x00"
    check_offset_value(before + tags)
    assert decode_offset_value(before + tags) == value
    assert decode_offset_value(before + b"\x01\x05\x01z").topic_id == ZERO_UUID


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 255, 256, 300, 16382, 16383, 16384, 32767])
@pytest.mark.parametrize("version", range(5))
def test_metadata_of_every_length_is_decoded(size: int, version: int) -> None:
    value = OffsetValue(5, 3, "é" * (size // 2) + "x" * (size % 2), 1000, 2000, TOPIC_ID)
    encoded = encode_offset_value(value, version)
    check_offset_value(encoded)
    assert decode_offset_value(encoded) == carried_offset(value, version)
    assert offset_timestamps(encoded) == (1000, 2000 if version == 1 else -1)
    assert offset_topic_id(encoded) == (TOPIC_ID if version == 4 else ZERO_UUID)


# The cache of names


@given(st.lists(KEYS), st.integers(1, 3))
def test_a_decoder_with_a_cache_decodes_as_one_without(keys: list[RecordKey], names: int) -> None:
    decoder = KeyDecoder(names)
    for key in [*keys, *keys]:
        assert decoder.decode(encode_key(key)) == key


@given(KEYS, st.binary(max_size=6))
def test_a_decoder_with_a_cache_refuses_the_same_keys(key: RecordKey, more: bytes) -> None:
    encoded = encode_key(key)
    decoder = KeyDecoder()
    decoder.decode(encoded)
    for changed in [encoded[:end] for end in range(len(encoded))] + [encoded + b"\0" + more]:
        with pytest.raises(MalformedRecordError):
            decoder.decode(changed)


def test_a_decoder_remembers_a_bounded_number_of_names() -> None:
    decoder = KeyDecoder(10)
    for number in range(100):
        decoder.decode(encode_key(OffsetKey(f"g{number}", "t", 0)))
        assert len(decoder._names) <= 10


def test_a_decoder_remembers_no_long_names_and_forgets_all_of_them() -> None:
    decoder = KeyDecoder()
    for group in ("g", "g" * 30_000):
        decoder.decode(encode_key(OffsetKey(group, "t", 0)))
    assert list(decoder._names.values()) == [("g", "t")]
    at_once(decoder.emptied())
    assert not decoder._names


# Malformed bytes


@given(KEYS)
def test_a_truncated_key_is_refused(key: RecordKey) -> None:
    encoded = encode_key(key)
    for end in range(len(encoded)):
        with pytest.raises(MalformedRecordError):
            decode_key(encoded[:end])


def is_refused(value: bytes) -> bool:
    """Return whether both refuse this value of an offset."""
    with pytest.raises(MalformedRecordError):
        decode_offset_value(value)
    with pytest.raises(MalformedRecordError):
        check_offset_value(value)
    return True


@given(OFFSETS, VERSIONS)
def test_a_truncated_offset_is_refused(value: OffsetValue, version: int) -> None:
    encoded = encode_offset_value(value, version)
    assert all(is_refused(encoded[:end]) for end in range(len(encoded)))
    assert is_refused(encoded + b"\0")


@given(GROUPS, VERSIONS)
def test_a_truncated_group_is_refused(value: GroupMetadataValue, version: int) -> None:
    encoded = encode_group_value(value, version)
    for end in range(len(encoded)):
        with pytest.raises(MalformedRecordError):
            decode_group_value(encoded[:end])


def test_every_truncation_of_a_record_of_kafka_is_refused() -> None:
    for _, value in golden_offsets():
        assert all(is_refused(value[:end]) for end in range(len(value)))
    for _, value in golden_groups():
        for end in range(len(value)):
            with pytest.raises(MalformedRecordError):
                decode_group_value(value[:end])


@given(st.binary(max_size=200), st.integers(-1, 5))
def test_random_bytes_raise_no_other_error(data: bytes, version: int) -> None:
    for head in (b"", struct.pack(">h", version)):
        for decode in (decode_key, KeyDecoder().decode, decode_group_value):
            try:
                decode(head + data)
            except MalformedRecordError:
                pass
        try:
            decode_offset_value(head + data)
        except MalformedRecordError:
            assert is_refused(head + data)
        else:
            check_offset_value(head + data)


@given(OFFSETS, st.data())
def test_a_changed_byte_is_judged_alike_by_check_and_decode(
    value: OffsetValue, data: st.DataObject
) -> None:
    changed = bytearray(encode_offset_value(value, 4))
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_offset_value(bytes(changed))
    except MalformedRecordError:
        assert is_refused(bytes(changed))
    else:
        check_offset_value(bytes(changed))


@pytest.mark.parametrize("version", [-1, 5])
def test_a_value_of_an_unknown_version_is_refused(version: int) -> None:
    head = struct.pack(">h", version)
    assert is_refused(head + encode_offset_value(OffsetValue(5, 3, "", 1000))[2:])
    with pytest.raises(MalformedRecordError):
        decode_group_value(head + encode_group_value(GroupMetadataValue())[2:])


def test_a_negative_length_in_a_key_is_refused() -> None:
    long = b"\x80\0" + b"n" * 0x8000
    short = b"\0\1n"
    for names in (long + short, short + long):
        with pytest.raises(MalformedRecordError):
            decode_key(b"\0\1" + names + bytes(4))


def test_a_length_of_two_bytes_is_not_read_as_one() -> None:
    """As one byte, the length of the metadata would fit the size of the value."""
    head = encode_offset_value(OffsetValue(5, 3, "x" * 128, 1000))[:144]
    assert head[14:16] == b"\x81\x01"
    assert is_refused(head + bytes(7) + b"\x01\0\x10" + bytes(16))


def test_a_metadata_that_is_null_or_not_utf_8_is_refused() -> None:
    plain = encode_offset_value(OffsetValue(5, 3, "ab", 1000, topic_id=TOPIC_ID))
    assert is_refused(plain[:14] + b"\0" + plain[17:])
    assert is_refused(plain[:15] + b"\xff\xfe" + plain[17:])


def test_a_count_of_members_allocates_nothing() -> None:
    head = encode_group_value(GroupMetadataValue())[:-4]
    with pytest.raises(MalformedRecordError):
        decode_group_value(head + struct.pack(">i", 2**31 - 1))


def test_a_name_that_is_too_long_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="group"):
        encode_key(GroupKey("g" * 32768))
    with pytest.raises(ValueError, match="metadata"):
        encode_offset_value(OffsetValue(0, 0, "m" * 32768, 0))
