"""Faults of a node, by name. A fault has ended when its coroutine returns."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

import trio

from metaquorum.dataplane.log.segments.names import DELETED
from metaquorum.simulations.harness.environment import Environment
from metaquorum.simulations.harness.node import NodeOnMachine
from metaquorum.simulations.kernel.machine import How

STOP_WITHIN_S: Final = 3.0
NEWS_TRIES: Final = 5
# Times that the disk alternates between little and enough free space.
LITTLE_ROOMS: Final = 8

Fault = Callable[["FaultContext"], Awaitable[None]]


class FaultContext:
    """The node that faults act on, and the random stream of the faults."""

    def __init__(self, environment: Environment, node: NodeOnMachine, draw: Random) -> None:
        self.environment = environment
        self.node = node
        self.machine = node.machine
        self.draw = draw
        # While true, the node may refuse to start, or may end, because of its disk.
        self.disk_impaired = False

    async def up(self) -> None:
        """Start the node, and wait until it serves.

        A node that does not start on a machine without faults is a violation.
        """
        for _ in range(NEWS_TRIES):
            if self.node.serving and self.machine.running:
                return
            fate = await self.node.start()
            if self.node.serving:
                return
            if fate.error is not None and not self.disk_impaired:
                self.environment.world.violate(
                    "liveness", f"the node does not start: {fate.error!r}"
                )
                return
            self.machine.storage.capacity_bytes = None
            self.disk_impaired = False
        self.environment.world.violate("liveness", f"the node does not start in {NEWS_TRIES} tries")

    async def pause_between(self) -> None:
        await self.environment.world.sleep(
            self.draw.random() * self.environment.settings.fault_gap_s
        )

    def count(self, name: str) -> None:
        self.environment.world.count(f"fault: {name}")


async def kill(fault_context: FaultContext) -> None:
    fault_context.machine.kill()
    fault_context.count("kill")
    await fault_context.pause_between()
    await fault_context.up()


async def power(fault_context: FaultContext) -> None:
    fault_context.machine.power_cut()
    fault_context.count("power")
    count_losses(fault_context)
    await fault_context.pause_between()
    await fault_context.up()


async def kill_at_change(fault_context: FaultContext) -> None:
    await _stop_at_change(fault_context, "kill", fault_context.draw.randint(1, 60))


async def power_at_change(fault_context: FaultContext) -> None:
    await _stop_at_change(fault_context, "power", fault_context.draw.randint(1, 60))


async def power_at_retirement(fault_context: FaultContext) -> None:
    """Cut the power while segments are removed; the names of new ones may not be durable yet."""
    await _stop_at_change(fault_context, "power", fault_context.draw.randint(1, 6), DELETED)


async def power_at_removals(fault_context: FaultContext) -> None:
    """Cut the power as in `power_at_retirement`, after several segments were renamed."""
    await _stop_at_change(fault_context, "power", fault_context.draw.randint(4, 40), DELETED)


async def _stop_at_change(
    fault_context: FaultContext, how: How, number: int, path: str = ""
) -> None:
    fault_context.machine.stop_at_disk_change(number, how, path)
    with trio.move_on_after(STOP_WITHIN_S):
        await fault_context.machine.fate.done.wait()
    if fault_context.machine.running:
        fault_context.machine.faults.stop_in = None
        return
    fault_context.count(f"{how} at a change of the disk")
    if how == "power":
        count_losses(fault_context)
    await fault_context.pause_between()
    await fault_context.up()


async def stop_while_starting(fault_context: FaultContext) -> None:
    """Cut the power, and stop the machine up to three times while the node recovers."""
    fault_context.machine.power_cut()
    count_losses(fault_context)
    for _ in range(fault_context.draw.randint(1, 3)):
        how: How = fault_context.draw.choice(["kill", "power"])
        fault_context.machine.stop_at_disk_change(fault_context.draw.randint(1, 25), how)
        await fault_context.node.start()
        if fault_context.machine.running:
            fault_context.machine.faults.stop_in = None
            break
        fault_context.count("stop while starting")
    await fault_context.up()


async def power_after_recovery(fault_context: FaultContext) -> None:
    """Kill the process at a change of a log, and cut the power soon after the next start.

    The recovery point checkpoint was written in between. Bytes that the killed process wrote
    without a sync are durable only if recovery synced them.
    """
    await _stop_at_change(fault_context, "kill", fault_context.draw.randint(5, 40), ".log")
    await fault_context.environment.world.sleep(fault_context.draw.uniform(0.21, 0.5))
    await power(fault_context)


async def power_after_new_folders(fault_context: FaultContext) -> None:
    """Kill the process while it creates folders of logs, and cut the power a little later.

    The next process has then acknowledged records in folders that it did not create.
    """
    await _stop_at_change(fault_context, "kill", fault_context.draw.randint(1, 12), ".log")
    await fault_context.environment.world.sleep(fault_context.draw.uniform(0.02, 0.3))
    await power(fault_context)


async def restart(fault_context: FaultContext) -> None:
    await fault_context.node.stop()
    fault_context.count("restart")
    await fault_context.pause_between()
    await fault_context.up()


async def power_after_stop(fault_context: FaultContext) -> None:
    """Cut the power after a clean stop, which must have made all data durable."""
    await fault_context.node.stop()
    fault_context.machine.power_cut()
    fault_context.count("power after a clean stop")
    count_losses(fault_context)
    await fault_context.up()


async def full(fault_context: FaultContext) -> None:
    """Fill the disk for a while, at a byte that the seed draws."""
    storage = fault_context.machine.storage
    fault_context.disk_impaired = True
    storage.capacity_bytes = storage.used_bytes() + fault_context.draw.choice(
        [0, 10, 500, 3000, 20_000]
    )
    fault_context.machine.say(f"disk full at {storage.capacity_bytes} bytes")
    before = fault_context.machine.faults.happened.get("disk full", 0)
    await fault_context.environment.world.sleep(fault_context.draw.uniform(0.1, 1.0))
    if fault_context.draw.random() < 0.5:
        fault_context.machine.kill()
    storage.capacity_bytes = None
    fault_context.machine.say("disk has room again")
    if fault_context.machine.faults.happened.get("disk full", 0) > before:
        fault_context.count("disk full")
    if fault_context.draw.random() < 0.5:
        fault_context.machine.kill()
    await fault_context.up()
    fault_context.disk_impaired = False


async def little_room(fault_context: FaultContext) -> None:
    """Let the disk repeatedly have room for a small batch, but not for a large one."""
    storage, world, draw = (
        fault_context.machine.storage,
        fault_context.environment.world,
        fault_context.draw,
    )
    before = fault_context.machine.faults.happened.get("disk full", 0)
    fault_context.disk_impaired = True
    for _ in range(LITTLE_ROOMS):
        storage.capacity_bytes = storage.used_bytes() + draw.randint(0, 4000)
        fault_context.machine.say(f"disk full at {storage.capacity_bytes} bytes")
        await world.sleep(draw.uniform(0.01, 0.05))
        storage.capacity_bytes = None
        await world.sleep(draw.uniform(0.01, 0.05))
    if fault_context.machine.faults.happened.get("disk full", 0) > before:
        fault_context.count("disk full")
    await fault_context.up()
    fault_context.disk_impaired = False


async def pause(fault_context: FaultContext) -> None:
    fault_context.machine.pause()
    fault_context.count("pause")
    await fault_context.environment.world.sleep(fault_context.draw.choice([0.05, 0.5, 5.0]))
    fault_context.machine.resume()


async def cut(fault_context: FaultContext) -> None:
    """Cut the network between the node and all other machines, in one or both directions."""
    internet, me = fault_context.environment.world.internet, fault_context.machine.name
    others = [name for name in fault_context.environment.world.machines if name != me]
    pairs = [(me, other) for other in others] + [(other, me) for other in others]
    way = fault_context.draw.choice(["in", "out", "both"])
    chosen = [p for p in pairs if way == "both" or (p[0] == me) == (way == "out")]
    for pair in chosen:
        internet.cut(*pair)
    fault_context.count("cut")
    await fault_context.environment.world.sleep(fault_context.draw.choice([0.1, 1.0, 12.0]))
    for pair in chosen:
        internet.heal(*pair)


async def slow_disk(fault_context: FaultContext) -> None:
    fault_context.machine.faults.slow = 0.7
    await fault_context.environment.world.sleep(fault_context.draw.uniform(0.1, 1.0))
    fault_context.machine.faults.slow = 0.02
    fault_context.count("slow disk")


def count_losses(fault_context: FaultContext) -> None:
    lost = fault_context.machine.lost[-1]
    for name, number in (("bytes", lost.bytes), ("names", lost.names), ("torn files", lost.torn)):
        if number:
            fault_context.environment.world.count(f"power took {name}", number)


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
