"""Streams from a node to the controllers, and discovery of the active controller.

The node keeps one stream to every other controller and redials it when it ends. On each stream a
long poll waits for changes of the leadership, so that the node learns of a new active controller
within a round trip, without polling:

    no stream --dialed and authenticated--> asking --its view--> known --change--> known
        ^                                      |                   |
        '--------------------------------the stream ends-----------'

The active controller is the one that claims to be active in the highest term. While it is active, a
`ControllerTerm` represents it, and calls go through that object. A controller in this process is
called in memory. Being a voter, it knows the leader, so that a node with a controller needs a
stream to that leader only.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeVar

import trio

from metaquorum.quorum.channel.calls import MAX_PAYLOAD_BYTES
from metaquorum.quorum.channel.endpoint import Endpoint
from metaquorum.quorum.channel.handshake import HandshakeError
from metaquorum.quorum.channel.rpc_client import CallError, CallLostError, RpcClient
from metaquorum.quorum.channel.timing import Backoff, within
from metaquorum.quorum.rpc.methods import WATCH_QUORUM, Method, QuorumView, WatchQuorum
from metaquorum.quorum.rpc.service import ControllerService, local_caller
from metaquorum.runtime.interfaces import Clock, Runtime, sleep
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError

log = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")

REDIAL_LEAST_S: Final = 0.02
REDIAL_MOST_S: Final = 0.3  # a new active controller waits 600 ms for the live workers to connect
GOOD_STREAM_S: Final = 2.0  # after a stream that lasted this long, the backoff starts again
MAX_REQUEST_BYTES: Final = MAX_PAYLOAD_BYTES // 2  # the answer may be longer than the request
WATCH_MS: Final = 20_000
WATCH_GRACE_S: Final = 5.0  # added to WATCH_MS before the call times out


class ControllerTerm:
    """Active controller of one term, as far as this node knows."""

    def __init__(self, controller_id: int, term: int, link: "_Remote | _Local") -> None:
        self.controller_id: Final = controller_id
        self.term: Final = term
        self.over: Final = trio.Event()
        self._link = link
        self._scopes: set[trio.CancelScope] = set()

    def __str__(self) -> str:
        return f"controller {self.controller_id} in term {self.term}"

    async def call(self, method: Method[Q, A], request: Q, timeout_s: float) -> A:
        """Call the controller and return the answer.

        Raises CallNotSentError, CallLostError or KafkaError; see `rpc_client`.
        """
        return await self._link.call(method, request, timeout_s)

    async def during(self, operation: Callable[[], Awaitable[T]]) -> T | None:
        """Run `operation` and return its result; cancel it and return None at the term's end."""
        if self.over.is_set():
            return None
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                return await operation()
            finally:
                self._scopes.discard(scope)
        return None

    def is_of(self, view: QuorumView, link: "_Remote | _Local") -> bool:
        return (self.controller_id, self.term) == (view.node_id, view.term) and self._link is link

    def end(self) -> None:
        self.over.set()
        for scope in self._scopes:
            scope.cancel()


class _Local:
    """The controller in this process."""

    def __init__(self, service: ControllerService, node_id: int, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._caller = local_caller(node_id)

    async def call(self, method: Method[Q, A], request: Q, timeout_s: float) -> A:
        try:
            return await within(
                self._clock,
                timeout_s,
                lambda: self._service.execute(self._caller, method, request),
            )
        except TimeoutError as error:
            raise CallLostError(f"{method.name} was {error}") from None


class _Remote:
    """A controller at the other end of a stream."""

    def __init__(self, client: RpcClient) -> None:
        self._client = client

    async def call(self, method: Method[Q, A], request: Q, timeout_s: float) -> A:
        payload = method.requests.encode(request)
        if len(payload) > MAX_REQUEST_BYTES:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{len(payload)} bytes are too many for one request to the controller.",
            )
        answer = await self._client.call(method.name, payload, timeout_s)
        try:
            return method.answers.decode(answer)
        except WireError as error:
            self._client.close()
            raise CallLostError(f"malformed answer: {error}") from None


