"""Scenario `quorum`: three or five Raft voters; drivers in their processes change topics.

no faults -> faults, several at a time -> no faults: within `LIVENESS_S` a leader is active, all
running voters have all entries, and a topic can be created -> clean stop -> images, logs and disks
are compared
"""

from collections.abc import Awaitable, Callable, Collection
from random import Random
from typing import Final, TypeAlias

import trio

from metaquorum.metadata.batch import decode_batch
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.replay import Replay
from metaquorum.quorum.raft.timings import RaftTimings
from metaquorum.quorum.storage.journal_ops import LogPosition
from metaquorum.quorum.storage.snapshot import SnapshotReader, snapshots
from metaquorum.runtime.interfaces import Runtime
from metaquorum.simulations.cluster.fault_plan import SPLITS, PlannedFault, draw_faults, without
from metaquorum.simulations.cluster.faults import CLUSTER_FAULTS, FaultTargets, calm, play_faults
from metaquorum.simulations.cluster.quorum_checkers import (
    QUORUM_CHECKERS,
    AnswersAreKept,
    CommittedIsOneLog,
    ImagesAreOne,
    RotIsNoticed,
    StrangersStayOut,
)
from metaquorum.simulations.cluster.supervisor import Supervisor
from metaquorum.simulations.cluster.voter_disks import METADATA_DIR
from metaquorum.simulations.cluster.voter_group import (
    CLUSTER_ID,
    QuorumSettings,
    Voter,
    VoterGroup,
    image_of,
)
from metaquorum.simulations.cluster.voter_program import (
    SECRET,
    STRANGER,
    stranger_program,
    voter_program,
)
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.world import World

# Virtual seconds, after the faults, within which a change must be made and reach all voters.
LIVENESS_S: Final = 10.0
LOOK_EVERY_S: Final = 0.3
STOP_LIMIT_S: Final = 30.0
# Share of the seeds with long syncs of leaders as the only faults (see
# `simulations/single_node/narrow.py`), and share of the others with repeated connection resets.
LONG_SYNCS: Final = 0.08
RECONNECTED: Final = 0.06

FaultScript: TypeAlias = Callable[[VoterGroup, FaultTargets], Awaitable[None]]

# A voter whose disk is replaced has forgotten its vote and the entries that it acknowledged:
# scenario `rebuilt-voter` has that fault, with the documented procedure.
_NOT_YET: Final = ("lost disk",)
KINDS: Final = tuple(kind for kind in CLUSTER_FAULTS if kind not in _NOT_YET)
# Drawn more often, as they take effect only with weak voters or among few other faults.
_OFTEN: Final = ("bit rot", "bit rot", "failing sync", "stop in snapshot", *["failing read"] * 2)


