"""Attacks on a node that requires authentication: on TLS and SASL, before and after the login.

Alice is the only user; all other attackers guess.
"""

import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final

import trio

from metaquorum.security.sasl import AuthenticationError, client_mechanism
from metaquorum.wire.messages.api_versions import ApiVersionsRequest
from metaquorum.wire.messages.metadata import MetadataRequest
from metaquorum.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from metaquorum.wire.messages.sasl_handshake import SaslHandshakeRequest
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.protocol.headers import decode_response, encode_request
from metaquorum.wire.schema.message import Message
from tests.hostile import frames
from tests.hostile.attacks import BROKEN, Attack, Enemy, drain

USER: Final = "alice"
PASSWORD: Final = "the password of alice"
GUESSED: Final = "a hostile guess"  # a password, which must not appear in any log or file
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SESSION_MS: Final = 400
HALF_OPEN: Final = 300
HELLO_BYTES: Final = 100_000  # sent by a half-open handshake at most
PLAIN_LISTENERS: Final = ("SASL_PLAINTEXT",)
TLS_LISTENERS: Final = ("SSL", "SASL_SSL")


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Tls:
    """Client side of TLS whose bytes are sent by the caller, unchanged or damaged."""

    def __init__(self, random: Random) -> None:
        context = _context()
        if random.random() < 0.3:
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname="node")
        self.is_complete = False

    def flight(self, came: bytes = b"") -> bytes:
        """Return the next bytes to send. Raises ssl.SSLError if the peer's bytes are invalid."""
        self._incoming.write(came)
        with suppress(ssl.SSLWantReadError):
            self.ssl.do_handshake()
            self.is_complete = True
        return self._outgoing.read()

    def sealed(self, data: bytes) -> bytes:
        self.ssl.write(data)
        return self._outgoing.read()


async def _shake(stream: trio.SocketStream, tls: Tls) -> bool:
    data = tls.flight()
    while True:
        await stream.send_all(data)
        if tls.is_complete:
            return True
        with trio.move_on_after(5):
            came = await stream.receive_some(1 << 16)
            if came:
                data = tls.flight(came)
                continue
        return False


async def _many(one: Callable[[], Awaitable[None]], count: int) -> None:
    async def for_ever() -> None:
        while True:
            with suppress(ssl.SSLError):
                await one()
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(for_ever)


# TLS


