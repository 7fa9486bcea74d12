"""The warm process: `python -m tests.warm.server FD MODULE`, with a socket to the tests.

A request is JSON in one message: arguments of the module's `main`, folder, environment, umask and
limit of open files. With it come four descriptors: stdin, stdout and stderr of the program, and a
pipe for its exit status. The answer is the program's pid. The program is a fork that leaves this
loop and calls `main`, so that it ends as an interpreter does. This process ends when the socket is
closed.
"""

import importlib
import json
import os
import pkgutil
import random
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import trio

import metaquorum.wire.messages

MAX_REQUEST_BYTES: Final = 1 << 20
DESCRIPTORS: Final = 4
# Modules that a node imports when it starts, or at the first requests.
NODE: Final = "metaquorum.cli.server.main"
LATE: Final = (
    "metaquorum.cli.server.cluster",
    "metaquorum.cli.server.node_options",
    "metaquorum.dataplane.worker_server",
    "encodings.idna",
    "metaquorum.client.trio_transport",
    "metaquorum.quorum.controller_server",
    "metaquorum.quorum.raft.library",
    "metaquorum.quorum.raft.voter",
    "metaquorum.runtime.system",
)


def import_all(program: str) -> Callable[[], object]:
    """Import the module and what it imports late; return its `main`."""
    if program == NODE:
        for name in LATE:
            importlib.import_module(name)
        for module in pkgutil.iter_modules(metaquorum.wire.messages.__path__):
            importlib.import_module(f"metaquorum.wire.messages.{module.name}")
    main: Callable[[], object] = importlib.import_module(program).main
    return main


def seed_generators() -> None:
    """Seed the generators of modules; trio draws the order of tasks from one of its own."""
    random.seed()
    trio._core._run._r.seed()


class Forks:
    """Forks programs on request, and reports how they end."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._reports: dict[int, int] = {}  # pid to the pipe for the exit status
        self._handlers: dict[int, Any] = {}
        self._wake, self._woken = os.pipe()

    def serve(self) -> Mapping[str, Any] | None:
        """Return the request in the process of a program, and None at the end of the tests."""
        self._set_signals()
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._wake], [], [])
            if self._wake in ready:
                os.read(self._wake, 1 << 10)
                self._report_ended()
            if self._control.fileno() not in ready:
                continue
            data, files, _, _ = socket.recv_fds(self._control, MAX_REQUEST_BYTES, DESCRIPTORS)
            if not data:
                return None
            request = json.loads(data)
            pid = os.fork()
            if pid == 0:
                self._become(request, files)
                return dict(request)
            for file in files[:-1]:
                os.close(file)
            self._reports[pid] = files[-1]
            self._control.send(b"%d" % pid)

    def _set_signals(self) -> None:
        """Be woken by children that end, and leave SIGINT of a terminal to the tests."""
        for number, handler in (
            (signal.SIGINT, signal.SIG_IGN),
            (signal.SIGCHLD, lambda *_: None),
        ):
            self._handlers[number] = signal.signal(number, handler)
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)

    def _report_ended(self) -> None:
        while self._reports:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            report = self._reports.pop(pid)
            os.write(report, b"%d" % os.waitstatus_to_exitcode(status))
            os.close(report)

    def _become(self, request: Mapping[str, Any], files: Iterable[int]) -> None:
        """Take on what a process gets from its parent when it is executed."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for target, file in enumerate([*files][:-1]):
            os.dup2(file, target)
        self._control.detach()
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        os.chdir(request["folder"])
        os.umask(request["umask"])
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["open_files"]))
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = [request["name"], *request["arguments"]]
        seed_generators()


def run() -> None:
    _, file, program = sys.argv
    main = import_all(program)
    if Forks(socket.socket(fileno=int(file))).serve() is not None:
        main()


if __name__ == "__main__":
    run()
