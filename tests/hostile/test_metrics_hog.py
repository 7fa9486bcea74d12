"""Idle and incomplete connections to the metrics listener do not block Prometheus."""

import contextlib
import socket
from pathlib import Path
from urllib.request import urlopen

import pytest

from metaquorum.dataplane.prometheus.endpoint import MAX_CONNECTIONS
from tests.nodes import PATIENCE_S, Node, elsewhere, free_port

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="Kafka has no such endpoint")


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nx: "], ids=["silent", "half"])
def test_half_requests_do_not_shut_prometheus_out(tmp_path: Path, sent: bytes) -> None:
    port = free_port()
    node = Node(tmp_path, None, "--metrics-listen", f"127.0.0.1:{port}")
    node.start()
    with contextlib.ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            stack.enter_context(sock)
            sock.sendall(sent)
        for _ in range(3):
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as page:
                assert b"metaquorum_build_info" in page.read()
    node.stop()
