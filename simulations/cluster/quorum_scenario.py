"""Scenario `quorum`: three or five voters that make topics, and what must hold among them.

peace -> troubles, many at a time -> calm: within `LIVENESS_S` a leader is active, everybody who
runs has everything, and a new topic can be made -> clean stop -> images, logs and disks compared
"""

from collections.abc import Awaitable, Callable, Collection
from random import Random
from typing import Final, TypeAlias

import trio

from metaquorum.metadata.batch import decode_batch
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.replay import Replay
from metaquorum.raft.timings import RaftTimings
from metaquorum.runtime.interfaces import Runtime
from metaquorum.storage.journal_ops import LogPosition
from metaquorum.storage.snapshot import SnapshotReader, snapshots
from simulations.cluster.fault_plan import SPLITS, Trouble, draw_troubles, without
from simulations.cluster.faults import TROUBLES, Scene, calm, play_troubles
from simulations.cluster.quorum_checkers import (
    QUORUM_CHECKERS,
    AnswersAreKept,
    CommittedIsOneLog,
    ImagesAreOne,
    RotIsNoticed,
    StrangersStayOut,
)
from simulations.cluster.supervisor import Kept
from simulations.cluster.voter_disks import METADATA_DIR
from simulations.cluster.voter_group import CLUSTER_ID, Council, QuorumSettings, Voter, image_of
from simulations.cluster.voter_program import SECRET, STRANGER, stranger_program, voter_program
from simulations.harness.scenario import Scenario
from simulations.kernel.world import World

# Once all trouble is over, so many virtual seconds for a change to be made and to be everywhere.
LIVENESS_S: Final = 10.0
LOOK_EVERY_S: Final = 0.3
STOP_LIMIT_S: Final = 30.0
# Of the seeds, those that have nothing but long syncs of leaders
# (`simulations/single_node/narrow.py`), and of the others, those whose leaders are cut off from
# followers and reached again over and over.
LONG_SYNCS: Final = 0.08
RECONNECTED: Final = 0.06

Befall: TypeAlias = Callable[[Council, Scene], Awaitable[None]]

# A voter whose disk is replaced by an empty one has forgotten its vote and what it acknowledged:
# `rebuilt-voter` has that where the others do as the docs say.
_NOT_YET: Final = ("lost disk",)
KINDS: Final = tuple(kind for kind in TROUBLES if kind not in _NOT_YET)
# These come about only where the seed has weak voters, or little is amiss otherwise.
_OFTEN: Final = ("bit rot", "bit rot", "failing sync", "stop in snapshot", *["failing read"] * 2)


def draw_settings(draw: Random) -> QuorumSettings:
    voters = draw.choice([3, 3, 3, 5])
    trouble_s = draw.choice([3.0, 6.0, 12.0])
    return QuorumSettings(
        voters=voters,
        drivers=draw.choice([1, 2, 4]),
        think_s=draw.choice([0.02, 0.1, 0.5]),
        acts=draw.choice([20, 60, 200]),
        trouble_s=trouble_s,
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
        troubles=draw_troubles(draw, (*KINDS, *_OFTEN), over_s=trouble_s, most=20),
    )


def _long_syncs(settings: QuorumSettings, draw: Random) -> None:
    """A narrow world: leaders that are replaced while their disks sync, and many readers."""
    settings.voters, settings.weak, settings.has_stranger = 3, (), False
    settings.drivers, settings.think_s, settings.acts = 2, 0.1, 2000
    settings.readers, settings.read_think_s = 12, 3.0
    settings.delay_s, settings.jitter_s = 0.0002, 0.0003
    settings.disk_delay_s, settings.slow = 0.0005, 0.0
    settings.timings = RaftTimings()
    settings.segment_bytes = settings.snapshot_interval_bytes = 1 << 20
    settings.peace_s = 1.5
    settings.troubles = tuple(
        Trouble(number, "long sync", 3.0 * number, 0.0) for number in range(draw.randint(2, 4))
    )


