"""Workloads of moving partitions for `bench`: a topic moves from one broker to another of three.

While it moves, a producer writes a fixed number of small records a second to a topic of its own,
with acks=all. Its p99 alone and during the move show what a move costs other clients.
"""

import statistics
import struct
import threading
import time

from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from group_workloads import Reader, text

clock = time.perf_counter
ALTER, LIST, DESCRIBE_LOG_DIRS = (45, 0), (46, 0), (35, 1)
RATE = 200  # records a second of the other producer
WINDOW_S = 11.0  # first window of the replication quotas, which is not counted
PARTITIONS = 4


def varint(value):
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(data) + bytes([value])


def compact(value):
    return varint(len(value) + 1) + value.encode()


def call(connect, broker, api, body, *, flexible):
    """Send one request on a connection of its own; return a reader behind the response's header."""
    tags = b"\0" if flexible else b""
    request = struct.pack(">hhi", *api, 1) + text("bench") + tags + body
    with connect(broker.host, broker.port, 60) as sock:
        sock.sendall(struct.pack(">i", len(request)) + request)
        size = int.from_bytes(receive(sock, 4), "big")
        return Reader(receive(sock, size)[5 if flexible else 4 :])


def receive(sock, count):
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise RuntimeError("connection closed")
        data += part
    return data


def begin_move(connect, controller, topic, target):
    rows = b"".join(
        struct.pack(">i", partition) + varint(2) + struct.pack(">i", target) + b"\0"
        for partition in range(PARTITIONS)
    )
    topics = varint(2) + compact(topic) + varint(PARTITIONS + 1) + rows + b"\0"
    reader = call(
        connect, controller, ALTER, struct.pack(">i", 60_000) + topics + b"\0", flexible=True
    )
    _throttled_ms, code = reader.take(">ih")
    # No top-level message (one byte), one topic (one byte), its name, and then the partitions.
    reader.at += 2
    size = reader.take(">B")
    reader.at += size - 1
    rows = reader.take(">B") - 1
    codes = []
    for _ in range(rows):
        codes.append(reader.take(">ih")[1])
        size = reader.take(">B")
        reader.at += max(size - 1, 0) + 1
    if code or any(codes) or rows != PARTITIONS:
        raise RuntimeError(f"the move was refused: {code} {codes}")


def is_moving(connect, controller):
    reader = call(connect, controller, LIST, struct.pack(">i", 60_000) + b"\0\0", flexible=True)
    _throttled_ms, code = reader.take(">ih")
    if code:
        raise RuntimeError(f"ListPartitionReassignments: {code}")
    reader.at += 1
    return reader.take(">B") > 1


def size_of(connect, broker, topic):
    """Return the bytes of the topic's logs on a broker."""
    reader = call(connect, broker, DESCRIBE_LOG_DIRS, struct.pack(">i", -1), flexible=False)
    reader.take(">i")
    total = 0
    for _ in range(reader.take(">i")):
        reader.take(">h")
        reader.text()
        for _ in range(reader.take(">i")):
            name = reader.text()
            for _ in range(reader.take(">i")):
                _partition, size, _lag, _future = reader.take(">iqq?")
                total += size if name == topic else 0
    return total


class Foreground:
    """Small records with acks=all at a fixed rate; the time of each until its acknowledgement."""

    def __init__(self, peer, topic, settings):
        self.topic, self.taken, self.failure = topic, [], None
        self._producer = Producer(
            {**settings, "bootstrap.servers": peer.bootstrap, "acks": "all", "linger.ms": 0}
        )
        self._producer.list_topics(topic, timeout=30)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()
        if self.failure is not None:
            raise RuntimeError(f"a record was not acknowledged: {self.failure}")

    def _send(self):
        began = clock()
        number = 0
        while not self._is_over.is_set():
            while (left := began + number / RATE - clock()) > 0:
                self._producer.poll(left)
            self._producer.produce(self.topic, bytes(100), on_delivery=self._delivered(clock()))
            number += 1
        self._producer.flush(60)

    def _delivered(self, sent):
        def take(error, _):
            if error is not None:
                self.failure = error
            now = clock()
            self.taken.append((now, (now - sent) * 1e3))

        return take

    def p99_ms(self, begin, end):
        taken = [ms for at, ms in self.taken if begin <= at < end]
        return statistics.quantiles(taken, n=100)[98]


