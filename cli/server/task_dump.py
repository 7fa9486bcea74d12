"""Prints the tasks and threads of a node on stderr after SIGQUIT, as a JVM does; it continues."""

import faulthandler
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import trio

MAX_TASKS: Final = 500
MAX_FRAMES: Final = 30


async def print_tasks_on_signal() -> None:
    """Print all threads and tasks after each SIGQUIT, until cancelled.

    The threads are printed at once, also if the event loop does not run; the tasks by the loop.
    """
    with trio.open_signal_receiver(signal.SIGQUIT) as signals:
        with suppress(OSError, ValueError, AttributeError):  # standard error is closed
            faulthandler.register(signal.SIGQUIT, chain=True)
        try:
            async for _ in signals:
                with suppress(OSError, ValueError, AttributeError):
                    sys.stderr.write("\n".join([*task_lines(), ""]))
                    sys.stderr.flush()
        finally:
            faulthandler.unregister(signal.SIGQUIT)


def task_lines() -> Iterator[str]:
    """Yield the tree of tasks, each with its innermost frames, at most MAX_TASKS."""
    root = trio.lowlevel.current_root_task()
    left = [] if root is None else [(root, 0)]
    count = 0
    while left and count < MAX_TASKS:
        task, depth = left.pop()
        count += 1
        indent = "  " * depth
        yield f"{indent}task {task.name}"
        frames = list(task.iter_await_frames())[-MAX_FRAMES:]
        for frame, line in frames:
            code = frame.f_code
            yield f'{indent}  File "{code.co_filename}", line {line}, in {code.co_name}'
        children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        left += [(child, depth + 1) for child in sorted(children, key=id)]
    if left:
        yield f"... more than {MAX_TASKS} tasks"
