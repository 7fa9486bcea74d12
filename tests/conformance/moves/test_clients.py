"""Moves by the administration clients of other projects, which run unmodified.

Each client's program makes the same calls and prints their answers, which are also those of Apache
Kafka 4.3.1 (METAQUORUM_TEST_PEER=kafka). The programs in Go are built if Go is installed and its
modules can be downloaded; otherwise their tests are skipped with that reason.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from metaquorum.wire.primitives.errors import ErrorCode
from tests.conformance.groups.peers import ThreeNodes
from tests.conformance.moves.topics import LARGE, RECORDS, new_topic, read_all, send
from tests.conformance.other_languages.programs import HERE, go_program, kafkajs
from tests.nodes import KAFKA, PATIENCE_S, eventually

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).resolve().parent
LEADERS, FOLLOWERS = "leader.replication.throttled", "follower.replication.throttled"


@contextmanager
def running(*command: object) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"KAFKA_SHORT_LIVED": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answers(process: "subprocess.Popen[str]") -> Any:
    """Return what the program has seen, once it has ended."""
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, out[-3000:] + errors[-3000:]
    return json.loads(out)


def addresses(three: ThreeNodes) -> str:
    return ",".join(three.addresses)


def throttles(
    rate_source: str, replicas_source: str, default: str
) -> dict[str, dict[str, str] | str]:
    """Return the configs of replication quotas as the clients describe them."""
    return {
        "workerBefore": {},
        "worker": {f"{side}.rate": f"1 {rate_source}" for side in (LEADERS, FOLLOWERS)},
        "topicBefore": {f"{side}.replicas": f" {default}" for side in (LEADERS, FOLLOWERS)},
        "topic": {
            f"{LEADERS}.replicas": f"0:1,0:2 {replicas_source}",
            f"{FOLLOWERS}.replicas": f"0:3 {replicas_source}",
        },
    }


KAFKAS_WORDS = throttles("DYNAMIC_BROKER_CONFIG", "DYNAMIC_TOPIC_CONFIG", "DEFAULT_CONFIG")
MOVES = {
    "badThrottle": "INVALID_CONFIG",
    "badRate": "INVALID_REQUEST",
    "cancelNothing": "NO_REASSIGNMENT_IN_PROGRESS",
    "unknownPartition": "UNKNOWN_TOPIC_OR_PARTITION",
    "unknownWorker": "INVALID_REPLICA_ASSIGNMENT",
    "twice": "INVALID_REPLICA_ASSIGNMENT",
    "move": "NONE",
    "cancel": "NONE",
    "moveAgain": "NONE",
    "elected": {"1": "NONE", "9": "UNKNOWN_TOPIC_OR_PARTITION"},
}
DIRECTORIES = {
    "unknownDirectory": "LOG_DIR_NOT_FOUND",
    "sameDirectory": "NONE",
    "otherDirectory": "NONE",
    "replicaNotHere": "REPLICA_NOT_AVAILABLE",
}


@pytest.mark.usefixtures("java")
def test_java(three: ThreeNodes) -> None:
    topic = new_topic(addresses(three), 2, [1, 2], LARGE)
    listed = "{0=[3, 2, 1] adding [3] removing [1]}"
    program = PROGRAMS / "AdminCalls.java"
    with running(KAFKA / "tool", program, addresses(three), topic) as process:
        assert answers(process) == {
            **KAFKAS_WORDS,
            **MOVES,
            **DIRECTORIES,
            "listed": listed,
            "listedOfAll": listed,
            "listedUnknown": "{}",
            "listedAfterCancel": "{}",
            "reorder": "NONE",
            "electedAgain": "ELECTION_NOT_NEEDED",
            "future": "null",
            "absent": "null null",
            "sizes": True,
            "inOldDirectory": False,
        }
    assert read_all(addresses(three), topic) == list(range(RECORDS))


LISTED = {"0": "[3 2 1] adding [3] removing [1]"}


@pytest.mark.conformance
def test_franz_go(three: ThreeNodes) -> None:
    program = go_program("franz-go", "moves")
    topic = new_topic(addresses(three), 2, [1, 2], LARGE)
    with running(program, addresses(three), topic) as process:
        assert answers(process) == {
            **KAFKAS_WORDS,
            **MOVES,
            **DIRECTORIES,
            **dict.fromkeys(("alterWorkers", "alterTopic", "restoreWorkers"), "NONE"),
            **dict.fromkeys(("restoreTopic", "reorder"), "NONE"),
            "otherFactor": "INVALID_REPLICATION_FACTOR",
            "listed": LISTED,
            "listedAfterCancel": {},
            "found": [True, False, True],
        }
    assert read_all(addresses(three), topic) == list(range(RECORDS))


@pytest.mark.conformance
def test_sarama(three: ThreeNodes) -> None:
    """Sarama has no call for AlterReplicaLogDirs."""
    program = go_program("sarama", "moves")
    topic = new_topic(addresses(three), 2, [1, 2], LARGE)
    codes = {name: code for name, code in MOVES.items() if isinstance(code, str)}
    with running(program, addresses(three), topic) as process:
        assert answers(process) == {
            **throttles("DynamicBroker", "Topic", "Default"),
            **{name: int(ErrorCode[code]) for name, code in codes.items()},
            # Its call returns text for these two, without the error code.
            **dict.fromkeys(("badThrottle", "badRate"), -1),
            "elected": {"1": 0, "9": int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)},
            "listed": LISTED,
            "listedAfterCancel": {},
            "directories": ["node3"],
        }
    assert read_all(addresses(three), topic) == list(range(RECORDS))


@pytest.mark.conformance
def test_kafkajs(three: ThreeNodes) -> None:
    modules = f"NODE_PATH={kafkajs()}"
    topic = new_topic(addresses(three), 2, [1, 2])
    program = HERE / "kafkajs_moves.js"
    with running("env", modules, "node", program, addresses(three), topic) as process:
        assert answers(process) == {
            **{name: MOVES[name] for name in ("unknownPartition", "unknownWorker", "twice")},
            "listedBefore": [],
            "move": "NONE",
            "replicas": [[3, 2], [2, 3]],
        }
    assert read_all(addresses(three), topic) == list(range(RECORDS))


TOPIC, BROKER = ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER


def change(bootstrap: str, kind: Any, name: str, config: str, value: str | None) -> None:
    """Set the config; None removes it."""
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(config, value or "", incremental_operation=operation)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def described(bootstrap: str, topic: str) -> Mapping[str, str]:
    """Return the configs of replication quotas that are set for the topic and for workers."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    asked = [ConfigResource(TOPIC, topic)]
    asked += [ConfigResource(BROKER, str(number)) for number in (1, 2, 3)]
    return {
        f"{resource.name} {entry.name}": entry.value
        for each in asked  # librdkafka asks one worker at a time
        for resource, answer in admin.describe_configs([each]).items()
        for entry in answer.result(PATIENCE_S).values()
        if "replication.throttled" in entry.name and not entry.is_default
    }


