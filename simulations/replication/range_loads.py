"""Loads of exact offset ranges, planned once and read during the faults of the cluster.

    plan: topic id, log start, high watermark, leader epoch -> wait -> read, stop half way, read
    again from the start -> read again after the faults

`RangeLoader` reads with the shipped `RangeReader`, over the transport of a simulated machine. The
expected records come from the cluster history: the log of the leader of the plan's epoch, record by
record (`PlannedRange.names`). Only the loader needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Final

from metaquorum.client.administration.admin import EARLIEST, LATEST, AdminClient
from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.errors import AdminError
from metaquorum.client.trio_transport import TrioTransport
from metaquorum.client.values import ConfigResource, OffsetAtTime, ResourceType
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.kernel.mutation import swapped
from metaquorum.simulations.replication.cleanup_clients import CleanupAdministrator
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replica_clients import ReplicaClient
from metaquorum.simulations.replication.replicas import (
    Content,
    Identity,
    Name,
    PartitionHistory,
    Place,
)
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.spark.errors import DataLossError, LoadError
from metaquorum.spark.gaps import DATA_LOSS, Gap, GapReason
from metaquorum.spark.offset_ranges import OffsetRange
from metaquorum.spark.options import Connecting, FetchOptions
from metaquorum.wire.primitives.errors import KafkaError

if TYPE_CHECKING:
    import pyarrow as pa

# Rows of an Arrow batch; small ones let a read stop half way.
BATCH_ROWS: Final = (1, 1, 4, 1 << 17)
FETCH_BYTES: Final = (1, 1, 400, 3000)
# Probability that the loader's connections break after an Arrow batch.
RESETS: Final = (0.0, 0.05, 0.3)
# Share of plans of a loader that may not describe the topic's configs.
UNKNOWN_POLICY: Final = 0.3
MOST_RANGES: Final = 3  # parts of a plan
MOST_READS: Final = 3  # between two plans
KEPT_PLANS: Final = 6  # newest plans, which are read during the faults
READ_IN_THE_END: Final = 8  # most plans of existing topics that are read after the faults
# Timeout of reaching a leader, in seconds: during the faults, and after them.
PATIENCE_S: Final = (0.4, 1.5, 5.0)
CALM_PATIENCE_S: Final = 5.0
_CUT: Final = (GapReason.TRUNCATED, GapReason.REPLACED)


@dataclass(slots=True, eq=False)
class PlannedRange:
    """One planned offset range of a partition.

    `names`: the record that the plan expects at each offset; None if the plan's leader had none.
    """

    name: str
    history: PartitionHistory
    range: OffsetRange
    is_compacted: bool | None  # None: the loader may not describe the topic's configs
    names: Mapping[int, Name | None]
    # Record read at each offset, except in gaps that were REPLACED.
    read: dict[int, Identity] = field(default_factory=dict)
    reads: int = 0

    def __str__(self) -> str:
        one = self.range
        return f"{self.history} {one.start}-{one.end - 1}, epoch {one.leader_epoch}"


@dataclass(slots=True, eq=False)
class RangeRead:
    """Result of one read of a range, or of a part of it."""

    range: OffsetRange
    fails_on_data_loss: bool
    records: list[tuple[int, Identity]] = field(default_factory=list)
    gaps: Sequence[Gap] | None = None  # None: the read did not reach its end
    loss: Gap | None = None  # the gap for which the read failed

    @property
    def tells_of_losses(self) -> bool:
        """Whether the read reports losses: complete, or one that fails on data loss."""
        return self.gaps is not None or self.fails_on_data_loss


class LoadsAreExact(WatchingChecker):
    """Each offset of a range is the record that the plan expects, or a gap with a true reason.

    | reason | true for |
    |---|---|
    | DELETED | offsets below DeleteRecords or retention, or of a deleted topic |
    | COMPACTED | records that compaction removed |
    | TRUNCATED, REPLACED | committed records that were lost for an accepted reason |
    | CORRUPT, UNEXPLAINED | never: no disk is damaged here, and only compaction leaves holes |
    """

    invariant = "S1"

    def was_read(self, planned: PlannedRange, read: RangeRead) -> None:
        offsets = [offset for offset, _ in read.records]
        within = range(read.range.start, read.range.end)
        self.compare(
            offsets == sorted(set(offsets)) and all(offset in within for offset in offsets),
            "{}: offsets {} of records are not ascending, or not in the range",
            planned,
            offsets,
        )
        gaps = [*(read.gaps or ()), *([read.loss] if read.loss else ())]
        replaced = {
            offset
            for gap in gaps
            if gap.reason is GapReason.REPLACED
            for offset in range(gap.start, gap.end)
        }
        for offset, identity in read.records:
            if offset in replaced:
                self._is_of_a_later_epoch(planned, offset, identity)
            elif read.tells_of_losses or not self._was_written_later(planned, offset, identity):
                self._is_as_planned(planned, offset, identity)
        for gap in gaps:
            for offset in range(gap.start, gap.end):
                self._is_true(planned, offset, gap)
        if read.gaps is not None:
            self._is_whole(planned, read, offsets, replaced)

    def _is_as_planned(self, planned: PlannedRange, offset: int, identity: Identity) -> None:
        history, name = planned.history, planned.names.get(offset)
        if name is None:
            # The plan's leader alone compacted the record away: another replica may have kept it.
            meant = {
                known
                for other, known in history.identities.items()
                if other.offset == offset
                and other.leader_epoch < planned.range.leader_epoch
                and other in history.ever_committed
            }
        else:
            meant = {history.identities[name]}
        is_stray = identity not in meant and self.is_stray(planned, offset, identity)
        self.world.count("records of unclean leaders that no plan meant", is_stray)
        self.compare(
            identity in meant or is_stray,
            "{}: offset {} was read as {}, but the plan expects {} with {}",
            planned,
            offset,
            self._content(identity),
            name,
            [self._content(one) for one in meant],
        )

    def is_stray(self, planned: PlannedRange, offset: int, identity: Identity) -> bool:
        """Return whether an unclean election put a record of an earlier epoch at this offset.

        The unclean leader has that record from a leader that never committed it. The reader knows
        only the leader epoch at the plan's end, so it cannot distinguish this record from the one
        that was lost.
        """
        history, name = planned.history, planned.names.get(offset)
        return _is_lost(history, name, offset) and any(
            known == identity and other.offset == offset and other != name
            for other, known in history.identities.items()
            if other.leader_epoch <= planned.range.leader_epoch
        )

    def _is_stray_compacted(self, planned: PlannedRange, offset: int) -> bool:
        """Return whether a record like that of `is_stray` was compacted away at this offset.

        The reader takes neither the record nor its absence for a loss: the plan has no offset at
        which its leader epoch begins.
        """
        history = planned.history
        return _is_lost(history, planned.names.get(offset), offset) and any(
            other.offset == offset and other.leader_epoch < planned.range.leader_epoch
            for other in history.cleaned
        )

    def _is_of_a_later_epoch(self, planned: PlannedRange, offset: int, identity: Identity) -> None:
        self.compare(
            self._was_written_later(planned, offset, identity),
            "{}: offset {} was replaced, and read as {}, which no later leader appended there",
            planned,
            offset,
            self._content(identity),
        )

    def _was_written_later(self, planned: PlannedRange, offset: int, identity: Identity) -> bool:
        return any(
            known == identity
            and name.offset == offset
            and name.leader_epoch > planned.range.leader_epoch
            for name, known in planned.history.identities.items()
        )

    def _is_true(self, planned: PlannedRange, offset: int, gap: Gap) -> None:
        history, name = planned.history, planned.names.get(offset)
        if gap.reason is GapReason.DELETED:
            is_true = offset < history.deleted_to or self.cluster_history.state(history) is None
        elif gap.reason is GapReason.COMPACTED:
            # A record can be compacted away below the deleted offset without a probe noticing; a
            # log start may move back.
            is_unnoticed = history.compacts and offset < history.deleted_to
            is_true = name is None or name in history.cleaned or is_unnoticed
            if not is_true and self._is_stray_compacted(planned, offset):
                self.world.count("records of unclean leaders that were compacted")
                is_true = True
        elif gap.reason in _CUT:
            is_true = _is_lost(history, name, offset)
        else:
            is_true = False
        self.compare(
            is_true,
            "{}: offset {} ({}) is not {}: {} (deleted before {}, compacted: {}, lost: {})",
            planned,
            offset,
            name,
            gap.reason.name,
            gap,
            history.deleted_to,
            name in history.cleaned,
            name in history.gone or name in history.deposed,
        )

    def _is_whole(
        self,
        planned: PlannedRange,
        read: RangeRead,
        offsets: Sequence[int],
        replaced: set[int],
    ) -> None:
        """Check that each offset is one record or in one gap; both only if it was replaced."""
        assert read.gaps is not None
        gaps = [offset for gap in read.gaps for offset in range(gap.start, gap.end)]
        recorded = set(offsets)
        found = sorted([*(recorded - replaced), *gaps])
        self.compare(
            found == list(range(read.range.start, read.range.end)),
            "{}: {} records and the gaps {} are not the range {}-{}, each offset once",
            planned,
            len(offsets),
            read.gaps,
            read.range.start,
            read.range.end - 1,
        )
        lost = [gap for gap in read.gaps if gap.reason in DATA_LOSS]
        self.compare(
            not (lost and read.fails_on_data_loss),
            "{}: the read should have failed on data loss: {}",
            planned,
            lost,
        )

    def _content(self, identity: Identity) -> Content | None:
        return (self.cluster_history.contents or {}).get(identity)


def _is_lost(history: PartitionHistory, name: Name | None, offset: int) -> bool:
    """Return whether a truncation at or before `offset` lost the committed record there."""
    lost = history.gone.keys() | history.deposed | history.gone_unneeded
    if name in lost:
        return True
    # Records already deleted or compacted away are truncated too, but not listed as lost.
    is_unneeded = name is None or name in history.cleaned or offset < history.deleted_to
    return is_unneeded and (bool(lost) or history.was_unclean)


class RetriesReadTheSame(WatchingChecker):
    """Repeated reads of a planned range return the same record at each offset, or none.

    The checker compares reads only; `LoadsAreExact` checks whether a record may be missing.
    """

    invariant = "S2"

    def was_read(self, planned: PlannedRange, read: RangeRead) -> None:
        if not read.tells_of_losses:
            return
        gaps = [gap for gap in read.gaps or () if gap.reason is GapReason.REPLACED]
        if read.loss is not None and read.loss.reason is GapReason.REPLACED:
            gaps.append(read.loss)
        for offset, identity in read.records:
            if any(gap.start <= offset < gap.end for gap in gaps):
                continue
            known = planned.read.setdefault(offset, identity)
            exact = self.cluster_state.checker(LoadsAreExact)
            self.compare(
                known == identity
                or exact.is_stray(planned, offset, identity)
                or exact.is_stray(planned, offset, known),
                "{}: offset {} was first read as {}, and now as {}",
                planned,
                offset,
                known,
                identity,
            )


class LoadsAdministrator(CleanupAdministrator):
    """Administrator whose topics mostly allow unclean leader election from their creation."""

    async def _create_as(self, connection: ClientConnection, name: str) -> None:
        await super()._create_as(connection, name)
        if name in self.cluster_state.topic_outcomes.lasting:
            await self._set_unclean(connection, name)


LOAD_CHECKERS: Final = (LoadsAreExact, RetriesReadTheSame)


class RangeLoader(ReplicaClient):
    """Client that plans ranges and reads each several times, as retried tasks do."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        racks = cluster_state.settings.racks
        self._rack = f"rack-{draw.randrange(racks)}" if racks and draw.random() < 0.7 else ""
        self._plans: list[PlannedRange] = []
        # A separate random stream: the other draws do not change.
        self._rights = cluster_state.world.stream(f"{name} rights")

    async def run(self, runtime: Runtime) -> None:
        while not self.cluster_state.calm and not self.cluster_state.closing:
            at = self.place()
            if at is not None:
                await self._load(runtime, *at)
            await sleep(runtime.clock, RETRY_S)
        for planned in self._worth_reading_in_the_end():
            await self._read_in_the_end(runtime, planned)
        self.done = True

    def _worth_reading_in_the_end(self) -> list[PlannedRange]:
        """Return plans of readable partitions, and one plan of a deleted topic."""
        cluster_state = self.cluster_state
        gone, there = [], []
        for planned in reversed(self._plans):
            if cluster_state.cluster_history.state(planned.history) is None:
                gone.append(planned)
            elif not cluster_state.is_stuck(planned.history):
                there.append(planned)
        return [*there[:READ_IN_THE_END], *gone[:1]]

    async def _load(self, runtime: Runtime, name: str, place: Place) -> None:
        """Make one plan, and read it and earlier ones in random order."""
        draw = self._draw
        cluster = self._cluster(runtime, draw.choice(PATIENCE_S))
        try:
            planned = await self._plan(cluster, name, place.partition)
            if planned is not None:
                self._plans.append(planned)
            for _ in range(draw.randint(0, MOST_READS) if self._plans else 0):
                await sleep(runtime.clock, draw.choice([0.0, 0.02, 0.2]))
                if self.cluster_state.calm:
                    return
                if draw.random() < 0.3:  # a task that is retried may be another process
                    cluster.close()
                    cluster = self._cluster(runtime, draw.choice(PATIENCE_S))
                await self._read_ranges(runtime, cluster, draw.choice(self._plans[-KEPT_PLANS:]))
        finally:
            cluster.close()

    async def _read_in_the_end(self, runtime: Runtime, planned: PlannedRange) -> None:
        """Read a range after the faults, until a read reaches its end or no leader can exist."""
        while not self.cluster_state.closing:
            cluster = self._cluster(runtime, CALM_PATIENCE_S)
            try:
                read = await self._read(runtime, cluster, planned, planned.range, is_strict=False)
            finally:
                cluster.close()
            if read.gaps is not None or self._is_stuck(planned):
                self.cluster_state.world.count("ranges loaded in the end", read.gaps is not None)
                return
            await sleep(runtime.clock, RETRY_S)

    def _is_stuck(self, planned: PlannedRange) -> bool:
        """Return whether the topic exists, but the partition can have no leader again."""
        is_there = self.cluster_state.cluster_history.state(planned.history) is not None
        return is_there and self.cluster_state.is_stuck(planned.history)

    def _cluster(self, runtime: Runtime, patience_s: float) -> Cluster:
        workers = self.cluster_state.workers
        return Cluster(
            TrioTransport(runtime.clock, runtime.network),
            [(worker.name, worker.config.listen[1]) for worker in workers],
            client_id=self.name,
            timeout_s=patience_s,
            random=self._draw,
        )

    # The plan

    async def _plan(self, cluster: Cluster, name: str, partition: int) -> PlannedRange | None:
        cluster_history = self.cluster_state.cluster_history
        known = cluster_history.image.topic(name)
        where = TopicPartition(name, partition)
        admin = AdminClient(cluster)
        try:
            topic = await cluster.topic(name, refresh=True)
            first = (await admin.list_offsets({where: EARLIEST}))[where]
            last = (await admin.list_offsets({where: LATEST}))[where]
            resource = ConfigResource(ResourceType.TOPIC, name)
            (policy,) = await admin.describe_configs(resource, ["cleanup.policy"])
        except (KafkaError, AdminError, *BROKEN) as error:
            self.say(f"plans nothing of {where}: {error}")
            return None
        now = cluster_history.image.topic(name)
        if known is None or now is None or not known.topic_id == now.topic_id == topic.topic_id:
            return None  # the topic was created again meanwhile: the responses are of two topics
        if not isinstance(first, OffsetAtTime) or not isinstance(last, OffsetAtTime):
            self.say(f"plans nothing of {where}: {first}, {last}")
            return None
        draw = self._draw
        start = draw.choice([first.offset, draw.randint(first.offset, last.offset)])
        end = draw.choice([last.offset, last.offset, draw.randint(start, last.offset)])
        if start >= end:
            return None
        range_ = OffsetRange(name, partition, start, end, topic.topic_id, last.leader_epoch)
        history = cluster_history.history(topic.topic_id, partition)
        names = planned_names(history, range_)
        is_compacted = "compact" in (policy.value or "")
        knows_policy = self._rights.random() >= UNKNOWN_POLICY
        planned = PlannedRange(name, history, range_, is_compacted if knows_policy else None, names)
        self.cluster_state.world.count("plans of an unknown policy", not knows_policy)
        self.say(f"plans {planned}")
        self.cluster_state.world.count("ranges planned")
        return planned

    # Reading

    async def _read_ranges(self, runtime: Runtime, cluster: Cluster, planned: PlannedRange) -> None:
        """Read the plan's range, perhaps in several parts, until a part fails."""
        draw, whole = self._draw, planned.range
        cuts = sorted(draw.randint(whole.start, whole.end) for _ in range(draw.choice([0, 0, 2])))
        is_strict = draw.random() < 0.5
        for start, end in zip([whole.start, *cuts], [*cuts, whole.end], strict=True):
            part = replace(whole, start=start, end=end)
            read = await self._read(
                runtime,
                cluster,
                planned,
                part,
                is_strict=is_strict,
                abandons=draw.random() < 0.25,
            )
            if read.gaps is None:
                return

    async def _read(
        self,
        runtime: Runtime,
        cluster: Cluster,
        planned: PlannedRange,
        range_: OffsetRange,
        *,
        is_strict: bool,
        abandons: bool = False,
    ) -> RangeRead:
        """Read a range and check the result. With `abandons`, stop at some batch before the end."""
        from metaquorum.spark.range_reader import RangeReader

        draw, world = self._draw, self.cluster_state.world
        world.count("loads retried", planned.reads > 0)
        planned.reads += 1
        connecting = Connecting("", client_id=self.name, rack=self._rack)
        options = FetchOptions(
            connecting,
            read_committed=draw.random() < 0.5,
            fail_on_data_loss=is_strict,
            include_headers=True,
            fetch_max_bytes=draw.choice(FETCH_BYTES),
        )
        reader = RangeReader(cluster, range_, options, is_compacted=planned.is_compacted)
        read = RangeRead(range_, is_strict)
        pause_s = 0.0 if self.cluster_state.calm else draw.choice([0.0, 0.0, 0.02, 0.3])
        resets = 0.0 if self.cluster_state.calm else draw.choice(RESETS)
        epoch = self._leader_epoch(planned)
        text = ""
        try:
            async with aclosing(reader.read()) as batches:
                async for batch in batches:
                    read.records += loaded_records(batch)
                    if abandons and draw.random() < 0.3:
                        text = "left half way"
                        break
                    if draw.random() < resets:
                        self._reset_connections()
                    await sleep(runtime.clock, pause_s)
        except DataLossError as error:
            text, read.loss = str(error), error.gap
        except LoadError as error:
            text = str(error)
        report = reader.report
        if not text and report is not None:
            read.gaps, text = report.gaps, "read"
            world.count("ranges loaded")
            world.count("loads from several fetches", report.fetches > 1)
        gaps = [*(read.gaps or ()), *([read.loss] if read.loss else ())]
        for gap in gaps:
            world.count(f"gaps: {gap.reason.name}")
            world.count("gaps of logs that were cut", gap.reason in _CUT)
        moved = bool(read.records) and self._leader_epoch(planned) != epoch
        world.count("leaders that moved in mid-range", moved)
        shown = ", ".join(f"{gap.start}-{gap.end - 1} {gap.reason.name}" for gap in gaps)
        self.say(
            f"{planned}: {range_.start}-{range_.end - 1}: {len(read.records)} records, "
            f"gaps [{shown}], {text}"
        )
        self.cluster_state.checker(LoadsAreExact).was_read(planned, read)
        self.cluster_state.checker(RetriesReadTheSame).was_read(planned, read)
        return read

    def _reset_connections(self) -> None:
        """Reset the loader's connections; requests and responses in flight are lost."""
        world = self.cluster_state.world
        for worker in self.cluster_state.workers:
            world.count("connections of loads reset", world.internet.reset(self.name, worker.name))

    def _leader_epoch(self, planned: PlannedRange) -> int:
        state = self.cluster_state.cluster_history.state(planned.history)
        return -1 if state is None else state.leader_epoch


def planned_names(history: PartitionHistory, range_: OffsetRange) -> dict[int, Name | None]:
    """Return the names of the records that the leader of the plan's epoch had at these offsets."""
    epoch = range_.leader_epoch
    term = history.terms[epoch]
    return {
        offset: Name(epoch, offset)
        if offset >= term.start_offset
        else Name(term.epochs[offset], offset)
        if offset in term.epochs
        else None
        for offset in range(range_.start, range_.end)
    }


def loaded_records(batch: pa.RecordBatch) -> Iterator[tuple[int, Identity]]:
    """Yield offset and identity of each record; a tombstone has its unique text in a header."""
    columns = (batch.column(name).to_pylist() for name in ("offset", "key", "value", "headers"))
    for offset, key, value, headers in zip(*columns, strict=True):
        text = value if value is not None else headers[0]["value"]
        yield offset, Content(key, text, is_tombstone=value is None).identity


@contextmanager
def small_arrow_batches(draw: Random) -> Iterator[None]:
    """Make readers return Arrow batches of a few rows while the block runs."""
    from metaquorum.spark import range_reader

    rows = draw.choice(BATCH_ROWS)
    with swapped(range_reader, "MAX_BATCH_ROWS", lambda _: rows):
        yield
