"""The truncation ledger: an entry for each lost range, synced before the truncation."""

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from metaquorum.dataplane.partition.partition import NOWHERE, Partition
from metaquorum.dataplane.replication.follower_state import Truncation
from metaquorum.dataplane.replication.truncation_ledger import (
    FILE_NAME,
    MAX_FILE_BYTES,
    OLD_FILE_NAME,
    Acknowledged,
    Entry,
    Reason,
    TruncationLedger,
    decode_line,
    decode_lines,
    encode_line,
    of_follower,
    of_recovery,
    of_unclean_leader,
)
from metaquorum.metadata.image import NO_LEADER
from metaquorum.runtime.interfaces import Runtime
from metaquorum.runtime.system import RealDisk
from metaquorum.simulations.kernel.machine import Machine
from metaquorum.simulations.kernel.world import World
from metaquorum.wire.messages.describe_truncations import DescribeTruncationsRequest
from metaquorum.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.log.logs import append, make_batch, open_log
from tests.dataplane.partition.test_partition import config_of
from tests.dataplane.replication.replicas import Setting
from tests.dataplane.replication.test_lost_disks import RECORDS, come_back, filled, report_lost_logs
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import batch_of

TOPIC_ID = bytes(range(16))


def entry(number: int = 0, **more: Any) -> Entry:
    fields: dict[str, Any] = {
        "time_ms": 1000 + number,
        "topic": "t",
        "topic_id": TOPIC_ID,
        "partition": 0,
        "reason": Reason.DIVERGENCE,
        "offset": 10 * number,
        "end_offset": 10 * number + 5,
        "last_epoch": 3,
        "leader_id": 2,
        "leader_epoch": 4,
        "high_watermark": 10 * number,
        "acknowledged": Acknowledged.NO,
    }
    return Entry(**(fields | more))


def reopened(folder: Path) -> list[Entry]:
    return list(TruncationLedger.open(RealDisk(), str(folder)))


def record(ledger: TruncationLedger, *entries: Entry) -> None:
    trio.run(ledger.record, entries)


def test_a_line_is_read_back_as_it_was_written_and_not_when_it_was_changed() -> None:
    line = encode_line(entry(7, detail="ünd"))
    assert decode_line(line.rstrip(b"\n")) == entry(7, detail="ünd")
    for position in range(len(line) - 1):
        broken = bytearray(line.rstrip(b"\n"))
        broken[position] ^= 1
        with pytest.raises(ValueError):
            decode_line(bytes(broken))


def test_entries_survive_the_process(tmp_path: Path) -> None:
    ledger = TruncationLedger.open(RealDisk(), str(tmp_path))
    assert (list(ledger), ledger.has_forgotten) == ([], False)
    record(ledger, entry(1), entry(2))
    record(ledger, entry(3))
    assert list(ledger) == reopened(tmp_path) == [entry(1), entry(2), entry(3)]


def test_a_torn_line_is_passed_over_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    record(TruncationLedger.open(RealDisk(), str(tmp_path)), entry(1), entry(2))
    file = tmp_path / FILE_NAME
    file.write_bytes(file.read_bytes()[:-20])
    ledger = TruncationLedger.open(RealDisk(), str(tmp_path))
    assert list(ledger) == [entry(1)]
    record(ledger, entry(3))
    assert reopened(tmp_path) == [entry(1), entry(3)]
    assert decode_lines(file.read_bytes())[1] == 1


async def _killed(runtime: Runtime, data: bytes, size_bytes: int, *, fails: bool = False) -> None:
    """Write the first `size_bytes` of `data` without a sync, or, if `fails`, with a failed one."""
    runtime.disk.make_dirs("/logs")
    runtime.disk.sync_dir("/")
    file = runtime.disk.open(f"/logs/{FILE_NAME}", create=True)
    file.write(data[:size_bytes], 0)
    if fails:
        with pytest.raises(OSError, match="/logs"):
            file.sync()
    file.close()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("state", ["whole", "torn", "sync failed"])
