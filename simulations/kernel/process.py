"""One run of a program on a simulated machine, which can be killed (`kill -9`) or paused (SIGSTOP).

Every wait of a simulated interface parks here. So a dead process never gets a result of a wait,
and a paused process gets its results when it is resumed.

    alive --pause--> paused --resume--> alive      results that fall due meanwhile are held
    alive or paused --die--> dead                  every wait, and every later call, raises

Order of `die`: first the interfaces stop working, then the tasks are woken. As in a real kill, no
`finally` block of the program can still write a byte.
"""

from typing import Any, Final, Protocol

import outcome
import trio

from metaquorum.simulations.kernel.timeline import Timeline


class MachineStopped(BaseException):
    """Raised in a process that is dead. Not an Exception: programs must not catch it."""


class Closable(Protocol):
    """Resource that the kernel releases when a process dies: a socket, a lock."""

    def process_died(self, *, silent: bool) -> None:
        """Release the resource. `silent`: the power failed, so peers get no message."""


class _Woken:
    """Result of a wait that is over: an `outcome.Value(None)` that all waits share."""

    def unwrap(self) -> None:
        return None


_WOKEN: Final = _Woken()


class Wait:
    """One parked task; the first call of `wake` or `fail` counts, later ones are ignored."""

    __slots__ = ("_process", "_result", "_task", "shielded")

    def __init__(self, process: "Process", *, shielded: bool = False) -> None:
        self._process = process
        self._task: trio.lowlevel.Task | None = None
        self._result: _Woken | outcome.Error | None = None
        self.shielded = shielded

    def wake(self) -> None:
        self._settle(_WOKEN)

    def fail(self, error: BaseException) -> None:
        self._settle(outcome.Error(error))

    def _settle(self, result: _Woken | outcome.Error) -> None:
        if self._result is None:
            self._result = result
            if self._task is not None and not self._process.paused:
                self.release()

    def release(self) -> None:
        """Reschedule the task if its wait is over: after a pause, or when it has a result."""
        task = self._task
        if task is not None and self._result is not None:
            self._task = None
            self._process.waits.pop(self, None)
            result: Any = self._result  # trio only calls its `unwrap`
            trio.lowlevel.reschedule(task, result)

    async def park(self) -> None:
        process = self._process
        if self._result is not None and not process.paused:
            await trio.lowlevel.checkpoint()
            self._result.unwrap()
            return
        self._task = trio.lowlevel.current_task()
        process.waits[self] = None
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        process.check()

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        if self.shielded:
            return trio.lowlevel.Abort.FAILED
        self._task = None
        self._result = _WOKEN
        self._process.waits.pop(self, None)
        return trio.lowlevel.Abort.SUCCEEDED


class Process:
    """One run of a program: its parked waits, and the resources that its death releases."""

    def __init__(self, timeline: Timeline, name: str, number: int) -> None:
        self.timeline = timeline
        self.name = name
        self.number = number
        self.alive = True
        self.paused = False
        # Whether a function passed to a worker thread runs.
        self.is_in_thread = False
        self.scope = trio.CancelScope()
        self.waits: dict[Wait, None] = {}
        self.holdings: dict[Closable, None] = {}

    def check(self) -> None:
        if not self.alive:
            raise MachineStopped(self.name)

    async def wait_until(self, when: float, *, shielded: bool = False) -> None:
        """Wait until `when` on the timeline; a checkpoint even if that time has passed."""
        self.check()
        wait = Wait(self, shielded=shielded)
        timer = self.timeline.at(when, wait.wake)
        try:
            await wait.park()
        finally:
            timer.cancel()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        for wait in list(self.waits):
            wait.release()

    def die(self, *, silent: bool) -> None:
        if not self.alive:
            return
        self.alive = False
        self.paused = False
        for thing in list(self.holdings):
            thing.process_died(silent=silent)
        self.holdings.clear()
        for wait in list(self.waits):
            wait.shielded = False
            wait.fail(MachineStopped(self.name))
            wait.release()
        self.scope.cancel()
