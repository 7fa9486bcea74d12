"""A function beside the loop that stops between two operations of the disk, so that the loop runs.

The function has a thread of its own, but only one of the two ever runs: the one that has the turn
hands it over and waits. So what is drawn and what is traced stays in one order.

    loop  --step--> function  --pause--> loop  --step--> function  --(ends)--> loop

A lock that the function holds is held by the loop's whole world: whoever else asked for it would
wait for ever. So the function does not stop while it holds a `TurnLock`, which stands for
`threading.Lock` in the shipped code.
"""

import threading
from collections.abc import Callable
from contextvars import copy_context
from types import TracebackType
from typing import Any, Final

_here = threading.local()


def _taken_lock() -> threading.Lock:
    """To be released by one thread and acquired by another: a cheaper `Semaphore(0)`."""
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
        self.error: BaseException | None = None
        self.result: Any = None
        self._carrier.carry(self)

    # On the loop

    def step(self) -> None:
        """It has run on, up to its next pause or its end."""
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
        """The loop had its turn, unless a lock is held."""
        if not self.locks:
            self._hand_over()

    def on_loop(self, function: Callable[[], None]) -> None:
        """The loop has called it: what wakes tasks is not for threads."""
        self._on_loop = function
        self._hand_over()

    def _hand_over(self) -> None:
        self._has_stopped.release()
        self._may_run.acquire()

    def carried(self) -> None:
        """The function has run, in the thread that calls this."""
        self._may_run.acquire()
        _here.steps = self
        try:
            self.result = self._context.run(self._function)
        except BaseException as error:  # noqa: BLE001 - it is raised where the function was given
            self.error = error
        self.is_done = True
        self._has_stopped.release()


class _Carrier:
    """A thread for one function after another: to start one costs more than most functions do."""

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
    """The function beside the loop that calls this, if one does."""
    return getattr(_here, "steps", None)


class TurnLock:
    """`threading.Lock`, where nobody ever waits for it."""

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
