"""One client's connection: frames in, answers out, in the order of the requests.

All frames that one read has brought are handled before anything is sent, and their answers leave in
one send: that halves the cost of pipelined requests. Who has used too much is answered, and then
left alone for a while (`dataplane.quotas.muting`).

A handler that has to wait for something beside the loop (a big append) returns a coroutine; what
was answered before it is sent first, and nothing behind it is looked at until it is done, so that a
slow reader holds no memory but its own frame and its own answer. One that waits for what other
requests do returns a `Later`: the connection goes on in steps, one of which sends it when it is
ready. Behind some of them (produce) requests are handled already: their answers queue, at most
MAX_LATERS of them.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import trio

from dataplane.instruments.log_rate_limit import LineLimit
from dataplane.log.segments.slices import LogSlice
from dataplane.network.delayed import Later
from dataplane.network.listener_tls import ListenerTls
from dataplane.network.login_counts import Logins
from dataplane.network.sasl_session import SaslSession
from dataplane.network.unread_responses import UNCOUNTED_BYTES, UnreadAnswers
from dataplane.quotas.cpu_meter import OFF, CpuMeter
from dataplane.quotas.muting import Mute, Name
from dataplane.scheduling.request_memory import RequestMemory
from dataplane.scheduling.time_slices import Turns
from metaquorum.rpc.methods import ANONYMOUS
from metaquorum.runtime import Buffer, Connection, Disk, StorageError
from metaquorum.runtime.one_line import one_line
from metaquorum.security.distinguished_name import CertificateError
from metaquorum.security.tls_connection import TlsConnection, TlsError
from wire.primitives.errors import WireError
from wire.primitives.frozen import frozen
from wire.primitives.types import RecordsHole
from wire.protocol.frames import BufferPool, FrameBuffer

if TYPE_CHECKING:
    from dataplane.partition.rejected_batches import RefusedBatches
    from metaquorum.channel.handshake import Accepting

log = logging.getLogger(__name__)

# Records up to here are copied into the answer, in the step that asks for them; above, sendfile is
# cheaper than the copy, with the turn of a task that it takes.
COPY_LIMIT_BYTES: Final = 128 * 1024
# Pages that are not in memory are read beside the loop, so many at a time.
COLD_READ_BYTES: Final = 1 << 20
# Answers are sent when so much is gathered, whatever else one read has brought.
SEND_AT_BYTES: Final = 256 * 1024
# A frame that claims more than this is read only when the budget for requests has room for it.
RESERVE_ABOVE_BYTES: Final = 64 * 1024
# Requests between two looks at whether this connection's slice of the loop is over; any of them
# ends it, too, that takes long.
FRAMES_PER_LOOK: Final = 16
# Whoever has not shown who it is by then, where that is asked for, is not let in.
AUTHENTICATION_SECONDS: Final = 30.0
# Answers that queue behind one that is not ready: more than Java's producer has under way.
MAX_LATERS: Final = 16

Reply: TypeAlias = bytes | list[bytes | RecordsHole] | None


NO_WORKER: Final = -1


class Client:
    """What handlers know of who is asking."""

    __slots__ = (
        "address",
        "asked_as",
        "counted_at",
        "cpu_from_s",
        "cpu_owed_s",
        "cpu_weight",
        "credit",
        "granted",
        "granted_bytes",
        "has_begun_proof",
        "listener",
        "mute",
        "principal",
        "refused",
        "replica_exchange",
        "sasl",
        "software",
        "uncounted_bytes",
        "unmetered",
        "worker_id",
    )

    def __init__(self, address: tuple[str, int], listener: str) -> None:
        self.address = address
        self.listener = listener  # by which it came
        self.principal = ANONYMOUS  # until it has shown that it is somebody
        self.sasl: SaslSession | None = None  # where the listener asks for one
        self.software = ("", "")
        # Set when it is answered: nothing more of it is handled until then.
        self.mute: Mute | None = None
        self.asked_as: Name | None = None
        # The `CpuMeter`'s.
        self.cpu_from_s = self.cpu_owed_s = 0.0
        self.cpu_weight = 1
        self.unmetered = 0
        # Of its quotas (`dataplane.quotas.client_quota_manager`): so many requests, with so many
        # bytes that were produced, are counted later.
        self.credit = self.granted = 0
        self.uncounted_bytes = self.granted_bytes = 0
        self.counted_at = 0.0
        # The worker that this connection has proved to be
        # (`dataplane.replication.replica_authentication`).
        self.worker_id = NO_WORKER
        self.has_begun_proof = False
        self.replica_exchange: Accepting | None = None  # the proof under way
        self.refused: RefusedBatches | None = None  # what it must send again before what follows

    @property
    def is_follower(self) -> bool:
        """Another worker of the cluster, which has proved that."""
        return self.worker_id != NO_WORKER

    def named(self, client_id: str | None) -> Name:
        """By what its quotas know it; of its requests, all that matter say the same client-id."""
        name = self.asked_as
        if name is None or name.client_id != client_id or name.principal != self.principal:
            name = self.asked_as = Name(self.principal, client_id)
        return name

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"


class PendingReply:
    """A reply, or a `LaterReply`, that has to be awaited. Whoever does not await it closes it."""

    __slots__ = ("_answer", "_reply_of")

    def __init__(self, answer: Coroutine[Any, Any, Any], reply_of: Callable[[Any], Reply]) -> None:
        self._answer = answer
        self._reply_of = reply_of

    def __await__(self) -> "Generator[Any, Any, Reply | LaterReply]":
        return self._reply_of((yield from self._answer.__await__()))

    def close(self) -> None:
        self._answer.close()


class _PendingThen(PendingReply):
    """The same reply; `call` is made once it is there."""

    __slots__ = ("_call", "_pending")

    def __init__(self, pending: PendingReply, call: Callable[[], object]) -> None:
        self._pending = pending
        self._call = call

    def __await__(self) -> "Generator[Any, Any, Reply | LaterReply]":
        reply = yield from self._pending.__await__()
        self._call()
        return reply

    def close(self) -> None:
        self._pending.close()


class LaterReply:
    """The reply that a `Later` gives, perhaps after more work."""

    __slots__ = ("_given", "_later", "_reply_of")

    def __init__(self, later: Later, reply_of: Callable[[Any], Reply | PendingReply]) -> None:
        self._later = later
        self._reply_of = reply_of
        self._given: Callable[[], object] | None = None

    @property
    def is_ready(self) -> bool:
        return self._later.is_ready

    @property
    def lets_others(self) -> bool:
        return self._later.lets_others

    def tell(self, told: Callable[[], object]) -> None:
        self._later.tell(told)

    def when_given(self, call: Callable[[], object]) -> None:
        self._given = call

    def give(self) -> Reply | PendingReply:
        reply = self._reply_of(self._later.give())
        if self._given is None:
            return reply
        if isinstance(reply, PendingReply):
            return _PendingThen(reply, self._given)
        self._given()
        return reply

    def drop(self) -> None:
        self._later.drop()


Handle: TypeAlias = Callable[[memoryview, Client], "Reply | PendingReply | LaterReply"]


class CloseConnectionError(Exception):
    """A handler's word that this connection ends without an answer; the message says why."""