def test_what_a_killed_process_did_not_sync_survives_a_loss_of_power(seed: int, state: str) -> None:
    """A recovery that finds its entry does not write it again, so the entry must be durable."""
    lost = entry(1, reason=Reason.RECOVERY)
    line = encode_line(lost)

    async def check(world: World) -> None:
        machine = world.machine("one")

        async def is_killed(runtime: Runtime) -> None:
            size_bytes = len(line) // 2 if state == "torn" else len(line)
            await _killed(runtime, line, size_bytes, fails=state == "sync failed")

        async def recovers(runtime: Runtime) -> None:
            ledger = TruncationLedger.open(runtime.disk, "/logs")
            await ledger.record([lost])
            assert list(ledger) == [lost]

        async def reads(runtime: Runtime) -> None:
            assert list(TruncationLedger.open(runtime.disk, "/logs")) == [lost]

        if state == "sync failed":
            machine.faults.failing_sync = lambda path: path.endswith(FILE_NAME)
        for life in (is_killed, recovers, reads):
            if life is reads:
                machine.power_cut()
            await machine.start(life).done.wait()
            assert machine.fate.error is None, machine.fate.error
            machine.faults.failing_sync = None

    world = World(seed)
    world.run(check)
    assert not world.violations


def test_a_ledger_is_bounded_and_says_that_it_has_forgotten(tmp_path: Path) -> None:
    ledger = TruncationLedger.open(RealDisk(), str(tmp_path))
    many = [entry(number, detail="x" * 900) for number in range(500)]
    for start in range(0, 4000, 500):
        record(ledger, *many[start % 500 :], *many[: start % 500])
    sizes = [(tmp_path / name).stat().st_size for name in (FILE_NAME, OLD_FILE_NAME)]
    assert max(sizes) <= MAX_FILE_BYTES
    again = TruncationLedger.open(RealDisk(), str(tmp_path))
    assert again.has_forgotten
    assert list(again)[-1] == many[-1]


class FullDisk(RealDisk):
    is_full = True

    def open(self, path: str, *, create: bool = False) -> Any:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")
        return super().open(path, create=create)


def test_what_a_full_disk_refused_is_written_with_the_next(tmp_path: Path) -> None:
    disk = FullDisk()
    ledger = TruncationLedger.open(disk, str(tmp_path))
    record(ledger, entry(1))
    assert list(ledger) == [entry(1)]
    disk.is_full = False
    record(ledger, entry(2))
    assert reopened(tmp_path) == [entry(1), entry(2)]


def test_the_same_recovery_is_recorded_once(tmp_path: Path) -> None:
    ledger = TruncationLedger.open(RealDisk(), str(tmp_path))
    found = entry(1, reason=Reason.RECOVERY)
    record(ledger, found)
    again = TruncationLedger.open(RealDisk(), str(tmp_path))
    record(again, entry(1, reason=Reason.RECOVERY, time_ms=5))
    assert list(again) == [found]
    record(again, entry(2, reason=Reason.RECOVERY))
    assert len(again) == 2


# Reasons and acknowledgements


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    log = open_log(tmp_path / "t-0")
    append(log, make_batch(10), epoch=3)
    yield Partition("t", TOPIC_ID, 0, Setting(1).context, log, config_of(), 8)
    log.close()


@pytest.mark.parametrize(
    ("cut", "unclean_epoch", "reason", "acknowledged"),
    [
        (Truncation(8, 10, 5, 8, 3), -1, Reason.DIVERGENCE, Acknowledged.NO),
        (Truncation(8, 10, 5, 8, 3), 3, Reason.DIVERGENCE, Acknowledged.NO),
        (Truncation(8, 10, 5, 8, 3), 4, Reason.UNCLEAN_ELECTION, Acknowledged.PERHAPS),
        (Truncation(7, 10, 5, 8, 3), 4, Reason.UNCLEAN_ELECTION, Acknowledged.YES),
        (Truncation(7, 10, 5, 8, 3), -1, Reason.LEADER_LOST_IT, Acknowledged.YES),
        (Truncation(0, 10, 5, 8, 3, True), -1, Reason.LEADER_STARTS_LATER, Acknowledged.NO),
    ],
)
def test_an_entry_says_why_and_how_bad(
    partition: Partition,
    cut: Truncation,
    unclean_epoch: int,
    reason: Reason,
    acknowledged: Acknowledged,
) -> None:
    partition.state = replace(NOWHERE, unclean_epoch=unclean_epoch)
    made = of_follower(partition, cut, 1)
    assert (made.reason, made.acknowledged) == (reason, acknowledged)
    assert (made.offset, made.end_offset, made.last_epoch) == (cut.offset, 10, 3)
    committed = 8 - cut.offset if cut.offset < 8 else 0
    assert made.committed_records == committed


