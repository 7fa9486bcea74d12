"""What befalls machines and the network between them, each by name, for a while; many at a time.

A trouble is over when its coroutine returns, and counts itself when it really happened. It chooses
its victims as it begins, the leader more often than others: nothing is as instructive as the
trouble of a leader.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

import trio

from simulations.cluster.fault_plan import Trouble
from simulations.cluster.supervisor import Kept
from simulations.cluster.voter_disks import METADATA_DIR
from simulations.kernel.machine import How
from simulations.kernel.storage import Storage
from simulations.kernel.world import World

STOP_WITHIN_S: Final = 3.0
# Of a slow sync at most: twice as long as followers wait for a leader that says nothing.
LONG_SYNC_S: Final = 2.0
Pairs = list[tuple[str, str]]


class Scene:
    """Who there is to be troubled."""

    def __init__(
        self,
        world: World,
        victims: Sequence[Kept],
        others: Sequence[str] = (),
        *,
        leader: Callable[[], Kept | None],
        weak: Iterable[Kept] = (),
        rots: Callable[[Kept], None] = lambda _: None,
    ) -> None:
        """`others`: machines that are only cut off. `weak`: may lose what was durable. `rots` is
        told before a victim's disk does."""
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

    def victim(self, draw: Random) -> Kept:
        leader = self.leader()
        wants_leader = draw.random() < 0.4
        drawn = draw.choice(self.victims)
        return leader if leader is not None and wants_leader else drawn


@dataclass(slots=True)
class Act:
    """One trouble as it happens."""

    scene: Scene
    trouble: Trouble
    draw: Random

    @property
    def world(self) -> World:
        return self.scene.world

    def count(self) -> None:
        self.scene.count(self.trouble.kind)

    async def last(self) -> None:
        await self.world.sleep(self.trouble.lasts_s)

    def victim(self) -> Kept:
        return self.scene.victim(self.draw)


# Machines


async def kill(act: Act) -> None:
    victim = act.victim()
    if victim.machine.running:
        act.count()
    victim.machine.kill()


async def power(act: Act) -> None:
    _cut_power(act, act.victim())


async def power_everywhere(act: Act) -> None:
    """One power line for all."""
    for victim in act.scene.victims:
        _cut_power(act, victim)


async def kill_everywhere(act: Act) -> None:
    """As an administrator who is in a hurry: no process is left, and all disks are as they were."""
    for victim in act.scene.victims:
        if victim.machine.running:
            act.count()
        victim.machine.kill()


def _cut_power(act: Act, victim: Kept) -> None:
    if victim.machine.running:
        act.count()
    victim.machine.power_cut()
    _count_losses(act.scene, victim)


def _count_losses(scene: Scene, victim: Kept) -> None:
    lost = victim.machine.lost[-1]
    for name, number in (("bytes", lost.bytes), ("names", lost.names), ("torn files", lost.torn)):
        if number:
            scene.world.count(f"power took {name}", number)


async def kill_at_change(act: Act) -> None:
    await _stop_at_change(act, "kill", act.draw.randint(1, 40))


async def power_at_change(act: Act) -> None:
    await _stop_at_change(act, "power", act.draw.randint(1, 40))


async def stop_in_snapshot(act: Act) -> None:
    how: How = act.draw.choice(["kill", "power"])
    await _stop_at_change(act, how, act.draw.randint(1, 6), ".snapshot")


async def stop_while_starting(act: Act) -> None:
    """It loses power, and stops again while it reads its disk."""
    victim = act.victim()
    stop_machine(act, victim, "power")
    how: How = act.draw.choice(["kill", "power"])
    victim.machine.stop_at_disk_change(act.draw.randint(1, 12), how)
    with trio.move_on_after(STOP_WITHIN_S):
        while victim.machine.faults.stop_in is not None:
            await act.world.sleep(0.05)
        act.count()
    victim.machine.faults.stop_in = None


def stop_machine(act: Act, victim: Kept, how: How) -> None:
    if how == "power":
        victim.machine.power_cut()
        _count_losses(act.scene, victim)
    else:
        victim.machine.kill()


async def _stop_at_change(act: Act, how: How, number: int, path: str = "") -> None:
    victim = act.victim()
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
    act.count()
    if how == "power" and machine.lost:
        _count_losses(act.scene, victim)


async def restart(act: Act) -> None:
    victim = act.victim()
    if victim.machine.running:
        act.count()
        victim.machine.say("is asked to stop")
        victim.stop()


async def down(act: Act) -> None:
    """It is away for a while, and comes back far behind."""
    victim = act.victim()
    victim.hold()
    stop_machine(act, victim, act.draw.choice(["kill", "power"]))
    act.count()
    await act.last()
    victim.release()


async def pause(act: Act) -> None:
    victim = act.victim()
    process = victim.machine.process
    if process is None or process.paused:
        return
    victim.machine.pause()
    act.count()
    await act.last()
    if victim.machine.process is process:
        victim.machine.resume()


