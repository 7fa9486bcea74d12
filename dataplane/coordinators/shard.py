"""State of one partition of a coordinator: the shard, its records, and the writes it decides on.

    a request --operation--> an answer, or a Write --append, commit--> replay --> the Write's answer

Committed state changes in `Shard.replay` only. The records of the partition's log are replayed in
its order, by each new leader and, as they commit, by the leader that has appended them.
"""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from dataplane.scheduling.time_slices import Work
from wire.primitives.errors import KafkaError
from wire.primitives.frozen import frozen

T = TypeVar("T")


class CoordinatorRecord(NamedTuple):
    key: bytes
    value: bytes | None  # None: a tombstone, which deletes the key


@frozen
class Write(Generic[T]):
    """Result of an operation: `answer` is valid once all `records` are committed and replayed.

    The caller of an operation bounds the number of records: they are encoded in one step. `refused`
    is called with the error if the answer will not be given although the shard stays loaded: the
    records could not be appended, or were not committed in time. In the second case they may still
    be committed, and are replayed then.
    """

    records: Sequence[CoordinatorRecord]
    answer: T
    refused: Callable[[KafkaError], object] | None = None


class Shard(Protocol):
    """State of one partition of an internal topic; plain state without I/O or clock.

    `now` is monotonic seconds, `now_ms` is the wall clock.
    """

    def replay(self, record: CoordinatorRecord, *, timestamp_ms: int) -> None:
        """Apply a committed record. Never refuses; records of unknown formats are skipped."""

    def loaded(self, now_ms: int, now: float) -> Work[None]:
        """Start the timers of members; all committed records are replayed.

        A generator that yields after every few rows, as a shard may have a million.
        """

    def appended(self, records: Sequence[CoordinatorRecord]) -> None:
        """Note the records of one batch, which are in the log but not committed."""

    def unload(self) -> Work[None]:
        """Answer all waiting requests with NOT_COORDINATOR and free the state.

        A generator that yields after every few rows. No other method is called afterwards.
        """

    def due(self, now: float) -> Sequence[CoordinatorRecord]:
        """Run timers that are due by `now`; return the records to write, about 1,000 at most.

        `next_due` stays at or before `now` if more timers are due.
        """

    @property
    def next_due(self) -> float:
        """Time of the next timer, in monotonic seconds; infinity without timers."""
