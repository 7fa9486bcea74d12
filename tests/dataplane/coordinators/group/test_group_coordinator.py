"""The groups of real workers: commits, fail-over, retention, and topics that are deleted."""

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from metaquorum.dataplane.coordinators import background_writes
from metaquorum.dataplane.coordinators.group.committed_offsets import PIECE_OFFSETS
from metaquorum.dataplane.coordinators.group.group_coordinator import (
    CoordinatorConfigs,
    GroupCoordinator,
)
from metaquorum.dataplane.coordinators.group.group_shard import CommitRequest, OffsetToCommit
from metaquorum.dataplane.coordinators.group.requests import JoinAnswer, JoinRequest, Protocol
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.simulations.kernel.process import MachineStopped
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.dataplane.replication.together import NODES, Together, together
from tests.dataplane.serving import FaultyDisk, Served, in_trio, serving
from tests.nodes import PATIENCE_S

GROUP = "group"
ONE_REPLICA = {"offsets_topic_num_partitions": 1, "offsets_topic_replication_factor": 1}


class Peer:
    """The coordinator of one worker, called as handlers do."""

    def __init__(self, worker: Any, configs: CoordinatorConfigs | None = None) -> None:
        ids = count(1)
        self.worker = worker
        self.coordinator = GroupCoordinator(
            worker,
            worker.replica_manager,
            configs or CoordinatorConfigs(),
            lambda: f"{worker.worker_id}-{next(ids)}",
        )
        self.coordinator.runtime.look()

    def call(self, operation: Any) -> list[Any]:
        answers: list[Any] = []
        self.coordinator.call(GROUP, operation, answers.append, answers.append)
        return answers

    def commit(self, offset: int, topic: str = "t") -> list[Any]:
        clock = self.worker.clock
        found = self.worker.image.topic(topic)
        row = OffsetToCommit(topic, found.topic_id, 0, offset, -1, "")
        request = CommitRequest(GROUP, "", None, -1, [row])
        return self.call(lambda shard: shard.commit(clock.monotonic(), clock.now_ms(), request))

    def committed(self, topic: str = "t") -> int | None:
        found = self.worker.image.topic(topic)
        topic_id = bytes(16) if found is None else found.topic_id
        value = self.coordinator.shard(GROUP).offsets.fetch(GROUP, topic, 0, topic_id)
        return None if value is None else value.offset

    def join(self) -> list[JoinAnswer]:
        request = JoinRequest(
            GROUP, "", None, "c", "/h", 60_000, 10_000, "consumer", (Protocol("range", b""),),
            needs_member_id=False,
        )  # fmt: skip
        answers: list[JoinAnswer] = []
        now = self.worker.clock.monotonic()
        self.call(lambda shard: shard.join(now, request, answers.append))
        return answers

    @property
    def state(self) -> str:
        try:
            self.coordinator.shard(GROUP)
        except KafkaError as error:
            return ErrorCode(error.code).name
        return "ACTIVE"


async def run(peer: Peer) -> None:
    try:
        await peer.coordinator.run()
    except* MachineStopped:  # its worker was killed
        pass


@asynccontextmanager
async def coordinating(*peers: Peer) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(run, peer)
        yield
        nursery.cancel_scope.cancel()


async def active(cluster: Together, *peers: Peer) -> Peer:
    """Wait until one of the workers coordinates the group, and return it."""
    await cluster.until(lambda: any(peer.state == "ACTIVE" for peer in peers))
    return next(peer for peer in peers if peer.state == "ACTIVE")


@together()
async def test_there_is_no_coordinator_before_the_topic_exists(cluster: Together) -> None:
    peer = Peer(cluster.worker(1))
    assert peer.state == "COORDINATOR_NOT_AVAILABLE"
    with pytest.raises(KafkaError) as refused:
        peer.coordinator.shard("g" * 40_000)
    assert refused.value.code is ErrorCode.INVALID_GROUP_ID


@together(offsets_topic_num_partitions=1)
async def test_commits_survive_a_killed_coordinator_and_waiting_members_do_not(
    cluster: Together,
) -> None:
    await cluster.create("t", (1, 2, 3))
    await cluster.create_offsets_topic()
    peers = [Peer(cluster.worker(node_id)) for node_id in NODES]
    async with coordinating(*peers):
        first = await active(cluster, *peers)
        assert sum(peer.state == "ACTIVE" for peer in peers) == 1
        committed = [first.commit(offset) for offset in range(1, 21)]
        await cluster.until(lambda: all(committed))
        assert committed[-1] == [[ErrorCode.NONE]]
        await cluster.kill(first.worker.worker_id)
        first.coordinator.close()
        others = [peer for peer in peers if peer is not first]

        def look() -> bool:
            for peer in others:
                peer.coordinator.runtime.look()
            return any(peer.state == "ACTIVE" for peer in others)

        await cluster.until(look)
        assert (await active(cluster, *others)).committed() == 20


