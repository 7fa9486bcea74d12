"""The controller role of a node: its Raft voter, its controller, and the quorum listener.

start     replays the journal, so that the voter has its term, vote and log again
listen    opens the quorum listener, if the node is not the only node
run       votes, follows or leads, and answers calls of other nodes
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import MetadataRecord
from metaquorum.quorum.channel.endpoint import Endpoint
from metaquorum.quorum.channel.listener import ChannelListener
from metaquorum.quorum.channel.mesh import PeerMesh
from metaquorum.quorum.channel.rpc_client import CallError
from metaquorum.quorum.channel.rpc_server import RpcServer
from metaquorum.quorum.channel.timing import Backoff
from metaquorum.quorum.controller.controller import Controller
from metaquorum.quorum.controller.features import SUPPORTED_FEATURES
from metaquorum.quorum.controller.worker_registration import ControllerRegistration
from metaquorum.quorum.raft.peers import NoPeers, Peers
from metaquorum.quorum.raft.timings import RaftTimings
from metaquorum.quorum.raft.voter import RaftVoter
from metaquorum.quorum.rpc.feed import MetadataFeed
from metaquorum.quorum.rpc.links import QuorumLinks
from metaquorum.quorum.rpc.methods import REGISTER_CONTROLLER
from metaquorum.quorum.rpc.service import ControllerService
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.wire.primitives.errors import KafkaError

log = logging.getLogger(__name__)

REGISTER_S: Final = 5.0
RETRY_LEAST_S: Final = 0.1
RETRY_MOST_S: Final = 5.0
# Four heartbeats per second and peer: three idle nodes use less than 2 % of one core together. The
# closed connections of a killed leader reveal its death; the timeouts are for a silent leader.
QUORUM_TIMINGS: Final = RaftTimings(heartbeat_s=0.25, election_min_s=0.8, election_max_s=1.6)


class ControllerRole:
    """Controller role of one node: call `start`, then `run` in a task, then `close` after it."""

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
        """Create the role. With `endpoint` None the node is the only one and does not listen."""
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
                self.service.handle, opened=self.service.opened, ended=self.service.ended
            )
            self._listener = ChannelListener(endpoint, self._mesh, rpc)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen on the quorum address and return it as bound. Raises OSError if that fails."""
        assert self._listener is not None
        await self._listener.listen(host, port)
        return self._listener.address

    async def start(self) -> None:
        """Load the image from this voter's disk. Raises StorageError if the disk fails."""
        await self.quorum.start()

    async def run(self) -> None:
        """Run the voter and the controller until cancelled.

        Raises StorageError if the disk fails, and RaftFatalError if the Raft state is broken.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.quorum.run)
            nursery.start_soon(self.controller.run)
            if self._mesh is not None and self._listener is not None:
                nursery.start_soon(self._mesh.run)
                nursery.start_soon(self._listener.run)

    async def introduce(
        self, links: QuorumLinks, incarnation_id: bytes, address: tuple[str, int]
    ) -> None:
        """Ensure in every term that this controller and its feature levels are registered."""
        registration = ControllerRegistration(
            self._node_id, incarnation_id, *address, features=SUPPORTED_FEATURES
        )
        backoff = Backoff(self._runtime.random, RETRY_LEAST_S, RETRY_MOST_S)
        while True:
            controller_term = await links.wait_controller_term()
            known = self._loader.image.controllers.get(self._node_id)
            if known is None or known.incarnation_id != incarnation_id:
                try:
                    await controller_term.call(REGISTER_CONTROLLER, registration, REGISTER_S)
                except (CallError, KafkaError) as error:
                    log.debug("cannot register this controller in %s: %s", controller_term, error)
                    await sleep(self._runtime.clock, backoff.next_s())
                    continue
            backoff.reset()
            await controller_term.over.wait()

    async def close(self) -> None:
        """Close the listener, then the journal."""
        if self._listener is not None:
            self._listener.close()
        await self.quorum.close()
