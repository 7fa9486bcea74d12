"""Output of the records of a consumer group: what is printed is committed.

A batch of records is printed, flushed and then committed, before the next poll. A partition that is
given up in a rebalance has therefore no printed record without a commit. After Ctrl-C, a limit or
the end, the offsets of the records that were printed are committed, not those that were fetched.
"""

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import BinaryIO, Final

from metaquorum.client.administration.admin import LATEST
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.consumer import ConsumedRecord
from metaquorum.client.errors import BrokerError
from metaquorum.client.groups.blocking import BlockingGroupConsumer
from metaquorum.client.groups.group_consumer import RebalanceListener
from metaquorum.client.socket_transport import BlockingAdmin
from metaquorum.wire.primitives.errors import ErrorCode

COMMIT_TIMEOUT_S: Final = 5.0
# The partitions have another owner, or will have: it reads the records again.
_LOST: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)


class PrintedOffsets(RebalanceListener):
    """Offsets after the printed records of the assigned partitions; not yet committed ones."""

    def __init__(self) -> None:
        self.uncommitted: dict[TopicPartition, int] = {}
        self.added: set[TopicPartition] = set()  # since the last poll

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.added.update(partitions)

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        for where in partitions:
            self.uncommitted.pop(where, None)
            self.added.discard(where)

    on_lost = on_revoked


class GroupOutput:
    """Writes the records of a group to `stdout`, and commits them. Blocking."""

    def __init__(
        self,
        consumer: BlockingGroupConsumer,
        printed: PrintedOffsets,
        write: Callable[[ConsumedRecord], bytes],
        stdout: BinaryIO,
        note: Callable[[str], None],
    ) -> None:
        self._consumer = consumer
        self._printed = printed
        self._write = write
        self._stdout = stdout
        self._note = note
        self._written = 0
        self._is_interrupted = False

    def copy(self, *, limit: int | None, follow: bool) -> None:
        """Write records until `limit`, or (unless `follow`) until the ends of the assignment.

        The end of a partition is looked up when it is assigned. Without partitions, since other
        members have them all, this waits for some. Ctrl-C ends this between two records, and the
        printed ones are committed; a second Ctrl-C raises KeyboardInterrupt. Returns at Ctrl-C with
        `follow`, else raises KeyboardInterrupt.
        """
        with self._interruptible():
            self._copy(limit=limit, follow=follow)
        if self._is_interrupted and not follow:
            raise KeyboardInterrupt

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Note the first Ctrl-C: an error at any point would leave open what was printed."""
        before = signal.getsignal(signal.SIGINT)

        def on_interrupt(number: int, frame: object) -> None:
            self._is_interrupted = True
            signal.signal(signal.SIGINT, before)

        if before is not signal.default_int_handler:  # ignored, or handled by a caller
            yield
            return
        signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _copy(self, *, limit: int | None, follow: bool) -> None:
        ends: dict[TopicPartition, int] = {}
        try:
            while self._written != limit and not self._is_interrupted:
                records = self._consumer.poll()
                added, self._printed.added = self._printed.added, set()
                if not follow:
                    ends = self._ends(ends, added)
                self._print(records, ends, limit)
                # A partition without records, too: its start must not move to a later end.
                for where in added:
                    position = self._consumer.position(where)
                    self._printed.uncommitted.setdefault(where, position)
                if not follow and self._is_at(ends):
                    return
                self._commit()
        finally:
            self._stdout.flush()
            self._commit()

    def _print(
        self,
        records: Sequence[ConsumedRecord],
        ends: Mapping[TopicPartition, int],
        limit: int | None,
    ) -> None:
        for record in records:
            where = TopicPartition(record.topic, record.partition)
            is_after_end = record.offset >= ends.get(where, record.offset + 1)
            if is_after_end or self._written == limit or self._is_interrupted:
                self._printed.uncommitted.setdefault(where, record.offset)
                continue
            self._stdout.write(self._write(record))
            self._printed.uncommitted[where] = record.offset + 1
            self._written += 1
        self._stdout.flush()

    def _ends(
        self, ends: Mapping[TopicPartition, int], added: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the ends of the assigned partitions, looked up for those that were added."""
        consumer = self._consumer.client
        found = {where: end for where, end in ends.items() if where in consumer.assignment}
        answers = BlockingAdmin(consumer.cluster).list_offsets(
            dict.fromkeys(added, LATEST), read_committed=consumer.config.read_committed
        )
        for where, answer in answers.items():
            if isinstance(answer, BrokerError):
                raise answer
            found[where] = answer.offset
        return found

    def _is_at(self, ends: dict[TopicPartition, int]) -> bool:
        """Return whether all records before the ends are printed."""
        return bool(ends) and all(
            self._consumer.position(where) >= end for where, end in ends.items()
        )

    def _commit(self) -> None:
        offsets = dict(self._printed.uncommitted)
        try:
            self._consumer.commit(offsets, timeout_s=COMMIT_TIMEOUT_S)
        except BrokerError as error:
            if error.code not in _LOST:
                raise
            self._note(f"Another member prints the last records again: {error}")
        self._printed.uncommitted.clear()
