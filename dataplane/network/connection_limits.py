"""How many may be connected, and who has a place when all are taken (KIP-402).

    a connection comes --- there is a place ------------------------------------------> served
      |--- all of the worker are taken; by the listener between workers, where clients
      |    have another: served, and a client's connection ends for it
      |--- by the listener between workers, others of its limits: on trial
      '--- by any other: refused
    on trial --- ApiVersions, SASL, part of a worker's proof: answered ---------------> on trial
      |--- it proves that it is another worker (`dataplane.replication.replica_authentication`):
      |    served, and a client's connection ends for it
      '--- it asks for anything else, its time is over, or many come behind it -------> closed

So a crowd of clients that share the listener between workers with them, or an address, keeps no
follower from its leader. (In Kafka only a listener that clients have not is protected.) Who is on
trial has no place, and takes none from anybody.

The connection that ends for another is the least recently used, nearly: a clock's hand goes round,
and stops at the first that has done nothing since it last came by.

Plain state.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final, Protocol

from dataplane.network.client import Client
from dataplane.network.replies import DelayedReply, Handle, PendingReply, Reply
from wire.primitives.frozen import frozen
from wire.protocol.apis import ApiKey

MAX_PROVISIONAL: Final = 64  # the oldest makes room
PROVISIONAL_S: Final = 10.0
# Of one worker, let in by a trial and still open: some may have ended, and nobody here knows yet.
MAX_CONNECTIONS_OF_ONE_WORKER: Final = 8
# What a follower sends before its first fetch.
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
    """max.connections, of all and of single listeners; max.connections.per.ip with overrides."""

    all: int
    per_ip: int
    by_listener: Mapping[str, int] = field(default_factory=dict)
    by_ip: Mapping[str, int] = field(default_factory=dict)  # instead of per_ip


@frozen
class PeerListener:
    """The other workers of the cluster."""

    listener: str  # by which they come
    is_shared: bool  # with clients
    are_any: Callable[[], bool]


class LimitedConnection(Protocol):
    """A connection, as far as places matter."""

    @property
    def client(self) -> Client: ...

    @property
    def progress(self) -> int: ...

    @property
    def is_muted(self) -> bool: ...


class ConnectionLimiter:
    """Of one worker. Connections are counted from `add` to `remove`."""

    def __init__(self, limits: ConnectionLimits, peers: PeerListener | None = None) -> None:
        self.limits = limits
        self._peers = peers
        self._taken: dict[
            LimitedConnection, int
        ] = {}  # and its progress when the hand last came by
        self._per_ip: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._admitted_workers: dict[
            int, list[LimitedConnection]
        ] = {}  # by trial, by worker, the oldest first

    def __len__(self) -> int:
        return len(self._taken)

    def exceeded_limit(self, listener: str, host: str) -> str | None:
        """What one more, which has come by `listener`, has no place for: ends a sentence."""
        most = self.limits.by_ip.get(host, self.limits.per_ip)
        if self._per_ip[host] >= most:
            name = "max.connections.per.ip" + ".overrides" * (host in self.limits.by_ip)
            return f"it has {self._per_ip[host]}, which is {name}"
        if (lack := self._exceeded_listener_limit(listener)) is not None:
            return lack
        if len(self._taken) >= self.limits.all and not self._is_protected(listener):
            return f"{len(self._taken)} are open, which is max.connections"
        return None

    def _exceeded_listener_limit(self, listener: str) -> str | None:
        most, count = self.limits.by_listener.get(listener), self._by_listener[listener]
        if most is None or count < most:
            return None
        name = f"listener.name.{listener.lower()}.max.connections"
        return f"{count} by that listener are open, which is {name}"

    def _is_protected(self, listener: str) -> bool:
        peers = self._peers
        return peers is not None and not peers.is_shared and listener == peers.listener

    def peer_listener(self, listener: str) -> PeerListener | None:
        """None: whoever comes by that listener is no worker."""
        peers = self._peers
        if peers is None or listener != peers.listener or not peers.are_any():
            return None
        return peers

    def add(self, connection: LimitedConnection) -> LimitedConnection | None:
        """It counts. Who has to end for it, and counts no longer."""
        listener = connection.client.listener
        self._taken[connection] = 0
        self._per_ip[connection.client.address[0]] += 1
        self._by_listener[listener] += 1
        most = self.limits.by_listener.get(listener)
        if most is not None and self._by_listener[listener] > most:
            return self._evict_one(lambda client: client.listener == listener)
        if len(self._taken) > self.limits.all:
            return self._evict_one(lambda client: not self._is_protected(client.listener))
        return None

    def add_worker_connection(
        self, connection: LimitedConnection, worker_id: int
    ) -> list[LimitedConnection]:
        """It counts, as that worker's, which came by trial. Who has to end for it."""
        admitted = self._admitted_workers.setdefault(worker_id, [])
        admitted.append(connection)
        ending = [each for each in (self.add(connection),) if each is not None]
        if len(admitted) > MAX_CONNECTIONS_OF_ONE_WORKER:
            ending.append(admitted[0])
            self.remove(admitted[0])
        return ending

    def remove(self, connection: LimitedConnection) -> None:
        """It does not count, if it did."""
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
        """The least recently used of those that `may` end; it is no worker's."""
        for _ in range(2 * len(self._taken)):  # who was busy at first is not, the second time
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
    """Stands before the handlers of one connection until it has shown that it is a worker's."""

    def __init__(
        self,
        handle: Handle,
        passed: Callable[[int], None],
        failed: Callable[[], None],
    ) -> None:
        """`passed` is told which worker it is; after `failed` nothing is handled any more."""
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
        """It knows of nobody any more."""
        self.is_over = True
        self._passed, self._failed = _ignored, _ignored
        if not may_go_on:
            self._handle = _unanswered


def _unanswered(frame: memoryview, client: Client) -> Reply:
    return None


def _ignored(worker_id: int = 0) -> None:
    pass
