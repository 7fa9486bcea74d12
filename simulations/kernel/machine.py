"""A simulated machine: a clock, a disk, a host in the network, and the program that runs on it.

off --start--> running --kill--> off           the page cache and the disk stay
               running --power_cut--> dark      data that was not durable is lost
dark --start--> running
               running --(program returns)--> off
"""

import contextvars
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

import trio

from metaquorum.runtime.interfaces import Runtime
from metaquorum.simulations.kernel.clock import MachineClock, ProcessClock
from metaquorum.simulations.kernel.disk import DiskFaults, ProcessDisk, SimulatedLock
from metaquorum.simulations.kernel.network import Internet, ProcessNetwork
from metaquorum.simulations.kernel.process import Process
from metaquorum.simulations.kernel.storage import Lost, Storage
from metaquorum.simulations.kernel.timeline import Timeline
from metaquorum.simulations.kernel.trace import Trace

Program = Callable[[Runtime], Awaitable[None]]
How = Literal["kill", "power"]

# Machine that a task's log lines belong to; a task inherits it from the task that started it.
running_on: contextvars.ContextVar[str] = contextvars.ContextVar("running_on", default="-")
running_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar(
    "running_process", default=None
)


@dataclass(slots=True)
class Fate:
    """End of a program."""

    # None: the program returned, or the machine stopped it.
    error: BaseException | None = None
    done: trio.Event = field(default_factory=trio.Event)


class Machine:
    """One machine: at most one process at a time, and the clock and disk that outlive it."""

    def __init__(
        self,
        name: str,
        *,
        timeline: Timeline,
        internet: Internet,
        trace: Trace,
        nursery: trio.Nursery,
        draw: random.Random,
        clock: MachineClock,
    ) -> None:
        self.name = name
        self.clock = clock
        self.storage = Storage()
        self.faults = DiskFaults()
        self.process: Process | None = None
        self.fate = Fate()
        self.runs = 0
        self.stop_with: How = "kill"
        self.power_cuts: list[float] = []
        self.started_at = 0.0  # start of the current or last run
        self.lost: list[Lost] = []
        self._timeline = timeline
        self._internet = internet
        self._trace = trace
        self._nursery = nursery
        self._random = draw
        self._locks: dict[str, SimulatedLock] = {}
        internet.up[name] = True

    @property
    def running(self) -> bool:
        return self.process is not None

    def say(self, text: str) -> None:
        self._trace.add(self._timeline.now, self.name, text)

    def start(self, program: Program) -> Fate:
        assert self.process is None, f"{self.name} is already running"
        if not self._internet.up[self.name]:
            self._internet.powered(self.name, True)
        self.runs += 1
        self.started_at = self._timeline.now
        self.process = Process(self._timeline, self.name, self.runs)
        self.fate = Fate()
        self.say(f"starts (run {self.runs})")
        self._nursery.start_soon(self._run, program, self.process, self.fate)
        return self.fate

    def runtime(self, process: Process) -> Runtime:
        return Runtime(
            ProcessClock(self.clock, process),
            ProcessNetwork(self._internet, process),
            ProcessDisk(
                self.storage,
                self.faults,
                self._locks,
                process,
                self._random,
                self._trace,
                self._stopped_by_disk,
            ),
            random.Random(self._random.getrandbits(64)),
        )

    async def _run(self, program: Program, process: Process, fate: Fate) -> None:
        running_on.set(self.name)
        running_process.set(process)
        error: BaseException | None = None
        try:
            with process.scope:
                await program(self.runtime(process))
        except BaseException as raised:  # noqa: BLE001 - recorded in `fate`
            error = raised
        if process.alive:
            fate.error = error
            self.say(f"ends: {error!r}" if error else "ends")
            process.die(silent=False)
            self.process = None
        elif isinstance(error, KeyboardInterrupt | SystemExit):
            raise error
        fate.done.set()

    def kill(self) -> None:
        """Kill the process, as kill -9 does: written data stays."""
        self._stop("kill")

    def power_cut(self) -> None:
        """Cut the power: draw which of the data that is not durable survives."""
        self._stop("power")

    def _stopped_by_disk(self) -> None:
        self._stop(self.stop_with)

    def _stop(self, how: How) -> None:
        process, self.process = self.process, None
        self.faults.stop_in = None
        if process is not None:
            self.say("killed" if how == "kill" else "loses power")
            process.die(silent=how == "power")
        if how == "power":
            self._internet.powered(self.name, False)
            self.power_cuts.append(self._timeline.now)
            lost = self.storage.lose_power(self._random)
            self.lost.append(lost)
            self.say(f"lost {lost}")

    def lose_disk(self) -> None:
        """Replace the disk by an empty one. The machine must not be running."""
        assert self.process is None
        self.storage = Storage(
            capacity_bytes=self.storage.capacity_bytes, medium=self.storage.medium + 1
        )
        self.say("has a new disk")

    def put_back(self, image: Storage) -> None:
        """Replace the disk by `image` after a power loss. The machine must not be running."""
        assert self.process is None
        image.power_cuts = (
            self.storage.power_cuts
        )  # the boot id, which changes with each power loss
        image.capacity_bytes = self.storage.capacity_bytes
        image.images_put_back = self.storage.images_put_back + 1
        image.medium = self.storage.medium + 1
        self.storage = image
        self.power_cuts.append(self._timeline.now)
        self.lost.append(image.lose_power(self._random))
        self.say("has an older image of its disk")

    def stop_at_disk_change(self, number: int, how: How, path: str = "") -> None:
        """Stop at the `number`-th change from now of disk paths that contain `path`."""
        self.stop_with = how
        self.faults.stop_in = number
        self.faults.stop_path = path

    def pause(self) -> None:
        if self.process is not None:
            self.say("paused")
            self.process.pause()

    def resume(self) -> None:
        if self.process is not None and self.process.paused:
            self.say("resumed")
            self.process.resume()
