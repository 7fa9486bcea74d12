"""Assigned partitions of a consumer: positions, fetched records, pauses. Plain state.

The position of a partition is the offset after the last record that a poll has returned. Records
are fetched ahead of it, and wait here for the next poll.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.consumer import ConsumedRecord
from metaquorum.client.errors import AdminError
from metaquorum.client.groups.group_config import OffsetReset
from metaquorum.client.groups.values import CommittedOffset


class NotAssignedError(AdminError):
    """Raised for a partition that is not assigned to this consumer."""


@dataclass(slots=True)
class _Partition:
    """`fetched`: the next offset to fetch, None before it is known.

    `reset`: how to find it, instead of the committed offset. `fetched_epoch` and `taken_epoch`: the
    leader epochs of the records before `fetched`, and before the first one in `records`; -1: not
    known.
    """

    fetched: int | None = None
    reset: OffsetReset | None = None
    fetched_epoch: int = -1
    taken_epoch: int = -1
    is_paused: bool = False
    records: deque[ConsumedRecord] = field(default_factory=deque)

    @property
    def position(self) -> int | None:
        return self.records[0].offset if self.records else self.fetched

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the record before the position."""
        return self.taken_epoch if self.records else self.fetched_epoch


class AssignedPartitions:
    """Positions of the assigned partitions."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, _Partition] = {}

    def __contains__(self, where: TopicPartition) -> bool:
        return where in self._partitions

    @property
    def all(self) -> tuple[TopicPartition, ...]:
        """The assigned partitions, sorted."""
        return tuple(sorted(self._partitions))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment; partitions that stay keep their positions and records."""
        before = self._partitions
        self._partitions = {
            where: before.get(where) or _Partition() for where in sorted(set(partitions))
        }

    # Positions

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the known positions, with the leader epoch of the record before."""
        return {
            where: CommittedOffset(own.position, own.leader_epoch)
            for where, own in self._partitions.items()
            if own.position is not None
        }

    def position(self, where: TopicPartition) -> int | None:
        """Return the offset after the last returned record; None if it is not known yet."""
        return self._known(where).position

    def without_position(self) -> list[TopicPartition]:
        """Return the partitions whose committed offset must be read."""
        return [w for w, p in self._partitions.items() if p.fetched is None and p.reset is None]

    def awaiting_reset(self) -> dict[TopicPartition, OffsetReset]:
        """Return the partitions whose position must be looked up in the log."""
        return {
            where: own.reset
            for where, own in self._partitions.items()
            if own.fetched is None and own.reset is not None
        }

    def seek(self, where: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Set the position to `offset` and drop the fetched records."""
        own = self._known(where)
        own.fetched, own.fetched_epoch, own.reset = offset, leader_epoch, None
        own.records.clear()

    def request_reset(self, where: TopicPartition, reset: OffsetReset) -> None:
        """Look up the position in the log later, and drop the fetched records."""
        own = self._known(where)
        own.fetched, own.fetched_epoch, own.reset = None, -1, reset
        own.records.clear()

    def forget_position(self, where: TopicPartition) -> None:
        """Read the committed offset again, and drop the fetched records."""
        own = self._known(where)
        own.fetched = own.reset = None
        own.records.clear()

    # Pauses

    def pause(self, where: TopicPartition) -> None:
        self._known(where).is_paused = True

    def resume(self, where: TopicPartition) -> None:
        self._known(where).is_paused = False

    @property
    def paused(self) -> tuple[TopicPartition, ...]:
        """The paused partitions."""
        return tuple(w for w, own in self._partitions.items() if own.is_paused)

    # Records

    def fetchable(self, counts: Mapping[str, int]) -> dict[TopicPartition, CommittedOffset]:
        """Return the next offsets of partitions without records; not of deleted topics.

        Each is with the leader epoch of the record before.

        `counts`: partitions by topic, 0 for a topic that does not exist.
        """
        return {
            where: CommittedOffset(own.fetched, own.fetched_epoch)
            for where, own in self._partitions.items()
            if own.fetched is not None
            and not own.is_paused
            and not own.records
            and where.partition < counts.get(where.topic, where.partition + 1)
        }

    def add(
        self,
        records: Sequence[ConsumedRecord],
        positions: Mapping[TopicPartition, int],
        last_epochs: Mapping[TopicPartition, int],
    ) -> None:
        """Take fetched records, and the next offset of each partition that was fetched.

        `last_epochs` are the leader epochs before these offsets.
        """
        for where, position in positions.items():
            if (own := self._partitions.get(where)) is not None:
                own.taken_epoch = own.fetched_epoch
                own.fetched, own.fetched_epoch = position, last_epochs.get(where, -1)
        for record in records:
            if own := self._partitions.get(TopicPartition(record.topic, record.partition)):
                own.records.append(record)

    def take(self, count: int) -> list[ConsumedRecord]:
        """Return up to `count` records of partitions that are not paused; moves the positions."""
        taken: list[ConsumedRecord] = []
        for where, own in list(self._partitions.items()):
            if own.is_paused or not own.records:
                continue
            while own.records and len(taken) < count:
                taken.append(own.records.popleft())
                own.taken_epoch = taken[-1].leader_epoch
            if own.records:
                break
            # The next call begins with another partition, so that none waits for the others.
            self._partitions[where] = self._partitions.pop(where)
        return taken

    def _known(self, where: TopicPartition) -> _Partition:
        own = self._partitions.get(where)
        if own is None:
            raise NotAssignedError(f"partition {where} is not assigned to this consumer")
        return own
