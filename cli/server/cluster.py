"""mq-server cluster: nodes as processes of this machine, for trials, tests and measurements.

All files are in one folder (`cluster_layout.py`); no other file is changed. Only processes that
were started there receive signals, after a check of the command line that runs under their ids.
The verbs, options and printed lines equal those of the project's script for Apache Kafka
(tests/peers/kafka/cluster), so that a tool works with either.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from random import SystemRandom
from typing import Final, NoReturn

import click

from cli.common.processes import (
    HOST,
    POLL_S,
    QuorumAnswer,
    command_line,
    is_free,
    known_brokers,
    quorum,
    send_signal,
    started,
    under_replicated,
    usage,
    wait,
)
from cli.server.cluster_layout import MAX_NODES, QUORUM_PORT_OFFSET, SECRET, State, server_toml
from cli.server.quorum_options import QUORUM_SIZES
from metaquorum.channel.identity import create_secret
from metaquorum.runtime.own_processes import own_command, own_environment
from metaquorum.storage.data_dir import new_id

DEFAULT_DIR: Final = "mq-cluster"
DEFAULT_BASE_PORT: Final = 19092
MAX_PORT: Final = 65_535
START_TIMEOUT_S: Final = 120.0
TERM_TIMEOUT_S: Final = 30.0
KILL_TIMEOUT_S: Final = 5.0
HEARD_WITHIN_S: Final = 3.0  # a healthy controller fetches several times in this time
_STATE: Final = "cluster.json"


def _fail(message: str) -> NoReturn:
    click.echo(f"cluster: {message}", err=True)
    sys.exit(1)


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read, since configs may contain passwords."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


class Cluster:
    """The nodes of one folder, and their processes."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder).resolve()
        self._file = self.folder / _STATE
        self._state: State | None = None
        if self._file.exists():
            try:
                self._state = State(**json.loads(self._file.read_text()))
            except (OSError, ValueError, TypeError):
                _fail(f"{self._file} was not written by `cluster start`; choose another --dir")

    @property
    def state(self) -> State:
        if self._state is None:
            _fail(f"no cluster was started in {self.folder}")
        return self._state

    @property
    def nodes(self) -> range:
        return self.state.all_nodes

    def _home(self, node: int) -> Path:
        return self.folder / f"node{node}"

    def _save(self) -> None:
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self.state), indent=1) + "\n")
        temporary.replace(self._file)

    def pid(self, node: int) -> int | None:
        """Return the recorded process id if the process still is this node."""
        pid = self.state.pids.get(str(node))
        mine = str(self._home(node) / "server.toml")
        return pid if pid and mine in command_line(pid) else None

    # State of the nodes

    def _knows(self, node: int) -> int:
        return known_brokers(self.state.port(node), self.state.cluster_id)

    def _quorum(self, first: int) -> QuorumAnswer | None:
        """Return the quorum from the first worker that answers; `first` is asked first."""
        running = [node for node in self.state.workers if self.pid(node)]
        for node in sorted(running, key=lambda each: each != first):
            if (found := quorum(self.state.port(node))) is not None:
                return found
        return None

    def _is_ready(self, node: int, workers: int, since_ms: float) -> bool:
        """Return whether the node is ready.

        A ready node answers and knows `workers` workers; a ready controller also has all committed
        metadata, by a fetch since `since_ms`.
        """
        state = self.state
        if state.is_worker(node) and self._knows(node) < workers:
            return False
        if not state.is_controller(node) or state.is_alone:
            return True
        if not any(self.pid(worker) for worker in state.workers):
            return not is_free(state.port(node))  # no worker runs that knows more
        found = self._quorum(first=node)
        return found is not None and found.is_caught_up(node, since_ms)

    def _has_majority(self) -> bool:
        voters = range(1, self.state.controllers + 1)
        return 2 * sum(bool(self.pid(node)) for node in voters) > len(voters)

    # Starting

    def _launch(self, node: int) -> "subprocess.Popen[bytes]":
        for port in self.state.ports(node):
            if not is_free(port):
                _fail(f"port {port} is in use by another process; choose another --base-port")
        home = self._home(node)
        command = [*own_command("cli.server.main"), "run", "--config", str(home / "server.toml")]
        with (home / "log").open("ab") as log:
            process = started(command, own_environment(), log)
        self.state.pids[str(node)] = process.pid
        self._save()
        return process

    def _wait_ready(
        self, processes: Mapping[int, "subprocess.Popen[bytes]"], began: float, workers: int
    ) -> None:
        """Wait until each of these nodes is ready and knows `workers` workers."""
        waiting = dict(processes)
        since_ms = (time.time() - (time.monotonic() - began)) * 1000
        while waiting:
            for node, process in list(waiting.items()):
                if (code := process.poll()) is not None:
                    _fail(f"node {node} exited with {code}: {self._last_line(node)}")
                if self._is_ready(node, workers, since_ms):
                    click.echo(
                        f"node {node} ready after {time.monotonic() - began:.2f} s: "
                        f"{HOST}:{self.state.port(node)} pid {process.pid}"
                    )
                    del waiting[node]
            if time.monotonic() - began > START_TIMEOUT_S:
                _fail(
                    f"nodes {sorted(waiting)} not ready after {START_TIMEOUT_S:.0f} s; "
                    f"see {self.folder}/node*/log"
                )
            if waiting:
                time.sleep(POLL_S * len(processes))

    def _last_line(self, node: int) -> str:
        log = self._home(node) / "log"
        lines = log.read_text(errors="replace").splitlines()
        return f"{lines[-1] if lines else 'no log line'} (log: {log})"

    def start(self, wanted: State, configs: Mapping[str, str], keep: bool) -> None:
        if self._state and any(self.pid(node) for node in self.nodes):
            _fail(f"a cluster is running in {self.folder}")
        if not (keep and self._state):
            ports = [port for node in wanted.all_nodes for port in wanted.ports(node)]
            if taken := [port for port in ports if not is_free(port)]:
                _fail(f"ports {taken} are in use by other processes; choose another --base-port")
            self._lay_out(wanted, configs)
        began = time.monotonic()
        try:
            processes = {node: self._launch(node) for node in self.nodes}
            self._wait_ready(processes, began, len(self.state.workers))
        except SystemExit:  # by `_fail`; nodes that stay would hold ports and directories
            # A node that is only slow may be recovering large logs.
            if time.monotonic() - began <= START_TIMEOUT_S and self._stop():
                click.echo("cluster: the nodes that had started were stopped", err=True)
            raise
        click.echo(f"ready in {time.monotonic() - began:.2f} s: bootstrap {self.state.bootstrap()}")

    def _lay_out(self, wanted: State, configs: Mapping[str, str]) -> None:
        """Write the settings of each node, and delete the data of an earlier start."""
        earlier = [path for path in self.folder.glob("node[1-9]*") if path.is_dir()]
        if earlier and self._state is None:
            _fail(f"{earlier[0]} was not created by this command; choose another --dir")
        for path in earlier:
            shutil.rmtree(path)
        self.folder.joinpath(SECRET).unlink(missing_ok=True)
        self._state = wanted
        for node in self.nodes:
            home = self._home(node)
            home.mkdir(parents=True)
            write_private(home / "server.toml", server_toml(wanted, node, self.folder, configs))
        if not wanted.is_alone:
            create_secret(str(self.folder / SECRET))
        self._save()

    def stop(self) -> None:
        click.echo(f"stopped {self._stop()}")

    def _stop(self) -> int:
        """Stop all nodes, workers first: their controlled shutdown needs the quorum.

        Returns how many ran.
        """
        running = {node: pid for node in self.nodes if (pid := self.pid(node))}
        for are_controllers in (False, True):
            self._end([n for n in running if self.state.is_controller(n) is are_controllers])
        self.state.pids.clear()
        self._save()
        return len(running)

    def _end(self, nodes: list[int]) -> None:
        for number, seconds in ((signal.SIGTERM, TERM_TIMEOUT_S), (signal.SIGKILL, KILL_TIMEOUT_S)):
            for node in nodes:
                if pid := self.pid(node):
                    send_signal(pid, signal.SIGCONT)
                    send_signal(pid, number)
            if wait(lambda: not any(self.pid(node) for node in nodes), seconds):
                return

    def signal(self, node: int, number: signal.Signals) -> None:
        pid = self.pid(node)
        if pid is None:
            _fail(f"node {node} is not running")
        send_signal(pid, number)
        ends = number in (signal.SIGKILL, signal.SIGTERM)
        if ends and not wait(lambda: not self.pid(node), 2 * TERM_TIMEOUT_S):
            _fail(f"node {node} is still running")
        click.echo(f"{number.name} to node {node}, pid {pid}")

    def restart(self, node: int) -> None:
        if pid := self.pid(node):
            send_signal(pid, signal.SIGCONT)
            self.signal(node, signal.SIGTERM)
        began = time.monotonic()
        process = self._launch(node)
        if not self._has_majority():
            click.echo(
                f"node {node} started, pid {process.pid};"
                " it waits for a majority of the controllers"
            )
            return
        self._wait_ready({node: process}, began, sum(bool(self.pid(n)) for n in self.state.workers))

    def roll(self) -> None:
        """Restart the nodes one after the other, each when the previous one is ready and in sync.

        The leader of the quorum is the last, so that there is only one election.
        """
        if down := [node for node in self.nodes if not self.pid(node)]:
            _fail(f"nodes {down} are down: start them first, so that at most one is down at a time")
        began = time.monotonic()
        found = None if self.state.is_alone else self._quorum(first=1)
        behind = self._under_replicated()
        for node in sorted(self.nodes, key=lambda n: found is not None and n == found.leader):
            self.restart(node)
            if not wait(lambda: self._under_replicated() <= behind, START_TIMEOUT_S):
                _fail(
                    f"partitions are not in sync {START_TIMEOUT_S:.0f} s after node {node} started"
                )
        click.echo(f"restarted {len(self.nodes)} in {time.monotonic() - began:.2f} s")

    def _under_replicated(self) -> float:
        """Return the number of under-replicated partitions; infinity if no worker answers."""
        counts = (under_replicated(self.state.port(node)) for node in self.state.workers)
        return next((count for count in counts if count is not None), math.inf)

    def status(self) -> None:
        click.echo(f"bootstrap {self.state.bootstrap()}  dir {self.folder}")
        running = [node for node in self.state.workers if self.pid(node)]
        found = self._quorum(first=1) if running else None
        for node in self.nodes:
            self._status_line(node, len(running), found)

    def _status_line(self, node: int, workers: int, found: QuorumAnswer | None) -> None:
        state, pid = self.state, self.pid(node)
        line = f"node {node}  {state.port(node)}  "
        if not pid:
            click.echo(line + f"down  {state.roles(node)}")
            return
        line += f"pid {pid}"
        ready = True
        if state.is_worker(node):
            knows = self._knows(node)
            ready = knows >= workers
            line += f"  knows {knows} brokers"
        line += f"  {state.roles(node)}"
        if state.is_controller(node):
            since_ms = (time.time() - HEARD_WITHIN_S) * 1000
            ready = ready and found is not None and found.is_caught_up(node, since_ms)
            line += "  leader" if found is not None and found.leader == node else ""
        click.echo(f"{line}  {'ready' if ready else 'not ready'}{usage(pid)}")

    def pids(self) -> None:
        click.echo(",".join(str(pid) for node in self.nodes if (pid := self.pid(node))))


