"""No request holds the loop: the largest legal ones of every API that is served, watched.

In the node's own process and thread; the requests come from another thread.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.dataplane.serving import batch_of, in_trio, serving
from tests.hostile.largest import PARTITIONS, TOPIC, Largest, largest_of
from tests.hostile.slices import MAX_SLICE_S, Watch, WatchedNetwork
from tests.nodes import PATIENCE_S
from wire.apis import APIS, Api
from wire.compiling import REQUEST_MAX_ELEMENTS

# What a slice takes of the processor goes by what else the machine does: caches are shared. Without
# slices these requests take from 30 to 10,000 ms.
TOLERANCE: Final = 3
# Requests that do not go through the dispatcher of a listener without authentication.
_WITHOUT_ARRAYS: Final = frozenset(
    (
        "ApiVersions",
        "AuthenticateReplica",
        "DescribeAcls",
        "DescribeCluster",
        "DescribeWorkers",
        "InitProducerId",
        "SaslAuthenticate",
        "SaslHandshake",
        "UnregisterBroker",
    )
)


def answer_bytes(address: tuple[str, int], frame: bytes) -> int:
    """How long the answer is; 0 if the connection is closed instead."""
    with socket.create_connection(address, timeout=PATIENCE_S) as sock:
        try:
            sock.sendall(frame)
            head = sock.recv(4, socket.MSG_WAITALL)
            if len(head) < 4:
                return 0
            (size,) = struct.unpack(">i", head)
            left: int = size
            while left and (piece := sock.recv(min(left, 1 << 20))):
                left -= len(piece)
        except ConnectionError:
            return 0
        return 0 if left else size


@contextmanager
def watched(watch: Watch, request: Largest) -> Iterator[None]:
    watch.start()
    yield
    found = [(f"{1000 * took_s:.1f} ms", whose) for took_s, whose in watch.longest]
    longest_s = max([took_s for took_s, _ in watch.longest], default=0.0)
    assert longest_s < TOLERANCE * MAX_SLICE_S, (str(request), found)


def test_every_api_has_requests_here_or_none_that_can_be_long() -> None:
    short = {api.name for api in APIS.values() if not list(largest_of(api, api.max_version, 10))}
    assert short == _WITHOUT_ARRAYS


@pytest.mark.parametrize(
    "api",
    [api for api in APIS.values() if api.name not in _WITHOUT_ARRAYS],
    ids=lambda api: api.name,
)
@in_trio
async def test_no_slice_is_long(tmp_path: Path, api: Api) -> None:
    watch = Watch()
    async with serving(tmp_path, network=WatchedNetwork(watch)) as served:
        client = await served.connect()
        await client.create(TOPIC, PARTITIONS)
        for partition in range(PARTITIONS):
            await client.produce(TOPIC, batch_of(b"x" * 100), partition=partition)
        requests = list(largest_of(api, api.max_version, REQUEST_MAX_ELEMENTS))
        ask = partial(trio.to_thread.run_sync, answer_bytes)
        for small in largest_of(api, api.max_version, 10):  # what is made at first use is there
            await ask(served.node.address, small.frame)
        with watch.watching():
            for request in requests:
                with watched(watch, request):
                    assert await ask(served.node.address, request.frame), str(request)
