"""Invalid input: damaged requests, oversized requests, and malformed batches."""

import functools
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from metaquorum.wire.messages.authenticate_replica import AuthenticateReplicaRequest
from metaquorum.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from metaquorum.wire.messages.delete_topics import DeleteTopicsRequest
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from metaquorum.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from metaquorum.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.varint import write_varint
from metaquorum.wire.protocol.headers import encode_request
from metaquorum.wire.records.batches import pack_batch, parse_header
from metaquorum.wire.records.compression import Codec, compress
from metaquorum.wire.records.records import Record, encode_batch
from metaquorum.wire.schema.compiling import REQUEST_MAX_ELEMENTS
from metaquorum.wire.schema.message import Message

GOLDEN: Final = Path(__file__).parent.parent / "wire" / "messages" / "golden_messages"
TOPIC: Final = "victim"
PARTITIONS: Final = 3
BOMB_TIMESTAMP: Final = 1_700_000_000_000

_EXTREMES: Final = (0, 1, -1, 2, 127, 128, 255, 32767, -32768, 65535, 2**31 - 1, -(2**31), 2**24)
_VARINTS: Final = (
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x00",
    b"\xff" * 20,
    b"\xff\xff\xff\x07",
)


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


@functools.cache
def golden_requests() -> tuple[bytes, ...]:
    """Return whole requests that a real Kafka accepted, without their sizes."""
    return tuple(
        bytes.fromhex(row["request"])
        for path in sorted(GOLDEN.glob("*.json"))
        for row in json.loads(path.read_text())
    )


def _flip(random: Random, data: bytearray) -> None:
    for _ in range(random.choice((1, 1, 2, 8))):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _overwrite(random: Random, data: bytearray) -> None:
    width = random.choice((1, 2, 4, 8))
    value = random.choice(_EXTREMES) & ((1 << 8 * width) - 1)
    at = random.randrange(len(data))
    data[at : at + width] = value.to_bytes(width, "big")


