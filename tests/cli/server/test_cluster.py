"""mq-server cluster: verbs, output and exit codes."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka.admin import NewTopic

from tests.conformance.clients import Librdkafka, Record, admin, create
from tests.nodes import PATIENCE_S, SERVER, free_ports, wait_until
from tests.warm.process import started


class Command:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports((1, 2, 100, 101, 102, 200))

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run the command, in a process that is forked; the nodes that it starts are executed."""
        output = self.folder.with_name(f"{self.folder.name}-output")
        with output.open("wb") as out:
            words = ["cluster", *arguments, "--dir", str(self.folder)]
            process = started(SERVER[-1], words, stdout=out, stderr=out)
            ended = process.wait(PATIENCE_S)
        said = output.read_text()
        assert ended == code, said
        assert "Traceback" not in said
        return said

    def shows(self, *words: str) -> list[str]:
        """Return the lines of `status` once each of these words is in one: workers need time to
        catch up.
        """
        return wait_until(lambda: self._with(words), what=f"status with {words}")

    def _with(self, words: tuple[str, ...]) -> list[str]:
        lines = self("status").splitlines()
        return lines if all(any(word in line for line in lines) for word in words) else []

    def start(self, *more: str, code: int = 0) -> str:
        return self("start", "--base-port", str(self.port), *more, code=code)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path / "cluster")
    yield command
    if command.folder.exists():
        command("stop")


def test_every_verb_does_what_its_name_says(cluster: Command) -> None:
    metrics = str(cluster.port + 200)
    started = cluster.start("--set", "num.partitions=3", "--metrics-base-port", metrics)
    bootstrap = f"127.0.0.1:{cluster.port}"
    found = re.fullmatch(
        rf"node 1 ready after [\d.]+ s: {bootstrap} pid (\d+)\n"
        rf"ready in [\d.]+ s: bootstrap {bootstrap}\n",
        started,
    )
    assert found
    pid = found[1]
    assert cluster("pids") == f"{pid}\n"
    page = urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=PATIENCE_S).read().decode()
    assert 'node_id="1"' in page
    cluster.shows(f"node 1  {cluster.port}  pid {pid}  knows 1 brokers")
    assert cluster("pause", "1") == f"SIGSTOP to node 1, pid {pid}\n"
    assert "knows 0 brokers" in cluster("status")
    assert cluster("resume", "1") == f"SIGCONT to node 1, pid {pid}\n"
    cluster.shows("knows 1 brokers")
    create(bootstrap, "kept")
    Librdkafka().send(bootstrap, "kept", [Record(None, b"v")], "none")
    assert cluster("kill", "1") == f"SIGKILL to node 1, pid {pid}\n"
    assert f"node 1  {cluster.port}  down" in cluster("status")
    assert re.match(r"node 1 ready after ", cluster("restart", "1"))
    assert cluster("restart", "1").startswith("SIGTERM to node 1, pid ")
    assert cluster("term", "1").startswith("SIGTERM to node 1, pid ")
    cluster("start")
    assert len(Librdkafka().read(bootstrap, "kept", 1)) == 1
    assert cluster("stop") == "stopped 1\n"
    assert cluster("stop") == "stopped 0\n"
    assert cluster("pids") == "\n"


def test_a_stopped_cluster_keeps_its_data_until_they_are_deleted(cluster: Command) -> None:
    cluster.start("--set", "num.partitions=3")
    create(f"127.0.0.1:{cluster.port}", "kept")
    cluster("stop")
    foreign = [cluster.folder / name for name in ("node1.bak", "node20-app", "node1")]
    for folder in foreign:
        folder.mkdir(exist_ok=True)
        (folder / "precious").touch()
    for options, kept in (
        (("--nodes", "3"), f"has 1 node, --base-port {cluster.port}, not 3 nodes"),
        (("--base-port", str(cluster.port + 1)), f"not 1 node, --base-port {cluster.port + 1}"),
        (("--set", "num.partitions=4"), "not started with num.partitions as given by --set"),
        (("--set", "num.io.threads=4"), "not started with num.io.threads"),
    ):
        said = cluster("start", *options, code=1)
        assert kept in said
        assert "--fresh" in said
    assert "either --fresh or --keep" in cluster("start", "--keep", "--fresh", code=2)
    cluster("start", "--keep", "--set", "num.partitions=3")
    topics = admin(f"127.0.0.1:{cluster.port}").list_topics(timeout=PATIENCE_S).topics
    assert len(topics["kept"].partitions) == 1
    cluster("stop")
    said = cluster.start("--fresh")
    assert f"deleted node1 of the earlier cluster in {cluster.folder}" in said
    topics = admin(f"127.0.0.1:{cluster.port}").list_topics(timeout=PATIENCE_S).topics
    assert "kept" not in topics
    assert all((folder / "precious").exists() for folder in foreign)


def test_a_folder_has_its_nodes_under_each_of_its_names(cluster: Command, tmp_path: Path) -> None:
    """`stop` used to forget nodes that were started under another name, and left them running."""
    cluster.start()
    running = cluster("pids")
    link = tmp_path / "link"
    link.symlink_to(cluster.folder)
    for name in (tmp_path / "cluster" / ".." / "cluster", link):
        other = Command(name)
        assert other("pids") == running
    assert other("stop") == "stopped 1\n"


