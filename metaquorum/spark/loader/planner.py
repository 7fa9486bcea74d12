"""Planner of loads for a cluster: makes a plan, and checks an unfinished plan against the cluster.

It queries the cluster over blocking sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metaquorum.client.administration.admin import EARLIEST, LATEST
from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.errors import BrokerError
from metaquorum.client.socket_transport import BlockingAdmin, wait
from metaquorum.spark.loader.errors import RefusedError
from metaquorum.spark.loader.starting_points import (
    AtOffset,
    AtTime,
    Earliest,
    Ending,
    Latest,
    Starting,
    check_log_end,
    next_start,
    non_empty,
)
from metaquorum.spark.loader.table.load_plan import LoadPlan
from metaquorum.spark.loader.table.manifest import Manifest, check_cluster, check_topic
from metaquorum.spark.offset_ranges import ReadPlan
from metaquorum.spark.options import Assign, FetchOptions, OffsetsByPartition, ReadOptions
from metaquorum.spark.planning import make_plan
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.frozen import frozen

NO_OFFSET = -1


@frozen
class RangeSizes:
    """Limits for the size of ranges; a retry reads one range again."""

    min_ranges: int | None = None
    max_records: int | None = None
    max_bytes: int | None = None


class ClusterPlanner:
    """A `Planner` over blocking sockets."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Sequence[str],
        starting: Starting,
        ending: Ending,
        sizes: RangeSizes,
        fetch: FetchOptions,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._starting = starting
        self._ending = ending
        self._sizes = sizes
        self._fetch = fetch

    def make(self, previous: Manifest | None) -> ReadPlan | None:
        """Return the plan of the records to load; None: there are none. Blocking.

        Raises RefusedError if the load would leave a gap or an overlap, PlanError if the cluster
        does not have the offsets, BrokerError or AdminError if a request fails.
        """
        partitions = [where for name in self._topics for where in self._partitions(name)]
        if previous is not None:
            check_cluster(previous.cluster_id, self._cluster.cluster_id, "the table")
        starts = self._starts(partitions, previous)
        ends = self._ends(partitions)
        if previous is not None:
            self._check_ends(partitions, previous)
        chosen = non_empty(starts, ends)
        if not chosen:
            return None
        plan = make_plan(
            self._cluster,
            ReadOptions(
                fetch=self._fetch,
                topics=Assign(tuple(sorted(chosen))),
                starting=OffsetsByPartition({where: start for where, (start, _) in chosen.items()}),
                ending=OffsetsByPartition({where: end for where, (_, end) in chosen.items()}),
                min_partitions=self._sizes.min_ranges,
                max_records_per_partition=self._sizes.max_records,
                max_bytes_per_partition=self._sizes.max_bytes,
            ),
        )
        return plan if plan.ranges else None

    def check(self, plan: LoadPlan) -> None:
        what = f"the unfinished load {plan.version}"
        for name, facts in plan.read_plan.topics.items():
            try:
                topic = wait(self._cluster.topic(name, refresh=True))
            except BrokerError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                check_cluster(plan.read_plan.cluster_id, self._cluster.cluster_id, what)
                raise RefusedError(
                    f"topic {name} of {what} no longer exists; "
                    "--discard-unfinished discards that load"
                ) from None
            check_cluster(plan.read_plan.cluster_id, self._cluster.cluster_id, what)
            check_topic(name, facts.topic_id, topic.topic_id)

    def _partitions(self, topic: str) -> list[TopicPartition]:
        found = wait(self._cluster.topic(topic, refresh=True))
        return sorted(TopicPartition(topic, each.partition_index) for each in found.partitions)

    def _starts(
        self, partitions: Sequence[TopicPartition], previous: Manifest | None
    ) -> dict[TopicPartition, int]:
        positions = {} if previous is None else previous.positions
        found = self._offsets(partitions, self._starting)
        starts = {}
        for where in partitions:
            loaded = positions.get((where.topic, where.partition))
            if loaded is not None:
                starts[where] = next_start(where, loaded, self._starting, found[where])
            elif found[where] != NO_OFFSET:  # otherwise no record has that time or a later one
                starts[where] = found[where]
        return starts

    def _ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        found = self._offsets(partitions, self._ending)
        late = [where for where, offset in found.items() if offset == NO_OFFSET]
        return found | self._offsets(late, Latest())

    def _check_ends(self, partitions: Sequence[TopicPartition], previous: Manifest) -> None:
        """Raise RefusedError if a log ends before the offsets loaded from it.

        The end is the high watermark: the last stable offset may be lower than the loaded end.
        """
        known = [where for where in partitions if tuple(where) in previous.positions]
        for where, end in self._list(known, LATEST, read_committed=False).items():
            check_log_end(where, previous.positions[where], end)

    def _offsets(
        self, partitions: Sequence[TopicPartition], limit: Starting | Ending
    ) -> dict[TopicPartition, int]:
        """Return the offset of `limit` in each partition; NO_OFFSET: no record at or after it."""
        match limit:
            case AtOffset(offset):
                return dict.fromkeys(partitions, offset)
            case AtTime(timestamp_ms):
                time = timestamp_ms
            case Earliest():
                time = EARLIEST
            case Latest():
                time = LATEST
        return self._list(partitions, time, read_committed=self._fetch.read_committed)

    def _list(
        self, partitions: Iterable[TopicPartition], time: int, *, read_committed: bool
    ) -> dict[TopicPartition, int]:
        asked = dict.fromkeys(partitions, time)
        if not asked:
            return {}
        found = {}
        admin = BlockingAdmin(self._cluster)
        for where, answer in admin.list_offsets(asked, read_committed=read_committed).items():
            if isinstance(answer, BrokerError):
                raise answer
            found[where] = answer.offset
        return found
