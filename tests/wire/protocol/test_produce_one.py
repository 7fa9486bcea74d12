"""The fast codec of Produce equals the general codec, byte for byte."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from metaquorum.wire.protocol.apis import APIS, ApiKey
from metaquorum.wire.protocol.headers import encode_request, encode_response
from metaquorum.wire.protocol.produce_one import (
    FIRST_WITH_TOPIC_ID,
    Appended,
    decode_one,
    encode_one,
)
from metaquorum.wire.protocol.request_header import decode_request_header
from metaquorum.wire.schema.codec import encode
from tests.examples import examples

API = APIS[ApiKey.PRODUCE]
VERSIONS = range(API.min_version, API.max_version + 1)
TOPIC_ID = bytes(range(16))


def request(version: int, name: str, acks: int, *partitions: tuple[int, bytes]) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name=name if version < FIRST_WITH_TOPIC_ID else "",
                topic_id=TOPIC_ID if version >= FIRST_WITH_TOPIC_ID else bytes(16),
                partition_data=[
                    PartitionProduceData(index=index, records=records)
                    for index, records in partitions
                ],
            )
        ],
    )


@given(
    version=st.sampled_from(VERSIONS),
    name=st.text("abcXYZ._-0", min_size=1, max_size=126),
    acks=st.integers(-1, 1),
    transactional_id=st.none() | st.text("aé", max_size=63),
    partitions=st.lists(
        st.tuples(
            st.integers(0, 2**31 - 1),
            st.binary(max_size=300) | st.integers(0, 40_000).map(bytes),
        ),
        min_size=1,
        max_size=4,
    )
    | st.integers(1, 126).map(lambda count: [(index, b"r") for index in range(count)]),
)
def test_the_commonest_request_is_read_as_the_tables_write_it(
    version: int,
    name: str,
    acks: int,
    transactional_id: str | None,
    partitions: list[tuple[int, bytes]],
) -> None:
    message = request(version, name, acks, *partitions)
    message.transactional_id = transactional_id
    frame = memoryview(encode_request(ApiKey.PRODUCE, version, 7, "client", message))[4:]
    _, body = decode_request_header(frame)
    one = decode_one(frame, body, version)
    assert one is not None
    told_acks, timeout_ms, topic, told_partitions, told_id = one
    assert topic == (TOPIC_ID if version >= FIRST_WITH_TOPIC_ID else name.encode())
    assert (told_acks, timeout_ms) == (acks, 30_000)
    assert (None if told_id is None else str(told_id, "utf-8")) == transactional_id
    assert [(index, bytes(records)) for index, records in told_partitions] == partitions


@given(
    version=st.sampled_from(VERSIONS),
    name=st.text("abcXYZ._-0", min_size=1, max_size=126),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    appended=st.lists(
        st.tuples(st.integers(0, 2**31 - 1), *[st.integers(-1, 2**63 - 1)] * 3),
        min_size=1,
        max_size=4,
    )
    | st.integers(1, 126).map(lambda count: [(index, 1, -1, 0) for index in range(count)]),
)
def test_the_commonest_answer_is_written_as_the_tables_write_it(
    version: int, name: str, correlation_id: int, appended: list[Appended]
) -> None:
    by_id = version >= FIRST_WITH_TOPIC_ID
    message = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name="" if by_id else name,
                topic_id=TOPIC_ID if by_id else bytes(16),
                partition_responses=[
                    PartitionProduceResponse(
                        index=index,
                        base_offset=base,
                        log_append_time_ms=time,
                        log_start_offset=start,
                    )
                    for index, base, time, start in appended
                ],
            )
        ]
    )
    topic = TOPIC_ID if by_id else name.encode()
    assert encode_one(version, correlation_id, topic, appended) == encode_response(
        API, version, correlation_id, message
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_other_forms_are_left_to_the_tables(version: int) -> None:
    plain = request(version, "t", 1, (0, b"records"))
    no_partitions = request(version, "t", 1)
    two_topics = request(version, "t", 1, (0, b"records"))
    two_topics.topic_data.append(two_topics.topic_data[0])
    no_records = request(version, "t", 1, (0, b""))
    no_records.topic_data[0].partition_data[0].records = None
    assert decode_one(memoryview(encode(plain, version)), 0, version) is not None
    for message in (no_partitions, two_topics, no_records):
        assert decode_one(memoryview(encode(message, version)), 0, version) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_cut_and_extended_requests_are_left_to_the_tables(version: int) -> None:
    for transactional_id in (None, "", "tx"):
        message = request(version, "topic", 1, (3, b"records"), (5, b"more"))
        message.transactional_id = transactional_id
        data = encode(message, version)
        for end in range(len(data)):
            assert decode_one(memoryview(data[:end]), 0, version) is None
        assert decode_one(memoryview(data + b"\0"), 0, version) is None


@examples(300)
@given(version=st.sampled_from(VERSIONS), seed=st.integers(0, 2**32))
def test_no_damage_raises(version: int, seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(encode(request(version, "topic", 1, (3, bytes(20)), (5, bytes(9))), version))
    for _ in range(rng.randrange(1, 5)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    decode_one(memoryview(data), 0, version)
