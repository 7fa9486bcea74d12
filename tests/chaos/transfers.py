"""Transfers between accounts in transactions, and the invariants of a read_committed reader:

    acknowledged commit     exists whole: each entry once, in its partition
    acknowledged abort      no entry exists, nor of a transaction whose commit never began
    unknown outcome         whole or not at all
    sum of all amounts      0
    instances of an id      in sequence: a client that was replaced writes nothing later
    last stable offset      reaches the end once no client is left

Each client is a process with a transactional id (see transfer_client.py). It is killed in the
middle of transactions, or paused until its successor works, and then finds itself fenced; some
successors have another id, so that only the timeout ends what the client left open.

A record's value is `<client>.<instance>.<number> <amount>`; the first part is the transaction.
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.chaos.load import CLIENT, Place, Reader, check_kept, read_all
from tests.nodes import ROOT, wait_until

PARTITIONS: Final = 4
LIBRARIES: Final = ("librdkafka", "metaquorum")  # one client each
TIMEOUT_MS: Final = 3000  # transaction.timeout.ms; some faults last longer
READ_COMMITTED: Final = {"isolation.level": "read_committed"}
# Probability that a client is killed or paused, for each line that it writes.
KILLED: Final = 0.006
PAUSED: Final = 0.003
NEW_ID: Final = 0.2  # part of the successors that have another transactional id
# Errors of a client whose transaction has timed out, or which has a successor.
FENCED: Final = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
# Steps, by library, at which INVALID_TXN_STATE is a correct answer (that of Apache Kafka):
# librdkafka also aborts a transaction that no coordinator has received, because none answered for
# too long. With transaction.version 2, a commit after the abort by the timeout, or by a successor
# that has no producer id yet, looks like a repeated request of the other kind.
INVALID_STATE_AT: Final = {"librdkafka": "abort", "metaquorum": "commit"}

Entries = list[tuple[int, int]]


@dataclass(slots=True)
class Transfer:
    """A transaction as its client described it. `may_exist`: its commit began."""

    entries: Entries
    may_exist: bool = False
    is_committed: bool = False
    is_aborted: bool = False


class Client:
    """A client process and its successors, one after the other."""

    def __init__(self, name: str, library: str, seed: int, errors: Path) -> None:
        self.name = name
        self.library = library
        self.transfers: dict[str, Transfer] = {}
        self.ids: dict[int, str] = {}  # transactional id by instance
        self.committed_count = 0
        self.ends: dict[str, int] = {}  # number of instances by their end
        self.errors: list[str] = []
        self._random = Random(f"{seed}.{name}")
        self._stderr = errors
        self._is_ending = False
        self._lock = threading.Lock()  # held while a process is started or ended
        self._process: subprocess.Popen[bytes] | None = None
        self._zombies: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []
        self._instance = 0
        self._id = ""

    def begin(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _start(self) -> subprocess.Popen[bytes] | None:
        """Start the next instance, unless the end was asked for."""
        if not self._id or self._random.random() < NEW_ID:
            self._id = f"{self._topic}-{self.name}-{self._instance}"
        settings = {
            "library": self.library,
            "bootstrap": self._bootstrap,
            "topic": self._topic,
            "partitions": PARTITIONS,
            "name": f"{self.name}.{self._instance}",
            "id": self._id,
            "timeout_ms": TIMEOUT_MS,
            "seed": self._random.randrange(1 << 30),
            "config": CLIENT,
        }
        self.ids[self._instance] = self._id
        self._instance += 1
        with self._lock, self._stderr.open("ab") as errors:
            if self._is_ending:
                return None
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.transfer_client", json.dumps(settings)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
            return self._process

    def _run(self) -> None:
        while process := self._start():
            self._listen(process, self._random)

    def _listen(self, process: subprocess.Popen[bytes], chance: Random | None) -> None:
        """Note what the client writes, until it ends; `chance` decides if it is killed."""
        end = "ended by itself"
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith(b"\n"):  # else it was killed while it wrote
                end = self._note(json.loads(line)) or end
            drawn = 1.0 if chance is None else chance.random()
            if drawn < KILLED:
                process.kill()
                end = "killed"
            elif drawn < KILLED + PAUSED:
                process.send_signal(signal.SIGSTOP)
                self._count("paused")
                self._leave(process)
                return
        process.stdout.close()
        code = process.wait()
        self._count(end)
        if code not in (0, -signal.SIGKILL, -signal.SIGTERM):
            self.errors.append(f"client {self.name} ended with code {code}; see {self._stderr}")

    def _leave(self, process: subprocess.Popen[bytes]) -> None:
        """Let the successor work with this process as a zombie, which resumes later."""
        waits_for = self.committed_count + self._random.randint(1, 5)

        def resume() -> None:
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: self._is_ending or self.committed_count > waits_for)
            process.send_signal(signal.SIGCONT)
            self._listen(process, None)

        thread = threading.Thread(target=resume)
        self._zombies.append((process, thread))
        thread.start()

    def _note(self, said: dict[str, Any]) -> str | None:
        """Note a line of the client; return the reason if it is its last."""
        match said:
            case {"begin": name, "entries": entries}:
                self.transfers[name] = Transfer([tuple(each) for each in entries])
            case {"commit": name}:
                self.transfers[name].may_exist = True
            case {"committed": name}:
                self.transfers[name].is_committed = True
                self.committed_count += 1
            case {"aborted": name}:
                self.transfers[name].is_aborted = True
            case {"fatal": code, "step": step, "message": text}:
                is_ended = code == "INVALID_TXN_STATE" and step == INVALID_STATE_AT[self.library]
                if code not in FENCED and not is_ended:
                    self.errors.append(f"client {self.name}: {step}: {code}: {text}")
                return str(code)
        return None

    def _count(self, end: str) -> None:
        self.ends[end] = self.ends.get(end, 0) + 1

    def end(self) -> None:
        """End all instances after their current transactions, and wait for them."""
        with self._lock:
            self._is_ending = True
            if self._process is not None:
                self._process.terminate()
        self._thread.join()
        for process, thread in self._zombies:
            process.terminate()
            thread.join()

    def abandon(self) -> None:
        if hasattr(self, "_thread"):
            with self._lock:
                self._is_ending = True
                processes = [self._process, *(process for process, _ in self._zombies)]
            for process in processes:
                if process is not None:
                    process.kill()
            for thread in (self._thread, *(thread for _, thread in self._zombies)):
                thread.join()


class Transfers:
    """All clients of one topic, and a read_committed reader."""

    def __init__(self, folder: Path, topic: str, seed: int) -> None:
        self.topic = topic
        self.reader = Reader(**READ_COMMITTED)
        self.clients = [
            Client(str(number), library, seed, folder / f"transfers-{number}.stderr")
            for number, library in enumerate(LIBRARIES)
        ]
        self._counts: Counter[str] = Counter()  # records that the reader has read, by transaction
        self._counted = 0

    def begin(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        for client in self.clients:
            client.begin(bootstrap, self.topic)
        self.reader.begin(bootstrap, self.topic, PARTITIONS)

    def wait_progress(self) -> None:
        """Wait until each client has committed again, and the reader has read what is committed.

        What the reader has read of a transaction in part is then read whole.
        """
        was = [client.committed_count for client in self.clients]
        self._wait(
            lambda: all(
                client.committed_count > before
                for client, before in zip(self.clients, was, strict=True)
            ),
            "each client commits again",
        )
        expected = {name for name, each in self._all() if each.is_committed}
        expected.update(self._read_counts())

        def are_read() -> bool:
            counts = self._read_counts()
            return all(counts[name] >= self._size_of(name) for name in expected)

        self._wait(
            are_read,
            "the reader has all entries of the transactions that are committed, or read in part",
        )

    def _size_of(self, name: str) -> float:
        """Return the number of entries; infinity while the line of the client is not read yet."""
        transfer = self.clients[int(name.split(".")[0])].transfers.get(name)
        return inf if transfer is None else len(transfer.entries)

    def _all(self) -> list[tuple[str, Transfer]]:
        return [each for client in self.clients for each in list(client.transfers.items())]

    def _read_counts(self) -> Counter[str]:
        """Return the number of entries that the reader has read, by transaction."""
        values = list(self.reader.read.values())
        self._counts.update(value.split()[0] for value in values[self._counted :])
        self._counted = len(values)
        return self._counts

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: self.errors() or condition(), what=what)
        assert not self.errors(), self.errors()[:5]

    def errors(self) -> list[str]:
        return [error for each in (*self.clients, self.reader) for error in each.errors]

    def end(self) -> dict[str, Any]:
        """End the clients, and check what a reader finds. Raises AssertionError."""
        for client in self.clients:
            client.end()
        assert not self.errors(), self.errors()[:5]
        self._wait_stable()
        self.reader.end()
        found = read_all(self._bootstrap, self.topic, PARTITIONS, **READ_COMMITTED)
        check_kept(self.reader.read, found)
        transfers = dict(self._all())
        check_transfers(transfers, found)
        ids = {(c.name, instance): c.ids[instance] for c in self.clients for instance in c.ids}
        check_sequence(ids, found)
        ends: Counter[str] = Counter()
        for client in self.clients:
            ends.update(client.ends)
        return {
            "begun": len(transfers),
            "committed": sum(each.is_committed for each in transfers.values()),
            "aborted": sum(each.is_aborted for each in transfers.values()),
            "there": len({transaction_of(value) for value in found.values()}),
            "clients": dict(ends),
        }

    def _wait_stable(self) -> None:
        """Wait until the last stable offset is the end of each partition."""
        admin = AdminClient(CLIENT | {"bootstrap.servers": self._bootstrap})
        places = [TopicPartition(self.topic, index) for index in range(PARTITIONS)]

        def ends(isolation: IsolationLevel) -> list[int]:
            asked = {place: OffsetSpec.latest() for place in places}
            answers = admin.list_offsets(asked, isolation_level=isolation)
            return [answers[place].result().offset for place in places]

        self._wait(
            lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED),
            "all transactions end",
        )

    def abandon(self) -> None:
        for client in self.clients:
            client.abandon()
        self.reader.end()


# Invariants


def transaction_of(value: str) -> str:
    return value.split()[0]


def check_transfers(transfers: Mapping[str, Transfer], found: Mapping[Place, str]) -> None:
    """Check that transactions exist whole or not at all, as their outcomes say."""
    there: dict[str, Entries] = defaultdict(list)
    for place, value in found.items():
        name, amount = value.split()
        there[name].append((place.partition, int(amount)))
    wrong = []
    for name, each in transfers.items():
        entries = there.pop(name, [])
        if entries and sorted(entries) != sorted(each.entries):
            wrong.append(f"{name} has {entries} of {each.entries}")
        elif entries and (each.is_aborted or not each.may_exist):
            wrong.append(f"{name} was {'aborted' if each.is_aborted else 'not to be committed'}")
        elif not entries and each.is_committed:
            wrong.append(f"{name} was committed and is lost")
    wrong += [f"{name} is unknown" for name in there]
    assert not wrong, f"{len(wrong)} of {len(transfers)} transactions are wrong: {wrong[:5]}"
    assert sum(int(value.split()[1]) for value in found.values()) == 0


def check_sequence(ids: Mapping[tuple[str, int], str], found: Mapping[Place, str]) -> None:
    """Check that an id's instances, and their transactions, follow each other in all partitions.

    `ids`: transactional id by client and instance.
    """
    last: dict[tuple[int, str], tuple[int, int]] = {}
    for place in sorted(found):
        client, instance, number = transaction_of(found[place]).split(".")
        key = place.partition, ids[client, int(instance)]
        this = int(instance), int(number)
        assert this >= last.get(key, this), f"{place}: {this} of {key[1]} comes after {last[key]}"
        last[key] = this