def _reconnected(settings: QuorumSettings, draw: Random) -> None:
    """A narrow world: connections break while followers hold more than the leader's snapshot."""
    settings.voters, settings.weak, settings.has_stranger = 3, (), False
    settings.drivers, settings.think_s, settings.acts = 4, 0.02, 400
    settings.delay_s, settings.jitter_s = 0.02, 0.003
    settings.disk_delay_s, settings.slow = 0.0005, 0.0
    settings.timings = RaftTimings()
    settings.segment_bytes, settings.snapshot_interval_bytes = 4000, 10_000
    settings.peace_s = 1.5
    settings.troubles = tuple(
        Trouble(number, kind, round(draw.uniform(0.0, 3.0), 3), 3.0)
        for number, kind in enumerate(["resets"] * 4 + ["kill"] * 3)
    )


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    settings = draw_settings(world.stream("settings quorum"))
    narrow = world.stream("narrow")
    if narrow.random() < LONG_SYNCS:
        _long_syncs(settings, narrow)
    elif narrow.random() < RECONNECTED:
        _reconnected(settings, narrow)
    world.faults = {trouble.number: str(trouble) for trouble in settings.troubles}
    settings.troubles = without(settings.troubles, leave_out)
    await play_settings(world, settings)


async def play_settings(world: World, settings: QuorumSettings) -> None:
    async def trouble(council: Council, scene: Scene) -> None:
        async with trio.open_nursery() as troubles:
            troubles.start_soon(play_troubles, scene, settings.troubles)
            if settings.has_stranger:
                troubles.start_soon(_stranger, council)

    await play_council(world, settings, trouble)


async def play_council(world: World, settings: QuorumSettings, trouble: Befall) -> None:
    """One world of these settings, in which `trouble` befalls the voters between peace and calm."""
    world.say("story", f"{settings}")
    council = Council(world, settings, QUORUM_CHECKERS)
    link = world.internet.default
    link.delay_s, link.jitter_s = settings.delay_s, settings.jitter_s
    link.split = world.stream("links").choice(SPLITS)
    for voter_id in range(1, settings.voters + 1):
        council.voters[voter_id] = _make_voter(council, voter_id)
    async with trio.open_nursery() as nursery:
        for voter in council.voters.values():
            nursery.start_soon(voter.kept.run)
        nursery.start_soon(_look, council)
        await world.sleep(settings.peace_s)
        scene = _scene(council)
        await trouble(council, scene)
        await calm(scene)
        await _recover(council)
        council.looked()
        await _stop(council, nursery)
    await _compare(council)
    _count(council)


def _make_voter(council: Council, voter_id: int) -> Voter:
    world, settings, name = council.world, council.settings, f"voter-{voter_id}"
    skew_s = world.stream(f"skew {voter_id}").uniform(-3600, 3600)
    rate = 1 + world.stream(f"rate {voter_id}").choice([0.0, 1e-4, -1e-4, 0.02, -0.02])
    machine = world.machine(name, skew_s=skew_s, rate=rate)
    machine.faults.delay_s, machine.faults.slow = settings.disk_delay_s, settings.slow
    voter: Voter
    kept = Kept(world, machine, lambda: voter_program(council, voter), world.stream(f"keep {name}"))
    voter = Voter(voter_id, kept)
    return voter


def _scene(council: Council) -> Scene:
    by_name = {voter.name: voter.voter_id for voter in council.voters.values()}

    def leader() -> Kept | None:
        voter = council.leader()
        return None if voter is None else voter.kept

    return Scene(
        council.world,
        [voter.kept for voter in council.voters.values()],
        leader=leader,
        weak=[council.voters[voter_id].kept for voter_id in council.settings.weak],
        rots=lambda kept: council.checker(RotIsNoticed).rots(by_name[kept.name]),
    )


async def _look(council: Council) -> None:
    while True:
        await council.world.sleep(LOOK_EVERY_S)
        council.looked()


