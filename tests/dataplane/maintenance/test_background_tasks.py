"""Background tasks of a worker: retention, flushes, removals, and their intervals."""

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from metaquorum.dataplane.log.dirs import log_dir
from metaquorum.runtime.system import RealDisk
from metaquorum.wire.primitives.errors import ErrorCode
from tests.dataplane.handlers.test_fetch import offset_of
from tests.dataplane.serving import (
    WORLD_BEGAN_MS,
    FaultyDisk,
    RawClient,
    Simulated,
    batch_of,
    in_trio,
    run_simulated,
    serving,
    simulated,
)

MIB = 1 << 20


async def sleep(sim: Simulated, seconds: float) -> None:
    clock = sim.runtime.clock
    await clock.sleep_until(clock.monotonic() + seconds)


async def start_of(client: RawClient, topic: str) -> int:
    row = await client.fetch(topic, 10**9)
    assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    return (await offset_of(client, -2, topic=topic))[1]


def log_of(sim: Simulated, topic: str) -> Any:
    return sim.worker.replica_manager.by_name(topic, 0).log


@simulated(log_retention_check_interval_ms=10_000)
async def test_retention_by_time_removes_what_is_old_even_of_the_only_segment(
    sim: Simulated,
) -> None:
    client = await sim.connect()
    await client.create("t", retention_ms=100_000)
    await client.create("kept", retention_ms=-1)
    for topic in ("t", "kept"):
        await client.produce(topic, batch_of(b"a", b"b"))
    await sleep(sim, 90)
    assert await client.values("t") == [b"a", b"b"]
    await sleep(sim, 30)
    assert await start_of(client, "t") == 2
    assert await client.values("t", 2) == []
    assert (await client.fetch("t", 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    await client.produce("t", batch_of(b"c", timestamp=WORLD_BEGAN_MS + 100_000))
    assert await client.values("t", 2) == [b"c"]
    assert await client.values("kept") == [b"a", b"b"]


@simulated()
async def test_retention_by_size_keeps_at_least_that_much(sim: Simulated) -> None:
    client = await sim.connect()
    await client.create("t", segment_bytes=MIB, retention_bytes=2 * MIB, retention_ms=-1)
    for _ in range(60):
        await client.produce("t", batch_of(bytes(100_000)))
    log = log_of(sim, "t")
    assert log.segment_count == 6
    await sleep(sim, 301)
    assert 2 * MIB <= log.size_bytes < 3 * MIB
    assert await start_of(client, "t") == log.log_start_offset > 0
    assert len(await client.values("t", log.log_start_offset)) == 60 - log.log_start_offset


@simulated(log_retention_check_interval_ms=10_000)
async def test_retention_takes_its_turn_among_appends_that_follow_each_other(
    sim: Simulated,
) -> None:
    client = await sim.connect()
    await client.create("t", retention_ms=1000)
    await client.produce("t", batch_of(b"a", b"b"))
    partition = sim.worker.replica_manager.by_name("t", 0)
    for _ in range(40):
        async with partition.appending:
            await sleep(sim, 0.5)
    assert partition.log.log_start_offset == 2


@simulated(log_retention_check_interval_ms=10_000)
async def test_an_append_that_does_not_end_holds_retention_of_others_up_for_a_second(
    sim: Simulated,
) -> None:
    client = await sim.connect()
    for topic in ("a", "b", "c"):
        await client.create(topic, retention_ms=1000)
        await client.produce(topic, batch_of(b"a", b"b"))
    async with sim.worker.replica_manager.by_name("b", 0).appending:
        await sleep(sim, 15)
        assert [log_of(sim, topic).log_start_offset for topic in ("a", "b", "c")] == [2, 0, 2]
    await sleep(sim, 10)
    assert log_of(sim, "b").log_start_offset == 2


@simulated(log_retention_check_interval_ms=10_000)
async def test_retention_leaves_a_topic_alone_that_is_deleted_while_it_waits(
    sim: Simulated,
) -> None:
    client = await sim.connect()
    await client.create("t", retention_ms=1000)
    await client.produce("t", batch_of(b"a", b"b"))
    partition = sim.worker.replica_manager.by_name("t", 0)
    async with trio.open_nursery() as nursery:
        await partition.appending.acquire()
        while not partition.appending.statistics().tasks_waiting:
            await sleep(sim, 0.1)
        nursery.start_soon(client.delete, "t")
        while partition.is_hosted:
            await sleep(sim, 0.01)
        partition.appending.release()
    assert partition.log.log_start_offset == 0


@simulated(log_retention_check_interval_ms=10_000)
async def test_retention_reads_the_clock_again_for_each_log(sim: Simulated) -> None:
    """A clock that was wrong when the pass began, and was set right meanwhile, deletes nothing."""
    client = await sim.connect()
    for topic in ("a", "b"):
        await client.create(topic, retention_ms=100_000)
        await client.produce(topic, batch_of(b"a", b"b"))
    clock = sim.on_machine.machine.clock
    partition = sim.worker.replica_manager.by_name("a", 0)
    await partition.appending.acquire()
    clock.jump(3000)
    while not partition.appending.statistics().tasks_waiting:
        await sleep(sim, 0.1)
    clock.jump(-3000)
    partition.appending.release()
    await sleep(sim, 15)
    assert [log_of(sim, topic).log_start_offset for topic in ("a", "b")] == [0, 0]


def test_a_topic_that_was_never_written_to_is_looked_at_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first append makes its folder: there are no files to read before that."""

    async def scenario(sim: Simulated) -> None:
        client = await sim.connect()
        await client.create("t", partitions=2, retention_ms=1000)
        await sleep(sim, 20)
        assert [record.getMessage() for record in caplog.records] == []
        await client.produce("t", batch_of(b"a"))
        assert await client.values("t") == [b"a"]

    with caplog.at_level(logging.WARNING):
        run_simulated(scenario, log_retention_check_interval_ms=5_000)


@simulated()
async def test_a_policy_of_nothing_keeps_everything(sim: Simulated) -> None:
    client = await sim.connect()
    made = await client.create("t", retention_ms=1000, cleanup_policy="")
    assert made.error_code == 0
    await client.produce("t", batch_of(b"a"))
    await sleep(sim, 400)
    assert await client.values("t") == [b"a"]


@pytest.mark.parametrize(("delay_s", "jump_s"), [(5, 0), (200, 0), (5, -3000), (5, 3000)])
@simulated(log_retention_check_interval_ms=100)
async def test_files_of_old_segments_go_after_their_delay_and_not_before(
    sim: Simulated, delay_s: int, jump_s: float
) -> None:
    """The delay of segments may be longer than that of whole logs, and the clock may be set."""
    client = await sim.connect()
    await client.create(
        "t",
        segment_bytes=MIB,
        retention_bytes=MIB,
        retention_ms=-1,
        file_delete_delay_ms=delay_s * 1000,
    )
    for _ in range(30):
        await client.produce("t", batch_of(bytes(100_000)))
    folder = log_of(sim, "t").folder

    def waiting() -> int:
        names = sim.worker.disk.list(folder)
        return sum(name.endswith(".log.deleted") for name in names)

    while not waiting():
        await sleep(sim, 0.1)
    began = sim.now
    sim.on_machine.machine.clock.jump(jump_s)
    while waiting():
        assert sim.now - began < delay_s + 5
        await sleep(sim, 0.1)
    assert sim.now - began >= delay_s - 1


@simulated(log_segment_delete_delay_ms=20_000)
async def test_a_deleted_topics_folder_goes_after_its_delay_and_not_before(sim: Simulated) -> None:
    client = await sim.connect()
    assert sim.on_machine.node is not None
    disk, path = sim.worker.disk, sim.on_machine.node.config.data_dir
    for turn in range(3):
        await client.create("t")
        await client.produce("t", batch_of(b"x"))
        await sleep(sim, 7.3 * turn)  # anywhere within the period
        await client.delete("t")
        began = sim.now
        while any(name.endswith("-delete") for name in disk.list(path)):
            assert sim.now - began < 25
            await sleep(sim, 0.1)
        assert sim.now - began >= 19


@in_trio
async def test_nothing_of_a_deleted_topic_stays_open(tmp_path: Path) -> None:
    """Open files would keep the deleted bytes on the disk for as long as the node runs."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t", 5)
        for partition in range(5):
            await client.produce("t", batch_of(b"x"), partition=partition)
        assert any("/t-0/" in name for name in open_files(tmp_path))
        await client.delete("t")
        assert not [name for name in open_files(tmp_path) if "/t-" in name]


def open_files(below: Path) -> list[str]:
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return [name for name in names if name.startswith(str(below))]


@simulated()
async def test_flush_ms_bounds_what_a_loss_of_power_can_take(sim: Simulated) -> None:
    client = await sim.connect()
    await client.create("soon", flush_ms=5000)
    await client.create("never")
    for topic in ("soon", "never"):
        await client.produce(topic, batch_of(b"a", b"b"))
    await sleep(sim, 3)
    assert log_of(sim, "soon").unflushed_records == 2
    await sleep(sim, 4)
    assert log_of(sim, "soon").unflushed_records == 0
    assert log_of(sim, "never").unflushed_records == 2


def test_periods_of_nothing_do_not_keep_the_node_busy() -> None:
    slicer = 0

    class TimeSlicer(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal slicer
            slicer += 1

    async def scenario(sim: Simulated) -> None:
        client = await sim.connect()
        await client.create("t", 50)
        trio.lowlevel.add_instrument(TimeSlicer())
        await sleep(sim, 10)

    run_simulated(
        scenario,
        log_retention_check_interval_ms=1,
        log_flush_offset_checkpoint_interval_ms=0,
        log_flush_scheduler_interval_ms=1,
        log_segment_delete_delay_ms=0,
        connections_max_idle_ms=60_000,
    )
    assert slicer < 20_000


class Counting(RealDisk):
    """Disk that counts concurrent recoveries of logs, in worker threads."""

    def __init__(self) -> None:
        self.running = self.peak = 0

    async def run(self, function: Any) -> Any:
        if getattr(function, "func", None) is not log_dir._call_all:  # another duty of the node
            return await super().run(function)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            return await super().run(function)
        finally:
            self.running -= 1


@pytest.mark.slow
@in_trio
async def test_as_many_logs_are_recovered_side_by_side_as_is_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t", 200)
        for partition in range(200):
            await client.produce("t", batch_of(b"x"), partition=partition)
    for threads in (1, 3):
        (tmp_path / ".kafka_cleanshutdown").unlink()
        disk = Counting()
        async with serving(tmp_path, disk=disk, num_recovery_threads_per_data_dir=threads):
            assert disk.peak == threads


@in_trio
async def test_an_upkeep_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk, log_flush_offset_checkpoint_interval_ms=20) as served:
        client = await served.connect()
        await client.create("t")
        disk.fail("write", "checkpoint", errno.ENOSPC)
        while len(disk.refused) < 3:
            await trio.sleep(0.01)
        disk.faults.clear()
        path = str(tmp_path / "recovery-point-offset-checkpoint.tmp")
        before = disk.synced.count(path)
        while disk.synced.count(path) == before:
            await trio.sleep(0.01)
        await client.produce("t", batch_of(b"x"))


def test_a_folder_that_cannot_be_removed_is_reported_once_and_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(sim: Simulated) -> None:
        client = await sim.connect()
        assert sim.on_machine.node is not None
        disk, path = sim.worker.disk, sim.on_machine.node.config.data_dir
        faults = sim.on_machine.machine.faults
        tries: list[float] = []

        def refuse(what: str) -> int:
            if "/bad-0." not in what or "-delete" not in what or what.endswith("-delete"):
                return 0
            tries.append(sim.now)
            return errno.EBUSY

        def left() -> set[str]:
            names = [name for name in disk.list(path) if name.endswith("-delete")]
            return {name.partition("-")[0] for name in names}

        for topic in ("bad", "with", "later"):
            await client.create(topic)
            await client.produce(topic, batch_of(b"x"))
        faults.refusing = refuse
        await client.delete("bad")
        await client.delete("with")
        await sleep(sim, 30)
        await client.delete("later")
        await sleep(sim, 100)
        assert left() == {"bad"}
        lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
        assert len(lines) == 1, lines
        assert "cannot remove the folder bad-0." in lines[0]
        assert 5 <= len(tries) <= 10
        faults.refusing = None
        await sleep(sim, 150)
        assert left() == set()

    with caplog.at_level(logging.WARNING):
        run_simulated(scenario, log_segment_delete_delay_ms=1000)
