"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), both sides, without I/O.

    client                                  server
    n,,n=alice,r=A                 ->
                                   <-       r=AB,s=<salt>,i=4096
    c=biws,r=AB,p=<proof>          ->       proves that the client has the password
                                   <-       v=<signature>: proves that the server has the ServerKey

    SaltedPassword = PBKDF2(password, salt, i)
    StoredKey      = H(HMAC(SaltedPassword, "Client Key"))
    ServerKey      = HMAC(SaltedPassword, "Server Key")

The server stores salt, i, StoredKey and ServerKey, which suffice to check a proof but not to create
one. A client cannot distinguish a nonexistent user from an existing one before the last message:
the server-first-message of a nonexistent user is a *decoy* with a salt derived from the name and a
secret, and the iteration count of a new user. A deleted user keeps the salt and the count that it
had. The server does the same operations in all cases.

Deliberately absent, as in Kafka: channel binding, and SASLprep; names and passwords are used as
unmodified UTF-8 bytes.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from typing import Final

from metaquorum.wire.primitives.frozen import frozen

MIN_ITERATIONS: Final = 4096  # KIP-84
MAX_ITERATIONS: Final = 16_384  # Kafka's limit for stored credentials
# Default count for a new user, and count of decoys.
DEFAULT_ITERATIONS: Final = 8192
MAX_CLIENT_ITERATIONS: Final = 1_000_000  # most iterations that a client computes for a server
MAX_SALT_BYTES: Final = 1024
# Names and nonces are shorter; a message of half a megabyte would block the event loop for 60 ms.
MAX_MESSAGE_BYTES: Final = 8192
NONCE_BITS: Final = 192
SALT_BYTES: Final = 24
_GS2_HEADER: Final = b"n,,"
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,512}")
_CLIENT_FIRST: Final = re.compile(
    r"(?P<gs2>(?P<binding>[ny]|p=[A-Za-z0-9.\-]+),(?:a=(?P<authorization>[^,]*))?,)"
    r"(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[^,]+)(?P<extensions>(?:,[A-Za-z]=[^,]*)*))"
)
_CLIENT_FINAL: Final = re.compile(
    r"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[^,]+)(?:,[A-Za-z]=[^,]*)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_SERVER_FIRST: Final = re.compile(
    r"r=(?P<nonce>[^,]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[1-9][0-9]{0,8})(?:,.*)?"
)
_SERVER_FINAL: Final = re.compile(
    r"(?:v=(?P<signature>[A-Za-z0-9+/=]+)|e=(?P<error>[^,]*))(?:,.*)?"
)


class ScramMechanism(IntEnum):
    """SCRAM mechanisms, numbered as in the requests of the protocol (KIP-554)."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return 32 if self is ScramMechanism.SCRAM_SHA_256 else 64


BY_SASL_NAME: Final = {mechanism.sasl_name: mechanism for mechanism in ScramMechanism}


class ScramError(Exception):
    """Raised if a message of the peer is malformed or its proof is wrong."""


@frozen
class ScramCredential:
    """Credential that a server stores in place of a password."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


@frozen
class ScramChallenge:
    """Salt and iteration count of a deleted user, for the server-first-message."""

    salt: bytes
    iterations: int


