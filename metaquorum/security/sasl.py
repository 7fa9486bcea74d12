"""SASL mechanisms as plain state: PLAIN (RFC 4616) and SCRAM, the server's side and the client's.

A server's mechanism answers the client's messages until it `is_complete`; a client's makes them.
Neither does I/O, and neither puts a secret into an error.
"""

import hashlib
import hmac
import re
import shlex
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, Protocol

from metaquorum.security.scram import (
    BY_SASL_NAME,
    NONCE_BITS,
    ScramChallenge,
    ScramClient,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ScramServer,
)

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *BY_SASL_NAME)
_JAAS_END: Final = re.compile(r";\s*$")
_USER_PREFIX: Final = "user_"


class AuthenticationError(Exception):
    """The client is not who it says, or says nothing that makes sense; words for both sides' logs.

    `reason` is for ours alone.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class ServerMechanism(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def username(self) -> str:
        """Whom the client says it is; it has shown so once `is_complete`."""

    @property
    def is_complete(self) -> bool: ...

    def respond(self, message: bytes) -> bytes:
        """AuthenticationError."""


class ClientMechanism(Protocol):
    @property
    def name(self) -> str: ...

    def first(self) -> bytes: ...

    def respond(self, message: bytes) -> bytes | None:
        """The next message; None: the server has shown what it has to. AuthenticationError."""


class PlainServer:
    """One message holds it all in plain text: for listeners with TLS, or wires one trusts."""

    name: Final = PLAIN

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.username = ""
        self.is_complete = False

    def respond(self, message: bytes) -> bytes:
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError:
            raise _invalid("the message is no text") from None
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise _invalid("the message is not an authorization id, a name and a password")
        authorization, self.username, password = parts
        if authorization and authorization != self.username:
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different"
                " from username"
            )
        expected = self._passwords.get(self.username)
        # An unknown user costs as much as a wrong password: digests are of one length.
        is_right = hmac.compare_digest(_digest(password), _digest(expected or "\0"))
        if expected is None or not is_right:
            raise _invalid("no such user" if expected is None else "the password is wrong")
        self.is_complete = True
        return b""


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()


def _invalid(reason: str) -> AuthenticationError:
    return AuthenticationError("Authentication failed: Invalid username or password", reason)


class ScramServerMechanism:
    def __init__(
        self,
        mechanism: ScramMechanism,
        credential_of: Callable[[str], ScramCredential | ScramChallenge | None],
        random: Random,
        decoy_key: bytes,
    ) -> None:
        self.name = mechanism.sasl_name
        self._server = ScramServer(mechanism, credential_of, _nonce(random), decoy_key)
        self._has_begun = False
        self.is_complete = False

    @property
    def username(self) -> str:
        return self._server.username

    def respond(self, message: bytes) -> bytes:
        try:
            if not self._has_begun:
                self._has_begun = True
                return self._server.first(message)
            answer = self._server.final(message)
        except ScramError as error:
            raise AuthenticationError(
                "Authentication failed during authentication due to invalid credentials with SASL"
                f" mechanism {self.name}",
                str(error),
            ) from None
        self.is_complete = True
        return answer


class PlainClient:
    name: Final = PLAIN

    def __init__(self, username: str, password: str) -> None:
        self._message = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._message

    def respond(self, message: bytes) -> bytes | None:
        return None


class ScramClientMechanism:
    def __init__(
        self, mechanism: ScramMechanism, username: str, password: str, random: Random
    ) -> None:
        self.name = mechanism.sasl_name
        self._client = ScramClient(mechanism, username, password, _nonce(random))
        self._has_answered = False

    def first(self) -> bytes:
        return self._client.first()

    def respond(self, message: bytes) -> bytes | None:
        try:
            if not self._has_answered:
                self._has_answered = True
                return self._client.final(message)
            self._client.finish(message)
        except ScramError as error:
            raise AuthenticationError(f"{self.name}: {error}") from None
        return None


def client_mechanism(name: str, username: str, password: str, random: Random) -> ClientMechanism:
    """`random` must be one that nobody can foretell. ValueError for an unknown mechanism."""
    if name == PLAIN:
        return PlainClient(username, password)
    if name not in BY_SASL_NAME:
        raise ValueError(f"{name} is no SASL mechanism of ours: there are {', '.join(MECHANISMS)}")
    return ScramClientMechanism(BY_SASL_NAME[name], username, password, random)


def _nonce(random: Random) -> str:
    return f"{random.getrandbits(NONCE_BITS):048x}"


def jaas_options(text: str) -> dict[str, str]:
    """The options of a login module as Kafka's configs have it: `Module required a="b" c="d";`.

    ValueError says what is wrong, and holds none of it.
    """
    if not _JAAS_END.search(text):
        raise ValueError("must end with a semicolon")
    try:
        words = shlex.split(_JAAS_END.sub("", text))
    except ValueError:
        raise ValueError("has an open quotation mark") from None
    if len(words) < 2 or "=" in words[0] or "=" in words[1]:
        raise ValueError("must begin with a login module and its flag (required)")
    options: dict[str, str] = {}
    for word in words[2:]:
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError("must consist of NAME=VALUE after the module and its flag")
        options[name] = value
    return options


def plain_users(options: Mapping[str, str]) -> dict[str, str]:
    """Passwords by user: what is called `user_NAME` there."""
    return {
        name.removeprefix(_USER_PREFIX): value
        for name, value in options.items()
        if name.startswith(_USER_PREFIX)
    }
