"""Nodes as processes: metaquorum, or Apache Kafka with the same methods.

The conformance suite is written against `Peer`. It tests a metaquorum node; with
METAQUORUM_BOOTSTRAP=host:port it tests the cluster there (such as Apache Kafka), and the nodes
that it starts and kills are then real Kafkas too, so that every fact it states is first shown to
hold for the original.
"""

import atexit
import fcntl
import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar, Final, NoReturn, Protocol, TypeVar

import pytest

from tests.warm.process import WarmProcess, can_fork

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
KAFKA = ROOT / "tests" / "peers" / "kafka"
SERVER: Final = (sys.executable, "-m", "metaquorum.cli.server.main")
READY = re.compile(r"^metaquorum node (\d+) ready: listening on (\S+), cluster (\S+), data (.+) \(")
# Timeout of all waits. Conditions hold within milliseconds on an idle machine, and later on a busy
# one; only a failing test waits for the whole time.
PATIENCE_S: Final = 180.0
POLL_S = 0.005
BASE_PORTS = (12_000, 32_000)
MAX_RESERVED_PORTS = 300

_reserved: "deque[socket.socket]" = deque()
_random = (
    random.SystemRandom()
)  # not affected by plugins that seed `random` equally in all processes
_serial = itertools.count()


def module_name(path: Path) -> str:
    """Return the name under which a file of this project is imported; packages end in __init__."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] in ("metaquorum", "tests") else ("metaquorum", *parts))


def unique(name: str) -> str:
    """Return a topic name that no other test, process or run uses."""
    return f"{name}-{os.getpid():x}-{time.time_ns() & 0xFFFFFFFF:x}-{next(_serial)}"


def wait_until(condition: Callable[[], T], timeout_s: float = PATIENCE_S, what: object = "") -> T:
    """Call `condition` until its value is true; return the value. Raises TimeoutError.

    `what` is formatted after the timeout.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s} s: {what or condition}")
        time.sleep(POLL_S)
    return value


def eventually(check: Callable[[], T]) -> T:
    """Call `check` until it raises no AssertionError; return its value.

    For checks of several nodes, one of which may be fenced for a moment on a busy machine.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(10 * POLL_S)


def heed_interrupts() -> None:
    """Let SIGINT and SIGHUP end a command again; a `preexec_fn`.

    A test run in the background, or by nohup, ignores them, and its commands would inherit that.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def free_port() -> int:
    """Return a free port that no other process gets from the system while this process lives.

    So a killed node finds its port free at its next start, and clients that connect to the port
    meanwhile reach no other process.
    """
    return free_ports(())


def free_ports(offsets: Iterable[int]) -> int:
    """Return a port as `free_port` does, such that the ports at these offsets are free, too.

    The ports are below the range from which the system assigns ports.
    """
    while True:
        base = _random.randrange(*BASE_PORTS)
        held: list[socket.socket] = []
        try:
            for offset in (0, *offsets):
                held.append(_reserve(base + offset))
        except OSError:
            for sock in held:
                sock.close()
        else:
            _reserved.extend(held)
            while len(_reserved) > MAX_RESERVED_PORTS:  # ports of tests that ended long ago
                _reserved.popleft().close()
            return base


def _reserve(port: int) -> socket.socket:
    """Return a socket that is bound to the port and does not listen. Raises OSError if it is taken.

    Only a process that binds this port by number with SO_REUSEADDR, as servers do, can then use it.
    """
    sock = socket.socket()
    try:
        sock.bind(("127.0.0.1", port))  # without SO_REUSEADDR: only one process can reserve it
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not _can_listen(
            port
        ):  # this system allows no reservation: the port is free at least now
            sock.close()
    except BaseException:
        sock.close()
        raise
    return sock


