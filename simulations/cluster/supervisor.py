"""Supervisor of a machine: restarts its program whenever it ends, as an init system does.

An error that ends a program is a violation, unless its disk has failed: then it is restarted until
it stays up. A program that cannot start on a damaged disk is given up after three failed starts.
"""

from collections.abc import Callable
from random import Random
from typing import Final

import trio

from metaquorum.simulations.kernel.excuses import bug_in
from metaquorum.simulations.kernel.machine import Machine, Program
from metaquorum.simulations.kernel.world import BUG, World

RESTARTS_S: Final = (0.02, 0.1, 0.5, 1.5)
CALM_RESTART_S: Final = 0.02
# Failed starts on a damaged disk before the machine is given up.
MAX_FAILED_STARTS: Final = 3
# A program that ran at least this long had started.
STARTED_S: Final = 0.5


class Supervisor:
    """Supervisor of one machine and its program."""

    def __init__(
        self, world: World, machine: Machine, program: Callable[[], Program], draw: Random
    ) -> None:
        self.world = world
        self.machine = machine
        self._program = program
        self._draw = draw
        self._held = 0
        self._released = trio.Event()
        self._failures_before = 0  # disk failures before this process began
        self._failed_starts = 0
        self.rotten = False  # bits of the disk have flipped
        self.ruined = False  # durable data may be lost
        self.is_out = False  # given up
        self.calm = False  # faults are over: restart soon
        self.stop: Callable[[], None] = machine.kill  # a clean stop, if the program sets one

    @property
    def name(self) -> str:
        return self.machine.name

    def hold(self) -> None:
        """Do not start the program until `release` was called as often as `hold`."""
        self._held += 1

    def release(self) -> None:
        self._held -= 1
        self._released.set()

    @property
    def impaired(self) -> bool:
        """Whether the disk has failed a request of the current process."""
        return self.machine.faults.failures > self._failures_before

    async def run(self) -> None:
        """Start the program whenever it is down and not held, until the machine is given up."""
        while not self.is_out:
            while self._held:
                self._released = trio.Event()
                await self._released.wait()
            self._failures_before = self.machine.faults.failures
            began = self.world.now
            fate = self.machine.start(self._program())
            await fate.done.wait()
            if fate.error is not None:
                self._judge(fate.error, self.world.now - began)
            await trio.sleep(CALM_RESTART_S if self.calm else self._draw.choice(RESTARTS_S))

    def _judge(self, error: BaseException, ran_s: float) -> None:
        if (bug := bug_in(error)) is not None:
            self.world.violate(BUG, f"{self.name} ended by {bug!r}")
            return
        if not self.impaired and not self.rotten:
            self.world.violate("liveness", f"{self.name} ended by itself: {error!r}")
            return
        self.world.count("ended on a bad disk")
        self._failed_starts = 0 if ran_s > STARTED_S else self._failed_starts + 1
        if self.rotten and self._failed_starts >= MAX_FAILED_STARTS:
            self.world.count("refused a rotten disk")
            self.is_out = True
            self.machine.say("is given up")
