"""Kafka's own tools for groups: consumer-groups, groups, console-consumer, dump-log."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition

from tests.conformance.clients import Librdkafka, Record, admin, create
from tests.conformance.groups.members import LIMIT_S, Members, wait_shared
from tests.conformance.test_java import at, output
from tests.conftest import KafkaTool
from tests.nodes import Elsewhere, KafkaNode, Node, Peer, unique, wait_until

FIRST_MS = 1_600_000_000_000
SECOND_MS = 1000
EACH = 20
COMMITTED = 15
PARTITIONS = 2

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


@pytest.fixture(scope="module")
def topic(peer: Peer) -> str:
    """Create a topic with one record each second in two partitions."""
    name = create(peer.bootstrap, unique("tools"), PARTITIONS, {"retention.ms": "-1"})
    records = [Record(None, b"%d" % i, (), FIRST_MS + i * SECOND_MS) for i in range(EACH)]
    for index in range(PARTITIONS):
        Librdkafka().send(peer.bootstrap, name, records, "none", index)
    return name


@pytest.fixture
def group(peer: Peer, topic: str) -> str:
    """Commit offsets of a new group without members."""
    group = unique("group")
    settings = {"bootstrap.servers": peer.bootstrap, "group.id": group, "log_level": 2}
    consumer = Consumer(settings)
    offsets = [TopicPartition(topic, index, COMMITTED) for index in range(PARTITIONS)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    return group


def committed(peer: Peer, group: str) -> dict[tuple[str, int], int]:
    asked = admin(peer.bootstrap).list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(LIMIT_S).topic_partitions
    return {(each.topic, each.partition): each.offset for each in found}


def rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a table with a header line, by column; "(ID)" belongs to its column."""
    lines = [re.split(r"\s+(?![\s(])", line.strip()) for line in text.splitlines() if line.strip()]
    start = [line[0] for line in lines].index("GROUP")
    return [dict(zip(lines[start], line, strict=True)) for line in lines[start + 1 :]]


def test_groups_are_listed(peer: Peer, kafka_tool: KafkaTool, group: str, members: Members) -> None:
    live, topic = unique("live"), create(peer.bootstrap, unique("tools"))
    wait_shared([members.start("librdkafka", peer.bootstrap, live, topic)], [(topic, 0)])
    groups = (kafka_tool, "consumer-groups", *at(peer), "--list")
    run, *arguments = groups
    assert {group, live} <= set(output(run(*arguments)).split())
    states = {each["GROUP"]: each["STATE"] for each in rows(output(run(*arguments, "--state")))}
    assert (states[group], states[live]) == ("Empty", "Stable")
    only = {each["GROUP"] for each in rows(output(run(*arguments, "--state", "Stable")))}
    assert live in only
    assert group not in only
    types = {each["GROUP"]: each["TYPE"] for each in rows(output(run(*arguments, "--type")))}
    assert types[group] == types[live] == "Classic"
    shown = output(kafka_tool("groups", *at(peer), "--list", "--protocol", "consumer"))
    assert {"GROUP": live, "TYPE": "Classic", "PROTOCOL": "consumer"} in rows(shown)


def test_members_are_described(peer: Peer, kafka_tool: KafkaTool, members: Members) -> None:
    topic, group = create(peer.bootstrap, unique("tools"), 3), unique("group")
    both = [
        members.start("librdkafka", peer.bootstrap, group, topic, instance=name)
        for name in ("one", "two")
    ]
    wait_shared(both, [(topic, index) for index in range(3)])
    records = [Record(None, b"x")] * EACH
    Librdkafka().send(peer.bootstrap, topic, records, "none", 2)
    wait_until(lambda: committed(peer, group).get((topic, 2)) == EACH, LIMIT_S)
    describe = ("consumer-groups", *at(peer), "--describe", "--group", group)

    found = {each["PARTITION"]: each for each in rows(output(kafka_tool(*describe)))}
    assert {index: row["LOG-END-OFFSET"] for index, row in found.items()} == {
        "0": "0", "1": "0", "2": str(EACH),
    }  # fmt: skip
    assert (found["2"]["CURRENT-OFFSET"], found["2"]["LAG"]) == (str(EACH), "0")
    assert {row["CLIENT-ID"] for row in found.values()} == {"rdkafka"}
    assert {row["HOST"] for row in found.values()} == {"/127.0.0.1"}

    table = rows(output(kafka_tool(*describe, "--members", "--verbose")))
    assert {row["GROUP-INSTANCE-ID"]: row["CURRENT-ASSIGNMENT"] for row in table} == {
        "one": f"{topic}:0,1", "two": f"{topic}:2",
    }  # fmt: skip
    assert {row["CONSUMER-ID"] for row in table} == {
        each.all("assigned")[-1]["member"] for each in both
    }
    (state,) = rows(output(kafka_tool(*describe, "--state")))
    assert (state["ASSIGNMENT-STRATEGY"], state["STATE"], state["#MEMBERS"]) == (
        "range", "Stable", "2",
    )  # fmt: skip


