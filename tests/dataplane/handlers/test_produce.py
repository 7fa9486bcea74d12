"""Produce over the wire: accepted batches, their order, and the time of acknowledgement."""

import random
import struct
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from metaquorum.dataplane.partition.batch_validation import MAX_OPENED, MAX_OPENED_BYTES
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import APIS, ApiKey
from metaquorum.wire.protocol.headers import decode_response
from metaquorum.wire.records.batches import HEADER_BYTES, pack_batch
from metaquorum.wire.records.compression import SHORT_COMPRESSED_BYTES, compress
from metaquorum.wire.records.records import Codec, check_batch, parse_header
from metaquorum.wire.records.walk_form import is_compiled
from tests.dataplane.held_up import HeldUpDisk
from tests.dataplane.serving import (
    PRODUCE_VERSION,
    WORLD_BEGAN_MS,
    FaultyDisk,
    RawClient,
    Served,
    Simulated,
    batch_of,
    in_trio,
    produce_message,
    records_of,
    request,
    run_simulated,
    serving,
    simulated,
)
from tests.wire.records.sample_batches import damaged, legacy, rewritten

HOUR_MS = 3_600_000


def ids(producer_id: int, epoch: int, sequence: int) -> dict[str, int]:
    return {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}


async def producer_id_from(client: RawClient) -> int:
    answer = await client.call(
        ApiKey.INIT_PRODUCER_ID,
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1),
    )
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    return int(answer.producer_id)


@in_trio
async def test_records_are_written_in_worker_threads_while_the_disk_holds_up_writers(
    tmp_path: Path,
) -> None:
    disk = HeldUpDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await client.create("t")
        for number in range(20):
            await client.produce("t", batch_of(b"%d" % number))
        assert (len(disk.beside), disk.in_loop) == (20, [])
        disk.inline_write_bytes = 1000
        await client.produce("t", batch_of(b"20"))
        assert (len(disk.beside), len(disk.in_loop)) == (20, 1)
        assert await client.values("t") == [b"%d" % number for number in range(21)]


@simulated()
async def test_a_producer_learns_that_the_disk_is_full_and_goes_on_when_it_is_not(
    sim: Simulated,
) -> None:
    client = await sim.connect()
    await client.create("t")
    await client.produce("t", batch_of(b"before"))
    storage = sim.world.machines["server"].storage
    storage.capacity_bytes = storage.used_bytes()
    error = ErrorCode.KAFKA_STORAGE_ERROR
    row = await client.produce("t", batch_of(b"refused"), error=error)
    assert row.error_message.startswith("no space left on the disk of the partition's log")
    storage.capacity_bytes = None
    await client.produce("t", batch_of(b"after"))
    assert await client.values("t") == [b"before", b"after"]


@in_trio
async def test_every_version_and_number_of_acks_is_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        topic_id = (await client.create("t")).topic_id
        count = 0
        api = APIS[ApiKey.PRODUCE]
        for version in range(api.min_version, api.max_version + 1):
            for acks in (-1, 0, 1):
                message = produce_message("t", batch_of(b"%d" % count), acks=acks)
                message.topic_data[0].topic_id = topic_id
                await client.ask(ApiKey.PRODUCE, message, version)
                if acks:
                    answer = await client.answer(ApiKey.PRODUCE, version)
                    row = answer.responses[0].partition_responses[0]
                    assert (row.error_code, row.base_offset) == (0, count)
                count += 1
        assert await client.values("t") == [b"%d" % number for number in range(count)]


@in_trio
async def test_acks_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        for acks in (-2, 2, 32767, -32768):
            await client.produce(
                "t", batch_of(b"x"), acks=acks, error=ErrorCode.INVALID_REQUIRED_ACKS
            )
        assert await client.values("t") == []


@in_trio
async def test_many_partitions_of_a_request_have_an_outcome_each(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t", 3)
        await client.create("small", max_message_bytes=200)
        await client.create("synced", flush_messages=1)
        large = random.Random(1).randbytes(300_000)

        def rows(*batches: tuple[int, bytes | bytearray | None]) -> list[PartitionProduceData]:
            return [PartitionProduceData(index=i, records=batch) for i, batch in batches]

        message = ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(
                    name="t",
                    partition_data=rows(
                        (2, batch_of(large)),
                        (0, batch_of(b"small")),
                        (7, batch_of(b"x")),
                        (1, damaged(batch_of(b"x"), 40)),
                    ),
                ),
                TopicProduceData(name="absent", partition_data=rows((0, batch_of(b"x")))),
                TopicProduceData(name="small", partition_data=rows((0, batch_of(bytes(200))))),
                TopicProduceData(name="synced", partition_data=rows((0, batch_of(b"x")))),
            ],
        )
        answer = await client.call(ApiKey.PRODUCE, message, PRODUCE_VERSION)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [
            (topic.name, [(row.index, row.error_code) for row in topic.partition_responses])
            for topic in answer.responses
        ] == [
            ("t", [(2, 0), (0, 0), (7, unknown), (1, ErrorCode.CORRUPT_MESSAGE)]),
            ("absent", [(0, unknown)]),
            ("small", [(0, ErrorCode.MESSAGE_TOO_LARGE)]),
            ("synced", [(0, 0)]),
        ]
        assert await client.values("t") == [b"small"]


