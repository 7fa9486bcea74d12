"""Stream endpoints for tests, on the loopback interface or in a simulated world."""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from metaquorum.quorum.channel import (
    Caller,
    ChannelIdentity,
    ChannelListener,
    ChannelTimings,
    End,
    Endpoint,
    PeerMesh,
    RpcClient,
    RpcServer,
)
from metaquorum.runtime.interfaces import Runtime
from metaquorum.runtime.system import real_runtime
from metaquorum.security.tls_context import TlsFiles
from tests.nodes import PATIENCE_S, free_port

SECRET = b"a secret of this cluster"
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
HOST = "127.0.0.1"
PATIENT = ChannelTimings(dial_s=PATIENCE_S, handshake_s=PATIENCE_S, keepalive_s=PATIENCE_S / 4)
_runtime = trio.lowlevel.RunVar[Runtime | None]("the machine's runtime", None)


def shared_runtime() -> Runtime:
    """Return the real runtime, shared since each event loop has one poller."""
    runtime = _runtime.get()
    if runtime is None:
        _runtime.set(runtime := real_runtime())
    return runtime


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test in its own event loop, with a time limit."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def limited() -> None:
            with trio.fail_after(PATIENCE_S):
                await test(*args, **kwargs)

        trio.run(limited)

    return run


class Changes:
    """Wakes tests that wait for a condition."""

    def __init__(self) -> None:
        self._changed = trio.Event()

    def note(self) -> None:
        self._changed.set()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed = trio.Event()
            await self._changed.wait()


def identity(
    node_id: int,
    *,
    secret: bytes = SECRET,
    cluster_id: str = CLUSTER,
    tls: TlsFiles | None = None,
) -> ChannelIdentity:
    return ChannelIdentity(cluster_id, node_id, secret, tls)


def endpoint(
    node_id: int,
    *,
    runtime: Runtime | None = None,
    timings: ChannelTimings | None = None,
    secret: bytes = SECRET,
    cluster_id: str = CLUSTER,
    tls: TlsFiles | None = None,
) -> Endpoint:
    me = identity(node_id, secret=secret, cluster_id=cluster_id, tls=tls)
    if runtime is None:  # real time, in which a paused test must not fail
        return Endpoint(shared_runtime(), me, timings or PATIENT)
    return Endpoint(runtime, me, timings or ChannelTimings())


class Voter(Changes):
    """Record of the connections and messages of one voter."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, int]] = []
        self.messages: dict[int, list[bytes]] = {}
        self.connected_ids: set[int] = set()

    def connected(self, voter_id: int) -> None:
        assert voter_id not in self.connected_ids
        self.connected_ids.add(voter_id)
        self.events.append(("connected", voter_id))
        self.note()

    def disconnected(self, voter_id: int) -> None:
        assert voter_id in self.connected_ids
        self.connected_ids.remove(voter_id)
        self.events.append(("disconnected", voter_id))
        self.note()

    def received(self, voter_id: int, message: bytes) -> None:
        assert voter_id in self.connected_ids
        self.messages.setdefault(voter_id, []).append(message)
        self.note()


Answer = Callable[[Caller, str, bytes], Awaitable[bytes]]
Ended = Callable[[Caller, End], None]


@asynccontextmanager
async def rpc_server(
    answer: Answer,
    *,
    ended: Ended = lambda _caller, _end: None,
    server: Endpoint | None = None,
) -> AsyncIterator[tuple[str, int]]:
    """Serve calls as controller 1 on this machine; yield its address."""
    async with trio.open_nursery() as nursery:
        listener = ChannelListener(server or endpoint(1), rpc=RpcServer(answer, ended=ended))
        await listener.listen(HOST, 0)
        nursery.start_soon(listener.run)
        yield listener.address
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def rpc_pair(
    answer: Answer,
    *,
    ended: Ended = lambda _caller, _end: None,
    server: Endpoint | None = None,
    client: Endpoint | None = None,
) -> AsyncIterator[RpcClient]:
    """Connect worker 7 to controller 1 on this machine."""
    async with (
        rpc_server(answer, ended=ended, server=server) as address,
        trio.open_nursery() as nursery,
    ):
        caller = await RpcClient.connect(client or endpoint(7), 1, *address)
        nursery.start_soon(caller.run)
        yield caller
        nursery.cancel_scope.cancel()


async def meshes(
    nursery: trio.Nursery, node_ids: tuple[int, ...]
) -> dict[int, tuple[PeerMesh, Voter]]:
    """Start the meshes of voters on this machine."""
    ends = {node_id: endpoint(node_id) for node_id in node_ids}
    listeners = {}
    addresses = {node_id: (HOST, free_port()) for node_id in node_ids}
    found = {}
    for node_id, end in ends.items():
        mesh, voter = PeerMesh(end, addresses), Voter()
        mesh.attach(voter)
        listeners[node_id] = ChannelListener(end, mesh)
        await listeners[node_id].listen(*addresses[node_id])
        nursery.start_soon(listeners[node_id].run)
        nursery.start_soon(mesh.run)
        found[node_id] = (mesh, voter)
    return found
