"""`mq-admin workers drain --start`, with two workers of their own: one of them is emptied."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.admin.running import Admin
from tests.clusters import Cluster
from tests.conformance.moves.topics import LARGE, RECORDS, new_topic, read_all
from tests.nodes import elsewhere, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(elsewhere()), reason="starts clusters of our own"),
]

DRAIN = ("workers", "drain", 2, "--start", "--measure-seconds", 0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("pair"), (1,), (1, 2))
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def admin(pair: Cluster) -> Iterator[Admin]:
    """Return mq-admin; at the end worker 2 does not drain, and there are no topics."""
    admin = Admin(MQ_BOOTSTRAP=pair[1].bootstrap)
    yield admin
    admin("workers", "return", 2)
    for row in admin.json("topics", "list"):
        admin("topics", "delete", row["topic"], "--yes")


def is_draining(admin: Admin) -> bool:
    return bool(admin.json("workers", "describe", 2)["draining"])


def state(admin: Admin, plan_id: int) -> str:
    (found,) = admin.json("moves", "status", plan_id)
    return str(found["state"])


def test_one_command_empties_a_worker(pair: Cluster, admin: Admin) -> None:
    topic = new_topic(pair[1].bootstrap, 3, [2])
    other = new_topic(pair[1].bootstrap, 1, [1])
    admin.wait_for(other)
    shown = admin(*DRAIN, "--throttle", 10**9, "--batch", 2)
    first, *_ = shown.splitlines()
    assert first == "worker 2 is draining; it has 3 replicas and leads 3 partitions"
    assert re.search(rf"^{topic} +2 +2 +1 +\d+ B$", shown, re.MULTILINE), shown
    assert re.search(r"^throttle +1,000,000,000 B/s$", shown, re.MULTILINE)
    started = re.search(
        r"^plan (\d+) started: 3 moves, at 953.7 MiB/s for each worker\n"
        r"`mq-admin moves status \1 --watch` shows how far it is\n\Z",
        shown,
        re.MULTILINE,
    )
    assert started is not None, shown
    plan_id = int(started[1])
    assert admin.errors.splitlines()[-1] == (
        "`mq-admin workers remove 2` removes it when it is empty and stopped"
    )
    wait_until(lambda: state(admin, plan_id) == "complete")
    (plan,) = admin.json("moves", "status", plan_id)
    assert (plan["done"], plan["batch_size"]) == (3, 2)
    wait_until(lambda: admin.json("workers", "describe", 2)["replicas"] == 0)
    assert read_all(pair[1].bootstrap, topic) == list(range(RECORDS))
    # An empty worker is not an error, so that the command can be repeated.
    again = admin(*DRAIN)
    assert again == (
        "worker 2 is draining; it has 0 replicas and leads 0 partitions\n\nNothing has to move.\n"
    )
    data = admin.json(*DRAIN)
    assert (data["worker"], data["draining"], data["replicas"]) == (2, True, 0)
    assert (data["moves"], data["plan"]) == ([], None)


def test_a_worker_whose_partitions_move_already_is_refused(pair: Cluster, admin: Admin) -> None:
    topic = new_topic(pair[1].bootstrap, 2, [2], LARGE)
    admin.wait_for(topic)
    data = admin.json(*DRAIN, "--throttle", 20, "--batch", 1)
    assert [row["target"] for row in data["moves"]] == [[1], [1]]
    assert data["estimate"]["throttle_bytes_per_s"] == 20
    plan_id = data["plan"]

    def moving() -> int:
        (plan,) = admin.json("moves", "status", plan_id)
        return int(plan["moving"])

    wait_until(lambda: moving() == 1)
    # The second partition waits in the plan.
    admin(*DRAIN, code=1)
    assert f"Partition {topic}-1 is part of plan {plan_id}, which has not ended" in admin.errors
    assert "worker 2 keeps draining, but this command has started no move" in admin.errors
    assert "Warning: 1 partitions, such as" in admin.errors
    admin("moves", "cancel", plan_id, "--yes")
    wait_until(lambda: state(admin, plan_id) == "cancelled")
    # Both move.
    plan_id = admin.json(*DRAIN, "--throttle", 20)["plan"]
    wait_until(lambda: moving() == 2)
    admin(*DRAIN, code=1)
    assert (
        f"mq-admin: no replica of worker 2 can move now: 2 partitions, such as {topic}-0, have no"
        " leader, or are moving already\n  `mq-admin moves status` shows the plans that run"
    ) in admin.errors
    assert is_draining(admin)
    admin("moves", "cancel", plan_id, "--yes")
    wait_until(lambda: state(admin, plan_id) == "cancelled")


def test_replicas_for_which_no_worker_is_left_are_named(pair: Cluster, admin: Admin) -> None:
    topic = new_topic(pair[1].bootstrap, 1, [1, 2])
    admin.wait_for(topic)
    shown = admin(*DRAIN, code=2)
    assert shown == "worker 2 is draining; it has 1 replicas and leads 0 partitions\n\n"
    assert f"{topic}-0 has 2 replicas, and the plan leaves only 1 worker for them" in admin.errors
    assert "`mq-admin workers return 2` ends the drain" in admin.errors
    assert is_draining(admin)


def test_mistakes_change_nothing(pair: Cluster, admin: Admin) -> None:
    for options, complaint in (
        (("--throttle", 1), "--throttle is only for --start"),
        (("--batch", 100), "--batch is only for --start"),
        (("--start", "--throttle", 1, "--no-throttle"), "exclude each other"),
    ):
        admin("workers", "drain", 2, *options, code=2)
        assert complaint in admin.errors
    assert not is_draining(admin)


def test_a_plan_that_waits_for_a_worker_that_is_down_is_warned_about(
    pair: Cluster, admin: Admin, tmp_path: Path
) -> None:
    topic = new_topic(pair[1].bootstrap, 1, [1])
    admin.wait_for(topic)
    file = tmp_path / "plan.json"
    row = {"topic": topic, "partition": 0, "replicas": [2]}
    file.write_text(json.dumps({"version": 1, "partitions": [row]}))
    pair[2].kill()
    try:
        wait_until(lambda: admin.json("workers", "describe", 2)["state"] == "fenced")
        plan_id = admin.json("moves", "start", file)["plan"]
        assert "Warning: worker 2 is down: moves to it wait until it returns" in admin.errors
    finally:
        pair[2].start()
    wait_until(lambda: state(admin, plan_id) == "complete")
    file.write_text(json.dumps({"version": 1, "partitions": [row | {"replicas": [1]}]}))
    plan_id = admin.json("moves", "start", file)["plan"]
    assert "Warning" not in admin.errors
    wait_until(lambda: state(admin, plan_id) == "complete")
