"""Connections and metadata of one cluster, found by its bootstrap addresses.

Every call has one deadline for all its attempts. If a connection fails, a query is sent again on
another one. A change that was sent is not sent again, since it may have been made: the call raises
InterruptedChangeError. Retriable errors, such as a moved leader, lead to a metadata refresh and
another attempt.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from metaquorum.client.connection import BrokerConnection
from metaquorum.client.errors import (
    AdminError,
    BrokerError,
    InterruptedChangeError,
    UnreachableError,
    broker_error,
)
from metaquorum.client.security import Login
from metaquorum.client.throttling import Deadline, ThrottleTimes, ThrottleWaits
from metaquorum.client.transport import BROKEN, AllFailedError, Attempt, Transport
from metaquorum.runtime.whole_numbers import whole_number
from metaquorum.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.schema.message import Message

T = TypeVar("T")

DEFAULT_PORT: Final = 9092
DEFAULT_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10.0
# Delay after which the next address is tried in parallel (the delay of RFC 8305).
RACE_STAGGER_S: Final = 0.25
FIRST_BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 1.0
FAILOVER_S: Final = 10.0
MAX_BOOTSTRAP_ADDRESSES: Final = 100
ANY_BROKER: Final = -1
CONTROLLER: Final = -2


class TopicPartition(NamedTuple):
    """Topic name and partition index."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Answers: TypeAlias = dict[TopicPartition, T | BrokerError]


class Node(NamedTuple):
    """Node id and advertised address of a broker."""

    node_id: int
    host: str
    port: int
    rack: str | None

    @property
    def address(self) -> str:
        """Address as HOST:PORT."""
        return address_text((self.host, self.port))


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """Return the addresses of "host:port,host:port"; the default port is 9092.

    Raises ValueError if an address is malformed, there is none, or there are too many.
    """
    addresses = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = item.rpartition(":")
        if not colon or (item.count(":") > 1 and not host.startswith("[")):
            host, port = item, str(DEFAULT_PORT)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        if not host or "[" in host or "]" in host or not whole_number(port, 65_535):
            raise ValueError(f"{item!r} is not HOST:PORT")
        addresses.append((host, int(port)))
    if not addresses:
        raise ValueError("no address given: HOST:PORT[,HOST:PORT...]")
    if len(addresses) > MAX_BOOTSTRAP_ADDRESSES:
        raise ValueError(f"more than {MAX_BOOTSTRAP_ADDRESSES} addresses")
    return addresses


