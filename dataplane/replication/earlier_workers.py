"""Replication with workers of an earlier version, during an upgrade: they prove no worker id.

Workers that do not support level 2 of metadata.version neither prove which worker they are nor
verify a proof (`replica_authentication`). Until they are upgraded, workers of both versions must
replicate from each other, or partitions would have in-sync replicas of one version only.

A worker is an earlier one while the cluster runs at level 1 and its registration does not state
level 2 (`is_earlier`). A leader then accepts its id without a proof if all of these hold:

    the connection came to the listener for other workers, from an address of a host at which
    that worker is registered, and has not begun to prove an id

Its broker epoch counts as that of a worker with a proof. Nothing but the address and the broker
epoch, which is public, distinguishes that worker from other programs: any program at that
address can claim its id. Therefore the id is checked again for each fetch, and is refused once the
worker registers with a version that proves ids, or the cluster runs at level 2. A restart with
the earlier version is a new registration, whose addresses are resolved again.

`EarlierFollowers` is plain state, except for its task `run`, which resolves hosts.
"""

import ipaddress
import logging
from collections.abc import Callable
from math import inf
from typing import Final

import trio

from metaquorum.dataplane.network.client import AcceptedClaim, Client
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import METADATA_VERSION, RegisterWorkerRecord
from metaquorum.runtime import Network

log = logging.getLogger(__name__)

# Workers that support this level of metadata.version prove their id.
PROOF_LEVEL: Final = 2
LOG_EVERY_S: Final = 60.0  # for one worker
RESOLVE_S: Final = 10.0
# A host is resolved again after this, if a fetch comes from another address: a restarted host may
# have a new address before its name has it.
RESOLVE_AGAIN_S: Final = 10.0
_LOOPBACK: Final = "loopback"


def is_earlier(image: MetadataImage, worker: RegisterWorkerRecord) -> bool:
    """Return whether the worker is of a version without proofs, which the cluster still permits."""
    if image.features.get(METADATA_VERSION, PROOF_LEVEL) >= PROOF_LEVEL:
        return False
    return not any(
        each.name == METADATA_VERSION and each.most >= PROOF_LEVEL for each in worker.features
    )


class UnprovenClaim:
    """A worker id that a connection claims without a proof; `holds` while it is accepted."""

    __slots__ = ("_image", "broker_epoch", "worker_id")

    def __init__(self, worker: RegisterWorkerRecord, image: Callable[[], MetadataImage]) -> None:
        self.worker_id = worker.worker_id
        self.broker_epoch = worker.broker_epoch
        self._image = image

    def holds(self) -> bool:
        """Return whether the worker still has this registration, and is an earlier one."""
        image = self._image()
        worker = image.workers.get(self.worker_id)
        return (
            worker is not None
            and worker.broker_epoch == self.broker_epoch
            and is_earlier(image, worker)
        )


class _Addresses:
    """Addresses of the hosts of one registration, and when they were last requested."""

    __slots__ = ("asked_at", "is_pending", "known", "logged_at", "worker")

    def __init__(self, worker: RegisterWorkerRecord) -> None:
        self.worker = worker
        self.known: frozenset[str] = frozenset()
        self.is_pending = False
        self.asked_at = -inf
        self.logged_at = -inf


class EarlierFollowers:
    """Decides which connections may fetch as a worker of an earlier version; see the module."""

    def __init__(
        self,
        network: Network,
        listener: str,
        monotonic: Callable[[], float],
        image: Callable[[], MetadataImage],
    ) -> None:
        """Create the state of one worker.

        `listener` is the name of its listener for other workers, and `image` returns the newest
        metadata.
        """
        self._network = network
        self._listener = listener
        self._monotonic = monotonic
        self._image = image
        self._addresses: dict[int, _Addresses] = {}
        self._unresolved: list[_Addresses] = []  # one at most for each registration
        self._is_unresolved = trio.Event()

    def accepts(self, client: Client, worker: RegisterWorkerRecord) -> bool:
        """Return whether the client may fetch as this worker without a proof.

        If not, the caller refuses the fetch. It may succeed later, because hosts are resolved
        meanwhile. The client of an accepted fetch counts as a follower.
        """
        claim = client.replica.unproven
        if claim is not None:
            if _is_of(claim, worker) and claim.holds():
                return True
            client.replica.unproven = None
        if (
            not is_earlier(self._image(), worker)
            or client.listener != self._listener
            or client.replica.has_begun
            or not self._has_address(worker, client)
        ):
            return False
        client.replica.unproven = UnprovenClaim(worker, self._image)
        if self._may_log(worker):
            log.warning(
                "worker %d, of an earlier version, replicates without a proof of its id: any"
                " program at its address %s can fetch as this worker until it is upgraded",
                worker.worker_id,
                client.address[0],
            )
        return True

    def _has_address(self, worker: RegisterWorkerRecord, client: Client) -> bool:
        found = self._addresses.get(worker.worker_id)
        if found is None or found.worker.broker_epoch != worker.broker_epoch:
            found = self._addresses[worker.worker_id] = _Addresses(worker)
        if normalized(client.address[0]) in found.known:
            return True
        if found.is_pending:
            return False
        if (now := self._monotonic()) >= found.asked_at + RESOLVE_AGAIN_S:
            found.is_pending, found.asked_at = True, now
            self._unresolved.append(found)
            self._is_unresolved.set()
        elif self._may_log(worker):
            log.warning(
                "a client at %s fetches as worker %d without a proof, and is refused: worker %d, of"
                " an earlier version, has the addresses %s",
                client.address[0],
                worker.worker_id,
                worker.worker_id,
                ", ".join(sorted(found.known)) or "of no host that can be resolved",
            )
        return False

    def _may_log(self, worker: RegisterWorkerRecord) -> bool:
        found, now = self._addresses[worker.worker_id], self._monotonic()
        if now < found.logged_at + LOG_EVERY_S:
            return False
        found.logged_at = now
        return True

    async def run(self) -> None:
        """Resolve the hosts of earlier workers that fetch, until cancelled."""
        while True:
            await self._is_unresolved.wait()
            self._is_unresolved = trio.Event()
            unresolved, self._unresolved = self._unresolved, []
            for found in unresolved:
                found.known = await self._resolve(found.worker)
                found.is_pending = False

    async def _resolve(self, worker: RegisterWorkerRecord) -> frozenset[str]:
        known: set[str] = set()
        for host in {endpoint.host: None for endpoint in worker.endpoints}:
            with trio.move_on_after(RESOLVE_S):
                try:
                    known.update(map(normalized, await self._network.addresses(host)))
                except OSError as error:
                    log.info("cannot resolve %s of worker %d: %s", host, worker.worker_id, error)
        return frozenset(known)


def _is_of(claim: AcceptedClaim, worker: RegisterWorkerRecord) -> bool:
    return (claim.worker_id, claim.broker_epoch) == (worker.worker_id, worker.broker_epoch)


def normalized(host: str) -> str:
    """Return an address in a comparable form; all loopback addresses are the same one."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host  # a simulated host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    address = mapped or address
    return _LOOPBACK if address.is_loopback else str(address)