def _can_listen(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
            sock.listen()
        except OSError:
            return False
        return True


@atexit.register
def _give_back_ports() -> None:
    for sock in _reserved:
        sock.close()


# Many tests write records with timestamps of years ago. Retention would delete them at its first
# run after five minutes, in the middle of a test.
LASTING: Final[Mapping[str, object]] = {"log.retention.check.interval.ms": 24 * 3600 * 1000}
# Settings of the node that most tests share, and of Kafka in the same run: a group need not wait
# for more members, and transactions that time out are soon found.
SHARED: Final[Mapping[str, object]] = {
    "group.initial.rebalance.delay.ms": 0,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}


class Peer(Protocol):
    @property
    def bootstrap(self) -> str: ...


class Elsewhere:
    """A cluster that this test run neither starts nor stops."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap


class Node:
    """One `mq-server run`, with its data, output and errors in `folder`.

    It keeps its port while it is stopped. The process is a fork of a warm one (tests/warm) unless
    `is_executed`.
    """

    known: ClassVar["weakref.WeakSet[Node]"] = weakref.WeakSet()

    def __init__(
        self, folder: Path, settings: Mapping[str, object] | None = None, *arguments: str
    ) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.errors = folder / "stderr"
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self.cluster_id = ""
        self._settings: dict[str, object] = {**LASTING, **(settings or {})}
        self._arguments = arguments
        self.is_executed = not can_fork()
        self._process: subprocess.Popen[bytes] | WarmProcess | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.known.add(self)

    def configure(self, settings: Mapping[str, object], *arguments: str) -> None:
        """Add settings and arguments for the next start."""
        self._settings |= settings
        self._arguments += arguments

    def command(self) -> list[str]:
        sets = [
            part for key, value in self._settings.items() for part in ("--set", f"{key}={value}")
        ]
        listen = [] if "listeners" in self._settings else ["--listen", self.bootstrap]
        where = [*listen, "--data-dir", str(self.data_dir)]
        return [*SERVER, "run", *where, *sets, *self._arguments]

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the node is not running"
        return self._process.pid

    def start(self) -> None:
        """Start the node and wait for its ready line."""
        output = self.folder / "stdout"
        with output.open("wb") as out, self.errors.open("ab") as err:
            self._process = self._begin(out, err)
        process = self._process

        def ready() -> re.Match[str] | None:
            if (code := process.poll()) is not None:
                raise RuntimeError(f"the node ended with {code}: {self.tail()}")
            return READY.match(output.read_text())

        try:
            found = wait_until(ready, what="the node's ready line")
        except BaseException:
            self.kill()
            raise
        self.bootstrap, self.cluster_id = found[2], found[3]

    def _begin(self, out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes] | WarmProcess:
        files: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        if self.is_executed:
            return subprocess.Popen(self.command(), cwd=ROOT, **files)
        return WarmProcess(
            SERVER[-1], self.command()[len(SERVER) :], name="mq-server", cwd=ROOT, **files
        )

    def log(self) -> str:
        """Return all log lines so far; empty before the first start."""
        return self.errors.read_text() if self.errors.exists() else ""

    def tail(self) -> str:
        return self.log()[-3000:]

    def kill(self) -> None:
        """Kill the node (SIGKILL) and wait until the process has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def stop(self) -> None:
        """Stop the node with SIGTERM; it must exit cleanly, without an error on stderr."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._process = None
        assert code == 0, f"exit code {code}: {self.tail()}"
        assert "Traceback" not in self.errors.read_text(), self.tail()


class KafkaNode:
    """An Apache Kafka node with the methods of `Node`."""

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        self.folder = folder
        self.data_dir = folder / "node1" / "data"
        self.bootstrap = ""
        asked = {**LASTING, **(settings or {})}
        self._settings = {key: str(value) for key, value in asked.items()}
        folder.mkdir(parents=True, exist_ok=True)

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [KAFKA / "cluster", *arguments, "--dir", self.folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * PATIENCE_S,
        )
        if done.returncode:
            raise RuntimeError(done.stdout)

    def start(self) -> None:
        if self.bootstrap:
            self._run("restart", "1")
            return
        port = free_ports([100])  # its controller's
        sets = [
            part for key, value in self._settings.items() for part in ("--set", f"{key}={value}")
        ]
        self._run("start", "--base-port", str(port), "--heap", "400m", *sets)
        self.bootstrap = f"127.0.0.1:{port}"

    def kill(self) -> None:
        self._run("kill", "1")

    def stop(self) -> None:
        self._run("stop")


@contextmanager
def shared_kafka(folder: Path) -> Iterator[Elsewhere]:
    """Run one Apache Kafka for all processes that use this folder; the last of them stops it."""
    folder.mkdir(parents=True, exist_ok=True)
    users, bootstrap = folder / "users", folder / "bootstrap"
    kafka = KafkaNode(folder / "kafka", SHARED)
    with _locked(folder):
        count = int(users.read_text()) if users.exists() else 0
        if count == 0:
            kafka.start()
            bootstrap.write_text(kafka.bootstrap)
        users.write_text(str(count + 1))
    try:
        yield Elsewhere(bootstrap.read_text())
    finally:
        with _locked(folder):
            count = int(users.read_text()) - 1
            users.write_text(str(count))
            if count == 0:
                kafka.stop()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def elsewhere() -> str:
    return os.environ.get("METAQUORUM_BOOTSTRAP", "")


def new_node(folder: Path, settings: Mapping[str, object] | None = None) -> Node | KafkaNode:
    return KafkaNode(folder, settings) if elsewhere() else Node(folder, settings)


def has_ipv6() -> bool:
    """Return whether this machine has the address ::1."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


def skip_without(reason: str) -> NoReturn:
    """Skip the test, because a program is missing; fail it in CI, which has to have all of them."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; CI does not skip such tests")
    pytest.skip(reason)


def missing_for_java() -> str:
    """Return why Kafka's tools cannot run here; empty if they can."""
    absent = [program for program in ("java", "mvn") if not shutil.which(program)]
    if absent:
        return f"{' and '.join(absent)} not installed"
    done = subprocess.run([KAFKA / "install"], capture_output=True, text=True)
    return f"Kafka's jars cannot be downloaded: {done.stderr[-300:]}" if done.returncode else ""
