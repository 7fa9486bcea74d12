"""SASL on a listener: who a client is has been shown before any request of it is looked at.

    start ---- ApiVersions: answered -----------------------------------------> start
      |------- SaslHandshake: a mechanism that is not enabled: answered ------> closed
      '------- SaslHandshake -> exchange
    exchange - a message of the mechanism, more are due: answered ------------> exchange
      |------- the last one -> open: requests are handled as on any listener
      '------- a wrong one: answered, after a short while --------------------> closed
    open ----- SaslHandshake: who it is is shown anew (KIP-368), on the way to exchange
      '------- any other request, after the session's end --------------------> closed

After SaslHandshake v0 the mechanism's messages are whole frames, after v1 they are in
SaslAuthenticate. Whoever is not `open` may send only small frames, and has little time
(`ClientConnection`). Source: KIP-43, KIP-152, KIP-255, KIP-368.
"""

import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from functools import partial
from math import inf
from random import Random
from typing import Final

from dataplane.network.client import Client
from dataplane.network.login_counts import LoginCounts
from dataplane.network.replies import (
    CloseAfterResponseError,
    CloseConnectionError,
    DelayedReply,
    Handle,
    PendingReply,
    Reply,
)
from dataplane.network.sasl_session import SaslSession
from metaquorum.metadata.image import MetadataImage
from metaquorum.rpc.methods import ANONYMOUS
from metaquorum.runtime import Runtime, sleep
from metaquorum.security.sasl import (
    PLAIN,
    AuthenticationError,
    PlainServer,
    ScramServerMechanism,
    ServerMechanism,
)
from metaquorum.security.scram import BY_SASL_NAME, ScramChallenge, ScramCredential, ScramMechanism
from wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from wire.primitives.errors import ErrorCode
from wire.primitives.frozen import frozen
from wire.protocol.apis import APIS, Api, ApiKey
from wire.protocol.headers import decode_request_header, encode_response
from wire.schema.codec import decoder
from wire.schema.message import Message

MAX_SHOWN_CHARS: Final = 100  # of a name that somebody claims to have, in the log
# A stranger has this many requests to say who it is; the longest honest way takes five.
MAX_REQUESTS: Final = 16
_HANDSHAKE_KEY: Final = struct.pack(">h", ApiKey.SASL_HANDSHAKE)
_RAW_VERSION: Final = 0
_size = struct.Struct(">i")


@frozen
class SaslSettings:
    """What a listener's configs say."""

    mechanisms: tuple[str, ...]
    passwords: Mapping[str, str] = field(repr=False)  # for PLAIN
    session_ms: int  # 0: sessions do not end
    failure_delay_ms: int
    max_message_bytes: int