def fill(peer, topic, size, settings):
    producer = Producer({**settings, "bootstrap.servers": peer.bootstrap, "linger.ms": 20})
    value = bytes(range(256)) * 4
    for number in range(size // len(value)):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    producer.flush(120)


def set_configs(peer, kind, name, values):
    change = AlterConfigOpType.DELETE if None in values.values() else AlterConfigOpType.SET
    entries = [
        ConfigEntry(key, value or "", incremental_operation=change) for key, value in values.items()
    ]
    resource = ConfigResource(kind, str(name), incremental_configs=entries)
    for future in peer.admin.incremental_alter_configs([resource]).values():
        future.result()


def set_throttle(peer, topic, brokers, rate):
    """Throttle all replicas of the topic at `rate` bytes per second; None removes the throttle."""
    side = "{}.replication.throttled.{}"
    for broker in brokers:
        values = {side.format(each, "rate"): rate and str(rate) for each in ("leader", "follower")}
        set_configs(peer, ResourceType.BROKER, broker, values)
    values = {side.format(each, "replicas"): rate and "*" for each in ("leader", "follower")}
    set_configs(peer, ResourceType.TOPIC, topic, values)


def move(peer, connect, usage, settings, size, rate=None):
    """Move `size` bytes from one broker to another; with `rate`, throttled at that many bytes/s.

    `throttled_share` is the rate at which the logs of the target grew to the throttle, over all
    but the first window. The CPU time is that of all brokers until the move has ended, with what
    the other producer causes.
    """
    metadata = peer.admin.list_topics(timeout=30)
    brokers = sorted(metadata.brokers)
    if len(brokers) < 3:
        raise RuntimeError("moves are measured with three nodes")
    controller, target = metadata.brokers[metadata.controller_id], metadata.brokers[brokers[1]]
    topic, _, _ = peer.create("move", PARTITIONS, replicas=[[brokers[0]]] * PARTITIONS)
    beside, _, _ = peer.create("beside", 1, rf=3)
    fill(peer, topic, size, settings)
    bytes_to_move = size_of(connect, metadata.brokers[brokers[0]], topic)
    if rate:
        set_throttle(peer, topic, brokers[:2], rate)
    samples = []
    with Foreground(peer, beside, settings) as foreground:
        time.sleep(10)  # the brokers write back what was filled
        alone = clock()
        time.sleep(15)
        begin, cpu_begin = clock(), usage(peer.pids)[0]
        begin_move(connect, controller, topic, brokers[1])
        while is_moving(connect, controller):
            if rate:
                samples.append((clock() - begin, size_of(connect, target, topic)))
                time.sleep(0.5)
            else:
                time.sleep(0.05)
            if clock() - begin > 600:
                raise RuntimeError("the move did not end within 600 s")
        end, cpu_end = clock(), usage(peer.pids)[0]
    if rate:
        set_throttle(peer, topic, brokers[:2], None)
    result = {
        "MB_s": bytes_to_move / (end - begin) / 1e6,
        "move_cpu_s_per_GB": (cpu_end - cpu_begin) / bytes_to_move * 1e9,
        "p99_alone_ms": foreground.p99_ms(alone, begin),
        "p99_ms": foreground.p99_ms(begin, end),
        "moved_bytes": bytes_to_move,
    }
    result["p99_factor"] = result["p99_ms"] / result["p99_alone_ms"]
    if rate:
        kept = [(at, size) for at, size in samples if at >= WINDOW_S and size < bytes_to_move]
        (first_at, first), (last_at, last) = kept[0], kept[-1]
        result["throttled_share"] = (last - first) / (last_at - first_at) / rate
        result["throttled_s"] = last_at - first_at
    peer.delete(topic, beside)
    return result
