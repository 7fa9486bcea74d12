"""The state of one partition of an internal topic, and what operations on it return.

    operation -> records -> appended to the partition -> committed -> replayed -> answered

An operation decides on the shard's state, and returns its answer, or a `Write`: records and the
answer that holds once they are committed. State that must survive the coordinator (an assignment, a
committed offset, a deletion) changes only in `replay`. Members, timers and waiting requests are
memory of this coordinator: an operation changes them at once. Source: design of KIP-848's
coordinator runtime.
"""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from metaquorum.dataplane.coordinators.client_budget import UNKNOWN
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.dataplane.log.segments.verification import NOT_REQUIRED, Verification
from metaquorum.dataplane.scheduling.time_slices import Steps
from metaquorum.wire.primitives.errors import ErrorCode

T = TypeVar("T", covariant=True)


class CoordinatorRecord(NamedTuple):
    """A record of an internal topic; a tombstone if `value` is None.

    `decoded_key` and `decoded_value` save decoding a record that this coordinator has written. A
    loaded record is doubtful if it is older than a possible loss of the end of the log: later
    records of its key may be lost.
    """

    key: bytes
    value: bytes | None
    decoded_key: object = None
    is_doubtful: bool = False
    decoded_value: object = None


class TransactionOf(NamedTuple):
    """Transaction of a write: its producer, and the verification on which the append relies."""

    producer_id: int
    producer_epoch: int
    verification: Verification | None = NOT_REQUIRED


class Write(NamedTuple, Generic[T]):
    """Records to append, and the answer to give once they are committed.

    `on_failed` is called with the reason and the monotonic time in seconds if they are not
    appended, or not committed in time.
    Records that were appended may still be committed after that, and are then replayed. `producer`:
    the records are part of its open transaction. `client` is that of the request in the budgets, or
    COORDINATOR: a share of uncommitted bytes is not asked of that.
    """

    records: Sequence[CoordinatorRecord]
    answer: T
    on_failed: Callable[[ErrorCode, float], object] | None = None
    producer: TransactionOf | None = None
    client: str = UNKNOWN


class Shard(Protocol):
    """The state of one partition while this worker leads it."""

    @property
    def next_due(self) -> float:
        """Monotonic seconds at which `due` must be called next; infinite if never."""

    def replay(self, record: CoordinatorRecord, now: float) -> Steps[None] | None:
        """Apply a committed record. Refuses none; ignores records of unknown formats.

        Before `loaded`, a long record may be applied by the work that is returned, which must be
        finished before the next record.
        """

    def appended(self, records: Sequence[CoordinatorRecord]) -> None:
        """Note records that were appended and will be replayed, unless the leadership ends."""

    def replay_appended(
        self, records: Sequence[CoordinatorRecord], monotonic: Callable[[], float]
    ) -> None:
        """Apply records that were committed by their append: the same as `appended` and `replay`.

        So are those of a partition with a single replica. `monotonic` returns the time.
        """

    def refused(self, records: Sequence[CoordinatorRecord], now: float) -> None:
        """Note records that were not appended, of an operation or of `due`."""

    def restore(self, now: float) -> Steps[None]:
        """Make the state of the committed records ready for operations, in pieces.

        Called once, after all of them were replayed. No other method is called before it ends.
        """

    def loaded(self, now: float, now_ms: int) -> None:
        """Start the timers: the first operation may follow. Short, after `restore`."""

    def due(self, now: float, now_ms: int, is_over: Callable[[], bool]) -> list[CoordinatorRecord]:
        """Do what is due by `now`, and return the records to write for it.

        The rest remains due once `is_over` returns true, which is called after every piece.
        """

    def unload(self) -> Steps[None]:
        """Answer all waiting requests with NOT_COORDINATOR, and free the state.

        The leadership has ended: no operation follows. Yields between pieces.
        """


@runtime_checkable
class TransactionalShard(Protocol):
    """Additional methods of a shard to which producers may write in their transactions.

    A shard without these methods is given transactional records as any others, and no markers.
    """

    def appended_in_transaction(
        self, records: Sequence[CoordinatorRecord], producer_id: int
    ) -> None:
        """Note transactional records that were appended: as `Shard.appended`."""

    def replay_transactional(
        self, record: CoordinatorRecord, producer_id: int, now: float
    ) -> Steps[None] | None:
        """Apply a replicated record of a transaction, which is open until its marker is replayed.

        The result is that of `Shard.replay`.
        """

    def replay_marker(self, marker: TransactionMarker, now: float) -> Steps[None] | None:
        """End the producer's transaction. A long one is applied by the work that is returned.

        The work must be finished before anything else is replayed. A marker without a transaction
        is ignored.
        """
