"""A machine whose program is started again whenever it has ended, as an init system does.

A program that ends by itself is a finding, unless its disk does not do its job: then it may end,
and is started until it stays. One that a rotten disk keeps from starting stays down, in the end.
"""

from collections.abc import Callable
from random import Random
from typing import Final

import trio

from simulations.kernel.excuses import bug_in
from simulations.kernel.machine import Machine, Program
from simulations.kernel.world import BUG, World

RESTARTS_S: Final = (0.02, 0.1, 0.5, 1.5)
CALM_RESTART_S: Final = 0.02
# Starts that fail on a rotten disk before it is given up.
MAX_FAILED_STARTS: Final = 3
# A program that ran so long had started.
STARTED_S: Final = 0.5


class Supervisor:
    """One machine and what shall run on it."""

    def __init__(
        self, world: World, machine: Machine, program: Callable[[], Program], draw: Random
    ) -> None:
        self.world = world
        self.machine = machine
        self._program = program
        self._draw = draw
        self._held = 0
        self._released = trio.Event()
        self._failures_before = 0  # of the disk, when this process began
        self._failed_starts = 0
        self.rotten = False
        # What it once had made durable may be gone.
        self.ruined = False
        # It was given up.
        self.is_out = False
        self.calm = False
        self.stop: Callable[[], None] = machine.kill  # in good order, where there is one

    @property
    def name(self) -> str:
        return self.machine.name

    def hold(self) -> None:
        """It is not started until released as often."""
        self._held += 1

    def release(self) -> None:
        self._held -= 1
        self._released.set()

    @property
    def impaired(self) -> bool:
        """The disk has failed to do something that this very process asked for."""
        return self.machine.faults.failures > self._failures_before

    async def run(self) -> None:
        """It is started whenever it is down, and nobody holds it down; until it is given up."""
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
