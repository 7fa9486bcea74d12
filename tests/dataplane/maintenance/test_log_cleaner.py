"""Compacted topics, and topics with a compression type, as clients see them."""

import errno
import logging

import pytest

from metaquorum.dataplane.log.segments.markers import MARKER_BYTES
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.records.batches import HEADER_BYTES, pack_batch, parse_header
from metaquorum.wire.records.compression import Codec
from metaquorum.wire.records.records import Record, batches, encode_batch
from tests.dataplane.maintenance.test_background_tasks import log_of, sleep
from tests.dataplane.serving import (
    WORLD_BEGAN_MS,
    RawClient,
    Simulated,
    append_unvalidated,
    records_of,
    run_simulated,
    simulated,
)

COMPACTED = {"cleanup_policy": "compact", "internal_segment_bytes": 2000, "segment_ms": 10_000_000}


def batch(
    *records: tuple[bytes | None, bytes | None],
    codec: Codec = Codec.NONE,
    timestamp: int = WORLD_BEGAN_MS,
) -> bytearray:
    rows = [Record(i, timestamp + i, key, value) for i, (key, value) in enumerate(records)]
    return encode_batch(rows, codec=codec)


async def fill(client: RawClient, topic: str, count: int = 60, keys: int = 4) -> None:
    for number in range(count):
        await client.produce(topic, batch((b"k%d" % (number % keys), b"%d" % number + b"." * 50)))


async def records(client: RawClient, topic: str) -> list[Record]:
    found: list[Record] = []
    offset = 0
    while True:
        row = await client.fetch(topic, offset)
        assert row.error_code == 0, row
        headers = [header for _, header in batches(row.records or b"")]
        if not headers:
            return found
        found += [record for record in records_of(row) if record.offset >= offset]
        offset = headers[-1].next_offset


@simulated()
async def test_a_compacted_topic_keeps_the_last_record_of_each_key(sim: Simulated) -> None:
    client = await sim.connect()
    made = await client.create("t", **COMPACTED, delete_retention_ms=100_000)
    assert made.error_code == 0
    await fill(client, "t")
    await client.produce("t", batch((b"k1", None)))
    await fill(client, "t", 40, keys=1)
    before = {record.offset: record for record in await records(client, "t")}
    await sleep(sim, 40)
    log = log_of(sim, "t")
    after = await records(client, "t")
    assert log.log_start_offset == 0
    assert len(after) < len(before)
    assert all(before[record.offset] == record for record in after)
    last = {record.key: record.value for record in before.values()}
    assert {record.key: record.value for record in after} == last
    assert last[b"k1"] is None
    await sleep(sim, 100)
    await fill(client, "t", 60, keys=1)
    await sleep(sim, 40)
    assert {record.key for record in await records(client, "t")} == {b"k0", b"k2", b"k3"}


@simulated()
async def test_a_tombstone_with_the_oldest_timestamp_there_is_can_be_read_once_it_was_cleaned(
    sim: Simulated,
) -> None:
    client = await sim.connect()
    await client.create("t", **COMPACTED)
    oldest = WORLD_BEGAN_MS + 60_000 - (1 << 63)  # message.timestamp.before.max.ms ago
    await client.produce("t", batch((b"gone", None), timestamp=oldest))
    await fill(client, "t")
    await sleep(sim, 60)
    found = await records(client, "t")
    assert len(found) < 40
    assert (found[0].key, found[0].value) == (b"gone", None)
    row = await client.fetch("t", 0)
    (_, header), *_ = batches(row.records or b"")
    assert header.delete_horizon_ms is not None


@simulated()
async def test_a_topic_becomes_compacted_when_its_policy_says_so(sim: Simulated) -> None:
    client = await sim.connect()
    await client.create("t", internal_segment_bytes=2000, retention_ms=-1)
    await client.produce("t", batch((None, b"keyless")))
    await fill(client, "t")
    await sleep(sim, 40)
    assert len(await records(client, "t")) == 61
    partition = sim.worker.replica_manager.by_name("t", 0)
    assert not partition.config.compacts
    await alter(client, "t", "cleanup.policy", "compact")
    await sleep(sim, 40)
    assert partition.config.compacts
    assert len(await records(client, "t")) < 40
    assert (await records(client, "t"))[0].key is not None


async def alter(client: RawClient, topic: str, name: str, value: str) -> None:
    from metaquorum.wire.messages import incremental_alter_configs as iac
    from metaquorum.wire.protocol.apis import ApiKey

    config = iac.AlterableConfig(name=name, config_operation=0, value=value)
    resource = iac.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[config])
    asked = iac.IncrementalAlterConfigsRequest(resources=[resource])
    answer = await client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, asked)
    assert answer.responses[0].error_code == 0, answer


