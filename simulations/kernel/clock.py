"""Clocks of a simulated machine: with a skew, a wrong rate, and jumps."""

from typing import Final

from metaquorum.simulations.kernel.process import Process
from metaquorum.simulations.kernel.timeline import Timeline

# 2024-01-01 UTC: every world begins on this day, so that it does not depend on the real date.
EPOCH_S: Final = 1_704_067_200.0
# CPU seconds that each call of `cpu_s` adds.
PIECE_CPU_S: Final = 20e-6
# The same in a worker thread, which gets the functions that take long.
THREAD_PIECE_CPU_S: Final = 2e-3


class MachineClock:
    """Hardware clock of a machine, which survives its processes.

    `rate`: seconds of this clock per second of the timeline.
    """

    def __init__(self, timeline: Timeline, *, skew_s: float, rate: float, uptime_s: float) -> None:
        self._timeline = timeline
        self._skew_s = skew_s
        self._rate = rate
        self._uptime_s = uptime_s

    def jump(self, seconds: float) -> None:
        """Add `seconds`, which may be negative, to the wall clock; the monotonic clock stays."""
        self._skew_s += seconds

    def run_at(self, rate: float) -> None:
        """Change the rate of the clock; neither wall clock nor monotonic clock jumps."""
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
    """`Clock` interface of one process."""

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
        """Return a CPU time that grows by the same amount with each call.

        Work takes no virtual time. Unlike the other methods it does not raise MachineStopped:
        `finally` blocks of a dead process may call it.
        """
        if self._process.is_in_thread:
            self._thread_cpu_s += THREAD_PIECE_CPU_S
            return self._thread_cpu_s
        self._cpu_s += PIECE_CPU_S
        return self._cpu_s

    async def sleep_until(self, deadline: float) -> None:
        # Wait again if the clock was slowed meanwhile, or if the rate caused a rounding error.
        due = self._machine.true_time(deadline)
        await self._process.wait_until(due)
        while self._machine.monotonic() < deadline:
            due = max(self._machine.true_time(deadline), self._process.timeline.now + 1e-6)
            await self._process.wait_until(due)
