"""The dialer's side of AuthenticateReplica: a worker proves its id on a connection to another one.

    hello -> the other worker's hello -> proof -> its proof

`replica_authentication` is the other side. A fetcher sends its first fetch with the proof; other
requests of workers wait for the answer (`authenticate`).
"""

from metaquorum.client.connection import BrokerConnection
from metaquorum.client.errors import broker_error
from metaquorum.dataplane.replication.replica_authentication import prove
from metaquorum.quorum.channel import Endpoint, HandshakeError
from metaquorum.quorum.channel.handshake import DialerHandshake, Refusal
from metaquorum.wire.messages.authenticate_replica import (
    AuthenticateReplicaRequest,
    AuthenticateReplicaResponse,
)
from metaquorum.wire.primitives.errors import WireError


async def verifies_proofs(connection: BrokerConnection, deadline: float) -> bool:
    """Negotiate versions, and return whether the other worker serves AuthenticateReplica.

    Only for a worker that may be of an earlier version (`earlier_workers`): a proof would take
    another round trip, and a worker that must prove its own id could omit that.
    """
    await connection.negotiate(deadline)
    return AuthenticateReplicaRequest.API in connection.versions


async def exchange_hellos(
    connection: BrokerConnection,
    endpoint: Endpoint | None,
    worker_id: int,
    address: tuple[str, int],
    deadline: float,
) -> DialerHandshake:
    """Exchange hellos with the worker dialed at `address`; the caller sends the proof next.

    Negotiates versions first if that was not done. Raises HandshakeError if its hello is invalid
    or this node has no cluster secret.
    """
    if endpoint is None:
        raise HandshakeError(Refusal.SECRET, "this node has no cluster secret")
    dialing = prove(endpoint, worker_id, address)
    hello = AuthenticateReplicaRequest(auth_bytes=dialing.data_to_send())
    if connection.versions:
        await connection.send(hello, deadline)
        answer = await connection.receive(deadline)
    else:
        answer = await connection.negotiate_and_ask(hello, deadline)
    _advance(dialing, answer)
    return dialing


def take_proof(dialing: DialerHandshake, response: AuthenticateReplicaResponse) -> None:
    """Verify the other worker's proof of its id.

    Raises HandshakeError, BrokerError or WireError.
    """
    _advance(dialing, response)
    if dialing.established is None:
        raise WireError("AuthenticateReplica: the leader's proof is incomplete")


async def authenticate(
    connection: BrokerConnection,
    endpoint: Endpoint | None,
    worker_id: int,
    address: tuple[str, int],
    deadline: float,
) -> None:
    """Negotiate versions and prove this worker's id on a new connection.

    Raises HandshakeError, BrokerError or WireError, and the errors of the connection.
    """
    dialing = await exchange_hellos(connection, endpoint, worker_id, address, deadline)
    await connection.send(AuthenticateReplicaRequest(auth_bytes=dialing.data_to_send()), deadline)
    take_proof(dialing, await connection.receive(deadline))


def _advance(dialing: DialerHandshake, response: AuthenticateReplicaResponse) -> None:
    dialing.receive(bytes(response.auth_bytes)[: dialing.room])
    if response.error_code:
        raise broker_error(response.error_code, response.error_message, "fetch")
    if dialing.peer is None:
        raise WireError("AuthenticateReplica: the leader's hello is incomplete")
