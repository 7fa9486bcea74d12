"""Checkers of retention, compaction and recompression in clusters with replicas.

Each replica applies retention and compaction by its own clock and its own high watermark, so the
logs of one partition begin at different offsets and have different gaps. The remaining records must
agree nevertheless (`replica_checkers`), and only records that are due may be deleted.
"""

from collections.abc import Sequence
from typing import Final

from metaquorum.simulations.checkers.log_files import Segment, naive_segments
from metaquorum.simulations.cluster.cluster_state import ClusterChecker, ClusterState
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replicas import (
    Content,
    LogStartMove,
    Name,
    PartitionHistory,
    Place,
    ReplicaLog,
)
from metaquorum.wire.records.compression import Codec

_UNLIMITED: Final = -1
_WEEK_MS: Final = 7 * 24 * 3600 * 1000
_CODECS: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class CompactionKeepsLast(WatchingChecker):
    """Compaction removes only superseded records and expired tombstones.

    A record is superseded by a later committed record, or expired tombstone, of the same key; it
    must be committed itself.
    """

    invariant = "L2"

    def cleaned(
        self, history: PartitionHistory, replica: ReplicaLog, names: Sequence[Name]
    ) -> None:
        self.compare(history.compacts, "{} is compacted, with {}", history, history.configs)
        for name, is_superseded in self.cluster_history.is_superseded(history, replica, names):
            self.compare(
                is_superseded and name in history.ever_committed,
                "{}: worker {} compacts away {}, {} (committed: {}); no later record has its key",
                history,
                replica.worker_id,
                name,
                self._content(history, name),
                name in history.ever_committed,
            )

    def _content(self, history: PartitionHistory, name: Name) -> Content | None:
        return (self.cluster_history.contents or {}).get(history.identities[name])


class LastOfEachKeyIsRead(WatchingChecker):
    """The last acknowledged record of each key can be read at the end, unless it is a tombstone.

    The checker compares what producers sent with what consumers read. From the cluster history it
    takes only the records that were lost for an accepted reason.
    """

    invariant = "L2"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self.acknowledged: dict[Place, dict[int, Content]] = {}  # by offset
        self.sent: dict[Place, list[Content]] = {}  # acknowledged or not

    def finals(self, history: PartitionHistory, found: Sequence[tuple[int, bytes]]) -> None:
        if not history.compacts:
            return
        texts = {text: offset for offset, text in found}
        sent = {content.text: content for content in self.sent.get(history.place, ())}
        last_read: dict[bytes | None, int] = {}
        for text, offset in texts.items():
            key = sent[text].key if text in sent else None
            last_read[key] = max(last_read.get(key, -1), offset)
        known = self.acknowledged.get(history.place, {})
        tombstones = {content.key for content in sent.values() if content.is_tombstone}
        contents = self.cluster_history.contents or {}
        # If the last record of a key was lost, compaction may have removed the earlier ones before.
        lost = {contents[identity].key for _, identity in history.lost_records}
        for offset, content in known.items():
            if offset < history.deleted_to or content.key in lost | tombstones:
                continue
            self.compare(
                last_read.get(content.key, -1) >= offset,
                "{}: {} was acknowledged at {}, but the last record read of its key is at {}",
                history,
                content,
                offset,
                last_read.get(content.key),
            )


class ReplicaRetentionIsDue(WatchingChecker):
    """A log start offset moves only as far as DeleteRecords or the replica's retention requires.

    It never moves past the high watermark that the replica knows, nor past uncommitted records.
    """

    invariant = "L3"

    def retained(self, history: PartitionHistory, replica: ReplicaLog, move: LogStartMove) -> None:
        self.compare(
            move.new <= move.high_watermark,
            "{}: worker {} moves its log start to {}, past its high watermark {}",
            history,
            replica.worker_id,
            move.new,
            move.high_watermark,
        )
        gone = [Name(e, o) for o, e in replica.epochs.items() if o < move.new]
        lacks = [name for name in gone if name not in history.ever_committed]
        self.compare(
            not lacks,
            "{}: worker {} moves its log start to {}, but {} before it are not committed",
            history,
            replica.worker_id,
            move.new,
            lacks[:3],
        )
        if move.new <= history.deleted_to:
            return
        segments = naive_segments(replica.machine.storage, move.folder, swapping=True)
        going = [
            (segment, segments[number + 1 :])
            for number, segment in enumerate(segments)
            if segment.base_offset < move.new and self._end(replica, segments, number) > move.old
        ]
        for segment, rest in going:
            self.compare(
                move.retention_now_ms is not None
                and (
                    self._is_too_old(history, segment, move.retention_now_ms)
                    or self._is_too_much(history, rest)
                ),
                "{}: worker {} moves its log start to {} from {}, but segment {} is not due by {}",
                history,
                replica.worker_id,
                move.new,
                move.old,
                segment.base_offset,
                history.configs,
            )

    @staticmethod
    def _end(replica: ReplicaLog, segments: list[Segment], number: int) -> int:
        return segments[number + 1].base_offset if number + 1 < len(segments) else replica.end

    @staticmethod
    def _limit(history: PartitionHistory, key: str, default: int) -> int:
        deletes = "delete" in history.configs.get("cleanup.policy", "delete")
        return int(history.configs.get(key, default)) if deletes else _UNLIMITED

    def _is_too_old(self, history: PartitionHistory, segment: Segment, now_ms: int) -> bool:
        limit = self._limit(history, "retention.ms", _WEEK_MS)
        newest = max((batch.max_timestamp for batch in segment.batches), default=-1)
        return limit != _UNLIMITED and now_ms - newest > limit

    def _is_too_much(self, history: PartitionHistory, rest: Sequence[Segment]) -> bool:
        limit = self._limit(history, "retention.bytes", _UNLIMITED)
        return limit != _UNLIMITED and sum(segment.size for segment in rest) >= limit


class CompressionIsInForce(WatchingChecker):
    """A leader stores batches with the codec of the topic's `compression.type`."""

    invariant = "M3"

    def stored(
        self, history: PartitionHistory, replica: ReplicaLog, codecs: Sequence[Codec]
    ) -> None:
        wanted = _CODECS.get(history.configs.get("compression.type", "producer"))
        if wanted is None:
            return
        self.compare(
            set(codecs) == {wanted},
            "{}: worker {} stores batches of {}, not {}",
            history,
            replica.worker_id,
            codecs,
            wanted,
        )


CLEANUP_CHECKERS: Final[tuple[type[ClusterChecker], ...]] = (
    CompactionKeepsLast,
    LastOfEachKeyIsRead,
    ReplicaRetentionIsDue,
    CompressionIsInForce,
)
