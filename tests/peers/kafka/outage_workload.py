"""All brokers of a cluster are killed at once and started again: when does each client get served?

The clients run all the time, with their default settings: librdkafka's producer and consumer, and
Java's producer, at a fixed rate. A probe with raw sockets, which retries every 10 ms, shows when
the brokers could serve; the rest is the clients' own waits.
"""

import os
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

HERE = Path(__file__).resolve().parent
RATE = 100  # records a second of each producer
RETRY_S = 0.01
PATIENCE_S = 120


class Stamps:
    """Unix times at which a client was served, by partition."""

    def __init__(self):
        self.times = []

    def add(self, partition, at=None):
        self.times.append((partition, at or time.time()))

    def until_all(self, partitions, since):
        """Return the seconds from `since` until every partition was served; None if one was not."""
        first = {}
        for partition, at in self.times:
            if at > since:
                first.setdefault(partition, at)
        return max(first.values()) - since if len(first) == partitions else None


class Clients:
    """Librdkafka's producer and consumer, and Java's producer, from `start` to `stop`."""

    def __init__(self, bootstrap, topic, partitions):
        self.bootstrap, self.topic, self.partitions = bootstrap, topic, partitions
        names = "librdkafka_producer", "librdkafka_consumer", "java_producer"
        self.stamps = {name: Stamps() for name in names}
        self.failed = 0
        self._ended = threading.Event()
        tasks = self._produce, self._consume, self._read_java
        self._threads = [threading.Thread(target=task) for task in tasks]
        self._java = None

    def start(self):
        self._java = subprocess.Popen(
            [HERE / "tool", HERE / "Produce.java", self.bootstrap, self.topic, str(RATE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for thread in self._threads:
            thread.start()

    def stop(self):
        self._ended.set()
        self._java.stdin.write("\n")
        self._java.stdin.close()
        for thread in self._threads:
            thread.join()
        self._java.wait(60)

    def served(self, since):
        stamps = self.stamps.items()
        return {name: each.until_all(self.partitions, since) for name, each in stamps}

    def _produce(self):
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})

        def delivered(error, message):
            if error:
                self.failed += 1
            else:
                self.stamps["librdkafka_producer"].add(message.partition())

        sent, began = 0, time.monotonic()
        while not self._ended.is_set():
            if sent < (time.monotonic() - began) * RATE:
                partition = sent % self.partitions
                producer.produce(self.topic, bytes(100), partition=partition, on_delivery=delivered)
                sent += 1
            producer.poll(0.002)
        self.failed += producer.flush(60)

    def _consume(self):
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "bench",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self.topic, p, 0) for p in range(self.partitions)])
        while not self._ended.is_set():
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                self.stamps["librdkafka_consumer"].add(message.partition())
        consumer.close()

    def _read_java(self):
        for line in self._java.stdout:
            partition, at = line.split(maxsplit=1)
            if partition == "failed":
                self.failed += 1
            else:
                self.stamps["java_producer"].add(int(partition), int(at) / 1000)


class Probe:
    """Raw produce requests with acks=all, then fetches, until each partition was served."""

    def __init__(self, bootstrap, topic, partitions, produce_request):
        self._topic, self._partitions, self._produce_request = topic, partitions, produce_request
        self._at = 4 + 4 + 2 + len(topic) + 4 + 4  # where a Produce response has the error code
        self.produced, self.fetched = Stamps(), Stamps()
        self._done = {}
        self._threads = [
            threading.Thread(target=self._ask, args=address.rsplit(":", 1), daemon=True)
            for address in bootstrap.split(",")
        ]

    def run(self):
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _ask(self, host, port):
        until = time.monotonic() + PATIENCE_S
        while len(self._done) < self._partitions and time.monotonic() < until:
            try:
                with socket.create_connection((host, int(port)), 1) as sock:
                    sock.settimeout(2)
                    while len(self._done) < self._partitions:
                        for partition in range(self._partitions):
                            if partition not in self._done:
                                self._ask_one(sock, partition)
                        time.sleep(RETRY_S)
            except OSError:
                time.sleep(RETRY_S)

    def _ask_one(self, sock, partition):
        request = self._produce_request(self._topic, partition, b"x" * 100, -1)
        error, offset = struct.unpack_from(">hq", exchange(sock, request), self._at)
        if error:
            return
        self.produced.add(partition)
        while partition not in self._done:
            answer = exchange(sock, fetch_request(self._topic, partition, offset))
            error, _, _, _, size = struct.unpack_from(">hqqii", answer, self._at + 4)
            if not error and size > 0:
                self.fetched.add(partition)
                self._done[partition] = True


def fetch_request(topic, partition, offset):
    """A whole Fetch v4 request of one partition."""
    name = topic.encode()
    body = struct.pack(">hhih", 1, 4, 1, 5) + b"bench"
    body += struct.pack(">iiiibih", -1, 100, 1, 1 << 20, 0, 1, len(name)) + name
    body += struct.pack(">iiqi", 1, partition, offset, 1 << 20)
    return struct.pack(">i", len(body)) + body


def exchange(sock, request):
    """Return the response without its size. Raises OSError if the connection ends."""
    sock.sendall(request)
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        part = sock.recv(1 << 20)
        if not part:
            raise ConnectionResetError
        data += part
    return data[4:]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_all(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    while any(map(is_running, pids)):
        time.sleep(0.005)
