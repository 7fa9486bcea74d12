"""`mq-server run` as a process: its first and last lines of output."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from metaquorum.client.producer import Producer, ProducerRecord
from metaquorum.client.socket_transport import BlockingAdmin, BlockingProducer, connect
from metaquorum.client.values import CreatedTopic, NewTopic
from tests.nodes import PATIENCE_S, ROOT, free_port, heed_interrupts, needs_ipv6, wait_until

LIMIT_S = PATIENCE_S
SETTLED_S = 0.5


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "metaquorum.cli.server.main", "run", *map(str, arguments)]


def refused(*arguments: object, cwd: Path = ROOT) -> str:
    """Return the error line of a run that ends with exit code 2."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT
    )
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


class Running:
    def __init__(self, folder: Path, *arguments: object, wrapper: Sequence[str] = ()) -> None:
        self._err = folder / "stderr"
        with self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*wrapper, *command("--data-dir", folder / "data", *arguments)],
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                cwd=ROOT,
                preexec_fn=heed_interrupts,
            )

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def ready_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self, *signals: int) -> int:
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[object]:
    running: list[Running] = []

    def start(*arguments: object, wrapper: Sequence[str] = ()) -> Running:
        folder = tmp_path / str(len(running))
        folder.mkdir()
        running.append(Running(folder, *arguments, wrapper=wrapper))
        return running[-1]

    yield start
    for one in running:
        one.process.kill()
        one.process.wait()
        if one.process.stdout is not None:
            one.process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_node_in_good_order(run: type[Running], number: int) -> None:
    node = run("--listen", "127.0.0.1:0")
    assert "ready: listening on 127.0.0.1:" in node.ready_line()
    assert node.end(number) == 0
    assert "Traceback" not in node.stderr


def test_a_node_survives_its_terminal_and_prints_its_tasks_when_asked(run: type[Running]) -> None:
    """nohup ignores SIGHUP. SIGQUIT does not end a node, as it does not end a JVM."""
    node = run("--listen", "127.0.0.1:0", wrapper=("nohup",))
    node.ready_line()
    node.process.send_signal(signal.SIGHUP)
    for number in (1, 2):
        node.process.send_signal(signal.SIGQUIT)
        wait_until(lambda count=number: node.stderr.count("print_tasks_on_signal") >= 2 * count)
    assert "Current thread" in node.stderr
    assert "task metaquorum.dataplane.node.Node" in node.stderr
    assert "stopping" not in node.stderr
    assert node.end(signal.SIGTERM) == 0


def limited(option: str, count: int) -> tuple[str, ...]:
    return ("sh", "-c", f'ulimit {option} {count} && exec "$@"', "sh")


def test_the_limit_of_open_files_is_raised(run: type[Running]) -> None:
    node = run("--listen", "127.0.0.1:0", wrapper=limited("-Sn", 200))
    assert "ready" in node.ready_line()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    assert node.end(signal.SIGTERM) == 0


def test_connections_leave_descriptors_to_the_logs(run: type[Running]) -> None:
    """All partitions are created, written and synced while clients hold all other descriptors."""
    node = run(
        "--listen", "127.0.0.1:0", "--set", "log.flush.interval.messages=1",
        wrapper=limited("-n", 100),
    )  # fmt: skip
    address = node.ready_line().partition("listening on ")[2].partition(",")[0]
    host, _, port = address.rpartition(":")
    assert "this process may open only 100 files, so that at most 50 clients" in node.stderr
    assert "LimitNOFILE=4096" in node.stderr
    with connect(address) as cluster, ExitStack() as stack:
        created = BlockingAdmin(cluster).create_topics([NewTopic("t", 60, 1)])
        assert isinstance(created["t"], CreatedTopic)
        producer = BlockingProducer(Producer(cluster))
        producer.send("t", [ProducerRecord(value=b"x", partition=0)])
        for _ in range(120):
            stack.enter_context(socket.create_connection((host, int(port)), LIMIT_S))
        wait_until(lambda: "as many as the limit of open files" in node.stderr)
        for partition in range(60):
            producer.send("t", [ProducerRecord(value=bytes(1000), partition=partition)])
    assert "Too many open files" not in node.stderr
    assert node.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("has_errors", [False, True])
def test_a_node_whose_output_cannot_be_written_serves(tmp_path: Path, *, has_errors: bool) -> None:
    """A full disk under the log, or a pipe whose reader has ended, as in `mq-server run | head`."""
    port = free_port()
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full", "wb") as full:
        outputs = {"stdout": full, "stderr": full if has_errors else subprocess.DEVNULL}
        if not has_errors:
            outputs["stdout"] = writing
        process = subprocess.Popen(
            command("--data-dir", tmp_path / "data", "--listen", f"127.0.0.1:{port}"),
            cwd=ROOT,
            env={name: v for name, v in os.environ.items() if name != "PYTHONUNBUFFERED"},
            **outputs,
        )
    os.close(writing)

    def is_served() -> bool:
        assert process.poll() is None
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock,
        ):
            sock.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\0\xff\xff")  # ApiVersions
            return bool(sock.recv(4))
        return False

    try:
        wait_until(is_served)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()


@needs_ipv6
def test_an_address_of_version_6_is_written_as_clients_write_it(run: type[Running]) -> None:
    node = run("--listen", "[::1]:0")
    assert "listening on [::1]:" in node.ready_line()
    assert node.end(signal.SIGTERM) == 0


