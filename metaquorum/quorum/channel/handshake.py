"""Mutual authentication of two nodes by a shared secret, without I/O: bytes in, bytes out.

    dialer                                     acceptor
    hello (sender, addressee, nonce)    -->    check cluster, addressee and admission
    check cluster and node ids          <--    OK, hello (sender, addressee, nonce)
    proof                               -->    check proof
    check proof                         <--    OK, proof

A proof is an HMAC with a key derived from the secret, over the side that sends it ("dialer" or
"acceptor") and both hellos, which contain the cluster id, the kind of stream, both node ids and
both nonces. A proof is therefore valid once only, and cannot be replayed on another connection, for
another node or kind of stream, or back to its sender. The dialer sends its proof first, so that an
unauthenticated dialer receives nothing from which to guess the secret. Each direction then has a
key of its own, derived from the secret and both hellos.

Instead of OK the acceptor may send a one-byte refusal code, which the dialer logs. It does not
answer bytes that are not a hello. A peer without the secret can make neither side hold more than
MAX_HANDSHAKE_BYTES. The messages are not encrypted: TLS below the stream does that.
"""

import hmac
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from metaquorum.quorum.channel.identity import MAX_CLUSTER_ID_BYTES, ChannelIdentity, StreamKind
from metaquorum.wire.primitives.frozen import frozen

MAGIC: Final = b"mqchan\r\n"
FORMAT: Final = 1
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
# magic, format, kind, sender, addressee, incarnation, attempt, nonce, size of the cluster id
_HELLO: Final = struct.Struct(f">{len(MAGIC)}sBBiiQI{NONCE_BYTES}sB")
MAX_HANDSHAKE_BYTES: Final = 256  # unread bytes of a peer that is not authenticated yet


class Refusal(IntEnum):
    """Codes that the acceptor sends in place of an answer; the dialer logs their meaning."""

    OK = 0
    FORMAT = 1
    CLUSTER = 2
    NODE = 3
    SECRET = 4
    UNWELCOME = 5
    BUSY = 6


_IN_WORDS: Final = {
    Refusal.FORMAT: "the peer uses another version of this protocol",
    Refusal.CLUSTER: "the peer belongs to another cluster",
    Refusal.NODE: "the peer has an unexpected node id",
    Refusal.SECRET: "the peer has another cluster secret",
    Refusal.UNWELCOME: "the peer does not accept this kind of connection from this node",
    Refusal.BUSY: "the peer has too many connections",
}
_STRANGERS: Final = (
    (b"\x16\x03", "the peer uses TLS, but this node expects plain text"),
    (b"\x15\x03", "the peer expects TLS, but this node sent plain text"),
    (b"HTTP", "the peer speaks HTTP"),
    (b"GET ", "the peer speaks HTTP"),
    (b"\x00\x00", "the peer may be a Kafka client, which this port does not serve"),
)


class HandshakeError(Exception):
    """Raised if a peer fails the handshake or is refused; the message gives the reason."""

    def __init__(self, refusal: Refusal, message: str = "") -> None:
        self.refusal = refusal
        super().__init__(message or _IN_WORDS.get(refusal, "the peer sent a malformed message"))


class Hello(NamedTuple):
    """Identity that one side of a handshake claims."""

    kind: StreamKind
    sender: int
    addressee: int
    incarnation: int  # random, drawn once per process
    attempt: int  # number of the attempt within this process, increasing
    nonce: bytes
    cluster_id: str

    def encode(self) -> bytes:
        cluster_id = self.cluster_id.encode()
        return (
            _HELLO.pack(
                MAGIC,
                FORMAT,
                self.kind,
                self.sender,
                self.addressee,
                self.incarnation,
                self.attempt,
                self.nonce,
                len(cluster_id),
            )
            + cluster_id
        )


def hello_bytes(data: bytes) -> int | None:
    """Return the size of the hello at the start of `data`; None if more bytes are needed.

    Raises HandshakeError if `data` does not start with a hello of this version.
    """
    if not data.startswith(MAGIC[: len(data)]):
        for start, words in _STRANGERS:
            if data.startswith(start):
                raise HandshakeError(Refusal.OK, words)
        raise HandshakeError(Refusal.OK, "the peer does not speak the protocol between nodes")
    if len(data) > len(MAGIC) and data[len(MAGIC)] != FORMAT:
        raise HandshakeError(Refusal.FORMAT)
    if len(data) < _HELLO.size:
        return None
    size = data[_HELLO.size - 1]
    if not 0 < size <= MAX_CLUSTER_ID_BYTES:
        raise HandshakeError(Refusal.OK, "the size of the peer's cluster id is invalid")
    return _HELLO.size + size


def decode_hello(data: bytes) -> Hello:
    """Return the hello. Raises HandshakeError if a field is invalid."""
    _, _, kind, sender, addressee, incarnation, attempt, nonce, _ = _HELLO.unpack_from(data)
    try:
        return Hello(
            StreamKind(kind),
            sender,
            addressee,
            incarnation,
            attempt,
            nonce,
            data[_HELLO.size :].decode("ascii"),
        )
    except ValueError:
        raise HandshakeError(Refusal.OK, "the peer's hello is malformed") from None


@frozen
class Established:
    """Result of a handshake in which both sides have authenticated."""

    peer: Hello
    send_key: bytes
    receive_key: bytes
    trailing: bytes  # received after the end of the handshake


# Returns None to admit the peer, or the reason of the refusal.
Admit: TypeAlias = Callable[[Hello], HandshakeError | None]


