"""Edge cases of the protocol that no client sends: raw bytes on a socket.

Written without this project's codec, so that it can check it.
"""

import contextlib
import itertools
import random
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.nodes import PATIENCE_S, Peer

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
UNSUPPORTED_VERSION = 35
# Versions that current clients choose: both ends of each row must be supported.
CHOSEN = {
    0: (7, 13),  # Produce
    1: (7, 18),  # Fetch
    2: (2, 11),  # ListOffsets
    3: (5, 13),  # Metadata
    9: (3, 10),  # OffsetFetch
    10: (1, 6),  # FindCoordinator
    18: (0, 4),  # ApiVersions
    19: (2, 7),  # CreateTopics
    20: (1, 6),  # DeleteTopics
    22: (0, 5),  # InitProducerId
    23: (4, 4),  # OffsetForLeaderEpoch
    60: (1, 2),  # DescribeCluster
}


@contextlib.contextmanager
def connection(node: Peer) -> Iterator[socket.socket]:
    host, port = node.bootstrap.rsplit(":", 1)
    with socket.create_connection((host, int(port)), PATIENCE_S) as sock:
        yield sock


def frame(key: int, version: int, correlation: int, body: bytes, tagged: bool = False) -> bytes:
    header = struct.pack(">hhih", key, version, correlation, 4) + b"test" + b"\0" * tagged
    return struct.pack(">i", len(header + body)) + header + body


def receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def answer(sock: socket.socket) -> tuple[int, bytes]:
    """Return the correlation id and the bytes after it."""
    data = receive(sock, struct.unpack(">i", receive(sock, 4))[0])
    return struct.unpack(">i", data[:4])[0], data[4:]


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def api_versions(correlation: int, version: int) -> bytes:
    name = b"\x05test\x041.0\0" if version >= 3 else b""
    return frame(API_VERSIONS, version, correlation, name, tagged=version >= 3)


def served(body: bytes, version: int) -> dict[int, tuple[int, int]]:
    """Return the table of an ApiVersions response, which is not compact before version 3."""
    assert struct.unpack_from(">h", body)[0] == 0
    if version < 3:
        (count,) = struct.unpack_from(">i", body, 2)
        rows, size = 6, 6
    else:
        count, rows, size = body[2] - 1, 3, 7
        if count >= 127:
            count, rows = (body[2] & 127 | body[3] << 7) - 1, 4
    return {
        key: (low, high)
        for key, low, high in (
            struct.unpack_from(">hhh", body, rows + size * i) for i in range(count)
        )
    }


def metadata(correlation: int) -> bytes:
    """Return a Metadata request of version 5 for no topics."""
    return frame(METADATA, 5, correlation, struct.pack(">ib", 0, 0))


def still_serves(node: Peer) -> bool:
    with connection(node) as sock:
        sock.sendall(metadata(77))
        return answer(sock)[0] == 77


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_api_versions_gives_the_same_table(node: Peer, version: int) -> None:
    with connection(node) as sock:
        sock.sendall(api_versions(1, 0) + api_versions(2, version))
        correlation, body = answer(sock)
        assert correlation == 1
        first = served(body, 0)
        correlation, body = answer(sock)
        assert correlation == 2
        assert served(body, version) == first


def test_the_versions_that_clients_choose_are_served(node: Peer) -> None:
    with connection(node) as sock:
        sock.sendall(api_versions(1, 0))
        table = served(answer(sock)[1], 0)
    for key, (low, high) in CHOSEN.items():
        assert table[key][0] <= low, key
        assert table[key][1] >= high, key


def test_api_versions_of_the_future_is_answered_in_version_zero(node: Peer) -> None:
    with connection(node) as sock:
        for correlation in (1, 2):  # the connection stays open
            sock.sendall(api_versions(correlation, 99))
            got, body = answer(sock)
            assert got == correlation
            code, count = struct.unpack_from(">hi", body)
            assert code == UNSUPPORTED_VERSION
            rows = [struct.unpack_from(">hhh", body, 6 + 6 * i) for i in range(count)]
            ranges = {key: (low, high) for key, low, high in rows}
            assert ranges[API_VERSIONS][0] == 0
            assert ranges[API_VERSIONS][1] >= 4


def test_requests_are_answered_in_order_however_they_are_cut(node: Peer) -> None:
    stream = b"".join(metadata(i) if i % 3 else api_versions(i, i % 5) for i in range(200))
    rand = random.Random(3)
    cuts = sorted(rand.sample(range(1, len(stream)), 100))
    with connection(node) as sock:
        for start, end in itertools.pairwise([0, *cuts, len(stream)]):
            sock.sendall(stream[start:end])
        assert [answer(sock)[0] for _ in range(200)] == list(range(200))


def test_a_request_may_come_byte_by_byte(node: Peer) -> None:
    with connection(node) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in metadata(5):
            sock.sendall(bytes([byte]))
        assert answer(sock)[0] == 5


def test_requests_sent_before_the_end_of_the_stream_are_answered(node: Peer) -> None:
    with connection(node) as sock:
        sock.sendall(metadata(1) + metadata(2))
        assert [answer(sock)[0], answer(sock)[0]] == [1, 2]
        sock.shutdown(socket.SHUT_WR)
        assert is_closed(sock)


@pytest.mark.parametrize(
    "data",
    [
        frame(9999, 0, 1, b""),
        frame(-1, 0, 1, b""),
        frame(PRODUCE, 99, 1, b""),
        frame(METADATA, -1, 1, b""),
        frame(METADATA, 5, 1, struct.pack(">i", 1_000_000)),
        frame(METADATA, 5, 1, struct.pack(">ih", 1, 500)),
        frame(METADATA, 5, 1, b""),
        struct.pack(">i", -1),
        struct.pack(">i", 0x7FFFFFFF),
        struct.pack(">i", 2) + b"\0\0",
        struct.pack(">i", 0),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    ],
    ids=[
        "unknown-api",
        "negative-api",
        "future-version",
        "negative-version",
        "array-longer-than-frame",
        "string-longer-than-frame",
        "empty-body",
        "negative-size",
        "huge-size",
        "half-a-header",
        "no-header",
        "http",
        "tls",
    ],
)
def test_nonsense_closes_its_connection_and_no_other(node: Peer, data: bytes) -> None:
    with connection(node) as other, connection(node) as sock:
        sock.sendall(data)
        assert is_closed(sock)
        other.sendall(metadata(3))
        assert answer(other)[0] == 3
    assert still_serves(node)


def test_what_came_before_nonsense_is_answered(node: Peer) -> None:
    with connection(node) as sock:
        sock.sendall(metadata(1))
        assert answer(sock)[0] == 1
        sock.sendall(frame(9999, 0, 2, b""))
        assert is_closed(sock)


def test_many_connections_that_say_nothing_harm_nobody(node: Peer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            sock = stack.enter_context(connection(node))
            sock.sendall(b"\0\0")
        assert still_serves(node)
    assert still_serves(node)
