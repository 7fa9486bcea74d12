"""Capture `golden_batches/`: segments of a real Apache Kafka, and their records as other clients
read them.

    python -m tests.wire.records.capture_batches [--dir DIR] [--base-port P]

Starts the Kafka of `tests/peers/kafka` (needs Java), fills small topics with its Java producer and
with librdkafka, copies the segment of each topic to NAME.bin, and writes to NAME.json what a
librdkafka consumer reads: offset, timestamp, key, value and headers of every record.
"""

import argparse
import base64
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

HERE = Path(__file__).resolve().parent
PEER = HERE.parent / "peers" / "kafka"
GOLDEN = HERE / "golden_batches"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# headers, key, value; NULL is null
LINES = (
    "NULL\tk1\tplain value",
    "h1:v1,h2:v2\tk2\twith two headers",
    "NULL\tNULL\tnull key",
    "NULL\tk4\tNULL",
    "h:NULL\tNULL\tNULL",
    "NULL\t\t",
    "ключ:значение\tkłucz\tnot only ASCII ✓",
    "NULL\tlong\t" + "abcdefghij" * 200,
)
SNAPPY_LINES = ("NULL\tmore than a snappy block\t" + "abcdefghij" * 4000,)


class Kafka:
    def __init__(self, folder: Path, base_port: int) -> None:
        self.folder = folder
        self.base_port = base_port
        self.bootstrap = f"127.0.0.1:{base_port}"

    def cluster(self, *arguments: str) -> None:
        subprocess.run([PEER / "cluster", *arguments, "--dir", self.folder], check=True)

    def create(self, topic: str, **config: str) -> None:
        new = NewTopic(
            topic, 1, 1, config={name.replace("_", "."): config[name] for name in config}
        )
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([new])[topic].result()

    def tool(self, name: str, *arguments: str, lines: str = "") -> None:
        command = [PEER / "tool", name, "--bootstrap-server", self.bootstrap, *arguments]
        subprocess.run(command, input=lines, text=True, check=True, stdout=subprocess.DEVNULL)

    def java_produce(self, topic: str, codec: str) -> None:
        lines = LINES + SNAPPY_LINES if codec == "snappy" else LINES
        properties = ["parse.key=true", "parse.headers=true", "null.marker=NULL"]
        self.tool(
            "console-producer",
            *("--topic", topic, "--compression-codec", codec),
            *("--command-property", "linger.ms=500", "--batch-size", "100000"),
            *(part for each in properties for part in ("--reader-property", each)),
            lines="".join(line + "\n" for line in lines),
        )

    def java_transaction(self, topic: str) -> None:
        payloads = self.folder / "payloads"
        payloads.write_text("committed by Java\n")
        self.tool(
            "producer-perf-test",
            *("--topic", topic, "--num-records", "5", "--throughput", "-1"),
            *("--payload-file", str(payloads)),
            *("--transactional-id", topic, "--transaction-duration-ms", "100000"),
        )

    def librdkafka_produce(self, topic: str, **config: str | int) -> Producer:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 100, **config})
        if "transactional.id" in config:
            producer.init_transactions()
            producer.begin_transaction()
        for number in range(20):
            producer.produce(
                topic,
                key=None if number % 3 == 0 else b"key %d" % number,
                value=None if number % 4 == 0 else b"value " * number,
                headers=[("number", b"%d" % number), ("none", None)] if number % 5 == 0 else None,
                timestamp=1_700_000_000_000 + 1000 * (number ^ 5),
            )
        producer.flush()
        return producer

    def read(self, topic: str) -> list[dict[str, Any]]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "capture",
                "isolation.level": "read_uncommitted",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        seen = []
        while (message := consumer.poll(10)) is not None and message.error() is None:
            seen.append(
                {
                    "offset": message.offset(),
                    "timestamp_type": message.timestamp()[0] - 1,
                    "timestamp_ms": message.timestamp()[1],
                    "key": _text(message.key()),
                    "value": _text(message.value()),
                    "headers": [[name, _text(value)] for name, value in message.headers() or ()],
                }
            )
        consumer.close()
        return seen

    def wait_end(self, topic: str, offset: int) -> None:
        """Wait until the partition has this end offset; the producer does not report markers."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "capture"})
        while consumer.get_watermark_offsets(TopicPartition(topic, 0))[1] < offset:
            time.sleep(0.05)
        consumer.close()

    def save(self, topic: str, **facts: Any) -> None:
        segment = self.folder / "node1" / "data" / f"{topic}-0" / f"{0:020}.log"
        (GOLDEN / f"{topic}.bin").write_bytes(segment.read_bytes())
        golden = {**facts, "records": self.read(topic)}
        text = json.dumps(golden, indent=1, ensure_ascii=False)
        (GOLDEN / f"{topic}.json").write_text(text + "\n")


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def capture(kafka: Kafka) -> None:
    for codec in CODECS:
        topic = f"java_{codec}"
        kafka.create(topic)
        kafka.java_produce(topic, codec)
        kafka.save(topic, codec=codec, markers={})
        topic = f"librdkafka_{codec}"
        kafka.create(topic)
        kafka.librdkafka_produce(topic, **{"compression.type": codec})
        kafka.save(topic, codec=codec, markers={})
    kafka.create("log_append_time", message_timestamp_type="LogAppendTime")
    kafka.java_produce("log_append_time", "lz4")
    kafka.save("log_append_time", codec="lz4", markers={})
    kafka.create("transactions")
    kafka.java_transaction("transactions")
    kafka.wait_end("transactions", 6)
    config: dict[str, str | int] = {"transactional.id": "librdkafka"}
    kafka.librdkafka_produce("transactions", **config).abort_transaction()
    kafka.wait_end("transactions", 27)
    kafka.save("transactions", codec="none", markers={"5": "COMMIT", "26": "ABORT"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--base-port", type=int, default=22192)
    options = parser.parse_args()
    kafka = Kafka(options.dir or Path(tempfile.mkdtemp(prefix="capture")), options.base_port)
    GOLDEN.mkdir(exist_ok=True)
    kafka.cluster("start", "--base-port", str(options.base_port), "--heap", "512m")
    try:
        capture(kafka)
    finally:
        kafka.cluster("stop")


if __name__ == "__main__":
    main()
