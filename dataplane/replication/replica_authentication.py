"""Authentication of followers: a connection proves to a leader which worker it belongs to.

    start -- AuthenticateReplica: hello of another worker, for this one: answered -> begun
      '----- AuthenticateReplica: anything else: answered with the reason ----------> refused
    begun -- AuthenticateReplica: proof made with the cluster's secret: answered ---> proven
      '----- AuthenticateReplica: anything else: answered with the reason ----------> refused
    proven, refused -- AuthenticateReplica -----------------------------------------> closed

Every other request is handled in any state: the proof decides only what a request may claim, and
`claim_error` is the one place that decides it:

    replica id in the request   this connection proved    broker epoch in the request    treated as
    < 0                         anything                  -                              a consumer
    >= 0                        nothing, or another id    anything                       refused
    >= 0                        that id                   a fetch to v14, which has none refused
    >= 0                        that id                   not that of the metadata image stale
    >= 0                        that id                   that of the metadata image     a replica
    >= 0                        that id                   -, no fetch                    a replica
    >= 0                        nothing; the worker of    that of the metadata image     a replica
                                that id is an earlier     any other                      stale
                                one: a fetch from v15

refused: each partition answers TOPIC_AUTHORIZATION_FAILED, as in Kafka for a client without
CLUSTER_ACTION. (Treating such a request as a consumer's would mislead a replica that this worker
does not know.) ListOffsets alone answers such a request as a consumer's: followers send it without
a replica id, and Kafka refuses no id there. stale: STALE_BROKER_EPOCH for the whole request.
Either side may learn of a registration first, so the follower retries: one metadata delta later
both have the same state. An earlier one: `earlier_workers` decides for which workers, and only
during an upgrade.

The handshake is that of `metaquorum.quorum.channel.handshake` with a stream kind of its own, so a
proof for a stream to a controller is refused here, and vice versa. Both hellos name the cluster and
both node ids, and the follower's hello covers the address that it dialed: a proof that a program at
a former address of the leader passes on is refused. The proof holds for its connection alone. An
attacker who alters packets of a plaintext connection can still use that connection; TLS prevents
this.

A connection holds at most one unfinished handshake of MAX_HANDSHAKE_BYTES and has one attempt,
which costs two HMACs if it fails. Every node with the cluster's secret is trusted; a node without
a secret has no followers.

Plain state.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from metaquorum.dataplane.instruments.log_rate_limit import LogRateLimiter
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.replies import CloseConnectionError
from metaquorum.quorum.channel import Endpoint, HandshakeError, StreamKind
from metaquorum.quorum.channel.handshake import AcceptorHandshake, DialerHandshake, Hello, Refusal
from metaquorum.wire.primitives.errors import ErrorCode

if TYPE_CHECKING:
    from metaquorum.dataplane.replication.earlier_workers import EarlierFollowers
    from metaquorum.metadata.image import MetadataImage
    from metaquorum.wire.messages.fetch import FetchRequest

log = logging.getLogger(__name__)

_DIGEST_BYTES: Final = 8


def claim_error(client: Client, replica_id: int) -> ErrorCode:
    """Return NONE if the client may fetch as this replica; negative ids are consumers'."""
    if replica_id < 0 or replica_id == client.replica.worker_id:
        return ErrorCode.NONE
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED


def fetch_claim_error(
    client: Client, message: FetchRequest, image: MetadataImage, earlier: EarlierFollowers
) -> ErrorCode:
    """Return the error of a fetch's replica id and broker epoch; `image` is the current one.

    `earlier` accepts workers of an earlier version without a proof.
    """
    state = message.replica_state
    if state is None or state.replica_id < 0:
        # Up to v14 a fetch has no broker epoch; workers send no such fetch.
        is_consumer = message.replica_id < 0
        return ErrorCode.NONE if is_consumer else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    registered = image.workers.get(state.replica_id)
    code = claim_error(client, state.replica_id)
    if code and (registered is None or not earlier.accepts(client, registered)):
        return code
    if registered is None or registered.broker_epoch != state.replica_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    return ErrorCode.NONE


