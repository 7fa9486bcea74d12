"""Codecs with damaged input: any bytes give a message or a WireError, and no other error."""

import itertools
import random
import re
import struct
import tracemalloc
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaquorum.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from metaquorum.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from metaquorum.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from metaquorum.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.protocol.apis import APIS, ApiKey
from metaquorum.wire.protocol.headers import encode_response, encode_response_in_pieces
from metaquorum.wire.schema.codec import (
    decode,
    decoder,
    decoder_in_pieces,
    encode,
    encode_parts,
    encoder_in_pieces,
)
from metaquorum.wire.schema.compiling import PIECE_ELEMENTS, REQUEST_MAX_ELEMENTS
from metaquorum.wire.schema.decoding import decoder_source
from metaquorum.wire.schema.encoding import encoder_source
from metaquorum.wire.schema.explaining import read_message
from metaquorum.wire.schema.message import Message
from tests.wire.schema.arbitrary import CASES, FORMS, case_id, messages

every_form = pytest.mark.parametrize(("cls", "version"), FORMS, ids=case_id)
few = settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def outcome(read: Any, *arguments: Any) -> Any:
    """Return the result of a decoder: (message, end), or "WireError"."""
    try:
        return read(*arguments)
    except WireError as error:
        return "WireError" if "malformed" not in str(error) else "refused without a reason"


def to_its_end(work: Generator[None, None, Any]) -> tuple[Any, int]:
    """Run a generator to its end; return its result and the number of yields."""
    yields = 0
    try:
        while True:
            next(work)
            yields += 1
    except StopIteration as done:
        return done.value, yields


def both(cls: type[Message], version: int, data: bytes) -> Any:
    """Return the outcome of the generated decoders and the model, after checking that all agree."""
    view = memoryview(data)
    fast = outcome(decoder(cls, version), view, 0)
    plain = outcome(read_message, cls, version, view, 0)
    assert fast == plain or ("=nan" in repr(plain) and repr(fast) == repr(plain))
    try:
        in_pieces = to_its_end(decoder_in_pieces(cls, version)(view, 0))[0]
    except WireError:
        in_pieces = "WireError"
    assert in_pieces == plain or ("=nan" in repr(plain) and repr(in_pieces) == repr(plain))
    return fast


def test_versions_of_one_form_have_the_same_codec() -> None:
    def sources(cls: type[Message], version: int) -> list[str]:
        made = decoder_source(cls, version), encoder_source(cls, version)
        return [re.sub(rf"\b(MESSAGE|m|x\d+), {version}\b", r"\1, version", text) for text in made]

    repeated = [case for case in CASES if case not in FORMS]
    assert len(repeated) > 100
    for cls, version in repeated:
        assert sources(cls, version) == sources(cls, version - 1)


@pytest.mark.slow
@every_form
@few
@given(data=st.data())
def test_every_truncation_is_a_wire_error(
    cls: type[Message], version: int, data: st.DataObject
) -> None:
    message = data.draw(messages(cls, version))
    written = encode(message, version)
    assert b"".join(to_its_end(encoder_in_pieces(cls, version)(message))[0]) == written
    assert both(cls, version, written)[1] == len(written)
    for size in range(min(len(written), 400)):
        assert both(cls, version, written[:size]) == "WireError"
    for size in range(max(400, len(written) - 40), len(written)):
        assert both(cls, version, written[:size]) == "WireError"


@pytest.mark.slow
@every_form
@few
@given(data=st.data(), seed=st.integers(0, 1 << 32))
def test_mutated_bytes_give_a_message_or_a_wire_error(
    cls: type[Message], version: int, data: st.DataObject, seed: int
) -> None:
    written = encode(data.draw(messages(cls, version)), version)
    source = random.Random(seed)
    for _ in range(30):
        mutated = bytearray(written or b"\0")
        for _ in range(source.randint(1, 3)):
            place = source.randrange(len(mutated))
            mutated[place] = source.choice((0, 1, 2, 0x7F, 0x80, 0xFF, source.randrange(256)))
        both(cls, version, bytes(mutated))


@every_form
@few
@given(data=st.binary(max_size=200))
def test_noise_gives_a_message_or_a_wire_error(
    cls: type[Message], version: int, data: bytes
) -> None:
    both(cls, version, data)


@given(data=st.binary(max_size=60))
def test_a_message_is_found_anywhere_in_its_buffer(data: bytes) -> None:
    request = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t")])
    written = encode(request, 9)
    read, end = decoder(ProduceRequest, 9)(memoryview(data + written), len(data))
    assert (read, end) == (request, len(data) + len(written))


def test_records_are_a_slice_of_the_input() -> None:
    partition = PartitionProduceData(index=3, records=b"batch" * 100)
    topics = [TopicProduceData(name="t", partition_data=[partition])]
    frame = bytearray(encode(ProduceRequest(topic_data=topics), 9))
    records = decode(ProduceRequest, 9, frame).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    frame[frame.index(b"batch")] = ord("B")
    assert bytes(records[:5]) == b"Batch"