# -- commands ------------------------------------------------------------------------------------

_dir_option = click.option(
    "--dir",
    "folder",
    metavar="DIR",
    default=DEFAULT_DIR,
    show_default=True,
    help="Folder with all files of the cluster.",
)


def _settings(_: click.Context, __: click.Parameter, sets: Iterable[str]) -> dict[str, str]:
    settings = {}
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"expected KEY=VALUE, not {text!r}")
        settings[name.strip()] = value
    return settings


@click.group("cluster")
def cluster_group() -> None:
    """Start, stop, kill and pause nodes on this machine."""


@cluster_group.command("start")
@_dir_option
@click.option(
    "--nodes",
    type=click.IntRange(1, MAX_NODES),
    help="Number of worker nodes; up to 5 of them are controllers, too.  [default: 1]",
)
@click.option(
    "--controllers",
    type=click.Choice([str(size) for size in QUORUM_SIZES]),
    help="With --workers instead of --nodes: number of nodes that are only controllers.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, MAX_NODES - max(QUORUM_SIZES)),
    help="With --controllers: number of nodes that are only workers.",
)
@click.option(
    "--base-port",
    type=click.IntRange(1, MAX_PORT),
    default=DEFAULT_BASE_PORT,
    show_default=True,
    help="Node N, from 1, listens on BASE_PORT + N - 1, and on 100 more for other nodes.",
)
@click.option(
    "--metrics-base-port",
    type=click.IntRange(1, MAX_PORT),
    help="Node N serves metrics on METRICS_BASE_PORT + N - 1.  [default: none]",
)
@click.option(
    "--set",
    "configs",
    multiple=True,
    callback=_settings,
    metavar="KEY=VALUE",
    help="Worker config of all nodes; repeatable.",
)
@click.option("--keep", is_flag=True, help="Keep the data and settings in DIR.")
def start(
    folder: str,
    nodes: int | None,
    controllers: str | None,
    workers: int | None,
    base_port: int,
    metrics_base_port: int | None,
    configs: dict[str, str],
    keep: bool,
) -> None:
    """Start nodes and wait until they are ready; deletes the data of an earlier start in DIR.

    \b
    Examples:
      mq-server cluster start --nodes 3
      mq-server cluster start --controllers 3 --workers 4 --base-port 29092
      mq-server cluster start --nodes 3 --metrics-base-port 9464
    """
    if (controllers is None) != (workers is None) or (nodes is not None and workers is not None):
        raise click.UsageError("specify either --nodes, or both --controllers and --workers")
    cluster_id = new_id(SystemRandom())
    if controllers is not None and workers is not None:
        total = int(controllers) + workers
        wanted = State(total, base_port, {}, int(controllers), True, cluster_id)
    else:
        wanted = State.combined(nodes or 1, base_port, cluster_id)
    if base_port + wanted.nodes - 1 + (0 if wanted.is_alone else QUORUM_PORT_OFFSET) > MAX_PORT:
        raise click.UsageError("a port would exceed 65535: choose a lower --base-port")
    if metrics_base_port is not None:
        wanted.metrics_base_port = metrics_base_port
        ports = [port for node in wanted.all_nodes for port in wanted.ports(node)]
        if len(set(ports)) < len(ports) or max(ports) > MAX_PORT:
            raise click.UsageError(
                "ports overlap or exceed 65535: choose another --metrics-base-port"
            )
    Cluster(folder).start(wanted, configs, keep)


