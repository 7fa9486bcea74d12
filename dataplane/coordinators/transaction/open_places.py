"""Search for the partitions of this worker in which producers have open transactions.

After a loss of transaction states, shards ask where doubtful producers have open transactions, to
abort them. A search looks at all partitions of the worker, in slices of background work. Shards
that ask before it begins share its result; those that ask later get the result of the next one.

A search takes time, but finds every place in which a doubtful producer has a transaction when the
shard asks, or begins one afterwards:

- A transaction that is open when the shard asks is open when the search looks at its partition, or
  a marker has ended it.
- A transaction begins in a partition only after a verification (KIP-890), which begins there before
  the coordinator is asked. A shard asks when it is active and the whole worker knows this: later
  verifications ask this shard, which refuses doubtful ids.
- A verification that a coordinator before it has confirmed, or will confirm, is therefore in
  progress when the shard asks. Unless it has become an open transaction when the search looks at
  its partition, it still is in progress, and counts as a place. The marker of the abort ends it, so
  the append that relies on it is refused.

Not found, as without slices: transactions in partitions that other workers lead, those that begin
without a verification because it is disabled, and those of a partition whose leadership this worker
loses before the search looks at it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

from metaquorum.dataplane.coordinators.transaction.transaction import Place
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.scheduling.time_slices import TimeSlicer, for_each_of

PlacesOf: TypeAlias = Mapping[int, Collection[Place]]  # by producer id


class OpenPlaces:
    """Places of open transactions, for shards that ask."""

    def __init__(self, partitions: Iterable[Partition], slicer: TimeSlicer) -> None:
        self._partitions = partitions
        self._slicer = slicer
        self._waiting: list[Callable[[PlacesOf], object]] = []

    def ask(self, found: Callable[[PlacesOf], object]) -> None:
        """Call `found` with the places, as a search finds them that begins after this call."""
        self._waiting.append(found)
        if len(self._waiting) == 1:
            self._slicer.finish_in_background(self._search())

    async def _search(self) -> None:
        waiting, self._waiting = self._waiting, []
        places: dict[int, list[Place]] = {}

        def add(partition: Partition, producer_id: int) -> None:
            places.setdefault(producer_id, []).append((partition.topic, partition.index))

        await for_each_of(self._partitions, _producers, add)
        for found in waiting:
            found(places)


def _producers(partition: Partition) -> Collection[int]:
    """Return the producers with an open transaction, or a verification, in a partition led here."""
    producers = partition.log.producers
    pending = producers.verifications.pending
    if (producers.transactions is None and not pending) or not partition.is_served:
        return ()
    # A copy: it changes while the search waits for its next slice.
    return {*(producers.transactions.open.values() if producers.transactions else ()), *pending}