# Clocks


async def wall_jump(act: Act) -> None:
    """Somebody sets it wrong, and right again."""
    victim = act.victim()
    seconds = act.draw.choice([-86_400, -3.0, 0.5, 3600.0])
    victim.machine.clock.jump(seconds)
    victim.machine.say(f"its wall clock jumps by {seconds} s")
    act.count()
    await act.last()
    victim.machine.clock.jump(-seconds)


async def clock_rate(act: Act) -> None:
    victim = act.victim()
    rate = act.draw.choice([0.7, 0.95, 1.05, 1.5])
    victim.machine.clock.run_at(rate)
    victim.machine.say(f"its clock runs at {rate}")
    act.count()
    await act.last()
    victim.machine.clock.run_at(1.0)


# Disks


async def slow_disk(act: Act) -> None:
    faults = act.victim().machine.faults
    before, faults.slow = faults.slow, 0.9
    act.count()
    await act.last()
    faults.slow = before


async def failing_sync(act: Act) -> None:
    """Some syncs fail: what they were to make durable never will be, though it can be read."""
    victim = act.victim()
    faults = victim.machine.faults
    left = act.draw.choice([1, 1, 2, 10])
    before = faults.happened.get("sync failed", 0)

    def fails(_: str) -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    faults.failing_sync = fails
    await act.last()
    faults.failing_sync = None
    if faults.happened.get("sync failed", 0) > before:
        act.count()


async def failing_read(act: Act) -> None:
    """Some reads fail, of records or of the metadata log; the bytes are as they were.

    In half of these the process is another one, so that what fails is read at its start.
    """
    victim = act.victim()
    faults = victim.machine.faults
    left = act.draw.choice([1, 1, 2, 10])
    of = act.draw.choice(["", ".log", METADATA_DIR])
    before = faults.happened.get("reads failed", 0)

    def fails(path: str) -> bool:
        nonlocal left
        left -= of in path
        return of in path and left >= 0

    faults.failing_read = fails
    if act.draw.random() < 0.5:
        victim.machine.kill()
    await act.last()
    faults.failing_read = None
    if faults.happened.get("reads failed", 0) > before:
        act.count()


async def full_disk(act: Act) -> None:
    victim = act.victim()
    storage: Storage = victim.machine.storage
    before = victim.machine.faults.happened.get("disk full", 0)
    storage.capacity_bytes = storage.used_bytes() + act.draw.choice([0, 10, 500, 3000])
    victim.machine.say(f"disk full at {storage.capacity_bytes} bytes")
    await act.last()
    victim.machine.storage.capacity_bytes = None  # which may be another disk by now
    victim.machine.say("disk has room again")
    if victim.machine.faults.happened.get("disk full", 0) > before:
        act.count()


async def bit_rot(act: Act) -> None:
    """Of a voter that the others can do without."""
    if not act.scene.weak:
        return
    victim = act.draw.choice(act.scene.weak)
    storage = victim.machine.storage
    if victim.rotten or METADATA_DIR not in _folders(storage):
        return
    victim.hold()
    stop_machine(act, victim, act.draw.choice(["kill", "power"]))
    files = [(p, i) for p, i in storage.files(METADATA_DIR).items() if i.durable and i.data]
    if files:
        for _, inode in files:
            inode.sync()
        act.scene.rots(victim)
        victim.rotten = victim.ruined = True
        for path, inode in act.draw.sample(files, min(len(files), act.draw.choice([1, 1, 3]))):
            position = act.draw.randrange(len(inode.data))
            storage.flip(inode, position, act.draw.randrange(8))
            victim.machine.say(f"a bit of {path} at {position} flips")
        act.count()
    victim.release()


def _folders(storage: Storage) -> list[str]:
    try:
        storage.folder(METADATA_DIR)
    except OSError:
        return []
    return [METADATA_DIR]


async def lost_disk(act: Act) -> None:
    """A voter that the others can do without comes back with an empty disk."""
    if not act.scene.weak:
        return
    victim = act.draw.choice(act.scene.weak)
    victim.hold()
    stop_machine(act, victim, "power")
    victim.machine.lose_disk()
    victim.ruined = True
    act.count()
    await act.last()
    victim.release()


# The network


async def _cut(act: Act, pairs: Pairs) -> None:
    internet = act.world.internet
    for pair in pairs:
        internet.cut(*pair)
    act.count()
    await act.last()
    for pair in pairs:
        internet.heal(*pair)


def _both(pairs: Pairs) -> Pairs:
    return pairs + [(b, a) for a, b in pairs]


async def cut_pair(act: Act) -> None:
    one = act.victim().name
    other = act.draw.choice([host for host in act.scene.hosts if host != one])
    await _cut(act, _both([(one, other)]))


async def cut_one_way(act: Act) -> None:
    one = act.victim().name
    other = act.draw.choice([host for host in act.scene.hosts if host != one])
    await _cut(act, act.draw.choice([[(one, other)], [(other, one)]]))