class SaslAuthenticator:
    """Stands before the handlers of a listener's requests."""

    def __init__(
        self,
        runtime: Runtime,
        settings: SaslSettings,
        image: Callable[[], MetadataImage],
        handle: Handle,
        decoy_key: bytes,
        logins: LoginCounts,
    ) -> None:
        """`image` is that of now; `handle` is for requests of those who are known.

        `decoy_key`: a secret by which unknown users look like known ones; the same on all workers,
        whenever they are started.
        """
        self.settings = settings
        self._clock = runtime.clock
        self._random: Random = runtime.random
        self._image = image
        self._handle = handle
        self._decoy_key = decoy_key
        self._logins = logins

    def handle(self, frame: memoryview, client: Client) -> Reply | PendingReply | DelayedReply:
        session = client.sasl
        assert session is not None
        if session.is_open:
            if frame[:2] != _HANDSHAKE_KEY:
                if session.expires_at != inf and self._clock.monotonic() >= session.expires_at:
                    self._logins.expired_connections_killed_count += 1
                    raise CloseConnectionError(
                        f"the session of {client.principal} is over, and it did not show again who"
                        " it is"
                    )
                return self._handle(frame, client)
            session.is_open = False
            session.exchange = None
            session.request_count = 0
        session.request_count += 1
        if session.request_count > MAX_REQUESTS:
            raise CloseConnectionError(f"it has not shown who it is within {MAX_REQUESTS} requests")
        if session.exchange is not None and session.is_raw:
            return self._take_raw(frame, client, session)
        return self._take(frame, client, session)

    def _take(
        self, frame: memoryview, client: Client, session: SaslSession
    ) -> Reply | PendingReply | DelayedReply:
        header, body = decode_request_header(frame)
        api = APIS.get(header.api_key)
        if api is None or not api.serves(header.api_version):
            if header.api_key == ApiKey.API_VERSIONS:
                return self._handle(frame, client)
            raise CloseConnectionError("what it sends before it has shown who it is, is not served")
        exchange, version = session.exchange, header.api_version
        answer = partial(encode_response, api, version, header.correlation_id)
        if api.key == ApiKey.API_VERSIONS and exchange is None:
            return self._handle(frame, client)
        if api.key == ApiKey.SASL_HANDSHAKE and exchange is None:
            return self._begin(_decoded(api, version, frame, body), version, answer, session)
        if api.key == ApiKey.SASL_AUTHENTICATE:
            return self._authenticate(_decoded(api, version, frame, body), answer, client, session)
        raise CloseConnectionError(f"it asks for {api.name} before it has shown who it is")

    def _begin(
        self,
        message: Message,
        version: int,
        answer: Callable[[Message], bytes],
        session: SaslSession,
    ) -> bytes:
        assert isinstance(message, SaslHandshakeRequest)
        name, enabled = message.mechanism, self.settings.mechanisms
        response = SaslHandshakeResponse(mechanisms=list(enabled))
        if name not in enabled:
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            why = f"it wants the SASL mechanism {_shown(name)}; enabled are {', '.join(enabled)}"
            raise CloseAfterResponseError(why, self._failed(answer(response)))
        if session.was_opened_by not in ("", name):
            response.error_code = ErrorCode.ILLEGAL_SASL_STATE
            why = f"it wants to go on by {name}, having begun by {session.was_opened_by}"
            raise CloseAfterResponseError(why, self._failed(answer(response)))
        session.exchange = self._mechanism(name)
        session.is_raw = version == _RAW_VERSION
        return answer(response)

    def _mechanism(self, name: str) -> ServerMechanism:
        if name == PLAIN:
            return PlainServer(self.settings.passwords)
        mechanism = BY_SASL_NAME[name]
        return ScramServerMechanism(
            mechanism,
            lambda username: self._credential(username, mechanism),
            self._random,
            self._decoy_key,
        )

    def _credential(
        self, username: str, mechanism: ScramMechanism
    ) -> ScramCredential | ScramChallenge | None:
        image, user = self._image(), (username, int(mechanism))
        record, deleted = image.scram.get(user), image.deleted_scram.get(user)
        if record is not None:
            return ScramCredential(
                record.salt, record.iterations, record.stored_key, record.server_key
            )
        return None if deleted is None else ScramChallenge(deleted.salt, deleted.iterations)

    def _authenticate(
        self,
        message: Message,
        answer: Callable[[Message], bytes],
        client: Client,
        session: SaslSession,
    ) -> bytes:
        assert isinstance(message, SaslAuthenticateRequest)
        if session.exchange is None:
            refusal = SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received without a SaslHandshake",
            )
            raise CloseAfterResponseError(
                "it authenticates without a SaslHandshake", self._failed(answer(refusal))
            )
        try:
            token = self._respond(bytes(message.auth_bytes), client, session)
        except AuthenticationError as error:
            self._logins.failed(again=bool(session.was_opened_by))
            refusal = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(error)
            )
            why = _failure(session.exchange, error)
            raise CloseAfterResponseError(why, self._failed(answer(refusal))) from None
        response = SaslAuthenticateResponse(auth_bytes=token)
        if session.is_open:
            response.session_lifetime_ms = self.settings.session_ms
        return answer(response)

    def _take_raw(self, frame: memoryview, client: Client, session: SaslSession) -> bytes:
        assert session.exchange is not None
        try:
            token = self._respond(bytes(frame), client, session)
        except AuthenticationError as error:  # there is no way to say so
            self._logins.failed(again=bool(session.was_opened_by))
            why = _failure(session.exchange, error)
            raise CloseAfterResponseError(why, self._failed(b"")) from None
        return _size.pack(len(token)) + token

    def _respond(self, token: bytes, client: Client, session: SaslSession) -> bytes:
        """The mechanism's answer; if it is the last one, the client is let in."""
        exchange = session.exchange
        assert exchange is not None
        answer = exchange.respond(token)
        if not exchange.is_complete:
            return answer
        principal = f"User:{exchange.username}"
        if client.principal not in (ANONYMOUS, principal) and session.was_opened_by:
            raise AuthenticationError(
                "Cannot change principals during re-authentication",
                f"it was {client.principal} before",
            )
        client.principal = principal
        self._logins.succeeded(again=bool(session.was_opened_by))
        session.exchange, session.is_open = None, True
        session.was_opened_by = exchange.name
        if self.settings.session_ms > 0:
            session.expires_at = self._clock.monotonic() + self.settings.session_ms / 1000
        session.opened()
        return answer

    def _failed(self, answer: bytes) -> Callable[[], Awaitable[bytes]]:
        """What cannot be guessed fast is guessed seldom (KIP-306)."""

        async def wait() -> bytes:
            await sleep(self._clock, self.settings.failure_delay_ms / 1000)
            return answer

        return wait


def _decoded(api: Api, version: int, frame: memoryview, body: int) -> Message:
    message: Message
    message, _ = decoder(api.request, version)(frame, body)
    return message


def _failure(exchange: ServerMechanism, error: AuthenticationError) -> str:
    return (
        f"authentication as {_shown(exchange.username)} by {exchange.name} failed: {error.reason}"
    )


def _shown(text: str) -> str:
    return ascii(text[:MAX_SHOWN_CHARS])