def test_a_signal_during_the_start_ends_it(run: type[Running], tmp_path: Path) -> None:
    node = run("--listen", "127.0.0.1:0")
    wait_until((tmp_path / "0" / "data" / ".lock").exists)
    assert node.end(signal.SIGTERM) == 0
    assert "Traceback" not in node.stderr


def test_a_second_signal_does_not_wait_for_slow_readers(run: type[Running]) -> None:
    def ends_at_once() -> bool:
        """Return whether the second signal ended the node.

        False if the first did, because all responses were sent: the node was paused while requests
        were sent, so that both sides seemed to take no more.
        """
        node = run("--listen", "127.0.0.1:0")
        host, port = node.ready_line().split("listening on ")[1].split(",")[0].rsplit(":", 1)
        with socket.create_connection((host, int(port))) as deaf:
            deaf.setblocking(False)
            versions = b"\0\0\0\x0a\0\x12\0\0\0\0\0\0\xff\xff"  # ApiVersions, twice
            taken_at = time.monotonic()
            while time.monotonic() < taken_at + SETTLED_S:
                try:
                    deaf.send(versions * 1000)
                    taken_at = time.monotonic()
                except BlockingIOError:
                    time.sleep(0.001)
            node.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "stopping" in node.stderr)
            code = node.end(signal.SIGINT)
        assert "Traceback" not in node.stderr
        if code == 0:
            return False
        assert code == 1
        assert "stopping immediately" in node.stderr
        return True

    wait_until(ends_at_once)


def test_a_signal_that_a_wrapper_sends_twice_is_one(run: type[Running]) -> None:
    def is_one() -> bool:
        """Return whether both signals counted as one; False also if the wrapper paused between
        them.
        """
        node = run("--listen", "127.0.0.1:0", wrapper=("timeout", str(LIMIT_S)))
        assert "ready: listening on 127.0.0.1:" in node.ready_line()
        node.end(signal.SIGTERM)
        assert "stopping: " in node.stderr
        return "stopping immediately" not in node.stderr

    wait_until(is_one)


def test_every_line_of_the_json_log_is_json(run: type[Running]) -> None:
    node = run("--listen", "127.0.0.1:0", "--log-format", "json", "--log-level", "debug")
    address = node.ready_line().split("listening on ")[1].split(",")[0].rsplit(":", 1)
    with socket.create_connection((address[0], int(address[1]))) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sock.recv(1) == b""
    assert node.end(signal.SIGTERM) == 0
    rows = [json.loads(text) for text in node.stderr.splitlines()]
    assert any("HTTP" in row["message"] for row in rows)


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused("--data-dir", tmp_path, "--listen", f"127.0.0.1:{port}")
        assert told.count("\n") == 1
        assert f"127.0.0.1:{port}" in told
        assert "stop the process that listens there" in told
        told = refused(
            "--data-dir", tmp_path, "--listen", f"127.0.0.1:{port}", "--log-format", "json"
        )
        assert "stop the process" in json.loads(told)["message"]


@pytest.mark.parametrize(
    ("listen", "reason"),
    [
        ("nowhere.invalid:0", "nowhere.invalid"),
        ("a..b:0", "a..b"),
        ("203.0.113.7:0", "this machine does not have that address"),
    ],
)
def test_an_address_that_is_not_ours_is_one_sentence(
    tmp_path: Path, listen: str, reason: str
) -> None:
    told = refused("--data-dir", tmp_path, "--listen", listen)
    assert told.count("\n") == 1
    assert reason in told


def test_a_directory_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for where in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nothing"):
        told = refused("--data-dir", where, "--listen", "127.0.0.1:0")
        assert told.count("\n") == 1
        assert str(where) in told


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_an_unreadable_directory_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    told = refused("--data-dir", tmp_path / "closed", "--listen", "127.0.0.1:0")
    assert told.count("\n") == 1


def test_a_directory_of_another_node_or_of_others_is_one_sentence(
    run: type[Running], tmp_path: Path
) -> None:
    node = run("--listen", "127.0.0.1:0")
    assert node.ready_line()
    data = tmp_path / "0" / "data"
    told = refused("--data-dir", data, "--listen", "127.0.0.1:0")
    assert "is in use by process" in told
    assert node.end(signal.SIGTERM) == 0
    told = refused("--data-dir", data, "--listen", "127.0.0.1:0", "--node-id", "2")
    assert "belongs to node 1" in told
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "thesis.tex").write_text("")
    told = refused("--data-dir", tmp_path / "others", "--listen", "127.0.0.1:0")
    assert "thesis.tex" in told


def test_damaged_metadata_is_one_sentence(run: type[Running], tmp_path: Path) -> None:
    node = run("--listen", "127.0.0.1:0")
    assert node.ready_line()
    assert node.end(signal.SIGTERM) == 0
    data = tmp_path / "0" / "data"
    (data / "meta.properties").write_text("nonsense")
    assert "meta.properties" in refused("--data-dir", data, "--listen", "127.0.0.1:0")


def test_a_mistyped_config_is_one_sentence(tmp_path: Path) -> None:
    told = refused("--data-dir", tmp_path, "--set", "num.partitons=3")
    assert told.count("\n") == 1
    assert "did you mean num.partitions?" in told
