"""mq-admin transactions, on a cluster whose leaders do not verify transactions."""

import re
from collections.abc import Iterator

import pytest

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.transactions.blocking import BlockingTransactionalProducer
from metaquorum.client.transactions.errors import ProducerFencedError
from tests.cli.admin.running import Admin
from tests.cli.admin.test_main import completions
from tests.conftest import PEERS
from tests.hanging import UNVERIFIED, hang
from tests.metaquorum.client.transactions.together import connected, producer, values
from tests.nodes import Elsewhere, KafkaNode, Node, Peer, elsewhere, unique, wait_until


@pytest.fixture(scope="module", params=PEERS)
def peer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Peer]:
    if elsewhere():
        yield Elsewhere(elsewhere())
        return
    folder = tmp_path_factory.mktemp("unverified")
    if request.param == "kafka":
        request.getfixturevalue("java")
    kind = KafkaNode if request.param == "kafka" else Node
    node = kind(folder, UNVERIFIED)
    node.start()
    yield node
    node.stop()


@pytest.fixture
def admin(peer: Peer) -> Admin:
    return Admin(MQ_BOOTSTRAP=peer.bootstrap)


@pytest.fixture
def cluster(peer: Peer) -> Iterator[Cluster]:
    with connected(peer) as cluster:
        yield cluster


def opened(
    cluster: Cluster, topic: str, name: str, timeout_s: float = 60.0
) -> BlockingTransactionalProducer:
    """Return a producer with a record in partition 0 in an open transaction."""
    one = producer(cluster, name, timeout_s=timeout_s)
    one.init()
    one.begin()
    one.send(topic, values("v"))
    return one


def findings(admin: Admin, scope: str) -> dict[str, tuple[str, str]]:
    (partition,) = admin.json("transactions", "explain", scope)
    return {each["about"]: (each["level"], each["text"]) for each in partition["findings"]}


# Lists and descriptions


def test_transactional_ids_are_listed_with_filters(admin: Admin, cluster: Cluster) -> None:
    topic, name = admin.create("-p", 2), unique("id")
    one = opened(cluster, topic, name)
    (row,) = admin.json("transactions", "list", "--match", name[:-1] + "*", "--state", "ongoing")
    assert (row["transactional_id"], row["state"], row["coordinator"]) == (name, "Ongoing", 1)
    producer_id = row["producer_id"]
    text = admin("transactions", "list", "--producer-id", producer_id)
    assert re.search(rf"^{name} +Ongoing +{producer_id} +1$", text, re.MULTILINE)
    assert admin("transactions", "list", "--match", name, "--longer-than", 3600) == ""
    assert admin.errors == "No transactional id matches.\n"
    producer(cluster, unique("idle")).init()
    rows = admin.json("transactions", "list", "--longer-than", 0)
    assert name in [row["transactional_id"] for row in rows]
    assert {row["state"] for row in rows} <= {"Ongoing", "PrepareCommit", "PrepareAbort"}
    admin("transactions", "list", "--state", "Open", code=2)
    one.commit()


def test_a_transactional_id_is_described(admin: Admin, cluster: Cluster) -> None:
    topic, name = admin.create("-p", 2), unique("id")
    one = opened(cluster, topic, name, timeout_s=120.0)
    one.send(topic, values("w", partition=1))
    (described,) = admin.json("transactions", "describe", name)
    assert (described["state"], described["timeout_ms"]) == ("Ongoing", 120_000)
    assert described["partitions"] == [{"topic": topic, "partitions": [0, 1]}]
    assert 0 <= described["duration_ms"] < 120_000
    text = admin("transactions", "describe", name)
    assert re.search(r"^timeout +2 min$", text, re.MULTILINE)
    assert re.search(rf"^partitions +{topic}:0-1$", text, re.MULTILINE)
    one.commit()
    wait_until(lambda: admin.json("transactions", "describe", name)[0]["state"] == "CompleteCommit")
    assert admin.json("transactions", "describe", name)[0]["partitions"] == []
    admin("transactions", "describe", unique("absent"), code=1)
    assert "TRANSACTIONAL_ID_NOT_FOUND" in admin.errors
    assert "`mq-admin transactions list` shows the transactional ids" in admin.errors


def test_producers_of_a_partition_are_shown(admin: Admin, cluster: Cluster) -> None:
    topic = admin.create("-p", 1)
    one = opened(cluster, topic, unique("id"))
    (row,) = admin.json("transactions", "producers", f"{topic}:0")
    assert (row["producer_id"], row["producer_epoch"]) == one.client.producer
    assert (row["last_sequence"], row["start_offset"]) == (0, 0)
    assert admin.json("transactions", "producers", f"{topic}:0", "--node", 1) == [row]
    one.commit()
    wait_until(
        lambda: admin.json("transactions", "producers", f"{topic}:0")[0]["start_offset"] is None
    )
    admin("transactions", "producers", topic, code=2)
    assert "is not TOPIC:PARTITION" in admin.errors