async def _stranger(council: Council) -> None:
    """Another cluster's voter finds this one's addresses in its configuration."""
    world, draw = council.world, council.world.stream(STRANGER)
    as_voter = draw.randint(1, council.settings.voters)
    secret = draw.choice([SECRET, b"another cluster's own secret"])
    seen: list[int] = []
    machine = world.machine(STRANGER)
    await world.sleep(draw.uniform(0, council.settings.trouble_s / 2))
    machine.start(stranger_program(council, as_voter, secret, seen))
    await world.sleep(draw.uniform(0.5, council.settings.trouble_s / 2))
    if not machine.running:
        raise RuntimeError(f"the stranger has ended: {machine.fate.error!r}")
    machine.kill()
    reached = sum(n for (source, _), n in world.internet.made.items() if source == STRANGER)
    council.checker(StrangersStayOut).stranger(reached, seen)


async def _recover(council: Council) -> None:
    """All who are not given up have all, and a topic can still be made."""
    world = council.world
    before = len(council.topics.created)
    began = world.now
    with trio.move_on_after(LIVENESS_S) as limit:
        while len(council.topics.created) == before and not world.violations:
            await world.sleep(0.05)
        council.closing = True
        while not world.violations:
            offsets = {_end_offset(voter) for voter in _here(council)}
            log = council.checker(CommittedIsOneLog)
            if council.active() is not None and offsets == {log.end_offset}:
                world.count("recovered within ms, in all", round((world.now - began) * 1000))
                break
            await world.sleep(0.05)
    council.closing = True
    if limit.cancelled_caught:
        stands = {voter.name: (voter.leadership, _end_offset(voter)) for voter in _here(council)}
        world.violate(
            "liveness", f"no change made, and everywhere, after {LIVENESS_S:.0f} s: {stands}"
        )


def _here(council: Council) -> list[Voter]:
    """Those that were not given up."""
    return [voter for voter in council.voters.values() if not voter.kept.is_out]


def _end_offset(voter: Voter) -> int:
    return -1 if voter.loader is None else image_of(voter).end_offset


async def _stop(council: Council, nursery: trio.Nursery) -> None:
    """In good order; nothing is started any more."""
    nursery.cancel_scope.cancel()
    with trio.move_on_after(STOP_LIMIT_S, shield=True) as limit:
        for voter in council.voters.values():
            if voter.kept.machine.running:
                voter.kept.stop()
                fate = voter.kept.machine.fate
                await fate.done.wait()
                if fate.error is not None:
                    council.world.violate("liveness", f"{voter.name} ended: {fate.error!r}")
    if limit.cancelled_caught:
        council.world.violate("liveness", f"no stop within {STOP_LIMIT_S:.0f} s")


async def _compare(council: Council) -> None:
    if council.world.violations:
        return
    images: dict[str, MetadataImage] = {}
    for voter in _here(council):
        images[voter.name] = image = image_of(voter)
        images[f"disk of {voter.name}"] = await _from_disk(council, voter, image.end_offset)
    council.checker(ImagesAreOne).images(images)
    council.checker(AnswersAreKept).images(images)


async def _from_disk(council: Council, voter: Voter, end_offset: int) -> MetadataImage:
    """Snapshot and tail, by a reader as simple as can be."""
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
        for index, entry in sorted(council.durable(voter.voter_id).entries.items()):
            batch = decode_batch(entry.payload) if entry.payload else None
            if batch is None or index <= position.index or offset == end_offset:
                continue
            if (batch.term, batch.expected_offset) == (entry.term, offset):
                replay.apply(batch.records())
                offset = batch.end_offset
        images.append(replay.finish(offset)[0])

    fate = voter.kept.machine.start(read)
    await fate.done.wait()
    if fate.error is not None:
        raise fate.error
    return images[0]


def _count(council: Council) -> None:
    world = council.world
    for voter in council.voters.values():
        for name, number in voter.kept.machine.faults.happened.items():
            world.count(name, number)
    log = council.checker(CommittedIsOneLog)
    world.count("batches committed", len(log.log))
    world.count("metadata records committed", log.end_offset)
    world.count("events", len(world.trace.events))


QUORUM: Final = Scenario(
    "quorum",
    "three or five voters that make topics, through every trouble there is, many at a time",
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
