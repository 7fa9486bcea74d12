"""mq-admin moves plan, with one metaquorum node and with a real Kafka; moves need more nodes."""

import json
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.cli.admin.running import Admin
from tests.nodes import PATIENCE_S, Peer, wait_until


@pytest.fixture
def admin(either: Peer) -> Admin:
    return Admin(MQ_BOOTSTRAP=either.bootstrap)


def test_a_cluster_with_one_worker_is_balanced(admin: Admin, tmp_path: Path) -> None:
    topic = admin.create("--partitions", 2)
    plan = ("moves", "plan", "--measure-seconds", 0)
    assert admin(*plan, "--balance") == "Nothing has to move.\n"
    file = tmp_path / "plan.json"
    shown = admin.json(*plan, "--topic", topic, "--plan-file", file)
    assert (shown["moves"], shown["estimate"]["move_ratio"]) == ([], 0)
    assert [row["worker"] for row in shown["workers"]] == [1]
    assert json.loads(file.read_text())["partitions"] == []


def test_inbound_rates_are_measured(either: Peer, admin: Admin) -> None:
    topic, stop = admin.create(), threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": either.bootstrap, "linger.ms": 0})
        while not stop.wait(0.01):
            producer.produce(topic, bytes(1000))
        producer.flush(PATIENCE_S)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        wait_until(
            lambda: (
                admin.json("moves", "plan", "--balance", "--measure-seconds", 0.5)["estimate"][
                    "inbound_bytes_per_s"
                ]
                > 10_000
            )
        )
    finally:
        stop.set()
        producing.join()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((), "specify one of --drain, --add, --balance, and --topic or --topics-file"),
        (("--balance", "--drain", 1), "specify one of --drain"),
        (("--balance", "--workers", "1"), "--workers is only for --topic and --topics-file"),
        (("--balance", "--throttle", 1, "--within", 1), "exclude each other"),
        (("--topic", "t", "--workers", "1,x"), "--workers takes different worker ids"),
        (("--drain", 99), "there is no worker 99"),
        (("--drain", 1), "there is no worker that may receive replicas"),
        (("--topic", "no-such-topic"), "there is no topic no-such-topic"),
        (("--balance", "--plan-file", "/nonexistent/plan.json"), "No such file or directory"),
    ],
)
def test_mistakes_get_a_sentence(admin: Admin, options: tuple[object, ...], complaint: str) -> None:
    admin("moves", "plan", "--measure-seconds", 0, *options, code=2)
    assert complaint in admin.errors


def test_the_topics_of_a_file_of_kafka(admin: Admin) -> None:
    topic = admin.create()
    plan = ("moves", "plan", "--measure-seconds", 0, "--topics-file", "-")
    text = json.dumps({"version": 1, "topics": [{"topic": topic}]})
    assert admin(*plan, stdin=text) == "Nothing has to move.\n"
    admin(*plan, stdin="{", code=2)
    assert "the list of topics is not JSON" in admin.errors
