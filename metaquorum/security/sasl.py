"""SASL mechanisms PLAIN (RFC 4616) and SCRAM, server side and client side, without I/O.

A server mechanism answers messages of the client until it `is_complete`; a client mechanism creates
them. Errors never contain a secret.
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
    """Raised if authentication fails.

    The message may be sent to the peer and logged; `reason` has details for the local log only.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class ServerMechanism(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def username(self) -> str:
        """User name that the client claims; authenticated once `is_complete`."""

    @property
    def is_complete(self) -> bool: ...

    def respond(self, message: bytes) -> bytes:
        """Return the answer to a message. Raises AuthenticationError if authentication fails."""


class ClientMechanism(Protocol):
    @property
    def name(self) -> str: ...

    def first(self) -> bytes: ...

    def respond(self, message: bytes) -> bytes | None:
        """Return the next message, or None if the exchange is complete.

        Raises AuthenticationError if the server fails to authenticate itself.
        """


class PlainServer:
    """Server side of PLAIN.

    The message contains the password in plain text: use it with TLS or on a trusted network.
    """

    name: Final = PLAIN

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.username = ""
        self.is_complete = False

    def respond(self, message: bytes) -> bytes:
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError:
            raise _invalid("the message is not valid UTF-8") from None
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise _invalid("the message is not an authorization id, a name and a password")
        authorization, self.username, password = parts
        if authorization and authorization != self.username:
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different"
                " from username"
            )
        expected = self._passwords.get(self.username)
        # An unknown user takes as long as a wrong password: all digests have the same length.
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
    """Return the client side of the mechanism `name`.

    `random` must be cryptographically secure. Raises ValueError if the mechanism is unknown.
    """
    if name == PLAIN:
        return PlainClient(username, password)
    if name not in BY_SASL_NAME:
        raise ValueError(f"{name} is not a supported SASL mechanism: {', '.join(MECHANISMS)}")
    return ScramClientMechanism(BY_SASL_NAME[name], username, password, random)


def _nonce(random: Random) -> str:
    return f"{random.getrandbits(NONCE_BITS):048x}"


def jaas_options(text: str) -> dict[str, str]:
    """Return the options of a login module in the form of Kafka: `Module required a="b" c="d";`.

    Raises ValueError, whose message contains no part of `text`, if the form is wrong.
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
    """Return passwords by user name, from the options named `user_NAME`."""
    return {
        name.removeprefix(_USER_PREFIX): value
        for name, value in options.items()
        if name.startswith(_USER_PREFIX)
    }
