"""A fork of a warm process, with the methods of `subprocess.Popen` that tests use."""

import contextlib
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Final

from tests.suite import rings

ROOT: Final = Path(__file__).resolve().parents[2]
MAX_ANSWER_BYTES: Final = 64
# Any value: programs are executed.
EXECUTE: Final = "METAQUORUM_TESTS_EXECUTE"
LOST: Final = -signal.SIGKILL  # exit code of a program whose warm process has ended


def can_fork() -> bool:
    return sys.platform == "linux" and not os.environ.get(EXECUTE)


def _umask() -> int:
    """Return the umask, without changing it for other threads."""
    found = re.search(r"^Umask:\s+(\d+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1], 8)


class WarmServer:
    """The warm process of one program, which the process of the tests starts when it needs it."""

    def __init__(self, program: str) -> None:
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm.server", str(other.fileno()), program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                pass_fds=[other.fileno()],
            )
        self._lock = threading.Lock()
        self.owner = os.getpid()

    def start(self, request: Mapping[str, object], files: Sequence[int]) -> int:
        """Return the pid of the new fork. Raises RuntimeError if the warm process has ended."""
        with self._lock:
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], files)
                answer = self._control.recv(MAX_ANSWER_BYTES)
            except OSError as error:
                raise RuntimeError("the warm process has ended") from error
        if not answer:
            raise RuntimeError("the warm process has ended")
        return int(answer)

    def end(self) -> int:
        """Close the socket; return the exit code. Its forks run on."""
        self._control.close()
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self.end()


class WarmProcess:
    """One fork; pipes are text."""

    servers: ClassVar[dict[str, WarmServer]] = {}
    _starting: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        name: str = "",
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        stdout: IO[bytes] | int = subprocess.DEVNULL,
        stderr: IO[bytes] | int = subprocess.DEVNULL,
        cwd: Path = ROOT,
    ) -> None:
        """Call `main` of the module `program` with these arguments, under this name."""
        rings.check_program([name or program, *arguments])
        request = {
            "name": name or program,
            "arguments": list(arguments),
            "folder": str(cwd),
            "environment": dict(os.environ),
            "umask": _umask(),
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        self.returncode: int | None = None
        self._reading = threading.Lock()
        self._report, written = os.pipe()
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        with contextlib.ExitStack() as given:
            given.callback(os.close, written)
            files = []
            for field, file in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
                if file == subprocess.PIPE:
                    read, write = os.pipe()
                    theirs, ours = (read, write) if field == "stdin" else (write, read)
                    given.callback(os.close, theirs)
                    setattr(self, field, os.fdopen(ours, "w" if field == "stdin" else "r"))
                    files.append(theirs)
                elif isinstance(file, int):
                    assert file == subprocess.DEVNULL
                    files.append(given.enter_context(open(os.devnull, "r+b")).fileno())
                else:
                    files.append(file.fileno())
            self.pid = self._server(program).start(request, [*files, written])

    @classmethod
    def _server(cls, program: str) -> WarmServer:
        with cls._starting:
            found = cls.servers.get(program)
            if found is None or found.owner != os.getpid():
                found = cls.servers[program] = WarmServer(program)
            return found

    @classmethod
    def end_servers(cls) -> None:
        """End the warm processes that this process has started."""
        with cls._starting:
            for each in cls.servers.values():
                if each.owner == os.getpid():
                    each.end()
            cls.servers.clear()

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0)
        return code

    def _ended(self, timeout_s: float | None) -> int | None:
        """Several threads may wait; the first of them reads the exit code."""
        if self.returncode is None:
            poller = select.poll()
            poller.register(self._report, select.POLLIN)
            if poller.poll(None if timeout_s is None else 1000 * timeout_s):
                with self._reading:
                    if self.returncode is None:
                        status = os.read(self._report, MAX_ANSWER_BYTES)
                        self.returncode = int(status) if status else LOST
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def __del__(self) -> None:
        if getattr(self, "_report", -1) >= 0:
            os.close(self._report)


def started(
    program: str, arguments: Sequence[str], **files: Any
) -> "subprocess.Popen[str] | WarmProcess":
    """Start a module of this project as a program, in ROOT: by a fork if possible."""
    if can_fork():
        return WarmProcess(program, arguments, **files)
    command = [sys.executable, "-m", program, *arguments]
    return subprocess.Popen(command, text=True, cwd=ROOT, **files)
