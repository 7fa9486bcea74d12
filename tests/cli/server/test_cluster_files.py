"""The folder of mq-server cluster: hostile files, symbolic links, processes of others."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from metaquorum.cli.common.processes import is_free, is_listened_on, start_time
from metaquorum.cli.server.cluster import Cluster
from metaquorum.cli.server.cluster_files import (
    FilesError,
    check_room,
    lay_out,
    open_log,
    read_state,
    remove,
    write_state,
)
from metaquorum.cli.server.cluster_layout import State
from metaquorum.runtime.own_processes import own_command, own_environment
from tests.nodes import PATIENCE_S

THREE = State.combined(3, 19092, "an id")


def as_json(folder: Path, **changes: Any) -> Path:
    file = folder / "cluster.json"
    file.write_text(json.dumps(asdict(THREE) | changes))
    return file


@contextmanager
def running(*command: str) -> Iterator[int]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = State(4, 29092, {"1": 17}, 1, True, "x", 9464, {"1": 12345.0})
    write_state(tmp_path / "cluster.json", state)
    assert read_state(tmp_path / "cluster.json") == state
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": 10**9},
        {"nodes": "x"},
        {"nodes": -1},
        {"nodes": True},
        {"pids": []},
        {"pids": {"1": -1}},
        {"pids": {"1": "1"}},
        {"pids": {"1": 0}},
        {"pids": {"1": 1}},
        {"pids": {"4": 17}},
        {"pids": {"../1": 17}},
        {"started": {"1": "noon"}},
        {"base_port": "a"},
        {"base_port": 70_000},
        {"metrics_base_port": 0},
        {"controllers": 10**9},
        {"controllers": 5},
        {"separate": 1},
        {"cluster_id": None},
        {"strange": 1},
    ],
    ids=str,
)
def test_another_state_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    file = as_json(tmp_path, **changes)
    with pytest.raises(ValueError, match=r"state|keys"):
        read_state(file)
    with pytest.raises(SystemExit):
        Cluster(str(tmp_path))


def test_a_huge_or_broken_state_is_refused(tmp_path: Path) -> None:
    for content in ("[]", "{", "\x00", " " * (1 << 20) + "{}"):
        (tmp_path / "cluster.json").write_text(content)
        with pytest.raises(SystemExit):
            Cluster(str(tmp_path))


def test_no_process_but_a_node_of_the_folder_receives_signals(tmp_path: Path) -> None:
    toml = str(tmp_path / "node1" / "server.toml")
    forever = "import time; time.sleep(600)"
    node = [*own_command("metaquorum.cli.server.main"), "run", "--config", toml]
    with (
        running("sleep", "600") as stranger,
        running(sys.executable, "-c", forever, "run", "--config", toml) as similar,
    ):
        for pid in (stranger, similar):
            as_json(tmp_path, pids={"1": pid}, started={"1": start_time(pid)})
            assert Cluster(str(tmp_path)).pid(1) is None
    # A process of the same command line with another start time has the id of one that has ended.
    (tmp_path / "node1").mkdir()
    Path(toml).write_text('listen = "127.0.0.1:0"\ndata-dir = "data"\n')
    process = subprocess.Popen(
        node, cwd=tmp_path, env=own_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        assert b"ready" in process.stdout.readline()
        began = start_time(process.pid)
        assert began is not None
        for found, expected in ((began, process.pid), (began + 1, None)):
            as_json(tmp_path, pids={"1": process.pid}, started={"1": found})
            assert Cluster(str(tmp_path)).pid(1) == expected
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_only_files_of_the_earlier_start_are_deleted(tmp_path: Path) -> None:
    lay_out(tmp_path, THREE, {})
    (tmp_path / "node2" / "data").mkdir()
    for name in ("node1.bak", "node20-app", "node4", "node2"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "precious").touch()
    assert remove(tmp_path, THREE) == ["node1", "node2", "node3"]
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == [
        "node1.bak", "node1.bak/precious", "node2", "node2/precious", "node20-app",
        "node20-app/precious", "node4", "node4/precious",
    ]  # fmt: skip
    check_room(tmp_path, THREE, earlier=THREE)
    with pytest.raises(FilesError, match="node2 was not created by this command"):
        check_room(tmp_path, THREE, earlier=None)
    with pytest.raises(FilesError, match="node4 was not created by this command"):
        check_room(tmp_path, State.combined(5, 19092, ""), earlier=THREE)


def test_nothing_is_written_or_deleted_through_symbolic_links(tmp_path: Path) -> None:
    folder, victim = tmp_path / "cluster", tmp_path / "victim"
    victim.mkdir()
    (victim / "log").write_text("important")
    folder.mkdir()
    for name in ("cluster.json", "cluster.tmp", "cluster.json.tmp"):
        (folder / name).symlink_to(victim / "log")
    write_state(folder / "cluster.json", THREE)
    assert not (folder / "cluster.json").is_symlink()
    lay_out(folder, THREE, {})
    (folder / "node1" / "log").symlink_to(victim / "log")
    with pytest.raises(FilesError, match="cannot write"):
        open_log(folder / "node1")
    (folder / "node1" / "data").symlink_to(victim)
    remove(folder, THREE)
    assert (victim / "log").read_text() == "important"
    (folder / "node1").symlink_to(victim)
    for check in (lambda: check_room(folder, THREE, THREE), lambda: remove(folder, THREE)):
        with pytest.raises(FilesError, match=r"node1 (was not created|is a symbolic link)"):
            check()
    assert (victim / "log").read_text() == "important"


def test_connections_in_time_wait_are_not_a_process_that_listens() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # without SO_REUSEADDR: TIME-WAIT holds the port
        listener.listen()
        port = listener.getsockname()[1]
        assert (is_free(port), is_listened_on(port)) == (False, True)
        listener.accept()[0].close()  # the connection of `is_listened_on`
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
            accepted, _ = listener.accept()
            accepted.close()
            assert client.recv(1) == b""
    assert not is_listened_on(port)
