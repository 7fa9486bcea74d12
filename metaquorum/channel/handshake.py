"""How two nodes come to believe each other, as plain state: bytes in, bytes out.

    dialer                                  acceptor
    hello (who, to whom, nonce)      -->    of my cluster? for me? welcome?
    my cluster? whom I dialed?       <--    OK, hello (who, to whom, nonce)
    proof                            -->    made with the secret?
    made with the secret?            <--    OK, proof

A proof is an HMAC with a key made from the secret, over the side that gives it ("dialer" or
"acceptor") and both hellos, that is: over the cluster, the kind of stream, both node ids and both
nonces. So no proof serves twice, elsewhere, in another stream, or sent back to whom it came from.
The dialer gives its proof first: a stranger that knocks gets nothing to guess the secret from.
Each direction then has a key of its own, made from the secret and both hellos.

Instead of OK the acceptor may say why not, in one byte, for the other side's log; bytes that are no
hello get no answer. Without the secret nobody can make either side hold more than
MAX_HANDSHAKE_BYTES. The messages are not hidden: who wants that uses TLS below.
"""

import hmac
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from metaquorum.channel.identity import MAX_CLUSTER_ID_BYTES, ChannelIdentity, StreamKind
from wire.primitives.frozen import frozen

MAGIC: Final = b"mqchan\r\n"
FORMAT: Final = 1
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
# magic, format, kind, sender, addressee, incarnation, attempt, nonce, size of the cluster id
_HELLO: Final = struct.Struct(f">{len(MAGIC)}sBBiiQI{NONCE_BYTES}sB")
MAX_HANDSHAKE_BYTES: Final = 256  # unread bytes of the other side, before it is believed


class Refusal(IntEnum):
    """What the acceptor says; the dialer's log has it in words."""

    OK = 0
    FORMAT = 1
    CLUSTER = 2
    NODE = 3
    SECRET = 4
    UNWELCOME = 5
    BUSY = 6


_IN_WORDS: Final = {
    Refusal.FORMAT: "it speaks another version of this protocol",
    Refusal.CLUSTER: "it belongs to another cluster",
    Refusal.NODE: "it has another node id than was expected there",
    Refusal.SECRET: "it has another cluster secret",
    Refusal.UNWELCOME: "it does not take this kind of connection from this node",
    Refusal.BUSY: "it has too many connections",
}
_STRANGERS: Final = (
    (b"\x16\x03", "it speaks TLS, where plain text was expected"),
    (b"\x15\x03", "it expects TLS, and was spoken to in plain text"),
    (b"HTTP", "it speaks HTTP"),
    (b"GET ", "it speaks HTTP"),
    (b"\x00\x00", "it may be a Kafka client, for which this port is not"),
)


class HandshakeError(Exception):
    """The other side is not, or not shown to be, who it should be; one sentence says why."""

    def __init__(self, refusal: Refusal, message: str = "") -> None:
        self.refusal = refusal
        super().__init__(message or _IN_WORDS.get(refusal, "it made no sense"))


class Hello(NamedTuple):
    """One side of a handshake, as it presents itself."""

    kind: StreamKind
    sender: int
    addressee: int
    incarnation: int  # drawn once by each process
    attempt: int  # of this process, counting up
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
    """The size of the hello that begins here; None while that cannot be known. HandshakeError."""
    if not data.startswith(MAGIC[: len(data)]):
        for start, words in _STRANGERS:
            if data.startswith(start):
                raise HandshakeError(Refusal.OK, words)
        raise HandshakeError(Refusal.OK, "it does not speak the protocol between nodes")
    if len(data) > len(MAGIC) and data[len(MAGIC)] != FORMAT:
        raise HandshakeError(Refusal.FORMAT)
    if len(data) < _HELLO.size:
        return None
    size = data[_HELLO.size - 1]
    if not 0 < size <= MAX_CLUSTER_ID_BYTES:
        raise HandshakeError(Refusal.OK, "its cluster id has no possible size")
    return _HELLO.size + size


def decode_hello(data: bytes) -> Hello:
    """HandshakeError."""
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
        raise HandshakeError(Refusal.OK, "its hello makes no sense") from None


@frozen
class Established:
    """Both sides are believed."""

    peer: Hello
    send_key: bytes
    receive_key: bytes
    trailing: bytes  # came behind the handshake


# None, or why a stream from there is not wanted.
Admit: TypeAlias = Callable[[Hello], HandshakeError | None]


class _Handshake:
    """`receive` what came, `data_to_send` what is to leave; `established` when both are believed.

    `receive` may raise HandshakeError; what is to be sent before closing is there even then.
    """

    _side = b""
    _other_side = b""

    def __init__(self, identity: ChannelIdentity) -> None:
        self._identity = identity
        self._unread = b""
        self._unsent = b""
        self._transcript = b""
        self.peer: Hello | None = None  # as it says itself; to be believed when established
        self.established: Established | None = None

    def data_to_send(self) -> bytes:
        data, self._unsent = self._unsent, b""
        return data

    @property
    def room(self) -> int:
        """How many bytes `receive` takes; never 0, as no message is as long."""
        return MAX_HANDSHAKE_BYTES - len(self._unread)

    def receive(self, data: bytes) -> None:
        """HandshakeError."""
        assert self.established is None
        assert len(data) <= self.room
        self._unread += data
        while self.established is None and self._advance():
            pass

    def _advance(self) -> bool:
        """Whether one more message was there."""
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
            hello_bytes(self._unread)  # says who knocks here
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
            raise HandshakeError(Refusal.CLUSTER, f"it belongs to cluster {peer.cluster_id!r}")
        if peer.addressee != identity.node_id:
            raise HandshakeError(Refusal.NODE, f"it wants to reach node {peer.addressee}")
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
            raise HandshakeError(Refusal.OK, "it did not wait for the end of the handshake")
        self._unsent += bytes([Refusal.OK]) + self._proof(self._side)
        self._establish()
        return True
