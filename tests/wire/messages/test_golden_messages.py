"""Decoding and encoding of frames of a real Apache Kafka 4.3.1: the bytes do not change."""

import json
from pathlib import Path
from typing import Any

import pytest

from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import APIS, FIRST_OWN_KEY, Api, ApiKey
from metaquorum.wire.protocol.headers import (
    decode_response,
    encode_request,
    encode_response,
    encode_unsupported_api_versions,
)
from metaquorum.wire.protocol.request_header import decode_request_header
from metaquorum.wire.schema.codec import decode

GOLDEN = Path(__file__).resolve().parent / "golden_messages"


def exchanges(api: Api) -> list[tuple[int, memoryview, memoryview]]:
    return [
        (
            e["version"],
            memoryview(bytes.fromhex(e["request"])),
            memoryview(bytes.fromhex(e["response"])),
        )
        for e in json.loads((GOLDEN / f"{api.key.name.lower()}.json").read_text())
    ]


KAFKAS = [api for api in APIS.values() if api.key < FIRST_OWN_KEY]
every_api = pytest.mark.parametrize("api", KAFKAS, ids=lambda api: api.name)


@every_api
def test_every_version_served_was_captured(api: Api) -> None:
    captured = {version for version, _, _ in exchanges(api)}
    assert captured >= set(range(api.min_version, api.max_version + 1))


@every_api
def test_requests_are_written_as_they_were_accepted(api: Api) -> None:
    for version, request, _ in exchanges(api):
        if not api.serves(version):
            continue
        header, body = decode_request_header(request)
        message = decode(api.request, version, request[body:])
        again = encode_request(api.key, version, header.correlation_id, header.client_id, message)
        assert again[4:] == request


@every_api
def test_responses_are_read_and_written_again_to_the_same_bytes(api: Api) -> None:
    for version, _, response in exchanges(api):
        if not api.serves(version):
            continue
        correlation_id, message = decode_response(api.key, version, response)
        assert encode_response(api, version, correlation_id, message)[4:] == response


def answers(key: ApiKey, version: int) -> list[Any]:
    return [
        decode_response(key, version, response)[1]
        for asked, _, response in exchanges(APIS[key])
        if asked == version
    ]


def test_an_unknown_api_versions_is_refused_as_kafka_does() -> None:
    ((_, request, response),) = [e for e in exchanges(APIS[ApiKey.API_VERSIONS]) if e[0] > 4]
    header, _ = decode_request_header(request)
    assert encode_unsupported_api_versions(header.correlation_id)[4:] == response


def test_what_was_captured_means_what_it_should() -> None:
    topics = {topic.name: topic for topic in answers(ApiKey.METADATA, 13)[0].topics}
    assert topics["golden-topic"].error_code == ErrorCode.NONE
    assert [p.isr_nodes for p in topics["golden-topic"].partitions] == [[1], [1]]
    assert topics["golden-missing"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    by_id = answers(ApiKey.METADATA, 13)[1].topics
    assert {topic.name: topic.error_code for topic in by_id} == {
        "golden-topic": ErrorCode.NONE,
        None: ErrorCode.UNKNOWN_TOPIC_ID,
    }
    good, bad = (
        {topic.name: topic.partition_responses for topic in answer.responses}
        for answer in answers(ApiKey.PRODUCE, 9)
    )
    assert {p.index: p.error_code for p in good["golden-topic"]} == {0: 0, 1: 0, 9: 3}
    assert bad["golden-topic"][0].error_code == ErrorCode.CORRUPT_MESSAGE
    assert bad["golden-compacted"][0].error_code == ErrorCode.INVALID_RECORD
    assert [e.batch_index for e in bad["golden-compacted"][0].record_errors] == [0]
    fetched = answers(ApiKey.FETCH, 18)[0].responses[0].partitions[0]
    assert fetched.high_watermark > 0
    assert bytes(fetched.records).count(b"value") > 0
    assert topics["golden-topic"].topic_id == answers(ApiKey.FETCH, 18)[0].responses[0].topic_id
