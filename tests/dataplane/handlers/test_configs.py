"""Every config in the table has an effect: none is accepted and then ignored."""

import struct
from pathlib import Path

import pytest

from metaquorum.config.registry import TOPIC_KEYS, WORKER_KEYS
from metaquorum.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResource
from metaquorum.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from metaquorum.wire.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from metaquorum.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.test_admin import create, topic
from tests.dataplane.serving import (
    FaultyDisk,
    Simulated,
    batch_of,
    in_trio,
    serving,
    simulated,
)

ROOT = Path(__file__).parents[3]
# Configs with only one value here: batches are stored unchanged, and keys are PEM.
FIXED = {"compression.type", "ssl.keystore.type", "ssl.truststore.type"}


def sources() -> str:
    table = ROOT / "metaquorum" / "config.py"
    paths = (p for name in ("dataplane", "metaquorum", "cli") for p in (ROOT / name).rglob("*.py"))
    return "\n".join(path.read_text() for path in paths if path != table)


def test_every_config_is_read_somewhere() -> None:
    text = sources()
    synonyms = {name for key in TOPIC_KEYS.values() for name, _ in key.synonyms}
    unread = [
        name for name in {*TOPIC_KEYS, *WORKER_KEYS} - synonyms - FIXED if f'"{name}"' not in text
    ]
    assert not unread


@in_trio
async def test_topics_get_as_many_replicas_as_the_default_says(tmp_path: Path) -> None:
    async with serving(tmp_path, default_replication_factor=2) as served:
        client = await served.connect()
        assert (await client.create("one")).error_code == 0  # says 1 itself
        (row,) = await create(client, topic("two", 1, -1))
        assert row.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


@in_trio
async def test_requests_have_the_size_that_the_socket_takes(tmp_path: Path) -> None:
    async with serving(tmp_path, socket_request_max_bytes=2000) as served:
        client = await served.connect()
        await client.create("t")
        await client.produce("t", batch_of(bytes(1500)))
        await client.send(struct.pack(">i", 2001))
        assert await client.is_closed()


@in_trio
async def test_requests_larger_than_all_memory_for_them_pass_one_by_one(tmp_path: Path) -> None:
    async with serving(tmp_path, queued_max_request_bytes=1) as served:
        clients = [await served.connect() for _ in range(3)]
        await clients[0].create("t")
        for client in clients:
            await client.produce("t", batch_of(bytes(500_000)))


@pytest.mark.parametrize("count", [1, 3])
def test_logs_are_synced_after_as_many_messages_as_the_worker_says(
    tmp_path: Path, count: int
) -> None:
    @in_trio
    async def test() -> None:
        disk = FaultyDisk()
        async with serving(tmp_path, disk=disk, log_flush_interval_messages=count) as served:
            client = await served.connect()
            await client.create("t")
            for _ in range(6):
                await client.produce("t", batch_of(b"x"))
            assert sum(path.endswith(".log") for path in disk.synced) == 6 // count

    test()


@simulated(log_roll_ms=10_000)
async def test_segments_begin_anew_by_time_and_by_size(sim: Simulated) -> None:
    client = await sim.connect()
    await client.create("by-worker")
    await client.create("by-topic", segment_ms=10**9)
    clock = sim.runtime.clock
    for step in range(4):
        for name in ("by-worker", "by-topic"):
            now = clock.now_ms()
            await client.produce(name, batch_of(b"%d" % step, timestamp=now))
        await clock.sleep_until(clock.monotonic() + 20)
    counts = {
        name: sim.worker.replica_manager.by_name(name, 0).log.segment_count
        for name in ("by-worker", "by-topic")
    }
    assert counts == {"by-worker": 4, "by-topic": 1}
    assert await client.values("by-worker") == [b"0", b"1", b"2", b"3"]


def test_min_isr_is_that_of_the_first_start_and_another_is_said_not_to_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the metadata, because eligible leader replicas depend on it (KIP-966)."""

    @in_trio
    async def test() -> None:
        async with serving(tmp_path, min_insync_replicas=2) as served:
            client = await served.connect()
            await client.create("t")
            assert served.worker.replica_manager.by_name("t", 0).config.min_insync_replicas == 2
        assert "ignoring" not in caplog.text
        async with serving(tmp_path, min_insync_replicas=3) as served:
            assert served.worker.replica_manager.by_name("t", 0).config.min_insync_replicas == 2
        assert "ignoring min.insync.replicas=3 of this node's own configs" in (caplog.text)

    test()


@pytest.mark.parametrize(
    "digits", ["1" * 5000, "1" * 11, "0" * 5000 + "2", "-1", "\N{SUPERSCRIPT ONE}"]
)
@in_trio
async def test_a_worker_that_is_named_by_any_digits_is_refused_alone(
    tmp_path: Path, digits: str
) -> None:
    """`int` raises for more than 4300 digits, which ended the connection with a traceback."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        asked = [DescribeConfigsResource(resource_type=4, resource_name=digits)]
        told = await client.call(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=asked))
        assert told.results[0].error_code == ErrorCode.INVALID_REQUEST
        replaced = AlterConfigsRequest(
            resources=[AlterConfigsResource(resource_type=4, resource_name=digits)]
        )
        told = await client.call(ApiKey.ALTER_CONFIGS, replaced)
        assert told.responses[0].error_code == ErrorCode.INVALID_REQUEST
        changed = IncrementalAlterConfigsRequest(
            resources=[IncrementalResource(resource_type=4, resource_name=digits)]
        )
        told = await client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, changed)
        assert told.responses[0].error_code == ErrorCode.INVALID_REQUEST