def address_text(address: tuple[str, int]) -> str:
    """Return HOST:PORT, with an IPv6 address in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Cluster:
    """Connections to the brokers of one cluster, at most one to each."""

    def __init__(
        self,
        transport: Transport,
        bootstrap: str | Sequence[tuple[str, int]],
        *,
        client_id: str = "mq-admin",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        random: Random | None = None,
        login: Login | None = None,
    ) -> None:
        """Create a cluster without connecting to it.

        `timeout_s`: default timeout of a call in seconds. `random` chooses partitions for records
        without a key, and the jitter of retries. `login`: None connects without SASL.
        """
        self._login = login
        self.transport = transport
        self.timeout_s = timeout_s
        self.client_id = client_id
        self.random = random or Random()  # noqa: S311 - it only spreads load
        self.nodes: dict[int, Node] = {}
        self.cluster_id: str | None = None
        self.controller_id = -1
        self._bootstrap = parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else bootstrap
        # Throttle times in the responses, by API name (Produce, Fetch, ...).
        self.throttle_times: dict[str, ThrottleTimes] = {}
        self.throttle_waits = ThrottleWaits()
        self._first: BrokerConnection | None = None
        self._connections: dict[int, BrokerConnection] = {}
        self._topics: dict[str, MetadataResponseTopic] = {}
        self._partitions: dict[str, dict[int, MetadataResponsePartition]] = {}

    def close(self) -> None:
        """Close all connections."""
        for connection in [*self._connections.values(), *([self._first] if self._first else [])]:
            connection.close()
        self._connections.clear()
        self._first = None

    def deadline(self, timeout_s: float | None = None) -> float:
        """Return the deadline of a call that begins now, by the clock of the transport.

        Throttle times that calls wait out until then do not count.
        """
        at = self.transport.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        return Deadline.of(at, self.throttle_waits.waited_s)

    # Calls

    async def call(
        self,
        request: Message,
        *,
        to: int = ANY_BROKER,
        deadline: float | None = None,
        changes: bool = False,
        max_version: int | None = None,
    ) -> Any:
        """Send `request` to node `to` (or ANY_BROKER, or CONTROLLER) and return the response.

        The request is sent again if a connection fails, except with `changes`. Raises
        UnreachableError at the deadline, InterruptedChangeError if a change was sent and the
        connection failed, and NotServedError if the broker does not serve the API.
        """
        deadline = self.deadline() if deadline is None else deadline
        attempt = 0
        while True:
            connection = await self.connection(to, deadline)
            sent = False
            at = self.throttle_waits.extended(deadline)
            try:
                connection.version_of(type(request))  # raises NotServedError before it sends
                sent = True
                await connection.send(request, at, max_version=max_version)
                return await connection.receive(at)
            except BROKEN as error:
                self._drop(connection)
                where = address_text(connection.address)
                if changes and sent:
                    raise InterruptedChangeError(
                        f"{where} did not answer ({_reason(error)}); the change may have been made"
                    ) from error
                if not await self.back_off(attempt, deadline):
                    raise UnreachableError(
                        f"{where} did not answer {_api_name(request)}: {_reason(error)}", [error]
                    ) from error
            except (KafkaError, AdminError):
                raise
            except BaseException:  # cancelled: the next call must not get this response
                self._drop(connection)
                raise
            attempt += 1

    async def send_unanswered(
        self, request: Message, *, to: int, deadline: float, max_version: int | None = None
    ) -> None:
        """Send a produce request with acks=0, which has no response, to node `to`.

        Raises InterruptedChangeError if the connection fails, and the errors of `connection`.
        """
        connection = await self.connection(to, deadline)
        try:
            at = self.throttle_waits.extended(deadline)
            await connection.send_unanswered(request, at, max_version=max_version)
        except BROKEN as error:
            self._drop(connection)
            raise InterruptedChangeError(
                f"the connection to {address_text(connection.address)} failed while records were "
                f"sent ({_reason(error)}); they may have been appended"
            ) from error

    async def connection(self, to: int, deadline: float) -> BrokerConnection:
        """Return an open connection with negotiated versions.

        Raises UnreachableError if the broker cannot be reached, and BrokerError if there is no
        node `to`.
        """
        if to == ANY_BROKER:
            return await self._any(deadline)
        if not self.nodes:
            await self.refresh(deadline=deadline)
        if to == CONTROLLER and not self.nodes:
            return await self._any(deadline)
        if to == CONTROLLER:
            to = self.controller_id if self.controller_id in self.nodes else min(self.nodes)
        known = self._connections.get(to)
        if known is not None:
            return known
        node = self.nodes.get(to)
        if node is None:
            there = ", ".join(str(node_id) for node_id in sorted(self.nodes))
            text = f"there is no such node; the nodes are: {there}"
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, text, f"node {to}")
        opened = await self.open_connection(node, deadline)
        self._connections[to] = opened
        return opened

    async def _any(self, deadline: float) -> BrokerConnection:
        """Return a connection to the first broker that answers, including the login.

        Addresses are tried in parallel with a delay, so that a hanging broker costs little time.
        Each address is tried once, so that a mistyped address fails before the deadline; only a
        cluster that was reached before is retried, for FAILOVER_S seconds.
        """
        if self._first is not None:
            return self._first
        for connection in self._connections.values():
            return connection
        addresses = [*self._bootstrap, *((node.host, node.port) for node in self.nodes.values())]
        patience = min(deadline, self.deadline(FAILOVER_S)) if self.nodes else 0.0
        attempt = 0
        while True:
            tried = list(dict.fromkeys(addresses))
            attempts = [partial(self._open, address, deadline) for address in tried]
            try:
                self._first = await self._first_open(attempts)
            except AllFailedError as error:
                causes = error.failures
                failures = [
                    f"{address_text(address)}: {_reason(failure)}"
                    for address, failure in zip(tried, error.failures, strict=True)
                ]
            else:
                return self._first
            if not await self.back_off(attempt, patience):
                raise UnreachableError("no broker could be reached: " + "; ".join(failures), causes)
            attempt += 1

    async def _first_open(self, attempts: Sequence[Attempt[BrokerConnection]]) -> BrokerConnection:
        if len(attempts) > 1:
            return await self.transport.race(attempts, RACE_STAGGER_S)
        try:
            return await attempts[0]()
        except BROKEN as error:
            raise AllFailedError([error]) from error

    async def _open(self, address: tuple[str, int], deadline: float) -> BrokerConnection:
        soon = min(self.throttle_waits.extended(deadline), self.deadline(CONNECT_TIMEOUT_S))
        stream = await self.transport.connect(*address, soon)
        connection = BrokerConnection(
            stream, address, self.client_id, self._login, self.transport.monotonic
        )
        connection.throttle_times = self.throttle_times
        connection.throttle_waits = self.throttle_waits
        try:
            await connection.negotiate(soon)
        except BaseException:
            connection.close()
            raise
        return connection

    async def open_connection(self, node: Node, deadline: float) -> BrokerConnection:
        """Return a new connection to a node, which the caller closes.

        For requests behind which no other request may wait, such as JoinGroup. Callable from any
        thread. Raises UnreachableError if the node cannot be reached.
        """
        try:
            return await self._open((node.host, node.port), deadline)
        except BROKEN as error:
            raise UnreachableError(
                f"node {node.node_id} cannot be reached at its advertised address {node.address}: "
                f"{_reason(error)}",
                [error],
            ) from error

    def _drop(self, connection: BrokerConnection) -> None:
        connection.close()
        if self._first is connection:
            self._first = None
        for node_id in [n for n, c in self._connections.items() if c is connection]:
            del self._connections[node_id]

    def drop(self, connection: BrokerConnection) -> None:
        """Close a connection that has failed or whose outstanding responses are not needed."""
        self._drop(connection)

    async def back_off(self, attempt: int, deadline: float) -> bool:
        """Sleep before the next attempt. Return False, without sleeping, if the deadline is nearer.

        The pause doubles with each attempt up to MAX_BACKOFF_S seconds.
        """
        now = self.transport.monotonic()
        pause = min(FIRST_BACKOFF_S * 2**attempt, MAX_BACKOFF_S) * self.random.uniform(0.8, 1.2)
        if now + pause >= self.throttle_waits.extended(deadline):
            return False
        await self.transport.sleep_until(now + pause)
        return True

    # Metadata

    async def refresh(
        self, topics: Iterable[str] | None = (), *, deadline: float | None = None
    ) -> list[MetadataResponseTopic]:
        """Fetch metadata of the nodes and of `topics` (None: of all); return that of the topics.

        Raises BrokerError if the broker refuses.
        """
        names = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
        response: MetadataResponse = await self.call(request, deadline=deadline)
        if response.error_code:
            raise broker_error(response.error_code, None, "metadata")
        self.nodes = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        }
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        for node_id in [node_id for node_id in self._connections if node_id not in self.nodes]:
            self._drop(self._connections[node_id])
        return response.topics

    async def live_nodes(self) -> list[int]:
        """Return the ids of the live nodes, ascending.

        Metadata of named topics lists a worker for a while after it died.
        """
        await self.refresh()
        return sorted(self.nodes)

    async def topic(
        self, name: str, *, refresh: bool = False, deadline: float | None = None
    ) -> MetadataResponseTopic:
        """Return the metadata of one topic, from the cache unless `refresh`.

        Raises BrokerError if the topic does not exist.
        """
        known = self._topics.get(name)
        if known is not None and not refresh:
            return known
        deadline = self.deadline() if deadline is None else deadline
        attempt = 0
        while True:
            (topic,) = await self.refresh([name], deadline=deadline)
            if not topic.error_code:
                self._topics[name] = topic
                self._partitions[name] = {p.partition_index: p for p in topic.partitions}
                return topic
            self._topics.pop(name, None)
            error = broker_error(topic.error_code, None, f"topic {name}")
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                error.message = "there is no such topic"
            missing = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if missing or not error.retriable or not await self.back_off(attempt, deadline):
                raise error
            attempt += 1

    def forget_topic(self, name: str) -> None:
        """Drop the cached metadata of a topic: its next use fetches them."""
        self._topics.pop(name, None)

    async def partition(
        self, where: TopicPartition, *, refresh: bool = False, deadline: float | None = None
    ) -> MetadataResponsePartition:
        """Return the metadata of one partition, from the cache unless `refresh`.

        Raises BrokerError if the topic or the partition does not exist.
        """
        await self.topic(where.topic, refresh=refresh, deadline=deadline)
        partitions = self._partitions[where.topic]
        found = partitions.get(where.partition)
        if found is None:
            text = f"there is no such partition; topic {where.topic} has {len(partitions)}"
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise BrokerError(code, text, f"partition {where}")
        return found

    async def leaders(
        self, partitions: Iterable[TopicPartition], *, refresh: bool, deadline: float
    ) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, BrokerError]]:
        """Return the partitions by leader node, and an error for those without a leader."""
        grouped: dict[int, list[TopicPartition]] = {}
        leaderless: dict[TopicPartition, BrokerError] = {}
        fresh: set[str] = set()
        for where in partitions:
            again = refresh and where.topic not in fresh
            fresh.add(where.topic)
            found = await self.partition(where, refresh=again, deadline=deadline)
            if found.leader_id >= 0 and found.leader_id in self.nodes:
                grouped.setdefault(found.leader_id, []).append(where)
            else:
                leaderless[where] = BrokerError(
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    "the partition has no leader",
                    f"partition {where}",
                )
        return grouped, leaderless

    async def ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[Answers[T]]],
        deadline: float,
    ) -> Answers[T]:
        """Call `ask` with each leader and its partitions; return the answer for each partition.

        Partitions with retriable errors are retried after a metadata refresh, until the
        deadline. A leader that cannot be reached is retried for FAILOVER_S seconds, after which
        UnreachableError is raised.
        """
        answers: Answers[T] = {}
        asked = list(dict.fromkeys(partitions))
        waiting = asked
        patience = 0.0
        attempt = 0
        while True:
            grouped, leaderless = await self.leaders(
                waiting, refresh=attempt > 0, deadline=deadline
            )
            answers.update(leaderless)
            for node_id, led in grouped.items():
                try:
                    answers.update(await ask(node_id, led))
                except UnreachableError as error:
                    patience = min(deadline, patience or self.deadline(FAILOVER_S))
                    if self.transport.monotonic() >= self.throttle_waits.extended(patience):
                        raise
                    code = ErrorCode.NETWORK_EXCEPTION
                    unreached = BrokerError(code, str(error), f"node {node_id}")
                    answers.update(dict.fromkeys(led, unreached))
            waiting = [where for where in waiting if _may_change(answers.get(where))]
            if not waiting or not await self.back_off(attempt, deadline):
                return {where: answers[where] for where in asked}
            attempt += 1


def _may_change(answer: object) -> bool:
    return isinstance(answer, BrokerError) and answer.retriable


def _api_name(request: Message) -> str:
    return type(request).__name__.removesuffix("Request")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
