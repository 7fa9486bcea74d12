"""Kafka's own administration tools."""

import json
import re
from pathlib import Path

import pytest

from tests.conformance.clients import Librdkafka, Record, admin, create
from tests.conformance.test_java import at, output
from tests.conftest import KafkaTool
from tests.nodes import PATIENCE_S, Peer, unique, wait_until

pytestmark = pytest.mark.usefixtures("java")


def described(kafka_tool: KafkaTool, node: Peer, *entity: object) -> dict[str, str]:
    """Return the output of `configs --describe`, with the text after each value."""
    shown = output(kafka_tool("configs", *at(node), "--describe", *entity))
    return dict(re.findall(r"^  ([\w.]+)=(.*)$", shown, re.MULTILINE))


def test_configs_of_a_topic(node: Peer, kafka_tool: KafkaTool) -> None:
    topic = create(node.bootstrap, unique("configs"))
    entity = ("--entity-type", "topics", "--entity-name", topic)
    added = "retention.ms=60000,flush.messages=7"
    output(kafka_tool("configs", *at(node), "--alter", *entity, "--add-config", added))
    wait_until(lambda: "retention.ms" in described(kafka_tool, node, *entity))
    shown = described(kafka_tool, node, *entity)
    assert shown.keys() == {"retention.ms", "flush.messages"}
    assert shown["retention.ms"].startswith(
        "60000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=60000"
    )
    everything = described(kafka_tool, node, *entity, "--all")
    assert everything["segment.bytes"].startswith(
        "1073741824 sensitive=false synonyms={DEFAULT_CONFIG:log.segment.bytes=1073741824}"
    )
    output(kafka_tool("configs", *at(node), "--alter", *entity, "--delete-config", "retention.ms"))
    wait_until(lambda: "retention.ms" not in described(kafka_tool, node, *entity))
    bad = kafka_tool("configs", *at(node), "--alter", *entity, "--add-config", "retention.ms=soon")
    assert bad.returncode
    assert "Invalid value soon for configuration retention.ms" in bad.stdout + bad.stderr


@pytest.mark.parametrize(
    ("entity", "words", "added"),
    [
        (
            "--entity-type users --entity-name alice --entity-type clients --entity-default",
            "user-principal 'alice', the default client-id",
            "consumer_byte_rate",
        ),
        ("--entity-type clients --entity-name pump", "client-id 'pump'", "request_percentage"),
        (
            "--entity-type users --entity-default",
            "the default user-principal",
            "controller_mutation_rate",
        ),
        ("--entity-type ips --entity-name 10.9.8.7", "ip '10.9.8.7'", "connection_creation_rate"),
    ],
)
def test_quotas(node: Peer, kafka_tool: KafkaTool, entity: str, words: str, added: str) -> None:
    whom = entity.split()
    output(kafka_tool("configs", *at(node), "--alter", *whom, "--add-config", f"{added}=5000000"))

    def shown() -> str:
        return output(kafka_tool("configs", *at(node), "--describe", *whom))

    try:
        wanted = f"Quota configs for {words} are {added}=5000000.0"
        wait_until(lambda: wanted in shown())
    finally:
        output(kafka_tool("configs", *at(node), "--alter", *whom, "--delete-config", added))
    wait_until(lambda: added not in shown())


def test_configs_of_all_brokers_show_through(node: Peer, kafka_tool: KafkaTool) -> None:
    topic = create(node.bootstrap, unique("configs"))
    all_brokers = ("--entity-type", "brokers", "--entity-default")
    alter = ("configs", *at(node), "--alter", *all_brokers)
    name = "log.message.timestamp.after.max.ms"
    output(kafka_tool(*alter, "--add-config", f"{name}=7200000"))
    try:
        wait_until(lambda: name in described(kafka_tool, node, *all_brokers))
        of_topic = described(
            kafka_tool, node, "--entity-type", "topics", "--entity-name", topic, "--all"
        )
        assert of_topic["message.timestamp.after.max.ms"] == (
            "7200000 sensitive=false synonyms="
            f"{{DYNAMIC_DEFAULT_BROKER_CONFIG:{name}=7200000, DEFAULT_CONFIG:{name}=3600000}}"
        )
        one = ("--entity-type", "brokers", "--entity-name", 1)
        of_one = described(kafka_tool, node, *one, "--all")
        assert of_one[name].startswith("7200000")
        assert [of_one[key].split()[0] for key in ("node.id", "broker.id")] == ["1", "1"]
        for key in ("listeners", "log.dirs", "process.roles"):  # tools parse this text
            assert "synonyms={STATIC_BROKER_CONFIG:" in of_one[key]
        assert name not in described(kafka_tool, node, *one)  # it has no config set
        fixed = kafka_tool(*alter, "--add-config", "num.partitions=3")
        assert fixed.returncode
        assert "Cannot update these configs dynamically: [num.partitions]" in (
            fixed.stdout + fixed.stderr
        )
    finally:
        output(kafka_tool(*alter, "--delete-config", name))
    wait_until(lambda: name not in described(kafka_tool, node, *all_brokers))


