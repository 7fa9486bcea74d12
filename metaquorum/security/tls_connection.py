"""TLS over any `Connection`, without a socket of its own.

    inner.receive_nowait -> _incoming -> SSLObject.read  -> receive_nowait, receive_into, pump
    send, send_file      -> SSLObject.write -> _outgoing -> inner.send

Two rules follow from there being a state machine between the bytes. First, what the inner
connection has brought may hold more than one reader asked for, and nothing inside will become
readable for it again: `pump` therefore asks until all of it was handed out, and the inner
connection had no more than that. Second, what was encrypted has to leave, in order and as it is:
when `send_nowait` could not get rid of all of it, it says of the last piece that it was not taken,
and expects it again.

What the peer sends costs the loop no more than a few milliseconds at once. A step of a handshake
takes half a millisecond of arithmetic, and a turn of the loop sees one of them, however many
connections are at it. A change of keys (TLS 1.3) costs 40 microseconds and 27 bytes, and an answer
that has to be kept until the peer takes it: few records are decrypted in a row, and a connection
may have some hundred of these answers in its life. (Java's changes keys after 2^37 bytes.)

Once hands are shaken OpenSSL is given whole records only: when it has none it need not be asked,
and its "no" is an exception that costs as much as decrypting a small request.

A peer that ends without saying so in TLS has ended. Whether a message is whole is for the protocol
above to know, and all of ours say the sizes of theirs.
"""

import ssl
from collections.abc import Callable
from typing import Final, cast

import trio

from metaquorum.runtime.interfaces import Buffer, Connection, File

# One receive of the inner connection: some records.
RECEIVE_BYTES: Final = 64 * 1024
# Encrypted before it is sent and others have their turn.
SEND_BYTES: Final = 128 * 1024
# Encrypted and sent at once, where what was not taken is expected again.
SEND_AT_ONCE_BYTES: Final = 64 * 1024
# More than one TLS record may have: OpenSSL is to see at once that this is none.
MAX_RECORD_BYTES: Final = 17 * 1024
# Records that are decrypted in a row.
RECORDS_AT_ONCE: Final = 64
RECORD_HEADER_BYTES: Final = 5
# Answers that reading makes, of a connection: those to changes of keys, of 27 bytes each.
MAX_ANSWER_BYTES: Final = 4096
# Steps in a row for what has been decrypted already.
MAX_STEPS_PER_TURN: Final = 16


class TlsError(OSError):
    """The two sides do not agree; one sentence says why."""


# Where bytes of a connection are on their way into TLS; nothing of them stays.
_receive_buffer: Final = trio.lowlevel.RunVar[bytearray | None]("TLS receive buffer")


def _shared_buffer() -> bytearray:
    """One for all connections of a loop: ten thousand idle ones must be cheap."""
    buffer = _receive_buffer.get(None)
    if buffer is None:
        _receive_buffer.set(buffer := bytearray(RECEIVE_BYTES))
    return buffer


# Who may take the next step of its handshake.
_handshake_turn: Final = trio.lowlevel.RunVar[trio.Lock | None]("TLS handshakes take turns")


def _turn() -> trio.Lock:
    lock = _handshake_turn.get(None)
    if lock is None:
        _handshake_turn.set(lock := trio.Lock())
    return lock


_NOTHING: Final = memoryview(b"")


