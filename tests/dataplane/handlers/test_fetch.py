"""Fetch over the wire: limits, long polls, leader epochs; and the offsets of ListOffsets."""

import gc
from pathlib import Path
from typing import Any

import pytest
import trio

from metaquorum.dataplane.fetch.reader import FetchReader
from metaquorum.dataplane.handlers import offsets
from metaquorum.dataplane.handlers.fetch.handler import handle_fetch
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, at_once, step
from metaquorum.dataplane.worker.context import Request
from metaquorum.wire.messages.fetch import FetchRequest
from metaquorum.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from metaquorum.wire.messages.metadata import MetadataRequest
from metaquorum.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode, WireError
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.batches import HEADER_BYTES, pack_batch, parse_header
from metaquorum.wire.records.compression import Codec, compress
from metaquorum.wire.records.records import batches
from tests.dataplane.serving import (
    FETCH_VERSION,
    WORLD_BEGAN_MS,
    RawClient,
    Simulated,
    append_unvalidated,
    batch_of,
    fetch_message,
    in_trio,
    records_of,
    request,
    serving,
    simulated,
)
from tests.hostile.frames import BOMB_TIMESTAMP, record_bomb

MIB = 1 << 20


def sizes_of(row: Any) -> list[int]:
    return [header.batch_bytes for _, header in batches(bytes(row.records))]


async def fill(client: RawClient, topic: str, count: int, size: int, partition: int = 0) -> int:
    """Append batches of one record each; return the size of a batch."""
    batch = batch_of(bytes(size))
    for _ in range(count):
        await client.produce(topic, bytearray(batch), partition=partition)
    return len(batch)


