"""Kafka's transactional-message-copier copies each record once, while it and nodes are killed."""

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from tests.conformance.clients import create
from tests.conformance.groups.peers import ThreeNodes
from tests.conformance.transactions.copiers import Reader, send
from tests.nodes import KAFKA, PATIENCE_S, Peer, unique, wait_until

RECORDS = 600
SIZE = 4  # records of a transaction
# It asks for its offset before it ends the transaction that is left, so it waits for the timeout.
TIMEOUT_MS = 5000
LONGER_TIMEOUT_MS = 10_000  # for transactions while a node is killed
MORE = 40  # records that are copied before the next kill
Options = tuple[str, ...]
NewCopier = Callable[..., "JavaCopier"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


class JavaCopier:
    """The program, which ends by itself at the end of its partition."""

    def __init__(
        self, folder: Path, bootstrap: str, source: str, target: str, timeout_ms: int
    ) -> None:
        self._folder = folder
        self._arguments = (
            *("--broker-list", bootstrap, "--consumer-group", unique("group")),
            *("--input-topic", source, "--input-partition", "0", "--output-topic", target),
            *("--transaction-size", str(SIZE), "--transactional-id", unique("copier")),
            *("--transaction-timeout", str(timeout_ms)),
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.log = ""

    def start(self, *more: str) -> None:
        path = self._folder / unique("log")
        self.log = str(path)
        with path.open("wb") as log:
            self._process = subprocess.Popen(
                [KAFKA / "tool", "transactional-message-copier", *self._arguments, *more],
                stdout=log,
                stderr=subprocess.STDOUT,
            )  # `exec`s java

    @property
    def has_ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def kill(self) -> bool:
        """Kill it; return whether it was still running."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        return self._process.wait(PATIENCE_S) == -signal.SIGKILL

    def wait(self) -> None:
        """Wait until it has ended without an error."""
        assert self._process is not None
        assert self._process.wait(PATIENCE_S) == 0, Path(self.log).read_text()[-3000:]


@pytest.fixture
def copier(tmp_path: Path) -> Iterator[NewCopier]:
    started: list[JavaCopier] = []

    def new(bootstrap: str, source: str, target: str, timeout_ms: int = TIMEOUT_MS) -> JavaCopier:
        started.append(JavaCopier(tmp_path, bootstrap, source, target, timeout_ms))
        return started[-1]

    yield new
    for each in started:
        each.kill()


def wait_for_more(reader: Reader, program: JavaCopier) -> None:
    """Wait until it has copied some records, or has ended."""
    before = len(reader.read())
    wait_until(
        lambda: len(reader.read()) >= before + MORE or program.has_ended,
        what="more copied records",
    )


@pytest.mark.parametrize(
    "more",
    [(), ("--use-group-metadata",), ("--use-group-metadata", "--enable-random-aborts")],
    ids=["id", "metadata", "aborts"],
)
def test_a_killed_copier_is_replaced(peer: Peer, copier: NewCopier, more: Options) -> None:
    source = create(peer.bootstrap, unique("source"))
    target = create(peer.bootstrap, unique("target"))
    sent = send(peer.bootstrap, source, 1, RECORDS)
    program = copier(peer.bootstrap, source, target)
    killed = 0
    with Reader(peer.bootstrap, target) as reader:
        for _ in range(3):
            program.start(*more)
            wait_for_more(reader, program)
            killed += program.kill()
        program.start(*more)
        program.wait()
        assert killed > 1
        assert_copied(reader, sent, program)


def assert_copied(reader: Reader, sent: Counter[str], program: JavaCopier) -> None:
    wait_until(lambda: set(reader.read()) == set(sent), what=Copied(reader, sent, program))
    assert reader.read() == sent


class Copied:
    """Text of a failure: the missing records, the reader's position, the copier's output."""

    def __init__(self, reader: Reader, sent: Counter[str], program: JavaCopier) -> None:
        self._reader = reader
        self._sent = sent
        self._program = program

    def __str__(self) -> str:
        said = Path(self._program.log).read_text()
        text = f"all records copied; {self._missing(self._reader)}"
        for committed in (True, False):  # shows whether it is the reader's, or an open transaction
            text += f"; another reader, committed {committed}: {self._read_again(committed)}"
        return f"{text}; the copier: {said[:500]} ... {said[-1500:]}"

    def _read_again(self, committed: bool) -> str:
        bootstrap, topic = self._reader.bootstrap, self._reader.topic
        try:
            with Reader(bootstrap, topic, committed=committed) as other:
                until = time.monotonic() + 10
                while time.monotonic() < until:
                    other.read()
                return self._missing(other)
        except (KafkaException, AssertionError, TimeoutError) as error:
            return str(error)

    def _missing(self, reader: Reader) -> str:
        try:
            missing = sorted((self._sent - reader.read()).elements())
            text = f"{len(missing)} of {self._sent.total()} missing, first {missing[:20]}"
            return f"{text}, {reader.where()}"
        except (KafkaException, AssertionError) as error:
            return str(error)


def test_nodes_and_copiers_are_killed(three_nodes: ThreeNodes, copier: NewCopier) -> None:
    bootstrap = ",".join(three_nodes.addresses)
    source = create(bootstrap, unique("source"), 1, replicas=3)
    target = create(bootstrap, unique("target"), 1, replicas=3)
    sent: Counter[str] = Counter()
    program = copier(bootstrap, source, target, LONGER_TIMEOUT_MS)
    with Reader(bootstrap, target) as reader:
        for number in (1, 2, 3):
            sent += send(bootstrap, source, 1, RECORDS, number * RECORDS)
            program.start("--use-group-metadata")
            wait_for_more(reader, program)
            three_nodes.kill(number)
            wait_for_more(reader, program)
            program.kill()
            three_nodes.restart(number)
        program.start("--use-group-metadata")
        program.wait()
        assert_copied(reader, sent, program)
