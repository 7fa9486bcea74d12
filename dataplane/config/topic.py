"""Effective configs of a topic for the data path, resolved once per change."""

from collections.abc import Mapping
from typing import Final

from metaquorum.config.resolution import Configs
from metaquorum.config.throttled_replicas import ThrottledReplicas
from metaquorum.dataplane.log.compaction.compaction import CompactionLimits
from metaquorum.dataplane.log.retention import UNLIMITED
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.records.compression import Codec

_CODECS: Final[Mapping[str, Codec | None]] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_LEVELS: Final[Mapping[Codec, str]] = {
    Codec.GZIP: "compression.gzip.level",
    Codec.LZ4: "compression.lz4.level",
    Codec.ZSTD: "compression.zstd.level",
}


def _level(configs: Configs, codec: Codec | None) -> int | None:
    name = _LEVELS.get(codec) if codec is not None else None
    return None if name is None else configs.integer(name)


@frozen
class TopicConfig:
    """Effective configs of one topic, named as in Kafka; times in ms, sizes in bytes."""

    log: LogConfig
    max_message_bytes: int
    min_insync_replicas: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    retention_ms: int  # -1: no limit
    retention_bytes: int  # -1: no limit
    file_delete_delay_ms: int
    compacts: bool
    compaction: CompactionLimits
    delete_retention_ms: int  # time for which compaction keeps tombstones
    codec: Codec | None  # codec of stored batches; None: the producer's
    compression_level: int | None
    leader_throttled: ThrottledReplicas | None = None  # None: no replica
    follower_throttled: ThrottledReplicas | None = None

    @classmethod
    def of(cls, configs: Configs, producer_id_expiration_ms: int) -> "TopicConfig":
        policies = configs.list("cleanup.policy")
        deletes, compacts = "delete" in policies, "compact" in policies
        compaction = CompactionLimits(
            min_lag_ms=configs.integer("min.compaction.lag.ms"),
            max_lag_ms=configs.integer("max.compaction.lag.ms"),
            min_dirty_ratio=configs.double("min.cleanable.dirty.ratio"),
        )
        segment_ms = configs.integer("segment.ms")
        codec = _CODECS[configs.text("compression.type")]
        append_time = configs.text("message.timestamp.type") == "LogAppendTime"
        log = LogConfig(
            segment_bytes=configs.segment_bytes(),
            # The active segment is not cleaned, so it must be rolled within the maximum lag.
            segment_ms=min(segment_ms, compaction.max_lag_ms) if compacts else segment_ms,
            segment_jitter_ms=configs.integer("segment.jitter.ms"),
            segment_index_bytes=max(12, configs.integer("segment.index.bytes")),
            index_interval_bytes=configs.integer("index.interval.bytes"),
            flush_messages=configs.integer("flush.messages"),
            flush_ms=configs.integer("flush.ms"),
            producer_id_expiration_ms=producer_id_expiration_ms,
            log_append_time=append_time,
        )
        return cls(
            log=log,
            max_message_bytes=configs.integer("max.message.bytes"),
            min_insync_replicas=configs.integer("min.insync.replicas"),
            log_append_time=append_time,
            timestamp_before_max_ms=configs.integer("message.timestamp.before.max.ms"),
            timestamp_after_max_ms=configs.integer("message.timestamp.after.max.ms"),
            retention_ms=configs.integer("retention.ms") if deletes else UNLIMITED,
            retention_bytes=configs.integer("retention.bytes") if deletes else UNLIMITED,
            file_delete_delay_ms=configs.integer("file.delete.delay.ms"),
            compacts=compacts,
            compaction=compaction,
            delete_retention_ms=configs.integer("delete.retention.ms"),
            codec=codec,
            compression_level=_level(configs, codec),
            leader_throttled=ThrottledReplicas.of(
                configs.list("leader.replication.throttled.replicas")
            ),
            follower_throttled=ThrottledReplicas.of(
                configs.list("follower.replication.throttled.replicas")
            ),
        )
