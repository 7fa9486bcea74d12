"""Streams between the voters of a quorum: one for each pair, dialed by the lower node id.

    none --dialed and authenticated--> linked --ended--> none     the lower id redials after a delay
                                       linked --a newer one authenticates--> linked (old one closed)

The dialer opens a newer stream when it has noticed the end of the old one before the acceptor has,
for example after a power failure of its host or a network failure on its side. A stream is newer
if another process of that voter has dialed it, or if the same process has dialed it later. Since
only one side dials, two streams cannot close each other in turn.
"""

import logging
from collections.abc import Mapping
from typing import Final, Protocol

import trio

from metaquorum.quorum.channel.endpoint import Endpoint
from metaquorum.quorum.channel.handshake import HandshakeError, Hello, Refusal
from metaquorum.quorum.channel.identity import StreamKind
from metaquorum.quorum.channel.stream import Cause, End, Stream
from metaquorum.quorum.channel.timing import Backoff, LogThrottle
from metaquorum.quorum.raft.peers import PeerProtocolError, PeerReceiver
from metaquorum.runtime.interfaces import sleep
from metaquorum.wire.primitives.errors import WireError

log = logging.getLogger(__name__)

# After a stream that lasted at least this long, the next attempts start with the shortest backoff.
GOOD_STREAM_SECONDS: Final = 2.0


class PeerWatcher(Protocol):
    """Observer of the connections to other voters. Its methods must not block."""

    def peer_came(self, voter_id: int) -> None:
        """Note that a stream to that voter's process is open."""

    def peer_closed(self, voter_id: int) -> None:
        """Note that the voter's side has closed the only stream to it.

        The voter's process closed the stream, or the kernel did after the process had ended.
        """


class PeerMesh:
    """Implementation of `Peers` over streams.

    `run` dials the voters with higher ids; the listener passes streams from voters with lower ids
    to `serve`.
    """

    def __init__(self, endpoint: Endpoint, voters: Mapping[int, tuple[str, int]]) -> None:
        """Take the addresses of all `voters`, including this one, by node id."""
        assert endpoint.identity.node_id in voters
        self._endpoint = endpoint
        self._node_id = endpoint.identity.node_id
        self._voters = dict(voters)
        self._links: dict[int, Stream] = {}
        self._receiver: PeerReceiver | None = None
        self._watcher: PeerWatcher | None = None
        self._log_throttle = LogThrottle(endpoint.runtime.clock)

    def attach(self, receiver: PeerReceiver) -> None:
        assert self._receiver is None
        self._receiver = receiver

    def watch(self, watcher: PeerWatcher) -> None:
        """Set the observer of connections. Call it before `run`."""
        self._watcher = watcher

    def send(self, voter_id: int, message: bytes) -> bool:
        stream = self._links.get(voter_id)
        return stream is not None and stream.send(message)

    def linked(self) -> frozenset[int]:
        """Return the ids of the voters to which a stream is open."""
        return frozenset(self._links)

    def admit(self, peer: Hello) -> HandshakeError | None:
        """Return the reason to refuse a stream from `peer`; None to accept the stream."""
        if peer.sender not in self._voters:
            return HandshakeError(Refusal.UNWELCOME, "the peer is not a voter of this quorum")
        if peer.sender >= self._node_id:
            return HandshakeError(
                Refusal.UNWELCOME,
                "the peer dialed, but of two voters the one with the lower id dials",
            )
        return None

    async def run(self) -> None:
        """Dial each voter with a higher id whenever no stream to it is open, until cancelled."""
        async with trio.open_nursery() as nursery:
            for voter_id in self._voters:
                if voter_id > self._node_id:
                    nursery.start_soon(self._keep, voter_id)
            await trio.sleep_forever()

    async def _keep(self, voter_id: int) -> None:
        endpoint, (host, port) = self._endpoint, self._voters[voter_id]
        clock, timings = endpoint.runtime.clock, endpoint.timings
        backoff = Backoff(endpoint.runtime.random, timings.redial_least_s, timings.redial_most_s)
        while True:
            try:
                stream = await endpoint.dial(StreamKind.PEER, voter_id, host, port)
            except (OSError, HandshakeError) as error:
                line = f"{voter_id} at {host}:{port}: {error}"
                if self._log_throttle.is_due(line):
                    log.warning("cannot connect to voter %s; retrying", line)
            else:
                since = clock.monotonic()
                await self.serve(stream)
                if clock.monotonic() - since >= GOOD_STREAM_SECONDS:
                    backoff.reset()
            await sleep(clock, backoff.next_s())

    async def serve(self, stream: Stream) -> None:
        """Use `stream` for its voter until the stream ends.

        Replaces an older stream to the same voter; closes `stream` if it is the older one.
        """
        voter_id, receiver = stream.peer.sender, self._receiver
        assert receiver is not None, "no receiver is attached"
        if (old := self._links.get(voter_id)) is not None:
            if _is_older(stream.peer, old.peer):
                stream.close("a newer connection is open")
            else:
                old.close("the voter has opened a newer connection")
                self._unlink(old, receiver)

        def receive(message: bytes) -> None:
            try:
                receiver.received(voter_id, message)
            except PeerProtocolError as error:
                raise WireError(str(error)) from None

        try:
            if stream.end is None:
                self._link(stream, receiver)
            end = await stream.run(receive)
        finally:
            self._unlink(stream, receiver)
        if end.is_evidence and voter_id not in self._links and self._watcher is not None:
            self._watcher.peer_closed(voter_id)
        _log_end(stream, end)

    def _link(self, stream: Stream, receiver: PeerReceiver) -> None:
        voter_id = stream.peer.sender
        self._links[voter_id] = stream
        log.info("connected to voter %s", stream)
        receiver.connected(voter_id)
        if self._watcher is not None:
            self._watcher.peer_came(voter_id)

    def _unlink(self, stream: Stream, receiver: PeerReceiver) -> None:
        voter_id = stream.peer.sender
        if self._links.get(voter_id) is stream:
            del self._links[voter_id]
            receiver.disconnected(voter_id)


def _is_older(new: Hello, linked: Hello) -> bool:
    return new.incarnation == linked.incarnation and new.attempt < linked.attempt


def _log_end(stream: Stream, end: End) -> None:
    level = logging.WARNING if end.cause in (Cause.NONSENSE, Cause.OVERFLOW) else logging.INFO
    log.log(level, "disconnected from voter %s: %s", stream, end)
