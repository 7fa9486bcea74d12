"""Every client reads the records of every other client with any codec: bytes, order and offsets."""

import random

import pytest

from tests.conformance.clients import BEGINNING, CLIENTS, CODECS, Client, Record, create, sent_as
from tests.nodes import Peer, unique

MiB = 1024 * 1024
SIZES_BYTES = (1, 2, 127, 128, 1024, 65_536, 1_000_000)


def text(random_: random.Random, size: int) -> bytes:
    """Return bytes that compress, but not to nothing."""
    words = [random_.randbytes(8) for _ in range(64)]
    return b"".join(random_.choices(words, k=size // 8 + 1))[:size]


def battery(writer: Client) -> list[Record]:
    """Return records of every shape that the client supports, with increasing timestamps."""
    rand = random.Random(1)
    null = b"" if writer.name == "kafka-python" else None
    shapes = [
        *([Record(None, None)] if writer.name == "confluent-kafka" else []),
        Record(b"", b""),
        Record(None, b"no key"),
        Record(b"no value", None),
        Record(b"key", b"value", (("name", b"value"),)),
        Record(
            b"key", None, (("", b""), ("name", null), ("name", b"twice"), ("ünïcode", b"\xff\x00"))
        ),
        Record(b"k" * 300, bytes(range(256)) * 5, tuple((f"h{i}", bytes([i])) for i in range(100))),
        *(Record(b"%d" % size, text(rand, size)) for size in SIZES_BYTES[:-1]),
        *(Record(b"many-%d" % i, b"value-%d" % i) for i in range(500)),
    ]
    return [
        Record(shape.key, shape.value, shape.headers, 1_600_000_000_000 + 7 * i)
        for i, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", CLIENTS, ids=lambda client: client.name)
def test_every_client_reads_what_one_wrote(node: Peer, writer: Client, codec: str) -> None:
    if codec not in writer.codecs:
        pytest.skip(f"{writer.name} has no {codec} here")
    topic = create(node.bootstrap, unique(f"{writer.name}-{codec}"))
    records = battery(writer)
    offsets = writer.send(node.bootstrap, topic, records, codec)
    assert offsets == list(range(len(records)))
    for reader in CLIENTS:
        if codec in reader.codecs:
            stored = reader.read(node.bootstrap, topic, len(records))
            assert [one.record for one in stored] == records, reader.name
            assert [one.offset for one in stored] == offsets, reader.name


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_records_of_one_byte_to_ten_megabytes(node: Peer, client: Client) -> None:
    limit = {"max.message.bytes": str(12 * MiB)}
    topic = create(node.bootstrap, unique("sizes"), config=limit)
    rand = random.Random(2)
    records = [
        Record(None, rand.randbytes(size), (), 1_600_000_000_000)
        for size in (*SIZES_BYTES, 3 * MiB, 10 * MiB)
    ]
    offsets = client.send(node.bootstrap, topic, records, "none")
    assert offsets == list(range(len(records)))
    stored = client.read(node.bootstrap, topic, len(records))
    assert [one.record == record for one, record in zip(stored, records, strict=True)] == [
        True
    ] * len(records)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_reading_may_begin_anywhere(node: Peer, client: Client) -> None:
    topic = create(node.bootstrap, unique("anywhere"))
    records = [Record(None, b"%d" % i, (), 1_600_000_000_000 + i) for i in range(300)]
    client.send(node.bootstrap, topic, records, "lz4")
    for start in (BEGINNING, 0, 1, 150, 299):
        first = max(start, 0)
        stored = client.read(node.bootstrap, topic, 300 - first, start)
        assert [one.offset for one in stored] == list(range(first, 300))
        assert [one.record for one in stored] == records[first:]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_timestamp_left_to_the_client_is_kept(node: Peer, client: Client) -> None:
    topic = create(node.bootstrap, unique("now"))
    records = [Record(b"k", b"v")]
    client.send(node.bootstrap, topic, records, "none")
    stored = client.read(node.bootstrap, topic, 1)
    assert [one.record for one in stored] == sent_as(records, stored)
    assert stored[0].record.timestamp > 1_600_000_000_000


def test_append_time_replaces_the_clients_timestamps(node: Peer) -> None:
    config = {"message.timestamp.type": "LogAppendTime"}
    topic = create(node.bootstrap, unique("append-time"), config=config)
    old = [Record(None, b"%d" % i, (), 1_000 + i) for i in range(10)]
    for client in CLIENTS:
        client.send(node.bootstrap, topic, old, "gzip")
    for client in CLIENTS:
        stored = client.read(node.bootstrap, topic, 30)
        times = [one.record.timestamp for one in stored]
        assert min(times) > 1_600_000_000_000
        assert times == sorted(times)
        assert [one.record.value for one in stored] == [record.value for record in old] * 3


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_level_of_acknowledgement(node: Peer, client: Client, acks: int | str) -> None:
    topic = create(node.bootstrap, unique("acks"))
    records = [Record(b"%d" % i, b"value", (), 1_600_000_000_000) for i in range(100)]
    config = {} if client.name == "aiokafka" else {"enable_idempotence": False}
    if acks == 0:  # without a response there are no offsets
        send_unacknowledged(client, node.bootstrap, topic, records, config)
    else:
        client.send(node.bootstrap, topic, records, "none", acks=acks, **config)
    stored = client.read(node.bootstrap, topic, len(records))
    assert [one.record for one in stored] == records


def send_unacknowledged(
    client: Client, bootstrap: str, topic: str, records: list[Record], config: dict[str, bool]
) -> None:
    if client.name == "aiokafka":
        with pytest.raises(AttributeError):  # the client returns no metadata for acks=0
            client.send(bootstrap, topic, records, "none", acks=0)
    else:
        client.send(bootstrap, topic, records, "none", acks=0, **config)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_idempotent_producers(node: Peer, client: Client) -> None:
    topic = create(node.bootstrap, unique("idempotent"))
    records = [Record(None, b"%d" % i, (), 1_600_000_000_000) for i in range(3000)]
    offsets = client.send(node.bootstrap, topic, records, "none", enable_idempotence=True)
    assert offsets == list(range(3000))
    assert [one.record for one in client.read(node.bootstrap, topic, 3000)] == records
