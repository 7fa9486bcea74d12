"""What can happen to a node, each by name. All are over when the coroutine returns."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

import trio

from dataplane.log.segments.names import DELETED
from simulations.harness.environment import Room
from simulations.harness.node import NodeOnMachine
from simulations.kernel.machine import How

STOP_WITHIN_S: Final = 3.0
NEWS_TRIES: Final = 5
# How often a disk that has little room has enough again, and then little.
LITTLE_ROOMS: Final = 8

Fault = Callable[["Stage"], Awaitable[None]]


class Stage:
    """The node of a room, and the draws about what befalls it."""

    def __init__(self, room: Room, node: NodeOnMachine, draw: Random) -> None:
        self.room = room
        self.node = node
        self.machine = node.machine
        self.draw = draw
        # While true, the node may refuse to start or end: its disk is not as it should be.
        self.disk_impaired = False

    async def up(self) -> None:
        """The node serves. One that ends by itself on a sound machine is a finding."""
        for _ in range(NEWS_TRIES):
            if self.node.serving and self.machine.running:
                return
            fate = await self.node.start()
            if self.node.serving:
                return
            if fate.error is not None and not self.disk_impaired:
                self.room.world.violate("liveness", f"the node does not start: {fate.error!r}")
                return
            self.machine.storage.capacity_bytes = None
            self.disk_impaired = False
        self.room.world.violate("liveness", f"the node does not start in {NEWS_TRIES} tries")

    async def pause_between(self) -> None:
        await self.room.world.sleep(self.draw.random() * self.room.settings.fault_gap_s)

    def count(self, name: str) -> None:
        self.room.world.count(f"fault: {name}")


async def kill(stage: Stage) -> None:
    stage.machine.kill()
    stage.count("kill")
    await stage.pause_between()
    await stage.up()


async def power(stage: Stage) -> None:
    stage.machine.power_cut()
    stage.count("power")
    count_losses(stage)
    await stage.pause_between()
    await stage.up()


async def kill_at_change(stage: Stage) -> None:
    await _stop_at_change(stage, "kill", stage.draw.randint(1, 60))


async def power_at_change(stage: Stage) -> None:
    await _stop_at_change(stage, "power", stage.draw.randint(1, 60))


async def power_at_retirement(stage: Stage) -> None:
    """While segments of a log are on their way out, the names of new ones perhaps not durable."""
    await _stop_at_change(stage, "power", stage.draw.randint(1, 6), DELETED)


async def power_at_removals(stage: Stage) -> None:
    """As `power_at_retirement`, after several segments were renamed."""
    await _stop_at_change(stage, "power", stage.draw.randint(4, 40), DELETED)


async def _stop_at_change(stage: Stage, how: How, number: int, path: str = "") -> None:
    stage.machine.stop_at_disk_change(number, how, path)
    with trio.move_on_after(STOP_WITHIN_S):
        await stage.machine.fate.done.wait()
    if stage.machine.running:
        stage.machine.faults.stop_in = None
        return
    stage.count(f"{how} at a change of the disk")
    if how == "power":
        count_losses(stage)
    await stage.pause_between()
    await stage.up()


async def stop_while_starting(stage: Stage) -> None:
    """The machine stops again while the node recovers, and perhaps again."""
    stage.machine.power_cut()
    count_losses(stage)
    for _ in range(stage.draw.randint(1, 3)):
        how: How = stage.draw.choice(["kill", "power"])
        stage.machine.stop_at_disk_change(stage.draw.randint(1, 25), how)
        await stage.node.start()
        if stage.machine.running:
            stage.machine.faults.stop_in = None
            break
        stage.count("stop while starting")
    await stage.up()


async def power_after_recovery(stage: Stage) -> None:
    """The process is killed at a change of a log, and the power fails soon after the next start.

    The checkpoint of recovery points was written in between. What the killed process wrote and did
    not sync is durable then only if recovery synced it.
    """
    await _stop_at_change(stage, "kill", stage.draw.randint(5, 40), ".log")
    await stage.room.world.sleep(stage.draw.uniform(0.21, 0.5))
    await power(stage)


async def power_after_new_folders(stage: Stage) -> None:
    """The process is killed while it makes folders of logs, and the power fails a little later.

    The next process has acknowledged records in those folders then, whose names it did not make.
    """
    await _stop_at_change(stage, "kill", stage.draw.randint(1, 12), ".log")
    await stage.room.world.sleep(stage.draw.uniform(0.02, 0.3))
    await power(stage)


async def restart(stage: Stage) -> None:
    await stage.node.stop()
    stage.count("restart")
    await stage.pause_between()
    await stage.up()


async def power_after_stop(stage: Stage) -> None:
    """Power goes once it has stopped: what a clean stop says is durable has to be."""
    await stage.node.stop()
    stage.machine.power_cut()
    stage.count("power after a clean stop")
    count_losses(stage)
    await stage.up()


async def full(stage: Stage) -> None:
    """The disk is full for a while, at a byte that the seed draws."""
    storage = stage.machine.storage
    stage.disk_impaired = True
    storage.capacity_bytes = storage.used_bytes() + stage.draw.choice([0, 10, 500, 3000, 20_000])
    stage.machine.say(f"disk full at {storage.capacity_bytes} bytes")
    before = stage.machine.faults.happened.get("disk full", 0)
    await stage.room.world.sleep(stage.draw.uniform(0.1, 1.0))
    if stage.draw.random() < 0.5:
        stage.machine.kill()
    storage.capacity_bytes = None
    stage.machine.say("disk has room again")
    if stage.machine.faults.happened.get("disk full", 0) > before:
        stage.count("disk full")
    if stage.draw.random() < 0.5:
        stage.machine.kill()
    await stage.up()
    stage.disk_impaired = False


async def little_room(stage: Stage) -> None:
    """Time and again, the disk has room for a small batch and none for a large one."""
    storage, world, draw = stage.machine.storage, stage.room.world, stage.draw
    before = stage.machine.faults.happened.get("disk full", 0)
    stage.disk_impaired = True
    for _ in range(LITTLE_ROOMS):
        storage.capacity_bytes = storage.used_bytes() + draw.randint(0, 4000)
        stage.machine.say(f"disk full at {storage.capacity_bytes} bytes")
        await world.sleep(draw.uniform(0.01, 0.05))
        storage.capacity_bytes = None
        await world.sleep(draw.uniform(0.01, 0.05))
    if stage.machine.faults.happened.get("disk full", 0) > before:
        stage.count("disk full")
    await stage.up()
    stage.disk_impaired = False


async def pause(stage: Stage) -> None:
    stage.machine.pause()
    stage.count("pause")
    await stage.room.world.sleep(stage.draw.choice([0.05, 0.5, 5.0]))
    stage.machine.resume()


async def cut(stage: Stage) -> None:
    """One or both ways between the node and everybody else."""
    internet, me = stage.room.world.internet, stage.machine.name
    others = [name for name in stage.room.world.machines if name != me]
    pairs = [(me, other) for other in others] + [(other, me) for other in others]
    way = stage.draw.choice(["in", "out", "both"])
    chosen = [p for p in pairs if way == "both" or (p[0] == me) == (way == "out")]
    for pair in chosen:
        internet.cut(*pair)
    stage.count("cut")
    await stage.room.world.sleep(stage.draw.choice([0.1, 1.0, 12.0]))
    for pair in chosen:
        internet.heal(*pair)


async def slow_disk(stage: Stage) -> None:
    stage.machine.faults.slow = 0.7
    await stage.room.world.sleep(stage.draw.uniform(0.1, 1.0))
    stage.machine.faults.slow = 0.02
    stage.count("slow disk")


def count_losses(stage: Stage) -> None:
    lost = stage.machine.lost[-1]
    for name, number in (("bytes", lost.bytes), ("names", lost.names), ("torn files", lost.torn)):
        if number:
            stage.room.world.count(f"power took {name}", number)


FAULTS: Final[dict[str, Fault]] = {
    "kill": kill,
    "power": power,
    "kill at change": kill_at_change,
    "power at change": power_at_change,
    "power at retirement": power_at_retirement,
    "power at removals": power_at_removals,
    "stop while starting": stop_while_starting,
    "power after recovery": power_after_recovery,
    "power after new folders": power_after_new_folders,
    "restart": restart,
    "power after stop": power_after_stop,
    "full": full,
    "little room": little_room,
    "pause": pause,
    "cut": cut,
    "slow disk": slow_disk,
}
