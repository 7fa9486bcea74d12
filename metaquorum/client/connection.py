"""One connection to one broker: version negotiation, SASL login, pipelined requests."""

import importlib
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from math import inf
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from metaquorum.client.errors import (
    BrokerError,
    LoginExpectedError,
    NotServedError,
    TlsExpectedError,
    UnsendableError,
    broker_error,
)
from metaquorum.client.security import Login
from metaquorum.client.throttling import ThrottleTimes, ThrottleWaits
from metaquorum.client.transport import Stream
from metaquorum.security.sasl import AuthenticationError
from metaquorum.wire.messages.api_versions import ApiVersionsRequest
from metaquorum.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from metaquorum.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from metaquorum.wire.primitives.errors import ErrorCode, WireError
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.protocol.frames import FrameBuffer
from metaquorum.wire.protocol.headers import decode_response_as, encode_request
from metaquorum.wire.schema.message import Message

M = TypeVar("M", bound=Message)

# A fetch response may exceed its limits if one batch is larger, but never this size.
MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
MAX_IN_FLIGHT: Final = 16
MAX_LOGIN_STEPS: Final = 4
MAX_MUTE_S: Final = 86_400.0  # throttle time that is waited out: a day
# Share of the session lifetime after which the client authenticates again (KIP-368).
SESSION_SHARE: Final = 0.85
_SASL_AUTHENTICATE_SINCE: Final = 1
SOFTWARE_NAME: Final = "mq-admin"
SOFTWARE_VERSION: Final = "0.1.0"


class VersionRange(NamedTuple):
    """Range of API versions, including both ends."""

    first: int
    last: int


class Pending(NamedTuple):
    """A request without a response yet."""

    correlation_id: int
    request: type[Message]
    version: int


