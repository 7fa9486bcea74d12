"""A world: one run of the simulation, in which the seed determines every random choice.

A world runs under trio with virtual time and a seeded scheduler. trio's hook for Hypothesis sorts
the runnable tasks by age before it shuffles them, so that a set ordered by object ids has no
effect. Each purpose and each machine has a random stream of its own: a new draw in one leaves the
others as they were.
"""

import gc
import logging
import random
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final, Protocol

import trio
from trio._core import _run

from metaquorum.dataplane.log.segments import sync_failure_marker
from metaquorum.simulations.kernel.clock import MachineClock
from metaquorum.simulations.kernel.machine import Machine, running_on, running_process
from metaquorum.simulations.kernel.mutation import all_of, swapped
from metaquorum.simulations.kernel.network import Internet
from metaquorum.simulations.kernel.thread_steps import TurnLock
from metaquorum.simulations.kernel.timeline import Timeline
from metaquorum.simulations.kernel.trace import Trace
from metaquorum.wire.protocol import request_form
from metaquorum.wire.records import walk_form
from metaquorum.wire.records.record_walk import RecordWalk

TIME_LIMIT_S: Final = 600.0
# Share of `Disk.run` functions that get a thread; none in most worlds, as a thread is expensive.
INTERLEAVED: Final = (0.0, 0.0, 0.0, 0.2)
BUG: Final = "bug NoneIsExcused"


def interpreted_forms() -> AbstractContextManager[None]:
    """Use the interpreted forms while the block runs.

    Mutants can be planted in them, and they are always available.
    """
    functions = request_form.INTERPRETED
    return all_of(
        swapped(walk_form, "walk_class", lambda _: RecordWalk),
        *[swapped(request_form, name, partial(_given, functions[name])) for name in functions],
    )


def _given(used: Any, _: Any) -> Any:
    return used


class Violation(Exception):  # noqa: N818 - a violation is not an error of the simulator
    """An invariant did not hold."""

    def __init__(self, invariant: str, text: str) -> None:
        self.invariant = invariant
        self.text = text
        super().__init__(f"{invariant}: {text}")


class Counting(Protocol):
    """Part of a checker that the report of a world needs
    (`metaquorum.simulations.kernel.comparing`)."""

    comparisons: int

    @property
    def name(self) -> str: ...


