"""The cost of a test run: CPU and wall seconds of each test, and of the programs that tests start.

Each test process measures its own CPU time, that of children which have ended, garbage collection
and simulated worlds, and sends the numbers with the report of the test's last phase. The process
that controls the run samples all processes which tests have started, because a node or a JVM may
serve many tests. `python -m tests.suite.costs` prints the table of the last run again.
"""

import gc
import os
import resource
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from metaquorum.wire.primitives.frozen import frozen
from tests.suite import journal, processes
from tests.suite.cost_table import table

PROPERTY = "cost"
WORKER = "PYTEST_XDIST_WORKER"
RUN = "PYTEST_XDIST_TESTRUNUID"
SAMPLE_S: Final = 0.2
PROGRAMS_A_LINE: Final = 200
# Kinds of programs, by the name of the program or a part of its command; the first that fits.
PROGRAMS: Final = (
    ("Spark", (), ("org.apache.spark", "pyspark")),
    ("Kafka nodes", (), ("kafka.Kafka",)),
    ("Maven, javac", ("mvn", "javac"), ("plexus", "com.sun.tools")),
    ("Java tools and clients", ("java",), ()),
    ("Go, Node.js, kcat", ("go", "node", "npm", "kcat", "compile", "link", "asm", "cgo"), ()),
    ("our nodes", ("mq-server",), ("metaquorum.cli.server.main",)),
    ("our commands", ("mq-admin", "mq-load"), ("cli.",)),
    ("simulator", (), ("simulations",)),
)
OTHER_PROGRAMS: Final = "other programs"


@frozen
class Usage:
    """Time that a process has used so far, in seconds."""

    wall: float
    cpu: float
    children: float
    garbage: float
    simulated: float

    def since(self, earlier: "Usage") -> dict[str, float]:
        return {
            name: round(getattr(self, name) - getattr(earlier, name), 4)
            for name in ("wall", "cpu", "children", "garbage", "simulated")
        }


class Meter:
    """Measures the tests of this process."""

    def __init__(self) -> None:
        self._garbage_s = self._simulated_s = self._collecting_since = 0.0
        self._before: Usage | None = None
        self._began = 0.0
        gc.callbacks.append(self._collected)
        run = trio.run

        def measured(*args: Any, **kwargs: Any) -> Any:
            clock = kwargs.get("clock")
            if clock is None or isinstance(clock, trio._core._run.SystemClock):
                return run(*args, **kwargs)
            began = time.process_time()
            try:
                return run(*args, **kwargs)
            finally:
                self._simulated_s += time.process_time() - began

        trio.run = measured

    def _collected(self, phase: str, _: Mapping[str, int]) -> None:
        now = time.process_time()
        if phase == "start":
            self._collecting_since = now
        else:
            self._garbage_s += now - self._collecting_since

    def usage(self) -> Usage:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Usage(
            time.perf_counter(),
            time.process_time(),
            children.ru_utime + children.ru_stime,
            self._garbage_s,
            self._simulated_s,
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._began = time.time()
        self._before = self.usage()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        report: Any = yield
        if call.when == "teardown" and self._before is not None:
            cost: dict[str, Any] = self.usage().since(self._before)
            cost["began"], cost["ended"] = self._began, time.time()
            cost["worker"] = os.environ.get(WORKER, "")
            cost["hypothesis"] = hasattr(getattr(item, "function", None), "hypothesis")
            report.user_properties.append((PROPERTY, cost))
        return report


class Sampler:
    """Samples the processes of a run from a thread, and the idle time of the machine."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._known: dict[processes.ProcessId, tuple[str, str, float]] = {}
        self._foreign: set[processes.ProcessId] = set()
        self.used: list[tuple[float, str, str, float]] = []  # time, worker, kind, CPU s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_all, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _sample_all(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        now = time.time()
        for pid in processes.pids():
            found = processes.state(pid)
            if found is None or found.id in self._foreign or found.is_zombie:
                continue
            if found.id not in self._known:
                environment = processes.environment(pid)
                if environment.get(RUN) != self._run or WORKER not in environment:
                    if found.parent != os.getpid():  # a child has our command until it executes
                        self._foreign.add(found.id)
                    continue
                self._known[found.id] = (environment[WORKER], "", 0.0)
            worker, kind, cpu_s = self._known[found.id]
            if found.cpu_s > cpu_s:
                # A process shows its parent's command until it executes its own.
                kind = kind_of(processes.command(pid)) or kind
                self.used.append((now, worker, kind, found.cpu_s - cpu_s))
                self._known[found.id] = (worker, kind, found.cpu_s)


def kind_of(command: list[str]) -> str:
    if not command:
        return ""
    program = Path(command[0]).name
    for kind, programs, marks in PROGRAMS:
        if program in programs or any(mark in word for mark in marks for word in command):
            return kind
    return OTHER_PROGRAMS


def machine_times() -> tuple[float, float]:
    """Return the busy and the idle CPU seconds of this machine since its start."""
    try:
        line = Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return 0.0, 0.0
    user, nice, system, idle, wait, *rest = (int(field) for field in line.split()[1:9])
    busy = user + nice + system + sum(rest)
    return busy / processes.TICKS_PER_S, (idle + wait) / processes.TICKS_PER_S


class Costs:
    """Writes the costs of all tests to the journal, in the process that controls the run."""

    def __init__(self, config: pytest.Config, written: journal.Journal) -> None:
        self._config = config
        self._journal = written
        self._sampler: Sampler | None = None
        self._began = time.time()
        self._machine = machine_times()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self) -> None:
        manager = self._config.pluginmanager.getplugin("dsession").nodemanager
        self._sampler = Sampler(manager.testrunuid)
        self._sampler.start()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY:
                self._journal.add("test", name=report.nodeid, **value)
                self._write_programs()

    def _write_programs(self) -> None:
        if self._sampler is not None and len(self._sampler.used) > PROGRAMS_A_LINE:
            used, self._sampler.used = self._sampler.used, []
            self._journal.add("programs", used=used)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._sampler is not None:
            self._sampler.stop()
            self._journal.add("programs", used=self._sampler.used)
        busy, idle = machine_times()
        self._journal.add(
            "end",
            wall=time.time() - self._began,
            busy=busy - self._machine[0],
            idle=idle - self._machine[1],
        )
        self._journal.close()
        run = journal.read(self._journal.path)
        if len(run.tests) > 1:
            terminalreporter.ensure_newline()
            for line in table([run]):
                terminalreporter.write_line(line)
