"""Partitions move between three nodes, as Kafka's kafka-reassign-partitions asks for it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from kafka import KafkaAdminClient
from kafka import TopicPartition as OtherTopicPartition

from tests.cli.admin.running import Admin
from tests.clusters import Cluster
from tests.conformance.moves.topics import LARGE, RECORDS, new_topic, read_all
from tests.conftest import KafkaTool
from tests.nodes import PATIENCE_S, elsewhere, wait_until

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="starts clusters of our own")


def plan_file(folder: Path, topic: str, *targets: list[int]) -> str:
    rows = [
        {"topic": topic, "partition": number, "replicas": target, "log_dirs": ["any"] * len(target)}
        for number, target in enumerate(targets)
    ]
    path = folder / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(path)


def filled(cluster: Cluster, partitions: int, replicas: list[int], record_bytes: int = 1) -> str:
    return new_topic(cluster[1].bootstrap, partitions, replicas, record_bytes)


def read(cluster: Cluster, topic: str) -> list[int]:
    return read_all(cluster[1].bootstrap, topic)


def replicas(cluster: Cluster, topic: str) -> dict[int, tuple[list[int], list[int]]]:
    admin = AdminClient({"bootstrap.servers": cluster[1].bootstrap, "log_level": 0})
    found: Any = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    return {number: (one.replicas, sorted(one.isrs)) for number, one in found.items()}


def test_a_plan_is_generated_executed_and_verified(
    cluster: Cluster, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    topic = filled(cluster, 2, [1, 2])
    at = ("--bootstrap-server", cluster[2].bootstrap)
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    generated = kafka_tool(
        "reassign-partitions", *at, "--generate", "--broker-list", "1,2,3",
        "--topics-to-move-json-file", str(topics),
    )  # fmt: skip
    assert "Proposed partition reassignment configuration" in generated.stdout, generated
    plan = plan_file(tmp_path, topic, [3, 2], [3, 1])
    executed = kafka_tool("reassign-partitions", *at, "--execute", "--reassignment-json-file", plan)
    started = f"Successfully started partition reassignments for {topic}-0,{topic}-1"
    assert started in executed.stdout, executed

    def verified() -> bool:
        told = kafka_tool("reassign-partitions", *at, "--verify", "--reassignment-json-file", plan)
        assert told.returncode == 0, told
        return all(
            f"Reassignment of partition {topic}-{n} is completed." in told.stdout for n in (0, 1)
        )

    wait_until(verified)
    assert replicas(cluster, topic) == {0: ([3, 2], [2, 3]), 1: ([3, 1], [1, 3])}
    assert read(cluster, topic) == list(range(RECORDS))
    listed = kafka_tool("reassign-partitions", *at, "--list")
    assert "No partition reassignments found." in listed.stdout, listed


def test_a_move_to_a_worker_that_is_down_is_listed_and_can_be_cancelled(
    cluster: Cluster, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    topic = filled(cluster, 1, [1, 2])
    cluster[3].kill()
    try:
        wait_until(lambda: 3 not in known(cluster), what="worker 3 is fenced")
        move_to_3_and_cancel(cluster, kafka_tool, tmp_path, topic)
    finally:
        cluster[3].start()
    assert read(cluster, topic) == list(range(RECORDS))


def known(cluster: Cluster) -> set[int]:
    """Return the ids of the live workers and of the controller."""
    admin = AdminClient({"bootstrap.servers": cluster[1].bootstrap, "log_level": 0})
    found: Any = admin.list_topics(timeout=PATIENCE_S)
    return {*found.brokers, found.controller_id}


def move_to_3_and_cancel(
    cluster: Cluster, kafka_tool: KafkaTool, tmp_path: Path, topic: str
) -> None:
    at = ("--bootstrap-server", cluster[1].bootstrap)
    plan = plan_file(tmp_path, topic, [3, 2])
    arguments = ("reassign-partitions", *at, "--reassignment-json-file", plan)
    other = KafkaAdminClient(bootstrap_servers=cluster[1].bootstrap)
    moved = OtherTopicPartition(topic, 0)
    # Kafka's tool asks for no worker that is fenced; other clients do.
    assert other.alter_partition_reassignments({moved: [3, 2]}) == {moved: None}
    other.close()
    listed = kafka_tool("reassign-partitions", *at, "--list").stdout
    assert re.search(rf"{topic}-0: replicas: 3,2,1. adding: 3. removing: 1.", listed), listed
    verified = kafka_tool(*arguments, "--verify").stdout
    assert f"Reassignment of partition {topic}-0 is still in progress." in verified, verified
    short = kafka_tool("topics", *at, "--describe", "--under-replicated-partitions")
    assert f"Topic: {topic}" not in short.stdout, short
    ill = Admin(MQ_BOOTSTRAP=cluster[1].bootstrap).json("topics", "list", "--unhealthy")
    assert topic not in [row["topic"] for row in ill], "worker 3 is only added (KIP-352)"
    # It would wait for the worker that is down, to remove its throttles.
    cancelled = kafka_tool(*arguments, "--cancel", "--preserve-throttles")
    assert f"Successfully cancelled partition reassignment for: {topic}-0" in cancelled.stdout
    assert replicas(cluster, topic) == {0: ([2, 1], [1, 2])}
    assert (
        "No partition reassignments found."
        in kafka_tool("reassign-partitions", *at, "--list").stdout
    )


def throttles(cluster: Cluster, topic: str) -> dict[str, str]:
    """Return the configs of replication quotas that are set for the topic and for workers."""
    admin = AdminClient({"bootstrap.servers": cluster[1].bootstrap, "log_level": 0})
    asked = [ConfigResource(ConfigResource.Type.TOPIC, topic)]
    asked += [ConfigResource(ConfigResource.Type.BROKER, str(n)) for n in (1, 2, 3)]
    return {
        f"{resource.name} {entry.name}": entry.value
        for each in asked  # librdkafka asks one worker at a time
        for resource, answer in admin.describe_configs([each]).items()
        for entry in answer.result(PATIENCE_S).values()
        if "replication.throttled" in entry.name and not entry.is_default
    }


def test_the_replication_factor_changes_in_both_directions(
    cluster: Cluster, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    topic = filled(cluster, 1, [1])
    at = ("--bootstrap-server", cluster[1].bootstrap)
    for target in ([2, 1, 3], [3]):
        plan = plan_file(tmp_path, topic, target)
        arguments = ("reassign-partitions", *at, "--reassignment-json-file", plan)
        refused = kafka_tool(*arguments, "--execute", "--disallow-replication-factor-change")
        assert "The replication factor is changed" in refused.stdout + refused.stderr, refused
        executed = kafka_tool(*arguments, "--execute")
        assert "Successfully started partition reassignment" in executed.stdout, executed
        wait_until(lambda to=target: replicas(cluster, topic) == {0: (to, sorted(to))})
        assert read(cluster, topic) == list(range(RECORDS))


def test_throttles_of_a_move_are_set_and_removed_by_kafkas_tools(
    cluster: Cluster, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    topic = filled(cluster, 2, [1, 2])
    at = ("--bootstrap-server", cluster[1].bootstrap)
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    leader, follower = (f"{side}.replication.throttled" for side in ("leader", "follower"))
    pairs = f"{leader}.replicas"
    refused = kafka_tool("configs", *at, *of_topic, "--alter", "--add-config", f"{pairs}=0-1")
    assert f"{pairs} must be the literal '*' or a list of replicas" in refused.stderr, refused
    assert "write 0:1 instead of 0-1" in refused.stderr, refused
    of_workers = ("--entity-type", "brokers", "--entity-default")
    rate = f"{follower}.rate"
    for what, change in ((of_topic, f"{pairs}=[0:1,1:1]"), (of_workers, f"{rate}=90000000")):
        done = kafka_tool("configs", *at, *what, "--alter", "--add-config", change)
        assert "Completed updating" in done.stdout, done
    described = kafka_tool("configs", *at, *of_topic, "--describe").stdout
    assert f"{pairs}=0:1,1:1 sensitive=false" in described, described

    plan = plan_file(tmp_path, topic, [3, 2], [1, 3])
    arguments = ("reassign-partitions", *at, "--reassignment-json-file", plan)
    executed = kafka_tool(*arguments, "--execute", "--throttle", "50000000")
    assert "The inter-broker throttle limit was set to 50000000 B/s" in executed.stdout, executed
    rates = {f"{n} {side}.rate": "50000000" for n in (1, 2, 3) for side in (leader, follower)}
    # A worker may be a step behind.
    wait_until(lambda: rates.items() <= throttles(cluster, topic).items())
    found = throttles(cluster, topic)
    # Leaders: all replicas before the move; followers: those that are added.
    assert set(found[f"{topic} {pairs}"].split(",")) == {"0:1", "0:2", "1:1", "1:2"}
    assert set(found[f"{topic} {follower}.replicas"].split(",")) == {"0:3", "1:3"}

    moved = {0: ([3, 2], [2, 3]), 1: ([1, 3], [1, 3])}
    wait_until(lambda: replicas(cluster, topic) == moved)
    verified = kafka_tool(*arguments, "--verify").stdout
    assert f"Clearing topic-level throttles on topic {topic}" in verified, verified
    # The rate of all workers is not of this move.
    left = {f"{n} {rate}": "90000000" for n in (1, 2, 3)}
    wait_until(lambda: throttles(cluster, topic) == left)
    assert read(cluster, topic) == list(range(RECORDS))


def test_a_plan_of_mq_admin_keeps_its_throttle_when_kafkas_tool_verifies(
    cluster: Cluster, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    topic = filled(cluster, 2, [1, 2], LARGE)
    admin = Admin(MQ_BOOTSTRAP=cluster[2].bootstrap)
    plan = plan_file(tmp_path, topic, [3, 2], [3, 2])
    (plan_id,) = admin.json("moves", "start", plan, "--throttle", 20, "--batch", 1).values()
    wait_until(lambda: status(admin, plan_id)["moving"] == 1)
    assert status(admin, plan_id)["waiting"] == 1
    assert status(admin, plan_id)["size_bytes"] > 0
    throttled = [
        f"throttled to 20 B/s as {side} on worker {worker} by plan {plan_id}"
        for side, worker in (("leader", 1), ("follower", 3))
    ]
    wait_until(lambda: all(text in admin("moves", "explain", plan_id) for text in throttled))
    assert "1 move waits for its turn: 1 partition moves" in admin("moves", "explain", plan_id)
    at = ("--bootstrap-server", cluster[2].bootstrap)
    told = kafka_tool("reassign-partitions", *at, "--verify", "--reassignment-json-file", plan)
    assert f"Reassignment of partition {topic}-0 is still in progress." in told.stdout, told
    assert all(text in admin("moves", "explain", plan_id) for text in throttled)
    name = f"plan.{plan_id}.leader.replication.throttled.rate"
    of_worker = ("configs", *at, "--entity-type", "brokers", "--entity-name", "1")
    assert f"{name}=20 " in kafka_tool(*of_worker, "--describe").stdout
    refused = kafka_tool(*of_worker, "--alter", "--delete-config", name)
    assert f"{name} is the limit of plan {plan_id}" in refused.stdout + refused.stderr, refused
    admin("moves", "pause", plan_id)
    assert "because the plan is paused" in admin("moves", "explain", plan_id)
    admin("moves", "resume", plan_id)
    admin("moves", "throttle", plan_id, "none")
    watched = admin("moves", "status", plan_id, "--watch", "--interval", 0.2)
    assert re.search(rf"{plan_id} +complete +2/2 +#+ 100%", watched.splitlines()[-1])
    moved = {0: ([3, 2], [2, 3]), 1: ([3, 2], [2, 3])}
    wait_until(lambda: replicas(cluster, topic) == moved)  # another worker may be a step behind
    assert read(cluster, topic) == list(range(RECORDS))


def status(admin: Admin, plan_id: int) -> dict[str, Any]:
    (found,) = admin.json("moves", "status", plan_id)
    assert isinstance(found, dict)
    return found


def test_a_plan_of_mq_admin_is_cancelled_and_mistakes_get_a_sentence(
    cluster: Cluster, tmp_path: Path
) -> None:
    topic = filled(cluster, 1, [1, 2], LARGE)
    admin = Admin(MQ_BOOTSTRAP=cluster[1].bootstrap)
    plan = plan_file(tmp_path, topic, [3, 2])
    started = admin("moves", "start", plan, "--throttle", 20)
    found = re.match(r"plan (\d+) started: 1 moves, at 20 B/s for each worker", started)
    assert found is not None
    plan_id = int(found[1])
    admin("moves", "start", plan, code=1)
    assert f"Partition {topic}-0 is part of plan {plan_id}, which has not ended" in admin.errors
    wait_until(lambda: status(admin, plan_id)["moving"] == 1)
    rate, operator = "follower.replication.throttled.rate", "operator_throttle"
    admin("configs", "set", "broker", 3, f"{rate}=10")
    lower = {"worker": 3, "side": "follower", "bytes_per_s": 10}
    wait_until(lambda: status(admin, plan_id)[operator] == lower)
    shown = admin("moves", "status", plan_id)
    assert "20 B/s, 10 B/s of an operator (follower on worker 3)" in shown
    admin("configs", "unset", "broker", 3, rate)
    wait_until(lambda: status(admin, plan_id)[operator] != lower)
    assert "plan" in admin("moves", "cancel", plan_id, "--yes")
    wait_until(lambda: status(admin, plan_id)["state"] == "cancelled")
    wait_until(lambda: replicas(cluster, topic) == {0: ([2, 1], [1, 2])})
    assert "1 was cancelled or given up" in admin("moves", "explain", plan_id)
    admin("moves", "resume", plan_id, code=1)
    assert f"Plan {plan_id} is cancelled" in admin.errors
    admin("moves", "status", 999, code=1)
    wrong = plan_file(tmp_path, topic, [3, 3])
    admin("moves", "start", wrong, code=2)
    assert "has a worker more than once" in admin.errors
    admin("moves", "throttle", plan_id, "fast", code=2)
    assert "'fast' is not a throttle" in admin.errors


def test_a_plan_of_mq_admin_is_carried_out_by_kafkas_tool_and_by_the_cluster(
    cluster: Cluster, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    topic = filled(cluster, 3, [1, 2], LARGE // 40)
    admin = Admin(MQ_BOOTSTRAP=cluster[1].bootstrap)
    file = tmp_path / "made.json"
    asked = ("moves", "plan", "--topic", topic, "--measure-seconds", 0.2)
    text = admin(*asked, "--workers", "2,3", "--network-bytes-per-s", 10**8, "--plan-file", file)
    assert re.search(r"^MoveRatio +0\.\d+$", text, re.MULTILINE)
    assert re.search(r"^bounds +IN = 0 B/s < throttle < N - IN/R = 100,000,000 B/s$", text, re.M)
    assert re.search(r"^throttle +50,000,000 B/s, 50% of the network$", text, re.MULTILINE)
    assert f"\n\n`mq-admin moves start {file}` carries out the plan\n" in text
    plan = json.loads(file.read_text())
    assert len(plan["partitions"]) == 3
    assert all(row["current"] == [1, 2] for row in plan["partitions"])
    assert all(row["size_bytes"] > 50_000 for row in plan["partitions"])
    assert all(set(row["replicas"]) == {2, 3} for row in plan["partitions"])
    at = ("--bootstrap-server", cluster[2].bootstrap)
    executed = kafka_tool(
        "reassign-partitions", *at, "--execute", "--reassignment-json-file", str(file)
    )
    assert "Successfully started partition reassignments" in executed.stdout, executed
    wait_until(lambda: all(row == [2, 3] for _, row in replicas(cluster, topic).values()))
    assert admin.json(*asked, "--workers", "2,3")["moves"] == []
    admin(*asked, "--plan-file", file)  # over all three workers again
    (plan_id,) = admin.json("moves", "start", file).values()
    wait_until(lambda: status(admin, plan_id)["state"] == "complete")

    def counts() -> list[int]:
        found = [worker for row, _ in replicas(cluster, topic).values() for worker in row]
        return [found.count(worker) for worker in (1, 2, 3)]

    wait_until(lambda: counts() == [2, 2, 2])
    assert read(cluster, topic) == list(range(RECORDS))
    back = admin.json(*asked, "--workers", "1,2", "--throttle", 10)["estimate"]
    assert "Set replica.fetch.response.max.bytes=110 on all workers" in back["warnings"][0]
    admin("moves", "plan", "--drain", 3, "--measure-seconds", 0, code=2)
    assert (
        "has 3 replicas, and the plan leaves only 2 workers for them; add workers" in admin.errors
    )
