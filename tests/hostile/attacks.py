"""Attacks on a node by clients. Each runs until it is cancelled and expects any response."""

import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Final, TypeAlias

import trio

from metaquorum.wire.records.compression import Codec
from metaquorum.wire.schema.compiling import REQUEST_MAX_ELEMENTS as ELEMENTS
from tests.hostile import frames

BROKEN: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
CONNECT_TIMEOUT_S: Final = 30.0
ANSWER_TIMEOUT_S: Final = 0.2
KEPT_FRAMES: Final = 300


class Enemy:
    """An attacker of one node, with the last frames that it sent, for diagnosis."""

    def __init__(
        self,
        host: str,
        ports: Mapping[str, int],
        random: Random,
        request_max_bytes: int,
        idle_s: float,
    ) -> None:
        """`ports` are by listener name; the node closes connections that are idle for `idle_s`."""
        self.host = host
        self.ports = ports
        self.violations: list[str] = []  # wrong behaviour of the node that attackers observed
        self.random = random
        self.request_max_bytes = request_max_bytes
        self.idle_s = idle_s
        self.connection_count = 0
        self.sent: deque[bytes] = deque(maxlen=KEPT_FRAMES)

    @asynccontextmanager
    async def connected(
        self, listener: str = "PLAINTEXT", *, receive_bytes: int = 0
    ) -> AsyncIterator[trio.SocketStream]:
        sock = trio.socket.socket()
        try:
            if receive_bytes:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            with trio.fail_after(CONNECT_TIMEOUT_S):
                await sock.connect((self.host, self.ports[listener]))
            self.connection_count += 1
            yield trio.SocketStream(sock)
        except BROKEN:
            pass  # the node closes or rejects connections
        finally:
            sock.close()

    async def send(self, stream: trio.SocketStream, frame: bytes) -> None:
        self.sent.append(frame)
        await stream.send_all(frame)


Attack: TypeAlias = Callable[[Enemy], Awaitable[None]]


async def drain(stream: trio.SocketStream, limit_s: float = ANSWER_TIMEOUT_S) -> bool:
    """Read and discard responses; return whether the node closed the connection."""
    with trio.move_on_after(limit_s):
        while await stream.receive_some(1 << 16):
            pass
        return True
    return False


async def _frames(enemy: Enemy, make: Callable[[Random], bytes], at_once: int) -> None:
    """Send frames of one kind, some in one write, on connections that stay open as long as
    possible.
    """
    while True:
        async with enemy.connected() as stream:
            for _ in range(50):
                count = enemy.random.randrange(1, at_once + 1)
                for frame in (made := [make(enemy.random) for _ in range(count)]):
                    enemy.sent.append(frame)
                await stream.send_all(b"".join(made))
                if await drain(stream, enemy.random.choice((0.001, 0.02))):
                    break


async def mutated_frames(enemy: Enemy) -> None:
    await _frames(enemy, frames.mutated, 8)


async def bad_batches(enemy: Enemy) -> None:
    await _frames(enemy, frames.bad_produce, 4)


async def strange_lookups(enemy: Enemy) -> None:
    """Send lookups by timestamp, which decompress the batches of other attacks."""

    def make(random: Random) -> bytes:
        return frames.strange_timestamps(random) if random.random() < 0.7 else frames.fetch(random)

    await _frames(enemy, make, 4)


async def false_replicas(enemy: Enemy) -> None:
    """Send fetches with replica ids, and authentication messages with invalid proofs."""
    await _frames(enemy, frames.false_replica, 8)


async def random_bytes(enemy: Enemy) -> None:
    random = enemy.random
    while True:
        async with enemy.connected() as stream:
            data = random.randbytes(random.choice((1, 3, 4, 5, 100, 10_000)))
            if random.random() < 0.5:
                data = b"\0\0" + data
            await enemy.send(stream, data)
            await drain(stream)


