"""Clients during the faults: producers of unique records, and a consumer.

A record's value is `<producer>.<number>`, padded; each producer numbers its records from 0.
"""

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.nodes import KAFKA, PATIENCE_S, missing_for_java, skip_without, wait_until

RECORD_BYTES: Final = 300
MAX_WAITING: Final = 2000  # records of a producer that are not acknowledged yet
BURST: Final = 3  # records between two polls for acknowledgements; PAUSE_S: time of one poll
PAUSE_S: Final = 0.01
# Longer than any fault: a delivery error is therefore one that the client does not retry.
DELIVERY_TIMEOUT_MS: Final = 600_000
CLIENT: Final = {
    "log_level": 0,
    "socket.timeout.ms": 6000,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.fast.interval.ms": 100,
}


class Place(NamedTuple):
    partition: int
    offset: int


class Sender:
    """A producer, and the acknowledgements that it received."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged: dict[Place, str] = {}
        # Partitions of records acknowledged without an offset: librdkafka infers these from later
        # sequence numbers that were accepted, if the response with the offset was lost.
        self.somewhere: dict[str, int] = {}  # partition by value
        self.counts: dict[int, int] = {}  # acknowledged records by partition
        self.errors: list[str] = []

    def _note(self, partition: int, offset: int | None, value: str) -> None:
        self.counts[partition] = self.counts.get(partition, 0) + 1
        if offset is None:
            self.somewhere[value] = partition
            return
        place = Place(partition, offset)
        if place in self.acknowledged:
            self.errors.append(f"{place} was acknowledged twice")
        self.acknowledged[place] = value

    def begin(self, bootstrap: str, topic: str, partitions: int) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Stop sending, and wait for the response to each record."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Stop sending, without a response to the remaining records."""


