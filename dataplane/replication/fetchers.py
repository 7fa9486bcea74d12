"""Fetchers of one worker: which of them fetches which partition, from which leader.

Each leader has num.replica.fetchers fetchers, and as many for partitions in which this replica is
not in sync.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Final
from zlib import crc32

import trio

from metaquorum.dataplane.fetch.session_client import Key
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication.replica_fetcher import (
    FetcherConfig,
    FollowerEvents,
    LeaderAddress,
    ReplicaFetcher,
)
from metaquorum.metadata.image import TopicImage
from metaquorum.quorum.channel import Endpoint
from metaquorum.runtime import Runtime

# A fetcher of replicas that catch up keeps its receive buffer, up to the limit of a response and
# this number of bytes: for fields that are not records, and a first batch that exceeds the limit.
SPARE_BYTES: Final = 2 << 20


class Fetchers:
    def __init__(
        self,
        worker_id: int,
        broker_epoch: Callable[[], int],
        runtime: Runtime,
        config: FetcherConfig,
        per_leader: int,
        address_of: Callable[[int], LeaderAddress | None],
        events: FollowerEvents,
        endpoint: Endpoint | None,
    ) -> None:
        """Create the fetchers of a worker; `run` starts them.

        `per_leader` is num.replica.fetchers, `address_of` returns the address of a worker.
        """
        self._worker_id = worker_id
        self._broker_epoch = broker_epoch
        self._runtime = runtime
        self._config = config
        self._catch_up_config = replace(config, kept_bytes=config.limits.max_bytes + SPARE_BYTES)
        self._per_leader = per_leader
        self._address_of = address_of
        self._events = events
        self._endpoint = endpoint
        self._fetchers: dict[tuple[int, int], tuple[ReplicaFetcher, trio.CancelScope]] = {}
        self._stopped: dict[int, ReplicaFetcher] = {}  # the last one of each leader without one
        self._fetched_by: dict[Key, tuple[int, int]] = {}
        self._nursery: trio.Nursery | None = None

    def __iter__(self) -> Iterator[ReplicaFetcher]:
        return iter([fetcher for fetcher, _ in self._fetchers.values()])

    async def run(self) -> None:
        """Run the fetchers until cancelled; partitions assigned after that are not fetched."""
        async with trio.open_nursery() as nursery:
            for fetcher, scope in self._fetchers.values():
                nursery.start_soon(self._run_fetcher, fetcher, scope)
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def assigned(self, partition: Partition) -> None:
        """Fetch the partition from its present leader, or stop if this replica does not follow."""
        key = partition.topic_id, partition.index
        followed = partition.leader_id if partition.is_follower else None
        fetcher_at = None if followed is None else (followed, self._number(partition))
        self._stop_fetching(key, unless=fetcher_at)
        if fetcher_at is not None:
            self._fetched_by[key] = fetcher_at
            self._fetcher(fetcher_at).add(partition, partition.leader_epoch)

    def removed(self, partition: Partition) -> None:
        """Stop fetching a partition that this worker no longer hosts or cannot use."""
        self._stop_fetching((partition.topic_id, partition.index), unless=None)

    @property
    def fetched(self) -> Collection[Key]:
        """Partitions that are fetched."""
        return self._fetched_by.keys()

    def look_at_leaders(self) -> None:
        """Let each fetcher apply what the metadata says about its leader now."""
        for fetcher in self:
            fetcher.look_at_leader()

    def suspects(self) -> frozenset[int]:
        """Return the leaders that have just closed a connection: their process may have ended.

        A leader stays suspect after its partitions here have got another leader: responses name
        that leader later, when all parts of this worker have applied the metadata.
        """
        stopped = self._stopped.values()
        return frozenset(
            fetcher.leader_id
            for fetcher in (*(each for each, _ in self._fetchers.values()), *stopped)
            if fetcher.is_leader_suspect
        )

    def look_for_ended_leaders(self, topics: Sequence[TopicImage]) -> None:
        """Let `suspects` include leaders of `topics` whose connections have just ended.

        Each look at a connection is a system call, so other leaders are left out; except for more
        partitions than there are connections, as looking for their leaders would take longer.
        """
        if sum([len(topic.partitions) for topic in topics]) >= len(self._fetchers):
            for fetcher, _ in self._fetchers.values():
                fetcher.look_for_end()
            return
        for leader_id in {partition.leader for topic in topics for partition in topic.partitions}:
            for number in range(2 * self._per_leader):
                if (known := self._fetchers.get((leader_id, number))) is not None:
                    known[0].look_for_end()

    def _number(self, partition: Partition) -> int:
        """Return the number of the leader's fetcher for the partition.

        Replicas out of sync have fetchers of their own: their large responses would delay the
        in-sync ones, for which producers wait (with 2 GB to catch up, acks=all took 30 ms instead
        of 2 ms).
        """
        number = crc32(partition.topic_id, partition.index) % self._per_leader
        is_in_sync = self._worker_id in partition.isr
        return number if is_in_sync else number + self._per_leader

    def _stop_fetching(self, key: Key, *, unless: tuple[int, int] | None) -> None:
        at = self._fetched_by.get(key)
        if at is None or at == unless:
            return
        del self._fetched_by[key]
        fetcher, scope = self._fetchers[at]
        fetcher.remove(key)
        if not len(fetcher):
            del self._fetchers[at]
            self._stopped[at[0]] = fetcher
            scope.cancel()

    def max_lag(self) -> int:
        """Return the largest number of committed records that a follower here has not fetched."""
        return max((fetcher.max_lag for fetcher, _ in self._fetchers.values()), default=0)

    def sum_of_lags(self) -> int:
        """Return the committed records that the followers here have not fetched, in all."""
        return sum(fetcher.sum_of_lags for fetcher, _ in self._fetchers.values())

    def _fetcher(self, at: tuple[int, int]) -> ReplicaFetcher:
        known = self._fetchers.get(at)
        if known is not None:
            return known[0]
        leader_id, number = at
        self._stopped.pop(leader_id, None)
        fetcher = ReplicaFetcher(
            self._worker_id,
            self._broker_epoch,
            leader_id,
            self._runtime,
            self._config if number < self._per_leader else self._catch_up_config,
            lambda: self._address_of(leader_id),
            self._events,
            self._endpoint,
            Random(self._runtime.random.getrandbits(64)),  # noqa: S311 - for jitter
        )
        scope = trio.CancelScope()
        self._fetchers[at] = fetcher, scope
        if self._nursery is not None:
            self._nursery.start_soon(self._run_fetcher, fetcher, scope)
        return fetcher

    async def _run_fetcher(self, fetcher: ReplicaFetcher, scope: trio.CancelScope) -> None:
        with scope:
            await fetcher.run()