def test_an_absent_group_is_not_described(peer: Peer, kafka_tool: KafkaTool) -> None:
    done = kafka_tool("consumer-groups", *at(peer), "--describe", "--group", unique("absent"))
    assert "GroupIdNotFoundException" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("strategy", "offset"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), EACH),
        (("--to-offset", 7), 7),
        (("--to-offset", 2 * EACH), EACH),  # beyond the end
        (("--shift-by", -3), COMMITTED - 3),
        (("--shift-by", 3), COMMITTED + 3),
        (("--to-current",), COMMITTED),
        (("--to-datetime", "2020-09-13T12:26:44.500"), 5),  # FIRST_MS is 12:26:40
        (("--by-duration", "P10000D"), 0),
        (("--by-duration", "PT0S"), EACH),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_offsets_are_reset(
    peer: Peer, kafka_tool: KafkaTool, topic: str, group: str, strategy: tuple[object], offset: int
) -> None:
    reset = ("consumer-groups", *at(peer), "--reset-offsets", "--group", group, "--topic", topic)
    before = committed(peer, group)
    planned = rows(output(kafka_tool(*reset, *strategy, "--dry-run")))
    assert {row["PARTITION"]: row["NEW-OFFSET"] for row in planned} == {
        str(index): str(offset) for index in range(PARTITIONS)
    }
    assert committed(peer, group) == before
    output(kafka_tool(*reset, *strategy, "--execute"))
    assert committed(peer, group) == {(topic, index): offset for index in range(PARTITIONS)}


def test_offsets_are_exported_and_reset_from_a_file(
    peer: Peer, kafka_tool: KafkaTool, topic: str, group: str, tmp_path: Path
) -> None:
    reset = ("consumer-groups", *at(peer), "--reset-offsets", "--group", group)
    plan = output(kafka_tool(*reset, "--topic", f"{topic}:1", "--to-offset", 4, "--export"))
    assert plan.split() == [f"{topic},1,4"]
    file = tmp_path / "plan.csv"
    file.write_text(f"{topic},0,3\n{plan}")
    output(kafka_tool(*reset, "--from-file", file, "--execute"))
    assert committed(peer, group) == {(topic, 0): 3, (topic, 1): 4}
    everything = output(kafka_tool(*reset, "--all-topics", "--to-current", "--export", "--dry-run"))
    assert sorted(everything.split()) == [f"{topic},0,3", f"{topic},1,4"]


def test_a_new_group_gets_offsets_by_a_reset(peer: Peer, kafka_tool: KafkaTool, topic: str) -> None:
    group = unique("new")
    reset = ("consumer-groups", *at(peer), "--reset-offsets", "--group", group, "--topic", topic)
    output(kafka_tool(*reset, "--to-offset", 9, "--execute"))
    assert committed(peer, group) == {(topic, 0): 9, (topic, 1): 9}


