"""Validation of produced batches: refusals and corrections, on all paths of a produce."""

import random
import re
import struct
from typing import Any

import lz4.frame
import pytest
import trio

from metaquorum.simulations.workloads.lying_batches import LIES, lying_batch, wrong_max_timestamp
from metaquorum.wire.messages.produce import TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.batches import HEADER_BYTES, pack_batch, parse_header
from metaquorum.wire.records.compression import Codec, compress
from metaquorum.wire.records.records import (
    Record,
    batches,
    check_batch,
    decode_pieces,
    encode_batch,
)
from tests.dataplane.serving import (
    WORLD_BEGAN_MS,
    RawClient,
    Simulated,
    batch_of,
    produce_message,
    records_of,
    simulated,
)
from tests.wire.records.sample_batches import rewritten

HOUR_MS = 3_600_000
XERIAL_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
COMPRESSED = [codec for codec in Codec if codec]


def said(row: Any) -> tuple[Any, ...]:
    errors = [(e.batch_index, e.batch_index_error_message) for e in row.record_errors]
    return row.error_code, row.base_offset, row.log_append_time_ms, errors, row.error_message


async def produce_both_ways(client: RawClient, batch: bytes) -> tuple[Any, Any]:
    """Produce to `fast`, alone in its request, and to `whole`, in a request of two topics, which
    the tables decode. `whole` may have flush_messages=1: then a thread validates compressed ones.
    """
    fast = (
        await client.call(ApiKey.PRODUCE, produce_message("fast", bytearray(batch)), 9)
    ).responses
    message = produce_message("whole", bytearray(batch))
    message.topic_data.append(TopicProduceData(name="whole", partition_data=[]))
    whole = (await client.call(ApiKey.PRODUCE, message, 9)).responses
    return fast[0].partition_responses[0], whole[0].partition_responses[0]


def a_batch(dice: random.Random) -> bytes:
    """Return a valid batch, one with a false header, or one that its topic refuses."""
    if dice.random() < 0.4:
        return lying_batch(dice, timestamp_ms=WORLD_BEGAN_MS)
    count = dice.choice((1, 3, 70, 1001))
    spread = dice.choice((0, 5, 2 * HOUR_MS))
    times = [WORLD_BEGAN_MS + dice.randint(-spread, spread) for _ in range(count)]
    key = dice.choice((b"k", b"k", None))
    records = [Record(i, time, key, b"v" * dice.choice((1, 90))) for i, time in enumerate(times)]
    producer = dice.choice(({}, {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}))
    batch = encode_batch(records, codec=dice.choice((Codec.NONE, *Codec)), **producer)
    if dice.random() < 0.2:
        batch[dice.randrange(len(batch))] ^= 1 << dice.randrange(8)
    if dice.random() < 0.2:
        return wrong_max_timestamp(batch, dice.choice((-1, 0, 1 << 62, WORLD_BEGAN_MS)))
    return bytes(batch)


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"cleanup_policy": "compact"},
        {"compression_type": "zstd"},
        {"message_timestamp_type": "LogAppendTime"},
        {"message_timestamp_before_max_ms": HOUR_MS, "max_message_bytes": 2000},
    ],
    ids=lambda configs: next(iter(configs), "plain"),
)
@pytest.mark.parametrize("flushes", [False, True], ids=["", "in a thread"])
@simulated()
async def test_both_ways_of_a_produce_have_the_same_outcome(
    sim: Simulated, configs: dict[str, object], flushes: bool
) -> None:
    client = await sim.connect()
    await client.create("fast", **configs)
    await client.create("whole", **configs, **({"flush_messages": 1} if flushes else {}))
    dice = random.Random(4)
    codes = set()
    for number in range(150):
        batch = a_batch(dice)
        fast, whole = await produce_both_ways(client, batch)
        if configs.get("message_timestamp_type"):
            whole.log_append_time_ms = fast.log_append_time_ms  # time passes between requests
        texts = [
            re.sub(r"within \[-?\d+, -?\d+\]", "", str(said(row))).replace("whole", "fast")
            for row in (fast, whole)
        ]
        assert texts[0] == texts[1], (number, batch)
        codes.add(fast.error_code)
    assert {ErrorCode.NONE, ErrorCode.INVALID_RECORD} <= codes
    logs = [sim.worker.replica_manager.by_name(topic, 0).log for topic in ("fast", "whole")]
    assert logs[0].log_end_offset == logs[1].log_end_offset > 20
    if not configs.get("message_timestamp_type"):
        assert await stored(client, "fast") == await stored(client, "whole")


