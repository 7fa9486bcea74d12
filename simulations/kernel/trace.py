"""Events of one world as text, with a digest that is equal if two runs were the same."""

import hashlib
import zlib
from typing import NamedTuple


class Event(NamedTuple):
    time: float
    who: str
    text: str

    def __str__(self) -> str:
        return f"{self.time:12.6f}  {self.who:<10} {self.text}"


class Trace:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self._checksum = 0
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, time: float, who: str, text: str) -> None:
        self.events.append(Event(time, who, text))
        self._hash.update(f"{time!r} {who} {text} {self._checksum:x}\n".encode())

    def mix(self, data: bytes | bytearray | memoryview, mark: int = 0) -> None:
        """Add bytes to the digest that are too many for an event, such as sent or written data."""
        self._checksum = zlib.crc32(data, self._checksum ^ mark)

    def digest(self) -> str:
        done = self._hash.copy()
        done.update(f"{self._checksum:x}".encode())
        return done.hexdigest()
