"""No request blocks the event loop: the largest valid requests of all supported APIs.

A part of the rows shows as much as all of them if a slice may have the same part: most requests
have `SHARE` of the rows, and their slices at most `SHARE` of the objects and of the seconds, on a
clock with which a slice has the fewest pieces of work. The APIs in `_IN_ONE_PART` have all rows:
they hand up to 10,000 changes to the controller at once, however many rows a request has. Those in
`_IN_HALF` have half of them under the same limits, as each request exceeds these without slices.

The node runs in its own thread of this process; the requests come from another thread. Two things
are limited for each slice. Objects that it creates or frees are counted, on a clock with which a
slice has the same rows on every machine: that finds rows which are created or freed all at once.
CPU time of the loop's thread finds work that makes no objects. A slice takes some milliseconds with
that clock, the limit for all rows is thirty: the host counts time of other guests to a slice.
One that is really too long is repeatable; therefore a request above the limit is sent again, and
fails the test only if all `ATTEMPTS` exceed it.
"""

import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest
import trio

from metaquorum.dataplane.fetch.sessions import FINAL_EPOCH
from metaquorum.wire.messages.fetch import FetchRequest
from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.protocol.apis import APIS, Api, ApiKey
from metaquorum.wire.protocol.headers import encode_request
from metaquorum.wire.schema.compiling import REQUEST_MAX_ELEMENTS
from tests.dataplane.serving import Served, batch_of, in_trio, serving
from tests.hostile.largest import (
    PARTITIONS,
    TOPIC,
    Largest,
    fetch_of,
    largest_of,
    without_inner_rows,
)
from tests.hostile.slices import CountedClock, Watch, WatchedNetwork
from tests.nodes import PATIENCE_S

# Without slices the largest requests take from 30 to 10,000 ms on a fast machine.
ATTEMPTS: Final = 10  # only a request that fails needs more than one or two
SHARE: Final = 0.3
MOST: Final = int(REQUEST_MAX_ELEMENTS * SHARE)
SESSION_VERSION: Final = 12  # the last version that identifies partitions by topic name
SESSION_AT: Final = 5  # after the correlation id and the tags: throttle time, error, session
# Requests that do not go through the dispatcher of a listener without authentication.
_WITHOUT_ARRAYS: Final = frozenset(
    (
        "AddOffsetsToTxn",
        "AlterMovePlan",
        "AlterWorker",
        "ApiVersions",
        "AuthenticateReplica",
        "DescribeAcls",
        "DescribeCluster",
        "DescribeCoordinatorMemory",
        "DescribeWorkers",
        "EndTxn",
        "ExpireDelegationToken",
        "Heartbeat",
        "InitProducerId",
        "RenewDelegationToken",
        "SaslAuthenticate",
        "SaslHandshake",
        "UnregisterBroker",
    )
)

# One part of their work is up to 10,000 changes of up to four objects each, or has as many objects.
_IN_ONE_PART: Final = frozenset(
    (
        "AddPartitionsToTxn",
        "AlterClientQuotas",
        "AlterConfigs",
        "AlterPartitionReassignments",
        "CreatePartitions",
        "CreateTopics",
        "DescribeGroups",
        "ElectLeaders",
        "IncrementalAlterConfigs",
    )
)

_IN_HALF: Final = frozenset(
    ("AlterClientQuotas", "AlterConfigs", "AlterPartitionReassignments", "IncrementalAlterConfigs")
)

# Handlers with a loop over the topics of a request and an inner one over their partitions.
_TOPIC_BY_TOPIC: Final = (
    "AlterPartitionReassignments",
    "DescribeReplicas",
    "Produce",
)


def answer(address: tuple[str, int], frame: bytes) -> bytes:
    """Return the response without its size; empty if the connection is closed instead."""
    with socket.create_connection(address, timeout=PATIENCE_S) as sock:
        try:
            sock.sendall(frame)
            head = sock.recv(4, socket.MSG_WAITALL)
            if len(head) < 4:
                return b""
            (size,) = struct.unpack(">i", head)
            pieces: list[bytes] = []
            left: int = size
            while left and (piece := sock.recv(min(left, 1 << 20))):
                pieces.append(piece)
                left -= len(piece)
        except ConnectionError:
            return b""
        return b"" if left else b"".join(pieces)


async def watched_answer(watch: Watch, served: Served, frame: bytes) -> bytes:
    """Return the response when `watch` has all slices of the request and its deallocation."""
    watch.start()
    found = await trio.to_thread.run_sync(answer, served.node.address, frame)
    while served.worker.slicer.has_background_work:
        await trio.lowlevel.checkpoint()
    return found


