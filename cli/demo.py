"""`make demo`: a node, real files through it and back with librdkafka, and how to go on."""

import errno
import hashlib
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import files
from pathlib import Path
from typing import IO, Any, Final, NoReturn

HOST: Final = "127.0.0.1"
PORT: Final = 9092
DATA_DIR: Final = Path("mq-data")
TOPIC: Final = "demo"
PARTITIONS: Final = 3
PIECE_BYTES: Final = 64 * 1024
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 30.0
CLIENT_TIMEOUT_S: Final = 60.0
MAX_READY_BYTES: Final = 4096


@dataclass(frozen=True)
class Payload:
    """One file as records: all with its name as their key, hence in one partition, in order."""

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
    """Those named; without any, this project's README and the client's own largest file."""
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
        fail(f"cannot read {path}: {error.strerror}; name a file that can be read")
    if len(data) > MAX_FILE_BYTES:
        fail(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; name a smaller file")
    if path.suffix in {".md", ".txt", ".csv"}:
        return Payload(path.name, data.splitlines(keepends=True), "a record for each line")
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    return Payload(path.name, pieces, f"a record for every {PIECE_BYTES >> 10} KiB")


def address() -> tuple[str, int]:
    """127.0.0.1:9092, or a free port when something listens there already."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, PORT))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            say(f"   Port {PORT} is taken by another program, so this node takes a free one.")
            return HOST, 0
    return HOST, PORT


@contextmanager
def running_node() -> Iterator[str]:
    """The bootstrap address of a node that runs meanwhile, and has ended in order afterwards."""
    host, port = address()
    arguments = ["run", "--data-dir", str(DATA_DIR), "--listen", f"{host}:{port}"]
    say(f"   $ mq-server {shlex.join(arguments)}")
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "cli.mq_server", *arguments, "--log-level", "warning"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        ready = ready_line(process.stdout)
        if not ready:
            process.wait(STOP_TIMEOUT_S)
            fail("the node did not start; the line above says why")
        say(f"   {ready}")
        yield ready.partition("listening on ")[2].partition(",")[0]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        process.stdout.close()
    if process.returncode:
        fail(f"the node ended with exit code {process.returncode}")


def ready_line(stream: IO[bytes]) -> str:
    """The one line a node prints when it serves; empty when it ends, or takes too long."""
    line, deadline = b"", time.monotonic() + START_TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not line.endswith(b"\n") and len(line) < MAX_READY_BYTES:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return ""
            if not (more := os.read(stream.fileno(), MAX_READY_BYTES)):
                return ""
            line += more
    return line.decode().strip()


def ends(bootstrap: str) -> dict[int, int]:
    """The log end offset of each partition of the topic, which is made when it is missing."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    try:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(CLIENT_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    asked = {TopicPartition(TOPIC, p): OffsetSpec.latest() for p in range(PARTITIONS)}
    answers = admin.list_offsets(asked)
    return {p.partition: answer.result(CLIENT_TIMEOUT_S).offset for p, answer in answers.items()}


def send(bootstrap: str, payloads: list[Payload]) -> float:
    """Seconds until every record was acknowledged."""
    from confluent_kafka import Producer

    failed: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all"})
    began = time.monotonic()
    for one in payloads:
        for number, piece in enumerate(one.pieces):
            headers = {"part": f"{number + 1}/{len(one.pieces)}"}
            offer(producer, one.name, piece, headers, delivered)
    left = producer.flush(CLIENT_TIMEOUT_S)
    if left or failed:
        fail(f"{left + len(failed)} records were not acknowledged: {failed[:1]}")
    return time.monotonic() - began


def offer(
    producer: Any, key: str, value: bytes, headers: dict[str, str], delivered: Callable[..., None]
) -> None:
    while True:
        try:
            producer.produce(TOPIC, value, key, headers=headers, on_delivery=delivered)
        except BufferError:  # librdkafka's queue is full: let it send
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def read(
    bootstrap: str, begin: dict[int, int], end: dict[int, int]
) -> tuple[dict[str, list[bytes]], float]:
    """What lies between these offsets, by key, and the seconds it took."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": TOPIC, "enable.auto.commit": False}
    )
    found: dict[str, list[bytes]] = defaultdict(list)
    count = sum(end[p] - begin[p] for p in begin)
    began = time.monotonic()
    try:
        consumer.assign([TopicPartition(TOPIC, p, offset) for p, offset in begin.items()])
        for _ in range(count):
            message = consumer.poll(CLIENT_TIMEOUT_S)
            if message is None or message.error():
                fail(f"reading back stopped: {message and message.error()}")
            found[message.key().decode()].append(message.value() or b"")
    finally:
        consumer.close()
    return found, time.monotonic() - began


def rate(size_bytes: int, seconds: float) -> str:
    return f"{size_bytes / 1e6:,.2f} MB in {seconds:.2f} s, {size_bytes / 1e6 / seconds:,.0f} MB/s"


def show_files() -> None:
    def shown(path: Path) -> bool:
        inside = path.relative_to(DATA_DIR).parts
        return path.is_file() and (inside[0] == "metadata" or inside[0].startswith(f"{TOPIC}-"))

    paths = sorted(filter(shown, DATA_DIR.rglob("*")))
    for path in paths:
        say(f"   {path.stat().st_size:>12,}  {path}")


def round_trip(bootstrap: str, payloads: list[Payload]) -> bool:
    say("\n2. Files go in, by confluent-kafka (librdkafka): idempotent, acks=all")
    begin = ends(bootstrap)
    if any(begin.values()):
        say(f"   Topic {TOPIC!r} holds {sum(begin.values()):,} records of earlier runs.")
    for one in payloads:
        say(f"   {one.name}: {one.size_bytes:,} bytes, {len(one.pieces):,} records, {one.split}")
    total = sum(one.size_bytes for one in payloads)
    say(f"   sent and acknowledged: {rate(total, send(bootstrap, payloads))}")
    end = ends(bootstrap)
    for partition in sorted(end):
        say(f"   {TOPIC}-{partition}: offsets {begin[partition]:,} to {end[partition]:,}")

    say("\n3. The same offsets are read back")
    found, seconds = read(bootstrap, begin, end)
    say(f"   read: {rate(total, seconds)}")
    same = True
    for one in payloads:
        back = digest(found.get(one.name, []))
        same &= back == one.sha256
        say(f"   {one.name}: {'the same bytes' if back == one.sha256 else 'DIFFERENT BYTES'}")
        say(f"     SHA-256 sent {one.sha256}\n             read {back}")
    return same


def say_how_to_go_on(bootstrap: str) -> None:
    listen = "" if bootstrap == f"{HOST}:{PORT}" else f" --listen {bootstrap}"
    say(f"""
5. How to go on, in this folder
   $ . .venv/bin/activate
   $ mq-server run{listen}
   is the same node with the same data; Ctrl-C stops it. Then, in another terminal, with any
   Kafka client (here kcat):
   $ echo hello | kcat -P -b {bootstrap} -t greetings
   $ kcat -C -b {bootstrap} -t greetings -o beginning -e
   README.md says what works today. rm -r mq-data forgets everything.""")


def main(arguments: list[str]) -> int:
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        fail("confluent-kafka is not installed; run: make demo")
    payloads = files_to_send(arguments)
    say("1. A node starts: one process, its data in ./mq-data")
    with running_node() as bootstrap:
        same = round_trip(bootstrap, payloads)
        say("\n4. Where it is now: Kafka's own file format, beside the metadata log")
        show_files()
    say("   The node has stopped in order.")
    say_how_to_go_on(bootstrap)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