class World:
    """Timeline, network, machines, checkers and trace of one run, which `seed` determines."""

    def __init__(self, seed: int, *, ends_with: Collection[str] = ()) -> None:
        self.seed = seed
        # Invariants whose violation ends the world at once.
        self._ends_with = ends_with
        self.timeline = Timeline()
        self.trace = Trace()
        self.internet = Internet(self.timeline, self.stream("network"), self.trace)
        self.machines: dict[str, Machine] = {}
        self.checkers: list[Counting] = []
        # Faults of this world, by number; a scenario sets them first.
        self.faults: dict[int, str] = {}
        self.violations: list[Violation] = []
        self.counts: dict[str, int] = {}
        self._nursery: trio.Nursery | None = None
        # Share of the writes of all machines that wait for the device (`DiskFaults.held_up`).
        self.held_up = 0.0
        self._interleaved = self.stream("interleaved").choice(INTERLEAVED)
        self._syncs_all = self.stream("sync_all").random() < 0.5

    @property
    def now(self) -> float:
        return self.timeline.now

    def stream(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    def say(self, who: str, text: str) -> None:
        self.trace.add(self.timeline.now, who, text)

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def violate(self, invariant: str, text: str) -> None:
        """Record a violation, once per invariant; the world continues unless it `ends_with` it."""
        if all(known.invariant != invariant for known in self.violations):
            self.violations.append(Violation(invariant, text))
            self.say("VIOLATION", f"{invariant}: {text}")
            if invariant.split()[0] in self._ends_with:
                self.timeline.after(0.0, self._end)

    def machine(self, name: str, *, skew_s: float = 0.0, rate: float = 1.0) -> Machine:
        assert self._nursery is not None, "a machine can be created only while the world runs"
        draw = self.stream(f"machine {name}")
        clock = MachineClock(
            self.timeline, skew_s=skew_s, rate=rate, uptime_s=draw.uniform(1000, 100_000)
        )
        machine = Machine(
            name,
            timeline=self.timeline,
            internet=self.internet,
            trace=self.trace,
            nursery=self._nursery,
            draw=draw,
            clock=clock,
        )
        machine.faults.interleaved = self._interleaved
        machine.faults.held_up = self.held_up
        machine.faults.syncs_all = self._syncs_all
        self.machines[name] = machine
        return machine

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    def run(self, program: Callable[["World"], Awaitable[None]]) -> None:
        """Run `program` to its end or to the time limit; `violations` has the findings."""
        with (
            without_collection(),
            seeded_scheduler(self.stream("scheduler")),
            swapped(_KERNEL, "get_events", seldom_asked),
            interpreted_forms(),
            swapped(sync_failure_marker, "Lock", lambda _: TurnLock),
            self._node_logs(),
        ):
            trio.run(self._main, program, clock=self.timeline)

    async def _main(self, program: Callable[["World"], Awaitable[None]]) -> None:
        with trio.move_on_after(TIME_LIMIT_S) as limit:
            async with trio.open_nursery() as self._nursery:
                try:
                    await program(self)
                except Violation as violation:
                    self.violate(violation.invariant, violation.text)
                except Exception as error:  # noqa: BLE001 - a bug of the scenario is a finding, too
                    where = "".join(traceback.format_exception(error)[-3:])
                    self.violate("story", f"{error!r} {where}")
                finally:
                    for machine in self.machines.values():
                        machine.kill()
                    self._nursery.cancel_scope.cancel()
        if limit.cancelled_caught:
            self.violate("liveness", f"not over after {TIME_LIMIT_S:.0f} s of virtual time")

    def _end(self) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()

    @contextmanager
    def _node_logs(self) -> Iterator[None]:
        handler = _TraceHandler(self)
        root = logging.getLogger()
        level = root.level
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)


class _TraceHandler(logging.Handler):
    """Adds log lines of nodes to the trace, a traceback as its last exception only."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" [{record.exc_info[1]!r}]"
            process = running_process.get()
            if process is not None and process.alive:
                # Nodes log a traceback only if a bug ends a connection or a call.
                self._world.violate(BUG, f"{running_on.get()}: {text}")
        self._world.say(running_on.get(), f"log: {record.levelname.lower()} {text}")


@contextmanager
def without_collection() -> Iterator[None]:
    """Run no cyclic collection in the block: a world lasts for seconds, and most of it is used."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class _Order:
    """Random source that trio uses to order runnable tasks; usually only one is runnable."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def shuffle(self, batch: list[Any]) -> None:
        if len(batch) > 1:
            self._draw.shuffle(batch)


@contextmanager
def seeded_scheduler(draw: random.Random) -> Iterator[None]:
    run: Any = _run
    before = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r
    run._ALLOW_DETERMINISTIC_SCHEDULING, run._r = True, _Order(draw)
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING, run._r = before


def seldom_asked(get_events: Any) -> Any:
    """Poll the operating system only if trio may have woken itself.

    No task of a world waits for the operating system. trio wakes itself for callbacks from outside
    of tasks (Ctrl-C is one), and at the end of the run.
    """

    def asks(io_manager: Any, timeout: float) -> Any:
        runner = _run.GLOBAL_RUN_CONTEXT.runner
        queue = runner.entry_queue
        if runner.runq and not queue.queue and not queue.idempotent_queue:
            return ()
        return get_events(io_manager, timeout)

    return asks


_KERNEL: Final[Any] = vars(_run)["TheIOManager"]
