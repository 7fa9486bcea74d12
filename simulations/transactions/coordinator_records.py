"""Records of `__transaction_state`, read by the simulator's own code.

Key: version (int16) 0, transactional id. Value: version 0, or 1 with compact lengths and tagged
fields. Source: Kafka's TransactionLogKey.json and TransactionLogValue.json.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

_FLEXIBLE_SINCE: Final = 1


class Status(IntEnum):
    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def is_prepared(self) -> bool:
        return self in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)


# State before each state; a first record may have any.
BEFORE: Final = {
    Status.EMPTY: (
        Status.EMPTY,
        Status.COMPLETE_COMMIT,
        Status.COMPLETE_ABORT,
        Status.DEAD,
    ),
    Status.ONGOING: (
        Status.EMPTY,
        Status.ONGOING,
        Status.COMPLETE_COMMIT,
        Status.COMPLETE_ABORT,
    ),
    Status.PREPARE_COMMIT: (Status.ONGOING,),
    # An abort without records is one, too, at transaction.version 2.
    Status.PREPARE_ABORT: (
        Status.ONGOING,
        Status.PREPARE_EPOCH_FENCE,
        Status.EMPTY,
        Status.COMPLETE_COMMIT,
        Status.COMPLETE_ABORT,
    ),
    Status.PREPARE_EPOCH_FENCE: (Status.ONGOING,),
    Status.COMPLETE_COMMIT: (Status.PREPARE_COMMIT,),
    Status.COMPLETE_ABORT: (Status.PREPARE_ABORT,),
    Status.DEAD: (Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT),
}


@dataclass(frozen=True, slots=True)
class StateValue:
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: Status
    partitions: frozenset[tuple[str, int]]
    started_ms: int


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def unpack(self, form: str) -> int:
        (value,) = struct.unpack_from(">" + form, self._data, self._at)
        self._at += struct.calcsize(">" + form)
        return int(value)

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def count(self, *, is_compact: bool, form: str = "i") -> int:
        return self.varint() - 1 if is_compact else self.unpack(form)

    def text(self, *, is_compact: bool) -> str:
        length = self.count(is_compact=is_compact, form="h")
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self._at += self.varint()


def transactional_id_of(key: bytes) -> str | None:
    """Return the transactional id of a record; None if the key has another version."""
    reader = _Reader(key)
    return reader.text(is_compact=False) if reader.unpack("h") == 0 else None


def decode_state(value: bytes) -> StateValue:
    reader = _Reader(value)
    is_compact = reader.unpack("h") >= _FLEXIBLE_SINCE
    producer_id, epoch, timeout_ms = reader.unpack("q"), reader.unpack("h"), reader.unpack("i")
    status = Status(reader.unpack("b"))
    partitions: set[tuple[str, int]] = set()
    for _ in range(max(reader.count(is_compact=is_compact), 0)):
        topic = reader.text(is_compact=is_compact)
        count = reader.count(is_compact=is_compact)
        partitions.update((topic, reader.unpack("i")) for _ in range(count))
        if is_compact:
            reader.skip_tags()
    _, started_ms = reader.unpack("q"), reader.unpack("q")
    return StateValue(producer_id, epoch, timeout_ms, status, frozenset(partitions), started_ms)
