"""Nodes as processes of their own: ours, or a real Kafka behind the same few methods.

The conformance suite is written against `Peer`. It runs on a node of ours; with
METAQUORUM_BOOTSTRAP=host:port it runs on whatever listens there (a real Kafka, say), and the nodes
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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, TypeVar

import pytest

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
KAFKA = ROOT / "tests" / "peers" / "kafka"
READY = re.compile(r"^metaquorum node (\d+) ready: listening on (\S+), cluster (\S+), data (.+) \(")
# What is waited for comes in milliseconds; on a machine that does much else, or stands still, it
# comes later. In full it is only waited where something is broken.
PATIENCE_S: Final = 180.0
POLL_S = 0.005
BASE_PORTS = (12_000, 32_000)
MAX_RESERVED_PORTS = 300

_reserved: "deque[socket.socket]" = deque()
_random = random.SystemRandom()  # what seeds the common one alike in all processes leaves it alone
_serial = itertools.count()


def unique(name: str) -> str:
    """A topic name that no other test, process or run uses."""
    return f"{name}-{os.getpid():x}-{time.time_ns() & 0xFFFFFFFF:x}-{next(_serial)}"


def wait_until(condition: Callable[[], T], timeout_s: float = PATIENCE_S, what: str = "") -> T:
    """The first true value of `condition`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s} s: {what or condition}")
        time.sleep(POLL_S)
    return value


def eventually(check: Callable[[], T]) -> T:
    """What `check` returns, once nothing that it asserts is otherwise.

    For what is seen from outside of several nodes, of which a busy machine may keep one from being
    heard for long enough to be fenced for a moment.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(10 * POLL_S)


def free_port() -> int:
    """A port that nobody has, nor is given by the system, while this process lives.

    So a node that is killed finds its port free when it starts again, and whoever connects to it
    meanwhile meets nobody.
    """
    return free_ports(())


def free_ports(offsets: Iterable[int]) -> int:
    """Such a port where those so much above it are such, too.

    Below those that the system gives to whoever asks for any.
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
            while len(_reserved) > MAX_RESERVED_PORTS:  # of tests that are long over
                _reserved.popleft().close()
            return base


def _reserve(port: int) -> socket.socket:
    """Bound, but listens not: such a port is left alone by all but those who ask for it by number
    with SO_REUSEADDR, as servers do. OSError where somebody has it.
    """
    sock = socket.socket()
    try:
        sock.bind(("127.0.0.1", port))  # without SO_REUSEADDR: of two who reserve it, one has it
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not _can_listen(port):  # a system where that is otherwise: it is free at least now
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


# Many tests write records with times of years ago, which retention takes when it first looks, after
# five minutes: in the middle of whatever test runs by then.
LASTING: Final[Mapping[str, object]] = {"log.retention.check.interval.ms": 24 * 3600 * 1000}


class Peer(Protocol):
    @property
    def bootstrap(self) -> str: ...


class Elsewhere:
    """A cluster that somebody else started and stops."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap


class Node:
    """One `mq-server run`, with its data, output and errors in `folder`.

    It has a port of its own, whether it runs or not.
    """

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
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def configure(self, settings: Mapping[str, object], *arguments: str) -> None:
        """From its next start on, these too."""
        self._settings |= settings
        self._arguments += arguments

    def command(self) -> list[str]:
        sets = [
            part for key, value in self._settings.items() for part in ("--set", f"{key}={value}")
        ]
        listen = [] if "listeners" in self._settings else ["--listen", self.bootstrap]
        where = [*listen, "--data-dir", str(self.data_dir)]
        return [sys.executable, "-m", "cli.server.main", "run", *where, *sets, *self._arguments]

    @property
    def pid(self) -> int:
        assert self._process is not None, "the node is not running"
        return self._process.pid

    def start(self) -> None:
        """The node has said that it is ready."""
        output = self.folder / "stdout"
        with output.open("wb") as out, self.errors.open("ab") as err:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=ROOT
            )
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

    def tail(self) -> str:
        return self.errors.read_text()[-3000:]

    def kill(self) -> None:
        """kill -9: nothing of it runs any more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def stop(self) -> None:
        """SIGTERM, upon which it must end by itself, in order and without complaint."""
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
    """A real Kafka with the methods of `Node`."""

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
    """One real Kafka for all processes that name this folder; the last of them stops it."""
    folder.mkdir(parents=True, exist_ok=True)
    users, bootstrap = folder / "users", folder / "bootstrap"
    kafka = KafkaNode(folder / "kafka")
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
    """Whether this machine has ::1."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


def missing_for_java() -> str:
    """Why Kafka's tools cannot be run here; empty when they can."""
    absent = [program for program in ("java", "mvn") if not shutil.which(program)]
    if absent:
        return f"{' and '.join(absent)} not installed"
    done = subprocess.run([KAFKA / "install"], capture_output=True, text=True)
    return f"Kafka's jars cannot be had: {done.stderr[-300:]}" if done.returncode else ""
