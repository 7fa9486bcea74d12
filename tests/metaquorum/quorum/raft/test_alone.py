"""A single voter on a crashing disk: acknowledged changes survive a crash at any time."""

import logging
from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
import trio.testing

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import Endpoint, TopicRecord, encode_record
from metaquorum.metadata.replicated_log import NotCommittedError, OutcomeUnknownError
from metaquorum.quorum.controller.controller import Controller
from metaquorum.quorum.controller.features import SUPPORTED_FEATURES
from metaquorum.quorum.controller.heartbeats import WorkerHeartbeat
from metaquorum.quorum.controller.topics import NewTopic
from metaquorum.quorum.controller.worker_registration import WorkerRegistration
from metaquorum.quorum.raft.peers import NoPeers
from metaquorum.quorum.raft.voter import RaftVoter
from metaquorum.quorum.storage.journal import Journal
from metaquorum.quorum.storage.snapshot import snapshots
from metaquorum.runtime.interfaces import Disk, StorageError
from metaquorum.runtime.system import RealClock, RealDisk
from metaquorum.wire.primitives.errors import ErrorCode
from tests.metaquorum.quorum.rpc.local_gateway import LocalGateway
from tests.metaquorum.quorum.storage.crash_disk import CrashDisk

DIRECTORY = "/data/metadata"
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
ENDPOINT = Endpoint("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT")


class Node:
    """Voter with its controller and loader, as in a node."""

    def __init__(
        self,
        disk: Disk,
        seed: int = 0,
        directory: str = DIRECTORY,
        snapshot_interval_bytes: int = 500,
    ) -> None:
        self.loader = MetadataLoader(CLUSTER)
        journal = Journal(disk, directory, CLUSTER, segment_bytes=700)
        self.voter = RaftVoter(
            disk,
            RealClock(),
            Random(seed),
            directory,
            self.loader,
            1,
            (1,),
            NoPeers(),
            snapshot_interval_bytes=snapshot_interval_bytes,
            journal=journal,
        )
        self.random = Random(seed)
        self.controller = Controller(self.voter, self.loader, RealClock(), self.random, {})
        self.controller_client = LocalGateway(self.controller, self.loader)

    async def run(self, work: Callable[["Node"], Awaitable[None]]) -> None:
        """Start the node, do `work`, and stop the node cleanly."""
        await self.voter.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.voter.run)
            nursery.start_soon(self.loader.run)
            await self.controller.start()
            worker = WorkerRegistration(
                1, self.random.randbytes(16), (ENDPOINT,), "host", features=SUPPORTED_FEATURES
            )
            epoch = await self.controller_client.register_worker(worker)
            await self.controller_client.heartbeat(WorkerHeartbeat(1, epoch, epoch + 1))
            await work(self)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await self.voter.close()


