"""A function in a worker thread that pauses between two disk operations, so that the loop runs.

The function has a thread of its own, but thread and loop never run at the same time: each hands
its turn to the other and waits. So draws and trace events have one order.

    loop  --step--> function  --pause--> loop  --step--> function  --(ends)--> loop

If the function paused while it holds a lock, a task of the loop that needs the lock would deadlock
the world. So the function does not pause while it holds a `TurnLock`, which replaces
`threading.Lock` in the shipped code.
"""

import threading
from collections.abc import Callable
from contextvars import copy_context
from types import TracebackType
from typing import Any, Final

_here = threading.local()


def _taken_lock() -> threading.Lock:
    """Return a lock that one thread releases and another acquires: a cheaper `Semaphore(0)`."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class ThreadSteps:
    def __init__(self, function: Callable[[], Any]) -> None:
        self._function: Final = function
        self._may_run = _taken_lock()
        self._has_stopped = _taken_lock()
        self._on_loop: Callable[[], None] | None = None
        self._context = copy_context()
        self._carrier = _idle.pop() if _idle else _Carrier()
        self.locks = 0
        self.is_done = False
        self.is_hanging = False  # it waits for a device
        self.error: BaseException | None = None
        self.result: Any = None
        self._carrier.carry(self)

    # On the loop

    def step(self) -> None:
        """Let the function run up to its next pause or its end."""
        while True:
            self._may_run.release()
            self._has_stopped.acquire()
            asked, self._on_loop = self._on_loop, None
            if asked is None:
                break
            asked()
        if self.is_done:
            _idle.append(self._carrier)

    # In the thread

    def pause(self) -> None:
        """Give the loop its turn, unless the function holds a lock."""
        if not self.locks:
            self._hand_over()

    def on_loop(self, function: Callable[[], None]) -> None:
        """Call `function` in the loop: a thread must not wake tasks."""
        self._on_loop = function
        self._hand_over()

    def _hand_over(self) -> None:
        self._has_stopped.release()
        self._may_run.acquire()

    def carried(self) -> None:
        """Run the function in the calling thread."""
        self._may_run.acquire()
        _here.steps = self
        try:
            self.result = self._context.run(self._function)
        except BaseException as error:  # noqa: BLE001 - `Disk.run` raises it
            self.error = error
        self.is_done = True
        self._has_stopped.release()


class _Carrier:
    """Thread that runs one function after another: starting one costs more than most functions."""

    def __init__(self) -> None:
        self._has_work = _taken_lock()
        self._next: ThreadSteps | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def carry(self, steps: ThreadSteps) -> None:
        self._next = steps
        self._has_work.release()

    def _run(self) -> None:
        while True:
            self._has_work.acquire()
            steps, self._next = self._next, None
            assert steps is not None
            steps.carried()
            del steps


_idle: Final[list[_Carrier]] = []


def current() -> ThreadSteps | None:
    """Return the steps of the worker thread that calls this, or None in the loop."""
    return getattr(_here, "steps", None)


class TurnLock:
    """`threading.Lock` without waiting: no two functions ever need it at once."""

    def __init__(self) -> None:
        self._is_held = False

    def __enter__(self) -> None:
        assert not self._is_held
        self._is_held = True
        if (steps := current()) is not None:
            steps.locks += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._is_held = False
        if (steps := current()) is not None:
            steps.locks -= 1
