"""Worker configs of consumer groups, committed offsets, and the topic that stores both."""

from typing import Final

from metaquorum.config.definition import INT, LONG, ConfigKey, Range, worker_config

GROUP_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    worker_config(
        "group.min.session.timeout.ms",
        INT,
        6000,
        Range(0),
        "Minimum session timeout that a consumer may request. A shorter timeout detects failed"
        " consumers sooner, and costs more heartbeats.",
    ),
    worker_config(
        "group.max.session.timeout.ms",
        INT,
        1_800_000,
        Range(0),
        "Maximum session timeout that a consumer may request. With a longer timeout, a failed"
        " consumer keeps its partitions longer.",
    ),
    worker_config(
        "group.initial.rebalance.delay.ms",
        INT,
        3000,
        Range(0),
        "Time that the coordinator waits for more members of a new group before the first"
        " rebalance.",
    ),
    worker_config(
        "group.max.size",
        INT,
        2**31 - 1,
        Range(1),
        "Maximum number of members of a group; more are refused.",
    ),
    worker_config(
        "group.memory.max.bytes",
        LONG,
        268_435_456,
        Range(1 << 20),
        "Memory for the groups that a worker coordinates, their members and subscriptions, above"
        " which no members can join. Above half of it, one client (a principal, or an address"
        " without authentication) can have a quarter of what is left. Known members can use as much"
        " memory again, for assignments and longer subscriptions.",
    ),
    worker_config(
        "offsets.memory.max.bytes",
        LONG,
        536_870_912,
        Range(1 << 20),
        "Memory for the committed offsets that a worker coordinates, above which clients cannot"
        " commit for other partitions than before; an offset takes some 200 bytes. Above half of"
        " it, one client (a principal, or an address without authentication) can have a quarter of"
        " what is left. offsets.retention.minutes frees memory.",
    ),
    worker_config(
        "offset.metadata.max.bytes",
        INT,
        4096,
        Range(0),
        "Maximum size of the metadata that a client commits with an offset.",
    ),
    worker_config(
        "offsets.commit.timeout.ms",
        INT,
        5000,
        Range(1),
        "Maximum time that an offset commit waits for the in-sync replicas of the offsets topic.",
    ),
    worker_config(
        "offsets.load.buffer.size",
        INT,
        5_242_880,
        Range(1),
        "Bytes that a coordinator reads at once when it loads committed offsets and groups. A"
        " larger record batch is still read whole.",
    ),
    worker_config(
        "offsets.retention.minutes",
        INT,
        10_080,
        Range(1),
        "Time after which the committed offsets of a group without members are deleted; for a"
        " consumer without group membership, the time after its last commit.",
    ),
    worker_config(
        "offsets.retention.check.interval.ms",
        LONG,
        600_000,
        Range(1),
        "Interval at which a coordinator checks for expired offsets.",
    ),
    worker_config(
        "offsets.topic.num.partitions",
        INT,
        50,
        Range(1, 10_000),
        "Number of partitions of the offsets topic (__consumer_offsets). Applies when the topic is"
        " created, on the first use of a group; it cannot be changed afterwards.",
    ),
    worker_config(
        "offsets.topic.replication.factor",
        INT,
        3,
        Range(1, 32_767),
        "Maximum replication factor of the offsets topic. If fewer workers are live when the topic"
        " is created, each of them gets a replica.",
    ),
    worker_config(
        "offsets.topic.segment.bytes",
        INT,
        104_857_600,
        Range(1 << 20),
        "segment.bytes of the offsets topic when it is created. Smaller segments are compacted"
        " sooner, and load faster.",
    ),
    worker_config(
        "offsets.topic.compression.codec",
        INT,
        0,
        Range(0, 0),
        "Compression codec of the records that coordinators write. Only 0, no compression, is"
        " supported.",
    ),
)
