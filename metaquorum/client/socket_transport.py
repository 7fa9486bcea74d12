"""Blocking client for programs without an event loop, over blocking sockets.

    with connect("127.0.0.1:9092") as cluster:
        for topic in BlockingAdmin(cluster).topics():
            print(topic.name, len(topic.partitions))

Not thread-safe: use a cluster from one thread at a time.
"""

import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar

from metaquorum.client.administration.admin import AdminClient
from metaquorum.client.cluster import DEFAULT_TIMEOUT_S, Cluster
from metaquorum.client.consumer import Consumer
from metaquorum.client.errors import TlsHandshakeError
from metaquorum.client.producer import Producer
from metaquorum.client.security import PLAINTEXT, Security, Tls
from metaquorum.client.transport import BROKEN, AllFailedError, Attempt, Closable
from metaquorum.wire.primitives.types import Buffer

if TYPE_CHECKING:
    import ssl

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=Closable)
A = TypeVar("A")

_LEAST_TIMEOUT_S: Final = 0.001  # a timeout of zero would make the socket non-blocking


class BlockingStream:
    """`Stream` over a blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    async def send(self, data: Buffer, deadline: float) -> None:
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(data)

    async def receive_into(self, buffer: memoryview, deadline: float) -> int:
        self._socket.settimeout(_left(deadline))
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        self._socket.close()


class BlockingTransport:
    """`Transport` over blocking sockets."""

    def __init__(self, tls: Tls | None = None) -> None:
        """Create a transport. Raises ValueError if the TLS files cannot be used."""
        self._context = None if tls is None else tls.context()
        self._of_thread = threading.local()

    def monotonic(self) -> float:
        return time.monotonic()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_until(self, deadline: float) -> None:
        time.sleep(max(0.0, deadline - time.monotonic()))

    async def connect(self, host: str, port: int, deadline: float) -> BlockingStream:
        sock = socket.create_connection((host, port), _left(deadline))
        secured: ssl.SSLSocket | None = None
        lane: _RaceAttempt | None = getattr(self._of_thread, "lane", None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            sock = secured = self._context.wrap_socket(
                sock, server_hostname=host, do_handshake_on_connect=False
            )
        if lane is not None:
            lane.contest.opened(lane.number, sock)
        if secured is not None:
            _shake_hands(secured)
        return BlockingStream(sock)

    async def race(self, attempts: Sequence[Attempt[C]], stagger_s: float) -> C:
        contest = _ConnectRace[C](len(attempts))

        def run(number: int) -> None:
            self._of_thread.lane = _RaceAttempt(contest, number)
            try:
                contest.finished(number, wait(attempts[number]()))
            except Exception as error:  # noqa: BLE001 - it is raised where the race is waited for
                contest.failed(number, error)

        try:
            for number in range(len(attempts)):
                # A daemon thread that is not joined; it ends when its socket is shut down.
                threading.Thread(target=run, args=(number,), daemon=True).start()
                if contest.wait(number + 1, stagger_s):
                    break
            else:
                contest.wait(len(attempts), None)
            return contest.result()
        finally:
            contest.end()


class _ConnectRace(Generic[C]):
    """Connection attempts of one race, each in its own thread, and their results."""

    def __init__(self, count: int) -> None:
        self._changed = threading.Condition()
        self._sockets: dict[int, list[socket.socket]] = {number: [] for number in range(count)}
        self._failures: dict[int, Exception] = {}
        self._won: tuple[int, C] | None = None
        self._fatal: Exception | None = None
        self._is_over = False

    def opened(self, number: int, sock: socket.socket) -> None:
        """Register the socket of an attempt, which is shut down if another attempt wins."""
        with self._changed:
            self._sockets[number].append(sock)
            if self._is_over:
                _shut_down(sock)

    def finished(self, number: int, result: C) -> None:
        with self._changed:
            if self._won is None and not self._is_over:
                self._won = number, result
                self._changed.notify()
                return
        result.close()

    def failed(self, number: int, error: Exception) -> None:
        with self._changed:
            self._failures[number] = error
            if not isinstance(error, BROKEN) and self._fatal is None:
                self._fatal = error
            self._changed.notify()

    def wait(self, begun: int, timeout_s: float | None) -> bool:
        """Wait and return whether the race is decided.

        Returns False if the first `begun` attempts have all failed, or after `timeout_s` seconds.
        Blocking.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_decided() or len(self._failures) >= begun, timeout_s
            )
            return self._is_decided()

    def _is_decided(self) -> bool:
        return self._won is not None or self._fatal is not None

    def result(self) -> C:
        """Return the result of the winner.

        Raises AllFailedError if all attempts failed, or the error that ended the race.
        """
        with self._changed:
            if self._won is not None:
                return self._won[1]
            if self._fatal is not None:
                raise self._fatal
            raise AllFailedError([self._failures[number] for number in sorted(self._failures)])

    def end(self) -> None:
        """Shut down the sockets of the losers, which ends their threads."""
        with self._changed:
            self._is_over = True
            winner = -1 if self._won is None else self._won[0]
            for number, sockets in self._sockets.items():
                if number != winner:
                    for sock in sockets:
                        _shut_down(sock)