def test_a_group_with_members_is_neither_reset_nor_deleted(
    peer: Peer, kafka_tool: KafkaTool, members: Members
) -> None:
    topic, group = create(peer.bootstrap, unique("tools")), unique("group")
    member = members.start("librdkafka", peer.bootstrap, group, topic)
    wait_shared([member], [(topic, 0)])
    Librdkafka().send(peer.bootstrap, topic, [Record(None, b"x")], "none")
    wait_until(lambda: committed(peer, group) == {(topic, 0): 1}, LIMIT_S)
    groups = ("consumer-groups", *at(peer), "--group", group)
    reset = kafka_tool(*groups, "--reset-offsets", "--topic", topic, "--to-earliest", "--execute")
    assert "Assignments can only be reset if the group" in reset.stdout + reset.stderr
    deleted = kafka_tool(*groups, "--delete")
    assert "GroupNotEmptyException" in deleted.stdout + deleted.stderr
    of_topic = kafka_tool(*groups, "--delete-offsets", "--topic", topic)
    assert "GroupSubscribedToTopicException" in of_topic.stdout + of_topic.stderr
    assert committed(peer, group) == {(topic, 0): 1}
    assert len(member.all("assigned")) == 1


def test_offsets_and_groups_are_deleted(
    peer: Peer, kafka_tool: KafkaTool, topic: str, group: str
) -> None:
    groups = ("consumer-groups", *at(peer), "--group", group)
    shown = output(kafka_tool(*groups, "--delete-offsets", "--topic", f"{topic}:0"))
    assert "Request succeeded for deleting offsets" in shown
    assert committed(peer, group) == {(topic, 1): COMMITTED}
    assert "was successful" in output(kafka_tool(*groups, "--delete"))
    assert committed(peer, group) == {}
    assert group not in output(kafka_tool("consumer-groups", *at(peer), "--list")).split()
    again = kafka_tool(*groups, "--delete")
    assert "GroupIdNotFoundException" in again.stdout + again.stderr


def test_console_consumers_of_a_group_read_each_record_once(
    peer: Peer, kafka_tool: KafkaTool
) -> None:
    topic = create(peer.bootstrap, unique("tools"), PARTITIONS)
    group, sent = unique("group"), Counter[str]()
    consume = ("console-consumer", *at(peer), "--topic", topic, "--group", group)
    limits = ("--from-beginning", "--max-messages", EACH, "--timeout-ms", 170_000)
    read = Counter[str]()
    for start in (0, EACH):
        values = [str(start + i) for i in range(EACH)]
        records = [Record(None, value.encode()) for value in values]
        Librdkafka().send(peer.bootstrap, topic, records, "none", (start // EACH) % PARTITIONS)
        sent.update(values)
        read.update(output(kafka_tool(*consume, *limits)).split())
        assert read == sent
    assert committed(peer, group) == {(topic, 0): EACH, (topic, 1): EACH}


def test_dump_log_decodes_offsets(
    peer: Peer, kafka_tool: KafkaTool, topic: str, group: str, members: Members
) -> None:
    if isinstance(peer, Elsewhere):
        pytest.skip("the files of METAQUORUM_BOOTSTRAP are elsewhere")
    assert isinstance(peer, Node | KafkaNode)
    live = unique("live")
    wait_shared(
        [members.start("kafka-python", peer.bootstrap, live, topic)],
        [(topic, index) for index in range(PARTITIONS)],
    )
    files = [
        each for each in peer.data_dir.glob("__consumer_offsets-*/*.log") if each.stat().st_size
    ]
    done = kafka_tool("dump-log", "--offsets-decoder", "--files", ",".join(map(str, files)))
    shown = re.findall(r" key: (\{.*\}) payload: (.*)$", output(done), re.MULTILINE)
    records = [(json.loads(key), json.loads(value)) for key, value in shown if value[0] == "{"]
    commits = {
        (key["data"]["topic"], key["data"]["partition"]): value["data"]["offset"]
        for key, value in records
        if key["type"] == "1" and key["data"]["group"] == group
    }
    assert commits == {(topic, index): COMMITTED for index in range(PARTITIONS)}
    groups = [
        value["data"]
        for key, value in records
        if key["type"] == "2" and key["data"]["group"] == live and value["data"]["members"]
    ]
    (member,) = groups[-1]["members"]
    assert groups[-1]["protocolType"] == "consumer"
    assert member["assignment"]["assignedPartitions"] == [
        {"topic": topic, "partitions": list(range(PARTITIONS))}
    ]
    assert "isvalid: false" not in done.stdout
