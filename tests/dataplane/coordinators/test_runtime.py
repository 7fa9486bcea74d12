"""The runtime of coordinators, over real partitions of three simulated nodes."""

import errno
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio

from metaquorum.dataplane.coordinators import hosted_shard, loading
from metaquorum.dataplane.coordinators import runtime as runtime_module
from metaquorum.dataplane.coordinators.client_budget import UNKNOWN
from metaquorum.dataplane.coordinators.hosted_shard import HostedShard, PendingBatch, State
from metaquorum.dataplane.coordinators.runtime import CoordinatorRuntime
from metaquorum.dataplane.coordinators.shard import CoordinatorRecord, Write
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.scheduling.time_slices import pause
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.batches import parse_header
from metaquorum.wire.records.records import Codec, Record, encode_batch
from tests.dataplane.replication.replicas import state as state_of
from tests.dataplane.replication.together import Together, run_together, together
from tests.dataplane.serving import (
    FaultyDisk,
    Simulated,
    append_unvalidated,
    batch_of,
    in_trio,
    run_simulated,
    serving,
    simulated,
)

TOPIC = "t"


class Register:
    """A shard of named values, as plain as possible."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.values: dict[bytes, bytes] = {}
        self.doubtful: set[bytes] = set()  # keys of doubtful records
        self.replayed = 0
        self.in_flight = 0
        self.is_restored = self.is_loaded = self.is_unloaded = False
        self.next_due = inf
        self.due_records: list[CoordinatorRecord] = []
        self.refused_records: list[CoordinatorRecord] = []

    def replay(self, record: CoordinatorRecord, now: float) -> None:
        self.replayed += 1
        if record.is_doubtful:
            self.doubtful.add(record.key)
        if self.is_loaded:
            self.in_flight -= 1
        if record.value is None:
            self.values.pop(record.key, None)
        else:
            self.values[record.key] = record.value

    def appended(self, records: Sequence[CoordinatorRecord]) -> None:
        self.in_flight += len(records)

    def replay_appended(
        self, records: Sequence[CoordinatorRecord], monotonic: Callable[[], float]
    ) -> None:
        self.appended(records)
        for record in records:
            self.replay(record, monotonic())

    def refused(self, records: Sequence[CoordinatorRecord], now: float) -> None:
        self.refused_records += records

    async def restore(self, now: float) -> None:
        self.is_restored = True
        await pause()

    def loaded(self, now: float, now_ms: int) -> None:
        self.is_loaded = True

    def due(self, now: float, now_ms: int, is_over: Callable[[], bool]) -> list[CoordinatorRecord]:
        self.next_due = inf
        return self.due_records

    async def unload(self) -> None:
        await pause()
        self.is_unloaded = True


class Answer:
    def __init__(self) -> None:
        self.values: list[Any] = []

    def __call__(self, value: Any) -> None:
        assert not self.values, "answered twice"
        self.values.append(value)


class Coordinator:
    """A runtime on one worker."""

    def __init__(self, worker: Any, time_limit_s: float = 5.0, load_bytes: int = 1 << 20) -> None:
        self.worker = worker
        self.runtime: CoordinatorRuntime[Register] = CoordinatorRuntime(
            TOPIC,
            worker,
            worker.replica_manager,
            Register,
            load_bytes=load_bytes,
            time_limit_s=lambda: time_limit_s,
        )
        self.runtime.look()

    def put(
        self,
        key: bytes,
        value: bytes | None,
        *more: tuple[bytes, bytes],
        index: int = 0,
        client: str = UNKNOWN,
    ) -> Answer:
        answer = Answer()
        records = [CoordinatorRecord(key, value), *(CoordinatorRecord(*each) for each in more)]
        self.runtime.call(index, lambda _: Write(records, value, client=client), answer, answer)
        return answer

    @property
    def state(self) -> str:
        try:
            self.runtime.shard(0)
        except KafkaError as error:
            return ErrorCode(error.code).name
        return "ACTIVE"

    @property
    def values(self) -> dict[bytes, bytes]:
        return self.runtime.shard(0).values


class StatesOfLeader(trio.abc.Instrument):
    """Recorder of the shard's state, for requests, after each step while the worker leads."""

    def __init__(self, coordinator: Coordinator, partition: Partition) -> None:
        self.seen: list[str] = []
        self._coordinator = coordinator
        self._partition = partition

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._partition.is_served and self._coordinator.state not in self.seen:
            self.seen.append(self._coordinator.state)


