"""Kafka's own command-line tools, and through them the Java client."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.conformance.clients import CODECS, Librdkafka, Record, create
from tests.conftest import KafkaTool, NewNode
from tests.nodes import PATIENCE_S, Peer, unique, wait_until

FIRST_MS = 1_600_000_000_000

pytestmark = pytest.mark.usefixtures("java")


def output(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def at(node: Peer) -> tuple[str, str]:
    return "--bootstrap-server", node.bootstrap


def consumed(kafka_tool: KafkaTool, node: Peer, topic: str, count: int, *more: object) -> list[str]:
    """Return the lines of a consumer that is assigned partition 0, from its beginning."""
    place = ("--topic", topic, "--partition", 0, "--offset", "earliest", "--max-messages", count)
    wait = ("--timeout-ms", 170_000)
    done = kafka_tool("console-consumer", *at(node), *place, *wait, *more)
    lines = output(done).splitlines()
    assert len(lines) >= count, f"{len(lines)} of {count} lines in time; {done.stderr[-2000:]}"
    return lines


def test_topics_are_created_listed_and_deleted(node: Peer, kafka_tool: KafkaTool) -> None:
    topic = unique("java")
    name = ("--topic", topic)
    output(kafka_tool("topics", *at(node), "--create", *name, "--partitions", 3))
    assert topic in output(kafka_tool("topics", *at(node), "--list")).split()
    again = kafka_tool("topics", *at(node), "--create", *name)
    assert again.returncode == 1
    assert f"Topic '{topic}' already exists" in again.stdout + again.stderr
    output(kafka_tool("topics", *at(node), "--delete", *name))
    assert topic not in output(kafka_tool("topics", *at(node), "--list")).split()


def test_topics_are_described(node: Peer, kafka_tool: KafkaTool) -> None:
    topic = create(node.bootstrap, unique("java"), 3)
    described = output(kafka_tool("topics", *at(node), "--describe", "--topic", topic))
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1", described)
    rows = re.findall(r"Partition: (\d)\s+Leader: (\d)\s+Replicas: (\d)\s+Isr: (\d)", described)
    assert rows == [(str(p), "1", "1", "1") for p in range(3)]


@pytest.mark.parametrize("codec", CODECS)
def test_console_producer_and_consumer(node: Peer, kafka_tool: KafkaTool, codec: str) -> None:
    topic = create(node.bootstrap, unique("console"))
    lines = [f"key-{i}:value {i} {'x' * (i % 200)}" for i in range(500)]
    output(
        kafka_tool(
            "console-producer", *at(node), "--topic", topic, "--compression-codec", codec,
            "--reader-property", "parse.key=true", "--reader-property", "key.separator=:",
            stdin="".join(line + "\n" for line in lines),
        )
    )  # fmt: skip
    shown = ("--formatter-property", "print.key=true", "--formatter-property", "key.separator=:")
    assert consumed(kafka_tool, node, topic, 500, *shown) == lines
    stored = Librdkafka().read(node.bootstrap, topic, 500)
    assert [f"{(one.record.key or b'').decode()}:{(one.record.value or b'').decode()}"
            for one in stored] == lines  # fmt: skip


def test_java_reads_what_librdkafka_wrote(node: Peer, kafka_tool: KafkaTool) -> None:
    topic = create(node.bootstrap, unique("to-java"))
    for i, codec in enumerate(CODECS):
        record = Record(b"k", codec.encode(), (("h", b"1"), ("h", None)), FIRST_MS + i)
        Librdkafka().send(node.bootstrap, topic, [record] * 3, codec)
    names = ("timestamp", "offset", "headers", "key", "value")
    shown = [part for name in names for part in ("--formatter-property", f"print.{name}=true")]
    assert consumed(kafka_tool, node, topic, 15, *shown) == [
        f"CreateTime:{FIRST_MS + i // 3}\tOffset:{i}\th:1,h:null\tk\t{CODECS[i // 3]}"
        for i in range(15)
    ]


def test_get_offsets_at_every_special_time(node: Peer, kafka_tool: KafkaTool) -> None:
    topic = create(node.bootstrap, unique("get-offsets"), 2)
    times = (0, 30, 10, 20)
    records = [Record(None, b"v", (), FIRST_MS + time) for time in times]
    Librdkafka().send(node.bootstrap, topic, records, "none", partition=1)
    for time, expected in (
        ("earliest", {"0": "0", "1": "0"}),
        ("latest", {"0": "0", "1": "4"}),
        ("max-timestamp", {"1": "1"}),
        ("earliest-local", {"0": "0", "1": "0"}),
        ("latest-tiered", {}),
        (FIRST_MS + 5, {"1": "1"}),
        (FIRST_MS + 31, {}),
    ):
        shown = output(kafka_tool("get-offsets", *at(node), "--topic", topic, "--time", time))
        rows = [line.rsplit(":", 2) for line in shown.splitlines()]
        known = {partition: offset for _, partition, offset in rows if offset not in ("", "-1")}
        assert known == expected, time


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_producer_perf_test(node: Peer, kafka_tool: KafkaTool, acks: str) -> None:
    topic = create(node.bootstrap, unique("perf"), 4)
    shown = output(
        kafka_tool(
            "producer-perf-test", *at(node), "--topic", topic, "--num-records", 20_000,
            "--record-size", 200, "--throughput", -1, "--command-property", f"acks={acks}",
        )
    )  # fmt: skip
    assert shown.splitlines()[-1].startswith("20000 records sent")

    def count() -> int:
        rows = output(kafka_tool("get-offsets", *at(node), "--topic", topic)).splitlines()
        return sum(int(row.rsplit(":", 1)[1]) for row in rows)

    wait_until(lambda: count() == 20_000)  # records sent with acks=0 may arrive later


def test_verifiable_producer(node: Peer, kafka_tool: KafkaTool) -> None:
    topic = create(node.bootstrap, unique("verifiable"))
    shown = output(
        kafka_tool(
            "verifiable-producer", *at(node), "--topic", topic, "--max-messages", 3000,
            "--acks", -1, "--value-prefix", 7,
        )
    )  # fmt: skip
    events = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    sent = [event for event in events if event["name"] == "producer_send_success"]
    assert [event["offset"] for event in sent] == list(range(3000))
    assert events[-1]["name"] == "tool_data"
    assert events[-1]["acked"] == events[-1]["sent"] == 3000
    stored = Librdkafka().read(node.bootstrap, topic, 3000)
    assert [one.record.value for one in stored] == [b"7.%d" % i for i in range(3000)]


def test_api_versions_are_understood(node: Peer, kafka_tool: KafkaTool) -> None:
    shown = output(kafka_tool("broker-api-versions", *at(node)))
    assert re.search(r"Produce\(0\): [\d to]+\[usable: 13\]", shown)
    assert re.search(r"Fetch\(1\): [\d to]+\[usable: 18\]", shown)


def test_dump_log_reads_our_files(start_node: NewNode, kafka_tool: KafkaTool) -> None:
    node = start_node({"log.index.interval.bytes": 512})
    create(node.bootstrap, "dumped", config={"segment.bytes": "1048576"})
    records = [Record(b"%d" % i, b"x" * 100, (), FIRST_MS + i) for i in range(200)]
    for codec in CODECS:
        options = {"compression_type": codec, "enable_idempotence": True}
        producer = Librdkafka().producer(node.bootstrap, **options)
        for number, each in enumerate(records, 1):
            producer.produce("dumped", each.value, each.key, 0, timestamp=each.timestamp)
            if number % 50 == 0:
                assert producer.flush(PATIENCE_S) == 0
    node.stop()
    folder = Path(node.data_dir) / "dumped-0"
    log = folder / "00000000000000000000.log"
    shown = output(kafka_tool("dump-log", "--files", log, "--print-data-log", "--deep-iteration"))
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+) ", shown, re.MULTILINE)]
    assert offsets == list(range(1000))
    keys = [
        int(found) for found in re.findall(r" key: (\d+) payload: x{100}$", shown, re.MULTILINE)
    ]
    assert keys == list(range(200)) * len(CODECS)
    assert set(re.findall(r"compresscodec: (\w+)", shown)) == set(CODECS)
    assert set(re.findall(r"isvalid: (\w+)", shown)) == {"true"}
    for suffix in (".index", ".timeindex"):
        shown = output(kafka_tool("dump-log", "--files", log.with_suffix(suffix)))
        assert "mismatch" not in shown.lower()
        assert len(re.findall(r"offset: \d+", shown)) > 1, shown
