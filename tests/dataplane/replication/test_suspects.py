"""Leaders suspected to be dead after a closed connection, before the metadata shows it."""

import random
from pathlib import Path
from typing import Any

import trio

from metaquorum.dataplane.fetch.session_client import FetchLimits
from metaquorum.dataplane.handlers.metadata import NEXT_LEADER_S
from metaquorum.dataplane.replication.replica_fetcher import (
    FetcherConfig,
    FollowerEvents,
    LeaderAddress,
    ReplicaFetcher,
)
from metaquorum.runtime.system import real_runtime
from metaquorum.wire.primitives.errors import ErrorCode
from tests.dataplane.replication.test_follower_state import replica
from tests.dataplane.replication.together import Together, together
from tests.metaquorum.quorum.channel.nodes import endpoint
from tests.nodes import PATIENCE_S, free_port

CONFIG = FetcherConfig(FetchLimits(500, 1, 1 << 20), 1 << 20, 0.1)
HOST = "127.0.0.1"


async def wait_until_suspect(fetcher: ReplicaFetcher) -> None:
    with trio.fail_after(PATIENCE_S):
        while not fetcher.is_leader_suspect:
            await trio.sleep(0.001)


async def suspects_one_that(folder: Path, *, accepts: bool) -> None:
    runtime = real_runtime()
    listener = await runtime.network.listen(HOST, 0)
    address = LeaderAddress(*listener.address, broker_epoch=7)
    fetcher = ReplicaFetcher(
        2,
        lambda: 8,
        1,
        runtime,
        CONFIG,
        lambda: address,
        FollowerEvents(lambda *_: None, lambda *_: None, lambda *_: None),
        endpoint(2, runtime=runtime),
        random.Random(0),
    )
    fetcher.add(replica(folder, 2), leader_epoch=0)
    if not accepts:
        listener.close()
        address = LeaderAddress(HOST, free_port(), broker_epoch=7)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.run)
        if accepts:
            connection = await listener.accept()
            await connection.receive_into(bytearray(1))
            assert not fetcher.is_leader_suspect
            connection.close()
        await wait_until_suspect(fetcher)
        nursery.cancel_scope.cancel()
    listener.close()


def test_a_leader_that_closes_the_connection_is_suspect(tmp_path: Path) -> None:
    trio.run(lambda: suspects_one_that(tmp_path, accepts=True))


def test_a_leader_that_refuses_connections_is_suspect(tmp_path: Path) -> None:
    trio.run(lambda: suspects_one_that(tmp_path, accepts=False))


@together()
async def test_metadata_is_told_when_the_next_leader_is_known(cluster: Together) -> None:
    await cluster.create("t", (1, 2, 3))
    await cluster.until(lambda: cluster.replica(2, "t").is_follower)
    await cluster.kill(1)
    await cluster.until(lambda: 1 in cluster.worker(2).fetchers.suspects())
    assert cluster.state("t", 2).leader == 1
    told = await cluster.described(2, "t")
    assert (told.error_code, told.leader_id) == (ErrorCode.NONE, 2)


@together()
async def test_metadata_is_told_before_the_fetcher_has_read_the_end_of_its_connection(
    cluster: Together,
) -> None:
    """The client's connection to the same process closed at the same time, and it asks at once."""
    await cluster.create("t", (1, 2, 3))
    await cluster.until(lambda: cluster.replica(2, "t").is_follower)
    fetchers = cluster.worker(2).fetchers
    (fetcher,) = fetchers
    await cluster.until(lambda: fetcher._stream is not None)
    connection = fetcher._stream.connection
    connection._in._wake_reader = lambda: None  # the task does not run
    await cluster.kill(1)
    await cluster.until(connection.is_ended)
    assert fetchers.suspects() == frozenset()
    assert cluster.state("t", 2).leader == 1
    told = await cluster.described(2, "t")
    assert (told.error_code, told.leader_id) == (ErrorCode.NONE, 2)


@together()
async def test_only_leaders_that_a_response_names_are_asked_whether_their_process_has_ended(
    cluster: Together,
) -> None:
    """The number of other leaders must not add to the costs of a request for a few partitions."""
    await cluster.create("a", (1, 2))
    await cluster.create("b", (3, 2))
    suspects = cluster.worker(2).fetchers.suspects
    fetchers = list(cluster.worker(2).fetchers)
    assert {fetcher.leader_id for fetcher in fetchers} == {1, 3}
    await cluster.until(lambda: all(fetcher._stream is not None for fetcher in fetchers))
    connections = [fetcher._stream.connection for fetcher in fetchers]
    for connection in connections:
        connection._in._wake_reader = lambda: None  # the tasks do not run
    for node in (1, 3):
        cluster.world.internet.reset("node-2", f"node-{node}")
    await cluster.until(lambda: all(connection.is_ended() for connection in connections))
    assert suspects() == frozenset()
    await cluster.described(2, "a")
    assert suspects() == {1}
    await cluster.described(2, "b")
    assert suspects() >= {3}


@together()
async def test_metadata_is_told_while_the_worker_applies_the_election(cluster: Together) -> None:
    """The fetcher has stopped already, and the visible metadata still has the dead leader."""
    await cluster.create("t", (1, 2, 3))
    await cluster.until(lambda: cluster.replica(2, "t").is_follower)
    worker, released = cluster.worker(2), trio.Event()
    publish = worker.groups.publish

    async def publish_later(*change: Any) -> None:
        await released.wait()
        await publish(*change)

    worker.groups.publish = publish_later
    await cluster.kill(1)
    await cluster.until(lambda: not list(worker.fetchers))
    assert cluster.state("t", 2).leader == 1
    told: list[Any] = []

    async def ask() -> None:
        told.append(await cluster.described(2, "t"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await cluster.world.sleep(0.05)
        released.set()
    assert [(each.error_code, each.leader_id) for each in told] == [(ErrorCode.NONE, 2)]


@together()
async def test_metadata_is_told_in_time_where_there_is_no_next_leader(cluster: Together) -> None:
    await cluster.create("t", (1, 2, 3))
    await cluster.until(lambda: cluster.replica(2, "t").is_follower)
    await cluster.kill(3)
    await cluster.kill(1)
    await cluster.until(lambda: 1 in cluster.worker(2).fetchers.suspects())
    began = cluster.world.now
    told = await cluster.described(2, "t")
    assert (told.error_code, told.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert cluster.world.now - began < NEXT_LEADER_S + 0.1
