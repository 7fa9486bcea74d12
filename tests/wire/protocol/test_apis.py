"""The table of supported APIs, compared with the message tables and the versions of clients."""

import struct
import subprocess
import sys

import pytest

from metaquorum.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from metaquorum.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from metaquorum.wire.messages.metadata import MetadataRequest
from metaquorum.wire.messages.produce import ProduceRequest
from metaquorum.wire.primitives.errors import ErrorCode, WireError
from metaquorum.wire.protocol.apis import APIS, FIRST_OWN_KEY, Api, ApiKey
from metaquorum.wire.protocol.headers import (
    decode_response,
    decode_response_as,
    encode_request,
    encode_response,
    encode_response_parts,
    encode_unsupported_api_versions,
)
from metaquorum.wire.protocol.request_header import decode_request_header
from metaquorum.wire.schema.codec import decode, encode
from metaquorum.wire.schema.message import Message, int32, string

# The oldest and newest version that a current client chose with Kafka 4.3.1: Java 4.3.1, franz-go,
# librdkafka 2.14, kafka-python 3, sarama, kafkajs, aiokafka 0.14, and Kafka's own tools.
CHOSEN = {
    ApiKey.PRODUCE: (5, 13),
    ApiKey.FETCH: (7, 18),
    ApiKey.LIST_OFFSETS: (2, 11),
    ApiKey.METADATA: (5, 13),
    ApiKey.OFFSET_COMMIT: (3, 10),
    ApiKey.OFFSET_FETCH: (3, 10),
    ApiKey.FIND_COORDINATOR: (1, 6),
    ApiKey.JOIN_GROUP: (3, 9),
    ApiKey.HEARTBEAT: (1, 4),
    ApiKey.LEAVE_GROUP: (1, 5),
    ApiKey.SYNC_GROUP: (2, 5),
    ApiKey.DESCRIBE_GROUPS: (2, 6),
    ApiKey.LIST_GROUPS: (1, 5),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (1, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (4, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (1, 5),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.DESCRIBE_ACLS: (2, 3),
    ApiKey.CREATE_ACLS: (2, 3),
    ApiKey.DELETE_ACLS: (2, 3),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (2, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (2, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (5, 5),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.CREATE_PARTITIONS: (1, 3),
    ApiKey.CREATE_DELEGATION_TOKEN: (3, 3),
    ApiKey.RENEW_DELEGATION_TOKEN: (2, 2),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (2, 2),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (3, 3),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.ELECT_LEADERS: (2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (1, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (1, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (1, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.DESCRIBE_QUORUM: (2, 2),
    ApiKey.UPDATE_FEATURES: (2, 2),
    ApiKey.DESCRIBE_CLUSTER: (2, 2),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.LIST_CONFIG_RESOURCES: (1, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
}


@pytest.mark.parametrize("key", [key for key in ApiKey if key < FIRST_OWN_KEY])
def test_what_clients_choose_is_served(key: ApiKey) -> None:
    oldest, newest = CHOSEN[key]
    assert APIS[key].serves(oldest)
    assert APIS[key].serves(newest)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_rows_agree_with_the_message_tables(api: Api) -> None:
    for cls in (api.request, api.response):
        assert api.key == cls.API
        assert (cls.VERSIONS.first, cls.VERSIONS.last) == (api.min_version, api.max_version)
        assert cls.FLEXIBLE.first == api.flexible_from


@pytest.mark.slow
def test_message_tables_are_loaded_when_first_used() -> None:
    program = (
        "import sys, metaquorum.wire.protocol.headers as h\n"
        "assert not [m for m in sys.modules if m.startswith('metaquorum.wire.messages.')]\n"
        "h.APIS[3].request\n"
        "assert [m for m in sys.modules if m.startswith('metaquorum.wire.messages.')] "
        "== ['metaquorum.wire.messages.metadata']\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("client_id", [None, "", "client", "ключ" * 50])
def test_request_headers_round_trip(client_id: str | None) -> None:
    for api in APIS.values():
        for version in range(api.min_version, api.max_version + 1):
            frame = encode_request(api.key, version, -7, client_id, api.request())
            assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
            header, body = decode_request_header(memoryview(frame)[4:])
            assert (header.api_key, header.api_version) == (api.key, version)
            assert (header.correlation_id, header.client_id) == (-7, client_id)
            assert decode(api.request, version, frame[4 + body :]) == api.request()


def test_responses_round_trip() -> None:
    for api in APIS.values():
        for version in range(api.min_version, api.max_version + 1):
            message = api.response()
            frame = encode_response(api, version, 9, message)
            assert encode_response_parts(api, version, 9, message) == [frame]
            assert decode_response(api.key, version, memoryview(frame)[4:]) == (9, message)


class Hole:
    size_bytes = 1_000_000


@pytest.mark.parametrize("version", [4, 12])
def test_the_size_of_a_response_counts_its_holes(version: int) -> None:
    hole = Hole()
    topic = FetchableTopicResponse(partitions=[PartitionData(records=hole), PartitionData()])
    message = FetchResponse(responses=[topic])
    head, middle, tail = encode_response_parts(APIS[ApiKey.FETCH], version, 3, message)
    assert middle is hole
    assert struct.unpack_from(">i", head)[0] == len(head) - 4 + Hole.size_bytes + len(tail)


def test_headers_cut_short_are_wire_errors() -> None:
    frame = memoryview(encode_request(ApiKey.METADATA, 9, 1, "client", MetadataRequest()))[4:]
    for size in range(17):
        with pytest.raises(WireError, match="request header"):
            decode_request_header(frame[:size])
    answer = memoryview(encode_response(APIS[3], 9, 1, APIS[3].response()))[4:]
    for size in range(len(answer)):
        with pytest.raises(WireError):
            decode_response(3, 9, answer[:size])


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (struct.pack(">hhih", 0, 3, 1, -2), "client_id has the length -2"),
        (struct.pack(">hhih", 0, 9, 1, -1) + b"\2\1\0\1\0", "tagged fields are malformed"),
        (struct.pack(">hhih", 0, 9, 1, -1) + b"\1\1\x7f", "the header is too short"),
    ],
)
def test_damaged_headers_are_wire_errors(frame: bytes, text: str) -> None:
    with pytest.raises(WireError, match=f"request header.*{text}"):
        decode_request_header(memoryview(frame))


def test_bytes_of_a_client_id_that_are_not_utf_8_are_replaced() -> None:
    frame = struct.pack(">hhih", 0, 3, 1, 4) + b"caf\xe9"
    header, body = decode_request_header(memoryview(frame))
    assert (header.client_id, body) == ("caf\ufffd", len(frame))


def test_tagged_fields_of_a_header_are_skipped() -> None:
    start = struct.pack(">hhih", 0, 9, 1, -1)
    _, body = decode_request_header(memoryview(start + b"\2\1\1x\5\2yz" + b"body"))
    assert (start + b"\2\1\1x\5\2yz" + b"body")[body:] == b"body"


def test_a_header_of_an_unknown_api_is_read() -> None:
    header, _ = decode_request_header(memoryview(struct.pack(">hhih", 9999, 1, 5, -1)))
    assert (header.api_key, header.api_version, header.correlation_id) == (9999, 1, 5)


@pytest.mark.parametrize("version", [5, 99])
def test_an_unknown_api_versions_is_answered_in_version_0(version: int) -> None:
    request = encode_request(
        ApiKey.API_VERSIONS, 4, 11, "new", ApiVersionsRequest(client_software_name="n")
    )
    frame = bytearray(request[4:])
    frame[2:4] = version.to_bytes(2, "big")
    header, _ = decode_request_header(memoryview(frame))
    assert not APIS[ApiKey.API_VERSIONS].serves(header.api_version)
    answer = memoryview(encode_unsupported_api_versions(header.correlation_id))[4:]
    correlation_id, read = decode_response(ApiKey.API_VERSIONS, 4, answer)
    assert (correlation_id, read.error_code) == (11, ErrorCode.UNSUPPORTED_VERSION)
    assert [(a.api_key, a.min_version, a.max_version) for a in read.api_keys] == [(18, 0, 4)]


def test_the_header_of_an_api_versions_response_is_never_flexible() -> None:
    api = APIS[ApiKey.API_VERSIONS]
    assert [api.response_header_version(version) for version in range(6)] == [0] * 6
    frame = encode_response(api, 3, 5, ApiVersionsResponse())
    assert frame[4:10] == struct.pack(">ih", 5, 0)


def test_a_request_without_a_table_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="has no version 2"):
        encode_request(ApiKey.PRODUCE, 2, 1, None, ProduceRequest())


class UnservedRequest(Message, api=999, versions="0-1", flexible="1+"):
    name: str = string()


class UnservedResponse(Message, api=999, versions="0-1", flexible="1+"):
    count: int = int32()


def test_a_client_speaks_apis_that_are_not_served() -> None:
    for version in (0, 1):
        request = encode_request(999, version, 7, "c", UnservedRequest(name="n"))
        flexible = b"\0" if version else b""
        body = encode(UnservedRequest(name="n"), version)
        assert request[4:] == struct.pack(">hhih", 999, version, 7, 1) + b"c" + flexible + body
        frame = struct.pack(">i", 7) + flexible + encode(UnservedResponse(count=3), version)
        answer = decode_response_as(UnservedResponse, version, memoryview(frame))
        assert answer == (7, UnservedResponse(count=3))


def test_apis_of_groups_name_the_permissions_that_they_will_require() -> None:
    """Every API that names a group requires a permission for it, as in Kafka."""

    def names_a_group(api: Api) -> bool:
        names = {field.name for field in api.request.FIELDS}
        return bool(names & {"group_id", "groups", "groups_names", "coordinator_keys"})

    of_groups = [api for api in APIS.values() if names_a_group(api)]
    assert len(of_groups) >= 10
    for api in of_groups:
        assert any(each.endswith(" GROUP") for each in api.permissions), api.name