def test_every_api_has_requests_here_or_none_that_can_be_long() -> None:
    short = {api.name for api in APIS.values() if not list(largest_of(api, api.max_version, 10))}
    assert short == _WITHOUT_ARRAYS


# Version 4 of AddPartitionsToTxn is for several transactions; the versions before are for one.
_EARLIER: Final = [pytest.param(APIS[ApiKey.ADD_PARTITIONS_TO_TXN], 3, id="AddPartitionsToTxn-3")]


@pytest.mark.parametrize(
    ("api", "version"),
    [
        pytest.param(api, api.max_version, id=api.name)
        for api in APIS.values()
        if api.name not in _WITHOUT_ARRAYS
    ]
    + _EARLIER,
)
@in_trio
async def test_no_slice_is_long(tmp_path: Path, api: Api, version: int) -> None:
    share = share_of(api)
    most = int(REQUEST_MAX_ELEMENTS * (0.5 if api.name in _IN_HALF else share))
    small, requests = largest_of(api, version, 10), largest_of(api, version, most)
    await check_slices(tmp_path, list(small), requests, share)


def share_of(api: Api) -> float:
    return 1.0 if api.name in _IN_ONE_PART else SHARE


@pytest.mark.parametrize("name", _TOPIC_BY_TOPIC)
@in_trio
async def test_no_slice_is_long_for_topics_without_partitions(tmp_path: Path, name: str) -> None:
    api = next(api for api in APIS.values() if api.name == name)
    share = share_of(api)
    counts = 10, int(50_000 * share)
    small, large = (without_inner_rows(api, api.max_version, count) for count in counts)
    await check_slices(tmp_path, [small], [large], share)


async def check_slices(
    tmp_path: Path, small: Iterable[Largest], requests: Iterable[Largest], share: float
) -> None:
    """Check the slices of the requests; the small ones create the objects of the first use."""
    watch, clock = Watch(share), CountedClock(shortest=share < 1)
    async with serving(tmp_path, network=WatchedNetwork(watch), clock=clock) as served:
        client = await served.connect()
        await client.create(TOPIC, PARTITIONS)
        for partition in range(PARTITIONS):
            await client.produce(TOPIC, batch_of(b"x" * 100), partition=partition)
        find = FindCoordinatorRequest(coordinator_keys=["g"])
        await client.call(ApiKey.FIND_COORDINATOR, find)
        while served.worker.groups.is_loading:
            await trio.lowlevel.checkpoint()
        for request in small:
            await watched_answer(watch, served, request.frame)
        with watch.watching():
            for request in requests:
                for _ in range(ATTEMPTS):
                    assert await watched_answer(watch, served, request.frame), str(request)
                    if not (found := watch.too_long()):
                        break
                assert not found, (str(request), found)


@in_trio
async def test_no_slice_of_a_large_fetch_session_is_long(tmp_path: Path) -> None:
    """The session is created by two large requests, read, half forgotten, and closed."""
    watch, clock = Watch(SHARE), CountedClock(shortest=True)
    async with serving(tmp_path, network=WatchedNetwork(watch), clock=clock) as served:
        client = await served.connect()
        await client.create(TOPIC, PARTITIONS)
        found = await slices_of_session(watch, served, 10)  # create the objects of the first use
        with watch.watching():
            for _ in range(ATTEMPTS):
                if not (found := await slices_of_session(watch, served, MOST)):
                    break
        assert not found


async def slices_of_session(watch: Watch, served: Served, count: int) -> list[str]:
    """Return the slices above the limit with their requests, for 2 * `count` partitions."""
    found: list[str] = []

    async def fetch(what: str, request: FetchRequest) -> int:
        frame = encode_request(ApiKey.FETCH, SESSION_VERSION, 7, "largest", request)
        data = await watched_answer(watch, served, frame)
        _, error_code, session_id = struct.unpack_from(">ihi", data, SESSION_AT)
        assert not error_code, what
        found.extend(f"{what}: {text}" for text in watch.too_long())
        return int(session_id)

    sessions = served.worker.fetch_sessions
    session_id = await fetch("made", fetch_of(range(count)))
    assert session_id
    await fetch("enlarged", fetch_of(range(count, 2 * count), session_id, 1))
    assert sessions.partition_count == 2 * count
    await fetch("read otherwise", fetch_of((), session_id, 2, isolation_level=1))
    await fetch("forgotten", fetch_of((), session_id, 3, forgotten=range(count)))
    assert sessions.partition_count == count
    await fetch("enlarged again", fetch_of(range(count), session_id, 4))
    await fetch("closed", fetch_of((0,), session_id, FINAL_EPOCH))
    assert not sessions.partition_count
    return found
