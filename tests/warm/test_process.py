"""Forked nodes behave as executed ones: files, exit codes, signals, and nothing is shared."""

import os
import random
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.nodes import PATIENCE_S, READY, ROOT, SERVER, Node, wait_until
from tests.suite import processes
from tests.warm.process import LOST, WarmProcess, WarmServer, can_fork
from tests.warm.server import seed_generators

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_fork(), reason="nodes are executed here"),
]

Start = Callable[..., "subprocess.Popen[bytes] | WarmProcess"]
KINDS = ("forked", "executed")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts mq-server in either way, with its output in `tmp_path`."""
    started: list[subprocess.Popen[bytes] | WarmProcess] = []

    def begin(kind: str, *arguments: str) -> subprocess.Popen[bytes] | WarmProcess:
        with (tmp_path / "stdout").open("wb") as out, (tmp_path / "stderr").open("wb") as err:
            if kind == "forked":
                started.append(
                    WarmProcess(
                        SERVER[-1],
                        arguments,
                        name="mq-server",
                        stdout=out,
                        stderr=err,
                        cwd=tmp_path,
                    )
                )
            else:
                command = [*SERVER, *arguments]
                environment = os.environ | {"PYTHONPATH": str(ROOT)}
                started.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        cwd=tmp_path,
                        env=environment,
                    )
                )
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait(PATIENCE_S)


@pytest.fixture
def run(start: Start, tmp_path: Path) -> Callable[..., "subprocess.Popen[bytes] | WarmProcess"]:
    """Return a function that starts a node and waits for its ready line."""

    def begin(kind: str) -> subprocess.Popen[bytes] | WarmProcess:
        process = start(kind, "run", "--listen", "127.0.0.1:0", "--data-dir", "data")
        wait_until(lambda: READY.match((tmp_path / "stdout").read_text()))
        return process

    return begin


@pytest.mark.parametrize("kind", KINDS)
def test_output_errors_and_exit_codes_are_those_of_the_command(
    start: Start, tmp_path: Path, kind: str
) -> None:
    assert start(kind, "cluster-id").wait(PATIENCE_S) == 0
    assert len((tmp_path / "stdout").read_text()) == 23
    assert (tmp_path / "stderr").read_text() == ""
    assert start(kind, "run", "--set", "no.such=1").wait(PATIENCE_S) == 2
    assert (tmp_path / "stdout").read_text() == ""
    assert (tmp_path / "stderr").read_text().startswith("mq-server: Unknown ")


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_works_in_its_folder_and_stops_cleanly(
    run: Start, tmp_path: Path, kind: str
) -> None:
    process = run(kind)
    assert process.poll() is None
    assert os.readlink(f"/proc/{process.pid}/cwd") == str(tmp_path)
    assert (tmp_path / "data").is_dir()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == process.poll() == 0
    assert "Traceback" not in (tmp_path / "stderr").read_text()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGINT])
def test_signals_reach_the_node_alone(run: Start, kind: str, number: signal.Signals) -> None:
    process = run(kind)
    process.send_signal(number)
    if number == signal.SIGSTOP:
        wait_until(lambda: _stat(process.pid) == "T")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGCONT)
        process.kill()
    code = 0 if number == signal.SIGINT else -signal.SIGKILL
    assert process.wait(PATIENCE_S) == code
    assert processes.state(process.pid) is None  # no zombie is left
    process.kill()  # does nothing: the process has ended


def _stat(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_has_no_open_file_of_the_tests_and_their_umask_and_limits(
    run: Start, tmp_path: Path, kind: str
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    os.environ["METAQUORUM_TESTS_MARK"] = "1"
    try:
        process = run(kind)
    finally:
        os.umask(before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        del os.environ["METAQUORUM_TESTS_MARK"]
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[1] == hard
    assert (tmp_path / "data").stat().st_mode & 0o027 == 0
    kinds = [os.readlink(each) for each in Path(f"/proc/{process.pid}/fd").iterdir()]
    files = {name for name in kinds if not name.startswith(("anon_inode:", "socket:", "pipe:"))}
    outside = {name for name in files if not name.startswith(str(tmp_path))}
    assert outside <= {os.devnull}
    ours = set(_sockets(os.getpid()))
    assert not ours & set(_sockets(process.pid))


def _sockets(pid: int) -> list[str]:
    names = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(os.readlink(each))
        except OSError:  # closed meanwhile
            continue
    return [name for name in names if name.startswith(("socket:", "pipe:"))]


def test_generators_of_modules_are_seeded_anew() -> None:
    """Forked as they are, they would draw the same numbers in each node."""
    generators: tuple[Any, ...] = (random, trio._core._run._r)
    for generator in generators:
        before = generator.getstate()
        try:
            seed_generators()
            assert generator.getstate() != before
        finally:
            generator.setstate(before)


def test_the_warm_process_ends_with_the_tests_and_is_missed() -> None:
    server = WarmServer(SERVER[-1])
    assert server.end() == 0
    with pytest.raises(RuntimeError, match="the warm process has ended"):
        server.start({}, [])


def test_a_node_whose_warm_process_is_killed_counts_as_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = WarmServer(SERVER[-1])
    monkeypatch.setitem(WarmProcess.servers, SERVER[-1], server)
    node = Node(tmp_path)
    node.start()
    pid, process = node.pid, node._process
    assert process is not None
    server.kill()
    assert process.wait(PATIENCE_S) == LOST
    os.kill(pid, signal.SIGKILL)


def test_an_executed_node_is_a_process_of_its_own(tmp_path: Path) -> None:
    for name, is_executed in (("executed", True), ("forked", False)):
        node = Node(tmp_path / name)
        node.is_executed = is_executed
        node.start()
        assert processes.command(node.pid)[2] == (
            SERVER[-1] if is_executed else "tests.warm.server"
        )
        node.stop()


@pytest.mark.parametrize(("text", "code"), [("[1]", 0), ("[1", 1)])
def test_pipes_are_text_and_end_with_the_process(text: str, code: int) -> None:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = WarmProcess("json.tool", ["--compact"], **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdin, process.stdout, process.stderr:
        process.stdin.write(text)
        process.stdin.close()
        assert process.stdout.read() == ("" if code else "[1]\n")
        assert bool(process.stderr.read()) is bool(code)
    assert process.wait(PATIENCE_S) == code


@pytest.mark.parametrize("kind", KINDS)
def test_threads_may_wait_for_the_same_process(run: Start, kind: str) -> None:
    process = run(kind)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(process.wait, PATIENCE_S) for _ in range(7)]
        polled = pool.submit(wait_until, lambda: process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        assert [each.result() for each in waiting] == [0] * 7
        assert polled.result()
