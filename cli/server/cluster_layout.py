"""Files, roles and ports of a cluster of `mq-server cluster`.

    DIR/cluster.json            options of the start, process ids and times of their start
    DIR/secret                  secret that authenticates the nodes, if there are several
    DIR/nodeN/server.toml       settings of node N;  DIR/nodeN/data, DIR/nodeN/log

Node N, from 1, listens on base port + N - 1 for clients if it is a worker, and on that port + 100
for other nodes if it is one of several controllers; for Prometheus, if enabled, on the metrics base
port + N - 1.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from metaquorum.cli.common.processes import HOST
from metaquorum.cli.server.quorum_options import QUORUM_SIZES

QUORUM_PORT_OFFSET: Final = 100
MAX_NODES: Final = QUORUM_PORT_OFFSET
SECRET: Final = "secret"  # noqa: S105


@dataclass
class State:
    """Content of cluster.json. The first `controllers` nodes are voters."""

    nodes: int
    base_port: int
    pids: dict[str, int] = field(default_factory=dict)
    controllers: int = 1
    separate: bool = False  # the controllers are not workers
    cluster_id: str = ""
    metrics_base_port: int | None = None
    started: dict[str, float] = field(default_factory=dict)  # as `processes.start_time`, by node
    failed: bool = False  # the first start failed, and all its nodes were stopped

    @staticmethod
    def combined(nodes: int, base_port: int, cluster_id: str) -> "State":
        """Return a cluster of workers, as many of which as possible are controllers, too."""
        controllers = max(size for size in QUORUM_SIZES if size <= nodes)
        return State(nodes, base_port, controllers=controllers, cluster_id=cluster_id)

    @property
    def is_alone(self) -> bool:
        return self.nodes == 1

    @property
    def all_nodes(self) -> range:
        return range(1, self.nodes + 1)

    @property
    def workers(self) -> range:
        return range(self.controllers + 1 if self.separate else 1, self.nodes + 1)

    def is_controller(self, node: int) -> bool:
        return node <= self.controllers

    def is_worker(self, node: int) -> bool:
        return node in self.workers

    def roles(self, node: int) -> str:
        roles = (("controller", self.is_controller(node)), ("worker", self.is_worker(node)))
        return ",".join(role for role, has in roles if has)

    def port(self, node: int) -> int:
        """Return the port for clients; for a node that is only a controller, that for nodes."""
        return self.base_port + node - 1 + (0 if self.is_worker(node) else QUORUM_PORT_OFFSET)

    def ports(self, node: int) -> list[int]:
        ports = [self.port(node)] if self.is_worker(node) else []
        if self.is_controller(node) and not self.is_alone:
            ports.append(self.base_port + node - 1 + QUORUM_PORT_OFFSET)
        if self.metrics_base_port is not None:
            ports.append(self.metrics_base_port + node - 1)
        return ports

    def quorum(self) -> str:
        return ",".join(
            f"{node}@{HOST}:{self.base_port + node - 1 + QUORUM_PORT_OFFSET}"
            for node in range(1, self.controllers + 1)
        )

    def summary(self) -> str:
        """Return the options that determine the nodes and their ports, as text."""
        nodes = f"{self.nodes} node{'s' if self.nodes > 1 else ''}"
        if self.separate:
            nodes = f"{self.controllers} controllers and {len(self.workers)} workers"
        metrics = f", --metrics-base-port {self.metrics_base_port}"
        has_metrics = self.metrics_base_port is not None
        return f"{nodes}, --base-port {self.base_port}{metrics if has_metrics else ''}"

    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{self.port(node)}" for node in self.workers)


def server_toml(state: State, node: int, folder: Path, configs: Mapping[str, str]) -> str:
    """Return the server.toml of a node."""
    keys: list[tuple[str, str | int]] = [
        ("node-id", node),
        ("data-dir", str(folder / f"node{node}" / "data")),
        ("cluster-id", state.cluster_id),
    ]
    if state.is_worker(node):
        keys.append(("listen", f"{HOST}:{state.port(node)}"))
    if state.metrics_base_port is not None:
        keys.append(("metrics-listen", f"{HOST}:{state.metrics_base_port + node - 1}"))
    if not state.is_alone:
        keys += [
            ("roles", state.roles(node)),
            ("quorum", state.quorum()),
            ("secret-file", str(folder / SECRET)),
        ]
    return "\n".join([*_lines(keys), "", "[config]", *_lines(configs.items(), quoted=True), ""])


def _lines(pairs: Iterable[tuple[str, str | int]], *, quoted: bool = False) -> list[str]:
    return [f"{_text(key) if quoted else key} = {_text(value)}" for key, value in pairs]


def _text(value: str | int) -> str:
    return json.dumps(value, ensure_ascii=False)
