"""Many clients on the listener that workers fetch from each other."""

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from metaquorum.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from metaquorum.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from metaquorum.wire.protocol.apis import ApiKey
from tests.clusters import Cluster
from tests.hostile.honest import Client
from tests.hostile.test_limits import PING, address_of
from tests.nodes import elsewhere, unique, wait_until

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="nodes with these settings are needed")

LEADER, FOLLOWER = 1, 2
MOST: Final = 20
CROWD: Final = 2000
AT_ONCE: Final = 200
PAUSE_S: Final = 0.05


class Crowd:
    """Clients that connect, of which some send requests; rejected clients connect again."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.come_count = 0

    def __enter__(self) -> "Crowd":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            poll, inside = select.epoll(), dict[int, socket.socket]()
            stack.callback(poll.close)
            while not self._stopped.wait(PAUSE_S):
                for number in range(AT_ONCE - len(inside)):
                    sock = socket.socket()
                    sock.setblocking(False)
                    with contextlib.suppress(BlockingIOError, ConnectionError):
                        sock.connect(self._address)
                    inside[sock.fileno()] = sock
                    poll.register(sock, select.EPOLLIN | select.EPOLLRDHUP)
                    self.come_count += 1
                    if number % 2:
                        with contextlib.suppress(OSError):
                            sock.send(PING)
                for fd, event in poll.poll(0):
                    if event & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                        poll.unregister(fd)
                        inside.pop(fd).close()
            for sock in inside.values():
                sock.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    settings = {"max.connections": MOST, "max.connections.per.ip": MOST}
    found = Cluster(tmp_path, (LEADER,), (LEADER, FOLLOWER), settings)
    found.start()
    yield found
    found.stop()


def in_sync(client: Client, topic: str) -> list[int]:
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    return sorted(client.call(ApiKey.METADATA, asked).topics[0].partitions[0].isr_nodes)


def test_a_crowd_of_clients_keeps_no_follower_from_its_leader(cluster: Cluster) -> None:
    """All connection limits are reached, including that of the shared IP address."""
    topic = unique("crowded")
    with contextlib.closing(Client(*address_of(cluster[FOLLOWER]))) as client:
        made = CreatableTopic(
            name=topic,
            assignments=[CreatableReplicaAssignment(broker_ids=[LEADER, FOLLOWER])],
            num_partitions=-1,
            replication_factor=-1,
        )
        asked = CreateTopicsRequest(topics=[made], timeout_ms=100_000)
        assert not client.call(ApiKey.CREATE_TOPICS, asked).topics[0].error_code
    cluster[FOLLOWER].stop()
    with Crowd(address_of(cluster[LEADER])) as crowd:
        wait_until(lambda: crowd.come_count >= CROWD, what="the crowd")
        cluster[FOLLOWER].start()
        with contextlib.closing(Client(*address_of(cluster[FOLLOWER]))) as client:
            wait_until(lambda: in_sync(client, topic) == [LEADER, FOLLOWER], what="the follower")
