"""TLS over any `Connection`, by OpenSSL's memory buffers.

    inner.receive_nowait -> _incoming -> SSLObject.read  -> receive_nowait, receive_into, pump
    send, send_file      -> SSLObject.write -> _outgoing -> inner.send

The TLS state between the two byte streams leads to two rules. First, one receive of the inner
connection may contain more plaintext than the reader requested, for which the inner connection
does not become readable again: `pump` therefore calls its step until all plaintext is read and the
inner connection has no more bytes. Second, encrypted bytes must be sent in order and unchanged: if
`send_nowait` cannot send all of them, it reports the last piece as not sent, and the caller must
pass the same bytes again.

A peer can occupy the event loop for a few milliseconds at a time only. A handshake step takes half
a millisecond of CPU time; all connections together take one step per iteration of the loop. A key
update (TLS 1.3) costs 40 microseconds, and an answer of 27 bytes that is kept until the peer reads
it: therefore few records are decrypted in a row, and a connection may cause about a hundred such
answers. (Java updates its keys after 2^37 bytes.)

After the handshake OpenSSL receives whole records only: without a whole record it is not called,
since its SSLWantReadError costs as much as decrypting a small request.

A peer that closes without close_notify has ended its stream: the protocols above contain the sizes
of their messages, and detect a truncated message themselves.
"""

import ssl
from collections.abc import Callable
from typing import Final, cast

import trio

from metaquorum.runtime.interfaces import Buffer, Connection, File

# Size of one receive of the inner connection; some records.
RECEIVE_BYTES: Final = 64 * 1024
# Bytes encrypted by `send` before they are sent and other tasks run.
SEND_BYTES: Final = 128 * 1024
# Bytes encrypted at a time by `send_nowait`; an unsent piece must be passed again.
SEND_AT_ONCE_BYTES: Final = 64 * 1024
# Above the largest TLS record: OpenSSL then rejects the bytes before a whole record arrives.
MAX_RECORD_BYTES: Final = 17 * 1024
# Records that are decrypted in a row.
RECORDS_AT_ONCE: Final = 64
RECORD_HEADER_BYTES: Final = 5
# Limit of the answers to key updates on one connection, of 27 bytes each.
MAX_ANSWER_BYTES: Final = 4096
# Steps in a row for plaintext that is available already.
MAX_STEPS_PER_TURN: Final = 16


class TlsError(OSError):
    """Raised if TLS fails; the message gives the cause."""


# Buffer for received bytes on their way into OpenSSL; empty between calls.
_receive_buffer: Final = trio.lowlevel.RunVar[bytearray | None]("TLS receive buffer")


def _shared_buffer() -> bytearray:
    """Return the buffer that all connections of a loop share, to save memory of idle ones."""
    buffer = _receive_buffer.get(None)
    if buffer is None:
        _receive_buffer.set(buffer := bytearray(RECEIVE_BYTES))
    return buffer


# Held by the connection that takes the next handshake step.
_handshake_turn: Final = trio.lowlevel.RunVar[trio.Lock | None]("TLS handshakes take turns")


def _turn() -> trio.Lock:
    lock = _handshake_turn.get(None)
    if lock is None:
        _handshake_turn.set(lock := trio.Lock())
    return lock


_NOTHING: Final = memoryview(b"")


class _Records:
    """Boundaries of TLS records in a stream that arrives in pieces.

    `has_more`: another record is available after those taken last.
    """

    __slots__ = ("_left", "has_more")

    def __init__(self) -> None:
        self._left = 0  # bytes left of the current record
        self.has_more = False

    def take(self, data: memoryview, *, whole: bool) -> int:
        """Return the size of a prefix of at most RECORDS_AT_ONCE records, without partial headers.

        `whole`: also without a partial record that begins in `data`.
        """
        at, size = self._left, len(data)
        count = 0
        self.has_more = False
        while at <= size - RECORD_HEADER_BYTES:
            end = at + RECORD_HEADER_BYTES + (data[at + 3] << 8 | data[at + 4])
            if whole and end > size and end - at <= MAX_RECORD_BYTES:
                break
            if count == RECORDS_AT_ONCE:
                self.has_more = True
                break
            at = end
            count += 1
        taken = min(at, size)
        self._left = at - taken
        return taken


