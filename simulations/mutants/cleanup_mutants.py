"""Mutants of retention, compaction, recompression and reads from followers."""

from contextlib import AbstractContextManager
from typing import Any, Final

from metaquorum.dataplane.fetch.reader import FetchReader
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.config import NEVER
from metaquorum.dataplane.log.segments.index import TimeIndex
from metaquorum.dataplane.maintenance import background_tasks, log_cleaner
from metaquorum.dataplane.partition import batch_validation
from metaquorum.dataplane.replication.replica_fetcher import ReplicaFetcher
from metaquorum.simulations.kernel.mutation import Mutant, swapped
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.batches import parse_header


def _uncommitted_compacted() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def cleanable(segments: Any, cleaned_to: int, stable_end: int, *rest: Any) -> Any:
            return right(segments, cleaned_to, NEVER, *rest)

        return cleanable

    return swapped(log_cleaner, "cleanable", wrong)


def _retention_past_high_watermark() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def retention_start(spans: Any, start: int, high_watermark: int, *rest: Any) -> Any:
            return right(spans, start, NEVER, *rest)

        return retention_start

    return swapped(background_tasks, "retention_start", wrong)


def _followers_read_past() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def end_offset(self: Any, partition: Any) -> int:
            if not partition.is_leader:
                return int(partition.log.log_end_offset)
            return int(right(self, partition))

        return end_offset

    return swapped(FetchReader, "end_offset", wrong)


def _position_above_high_watermark_refused() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def read(self: Any, offset: int, max_bytes: int, end: int, **options: Any) -> Any:
            if offset > end:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is above {end}")
            return right(self, offset, max_bytes, end, **options)

        return read

    return swapped(PartitionLog, "read", wrong)


def _codec_of_producer_kept() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def _recompressed(batch: Any, *_: Any) -> Any:
            yield 0
            return batch, parse_header(batch)

        return _recompressed

    return swapped(batch_validation, "_recompressed", wrong)


def _index_kept_behind_cut() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def truncate_to(self: Any, relative_offset: int) -> None:
            pass

        return truncate_to

    return swapped(TimeIndex, "truncate_to", wrong)


def _empty_log_waits() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def truncate_fully(self: Any, key: Any, followed: Any, offset: int) -> None:
            log = followed.partition.log
            if offset <= log.log_end_offset == log.log_start_offset:
                self._delay(followed, ErrorCode.OFFSET_OUT_OF_RANGE)
                return
            await right(self, key, followed, offset)

        return truncate_fully

    return swapped(ReplicaFetcher, "_truncate_fully", wrong)


CLEANUP_MUTANTS: Final = tuple(
    Mutant(name, about, "cleaned-replicas", found_as, apply)
    for name, about, found_as, apply in (
        (
            "uncommitted-compacted",
            "compaction reads records above the high watermark, and records that are not synced",
            ("L2", "R1", "R2"),
            _uncommitted_compacted,
        ),
        (
            "retention-past-high-watermark",
            "retention deletes segments that are not committed",
            ("L3",),
            _retention_past_high_watermark,
        ),
        (
            "followers-read-past",
            "a follower returns all its records to consumers, not only committed ones",
            ("R5",),
            _followers_read_past,
        ),
        (
            "position-above-high-watermark-refused",
            "a new leader refuses positions above the high watermark that it knows",
            ("R13",),
            _position_above_high_watermark_refused,
        ),
        (
            "codec-of-producer-kept",
            "batches are stored with the producer's codec even if compression.type is another one",
            ("M3",),
            _codec_of_producer_kept,
        ),
        (
            "index-kept-behind-cut",
            "a follower that truncates its log leaves the time index as it is",
            ("L5",),
            _index_kept_behind_cut,
        ),
        (
            "empty-log-waits",
            "an empty log that ends after its leader's waits for an epoch by which to truncate",
            ("liveness",),
            _empty_log_waits,
        ),
    )
)
