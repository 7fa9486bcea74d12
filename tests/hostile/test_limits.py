"""Limits on connections, their idle time and request memory, with a node as a process."""

import contextlib
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from metaquorum.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from metaquorum.wire.protocol.apis import ApiKey
from tests.cli.admin.running import Admin
from tests.conftest import NewNode
from tests.hostile.honest import Client, there_and_back
from tests.nodes import PATIENCE_S, Node, elsewhere, wait_until

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="a node with these settings is needed")

# ApiVersions v0 with correlation id 1 and no client id, and the start of the response.
PING = struct.pack(">ihhih", 10, 18, 0, 1, -1)
PONG = struct.pack(">ih", 1, 0)
MIB = 1 << 20
OVERRIDES = "max.connections.per.ip.overrides"


def address_of(node: Any) -> tuple[str, int]:
    host, port = node.bootstrap.split(":")
    return host, int(port)


def connect(node: Any, source: str = "") -> socket.socket:
    return socket.create_connection(
        address_of(node), timeout=PATIENCE_S, source_address=(source, 0) if source else None
    )


def is_served(sock: socket.socket) -> bool:
    """Return whether a request is answered; otherwise the node has closed the connection."""
    try:
        sock.sendall(PING)
        answer = sock.recv(65536)
    except ConnectionError:
        return False
    assert answer[4:10] == PONG or not answer
    return bool(answer)


def is_ended(sock: socket.socket) -> bool:
    """Wait for the end of the connection. Raises TimeoutError."""
    with contextlib.suppress(ConnectionError):
        return not sock.recv(1)
    return True


@pytest.fixture
def connecting() -> Iterator[Callable[..., socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(connect(*arguments))


Connecting = Callable[..., socket.socket]


def test_max_connections_counts_all_that_are_open(
    start_node: NewNode, connecting: Connecting
) -> None:
    node = start_node({"max.connections": 3})
    first, *others = [connecting(node) for _ in range(3)]
    assert all(map(is_served, (first, *others)))
    assert not is_served(connecting(node))
    assert all(map(is_served, (first, *others)))
    first.close()
    wait_until(lambda: is_served(connecting(node)), what="room for another connection")


def test_max_connections_per_ip_leaves_other_addresses_alone(
    start_node: NewNode, connecting: Connecting
) -> None:
    node = start_node({"max.connections.per.ip": 2})
    assert all(is_served(connecting(node, "127.0.0.1")) for _ in range(2))
    assert not is_served(connecting(node, "127.0.0.1"))
    assert all(is_served(connecting(node, "127.0.0.2")) for _ in range(2))
    assert not is_served(connecting(node, "127.0.0.2"))


def test_a_start_option_lets_in_whom_dynamic_limits_refuse(
    start_node: NewNode, connecting: Connecting
) -> None:
    """The node's own options do not help: a dynamic config overrides them."""
    node = start_node({})

    admin = Admin(MQ_BOOTSTRAP=node.bootstrap)
    admin("configs", "set", "broker", "default", f"{OVERRIDES}=127.0.0.1:0")
    wait_until(lambda: not is_served(connecting(node)), what="the limit to be in force")
    node.stop()
    node.configure({OVERRIDES: "127.0.0.1:5"})
    node.start()
    assert not is_served(connecting(node))
    node.stop()
    node.configure({}, "--ignore-dynamic-connection-limits")
    node.start()
    assert is_served(connecting(node))
    assert f"ignoring {OVERRIDES}=127.0.0.1:0" in node.log()
    admin("configs", "unset", "broker", "default", OVERRIDES)


def test_connections_without_whole_requests_end_when_idle(
    start_node: NewNode, connecting: Connecting
) -> None:
    """tests/dataplane checks with a virtual clock when they end, and that others stay."""
    node = start_node({"connections.max.idle.ms": 1000})
    silent, half = (connecting(node) for _ in range(2))
    half.sendall(PING[:-1])
    assert is_ended(silent)
    assert is_ended(half)
    assert is_served(connecting(node))


def test_a_request_beyond_socket_request_max_bytes_ends_its_connection(
    start_node: NewNode, connecting: Connecting
) -> None:
    node = start_node({"socket.request.max.bytes": 1000})
    sock = connecting(node)
    # A request of the maximum size; the node ignores bytes after the message.
    sock.sendall(struct.pack(">i", 1000) + PING[4:] + bytes(990))
    assert sock.recv(65536)[4:10] == PONG
    sock.sendall(struct.pack(">i", 1001))
    assert is_ended(sock)
    assert is_served(connecting(node))


def test_queued_max_request_bytes_bounds_what_is_under_way(
    start_node: NewNode, connecting: Connecting
) -> None:
    """Small requests do not wait behind large ones, and a large one gets memory in its turn.

    tests/dataplane checks with a virtual clock that the third request must wait.
    """
    node = start_node({"queued.max.request.bytes": 2 * MIB})
    client = Client(*address_of(node))
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    client.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=100_000))
    large = struct.pack(">i", MIB - 4) + PING[4:]
    holders = [connecting(node) for _ in range(2)]
    for sock in holders:
        sock.sendall(large)
    waiting = connecting(node)
    waiting.sendall(large)
    waiting.sendall(bytes(MIB - len(large)))
    there_and_back(client, "t", b"small")
    holders[0].close()
    waiting.settimeout(PATIENCE_S)
    assert waiting.recv(65536)[4:10] == PONG
    # A client that holds request memory that others need, and sends nothing, soon loses it.
    others = [connecting(node) for _ in range(3)]
    for sock in others:
        sock.sendall(large)
    there_and_back(client, "t", bytes(200_000))
    client.close()


COUNT = 10_000
ROOM_KIB_EACH = 40


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the limit of open files as far as allowed, for this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < COUNT + 1000:
        pytest.skip(f"{hard} open files are allowed here, and {COUNT} connections need more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ten_thousand_connections_are_cheap(many_files: None, start_node: NewNode) -> None:
    node = start_node()
    assert isinstance(node, Node)
    before = rss_kib(node)
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(node)) for _ in range(COUNT)]
        for sock in socks:
            sock.sendall(PING)
        assert all(sock.recv(65536)[4:10] == PONG for sock in socks)
        assert is_served(socks[0])
        assert is_served(socks[-1])
        assert rss_kib(node) - before < COUNT * ROOM_KIB_EACH
    with connect(node) as sock:
        assert is_served(sock)


def rss_kib(node: Node) -> int:
    with open(f"/proc/{node.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
