"""Mutants of loads that read offset ranges: each removes one rule of the reader.

pyarrow is imported only when a mutant is planted.
"""

from contextlib import AbstractContextManager
from typing import Any, Final

from metaquorum.simulations.kernel.mutation import Mutant, swapped
from metaquorum.spark.partition_fetcher import PartitionFetcher
from metaquorum.wire.primitives.types import ZERO_UUID


def _reader() -> Any:
    from metaquorum.spark.range_reader import RangeReader

    return RangeReader


def _epoch_not_compared() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        async def _on_later_epoch(self: Any, header: Any, log_start: int) -> None:
            if header.base_offset > self._position:
                await self._absent(min(header.base_offset, self._range.end), log_start)

        return _on_later_epoch

    return swapped(_reader(), "_on_later_epoch", wrong)


def _cut_taken_for_compaction() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def _on_later_epoch(self: Any, header: Any, log_start: int) -> None:
            if header.base_offset > self._position:
                await self._absent(min(header.base_offset, self._range.end), log_start)
            await right(self, header, log_start)

        return _on_later_epoch

    return swapped(_reader(), "_on_later_epoch", wrong)


def _lag_taken_for_cut() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        async def _cut_at(self: Any, seen_epoch: int = -1) -> int | None:
            self._fetcher.close()
            return 0

        return _cut_at

    return swapped(_reader(), "_cut_at", wrong)


def _topic_by_name() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def __init__(self: Any, cluster: Any, where: Any, topic_id: bytes, **more: Any) -> None:  # noqa: N807
            right(self, cluster, where, ZERO_UUID, **more)

        return __init__

    return swapped(PartitionFetcher, "__init__", wrong)


def _topic_not_checked() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        async def check_topic(self: Any) -> None:
            await self._cluster.topic(self._where.topic, refresh=True)
            self._stale = False

        return check_topic

    return swapped(PartitionFetcher, "check_topic", wrong)


def _restarted_one_late() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def _send(self: Any, offset: int) -> None:
            is_restart = self._stale and self.fetches > 0
            await right(self, offset + is_restart)
            self._in_flight = self._in_flight[0], offset

        return _send

    return swapped(PartitionFetcher, "_send", wrong)


def _position_behind_gap() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def _lose(self: Any, *args: Any) -> None:
            before = self._position
            await right(self, *args)
            if before < self._position < self._range.end:
                self._position += 1

        return _lose

    return swapped(_reader(), "_lose", wrong)


def _deleted_skipped() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        async def _deleted(self: Any, end: int, log_start: int) -> None:
            self._position = min(end, self._range.end)

        return _deleted

    return swapped(_reader(), "_deleted", wrong)


def _loss_not_told() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def _lose(self: Any, end: int, reason: Any, detail: str = "") -> None:
            options = self._options
            self._options = _Tolerant
            try:
                await right(self, end, reason, detail)
            finally:
                self._options = options

        return _lose

    return swapped(_reader(), "_lose", wrong)


class _Tolerant:
    fail_on_data_loss = False


def _answer_of_another_fetch() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def close(self: Any) -> None:
            self._in_flight = None

        return close

    return swapped(PartitionFetcher, "close", wrong)


def _batch_from_its_start() -> AbstractContextManager[None]:
    from metaquorum.spark.columns import BatchBuilder

    def wrong(right: Any) -> Any:
        def add(self: Any, buffer: Any, position: int, header: Any, start: int, end: int) -> Any:
            return right(self, buffer, position, header, header.base_offset, end)

        return add

    return swapped(BatchBuilder, "add", wrong)


def _batch_to_its_end() -> AbstractContextManager[None]:
    from metaquorum.spark.columns import BatchBuilder

    def wrong(right: Any) -> Any:
        def add(self: Any, buffer: Any, position: int, header: Any, start: int, end: int) -> Any:
            return right(self, buffer, position, header, start, header.next_offset)

        return add

    return swapped(BatchBuilder, "add", wrong)


def _unknown_policy_not_compacted() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def _absent(self: Any, *args: Any) -> None:
            self._is_compacted = bool(self._is_compacted)
            await right(self, *args)

        return _absent

    return swapped(_reader(), "_absent", wrong)


LOAD_MUTANTS: Final = tuple(
    Mutant(name, about, "range-loads", found_as, apply)
    for name, about, found_as, apply in (
        (
            "plan-epoch-not-compared",
            "the leader epoch of a batch is not compared with the plan's",
            ("S1",),
            _epoch_not_compared,
        ),
        (
            "cut-taken-for-compaction",
            "offsets before a batch of a later epoch count as compacted, even truncated ones",
            ("S1",),
            _cut_taken_for_compaction,
        ),
        (
            "lag-taken-for-cut",
            "a log that ends before the range counts as truncated, without OffsetForLeaderEpoch",
            ("S1",),
            _lag_taken_for_cut,
        ),
        (
            "topic-by-name",
            "topics are read by name, although the plan has their ids",
            ("S1",),
            _topic_by_name,
        ),
        (
            "topic-not-checked",
            "the id that a topic has now is not compared with the plan's",
            ("S1", "liveness"),
            _topic_not_checked,
        ),
        (
            "restarted-one-late",
            "after a broken connection or a leader change one offset is skipped",
            ("S1",),
            _restarted_one_late,
        ),
        (
            "position-behind-gap",
            "the first offset after a gap is skipped",
            ("S1",),
            _position_behind_gap,
        ),
        (
            "deleted-skipped",
            "a position out of range continues at the log start offset without a report",
            ("S1",),
            _deleted_skipped,
        ),
        (
            "loss-not-told",
            "a load continues after data loss even with fail_on_data_loss",
            ("S1",),
            _loss_not_told,
        ),
        (
            "answer-of-another-fetch",
            "a connection is kept although the response to an earlier fetch was not read",
            ("S1", "S2", "story"),
            _answer_of_another_fetch,
        ),
        (
            "batch-from-its-start",
            "records of a batch before the position are returned again",
            ("S1",),
            _batch_from_its_start,
        ),
        (
            "batch-to-its-end",
            "records of a batch after the range are returned, too",
            ("S1",),
            _batch_to_its_end,
        ),
        (
            "unknown-policy-not-compacted",
            "a topic whose cleanup.policy is not known counts as not compacted",
            ("S1",),
            _unknown_policy_not_compacted,
        ),
    )
)
