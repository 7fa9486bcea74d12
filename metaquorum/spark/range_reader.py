"""One offset range of a partition as Arrow record batches, and a report of what was not there.

`RangeReader` fetches (`partition_fetcher`), decodes (`columns`) and says for each offset without a
record why that is so (`gaps`). The next fetch is under way while the last response is decoded.
Memory: one fetch response and one Arrow batch, whatever the range.

How each offset from `start` to `end` is accounted for, in order:

    below the log's start                          DELETED
    before the next batch, or inside one           COMPACTED; UNEXPLAINED where the topic is not
                                                     compacted; REPLACED behind a cut, see below
    in a control batch                             CONTROL
    in an aborted transaction, read_committed      ABORTED
    in a batch of a later leader epoch than the
      plan's end has                               REPLACED: the log was cut, then written again;
                                                     what is in the batch is read
    at or behind the end of a log that was cut     TRUNCATED
    in a batch that cannot be decoded              CORRUPT
    everything else                                a record

The leader epoch tells a log that was cut from one that only lags: leader epochs never descend in a
log, so that no record that the plan meant has a later epoch than the plan's end (KIP-101, KIP-320).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from metaquorum.client.aborted_transactions import AbortedTransactions
from metaquorum.client.admin import EARLIEST, LATEST, AdminClient
from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.errors import (
    AdminError,
    BrokerError,
    NotServedError,
    UnreachableError,
    broker_error,
)
from metaquorum.client.socket_transport import wait
from metaquorum.client.transport import BROKEN
from metaquorum.spark.columns import BatchBuilder, schema
from metaquorum.spark.errors import DataLossError, LoadError
from metaquorum.spark.gaps import DATA_LOSS, MAX_LISTED_GAPS, Gap, GapReason, RangeReport
from metaquorum.spark.offset_ranges import UNKNOWN, OffsetRange
from metaquorum.spark.options import FetchOptions
from metaquorum.spark.partition_fetcher import OutOfRangeError, PartitionFetcher, TopicGoneError
from wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wire.primitives.errors import ErrorCode, KafkaError, WireError
from wire.primitives.frozen import frozen
from wire.records.records import BatchHeader, batch_crc, batches, stored_problem

if TYPE_CHECKING:
    import pyarrow as pa

    from wire.messages.fetch import PartitionData
    from wire.primitives.types import Buffer

# An Arrow batch is handed out at the first of these: memory that a processor's cache holds, and
# that the next batch uses again.
MAX_BATCH_ROWS: Final = 1 << 17
MAX_BATCH_BYTES: Final = 4 << 20
# A batch that cannot be decoded is fetched again, over another connection, before it is believed.
CORRUPT_ATTEMPTS: Final = 3
# The most that a batch can span: its last offset delta is an int32.
MAX_BATCH_OFFSETS: Final = 1 << 31


@frozen
class Progress:
    """So far, of one range: `position` is the offset that comes next."""

    position: int
    records: int
    bytes: int
    throttled_ms: int


class RangeReader:
    """Iterate once; `report` is there at the end.

    LoadError if the range cannot be read; DataLossError, one of these, if it lost records and
    `fail_on_data_loss` is set.
    """

    def __init__(
        self,
        cluster: Cluster,
        range_: OffsetRange,
        options: FetchOptions,
        *,
        is_compacted: bool | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """`is_compacted`: of the topic, as the plan knows; None: it does not."""
        self.report: RangeReport | None = None
        self._cluster = cluster
        self._range = range_
        self._where = TopicPartition(range_.topic, range_.partition)
        self._options = options
        self._is_compacted = is_compacted
        self._on_progress = on_progress
        self._position = range_.start
        self._builder = BatchBuilder(
            schema(options.include_headers, options.columns), range_.topic, range_.partition
        )
        self._gaps = _GapList()
        self._corrupt_attempts = 0
        self._damage = ""  # of the batch at the position, which is fetched again
        self._replaced = ""  # why the batch that is being decoded is not the plan's
        self._nothing_up_to = 0  # as the last response said, if it had no records
        self._truncation: str | None = None  # what the cluster's ledger says of it, once asked
        self._fetcher = PartitionFetcher(
            cluster,
            self._where,
            range_.topic_id,
            read_committed=options.read_committed,
            max_bytes=options.fetch_max_bytes,
            rack=options.connecting.rack,
        )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """`read`, over a blocking transport."""
        source = self.read()

        async def step() -> pa.RecordBatch | None:
            return await anext(source, None)

        try:
            while (batch := wait(step())) is not None:
                yield batch
        finally:
            wait(source.aclose())

    async def read(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """The records of the range, in order, in batches that are never empty."""
        try:
            async with aclosing(self._read()) as source:
                async for batch in source:
                    yield batch
        except TopicGoneError as error:
            await self._lose(self._range.end, GapReason.DELETED, str(error))
        except (KafkaError, AdminError, *BROKEN) as error:
            text = f"{self._where}, offsets {self._position} to {self._range.end - 1}: {error}"
            raise LoadError(text) from error
        finally:
            self._fetcher.close()
        if self._builder.rows:
            yield self._builder.take()
        self.report = self._make_report()

    async def _read(self) -> AsyncGenerator[pa.RecordBatch, None]:
        end = self._range.end
        cluster, builder = self._cluster, self._builder
        patience = cluster.deadline()
        idle = 0
        while (before := self._position) < end:
            obstacle = ""
            try:
                data = await self._fetcher.fetch(before)
            except OutOfRangeError:
                self._nothing_up_to = 0
                obstacle = await self._on_out_of_range()
            else:
                if data.records:
                    self._nothing_up_to = 0
                    assert not hasattr(data.records, "size_bytes")  # holes are only ever encoded
                    async with aclosing(self._decode(data, data.records)) as steps:
                        async for _ in steps:
                            if (
                                builder.rows >= MAX_BATCH_ROWS
                                or builder.data_bytes >= MAX_BATCH_BYTES
                            ):
                                yield builder.take()
                if self._position == before:
                    obstacle = self._damage or await self._on_nothing(data)
            self._tell_progress()
            if self._position > before:
                patience = cluster.deadline()
                idle = 0
            elif await cluster.back_off(idle, patience):
                idle += 1
            else:
                raise LoadError(f"{self._where}, offset {before}: {obstacle}")

    # One response

    async def _decode(self, data: PartitionData, buffer: Buffer) -> AsyncGenerator[None, None]:
        """Each step takes in a piece of a record batch, or less; `_position` is behind it."""
        end = self._range.end
        found, problem = _headers(buffer)
        if found and found[-1][1].next_offset < end and problem is None:
            await self._fetcher.prefetch(found[-1][1].next_offset)
        aborted = AbortedTransactions(data.aborted_transactions)
        for index, (start, header) in enumerate(found):
            if header.next_offset <= self._position:
                continue
            try:
                _check_stored(buffer, start, header)
                if header.leader_epoch > self._range.leader_epoch != UNKNOWN:
                    # Others are asked about it, whose answers may come into this buffer.
                    buffer = bytes(buffer)
                    await self._on_later_epoch(header, data.log_start_offset)
                elif header.base_offset > self._position:
                    await self._absent(min(header.base_offset, end), data.log_start_offset)
                if self._position >= end:
                    return
                stop = min(header.next_offset, end)
                if header.is_control:
                    aborted.on_marker(buffer, start, header)
                    await self._lose(stop, GapReason.CONTROL)
                elif aborted.covers(header):
                    await self._lose(stop, GapReason.ABORTED)
                else:
                    for _ in self._builder.add(buffer, start, header, self._position, end):
                        yield
                    for first, behind in self._builder.missing_runs():
                        if not self._replaced:
                            self._position = first
                            await self._absent(behind, data.log_start_offset)
                    await self._take(stop)
            except (WireError, KafkaError) as error:
                if isinstance(error, BrokerError):
                    raise
                following = found[index + 1][1] if index + 1 < len(found) else None
                await self._on_corrupt(header, following, error)
                return
            self._damage, self._corrupt_attempts, self._replaced = "", 0, ""
        if problem is not None and self._position < end:
            self._on_unreadable(problem)

    async def _on_corrupt(
        self, header: BatchHeader, following: BatchHeader | None, error: WireError | KafkaError
    ) -> None:
        """The batch is to be fetched again; or what is left of it is a gap."""
        last = self._builder.last_offset
        if last is not None and last >= self._position:
            for first, behind in self._builder.missing_runs():
                if not self._replaced:
                    self._position = first
                    await self._absent(behind, first)
            await self._take(last + 1)  # its records before the damage were
        self._replaced = ""
        self._damage = f"the batch at offset {header.base_offset} cannot be decoded: {error}"
        if self._fetch_again():
            return
        behind = header.next_offset if following is None else following.base_offset
        if not self._position < behind <= header.base_offset + MAX_BATCH_OFFSETS:
            raise LoadError(f"{self._where}: {self._damage}; nor is it known where it ends")
        await self._lose(behind, GapReason.CORRUPT, self._damage)
        self._damage, self._corrupt_attempts = "", 0

    def _on_unreadable(self, error: KafkaError) -> None:
        """Something at the position is not even the header of a batch."""
        if error.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
            raise LoadError(
                f"{self._where}: the records at offset {self._position} are in an older format, "
                f"which cannot be read ({error.message}). Copy the topic with a client that can"
            )
        self._damage = f"there is no record batch at offset {self._position}: {error.message}"
        if not self._fetch_again():
            raise LoadError(f"{self._where}: {self._damage}")

    def _fetch_again(self) -> bool:
        """Whether damage is to be looked at once more: over another connection, of the leader."""
        self._fetcher.close()
        self._fetcher.use_leader()
        self._corrupt_attempts += 1
        return self._corrupt_attempts < CORRUPT_ATTEMPTS

    # What is not there

    async def _absent(self, end: int, log_start: int) -> None:
        """No record has an offset from the position up to `end`, though the log reaches so far."""
        if log_start > self._position:
            await self._deleted(min(end, log_start), log_start)
        if self._position >= min(end, self._range.end):
            return
        if self._is_compacted is False:
            detail = "offsets are missing inside the log of a topic without compaction"
            await self._lose(end, GapReason.UNEXPLAINED, detail)
        else:
            await self._lose(end, GapReason.COMPACTED)

    async def _deleted(self, end: int, log_start: int) -> None:
        detail = f"the log begins at offset {log_start} now: retention, or DeleteRecords"
        await self._lose(end, GapReason.DELETED, detail)

    async def _lose(self, end: int, reason: GapReason, detail: str = "") -> None:
        """Position to `end` is a gap. DataLossError where that must not be."""
        if self._replaced:
            reason, detail = GapReason.REPLACED, self._replaced
        end = min(end, self._range.end)
        if end > self._position:
            gap = Gap(self._position, end, reason, detail)
            if reason in DATA_LOSS and self._options.fail_on_data_loss:
                raise DataLossError(self._range, gap)
            self._gaps.add(gap)
            self._position = end

    async def _take(self, end: int) -> None:
        """Records from the position up to `end` have been added; they may not be the plan's."""
        if self._replaced:
            await self._lose(end, GapReason.REPLACED)
        self._position = end

    async def _on_later_epoch(self, header: BatchHeader, log_start: int) -> None:
        """The batch was written by a later leader than the plan knew of.

        What lies before it may have been compacted away, or cut off and then written again. If the
        batch has offsets of the range, `_replaced` is set.
        """
        stop, end = header.base_offset, self._range.end
        if stop > self._position:
            cut_at = await self._cut_at(header.leader_epoch)
            kept = min(stop, end) if cut_at is None else min(stop, end, cut_at)
            if kept > self._position:
                await self._absent(kept, log_start)
        if self._position < end:
            self._replaced = (
                "the log was cut since the plan was made (leader epoch "
                f"{self._range.leader_epoch}), and written again in leader epoch "
                f"{header.leader_epoch}{await self._ledger()}"
            )
            if self._options.fail_on_data_loss:
                await self._lose(header.next_offset, GapReason.REPLACED)
            if stop > self._position:
                await self._lose(stop, GapReason.REPLACED)

    async def _on_nothing(self, data: PartitionData) -> str:
        """The response had nothing: the log ends here, for now or for good. If not, what to say."""
        if self._fetcher.is_from_replica:
            self._fetcher.use_leader()
            return "the replica that was read from has no records there"
        readable = data.high_watermark
        if self._options.read_committed and data.last_stable_offset >= 0:
            readable = data.last_stable_offset
        if readable <= self._position:
            return await self._on_short_log(readable)
        # The response before this one said as much: what may be read has no batch up to there.
        if self._nothing_up_to > self._position:
            await self._absent(min(self._nothing_up_to, readable), data.log_start_offset)
        self._nothing_up_to = readable
        return f"no records come, though the log reaches to offset {readable}"

    async def _on_short_log(self, readable: int) -> str:
        """What may be read ends before the range does."""
        cut_at = await self._cut_at()
        if cut_at is not None and cut_at <= readable <= self._position:
            detail = f"the log ends at offset {readable} since it was cut{await self._ledger()}"
            await self._lose(self._range.end, GapReason.TRUNCATED, detail)
        return (
            f"the log can be read up to {readable} only, though it had offsets up to "
            f"{self._range.end - 1} when the plan was made. Replicas may lag behind, or a "
            "transaction may be open: run the load again later"
        )

    async def _on_out_of_range(self) -> str:
        """The leader has no such offset: deleted, or the log is shorter than it was."""
        admin = AdminClient(self._cluster)
        bounds = []
        for time in (EARLIEST, LATEST):
            found = (await admin.list_offsets({self._where: time}))[self._where]
            if isinstance(found, BrokerError):
                raise found
            bounds.append(found.offset)
        await self._fetcher.check_topic()  # whose name alone was asked for
        log_start, log_end = bounds
        if log_start > self._position:
            await self._deleted(log_start, log_start)
        elif log_end < self._position:
            return await self._on_short_log(log_end)
        return f"it is out of range, though the log reaches from {log_start} to {log_end}"

    async def _cut_at(self, seen_epoch: int = UNKNOWN) -> int | None:
        """Where the log was cut since the plan was made; None: it was not, as far as is known.

        A leader of an epoch before `seen_epoch` is not asked: it has not heard of the cut.
        """
        cluster = self._cluster
        self._fetcher.close()  # whose answer would come first
        patience = cluster.deadline()
        attempt = 0
        while self._range.leader_epoch != UNKNOWN:
            try:
                ended = await self._end_of_epoch(self._range.leader_epoch, seen_epoch)
            except NotServedError:
                break
            except (BrokerError, UnreachableError) as error:
                if isinstance(error, BrokerError) and not error.retriable:
                    break
                if not await cluster.back_off(attempt, patience):
                    raise
                attempt += 1
            else:
                await self._fetcher.check_topic()  # whose name alone was asked for
                return ended if 0 <= ended < self._range.end else None
        return None

    async def _end_of_epoch(self, epoch: int, seen_epoch: int) -> int:
        """Where the leader's log has the first later epoch, or ends. BrokerError."""
        where = self._where
        found = await self._cluster.partition(where, refresh=True)
        if found.leader_id not in self._cluster.nodes or UNKNOWN < found.leader_epoch < seen_epoch:
            text = "no leader at this time"
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, text, f"partition {where}")
        asked = OffsetForLeaderPartition(
            partition=where.partition,
            current_leader_epoch=found.leader_epoch,
            leader_epoch=epoch,
        )
        topic = OffsetForLeaderTopic(topic=where.topic, partitions=[asked])
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic])
        response: OffsetForLeaderEpochResponse = await self._cluster.call(
            request, to=found.leader_id
        )
        for result in response.topics:
            for partition in result.partitions:
                if partition.error_code:
                    raise broker_error(partition.error_code, None, f"partition {where}")
                return partition.end_offset
        return UNKNOWN

    async def _ledger(self) -> str:
        """What the workers' truncation ledgers say of this partition; "" of any other cluster."""
        if self._truncation is None:
            self._truncation = ""
            self._fetcher.close()  # whose answer would come first
            admin = AdminClient(self._cluster)
            entries = []
            for node_id in sorted(self._cluster.nodes):
                try:
                    ledger = await admin.describe_truncations(node_id, [self._where.topic])
                except (KafkaError, AdminError, *BROKEN):
                    continue  # another Kafka, no right to see it, or a node that is down
                entries += [
                    one
                    for one in ledger.truncations
                    if one.partition == self._where.partition
                    and (one.end_offset is None or one.end_offset > self._range.start)
                    and one.offset < self._range.end
                ]
            for one in sorted(entries, key=lambda one: one.time_ms)[-3:]:
                at = datetime.fromtimestamp(one.time_ms / 1000, UTC)
                upto = "" if one.end_offset is None else f" to {one.end_offset - 1}"
                self._truncation += (
                    f"; at {at:%Y-%m-%d %H:%M:%S} UTC node {one.node_id} removed offsets "
                    f"{one.offset}{upto} ({one.reason}; acknowledged: {one.acknowledged})"
                )
        return self._truncation

    # What is told

    def _tell_progress(self) -> None:
        if self._on_progress is not None:
            builder, fetcher = self._builder, self._fetcher
            self._on_progress(
                Progress(self._position, builder.records, builder.bytes, fetcher.throttled_ms)
            )

    def _make_report(self) -> RangeReport:
        builder, fetcher, gaps = self._builder, self._fetcher, self._gaps
        return RangeReport(
            records=builder.records,
            bytes=builder.bytes,
            first_offset=builder.first_offset,
            last_offset=builder.last_offset,
            min_timestamp_ms=builder.min_timestamp_ms,
            max_timestamp_ms=builder.max_timestamp_ms,
            missing=dict(gaps.missing),
            gaps=tuple(gaps.listed),
            gap_count=gaps.count,
            fetches=fetcher.fetches,
            fetched_bytes=fetcher.fetched_bytes,
            throttled_ms=fetcher.throttled_ms,
        )