class ReplicaAuthenticationError(Exception):
    """Raised if a worker's proof is refused; `answer` is the handshake's reply, if any."""

    def __init__(self, reason: str, answer: bytes = b"") -> None:
        super().__init__(reason)
        self.answer = answer


class ReplicaAuthenticator:
    """Leader's side of the handshake, for all connections of one worker."""

    def __init__(
        self,
        endpoint: Endpoint | None,
        listener: str,
        address: tuple[str, int],
        monotonic: Callable[[], float],
    ) -> None:
        """Create the leader's side; without `endpoint` (no cluster secret) it refuses every proof.

        `address` is the registered one of `listener`, this worker's listener for other workers.
        """
        self._endpoint = endpoint
        self._listener = listener
        self._address = address_digest(*address)
        self._monotonic = monotonic
        self._lines = LogRateLimiter(monotonic())

    def respond(self, client: Client, token: bytes) -> bytes:
        """Return the reply to one handshake message; the last sets `client.replica.worker_id`.

        Raises ReplicaAuthenticationError, after which this connection cannot authenticate, and
        CloseConnectionError on a second attempt.
        """
        exchange, client.replica.exchange = client.replica.exchange, None
        if exchange is None and client.replica.has_begun:
            raise CloseConnectionError("the client begins a second AuthenticateReplica handshake")
        client.replica.has_begun = True
        try:
            if exchange is not None:
                return self._advance(client, exchange, token, is_last=True)
            return self._advance(client, self._begin(client), token, is_last=False)
        except ReplicaAuthenticationError as error:
            end = self._lines.take(client.address[0], self._monotonic())
            if end is not None:
                log.warning(
                    "client %s failed to authenticate as a worker: %s%s", client, error, end
                )
            raise

    def _begin(self, client: Client) -> AcceptorHandshake:
        if self._endpoint is None:
            raise ReplicaAuthenticationError(
                "this node has no cluster secret and accepts no followers"
            )
        if client.listener != self._listener:
            raise ReplicaAuthenticationError(
                f"followers connect to the listener {self._listener}, not {client.listener}"
            )
        return self._endpoint.accepting(self._admit)

    def _advance(
        self, client: Client, exchange: AcceptorHandshake, token: bytes, *, is_last: bool
    ) -> bytes:
        if len(token) > exchange.room:
            raise ReplicaAuthenticationError("the handshake message is too long")
        try:
            exchange.receive(token)
        except HandshakeError as error:
            raise ReplicaAuthenticationError(str(error), exchange.data_to_send()) from None
        if exchange.established is not None:
            client.replica.worker_id = exchange.established.peer.sender
        elif is_last or exchange.peer is None:
            raise ReplicaAuthenticationError("the handshake message is too short")
        else:
            client.replica.exchange = exchange
        return exchange.data_to_send()

    def _admit(self, hello: Hello) -> HandshakeError | None:
        assert self._endpoint is not None
        if hello.kind is not StreamKind.REPLICA:
            return HandshakeError(Refusal.UNWELCOME, "the proof is for another kind of stream")
        if hello.sender < 0 or hello.sender == self._endpoint.identity.node_id:
            return HandshakeError(
                Refusal.UNWELCOME,
                f"the follower's id {hello.sender} is negative or this node's own",
            )
        if hello.incarnation != self._address:
            return HandshakeError(
                Refusal.UNWELCOME, "the follower dialed an address that is not this worker's"
            )
        return None


def prove(endpoint: Endpoint, leader_id: int, address: tuple[str, int]) -> DialerHandshake:
    """Return the follower's side of a new handshake with the leader dialed at `address`."""
    return endpoint.dialing(StreamKind.REPLICA, leader_id, address_digest(*address))


def address_digest(host: str, port: int) -> int:
    """Return the digest of the address that a follower's hello carries as its incarnation."""
    digest = hashlib.sha256(f"{host}\n{port}".encode()).digest()
    return int.from_bytes(digest[:_DIGEST_BYTES], "big")