@together(**ONE_REPLICA)
async def test_a_join_that_waits_is_answered_when_the_worker_stops(cluster: Together) -> None:
    peer = Peer(cluster.worker(await cluster.create_offsets_topic()))
    async with coordinating(peer):
        await active(cluster, peer)
        answers = peer.join()
        assert not answers
        peer.coordinator.close()
        assert answers[0].code is ErrorCode.NOT_COORDINATOR


@together(**ONE_REPLICA)
async def test_members_get_their_generation_after_the_initial_delay(cluster: Together) -> None:
    peer = Peer(cluster.worker(await cluster.create_offsets_topic()))
    async with coordinating(peer):
        await active(cluster, peer)
        answers = peer.join()
        await cluster.world.sleep(2.9)
        assert not answers
        await cluster.world.sleep(0.2)
        assert answers[0].generation == 1


@together(**ONE_REPLICA)
async def test_offsets_expire_at_the_interval_of_the_check(cluster: Together) -> None:
    await cluster.create("t", (1,))
    leader = await cluster.create_offsets_topic()
    configs = CoordinatorConfigs()
    configs.groups.offsets_retention_ms = 30_000
    configs.retention_check_s = 10.0
    peer = Peer(cluster.worker(leader), configs)
    async with coordinating(peer):
        await active(cluster, peer)
        peer.commit(5)
        await cluster.world.sleep(25)
        assert peer.committed() == 5
        await cluster.until(lambda: peer.committed() is None, 20)
        assert not any(peer.coordinator.shard(GROUP).group_id_pieces())


@together(**ONE_REPLICA)
async def test_offsets_of_a_topic_that_was_deleted_before_the_load_are_removed(
    cluster: Together,
) -> None:
    await cluster.create("t", (1,))
    await cluster.create("u", (1,))
    peer = Peer(cluster.worker(await cluster.create_offsets_topic()))
    async with coordinating(peer):
        await active(cluster, peer)
        peer.commit(5)
        peer.commit(6, "u")
    client = await cluster.connect(1)
    assert await client.delete("t") == ErrorCode.NONE
    await cluster.until(lambda: peer.worker.image.topic("t") is None)
    await cluster.create("t", (1,))
    other = Peer(peer.worker)
    async with coordinating(other):
        await active(cluster, other)
        assert other.committed() is None
        assert other.committed("u") == 6
        offsets = other.coordinator.shard(GROUP).offsets
        await cluster.until(lambda: offsets.offset_count == 1)


@together(offsets_topic_num_partitions=1)
async def test_a_coordinator_knows_the_topics_of_the_offsets_that_it_has_loaded(
    cluster: Together,
) -> None:
    """One publication brings a topic, and the election of a coordinator with commits of it.

    Until the worker has applied all of it, its image does not have the topic: the offsets would
    look like those of a deleted one.
    """
    leader_id = await cluster.create_offsets_topic()
    leader = cluster.worker(leader_id)
    others = [cluster.worker(node_id) for node_id in NODES if node_id != leader_id]
    await cluster.until(lambda: not leader.groups.is_loading)
    partitions = [each.replica_manager.by_name(CONSUMER_OFFSETS, 0) for each in others]
    may_begin, may_end = trio.Event(), trio.Event()

    def held(publish: Any, until: trio.Event, topic: str) -> Any:
        async def later(delta: Any, image: Any) -> None:
            if image.topic(topic) is not None:
                await until.wait()
            await publish(delta, image)

        return later

    for each in others:
        each.quotas.publish = held(each.quotas.publish, may_begin, "before")
    client = await cluster.connect(leader_id)
    await client.create("before", 1)  # the others begin to publish it, and are held
    await client.create("t", 1)
    topic = leader.image.topic("t")
    assert topic is not None
    answers: list[Any] = []
    row = OffsetToCommit("t", topic.topic_id, 0, 7, -1, "")
    request = CommitRequest(GROUP, "", None, -1, [row])
    clock = leader.clock
    leader.groups.call(
        GROUP,
        lambda shard: shard.commit(clock.monotonic(), clock.now_ms(), request),
        answers.append,
        answers.append,
    )
    await cluster.until(lambda: answers)
    assert answers == [[ErrorCode.NONE]]
    await cluster.kill(leader_id)
    await cluster.until(
        lambda: others[0].loader.image.topic(CONSUMER_OFFSETS).partitions[0].leader != leader_id
    )
    for each in others:
        each.session.publish = held(each.session.publish, may_end, "t")
    may_begin.set()
    await cluster.until(lambda: any(each.is_leader for each in partitions))
    new = next(each for each, replica in zip(others, partitions, strict=True) if replica.is_leader)
    assert new.image.topic("t") is None
    with pytest.raises(KafkaError) as refused:
        new.groups.shard(GROUP)
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await trio.sleep(5)  # all that could happen has happened
    may_end.set()
    await cluster.until(lambda: new.image.topic("t") and not new.groups.is_loading)
    await trio.sleep(5)
    found = new.groups.shard(GROUP).offsets.fetch(GROUP, "t", 0, topic.topic_id)
    assert found is not None
    assert found.offset == 7


