"""One machine's idea of time: wrong by a skew, wrong by a rate, jumping when told to."""

from typing import Final

from simulations.kernel.process import Process
from simulations.kernel.timeline import Timeline

# 2024-01-01 UTC: worlds begin on the same day, whatever day it is outside.
EPOCH_S: Final = 1_704_067_200.0
# Of CPU, between two looks at how much was used.
PIECE_CPU_S: Final = 20e-6
# The same in a worker thread, which is given what takes long.
THREAD_PIECE_CPU_S: Final = 2e-3


class MachineClock:
    """The hardware clock; it outlives the processes of its machine.

    `rate` is how many of its seconds pass in one true second.
    """

    def __init__(self, timeline: Timeline, *, skew_s: float, rate: float, uptime_s: float) -> None:
        self._timeline = timeline
        self._skew_s = skew_s
        self._rate = rate
        self._uptime_s = uptime_s

    def jump(self, seconds: float) -> None:
        """The wall clock is set; the monotonic one does not notice."""
        self._skew_s += seconds

    def run_at(self, rate: float) -> None:
        """From now on so many seconds pass here in a true one; neither clock jumps."""
        lead = self._timeline.now * (self._rate - rate)
        self._skew_s += lead
        self._uptime_s += lead
        self._rate = rate

    def wall_s(self) -> float:
        return EPOCH_S + self._timeline.now * self._rate + self._skew_s

    def monotonic(self) -> float:
        return self._uptime_s + self._timeline.now * self._rate

    def true_time(self, monotonic: float) -> float:
        return (monotonic - self._uptime_s) / self._rate


class ProcessClock:
    """The `Clock` seam."""

    def __init__(self, machine: MachineClock, process: Process) -> None:
        self._machine = machine
        self._process = process
        self._cpu_s = self._thread_cpu_s = 0.0

    def now_ms(self) -> int:
        self._process.check()
        return int(self._machine.wall_s() * 1000)

    def monotonic(self) -> float:
        self._process.check()
        return self._machine.monotonic()

    def cpu_s(self) -> float:
        """Work takes no time here: each piece of it is said to have taken the same.

        The dead may ask, too: nothing that is being unwound is interrupted for it.
        """
        if self._process.is_in_thread:
            self._thread_cpu_s += THREAD_PIECE_CPU_S
            return self._thread_cpu_s
        self._cpu_s += PIECE_CPU_S
        return self._cpu_s

    async def sleep_until(self, deadline: float) -> None:
        # Once more where the clock was slowed meanwhile, and for the rate's rounding error.
        due = self._machine.true_time(deadline)
        await self._process.wait_until(due)
        while self._machine.monotonic() < deadline:
            due = max(self._machine.true_time(deadline), self._process.timeline.now + 1e-6)
            await self._process.wait_until(due)