async def strange_sizes(enemy: Enemy) -> None:
    random, limit = enemy.random, enemy.request_max_bytes
    while True:
        async with enemy.connected() as stream:
            size = random.choice((-1, -(2**31), 0, 1, 9, limit, limit + 1, 2**31 - 1))
            await enemy.send(stream, struct.pack(">i", size) + bytes(random.choice((0, 50, 9000))))
            await drain(stream)


async def many_elements(enemy: Enemy) -> None:
    random = enemy.random
    while True:
        async with enemy.connected() as stream:
            if random.random() < 0.3:
                await enemy.send(stream, frames.claims_many(random))
            else:
                count = random.choice((1000, 20_000, ELEMENTS - 10, ELEMENTS + 1))
                await enemy.send(stream, frames.many_elements(random, count))
            await drain(stream, 2)
        await trio.sleep(0.2)


async def bombs(enemy: Enemy) -> None:
    """Produce small batches that decompress to 100 MB or millions of records, and look them up."""
    random = enemy.random
    while True:
        async with enemy.connected() as stream:
            batch = (
                frames.record_bomb(random.choice((200_000, 1_000_000)))
                if random.random() < 0.5
                else frames.byte_bomb(random.choice((Codec.GZIP, Codec.LZ4, Codec.ZSTD)))
            )
            await stream.send_all(frames.produce(random, batch))
            await enemy.send(stream, frames.strange_timestamps(random))
            await drain(stream, 2)
        await trio.sleep(0.5)


async def slow_loris(enemy: Enemy) -> None:
    """Send incomplete requests: small ones, and large ones that hold the request memory."""
    random = enemy.random

    async def one() -> None:
        while True:
            await trio.sleep(0.1)
            async with enemy.connected() as stream:
                size = random.choice((100, 50_000, 1 << 20, enemy.request_max_bytes))
                await stream.send_all(struct.pack(">i", size) + bytes(random.randrange(70_000)))
                while True:
                    await trio.sleep(random.random())
                    await stream.send_all(bytes(random.randrange(1, 20)))

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(one)


async def half_open(enemy: Enemy) -> None:
    """Open connections with one direction shut down, or reset them inside a response."""
    random = enemy.random
    while True:
        async with enemy.connected() as stream:
            how = random.randrange(4)
            if how == 0:
                await stream.send_eof()
                await drain(stream)
            elif how == 1:
                await enemy.send(stream, frames.mutated(random)[:-1])
                await stream.send_eof()
                await drain(stream)
            elif how == 2:
                await enemy.send(stream, frames.fetch(random, max_wait_ms=60_000) * 20)
                await stream.send_eof()
                await drain(stream, 0.01)
            else:
                await enemy.send(stream, frames.fetch(random) * 50)
                linger = struct.pack("ii", 1, 0)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


async def never_read(enemy: Enemy) -> None:
    """Send pipelines of requests with large responses, and read none."""
    random = enemy.random

    async def one() -> None:
        while True:
            async with enemy.connected(receive_bytes=4096) as stream:
                with trio.move_on_after(5 * random.random()):
                    while True:
                        await enemy.send(stream, frames.fetch(random) * 20)
                await trio.sleep(random.random())

    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(one)


async def sessions(enemy: Enemy) -> None:
    """Open fetch sessions, some with many partitions, and abandon them."""
    random = enemy.random

    def make(random: Random) -> bytes:
        return frames.fetch(
            random, random.choice((1, 3, 500)), session_epoch=random.choice((0, 0, 1, -1, 5))
        )

    del random
    await _frames(enemy, make, 10)


async def storm(enemy: Enemy) -> None:
    """Open and close connections at the maximum rate."""

    async def one() -> None:
        while True:
            async with enemy.connected() as stream:
                if enemy.random.random() < 0.3:
                    await stream.send_all(frames.framed(b"\0\x12\0\0\0\0\0\1\xff\xff"))
            await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(one)


ATTACKS: Final[dict[str, Attack]] = {
    attack.__name__: attack
    for attack in (
        mutated_frames,
        bad_batches,
        strange_lookups,
        false_replicas,
        random_bytes,
        strange_sizes,
        many_elements,
        bombs,
        slow_loris,
        half_open,
        never_read,
        sessions,
        storm,
    )
}