@in_trio
async def test_partitions_of_one_topic_have_an_outcome_each(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        topic_id = (await client.create("t", 3)).topic_id
        for number, version in enumerate((7, 9, 13)):
            message = produce_message("t", batch_of(b"kept"))
            topic = message.topic_data[0]
            topic.topic_id = topic_id
            topic.partition_data = [
                PartitionProduceData(index=2, records=batch_of(b"kept")),
                PartitionProduceData(index=0, records=damaged(batch_of(b"x"), 40)),
                PartitionProduceData(index=1, records=batch_of(b"kept")),
            ]
            answer = await client.call(ApiKey.PRODUCE, message, version)
            rows = answer.responses[0].partition_responses
            assert [(row.index, row.error_code, row.base_offset) for row in rows] == [
                (2, 0, number),
                (0, ErrorCode.CORRUPT_MESSAGE, -1),
                (1, 0, number),
            ]
        assert await client.values("t") == []


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (bytes(10), ErrorCode.INVALID_RECORD),
        (legacy(0), ErrorCode.INVALID_RECORD),
        (legacy(1), ErrorCode.INVALID_RECORD),
        (damaged(batch_of(b"x"), 30), ErrorCode.CORRUPT_MESSAGE),
        (batch_of(b"x") + batch_of(b"y"), ErrorCode.INVALID_RECORD),
        (batch_of(b"x")[:-1], ErrorCode.INVALID_RECORD),
        (rewritten(batch_of(b"x"), attributes=0x20), ErrorCode.INVALID_RECORD),
        (rewritten(batch_of(b"x"), record_count=2), ErrorCode.INVALID_RECORD),
        (rewritten(batch_of(b"x"), attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch_of(b"x", **ids(5, 0, -1)), ErrorCode.INVALID_RECORD),
    ],
    ids=[
        "none",
        "empty",
        "half-a-header",
        "magic-0",
        "magic-1",
        "damaged",
        "two",
        "cut",
        "control",
        "count",
        "codec",
        "no-sequence",
    ],
)
def test_what_is_no_sound_batch_is_refused(
    tmp_path: Path, batch: bytes | None, error: ErrorCode
) -> None:
    @in_trio
    async def test() -> None:
        async with serving(tmp_path) as served:
            client = await served.connect()
            await client.create("t")
            row = await client.produce("t", batch, error=error)
            assert row.base_offset == -1
            assert row.error_message
            await client.produce("t", batch_of(b"good"))
            assert await client.values("t") == [b"good"]

    test()


