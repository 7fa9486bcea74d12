"""One client's connection: a `RequestPipeline`, driven by a socket, mutes and the memory budget.

    TLS handshake -> [steps in the loop's callback | finish in the task] -> closed

A step receives available bytes, handles the frames and sends the responses that are ready, all in a
callback of the event loop, without scheduling the task; the responses to one read leave in one
send. A response with large records is sent in the step as well, as far as the socket takes it.
The rest of it is sent in further steps, when the socket takes bytes again. Everything else that
has to wait is left to the task (`_finish`): a socket that is full of other bytes, a response that
is not ready, records that are not in the page cache, a mute, the end of a time slice (the states
are in `metaquorum.dataplane.network.pipeline`).

A client that has exceeded a quota first receives its response; then its connection is muted
(`metaquorum.dataplane.quotas.muting`).
"""

import logging
from collections.abc import Callable
from dataclasses import field
from math import inf
from typing import Final

import trio

from metaquorum.dataplane.instruments.log_rate_limit import LogRateLimiter
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.listener_tls import ListenerTls
from metaquorum.dataplane.network.login_counts import LoginCounts
from metaquorum.dataplane.network.pipeline import RequestPipeline, Wait
from metaquorum.dataplane.network.replies import (
    CloseAfterResponseError,
    CloseConnectionError,
    DelayedReply,
    Handle,
    PendingReply,
)
from metaquorum.dataplane.network.response_sender import STEP_BYTES, ResponseSender
from metaquorum.dataplane.network.sasl_session import SaslSession
from metaquorum.dataplane.network.unread_responses import UnreadResponses
from metaquorum.dataplane.quotas.cpu_meter import OFF, CpuMeter
from metaquorum.dataplane.quotas.muting import Mute
from metaquorum.dataplane.scheduling.request_memory import RequestMemory
from metaquorum.dataplane.scheduling.time_slices import TimeSlicer
from metaquorum.runtime import Connection, Disk, StorageError
from metaquorum.runtime.one_line import one_line
from metaquorum.security.distinguished_name import CertificateError
from metaquorum.security.tls_connection import TlsConnection, TlsError
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.protocol.frames import BufferPool, FrameBuffer

log = logging.getLogger(__name__)

# A frame above this size is received only after memory of the budget was reserved for it.
RESERVE_ABOVE_BYTES: Final = 64 * 1024
# Seconds an unauthenticated client may take to authenticate before its connection is closed.
AUTHENTICATION_SECONDS: Final = 30.0


@frozen
class ListenerContext:
    """Handler and limits shared by the connections of one listener."""

    listener: str
    handle: Handle
    # Maximum size of a frame before SASL authentication; None: the listener does not use SASL.
    max_unauthenticated_bytes: int | None = None
    tls: ListenerTls | None = None
    logins: LoginCounts = field(default_factory=LoginCounts)


