"""Framings of compressed batches: clients read every record of each batch that is acknowledged.

`REFUSED` are those that a client does not read. Found with Apache Kafka 4.3.1, which accepts all
but three of them: librdkafka 2.16.1 reads the first gzip member alone, or aborts if it is empty,
and refuses lz4 with bytes after the frame; kafka-python 3.0 and aiokafka 0.14 refuse bytes after
a gzip member, and two snappy headers, as do franz-go 1.20 and sarama 1.45, which also refuse zeros
after a gzip member; Java's clients refuse linked lz4 blocks.
"""

import time

import pytest

from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.records.batches import HEADER_BYTES, pack_batch, parse_header
from metaquorum.wire.records.records import Record, encode_batch
from tests.conformance.clients import CLIENTS, Client, create
from tests.conformance.other_languages.programs import go_program
from tests.conformance.other_languages.test_admin import seen_by
from tests.conformance.test_java import consumed
from tests.conformance.test_validation import produced
from tests.conftest import KafkaTool
from tests.hostile.honest import Client as RawClient
from tests.nodes import Peer, elsewhere, unique
from tests.wire.records.framings import FRAMINGS, REFUSED

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="Kafka accepts what clients do not read")
COUNT = 3


def values_of(name: str) -> list[bytes]:
    """Return values that compress to several blocks of each codec."""
    return [b"%s, %d " % (name.encode(), number) * 3000 for number in range(COUNT)]


def batch_of(name: str) -> bytes:
    codec, encode = FRAMINGS[name]
    now = int(time.time() * 1000)
    rows = [Record(number, now, None, value) for number, value in enumerate(values_of(name))]
    plain = encode_batch(rows)
    header = parse_header(plain)._replace(attributes=int(codec))
    return bytes(pack_batch(header, encode(bytes(plain[HEADER_BYTES:]))))


@pytest.fixture(scope="module")
def topic(node: Peer) -> str:
    """A topic with a batch of each framing, of those that are acknowledged."""
    name = create(node.bootstrap, unique("framings"))
    host, port = node.bootstrap.split(",")[0].rsplit(":", 1)
    raw = RawClient(host, int(port))
    try:
        for framing in FRAMINGS:
            expected = ErrorCode.INVALID_RECORD if framing in REFUSED else ErrorCode.NONE
            assert produced(raw, name, batch_of(framing)) == expected, framing
    finally:
        raw.close()
    return name


EXPECTED = [value for name in FRAMINGS if name not in REFUSED for value in values_of(name)]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_clients_read_what_was_acknowledged(node: Peer, topic: str, client: Client) -> None:
    found = client.read(node.bootstrap, topic, len(EXPECTED))
    assert [stored.record.value for stored in found] == EXPECTED


def test_java_reads_what_was_acknowledged(node: Peer, topic: str, kafka_tool: KafkaTool) -> None:
    lines = consumed(kafka_tool, node, topic, len(EXPECTED))
    assert lines[: len(EXPECTED)] == [value.decode() for value in EXPECTED]


@pytest.mark.parametrize("client", ["franz-go", "sarama"])
def test_go_clients_read_what_was_acknowledged(node: Peer, topic: str, client: str) -> None:
    program = go_program(client, "reader")
    found = seen_by([program, node.bootstrap, topic, str(len(EXPECTED))])
    assert found == {"values": [value.decode() for value in EXPECTED]}
