"""RPC service of a controller: authorization, execution and errors of calls.

Serves other nodes over streams and the worker of this process in memory.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

import trio

from metaquorum.metadata.replicated_log import Leadership, OutcomeUnknownError, Quorum
from metaquorum.quorum.channel.calls import MAX_PAYLOAD_BYTES
from metaquorum.quorum.channel.identity import TOOL_ID
from metaquorum.quorum.channel.rpc_server import Caller
from metaquorum.quorum.channel.stream import End
from metaquorum.quorum.channel.timing import within
from metaquorum.quorum.controller.controller import Controller
from metaquorum.quorum.rpc.feed import MetadataFeed, SnapshotParts
from metaquorum.quorum.rpc.methods import (
    DESCRIBE_QUORUM,
    FETCH_METADATA,
    METHODS,
    READ_END,
    WATCH_QUORUM,
    AllowedCallers,
    FetchMetadata,
    MetadataPart,
    Method,
    QuorumDescription,
    QuorumView,
    ReplicaView,
    SnapshotPart,
    WatchQuorum,
    WorkerView,
)
from metaquorum.runtime.interfaces import Clock
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError

Q = TypeVar("Q")
A = TypeVar("A")

MAX_WAIT_MS: Final = 60_000
MAX_FETCH_BYTES: Final = 4 << 20
assert MAX_FETCH_BYTES < MAX_PAYLOAD_BYTES


class _StreamState:
    """State that the service keeps for one stream."""

    def __init__(self) -> None:
        self.incarnation_id: bytes | None = None
        self.snapshot: SnapshotParts | None = None
        # Offset of its last metadata fetch; -1 if it has sent none.
        self.offset = -1
        self.asked_at = 0.0
        self.caught_up_at: float | None = None


class ControllerService:
    """Service that executes calls to a controller.

    `handle` serves calls over streams, whose beginning and end `opened` and `ended` report;
    `execute` serves calls in this process.
    """

    def __init__(
        self, controller: Controller, quorum: Quorum, feed: MetadataFeed, clock: Clock
    ) -> None:
        self.controller = controller
        self._quorum = quorum
        self._feed = feed
        self._clock = clock
        self._streams: dict[Caller, _StreamState] = {}
        # Methods that need state of this service; their rows have no action.
        self._actions: Mapping[str, Callable[[Caller, Any], Awaitable[Any]]] = {
            WATCH_QUORUM.name: self._watch,
            DESCRIBE_QUORUM.name: lambda _caller, _request: self._describe(),
            READ_END.name: lambda _caller, _request: self._read_end(),
            FETCH_METADATA.name: self._fetch,
        }
        assert self._actions.keys() == {
            method.name for method in METHODS.values() if method.action is None
        }

    @property
    def view(self) -> QuorumView:
        status = self._quorum.status
        return QuorumView(
            status.node_id, status.leader_id, status.term, status.is_active, status.end_offset
        )

    # Streams

    def opened(self, caller: Caller) -> None:
        self._streams[caller] = _StreamState()

    def ended(self, caller: Caller, end: End) -> None:
        """Drop the state of the stream and report its worker as disconnected to the controller."""
        stream_state = self._streams.pop(caller)
        if stream_state.incarnation_id is not None:
            self.controller.worker_lifecycle.disconnected(
                caller.node_id, stream_state.incarnation_id, is_evidence=end.is_evidence
            )

    async def handle(self, caller: Caller, method_name: str, payload: bytes) -> bytes:
        """Execute one encoded call and return the encoded answer.

        Raises KafkaError, which is sent to the caller.
        """
        method = METHODS.get(method_name)
        if method is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"This version has no method {method_name!r}."
            )
        try:
            request = method.requests.decode(payload)
        except WireError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{error}.") from None
        return method.answers.encode(await self.execute(caller, method, request))

    # Calls

    async def execute(self, caller: Caller, method: Method[Q, A], request: Q) -> A:
        """Execute one call and return the answer.

        Raises KafkaError if the call is refused; NOT_CONTROLLER: the method needs the active
        controller, and this controller is not active.
        """
        if method.callers is AllowedCallers.ITSELF:
            _check_itself(caller, request)
        if method.needs_active:
            self.check_active()
        if method.action is not None:
            return await method.action(self.controller, request)
        answer: A = await self._actions[method.name](caller, request)
        return answer

    def check_active(self) -> None:
        """Raise KafkaError (NOT_CONTROLLER, naming the leader) if this one is not active."""
        status = self._quorum.status
        if not status.is_active:
            known = "no leader" if status.leader_id is None else f"leader {status.leader_id}"
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER,
                f"Node {status.node_id} is not the active controller; it knows {known} in term"
                f" {status.term}.",
            )

    async def _watch(self, caller: Caller, request: WatchQuorum) -> QuorumView:
        if request.incarnation_id is not None:
            self._connect(caller, request.incarnation_id)
        if request.known is not None:
            known = request.known
            with suppress(TimeoutError):
                await within(self._clock, _wait_s(request.wait_ms), lambda: self.wait_change(known))
        return self.view

    async def wait_change(self, known: QuorumView) -> None:
        """Wait until the view differs from `known` in more than the end offset."""
        await self._quorum.wait_change(Leadership(known.leader_id, known.term, known.is_active))

    def _connect(self, caller: Caller, incarnation_id: bytes) -> None:
        stream_state = self._streams.get(caller)
        if stream_state is None or stream_state.incarnation_id == incarnation_id:
            return
        if stream_state.incarnation_id is not None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "The incarnation id of a stream's worker cannot change."
            )
        stream_state.incarnation_id = incarnation_id
        self.controller.worker_lifecycle.connected(caller.node_id, incarnation_id)

    async def _describe(self) -> QuorumDescription:
        workers = await self.controller.worker_lifecycle.worker_statuses()
        status, now_ms = self._quorum.status, self._clock.now_ms()
        heard_ms = {
            each.worker_id: now_ms - each.heard_ms_ago for each in workers if each.heard_ms_ago >= 0
        }
        return QuorumDescription(
            status.node_id,
            status.term,
            status.end_offset,
            [
                ReplicaView(
                    each.voter_id,
                    self._quorum.end_offset_at(each.last_index),
                    each.answered_ms,
                    each.caught_up_ms,
                )
                for each in status.replicas
            ],
            [
                self._observer(caller.node_id, stream_state, heard_ms.get(caller.node_id, -1))
                for caller, stream_state in self._streams.items()
                if stream_state.offset >= 0 and caller.node_id not in (*status.voters, TOOL_ID)
            ],
            [
                WorkerView(
                    each.worker_id,
                    each.applied_offset,
                    each.heard_ms_ago,
                    each.connections,
                    each.why_fenced,
                )
                for each in workers
            ],
        )

    def _observer(self, node_id: int, stream_state: _StreamState, heard_ms: int) -> ReplicaView:
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        if stream_state.offset >= self._feed.image.end_offset:
            stream_state.caught_up_at = now
        caught_up_at = stream_state.caught_up_at
        return ReplicaView(
            node_id,
            stream_state.offset,
            max(heard_ms, now_ms - int((now - stream_state.asked_at) * 1000)),
            -1 if caught_up_at is None else now_ms - int((now - caught_up_at) * 1000),
        )

    # Followers

    async def _fetch(self, caller: Caller, request: FetchMetadata) -> MetadataPart:
        if (stream_state := self._streams.get(caller)) is not None:
            stream_state.asked_at = self._clock.monotonic()
            stream_state.offset = request.offset
            if request.offset >= self._feed.image.end_offset:
                stream_state.caught_up_at = stream_state.asked_at
        if request.snapshot is not None:
            end_offset, number = request.snapshot
            return await self._snapshot_part(caller, end_offset, number)
        await self._check_position(request)
        batches = self._feed.recent.since(request.offset, min(request.max_bytes, MAX_FETCH_BYTES))
        if batches is None:
            return await self._first_part(caller)
        if not batches and request.wait_ms > 0:
            with suppress(TimeoutError):
                await within(
                    self._clock,
                    _wait_s(request.wait_ms),
                    lambda: self._feed.wait_beyond(request.offset),
                )
            batches = self._feed.recent.since(
                request.offset, min(request.max_bytes, MAX_FETCH_BYTES)
            )
        encoded = tuple([batch.encode() for batch in batches or ()])
        return MetadataPart(encoded, self._feed.image.end_offset)

    async def _read_end(self) -> int:
        try:
            return await self._quorum.read_barrier()
        except OutcomeUnknownError as error:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, f"{error}.") from None

    async def _check_position(self, request: FetchMetadata) -> None:
        """Raise KafkaError if the follower has applied metadata that this log does not contain.

        OFFSET_OUT_OF_RANGE: a quorum has confirmed that the log does not contain it.
        NOT_CONTROLLER: this controller may be behind.
        """
        end_offset = self._feed.image.end_offset
        if request.offset > end_offset:
            self.check_active()
            end_offset = await self._read_end()
            if request.offset > end_offset:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"The metadata log ends at offset {end_offset}, but this node has applied it"
                    f" up to offset {request.offset}.",
                )
        term = self._feed.recent.term_before(request.offset)
        if term is not None and request.term is not None and term != request.term:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"The metadata log has a batch of term {term} before offset {request.offset}, but"
                f" this node has applied a batch of term {request.term} there.",
            )

    async def _first_part(self, caller: Caller) -> MetadataPart:
        snapshot = SnapshotParts(self._feed.image)
        stream_state = self._streams.get(caller)
        assert stream_state is not None, "a follower fetches over a stream"
        stream_state.snapshot = snapshot
        return await self._snapshot_part(caller, snapshot.end_offset, 0)

    async def _snapshot_part(self, caller: Caller, end_offset: int, number: int) -> MetadataPart:
        stream_state = self._streams[caller]
        snapshot, part = stream_state.snapshot, None
        if snapshot is not None and snapshot.end_offset == end_offset:
            part = await snapshot.part(number)
        if part is None:
            raise KafkaError(
                ErrorCode.SNAPSHOT_NOT_FOUND,
                f"Part {number} of the snapshot is not available; fetch the snapshot again.",
            )
        records, is_last = part
        return MetadataPart(
            (),
            self._feed.image.end_offset,
            SnapshotPart(end_offset, number, records, is_last),
        )


def _check_itself(caller: Caller, request: Any) -> None:
    about = getattr(request, "worker_id", None)
    if about is None:
        about = request.controller_id
    if about != caller.node_id:
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"Node {caller.node_id} may not send requests for node {about}.",
        )


def _wait_s(wait_ms: int) -> float:
    return max(0, min(wait_ms, MAX_WAIT_MS)) / 1000


def local_caller(node_id: int) -> Caller:
    """Return the caller that represents this process at its own controller."""
    return Caller(node_id, 0, ("", 0), trio.Event())