class LastAnswerError(CloseConnectionError):
    """It ends after this answer, which `answer` waits for."""

    def __init__(self, why: str, answer: Callable[[], Awaitable[bytes]]) -> None:
        super().__init__(why)
        self.answer = answer


@frozen
class Entrance:
    """How clients of one listener come in."""

    listener: str
    handle: Handle
    # Where they have to show who they are: what they may send in one frame before.
    max_unknown_bytes: int | None = None
    tls: ListenerTls | None = None
    logins: Logins = field(default_factory=Logins)


class _Unfinished(NamedTuple):
    """What a step had to leave: to be sent; then to be waited for, or the reason to close.

    Without either it is somebody else's turn. Whole frames may stand behind it in any case.
    """

    unsent: bytes
    reply: PendingReply | list[bytes | RecordsHole] | None = None
    failure: WireError | CloseConnectionError | None = None


_NOTHING: Final = _Unfinished(b"")


class ClientConnection:
    """Serves one connection until it ends, is drained, or brings nonsense."""

    def __init__(
        self,
        connection: Connection,
        entrance: Entrance,
        disk: Disk,
        memory: RequestMemory,
        buffers: BufferPool,
        max_frame_bytes: int,
        turns: Turns,
        meter: CpuMeter[Client] = OFF,
        lines: LineLimit | None = None,
        unread: UnreadAnswers | None = None,
    ) -> None:
        self.client = Client(connection.peer, entrance.listener)
        self._lines = lines
        self._unread = UnreadAnswers() if unread is None else unread
        self.progress = 0  # the server's sweep for idle connections watches it move
        self._connection = connection
        self._handle = entrance.handle
        self._max_frame_bytes = max_frame_bytes
        self._disk = disk
        self._memory = memory
        self._frames = FrameBuffer(max_frame_bytes, pool=buffers)
        self._turns = turns
        self._meter = meter
        self.reserved_bytes = 0
        self.reservation = 0
        self.waits_for_memory = False
        self.is_muted = False
        self._scope = trio.CancelScope()
        # Nothing of a request is held that a cancellation could take.
        self._waiting_for_request = False
        self._tls = entrance.tls
        self._logins = entrance.logins
        self._is_known = self._tls is None  # or nobody asks
        self._draining = False
        self._ended = False
        self._unfinished: _Unfinished | None = None
        # In the order of the requests.
        self._laters: deque[LaterReply | PendingReply | Reply] = deque()
        if entrance.max_unknown_bytes is not None:
            self._await_who_it_is(entrance.max_unknown_bytes)

    def _await_who_it_is(self, max_frame_bytes: int) -> None:
        self._is_known = False
        self._frames.max_frame_bytes = min(self._max_frame_bytes, max_frame_bytes)
        self.client.sasl = SaslSession(self._let_in)

    def _let_in(self) -> None:
        self._is_known = True
        self._frames.max_frame_bytes = self._max_frame_bytes
        self._scope.deadline = inf

    def drain(self) -> None:
        """No further request is read; the answers to those that were read still leave."""
        self._draining = True
        if self._waiting_for_request:
            self._scope.cancel()

    @property
    def missing_bytes(self) -> int:
        """Of the large request that is under way."""
        frames = self._frames
        return frames.claimed_bytes - frames.pending_bytes if frames.claimed_bytes else 0

    def abort(self) -> None:
        self._scope.cancel()

    def close_idle(self) -> None:
        if not self._scope.cancel_called:
            self._log_end(logging.INFO, "idle")
        self._is_known = True  # no second line
        self.abort()

    def close_unread(self, unread_bytes: int) -> None:
        """Its answer is given up: others need the memory, and it has read nothing for longest."""
        self._log_end(logging.WARNING, f"{unread_bytes} bytes of an answer were not read")
        self._is_known = True  # no second line
        self.abort()

    async def _shake_hands(self, tls: ListenerTls) -> None:
        """Nobody reads along, and who has a certificate is known by it, unless SASL is to come."""
        self._waiting_for_request = True
        self._connection = secured = TlsConnection(self._connection, tls.context.current)
        try:
            await secured.handshake()
        except TlsError as error:
            self._logins.failed()
            raise CloseConnectionError(str(error)) from None
        if self.client.sasl is None:
            try:
                self.client.principal = tls.principal_of(secured.ssl)
            except CertificateError as error:
                raise CloseConnectionError(f"whose its certificate is: {error}") from None
            self._logins.succeeded()
            self._let_in()
        self._tls = None

    async def serve(self) -> None:
        if not self._is_known:
            self._scope.deadline = trio.current_time() + AUTHENTICATION_SECONDS
        try:
            with self._scope:
                if self._tls is not None:
                    await self._shake_hands(self._tls)
                await self._serve()
            if not self._is_known and self._scope.cancelled_caught and not self._draining:
                self._log_end(logging.INFO, "it did not say who it is")
        except (WireError, CloseConnectionError) as error:
            self._log_end(logging.WARNING, str(error))
            error.__traceback__ = None  # which knows of the frames that know of the error
        except (OSError, EOFError, trio.ClosedResourceError, trio.BrokenResourceError) as error:
            log.debug("the connection from %s broke: %s", self.client, error)
        except StorageError as error:
            log.error("closed the connection from %s in mid-answer: %s", self.client, error)
        finally:
            if self._unfinished and isinstance(self._unfinished.reply, PendingReply):
                self._unfinished.reply.close()
            for later in self._laters:
                if isinstance(later, LaterReply):
                    later.drop()
                elif isinstance(later, PendingReply):
                    later.close()
            if self.client.mute is not None:
                self.client.mute.end()
            self._meter.end(self.client)
            self._release_memory()
            self._frames.close()
            self._connection.close()
            # No circles: the garbage collector hardly ever looks, and buffers are large.
            self._unfinished = self.client.sasl = self.client.replica_exchange = None
            self._laters.clear()

    def _log_end(self, level: int, why: str) -> None:
        end = ""
        if self._lines is not None:
            may = self._lines.take(self.client.address[0], trio.current_time())
            if may is None:
                return
            end = may
        # `why` may quote names that the client made up.
        log.log(level, "closed the connection from %s: %s%s", self.client, one_line(why), end)

    async def _serve(self) -> None:
        while not self._draining and not self._ended:
            self._waiting_for_request = True
            await self._connection.pump(self._step)
            if self._meter.is_on:
                await self._meter.slices(self.client, self._finish())
            else:
                await self._finish()
            await self._make_room()

    def _step(self) -> bool:
        """Bytes may have come: all requests that they complete are answered, and more may come.

        False: `_finish` or `_make_room` has to wait for something.
        """
        return self._metered(self._read_and_answer)

    def _metered(self, step: Callable[[], bool]) -> bool:
        meter = self._meter
        is_metered = meter.is_on and meter.resume(self.client)
        self._turns.start()
        more = not self._draining and step()
        self._waiting_for_request = more and not self._laters
        if is_metered:
            meter.pause(self.client)
        return more

    def _read_and_answer(self) -> bool:
        if self._laters and not self._may_go_on:
            return False
        frames = self._frames
        if frames.has_much and not self._memory.is_short:
            room = frames.borrow()
        else:
            room = frames.writable()
        count = self._connection.receive_nowait(room)
        if count <= 0:
            frames.rest()
            self._ended = count == 0
            return count < 0
        frames.received(count)
        if frames.claimed_bytes > RESERVE_ABOVE_BYTES:
            self.progress += 1  # part of a small request is none
        self._unfinished = self._answer_now()
        return self._unfinished is None and self._has_room

    @property
    def _has_room(self) -> bool:
        """Whether the budget has taken in the large frame that is to come, or none is."""
        claimed = self._frames.claimed_bytes
        return self.reserved_bytes == (claimed if claimed > RESERVE_ABOVE_BYTES else 0)

    @property
    def _may_go_on(self) -> bool:
        """Whether requests may be handled before all answers have left."""
        laters = self._laters
        if not laters:
            return True
        last = laters[-1]
        return len(laters) < MAX_LATERS and (not isinstance(last, LaterReply) or last.lets_others)

    def _answer_now(self) -> _Unfinished | None:
        """Whole frames are answered, up to one that has to wait or to the end of the slice."""
        next_frame, handle, client = self._frames.next_frame, self._handle, self.client
        laters = self._laters
        gathered: list[bytes] = []
        gathered_bytes = handled = 0
        try:
            while (frame := next_frame()) is not None:
                self.progress += 1
                reply = handle(frame, client)
                if type(reply) is list:
                    reply = _read_at_once(reply) or reply
                if isinstance(reply, LaterReply) or (laters and isinstance(reply, bytes)):
                    laters.append(reply)
                    if isinstance(reply, LaterReply):
                        reply.tell(self._tell)
                    if not self._may_go_on:
                        break
                elif isinstance(reply, bytes):
                    gathered.append(reply)
                    gathered_bytes += len(reply)
                elif reply is not None:
                    return _Unfinished(b"".join(gathered), reply)
                handled += 1
                if (
                    gathered_bytes > SEND_AT_BYTES
                    or (handled % FRAMES_PER_LOOK == 0 and self._turns.is_over)
                    or client.mute is not None
                ):
                    return _Unfinished(b"".join(gathered))
            else:
                if self._frames.has_much:
                    self._frames.rest()
        except (WireError, CloseConnectionError) as error:
            # What came before it is still answered.
            return _Unfinished(b"".join(gathered), failure=error)
        if not gathered:
            return None
        data = gathered[0] if len(gathered) == 1 else b"".join(gathered)
        sent = self._connection.send_nowait(data)
        return None if sent == len(data) else _Unfinished(data[sent:])

    def _tell(self) -> None:
        """Some answer is ready."""
        if self._laters and _is_ready(self._laters[0]):
            self._connection.call_soon(self._step_ready)

    def _step_ready(self) -> bool:
        """Answers are ready: they are sent, and requests behind them are handled. As `_step`."""
        return self._metered(self._send_ready)

    def _send_ready(self) -> bool:
        laters = self._laters
        gathered: list[bytes] = []
        while laters and _is_ready(laters[0]):
            first = laters.popleft()
            reply = first.give() if isinstance(first, LaterReply) else first
            if type(reply) is list:
                reply = _read_at_once(reply) or reply
            if isinstance(reply, list | PendingReply):
                laters.appendleft(reply)  # for the task, which may wait for it
                break
            if reply:
                gathered.append(reply)
        data = b"".join(gathered)
        sent = self._connection.send_nowait(data) if data else 0
        if sent < len(data) or self.client.mute is not None or (laters and _is_ready(laters[0])):
            self._unfinished = _Unfinished(data[sent:])
            return False
        if self._may_go_on and self._frames.pending_bytes:
            self._unfinished = self._answer_now()
        return self._unfinished is None and self._has_room

    async def _send_laters(self, *, may_rest: bool) -> None:
        """All of them have been waited for, and sent. `may_rest`: nobody looks at a frame."""
        laters = self._laters
        while laters:
            first = laters[0]
            if isinstance(first, LaterReply):
                if may_rest and not first.is_ready:
                    # What it came in is not held for as long as it waits.
                    self._frames.rest()
                    self._release_memory()
                is_ready = trio.Event()
                first.tell(is_ready.set)
                await is_ready.wait()
                self._turns.start()
            laters.popleft()
            reply = first.give() if isinstance(first, LaterReply) else first
            if isinstance(reply, PendingReply):
                given = await reply
                assert not isinstance(given, LaterReply)
                reply = given
            await self._send_reply(reply)

    async def _finish(self) -> None:
        """What the last step left is done, and the frames behind it are answered, too."""
        self._turns.start()
        while self._unfinished is not None or self._laters:
            unfinished = self._unfinished or _NOTHING
            if unfinished.unsent:
                await self._send(unfinished.unsent)
            await self._send_laters(may_rest=unfinished.reply is None)
            if unfinished.failure is not None:
                if isinstance(unfinished.failure, LastAnswerError):
                    await self._send(await unfinished.failure.answer())
                raise unfinished.failure
            self._unfinished = None  # whoever awaits a reply closes it
            if isinstance(unfinished.reply, list):
                await self._send_parts(unfinished.reply)
            elif unfinished.reply is not None:
                reply = await unfinished.reply
                if isinstance(reply, LaterReply):
                    self._laters.append(reply)
                    continue
                await self._send_reply(reply)
            if self.client.mute is not None:
                await self._stay_muted(self.client.mute)
            if unfinished.reply is None or self._turns.is_over:
                await trio.lowlevel.checkpoint()
                self._turns.start()
            self._unfinished = self._answer_now()

    async def _stay_muted(self, mute: Mute) -> None:
        """Its time is over, or the connection is; who is told to end meanwhile ends at once."""
        self._release_memory()
        self._frames.rest()
        self.is_muted = self._waiting_for_request = not self._draining
        try:
            if self.is_muted:
                with mute.scope:
                    await self._connection.pump(self._look_for_end)
                    # No room is left to see more, or what came before the end has its turn later.
                    if self._frames.pending_bytes:
                        await trio.sleep_forever()
        finally:
            self.is_muted = self._waiting_for_request = False
            self.client.mute = None
            mute.end()

    def _look_for_end(self) -> bool:
        """What comes is kept, not looked at, as long as the buffer has room. False: no more."""
        count = self._connection.receive_nowait(self._frames.writable())
        if count > 0:
            self._frames.received(count)
        self._ended = count == 0
        return count != 0 and not self._frames.is_full

    async def _make_room(self) -> None:
        """Before more of a large frame is read, the budget has taken it in."""
        if self._has_room:
            return
        self._release_memory()
        claimed = self._frames.claimed_bytes
        if claimed > RESERVE_ABOVE_BYTES:
            self._waiting_for_request = not self._draining
            self.waits_for_memory = True
            try:
                if not self._memory.has_room(claimed):
                    self._frames.shrink()
                await self._memory.reserve(claimed)
            finally:
                self.waits_for_memory = False
            self.reserved_bytes = claimed
            self.reservation += 1

    def _release_memory(self) -> None:
        if self.reserved_bytes:
            self._memory.release(self.reserved_bytes)
            self.reserved_bytes = 0

    async def _send(self, data: Buffer, behind_bytes: int = 0) -> None:
        """`behind_bytes` of the same answer are in memory, and follow."""
        sent = self._connection.send_nowait(data)
        if sent == len(data):
            return
        rest = memoryview(data)[sent:]
        held_bytes = len(data) + behind_bytes  # for as long as any of `data` is left
        if held_bytes <= UNCOUNTED_BYTES:
            await self._connection.send(rest)
            return
        try:
            while rest:
                self._unread.note(self, held_bytes)
                await self._connection.send(rest[:SEND_AT_BYTES])
                rest = rest[SEND_AT_BYTES:]
        finally:
            self._unread.remove(self)

    async def _send_reply(self, reply: Reply) -> None:
        if isinstance(reply, list):
            await self._send_parts(reply)
        elif reply:
            await self._send(reply)

    async def _send_parts(self, parts: list[bytes | RecordsHole]) -> None:
        gathered: list[bytes] = []
        gathered_bytes = 0
        behind_bytes = sum([len(part) for part in parts if isinstance(part, bytes)])
        for index, part in enumerate(parts):
            if isinstance(part, bytes):
                behind_bytes -= len(part)
                parts[index] = b""  # it is not held when it is sent
            else:
                assert isinstance(part, LogSlice)
                if part.size_bytes > COPY_LIMIT_BYTES:
                    if gathered:
                        await self._send(b"".join(gathered), behind_bytes)
                        gathered, gathered_bytes = [], 0
                    await self._send_slice(part)
                    continue
                part = part.read() if part.is_cached() else await self._read_cold(part)
            gathered.append(part)
            gathered_bytes += len(part)
            if gathered_bytes > SEND_AT_BYTES:
                await self._send(b"".join(gathered), behind_bytes)
                gathered, gathered_bytes = [], 0
        if gathered:
            await self._send(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    async def _read_cold(self, part: LogSlice) -> bytes:
        with part.pinned() as file, part.reading():
            data = await self._disk.run(partial(file.read, part.size_bytes, part.position))
        if len(data) != part.size_bytes:
            raise StorageError(f"{file.path} ends before {part.position + part.size_bytes}")
        return data

    async def _send_slice(self, part: LogSlice) -> None:
        """The slice has left by sendfile; pages not in memory were first read beside the loop."""
        position, end = part.position, part.position + part.size_bytes
        file = part.acquire()
        try:
            while position < end:
                size = min(COLD_READ_BYTES, end - position)
                if not file.is_cached(size, position):
                    with part.reading():
                        await self._disk.run(partial(file.read, size, position))
                await self._connection.send_file(file, position, size)
                self.progress += 1
                position += size
        finally:
            part.release()


def _is_ready(reply: LaterReply | PendingReply | Reply) -> bool:
    return not isinstance(reply, LaterReply) or reply.is_ready


def _read_at_once(parts: list[bytes | RecordsHole]) -> bytes | None:
    """An answer with few records, which are in memory; None of any other, and where trouble is."""
    pieces: list[bytes] = []
    left_bytes = COPY_LIMIT_BYTES
    for part in parts:
        if isinstance(part, bytes):
            pieces.append(part)
            continue
        assert isinstance(part, LogSlice)
        left_bytes -= part.size_bytes
        data = part.read_cached() if left_bytes >= 0 else None
        if data is None:
            return None
        pieces.append(data)
    return b"".join(pieces)