class BrokerConnection:
    """Connection to one broker. Requests may be pipelined; responses arrive in their order.

    Close the connection after any OSError, EOFError or WireError, except a TimeoutError of
    `receive`.
    """

    def __init__(
        self,
        stream: Stream,
        address: tuple[str, int],
        client_id: str,
        login: Login | None = None,
        now: Callable[[], float] = time.monotonic,
        random: Random | None = None,
    ) -> None:
        """Create a connection over `stream`. `now` is the clock of deadlines and SASL sessions."""
        self._login = login
        self._now = now
        self._random = random
        self._log_in_again_at = inf
        self.address = address
        self.versions: dict[int, VersionRange] = {}
        self.features: dict[str, int] = {}  # finalized features and their levels
        self._stream = stream
        self._client_id = client_id
        self._received = FrameBuffer(MAX_RESPONSE_BYTES)
        self._waiting: deque[Pending] = deque()
        self.throttle_times: dict[str, ThrottleTimes] = {}  # by API
        self.throttle_waits = ThrottleWaits()
        self._muted_until = -inf  # the broker reads nothing before this time
        self._waits_since: float | None = None  # since when a request waits for that time
        self._last_id = 0
        self._is_served = False  # whether a request other than ApiVersions was answered

    async def negotiate(self, deadline: float) -> None:
        """Set `versions` and `features` from the broker (KIP-35, KIP-511), and log in.

        Raises BrokerError if the broker refuses the login.
        """
        await self._send(_versions_request(), ApiVersionsRequest.VERSIONS.last, deadline)
        await self._take_versions(deadline)
        if self._login is not None:
            await self._log_in(self._login, deadline)

    async def negotiate_and_ask(self, request: Message, deadline: float) -> Any:
        """Negotiate, and return the response to `request`, without an additional round trip.

        The client sends `request` in its oldest version before it knows the versions of the
        broker. If the client logs in, it sends `request` after the login instead.
        """
        if self._login is not None:
            await self.negotiate(deadline)
            await self.send(request, deadline)
            return await self.receive(deadline)
        await self._send(_versions_request(), ApiVersionsRequest.VERSIONS.last, deadline)
        await self._send(request, request.VERSIONS.first, deadline)
        await self._take_versions(deadline)
        return await self.receive(deadline)

    async def _take_versions(self, deadline: float) -> None:
        version = ApiVersionsRequest.VERSIONS.last
        response = await self.receive(deadline)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = [a.max_version for a in response.api_keys if a.api_key == ApiKey.API_VERSIONS]
            version = min(version - 1, max(offered, default=0))
            if self._waiting:
                raise WireError("the broker is too old for a request before version negotiation")
            response = await self._ask(_versions_request(), version, deadline)
        if response.error_code:
            raise WireError(
                f"the broker answered ApiVersions v{version} with error {response.error_code}"
            )
        self.versions = {
            api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys
        }
        self.features = {
            feature.name: feature.max_version_level for feature in response.finalized_features
        }

    async def _log_in(self, login: Login, deadline: float) -> None:
        """Authenticate by SASL. Raises BrokerError if the broker refuses or cannot be trusted."""
        began = self._now()
        mechanism = login.begin(self._random)
        handshake = SaslHandshakeRequest(mechanism=login.mechanism)
        version = self.version_of(SaslHandshakeRequest)
        if version < _SASL_AUTHENTICATE_SINCE:
            raise NotServedError("SaslAuthenticate", "this cluster is too old to log in to")
        offered: SaslHandshakeResponse = await self._ask(handshake, version, deadline)
        if offered.error_code:
            there = ", ".join(offered.mechanisms) or "none"
            text = f"the broker does not enable the mechanism {login.mechanism}, only: {there}"
            raise broker_error(offered.error_code, text, "log in")
        version = self.version_of(SaslAuthenticateRequest)
        token: bytes | None = mechanism.first()
        for _ in range(MAX_LOGIN_STEPS):
            if token is None:
                break
            step = SaslAuthenticateRequest(auth_bytes=token)
            answer: SaslAuthenticateResponse = await self._ask(step, version, deadline)
            if answer.error_code:
                raise broker_error(answer.error_code, answer.error_message, "log in")
            try:
                token = mechanism.respond(bytes(answer.auth_bytes))
            except AuthenticationError as error:
                code = ErrorCode.SASL_AUTHENTICATION_FAILED
                raise BrokerError(
                    code, f"the broker failed to authenticate itself: {error}"
                ) from None
            self._log_in_again_at = inf
            if answer.session_lifetime_ms > 0:
                lifetime_s = answer.session_lifetime_ms / 1000 * SESSION_SHARE
                self._log_in_again_at = began + lifetime_s

    async def _ask(self, request: Message, version: int, deadline: float) -> Any:
        await self._send(request, version, deadline)
        return await self.receive(deadline)

    def version_of(self, request: type[Message], *, max_version: int | None = None) -> int:
        """Return the newest version that both sides support, at most `max_version`.

        Raises NotServedError if there is none.
        """
        ours, theirs = request.VERSIONS, self.versions.get(request.API)
        name = request.__name__.removesuffix("Request")
        if theirs is None:
            text = f"this cluster does not serve {name} (API {request.API})"
            raise NotServedError(name, text)
        newest = min(ours.last, theirs.last)
        if newest < max(ours.first, theirs.first):
            raise NotServedError(
                name,
                f"this cluster serves {name} in versions {theirs.first} to {theirs.last}, "
                f"this client supports {ours.first} to {ours.last}",
            )
        if max_version is not None and max_version >= max(ours.first, theirs.first):
            newest = min(newest, max_version)
        return newest

    async def send(
        self, request: Message, deadline: float, *, max_version: int | None = None
    ) -> None:
        """Send `request`; `receive` returns its response.

        Logs in again before it if the SASL session is about to expire.
        """
        version = self.version_of(type(request), max_version=max_version)
        if self._now() >= self._log_in_again_at and not self._waiting and self._login is not None:
            await self._log_in(self._login, deadline)
        await self._send(request, version, deadline)

    async def send_unanswered(
        self, request: Message, deadline: float, *, max_version: int | None = None
    ) -> None:
        """Send a produce request with acks=0, which has no response."""
        await self.send(request, deadline, max_version=max_version)
        self._waiting.pop()

    async def _send(self, request: Message, version: int, deadline: float) -> None:
        assert len(self._waiting) < MAX_IN_FLIGHT
        self._last_id += 1
        try:
            data = encode_request(request.API, version, self._last_id, self._client_id, request)
        except (WireError, ValueError) as error:
            name = type(request).__name__.removesuffix("Request")
            raise UnsendableError(
                f"nothing was sent: {name} cannot encode this request: {error}"
            ) from None
        self._waiting.append(Pending(self._last_id, type(request), version))
        now = self._now()
        if now < self._muted_until and self._waits_since is None:
            self._waits_since = now
            name = type(request).__name__.removesuffix("Request")
            self.throttle_waits.begins(name, self._muted_until - now)
        await self._stream.send(data, self._unthrottled(deadline))

    def _unthrottled(self, deadline: float) -> float:
        """Return the deadline, later by the time that requests wait as the broker reads nothing."""
        since = self._waits_since
        return deadline if since is None else deadline + (self._muted_until - since)

    async def receive(self, deadline: float) -> Any:
        """Return the response to the oldest request without one.

        Its records are views of a buffer that the next `receive` overwrites. After a TimeoutError
        `receive` may be called again for the same response.
        """
        pending = self._waiting[0]
        frame = await self._frame(self._unthrottled(deadline))
        if self._waits_since is not None:
            self.throttle_waits.waited_s += min(self._now(), self._muted_until) - self._waits_since
            self._waits_since = None
        self._waiting.popleft()
        response = response_class(pending.request)
        correlation_id, message = decode_response_as(response, pending.version, frame)
        if correlation_id != pending.correlation_id:
            raise WireError(
                f"received correlation id {correlation_id}, expected {pending.correlation_id}:"
                " not a Kafka broker?"
            )
        if (throttle_time_ms := getattr(message, "throttle_time_ms", None)) is not None:
            name = pending.request.__name__.removesuffix("Request")
            self.throttle_times.setdefault(name, ThrottleTimes()).add(throttle_time_ms)
            if throttle_time_ms > 0:
                mute_s = min(throttle_time_ms / 1000, MAX_MUTE_S)
                self._muted_until = max(self._muted_until, self._now() + mute_s)
        self._is_served = self._is_served or pending.request is not ApiVersionsRequest
        return message

    async def _frame(self, deadline: float) -> memoryview:
        received = self._received
        while (frame := received.next_frame()) is None:
            count = await self._stream.receive_into(received.writable(), deadline)
            if not count:
                raise self._closed()
            received.received(count)
        return frame

    def _closed(self) -> EOFError:
        """Return an error with the likely reason: brokers close connections without giving one."""
        text = "the broker closed the connection"
        if not self.versions:
            return TlsExpectedError(
                f"{text} at the first request; it may expect TLS, or a limit of connections refused"
                " this one (max.connections..., the quota connection_creation_rate)"
            )
        if self._login is None and not self._is_served:
            return LoginExpectedError(f"{text} after the version negotiation; it may require SASL")
        return EOFError(text)

    def close(self) -> None:
        self._stream.close()


def _versions_request() -> ApiVersionsRequest:
    return ApiVersionsRequest(
        client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
    )


@lru_cache(maxsize=128)
def response_class(request: type[Message]) -> type[Message]:
    """Return the response class, which is in the module of its request class."""
    module = importlib.import_module(request.__module__)
    name = request.__name__.removesuffix("Request") + "Response"
    found: type[Message] = getattr(module, name)
    return found
