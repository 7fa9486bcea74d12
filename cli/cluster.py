"""mq-server cluster: nodes as processes of this machine, for trying out, testing and measuring.

Everything lies in one folder: node*/server.toml, node*/data, node*/log and cluster.json, which says
which processes were started. Nothing outside it is touched, and only those processes are signalled,
after a look at what runs under their ids. The verbs, options and lines printed are those of the
project's script for a real Kafka (tests/peers/kafka/cluster), so that a tool works with either.
"""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import click

DEFAULT_DIR: Final = "mq-cluster"
DEFAULT_BASE_PORT: Final = 19092
MAX_PORT: Final = 65_535
START_TIMEOUT_S: Final = 120.0
TERM_TIMEOUT_S: Final = 30.0
KILL_TIMEOUT_S: Final = 5.0
PROBE_TIMEOUT_S: Final = 1.0
POLL_S: Final = 0.01
MAX_METADATA_BYTES: Final = 1 << 20
_HOST: Final = "127.0.0.1"
_STATE: Final = "cluster.json"
_PROC: Final = Path("/proc")
# Metadata v4, correlation id 1, no client id: no topics, none to be created.
_METADATA_REQUEST: Final = struct.pack(">ihhihiB", 15, 3, 4, 1, -1, 0, 0)
_BROKERS_AT: Final = 8  # of that response: behind the correlation id and the throttle time


@dataclass
class State:
    """What cluster.json keeps."""

    nodes: int
    base_port: int
    pids: dict[str, int] = field(default_factory=dict)


def _fail(message: str) -> NoReturn:
    click.echo(f"cluster: {message}", err=True)
    sys.exit(1)


def _brokers(port: int, cluster_id: str) -> int:
    """How many brokers the node at this port knows; 0 when none of this cluster answers there."""
    try:
        with socket.create_connection((_HOST, port), PROBE_TIMEOUT_S) as sock:
            sock.sendall(_METADATA_REQUEST)
            with sock.makefile("rb") as stream:
                (size,) = struct.unpack(">i", stream.read(4))
                reply = stream.read(min(size, MAX_METADATA_BYTES))
        (count,) = struct.unpack_from(">i", reply, _BROKERS_AT)
    except (OSError, struct.error):
        return 0
    return int(count) if cluster_id and cluster_id.encode() in reply else 0


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((_HOST, port))
        except OSError:
            return False
        return True


def _command_line(pid: int) -> str:
    """What runs as this process; empty when nothing does, or only its remains."""
    if _PROC.joinpath("self").exists():
        try:
            return os.fsdecode(_PROC.joinpath(str(pid), "cmdline").read_bytes())
        except OSError:
            return ""
    ps = subprocess.run(  # noqa: S603
        ["ps", "-ww", "-p", str(pid), "-o", "command="],  # noqa: S607
        capture_output=True,
        check=False,
    )
    return os.fsdecode(ps.stdout)


def _server_toml(node: int, data_dir: Path, port: int, configs: Mapping[str, str]) -> str:
    def text(value: str) -> str:
        return json.dumps(value, ensure_ascii=False)

    lines = [
        f"node-id = {node}",
        f"data-dir = {text(str(data_dir))}",
        f"listen = {text(f'{_HOST}:{port}')}",
        "",
        "[config]",
        *(f"{text(key)} = {text(value)}" for key, value in configs.items()),
    ]
    return "\n".join(lines) + "\n"