def salted_password(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> bytes:
    """Return the salted password (PBKDF2). Takes milliseconds of CPU time, by design."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, _utf8(password), salt, iterations)


def credential(
    mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential for a salted password."""
    client_key = _hmac(mechanism, salted, b"Client Key")
    server_key = _hmac(mechanism, salted, b"Server Key")
    return ScramCredential(salt, iterations, _hash(mechanism, client_key), server_key)


class ScramServer:
    """Server side of one exchange: `first`, then `final`, which authenticates `username`."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        credential_of: Callable[[str], ScramCredential | ScramChallenge | None],
        nonce: str,
        decoy_key: bytes,
    ) -> None:
        """Begin an exchange.

        `credential_of` returns the credential of a user name, a ScramChallenge for a deleted user,
        None for an unknown one. `decoy_key`: secret from which the salts of unknown users are
        derived.
        """
        self.username = ""
        self._mechanism = mechanism
        self._credential_of = credential_of
        self._own_nonce = nonce
        self._decoy_key = decoy_key
        self._credential: ScramCredential | None = None
        self._is_known = False
        self._gs2 = self._bare = self._nonce = self._server_first = ""

    def first(self, message: bytes) -> bytes:
        """Return the answer to the client-first-message. Raises ScramError if it is malformed."""
        asked = _match(_CLIENT_FIRST, message, "client-first-message")
        if asked["binding"].startswith("p="):
            raise ScramError("channel binding is not supported")
        if _NONCE.fullmatch(asked["nonce"]) is None:
            raise ScramError("the client's nonce is not printable")
        if ",m=" in asked["extensions"]:
            raise ScramError("mandatory extensions are not supported")
        self.username = _name(asked["name"])
        if asked["authorization"] and _name(asked["authorization"]) != self.username:
            raise ScramError("the authorization id differs from the user name")
        decoy = self._decoy()  # derived for existing users too: no difference in time
        found = self._credential_of(self.username)
        self._is_known = isinstance(found, ScramCredential)
        if isinstance(found, ScramChallenge):
            decoy = replace(decoy, salt=found.salt, iterations=found.iterations)
        self._credential = found if isinstance(found, ScramCredential) else decoy
        self._gs2, self._bare = asked["gs2"], asked["bare"]
        self._nonce = asked["nonce"] + self._own_nonce
        salt, iterations = _base64(self._credential.salt), self._credential.iterations
        self._server_first = f"r={self._nonce},s={salt},i={iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes:
        """Return the answer to the client-final-message; the client is then authenticated.

        Raises ScramError if the message is malformed or the proof is wrong.
        """
        known = self._credential
        assert known is not None, "`first` must be called before `final`"
        asked = _match(_CLIENT_FINAL, message, "client-final-message")
        if _bytes(asked["binding"]) != self._gs2.encode():
            raise ScramError("the channel binding differs from the first message")
        if asked["nonce"] != self._nonce:
            raise ScramError("the nonce differs from the first message")
        said = f"{self._bare},{self._server_first},{asked['unproved']}".encode()
        signature = _hmac(self._mechanism, known.stored_key, said)
        client_key = _xor(_bytes(asked["proof"]), signature)
        is_right = hmac.compare_digest(_hash(self._mechanism, client_key), known.stored_key)
        if not (is_right and self._is_known):
            raise ScramError("the proof is wrong")
        return b"v=" + base64.b64encode(_hmac(self._mechanism, known.server_key, said))

    def _decoy(self) -> ScramCredential:
        salt = _hmac(self._mechanism, self._decoy_key, _utf8(self.username))
        nothing = bytes(self._mechanism.key_bytes)
        return ScramCredential(salt[:SALT_BYTES], DEFAULT_ITERATIONS, nothing, nothing)


class ScramClient:
    """Client side of one exchange: `first`, then `final`, then `finish` with the last answer."""

    def __init__(self, mechanism: ScramMechanism, username: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={escaped},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return _GS2_HEADER + _utf8(self._bare)

    def final(self, message: bytes) -> bytes:
        """Return the client-final-message for the server-first-message.

        Raises ScramError if the message is malformed, its nonce is wrong, or its iteration count
        is not from MIN_ITERATIONS to MAX_CLIENT_ITERATIONS.
        """
        answer = _match(_SERVER_FIRST, message, "server-first-message")
        nonce, salt, iterations = answer["nonce"], answer["salt"], int(answer["iterations"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce does not begin with the client's nonce")
        if not MIN_ITERATIONS <= iterations <= MAX_CLIENT_ITERATIONS:
            raise ScramError(f"the server asks for {iterations} iterations")
        salted = salted_password(self._mechanism, self._password, _bytes(salt), iterations)
        unproved = f"c={_base64(_GS2_HEADER)},r={nonce}"
        said = _utf8(f"{self._bare},{_text(message)},{unproved}")
        client_key = _hmac(self._mechanism, salted, b"Client Key")
        signature = _hmac(self._mechanism, _hash(self._mechanism, client_key), said)
        server_key = _hmac(self._mechanism, salted, b"Server Key")
        self._signature = _hmac(self._mechanism, server_key, said)
        return f"{unproved},p={_base64(_xor(client_key, signature))}".encode()

    def finish(self, message: bytes) -> None:
        """Verify the server-final-message. Raises ScramError if its signature is wrong."""
        answer = _match(_SERVER_FINAL, message, "server-final-message")
        if answer["signature"] is None:
            raise ScramError(f"the server reports error {answer['error']!r}")
        if not hmac.compare_digest(_bytes(answer["signature"]), self._signature):
            raise ScramError("the server does not have the user's credential")


def _match(pattern: re.Pattern[str], message: bytes, what: str) -> re.Match[str]:
    if len(message) > MAX_MESSAGE_BYTES:
        raise ScramError(f"a {what} of {len(message)} bytes is too long")
    found = pattern.fullmatch(_text(message))
    if found is None:
        raise ScramError(f"the message is not a {what}")
    return found


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("the message is not valid UTF-8") from None


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _name(escaped: str) -> str:
    if re.search("=(?!2C|3D)", escaped):
        raise ScramError("the user name has an invalid escape sequence")
    return escaped.replace("=2C", ",").replace("=3D", "=")


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramError("a value is not base64") from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _hmac(mechanism: ScramMechanism, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, mechanism.hash_name)


def _hash(mechanism: ScramMechanism, data: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, data).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    if len(one) != len(other):
        raise ScramError("the proof does not have the length of a key")
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