@cluster_group.command("stop")
@_dir_option
def stop(folder: str) -> None:
    """Stop all nodes; their data is kept."""
    Cluster(folder).stop()


@cluster_group.command("status")
@_dir_option
def status(folder: str) -> None:
    """Print the bootstrap addresses and the state of each node."""
    Cluster(folder).status()


@cluster_group.command("pids")
@_dir_option
def pids(folder: str) -> None:
    """Print the process ids of the running nodes, separated by commas."""
    Cluster(folder).pids()


@cluster_group.command("restart")
@click.argument("node", type=int)
@_dir_option
def restart(node: int, folder: str) -> None:
    """Stop node N with a controlled shutdown, if it runs, and start it again."""
    _member(Cluster(folder), node).restart(node)


@cluster_group.command("roll")
@_dir_option
def roll(folder: str) -> None:
    """Restart all nodes one after the other, without downtime for clients."""
    Cluster(folder).roll()


def _member(cluster: Cluster, node: int) -> Cluster:
    if node not in cluster.nodes:
        raise click.UsageError(
            f"node {node} does not exist: this cluster has nodes 1 to {len(cluster.nodes)}"
        )
    return cluster


def _signal_command(name: str, number: signal.Signals, does: str) -> None:
    @cluster_group.command(name, help=f"{does} ({number.name}).")
    @click.argument("node", type=int)
    @_dir_option
    def send(node: int, folder: str) -> None:
        _member(Cluster(folder), node).signal(node, number)


_signal_command("kill", signal.SIGKILL, "Kill node N, as a crash does")
_signal_command("term", signal.SIGTERM, "Stop node N with a controlled shutdown")
_signal_command("pause", signal.SIGSTOP, "Pause node N")
_signal_command("resume", signal.SIGCONT, "Resume node N")