class ClientConnection:
    """One client connection; `serve` ends when either side closes it or a frame is invalid."""

    def __init__(
        self,
        connection: Connection,
        context: ListenerContext,
        disk: Disk,
        memory: RequestMemory,
        buffers: BufferPool,
        max_frame_bytes: int,
        slicer: TimeSlicer,
        meter: CpuMeter = OFF,
        lines: LogRateLimiter | None = None,
        unread: UnreadResponses | None = None,
    ) -> None:
        self.client = Client(connection.peer, context.listener)
        self.reserved_bytes = 0  # reserved in the memory budget for the large frame in progress
        self.reservation = 0  # number of reservations so far
        self._connection = connection
        self._sender = ResponseSender(
            connection, disk, UnreadResponses() if unread is None else unread, self
        )
        self._frames = FrameBuffer(max_frame_bytes, pool=buffers)
        self._pipeline = RequestPipeline(
            self._frames, context.handle, self.client, lambda: slicer.is_over, self._call_soon
        )
        self._max_frame_bytes = max_frame_bytes
        self._memory = memory
        self._slicer = slicer
        self._meter = meter
        self._lines = lines
        self._large_reads = 0
        self._scope = trio.CancelScope()
        self._tls = context.tls
        self._logins = context.logins
        self._is_authenticated = self._tls is None and context.max_unauthenticated_bytes is None
        self._is_draining = False
        self._has_ended = False
        self._task_waits_for: Wait | None = None  # None: the task leaves the connection to steps
        if context.max_unauthenticated_bytes is not None:
            self._require_authentication(context.max_unauthenticated_bytes)

    def _require_authentication(self, max_frame_bytes: int) -> None:
        self._frames.max_frame_bytes = min(self._max_frame_bytes, max_frame_bytes)
        self.client.sasl = SaslSession(self._mark_authenticated)

    def _mark_authenticated(self) -> None:
        self._is_authenticated = True
        self._frames.max_frame_bytes = self._max_frame_bytes
        self._scope.deadline = inf

    @property
    def waits_for(self) -> Wait:
        if self._task_waits_for is not None:
            return self._task_waits_for
        pipeline = self._pipeline  # computed, so that a step does not have to record it
        return Wait.REQUEST if not pipeline.has_responses and pipeline.is_idle else Wait.RESPONSE

    @property
    def is_muted(self) -> bool:
        return self._task_waits_for is Wait.MUTE

    @property
    def may_be_idle(self) -> bool:
        """Whether a connection without progress is idle, as its client awaits no response."""
        return self.waits_for not in (Wait.MEMORY, Wait.MUTE) and not self._pipeline.outlasts_idle

    @property
    def progress(self) -> int:
        """A counter that grows while the client sends requests or reads responses."""
        return self._pipeline.handled_frames + self._large_reads + self._sender.sent_pieces

    @property
    def missing_bytes(self) -> int:
        """Bytes of the large request in progress that are not received yet."""
        frames = self._frames
        return frames.claimed_bytes - frames.pending_bytes if frames.claimed_bytes else 0

    def drain(self) -> None:
        """Read no further requests; responses to requests already read are still sent."""
        self._is_draining = True
        if self.waits_for is not Wait.RESPONSE:
            self._scope.cancel()

    def abort(self) -> None:
        self._scope.cancel()

    def close_idle(self) -> None:
        if not self._scope.cancel_called:
            self._log_end(logging.INFO, "idle for connections.max.idle.ms")
        self._is_authenticated = True  # no second line
        self.abort()

    def close_unread(self, unread_bytes: int) -> None:
        """Close the connection to free the memory of a response that its client does not read."""
        self._log_end(
            logging.WARNING,
            f"the client has not read {unread_bytes} bytes of responses, and the memory of unread"
            " responses is full",
        )
        self._is_authenticated = True  # no second line
        self.abort()

    async def serve(self) -> None:
        if not self._is_authenticated:
            self._scope.deadline = trio.current_time() + AUTHENTICATION_SECONDS
        try:
            with self._scope:
                if self._tls is not None:
                    await self._shake_hands(self._tls)
                await self._serve()
            if (
                not self._is_authenticated
                and self._scope.cancelled_caught
                and not self._is_draining
            ):
                self._logins.failed()
                self._log_end(logging.INFO, "the client did not authenticate in time")
        except (WireError, CloseConnectionError) as error:
            self._log_end(logging.WARNING, str(error))
            error.__traceback__ = None  # it references the frames, which reference the error
        except (OSError, EOFError, trio.ClosedResourceError, trio.BrokenResourceError) as error:
            self._log_end(logging.DEBUG, f"it broke: {error}")
        except StorageError as error:
            log.error(
                "closed the connection from %s while sending a response: %s", self.client, error
            )
        finally:
            self._close()

    def _close(self) -> None:
        self._pipeline.close()
        self._sender.close()
        self.client.quota.end_mute()
        self._meter.end(self.client)
        self._release_memory()
        self._frames.close()
        self._connection.close()
        # Break reference cycles: the garbage collector rarely runs, and buffers are large.
        self.client.sasl = self.client.replica.exchange = None

    def _log_end(self, level: int, why: str) -> None:
        if not log.isEnabledFor(level):
            return  # a line that is not written takes no other's place
        end = ""
        if self._lines is not None:
            may = self._lines.take(self.client.address[0], trio.current_time())
            if may is None:
                return
            end = may
        # `why` may quote names sent by the client: keep the log line on one line.
        log.log(level, "closed the connection from %s: %s%s", self.client, one_line(why), end)

    async def _shake_hands(self, tls: ListenerTls) -> None:
        """Do the TLS handshake; without SASL, authenticate the client by its certificate.

        Raises CloseConnectionError if the handshake fails or the certificate has no valid subject.
        """
        self._connection = secured = TlsConnection(self._connection, tls.context.current)
        self._sender.connection = secured
        try:
            await secured.handshake()
        except TlsError as error:
            self._logins.failed()
            raise CloseConnectionError(str(error)) from None
        if self.client.sasl is None:
            try:
                self.client.principal = tls.principal_of(secured.ssl)
            except CertificateError as error:
                self._logins.failed()
                raise CloseConnectionError(
                    f"cannot read the subject of the client's certificate: {error}"
                ) from None
            self._logins.succeeded()
            self._mark_authenticated()
        self._tls = None

    async def _serve(self) -> None:
        while not self._is_draining and not self._has_ended:
            self._task_waits_for = None
            await self._connection.pump(self._step)
            self._task_waits_for = Wait.RESPONSE
            if self._meter.is_on:
                await self._meter.slices(self.client, self._finish())
            else:
                await self._finish()
            await self._make_room()

    # Steps: callbacks of the event loop, outside the connection's task.

    def _step(self) -> bool:
        """Receive and handle available bytes. Return False if the task has to continue."""
        if self._meter.is_on:
            return self._metered(self._receive)
        return self._receive()

    def _call_soon(self) -> None:
        self._connection.call_soon(self._step_ready)

    def _step_ready(self) -> bool:
        """Send a delayed response that became ready. Return the same as `_step`."""
        if self._meter.is_on:
            return self._metered(self._send_delayed)
        return self._send_delayed()

    def _metered(self, step: Callable[[], bool]) -> bool:
        is_metered = self._meter.resume(self.client)
        more = step()
        if is_metered:
            self._meter.pause(self.client)
        return more

    def _receive(self) -> bool:
        self._slicer.start()
        pipeline, frames = self._pipeline, self._frames
        if self._is_draining or (pipeline.queue and not pipeline.may_handle):
            return False
        if frames.has_much and not self._memory.is_short:
            room = frames.borrow()
        else:
            room = frames.writable()
        count = self._connection.receive_nowait(room)
        if count <= 0:
            frames.rest()
            self._has_ended = count == 0
            return count < 0
        frames.received(count)
        if frames.claimed_bytes > RESERVE_ABOVE_BYTES:
            self._large_reads += 1  # a part of a small request does not count as progress
        pipeline.handle_frames()
        # A metered step sends at once: the CPU time of that counts, too.
        return self._send_ready(may_hold=not (self._meter.is_on and self.client.quota.cpu_weight))

    def _send_ready(self, *, may_hold: bool = False) -> bool:
        """Send ready responses until the socket is full. Return whether steps may continue.

        `may_hold`: they may be sent after the steps of other connections. Not what was given back:
        it would be held and given back until the client reads.
        """
        pipeline = self._pipeline
        if (data := pipeline.take_ready()) and not (
            may_hold and self._connection.send_soon(data, self._take_back)
        ):
            sent = self._connection.send_nowait(data)
            if sent < len(data):
                pipeline.put_back(data[sent:])
        if not pipeline.is_idle and not self._send_parts():
            # The rest of bytes in memory, which the sender counts, is left to the task.
            return self._sender.is_blocked and self._connection.call_when_writable(self._step_ready)
        return self.client.quota.mute is None and (
            not (self._frames.claimed_bytes or self.reserved_bytes) or self._make_room_nowait()
        )

    def _take_back(self, unsent: bytes) -> None:
        """Take back what `send_soon` could not send; a step sends it, or wakes the task."""
        self._pipeline.put_back(unsent)
        self._call_soon()

    def _send_parts(self) -> bool:
        """Send the first response if it has parts, handle the frames behind it, and so on.

        Return whether the pipeline is idle.
        """
        pipeline = self._pipeline
        left_bytes = STEP_BYTES
        while (parts := pipeline.first_parts) is not None:
            left_bytes -= self._sender.send_parts_nowait(parts, left_bytes, self._slicer)
            if parts:
                return False
            pipeline.take_first()
            self._handle_behind()
            if data := pipeline.take_ready():
                sent = self._connection.send_nowait(data)
                if sent < len(data):
                    pipeline.put_back(data[sent:])
        return pipeline.is_idle

    def _handle_behind(self) -> None:
        """Handle the frames that a response with parts has held back."""
        pipeline = self._pipeline
        if not pipeline.has_yielded and pipeline.failure is None and self.client.quota.mute is None:
            if self._frames.pending_bytes and self._slicer.is_over:
                pipeline.has_yielded = True
            else:
                pipeline.handle_frames()

    def _send_delayed(self) -> bool:
        self._slicer.start()
        pipeline = self._pipeline
        if self._is_draining or not self._send_ready():
            return False
        if not (pipeline.may_handle and self._frames.pending_bytes):
            return True
        pipeline.handle_frames()
        return self._send_ready()

    # The task: everything that may have to wait.

    async def _finish(self) -> None:
        """Send all responses, stay muted if needed, and handle the frames after them."""
        pipeline = self._pipeline
        self._slicer.start()
        while (
            pipeline.has_responses
            or pipeline.has_yielded
            or pipeline.failure is not None
            or self.client.quota.mute is not None
        ):
            await self._send_all()
            if pipeline.failure is not None:
                if isinstance(pipeline.failure, CloseAfterResponseError):
                    await self._sender.send(await pipeline.failure.answer())
                raise pipeline.failure
            if self.client.quota.mute is not None:
                await self._stay_muted(self.client.quota.mute)
            if pipeline.has_yielded or self._slicer.is_over:
                await trio.lowlevel.checkpoint()
                self._slicer.start()
            pipeline.handle_frames()

    async def _send_all(self) -> None:
        pipeline = self._pipeline
        while pipeline.has_responses:
            if data := pipeline.take_ready():
                await self._sender.send(data)
            first = pipeline.take_first()
            if isinstance(first, list):
                await self._sender.send_parts(first, self._slicer)
            elif isinstance(first, DelayedReply):
                await self._await_ready(first)
            elif first is not None:
                await self._send_pending(first)

    async def _send_pending(self, pending: PendingReply) -> None:
        reply = await pending
        if isinstance(reply, DelayedReply):
            self._pipeline.put_first(reply)
        elif isinstance(reply, list):
            await self._sender.send_parts(reply, self._slicer)
        elif reply:
            await self._sender.send(reply)

    async def _await_ready(self, delayed: DelayedReply) -> None:
        """Wait until the response is ready, and put it back as the first in the queue."""
        self._pipeline.put_first(delayed)
        if not self._pipeline.holds_frame and not delayed.is_ready:
            # Free the bytes of its request while the response waits.
            self._frames.rest()
            self._release_memory()
        if delayed.may_outlast_idle:
            await self._await_ready_or_end(delayed)
        else:
            is_ready = trio.Event()
            delayed.on_ready(is_ready.set)
            await is_ready.wait()
        self._slicer.start()

    async def _await_ready_or_end(self, delayed: DelayedReply) -> None:
        """Wait until the response is ready. Raises EOFError if the client closes the connection."""
        with trio.CancelScope() as waiting:
            delayed.on_ready(waiting.cancel)
            await self._connection.pump(self._look_for_end)
            if self._has_ended:
                raise EOFError("the client closed the connection before its response was ready")
            await trio.sleep_forever()  # the buffer is full

    async def _stay_muted(self, mute: Mute) -> None:
        """Wait until the mute ends or the client closes the connection; a drain ends the wait."""
        self._release_memory()
        self._frames.rest()
        try:
            if not self._is_draining:
                self._task_waits_for = Wait.MUTE
                with mute.scope:
                    await self._connection.pump(self._look_for_end)
                    # The buffer is full or the client has closed: read nothing until the mute ends.
                    if self._frames.pending_bytes:
                        await trio.sleep_forever()
        finally:
            self._task_waits_for = Wait.RESPONSE
            self.client.quota.end_mute()

    def _look_for_end(self) -> bool:
        """Buffer received bytes without handling them.

        Return False if the buffer is full or the client has closed the connection.
        """
        count = self._connection.receive_nowait(self._frames.writable())
        if count > 0:
            self._frames.received(count)
        self._has_ended = count == 0
        return count != 0 and not self._frames.is_full

    # The memory budget.

    def _make_room_nowait(self) -> bool:
        """Reserve memory for the large frame in progress; return False if that has to wait.

        Release it if no such frame is in progress.
        """
        claimed = self._frames.claimed_bytes
        wanted = claimed if claimed > RESERVE_ABOVE_BYTES else 0
        if self.reserved_bytes == wanted:
            return True
        self._release_memory()
        if not self._memory.reserve_nowait(wanted):
            return False
        self.reserved_bytes = wanted
        self.reservation += 1
        return True

    async def _make_room(self) -> None:
        """Reserve memory for the large frame in progress before more of it is received."""
        if self._make_room_nowait():
            return
        claimed = self._frames.claimed_bytes
        self._frames.shrink()
        if not self._is_draining:
            self._task_waits_for = Wait.MEMORY
        await self._memory.reserve(claimed)
        self.reserved_bytes = claimed
        self.reservation += 1

    def _release_memory(self) -> None:
        if self.reserved_bytes:
            self._memory.release(self.reserved_bytes)
            self.reserved_bytes = 0
