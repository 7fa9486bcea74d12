"""Count the Python stacks of a process, by a timer of its CPU time. For `tests/peers/profile`.

Python imports this module at its start if PYTHONPATH names its folder. SIGUSR1 starts the timer,
and SIGUSR2 stops it and writes the stacks to the folder SAMPLES, one a line with its count. The
kernel sends SIGPROF at the tick after an interval of CPU time, and Python calls the handler at the
next call or jump: a sample may count for a function that is called within the same microsecond.
"""

import os
import signal
from collections import Counter
from types import CodeType, FrameType

INTERVAL_S = 0.001  # the tick of the kernel is longer: a sample at each tick

stacks: Counter[tuple[CodeType, ...]] = Counter()


def sample(_: int, frame: FrameType | None) -> None:
    codes = []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    stacks[tuple(codes)] += 1


def start(*_: object) -> None:
    stacks.clear()
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)


def stop(*_: object) -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    path = os.path.join(os.environ["SAMPLES"], str(os.getpid()))
    with open(path + ".part", "w") as file:
        for codes, count in stacks.items():
            names = [f"{code.co_filename} {code.co_qualname}" for code in reversed(codes)]
            file.write(";".join(names) + f"\t{count}\n")
    os.replace(path + ".part", path)


def no_wakeup(*_: object, **__: object) -> int:
    """Replace `signal.set_wakeup_fd`: each sample would wake trio's loop."""
    return -1


signal.signal(signal.SIGPROF, sample)
signal.signal(signal.SIGUSR1, start)
signal.signal(signal.SIGUSR2, stop)
signal.set_wakeup_fd = no_wakeup
