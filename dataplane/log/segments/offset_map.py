"""The cleaner's offset map: the last offset of each key in a part of a log, 24 bytes per entry.

A hash table with open addressing, outside of Python's heap: a slot has 16 bytes of hash and 8 bytes
of offset. Keys are not stored: two keys with the same 128-bit BLAKE2b hash would count as one key
(probability 2^-64 for 2^32 keys, even if an attacker chooses them).

    memory of n entries at load factor f    n * 24 / f bytes; nothing else is stored

Source: Kafka's SkimpyOffsetMap, log.cleaner.dedupe.buffer.size, log.cleaner.io.buffer.load.factor.
"""

from hashlib import blake2b
from mmap import mmap
from struct import Struct
from typing import Final

ENTRY_BYTES: Final = 24
NO_OFFSET: Final = -1
_halves = Struct("<QQ").unpack


def _zeros(count: int) -> memoryview:
    """Return `count` 64-bit zeros; the kernel allocates their pages at the first write."""
    return memoryview(mmap(-1, 8 * count)).cast("Q")


class OffsetMap:
    """Offsets by key hash, in a fixed amount of memory."""

    __slots__ = ("_highs", "_lows", "_offsets", "_slots", "capacity", "latest_offset", "size")

    def __init__(self, memory_bytes: int, load_factor: float, expected_entries: int) -> None:
        """Allocate slots for `expected_entries`, but at most `memory_bytes`."""
        assert 0 < load_factor < 1
        most = max(2, memory_bytes // ENTRY_BYTES)
        self._slots = min(most, int(expected_entries / load_factor) + 2)
        self._highs = _zeros(self._slots)
        self._lows = _zeros(self._slots)
        # Offset + 1: 0 marks an empty slot.
        self._offsets = _zeros(self._slots)
        self.capacity = max(1, min(int(self._slots * load_factor), self._slots - 1))
        self.size = 0
        # All records up to this offset (inclusive) are in the map, or need not be.
        self.latest_offset = NO_OFFSET

    @property
    def memory_bytes(self) -> int:
        return self._slots * ENTRY_BYTES

    def put(self, key: bytes, offset: int) -> bool:
        """Set the last offset of `key`. Return False, without change, if the map is full."""
        high, low = _halves(blake2b(key, digest_size=16).digest())
        slots, highs, offsets = self._slots, self._highs, self._offsets
        slot = high % slots
        while offsets[slot]:
            if highs[slot] == high and self._lows[slot] == low:
                break
            slot += 1
            if slot == slots:
                slot = 0
        else:  # an empty slot
            if self.size >= self.capacity:
                return False
            self.size += 1
            highs[slot] = high
            self._lows[slot] = low
        offsets[slot] = offset + 1
        return True

    def get(self, key: bytes) -> int:
        """Return the last offset of `key`, or -1."""
        high, low = _halves(blake2b(key, digest_size=16).digest())
        slots, highs, offsets = self._slots, self._highs, self._offsets
        slot = high % slots
        stored: int
        while (stored := offsets[slot]) and (highs[slot] != high or self._lows[slot] != low):
            slot += 1
            if slot == slots:
                slot = 0
        return stored - 1
