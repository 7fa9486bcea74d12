"""Clusters of metaquorum nodes as processes, each node in any role."""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.cli.admin.running import Admin
from tests.nodes import Node, free_port, wait_until

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
SECRET_BYTES = 24
# Lines of a log that no test of a shared cluster may cause.
_ERRORS = re.compile(r"^.*(?: ERROR | CRITICAL |Traceback ).*$", re.MULTILINE)
_REGISTERED = re.compile(r"is registered with controller (\d+) in term (\d+)")


class Cluster:
    """Nodes by number. Those in `controllers` vote, those in `workers` serve clients."""

    def __init__(
        self,
        folder: Path,
        controllers: Iterable[int] = (1, 2, 3),
        workers: Iterable[int] = (1, 2, 3),
        settings: Mapping[str, object] | None = None,
        racks: Mapping[int, str] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.racks = racks or {}
        self._host = host
        self.controllers, self.workers = tuple(controllers), tuple(workers)
        folder.mkdir(parents=True, exist_ok=True)
        self.secret = folder / "secret"
        self.secret.touch(mode=0o600)
        self.secret.write_text(secrets.token_urlsafe(SECRET_BYTES))
        self.quorum = ",".join(f"{number}@{host}:{free_port()}" for number in self.controllers)
        self.nodes = {
            number: self.node(folder / f"node{number}", number, settings)
            for number in sorted({*self.controllers, *self.workers})
        }

    def node(
        self,
        folder: Path,
        number: int,
        settings: Mapping[str, object] | None = None,
        *,
        cluster_id: str | None = CLUSTER_ID,
        secret: Path | None = None,
    ) -> Node:
        arguments = [*self.arguments(number), "--secret-file", str(secret or self.secret)]
        if number in self.racks:
            arguments += ["--rack", self.racks[number]]
        if cluster_id is not None:
            arguments += ["--cluster-id", cluster_id]
        node = Node(folder, settings, *arguments)
        node.bootstrap = f"{self._host}:{free_port()}"
        return node

    def arguments(self, number: int) -> list[str]:
        """Return the command-line arguments of this node: its roles, the quorum and the secret."""
        roles = [
            role
            for role, numbers in (("controller", self.controllers), ("worker", self.workers))
            if number in numbers
        ]
        given = ["--node-id", str(number), "--roles", ",".join(roles) or "worker"]
        return [*given, "--quorum", self.quorum]

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    @property
    def bootstrap(self) -> str:
        return ",".join(self[number].bootstrap for number in self.workers)

    def start(self, *numbers: int) -> None:
        """Start these nodes, or all, at the same time, and wait until they are ready."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda number: self[number].start(), numbers or self.nodes))

    def stop(self) -> None:
        """Stop all nodes at the same time; each must exit cleanly."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(Node.stop, self.nodes.values()))

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def active_controller(self) -> int:
        """Return the controller of the highest term with which a worker has registered."""
        found = [
            (int(term), int(controller))
            for number in self.workers
            for controller, term in _REGISTERED.findall(self[number].errors.read_text())
        ]
        return max(found)[1]

    def damage(self) -> list[str]:
        """Return what is not as at the start: workers, replicas, and errors in the logs."""
        health = Admin(MQ_BOOTSTRAP=self.bootstrap).json("cluster", "health")
        wanted = {
            "healthy": True,
            "workers": len(self.workers),
            "live_workers": len(self.workers),
            "offline": 0,
            "under_replicated": 0,
        }
        found = [
            f"{name} is {health[name]}, not {value}"
            for name, value in wanted.items()
            if health[name] != value
        ]
        return found + [
            f"node {number}: {line}"
            for number, node in self.nodes.items()
            for line in _ERRORS.findall(node.log())
        ]


@contextmanager
def shared(cluster: Cluster) -> Iterator[Cluster]:
    """Run the cluster for many tests, which must leave it as it was."""
    cluster.start()
    try:
        yield cluster
        found: list[str] = []

        def is_whole() -> bool:
            found[:] = cluster.damage()
            return not found

        wait_until(is_whole, what=found)
        cluster.stop()
    finally:
        cluster.kill()