async def half_handshakes(enemy: Enemy) -> None:
    """Start hundreds of handshakes, byte by byte or with much data at once, and never finish."""
    random = enemy.random

    async def one() -> None:
        async with enemy.connected(random.choice(TLS_LISTENERS)) as stream:
            hello = Tls(random).flight()
            if random.random() < 0.5:
                for byte in hello[: random.randrange(len(hello))]:
                    await stream.send_all(bytes([byte]))
                    await trio.sleep(0.02 * random.random())
            else:  # most of a message that claims the maximum size
                head = b"\x01" + (2 * HELLO_BYTES // 3).to_bytes(3, "big")
                message = head + hello[9:] + bytes(random.randrange(HELLO_BYTES // 2))
                for at in range(0, len(message), 16_000):
                    piece = message[at : at + 16_000]
                    await stream.send_all(b"\x16\x03\x01" + struct.pack(">H", len(piece)) + piece)
            await drain(stream, 30)

    await _many(one, HALF_OPEN)


async def mutated_handshakes(enemy: Enemy) -> None:
    random = enemy.random

    def damaged(data: bytes) -> bytes:
        if random.random() < 0.6 or not data:
            return data
        return bytes(frames.damaged(random, bytearray(data)))

    async def one() -> None:
        async with enemy.connected(random.choice(TLS_LISTENERS)) as stream:
            tls, came = Tls(random), b""
            while not tls.is_complete:
                await enemy.send(stream, damaged(tls.flight(came)))
                came = b""
                with trio.move_on_after(0.2):
                    came = await stream.receive_some(1 << 16)
                if not came:
                    return
            for _ in range(5):
                await enemy.send(stream, damaged(tls.sealed(frames.mutated(random))))
                await drain(stream, 0.02)

    await _many(one, 10)


async def other_protocols(enemy: Enemy) -> None:
    """Send TLS to plaintext listeners, plaintext to TLS listeners, and other protocols."""
    random = enemy.random

    def greeting() -> bytes:
        return random.choice(
            (
                Tls(random).flight(),
                frames.mutated(random),
                b"GET / HTTP/1.1\r\nHost: node\r\n\r\n",
                b"\x80\x2e\x01\x00\x02" + random.randbytes(41),  # SSL 2
                b"\x16\x03\x01\x00\x00" * 2000,  # empty TLS records
                b"\x14\x03\x03\x00\x01\x01" * 2000,
                b"\x15\x03\x03\x00\x02\x01\x00" * 2000,
                random.randbytes(3000),
            )
        )

    async def one() -> None:
        async with enemy.connected(random.choice(PLAIN_LISTENERS + TLS_LISTENERS)) as stream:
            await enemy.send(stream, greeting())
            await drain(stream)

    await _many(one, 10)


async def handshake_storm(enemy: Enemy) -> None:
    """Make handshakes at the maximum rate, and end some by a reset."""
    random = enemy.random

    async def one() -> None:
        async with enemy.connected(random.choice(TLS_LISTENERS)) as stream:
            tls = Tls(random)
            if await _shake(stream, tls) and random.random() < 0.5:
                await stream.send_all(tls.sealed(frames.fetch(random)))
            if random.random() < 0.3:
                linger = struct.pack("ii", 1, 0)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    await _many(one, 10)


# SASL


def _request(random: Random, api: ApiKey, version: int, message: Message) -> bytes:
    return encode_request(api, version, random.randrange(2**31), "stranger", message)


def _handshake(random: Random, mechanism: str, version: int) -> bytes:
    asked = SaslHandshakeRequest(mechanism=mechanism)
    return _request(random, ApiKey.SASL_HANDSHAKE, version, asked)


def _authenticate(random: Random, token: bytes) -> bytes:
    asked = SaslAuthenticateRequest(auth_bytes=token)
    return _request(random, ApiKey.SASL_AUTHENTICATE, 2, asked)


def _token(random: Random) -> bytes:
    """Return a SASL token of any mechanism, right or wrong, short or oversized."""
    much = random.choice((10, 1000, 100_000, 520_000, 600_000))
    return random.choice(
        (
            b"\0alice\0" + GUESSED.encode(),
            b"\0" + b"a" * much + b"\0" + GUESSED.encode(),
            b"n,,n=alice,r=abcdefgh",
            b"n,,n=" + b"=2C" * (much // 3) + b",r=abcdefgh",
            b"n,,n=alice,r=abcdefgh" + b",a=" * (much // 3),
            b"y,a=alice,n=alice,r=" + b"r" * 500,
            b"p=tls-unique,,n=alice,r=abc",
            b"c=biws,r=abcdefgh,p=" + b"A" * (much // 4 * 4),
            b"c=biws,r=" + random.randbytes(5).hex().encode() + b",p=AAAA",
            b"\xff\xfe" * (much // 2),
            b"",
            random.randbytes(random.randrange(200)),
        )
    )


async def sasl_disorder(enemy: Enemy) -> None:
    """Send SASL messages in any order, framed or bare, oversized or empty, among requests."""
    random = enemy.random

    def frame() -> bytes:
        mechanism = random.choice((*MECHANISMS, "GSSAPI", "", "X" * random.choice((20, 20_000))))
        return random.choice(
            (
                lambda: _handshake(random, mechanism, random.randrange(2)),
                lambda: _handshake(random, random.choice(MECHANISMS), random.randrange(2)),
                lambda: _authenticate(random, _token(random)),
                lambda: _authenticate(random, _token(random)),
                lambda: frames.framed(_token(random)),
                lambda: _request(random, ApiKey.API_VERSIONS, 0, ApiVersionsRequest()),
                lambda: frames.mutated(random),
            )
        )()

    async def one() -> None:
        async with enemy.connected("SASL_PLAINTEXT") as stream:
            for _ in range(30):
                made = b"".join(frame() for _ in range(random.randrange(1, 4)))
                await enemy.send(stream, made)
                if await drain(stream, random.choice((0.001, 0.02))):
                    return

    await _many(one, 20)


async def guesses(enemy: Enemy) -> None:
    """Try passwords at the maximum rate, for alice and for unknown users."""
    random = enemy.random

    async def one() -> None:
        login = _Login(enemy, random.choice((USER, "bob", "x" * 200)), GUESSED)
        async with enemy.connected("SASL_PLAINTEXT") as stream:
            if await login.log_in(stream, random.choice(MECHANISMS)):
                enemy.violations.append(f"a guessed password was accepted for {login.username}")

    await _many(one, 50)


class _Login:
    """Alice, or an attacker with her name, on a plaintext connection."""

    def __init__(self, enemy: Enemy, username: str, password: str) -> None:
        self.username = username
        self._random = enemy.random
        self._password = password

    async def _call(
        self, stream: trio.SocketStream, api: ApiKey, version: int, message: Message
    ) -> Message | None:
        """Return the response to a request; None if the node closes the connection instead."""
        await stream.send_all(_request(self._random, api, version, message))
        data = bytearray()
        while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
            came = await stream.receive_some(1 << 16)
            if not came:
                return None
            data += came
        _, answer = decode_response(api, version, memoryview(data)[4:])
        return answer

    async def log_in(self, stream: trio.SocketStream, name: str) -> bool:
        mechanism = client_mechanism(name, self.username, self._password, self._random)
        asked = SaslHandshakeRequest(mechanism=name)
        answer = await self._call(stream, ApiKey.SASL_HANDSHAKE, 1, asked)
        if answer is None or getattr(answer, "error_code"):  # noqa: B009
            return False
        token: bytes | None = mechanism.first()
        while token is not None:
            proof = SaslAuthenticateRequest(auth_bytes=token)
            answer = await self._call(stream, ApiKey.SASL_AUTHENTICATE, 2, proof)
            if answer is None or getattr(answer, "error_code"):  # noqa: B009
                return False
            try:
                token = mechanism.respond(bytes(getattr(answer, "auth_bytes")))  # noqa: B009
            except AuthenticationError:
                return False
        return True

    async def is_served(self, stream: trio.SocketStream) -> bool:
        return await self._call(stream, ApiKey.METADATA, 9, MetadataRequest(topics=[])) is not None


async def overstayed_sessions(enemy: Enemy) -> None:
    """Authenticate, then continue without re-authentication, or with a wrong one."""
    random = enemy.random

    async def one() -> None:
        login = _Login(enemy, USER, PASSWORD)
        mechanism, began = random.choice(MECHANISMS), trio.current_time()
        with suppress(WireError, *BROKEN):
            async with enemy.connected("SASL_PLAINTEXT") as stream:
                if not await login.log_in(stream, mechanism):
                    if trio.current_time() < began + enemy.idle_s:  # not closed because it is idle
                        enemy.violations.append(f"alice could not authenticate by {mechanism}")
                    return
                ends = trio.current_time() + SESSION_MS / 1000  # it has begun before
                while True:
                    asked = trio.current_time()
                    if not await login.is_served(stream):
                        break
                    if asked > ends:
                        enemy.violations.append("a session was served after its end")
                        return
                    await trio.sleep(0.05)
                    if random.random() < 0.05:
                        wrong = _Login(enemy, random.choice((USER, "bob")), GUESSED)
                        if await wrong.log_in(stream, mechanism):
                            enemy.violations.append("a guess was taken when it was asked again")
                        return

    await _many(one, 20)


STRANGERS: Final[dict[str, Attack]] = {
    attack.__name__: attack
    for attack in (
        half_handshakes,
        mutated_handshakes,
        other_protocols,
        handshake_storm,
        sasl_disorder,
        guesses,
        overstayed_sessions,
    )
}