def draw_settings(draw: Random) -> QuorumSettings:
    voters = draw.choice([3, 3, 3, 5])
    fault_s = draw.choice([3.0, 6.0, 12.0])
    return QuorumSettings(
        voters=voters,
        drivers=draw.choice([1, 2, 4]),
        think_s=draw.choice([0.02, 0.1, 0.5]),
        acts=draw.choice([20, 60, 200]),
        fault_s=fault_s,
        peace_s=draw.choice([0.0, 1.5]),
        segment_bytes=draw.choice([600, 4000, 1 << 20]),
        snapshot_interval_bytes=draw.choice([1500, 10_000, 1 << 20]),
        delay_s=draw.choice([0.0001, 0.0002, 0.002, 0.02]),
        jitter_s=draw.choice([0.0003, 0.003, 0.02]),
        disk_delay_s=draw.choice([0.0005, 0.0005, 0.005, 0.02]),
        slow=draw.choice([0.0, 0.02, 0.1]),
        timings=draw.choice([RaftTimings(), RaftTimings(heartbeat_s=0.05, fallback_s=0.6)]),
        weak=tuple(sorted(draw.sample(range(1, voters + 1), draw.randint(0, (voters - 1) // 2)))),
        has_stranger=draw.random() < 0.3,
        faults=draw_faults(draw, (*KINDS, *_OFTEN), over_s=fault_s, most=20),
    )


def _long_syncs(settings: QuorumSettings, draw: Random) -> None:
    """Set up a narrow world: leaders are replaced while their disks sync, and many readers."""
    settings.voters, settings.weak, settings.has_stranger = 3, (), False
    settings.drivers, settings.think_s, settings.acts = 2, 0.1, 2000
    settings.readers, settings.read_think_s = 12, 3.0
    settings.delay_s, settings.jitter_s = 0.0002, 0.0003
    settings.disk_delay_s, settings.slow = 0.0005, 0.0
    settings.timings = RaftTimings()
    settings.segment_bytes = settings.snapshot_interval_bytes = 1 << 20
    settings.peace_s = 1.5
    settings.faults = tuple(
        PlannedFault(number, "long sync", 3.0 * number, 0.0) for number in range(draw.randint(2, 4))
    )


def _reconnected(settings: QuorumSettings, draw: Random) -> None:
    """Set up a narrow world: connections break while followers have more than the snapshot."""
    settings.voters, settings.weak, settings.has_stranger = 3, (), False
    settings.drivers, settings.think_s, settings.acts = 4, 0.02, 400
    settings.delay_s, settings.jitter_s = 0.02, 0.003
    settings.disk_delay_s, settings.slow = 0.0005, 0.0
    settings.timings = RaftTimings()
    settings.segment_bytes, settings.snapshot_interval_bytes = 4000, 10_000
    settings.peace_s = 1.5
    settings.faults = tuple(
        PlannedFault(number, kind, round(draw.uniform(0.0, 3.0), 3), 3.0)
        for number, kind in enumerate(["resets"] * 4 + ["kill"] * 3)
    )


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    settings = draw_settings(world.stream("settings quorum"))
    narrow = world.stream("narrow")
    if narrow.random() < LONG_SYNCS:
        _long_syncs(settings, narrow)
    elif narrow.random() < RECONNECTED:
        _reconnected(settings, narrow)
    world.faults = {fault.number: str(fault) for fault in settings.faults}
    settings.faults = without(settings.faults, leave_out)
    await play_settings(world, settings)


async def play_settings(world: World, settings: QuorumSettings) -> None:
    async def fault(voter_group: VoterGroup, targets: FaultTargets) -> None:
        async with trio.open_nursery() as faults:
            faults.start_soon(play_faults, targets, settings.faults)
            if settings.has_stranger:
                faults.start_soon(_stranger, voter_group)

    await play_voter_group(world, settings, fault)


async def play_voter_group(world: World, settings: QuorumSettings, fault: FaultScript) -> None:
    """Play one world of these settings, with the faults of `fault`."""
    world.say("story", f"{settings}")
    voter_group = VoterGroup(world, settings, QUORUM_CHECKERS)
    link = world.internet.default
    link.delay_s, link.jitter_s = settings.delay_s, settings.jitter_s
    link.split = world.stream("links").choice(SPLITS)
    for voter_id in range(1, settings.voters + 1):
        voter_group.voters[voter_id] = _make_voter(voter_group, voter_id)
    async with trio.open_nursery() as nursery:
        for voter in voter_group.voters.values():
            nursery.start_soon(voter.supervisor.run)
        nursery.start_soon(_look, voter_group)
        await world.sleep(settings.peace_s)
        targets = _targets(voter_group)
        await fault(voter_group, targets)
        await calm(targets)
        await _recover(voter_group)
        voter_group.looked()
        await _stop(voter_group, nursery)
    await _compare(voter_group)
    _count(voter_group)


def _make_voter(voter_group: VoterGroup, voter_id: int) -> Voter:
    world, settings, name = voter_group.world, voter_group.settings, f"voter-{voter_id}"
    skew_s = world.stream(f"skew {voter_id}").uniform(-3600, 3600)
    rate = 1 + world.stream(f"rate {voter_id}").choice([0.0, 1e-4, -1e-4, 0.02, -0.02])
    machine = world.machine(name, skew_s=skew_s, rate=rate)
    machine.faults.delay_s, machine.faults.slow = settings.disk_delay_s, settings.slow
    voter: Voter
    supervisor = Supervisor(
        world, machine, lambda: voter_program(voter_group, voter), world.stream(f"keep {name}")
    )
    voter = Voter(voter_id, supervisor)
    return voter


def _targets(voter_group: VoterGroup) -> FaultTargets:
    by_name = {voter.name: voter.voter_id for voter in voter_group.voters.values()}

    def leader() -> Supervisor | None:
        voter = voter_group.leader()
        return None if voter is None else voter.supervisor

    return FaultTargets(
        voter_group.world,
        [voter.supervisor for voter in voter_group.voters.values()],
        leader=leader,
        weak=[voter_group.voters[voter_id].supervisor for voter_id in voter_group.settings.weak],
        rots=lambda supervisor: voter_group.checker(RotIsNoticed).rots(by_name[supervisor.name]),
    )


async def _look(voter_group: VoterGroup) -> None:
    while True:
        await voter_group.world.sleep(LOOK_EVERY_S)
        voter_group.looked()


async def _stranger(voter_group: VoterGroup) -> None:
    """Run a voter of another cluster that has this cluster's addresses in its configuration."""
    world, draw = voter_group.world, voter_group.world.stream(STRANGER)
    as_voter = draw.randint(1, voter_group.settings.voters)
    secret = draw.choice([SECRET, b"another cluster's own secret"])
    seen: list[int] = []
    machine = world.machine(STRANGER)
    await world.sleep(draw.uniform(0, voter_group.settings.fault_s / 2))
    machine.start(stranger_program(voter_group, as_voter, secret, seen))
    await world.sleep(draw.uniform(0.5, voter_group.settings.fault_s / 2))
    if not machine.running:
        raise RuntimeError(f"the stranger has ended: {machine.fate.error!r}")
    machine.kill()
    reached = sum(n for (source, _), n in world.internet.made.items() if source == STRANGER)
    voter_group.checker(StrangersStayOut).stranger(reached, seen)


async def _recover(voter_group: VoterGroup) -> None:
    """Wait until a topic was created, and all voters not given up have all entries."""
    world = voter_group.world
    before = len(voter_group.topics.created)
    began = world.now
    voter_group.is_recovering = True
    with trio.move_on_after(LIVENESS_S) as limit:
        while len(voter_group.topics.created) == before and not world.violations:
            await world.sleep(0.05)
        voter_group.closing = True
        while not world.violations:
            offsets = {_end_offset(voter) for voter in _here(voter_group)}
            log = voter_group.checker(CommittedIsOneLog)
            if voter_group.active() is not None and offsets == {log.end_offset}:
                world.count("recovered within ms, in all", round((world.now - began) * 1000))
                break
            await world.sleep(0.05)
    voter_group.closing = True
    if limit.cancelled_caught:
        stands = {
            voter.name: (voter.leadership, _end_offset(voter)) for voter in _here(voter_group)
        }
        world.violate(
            "liveness", f"no change reached all voters within {LIVENESS_S:.0f} s: {stands}"
        )


def _here(voter_group: VoterGroup) -> list[Voter]:
    """Return the voters that were not given up."""
    return [voter for voter in voter_group.voters.values() if not voter.supervisor.is_out]


def _end_offset(voter: Voter) -> int:
    return -1 if voter.loader is None else image_of(voter).end_offset


async def _stop(voter_group: VoterGroup, nursery: trio.Nursery) -> None:
    """Stop all voters cleanly, without restarts."""
    nursery.cancel_scope.cancel()
    with trio.move_on_after(STOP_LIMIT_S, shield=True) as limit:
        for voter in voter_group.voters.values():
            if voter.supervisor.machine.running:
                voter.supervisor.stop()
                fate = voter.supervisor.machine.fate
                await fate.done.wait()
                if fate.error is not None:
                    voter_group.world.violate("liveness", f"{voter.name} ended: {fate.error!r}")
    if limit.cancelled_caught:
        voter_group.world.violate("liveness", f"the voters do not stop within {STOP_LIMIT_S:.0f} s")


async def _compare(voter_group: VoterGroup) -> None:
    if voter_group.world.violations:
        return
    images: dict[str, MetadataImage] = {}
    for voter in _here(voter_group):
        images[voter.name] = image = image_of(voter)
        images[f"disk of {voter.name}"] = await _from_disk(voter_group, voter, image.end_offset)
    voter_group.checker(ImagesAreOne).images(images)
    voter_group.checker(AnswersAreKept).images(images)


async def _from_disk(voter_group: VoterGroup, voter: Voter, end_offset: int) -> MetadataImage:
    """Return the image of a voter's newest snapshot and journal, without the code of recovery."""
    images: list[MetadataImage] = []

    async def read(runtime: Runtime) -> None:
        replay = Replay(MetadataImage.empty(CLUSTER_ID))
        position, offset = LogPosition(0, 0), 0
        for name in snapshots(runtime.disk, METADATA_DIR)[:1]:
            reader = SnapshotReader(runtime.disk, name.path)
            while (records := reader.next_records()) is not None:
                replay.apply(records)
            reader.close()
            position, offset = name.position, name.end_offset
        for index, entry in sorted(voter_group.durable(voter.voter_id).entries.items()):
            batch = decode_batch(entry.payload) if entry.payload else None
            if batch is None or index <= position.index or offset == end_offset:
                continue
            if (batch.term, batch.expected_offset) == (entry.term, offset):
                replay.apply(batch.records())
                offset = batch.end_offset
        images.append(replay.finish(offset)[0])

    fate = voter.supervisor.machine.start(read)
    await fate.done.wait()
    if fate.error is not None:
        raise fate.error
    return images[0]


def _count(voter_group: VoterGroup) -> None:
    world = voter_group.world
    for voter in voter_group.voters.values():
        for name, number in voter.supervisor.machine.faults.happened.items():
            world.count(name, number)
    log = voter_group.checker(CommittedIsOneLog)
    world.count("batches committed", len(log.log))
    world.count("metadata records committed", log.end_offset)
    world.count("events", len(world.trace.events))


QUORUM: Final = Scenario(
    "quorum",
    "three or five voters that create topics, through every kind of fault, several at a time",
    play,
    QUORUM_CHECKERS,
    gates=(
        "commits",
        "leaders",
        "proposals committed",
        "proposals not committed",
        "proposals unknown",
        "snapshots taken in",
        "strangers knocked",
        "refused a rotten disk",
        "power took bytes",
        "power took names",
        "power took torn files",
        *(f"fault: {kind}" for kind in KINDS),
    ),
)