@in_trio
async def test_batches_are_kept_as_they_came_whatever_their_codec(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        value = b"repeated " * 1000
        sent = [batch_of(value, codec=codec) for codec in Codec]
        for batch in sent:
            await client.produce("t", bytearray(batch))
        row = await client.fetch("t")
        data = bytes(row.records)
        for batch in sent:
            stored, data = data[: len(batch)], data[len(batch) :]
            assert stored[16:] == batch[16:]  # all but the offset and the leader epoch
        assert [record.value for record in records_of(row)] == [value] * len(sent)


@in_trio
async def test_a_batch_may_have_exactly_max_message_bytes(tmp_path: Path) -> None:
    batch = batch_of(bytes(1000))
    async with serving(tmp_path, message_max_bytes=len(batch) - 1) as served:
        client = await served.connect()
        await client.create("by-worker")
        await client.create("by-topic", max_message_bytes=len(batch))
        row = await client.produce("by-worker", bytearray(batch), error=ErrorCode.MESSAGE_TOO_LARGE)
        assert "max.message.bytes" in row.error_message
        await client.produce("by-worker", batch[:0] + batch_of(bytes(999)))
        await client.produce("by-topic", bytearray(batch))


@in_trio
async def test_no_more_replicas_are_asked_for_than_there_are(tmp_path: Path) -> None:
    """As in Kafka, with one replica; the tests of replication have the refusals with more."""
    async with serving(tmp_path, min_insync_replicas=2) as served:
        client = await served.connect()
        await client.create("t")
        await client.produce("t", batch_of(b"x"))
        await client.produce("t", batch_of(bytes(300_000)))


@simulated()
async def test_timestamps_stay_within_the_limits_of_their_topic(sim: Simulated) -> None:
    client = await sim.connect()
    await client.create(
        "t", message_timestamp_before_max_ms=HOUR_MS, message_timestamp_after_max_ms=HOUR_MS
    )
    for distance in (-HOUR_MS + 60_000, 0, HOUR_MS):
        await client.produce("t", batch_of(b"x", timestamp=WORLD_BEGAN_MS + distance))
    refused = ErrorCode.INVALID_TIMESTAMP
    for distance in (-HOUR_MS - 60_000, HOUR_MS + 60_000):
        row = await client.produce(
            "t", batch_of(b"x", timestamp=WORLD_BEGAN_MS + distance), error=refused
        )
        assert row.record_errors
    far = WORLD_BEGAN_MS + 10**12
    for lie in ({"base_timestamp": far}, {"base_timestamp": far, "max_timestamp": -1}):
        await client.produce("t", rewritten(batch_of(b"x"), **lie), error=refused)
    await client.produce("t", batch_of(b"x", timestamp=-1))  # no timestamp at all


@simulated()
async def test_log_append_time_replaces_the_producers_and_keeps_the_checksum_right(
    sim: Simulated,
) -> None:
    client = await sim.connect()
    await client.create("t", message_timestamp_type="LogAppendTime")
    for size in (10, 300_000):
        row = await client.produce("t", batch_of(bytes(size), timestamp=17))
        assert row.log_append_time_ms >= WORLD_BEGAN_MS
        answer = await client.fetch("t", row.base_offset, partition_max_bytes=1 << 22)
        assert records_of(answer)[0].timestamp_ms == row.log_append_time_ms
        data = bytearray(answer.records)
        header = parse_header(data)
        assert header.attributes & 8
        check_batch(data, 0, header._replace(attributes=0))


class SlowSync(FaultyDisk):
    """A disk whose calls wait after a sync until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on: trio.Event | None = None

    async def run(self, function: Any) -> Any:
        result = await super().run(function)
        if self.go_on is not None and self.synced:
            await self.go_on.wait()
        return result


class ThreadCount(FaultyDisk):
    """A disk that counts the calls in worker threads."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def run(self, function: Any) -> Any:
        self.calls += 1
        return await super().run(function)


def of_many_members(*values: bytes) -> bytearray:
    """Return a valid batch that is compressed in one zstd frame for each value."""
    plain = batch_of(*values)
    body = bytes(plain[HEADER_BYTES:])
    size = len(body) // len(values)
    frames = [compress(Codec.ZSTD, body[at : at + size]) for at in range(0, len(body), size)]
    header = parse_header(plain)._replace(attributes=int(Codec.ZSTD))
    return pack_batch(header, b"".join(frames))


def rows_of(*batches: bytes | bytearray, index: int | None = None) -> list[PartitionProduceData]:
    """Return a row for each batch, of partitions from 0 on, or all of one partition."""
    return [
        PartitionProduceData(index=number if index is None else index, records=bytearray(batch))
        for number, batch in enumerate(batches)
    ]


class Producing:
    """A client whose requests are for one topic, or for two: then other code reads them."""

    def __init__(self, client: RawClient, is_alone: bool) -> None:
        self._client = client
        self._is_alone = is_alone

    async def produce(self, topic: str, rows: list[PartitionProduceData]) -> list[Any]:
        topics = [TopicProduceData(name=topic, partition_data=rows)]
        if not self._is_alone:
            topics.append(TopicProduceData(name="t", partition_data=[]))
        message = ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics)
        answer = await self._client.call(ApiKey.PRODUCE, message, 9)
        return list(answer.responses[0].partition_responses)