@pytest.mark.parametrize(
    ("change", "is_known"),
    [
        ({}, True),
        ({"leader_epoch": 6}, True),
        ({"leader_epoch": 4}, False),  # an election before that
        ({"leader_id": 2}, False),  # another worker lost records by it
        ({"partition": 1}, False),
        ({"topic_id": bytes(16)}, False),
        ({"reason": Reason.DIVERGENCE}, False),
    ],
)
def test_an_election_is_known_by_the_entry_of_its_leader(
    partition: Partition, tmp_path: Path, change: dict[str, Any], is_known: bool
) -> None:
    partition.state, partition.leader_id = replace(NOWHERE, unclean_epoch=5), 1
    ledger = TruncationLedger.open(RealDisk(), str(tmp_path))
    assert not ledger.knows_election(partition)
    of_election = {"reason": Reason.UNCLEAN_ELECTION, "leader_id": 1, "leader_epoch": 5}
    record(ledger, entry(**(of_election | change)))
    assert ledger.knows_election(partition) == is_known


@pytest.mark.parametrize(
    ("before", "epoch", "offset"),
    [
        ((2, 3, -1), 4, 10),  # the log ends in the previous leader's epoch
        ((2, 3, 3), 4, 10),  # in which it has followed that leader, elected uncleanly
        ((NO_LEADER, 4, -1), 5, 10),  # or in that of the leader before an epoch without one
        ((2, 4, -1), 5, 8),  # another worker led since and may have committed records
        ((2, 4, 3), 5, 8),
        ((NO_LEADER, 5, -1), 6, 8),
        ((2, 4, 4), 5, 0),  # one that may not have had the committed records of this log
        ((NO_LEADER, 5, 4), 6, 0),
        ((2, 4, -1), 6, 0),  # the election of the epoch in between is unknown
        ((NO_LEADER, -1, -1), 5, 0),
    ],
)
def test_a_leader_may_lack_what_was_in_place_of_its_own_last_records(
    partition: Partition, before: tuple[int, int, int], epoch: int, offset: int
) -> None:
    partition.leader_id, partition.leader_epoch = 1, epoch
    partition.state = replace(NOWHERE, unclean_epoch=epoch, leader_epoch=epoch)
    leader, leader_epoch, unclean_epoch = before
    known = replace(
        NOWHERE, leader=leader, leader_epoch=leader_epoch, isr=(2,), unclean_epoch=unclean_epoch
    )
    made = of_unclean_leader(partition, known, 8, 1)
    assert (made.offset, made.end_offset) == (offset, -1)
    own = "; its records up to offset 9 are from an earlier epoch than the last leader's"
    assert made.detail == "previous ISR: 2" + (own if offset < 10 else "")


@pytest.mark.parametrize("known", [{"isr": (1,)}, {"last_leader": 1}])
def test_the_last_in_sync_lacks_nothing_below_its_high_watermark(
    partition: Partition, known: dict[str, Any]
) -> None:
    """It has lost power, and the controller has noted that its next epoch begins in doubt."""
    partition.leader_id, partition.leader_epoch = 1, 6
    partition.state = replace(NOWHERE, unclean_epoch=6, leader_epoch=6)
    before = replace(NOWHERE, leader_epoch=5, unclean_epoch=6, **known)
    assert of_unclean_leader(partition, before, 8, 1).offset == 8


# Three nodes


async def told(cluster: Together, node: int, *topics: str) -> list[Any]:
    client = await cluster.connect(node)
    asked = DescribeTruncationsRequest(topics=list(topics) or None)
    answer = await client.call(ApiKey.DESCRIBE_TRUNCATIONS, asked)
    assert not answer.error_code
    client.connection.close()
    return list(answer.truncations)


@together()
async def test_what_nobody_else_had_is_recorded_as_never_committed(cluster: Together) -> None:
    await cluster.create("t", (1, 2, 3))
    client = await cluster.connect(1)
    await client.produce("t", batch_of(b"a"))
    for other in (2, 3):
        cluster.world.internet.cut("node-1", f"node-{other}")
    await client.produce("t", batch_of(b"b"), acks=1)
    await cluster.kill(1)
    await cluster.until(lambda: cluster.state("t", 2).leader in (2, 3))
    cluster.world.internet.heal_all()
    leader = cluster.state("t", 2).leader
    other_client = await cluster.connect(leader)
    await cluster.until(lambda: cluster.worker(leader).replica_manager.by_name("t", 0).is_leader)
    await other_client.produce("t", batch_of(b"c"))
    await cluster.restart(1)
    await cluster.until(lambda: set(cluster.state("t", 2).isr) == {1, 2, 3})
    (found,) = await told(cluster, 1)
    assert (found.topic, found.partition, found.offset, found.end_offset) == ("t", 0, 1, 2)
    assert (found.reason, found.acknowledged) == ("divergence", "no")
    assert (found.leader_id, found.last_epoch) == (leader, 0)
    assert await told(cluster, 1, "other") == []
    assert await told(cluster, leader) == []