def _put_varint(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    data[at : at + random.randrange(3)] = random.choice(_VARINTS)


def _truncate(random: Random, data: bytearray) -> None:
    del data[random.randrange(1, len(data) + 1) :]


def _extend(random: Random, data: bytearray) -> None:
    data += random.randbytes(random.choice((1, 3, 100, 5000)))


def _delete(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    del data[at : at + random.randrange(1, 20)]


def _insert(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    data[at:at] = random.randbytes(random.randrange(1, 20))


def _repeat(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    piece = data[at : at + random.randrange(1, 40)]
    data[at:at] = piece * random.choice((1, 2, 50))


def _splice(random: Random, data: bytearray) -> None:
    other = random.choice(golden_requests())
    data[random.randrange(len(data)) :] = other[random.randrange(len(other)) :]


def _other_api(random: Random, data: bytearray) -> None:
    struct.pack_into(">h", data, random.choice((0, 2)), random.choice((*range(20), 36, 60, -1)))


_MUTATIONS: Final[tuple[Callable[[Random, bytearray], None], ...]] = (
    _flip,
    _overwrite,
    _overwrite,
    _put_varint,
    _truncate,
    _extend,
    _delete,
    _insert,
    _repeat,
    _splice,
    _other_api,
)


def damaged(random: Random, data: bytearray) -> bytearray:
    if len(data) > 4:
        random.choice(_MUTATIONS)(random, data)
    return data


def mutated(random: Random) -> bytes:
    """Return a valid request with small damage, with a matching frame size."""
    data = bytearray(random.choice(golden_requests()))
    # A name as long as that of an existing topic passes more checks.
    data = data.replace(b"golden-topic", TOPIC.ljust(12, "-").encode())
    for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
        damaged(random, data)
    content = bytes(data)
    if random.random() < 0.03:  # wrong size
        return struct.pack(">i", max(0, len(content) + random.randrange(-9, 10))) + content
    return framed(content)


# Valid but large requests


def _request(random: Random, api: int, version: int, message: Message) -> bytes:
    return encode_request(api, version, random.randrange(2**31), "hostile", message)


def produce(random: Random, records: bytes, version: int = 9, acks: int = -1) -> bytes:
    data = PartitionProduceData(index=random.randrange(PARTITIONS), records=records)
    topic = TopicProduceData(name=TOPIC, partition_data=[data])
    return _request(
        random, 0, version, ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])
    )


def fetch(
    random: Random,
    partitions: int = PARTITIONS,
    *,
    topic: str = TOPIC,
    session_epoch: int = -1,
    max_wait_ms: int = 0,
) -> bytes:
    asked = [
        FetchPartition(partition=i, fetch_offset=0, partition_max_bytes=1 << 20)
        for i in range(partitions)
    ]
    message = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=random.choice((0, 1, 2**31 - 1)),
        session_epoch=session_epoch,
        topics=[FetchTopic(topic=topic, partitions=asked)],
    )
    return _request(random, 1, 12, message)


def false_replica(random: Random) -> bytes:
    """Return a fetch with a replica id, or part of a handshake with an invalid proof."""
    kind, replica_id = random.random(), random.choice((0, 1, 2, random.randrange(2**31)))
    if kind < 0.3:
        token = random.randbytes(random.choice((0, 1, 32, 100, 300, 70_000)))
        if random.random() < 0.5:
            token = b"mqchan\r\n\x01\x03" + token
        return _request(random, 10_005, 0, AuthenticateReplicaRequest(auth_bytes=token))
    asked = [
        FetchPartition(partition=i, fetch_offset=random.choice((0, 1, 2**40)))
        for i in range(random.choice((1, PARTITIONS, 900, 5000)))
    ]
    topics = [FetchTopic(topic=TOPIC, topic_id=bytes(16), partitions=asked)]
    if kind < 0.6:
        version = random.randrange(4, 15)
        return _request(random, 1, version, FetchRequest(replica_id=replica_id, topics=topics))
    epoch = random.choice((-1, 0, random.randrange(1000), 2**62))
    state = ReplicaState(replica_id=replica_id, replica_epoch=epoch)
    version = random.randrange(15, 19)
    return _request(random, 1, version, FetchRequest(replica_state=state, topics=topics))


def list_offsets(random: Random, timestamp: int) -> bytes:
    asked = [
        ListOffsetsPartition(partition_index=i, timestamp=timestamp) for i in range(PARTITIONS)
    ]
    topic = ListOffsetsTopic(name=TOPIC, partitions=asked)
    return _request(random, 2, 7, ListOffsetsRequest(replica_id=-1, topics=[topic]))


def many_elements(random: Random, count: int) -> bytes:
    """Return a request with `count` elements, most of which name nothing that exists."""
    names = [f"{n:x}" for n in range(count)]
    match random.randrange(6):
        case 0:
            return fetch(random, count, topic="absent")
        case 1:
            return fetch(random, count, session_epoch=0)
        case 2:
            topics = [MetadataRequestTopic(name=name) for name in names]
            message = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            return _request(random, 3, 9, message)
        case 3:
            return _request(random, 20, 5, DeleteTopicsRequest(topic_names=names, timeout_ms=1000))
        case 4:
            created = [CreatableTopic(name="/" + name, num_partitions=2**31 - 1) for name in names]
            return _request(random, 19, 5, CreateTopicsRequest(topics=created, timeout_ms=1000))
        case _:
            rows = [PartitionProduceData(index=i, records=b"") for i in range(count)]
            data = TopicProduceData(name=TOPIC, partition_data=rows)
            return _request(random, 0, 9, ProduceRequest(acks=-1, topic_data=[data]))


def claims_many(random: Random) -> bytes:
    """Return an array with a large count and no elements."""
    count = random.choice((REQUEST_MAX_ELEMENTS, 2**24, 2**31 - 1))
    api, version = random.choice(((3, 8), (20, 3), (19, 4), (2, 5), (32, 3)))
    head = struct.pack(">hhih", api, version, 1, -1)
    return framed(head + struct.pack(">i", count) + bytes(random.choice((0, 10, 400_000))))


# Batches


@functools.cache
def _batch(codec: Codec, count: int, size: int) -> bytes:
    records = [Record(i, BOMB_TIMESTAMP + i, None, bytes(size)) for i in range(count)]
    return bytes(encode_batch(records, codec=codec))


def _with_crc(batch: bytearray) -> bytes:
    from metaquorum.wire.records.crc import crc32c

    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


@functools.cache
def record_bomb(count: int) -> bytes:
    """Return many valid minimal records, with a header that claims a later timestamp.

    A lookup of that timestamp must parse all of them.
    """
    records = bytearray()
    for delta in range(count):
        offset = bytearray()
        write_varint(offset, delta)
        records += bytes((2 * (5 + len(offset)), 0, 0)) + offset + b"\1\1\0"
    header = parse_header(_batch(Codec.ZSTD, 1, 0), 0)._replace(
        base_timestamp=BOMB_TIMESTAMP,
        max_timestamp=BOMB_TIMESTAMP + 10,
        record_count=count,
        last_offset_delta=count - 1,
    )
    return bytes(pack_batch(header, compress(Codec.ZSTD, records)))


@functools.cache
def byte_bomb(codec: Codec) -> bytes:
    """Return a batch with one record of 100 MB."""
    return _batch(codec, 1, 100 << 20)


@functools.cache
def _endless_gzip() -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(stream.compress(bytes(1 << 20)) for _ in range(300))


def bad_batch(random: Random) -> bytes:
    """Return a batch with a matching checksum (mostly) and malformed content."""
    codec = random.choice(list(Codec))
    batch = bytearray(_batch(codec, random.choice((1, 3, 50)), random.choice((0, 10, 500))))
    kind = random.randrange(8)
    if kind == 0:  # wrong count
        struct.pack_into(">i", batch, 57, random.choice(_EXTREMES) & 0x7FFFFFFF)
    elif kind == 1:
        struct.pack_into(">i", batch, 23, random.choice((0, 2**31 - 1, -1)))
    elif kind == 2:  # a codec other than the data's
        struct.pack_into(">h", batch, 21, random.randrange(8))
    elif kind == 3:
        batch[61:] = random.randbytes(len(batch) - 61)
    elif kind == 4:
        batch[61:] = _endless_gzip()[: random.randrange(1, 290_000)]
        struct.pack_into(">h", batch, 21, Codec.GZIP)
    elif kind == 5:
        _flip(random, batch)
    elif kind == 6:
        del batch[random.randrange(1, len(batch)) :]
        return bytes(batch)
    else:
        struct.pack_into(">i", batch, 8, random.choice(_EXTREMES) & 0x7FFFFFFF)
        return bytes(batch)
    if random.random() < 0.8 and len(batch) > 61:
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        return _with_crc(batch)
    return bytes(batch)


def bad_produce(random: Random) -> bytes:
    records = b"".join(bad_batch(random) for _ in range(random.choice((1, 1, 1, 2, 5))))
    return produce(random, records, acks=random.choice((-1, 1, 0)))


def strange_timestamps(random: Random) -> bytes:
    return list_offsets(random, random.choice((0, BOMB_TIMESTAMP + 5, 2**62, -3, -1, -2, -7)))
