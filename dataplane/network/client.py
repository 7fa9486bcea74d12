"""The client of one connection, as handlers see it: address, principal, SASL and quota state."""

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Protocol

from metaquorum.dataplane.network.sasl_session import SaslSession
from metaquorum.dataplane.partition.rejected_batches import RejectedBatches
from metaquorum.dataplane.quotas.client_state import ClientQuotaState
from metaquorum.quorum.channel.handshake import AcceptorHandshake
from metaquorum.quorum.rpc.methods import ANONYMOUS

NO_WORKER = -1


@lru_cache(maxsize=1000)
def account_of(host: str) -> str:
    """Return the name of the clients of an address in budgets; a host without address is its own.

    Members in records have the form of Kafka, /192.0.2.1.
    """
    host = host.removeprefix("/")
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((address, 64), strict=False))


class AcceptedClaim(Protocol):
    """A worker id that the connection claims without a proof; see `EarlierFollowers`."""

    worker_id: int
    broker_epoch: int

    def holds(self) -> bool:
        """Return whether the claim is still accepted."""
        ...


@dataclass(slots=True)
class ReplicaProof:
    """`ReplicaAuthenticator` state of a connection: the worker id that it authenticated as."""

    worker_id: int = NO_WORKER
    has_begun: bool = False
    exchange: AcceptorHandshake | None = None  # the handshake in progress
    unproven: AcceptedClaim | None = None  # accepted from an earlier worker


class Client:
    """A client connection; `principal` is User:ANONYMOUS until the client has authenticated."""

    __slots__ = (
        "address",
        "listener",
        "principal",
        "quota",
        "rejected",
        "replica",
        "sasl",
        "software",
    )

    def __init__(self, address: tuple[str, int], listener: str) -> None:
        self.address = address
        self.listener = listener
        self.principal = ANONYMOUS
        self.software = ("", "")  # name and version, from ApiVersions
        self.sasl: SaslSession | None = None  # on listeners with SASL, until the connection ends
        self.quota = ClientQuotaState()
        self.replica = ReplicaProof()
        self.rejected: RejectedBatches | None = None  # batches to resend before later ones

    @property
    def account(self) -> str:
        """Name of the client in budgets: its principal, or its address if it has none of its own.

        Clients are User:ANONYMOUS without authentication. An IPv6 client has all addresses of a
        network of 64 bits.
        """
        if self.principal != ANONYMOUS:
            return self.principal
        return account_of(self.address[0])

    @property
    def is_follower(self) -> bool:
        """Whether the connection authenticated as another worker of the cluster.

        During an upgrade, whether it is accepted as one of an earlier version instead.
        """
        replica = self.replica
        return replica.worker_id != NO_WORKER or (
            replica.unproven is not None and replica.unproven.holds()
        )

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"