# Explanations


def test_an_ongoing_transaction_is_explained(admin: Admin, cluster: Cluster) -> None:
    topic, name = admin.create("-p", 3), unique("id")
    assert admin("transactions", "explain", topic) == (
        "+ read_committed reads everything in 3 partitions\n"
    )
    one = opened(cluster, topic, name)
    found = findings(admin, f"{topic}:0")
    level, text = found["last stable offset"]
    assert level == "note"
    assert text.startswith("read_committed stops at offset 0; 1 offset up to the high")
    assert f"transactional id {name} (producer id" in found["transaction"][1]
    assert "ago, and is Ongoing" in found["transaction"][1]
    assert re.search(r"node 1, aborts it at .* UTC, in \d+ s", found["end"][1])
    assert f"abort --transactional-id {name}`" in found["end"][1]
    text = admin("transactions", "explain", topic)
    assert text.startswith(f"{topic}:0\n- last stable offset: ")
    assert text.endswith("\n+ read_committed reads everything in 2 partitions\n")
    (data,) = admin.json("transactions", "explain", f"{topic}:0")
    assert (data["last_stable_offset"], data["high_watermark"]) == (0, 1)
    (transaction,) = data["transactions"]
    assert (transaction["transactional_id"], transaction["state"]) == (name, "Ongoing")
    assert transaction["timeout_at_ms"] == transaction["start_time_ms"] + 60_000

    two = opened(cluster, topic, unique("id"))
    found = findings(admin, f"{topic}:0")
    assert found["next"][1] == "behind it 1 more transaction of this partition is open"
    assert name in found["transaction"][1]
    one.commit()
    wait_until(lambda: name not in findings(admin, f"{topic}:0")["transaction"][1])
    two.abort()
    wait_until(lambda: findings(admin, f"{topic}:0")["last stable offset"][0] == "good")


def test_a_hanging_transaction_is_found_explained_and_aborted(
    admin: Admin, cluster: Cluster
) -> None:
    topic = admin.create("-p", 2)
    search = ("transactions", "hanging", "--max-transaction-timeout", 0, "--topic")
    admin(*search, topic)
    assert admin.errors == "No hanging transactions.\n"
    one = opened(cluster, topic, unique("id"))
    ghost, offset = hang(cluster, TopicPartition(topic, 1))
    assert offset == 0
    found = findings(admin, f"{topic}:1")
    assert found["last stable offset"][0] == "bad"
    command = f"mq-admin transactions abort {topic}:1 --start-offset 0"
    assert found["end"] == (
        "bad",
        "nothing will end it, it hangs: no coordinator knows its producer id; "
        f"`{command}` aborts it in this partition",
    )
    (row,) = admin.json(*search, topic)  # not the transaction in partition 0
    assert (row["partition"], row["producer_id"], row["start_offset"]) == (1, ghost, 0)
    assert row["why"] == "no coordinator knows its producer id"
    assert admin.errors == f"`{command}` aborts it\n"
    assert str(ghost) in admin(*search, f"{topic}:1")
    assert admin(*search, f"{topic}:0") == ""
    assert str(ghost) in admin(
        "transactions", "hanging", "--max-transaction-timeout", 0, "--node", 1
    )
    assert admin("transactions", "hanging", "--topic", topic) == ""  # too young to hang

    admin("transactions", "abort", f"{topic}:1", "--start-offset", 0, code=2)  # no terminal
    assert "nothing was changed" in admin.errors
    admin("transactions", "abort", f"{topic}:1", "--start-offset", 1, "--yes", code=1)
    assert "open transactions begin at 0" in admin.errors
    text = admin(*command.split()[1:], "--yes")
    assert text == f"{topic}-1: transaction of producer id {ghost}, epoch 0 aborted\n"
    wait_until(lambda: findings(admin, f"{topic}:1")["last stable offset"][0] == "good")
    admin(*command.split()[1:], "--yes", code=1)
    assert "no open transaction begins at offset 0" in admin.errors
    one.commit()


def test_a_hanging_transaction_is_aborted_by_its_epochs(admin: Admin, cluster: Cluster) -> None:
    topic = admin.create("-p", 1)
    ghost, _ = hang(cluster, TopicPartition(topic, 0))
    epochs = ("--producer-epoch", 0, "--coordinator-epoch", -1, "--yes")
    admin("transactions", "abort", f"{topic}:0", "--producer-id", ghost, *epochs)
    wait_until(lambda: findings(admin, f"{topic}:0")["last stable offset"][0] == "good")


def test_a_transaction_that_its_coordinator_knows_is_not_torn(
    admin: Admin, cluster: Cluster
) -> None:
    topic, name = admin.create("-p", 1), unique("id")
    one = opened(cluster, topic, name)
    admin("transactions", "abort", f"{topic}:0", "--start-offset", 0, "--yes", code=1)
    assert "the transaction does not hang: its coordinator, node 1, has it as Ongoing" in (
        admin.errors
    )
    one.commit()