def _check_stored(buffer: Buffer, start: int, header: BatchHeader) -> None:
    """WireError unless the batch is as its leader wrote it."""
    if batch_crc(buffer, start, header.batch_bytes) != header.crc:
        raise WireError("its checksum does not match")
    if problem := stored_problem(header):
        raise WireError(problem)


def _headers(buffer: Buffer) -> tuple[list[tuple[int, BatchHeader]], KafkaError | None]:
    """The batches that lie whole in the buffer, up to the first whose header makes no sense."""
    found: list[tuple[int, BatchHeader]] = []
    try:
        for start, header in batches(buffer):
            found.append((start, header))
    except KafkaError as error:
        return found, error
    return found, None


class _GapList:
    """Gaps in order; neighbours with the same reason and detail are one."""

    def __init__(self) -> None:
        self.listed: list[Gap] = []
        self.count = 0
        self.missing: dict[GapReason, int] = {}
        self._last: Gap | None = None

    def add(self, gap: Gap) -> None:
        self.missing[gap.reason] = self.missing.get(gap.reason, 0) + gap.offsets
        last = self._last
        if (
            last is not None
            and last.end == gap.start
            and (last.reason, last.detail) == (gap.reason, gap.detail)
        ):
            gap = Gap(last.start, gap.end, gap.reason, gap.detail)
            if len(self.listed) == self.count:
                self.listed[-1] = gap
        else:
            self.count += 1
            if len(self.listed) < MAX_LISTED_GAPS:
                self.listed.append(gap)
        self._last = gap
