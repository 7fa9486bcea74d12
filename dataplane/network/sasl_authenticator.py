"""SASL on a listener: a client has to authenticate before its other requests are handled.

    start ---- ApiVersions: answered -----------------------------------------> start
      |------- SaslHandshake for a mechanism that is not enabled: answered ---> closed
      '------- SaslHandshake -> exchange
    exchange - a message of the mechanism, not the last: answered ------------> exchange
      |------- the last message -> open: requests are handled as on any listener
      '------- an invalid message: answered after a delay (KIP-306) ----------> closed
    open ----- SaslHandshake: re-authentication (KIP-368) --------------------> exchange
      '------- any other request after the session has expired ---------------> closed

After SaslHandshake v0 the mechanism's messages are whole frames; after v1 they are sent in
SaslAuthenticate requests. `ClientConnection` limits the frame size and the time of a client that is
not `open`. Source: KIP-43, KIP-152, KIP-255, KIP-306, KIP-368.
"""

import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from functools import partial
from math import inf
from random import Random
from typing import Final

from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.login_counts import LoginCounts
from metaquorum.dataplane.network.replies import (
    CloseAfterResponseError,
    CloseConnectionError,
    DelayedReply,
    Handle,
    PendingReply,
    Reply,
)
from metaquorum.dataplane.network.sasl_session import SaslSession
from metaquorum.metadata.image import MetadataImage
from metaquorum.quorum.rpc.methods import ANONYMOUS
from metaquorum.runtime import Runtime, sleep
from metaquorum.security.sasl import (
    PLAIN,
    AuthenticationError,
    PlainServer,
    ScramServerMechanism,
    ServerMechanism,
)
from metaquorum.security.scram import BY_SASL_NAME, ScramChallenge, ScramCredential, ScramMechanism
from metaquorum.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from metaquorum.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.protocol import request_form
from metaquorum.wire.protocol.apis import APIS, Api, ApiKey
from metaquorum.wire.protocol.headers import encode_response
from metaquorum.wire.schema.codec import decoder
from metaquorum.wire.schema.message import Message

MAX_SHOWN_CHARS: Final = 100  # characters of a claimed user name or mechanism in a log line
# Requests that an unauthenticated client may send; no regular client needs more than five.
MAX_REQUESTS: Final = 16
_HANDSHAKE_KEY: Final = struct.pack(">h", ApiKey.SASL_HANDSHAKE)
_RAW_VERSION: Final = 0
_size = struct.Struct(">i")


@frozen
class SaslSettings:
    """SASL settings of one listener, from its configs."""

    mechanisms: tuple[str, ...]
    passwords: Mapping[str, str] = field(repr=False)  # for PLAIN
    session_ms: int  # connections.max.reauth.ms; 0: sessions do not expire
    failure_delay_ms: int
    max_message_bytes: int


class SaslAuthenticator:
    """Authenticator of a listener's clients, called before their requests reach the handlers."""

    def __init__(
        self,
        runtime: Runtime,
        settings: SaslSettings,
        image: Callable[[], MetadataImage],
        handle: Handle,
        decoy_key: bytes,
        logins: LoginCounts,
    ) -> None:
        """Create the authenticator of one listener.

        `image` returns the current metadata image; `handle` handles the requests of authenticated
        clients. `decoy_key` is the secret from which SCRAM challenges for unknown users are
        derived, so that a client cannot distinguish them from existing users; it is the same on all
        workers and does not change on restart.
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
                        f"the session of {client.principal} expired and the client did not"
                        " re-authenticate"
                    )
                return self._handle(frame, client)
            session.is_open = False
            session.exchange = None
            session.request_count = 0
        session.request_count += 1
        try:
            if session.request_count > MAX_REQUESTS:
                raise CloseConnectionError(
                    f"the client did not authenticate within {MAX_REQUESTS} requests"
                )
            if session.exchange is not None and session.is_raw:
                return self._take_raw(frame, client, session)
            return self._take(frame, client, session)
        except CloseConnectionError:
            # Every such error ends an authentication that has not succeeded.
            self._logins.failed(again=bool(session.was_opened_by))
            raise

    def _take(
        self, frame: memoryview, client: Client, session: SaslSession
    ) -> Reply | PendingReply | DelayedReply:
        header, body = request_form.decode_request_header(frame)
        api = APIS.get(header.api_key)
        if api is None or not api.serves(header.api_version):
            if header.api_key == ApiKey.API_VERSIONS:
                return self._handle(frame, client)
            raise CloseConnectionError(
                "unsupported API or version in a request before authentication"
            )
        exchange, version = session.exchange, header.api_version
        answer = partial(encode_response, api, version, header.correlation_id)
        if api.key == ApiKey.API_VERSIONS and exchange is None:
            return self._handle(frame, client)
        if api.key == ApiKey.SASL_HANDSHAKE and exchange is None:
            return self._begin(_decoded(api, version, frame, body), version, answer, session)
        if api.key == ApiKey.SASL_AUTHENTICATE:
            return self._authenticate(_decoded(api, version, frame, body), answer, client, session)
        raise CloseConnectionError(f"{api.name} request before authentication")

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
            why = f"SASL mechanism {_shown(name)} is not enabled; enabled: {', '.join(enabled)}"
            raise CloseAfterResponseError(why, self._failed(answer(response)))
        if session.was_opened_by not in ("", name):
            response.error_code = ErrorCode.ILLEGAL_SASL_STATE
            why = f"re-authentication by {name} of a session opened by {session.was_opened_by}"
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
                "SaslAuthenticate request without a SaslHandshake", self._failed(answer(refusal))
            )
        try:
            token = self._respond(bytes(message.auth_bytes), client, session)
        except AuthenticationError as error:
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
        except AuthenticationError as error:  # raw frames cannot carry an error code
            why = _failure(session.exchange, error)
            raise CloseAfterResponseError(why, self._failed(b"")) from None
        return _size.pack(len(token)) + token

    def _respond(self, token: bytes, client: Client, session: SaslSession) -> bytes:
        """Return the mechanism's response to `token`; the last one authenticates the client.

        Raises AuthenticationError if the token is invalid, or if re-authentication would change
        the principal.
        """
        exchange = session.exchange
        assert exchange is not None
        answer = exchange.respond(token)
        if not exchange.is_complete:
            return answer
        principal = f"User:{exchange.username}"
        if client.principal not in (ANONYMOUS, principal) and session.was_opened_by:
            raise AuthenticationError(
                "Cannot change principals during re-authentication",
                f"the principal was {client.principal} before",
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
        """Return a function that waits connection.failed.authentication.delay.ms for `answer`.

        The delay slows down guessing of passwords (KIP-306).
        """

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