@in_trio
async def test_a_fetch_stays_within_its_bounds_but_gives_a_batch_at_least(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t", 3)
        for partition in range(3):
            size = await fill(client, "t", 10, 1000, partition)
        for bound in (-(2**31), -1, 0, 1, size - 1, size):
            row = await client.fetch("t", 2, partition_max_bytes=bound)
            assert sizes_of(row) == [size]
            assert records_of(row)[0].offset == 2
        row = await client.fetch("t", partition_max_bytes=3 * size + 10)
        assert sizes_of(row) == [size] * 3
        assert len(row.records) == 3 * size + 10  # the last batch is incomplete, as in Kafka
        asked = {"t": [(0, 0), (1, 0), (2, 0)]}
        for bound, expected in (
            (0, [1, 0, 0]),
            (size, [1, 0, 0]),
            (11 * size, [10, 1, 0]),
            (100 * size, [10, 10, 10]),
        ):
            message = fetch_message(asked, max_bytes=bound)
            answer = await client.call(ApiKey.FETCH, message, FETCH_VERSION)
            counts = [len(sizes_of(row)) for row in answer.responses[0].partitions]
            assert counts == expected, bound


@in_trio
async def test_the_servers_own_bound_holds_whatever_a_client_asks_for(tmp_path: Path) -> None:
    async with serving(tmp_path, fetch_max_bytes=5000) as served:
        client = await served.connect()
        await client.create("t", 2)
        for partition in range(2):
            await fill(client, "t", 10, 1000, partition)
        message = fetch_message({"t": [(0, 0), (1, 0)]}, max_bytes=2**31 - 1)
        answer = await client.call(ApiKey.FETCH, message, FETCH_VERSION)
        assert sum(len(row.records) for row in answer.responses[0].partitions) <= 5000


@simulated()
async def test_a_fetch_that_is_full_does_not_wait_for_more(sim: Simulated) -> None:
    """A min_bytes above max_bytes can never be reached."""
    client = await sim.connect()
    await client.create("t")
    await fill(client, "t", 10, 1000)
    began = sim.now
    row = await client.fetch("t", min_bytes=2**31 - 1, max_bytes=3000, max_wait_ms=9000)
    assert row.records
    assert sim.now - began < 1


@simulated()
async def test_what_is_left_of_an_older_segment_is_given_at_once(sim: Simulated) -> None:
    """An older segment never grows: a poll waits only at the end of the log."""
    client = await sim.connect()
    await client.create("t", segment_bytes=MIB)
    await fill(client, "t", 30, 50_000)
    log = sim.worker.replica_manager.by_name("t", 0).log
    spans = list(log.segment_spans())
    assert len(spans) == 2
    began = sim.now
    row = await client.fetch("t", spans[0].end_offset - 1, min_bytes=10 * MIB, max_wait_ms=9000)
    assert len(records_of(row)) == 1
    assert sim.now - began < 1
    row = await client.fetch("t", spans[1].end_offset - 1, min_bytes=10 * MIB, max_wait_ms=9000)
    assert len(records_of(row)) == 1
    assert sim.now - began >= 9


@simulated()
async def test_a_long_poll_ends_when_enough_has_come_over_all_its_partitions(
    sim: Simulated,
) -> None:
    client, producer = await sim.connect(), await sim.connect()
    await client.create("t", 3)
    message = fetch_message({"t": [(0, 0), (1, 0), (2, 0)]}, min_bytes=2500, max_wait_ms=60_000)
    await client.ask(ApiKey.FETCH, message, FETCH_VERSION)
    for partition in (0, 1):
        await fill(producer, "t", 1, 1000, partition)
    with trio.move_on_after(1) as early:
        await client.connection.receive_into(bytearray(1))
    assert early.cancelled_caught
    await fill(producer, "t", 1, 1000, 2)
    began = sim.now
    answer = await client.answer(ApiKey.FETCH, FETCH_VERSION)
    assert [len(sizes_of(row)) for row in answer.responses[0].partitions] == [1, 1, 1]
    assert sim.now - began < 0.1
    assert not sim.worker.long_polls
    assert not any(p.waiters for p in sim.worker.replica_manager)


@simulated()
async def test_a_long_poll_that_still_misses_bytes_after_an_append_hears_of_the_next(
    sim: Simulated,
) -> None:
    client, producer = await sim.connect(), await sim.connect()
    await client.create("t")
    message = fetch_message({"t": [(0, 0)]}, min_bytes=2500, max_wait_ms=60_000)
    await client.ask(ApiKey.FETCH, message, FETCH_VERSION)
    began = sim.now
    for _ in range(3):
        await fill(producer, "t", 1, 1000)
    answer = await client.answer(ApiKey.FETCH, FETCH_VERSION)
    assert len(sizes_of(answer.responses[0].partitions[0])) == 3
    assert sim.now - began < 1


@pytest.mark.parametrize("what", ["deleted", "stopped"])
@simulated()
async def test_a_long_poll_ends_when_its_partition_or_the_node_goes(
    sim: Simulated, what: str
) -> None:
    client, other = await sim.connect(), await sim.connect()
    await client.create("t")
    await client.ask(ApiKey.FETCH, fetch_message({"t": [(0, 0)]}, max_wait_ms=60_000), 12)
    await other.call(ApiKey.METADATA, MetadataRequest(topics=[]))  # the poll has arrived too
    while not sim.worker.long_polls:
        await trio.sleep(0.01)
    began = sim.now
    if what == "deleted":
        await other.delete("t")
        expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        assert sim.on_machine.node is not None
        sim.on_machine.node.stop()
        expected = ErrorCode.NONE
    answer = await client.answer(ApiKey.FETCH, 12)
    assert answer.responses[0].partitions[0].error_code == expected
    assert sim.now - began < 0.5


@simulated()
async def test_a_long_poll_behind_an_answer_that_is_not_read_yet_does_not_outlast_a_stop(
    sim: Simulated,
) -> None:
    """The long poll has not started when the node ends all long polls."""
    client = await sim.connect()
    await client.create("t", 2500)
    await client.create("u")
    poll = request(ApiKey.FETCH, fetch_message({"u": [(0, 0)]}, max_wait_ms=60_000), 12, 9)
    everything = request(ApiKey.METADATA, MetadataRequest(topics=None), 5, 8)
    await client.send(everything + everything + poll)
    await trio.sleep(1)  # the first responses fill the network's capacity
    began = sim.now
    assert sim.on_machine.node is not None
    sim.on_machine.node.stop()
    await trio.sleep(0.1)
    assert [await client.correlation_id() for _ in range(3)] == [8, 8, 9]
    assert sim.now - began < 1


@in_trio
async def test_offsets_outside_of_the_log_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        await fill(client, "t", 3, 10)
        for offset in (-(2**63), -1, 4, 2**63 - 1):
            row = await client.fetch("t", offset, max_wait_ms=9000)
            assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        row = await client.fetch("t", 3)
        assert (row.error_code, bytes(row.records), row.high_watermark) == (0, b"", 3)


@in_trio
async def test_absurd_waits_and_least_bytes_do_no_harm(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        await fill(client, "t", 1, 10)
        for wait in (-(2**31), -1, 0):
            row = await client.fetch("t", 1, max_wait_ms=wait, min_bytes=2**31 - 1)
            assert row.error_code == 0
        row = await client.fetch("t", 1, max_wait_ms=2**31 - 1, min_bytes=-(2**31))
        assert row.error_code == 0
        for level in (-128, 2, 127):
            row = await client.fetch("t", isolation_level=level)
            assert row.error_code == ErrorCode.INVALID_REQUEST
        row = await client.fetch("t", isolation_level=1)
        assert (row.last_stable_offset, row.aborted_transactions) == (1, [])


@pytest.mark.slow
@in_trio
async def test_leader_epochs_of_the_asker_are_checked(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        await fill(client, "t", 1, 10)
    async with serving(tmp_path) as served:  # a new leader epoch
        client = await served.connect()
        epoch = served.worker.replica_manager.by_name("t", 0).leader_epoch
        assert epoch > 0
        row = await client.fetch("t", current_leader_epoch=epoch - 1)
        assert row.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert row.current_leader.leader_epoch == epoch
        row = await client.fetch("t", current_leader_epoch=epoch + 1)
        assert row.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await client.fetch("t", current_leader_epoch=epoch)).error_code == 0
        await fill(client, "t", 1, 10)
        # The log of a reader in the old epoch diverges from this one where the new epoch started.
        row = await client.fetch("t", 2, last_fetched_epoch=0)
        assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (0, 1)
        assert (await client.fetch("t", 1, last_fetched_epoch=0)).diverging_epoch is None
        # An epoch that never existed has no known end offset.
        row = await client.fetch("t", 1, last_fetched_epoch=epoch + 5)
        assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

        async def ends(asked: int, current: int = -1) -> tuple[int, int, int]:
            data = OffsetForLeaderPartition(
                partition=0, current_leader_epoch=current, leader_epoch=asked
            )
            topic = OffsetForLeaderTopic(topic="t", partitions=[data])
            answer = await client.call(
                ApiKey.OFFSET_FOR_LEADER_EPOCH,
                OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic]),
            )
            row = answer.topics[0].partitions[0]
            return row.error_code, row.leader_epoch, row.end_offset

        assert await ends(0) == (0, 0, 1)
        assert await ends(epoch) == (0, epoch, 2)
        assert await ends(epoch + 1) == (0, -1, -1)
        assert await ends(-1) == (0, -1, -1)
        assert (await ends(0, epoch + 1))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await ends(0, epoch - 1))[0] == ErrorCode.FENCED_LEADER_EPOCH


