"""A node as a fork of the warm process, with the methods of `subprocess.Popen` that tests use."""

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
from typing import IO, ClassVar, Final

from tests.suite import rings

ROOT: Final = Path(__file__).resolve().parents[2]
MAX_ANSWER_BYTES: Final = 64
# Any value: nodes are executed.
EXECUTE: Final = "METAQUORUM_TESTS_EXECUTE"
LOST: Final = -signal.SIGKILL  # exit code of a node whose warm process has ended


def can_fork() -> bool:
    return sys.platform == "linux" and not os.environ.get(EXECUTE)


def _umask() -> int:
    """Return the umask, without changing it for other threads."""
    found = re.search(r"^Umask:\s+(\d+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1], 8)


class WarmServer:
    """The warm process of this process of tests, which starts it when the first node starts."""

    def __init__(self) -> None:
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm.server", str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                pass_fds=[other.fileno()],
            )
        self._lock = threading.Lock()
        self.owner = os.getpid()

    def start(self, request: Mapping[str, object], files: Sequence[int]) -> int:
        """Return the pid of the new node. Raises RuntimeError if the warm process has ended."""
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
        """Close the socket; return the exit code. Its nodes run on."""
        self._control.close()
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self.end()


class WarmProcess:
    """One node."""

    _server: ClassVar[WarmServer | None] = None
    _starting: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: int,
        stdout: IO[bytes],
        stderr: IO[bytes],
        cwd: Path,
    ) -> None:
        """Start `mq-server` with these arguments."""
        rings.check_program(["mq-server", *arguments])
        request = {
            "arguments": list(arguments),
            "folder": str(cwd),
            "environment": dict(os.environ),
            "umask": _umask(),
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        assert stdin == subprocess.DEVNULL
        self.returncode: int | None = None
        self._report, written = os.pipe()
        try:
            with open(os.devnull, "rb") as null:
                files = [null.fileno(), stdout.fileno(), stderr.fileno(), written]
                self.pid = self._shared().start(request, files)
        except BaseException:
            os.close(self._report)
            self._report = -1
            raise
        finally:
            os.close(written)

    @classmethod
    def _shared(cls) -> WarmServer:
        with cls._starting:
            if cls._server is None or cls._server.owner != os.getpid():
                cls._server = WarmServer()
            return cls._server

    @classmethod
    def end_server(cls) -> None:
        """End the warm process, if this process has started one."""
        with cls._starting:
            if cls._server is not None and cls._server.owner == os.getpid():
                cls._server.end()
            cls._server = None

    def poll(self) -> int | None:
        """Return the exit code; None while the node runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(["mq-server"], timeout or 0)
        return code

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            poller = select.poll()
            poller.register(self._report, select.POLLIN)
            if poller.poll(None if timeout_s is None else 1000 * timeout_s):
                status = os.read(self._report, MAX_ANSWER_BYTES)
                self.returncode = int(status) if status else LOST
                os.close(self._report)
                self._report = -1
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