class _RaceAttempt(NamedTuple):
    """Attempt that runs in the current thread."""

    contest: _ConnectRace[Any]
    number: int


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):  # the socket is closed already, or was never connected
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # without a TLS close_notify


def _shake_hands(sock: "ssl.SSLSocket") -> None:
    try:
        sock.do_handshake()
    except OSError as error:
        sock.close()
        raise TlsHandshakeError(f"TLS handshake failed: {_why(error)}") from None


# Reasons that OpenSSL gives if the peer does not answer, or not with TLS.
_NO_TLS: Final = frozenset(
    ("UNEXPECTED_EOF_WHILE_READING", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
)


def _why(error: OSError) -> object:
    reason = getattr(error, "reason", None)
    if reason in _NO_TLS or isinstance(error, ConnectionResetError):
        return "the broker does not seem to use TLS on this port"
    return getattr(error, "verify_message", None) or reason or error


def _left(deadline: float) -> float:
    return max(_LEAST_TIMEOUT_S, deadline - time.monotonic())


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result. Blocking.

    The coroutine must await nothing but a `BlockingTransport`, so that it never suspends; else
    RuntimeError is raised.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("the coroutine needs an event loop, but was run without one")


@contextmanager
def connect(
    bootstrap: str | Sequence[tuple[str, int]],
    *,
    client_id: str = "mq-admin",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    security: Security = PLAINTEXT,
) -> Iterator[Cluster]:
    """Yield a cluster and close its connections at the end of the block.

    The first call opens the first connection. `timeout_s`: timeout of one call, with all its
    retries, in seconds. Raises ValueError if an address is malformed or the TLS files cannot be
    used.
    """
    cluster = Cluster(
        BlockingTransport(security.tls),
        bootstrap,
        client_id=client_id,
        timeout_s=timeout_s,
        login=security.login,
    )
    try:
        yield cluster
    finally:
        cluster.close()


class Blocking(Generic[A]):
    """Base of the blocking clients. `client`: the client with async methods."""

    client: A

    def __init__(self, client: A) -> None:
        self.client = client


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[A], P], T]:
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return wait(method(self.client, *args, **kwargs))

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class BlockingAdmin(Blocking[AdminClient]):
    """`AdminClient` with blocking methods."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(AdminClient(cluster))

    describe_cluster = blocking(AdminClient.describe_cluster)
    apis = blocking(AdminClient.apis)
    describe_quorum = blocking(AdminClient.describe_quorum)
    workers = blocking(AdminClient.workers)
    describe_health = blocking(AdminClient.describe_health)
    describe_eligible = blocking(AdminClient.describe_eligible)
    describe_cluster_health = blocking(AdminClient.describe_cluster_health)
    describe_truncations = blocking(AdminClient.describe_truncations)
    unregister_worker = blocking(AdminClient.unregister_worker)
    drain_worker = blocking(AdminClient.drain_worker)
    return_worker = blocking(AdminClient.return_worker)
    remove_worker = blocking(AdminClient.remove_worker)
    raise_features = blocking(AdminClient.raise_features)
    alter_replica_log_dirs = blocking(AdminClient.alter_replica_log_dirs)
    describe_log_dirs = blocking(AdminClient.describe_log_dirs)
    topics = blocking(AdminClient.topics)
    describe_topics = blocking(AdminClient.describe_topics)
    create_topics = blocking(AdminClient.create_topics)
    delete_topics = blocking(AdminClient.delete_topics)
    create_partitions = blocking(AdminClient.create_partitions)
    list_offsets = blocking(AdminClient.list_offsets)
    delete_records = blocking(AdminClient.delete_records)
    describe_configs = blocking(AdminClient.describe_configs)
    alter_configs = blocking(AdminClient.alter_configs)
    describe_users = blocking(AdminClient.describe_users)
    set_password = blocking(AdminClient.set_password)
    delete_credentials = blocking(AdminClient.delete_credentials)
    describe_client_quotas = blocking(AdminClient.describe_client_quotas)
    describe_quota_use = blocking(AdminClient.describe_quota_use)
    describe_coordinator_memory = blocking(AdminClient.describe_coordinator_memory)
    alter_client_quotas = blocking(AdminClient.alter_client_quotas)


class BlockingProducer(Blocking[Producer]):
    """`Producer` with blocking methods: `BlockingProducer(Producer(cluster))`."""

    send = blocking(Producer.send)


class BlockingConsumer(Blocking[Consumer]):
    """`Consumer` with blocking methods: `BlockingConsumer(Consumer(cluster))`."""

    assign = blocking(Consumer.assign)
    end_offsets = blocking(Consumer.end_offsets)
    poll = blocking(Consumer.poll)
