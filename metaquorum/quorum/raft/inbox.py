"""Queue of messages and connection events from peers for the driver, bounded for each peer."""

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Final, TypeAlias

from metaquorum.quorum.raft.messages import Message, decode_message
from metaquorum.quorum.raft.peers import MAX_QUEUE_BYTES, MAX_QUEUE_MESSAGES, PeerProtocolError


class InboxEvent(Enum):
    CONNECTED = auto()
    DISCONNECTED = auto()


News: TypeAlias = Message | InboxEvent


class Inbox:
    """`PeerReceiver` that queues every message and event and calls `wake`."""

    def __init__(self, node_id: int, voters: tuple[int, ...], wake: Callable[[], None]) -> None:
        self._peers: Final = frozenset(voters) - {node_id}
        self._wake = wake
        self._news: deque[tuple[int, News]] = deque()
        self._bytes = dict.fromkeys(voters, 0)
        self._messages = dict.fromkeys(voters, 0)

    def connected(self, voter_id: int) -> None:
        self._put(voter_id, InboxEvent.CONNECTED)

    def disconnected(self, voter_id: int) -> None:
        self._put(voter_id, InboxEvent.DISCONNECTED)

    def received(self, voter_id: int, message: bytes) -> None:
        if voter_id not in self._peers:
            raise PeerProtocolError(f"node {voter_id} is not another voter of this quorum")
        decoded = decode_message(message)
        if (
            self._bytes[voter_id] + len(message) > MAX_QUEUE_BYTES
            or self._messages[voter_id] == MAX_QUEUE_MESSAGES
        ):
            raise PeerProtocolError(
                "the peer sent more messages or bytes than it may have in flight"
            )
        self._bytes[voter_id] += len(message)
        self._messages[voter_id] += 1
        self._put(voter_id, decoded)

    def _put(self, voter_id: int, news: News) -> None:
        self._news.append((voter_id, news))
        self._wake()

    def take(self) -> Iterator[tuple[int, News]]:
        """Yield and remove all queued messages and events, in order of arrival."""
        while self._news:
            yield self._news.popleft()
        for voter_id in self._bytes:
            self._bytes[voter_id] = self._messages[voter_id] = 0
