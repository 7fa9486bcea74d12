"""Immutable mapping whose changed copies share the unchanged parts.

Keys are distributed over a fixed number of small dicts by a checksum of their bytes. `hash` is not
used because it differs between processes, and the iteration order must be the same on every replica
and in every simulated run. A change copies the tuple of dicts and the changed dicts, which takes
microseconds regardless of the size of the map.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

BUCKETS: Final = 512


class PersistentMap(Mapping[K, V]):
    """Immutable mapping. `key_bytes` returns the bytes of a key; equal keys have equal bytes."""

    __slots__ = ("_buckets", "_key_bytes", "_size")

    def __init__(
        self,
        key_bytes: Callable[[K], bytes],
        buckets: tuple[dict[K, V], ...] | None = None,
        size: int = 0,
    ) -> None:
        self._key_bytes = key_bytes
        self._buckets = ({},) * BUCKETS if buckets is None else buckets
        self._size = size

    def __getitem__(self, key: K) -> V:
        return self._buckets[zlib.crc32(self._key_bytes(key)) % BUCKETS][key]

    @overload
    def get(self, key: K, /) -> V | None: ...

    @overload
    def get(self, key: K, /, default: V | T) -> V | T: ...

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of `key`. `Mapping.get` takes twice as long, with an exception."""
        return self._buckets[zlib.crc32(self._key_bytes(key)) % BUCKETS].get(key, default)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        """Yield every key, in an order that depends on when keys were set."""
        for bucket in self._buckets:
            if bucket:
                yield from bucket

    def each(self) -> Iterator[V]:
        """Yield every value, in the order of `__iter__`, without a lookup for each key."""
        for bucket in self._buckets:
            if bucket:
                yield from bucket.values()

    def in_order(self) -> Iterator[tuple[K, V]]:
        """Yield every item, in an order that depends only on the items."""
        for bucket in self._buckets:
            if len(bucket) > 1:
                yield from sorted(bucket.items(), key=lambda item: self._key_bytes(item[0]))
            elif bucket:
                yield from bucket.items()

    def without(self, other: "PersistentMap[K, V]") -> Iterator[list[tuple[K, V]]]:
        """Yield the items that differ in `other` or are missing there, one dict at a time.

        Dicts that both maps share are skipped.
        """
        for mine, its in zip(self._buckets, other._buckets, strict=True):
            if mine and mine is not its:
                yield [(key, value) for key, value in mine.items() if its.get(key) != value]

    def edit(self) -> "MapEdit[K, V]":
        return MapEdit(self)


class MapEdit(Generic[K, V]):
    """Collected changes of a `PersistentMap`; `finish` returns the changed map."""

    __slots__ = ("_base", "_buckets", "_owned", "_size")

    def __init__(self, base: PersistentMap[K, V]) -> None:
        self._base = base
        self._buckets = base._buckets
        self._owned: dict[int, dict[K, V]] = {}
        self._size = base._size

    def get(self, key: K) -> V | None:
        number = zlib.crc32(self._base._key_bytes(key)) % BUCKETS
        return self._owned.get(number, self._buckets[number]).get(key)

    def __setitem__(self, key: K, value: V) -> None:
        bucket = self._own(key)
        self._size += key not in bucket
        bucket[key] = value

    def discard(self, key: K) -> None:
        bucket = self._own(key)
        if key in bucket:
            del bucket[key]
            self._size -= 1

    def _own(self, key: K) -> dict[K, V]:
        number = zlib.crc32(self._base._key_bytes(key)) % BUCKETS
        bucket = self._owned.get(number)
        if bucket is None:
            bucket = self._owned[number] = dict(self._buckets[number])
        return bucket

    def finish(self) -> PersistentMap[K, V]:
        """Return the changed map; later changes of this edit apply to it."""
        if self._owned:
            buckets = list(self._buckets)
            for number, bucket in self._owned.items():
                buckets[number] = bucket
            self._base = PersistentMap(self._base._key_bytes, tuple(buckets), self._size)
            self._buckets = self._base._buckets
            self._owned = {}
        return self._base
