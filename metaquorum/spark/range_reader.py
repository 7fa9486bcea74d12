"""Reader of one offset range: Arrow record batches, and a report with the reason of each gap.

`RangeReader` fetches (`partition_fetcher`), decodes (`columns`) and classifies each offset without
a record (`gaps`). The next fetch is in flight while the last response is decoded. Memory: one fetch
response and one Arrow batch, independent of the size of the range.

Classification of each offset from `start` to `end`, in order:

    below the log start offset                     DELETED
    missing before the next batch, or inside one   COMPACTED; UNEXPLAINED if the topic is not
                                                     compacted; REPLACED after a truncation, see
                                                     below
    in a control batch                             CONTROL
    in an aborted transaction, read_committed      ABORTED
    in a batch of a later leader epoch than the
      plan's end                                   REPLACED: the log was truncated, then written
                                                     again; the batch is read
    at or beyond the end of a truncated log        TRUNCATED
    in a batch that cannot be decoded              CORRUPT
    all others                                     a record

The leader epoch distinguishes a truncated log from a log that only lags: leader epochs never
decrease in a log, so no record of the plan has a later epoch than the plan's end (KIP-101,
KIP-320).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from metaquorum.client.aborted_transactions import AbortedTransactions
from metaquorum.client.administration.admin import EARLIEST, LATEST, AdminClient
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
from metaquorum.client.utc_text import utc_text
from metaquorum.spark.columns import BatchBuilder, schema
from metaquorum.spark.errors import DataLossError, LoadError
from metaquorum.spark.gaps import DATA_LOSS, MAX_LISTED_GAPS, Gap, GapReason, RangeReport
from metaquorum.spark.offset_ranges import UNKNOWN, OffsetRange
from metaquorum.spark.options import FetchOptions
from metaquorum.spark.partition_fetcher import OutOfRangeError, PartitionFetcher, TopicGoneError
from metaquorum.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.records.records import BatchHeader, batch_crc, batches, stored_problem

if TYPE_CHECKING:
    import pyarrow as pa

    from metaquorum.wire.messages.fetch import PartitionData
    from metaquorum.wire.primitives.types import Buffer

# The reader yields an Arrow batch at the first of these limits: it fits a processor's cache, and
# the next batch uses the same memory again.
MAX_BATCH_ROWS: Final = 1 << 17
MAX_BATCH_BYTES: Final = 4 << 20
# Fetches of a batch that cannot be decoded, each over a new connection, before it is reported.
CORRUPT_ATTEMPTS: Final = 3
# Offsets that a batch can span at most: its last offset delta is an int32.
MAX_BATCH_OFFSETS: Final = 1 << 31


@frozen
class Progress:
    """Progress in one range: `position` is the next offset to read."""

    position: int
    records: int
    bytes: int
    throttled_ms: int


class RangeReader:
    """Iterable over the record batches of one range; `report` is set at the end of the iteration.

    It can be iterated once. Raises LoadError if the range cannot be read, and its subclass
    DataLossError if the range lost records and `fail_on_data_loss` is set.
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
        """Create a reader; `is_compacted` is the plan's fact of the topic, None if unknown."""
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
        self._damage = ""  # damage of the batch at the position, which is fetched again
        self._replaced = ""  # why the batch being decoded is not the plan's
        self._nothing_up_to = 0  # readable end in the last response, if it had no records
        self._truncation: str | None = None  # entries of the truncation ledger, once requested
        self._fetcher = PartitionFetcher(
            cluster,
            self._where,
            range_.topic_id,
            read_committed=options.read_committed,
            max_bytes=options.fetch_max_bytes,
            rack=options.connecting.rack,
        )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches of `read`, over a blocking transport."""
        source = self.read()

        async def step() -> pa.RecordBatch | None:
            return await anext(source, None)

        try:
            while (batch := wait(step())) is not None:
                yield batch
        finally:
            wait(source.aclose())

    async def read(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the records of the range, in order, in batches that are never empty.

        Raises LoadError and DataLossError as the class describes.
        """
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
                    assert not hasattr(data.records, "size_bytes")  # a received buffer has no holes
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
        """Decode one response in steps, and yield after each piece of a record batch."""
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
                    # The next requests may overwrite this buffer with their responses.
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
        """Request the batch again, or report the rest of it as a gap after CORRUPT_ATTEMPTS."""
        last = self._builder.last_offset
        if last is not None and last >= self._position:
            for first, behind in self._builder.missing_runs():
                if not self._replaced:
                    self._position = first
                    await self._absent(behind, first)
            await self._take(last + 1)  # the records before the damage were added
        self._replaced = ""
        self._damage = f"the batch at offset {header.base_offset} cannot be decoded: {error}"
        if self._fetch_again():
            return
        behind = header.next_offset if following is None else following.base_offset
        if not self._position < behind <= header.base_offset + MAX_BATCH_OFFSETS:
            raise LoadError(f"{self._where}: {self._damage}; its end is not known either")
        await self._lose(behind, GapReason.CORRUPT, self._damage)
        self._damage, self._corrupt_attempts = "", 0

    def _on_unreadable(self, error: KafkaError) -> None:
        """Request the position again, where there is no header of a batch.

        Raises LoadError for an older record format, and after CORRUPT_ATTEMPTS.
        """
        if error.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
            raise LoadError(
                f"{self._where}: the records at offset {self._position} are in an older format, "
                f"which cannot be read ({error.message}). Copy the topic with a client that can "
                "read the format"
            )
        self._damage = f"there is no record batch at offset {self._position}: {error.message}"
        if not self._fetch_again():
            raise LoadError(f"{self._where}: {self._damage}")

    def _fetch_again(self) -> bool:
        """Return whether to fetch again; the next fetch uses a new connection to the leader."""
        self._fetcher.close()
        self._fetcher.use_leader()
        self._corrupt_attempts += 1
        return self._corrupt_attempts < CORRUPT_ATTEMPTS

    # Gaps

    async def _absent(self, end: int, log_start: int) -> None:
        """Report the offsets from the position to `end`, missing inside the log, as gaps."""
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
        detail = f"the log start offset is {log_start} now: by retention or DeleteRecords"
        await self._lose(end, GapReason.DELETED, detail)

    async def _lose(self, end: int, reason: GapReason, detail: str = "") -> None:
        """Report the offsets from the position to `end` as a gap.

        Raises DataLossError if the reason is data loss and `fail_on_data_loss` is set.
        """
        if self._replaced:
            reason, detail = GapReason.REPLACED, self._replaced
        end = min(end, self._range.end)
        if end > self._position:
            gap = Gap(self._position, end, reason, detail)
            if reason in DATA_LOSS and self._options.fail_on_data_loss:
                raise DataLossError(self._range, gap, self._options.data_loss_option)
            self._gaps.add(gap)
            self._position = end

    async def _take(self, end: int) -> None:
        """Move the position to `end`; the added records are a gap too if they are replaced."""
        if self._replaced:
            await self._lose(end, GapReason.REPLACED)
        self._position = end

    async def _on_later_epoch(self, header: BatchHeader, log_start: int) -> None:
        """Classify a batch of a later leader epoch than the plan's, and the offsets before it.

        Missing offsets before the batch were compacted, or truncated and then written again. Sets
        `_replaced` if the batch has offsets of the range.
        """
        stop, end = header.base_offset, self._range.end
        if stop > self._position:
            cut_at = await self._cut_at(header.leader_epoch)
            kept = min(stop, end) if cut_at is None else min(stop, end, cut_at)
            if kept > self._position:
                await self._absent(kept, log_start)
        if self._position < end:
            self._replaced = (
                "the log was truncated since the plan was made (leader epoch "
                f"{self._range.leader_epoch}), and written again in leader epoch "
                f"{header.leader_epoch}{await self._ledger()}"
            )
            if self._options.fail_on_data_loss:
                await self._lose(header.next_offset, GapReason.REPLACED)
            if stop > self._position:
                await self._lose(stop, GapReason.REPLACED)

    async def _on_nothing(self, data: PartitionData) -> str:
        """Handle a response without records; return the obstacle, for an error after the timeout.

        The log ends at the position, temporarily or by a truncation, or offsets are missing.
        """
        if self._fetcher.is_from_replica:
            self._fetcher.use_leader()
            return "the preferred replica has no records at this offset"
        readable = data.high_watermark
        if self._options.read_committed and data.last_stable_offset >= 0:
            readable = data.last_stable_offset
        if readable <= self._position:
            return await self._on_short_log(readable)
        # The second response without records: there is no batch up to the end that it reported.
        if self._nothing_up_to > self._position:
            await self._absent(min(self._nothing_up_to, readable), data.log_start_offset)
        self._nothing_up_to = readable
        return f"the broker sends no records, although the log reaches to offset {readable}"

    async def _on_short_log(self, readable: int) -> str:
        """Report the rest as TRUNCATED if the log was truncated; return the obstacle."""
        cut_at = await self._cut_at()
        if cut_at is not None and cut_at <= readable <= self._position:
            detail = f"the log was truncated and ends at offset {readable}{await self._ledger()}"
            await self._lose(self._range.end, GapReason.TRUNCATED, detail)
        return (
            f"the log can be read only up to offset {readable}, although it had offsets up to "
            f"{self._range.end - 1} when the plan was made. Replicas may lag, or a transaction "
            "may be open: run the load again later"
        )

    async def _on_out_of_range(self) -> str:
        """Handle an offset outside the leader's log: deleted, or truncated; return the obstacle."""
        admin = AdminClient(self._cluster)
        bounds = []
        for time in (EARLIEST, LATEST):
            found = (await admin.list_offsets({self._where: time}))[self._where]
            if isinstance(found, BrokerError):
                raise found
            bounds.append(found.offset)
        await self._fetcher.check_topic()  # the request named the topic without its id
        log_start, log_end = bounds
        if log_start > self._position:
            await self._deleted(log_start, log_start)
        elif log_end < self._position:
            return await self._on_short_log(log_end)
        return f"out of range, although the log reaches from {log_start} to {log_end}"

    async def _cut_at(self, seen_epoch: int = UNKNOWN) -> int | None:
        """Return the offset of a truncation since the plan was made; None: no known truncation.

        Sends no request to a leader of an epoch before `seen_epoch`: its log may predate it.
        """
        cluster = self._cluster
        self._fetcher.close()  # its response would arrive first on the connection
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
                await self._fetcher.check_topic()  # the request named the topic without its id
                return ended if 0 <= ended < self._range.end else None
        return None

    async def _end_of_epoch(self, epoch: int, seen_epoch: int) -> int:
        """Return the leader's end offset of `epoch` (OffsetForLeaderEpoch, KIP-101).

        That is the first offset of a later epoch, or the log end offset. Raises BrokerError.
        """
        where = self._where
        found = await self._cluster.partition(where, refresh=True)
        if found.leader_id not in self._cluster.nodes or UNKNOWN < found.leader_epoch < seen_epoch:
            text = "the partition has no leader at this time"
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
        """Return the workers' truncation ledger entries for the range as text.

        "" for a cluster without truncation ledgers, e.g. Apache Kafka.
        """
        if self._truncation is None:
            self._truncation = ""
            self._fetcher.close()  # its response would arrive first on the connection
            admin = AdminClient(self._cluster)
            entries = []
            for node_id in sorted(self._cluster.nodes):
                try:
                    ledger = await admin.describe_truncations(node_id, [self._where.topic])
                except (KafkaError, AdminError, *BROKEN):
                    continue  # not this project's cluster, not authorized, or the node is down
                entries += [
                    one
                    for one in ledger.truncations
                    if one.partition == self._where.partition
                    and (one.end_offset is None or one.end_offset > self._range.start)
                    and one.offset < self._range.end
                ]
            for one in sorted(entries, key=lambda one: one.time_ms)[-3:]:
                upto = "" if one.end_offset is None else f" to {one.end_offset - 1}"
                self._truncation += (
                    f"; at {utc_text(one.time_ms)} node {one.node_id} removed offsets "
                    f"{one.offset}{upto} ({one.reason}; acknowledged: {one.acknowledged})"
                )
        return self._truncation

    # Progress and report

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
    """Raise WireError unless the checksum and the stored fields of the batch are valid."""
    if batch_crc(buffer, start, header.batch_bytes) != header.crc:
        raise WireError("its checksum does not match")
    if problem := stored_problem(header):
        raise WireError(problem)


def _headers(buffer: Buffer) -> tuple[list[tuple[int, BatchHeader]], KafkaError | None]:
    """Return the headers of the complete batches, up to the first malformed header, and its error.

    The error is None if all headers are well-formed.
    """
    found: list[tuple[int, BatchHeader]] = []
    try:
        for start, header in batches(buffer):
            found.append((start, header))
    except KafkaError as error:
        return found, error
    return found, None


class _GapList:
    """Gaps in order; adjacent gaps with the same reason and detail are merged."""

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
