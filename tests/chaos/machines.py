"""Three nodes, each a controller and a worker, with the faults of machines.

All traffic to a node goes through links: that of clients and followers through one link for each
node, that between controllers through one link for each pair and direction.
"""

import contextlib
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from metaquorum.wire.messages.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumTopic,
)
from metaquorum.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponsePartition,
)
from metaquorum.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.protocol.headers import decode_response, encode_request
from metaquorum.wire.schema.message import Message
from tests.chaos.links import HOST, Link, Links
from tests.clusters import Cluster
from tests.nodes import Node, free_port, wait_until

NUMBERS: Final = (1, 2, 3)
SAFE_DOWNGRADE: Final = 2
ASK_TIMEOUT_S: Final = 2.0
DISK_BYTES: Final = 192 << 20
SETTINGS: Final = {
    "broker.session.timeout.ms": 2500,
    "broker.heartbeat.interval.ms": 400,
    "replica.lag.time.max.ms": 3000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}


class Machines(Cluster):
    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        self.links = Links()
        self._quorum_ports = {number: free_port() for number in NUMBERS}
        self.client_links = {
            n: self.links.add(lambda n=n: self._client_address(n)) for n in NUMBERS
        }  # type: ignore[misc]
        self.quorum_links = {
            (one, other): self.links.add(lambda other=other: (HOST, self._quorum_ports[other]))  # type: ignore[misc]
            for one in NUMBERS
            for other in NUMBERS
            if one != other
        }
        self.paused: set[int] = set()
        self.down: set[int] = set(NUMBERS)
        super().__init__(folder, settings=SETTINGS | dict(settings or {}))
        self.has_disks = all(self._mount(self[number]) for number in NUMBERS)

    def arguments(self, number: int) -> list[str]:
        ports = {number: self._quorum_ports[number]} | {
            other: link.port for (one, other), link in self.quorum_links.items() if one == number
        }
        quorum = ",".join(f"{each}@{HOST}:{ports[each]}" for each in NUMBERS)
        advertised = f"{HOST}:{self.client_links[number].port}"
        return [*super().arguments(number), "--quorum", quorum, "--advertise", advertised]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{link.port}" for link in self.client_links.values())

    def _client_address(self, number: int) -> tuple[str, int]:
        host, port = self[number].bootstrap.split(":")
        return host, int(port)

    # A separate file system for each node, if file systems can be mounted

    def _mount(self, node: Node) -> bool:
        node.data_dir.mkdir()
        options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs"]
        if os.geteuid():
            return False
        done = subprocess.run(["mount", *options, node.data_dir], capture_output=True)
        return done.returncode == 0

    def fill_disk(self, number: int) -> None:
        """Fill the node's file system completely."""
        folder = self[number].data_dir
        with (folder / "ballast").open("wb", buffering=0) as file:
            room = os.statvfs(folder)
            with contextlib.suppress(OSError):  # the node has written meanwhile
                os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize)
            file.seek(0, os.SEEK_END)
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass

    def empty_disk(self, number: int) -> None:
        (self[number].data_dir / "ballast").unlink(missing_ok=True)

    def remove(self) -> None:
        """Kill all nodes, close the links, and unmount the file systems."""
        for number in self.paused:
            os.kill(self[number].pid, signal.SIGKILL)
        self.kill()
        self.links.close()
        for node in self.nodes.values():
            if os.path.ismount(node.data_dir):
                subprocess.run(["umount", node.data_dir], check=True)

    # Faults

    def up(self, *numbers: int) -> None:
        self.start(*numbers)
        self.down -= set(numbers or NUMBERS)

    def crash(self, number: int) -> None:
        self[number].kill()
        self.down.add(number)

    def leave(self, number: int) -> None:
        self.down.add(number)
        self[number].stop()

    def pause(self, number: int) -> None:
        os.kill(self[number].pid, signal.SIGSTOP)
        self.paused.add(number)

    def resume(self, number: int) -> None:
        os.kill(self[number].pid, signal.SIGCONT)
        self.paused.discard(number)

    def links_of(self, number: int) -> list[Link]:
        """Return all links to this node, and those from it to other controllers."""
        pairs = [link for pair, link in self.quorum_links.items() if number in pair]
        return [self.client_links[number], *pairs]

    # Requests to the nodes

    def _ask(self, number: int, api: ApiKey, version: int, message: Message) -> Any:
        with socket.create_connection(self._client_address(number), ASK_TIMEOUT_S) as sock:
            sock.sendall(encode_request(api, version, 1, "chaos", message))
            with sock.makefile("rb") as stream:
                (size,) = struct.unpack(">i", stream.read(4))
                return decode_response(api, version, memoryview(stream.read(size)))[1]

    def _ask_any(self, api: ApiKey, version: int, message: Message) -> Any:
        """Return the response of the first running node that responds; None if none does."""
        for number in NUMBERS:
            if number not in self.down | self.paused:
                try:
                    return self._ask(number, api, version, message)
                except (OSError, struct.error):
                    continue
        return None

    def partitions(self, topic: str) -> dict[int, MetadataResponsePartition]:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        found = self._ask_any(ApiKey.METADATA, 4, asked)
        return {} if found is None else {p.partition_index: p for p in found.topics[0].partitions}

    def set_feature(self, name: str, level: int) -> None:
        key = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=SAFE_DOWNGRADE)
        asked = UpdateFeaturesRequest(feature_updates=[key])

        def changed() -> bool:
            found = self._ask_any(ApiKey.UPDATE_FEATURES, 1, asked)
            return found is not None and not found.error_code

        wait_until(changed, what=f"level {level} of {name}")

    def leader(self, topic: str, partition: int) -> int:
        def known() -> int:
            found = self.partitions(topic).get(partition)
            return 0 if found is None else max(0, found.leader_id)

        return wait_until(known, what="a leader")

    def quorum_leader(self) -> int:
        asked = DescribeQuorumTopic(
            topic_name="__cluster_metadata", partitions=[DescribeQuorumPartition(partition_index=0)]
        )

        def known() -> int:
            found = self._ask_any(ApiKey.DESCRIBE_QUORUM, 1, DescribeQuorumRequest(topics=[asked]))
            if found is None or found.error_code or not found.topics:
                return 0
            return max(0, int(found.topics[0].partitions[0].leader_id))

        return wait_until(known, what="an active controller")

    def wait_in_sync(self, topic: str) -> None:
        """Wait until all replicas of each partition are in sync."""

        def in_sync() -> bool:
            found = self.partitions(topic).values()
            return bool(found) and all(len(p.isr_nodes) == len(NUMBERS) for p in found)

        wait_until(in_sync, what="all replicas in sync")
