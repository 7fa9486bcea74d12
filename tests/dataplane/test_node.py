"""A node whose metadata cannot be written, and one that is stopped while it works."""

import errno
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from metaquorum.dataplane.node import Node, NodeError
from metaquorum.runtime import Runtime
from metaquorum.runtime.system import real_runtime
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.serving import (
    FaultyDisk,
    RawClient,
    batch_of,
    config,
    fetch_message,
    in_trio,
    serving,
)
from tests.nodes import needs_ipv6


@in_trio
async def test_a_full_disk_refuses_changes_of_metadata_until_there_is_room(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await client.create("before")
        disk.fail("write", "/metadata/", errno.ENOSPC)
        row = await client.create("t")
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "full" in row.error_message
        assert str(tmp_path) not in row.error_message
        await client.produce("before", batch_of(b"x"))
        disk.faults.clear()
        row = await client.create("t")
        assert row.error_code == 0
        await client.produce("t", batch_of(b"x"))
    async with serving(tmp_path) as served:
        client = await served.connect()
        assert await client.values("t") == [b"x"]


@in_trio
async def test_metadata_that_cannot_be_synced_ends_the_node_with_a_sentence(tmp_path: Path) -> None:
    disk = FaultyDisk()
    real = real_runtime()
    node = Node(config(tmp_path), Runtime(real.clock, real.network, disk, real.random))
    ready = trio.Event()

    async def change() -> None:
        await ready.wait()
        client = RawClient(await real.network.connect(*node.address))
        disk.fail("sync", "/metadata/", errno.EIO)
        try:
            await client.create("t")
        except (EOFError, OSError):
            pass
        client.connection.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        with pytest.raises(NodeError, match="/metadata/") as caught:
            await node.run(lambda _: ready.set())
    assert "\n" not in str(caught.value)


def test_a_stop_says_what_it_waits_for_and_leaves_a_clean_mark(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @in_trio
    async def test() -> None:
        async with serving(tmp_path) as served:
            client, poller = await served.connect(), await served.connect()
            await client.create("t")
            await client.produce("t", batch_of(b"x"))
            await poller.ask(ApiKey.FETCH, fetch_message({"t": [(0, 1)]}, max_wait_ms=60_000), 12)
            while not served.worker.long_polls:
                await trio.sleep(0.001)
            served.node.stop()
            answer = await poller.answer(ApiKey.FETCH, 12)
            assert answer.responses[0].partitions[0].error_code == 0
            assert await poller.is_closed()
        assert (tmp_path / ".kafka_cleanshutdown").exists()

    with caplog.at_level(logging.INFO, logger="metaquorum.dataplane"):
        test()
    assert any("stopping" in record.getMessage() for record in caplog.records)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        (("no host", 0), "'no host' must be an address or host name of this machine"),
        (("192.0.2.1", 0), "cannot listen on 192.0.2.1:0: Cannot assign requested address; this"),
        pytest.param(
            ("2001:db8::1", 9092), "cannot listen on [2001:db8::1]:9092: ", marks=needs_ipv6
        ),
        pytest.param(
            ("fe80::1", 0),
            "add the interface to a link-local address, as in fe80::1%eth0",
            marks=needs_ipv6,
        ),
    ],
)
def test_where_it_cannot_listen_a_node_says_what_to_do(
    tmp_path: Path, listen: tuple[str, int], said: str
) -> None:
    node = Node(replace(config(tmp_path), listen=listen), real_runtime())
    with pytest.raises(NodeError) as failed:
        trio.run(node.run)
    assert said in str(failed.value)
    assert str(failed.value).endswith("choose another --listen")