class TlsConnection:
    """`Connection` with TLS over another `Connection`. Call `handshake` first.

    One task may send while another receives, as with any connection.
    """

    def __init__(
        self,
        inner: Connection,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None = None,
    ) -> None:
        """Create the server side, or with `server_hostname` the client side."""
        self.peer: tuple[str, int] = inner.peer
        self._inner = inner
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._server_side = server_hostname is None
        self._ssl = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=self._server_side,
            server_hostname=server_hostname,
        )
        self._buffer = _shared_buffer()
        self._records = _Records()
        self._unfed = b""  # received bytes that OpenSSL has not got yet
        self._is_secret = False  # whether the handshake is complete
        self._emptied = False  # the last receive took all bytes of the inner connection
        self._answer_bytes = 0
        self._unsent = _NOTHING  # encrypted bytes that are still to be sent
        self._sending = False  # a task waits until the inner connection accepts `_unsent`
        self._repeated_bytes = 0  # encrypted bytes that were reported as not sent
        self._ended = False  # the peer has ended its stream
        self._drained = False  # the last receive found no more bytes
        self._going = False  # a task pumps
        self._soon: Callable[[], bool] | None = None
        self._broken = False  # the sent bytes end in the middle of a record
        self._closed = False

    @property
    def ssl(self) -> ssl.SSLObject:
        """TLS state of the connection: version, cipher, certificate of the peer."""
        return self._ssl

    async def handshake(self) -> None:
        """Run the TLS handshake.

        Raises TlsError if the handshake fails, and OSError if the connection fails. The peer may
        delay the handshake without a limit: use a timeout.
        """
        while True:
            try:
                async with _turn():
                    self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    raise TlsError(
                        "the peer closed the connection during the TLS handshake"
                    ) from None
            except ssl.SSLError as error:
                self._flush_nowait()  # sends the alert
                raise _tls_error(error) from None
            else:
                await self._flush()
                self._is_secret = True
                return

    async def _fill(self) -> bool:
        """Pass received bytes to OpenSSL; return False at the end of the stream."""
        if self._records.has_more:
            self._fill_nowait()
            await trio.lowlevel.checkpoint()
            return True
        count = -1

        def step() -> bool:
            nonlocal count
            count = self._fill_nowait()
            return count < 0

        await self._inner.pump(step)
        return count > 0

    # Receiving

    async def receive_into(self, buffer: bytearray | memoryview) -> int:
        await trio.lowlevel.checkpoint_if_cancelled()
        count = self.receive_nowait(buffer)
        if count >= 0:  # a cancellation from here on would lose the bytes
            await trio.lowlevel.cancel_shielded_checkpoint()
            return count

        def step() -> bool:
            nonlocal count
            count = self.receive_nowait(buffer)
            return count < 0

        await self._inner.pump(step)
        return count

    def is_ended(self) -> bool:
        return self._ended or self._inner.is_ended()

    def receive_nowait(self, buffer: bytearray | memoryview) -> int:
        self._check()
        view = memoryview(buffer).cast("B")
        got = 0
        while got < len(view) and not self._ended:
            count = self._read(view[got:] if got else view)
            got += count
            if count == 0 and not self._ended:
                # The next receive, or the inner connection, reports the end of the stream.
                if got and self._emptied and not self._records.has_more:
                    self._drained = True
                    return got
                if self._fill_nowait() < 0:
                    self._drained = True
                    return got or -1
        self._drained = False
        return got

    def _read(self, view: memoryview) -> int:
        """Decrypt into `view`; return the count, 0 without a record or if the peer `_ended`."""
        if self._is_secret and not (
            self._incoming.pending or self._incoming.eof or self._ssl.pending()
        ):
            return 0
        count, unsent_bytes = 0, self._outgoing.pending
        try:
            count = cast(int, self._ssl.read(len(view), view))
            self._ended = count == 0
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._ended = True
        except ssl.SSLError as error:
            self._flush_nowait()  # sends the alert
            raise _tls_error(error) from None
        if self._outgoing.pending > unsent_bytes:  # the answer to a key update
            self._answer_bytes += self._outgoing.pending - unsent_bytes
            self._flush_nowait()
            if self._answer_bytes > MAX_ANSWER_BYTES:
                raise TlsError("TLS failed: the peer sends too many key updates")
        return count

    def _fill_nowait(self) -> int:
        """Receive and pass bytes to OpenSSL; return their count, 0 at the end, -1 if none yet."""
        unfed = self._unfed
        if self._records.has_more:
            data, count = memoryview(unfed), len(unfed)
        else:
            room = memoryview(self._buffer)[len(unfed) :]
            count = self._inner.receive_nowait(room)
            self._emptied = count < len(room)
            if count < 0:
                return count
            if count == 0:
                self._incoming.write(unfed)
                self._unfed = b""
                self._incoming.write_eof()
                return 0
            data = memoryview(self._buffer)[: len(unfed) + count]
            data[: len(unfed)] = unfed
        taken = self._records.take(data, whole=self._is_secret)
        self._incoming.write(data[:taken])
        self._unfed = b"" if taken == len(data) else bytes(data[taken:])
        return count

    async def pump(self, step: Callable[[], bool]) -> None:
        self._soon = None

        def step_until_drained() -> bool:
            for _ in range(MAX_STEPS_PER_TURN):
                soon, self._soon = self._soon, None
                self._going = (soon or step)()
                if not self._going or (self._drained and self._soon is None):
                    return self._going
            return False

        self._check()
        await trio.lowlevel.checkpoint_if_cancelled()
        self._going = True
        try:
            while self._going:
                if self._drained:
                    await self._inner.pump(step_until_drained)
                else:
                    await trio.lowlevel.checkpoint()
                    step_until_drained()
        finally:
            self._going = False

    def call_soon(self, step: Callable[[], bool]) -> None:
        if not self._going:
            return
        self._soon = step
        self._inner.call_soon(self._step_soon)

    def _step_soon(self) -> bool:
        soon, self._soon = self._soon, None
        if soon is not None:
            self._going = soon()
        return self._going

    # Sending

    def call_when_writable(self, step: Callable[[], bool]) -> bool:
        return False  # the task waits: it also sends the bytes that are encrypted already

    def send_soon(self, data: bytes, unsent: Callable[[bytes], object]) -> bool:
        return False  # bytes that are encrypted cannot be given back

    def send_nowait(self, data: Buffer) -> int:
        self._check()
        view = memoryview(data).cast("B")
        assert len(view) >= self._repeated_bytes, "bytes that were not sent must be passed again"
        if not self._flush_nowait():
            return 0
        taken, self._repeated_bytes = self._repeated_bytes, 0
        while taken < len(view):
            piece = view[taken : taken + SEND_AT_ONCE_BYTES]
            self._encrypt(piece)
            if not self._flush_nowait():
                self._repeated_bytes = len(piece)
                break
            taken += len(piece)
        return taken

    async def send(self, data: Buffer) -> None:
        self._check()
        view = memoryview(data).cast("B")
        position, self._repeated_bytes = self._repeated_bytes, 0
        assert len(view) >= position, "bytes that were not sent must be passed again"
        while True:
            self._encrypt(view[position : position + SEND_BYTES])
            position += SEND_BYTES
            await self._flush()
            if position >= len(view):
                return
            await trio.lowlevel.checkpoint()

    async def send_file(self, file: File, position: int, size: int) -> None:
        end = position + size
        while position < end:
            data = file.read(min(end - position, SEND_BYTES), position)
            if not data:
                raise EOFError(f"{file.path} ends at byte {position}, before byte {end}")
            await self.send(data)
            position += len(data)
            if position < end:
                await trio.lowlevel.checkpoint()

    def send_file_nowait(self, file: File, position: int, size: int) -> int:
        self._check()
        return 0  # the bytes are read and encrypted in the task, by `send_file`

    def _encrypt(self, view: memoryview) -> None:
        while view:
            view = view[self._ssl.write(view) :]

    async def _flush(self) -> None:
        """Send all encrypted bytes to the inner connection."""
        if self._sending:
            raise trio.BusyResourceError("another task is already sending")
        self._sending = True
        try:
            while self._unsent or self._outgoing.pending:
                data, self._unsent = self._unsent, _NOTHING
                await self._inner.send(data or self._outgoing.read())
        except BaseException:
            self._broken = True
            raise
        finally:
            self._sending = False

    def _flush_nowait(self) -> bool:
        """Send encrypted bytes without waiting; return whether none are left."""
        if self._sending:
            return False
        while self._unsent or self._outgoing.pending:
            data = self._unsent or memoryview(self._outgoing.read())
            sent = self._inner.send_nowait(data)
            if sent < len(data):
                self._unsent = data[sent:]
                return False
            self._unsent = _NOTHING
        return True

    # Ending

    def close(self) -> None:
        """Close the connection; send close_notify if that does not block."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._sending and not self._broken:
                self._say_goodbye()
        finally:
            self._inner.close()

    def _say_goodbye(self) -> None:
        try:
            self._ssl.unwrap()
        except (
            ssl.SSLError,
            ValueError,
        ):  # unwrap also expects the close_notify of the peer, which is not awaited
            pass
        try:
            self._flush_nowait()
        except (OSError, trio.ClosedResourceError):
            pass

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this connection is closed")


_EXPIRED: Final = 10  # OpenSSL's X509_V_ERR_...
_NOT_YET_VALID: Final = 9
_SELF_SIGNED: Final = 18
_SELF_SIGNED_IN_CHAIN: Final = 19
_NO_LOCAL_ISSUER: Final = 20
_VERIFY_SENTENCES: Final = {
    _EXPIRED: "the peer's certificate has expired",
    _NOT_YET_VALID: "the peer's certificate is not valid yet",
    _SELF_SIGNED: "the peer's certificate is self-signed and not trusted",
    _SELF_SIGNED_IN_CHAIN: "the authority of the peer's certificate is not trusted",
    _NO_LOCAL_ISSUER: "the authority of the peer's certificate is not trusted",
}
_REASON_SENTENCES: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer sent no certificate",
    "WRONG_VERSION_NUMBER": "the peer does not use TLS, or an old version of it",
    "HTTP_REQUEST": "the peer speaks HTTP without TLS",
    "UNSUPPORTED_PROTOCOL": "the peer supports only old versions of TLS",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust the authority of this node's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer does not accept this node's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer reports that this node's certificate has expired",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer requires a certificate of this node",
    "NO_SHARED_CIPHER": "the peer supports no common cipher",
}


def _tls_error(error: ssl.SSLError) -> TlsError:
    if isinstance(error, ssl.SSLCertVerificationError):
        words = _VERIFY_SENTENCES.get(error.verify_code, error.verify_message)
    else:
        reason = error.reason or str(error)
        words = _REASON_SENTENCES.get(reason, reason.lower().replace("_", " "))
    return TlsError(f"TLS failed: {words}")