def test_bytes_behind_the_end_are_a_wire_error() -> None:
    written = encode(MetadataRequest(topics=None), 9)
    with pytest.raises(WireError, match="1 bytes after the message"):
        decode(MetadataRequest, 9, written + b"\0")


@pytest.mark.parametrize("version", [3, 9])
def test_an_error_names_message_and_field(version: int) -> None:
    topics = [TopicProduceData(name="t", partition_data=[PartitionProduceData(records=b"1234")])]
    written = encode(ProduceRequest(topic_data=topics), version)
    cut = written[: written.index(b"1234") + 2]
    field = "topic_data.partition_data.records"
    with pytest.raises(WireError, match=f"ProduceRequest v{version}, {field}: 4 bytes expected"):
        decode(ProduceRequest, version, cut)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (b"\x7f\xff\xff\xff", "2147483647 elements in"),
        (b"\xff\xff\xff\xff", "null"),
        (b"\x80\x00\x00\x00", "invalid length -2147483648"),
    ],
)
def test_array_counts_are_held_against_the_bytes_left(count: bytes, text: str) -> None:
    with pytest.raises(WireError, match=rf"CreateTopicsRequest v2, topics: .*{text}"):
        decode(CreateTopicsRequest, 2, count + b"\0" * 100)


def test_a_hostile_frame_allocates_little() -> None:
    """A claim of millions of partitions costs no more than the element limit."""
    count = 3_000_000
    head = struct.pack(">hhii", -1, 1, 1000, 1) + struct.pack(">h1si", 1, b"t", count)
    frame = memoryview(head + bytes(8 * count))
    decode = decoder(ProduceRequest, 3)  # compiled at its first use
    tracemalloc.start()
    with pytest.raises(WireError, match="exceed the limit of one message"):
        decode(frame, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_nested_arrays_share_one_limit() -> None:
    partition = FetchPartition()
    half = REQUEST_MAX_ELEMENTS // 2
    topics = [FetchTopic(partitions=[partition] * half), FetchTopic(partitions=[partition] * half)]
    with pytest.raises(WireError, match=r"topics.partitions: .* exceed the limit of one message"):
        decode(FetchRequest, 4, encode(FetchRequest(topics=topics), 4))


def tagged(*sections: tuple[int, bytes]) -> bytes:
    body = b"".join(bytes([tag, len(content)]) + content for tag, content in sections)
    return bytes([len(sections)]) + body


def test_unknown_tags_are_skipped() -> None:
    head = encode(ApiVersionsRequest(client_software_name="n"), 3)[:-1]
    known = decode(ApiVersionsRequest, 3, head + tagged((5, b"xyz"), (9, b"")))
    assert known == ApiVersionsRequest(client_software_name="n")
    response = encode(ApiVersionsResponse(), 3)[:-1]
    sections = tagged((1, struct.pack(">q", 7)), (3, b"\1"), (90, b"??"))
    read = decode(ApiVersionsResponse, 3, response + sections)
    assert read == ApiVersionsResponse(finalized_features_epoch=7, zk_migration_ready=True)


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        (tagged((3, b"\1"), (3, b"\1")), "tag 3 after tag 3"),
        (tagged((8, b""), (7, b"")), "tag 7 after tag 8"),
        (tagged((1, b"1234567")), "finalized_features_epoch: 8 bytes expected"),
        (tagged((1, b"123456789")), "tag 1 does not have the claimed size of 9 bytes"),
        (b"\1\5\x7fxx", "tagged fields: 127 bytes expected"),
        (b"\xff\xff\xff\xff\xff\xff", "more than 5 bytes"),
    ],
)
def test_damaged_tagged_fields_are_wire_errors(sections: bytes, text: str) -> None:
    response = encode(ApiVersionsResponse(), 3)[:-1]
    assert both(ApiVersionsResponse, 3, response + sections) == "WireError"
    with pytest.raises(WireError, match=text):
        decode(ApiVersionsResponse, 3, response + sections)


@pytest.mark.parametrize("length", [b"\x80\x00", b"\x80\x80\x00", b"\x81\x00", b"\x85\x00"])
def test_a_length_in_more_bytes_than_it_needs_means_the_same(length: bytes) -> None:
    """A regression found by mutation: records of length 0 (null) in two bytes moved the position
    back.
    """
    topics = [TopicProduceData(name="t", partition_data=[PartitionProduceData(records=b"12345")])]
    written = encode(ProduceRequest(topic_data=topics), 9)
    place = written.index(b"\x0612345")
    size = max((length[0] & 0x7F) - 1, 0)
    records = None if length[0] == 0x80 else b"12345"[:size]
    changed = written[:place] + length + b"12345"[:size] + written[place + 6 :]
    read = both(ProduceRequest, 9, changed)[0]
    assert read.topic_data[0].partition_data[0].records == records


