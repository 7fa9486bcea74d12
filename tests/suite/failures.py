"""Failures are printed when they happen, with the last log lines of the test's nodes.

A run that is interrupted or terminated prints which tests were running; one that is killed outright
has them in its journal, and the next run prints them. With -x the other workers end at once.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from tests.suite import journal
from tests.suite.leftovers import end_processes_of, owned_processes
from tests.suite.processes import state, this_process

LINES: Final = 60  # a longer traceback is printed as a whole in the summary only
LOG_LINES: Final = 15  # for each node of a failed test
# After the last permitted failure: its report arrives within the first time; then workers have the
# second one to stop their nodes.
INTERRUPT_AFTER_S: Final = 0.5
KILL_AFTER_S: Final = 5.0


class Failures:
    """Prints failures and running tests, in the process that controls the run."""

    def __init__(self, config: pytest.Config, written: journal.Journal) -> None:
        self._config = config
        self._journal = written
        self._running: dict[str, None] = {}
        self._failures = 0
        self._is_stopping = False
        if config.getvalue("maxfail") and config.option.maxworkerrestart is None:
            config.option.maxworkerrestart = "0"  # workers that are interrupted are not replaced
        signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt(f"signal {number}")

    @property
    def _terminal(self) -> Any:
        return self._config.pluginmanager.getplugin("terminalreporter")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = None
        self._journal.add("start", name=nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        self._failures += 1
        self._journal.add("failed", name=report.nodeid, when=report.when)
        if self._terminal is not None:
            self._print(report)
        maximum = self._config.getvalue("maxfail")
        if maximum and self._failures >= maximum and not self._is_stopping:
            self._is_stopping = True
            threading.Thread(target=self._stop_workers, daemon=True).start()

    def _print(self, report: pytest.TestReport) -> None:
        terminal = self._terminal
        terminal.ensure_newline()
        where = "" if report.when == "call" else f" ({report.when})"
        terminal.write_line(f"FAILED {report.nodeid}{where}, failure {self._failures}", red=True)
        lines = report.longreprtext.splitlines()
        if len(lines) > LINES:
            lines = [f"... {len(lines) - LINES} lines more in the summary", *lines[-LINES:]]
        for name, text in report.sections:
            lines += [f"-- {name}", *text.splitlines()[-LOG_LINES:]]
        for line in lines:
            terminal.write_line(f"  {line}")
        terminal.flush()

    def _stop_workers(self) -> None:
        stopped = threading.Event()
        stopped.wait(INTERRUPT_AFTER_S)
        owner = this_process()
        if owner is None:
            return
        for pid, other in owned_processes():
            found = state(pid)
            if other == owner and found is not None and found.parent == owner.pid:  # a worker
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
        stopped.wait(KILL_AFTER_S)
        end_processes_of(owner)

    def pytest_keyboard_interrupt(self) -> None:
        if self._terminal is not None and self._running:
            self._terminal.ensure_newline()
            self._terminal.write_line("interrupted while these tests were running:", red=True)
            for name in self._running:
                self._terminal.write_line(f"  {name}")


class NodeLogs:
    """Adds the last log lines of a failed test's nodes to its report, in the test's process."""

    def __init__(self) -> None:
        self._began = 0.0

    def pytest_runtest_logstart(self) -> None:
        self._began = time.time()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        if report.failed:
            from tests.nodes import Node  # not before its plugins are loaded

            for node in tuple(Node.known):
                if node.errors.exists() and node.errors.stat().st_mtime >= self._began:
                    lines = node.log().splitlines()[-LOG_LINES:]
                    report.sections.append((f"log of the node {node.folder}", "\n".join(lines)))
        return report


class LastRun:
    """Shows what the last run left open, if it was killed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def pytest_sessionstart(self) -> None:
        run = None if self._path is None else journal.read(self._path)
        if run is not None and run.was_killed:
            print(f"the last run was killed; its journal is {self._path}")
            for what, names in (("had failed", run.failed), ("was running", run.running)):
                for name in names:
                    print(f"it {what}: {name}")
