"""Programs that copy a topic exactly once, one for each client, as processes that a test may kill.

Each reads a group of the source, writes the same records to the target, and commits its offsets,
all in one transaction of some records.
"""

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.conformance.clients import Librdkafka, Record, partitions_of
from tests.conformance.groups.members import LIMIT_S, Member
from tests.conformance.other_languages.programs import go_program
from tests.nodes import wait_until

PYTHON: Final = ("librdkafka", "kafka-python", "aiokafka")
FRANZ_GO: Final = pytest.param("franz-go", marks=pytest.mark.conformance)
GO: Final = (FRANZ_GO, pytest.param("sarama", marks=pytest.mark.conformance))
# Clients that fence by the group's generation: two of them may share a group (KIP-447).
SHARING: Final = ("librdkafka", "kafka-python", FRANZ_GO)


class Copiers:
    """The copiers that one test has started."""

    def __init__(self, ended: ExitStack) -> None:
        self._ended = ended

    def start(self, client: str, transactional_id: str, **options: Any) -> Member:
        """Start a copier; `options`: bootstrap, group, source, target, most."""
        member = Member(client, _command(client), {"id": transactional_id, **options})
        self._ended.callback(member.end)
        return member

    def keep(self, client: str, transactional_id: str, **options: Any) -> "KeptCopier":
        """Start a copier that `KeptCopier.look` starts again whenever it has ended by itself."""
        return KeptCopier(lambda: self.start(client, transactional_id, **options))


def _command(client: str) -> tuple[str, ...]:
    if client in PYTHON:
        return (sys.executable, "-m", "tests.conformance.transactions.copier", client)
    return (go_program(client, "copier"),)


class KeptCopier:
    """A copier as a supervisor runs it: an error ends the process, and the next one continues.

    Sarama, for one, ends at CONCURRENT_TRANSACTIONS from InitProducerId.
    """

    def __init__(self, start: Callable[[], Member]) -> None:
        self._start = start
        self._ended: list[Member] = []
        self.copier = start()

    def look(self) -> None:
        """Start the copier again if it has ended."""
        if self.copier.has_ended:
            self._ended.append(self.copier)
            self.copier = self._start()

    def wait_committed(self, count: int) -> None:
        """Wait until this number of transactions is committed, from now on."""
        before = self._committed

        def have_committed() -> bool:
            self.look()
            return self._committed >= before + count

        wait_until(have_committed, LIMIT_S, what=self)

    def kill(self) -> None:
        """Kill the copier, and start the next one."""
        self.copier.kill()
        self._ended.append(self.copier)
        self.copier = self._start()

    @property
    def _committed(self) -> int:
        return sum(len(each.all("committed")) for each in (*self._ended, self.copier))

    def __str__(self) -> str:
        return f"{len(self._ended)} ended, last events {self.copier.events[-3:]}"


def send(bootstrap: str, topic: str, partitions: int, each: int, start: int = 0) -> Counter[str]:
    """Send distinct records to each partition; return their values."""
    sent: Counter[str] = Counter()
    for index in range(partitions):
        values = [f"{index}:{number}" for number in range(start, start + each)]
        records = [Record(value.encode(), value.encode()) for value in values]
        Librdkafka().send(bootstrap, topic, records, "none", index)
        sent.update(values)
    return sent


# The client's position is none that a log had which keeps committed records.
_LOST: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION)


class Reader:
    """Reads all partitions of a topic from offset 0 on.

    Never skips records: a position that the log does not have, or that it has truncated, is an
    AssertionError of `read`.
    """

    def __init__(self, bootstrap: str, topic: str, *, committed: bool = True) -> None:
        self.bootstrap: Final = bootstrap
        self.topic: Final = topic
        isolation = "read_committed" if committed else "read_uncommitted"
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": isolation,
                "log_level": 2,
            }
        )
        partitions = partitions_of(self._consumer, topic)
        # Not OFFSET_BEGINNING: librdkafka resets its position if the leader, which it asks for that
        # offset, has not applied the creation of the topic yet.
        self._consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        self._read: Counter[str] = Counter()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def where(self) -> str:
        """Return the position of each partition, and its first offset and high watermark."""
        return ", ".join(
            f"{each.topic}-{each.partition}: read to {each.offset}"
            f" of {self._consumer.get_watermark_offsets(each, 25)}"
            for each in self._consumer.position(self._consumer.assignment())
        )

    def read(self) -> Counter[str]:
        """Return the values read so far, and how often each was read."""
        for message in self._consumer.consume(1000, 0.2):
            error = message.error()
            assert error is None or error.code() not in _LOST, error
            if error is None:
                value = message.value()
                assert isinstance(value, bytes)
                self._read[value.decode()] += 1
        return self._read