async def isolate(act: Act) -> None:
    one = act.victim().name
    outward = [(one, host) for host in act.scene.hosts if host != one]
    await _cut(act, _both(outward))


async def isolate_one_way(act: Act) -> None:
    """It hears everybody and nobody hears it, or the other way round."""
    one = act.victim().name
    outward = [(one, host) for host in act.scene.hosts if host != one]
    await _cut(act, act.draw.choice([outward, [(b, a) for a, b in outward]]))


async def split(act: Act) -> None:
    """Two sides that do not see each other."""
    hosts = act.scene.hosts
    side = set(act.draw.sample(hosts, act.draw.randint(1, len(hosts) - 1)))
    await _cut(act, [(a, b) for a in hosts for b in hosts if (a in side) != (b in side)])


async def flapping(act: Act) -> None:
    one = act.victim().name
    others = [host for host in act.scene.hosts if host != one]
    pairs = _both([(one, other) for other in act.draw.choice([others, others[:1]])])
    internet = act.world.internet
    act.count()
    end = act.world.now + act.trouble.lasts_s
    while act.world.now < end:
        for pair in pairs:
            internet.cut(*pair)
        await act.world.sleep(act.draw.uniform(0.01, 0.4))
        for pair in pairs:
            internet.heal(*pair)
        await act.world.sleep(act.draw.uniform(0.01, 0.4))


async def slow_links(act: Act) -> None:
    """Everything from and to one machine takes its time."""
    one = act.victim().name
    await _delayed(act, _both([(one, host) for host in act.scene.hosts if host != one]))


async def asymmetric_delay(act: Act) -> None:
    one = act.victim().name
    other = act.draw.choice([host for host in act.scene.hosts if host != one])
    await _delayed(act, [(one, other)])


async def _delayed(act: Act, pairs: Pairs) -> None:
    delay_s = act.draw.choice([0.02, 0.1, 0.4])
    links = [act.world.internet.link(*pair) for pair in pairs]
    default = act.world.internet.default
    for link in links:
        link.delay_s, link.jitter_s = delay_s, delay_s
    act.count()
    await act.last()
    for link in links:
        link.delay_s, link.jitter_s = default.delay_s, default.jitter_s


async def long_sync(act: Act) -> None:
    """The leader's disk takes so long for a sync that another leader is elected meanwhile.

    The old one sends nothing until the sync is over, and has not looked at what came: whoever asks
    it for its standing then must not be content with answers from before the sync.
    """
    leader = act.scene.leader()
    if leader is None:
        return
    faults = leader.machine.faults
    before = faults.slow, faults.slow_s
    faults.slow, faults.slow_s = 1.0, LONG_SYNC_S
    with trio.move_on_after(2 * LONG_SYNC_S):
        while act.scene.leader() is leader:
            await act.world.sleep(0.02)
        act.count()
        await act.world.sleep(0.2)
    faults.slow, faults.slow_s = before


async def resets(act: Act) -> None:
    """The connections of one machine break, once or for a while over and over."""
    one = act.victim().name
    end = act.world.now + act.draw.choice([0, act.trouble.lasts_s])
    while True:
        others = [host for host in act.scene.hosts if host != one]
        broken = sum(act.world.internet.reset(one, other) for other in others)
        if broken:
            act.count()
        if act.world.now >= end:
            return
        await act.world.sleep(act.draw.uniform(0.01, 0.3))


Befalls: TypeAlias = Callable[[Act], Awaitable[None]]

TROUBLES: Final[dict[str, Befalls]] = {
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


# Of narrow worlds alone: a kind more in `TROUBLES` would make every seed another world.
NARROW_TROUBLES: Final[dict[str, Befalls]] = {"long sync": long_sync}


async def play_troubles(
    scene: Scene,
    troubles: Sequence[Trouble],
    kinds: Mapping[str, Befalls] = TROUBLES | NARROW_TROUBLES,
) -> None:
    """Each begins at its time; all are over."""
    began = scene.world.now

    async def play(trouble: Trouble) -> None:
        await scene.world.sleep(max(began + trouble.at_s - scene.world.now, 0.0))
        scene.world.say("trouble", str(trouble))
        draw = scene.world.stream(f"trouble {trouble.number}")
        await kinds[trouble.kind](Act(scene, trouble, draw))

    async with trio.open_nursery() as nursery:
        for trouble in troubles:
            nursery.start_soon(play, trouble)


async def calm(scene: Scene) -> None:
    """Nothing is wrong any more; machines that are down come up soon."""
    scene.world.internet.heal_all()
    for victim in scene.victims:
        victim.machine.faults.stop_in = None
        victim.machine.faults.failing_sync = None
        victim.machine.faults.failing_read = None
        victim.machine.storage.capacity_bytes = None
        victim.machine.resume()
        victim.calm = True