def test_three_nodes_do_without_one_and_are_restarted_one_by_one(cluster: Command) -> None:
    started = cluster.start("--nodes", "3")
    addresses = [f"127.0.0.1:{cluster.port + number}" for number in range(3)]
    assert re.search(rf"^ready in [\d.]+ s: bootstrap {','.join(addresses)}$", started, re.M)

    def all_ready() -> list[str]:
        lines = cluster.shows("  leader  ")[1:]
        ready = all("knows 3 brokers  controller,worker" in line for line in lines)
        return lines if ready and all("  ready  " in line for line in lines) else []

    lines = wait_until(all_ready)
    leader = next(number for number, line in enumerate(lines, 1) if "  leader  " in line)
    admin(addresses[0]).create_topics([NewTopic("kept", 3, 3)])["kept"].result(PATIENCE_S)
    Librdkafka().send(addresses[2], "kept", [Record(None, b"v")], "none")
    cluster("kill", str(leader))
    other = next(number for number in (1, 2, 3) if number != leader)
    create(addresses[other - 1], "made-by-two")
    Librdkafka().send(addresses[other - 1], "kept", [Record(None, b"w")], "none")
    assert f"node {leader}  {cluster.port + leader - 1}  down" in cluster("status")
    cluster("restart", str(leader))
    rolled = cluster("roll")
    assert len(re.findall(r"^node \d ready after", rolled, re.M)) == 3
    assert re.search(r"^restarted 3 in [\d.]+ s$", rolled, re.M)
    assert len(Librdkafka().read(addresses[1], "kept", 2)) == 2
    cluster("kill", "1")
    cluster("kill", "2")
    assert "down" in cluster("roll", code=1)
    cluster("kill", "3")
    assert "it waits for a majority of the controllers" in cluster("restart", "1")
    assert re.match("node 2 ready", cluster("restart", "2"))
    cluster("stop")


def test_controllers_and_workers_may_be_apart(cluster: Command) -> None:
    started = cluster.start("--controllers", "1", "--workers", "2")
    addresses = [f"127.0.0.1:{cluster.port + number}" for number in (1, 2)]
    assert f"bootstrap {','.join(addresses)}\n" in started

    def all_ready() -> bool:
        _, first, second, third = cluster("status").splitlines()
        workers = all("knows 2 brokers  worker  ready" in line for line in (second, third))
        return workers and "  controller  leader  ready" in first

    wait_until(all_ready)
    assert re.search("node 1 ready after", cluster("restart", "1"))
    create(addresses[1], "made")
    assert cluster("stop") == "stopped 3\n"


def test_settings_of_nodes_which_may_be_secrets_are_for_their_owner_alone(cluster: Command) -> None:
    """The files are private with any umask, since a config given by --set may be a password."""
    before = os.umask(0)
    try:
        cluster.start("--set", "num.partitions=3")
    finally:
        os.umask(before)
    assert (cluster.folder / "node1" / "server.toml").stat().st_mode & 0o077 == 0


def test_ports_of_metrics_are_not_those_of_clients(cluster: Command) -> None:
    same = str(cluster.port + 1)
    said = cluster.start("--nodes", "3", "--metrics-base-port", same, code=2)
    assert "choose another --metrics-base-port" in said


def test_mistakes_get_a_sentence(cluster: Command) -> None:
    assert "no cluster was started in" in cluster("status", code=1)
    assert "either --nodes, or both" in cluster.start("--controllers", "3", code=2)
    assert "either --nodes, or both" in cluster.start("--nodes", "3", "--workers", "2", code=2)
    assert "expected KEY=VALUE" in cluster.start("--set", "novalue", code=2)
    assert "node 1 exited with 2: mq-server: Unknown" in cluster.start("--set", "no.such=1", code=1)
    assert "node 2 does not exist" in cluster("kill", "2", code=2)
    assert "node 1 is not running" in cluster("kill", "1", code=1)
    cluster.start()
    assert "a cluster is running in" in cluster.start(code=1)


def test_a_start_that_fails_leaves_no_node_running(cluster: Command) -> None:
    """The nodes have one disk, so only one of them can start."""
    disk = cluster.folder.with_name("disk")
    said = cluster.start("--nodes", "3", "--set", f"log.dirs={disk}", code=1)
    assert re.search(r"node \d exited with 2: .*/disk is in use by (another )?process", said)
    assert "the nodes that had started were stopped" in said
    assert cluster("pids").strip() == ""
    assert "ready in" in cluster.start()


def test_a_taken_port_is_refused(cluster: Command) -> None:
    cluster.start()
    other = Command(cluster.folder.with_name("other"))
    other.port = cluster.port
    assert f"ports [{cluster.port}] are in use by other processes" in other.start(code=1)


def test_a_folder_of_somebody_else_is_left_alone(cluster: Command) -> None:
    theirs = cluster.folder / "node1"
    theirs.mkdir(parents=True)
    (theirs / "precious").touch()
    assert "was not created by this command" in cluster.start(code=1)
    assert (theirs / "precious").exists()
    theirs.joinpath("precious").unlink()
    theirs.rmdir()
    cluster.folder.rmdir()
