"""Nodes for the tests of groups: one node, or a cluster of three; metaquorum or Apache Kafka."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from metaquorum.wire.protocol.apis import APIS
from tests.clusters import Cluster
from tests.conformance.groups.raw import coordinator_of
from tests.nodes import KAFKA, LASTING, PATIENCE_S, SHARED, free_ports

NODES: Final = 3
JOIN_GROUP: Final = 11
# Short session timeouts let a test kill a member and end within seconds. Few partitions of the
# internal topics are created faster. Transactions end soon after their timeout.
SETTINGS: Final = {
    **SHARED,
    "group.min.session.timeout.ms": 500,
    "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 5,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}
THREE: Final = {"offsets.topic.replication.factor": 3, "min.insync.replicas": 2}
WITH_GROUPS: Final = {**SETTINGS, **THREE}


def is_kafka() -> bool:
    """Return whether METAQUORUM_TEST_PEER selects Apache Kafka."""
    return os.environ.get("METAQUORUM_TEST_PEER", "") == "kafka"


def missing_groups() -> str:
    """Return why metaquorum cannot run these tests; empty if it can."""
    served = any(int(key) == JOIN_GROUP for key in APIS)
    return "" if served or is_kafka() else "this version of metaquorum does not serve JoinGroup"


class ThreeNodes(Protocol):
    """A cluster of the nodes 1 to 3."""

    @property
    def addresses(self) -> list[str]:
        """Addresses of the nodes 1, 2 and 3."""

    def start(self) -> None: ...

    def kill(self, number: int) -> None: ...

    def restart(self, number: int) -> None: ...

    def stop(self) -> None: ...


class OurThree:
    """Three metaquorum nodes, each with both roles.

    `log_dirs`: names of their log directories, in the folder of each node.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] = WITH_GROUPS,
        log_dirs: Sequence[str] = (),
    ) -> None:
        self.cluster: Final = Cluster(folder, settings=settings)
        for node in self.cluster.nodes.values():
            if log_dirs:
                paths = [str(node.folder / each) for each in log_dirs]
                node.configure({"log.dirs": ",".join(paths)})

    @property
    def addresses(self) -> list[str]:
        return self.cluster.bootstrap.split(",")

    def start(self) -> None:
        self.cluster.start()

    def kill(self, number: int) -> None:
        self.cluster[number].kill()

    def restart(self, number: int) -> None:
        self.cluster.start(number)

    def stop(self) -> None:
        self.cluster.stop()


class KafkaThree:
    """Three Apache Kafka nodes, each with both roles, as `OurThree`."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] = WITH_GROUPS,
        log_dirs: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._port = free_ports([1, 2, 100, 101, 102])
        # Directories are relative to the folder of each node.
        dirs = {"log.dirs": ",".join(log_dirs)} if log_dirs else {}
        self._settings = {**LASTING, **settings, **dirs}

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{self._port + number}" for number in range(NODES)]

    def start(self) -> None:
        sets = [
            part for key, value in self._settings.items() for part in ("--set", f"{key}={value}")
        ]
        size = ("--nodes", str(NODES), "--heap", "400m")
        self._run("start", "--base-port", str(self._port), *size, *sets)

    def kill(self, number: int) -> None:
        self._run("kill", str(number))

    def restart(self, number: int) -> None:
        self._run("restart", str(number))

    def stop(self) -> None:
        self._run("stop")

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [KAFKA / "cluster", *arguments, "--dir", self._folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
        )
        if done.returncode:
            raise RuntimeError(done.stdout)


def three_nodes(folder: Path) -> ThreeNodes:
    return KafkaThree(folder) if is_kafka() else OurThree(folder)


def coordinator_node(nodes: ThreeNodes, group: str) -> int:
    """Wait until the group has a coordinator; return the number of its node."""
    return nodes.addresses.index(coordinator_of(",".join(nodes.addresses), group)) + 1
