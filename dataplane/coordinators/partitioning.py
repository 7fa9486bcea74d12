"""The partition of a coordinator's internal topic that a group or a transactional id belongs to.

All workers, and all versions of them, must agree on it: the leader of that partition is the
coordinator. Kafka's tools compute it, too, so it is Java's hash of the id.
"""

from functools import lru_cache
from operator import mul
from struct import Struct
from typing import Final

_UINT32: Final = 0xFFFF_FFFF
# Units that are hashed at once, and the powers of 31 for them, the highest first.
_UNITS: Final = 64
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in reversed(range(_UNITS)))
_NEXT_POWER: Final = pow(31, _UNITS, 1 << 32)
_POSITIVE: Final = 0x7FFF_FFFF
# Ids whose hashes are remembered, because every request computes one: a few MB.
_REMEMBERED: Final = 10_000
# Longest ids that are remembered. The hash of the longest possible id takes a millisecond.
REMEMBERED_CHARACTERS: Final = 128


def partition_of(key: str, partition_count: int) -> int:
    """Return the partition of a group id or transactional id.

    Source: String.hashCode of Java, Utils.abs of Kafka.
    """
    hash_of = _remembered_hash if len(key) <= REMEMBERED_CHARACTERS else java_hash
    return (hash_of(key) & _POSITIVE) % partition_count


def java_hash(text: str) -> int:
    """Return Java's hash of a string as an unsigned number: h = 31 * h + unit, in 32 bits.

    The units are those of UTF-16; a lone surrogate is one unit.
    """
    data = text.encode("utf-16-be", "surrogatepass")
    first = len(data) // 2 % _UNITS
    value = 0
    for unit in Struct(f">{first}H").unpack_from(data):
        value = (value * 31 + unit) & _UINT32
    for units in Struct(f">{_UNITS}H").iter_unpack(memoryview(data)[2 * first :]):
        value = (value * _NEXT_POWER + sum(map(mul, units, _POWERS))) & _UINT32
    return value


_remembered_hash = lru_cache(_REMEMBERED)(java_hash)
