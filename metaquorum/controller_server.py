"""A node in the role of a controller: its voter, its decisions, and the quorum address.

journal replayed      the voter knows what it knew
listening             if the node is not alone
running               votes, follows or leads; answers calls of other nodes
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from metaquorum.channel.endpoint import Endpoint
from metaquorum.channel.listener import ChannelListener
from metaquorum.channel.mesh import PeerMesh
from metaquorum.channel.rpc_client import CallError
from metaquorum.channel.rpc_server import RpcServer
from metaquorum.channel.timing import Backoff
from metaquorum.controller.controller import Controller
from metaquorum.controller.worker_registration import ControllerRegistration
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import MetadataRecord
from metaquorum.raft.peers import NoPeers, Peers
from metaquorum.raft.timings import RaftTimings
from metaquorum.raft.voter import RaftVoter
from metaquorum.rpc.feed import MetadataFeed
from metaquorum.rpc.links import QuorumLinks
from metaquorum.rpc.methods import REGISTER_CONTROLLER
from metaquorum.rpc.service import ControllerService
from metaquorum.runtime.interfaces import Runtime, sleep
from wire.primitives.errors import KafkaError

log = logging.getLogger(__name__)

REGISTER_S: Final = 5.0
RETRY_LEAST_S: Final = 0.1
RETRY_MOST_S: Final = 5.0
# Four heartbeats a second and peer: three idle nodes then take less than 2 % of a core in all. A
# leader that is killed is noticed by its closed connections; this is for one that falls silent.
QUORUM_TIMINGS: Final = RaftTimings(heartbeat_s=0.25, election_min_s=0.8, election_max_s=1.6)


class ControllerRole:
    """`start`, `run` in a task, and `close` when that has ended."""

    def __init__(
        self,
        runtime: Runtime,
        directory: str,
        node_id: int,
        controllers: Mapping[int, tuple[str, int]],
        endpoint: Endpoint | None,
        loader: MetadataLoader,
        static_configs: Mapping[str, str],
        first_records: Sequence[MetadataRecord] = (),
    ) -> None:
        """`endpoint` None: this node is alone, and nothing is listened on."""
        self._runtime = runtime
        self._node_id = node_id
        self.feed = MetadataFeed(loader)
        self._loader = loader
        self._mesh = None if endpoint is None else PeerMesh(endpoint, controllers)
        peers: Peers = self._mesh or NoPeers()
        self.quorum = RaftVoter(
            runtime.disk,
            runtime.clock,
            runtime.random,
            directory,
            self.feed,
            node_id,
            tuple(sorted(controllers)),
            peers,
            QUORUM_TIMINGS,
        )
        self.controller = Controller(
            self.quorum, loader, runtime.clock, runtime.random, static_configs, first_records
        )
        if self._mesh is not None:
            self._mesh.watch(self.controller.worker_lifecycle)
        self.service = ControllerService(self.controller, self.quorum, self.feed, runtime.clock)
        self._listener: ChannelListener | None = None
        if endpoint is not None:
            rpc = RpcServer(
                self.service.handle,
                opened=self.service.opened,
                ended=lambda caller, _: self.service.ended(caller),
            )
            self._listener = ChannelListener(endpoint, self._mesh, rpc)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """The address as bound. OSError."""
        assert self._listener is not None
        await self._listener.listen(host, port)
        return self._listener.address

    async def start(self) -> None:
        """The image is as this voter's disk says. StorageError."""
        await self.quorum.start()

    async def run(self) -> None:
        """The voter's and the controller's work, for ever. StorageError, RaftFatalError."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.quorum.run)
            nursery.start_soon(self.controller.run)
            if self._mesh is not None and self._listener is not None:
                nursery.start_soon(self._mesh.run)
                nursery.start_soon(self._listener.run)

    async def introduce(
        self, links: QuorumLinks, incarnation_id: bytes, address: tuple[str, int]
    ) -> None:
        """The metadata log says at which levels this controller can run, under every reign."""
        registration = ControllerRegistration(self._node_id, incarnation_id, *address)
        backoff = Backoff(self._runtime.random, RETRY_LEAST_S, RETRY_MOST_S)
        while True:
            controller_term = await links.wait_controller_term()
            known = self._loader.image.controllers.get(self._node_id)
            if known is None or known.incarnation_id != incarnation_id:
                try:
                    await controller_term.call(REGISTER_CONTROLLER, registration, REGISTER_S)
                except (CallError, KafkaError) as error:
                    log.debug("%s did not register this controller: %s", controller_term, error)
                    await sleep(self._runtime.clock, backoff.next_s())
                    continue
            backoff.reset()
            await controller_term.over.wait()

    async def close(self) -> None:
        """The journal is closed in good order."""
        if self._listener is not None:
            self._listener.close()
        await self.quorum.close()
