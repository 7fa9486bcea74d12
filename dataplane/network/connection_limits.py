"""Connection limits, and which connection is closed when a limit is reached (KIP-402).

    new connection --- within all limits ---------------------------------------------> served
      |--- max.connections of the worker reached; on the inter-worker listener, which
      |    clients do not use: served, and a client's connection is closed for it
      |--- another limit reached; on the inter-worker listener -----------------------> provisional
      '--- a limit reached; on any other listener ------------------------------------> refused
    provisional --- ApiVersions, SASL, part of a worker's authentication: answered ---> provisional
      |--- it authenticates as another worker
      (`metaquorum.dataplane.replication.replica_authentication`): |    served, and a client's
      connection is closed for it '--- any other request, PROVISIONAL_S have passed, or
      MAX_PROVISIONAL newer ones --> closed

Many clients on the same listener as the workers, or behind the same address, therefore cannot keep
a follower from its leader. (Kafka protects only an inter-broker listener that clients do not use.)
Provisional connections do not count against the limits.

The connection that is closed for another is approximately the least recently used, by the clock
algorithm: the first one found that made no progress since the previous pass.

Plain state.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final, Protocol

from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.replies import DelayedReply, Handle, PendingReply, Reply
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.protocol.apis import ApiKey

MAX_PROVISIONAL: Final = 64  # at once; a further one closes the oldest
PROVISIONAL_S: Final = 10.0
# Limit of open connections of one worker that were admitted provisionally. Above one, because the
# end of a broken connection is noticed late.
MAX_CONNECTIONS_OF_ONE_WORKER: Final = 8
# Requests that a follower sends before its first fetch.
_IDENTIFYING_APIS: Final = frozenset(
    key.to_bytes(2, "big")
    for key in (
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.AUTHENTICATE_REPLICA,
    )
)


@frozen
class ConnectionLimits:
    """Limits of the worker, of its listeners and of each IP address.

    Configs: max.connections, listener.name.NAME.max.connections, max.connections.per.ip and
    max.connections.per.ip.overrides. The limit of open files of the process is one of the worker.
    """

    all: int
    per_ip: int
    by_listener: Mapping[str, int] = field(default_factory=dict)
    by_ip: Mapping[str, int] = field(default_factory=dict)  # instead of per_ip
    descriptors: int | None = None  # as many connections may be open; None: no limit

    @property
    def of_worker(self) -> int:
        """Most connections of the worker."""
        return self.all if self.descriptors is None else min(self.all, self.descriptors)


@frozen
class PeerListener:
    """The listener to which the other workers of the cluster connect."""

    listener: str  # its name
    is_shared: bool  # whether clients use it too
    are_any: Callable[[], bool]  # whether the cluster has other workers


class LimitedConnection(Protocol):
    """A connection, as the limits see it."""

    @property
    def client(self) -> Client: ...

    @property
    def progress(self) -> int: ...

    @property
    def is_muted(self) -> bool: ...


class ConnectionLimiter:
    """Connection limits of one worker. A connection is counted from `add` to `remove`."""

    def __init__(self, limits: ConnectionLimits, peers: PeerListener | None = None) -> None:
        self.limits = limits
        self._peers = peers
        self._taken: dict[
            LimitedConnection, int
        ] = {}  # progress of each connection at the last pass of `_evict_one`
        self._per_ip: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._admitted_workers: dict[
            int, list[LimitedConnection]
        ] = {}  # provisionally admitted connections by worker id, oldest first

    def __len__(self) -> int:
        return len(self._taken)

    def exceeded_limit(self, listener: str, host: str) -> str | None:
        """Return the limit that a new connection to `listener` would exceed, for a log line.

        Return None if the connection is within all limits.
        """
        most = self.limits.by_ip.get(host, self.limits.per_ip)
        if self._per_ip[host] >= most:
            name = "max.connections.per.ip" + ".overrides" * (host in self.limits.by_ip)
            return (
                f"{self._per_ip[host]} connections from this address are open, the limit of {name}"
            )
        if (lack := self._exceeded_listener_limit(listener)) is not None:
            return lack
        if len(self._taken) >= self.limits.of_worker and not self._is_protected(listener):
            if self.limits.of_worker == self.limits.all:
                return f"{len(self._taken)} connections are open, the limit of max.connections"
            return (
                f"{len(self._taken)} connections are open, as many as the limit of open files"
                " (ulimit -n) of this process permits"
            )
        return None

    def _exceeded_listener_limit(self, listener: str) -> str | None:
        most, count = self.limits.by_listener.get(listener), self._by_listener[listener]
        if most is None or count < most:
            return None
        name = f"listener.name.{listener.lower()}.max.connections"
        return f"{count} connections to this listener are open, the limit of {name}"

    def _is_protected(self, listener: str) -> bool:
        peers = self._peers
        return peers is not None and not peers.is_shared and listener == peers.listener

    def peer_listener(self, listener: str) -> PeerListener | None:
        """Return the inter-worker listener if its name is `listener` and other workers exist."""
        peers = self._peers
        if peers is None or listener != peers.listener or not peers.are_any():
            return None
        return peers

    def add(self, connection: LimitedConnection) -> LimitedConnection | None:
        """Count `connection`. Return the connection to close for it, which no longer counts."""
        listener = connection.client.listener
        self._taken[connection] = 0
        self._per_ip[connection.client.address[0]] += 1
        self._by_listener[listener] += 1
        most = self.limits.by_listener.get(listener)
        if most is not None and self._by_listener[listener] > most:
            return self._evict_one(lambda client: client.listener == listener)
        if len(self._taken) > self.limits.of_worker:
            return self._evict_one(lambda client: not self._is_protected(client.listener))
        return None

    def add_worker_connection(
        self, connection: LimitedConnection, worker_id: int
    ) -> list[LimitedConnection]:
        """Count a provisional connection that authenticated as a worker.

        Return the connections to close for it, which no longer count.
        """
        admitted = self._admitted_workers.setdefault(worker_id, [])
        admitted.append(connection)
        ending = [each for each in (self.add(connection),) if each is not None]
        if len(admitted) > MAX_CONNECTIONS_OF_ONE_WORKER:
            ending.append(admitted[0])
            self.remove(admitted[0])
        return ending

    def remove(self, connection: LimitedConnection) -> None:
        """Stop counting `connection`. Idempotent."""
        if self._taken.pop(connection, None) is None:
            return
        host, listener = connection.client.address[0], connection.client.listener
        for counts, key in ((self._per_ip, host), (self._by_listener, listener)):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
        for worker_id, admitted in self._admitted_workers.items():
            if connection in admitted:
                admitted.remove(connection)
                if not admitted:
                    del self._admitted_workers[worker_id]
                break

    def _evict_one(self, may: Callable[[Client], bool]) -> LimitedConnection | None:
        """Remove and return the least recently used connection of a client that `may` accepts.

        Connections of workers and muted connections are kept. Return None if all are kept.
        """
        for _ in range(2 * len(self._taken)):  # the second pass finds those busy before the first
            connection = next(iter(self._taken))
            seen = self._taken.pop(connection)
            self._taken[connection] = connection.progress
            client = connection.client
            if not may(client) or client.is_follower:
                continue
            if connection.progress == seen and not connection.is_muted:
                self.remove(connection)
                return connection
        return None


class ProvisionalConnection:
    """Request filter: until it authenticates as a worker, a connection may only identify itself."""

    def __init__(
        self,
        handle: Handle,
        passed: Callable[[int], None],
        failed: Callable[[], None],
    ) -> None:
        """Call `passed` with the worker id, or `failed` at the first other request.

        After `failed`, requests are no longer handled.
        """
        self._handle = handle
        self._passed = passed
        self._failed = failed
        self.is_over = self.has_passed = False

    def handle(self, frame: memoryview, client: Client) -> Reply | PendingReply | DelayedReply:
        if not self.is_over:
            if client.sasl is not None and not client.sasl.is_open:
                return self._handle(frame, client)
            if bytes(frame[:2]) in _IDENTIFYING_APIS:
                answer = self._handle(frame, client)
                if client.is_follower:
                    passed = self._passed
                    self.has_passed = True
                    self.end(may_go_on=True)
                    passed(client.replica.worker_id)
                return answer
            failed = self._failed
            self.end(may_go_on=False)
            failed()
        return self._handle(frame, client)

    def end(self, *, may_go_on: bool) -> None:
        """Stop checking requests and drop the callbacks; handle no requests unless `may_go_on`."""
        self.is_over = True
        self._passed, self._failed = _ignored, _ignored
        if not may_go_on:
            self._handle = _unanswered


def _unanswered(frame: memoryview, client: Client) -> Reply:
    return None


def _ignored(worker_id: int = 0) -> None:
    pass
