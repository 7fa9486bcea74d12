"""`make demo`: send files through three nodes with librdkafka, kill one node, read them back."""

import hashlib
import random
import shlex
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import files
from pathlib import Path
from typing import Any, Final, NoReturn

from metaquorum.cli.common.processes import is_free
from metaquorum.cli.server.cluster_layout import QUORUM_PORT_OFFSET
from metaquorum.runtime.own_processes import own_command, own_environment

HOST: Final = "127.0.0.1"
PORT: Final = 19092
OTHER_PORTS: Final = (20_000, 30_000)
NODES: Final = 3
DIR: Final = Path("mq-demo")
TOPIC: Final = "demo"
PARTITIONS: Final = 3
MIN_IN_SYNC: Final = 2
PIECE_BYTES: Final = 64 * 1024
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
SENDING_S: Final = 4.0  # minimum, so that a node can be killed in the middle
CLIENT_TIMEOUT_S: Final = 60.0
LOOK_AGAIN_S: Final = 0.05
CLIENT: Final = {
    "log_level": 0,  # the demo itself reports the killed node
    "topic.metadata.refresh.fast.interval.ms": 100,
    "reconnect.backoff.max.ms": 1000,
}


@dataclass(frozen=True)
class Payload:
    """One file as records, which stay in order in one partition: all have the file name as key."""

    name: str
    pieces: list[bytes]
    split: str

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def sha256(self) -> str:
        return digest(self.pieces)


def digest(pieces: Iterable[bytes]) -> str:
    sha = hashlib.sha256()
    for piece in pieces:
        sha.update(piece)
    return sha.hexdigest()


def say(text: str = "") -> None:
    print(text, flush=True)


def fail(sentence: str) -> NoReturn:
    print(f"demo: {sentence}", file=sys.stderr)
    sys.exit(2)


def files_to_send(arguments: list[str]) -> list[Payload]:
    """Return the files of the arguments; by default README.md and the client's largest file."""
    named = [Path(argument) for argument in arguments]
    readme = Path(__file__).resolve().parent.parent / "README.md"
    installed = (Path(str(file.locate())) for file in files("confluent-kafka") or ())
    library = max(filter(Path.is_file, installed), key=lambda path: path.stat().st_size)
    default = [path for path in (readme, library) if path.is_file()]
    return [payload(path) for path in named or default]