class _Handshake:
    """One side of a handshake.

    Pass received bytes to `receive` and send the bytes of `data_to_send` until `established` is
    set. If `receive` raises HandshakeError, `data_to_send` still returns the bytes to send before
    the connection is closed.
    """

    _side = b""
    _other_side = b""

    def __init__(self, identity: ChannelIdentity) -> None:
        self._identity = identity
        self._unread = b""
        self._unsent = b""
        self._transcript = b""
        self.peer: Hello | None = None  # claimed by the peer; unverified until `established`
        self.established: Established | None = None

    def data_to_send(self) -> bytes:
        data, self._unsent = self._unsent, b""
        return data

    @property
    def room(self) -> int:
        """Number of bytes that `receive` accepts; never 0, since every message is shorter."""
        return MAX_HANDSHAKE_BYTES - len(self._unread)

    def receive(self, data: bytes) -> None:
        """Process bytes from the peer. Raises HandshakeError if the handshake fails."""
        assert self.established is None
        assert len(data) <= self.room
        self._unread += data
        while self.established is None and self._advance():
            pass

    def _advance(self) -> bool:
        """Process one message; return False if the message is not complete yet."""
        raise NotImplementedError

    def _take(self, size: int) -> bytes | None:
        if len(self._unread) < size:
            return None
        taken, self._unread = self._unread[:size], self._unread[size:]
        return taken

    def _take_hello(self) -> bytes | None:
        size = hello_bytes(self._unread)
        return None if size is None else self._take(size)

    def _key(self, purpose: bytes) -> bytes:
        return hmac.digest(self._identity.secret, b"metaquorum channel 1, " + purpose, "sha256")

    def _proof(self, side: bytes) -> bytes:
        return hmac.digest(self._key(b"proofs"), side + b"\n" + self._transcript, "sha256")

    def _frame_key(self, side: bytes) -> bytes:
        return hmac.digest(self._key(b"frames"), side + b"\n" + self._transcript, "sha256")

    def _believe(self, proof: bytes) -> bool:
        return hmac.compare_digest(proof, self._proof(self._other_side))

    def _establish(self) -> None:
        assert self.peer is not None
        self.established = Established(
            self.peer,
            self._frame_key(self._side),
            self._frame_key(self._other_side),
            self._unread,
        )


class DialerHandshake(_Handshake):
    _side = b"dialer"
    _other_side = b"acceptor"

    def __init__(self, identity: ChannelIdentity, hello: Hello) -> None:
        super().__init__(identity)
        self._hello = hello
        self._transcript = self._unsent = hello.encode()

    def _advance(self) -> bool:
        if not self._unread:
            return False
        if self._unread[0] != Refusal.OK:
            self._refused(self._unread[0])
        return self._read_hello() if self.peer is None else self._read_proof()

    def _refused(self, code: int) -> None:
        if self.peer is None and code not in _IN_WORDS:
            hello_bytes(self._unread)  # raises an error that names the protocol of the peer
        raise HandshakeError(Refusal(code) if code in _IN_WORDS else Refusal.OK)

    def _read_hello(self) -> bool:
        size = hello_bytes(self._unread[1:])
        taken = None if size is None else self._take(1 + size)
        if taken is None:
            return False
        peer = decode_hello(taken[1:])
        if peer.cluster_id != self._hello.cluster_id:
            raise HandshakeError(Refusal.CLUSTER)
        if (peer.sender, peer.addressee) != (self._hello.addressee, self._hello.sender):
            raise HandshakeError(Refusal.NODE)
        if peer.kind != self._hello.kind:
            raise HandshakeError(Refusal.UNWELCOME)
        self.peer = peer
        self._transcript += taken[1:]
        self._unsent += self._proof(self._side)
        return True

    def _read_proof(self) -> bool:
        taken = self._take(1 + PROOF_BYTES)
        if taken is None:
            return False
        if not self._believe(taken[1:]):
            raise HandshakeError(Refusal.SECRET)
        self._establish()
        return True


class AcceptorHandshake(_Handshake):
    _side = b"acceptor"
    _other_side = b"dialer"

    def __init__(
        self, identity: ChannelIdentity, incarnation: int, nonce: bytes, admit: Admit
    ) -> None:
        super().__init__(identity)
        self._incarnation = incarnation
        self._nonce = nonce
        self._admit = admit

    def receive(self, data: bytes) -> None:
        try:
            super().receive(data)
        except HandshakeError as error:
            if error.refusal is not Refusal.OK:
                self._unsent += bytes([error.refusal])
            raise

    def _advance(self) -> bool:
        return self._read_hello() if self.peer is None else self._read_proof()

    def _read_hello(self) -> bool:
        taken = self._take_hello()
        if taken is None:
            return False
        peer, identity = decode_hello(taken), self._identity
        self.peer = peer
        if peer.cluster_id != identity.cluster_id:
            raise HandshakeError(
                Refusal.CLUSTER, f"the peer belongs to cluster {peer.cluster_id!r}"
            )
        if peer.addressee != identity.node_id:
            raise HandshakeError(Refusal.NODE, f"the peer expects node {peer.addressee} here")
        if (refusal := self._admit(peer)) is not None:
            raise refusal
        mine = Hello(
            peer.kind,
            identity.node_id,
            peer.sender,
            self._incarnation,
            peer.attempt,
            self._nonce,
            identity.cluster_id,
        ).encode()
        self._transcript = taken + mine
        self._unsent += bytes([Refusal.OK]) + mine
        return True

    def _read_proof(self) -> bool:
        taken = self._take(PROOF_BYTES)
        if taken is None:
            return False
        if not self._believe(taken):
            raise HandshakeError(Refusal.SECRET)
        if self._unread:
            raise HandshakeError(Refusal.OK, "the peer sent data before the end of the handshake")
        self._unsent += bytes([Refusal.OK]) + self._proof(self._side)
        self._establish()
        return True