# Tombstones that cannot be written


class FullDisk:
    """A node whose groups' partition can be made to have no space."""

    def __init__(self, served: Served, disk: FaultyDisk) -> None:
        self.served = served
        self.worker = served.worker
        self._disk = disk

    def fill(self) -> None:
        self._disk.fail("write", f"/{CONSUMER_OFFSETS}-0", errno.ENOSPC)

    async def wait_refused(self, count: int) -> None:
        """Wait until the disk has refused this number of writes more."""
        least = len(self._disk.refused) + count
        await until(lambda: len(self._disk.refused) >= least)

    def empty(self) -> None:
        self._disk.faults.clear()

    @property
    def offset_count(self) -> int:
        return self.worker.groups.shard(GROUP).offsets.offset_count

    async def commit(self, topic: str, offsets: int) -> None:
        clock, answers = self.worker.clock, list[Any]()
        topic_id = self.worker.image.topic(topic).topic_id
        rows = [OffsetToCommit(topic, topic_id, index, 5, -1, "") for index in range(offsets)]
        request = CommitRequest(GROUP, "", None, -1, rows)
        self.worker.groups.call(
            GROUP,
            lambda shard: shard.commit(clock.monotonic(), clock.now_ms(), request),
            answers.append,
            answers.append,
        )
        await until(lambda: answers)
        assert set(answers[0]) == {ErrorCode.NONE}


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.01)


@asynccontextmanager
async def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FullDisk]:
    monkeypatch.setattr(background_writes, "RETRY_S", 0.02)
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk, **ONE_REPLICA) as served:
        await served.worker.internal_topics.ensure()
        await (await served.connect()).create("t", 1)
        await until(lambda: served.worker.groups.shards)
        yield FullDisk(served, disk)


@in_trio
async def test_offsets_of_a_deleted_topic_are_removed_once_they_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with full_disk(tmp_path, monkeypatch) as node:
        await node.commit("t", 1)
        node.fill()
        client = await node.served.connect()
        assert await client.delete("t") == ErrorCode.NONE
        await node.wait_refused(3)
        assert node.offset_count == 1
        node.empty()
        await until(lambda: node.offset_count == 0)


@in_trio
async def test_a_deletion_of_a_large_group_that_has_begun_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with full_disk(tmp_path, monkeypatch) as node:
        groups = node.worker.groups
        await node.commit("t", PIECE_OFFSETS + 1)
        answers: list[ErrorCode] = []
        # As `GroupCoordinator.delete_group`, which would continue at once.
        groups.call(
            GROUP,
            lambda shard: shard.delete_group(GROUP, answers.append),
            answers.append,
            answers.append,
        )
        node.fill()
        groups.delete_group(GROUP, answers.append, "client")
        assert answers == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        await until(lambda: len(answers) == 2)
        assert answers[1] is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert GROUP in groups.shard(GROUP).being_deleted
        groups.delete_group(GROUP, answers.append, "client")
        node.empty()
        await until(lambda: len(answers) >= 3 and answers[-1] is ErrorCode.NONE)
        assert node.offset_count == 0
        groups.delete_group(GROUP, answers.append, "client")
        assert answers[-1] is ErrorCode.GROUP_ID_NOT_FOUND


@in_trio
async def test_a_deletion_that_an_earlier_coordinator_has_begun_is_completed_after_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with full_disk(tmp_path, monkeypatch) as node:
        groups = node.worker.groups
        await node.commit("t", PIECE_OFFSETS + 1)
        answers: list[ErrorCode] = []
        groups.call(
            GROUP,
            lambda shard: shard.delete_group(GROUP, answers.append),
            answers.append,
            answers.append,
        )
        partition = node.worker.replica_manager.by_name(CONSUMER_OFFSETS, 0)
        state = partition.state
        partition.assign(replace(state, leader_epoch=state.leader_epoch + 2))
        groups.runtime.look()
        await until(lambda: answers == [ErrorCode.NOT_COORDINATOR] and groups.shards)
        await until(lambda: node.offset_count == 0)
        await until(lambda: not groups.shard(GROUP).being_deleted)