@asynccontextmanager
async def coordinating(*coordinators: Coordinator) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for each in coordinators:
            nursery.start_soon(each.runtime.run)
        yield
        nursery.cancel_scope.cancel()


@together()
async def test_a_write_is_replayed_and_answered_only_when_all_in_sync_replicas_have_it(
    cluster: Together,
) -> None:
    await cluster.create(TOPIC, (1, 2, 3))
    coordinator = Coordinator(cluster.worker(1))
    async with coordinating(coordinator):
        await cluster.until(lambda: coordinator.state == "ACTIVE")
        first = coordinator.put(b"a", b"1")
        assert not first.values  # followers have not fetched it yet
        assert coordinator.values == {}
        await cluster.until(lambda: first.values)
        assert first.values == [b"1"]
        assert coordinator.values == {b"a": b"1"}
        assert coordinator.runtime.shard(0).in_flight == 0


@together()
async def test_with_one_replica_a_write_is_answered_at_once(cluster: Together) -> None:
    await cluster.create(TOPIC, (1,))
    coordinator = Coordinator(cluster.worker(1))
    async with coordinating(coordinator):
        await cluster.until(lambda: coordinator.state == "ACTIVE")
        assert coordinator.put(b"a", b"1").values == [b"1"]
        assert coordinator.put(b"a", None).values == []  # no answer was asked for
        assert coordinator.values == {}


@together()
async def test_a_follower_is_no_coordinator_and_a_new_leader_loads_what_was_committed(
    cluster: Together,
) -> None:
    await cluster.create(TOPIC, (1, 2, 3))
    first, second = Coordinator(cluster.worker(1)), Coordinator(cluster.worker(2))
    async with coordinating(second):
        async with coordinating(first):
            await cluster.until(lambda: first.state == "ACTIVE")
            assert second.state == "NOT_COORDINATOR"
            answers = [first.put(b"%d" % number, b"x") for number in range(20)]
            first.put(b"3", None)
            await cluster.until(lambda: all(answer.values for answer in answers))
            await cluster.until(lambda: b"3" not in first.values)
        states = StatesOfLeader(second, cluster.replica(2, TOPIC))
        trio.lowlevel.add_instrument(states)
        await cluster.kill(1)
        await cluster.until(lambda: second.state == "ACTIVE")
        trio.lowlevel.remove_instrument(states)
        assert states.seen == ["COORDINATOR_LOAD_IN_PROGRESS", "ACTIVE"]
        assert sorted(second.values) == sorted(b"%d" % n for n in range(20) if n != 3)


@together()
async def test_a_write_in_flight_at_the_end_of_leadership_is_refused_and_not_replayed(
    cluster: Together,
) -> None:
    await cluster.create(TOPIC, (1, 2))
    coordinator = Coordinator(cluster.worker(1))
    async with coordinating(coordinator):
        await cluster.until(lambda: coordinator.state == "ACTIVE")
        shard = coordinator.runtime.shard(0)
        answer = coordinator.put(b"a", b"1")
        partition = cluster.replica(1, TOPIC)
        partition.retire()
        coordinator.runtime.look()
        assert not answer.values, "answered in the step that changes the leadership"
        await cluster.until(lambda: answer.values == [ErrorCode.NOT_COORDINATOR])
        assert shard.is_unloaded
        assert shard.values == {}
        assert coordinator.state == "NOT_COORDINATOR"