def test_topics_are_altered_and_described_with_what_they_got(
    node: Peer, kafka_tool: KafkaTool
) -> None:
    topic = create(node.bootstrap, unique("grown"), 2)
    name = ("--topic", topic)
    output(kafka_tool("topics", *at(node), "--alter", *name, "--partitions", 4))
    shown = output(kafka_tool("topics", *at(node), "--describe", *name))
    assert "PartitionCount: 4" in shown
    assert re.findall(r"Partition: (\d)\s+Leader: 1", shown) == ["0", "1", "2", "3"]
    fewer = kafka_tool("topics", *at(node), "--alter", *name, "--partitions", 3)
    assert fewer.returncode
    assert "3 would not be an increase" in fewer.stdout + fewer.stderr


def test_a_topic_of_many_pages_is_described(node: Peer, kafka_tool: KafkaTool) -> None:
    topic = create(node.bootstrap, unique("paged"), 25)
    shown = output(
        kafka_tool(
            "topics", *at(node), "--describe", "--topic", topic,
            "--partition-size-limit-per-response", 10,
        )
    )  # fmt: skip
    assert re.findall(r"Partition: (\d+)\s", shown) == [str(p) for p in range(25)]


def test_records_are_deleted_up_to_an_offset(
    node: Peer, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    topic = create(node.bootstrap, unique("trimmed"), 2)
    for partition in (0, 1):
        records = [Record(None, b"v")] * 5
        Librdkafka().send(node.bootstrap, topic, records, "none", partition=partition)
    wanted = tmp_path / "offsets.json"
    wanted.write_text(
        json.dumps(
            {
                "version": 1,
                "partitions": [
                    {"topic": topic, "partition": 0, "offset": 3},
                    {"topic": topic, "partition": 1, "offset": -1},
                ],
            }
        )
    )
    shown = output(kafka_tool("delete-records", *at(node), "--offset-json-file", wanted))
    assert f"partition: {topic}-0\tlow_watermark: 3" in shown
    assert f"partition: {topic}-1\tlow_watermark: 5" in shown
    place = ("get-offsets", *at(node), "--topic", topic, "--time")
    assert output(kafka_tool(*place, "earliest")).split() == [f"{topic}:0:3", f"{topic}:1:5"]
    assert output(kafka_tool(*place, "latest")).split() == [f"{topic}:0:5", f"{topic}:1:5"]


def test_log_dirs_are_described(node: Peer, kafka_tool: KafkaTool) -> None:
    topic = create(node.bootstrap, unique("sized"))
    Librdkafka().send(node.bootstrap, topic, [Record(None, b"x" * 3000)], "none")
    shown = output(kafka_tool("log-dirs", *at(node), "--describe", "--topic-list", topic))
    (answer,) = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    (broker,) = answer["brokers"]
    (log_dir,) = broker["logDirs"]
    (partition,) = log_dir["partitions"]
    assert (broker["broker"], partition["partition"], log_dir["error"]) == (1, f"{topic}-0", None)
    assert 3000 < partition["size"] < 3200
    assert (partition["offsetLag"], partition["isFuture"]) == (0, False)


def test_producers_are_described(node: Peer, kafka_tool: KafkaTool) -> None:
    topic = create(node.bootstrap, unique("producers"))
    records = [Record(None, b"v")] * 3
    Librdkafka().send(node.bootstrap, topic, records, "none", enable_idempotence=True)
    shown = output(
        kafka_tool(
            "transactions", *at(node), "describe-producers", "--topic", topic, "--partition", 0
        )
    )
    _, row = shown.splitlines()
    assert row.split()[1:3] == ["0", "-1"]  # epoch, and coordinator epoch
    assert row.split()[3] == "2"  # last sequence


def test_without_an_authorizer_acls_are_refused(node: Peer, kafka_tool: KafkaTool) -> None:
    shown = kafka_tool("acls", *at(node), "--list")
    assert "No Authorizer is configured" in shown.stdout + shown.stderr


def test_all_topics_are_described_at_once(node: Peer, kafka_tool: KafkaTool) -> None:
    topic = create(node.bootstrap, unique("among-all"), 2)
    shown = output(kafka_tool("topics", *at(node), "--describe"))
    assert len(re.findall(rf"Topic: {topic}\s+Partition: ", shown)) == 2
    assert len(admin(node.bootstrap).list_topics(timeout=PATIENCE_S).topics) <= len(
        re.findall(r"PartitionCount: ", shown)
    )


def test_levels_of_loggers(node: Peer, kafka_tool: KafkaTool) -> None:
    """Also of packages. Unknown loggers and levels are refused, and the root keeps a level."""
    loggers = ("--entity-type", "broker-loggers", "--entity-name", 1)
    alter = ("configs", *at(node), "--alter", *loggers)
    package, module = (
        "metaquorum.dataplane.log.recovery",
        "metaquorum.dataplane.log.recovery.recovery",
    )

    def level(name: str) -> str:
        return described(kafka_tool, node, *loggers)[name].split()[0]

    root = level("root")
    assert level(module) == root
    output(kafka_tool(*alter, "--add-config", f"{package}=FATAL"))
    try:
        assert level(module) == level(package) == "FATAL"
        assert level("root") == root
        for refused, text in (
            (("--add-config", f"{package}=LOUD"), "it is not a supported log level"),
            (("--add-config", "no.such.logger=INFO"), "Invalid broker logger(s): no.such.logger"),
            (("--delete-config", "root"), "Removing the log level of the root logger"),
        ):
            ended = kafka_tool(*alter, *refused)
            assert text in ended.stdout + ended.stderr
        assert level(package) == "FATAL"
    finally:
        output(kafka_tool(*alter, "--delete-config", package))
    assert level(module) == root