@simulated()
async def test_an_open_transaction_ends_the_part_that_is_compacted(sim: Simulated) -> None:
    client = await sim.connect()
    await client.create("t", **COMPACTED)
    log = log_of(sim, "t")
    partition = sim.worker.replica_manager.by_name("t", 0)
    open_ = encode_batch(
        [Record(0, WORLD_BEGAN_MS, b"k0", b"open")],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    log.append(open_, parse_header(open_), partition.leader_epoch, 0)
    partition.appended(len(open_))
    await fill(client, "t")
    await sleep(sim, 60)
    assert partition.last_stable_offset == 0
    assert len(await records(client, "t")) == 61
    log.append_marker(TransactionMarker(7, 0, 0, False), partition.leader_epoch, 0)
    partition.appended(MARKER_BYTES)
    await fill(client, "t", 60)
    await sleep(sim, 60)
    assert partition.last_stable_offset == log.log_end_offset
    assert len(await records(client, "t")) < 60


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@simulated()
async def test_a_record_without_a_key_is_refused_and_named(sim: Simulated, codec: Codec) -> None:
    client = await sim.connect()
    await client.create("t", **COMPACTED)
    rows = (b"k", b"v"), (None, b"v"), (b"", b"v"), (None, None)
    row = await client.produce("t", batch(*rows, codec=codec), error=ErrorCode.INVALID_RECORD)
    text = "Compacted topic cannot accept message without key in topic partition t-0"
    assert [(e.batch_index, e.batch_index_error_message) for e in row.record_errors] == [
        (1, text),
        (3, text),
    ]
    assert "2 record errors in total" in row.error_message
    assert await records(client, "t") == []
    await client.produce("t", batch((b"k", b"v"), (b"", b"v"), codec=codec))
    assert len(await records(client, "t")) == 2


@pytest.mark.parametrize("count", [1, 3])
@simulated()
async def test_a_compressed_batch_whose_count_lies_is_refused(sim: Simulated, count: int) -> None:
    client = await sim.connect()
    await client.create("t", **COMPACTED)
    sound = batch((b"k", b"v"), (b"j", b"v"), codec=Codec.GZIP)
    header = parse_header(sound)._replace(record_count=count, last_offset_delta=count - 1)
    lying = pack_batch(header, bytes(sound[HEADER_BYTES:]))
    await client.produce("t", lying, error=ErrorCode.INVALID_RECORD)
    assert await records(client, "t") == []


@pytest.mark.parametrize("asked", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", list(Codec))
@simulated()
async def test_batches_are_stored_in_the_codec_of_the_topic(
    sim: Simulated, sent: Codec, asked: str
) -> None:
    client = await sim.connect()
    await client.create("t", compression_type=asked)
    rows = [(None, b"v%d" % number * 20) for number in range(10)]
    for _ in range(2):
        answer = await client.produce("t", batch(*rows, codec=sent))
    assert answer.base_offset == 10
    (_, first), (_, second) = batches((await client.fetch("t")).records)
    assert first.codec.name == ("NONE" if asked == "uncompressed" else asked.upper())
    assert second.base_offset == 10
    got = await records(client, "t")
    assert [(r.key, r.value) for r in got] == rows * 2
    assert [r.timestamp_ms - WORLD_BEGAN_MS for r in got] == [*range(10)] * 2


@simulated()
async def test_a_batch_that_is_too_large_without_compression_is_refused(sim: Simulated) -> None:
    client = await sim.connect()
    await client.create("t", compression_type="uncompressed", max_message_bytes=10_000)
    large = batch((b"k", bytes(20_000)), codec=Codec.GZIP)
    assert len(large) < 1000
    await client.produce("t", large, error=ErrorCode.MESSAGE_TOO_LARGE)


def test_a_batch_that_cannot_be_opened_stops_the_cleaning_of_its_partition_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(sim: Simulated) -> None:
        client = await sim.connect()
        await client.create("bad", internal_segment_bytes=2000, retention_ms=-1)
        await client.create("good", **COMPACTED)
        sound = batch((b"k", b"v"), codec=Codec.GZIP)
        poison = pack_batch(parse_header(sound), bytes(sound[HEADER_BYTES:-5]))
        append_unvalidated(sim.worker.replica_manager.by_name("bad", 0), poison)
        for topic in ("bad", "good"):
            await fill(client, topic)
        await alter(client, "bad", "cleanup.policy", "compact")
        await sleep(sim, 60)
        assert len(await records(client, "good")) < 40
        assert log_of(sim, "bad").log_start_offset == 0
        assert log_of(sim, "bad").size_bytes > 60 * 50
        statistics = sim.worker.cleaner
        assert statistics.uncleanable_partitions_count == 1
        assert statistics.max_clean_time_secs >= 0
        await client.produce("bad", batch((b"k", b"v")))

    with caplog.at_level(logging.ERROR):
        run_simulated(scenario)
    (told,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert told.startswith(
        "bad-0: the log is uncleanable until the node restarts, but still served"
    )


def test_a_log_that_cannot_be_cleaned_on_a_full_disk_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log with the most to clean comes first, but not again and again."""

    async def scenario(sim: Simulated) -> None:
        client = await sim.connect()
        faults = sim.on_machine.machine.faults
        for topic in ("full", "other"):
            await client.create(topic, **COMPACTED)
            await fill(client, topic, 100 if topic == "full" else 60)
        faults.refusing = lambda path: (
            errno.ENOSPC if "/full-0/" in path and ".cleaned" in path else 0
        )
        await sleep(sim, 100)
        assert len(await records(client, "other")) < 40
        assert len(await records(client, "full")) == 100
        lines = [r.getMessage() for r in caplog.records if "cannot clean" in r.getMessage()]
        assert len(lines) == 1, lines
        faults.refusing = None
        await sleep(sim, 130)
        assert len(await records(client, "full")) < 80

    with caplog.at_level(logging.WARNING):
        run_simulated(scenario, log_cleaner_backoff_ms=100)


@pytest.mark.parametrize("refused", [".log.cleaned", ".index.cleaned", "/t-0"])
def test_a_log_that_no_descriptor_was_left_to_clean_is_cleaned_later(
    refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The new file, its index, or the folder with the .swap cannot be opened."""

    async def scenario(sim: Simulated) -> None:
        client = await sim.connect()
        faults = sim.on_machine.machine.faults
        await client.create("t", **COMPACTED)
        await fill(client, "t")
        cleans = False

        def refusing(path: str) -> int:
            nonlocal cleans
            cleans |= path.endswith(".log.cleaned")
            return errno.EMFILE if cleans and path.endswith(refused) else 0

        faults.refusing = refusing
        await sleep(sim, 60)
        assert any("cannot clean the log" in r.getMessage() for r in caplog.records)
        assert sim.worker.cleaner.uncleanable_partitions_count == 0
        faults.refusing = None
        await sleep(sim, 130)
        assert len(await records(client, "t")) < 40

    with caplog.at_level(logging.WARNING):
        run_simulated(scenario, log_cleaner_backoff_ms=100)
    assert not [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


@simulated()
async def test_what_is_younger_than_min_compaction_lag_ms_stays(sim: Simulated) -> None:
    client = await sim.connect()
    await client.create("t", **COMPACTED, min_compaction_lag_ms=300_000)
    await fill(client, "t")
    await sleep(sim, 250)
    assert len(await records(client, "t")) == 60
    await sleep(sim, 100)
    assert len(await records(client, "t")) < 40


@simulated()
async def test_what_is_older_than_max_compaction_lag_ms_is_compacted_at_any_dirty_ratio(
    sim: Simulated,
) -> None:
    client = await sim.connect()
    await client.create(
        "t", **COMPACTED, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=300_000
    )
    await fill(client, "t")
    await sleep(sim, 250)
    assert len(await records(client, "t")) == 60
    assert sim.worker.cleaner.max_compaction_delay_secs == 0
    await sleep(sim, 100)
    assert len(await records(client, "t")) < 40


@simulated()
async def test_lags_that_contradict_each_other_are_refused(sim: Simulated) -> None:
    client = await sim.connect()
    row = await client.create("t", min_compaction_lag_ms=2, max_compaction_lag_ms=1)
    assert row.error_code == ErrorCode.INVALID_CONFIG
    assert "min.compaction.lag.ms (2) > max.compaction.lag.ms (1)" in row.error_message


@simulated(log_cleaner_io_max_bytes_per_second=100)
async def test_the_cleaner_is_as_slow_as_it_is_told_to_be(sim: Simulated) -> None:
    client = await sim.connect()
    await client.create("t", **COMPACTED)
    await fill(client, "t", 100)
    await sleep(sim, 60)
    assert len(await records(client, "t")) == 100
    await sleep(sim, 400)
    assert len(await records(client, "t")) < 40


@simulated(log_cleaner_enable="false")
async def test_nothing_is_compacted_where_the_cleaner_is_off(sim: Simulated) -> None:
    client = await sim.connect()
    await client.create("t", **COMPACTED)
    await fill(client, "t")
    await sleep(sim, 300)
    assert len(await records(client, "t")) == 60


@simulated()
async def test_compact_and_delete_together_do_both(sim: Simulated) -> None:
    client = await sim.connect()
    policy = {**COMPACTED, "cleanup_policy": "compact,delete"}
    await client.create("t", **policy, retention_ms=100_000)
    await fill(client, "t")
    await sleep(sim, 40)
    assert 4 <= len(await records(client, "t")) < 40
    assert log_of(sim, "t").log_start_offset == 0
    await sleep(sim, 400)
    assert log_of(sim, "t").log_start_offset == 60