def payload(path: Path) -> Payload:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}; choose a readable file")
    if len(data) > MAX_FILE_BYTES:
        fail(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; choose a smaller file")
    if path.suffix in {".md", ".txt", ".csv"}:
        return Payload(path.name, data.splitlines(keepends=True), "one record per line")
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    return Payload(path.name, pieces, f"one record per {PIECE_BYTES >> 10} KiB")


# The cluster, by the commands for users


def run(module: str, name: str, *arguments: str, shown: bool = True) -> str:
    """Run a command and return its output; with `shown`, print each line when it arrives."""
    if shown:
        say(f"   $ {name} {shlex.join(arguments)}")
    process = subprocess.Popen(  # noqa: S603
        [*own_command(module), *arguments],
        env=own_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    with process.stdout:
        for line in process.stdout:
            lines.append(line)
            if shown:
                say(f"   {line.rstrip()}")
    if process.wait():
        fail("the command failed; the line above has the reason")
    return "".join(lines)


def cluster(verb: str, *arguments: str, shown: bool = True) -> str:
    where = ["--dir", str(DIR)]
    return run(
        "metaquorum.cli.server.main", "mq-server", "cluster", verb, *arguments, *where, shown=shown
    )


def base_port() -> int:
    """Return 19092, or another base port if one of the ports of its nodes is in use."""
    offsets = [offset + each for offset in (0, QUORUM_PORT_OFFSET) for each in range(NODES)]
    port = PORT
    while not all(is_free(port + offset) for offset in offsets):
        port = random.randrange(*OTHER_PORTS)  # noqa: S311
    return port


@contextmanager
def running_nodes() -> Iterator[str]:
    """Run three nodes while the block runs. Yields their bootstrap addresses."""
    if (DIR / "cluster.json").exists():
        new = []
    else:
        new = ["--nodes", str(NODES), "--base-port", str(base_port())]
    try:
        said = cluster("start", *new)
        yield said.rpartition("bootstrap ")[2].strip()
    finally:
        cluster("stop", shown=False)


# Clients


def prepared(bootstrap: str) -> dict[int, int]:
    """Create the topic if it does not exist; return the end offset of each partition."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap} | CLIENT)
    new = NewTopic(TOPIC, PARTITIONS, NODES, config={"min.insync.replicas": str(MIN_IN_SYNC)})
    try:
        admin.create_topics([new])[TOPIC].result(CLIENT_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    return ends(bootstrap)


def ends(bootstrap: str) -> dict[int, int]:
    from confluent_kafka import KafkaError, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": bootstrap} | CLIENT)
    # The asked node, or the leader, does not know the new topic yet; librdkafka does not retry.
    not_yet = (KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART)
    asked = {TopicPartition(TOPIC, p): OffsetSpec.latest() for p in range(PARTITIONS)}
    deadline = time.monotonic() + CLIENT_TIMEOUT_S
    while True:
        answers = admin.list_offsets(asked, request_timeout=CLIENT_TIMEOUT_S)
        try:
            return {p.partition: one.result(CLIENT_TIMEOUT_S).offset for p, one in answers.items()}
        except KafkaException as error:
            if error.args[0].code() not in not_yet or time.monotonic() > deadline:
                raise
        time.sleep(LOOK_AGAIN_S)


class Sending:
    """An idempotent producer with acks=all that sends each record once and measures latencies."""

    def __init__(self, bootstrap: str, payloads: list[Payload]) -> None:
        from confluent_kafka import Producer

        config = {"enable.idempotence": True, "acks": "all", "linger.ms": 1}
        self._producer = Producer({"bootstrap.servers": bootstrap} | config | CLIENT)
        records = [
            (one.name, piece, number) for one in payloads for number, piece in enumerate(one.pieces)
        ]
        self._records = iter(records)
        self.count = len(records)
        self.sent = 0
        self.seconds: list[float] = []  # from produce() to the acknowledgement
        self.refused: list[str] = []
        self.partition = 0  # partition of the last acknowledged record

    def send_until(self, count: int) -> None:
        """Send records until `count` are sent, slowly enough to watch."""
        while self.sent < count:
            key, piece, number = next(self._records)
            self._offer(key, piece, {"part": str(number)})
            self.sent += 1
            self.poll(SENDING_S / self.count)

    def _offer(self, key: str, value: bytes, headers: dict[str, str]) -> None:
        delivered = partial(self._delivered, time.monotonic())
        while True:
            try:
                self._producer.produce(TOPIC, value, key, headers=headers, on_delivery=delivered)
            except BufferError:  # librdkafka's queue is full
                self._producer.poll(0.1)
            else:
                return

    def poll(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._producer.poll(left)

    def end(self) -> None:
        left = self._producer.flush(CLIENT_TIMEOUT_S)
        if left or self.refused:
            fail(f"{left + len(self.refused)} records were not acknowledged: {self.refused[:1]}")

    def leader(self) -> int:
        """Return the leader of the partition that the records go to now."""
        topics = self._producer.list_topics(TOPIC, CLIENT_TIMEOUT_S).topics
        return int(topics[TOPIC].partitions[self.partition].leader)

    def _delivered(self, began: float, error: Any, message: Any) -> None:
        if error is not None:
            self.refused.append(str(error))
            return
        self.seconds.append(time.monotonic() - began)
        self.partition = message.partition()


def read(
    bootstrap: str, begin: dict[int, int], end: dict[int, int]
) -> tuple[dict[str, list[bytes]], float]:
    """Read the records between these offsets; return their values by key, and the seconds."""
    from confluent_kafka import Consumer, TopicPartition

    config = {"bootstrap.servers": bootstrap, "group.id": TOPIC, "enable.auto.commit": False}
    consumer = Consumer(config | CLIENT)
    found: dict[str, list[bytes]] = defaultdict(list)
    count = sum(end[p] - begin[p] for p in begin)
    began = time.monotonic()
    try:
        consumer.assign([TopicPartition(TOPIC, p, offset) for p, offset in begin.items()])
        for _ in range(count):
            message = consumer.poll(CLIENT_TIMEOUT_S)
            if message is None or message.error():
                fail(f"reading back failed: {message and message.error()}")
            found[message.key().decode()].append(message.value() or b"")
    finally:
        consumer.close()
    return found, time.monotonic() - began


# The steps of the demo


def send_and_kill(bootstrap: str, payloads: list[Payload]) -> int:
    """Send all records and kill a node meanwhile. Returns the id of the killed node."""
    say("\n2. confluent-kafka (librdkafka) sends files with acks=all, three replicas per record")
    for one in payloads:
        say(f"   {one.name}: {one.size_bytes:,} bytes, {len(one.pieces):,} records, {one.split}")
    sending = Sending(bootstrap, payloads)
    sending.send_until(sending.count // 2)
    victim = sending.leader()
    say(f"   {len(sending.seconds):,} records are acknowledged, more are being sent.")
    say(f"   Node {victim} is the leader of their partition. It is killed, as by a crash:")
    killing = threading.Thread(target=cluster, args=("kill", str(victim)))
    killing.start()
    sending.send_until(sending.count * 3 // 4)
    while killing.is_alive():
        sending.poll(0.01)
    sending.send_until(sending.count)
    sending.end()
    say(f"   {len(sending.seconds):,} of {sending.count:,} records are acknowledged.")
    say(
        "   Another node was elected leader; the longest wait of a record was"
        f" {max(sending.seconds):.2f} s."
    )
    return victim


def compare(bootstrap: str, payloads: list[Payload], begin: dict[int, int], victim: int) -> bool:
    say(f"\n3. All records are read back from the other two nodes: node {victim} is still down")
    end = ends(bootstrap)
    found, seconds = read(bootstrap, begin, end)
    total = sum(one.size_bytes for one in payloads)
    say(f"   {total / 1e6:,.2f} MB in {seconds:.2f} s")
    same = True
    for one in payloads:
        back = digest(found.get(one.name, []))
        same &= back == one.sha256
        verdict = "the same bytes, each record once, in order"
        say(f"   {one.name}: {verdict if back == one.sha256 else 'DIFFERENT BYTES'}")
        say(f"     SHA-256 sent {one.sha256}\n             read {back}")
    return same


def show_recovery(bootstrap: str, victim: int) -> None:
    say(f"\n4. Node {victim} starts again and fetches the records that it missed")
    cluster("restart", str(victim))
    began = time.monotonic()
    wait_in_sync(bootstrap)
    say(f"   all replicas are in sync again {time.monotonic() - began:.2f} s later:")
    run(
        "metaquorum.cli.admin.main",
        "mq-admin",
        "-b",
        bootstrap.partition(",")[0],
        "topics",
        "describe",
        TOPIC,
    )


def wait_in_sync(bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap} | CLIENT)
    until = time.monotonic() + CLIENT_TIMEOUT_S
    while time.monotonic() < until:
        partitions = admin.list_topics(TOPIC, CLIENT_TIMEOUT_S).topics[TOPIC].partitions.values()
        if all(len(partition.isrs) == NODES for partition in partitions):
            return
        time.sleep(LOOK_AGAIN_S)
    fail(f"the replicas are not in sync after {CLIENT_TIMEOUT_S:.0f} s; see {DIR}/node*/log")


def say_how_to_go_on(bootstrap: str) -> None:
    first = bootstrap.partition(",")[0]
    say(f"""
5. Next steps, in this folder
   $ . .venv/bin/activate
   $ mq-server cluster start --dir {DIR}
   starts the same three nodes with the same data, to kill, pause and restart
   (docs/howto/run-three-nodes.md).
   With any Kafka client (here kcat):
   $ echo hello | kcat -P -b {first} -t greetings
   $ kcat -C -b {first} -t greetings -o beginning -e
   $ mq-server cluster stop --dir {DIR}
   stops them; rm -r {DIR} deletes everything.
   $ mq-server run
   runs a single node for clients at 127.0.0.1:9092; its data is in ./mq-data, Ctrl-C stops it.
   README.md lists the features of this version.""")


def main(arguments: list[str]) -> int:
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        fail("confluent-kafka is not installed; run: make demo")
    payloads = files_to_send(arguments)
    say(f"1. Three nodes start: three processes, their data in ./{DIR}")
    with running_nodes() as bootstrap:
        begin = prepared(bootstrap)
        if any(begin.values()):
            say(f"   Topic {TOPIC!r} has {sum(begin.values()):,} records of earlier runs.")
        victim = send_and_kill(bootstrap, payloads)
        same = compare(bootstrap, payloads, begin, victim)
        show_recovery(bootstrap, victim)
    say("   The nodes were stopped cleanly.")
    say_how_to_go_on(bootstrap)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
