"""Faults of machines and of the network between them, by kind; several may run at once.

A fault ends when its coroutine returns, and is counted if it took effect. It chooses its victim
when it begins, the leader more often than others: faults of a leader find the most bugs.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

import trio

from metaquorum.simulations.cluster.fault_plan import PlannedFault
from metaquorum.simulations.cluster.supervisor import Supervisor
from metaquorum.simulations.cluster.voter_disks import METADATA_DIR
from metaquorum.simulations.kernel.machine import How
from metaquorum.simulations.kernel.storage import Storage
from metaquorum.simulations.kernel.world import World

STOP_WITHIN_S: Final = 3.0
# Longest slow sync: twice the time that followers wait for a silent leader.
LONG_SYNC_S: Final = 2.0
Pairs = list[tuple[str, str]]


class FaultTargets:
    """The machines that faults may choose."""

    def __init__(
        self,
        world: World,
        victims: Sequence[Supervisor],
        others: Sequence[str] = (),
        *,
        leader: Callable[[], Supervisor | None],
        weak: Iterable[Supervisor] = (),
        rots: Callable[[Supervisor], None] = lambda _: None,
    ) -> None:
        """Record the machines; `victims` may have any fault.

        `others` are only cut off from the network. `weak` may lose durable data. `rots` is called
        with a victim before bits of its disk flip.
        """
        self.world = world
        self.victims = list(victims)
        self.others = list(others)
        self.leader = leader
        self.weak = list(weak)
        self.rots = rots

    def count(self, name: str, number: int = 1) -> None:
        self.world.count(f"fault: {name}", number)

    @property
    def hosts(self) -> list[str]:
        return [victim.name for victim in self.victims] + self.others

    def victim(self, draw: Random) -> Supervisor:
        leader = self.leader()
        wants_leader = draw.random() < 0.4
        drawn = draw.choice(self.victims)
        return leader if leader is not None and wants_leader else drawn


@dataclass(slots=True)
class ActiveFault:
    """One running fault."""

    targets: FaultTargets
    plan: PlannedFault
    draw: Random

    @property
    def world(self) -> World:
        return self.targets.world

    def count(self) -> None:
        self.targets.count(self.plan.kind)

    async def last(self) -> None:
        await self.world.sleep(self.plan.lasts_s)

    def victim(self) -> Supervisor:
        return self.targets.victim(self.draw)


# Machines


async def kill(fault: ActiveFault) -> None:
    victim = fault.victim()
    if victim.machine.running:
        fault.count()
    victim.machine.kill()


async def power(fault: ActiveFault) -> None:
    _cut_power(fault, fault.victim())


async def power_everywhere(fault: ActiveFault) -> None:
    """Cut the power of all machines at once."""
    for victim in fault.targets.victims:
        _cut_power(fault, victim)


async def kill_everywhere(fault: ActiveFault) -> None:
    """Kill all processes at once; the disks keep all data."""
    for victim in fault.targets.victims:
        if victim.machine.running:
            fault.count()
        victim.machine.kill()


def _cut_power(fault: ActiveFault, victim: Supervisor) -> None:
    if victim.machine.running:
        fault.count()
    victim.machine.power_cut()
    _count_losses(fault.targets, victim)


def _count_losses(targets: FaultTargets, victim: Supervisor) -> None:
    lost = victim.machine.lost[-1]
    for name, number in (("bytes", lost.bytes), ("names", lost.names), ("torn files", lost.torn)):
        if number:
            targets.world.count(f"power took {name}", number)


async def kill_at_change(fault: ActiveFault) -> None:
    await _stop_at_change(fault, "kill", fault.draw.randint(1, 40))


async def power_at_change(fault: ActiveFault) -> None:
    await _stop_at_change(fault, "power", fault.draw.randint(1, 40))


async def stop_in_snapshot(fault: ActiveFault) -> None:
    how: How = fault.draw.choice(["kill", "power"])
    await _stop_at_change(fault, how, fault.draw.randint(1, 6), ".snapshot")


async def stop_while_starting(fault: ActiveFault) -> None:
    """Cut the power of a machine, and stop it again while it recovers."""
    victim = fault.victim()
    stop_machine(fault, victim, "power")
    how: How = fault.draw.choice(["kill", "power"])
    victim.machine.stop_at_disk_change(fault.draw.randint(1, 12), how)
    with trio.move_on_after(STOP_WITHIN_S):
        while victim.machine.faults.stop_in is not None:
            await fault.world.sleep(0.05)
        fault.count()
    victim.machine.faults.stop_in = None


def stop_machine(fault: ActiveFault, victim: Supervisor, how: How) -> None:
    if how == "power":
        victim.machine.power_cut()
        _count_losses(fault.targets, victim)
    else:
        victim.machine.kill()


async def _stop_at_change(fault: ActiveFault, how: How, number: int, path: str = "") -> None:
    victim = fault.victim()
    machine = victim.machine
    if not machine.running or machine.faults.stop_in is not None:
        return
    fate = machine.fate
    machine.stop_at_disk_change(number, how, path)
    with trio.move_on_after(STOP_WITHIN_S):
        await fate.done.wait()
    if not fate.done.is_set():
        machine.faults.stop_in = None
        return
    fault.count()
    if how == "power" and machine.lost:
        _count_losses(fault.targets, victim)


async def restart(fault: ActiveFault) -> None:
    victim = fault.victim()
    if victim.machine.running:
        fault.count()
        victim.machine.say("is asked to stop")
        victim.stop()


async def down(fault: ActiveFault) -> None:
    """Keep a machine down for a while, so that it lags behind when it is back."""
    victim = fault.victim()
    victim.hold()
    stop_machine(fault, victim, fault.draw.choice(["kill", "power"]))
    fault.count()
    await fault.last()
    victim.release()


async def pause(fault: ActiveFault) -> None:
    victim = fault.victim()
    process = victim.machine.process
    if process is None or process.paused:
        return
    victim.machine.pause()
    fault.count()
    await fault.last()
    if victim.machine.process is process:
        victim.machine.resume()


# Clocks


async def wall_jump(fault: ActiveFault) -> None:
    """Let the wall clock of a machine jump, and jump back later."""
    victim = fault.victim()
    seconds = fault.draw.choice([-86_400, -3.0, 0.5, 3600.0])
    victim.machine.clock.jump(seconds)
    victim.machine.say(f"its wall clock jumps by {seconds} s")
    fault.count()
    await fault.last()
    victim.machine.clock.jump(-seconds)


async def clock_rate(fault: ActiveFault) -> None:
    victim = fault.victim()
    rate = fault.draw.choice([0.7, 0.95, 1.05, 1.5])
    victim.machine.clock.run_at(rate)
    victim.machine.say(f"its clock runs at {rate}")
    fault.count()
    await fault.last()
    victim.machine.clock.run_at(1.0)


# Disks


async def slow_disk(fault: ActiveFault) -> None:
    faults = fault.victim().machine.faults
    before, faults.slow = faults.slow, 0.9
    fault.count()
    await fault.last()
    faults.slow = before


async def failing_sync(fault: ActiveFault) -> None:
    """Let some syncs fail: their data stays readable, but never becomes durable."""
    victim = fault.victim()
    faults = victim.machine.faults
    left = fault.draw.choice([1, 1, 2, 10])
    before = faults.happened.get("sync failed", 0)

    def fails(_: str) -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    faults.failing_sync = fails
    await fault.last()
    faults.failing_sync = None
    if faults.happened.get("sync failed", 0) > before:
        fault.count()


async def failing_read(fault: ActiveFault) -> None:
    """Let some reads of records or of the metadata log fail; the bytes do not change.

    In half of the cases the process is killed, so that reads fail during the next start.
    """
    victim = fault.victim()
    faults = victim.machine.faults
    left = fault.draw.choice([1, 1, 2, 10])
    of = fault.draw.choice(["", ".log", METADATA_DIR])
    before = faults.happened.get("reads failed", 0)

    def fails(path: str) -> bool:
        nonlocal left
        left -= of in path
        return of in path and left >= 0

    faults.failing_read = fails
    if fault.draw.random() < 0.5:
        victim.machine.kill()
    await fault.last()
    faults.failing_read = None
    if faults.happened.get("reads failed", 0) > before:
        fault.count()


async def full_disk(fault: ActiveFault) -> None:
    victim = fault.victim()
    storage: Storage = victim.machine.storage
    before = victim.machine.faults.happened.get("disk full", 0)
    storage.capacity_bytes = storage.used_bytes() + fault.draw.choice([0, 10, 500, 3000])
    victim.machine.say(f"disk full at {storage.capacity_bytes} bytes")
    await fault.last()
    victim.machine.storage.capacity_bytes = None  # the machine may have another disk by now
    victim.machine.say("disk has room again")
    if victim.machine.faults.happened.get("disk full", 0) > before:
        fault.count()


async def bit_rot(fault: ActiveFault) -> None:
    """Flip bits in the metadata directory of a voter that the quorum does not need."""
    if not fault.targets.weak:
        return
    victim = fault.draw.choice(fault.targets.weak)
    storage = victim.machine.storage
    if victim.rotten or METADATA_DIR not in _folders(storage):
        return
    victim.hold()
    stop_machine(fault, victim, fault.draw.choice(["kill", "power"]))
    files = [(p, i) for p, i in storage.files(METADATA_DIR).items() if i.durable and i.data]
    if files:
        for _, inode in files:
            inode.sync()
        fault.targets.rots(victim)
        victim.rotten = victim.ruined = True
        for path, inode in fault.draw.sample(files, min(len(files), fault.draw.choice([1, 1, 3]))):
            position = fault.draw.randrange(len(inode.data))
            storage.flip(inode, position, fault.draw.randrange(8))
            victim.machine.say(f"a bit of {path} at {position} flips")
        fault.count()
    victim.release()


def _folders(storage: Storage) -> list[str]:
    try:
        storage.folder(METADATA_DIR)
    except OSError:
        return []
    return [METADATA_DIR]


async def lost_disk(fault: ActiveFault) -> None:
    """Restart a machine that the others do not need with an empty disk."""
    if not fault.targets.weak:
        return
    victim = fault.draw.choice(fault.targets.weak)
    victim.hold()
    stop_machine(fault, victim, "power")
    victim.machine.lose_disk()
    victim.ruined = True
    fault.count()
    await fault.last()
    victim.release()


# The network


async def _cut(fault: ActiveFault, pairs: Pairs) -> None:
    internet = fault.world.internet
    for pair in pairs:
        internet.cut(*pair)
    fault.count()
    await fault.last()
    for pair in pairs:
        internet.heal(*pair)


def _both(pairs: Pairs) -> Pairs:
    return pairs + [(b, a) for a, b in pairs]


async def cut_pair(fault: ActiveFault) -> None:
    one = fault.victim().name
    other = fault.draw.choice([host for host in fault.targets.hosts if host != one])
    await _cut(fault, _both([(one, other)]))


async def cut_one_way(fault: ActiveFault) -> None:
    one = fault.victim().name
    other = fault.draw.choice([host for host in fault.targets.hosts if host != one])
    await _cut(fault, fault.draw.choice([[(one, other)], [(other, one)]]))


async def isolate(fault: ActiveFault) -> None:
    one = fault.victim().name
    outward = [(one, host) for host in fault.targets.hosts if host != one]
    await _cut(fault, _both(outward))


async def isolate_one_way(fault: ActiveFault) -> None:
    """Hold back all packets from a machine, or all packets to it."""
    one = fault.victim().name
    outward = [(one, host) for host in fault.targets.hosts if host != one]
    await _cut(fault, fault.draw.choice([outward, [(b, a) for a, b in outward]]))


async def split(fault: ActiveFault) -> None:
    """Split the network into two sides."""
    hosts = fault.targets.hosts
    side = set(fault.draw.sample(hosts, fault.draw.randint(1, len(hosts) - 1)))
    await _cut(fault, [(a, b) for a in hosts for b in hosts if (a in side) != (b in side)])


async def flapping(fault: ActiveFault) -> None:
    one = fault.victim().name
    others = [host for host in fault.targets.hosts if host != one]
    pairs = _both([(one, other) for other in fault.draw.choice([others, others[:1]])])
    internet = fault.world.internet
    fault.count()
    end = fault.world.now + fault.plan.lasts_s
    while fault.world.now < end:
        for pair in pairs:
            internet.cut(*pair)
        await fault.world.sleep(fault.draw.uniform(0.01, 0.4))
        for pair in pairs:
            internet.heal(*pair)
        await fault.world.sleep(fault.draw.uniform(0.01, 0.4))


async def slow_links(fault: ActiveFault) -> None:
    """Delay all packets from and to one machine."""
    one = fault.victim().name
    await delayed(fault, _both([(one, host) for host in fault.targets.hosts if host != one]))


async def asymmetric_delay(fault: ActiveFault) -> None:
    one = fault.victim().name
    other = fault.draw.choice([host for host in fault.targets.hosts if host != one])
    await delayed(fault, [(one, other)])


async def delayed(
    fault: ActiveFault, pairs: Pairs, delays_s: Sequence[float] = (0.02, 0.1, 0.4)
) -> None:
    """Delay all packets from the first to the second machine of each pair."""
    delay_s = fault.draw.choice(delays_s)
    links = [fault.world.internet.link(*pair) for pair in pairs]
    default = fault.world.internet.default
    for link in links:
        link.delay_s, link.jitter_s = delay_s, delay_s
    fault.count()
    await fault.last()
    for link in links:
        link.delay_s, link.jitter_s = default.delay_s, default.jitter_s


async def long_sync(fault: ActiveFault) -> None:
    """Delay a sync of the leader until another leader is elected.

    The old leader neither sends nor reads until the sync ends. A read barrier after the sync must
    not count answers from before the sync as confirmations of its leadership.
    """
    leader = fault.targets.leader()
    if leader is None:
        return
    faults = leader.machine.faults
    before = faults.slow, faults.slow_s
    faults.slow, faults.slow_s = 1.0, LONG_SYNC_S
    with trio.move_on_after(2 * LONG_SYNC_S):
        while fault.targets.leader() is leader:
            await fault.world.sleep(0.02)
        fault.count()
        await fault.world.sleep(0.2)
    faults.slow, faults.slow_s = before


async def resets(fault: ActiveFault) -> None:
    """Reset the connections of one machine, once or repeatedly for a while."""
    one = fault.victim().name
    end = fault.world.now + fault.draw.choice([0, fault.plan.lasts_s])
    while True:
        others = [host for host in fault.targets.hosts if host != one]
        broken = sum(fault.world.internet.reset(one, other) for other in others)
        if broken:
            fault.count()
        if fault.world.now >= end:
            return
        await fault.world.sleep(fault.draw.uniform(0.01, 0.3))


FaultFunction: TypeAlias = Callable[[ActiveFault], Awaitable[None]]

CLUSTER_FAULTS: Final[dict[str, FaultFunction]] = {
    "kill": kill,
    "power": power,
    "power everywhere": power_everywhere,
    "kill everywhere": kill_everywhere,
    "kill at change": kill_at_change,
    "power at change": power_at_change,
    "stop in snapshot": stop_in_snapshot,
    "stop while starting": stop_while_starting,
    "restart": restart,
    "down": down,
    "pause": pause,
    "wall jump": wall_jump,
    "clock rate": clock_rate,
    "slow disk": slow_disk,
    "failing sync": failing_sync,
    "failing read": failing_read,
    "full disk": full_disk,
    "bit rot": bit_rot,
    "lost disk": lost_disk,
    "cut pair": cut_pair,
    "cut one way": cut_one_way,
    "isolate": isolate,
    "isolate one way": isolate_one_way,
    "split": split,
    "flapping": flapping,
    "slow links": slow_links,
    "asymmetric delay": asymmetric_delay,
    "resets": resets,
}


# Kinds of narrow worlds only: another kind in `CLUSTER_FAULTS` would change the world of each seed.
NARROW_FAULTS: Final[dict[str, FaultFunction]] = {"long sync": long_sync}


async def play_faults(
    targets: FaultTargets,
    faults: Sequence[PlannedFault],
    kinds: Mapping[str, FaultFunction] = CLUSTER_FAULTS | NARROW_FAULTS,
) -> None:
    """Play all faults, each at its planned time, and wait until all have ended."""
    began = targets.world.now

    async def play(fault: PlannedFault) -> None:
        await targets.world.sleep(max(began + fault.at_s - targets.world.now, 0.0))
        targets.world.say("trouble", str(fault))
        draw = targets.world.stream(f"trouble {fault.number}")
        await kinds[fault.kind](ActiveFault(targets, fault, draw))

    async with trio.open_nursery() as nursery:
        for fault in faults:
            nursery.start_soon(play, fault)


async def calm(targets: FaultTargets) -> None:
    """End all faults, and let machines that are down restart soon."""
    targets.world.internet.heal_all()
    for victim in targets.victims:
        victim.machine.faults.stop_in = None
        victim.machine.faults.failing_sync = None
        victim.machine.faults.failing_read = None
        victim.machine.storage.capacity_bytes = None
        victim.machine.resume()
        victim.calm = True