@pytest.mark.usefixtures("java")
def test_the_sequence_of_cruise_control(three: ThreeNodes) -> None:
    """Batches of moves with throttles, disks, elections and a stop, while records are sent."""
    at = addresses(three)
    topic = new_topic(at, 6, [1, 2], LARGE)
    operators = {f"{topic} {LEADERS}.replicas": "5:1,5:2", f"2 {LEADERS}.rate": "90000000"}
    change(at, TOPIC, topic, f"{LEADERS}.replicas", "5:1,5:2")
    change(at, BROKER, "2", f"{LEADERS}.rate", "90000000")
    with running(KAFKA / "tool", PROGRAMS / "Executor.java", at, topic) as process:
        send(at, topic, 6, LARGE, start=RECORDS)
        seen = answers(process)
    moved = {
        "0": "[3, 1] in sync [1, 3]",
        "1": "[2, 3] in sync [2, 3]",
        "2": "[3, 2] in sync [2, 3]",
        "3": "[1, 3] in sync [1, 3]",
        "4": "[2, 1] in sync [1, 2]",
        "5": "[1, 2] in sync [1, 2]",
    }
    assert seen == {
        "workers": [1, 2, 3],
        "batches": True,
        "movesAtOnce": 2,
        "replicas": moved,
        "replicasToOtherDirectories": 4,
        "errorsOfElections": [],
        "inFlight": 1,
        "replicasAfterStop": moved | {"0": "[1, 3] in sync [1, 3]"},
    }

    def check_throttles() -> None:
        assert described(at, topic) == operators, "only the operator's throttles are left"

    eventually(check_throttles)
    change(at, BROKER, "2", f"{LEADERS}.rate", None)
    assert read_all(at, topic, 2 * RECORDS) == list(range(2 * RECORDS))
