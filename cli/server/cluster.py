"""mq-server cluster: nodes as processes of this machine, for trials, tests and measurements.

All files are in one folder (`cluster_files.py`); no other file is changed. Only processes that
were started there receive signals, after a check of the command line and the start time of the
processes with their ids. The verbs and printed lines equal those of the project's script for Apache
Kafka (tests/peers/kafka/cluster), so that a tool works with either.
"""

import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from typing import Any, Final, NoReturn

import click

from metaquorum.cli.common.processes import (
    HOST,
    POLL_S,
    QuorumAnswer,
    is_free,
    is_listened_on,
    known_brokers,
    quorum,
    runs,
    send_signal,
    start_time,
    started,
    under_replicated,
    usage,
    wait,
)
from metaquorum.cli.server.cluster_files import (
    MAX_PORT,
    FilesError,
    check_room,
    kept_configs,
    lay_out,
    open_log,
    read_state,
    remove,
    write_state,
)
from metaquorum.cli.server.cluster_layout import MAX_NODES, QUORUM_PORT_OFFSET, State
from metaquorum.cli.server.quorum_options import QUORUM_SIZES
from metaquorum.quorum.storage.data_dir import new_id
from metaquorum.runtime.own_processes import own_command, own_environment
from metaquorum.wire.primitives.frozen import frozen

DEFAULT_DIR: Final = "mq-cluster"
DEFAULT_BASE_PORT: Final = 19092
START_TIMEOUT_S: Final = 120.0
TERM_TIMEOUT_S: Final = 30.0
KILL_TIMEOUT_S: Final = 5.0
TIME_WAIT_S: Final = 75.0  # longer than connections stay in TIME-WAIT: 60 s
HEARD_WITHIN_S: Final = 3.0  # a healthy controller fetches several times in this time
_STATE: Final = "cluster.json"


def _fail(message: str) -> NoReturn:
    click.echo(f"cluster: {message}", err=True)
    sys.exit(1)


@frozen
class StartOptions:
    """Options of `cluster start`; None: not given."""

    nodes: int | None
    controllers: str | None
    workers: int | None
    base_port: int | None
    metrics_base_port: int | None
    configs: Mapping[str, str]
    is_fresh: bool

    def state(self, kept: State | None = None) -> State:
        """Return the state that they ask for; a kept cluster determines those not given.

        Raises click.UsageError if ports are too high or overlap.
        """
        base_port = self.base_port or (DEFAULT_BASE_PORT if kept is None else kept.base_port)
        cluster_id = new_id(SystemRandom())
        if self.controllers is not None and self.workers is not None:
            size = int(self.controllers)
            wanted = State(size + self.workers, base_port, {}, size, True, cluster_id)
        elif self.nodes is None and kept is not None:
            wanted = replace(kept, base_port=base_port)
        else:
            wanted = State.combined(self.nodes or 1, base_port, cluster_id)
        wanted.metrics_base_port = self.metrics_base_port
        if self.metrics_base_port is None and kept is not None:
            wanted.metrics_base_port = kept.metrics_base_port
        if base_port + wanted.nodes - 1 + (0 if wanted.is_alone else QUORUM_PORT_OFFSET) > MAX_PORT:
            raise click.UsageError("a port would exceed 65535: choose a lower --base-port")
        ports = [port for node in wanted.all_nodes for port in wanted.ports(node)]
        if len(set(ports)) < len(ports) or max(ports) > MAX_PORT:
            raise click.UsageError(
                "ports overlap or exceed 65535: choose another --metrics-base-port"
            )
        return wanted