def create(acknowledged: list[str], names: list[str]) -> Callable[[Node], Awaitable[None]]:
    async def one(node: Node, name: str) -> None:
        (outcome,) = await node.controller_client.create_topics([NewTopic(name, 2)])
        assert outcome.code is ErrorCode.NONE
        acknowledged.append(name)

    async def work(node: Node) -> None:
        for name in names[: len(names) // 2]:
            await one(node, name)
        async with trio.open_nursery() as nursery:
            for name in names[len(names) // 2 :]:
                nursery.start_soon(one, node, name)

    return work


NAMES = [f"topic-{number}" for number in range(10)]
MORE_NAMES = [f"more-{number}" for number in range(6)]


def run_until_crash(disk: CrashDisk, acknowledged: list[str]) -> None:
    try:
        trio.run(Node(disk, 1).run, create(acknowledged, NAMES))
        trio.run(Node(disk, 2).run, create(acknowledged, MORE_NAMES))
    except BaseException:
        if not disk.crashed:
            raise


async def nothing(node: Node) -> None:
    pass


def recovered(disk: CrashDisk) -> MetadataImage:
    node = Node(disk, 3)
    trio.run(node.run, nothing)
    return node.loader.image


def operations_of_a_whole_run() -> int:
    disk, acknowledged = CrashDisk(), []
    run_until_crash(disk, acknowledged)
    assert sorted(acknowledged) == sorted(NAMES + MORE_NAMES)
    assert [name for name in disk.files if name.endswith(".snapshot")]
    assert not disk.exists(f"{DIRECTORY}/{0:020d}.journal"), "no segment was ever removed"
    return disk.operations


def assert_older_snapshot_reaches_journal(disk: CrashDisk) -> None:
    journal = Journal(disk, DIRECTORY, CLUSTER)
    journal.open()
    reach = [name.position.index for name in snapshots(disk, DIRECTORY)] or [0]
    assert journal.base.index <= reach[-1]


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
def test_a_crash_between_any_two_writes_loses_nothing_acknowledged(power: bool) -> None:
    for fail_at in range(operations_of_a_whole_run()):
        disk, acknowledged = CrashDisk(fail_at=fail_at), []
        run_until_crash(disk, acknowledged)
        if not disk.crashed:
            continue  # trio's schedule differs a little from run to run
        survivor = disk.survivor(Random(fail_at) if power else None)
        image = recovered(survivor)
        assert set(acknowledged) <= set(image.topics), f"operation {fail_at}"
        assert set(image.topics) <= set(NAMES + MORE_NAMES)
        assert_older_snapshot_reaches_journal(survivor)
        assert recovered(survivor).topics == image.topics


def test_a_journal_that_lost_its_end_after_an_orderly_stop_is_not_said_to_be_unsynced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The journal was synced completely: a later truncation may remove entries peers rely on."""
    disk, acknowledged = CrashDisk(), []
    trio.run(Node(disk, 1).run, create(acknowledged, NAMES[:1]))
    newest = max(name for name in disk.files if name.endswith(".journal"))
    del disk.files[newest].data[-3:]
    with caplog.at_level(logging.WARNING):
        recovered(disk)
    (line,) = [
        record.getMessage() for record in caplog.records if "truncated" in record.getMessage()
    ]
    assert "never synced" not in line
    assert f"the journal in {DIRECTORY} ends with an incomplete frame" in line
    assert "if the file was truncated later" in line


def test_every_start_is_a_term_of_its_own_and_raises_the_epochs_of_what_the_worker_leads() -> None:
    disk = CrashDisk()
    terms, epochs = [], []

    async def look(node: Node) -> None:
        if not terms:
            await node.controller_client.create_topics([NewTopic("t")])
        terms.append(node.voter.status.term)
        epochs.append(node.loader.image.topics["t"].partitions[0].leader_epoch)

    for seed in range(3):
        trio.run(Node(disk, seed).run, look)
    assert terms == [1, 2, 3]
    assert epochs == [0, 2, 4]  # without a leader in between


def test_proposals_that_wait_together_share_one_sync() -> None:
    disk = CrashDisk()

    async def work(node: Node) -> None:
        before, status = disk.operations, node.voter.status
        proposals = [
            node.voter.propose(
                status.term,
                status.end_offset + number,
                [encode_record(TopicRecord(f"t{number}", bytes([number] * 16)))],
            )
            for number in range(50)
        ]
        for proposal in proposals:
            await proposal.wait()
        assert disk.operations - before == 2  # a write and its sync

    trio.run(Node(disk, snapshot_interval_bytes=1 << 20).run, work)


def test_a_full_disk_refuses_changes_and_serves_again_when_there_is_room() -> None:
    disk = CrashDisk()

    async def work(node: Node) -> None:
        disk.full_at_bytes = disk.used_bytes() + 20
        (refused,) = await node.controller_client.create_topics([NewTopic("a", 50)])
        assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert node.loader.image.topic("a") is None
        disk.full_at_bytes = None
        (made,) = await node.controller_client.create_topics([NewTopic("b", 50)])
        assert made.code is ErrorCode.NONE

    trio.run(Node(disk).run, work)
    assert set(recovered(disk.survivor(Random(1))).topics) == {"b"}


def test_a_failed_sync_stops_the_voter_and_nobody_is_told_that_nothing_happened() -> None:
    disk = CrashDisk()
    answers = []

    async def work(node: Node) -> None:
        disk.failing_syncs = 1
        answers.extend(await node.controller_client.create_topics([NewTopic("a")]))

    with pytest.RaisesGroup(StorageError, flatten_subgroups=True):
        trio.run(Node(disk).run, work)
    for answer in answers:
        assert answer.code is ErrorCode.REQUEST_TIMED_OUT


def test_a_batch_decided_on_another_state_is_refused_and_leaves_no_trace() -> None:
    disk = CrashDisk()

    async def work(node: Node) -> None:
        status = node.voter.status
        record = encode_record(TopicRecord("a", bytes(16)))
        stale = node.voter.propose(status.term, status.end_offset - 1, [record])
        with pytest.raises(NotCommittedError) as caught:
            await stale.wait()
        assert caught.value.retry
        with pytest.raises(NotCommittedError):
            node.voter.propose(status.term - 1, status.end_offset, [record])
        assert node.voter.status.end_offset == status.end_offset

    trio.run(Node(disk).run, work)


def test_what_was_on_its_way_when_the_voter_stopped_is_unknown() -> None:
    async def main() -> None:
        node = Node(CrashDisk())
        await node.voter.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.voter.run)
            record = encode_record(TopicRecord("a", bytes(16)))
            proposal = node.voter.propose(1, 0, [record])
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        with pytest.raises((OutcomeUnknownError, NotCommittedError)):
            await proposal.wait()

    trio.run(main)


def test_a_damaged_newest_snapshot_is_set_aside_and_the_older_one_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, acknowledged = CrashDisk(), []
    run_until_crash(disk, acknowledged)
    newest = max(name for name in disk.files if name.endswith(".snapshot"))
    disk.files[newest].data[100] ^= 1
    with caplog.at_level(logging.WARNING):
        assert set(recovered(disk).topics) == set(acknowledged)
    assert "an older snapshot is tried" in caplog.text
    assert disk.exists(newest + ".damaged")


def test_without_a_readable_snapshot_the_voter_does_not_start_on_half_a_log() -> None:
    disk = CrashDisk()
    run_until_crash(disk, [])
    for name in [name for name in disk.files if name.endswith(".snapshot")]:
        disk.files[name].data[100] ^= 1
    with pytest.raises(StorageError, match="no readable snapshot"):
        trio.run(Node(disk).voter.start)


def test_the_voter_runs_on_a_real_disk(tmp_path: object) -> None:
    acknowledged: list[str] = []
    directory = f"{tmp_path}/metadata"
    trio.run(Node(RealDisk(), 1, directory).run, create(acknowledged, NAMES))
    node = Node(RealDisk(), 2, directory)
    trio.run(node.run, nothing)
    assert sorted(node.loader.image.topics) == sorted(acknowledged)
