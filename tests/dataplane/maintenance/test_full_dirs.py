"""A full log directory: what was deleted, or may be, is removed without delay."""

import errno
import logging

import pytest

from metaquorum.client import connect
from metaquorum.client.administration.admin import AdminClient
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.runtime import StorageError
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.test_admin_changes import delete_records
from tests.dataplane.maintenance.test_background_tasks import MIB, log_of, sleep
from tests.dataplane.serving import (
    PRODUCE_VERSION,
    RawClient,
    Simulated,
    batch_of,
    produce_message,
    run_simulated,
    simulated,
)

BIG = 100_000
DAY_MS = 24 * 3600 * 1000
# The delays, and the interval of retention, are longer than the tests wait.
LATE = {
    "log_segment_delete_delay_ms": DAY_MS,
    "log_retention_check_interval_ms": DAY_MS,
}


def fill(sim: Simulated, room_bytes: int = 0) -> None:
    storage = sim.on_machine.machine.storage
    storage.capacity_bytes = storage.used_bytes() + room_bytes


async def is_refused(client: RawClient, topic: str) -> bool:
    message = produce_message(topic, batch_of(bytes(BIG)))
    answer = await client.call(ApiKey.PRODUCE, message, PRODUCE_VERSION)
    code = answer.responses[0].partition_responses[0].error_code
    assert code in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)
    return bool(code != ErrorCode.NONE)


@pytest.mark.parametrize(
    ("deletion", "room_bytes"),
    [
        ("records", 0),
        ("records", 40_000),
        ("records before", 0),
        ("retention", 0),
        ("topic", 40_000),  # without any room, the metadata log does not take the deletion
    ],
)
@simulated(**LATE)
async def test_what_is_deleted_in_a_full_directory_makes_room_at_once(
    sim: Simulated, deletion: str, room_bytes: int
) -> None:
    client = await sim.connect()
    await client.create("t", retention_ms=-1)
    await client.create(
        "old",
        segment_bytes=MIB,
        retention_ms=-1,
        retention_bytes=MIB if deletion == "retention" else -1,
    )
    assert not await is_refused(client, "t")
    for _ in range(25):
        await client.produce("old", batch_of(bytes(BIG)))
    if deletion == "records before":
        assert (await delete_records(client, "old", 20))[0] == ErrorCode.NONE
    fill(sim, room_bytes)
    assert await is_refused(client, "t")
    if deletion == "records":
        assert await is_refused(client, "old")
        assert (await delete_records(client, "old", 20))[0] == ErrorCode.NONE
    elif deletion == "topic":
        await client.delete("old")
    await sleep(sim, 2)
    assert not await is_refused(client, "t")
    if deletion != "topic":
        assert not await is_refused(client, "old")
        assert log_of(sim, "old").log_start_offset > 0


@simulated(**LATE)
async def test_a_directory_with_room_keeps_its_delays(sim: Simulated) -> None:
    client = await sim.connect()
    await client.create("t", segment_bytes=MIB, retention_ms=-1)
    for _ in range(25):
        await client.produce("t", batch_of(bytes(BIG)))
    fill(sim)
    assert await is_refused(client, "t")
    sim.on_machine.machine.storage.capacity_bytes = None
    await sleep(sim, 2)
    assert not await is_refused(client, "t")
    assert (await delete_records(client, "t", 20))[0] == ErrorCode.NONE
    await sleep(sim, 100)
    names = sim.worker.disk.list(log_of(sim, "t").folder)
    assert any(name.endswith(".log.deleted") for name in names)


def test_a_directory_that_stays_full_keeps_nothing_busy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    passes = 0
    spans = PartitionLog.segment_spans

    def counted(log: PartitionLog) -> object:
        nonlocal passes
        passes += 1
        return spans(log)

    async def scenario(sim: Simulated) -> None:
        client = await sim.connect()
        await client.create("t", retention_ms=-1)
        assert not await is_refused(client, "t")
        monkeypatch.setattr(PartitionLog, "segment_spans", counted)
        fill(sim)
        for _ in range(300):
            assert await is_refused(client, "t")
            await sleep(sim, 1)
        # Again at once when it is full for the second time.
        before = passes
        sim.on_machine.machine.storage.capacity_bytes = None
        await sleep(sim, 65)
        fill(sim)
        assert await is_refused(client, "t")
        await sleep(sim, 2)
        assert passes > before

    with caplog.at_level(logging.INFO):
        run_simulated(scenario, **LATE)
    assert 2 <= passes <= 20
    assert not [record for record in caplog.records if "were freed" in record.getMessage()]


@simulated(**LATE)
async def test_a_directory_is_full_until_a_file_can_be_written_there(sim: Simulated) -> None:
    """The quota of a user may be used up, though the file system has room."""
    client = await sim.connect()
    await client.create("t")
    faults = sim.on_machine.machine.faults
    faults.refusing = lambda path: errno.EDQUOT if path.endswith((".log", ".tmp")) else 0
    assert await is_refused(client, "t")
    log_dirs = sim.worker.replica_manager.log_dirs
    await sleep(sim, 5)
    assert list(log_dirs.full) == list(log_dirs.online)
    faults.refusing = None
    await sleep(sim, 5)
    assert not log_dirs.full


@simulated(**LATE)
async def test_health_shows_a_full_directory_until_it_has_room(sim: Simulated) -> None:
    client = await sim.connect()
    await client.create("t", retention_ms=-1)
    node = sim.on_machine.node
    assert node is not None
    machine = sim.on_machine.machine
    address = f"{machine.name}:9092"
    async with connect(address, timeout_s=60, runtime=sim.runtime) as known:
        admin = AdminClient(known)

        async def warnings() -> list[str]:
            found = await admin.describe_cluster_health(await admin.topics())
            assert found.is_healthy is not bool(found.warnings)
            assert len(found.warnings) == found.full_log_dirs + found.offline_log_dirs
            return list(found.warnings)

        assert await warnings() == []
        fill(sim, 40_000)  # no append was refused yet
        (warning,) = await warnings()
        place = f"log directory {node.config.data_dir} of worker {node.config.node_id}"
        left = machine.storage.free_bytes()
        assert warning.startswith(f"{place} is full: {left:,} bytes are left")
        assert "(1,048,588)" in warning
        assert await is_refused(client, "t")
        assert len(await warnings()) == 1
        machine.storage.capacity_bytes = None
        await sleep(sim, 2)
        assert await warnings() == []
        # The quota of the user is used up, but not the file system.
        full = (".log", ".tmp")
        machine.faults.refusing = lambda path: errno.EDQUOT if path.endswith(full) else 0
        assert await is_refused(client, "t")
        (warning,) = await warnings()
        assert warning.startswith(f"{place} is full: 0 bytes are left")


@simulated(log_dirs=["/a", "/b"], **LATE)
async def test_health_shows_a_directory_that_is_offline(sim: Simulated) -> None:
    machine = sim.on_machine.machine
    async with connect(f"{machine.name}:9092", timeout_s=60, runtime=sim.runtime) as known:
        admin = AdminClient(known)
        log_dirs = sim.worker.replica_manager.log_dirs
        (failing,) = [each for each in log_dirs if each.path == "/b"]
        log_dirs.fail(failing, StorageError("the device fails"))
        found = await admin.describe_cluster_health(await admin.topics())
        assert not found.is_healthy
        assert (found.full_log_dirs, found.offline_log_dirs) == (0, 1)
        (warning,) = found.warnings
        assert warning.startswith("log directory /b of worker ")
        assert "is offline" in warning