@together()
async def test_an_unclean_election_is_recorded_where_it_loses_and_where_it_is_cut(
    cluster: Together,
) -> None:
    await cluster.create("t", (1, 2))
    client = await cluster.connect(1)
    await client.produce("t", batch_of(b"a"))
    await cluster.kill(2)
    await cluster.until(lambda: cluster.state("t", 1).isr == (1,))
    await client.produce("t", batch_of(b"b"))  # by all in-sync replicas
    await cluster.kill(1)
    await cluster.restart(2)
    await cluster.until(lambda: cluster.state("t", 3).leader == -1)
    other = await cluster.connect(3)
    asked = TopicPartitions(topic="t", partitions=[0])
    request = ElectLeadersRequest(election_type=1, topic_partitions=[asked], timeout_ms=20_000)
    answer = await other.call(ApiKey.ELECT_LEADERS, request)
    assert answer.error_code == ErrorCode.NONE
    await cluster.until(lambda: cluster.state("t", 2).leader == 2)
    await cluster.until(lambda: len(cluster.worker(2).isr_manager.ledger) == 1)
    (lost,) = await told(cluster, 2)
    assert (lost.reason, lost.acknowledged) == ("unclean election", "perhaps")
    assert (lost.offset, lost.end_offset, lost.detail) == (
        1,
        -1,
        "previous eligible leader replicas: 1",
    )
    await cluster.restart(1)
    await cluster.until(lambda: set(cluster.state("t", 2).isr) == {1, 2})
    (cut,) = await told(cluster, 1)
    assert (cut.offset, cut.end_offset) == (1, 2)
    assert (cut.reason, cut.acknowledged) == ("unclean election", "perhaps")
    await cluster.restart(2)
    assert await told(cluster, 2) == [lost], "it survives the process"


@together(replica_high_watermark_checkpoint_interval_ms=100)
async def test_a_log_that_lost_what_was_committed_says_so_when_it_is_opened(
    cluster: Together,
) -> None:
    await cluster.create("t", (1,))
    client = await cluster.connect(1)
    for number in range(5):
        await client.produce("t", batch_of(b"%d" % number))
    await cluster.world.sleep(0.2)
    machine: Machine = cluster.nodes[1].machine
    machine.kill()
    file = machine.storage.file("/data/t-0/00000000000000000000.log")
    file.truncate(len(file.data) - 10)
    await cluster.restart(1)
    (found,) = await told(cluster, 1)
    assert (found.reason, found.acknowledged) == ("recovery", "yes")
    assert (found.offset, found.end_offset, found.high_watermark) == (4, -1, 5)
    assert found.detail.endswith("the log had reached at least offset 5")


@pytest.mark.parametrize(
    ("reason", "end_offset", "known_high_watermark", "is_recorded"),
    [
        (Reason.LEADER_STARTS_LATER, 20, 20, False),
        (Reason.LEADER_STARTS_LATER, 20, 21, True),  # checkpointed after that truncation
        (Reason.DIVERGENCE, 20, 20, True),
        (None, 0, 20, True),
    ],
)
def test_what_a_kill_left_of_a_recorded_cut_of_the_whole_log_is_no_loss(
    partition: Partition,
    tmp_path: Path,
    reason: Reason | None,
    end_offset: int,
    known_high_watermark: int,
    is_recorded: bool,
) -> None:
    ledger = TruncationLedger.open(RealDisk(), str(tmp_path))
    if reason is not None:
        record(ledger, entry(reason=reason, end_offset=end_offset), entry(9, partition=1))
    partition.known_high_watermark = known_high_watermark
    assert partition.log.log_end_offset < known_high_watermark
    found = of_recovery(partition, 2000, ledger.last_of)
    assert (found is not None) == is_recorded


@together()
async def test_a_lost_log_is_recorded_with_what_was_noted_of_it(cluster: Together) -> None:
    await filled(cluster, (1, 2))
    await cluster.kill(2)
    report_lost_logs(cluster, 2)
    await come_back(cluster, 2)
    await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2))
    (found,) = await told(cluster, 2)
    assert (found.topic, found.reason, found.acknowledged) == ("t", "lost log", "perhaps")
    assert (found.offset, found.end_offset, found.high_watermark) == (0, -1, RECORDS)
    assert found.detail == f"the log had reached at least offset {RECORDS}"
    await cluster.restart(2)
    assert await told(cluster, 2) == [found]