async def stored(client: RawClient, topic: str) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        row = await client.fetch(topic, offset)
        data = bytes(row.records or b"")
        if not data:
            return found
        for at, header in batches(data):
            found.append(data[at : at + header.batch_bytes])
            offset = header.next_offset


@pytest.mark.parametrize("kind", LIES)
@simulated()
async def test_a_batch_that_lies_is_refused_and_nothing_of_it_is_kept(
    sim: Simulated, kind: str
) -> None:
    client = await sim.connect()
    for topic in ("fast", "whole"):
        await client.create(topic)
    dice = random.Random(7)
    for _ in range(10):
        rows = await produce_both_ways(client, lying_batch(dice, kind, timestamp_ms=WORLD_BEGAN_MS))
        for row in rows:
            assert row.error_code == ErrorCode.INVALID_RECORD, row
            assert row.error_message
            assert row.record_errors
    for topic in ("fast", "whole"):
        assert sim.worker.replica_manager.by_name(topic, 0).log.log_end_offset == 0
        await client.produce(topic, batch_of(b"after"))
        assert await client.values(topic) == [b"after"]


@pytest.mark.parametrize("codec", Codec)
@simulated()
async def test_a_wrong_max_timestamp_is_corrected_with_the_checksum(
    sim: Simulated, codec: Codec
) -> None:
    client = await sim.connect()
    await client.create("t")
    times = [WORLD_BEGAN_MS + delta for delta in (0, 40, 7)]
    batch = encode_batch([Record(i, t, None, b"v") for i, t in enumerate(times)], codec=codec)
    for lie in (-1, 0, WORLD_BEGAN_MS + 50, 1 << 62, -(1 << 63)):
        row = await client.produce("t", bytearray(wrong_max_timestamp(batch, lie)))
        answer = await client.fetch("t", row.base_offset)
        data = bytearray(answer.records)
        header = parse_header(data)
        assert header.max_timestamp == WORLD_BEGAN_MS + 40
        check_batch(data, 0, header)
        assert [record.timestamp_ms for record in records_of(answer)] == times


@pytest.mark.parametrize("codec", Codec)
@simulated()
async def test_each_record_out_of_the_time_limits_is_named(sim: Simulated, codec: Codec) -> None:
    client = await sim.connect()
    await client.create(
        "t", message_timestamp_before_max_ms=HOUR_MS, message_timestamp_after_max_ms=HOUR_MS
    )
    late, early = WORLD_BEGAN_MS + 2 * HOUR_MS, WORLD_BEGAN_MS - 2 * HOUR_MS
    times = [WORLD_BEGAN_MS, late, WORLD_BEGAN_MS, early, -1]
    batch = encode_batch([Record(i, t, None, b"v") for i, t in enumerate(times)], codec=codec)
    row = await client.produce("t", batch, error=ErrorCode.INVALID_TIMESTAMP)
    assert [error.batch_index for error in row.record_errors] == [1, 3]
    assert f"Timestamp {late} of message with offset 1 is out of range" in row.error_message
    # A record without a timestamp is within all limits.
    records = [Record(i, t, None, b"v") for i, t in enumerate((WORLD_BEGAN_MS, -1))]
    await client.produce("t", encode_batch(records, codec=codec))


@simulated()
async def test_timestamps_beyond_64_bits_are_refused(sim: Simulated) -> None:
    client = await sim.connect()
    await client.create("t", message_timestamp_after_max_ms=(1 << 63) - 1)
    records = [Record(0, 0, None, b"v"), Record(1, 1 << 62, None, b"v")]
    batch = rewritten(encode_batch(records), base_timestamp=1 << 62)
    await client.produce("t", batch, error=ErrorCode.INVALID_TIMESTAMP)


