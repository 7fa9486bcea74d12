"""The streams between the voters of a quorum: one for each pair, dialed by the lower node id.

    none --dialed and believed--> linked --ended--> none      the lower id dials again, after a wait
                                  linked --a newer one is believed--> linked (the old one is closed)

A newer one comes when the dialer knows that the old one is dead and we do not yet: its host lost
power, or its side of the network. Newer is whatever another process of that voter dials, and what
the same process dialed later. Since one side alone dials, two streams cannot close each other in
turn.
"""

import logging
from collections.abc import Mapping
from typing import Final, Protocol

import trio

from metaquorum.channel.endpoint import Endpoint
from metaquorum.channel.handshake import HandshakeError, Hello, Refusal
from metaquorum.channel.identity import StreamKind
from metaquorum.channel.stream import Cause, End, Stream
from metaquorum.channel.timing import Backoff, LogThrottle
from metaquorum.raft.peers import PeerProtocolError, PeerReceiver
from metaquorum.runtime.interfaces import sleep
from wire.primitives.errors import WireError

log = logging.getLogger(__name__)

# A stream that lived for so long was a good one: the next is dialed at once.
GOOD_STREAM_SECONDS: Final = 2.0


class PeerWatcher(Protocol):
    """Who is told which processes of voters are there. Plain calls, which return at once."""

    def peer_came(self, voter_id: int) -> None:
        """There is a stream to that voter's process."""

    def peer_closed(self, voter_id: int) -> None:
        """There is none any more, and it was closed at the other end: by that process, or, as the
        process is no more, by its kernel."""


class PeerMesh:
    """`Peers`, over streams. `run` dials; the listener hands over who has dialed to `serve`."""

    def __init__(self, endpoint: Endpoint, voters: Mapping[int, tuple[str, int]]) -> None:
        """`voters`: where each listens, this one included."""
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
        """`watcher` is told from now on; before `run`."""
        self._watcher = watcher

    def send(self, voter_id: int, message: bytes) -> bool:
        stream = self._links.get(voter_id)
        return stream is not None and stream.send(message)

    def linked(self) -> frozenset[int]:
        """The voters to which a stream is open."""
        return frozenset(self._links)

    def admit(self, peer: Hello) -> HandshakeError | None:
        """Why a stream from there is not taken; None: it is."""
        if peer.sender not in self._voters:
            return HandshakeError(Refusal.UNWELCOME, "it is not a voter of this quorum")
        if peer.sender >= self._node_id:
            return HandshakeError(
                Refusal.UNWELCOME, "of two voters the one with the lower id dials"
            )
        return None

    async def run(self) -> None:
        """Every voter with a higher id is dialed, whenever there is no stream to it; for ever."""
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
                line = f"no connection to voter {voter_id} at {host}:{port}: {error}"
                if self._log_throttle.is_due(line):
                    log.warning("%s", line)
            else:
                since = clock.monotonic()
                await self.serve(stream)
                if clock.monotonic() - since >= GOOD_STREAM_SECONDS:
                    backoff.reset()
            await sleep(clock, backoff.next_s())

    async def serve(self, stream: Stream) -> None:
        """This stream is the one to its voter until it ends, unless it is older than another."""
        voter_id, receiver = stream.peer.sender, self._receiver
        assert receiver is not None, "nobody is attached"
        if (old := self._links.get(voter_id)) is not None:
            if _is_older(stream.peer, old.peer):
                stream.close("a newer connection was there before")
            else:
                old.close("the voter has come by a new connection")
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
        log.info("connected with voter %s", stream)
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
    log.log(level, "no longer connected with voter %s: %s", stream, end)
