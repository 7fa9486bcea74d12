"""The seam between a voter and the streams to its peers.

Between two voters there is at most one connection at a time. On it, messages arrive whole, in the
order in which they were sent and without a hole, until it ends; whatever was under way then is
lost. The voter above relies on this: it never sends twice on one connection, and begins anew on the
next. Every message of a peer comes between `connected` and `disconnected` of that peer.

All calls are plain and return at once. Neither side calls the other out of such a call, except for
`disconnected`, which a refused `send` may bring about.
"""

from typing import Final, Protocol

MAX_MESSAGE_BYTES: Final = 8 << 20
# What a voter may have handed over to one peer and not yet be answered, and a little: a queue that
# takes this much never fills up as long as the peer is heard.
MAX_QUEUE_BYTES: Final = 32 << 20
MAX_QUEUE_MESSAGES: Final = 1_024


class PeerProtocolError(Exception):
    """The peer sent what no voter of this version sends, or more than it may; close on it."""


class PeerReceiver(Protocol):
    """A voter, as its transport sees it."""

    def connected(self, voter_id: int) -> None:
        """Messages can be sent to, and will come from, this peer."""

    def disconnected(self, voter_id: int) -> None:
        """That connection is no more."""

    def received(self, voter_id: int, message: bytes) -> None:
        """A whole message, proven to come from that voter. PeerProtocolError."""


class Peers(Protocol):
    """The other voters, as far as they can be reached."""

    def attach(self, receiver: PeerReceiver) -> None:
        """`receiver` is told from now on. Called once, before anything else."""

    def send(self, voter_id: int, message: bytes) -> bool:
        """The message stands in the queue of that peer's connection, behind all sent before.

        False: there is no connection; or its queue is full, and then it is closed, for there may be
        no hole in what arrives.
        """


class NoPeers:
    """The peers of a voter that is alone."""

    def attach(self, receiver: PeerReceiver) -> None:
        pass

    def send(self, voter_id: int, message: bytes) -> bool:
        return False
