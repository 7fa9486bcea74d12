"""The client of one connection: what handlers know of it, each part kept by its owner."""

from dataclasses import dataclass

from dataplane.network.sasl_session import SaslSession
from dataplane.partition.rejected_batches import RejectedBatches
from dataplane.quotas.client_state import ClientQuotaState
from metaquorum.channel.handshake import AcceptorHandshake
from metaquorum.rpc.methods import ANONYMOUS

NO_WORKER = -1


@dataclass(slots=True)
class ReplicaProof:
    """The state of the `ReplicaAuthenticator`: which worker the connection has proved to be."""

    worker_id: int = NO_WORKER
    has_begun: bool = False
    exchange: AcceptorHandshake | None = None  # the handshake that has begun and not ended


class Client:
    """`principal` is the listener's anonymous user until the client has authenticated."""

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
        self.rejected: RejectedBatches | None = None  # batches to be sent again before later ones

    @property
    def is_follower(self) -> bool:
        """Whether the connection has proved to be another worker of the cluster."""
        return self.replica.worker_id != NO_WORKER

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"