class Cluster:
    """The nodes of one folder, and their processes."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder).resolve()
        self._file = self.folder / _STATE
        self._state: State | None = None
        if self._file.exists():
            try:
                self._state = read_state(self._file)
            except (OSError, ValueError):
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
        write_state(self._file, self.state)

    def _command(self, node: int) -> list[str]:
        toml = str(self._home(node) / "server.toml")
        return [*own_command("metaquorum.cli.server.main"), "run", "--config", toml]

    def pid(self, node: int) -> int | None:
        """Return the recorded process id if the process still is this node."""
        pid, began = self.state.pids.get(str(node)), self.state.started.get(str(node))
        if pid is None or (began is not None and start_time(pid) != began):
            return None
        # A writer of cluster.json can name any process: it must be a node of this folder.
        return pid if runs(pid, self._command(node)) else None

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
        self._free_ports(self.state.ports(node))
        with open_log(self._home(node)) as log:
            process = started(self._command(node), own_environment(), log)
        self.state.pids[str(node)] = process.pid
        if (began := start_time(process.pid)) is not None:
            self.state.started[str(node)] = began
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

    def _free_ports(self, ports: Iterable[int]) -> None:
        """Wait for connections in TIME-WAIT to end; fail if a process listens on a port."""
        busy = [port for port in ports if not is_free(port)]
        if taken := [port for port in busy if is_listened_on(port)]:
            _fail(f"ports {taken} are in use by other processes; choose another --base-port")
        if busy:
            click.echo(f"cluster: connections of ports {busy} are in TIME-WAIT; waiting", err=True)
            if not wait(lambda: all(map(is_free, busy)), TIME_WAIT_S, POLL_S * 10):
                _fail(f"ports {busy} are not free after {TIME_WAIT_S:.0f} s")

    def start(self, options: "StartOptions") -> None:
        """Start the nodes of the folder, which are laid out if there are none yet."""
        if self._state and any(self.pid(node) for node in self.nodes):
            _fail(f"a cluster is running in {self.folder}")
        is_new = self._state is None or self._state.failed or options.is_fresh
        if is_new:
            self._begin_anew(options)
        else:
            self._check_kept(options)
        began = time.monotonic()
        try:
            processes = {node: self._launch(node) for node in self.nodes}
            self._wait_ready(processes, began, len(self.state.workers))
        except SystemExit:  # by `_fail`; nodes that stay would hold ports and directories
            # A node that is only slow may be recovering large logs.
            if time.monotonic() - began <= START_TIMEOUT_S and self._stop():
                click.echo("cluster: the nodes that had started were stopped", err=True)
            if is_new and not any(self.pid(node) for node in self.nodes):
                self.state.failed = True
                self._save()
            raise
        click.echo(f"ready in {time.monotonic() - began:.2f} s: bootstrap {self.state.bootstrap()}")

    def _begin_anew(self, options: "StartOptions") -> None:
        """Delete what an earlier start has made in the folder, and write the settings of nodes."""
        wanted = options.state()
        self._free_ports(port for node in wanted.all_nodes for port in wanted.ports(node))
        earlier = self._state
        check_room(self.folder, wanted, earlier)
        if earlier is not None:
            removed = remove(self.folder, earlier)
            if removed and not earlier.failed:
                click.echo(f"deleted {', '.join(removed)} of the earlier cluster in {self.folder}")
            self._file.unlink()
        self._state = wanted
        lay_out(self.folder, wanted, options.configs)
        self._save()

    def _check_kept(self, options: "StartOptions") -> None:
        """Fail if options contradict the settings of the cluster in the folder."""
        kept, wanted = self.state, options.state(self.state)
        ours = replace(wanted, cluster_id=kept.cluster_id, pids=kept.pids, started=kept.started)
        kept_texts = kept_configs(self.folder, 1)
        other = [name for name, text in options.configs.items() if kept_texts.get(name) != text]
        if ours != kept:
            _fail(
                f"the cluster in {self.folder} has {kept.summary()}, not {wanted.summary()}: start"
                " it without these options, or delete its data with --fresh"
            )
        if other:
            _fail(
                f"the cluster in {self.folder} was not started with {', '.join(sorted(other))} as"
                " given by --set: change node*/server.toml there, or delete its data with --fresh"
            )

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
        self.state.started.clear()
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
    help="Node N, from 1, listens on BASE_PORT + N - 1, and on 100 more for other nodes."
    f"  [default: {DEFAULT_BASE_PORT}]",
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
@click.option("--fresh", is_flag=True, help="Delete the data and settings of a cluster in DIR.")
@click.option("--keep", is_flag=True, help="Keep them, which is the default.")
def start(fresh: bool, keep: bool, folder: str, **options: Any) -> None:
    """Start nodes and wait until they are ready.

    If DIR has a cluster that was stopped, it starts again with its data and settings; options that
    contradict these are refused. --fresh deletes them first.

    \b
    Examples:
      mq-server cluster start --nodes 3
      mq-server cluster start
      mq-server cluster start --controllers 3 --workers 4 --base-port 29092
      mq-server cluster start --fresh --nodes 3 --metrics-base-port 9464
    """
    if fresh and keep:
        raise click.UsageError("specify either --fresh or --keep")
    asked = StartOptions(is_fresh=fresh, **options)
    if (asked.controllers is None) != (asked.workers is None) or (
        asked.nodes is not None and asked.workers is not None
    ):
        raise click.UsageError("specify either --nodes, or both --controllers and --workers")
    asked.state()
    try:
        Cluster(folder).start(asked)
    except FilesError as error:
        _fail(str(error))


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
