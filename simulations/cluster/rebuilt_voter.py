"""Scenario `rebuilt-voter`: a voter loses its disk and is rebuilt as the documentation prescribes.

The voter has forgotten its votes and the entries that it acknowledged. It therefore starts on an
empty disk (or on an older image of its disk, which is equally unsafe) only while all other voters
run and have all committed entries, and the quorum has no faults until the voter has them, too
(docs/explanation/replication.md). After that the checkers treat it as any other voter: committed
entries must survive the second round of faults.

no faults -> faults -> all have all entries -> the disk is lost -> the others have all entries ->
the voter starts -> it has all entries -> faults -> no faults: as in `quorum`
"""

from collections.abc import Collection
from random import Random
from typing import Final

import trio

from metaquorum.metadata.batch import Batch
from metaquorum.simulations.cluster.fault_plan import PlannedFault, draw_faults, without
from metaquorum.simulations.cluster.faults import FaultTargets, calm, play_faults
from metaquorum.simulations.cluster.quorum_checkers import (
    QUORUM_CHECKERS,
    CommittedIsOneLog,
    OneLeaderPerTerm,
)
from metaquorum.simulations.cluster.quorum_scenario import KINDS, draw_settings, play_voter_group
from metaquorum.simulations.cluster.voter_group import QuorumSettings, Voter, VoterGroup
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.storage import Storage
from metaquorum.simulations.kernel.world import World

# Scenario `quorum` has bit rot of the journal.
_KINDS: Final = tuple(kind for kind in KINDS if kind != "bit rot")
FILLED_WITHIN_S: Final = 10.0
# After this time, no acknowledgement of the lost disk is in flight to the leader.
ANSWERED_S: Final = 1.0
SECOND_ROUND: Final = 100  # number of the first fault of the second round


def draw_rounds(draw: Random) -> tuple[QuorumSettings, tuple[PlannedFault, ...]]:
    """Return the settings with the first round of faults, and the second round."""
    settings = draw_settings(draw)
    settings.weak, settings.has_stranger = (), False
    settings.acts = 200  # the drivers make changes during the whole world
    settings.think_s = draw.choice([0.05, 0.2])
    first, second = (draw_faults(draw, _KINDS, over_s=settings.fault_s, most=10) for _ in range(2))
    settings.faults = first
    return settings, tuple(
        PlannedFault(SECOND_ROUND + fault.number, fault.kind, fault.at_s, fault.lasts_s)
        for fault in second
    )


async def play(world: World, leave_out: Collection[int] = ()) -> None:
    settings, second = draw_rounds(world.stream("settings rebuilt-voter"))
    world.faults = {fault.number: str(fault) for fault in (*settings.faults, *second)}
    settings.faults = without(settings.faults, leave_out)
    draw = world.stream("rebuilt voter")

    async def rebuild(voter_group: VoterGroup, targets: FaultTargets) -> None:
        voter = voter_group.voters[draw.randint(1, settings.voters)]
        image = voter.supervisor.machine.storage.image() if draw.random() < OLDER_IMAGES else None
        await play_faults(targets, settings.faults)
        await calm(targets)
        await _all_have(voter_group, list(voter_group.voters.values()), "before the loss")
        await _lose_disk(voter_group, voter, image)
        for victim in targets.victims:
            victim.calm = False
        await play_faults(targets, without(second, leave_out))

    await play_voter_group(world, settings, rebuild)


# Share of the worlds that restore an older image instead of an empty disk.
OLDER_IMAGES: Final = 0.4


async def _lose_disk(voter_group: VoterGroup, voter: Voter, image: Storage | None) -> None:
    world, supervisor = voter_group.world, voter.supervisor
    if world.violations:
        return
    supervisor.hold()
    supervisor.machine.power_cut()
    if image is None:
        supervisor.machine.lose_disk()
        world.count("voters' disks lost")
    else:
        supervisor.machine.put_back(image)
        world.count("voters' disks put back to an older image")
    supervisor.ruined = True
    await world.sleep(ANSWERED_S)
    others = [other for other in voter_group.voters.values() if other is not voter]
    await _all_have(voter_group, others, "without the voter")
    supervisor.release()
    await _all_have(voter_group, [voter], "on the new disk")
    voter_group.checker(OneLeaderPerTerm).forget_votes(voter.voter_id)
    supervisor.ruined = False
    supervisor.machine.say("is filled again")
    world.count("voters filled again")


async def _all_have(voter_group: VoterGroup, voters: list[Voter], when: str) -> None:
    """Wait until these voters run, and the entries committed by now are durable on their disks."""
    world = voter_group.world
    committed: list[Batch] = list(voter_group.checker(CommittedIsOneLog).log.values())

    def has_all(voter: Voter) -> bool:
        durable = voter_group.durable(voter.voter_id)
        return voter.supervisor.machine.running and all(
            durable.holds(batch.encode(), batch.end_offset) for batch in committed
        )

    with trio.move_on_after(FILLED_WITHIN_S) as limit:
        while not world.violations and not (
            voter_group.active() is not None and all(map(has_all, voters))
        ):
            await world.sleep(0.05)
    if limit.cancelled_caught:
        lacking = [voter.name for voter in voters if not has_all(voter)]
        world.violate(
            "liveness", f"{when}: {lacking} do not have all entries after {FILLED_WITHIN_S:.0f} s"
        )


REBUILT_VOTER: Final = Scenario(
    "rebuilt-voter",
    "a voter's disk is lost or put back to an older image, it is rebuilt, and faults continue",
    play,
    QUORUM_CHECKERS,
    gates=(
        "commits",
        "leaders",
        "snapshots taken in",
        "voters' disks lost",
        "voters' disks put back to an older image",
        "voters filled again",
    ),
)