@pytest.mark.slow
@pytest.mark.parametrize("codec", COMPRESSED)
@simulated()
async def test_a_batch_beyond_128_mib_is_taken_and_read(sim: Simulated, codec: Codec) -> None:
    """130 records of a megabyte of equal bytes, from a producer with large batches."""
    client = await sim.connect()
    await client.create("t", max_message_bytes=100 << 20)
    value = bytes(1 << 20)
    plain = encode_batch([Record(i, WORLD_BEGAN_MS, None, value) for i in range(130)])
    header = parse_header(plain)._replace(attributes=int(codec))
    batch = pack_batch(header, compress(codec, bytes(plain[HEADER_BYTES:])))
    row = await client.produce("t", batch)
    assert row.base_offset == 0
    answer = await client.fetch("t", partition_max_bytes=100 << 20)
    read = 0
    for piece in decode_pieces(bytes(answer.records)):  # one at a time is held
        assert all(record.value == value for record in piece)
        read += len(piece)
    assert read == 130


@simulated()
async def test_a_refused_batch_of_an_idempotent_producer_is_refused_for_good(
    sim: Simulated,
) -> None:
    """Its producer sends the next batch with the next sequence, or with a new epoch, as Java and
    librdkafka do; both are accepted, because the first batch will then not be sent again."""
    client = await sim.connect()
    await client.create("t")
    ids = {"producer_id": 7, "producer_epoch": 0}
    batch = batch_of(b"a", base_sequence=0, **ids)
    lying = rewritten(batch, record_count=9, last_offset_delta=8)
    await client.produce("t", lying, error=ErrorCode.INVALID_RECORD)
    row = await client.produce("t", batch_of(b"b", base_sequence=9, **ids))
    assert row.base_offset == 0
    lying = rewritten(batch_of(b"c", base_sequence=10, **ids), record_count=5, last_offset_delta=4)
    await client.produce("t", lying, error=ErrorCode.INVALID_RECORD)
    gap = batch_of(b"d", base_sequence=15, **ids)
    await client.produce("t", gap, error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    row = await client.produce(
        "t", batch_of(b"d", base_sequence=0, producer_id=7, producer_epoch=1)
    )
    assert row.base_offset == 1


@pytest.mark.parametrize("linked", [False, True])
@simulated()
async def test_lz4_blocks_that_javas_clients_cannot_read_are_refused(
    sim: Simulated, linked: bool
) -> None:
    client = await sim.connect()
    for topic in ("fast", "whole"):
        await client.create(topic)
    batch = batch_of(b"value" * 30_000)  # two blocks
    body = lz4.frame.compress(batch[HEADER_BYTES:], block_linked=linked)
    packed = pack_batch(parse_header(batch)._replace(attributes=int(Codec.LZ4)), body)
    for row in await produce_both_ways(client, bytes(packed)):
        assert row.error_code == (ErrorCode.INVALID_RECORD if linked else 0), row
        if linked:
            assert "independent blocks" in row.error_message


@pytest.mark.parametrize("framed", [False, True])
@simulated()
async def test_a_large_snappy_block_is_opened_by_one_request_at_a_time(
    sim: Simulated, framed: bool
) -> None:
    """The block is decompressed as a whole, at its claimed size; so its request waits first."""
    client = await sim.connect()
    await client.create("t")
    block = b"\x80\x80\x80\x20" + b"nonsense"  # claims 64 MiB
    body = XERIAL_HEADER + struct.pack(">I", len(block)) + block if framed else block
    header = parse_header(batch_of(b"x"))
    batch = pack_batch(header._replace(attributes=Codec.SNAPPY), body)
    opening = sim.worker.opening_batch
    async with opening:
        await client.ask(ApiKey.PRODUCE, produce_message("t", batch), 9)
        with trio.fail_after(60):
            while not opening.statistics().tasks_waiting:
                await trio.sleep(0.01)
    answer = (await client.answer(ApiKey.PRODUCE, 9)).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert "snappy" in answer.error_message