SHORT_CODECS = (Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
alone = pytest.mark.parametrize("is_alone", [True, False], ids=["one topic", "two topics"])


@alone
@in_trio
async def test_short_compressed_batches_are_validated_without_a_thread(
    tmp_path: Path, is_alone: bool
) -> None:
    disk = ThreadCount()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await client.create("t", 9)
        await client.create("packed", compression_type="lz4")
        producing = Producing(client, is_alone)
        half_bytes = MAX_OPENED_BYTES // 2 if is_compiled() else 1 << 13

        async def calls(*batches: bytearray, topic: str = "t", error: int = 0) -> int:
            before = disk.calls
            for row in await producing.produce(topic, rows_of(*batches)):
                assert row.error_code == error, row
            return disk.calls - before

        for codec in SHORT_CODECS:
            assert not await calls(batch_of(b"v" * 1000, b"w", codec=codec)), codec
        assert not await calls(*(batch_of(b"v", codec=Codec.LZ4) for _ in range(MAX_OPENED)))
        half = batch_of(bytes(half_bytes), codec=Codec.ZSTD)
        assert not await calls(half)
        assert not await calls(batch_of(b"v", codec=Codec.LZ4), topic="packed")
        # Others are validated in a thread, and written without one.
        noise = random.Random(1).randbytes(SHORT_COMPRESSED_BYTES)
        assert await calls(batch_of(noise, codec=Codec.ZSTD)) == 1
        assert await calls(batch_of(bytes(2 * half_bytes), codec=Codec.ZSTD)) == 1
        assert await calls(of_many_members(b"one", b"two")) == 1
        assert await calls(batch_of(b"v", codec=Codec.GZIP)) == 1
        assert await calls(batch_of(b"v", codec=Codec.ZSTD), topic="packed") == 1
        wrong = rewritten(batch_of(b"v", codec=Codec.LZ4), record_count=2, last_offset_delta=1)
        assert await calls(wrong, error=ErrorCode.INVALID_RECORD) == 1
        # A request for one topic then has all its compressed batches validated in threads.
        rest = [batch_of(b"v", codec=Codec.LZ4) for _ in range(MAX_OPENED + 1)]
        assert await calls(*rest) == (len(rest) if is_alone else 1)
        assert await calls(half, half) == (2 if is_alone else 1)
        assert await calls(of_many_members(b"1", b"2"), rest[0]) == 2  # none after a refusal
        marks = [log_end(served, "t", index) for index in range(9)]
        assert sum(marks) == 3 * 2 + MAX_OPENED + 1 + 1 + 1 + 2 + 1 + len(rest) + 2 + 3


def log_end(served: Served, topic: str, index: int) -> int:
    return int(served.worker.replica_manager.by_name(topic, index).log.log_end_offset)


@alone
@in_trio
async def test_batches_of_one_partition_in_a_request_keep_their_order(
    tmp_path: Path, is_alone: bool
) -> None:
    """However each is validated: by a thread, in place when compressed, in place when plain."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t", 2)
        producing = Producing(client, is_alone)
        noise = random.Random(1).randbytes(SHORT_COMPRESSED_BYTES)
        kinds = [(noise, Codec.LZ4), (b"v", Codec.LZ4), (b"v", Codec.NONE)] * 2
        batches = [batch_of(value, codec=codec) for value, codec in kinds]
        rows = await producing.produce("t", rows_of(*batches, index=0))
        assert [(row.error_code, row.base_offset) for row in rows] == [(0, n) for n in range(6)]
        batches = [
            batch_of(value, codec=codec, **ids(5, 0, number))
            for number, (value, codec) in enumerate(kinds)
        ]
        rows = await producing.produce("t", rows_of(*batches, index=1))
        assert [(row.error_code, row.base_offset) for row in rows] == [(0, n) for n in range(6)]
        short = [batch_of(b"v", codec=Codec.LZ4) for _ in range(MAX_OPENED + 1)]
        rows = await producing.produce("t", rows_of(*short, batch_of(b"v"), index=0))
        assert [row.base_offset for row in rows] == list(range(6, 6 + MAX_OPENED + 2))


@in_trio
async def test_a_flush_of_every_message_is_awaited_before_the_answer(tmp_path: Path) -> None:
    disk = SlowSync()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await client.create("t", flush_messages=1)
        await client.create("two", flush_messages=2)
        await client.create("none")
        for topic, counts in (("t", (1, 1, 1)), ("two", (0, 1, 0, 1)), ("none", (0, 0, 0))):
            for expected in counts:
                disk.synced.clear()
                await client.produce(topic, batch_of(b"x"))
                syncs = [path for path in disk.synced if path.endswith(".log")]
                assert len(syncs) == expected, topic
        # The response follows the sync.
        disk.go_on = trio.Event()
        disk.synced.clear()
        await client.send(request(ApiKey.PRODUCE, produce_message("t", batch_of(b"y")), 9, 3))
        answered: list[int] = []

        async def read() -> None:
            answered.append(await client.correlation_id())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            while not any(path.endswith(".log") for path in disk.synced):
                await trio.sleep(0.001)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not answered
            disk.go_on.set()
        assert answered == [3]


def test_large_and_small_appends_of_many_connections_keep_their_order() -> None:
    """Offsets are dense, each connection's records ascend, and readers never see a gap."""

    async def scenario(sim: Simulated) -> None:
        draw = random.Random(sim.world.seed)
        clients = [await sim.connect() for _ in range(4)]
        reader = await sim.connect()
        await reader.create("t")
        done = 0

        async def produce(number: int) -> None:
            nonlocal done
            client, stream = clients[number], b""
            for turn in range(30):
                size = draw.choice([0, 0, 0, 70_000, 200_000])
                value = struct.pack(">HH", number, turn) + bytes(size)
                message = produce_message("t", batch_of(value), acks=draw.choice([-1, 1]))
                stream += request(ApiKey.PRODUCE, message, PRODUCE_VERSION, turn + 1)

            async def send() -> None:
                await client.send(stream)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                last = -1
                for turn in range(30):
                    frame = await client.frame()
                    assert struct.unpack_from(">i", frame) == (turn + 1,)
                    _, answer = decode_response(ApiKey.PRODUCE, PRODUCE_VERSION, memoryview(frame))
                    row = answer.responses[0].partition_responses[0]
                    assert row.error_code == 0
                    assert row.base_offset > last
                    last = row.base_offset
            done += 1

        seen: list[bytes] = []

        async def read() -> None:
            while done < 4 or len(seen) < 120:
                row = await reader.fetch("t", len(seen), max_wait_ms=500)
                for record in records_of(row):
                    assert record.offset == len(seen)
                    seen.append((record.value or b"")[:4])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for number in range(4):
                nursery.start_soon(produce, number)
        for number in range(4):
            slicer = [
                turn for who, turn in (struct.unpack(">HH", v) for v in seen) if who == number
            ]
            assert slicer == list(range(30))

    for seed in range(3):
        run_simulated(scenario, seed=seed)


# Idempotent producers


@in_trio
async def test_duplicates_are_answered_with_their_place_and_gaps_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        producer = await producer_id_from(client)
        for sequence in range(7):
            row = await client.produce("t", batch_of(b"x", **ids(producer, 0, sequence)))
            assert row.base_offset == sequence
        for sequence in range(2, 7):  # the last five batches are remembered
            row = await client.produce("t", batch_of(b"x", **ids(producer, 0, sequence)))
            assert row.base_offset == sequence
        gap = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        await client.produce("t", batch_of(b"x", **ids(producer, 0, 8)), error=gap)
        row = await client.produce("t", batch_of(b"x", **ids(producer, 0, 7)))
        assert row.base_offset == 7
        await client.produce("t", batch_of(b"x", **ids(producer, 1, 0)))  # a new epoch
        await client.produce(
            "t", batch_of(b"x", **ids(producer, 0, 8)), error=ErrorCode.INVALID_PRODUCER_EPOCH
        )
        assert len(await client.values("t")) == 9
        assert await producer_id_from(client) != producer


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 300_000])
@pytest.mark.parametrize("clean", [True, False])
def test_producers_are_known_again_after_a_restart(tmp_path: Path, size: int, clean: bool) -> None:
    @in_trio
    async def test() -> None:
        batch = batch_of(bytes(size), **ids(7, 0, 0))
        async with serving(tmp_path) as served:
            client = await served.connect()
            await client.create("t")
            await client.produce("t", bytearray(batch))
            first = await producer_id_from(client)
        if not clean:
            (tmp_path / ".kafka_cleanshutdown").unlink()
            for path in (tmp_path / "t-0").glob("*.snapshot"):
                path.unlink()
        async with serving(tmp_path) as served:
            client = await served.connect()
            assert (await client.produce("t", bytearray(batch))).base_offset == 0
            await client.produce("t", batch_of(b"x", **ids(7, 0, 1)))
            assert len(await client.values("t")) == 2
            assert await producer_id_from(client) > first

    test()


@in_trio
async def test_duplicates_that_meet_on_two_connections_land_once(tmp_path: Path) -> None:
    """Large batches: the second waits while the first is written."""
    async with serving(tmp_path) as served:
        clients = [await served.connect() for _ in range(5)]
        await clients[0].create("t")
        batch = batch_of(bytes(500_000), **ids(9, 0, 0))
        offsets: list[int] = []

        async def produce(client: RawClient) -> None:
            offsets.append((await client.produce("t", bytearray(batch))).base_offset)

        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(produce, client)
        assert offsets == [0] * 5
        assert len(await clients[0].values("t")) == 1
