"""The last offset of each key in a part of a log, in 24 bytes an entry.

A table of slots of 16 bytes of hash and 8 bytes of offset, open addressing, in one `bytearray`. The
keys themselves are not kept: two keys with the same 128-bit hash would be taken for one, which
BLAKE2b leaves to chance (2^-64 for four thousand million keys) even if somebody chooses the keys.

    memory of n entries at load factor f    n * 24 / f bytes; nothing else is kept

Source: Kafka's SkimpyOffsetMap, log.cleaner.dedupe.buffer.size, log.cleaner.io.buffer.load.factor.
"""

from hashlib import blake2b
from struct import Struct
from typing import Final

HASH_BYTES: Final = 16
ENTRY_BYTES: Final = 24
NO_OFFSET: Final = -1
_OFFSET: Final = Struct("<Q")  # one more than the offset: 0 is an empty slot
_pack_offset = _OFFSET.pack_into
_unpack_offset = _OFFSET.unpack_from


class OffsetMap:
    __slots__ = ("_slots", "_table", "capacity", "latest_offset", "size")

    def __init__(self, memory_bytes: int, load_factor: float, expected_entries: int) -> None:
        """Room for `expected_entries`, or for fewer if these take more than `memory_bytes`."""
        assert 0 < load_factor < 1
        most = max(2, memory_bytes // ENTRY_BYTES)
        self._slots = min(most, int(expected_entries / load_factor) + 2)
        self._table = bytearray(self._slots * ENTRY_BYTES)
        self.capacity = max(1, min(int(self._slots * load_factor), self._slots - 1))
        self.size = 0
        # Every record before this offset (included) was put, or needs not be.
        self.latest_offset = NO_OFFSET

    @property
    def memory_bytes(self) -> int:
        return len(self._table)

    def put(self, key: bytes, offset: int) -> bool:
        """`offset` is the last of `key`; False, and nothing has changed, when the map is full."""
        table, end = self._table, len(self._table)
        digest = blake2b(key, digest_size=16).digest()
        at = int.from_bytes(digest[:8], "little") % self._slots * 24
        while _unpack_offset(table, at + 16)[0]:
            if table[at : at + 16] == digest:
                break
            at += 24
            if at == end:
                at = 0
        else:  # an empty slot
            if self.size >= self.capacity:
                return False
            self.size += 1
            table[at : at + 16] = digest
        _pack_offset(table, at + 16, offset + 1)
        return True

    def get(self, key: bytes) -> int:
        """The last offset put for `key`, or -1."""
        table, end = self._table, len(self._table)
        digest = blake2b(key, digest_size=16).digest()
        at = int.from_bytes(digest[:8], "little") % self._slots * 24
        while True:
            (stored,) = _unpack_offset(table, at + 16)
            if not stored:
                return NO_OFFSET
            if table[at : at + 16] == digest:
                return int(stored) - 1
            at += 24
            if at == end:
                at = 0