class Librdkafka(Sender):
    """A producer of librdkafka: idempotent, acks=all, partitions in rotation."""

    def __init__(self, name: str, **config: object) -> None:
        super().__init__(name)
        self._config = {key.replace("_", "."): value for key, value in config.items()}
        self._done = threading.Event()

    def begin(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._producer = Producer(
            CLIENT
            | {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                "message.send.max.retries": 1_000_000,
            }
            | self._config
        )
        self._thread = threading.Thread(target=self._run, args=(topic, partitions))
        self._thread.start()

    def _delivered(self, error: Any, message: Any) -> None:
        value = message.value().rstrip(b" ").decode()
        if error is not None:
            self.errors.append(f"{value}: {error}")
        else:
            self._note(message.partition(), message.offset(), value)

    def _run(self, topic: str, partitions: int) -> None:
        try:
            self._send(topic, partitions)
        except KafkaException as error:  # a fatal error of the producer
            self.errors.append(f"fatal: {error}")

    def _send(self, topic: str, partitions: int) -> None:
        number = 0
        while not self._done.is_set():
            for _ in range(BURST if len(self._producer) < MAX_WAITING else 0):
                value = f"{self.name}.{number}".encode().ljust(RECORD_BYTES)
                at = number % partitions
                self._producer.produce(topic, value, partition=at, on_delivery=self._delivered)
                number += 1
            self._producer.poll(PAUSE_S)
        left = self._producer.flush(PATIENCE_S)
        if left:
            self.errors.append(f"{left} records got no response")

    def end(self) -> None:
        self._done.set()
        self._thread.join()

    def abandon(self) -> None:
        if hasattr(self, "_thread"):
            self._done.set()
            while self._thread.is_alive():
                self._producer.purge()
                self._thread.join(0.1)


class Java(Sender):
    """Kafka's own producer, run by its VerifiableProducer, which does not retry by default."""

    CONFIG: Final = {
        "enable.idempotence": "true",
        "retries": 2147483647,
        "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
        "max.block.ms": DELIVERY_TIMEOUT_MS,
        "request.timeout.ms": 6000,
        "reconnect.backoff.max.ms": 500,
        "batch.size": 1,  # without keys it changes the partition after each full batch
    }

    def __init__(self, name: str, folder: Path, per_second: int = 150) -> None:
        super().__init__(name)
        assert name.isdecimal(), "the prefix of the tool's values must be a number"
        self._folder = folder
        self._per_second = per_second

    def begin(self, bootstrap: str, topic: str, partitions: int) -> None:
        config = self._folder / "java.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.CONFIG.items()))
        arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--acks", "-1"]
        arguments += ["--value-prefix", self.name, "--throughput", str(self._per_second)]
        with (self._folder / "java.stderr").open("wb") as errors:
            self._process = subprocess.Popen(
                [KAFKA / "tool", "verifiable-producer", *arguments, "--command-config", config],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if said["name"] == "producer_send_success":
                self._note(said["partition"], said["offset"], said["value"])
            elif said["name"] == "producer_send_error":
                self.errors.append(f"{said['value']}: {said['message']}")
        self._process.stdout.close()

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)

    def abandon(self) -> None:
        if hasattr(self, "_thread"):
            self._process.kill()
            self._process.wait()
            self._thread.join()


class Reader:
    """A consumer during the faults. Records it read must remain; its offsets must not go back."""

    def __init__(self, **config: object) -> None:
        self._config = config
        self.read: dict[Place, str] = {}
        self.positions: dict[int, int] = {}  # last read offset by partition
        self.errors: list[str] = []
        self._done = threading.Event()

    def begin(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._consumer = new_consumer(bootstrap, **self._config)
        self._consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.is_set():
            for message in self._consumer.consume(500, 0.1):
                note(message, self.read, self.errors)
                self.positions[message.partition()] = message.offset()
        self._consumer.close()

    def end(self) -> None:
        if hasattr(self, "_thread"):
            self._done.set()
            self._thread.join()


def new_consumer(bootstrap: str, **config: object) -> Consumer:
    return Consumer(
        CLIENT
        | {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
        }
        | config
    )


def note(message: Any, read: dict[Place, str], errors: list[str]) -> None:
    """Store a record that was read, or an error that the client does not handle itself."""
    if error := message.error():
        errors.append(f"{message.partition()}: {error}")
        return
    place = Place(message.partition(), message.offset())
    if place in read:
        errors.append(f"{place} was read twice")
    read[place] = message.value().rstrip(b" ").decode()


def check_kept(known: dict[Place, str], found: dict[Place, str]) -> None:
    """Check that acknowledged and read records are at their offsets."""
    wrong = {place: value for place, value in known.items() if found.get(place) != value}
    shown = [(*place, value, found.get(place)) for place, value in sorted(wrong.items())[:5]]
    assert not wrong, f"{len(wrong)} of {len(known)} lost or changed: {shown}"


def read_all(bootstrap: str, topic: str, partitions: int, **config: object) -> dict[Place, str]:
    """Return all records up to the current ends of all partitions."""
    consumer = new_consumer(bootstrap, **{"enable.partition.eof": True}, **config)
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    read: dict[Place, str] = {}
    errors: list[str] = []
    ended: set[int] = set()

    def step() -> bool:
        for message in consumer.consume(5000, 1):
            if message.error() and message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                note(message, read, errors)
        assert not errors, errors
        return len(ended) == partitions

    wait_until(step, what="the ends of all partitions")
    consumer.close()
    return read


class Load:
    """All producers and the consumer, concurrently on one topic."""

    def __init__(self, senders: list[Sender], topic: str, partitions: int) -> None:
        self.senders = senders
        self.reader = Reader()
        self.topic, self.partitions = topic, partitions

    def begin(self, bootstrap: str) -> None:
        for each in (*self.senders, self.reader):
            each.begin(bootstrap, self.topic, self.partitions)
        self.wait_progress()

    def end(self) -> None:
        for each in (*self.senders, self.reader):
            each.end()

    def abandon(self) -> None:
        for each in self.senders:
            each.abandon()
        self.reader.end()

    def wait_progress(self) -> None:
        """Wait until all producers and the consumer have made progress in each partition."""
        for sender in self.senders:
            self._wait_more(sender.counts, f"producer {sender.name}")
        self._wait_more(self.reader.positions, "the consumer")

    def _wait_more(self, counts: dict[int, int], who: str) -> None:
        was = dict(counts)
        everywhere = range(self.partitions)
        self._wait(
            lambda: all(counts.get(p, -1) > was.get(p, -1) for p in everywhere),
            f"{who} gets on in every partition",
        )

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: self.errors() or condition(), what=what)
        assert not self.errors(), self.errors()[:5]

    def errors(self) -> list[str]:
        return [error for each in (*self.senders, self.reader) for error in each.errors]


def usual_senders(folder: Path) -> list[Sender]:
    """Return two producers of librdkafka, and one of Java if it is installed."""
    senders: list[Sender] = [
        Librdkafka("0", linger_ms=0),
        Librdkafka("1", linger_ms=20, compression_type="lz4"),
    ]
    reason = missing_for_java()
    if not reason:
        senders.append(Java("2", folder))
    elif os.environ.get("CI"):
        skip_without(reason)
    return senders
