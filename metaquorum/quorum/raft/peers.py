"""Interface between a voter and the connections to its peers.

There is at most one connection between two voters. On it, messages arrive whole, in the order in
which they were sent and without gaps, until it closes; messages in flight at that time are lost.
The voter relies on this: it never sends a message twice on one connection, and restarts replication
on the next. All messages of a peer arrive between `connected` and `disconnected` of that peer.

All calls are synchronous and do not block. Neither side calls the other during such a call, except
`disconnected`, which may result from a refused `send`.
"""

from typing import Final, Protocol

MAX_MESSAGE_BYTES: Final = 8 << 20
# A little more than a voter may have in flight to one peer: a queue of this size never fills up as
# long as the peer answers.
MAX_QUEUE_BYTES: Final = 32 << 20
MAX_QUEUE_MESSAGES: Final = 1_024


class PeerProtocolError(Exception):
    """Raised if a peer sends a malformed message or exceeds a limit; close its connection."""


class PeerReceiver(Protocol):
    """Voter, as its transport sees it."""

    def connected(self, voter_id: int) -> None:
        """Note that this peer is connected, in both directions."""

    def disconnected(self, voter_id: int) -> None:
        """Note that the connection of this peer is closed."""

    def received(self, voter_id: int, message: bytes) -> None:
        """Receive a whole message of the authenticated voter. Raises PeerProtocolError."""


class Peers(Protocol):
    """Connections to the other voters."""

    def attach(self, receiver: PeerReceiver) -> None:
        """Set the receiver of messages and events. Called once, before any other call."""

    def send(self, voter_id: int, message: bytes) -> bool:
        """Put the message into the queue of that peer's connection, after all sent before.

        Return False if there is no connection, or if its queue is full; then the connection is
        closed, because messages must arrive without gaps.
        """


class NoPeers:
    """Peers of a single voter: none."""

    def attach(self, receiver: PeerReceiver) -> None:
        pass

    def send(self, voter_id: int, message: bytes) -> bool:
        return False