def test_a_producer_is_fenced(admin: Admin, cluster: Cluster) -> None:
    topic, name = admin.create("-p", 1), unique("id")
    one = opened(cluster, topic, name)
    text = admin("transactions", "abort", "--transactional-id", name, "--yes")
    assert text.startswith(f"{name}: fenced; its producer id is ")
    with pytest.raises(ProducerFencedError):
        one.commit()
    wait_until(lambda: findings(admin, f"{topic}:0")["last stable offset"][0] == "good")
    admin("transactions", "abort", "--transactional-id", unique("absent"), "--yes", code=1)
    assert "TRANSACTIONAL_ID_NOT_FOUND" in admin.errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "specify TOPIC:PARTITION or --transactional-id"),
        (("t:0",), "specify --start-offset, or --producer-id"),
        (("t:0", "--producer-id", 1, "--producer-epoch", 0), "specify --start-offset, or"),
        (("t:0", "--start-offset", 1, "--producer-id", 1), "takes no producer id"),
        (("t:0", "--transactional-id", "x"), "takes no partition and no other option"),
        (("t", "--start-offset", 1), "'t' is not TOPIC:PARTITION"),
        (("t:0,1", "--start-offset", 1), "'t:0,1' is not TOPIC:PARTITION"),
        (("t:x", "--start-offset", 1), "'t:x' is not TOPIC"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[object, ...], message: str) -> None:
    admin = Admin(MQ_BOOTSTRAP="127.0.0.1:1")
    admin("transactions", "abort", *arguments, code=2)
    assert message in admin.errors


def test_what_does_not_exist_is_named(admin: Admin) -> None:
    topic = admin.create("-p", 1)
    for command in (("explain", f"{topic}:7"), ("hanging", "--topic", f"{topic}:7")):
        admin("transactions", *command, code=1)
        assert f"{topic}-7" in admin.errors
    admin("transactions", "explain", unique("absent"), code=1)
    assert "there is no such topic" in admin.errors
    admin("transactions", "hanging", "--node", 99, code=1)
    assert "node 99: there is no such node" in admin.errors


def test_control_characters_of_an_id_are_escaped(admin: Admin, cluster: Cluster) -> None:
    topic, name = admin.create("-p", 1), unique("id") + "\x1b[31m\n"
    one = opened(cluster, topic, name)
    for command in (
        ("list", "--match", name[:-6] + "*"),
        ("describe", name),
        ("explain", f"{topic}:0"),
    ):
        for output in ("text", "json", "yaml"):
            shown = admin("transactions", *command, "-o", output)
            assert "\x1b" not in shown
            assert "31m" in shown
    one.abort()


def test_transactional_ids_are_completed(peer: Peer, admin: Admin, cluster: Cluster) -> None:
    topic, name = admin.create("-p", 1), unique("id")
    one = opened(cluster, topic, name)
    assert completions(peer, f"mq-admin transactions describe {name[:-1]}", 3) == [name]
    words = f"mq-admin transactions abort --transactional-id {name[:-1]}"
    assert completions(peer, words, 4) == [name]
    one.commit()


# Memory


def test_ids_are_removed_by_name_and_by_client(admin: Admin, cluster: Cluster) -> None:
    if not admin.serves("RemoveTransactionalIds"):
        admin("transactions", "remove", "x", "--yes", code=1)
        assert "does not serve RemoveTransactionalIds" in admin.errors
        return
    topic, idle, busy = admin.create(), unique("idle"), unique("busy")
    producer(cluster, idle).init()
    one = opened(cluster, topic, busy)
    assert idle in [row["name"] for row in admin.json("cluster", "memory", "--client", "127.0.0.1")]
    (own,) = [
        row
        for row in admin.json("cluster", "memory")
        if (row["state"], row["client"]) == ("transactional ids", "127.0.0.1")
    ]
    assert own["counted_bytes"] > 500
    assert admin("transactions", "remove", idle, "--yes") == f"{idle} removed\n"
    admin("transactions", "remove", idle, "--yes", code=1)
    assert f"transactional id {idle}" in admin.errors
    admin("transactions", "remove", busy, "--yes", code=1)
    assert "abort it first" in admin.errors
    one.commit()
    wait_until(lambda: state_of(admin, busy).startswith("Complete"))
    said = admin("transactions", "remove", "--client", "127.0.0.1", "--yes")
    assert said.endswith("transactional ids of 127.0.0.1 removed\n")
    assert busy not in [row["transactional_id"] for row in admin.json("transactions", "list")]
    admin("transactions", "remove", code=2)
    admin("transactions", "remove", idle, "--client", "x", code=2)


def state_of(admin: Admin, name: str) -> str:
    (described,) = admin.json("transactions", "describe", name)
    return str(described["state"])