class QuorumLinks:
    """Links to the other controllers, and to the controller of this process, if any.

    `run` them in a task, then use `wait_controller_term`.
    """

    def __init__(
        self,
        runtime: Runtime,
        endpoint: Endpoint | None,
        others: Mapping[int, tuple[str, int]],
        own: ControllerService | None,
        own_id: int,
        incarnation_id: bytes | None = None,
    ) -> None:
        """Use `endpoint` to dial `others`.

        `incarnation_id` identifies the worker of this process; None if the process is not a worker.
        """
        assert endpoint is not None or not others
        self._clock: Final = runtime.clock
        self._random: Final = runtime.random
        self._endpoint = endpoint
        self._others = others
        self._own = own
        self._own_id = own_id
        self._incarnation_id = incarnation_id
        self._known: dict[int, tuple[QuorumView, _Remote | _Local]] = {}
        self._dial_errors: dict[int, str] = dict.fromkeys(others, "not dialed yet")
        self._controller_term: ControllerTerm | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._own_view: QuorumView | None = None if own is None else own.view
        self._own_changed = trio.lowlevel.ParkingLot()

    @property
    def controller_term(self) -> ControllerTerm | None:
        """Active controller, or None if no active controller is known."""
        return self._controller_term

    @property
    def status_text(self) -> str:
        """Known state of each controller, in one line for log lines and errors."""
        lines = []
        for controller_id in sorted({*self._others, *self._known}):
            if controller_id in self._known:
                view = self._known[controller_id][0]
                led = "no leader" if view.leader_id is None else f"leader {view.leader_id}"
                lines.append(f"controller {controller_id} knows {led} in term {view.term}")
            else:
                host, port = self._others[controller_id]
                lines.append(
                    f"controller {controller_id} at {host}:{port}:"
                    f" {self._dial_errors[controller_id]}"
                )
        return "; ".join(lines)

    async def wait_controller_term(self) -> ControllerTerm:
        """Return the current active controller, or wait for the next one.

        Does not yield to the event loop if there is an active controller.
        """
        while self._controller_term is None:
            await self._changed.park()
        return self._controller_term

    async def run(self) -> None:
        """Keep the links open and watch the leadership, until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._own is not None:
                nursery.start_soon(self._watch_own, self._own)
            for controller_id, (host, port) in self._others.items():
                nursery.start_soon(self._keep, controller_id, host, port)

    # Views of the quorum

    def _note(self, link: _Remote | _Local, view: QuorumView) -> None:
        self._known[view.node_id] = view, link
        self._choose()

    def _lose(self, controller_id: int, why: str) -> None:
        self._dial_errors[controller_id] = why
        if self._known.pop(controller_id, None) is not None:
            self._choose()

    def _choose(self) -> None:
        active = [(view, link) for view, link in self._known.values() if view.is_active]
        newest = max(active, key=lambda each: each[0].term, default=None)
        if self._controller_term is not None:
            if newest is not None and self._controller_term.is_of(*newest):
                return
            self._controller_term.end()
            self._controller_term = None
        if newest is not None:
            view, link = newest
            self._controller_term = ControllerTerm(view.node_id, view.term, link)
        self._changed.unpark_all()

    # Links

    async def _watch_own(self, own: ControllerService) -> None:
        if self._incarnation_id is not None:
            own.controller.worker_lifecycle.connected(self._own_id, self._incarnation_id)
        link = _Local(own, self._own_id, self._clock)
        while True:
            view = self._own_view = own.view
            self._note(link, view)
            self._own_changed.unpark_all()
            await own.wait_change(view)

    def _should_dial(self, controller_id: int) -> bool:
        """Return whether this node needs a stream to that controller."""
        return self._own_view is None or self._own_view.leader_id == controller_id

    async def _wait_unneeded(self, controller_id: int) -> None:
        """Wait until the voter of this process knows another leader.

        While it knows no leader, the existing streams stay open.
        """
        while self._own_view is None or self._own_view.leader_id in (controller_id, None):
            await self._own_changed.park()

    async def _keep(self, controller_id: int, host: str, port: int) -> None:
        assert self._endpoint is not None
        backoff = Backoff(self._random, REDIAL_LEAST_S, REDIAL_MOST_S)
        while True:
            while not self._should_dial(controller_id):
                self._lose(controller_id, "not dialed, since it is not the leader")
                await self._own_changed.park()
            began = self._clock.monotonic()
            try:
                client = await RpcClient.connect(self._endpoint, controller_id, host, port)
            except (OSError, HandshakeError) as error:
                why = str(error) or type(error).__name__
                if isinstance(error, OSError) and error.strerror:
                    why = error.strerror
            else:
                began = self._clock.monotonic()
                why = await self._watch(client, controller_id)
            self._lose(controller_id, why)
            if self._clock.monotonic() - began >= GOOD_STREAM_S:
                backoff.reset()
            await sleep(self._clock, backoff.next_s())

    async def _watch(self, client: RpcClient, controller_id: int) -> str:
        """Note the views of the controller until its stream ends; return the reason of the end."""
        link = _Remote(client)
        why = "the connection has ended"

        async def ask() -> None:
            nonlocal why
            known: QuorumView | None = None
            try:
                while True:
                    request = WatchQuorum(known, WATCH_MS, self._incarnation_id)
                    known = await link.call(WATCH_QUORUM, request, WATCH_MS / 1000 + WATCH_GRACE_S)
                    if known.node_id != controller_id:
                        why = f"the node answers as controller {known.node_id}"
                        break
                    self._note(link, known)
            except (CallError, KafkaError) as error:
                why = str(error)
            client.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(_then_close, partial(self._wait_unneeded, controller_id), client)
            end = await client.run()
            nursery.cancel_scope.cancel()
        return f"{why} ({end})" if why else str(end)


async def _then_close(wait: Callable[[], Awaitable[None]], client: RpcClient) -> None:
    await wait()
    client.close()