@in_trio
async def test_unknown_topics_and_sessions_are_refused_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        await fill(client, "t", 1, 10)
        message = fetch_message({"absent": [(0, 0)], "t": [(0, 0), (7, 0)]}, max_wait_ms=9000)
        answer = await client.call(ApiKey.FETCH, message, FETCH_VERSION)
        codes = [[p.error_code for p in topic.partitions] for topic in answer.responses]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [[unknown], [0, unknown]]
        answer = await client.call(ApiKey.FETCH, message)  # by ids, which are zero here
        assert {p.error_code for t in answer.responses for p in t.partitions} == {
            ErrorCode.UNKNOWN_TOPIC_ID
        }
        answer = await client.call(ApiKey.FETCH, FetchRequest(session_id=5, session_epoch=2))
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        answer = await client.call(ApiKey.FETCH, FetchRequest(max_wait_ms=9000, min_bytes=1))
        assert answer.responses == []


async def offset_of(
    client: RawClient, timestamp: int, version: int | None = None, topic: str = "t"
) -> tuple[int, int, int]:
    data = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    message = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[data])]
    )
    answer = await client.call(ApiKey.LIST_OFFSETS, message, version)
    row = answer.topics[0].partitions[0]
    return row.error_code, row.offset, row.timestamp


@in_trio
async def test_list_offsets_knows_every_special_timestamp(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        assert await offset_of(client, offsets.MAX_TIMESTAMP) == (0, -1, -1)
        assert await offset_of(client, 0) == (0, -1, -1)
        for step in (0, 50, 20):
            await client.produce("t", batch_of(b"a", b"b", timestamp=WORLD_BEGAN_MS + step))
        assert await offset_of(client, offsets.LATEST) == (0, 6, -1)
        assert await offset_of(client, offsets.EARLIEST) == (0, 0, -1)
        assert await offset_of(client, offsets.EARLIEST_LOCAL) == (0, 0, -1)
        assert await offset_of(client, offsets.MAX_TIMESTAMP) == (0, 2, WORLD_BEGAN_MS + 50)
        assert await offset_of(client, offsets.LATEST_TIERED) == (0, -1, -1)
        assert await offset_of(client, offsets.EARLIEST_PENDING_UPLOAD) == (0, -1, -1)
        assert await offset_of(client, WORLD_BEGAN_MS + 1) == (0, 2, WORLD_BEGAN_MS + 50)
        assert await offset_of(client, WORLD_BEGAN_MS) == (0, 0, WORLD_BEGAN_MS)
        assert await offset_of(client, 2**63 - 1) == (0, -1, -1)
        for timestamp in (-7, -(2**63)):
            assert (await offset_of(client, timestamp))[0] == ErrorCode.UNSUPPORTED_VERSION
        for timestamp, since in ((-3, 7), (-4, 8), (-5, 9), (-6, 11)):
            refused = await offset_of(client, timestamp, since - 1)
            assert refused[0] == ErrorCode.UNSUPPORTED_VERSION
            assert (await offset_of(client, timestamp, since))[0] == 0
        unknown = await offset_of(client, -1, topic="absent")
        assert unknown[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.slow
@in_trio
async def test_a_lookup_in_a_bomb_lets_others_have_their_turn(tmp_path: Path) -> None:
    """A worker thread searches the million records of the batch."""
    async with serving(tmp_path) as served:
        client, other = await served.connect(), await served.connect()
        await client.create("t")
        bomb = bytearray(record_bomb(1_000_000))
        append_unvalidated(served.worker.replica_manager.by_name("t", 0), bomb)
        answered = 0
        looked = trio.Event()
        async with trio.open_nursery() as nursery:

            async def look() -> None:
                assert await offset_of(client, BOMB_TIMESTAMP + 1) == (0, -1, -1)
                assert await offset_of(client, offsets.MAX_TIMESTAMP) == (0, 0, BOMB_TIMESTAMP)
                looked.set()

            nursery.start_soon(look)
            while not looked.is_set():
                await offset_of(other, offsets.LATEST)
                answered += 1
        # On the event loop, each of the two lookups would let only a few requests through.
        assert answered > 100


@in_trio
async def test_what_a_bomb_decompressed_to_is_not_kept(tmp_path: Path) -> None:
    """Decompressed records (100 MB each) are freed before the next garbage collection."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        batch = batch_of(b"a", timestamp=WORLD_BEGAN_MS)
        header = parse_header(batch, 0)._replace(
            attributes=Codec.GZIP, max_timestamp=WORLD_BEGAN_MS + 10
        )
        cut_short = compress(Codec.GZIP, bytes(1000))[:-10]
        append_unvalidated(
            served.worker.replica_manager.by_name("t", 0), pack_batch(header, cut_short)
        )
        gc.collect()
        before = wire_errors()
        gc.disable()
        try:
            found = await offset_of(client, WORLD_BEGAN_MS + 5)
            assert found[0] == ErrorCode.CORRUPT_MESSAGE
            kept = [error for error in wire_errors() if not any(error is one for one in before)]
        finally:
            gc.enable()
        assert kept == []


def wire_errors() -> list[WireError]:
    return [error for error in gc.get_objects() if type(error) is WireError]


@in_trio
async def test_a_lookup_goes_on_where_headers_claim_what_their_records_do_not_have(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        for codec in (Codec.NONE, Codec.GZIP) * 20:
            batch = batch_of(b"a", timestamp=WORLD_BEGAN_MS, codec=codec)
            header = parse_header(batch, 0)._replace(max_timestamp=WORLD_BEGAN_MS + 10)
            lying = pack_batch(header, bytes(batch[HEADER_BYTES:]))
            append_unvalidated(served.worker.replica_manager.by_name("t", 0), lying)
        await client.produce("t", batch_of(b"b", timestamp=WORLD_BEGAN_MS + 5))
        found = await offset_of(client, WORLD_BEGAN_MS + 5)
        assert found == (0, 40, WORLD_BEGAN_MS + 5)
        assert await offset_of(client, WORLD_BEGAN_MS + 6) == (0, -1, -1)


@pytest.mark.parametrize("count", [3, 5000])
@in_trio
async def test_partitions_are_a_set(tmp_path: Path, count: int) -> None:
    """As in Kafka, a partition is answered at its first position, with its last row."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t", 2)
        await client.create("u")
        for value in (b"a", b"b", b"c"):
            await client.produce("t", batch_of(value), partition=1)
        rows = [(1, 0), (0, 0)] + [(1, 1), (0, 0)] * count + [(1, 2)]
        message = fetch_message({"t": rows, "u": [(0, 0)] * count})
        message.topics.append(message.topics[0])  # a repeated topic
        answer = await client.call(ApiKey.FETCH, message, FETCH_VERSION)
        found = [(t.topic, p.partition_index) for t in answer.responses for p in t.partitions]
        assert found == [("t", 1), ("t", 0), ("u", 0)]
        (record,) = records_of(answer.responses[0].partitions[0])
        assert record.value == b"c"


def _handled(served: Any, message: FetchRequest) -> Any:
    peer = Client(("127.0.0.1", 1), "PLAINTEXT")
    return handle_fetch(served.worker, Request(FETCH_VERSION, "test", peer), message)


MANY = 100 * PIECE_ROWS


@in_trio
async def test_a_fetch_that_ends_half_way_leaves_its_rows_to_its_message(tmp_path: Path) -> None:
    """The dispatcher frees the message in slices; the generator would free its rows at once."""
    async with serving(tmp_path) as served:
        message = fetch_message({"t": [(index, 0) for index in range(MANY)]})
        work = _handled(served, message)
        for _ in range(10):
            step(work)
        work.close()
        left = len(message.topics[0].partitions)
        assert MANY - 11 * PIECE_ROWS <= left < MANY


@in_trio
async def test_what_comes_between_two_pieces_of_a_fetch_ends_its_wait(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        rows = [(i, 0) for i in range(MANY)]
        work = _handled(served, fetch_message({"t": rows}, max_wait_ms=60_000))
        while not served.worker.replica_manager.by_name("t", 0).waiters:
            step(work)
        for _ in range(3):
            step(work)  # the partition was read and had no records
        await client.produce("t", batch_of(b"x"))
        poll = at_once(work)
        assert poll.is_ready
        assert at_once(poll.complete()).responses[0].partitions[0].records.size_bytes


@in_trio
async def test_a_wait_that_is_over_looks_only_at_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read = FetchReader.read

    def counted(self: FetchReader, asked: Any, partition: Any, code: Any) -> Any:
        reads.append(asked.partition)
        return read(self, asked, partition, code)

    monkeypatch.setattr(FetchReader, "read", counted)
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t", 200)
        rows = [(i, 0) for i in range(200)]
        poll = at_once(_handled(served, fetch_message({"t": rows}, max_wait_ms=60_000)))
        assert sorted(reads) == list(range(200))
        reads.clear()
        await client.produce("t", batch_of(b"x"), partition=7)
        assert poll.is_ready
        answer = at_once(poll.complete())
        assert reads == [7]
        partitions = answer.responses[0].partitions
        assert [row.partition_index for row in partitions if row.records] == [7]
        assert [row.partition_index for row in partitions] == list(range(200))


@in_trio
async def test_a_fetch_that_is_dropped_between_two_pieces_watches_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        rows = [(i, 0) for i in range(MANY)]
        work = _handled(served, fetch_message({"t": rows}, max_wait_ms=60_000))
        partition = served.worker.replica_manager.by_name("t", 0)
        while not partition.waiters:
            step(work)
        work.close()
        assert not partition.waiters
        assert not served.worker.long_polls