@in_trio
async def test_a_write_of_a_deposed_leader_is_refused_although_its_offset_is_committed(
    tmp_path: Path,
) -> None:
    """The next leader may have committed another record at that offset."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create(TOPIC)
        partition = served.worker.replica_manager.by_name(TOPIC, 0)
        coordinator = Coordinator(served.worker)
        async with coordinating(coordinator):
            while coordinator.state != "ACTIVE":
                await trio.lowlevel.checkpoint()
            partition.assign(state_of(1, 1, (1, 2)))
            coordinator.runtime.look()
            while coordinator.state != "ACTIVE":
                await trio.lowlevel.checkpoint()
            shard = coordinator.runtime.shard(0)
            answer = coordinator.put(b"a", b"1")
            partition.assign(state_of(2, 2, (1, 2)))
            partition.follow_to(partition.log.log_end_offset)
            while not answer.values:
                await trio.lowlevel.checkpoint()
            assert answer.values == [ErrorCode.NOT_COORDINATOR]
            assert shard.values == {}


@together()
async def test_another_leader_epoch_of_the_same_worker_is_loaded_anew(cluster: Together) -> None:
    await cluster.create(TOPIC, (1,))
    coordinator = Coordinator(cluster.worker(1))
    async with coordinating(coordinator):
        await cluster.until(lambda: coordinator.state == "ACTIVE")
        coordinator.put(b"a", b"1")
        before = coordinator.runtime.shard(0)
        partition = cluster.replica(1, TOPIC)
        state = partition.state
        partition.assign(replace(state, leader_epoch=state.leader_epoch + 2))
        assert coordinator.state == "NOT_COORDINATOR"
        await cluster.until(lambda: before.is_unloaded)
        coordinator.runtime.look()
        assert coordinator.state == "COORDINATOR_LOAD_IN_PROGRESS"
        await cluster.until(lambda: coordinator.state == "ACTIVE")
        assert coordinator.runtime.shard(0) is not before
        assert coordinator.values == {b"a": b"1"}


@together()
async def test_records_of_leader_epochs_before_a_possible_loss_are_doubtful(
    cluster: Together,
) -> None:
    await cluster.create(TOPIC, (1,))
    coordinator = Coordinator(cluster.worker(1))
    partition = cluster.replica(1, TOPIC)

    async def elect(unclean_epoch: int) -> None:
        state = partition.state
        after = replace(state, leader_epoch=state.leader_epoch + 2, unclean_epoch=unclean_epoch)
        partition.assign(after)
        coordinator.runtime.look()
        await cluster.until(lambda: coordinator.state == "ACTIVE")

    async with coordinating(coordinator):
        await cluster.until(lambda: coordinator.state == "ACTIVE")
        coordinator.put(b"a", b"1")
        await elect(-1)
        assert coordinator.runtime.shard(0).doubtful == set()
        await elect(partition.leader_epoch + 2)
        assert coordinator.runtime.shard(0).doubtful == {b"a"}
        coordinator.put(b"b", b"1")
        await elect(partition.state.unclean_epoch)
        assert coordinator.runtime.shard(0).doubtful == {b"a"}
        assert coordinator.values == {b"a": b"1", b"b": b"1"}


@together()
async def test_a_shard_stays_if_a_move_ends_and_its_worker_leads_the_next_epoch(
    cluster: Together,
) -> None:
    await cluster.create(TOPIC, (1, 2, 3))
    coordinator = Coordinator(cluster.worker(1))
    async with coordinating(coordinator):
        await cluster.until(lambda: coordinator.state == "ACTIVE")
        before = coordinator.runtime.shard(0)
        waiting = coordinator.put(b"a", b"1")
        partition = cluster.replica(1, TOPIC)
        state = partition.state
        partition.assign(replace(state, replicas=(1, 2), isr=(1, 2), leader_epoch=1))
        coordinator.runtime._elected(partition)
        assert coordinator.runtime.shard(0) is before
        assert not waiting.values
        later = coordinator.put(b"b", b"2")
        partition.leader_state.fetched(2, -1, 2, 0, 2, 0.0)
        partition.advance()
        await cluster.until(lambda: later.values == [b"2"])
        assert waiting.values == [b"1"]
        assert partition.log.epochs.latest == 1


@together()
async def test_too_few_in_sync_replicas_refuse_a_write(cluster: Together) -> None:
    await cluster.create(TOPIC, (1,), min_insync_replicas=1)
    coordinator = Coordinator(cluster.worker(1))
    async with coordinating(coordinator):
        await cluster.until(lambda: coordinator.state == "ACTIVE")
        partition = cluster.replica(1, TOPIC)
        partition.state = replace(partition.state, replicas=(1, 2))
        partition.config = replace(partition.config, min_insync_replicas=2)
        answer = coordinator.put(b"a", b"1")
        assert answer.values == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert coordinator.values == {}
        shard = coordinator.runtime.shard(0)
        assert [each.key for each in shard.refused_records] == [b"a"]
        shard.next_due = coordinator.worker.clock.monotonic() + 1
        shard.due_records = [CoordinatorRecord(b"timer", b"1")]
        coordinator.put(b"b", b"1")  # arms the timer
        await cluster.until(lambda: len(shard.refused_records) == 3)
        assert [each.key for each in shard.refused_records] == [b"a", b"b", b"timer"]
        assert shard.in_flight == 0
        assert partition.log.log_end_offset == 0


@together(broker_session_timeout_ms=9000)
async def test_a_write_that_is_not_committed_in_time_fails_and_is_replayed_later(
    cluster: Together,
) -> None:
    await cluster.create(TOPIC, (1, 2))
    coordinator = Coordinator(cluster.worker(1), time_limit_s=0.5)
    async with coordinating(coordinator):
        await cluster.until(lambda: coordinator.state == "ACTIVE")
        links = ("node-1", "node-2"), ("node-2", "node-1")
        for link in links:
            cluster.world.internet.cut(*link)  # the ISR does not shrink at once
        answer = coordinator.put(b"a", b"1")
        await cluster.until(lambda: answer.values)
        assert answer.values == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert coordinator.values == {}
        for link in links:
            cluster.world.internet.heal(*link)
        await cluster.until(lambda: coordinator.values == {b"a": b"1"})


@pytest.mark.parametrize("at_once", [1, 7, 512])
def test_answers_are_given_in_the_order_of_the_log(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(hosted_shard, "REPLAYED_AT_ONCE", at_once)

    async def scenario(cluster: Together) -> None:
        await cluster.create(TOPIC, (1, 2, 3))
        coordinator = Coordinator(cluster.worker(1))
        order: list[int] = []
        async with coordinating(coordinator):
            await cluster.until(lambda: coordinator.state == "ACTIVE")
            for number in range(50):
                coordinator.runtime.call(
                    0,
                    lambda _, number=number: Write(  # type: ignore[misc]
                        [CoordinatorRecord(b"k", b"%d" % number)], number + 1
                    ),
                    order.append,
                    order.append,
                )
            await cluster.until(lambda: len(order) == 50)
            assert order == list(range(1, 51))
            assert coordinator.values == {b"k": b"49"}

    run_together(scenario)


def test_uncommitted_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "MAX_PENDING_BYTES", 10_000)

    async def scenario(cluster: Together) -> None:
        await cluster.create(TOPIC, (1, 2))
        coordinator = Coordinator(cluster.worker(1))
        async with coordinating(coordinator):
            await cluster.until(lambda: coordinator.state == "ACTIVE")
            answers = [coordinator.put(b"k", bytes(4000)) for _ in range(5)]
            assert [each.values for each in answers[3:]] == [
                [ErrorCode.COORDINATOR_NOT_AVAILABLE]
            ] * 2
            await cluster.until(lambda: all(each.values for each in answers))
            assert coordinator.put(b"k", b"1") is not None

    run_together(scenario)


def test_a_client_leaves_room_for_the_uncommitted_bytes_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime_module, "MAX_PENDING_BYTES", 40_000)

    async def scenario(cluster: Together) -> None:
        await cluster.create(TOPIC, (1, 2))
        coordinator = Coordinator(cluster.worker(1))
        async with coordinating(coordinator):
            await cluster.until(lambda: coordinator.state == "ACTIVE")
            for _ in range(2):  # committed bytes count no longer
                flood = [coordinator.put(b"k", bytes(4000), client="a") for _ in range(20)]
                others = [coordinator.put(b"k", bytes(4000), client=each) for each in "bc"]
                refused = [[ErrorCode.COORDINATOR_NOT_AVAILABLE]] * 17
                assert [each.values for each in flood[3:]] == refused
                assert [each.values for each in others] == [[], []]
                last = others[-1]
                await cluster.until(partial(bool, last.values))
                assert [each.values for each in others] == [[bytes(4000)]] * 2
                assert coordinator.runtime.pending_bytes == 0

    run_together(scenario)


def test_a_client_without_uncommitted_bytes_may_write_one_large_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime_module, "MAX_PENDING_BYTES", 10_000)

    async def scenario(cluster: Together) -> None:
        await cluster.create(TOPIC, (1, 2))
        coordinator = Coordinator(cluster.worker(1))
        async with coordinating(coordinator):
            await cluster.until(lambda: coordinator.state == "ACTIVE")
            small = coordinator.put(b"k", b"1", client="a")
            large = coordinator.put(b"k", bytes(7000), client="b")
            more = coordinator.put(b"k", bytes(7000), client="b")
            assert (small.values, large.values) == ([], [])
            assert more.values == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
            await cluster.until(lambda: large.values)
            assert large.values == [bytes(7000)]

    run_together(scenario)


def test_a_partition_without_commits_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime_module, "MAX_TOTAL_PENDING_BYTES", 40_000)

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        await client.create(TOPIC, 3, flush_messages=1)  # answers wait for a flush
        coordinator = Coordinator(node.worker)
        async with coordinating(coordinator):
            await until(node, lambda: len(coordinator.runtime.active) == 3)
            flood = [coordinator.put(b"k", bytes(4000), index=index % 2) for index in range(20)]
            other = coordinator.put(b"k", bytes(4000), index=2)
            assert [ErrorCode.COORDINATOR_NOT_AVAILABLE] in [each.values for each in flood]
            await until(node, lambda: bool(other.values))
            assert other.values == [bytes(4000)]

    run_simulated(scenario)


@together()
async def test_records_of_timers_are_written(cluster: Together) -> None:
    await cluster.create(TOPIC, (1,))
    coordinator = Coordinator(cluster.worker(1))
    async with coordinating(coordinator):
        await cluster.until(lambda: coordinator.state == "ACTIVE")
        shard = coordinator.runtime.shard(0)
        shard.next_due = coordinator.worker.clock.monotonic() + 2
        shard.due_records = [CoordinatorRecord(b"timer", b"1")]
        coordinator.put(b"a", b"1")  # arms the timer
        await cluster.world.sleep(1.9)
        assert b"timer" not in coordinator.values
        await cluster.world.sleep(0.2)
        assert coordinator.values[b"timer"] == b"1"


@together()
async def test_closing_refuses_what_waits_and_everything_later(cluster: Together) -> None:
    await cluster.create(TOPIC, (1, 2))
    coordinator = Coordinator(cluster.worker(1))
    async with coordinating(coordinator):
        await cluster.until(lambda: coordinator.state == "ACTIVE")
        answer = coordinator.put(b"a", b"1")
        coordinator.runtime.close()
        assert answer.values == [ErrorCode.NOT_COORDINATOR]
        coordinator.runtime.look()
        assert coordinator.state == "NOT_COORDINATOR"


def test_uncommitted_bytes_of_all_partitions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "MAX_TOTAL_PENDING_BYTES", 22_000)

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        await client.create(TOPIC, 3, flush_messages=1)  # answers wait for a flush
        coordinator = Coordinator(node.worker)
        async with coordinating(coordinator):
            await until(node, lambda: len(coordinator.runtime.active) == 3)
            answers = [coordinator.put(b"k", bytes(6000), index=index) for index in range(3)]
            assert [each.values for each in answers[2:]] == [[ErrorCode.COORDINATOR_NOT_AVAILABLE]]
            await until(node, lambda: all(each.values for each in answers))
            assert [each.values for each in answers[:2]] == [[bytes(6000)]] * 2
            assert coordinator.runtime.pending_bytes == 0
            coordinator.put(b"k", bytes(6000), index=2)
            assert coordinator.runtime.pending_bytes > 6000
            node.worker.replica_manager.by_name(TOPIC, 2).retire()
            coordinator.runtime.look()
            assert coordinator.runtime.pending_bytes == 0

    run_simulated(scenario)


@simulated()
async def test_batches_are_not_larger_than_the_topic_allows(node: Simulated) -> None:
    client = await node.connect()
    await client.create(TOPIC, max_message_bytes=2000)
    coordinator = Coordinator(node.worker)
    async with coordinating(coordinator):
        await until(node, lambda: coordinator.state == "ACTIVE")
        rows = [(b"%04d" % number, b"1") for number in range(500)]
        assert coordinator.put(b"first", b"1", *rows).values == [b"1"]
        assert len(coordinator.values) == 501
        end = node.worker.replica_manager.by_name(TOPIC, 0).log.log_end_offset
        answer = coordinator.put(b"k", b"1", *rows, (b"large", bytes(3000)))
        assert answer.values == [ErrorCode.RECORD_LIST_TOO_LARGE]
        assert node.worker.replica_manager.by_name(TOPIC, 0).log.log_end_offset == end


def test_a_write_of_several_batches_is_answered_when_the_last_one_is_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosted_shard, "REPLAYED_AT_ONCE", 1)

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        await client.create(TOPIC, max_message_bytes=2000)
        coordinator = Coordinator(node.worker)
        seen: list[int] = []
        async with coordinating(coordinator):
            await until(node, lambda: coordinator.state == "ACTIVE")
            records = [CoordinatorRecord(b"%04d" % number, b"1") for number in range(500)]
            coordinator.runtime.call(
                0,
                lambda _: Write(records, 1),
                lambda _: seen.append(len(coordinator.values)),
                seen.append,
            )
            await until(node, lambda: seen)
            assert seen == [500]

    run_simulated(scenario)


@in_trio
async def test_a_write_is_answered_after_the_flush_that_the_topic_asks_for(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await client.create(TOPIC, flush_messages=1)
        coordinator = Coordinator(served.worker)
        async with coordinating(coordinator):
            while coordinator.state != "ACTIVE":
                await trio.lowlevel.checkpoint()
            for number in range(2):
                disk.synced.clear()
                answer = coordinator.put(b"a", b"%d" % number)
                while not answer.values:
                    assert coordinator.values.get(b"a") != b"%d" % number
                    await trio.lowlevel.checkpoint()
                assert answer.values == [b"%d" % number]
                assert any(path.endswith(".log") for path in disk.synced)


@pytest.mark.parametrize(
    ("number", "code", "state"),
    [
        (errno.EIO, ErrorCode.NOT_COORDINATOR, "NOT_COORDINATOR"),
        (errno.ENOSPC, ErrorCode.COORDINATOR_NOT_AVAILABLE, "ACTIVE"),
    ],
)
@in_trio
async def test_a_write_that_the_disk_refuses_fails_and_a_failed_directory_takes_no_other(
    tmp_path: Path, number: int, code: ErrorCode, state: str
) -> None:
    disk, folders = FaultyDisk(), [tmp_path / "a", tmp_path / "b"]
    async with serving(tmp_path / "data", disk=disk, log_dirs=folders) as served:
        client = await served.connect()
        await client.create(TOPIC)
        coordinator = Coordinator(served.worker)
        async with coordinating(coordinator):
            while coordinator.state != "ACTIVE":
                await trio.lowlevel.checkpoint()
            shard = coordinator.runtime.shard(0)
            disk.fail("write", f"/{TOPIC}-0/", number)
            assert coordinator.put(b"a", b"1").values == [code]
            assert shard.values == {}
            assert coordinator.state == state


class FullAfterOneWrite(FaultyDisk):
    """A disk that has no space for the second write to a partition of the topic."""

    writes_left = 1 << 30

    def check(self, action: str, path: str) -> None:
        if action == "write" and f"/{TOPIC}-0/" in path and path.endswith(".log"):
            self.writes_left -= 1
            if self.writes_left < 0:
                raise OSError(errno.ENOSPC, "", path)
        super().check(action, path)


@in_trio
async def test_records_of_an_appended_batch_are_not_refused_with_those_behind(
    tmp_path: Path,
) -> None:
    """A shard would write them again, behind changes that were decided on the first ones."""
    disk, folders = FullAfterOneWrite(), [tmp_path / "a", tmp_path / "b"]
    async with serving(tmp_path / "data", disk=disk, log_dirs=folders) as served:
        client = await served.connect()
        await client.create(TOPIC)
        coordinator = Coordinator(served.worker)
        async with coordinating(coordinator):
            while coordinator.state != "ACTIVE":
                await trio.lowlevel.checkpoint()
            shard = coordinator.runtime.shard(0)
            disk.writes_left = 1
            more = [(b"%d" % number, b"1") for number in range(1000)]
            answer = coordinator.put(b"a", b"1", *more)
            assert answer.values == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
            assert len(shard.values) == 1000
            assert [each.key for each in shard.refused_records] == [b"999"]


# Loads of one node


async def until(node: Simulated, condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        await node.world.sleep(0.01)
    raise AssertionError


def test_a_load_that_waits_for_a_commit_does_not_delay_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime_module, "MAX_LOADS", 1)

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        await client.create(TOPIC, 2)
        partition = node.worker.replica_manager.by_name(TOPIC, 0)
        batch = encode_batch([Record(0, 1, b"a", b"1")])
        partition.log.append(batch, parse_header(batch), partition.leader_epoch, 1)
        alone = partition.state
        other = replace(alone, replicas=(1, 2), isr=(1, 2), leader_epoch=alone.leader_epoch + 1)
        partition.assign(other)
        assert partition.is_catching_up
        second = node.worker.replica_manager.by_name(TOPIC, 1)
        elected = replace(second.state, leader_epoch=second.leader_epoch + 1)
        second.retire()
        coordinator = Coordinator(node.worker)
        async with coordinating(coordinator):
            await node.world.sleep(1)
            second.assign(elected)
            coordinator.runtime.look()
            await until(node, lambda: 1 in coordinator.runtime.active)
            assert coordinator.state == "COORDINATOR_LOAD_IN_PROGRESS"
            partition.assign(replace(other, replicas=(1,), isr=(1,)))  # commits the record
            await until(node, lambda: coordinator.state == "ACTIVE")
            assert coordinator.values == {b"a": b"1"}

    run_simulated(scenario)


@together()
async def test_a_shard_whose_leadership_ends_during_its_load_is_not_restored(
    cluster: Together,
) -> None:
    """Its state is freed meanwhile: members that it would add would stay in the memory count."""
    await cluster.create(TOPIC, (1, 2))
    await cluster.kill(2)
    partition = cluster.replica(1, TOPIC)
    append_unvalidated(partition, encode_batch([Record(0, 1, b"a", b"1")]))
    coordinator = Coordinator(cluster.worker(1))
    async with coordinating(coordinator):
        waiting = coordinator.runtime._hosted[0].shard
        await cluster.world.sleep(0.1)
        epoch = partition.leader_epoch
        partition.assign(replace(partition.state, leader=2, leader_epoch=epoch + 1))
        coordinator.runtime.look()
        await cluster.world.sleep(0.1)
        assert (waiting.is_unloaded, waiting.is_restored) == (True, False)


@simulated()
async def test_loads_during_compaction_see_the_last_value_of_each_key(node: Simulated) -> None:
    client = await node.connect()
    await client.create(
        TOPIC, cleanup_policy="compact", internal_segment_bytes=2000, segment_ms=10_000_000
    )
    partition = node.worker.replica_manager.by_name(TOPIC, 0)
    for number in range(300):
        record = Record(0, node.worker.clock.now_ms(), b"k%d" % (number % 5), b"%d" % number)
        append_unvalidated(partition, encode_batch([record]))
    sizes = []
    for _ in range(30):
        coordinator = Coordinator(node.worker, load_bytes=500)
        async with coordinating(coordinator):
            await until(node, lambda: coordinator.state == "ACTIVE")  # noqa: B023
            assert coordinator.values == {b"k%d" % key: b"%d" % (295 + key) for key in range(5)}
            sizes.append(coordinator.runtime.shard(0).replayed)
        await node.world.sleep(2)
    assert sizes[0] == 300
    assert sizes[-1] < 100


@in_trio
async def test_a_transient_failure_of_reads_delays_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "RETRY_S", 0.0)
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await client.create(TOPIC)
        partition = served.worker.replica_manager.by_name(TOPIC, 0)
        append_unvalidated(partition, encode_batch([Record(0, 1, b"a", b"1")]))
        disk.fail("read", f"/{TOPIC}-0", errno.ENFILE)
        coordinator = Coordinator(served.worker)
        async with coordinating(coordinator):
            while len(disk.refused) < 3:
                await trio.lowlevel.checkpoint()
                assert coordinator.state == "COORDINATOR_LOAD_IN_PROGRESS"
            disk.faults.clear()
            while coordinator.state != "ACTIVE":
                await trio.lowlevel.checkpoint()
            assert coordinator.values == {b"a": b"1"}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
@simulated()
async def test_a_load_reads_batches_of_every_codec_and_skips_what_has_no_key(
    node: Simulated, codec: Codec
) -> None:
    client = await node.connect()
    await client.create(TOPIC, internal_segment_bytes=4096)
    partition = node.worker.replica_manager.by_name(TOPIC, 0)
    for number in range(40):
        records = [Record(i, 1, b"%d" % (number * 10 + i), b"v" * 20) for i in range(10)]
        append_unvalidated(partition, encode_batch(records, codec=codec))
    append_unvalidated(partition, batch_of(b"without a key"))
    marker = struct.pack(">hi", 0, 0)
    append_unvalidated(partition, encode_batch([Record(0, 1, b"\0\0\0\0", marker)], control=True))
    coordinator = Coordinator(node.worker)
    async with coordinating(coordinator):
        while coordinator.state != "ACTIVE":
            assert coordinator.state == "COORDINATOR_LOAD_IN_PROGRESS"
            await node.world.sleep(0.01)
        assert len(coordinator.values) == coordinator.runtime.shard(0).replayed == 400


@together()
async def test_a_load_waits_until_all_records_of_the_log_are_committed(cluster: Together) -> None:
    await cluster.create(TOPIC, (1, 2))
    await cluster.kill(2)
    partition = cluster.replica(1, TOPIC)
    append_unvalidated(partition, encode_batch([Record(0, 1, b"a", b"1")]))
    coordinator = Coordinator(cluster.worker(1))
    async with coordinating(coordinator):
        await cluster.world.sleep(0.1)
        assert partition.high_watermark == 0
        assert coordinator.state == "COORDINATOR_LOAD_IN_PROGRESS"
        await cluster.until(lambda: partition.high_watermark == 1)
        await cluster.until(lambda: coordinator.state == "ACTIVE")
        assert coordinator.values == {b"a": b"1"}


@simulated()
async def test_a_load_begins_at_the_log_start_offset(node: Simulated) -> None:
    client = await node.connect()
    await client.create(TOPIC)
    partition = node.worker.replica_manager.by_name(TOPIC, 0)
    records = [Record(i, 1, b"%d" % i, b"v") for i in range(10)]
    append_unvalidated(partition, encode_batch(records))
    partition.log.advance_log_start(4)
    coordinator = Coordinator(node.worker)
    async with coordinating(coordinator):
        while coordinator.state != "ACTIVE":
            await node.world.sleep(0.01)
        assert sorted(coordinator.values) == [b"%d" % i for i in range(4, 10)]


def test_a_damaged_log_is_not_loaded(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        await client.create(TOPIC)
        partition = node.worker.replica_manager.by_name(TOPIC, 0)
        for number in range(3):
            append_unvalidated(partition, encode_batch([Record(0, 1, b"%d" % number, b"v" * 50)]))
        found = partition.log.read(1, 1000, 2)
        with found.pinned() as file:
            file.write(b"x", found.position + 80)
        coordinator = Coordinator(node.worker)
        async with coordinating(coordinator):
            await node.world.sleep(1)
            assert coordinator.state == "NOT_COORDINATOR"

    run_simulated(scenario)
    assert "the batch at offset 1 of t-0 is damaged" in caplog.text


def test_committed_writes_are_replayed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_shard, "REPLAYED_AT_ONCE", 3)

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        await client.create(TOPIC)
        partition = node.worker.replica_manager.by_name(TOPIC, 0)
        hosted = HostedShard(partition, Register(0))
        hosted.state = State.ACTIVE
        hosted.shard.is_loaded = True
        answers: list[int] = []
        for number in range(10):
            batch = PendingBatch([CoordinatorRecord(b"%d" % number, b"1")], number + 1, 100, 0.0)
            batch.committed = partial(answers.append, number)
            hosted.appended(batch)
        append_unvalidated(partition, encode_batch([Record(i, 1, b"", b"") for i in range(8)]))
        assert [hosted.replay(0.0) for _ in range(4)] == [300, 300, 200, 0]
        assert answers == list(range(8))
        assert hosted.pending_bytes == 200
        assert not hosted.has_committed

    run_simulated(scenario)