class _Records:
    """Where records end, in a stream that comes in pieces.

    `has_more`: behind what was taken last stands one that can be.
    """

    __slots__ = ("_left", "has_more")

    def __init__(self) -> None:
        self._left = 0  # of the record under way
        self.has_more = False

    def take(self, data: memoryview, *, whole: bool) -> int:
        """So many bytes hold RECORDS_AT_ONCE records at most, and no part of a header.

        `whole`: nor part of a record that begins here.
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
    """The seam's `Connection` over another one. `handshake` comes first, then all the rest.

    One task may send while another receives, as with any connection.
    """

    def __init__(
        self,
        inner: Connection,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None = None,
    ) -> None:
        """A `server_hostname` makes this the client's side."""
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
        self._unfed = b""  # has come, and is to be decrypted later
        self._is_secret = False  # hands are shaken
        self._emptied = False  # the inner connection had no more, when it was last asked
        self._answer_bytes = 0
        self._unsent = _NOTHING  # encrypted, and on its way out
        self._sending = False  # somebody waits until the inner connection takes `_unsent`
        self._repeated_bytes = 0  # encrypted, and said not to have been taken
        self._ended = False  # the peer has
        self._drained = False  # the last receive found nothing
        self._going = False  # somebody pumps
        self._soon: Callable[[], bool] | None = None
        self._broken = False  # what the peer got ends in the middle of a record
        self._closed = False

    @property
    def ssl(self) -> ssl.SSLObject:
        """For what has been agreed: version, cipher, the peer's certificate."""
        return self._ssl

    async def handshake(self) -> None:
        """Both sides are who their certificates say. TlsError, OSError.

        It takes as long as the peer likes: limit the time.
        """
        while True:
            try:
                async with _turn():
                    self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    raise TlsError(
                        "the other side closed in the middle of the TLS handshake"
                    ) from None
            except ssl.SSLError as error:
                self._flush_nowait()  # tells the other side why
                raise _tls_error(error) from None
            else:
                await self._flush()
                self._is_secret = True
                return

    async def _fill(self) -> bool:
        """Some bytes have come, or there are none to come."""
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
        count = self.receive_nowait(buffer)
        if count >= 0:
            await trio.lowlevel.checkpoint()
            return count

        def step() -> bool:
            nonlocal count
            count = self.receive_nowait(buffer)
            return count < 0

        await self._inner.pump(step)
        return count

    def receive_nowait(self, buffer: bytearray | memoryview) -> int:
        self._check()
        view = memoryview(buffer).cast("B")
        got = 0
        while got < len(view) and not self._ended:
            count = self._read(view[got:] if got else view)
            got += count
            if count == 0 and not self._ended:
                # Its end is for the next one who asks, or for the inner connection to tell.
                if got and self._emptied and not self._records.has_more:
                    self._drained = True
                    return got
                if self._fill_nowait() < 0:
                    self._drained = True
                    return got or -1
        self._drained = False
        return got

    def _read(self, view: memoryview) -> int:
        """So many bytes were there, decrypted; 0: there are none, or the peer `_ended`."""
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
            self._flush_nowait()  # tells the other side why
            raise _tls_error(error) from None
        if self._outgoing.pending > unsent_bytes:  # the answer to a change of keys
            self._answer_bytes += self._outgoing.pending - unsent_bytes
            self._flush_nowait()
            if self._answer_bytes > MAX_ANSWER_BYTES:
                raise TlsError("no TLS with the other side: it changes keys again and again")
        return count

    def _fill_nowait(self) -> int:
        """How many bytes have come; 0: no more ever; -1: none yet."""
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

    def send_nowait(self, data: Buffer) -> int:
        self._check()
        view = memoryview(data).cast("B")
        assert len(view) >= self._repeated_bytes, "what was not taken has to be offered again"
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
        assert len(view) >= position, "what was not taken has to be offered again"
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
                raise EOFError(f"{file.path} ends at {position}, before {end}")
            await self.send(data)
            position += len(data)
            if position < end:
                await trio.lowlevel.checkpoint()

    def _encrypt(self, view: memoryview) -> None:
        while view:
            view = view[self._ssl.write(view) :]

    async def _flush(self) -> None:
        """All that was encrypted has been handed to the inner connection."""
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
        """Whether all that was encrypted has left."""
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
        """The peer is told so, if that takes no wait."""
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
        ):  # it also wants to read the peer's, which is not waited for
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
    _EXPIRED: "its certificate has expired",
    _NOT_YET_VALID: "its certificate is not valid yet",
    _SELF_SIGNED: "its certificate is signed by itself, not by an authority we know",
    _SELF_SIGNED_IN_CHAIN: "its certificate is of an authority we do not know",
    _NO_LOCAL_ISSUER: "its certificate is of an authority we do not know",
}
_REASON_SENTENCES: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate",
    "WRONG_VERSION_NUMBER": "it does not speak TLS, or an old version of it",
    "HTTP_REQUEST": "it speaks HTTP without TLS",
    "UNSUPPORTED_PROTOCOL": "it speaks only old versions of TLS",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the authority of our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that our certificate has expired",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a certificate of ours",
    "NO_SHARED_CIPHER": "it knows no cipher that we do",
}


def _tls_error(error: ssl.SSLError) -> TlsError:
    if isinstance(error, ssl.SSLCertVerificationError):
        words = _VERIFY_SENTENCES.get(error.verify_code, error.verify_message)
    else:
        reason = error.reason or str(error)
        words = _REASON_SENTENCES.get(reason, reason.lower().replace("_", " "))
    return TlsError(f"no TLS with the other side: {words}")
