"""Modules that a start imports, and its output. tests/peers/start_time measures its duration."""

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from metaquorum.cli.common.process_figures import since_exec_s
from tests.nodes import ROOT, free_port

# Each of these takes milliseconds, and a node in its usual roles needs none. trio imports some
# modules that could be in this list: ssl, tempfile, ctypes.
NOT_FOR_NODES = {
    "Cython",
    "argparse",
    "asyncio",
    "confluent_kafka",
    "cramjam",
    "crc32c",  # the C module is loaded without its package
    "email",
    "h11",
    "hypothesis",
    "importlib.metadata",
    "lz4",
    "matplotlib",
    "multiprocessing",
    "prometheus_client",
    "rich",
    "tomllib",
    "unittest",
    "yaml",
    "zstandard",
    "metaquorum.cli.server.cluster",
    "metaquorum.cli.server.format",
    "metaquorum.cli.server.log_dump",
    "metaquorum.dataplane.prometheus.collector",
    "metaquorum.dataplane.prometheus.endpoint",
    "metaquorum.client.socket_transport",
    "metaquorum.quorum.storage.dump",
}
OF_CONTROLLERS = {
    "metaquorum.quorum.controller_server",
    "metaquorum.quorum.raft.voter",
    "pysyncobj",
}
OF_WORKERS = {
    "metaquorum.dataplane.handlers.produce",
    "metaquorum.dataplane.log.dirs.log_dirs",
    "metaquorum.dataplane.worker_server",
}

# Runs a node; prints the CPU time before the start and, after the stop, the imported modules.
PROGRAM = """
import sys, time, trio
from metaquorum.cli.server.main import main
print(time.process_time())
try:
    main(sys.argv[1:])
finally:
    print(*sys.modules)
"""
CLOCK_TICK_S = 0.01


class Run(NamedTuple):
    before_s: float
    ready_line: str
    modules: set[str]


def run(*arguments: object) -> Run:
    """Run a node and stop it when it is ready."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "run", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stdout is not None
        try:
            before_s, line = float(node.stdout.readline()), node.stdout.readline()
            assert " ready: " in line
        finally:
            node.terminate()
        return Run(before_s, line, set(node.stdout.read().split()))


@pytest.fixture
def quorum(tmp_path: Path) -> Sequence[object]:
    secret = tmp_path / "secret"
    secret.write_text("00" * 32 + "\n")
    secret.chmod(0o600)
    return (
        *("--quorum", f"1@127.0.0.1:{free_port()}", "--secret-file", secret),
        *("--cluster-id", "AAAAAAAAAAAAAAAAAAAAAA", "--listen", "127.0.0.1:0"),
        *("--data-dir", tmp_path / "data"),
    )


def test_a_node_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    modules = run("--listen", "127.0.0.1:0", "--data-dir", tmp_path).modules
    assert modules >= OF_CONTROLLERS | OF_WORKERS
    assert modules & NOT_FOR_NODES == set()


def test_a_node_of_a_quorum_loads_nothing_that_it_does_not_use(quorum: Sequence[object]) -> None:
    modules = run(*quorum).modules
    assert modules >= OF_CONTROLLERS | OF_WORKERS
    assert modules & NOT_FOR_NODES == set()


def test_a_controller_does_not_load_the_workers_role(quorum: Sequence[object]) -> None:
    modules = run(*quorum, "--roles", "controller").modules
    assert modules >= OF_CONTROLLERS
    assert modules & (NOT_FOR_NODES | OF_WORKERS) == set()


def test_the_ready_line_says_the_whole_time_since_exec(tmp_path: Path) -> None:
    started = run("--listen", "127.0.0.1:0", "--data-dir", tmp_path)
    took = re.search(r"\((\d+\.\d\d) s, record walk \w+, small requests \w+\)$", started.ready_line)
    assert took, started.ready_line
    assert float(took[1]) >= started.before_s - CLOCK_TICK_S


def test_the_age_of_a_process_is_unknown_where_the_system_does_not_tell(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    assert since_exec_s(str(stat)) is None
    stat.write_text("1 (mq-server) S 0")
    assert since_exec_s(str(stat)) is None
    in_the_future = " ".join(["0"] * 18 + [str(10**15)])
    stat.write_text(f"1 (mq) server) S {in_the_future}")
    assert since_exec_s(str(stat)) is None
    at_boot = " ".join(["0"] * 19)
    stat.write_text(f"1 (mq) server) S {at_boot}")
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    age_s = since_exec_s(str(stat))
    assert age_s is not None
    assert before_s <= age_s <= time.clock_gettime(time.CLOCK_BOOTTIME)
