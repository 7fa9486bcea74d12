"""A topic's configs as the data path reads them: resolved once, when they change."""

from dataclasses import dataclass

from dataplane.log.config import LogConfig
from dataplane.retention import UNLIMITED
from metaquorum.config_layers import Configs


@dataclass(frozen=True, slots=True)
class TopicConfig:
    log: LogConfig
    max_message_bytes: int
    min_insync_replicas: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    retention_ms: int  # -1: for ever
    retention_bytes: int  # -1: any size
    file_delete_delay_ms: int

    @classmethod
    def of(cls, configs: Configs, producer_id_expiration_ms: int) -> "TopicConfig":
        deletes = "delete" in configs.list("cleanup.policy")
        append_time = configs.text("message.timestamp.type") == "LogAppendTime"
        log = LogConfig(
            segment_bytes=configs.segment_bytes(),
            segment_ms=configs.integer("segment.ms"),
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
        )