def test_bytes_of_strings_that_are_not_utf_8_are_replaced_as_in_kafka() -> None:
    """C clients send the bytes that they were given; an application can commit any metadata."""
    read = both(ApiVersionsRequest, 3, b"\x05caf\xe9\x02\xff\x00")[0]
    assert (read.client_software_name, read.client_software_version) == ("caf\ufffd", "\ufffd")


def test_a_long_string_is_refused_in_both_directions() -> None:
    request = ApiVersionsRequest(client_software_name="n" * 32768)
    with pytest.raises(WireError, match="a string of 32768 bytes"):
        encode(request, 3)
    written = b"\x81\x80\x02" + b"n" * 32768 + b"\x01\x00"
    with pytest.raises(WireError, match="client_software_name: a string of 32768 bytes"):
        decode(ApiVersionsRequest, 3, written)


def test_a_request_refuses_to_lose_what_its_version_cannot_carry() -> None:
    with pytest.raises(WireError, match=r"v3 cannot carry allow_auto_topic_creation"):
        encode(MetadataRequest(allow_auto_topic_creation=False), 3)
    with pytest.raises(WireError, match="v9 cannot carry"):
        encode(MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 9)
    with pytest.raises(WireError, match="v2 cannot carry"):
        encode(CreateTopicsRequest(topics=[CreatableTopic(num_partitions=1 << 40)]), 2)


@pytest.mark.parametrize("version", [-1, 2, 14, 999])
def test_versions_without_a_table_are_wire_errors(version: int) -> None:
    with pytest.raises(WireError, match=f"ProduceRequest has no version {version}"):
        decoder(ProduceRequest, version)
    with pytest.raises(WireError, match=f"ProduceRequest has no version {version}"):
        encode(ProduceRequest(), version)


@dataclass
class Hole:
    size_bytes: int


@pytest.mark.parametrize("version", range(4, 19))
@given(sizes=st.lists(st.one_of(st.none(), st.integers(0, 40_000)), max_size=5))
@settings(max_examples=10, deadline=None)
def test_holes_stand_where_the_records_would(version: int, sizes: list[int | None]) -> None:
    def response(fill: Any) -> FetchResponse:
        partitions = [
            PartitionData(partition_index=i, records=None if size is None else fill(size))
            for i, size in enumerate(sizes)
        ]
        topic = FetchableTopicResponse(partitions=partitions)
        return FetchResponse(responses=[topic, topic])

    parts = encode_parts(response(Hole), version)
    for one, next_one in itertools.pairwise(parts):
        assert isinstance(one, Hole) or isinstance(next_one, Hole)
    filled = b"".join(bytes(p.size_bytes) if isinstance(p, Hole) else p for p in parts)
    assert filled == encode(response(bytes), version)
    assert encode_parts(response(bytes), version) == [filled]


@pytest.mark.parametrize("version", [8, 12])
def test_what_is_coded_in_pieces_can_be_interrupted_every_few_elements(version: int) -> None:
    count = 100 * PIECE_ELEMENTS
    names = [MetadataRequestTopic(name=str(n)) for n in range(count)]
    message = MetadataRequest(topics=names)
    pieces, yields = to_its_end(encoder_in_pieces(MetadataRequest, version)(message))
    assert yields >= 100
    data = memoryview(b"".join(pieces))
    (read, _), yields = to_its_end(decoder_in_pieces(MetadataRequest, version)(data, 0))
    assert read == message
    assert yields >= 100
    with pytest.raises(WireError, match=rf"MetadataRequest v{version}.* \(near byte"):
        to_its_end(decoder_in_pieces(MetadataRequest, version)(data[:-1], 0))


def test_a_frame_in_pieces_is_the_same_frame() -> None:
    rows = [PartitionData(partition_index=i, records=bytes(i % 7)) for i in range(3000)]
    message = FetchResponse(responses=[FetchableTopicResponse(partitions=rows)])
    parts, yields = to_its_end(encode_response_in_pieces(APIS[ApiKey.FETCH], 12, 5, message))
    assert yields > 40
    assert b"".join(parts) == encode_response(APIS[ApiKey.FETCH], 12, 5, message)


def test_a_hole_cannot_be_joined() -> None:
    topic = FetchableTopicResponse(partitions=[PartitionData(records=Hole(5))])
    with pytest.raises(WireError, match="cannot carry"):
        encode(FetchResponse(responses=[topic]), 12)


def test_generated_code_can_be_read() -> None:
    assert decoder_source(ProduceRequest, 9).startswith("def decode(data, p):\n")
    assert encoder_source(ProduceRequest, 9).startswith("def encode(m):\n")


def test_structs_are_values() -> None:
    one, other = FetchPartition(partition=1), FetchPartition(partition=1)
    assert one == other
    assert one != FetchPartition(partition=2)
    assert one != FetchTopic()
    assert "partition=1, current_leader_epoch=-1" in repr(one)
    assert FetchTopic().partitions is not FetchTopic().partitions
    with pytest.raises(AttributeError):
        one.partitoin = 3  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        FetchPartition(partitoin=3)  # type: ignore[call-arg]