class Cluster:
    """The nodes of one folder, and what was started there."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder).absolute()
        self._file = self.folder / _STATE
        self._state: State | None = None
        if self._file.exists():
            try:
                self._state = State(**json.loads(self._file.read_text()))
            except (OSError, ValueError, TypeError):
                _fail(f"{self._file} is not what start writes; choose another --dir")

    @property
    def state(self) -> State:
        if self._state is None:
            _fail(f"none was started in {self.folder}")
        return self._state

    @property
    def nodes(self) -> range:
        return range(1, self.state.nodes + 1)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{_HOST}:{self._port(node)}" for node in self.nodes)

    def _home(self, node: int) -> Path:
        return self.folder / f"node{node}"

    def _port(self, node: int) -> int:
        return self.state.base_port + node - 1

    def _save(self) -> None:
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self.state), indent=1) + "\n")
        temporary.replace(self._file)

    def pid(self, node: int) -> int | None:
        """The recorded process, when it is still this node's."""
        pid = self.state.pids.get(str(node))
        mine = str(self._home(node) / "server.toml")
        return pid if pid and mine in _command_line(pid) else None

    def _cluster_id(self, node: int) -> str:
        try:
            text = (self._home(node) / "data" / "meta.properties").read_text()
        except OSError:
            return ""
        return dict(line.partition("=")[::2] for line in text.splitlines()).get("cluster.id", "")

    def _knows(self, node: int) -> int:
        return _brokers(self._port(node), self._cluster_id(node))

    def _launch(self, node: int) -> "subprocess.Popen[bytes]":
        if not _is_free(self._port(node)):
            _fail(
                f"port {self._port(node)} is taken by another process; choose another --base-port"
            )
        home = self._home(node)
        # In the folder of the caller: whatever runs this command must be able to run the node.
        command = [sys.executable, "-m", "cli.mq_server", "run", "--config"]
        with (home / "log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603
                [*command, str(home / "server.toml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.state.pids[str(node)] = process.pid
        self._save()
        return process

    def _wait_ready(
        self, processes: Mapping[int, "subprocess.Popen[bytes]"], began: float, expected: int
    ) -> None:
        """Each of these nodes answers, and knows all the brokers expected."""
        waiting = dict(processes)
        while waiting:
            for node, process in list(waiting.items()):
                if (code := process.poll()) is not None:
                    _fail(f"node {node} ended with {code}: {self._last_line(node)}")
                if self._knows(node) >= expected:
                    click.echo(
                        f"node {node} ready after {time.monotonic() - began:.2f} s: "
                        f"{_HOST}:{self._port(node)} pid {process.pid}"
                    )
                    del waiting[node]
            if time.monotonic() - began > START_TIMEOUT_S:
                _fail(
                    f"nodes {sorted(waiting)} not ready after {START_TIMEOUT_S:.0f} s; "
                    f"see {self.folder}/node*/log"
                )
            if waiting:
                time.sleep(POLL_S)

    def _last_line(self, node: int) -> str:
        log = self._home(node) / "log"
        lines = log.read_text(errors="replace").splitlines()
        return f"{lines[-1] if lines else 'it said nothing'} (log: {log})"

    def start(self, nodes: int, base_port: int, configs: Mapping[str, str], keep: bool) -> None:
        if self._state and any(self.pid(node) for node in self.nodes):
            _fail(f"one is running in {self.folder}")
        if not (keep and self._state):
            taken = [port for port in range(base_port, base_port + nodes) if not _is_free(port)]
            if taken:
                _fail(f"ports {taken} are taken by other processes; choose another --base-port")
            self._lay_out(nodes, base_port, configs)
        began = time.monotonic()
        self._wait_ready({node: self._launch(node) for node in self.nodes}, began, len(self.nodes))
        click.echo(f"ready in {time.monotonic() - began:.2f} s: bootstrap {self.bootstrap}")

    def _lay_out(self, nodes: int, base_port: int, configs: Mapping[str, str]) -> None:
        """Settings for each node, and no data: what an earlier start left here is gone."""
        earlier = [path for path in self.folder.glob("node[1-9]") if path.is_dir()]
        if earlier and self._state is None:
            _fail(f"{earlier[0]} was not made by this command; choose another --dir")
        for path in earlier:
            shutil.rmtree(path)
        self._state = State(nodes, base_port)
        for node in self.nodes:
            home = self._home(node)
            home.mkdir(parents=True)
            settings = _server_toml(node, home / "data", self._port(node), configs)
            (home / "server.toml").write_text(settings)
        self._save()

    def stop(self) -> None:
        running = {node: pid for node in self.nodes if (pid := self.pid(node))}
        for number, seconds in ((signal.SIGTERM, TERM_TIMEOUT_S), (signal.SIGKILL, KILL_TIMEOUT_S)):
            for node in running:
                if self.pid(node):
                    _send(running[node], signal.SIGCONT)
                    _send(running[node], number)
            if _wait(lambda: not any(self.pid(node) for node in running), seconds):
                break
        self.state.pids.clear()
        self._save()
        click.echo(f"stopped {len(running)}")

    def signal(self, node: int, number: signal.Signals) -> None:
        pid = self.pid(node)
        if pid is None:
            _fail(f"node {node} is not running")
        _send(pid, number)
        ends = number in (signal.SIGKILL, signal.SIGTERM)
        if ends and not _wait(lambda: not self.pid(node), 2 * TERM_TIMEOUT_S):
            _fail(f"node {node} still runs")
        click.echo(f"{number.name} to node {node}, pid {pid}")

    def restart(self, node: int) -> None:
        if pid := self.pid(node):
            _send(pid, signal.SIGCONT)
            self.signal(node, signal.SIGTERM)
        began = time.monotonic()
        alive = sum(bool(self.pid(other)) for other in self.nodes if other != node)
        self._wait_ready({node: self._launch(node)}, began, expected=alive + 1)

    def status(self) -> None:
        click.echo(f"bootstrap {self.bootstrap}  dir {self.folder}")
        for node in self.nodes:
            pid = self.pid(node)
            if not pid:
                click.echo(f"node {node}  {self._port(node)}  down")
                continue
            click.echo(
                f"node {node}  {self._port(node)}  pid {pid}  knows {self._knows(node)} brokers"
                f"{_usage(pid)}"
            )

    def pids(self) -> None:
        click.echo(",".join(str(pid) for node in self.nodes if (pid := self.pid(node))))


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it ended in the meantime


def _wait(condition: Callable[[], bool], timeout_s: float) -> bool:
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True


def _usage(pid: int) -> str:
    """CPU time and resident memory, where /proc tells."""
    try:
        fields = _PROC.joinpath(str(pid), "stat").read_text().rpartition(")")[2].split()
        pages = int(_PROC.joinpath(str(pid), "statm").read_text().split()[1])
    except OSError:
        return ""
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    rss_mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return f"  cpu {cpu_s:.1f} s  rss {rss_mib:.0f} MiB"


# -- commands ------------------------------------------------------------------------------------

_dir_option = click.option(
    "--dir",
    "folder",
    metavar="DIR",
    default=DEFAULT_DIR,
    show_default=True,
    help="Folder that holds all of the cluster.",
)


def _settings(_: click.Context, __: click.Parameter, sets: Iterable[str]) -> dict[str, str]:
    settings = {}
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE")
        settings[name.strip()] = value
    return settings


@click.group("cluster")
def cluster_group() -> None:
    """Start and stop nodes on this machine, kill them, pause them."""


@cluster_group.command("start")
@_dir_option
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--base-port",
    type=click.IntRange(1, MAX_PORT),
    default=DEFAULT_BASE_PORT,
    show_default=True,
    help="Node N, from 1, listens on BASE_PORT + N - 1.",
)
@click.option(
    "--set",
    "configs",
    multiple=True,
    callback=_settings,
    metavar="KEY=VALUE",
    help="A config of every node; repeatable.",
)
@click.option("--keep", is_flag=True, help="Start again on DIR's data and settings.")
def start(folder: str, nodes: int, base_port: int, configs: dict[str, str], keep: bool) -> None:
    """Start nodes and wait until they serve; data of an earlier start in DIR is removed."""
    if nodes != 1:
        raise click.UsageError("several nodes come with the quorum: this version runs --nodes 1")
    Cluster(folder).start(nodes, base_port, configs, keep)


@cluster_group.command("stop")
@_dir_option
def stop(folder: str) -> None:
    """Stop all nodes; their data stays."""
    Cluster(folder).stop()


@cluster_group.command("status")
@_dir_option
def status(folder: str) -> None:
    """Print the bootstrap addresses and how each node does."""
    Cluster(folder).status()


@cluster_group.command("pids")
@_dir_option
def pids(folder: str) -> None:
    """Print the process ids of the running nodes, with commas."""
    Cluster(folder).pids()


@cluster_group.command("restart")
@click.argument("node", type=int)
@_dir_option
def restart(node: int, folder: str) -> None:
    """Stop node N in order, if it runs, and start it again."""
    _member(Cluster(folder), node).restart(node)


def _member(cluster: Cluster, node: int) -> Cluster:
    if node not in cluster.nodes:
        raise click.UsageError(f"there is no node {node}: this cluster has {len(cluster.nodes)}")
    return cluster


def _signal_command(name: str, number: signal.Signals, does: str) -> None:
    @cluster_group.command(name, help=f"{does} ({number.name}).")
    @click.argument("node", type=int)
    @_dir_option
    def send(node: int, folder: str) -> None:
        _member(Cluster(folder), node).signal(node, number)


_signal_command("kill", signal.SIGKILL, "End node N at once, as a crash does")
_signal_command("term", signal.SIGTERM, "End node N in order")
_signal_command("pause", signal.SIGSTOP, "Freeze node N")
_signal_command("resume", signal.SIGCONT, "Let node N go on")
