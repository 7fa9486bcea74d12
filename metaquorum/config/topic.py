"""Topic configs, each with the worker configs that give its default."""

from typing import Final

from metaquorum.config.definition import (
    BOOLEAN,
    DOUBLE,
    HOUR_MS,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    MINUTE_MS,
    STRING,
    WEEK_MS,
    ConfigKey,
    Levels,
    OneOf,
    Range,
    throttled_replicas_config,
    topic_config,
)

TOPIC_CONFIGS: Final[tuple[list[ConfigKey], ...]] = (
    topic_config(
        "cleanup.policy",
        LIST,
        ("delete",),
        OneOf(("compact", "delete")),
        "Retention policy of the log: delete removes old segments when retention.ms or "
        "retention.bytes is exceeded, compact keeps the last record of each key; both may be set.",
        worker="log.cleanup.policy",
    ),
    topic_config(
        "compression.type",
        STRING,
        "producer",
        OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
        "Compression codec of the batches in the log; producer keeps the codec that the producer "
        "chose, uncompressed stores batches without compression.",
        worker="compression.type",
    ),
    topic_config(
        "compression.gzip.level",
        INT,
        -1,
        Levels(1, 9, also=-1),
        "Compression level of gzip if compression.type is gzip; -1 means the default of gzip.",
        worker="compression.gzip.level",
    ),
    topic_config(
        "compression.lz4.level",
        INT,
        9,
        Range(1, 17),
        "Compression level of lz4 if compression.type is lz4.",
        worker="compression.lz4.level",
    ),
    topic_config(
        "compression.zstd.level",
        INT,
        3,
        Range(-131072, 22),
        "Compression level of zstd if compression.type is zstd.",
        worker="compression.zstd.level",
    ),
    topic_config(
        "delete.retention.ms",
        LONG,
        86_400_000,
        Range(0),
        "Time for which compaction keeps a tombstone (a record with a key and a null value); a "
        "consumer must read the log within this time to see all deletions.",
        worker="log.cleaner.delete.retention.ms",
    ),
    topic_config(
        "file.delete.delay.ms",
        LONG,
        60_000,
        Range(0),
        "Time between the deletion of a segment from the log and the removal of its files. In a"
        " full log directory, they are removed at once.",
        worker="log.segment.delete.delay.ms",
    ),
    topic_config(
        "flush.messages",
        LONG,
        LONG_MAX,
        Range(1),
        "Number of records after which a partition's log is flushed to disk (fsync).",
        worker="log.flush.interval.messages",
    ),
    topic_config(
        "flush.ms",
        LONG,
        LONG_MAX,
        Range(0),
        "Maximum time that a record may wait before the log is flushed to disk (fsync).",
        worker="log.flush.interval.ms",
    ),
    throttled_replicas_config(
        "follower.replication.throttled.replicas",
        "Replicas whose traffic from the leader is throttled by the follower, as"
        " PARTITION:WORKER,PARTITION:WORKER,... with the id of the following worker, or * for all;"
        " the worker config follower.replication.throttled.rate limits it (KIP-73).",
    ),
    topic_config(
        "index.interval.bytes",
        INT,
        4096,
        Range(0),
        "Approximate number of bytes of the log between two entries of the offset index.",
        worker="log.index.interval.bytes",
    ),
    throttled_replicas_config(
        "leader.replication.throttled.replicas",
        "Replicas whose traffic to followers is throttled by the leader, as"
        " PARTITION:WORKER,PARTITION:WORKER,... with the id of the leading worker, or * for all;"
        " the worker config leader.replication.throttled.rate limits it (KIP-73).",
    ),
    topic_config(
        "max.compaction.lag.ms",
        LONG,
        LONG_MAX,
        Range(1),
        "Maximum time for which a record can remain ineligible for compaction.",
        worker="log.cleaner.max.compaction.lag.ms",
    ),
    topic_config(
        "max.message.bytes",
        INT,
        1_048_588,
        Range(0),
        "Largest record batch that the worker accepts, after compression.",
        worker="message.max.bytes",
    ),
    topic_config(
        "message.timestamp.after.max.ms",
        LONG,
        HOUR_MS,
        Range(0),
        "Maximum time by which a record's timestamp may be later than the worker's clock; a record"
        " beyond it is rejected. Used with message.timestamp.type=CreateTime only.",
        worker="log.message.timestamp.after.max.ms",
    ),
    topic_config(
        "message.timestamp.before.max.ms",
        LONG,
        LONG_MAX,
        Range(0),
        "Maximum time by which a record's timestamp may be earlier than the worker's clock; a"
        " record beyond it is rejected. Used with message.timestamp.type=CreateTime only.",
        worker="log.message.timestamp.before.max.ms",
    ),
    topic_config(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        OneOf(("CreateTime", "LogAppendTime")),
        "Timestamp of records: CreateTime is set by the producer, LogAppendTime by the worker "
        "when it appends the record.",
        worker="log.message.timestamp.type",
    ),
    topic_config(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        0.5,
        Range(0, 1),
        "Ratio of uncompacted bytes to all bytes of a log above which the cleaner compacts it.",
        worker="log.cleaner.min.cleanable.ratio",
    ),
    topic_config(
        "min.compaction.lag.ms",
        LONG,
        0,
        Range(0),
        "Minimum time for which a record stays uncompacted.",
        worker="log.cleaner.min.compaction.lag.ms",
    ),
    topic_config(
        "min.insync.replicas",
        INT,
        1,
        Range(1),
        "Minimum number of in-sync replicas for a produce request with acks=all; with fewer, the"
        " leader rejects it with NOT_ENOUGH_REPLICAS.",
        worker="min.insync.replicas",
    ),
    topic_config(
        "retention.bytes",
        LONG,
        -1,
        None,
        "Maximum size of a partition's log before its oldest segments are deleted; -1 for no"
        " limit. Used with cleanup.policy=delete.",
        worker="log.retention.bytes",
    ),
    topic_config(
        "retention.ms",
        LONG,
        WEEK_MS,
        Range(-1),
        "Maximum age of a segment before it is deleted; -1 for no limit. Used with"
        " cleanup.policy=delete.",
        worker="log.retention.ms",
        coarser=(
            ("log.retention.minutes", MINUTE_MS, None),
            ("log.retention.hours", HOUR_MS, 168),
        ),
    ),
    topic_config(
        "segment.bytes",
        INT,
        1 << 30,
        Range(1 << 20),
        "Maximum size of a segment; the log rolls to a new segment before it is exceeded.",
        worker="log.segment.bytes",
    ),
    topic_config(
        "internal.segment.bytes",
        INT,
        None,
        Range(14),
        "Maximum size of a segment without the lower limit of segment.bytes, for tests.",
        worker="internal.log.segment.bytes",
        internal=True,
    ),
    topic_config(
        "segment.index.bytes",
        INT,
        10 << 20,
        Range(4),
        "Maximum size of a segment's index; the log rolls to a new segment when it is full.",
        worker="log.index.size.max.bytes",
    ),
    topic_config(
        "segment.jitter.ms",
        LONG,
        0,
        Range(0),
        "Maximum random time subtracted from segment.ms, so that not all logs roll a segment at"
        " once.",
        worker="log.roll.jitter.ms",
        coarser=(("log.roll.jitter.hours", HOUR_MS, 0),),
    ),
    topic_config(
        "segment.ms",
        LONG,
        WEEK_MS,
        Range(1),
        "Maximum age of the active segment before the log rolls to a new one, even if it is not"
        " full.",
        worker="log.roll.ms",
        coarser=(("log.roll.hours", HOUR_MS, 168),),
    ),
    topic_config(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        None,
        "Whether a replica outside the ISR may be elected leader as a last resort. Committed "
        "records that this replica does not have are lost.",
        worker="unclean.leader.election.enable",
    ),
)
