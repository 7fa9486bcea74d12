"""Offsets of open transactions of one shard. Plain state.

    replay(commit of producer P)    the offset waits for P's marker
    replay(marker of P, commit)     those of its offsets are committed that no later commit follows
    replay(marker of P, abort)      its offsets are forgotten
    replay(other commit)            an offset that waits for the same place is overtaken: it keeps
                                    its place unstable, and its transaction does not change it
    replay(tombstone)               all offsets that wait for the place are forgotten

The last commit in the log decides, not the last marker: compaction keeps that one. Several
transactions may wait for the same place, and one transaction for places of several groups. As in
Kafka's OffsetMetadataManager, with one difference: Kafka compares the offset of each committed
offset's record, which has to be kept with it; here a commit notes what it overtakes.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from metaquorum.dataplane.coordinators.client_budget import UNKNOWN, ClientBudget, text_bytes
from metaquorum.dataplane.scheduling.time_slices import Steps, emptied, pause

# Offsets that one step commits or forgets at the end of a transaction.
ENDED_AT_ONCE: Final = 128

# Topic and partition of an offset of a group.
Place: TypeAlias = tuple[str, int]
_Waiting: TypeAlias = dict[int, "_Offset"]  # by producer id
# Takes group, place, value and client of an offset.
_Commit: TypeAlias = Callable[[str, Place, bytes, str], object]
_NO_PLACES: Final[Mapping[Place, _Waiting]] = {}


# Memory of an offset that waits, without the id of its group and its value.
WAITING_BYTES: Final = 800


def waiting_bytes(group: str, value_bytes: int) -> int:
    """Return the memory of an offset that waits for a marker."""
    return WAITING_BYTES + text_bytes(group) + value_bytes


class _Offset:
    """An offset that waits for a marker; `value` is None if a later commit has overtaken it."""

    __slots__ = ("client", "number", "size_bytes", "value")

    def __init__(self, number: int, value: bytes, client: str, size_bytes: int) -> None:
        self.number = number  # in the order of the log
        self.client = client  # for which its memory counts
        self.size_bytes = size_bytes
        self.value: bytes | None = value


class TransactionalOffsets:
    """Offsets that wait for the markers of their transactions, by group and by producer."""

    def __init__(self, budget: ClientBudget) -> None:
        self._budget = budget
        self.groups: dict[str, dict[Place, _Waiting]] = {}
        self.count = 0
        self._producers: dict[int, dict[tuple[str, Place], None]] = {}
        self._numbers = 0

    def places(self, group: str) -> Mapping[Place, _Waiting]:
        """Return the places of the group's offsets that wait for a marker."""
        return self.groups.get(group, _NO_PLACES)

    def last_value(self, group: str, place: Place) -> bytes | None:
        """Return the last value that waits for this place, unless another commit followed it."""
        waiting = self.places(group).get(place)
        if waiting is None:
            return None
        return max(waiting.values(), key=lambda offset: offset.number).value

    async def producers(self, group: str) -> dict[int, int]:
        """Return the producers whose transactions hold offsets of the group, and how many."""
        found: dict[int, int] = {}
        for number, waiting in enumerate(list(self.places(group).values()), 1):
            for producer_id in waiting:
                found[producer_id] = found.get(producer_id, 0) + 1
            if number % ENDED_AT_ONCE == 0:
                await pause()
        return found

    def add(
        self, producer_id: int, group: str, place: Place, value: bytes, client: str = UNKNOWN
    ) -> None:
        """Let an offset wait for the marker of its producer; it replaces the producer's last."""
        self._numbers += 1
        waiting = self.groups.setdefault(group, {}).setdefault(place, {})
        before = waiting.get(producer_id)
        if before is None:
            self.count += 1
        else:
            self._budget.use(before.client, -before.size_bytes)
        size_bytes = waiting_bytes(group, len(value))
        self._budget.use(client, size_bytes)
        waiting[producer_id] = _Offset(self._numbers, value, client, size_bytes)
        self._producers.setdefault(producer_id, {})[group, place] = None

    def overtake(self, group: str, place: Place) -> None:
        """Note that a commit without transaction follows those that wait for this place."""
        waiting = self.places(group).get(place)
        if waiting is not None:
            for offset in waiting.values():
                self._overtaken(offset)

    def _overtaken(self, offset: _Offset) -> None:
        if offset.value is not None:
            self._budget.use(offset.client, -len(offset.value))
            offset.size_bytes -= len(offset.value)
            offset.value = None

    def remove(self, group: str, place: Place) -> None:
        """Forget all that waits for this place: a tombstone follows it."""
        for producer_id in list(self.places(group).get(place, ())):
            of_producer = self._producers[producer_id]
            del of_producer[group, place]
            if not of_producer:
                del self._producers[producer_id]
            self._take(producer_id, group, place)

    def end(self, producer_id: int, commit: _Commit | None) -> Steps[None] | None:
        """End a transaction; call `commit` for each offset that it commits, None if it aborts.

        Returns the work for all that exceeds one step, if any.
        """
        keys = self._producers.get(producer_id)
        if keys is None:
            return None
        if len(keys) > ENDED_AT_ONCE:
            return self._end_long(producer_id, keys, commit)
        del self._producers[producer_id]
        for group, place in keys:
            self._end_one(producer_id, group, place, commit)
        return None

    async def _end_long(
        self,
        producer_id: int,
        keys: dict[tuple[str, Place], None],
        commit: _Commit | None,
    ) -> None:
        while keys:
            for _ in range(min(ENDED_AT_ONCE, len(keys))):
                (group, place), _ = keys.popitem()
                self._end_one(producer_id, group, place, commit)
            await pause()
        del self._producers[producer_id]

    def _end_one(
        self,
        producer_id: int,
        group: str,
        place: Place,
        commit: _Commit | None,
    ) -> None:
        offset = self._take(producer_id, group, place)
        if commit is None or offset.value is None:
            return
        for other in self.places(group).get(place, {}).values():
            if other.number < offset.number:
                self._overtaken(other)
        commit(group, place, offset.value, offset.client)

    def _take(self, producer_id: int, group: str, place: Place) -> _Offset:
        places = self.groups[group]
        waiting = places[place]
        offset = waiting.pop(producer_id)
        self.count -= 1
        self._budget.use(offset.client, -offset.size_bytes)
        if not waiting:
            del places[place]
            if not places:
                del self.groups[group]
        return offset

    async def emptied(self) -> None:
        """Free all, in pieces; no other method may be called afterwards."""
        left = ENDED_AT_ONCE
        while self.groups:
            _, places = self.groups.popitem()
            while places:
                for offset in places.popitem()[1].values():
                    self._budget.use(offset.client, -offset.size_bytes)
                    left -= 1
                if left <= 0:
                    left = ENDED_AT_ONCE
                    await pause()
        while self._producers:
            _, keys = self._producers.popitem()
            await emptied(keys)
