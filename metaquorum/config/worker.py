"""Worker configs of a node: roles, log directories, replication, cleaning and quotas."""

from typing import Final

from metaquorum.config.definition import (
    BOOLEAN,
    DOUBLE,
    DOUBLE_MAX,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    ConfigKey,
    OneOf,
    Range,
    worker_config,
)

SERVER_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    worker_config("node.id", INT, 1, Range(0), "Id of this node, unique in the cluster."),
    worker_config("broker.id", INT, -1, Range(-1), "Older name of node.id."),
    worker_config(
        "process.roles",
        LIST,
        ("broker", "controller"),
        None,
        "Roles of this node: broker (serves clients), controller (stores the metadata log), or both"
        " (--roles).",
    ),
    worker_config(
        "controller.quorum.voters",
        LIST,
        (),
        None,
        "Voters of the controller quorum, each as id@host:port (--quorum). If empty: this node is"
        " the only voter.",
    ),
    worker_config(
        "replica.selector.class",
        STRING,
        None,
        OneOf(
            (
                "org.apache.kafka.common.replica.LeaderSelector",
                "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            )
        ),
        "Replica that consumers fetch from: the leader, or with RackAwareReplicaSelector an in-sync"
        " replica in the consumer's rack.",
    ),
    worker_config(
        "broker.rack",
        STRING,
        None,
        None,
        "Rack or zone of this worker, used to spread replicas (--rack).",
    ),
    worker_config("log.dir", STRING, None, None, "The log directory, used if log.dirs is not set."),
    worker_config(
        "log.dirs",
        LIST,
        None,
        None,
        "Log directories, normally one on each disk. A new partition is placed in the directory "
        "with the fewest partitions.",
    ),
    worker_config(
        "metrics.listen",
        STRING,
        None,
        None,
        "Address where Prometheus scrapes /metrics, as host:port (--metrics-listen). If not set,"
        " the metrics are not exposed.",
    ),
    worker_config(
        "metadata.log.dir",
        STRING,
        None,
        None,
        "Directory of the metadata log (--data-dir); by default the first log directory.",
    ),
    worker_config(
        "auto.create.topics.enable",
        BOOLEAN,
        True,
        None,
        "Whether a metadata request for an unknown topic creates the topic, if the client allows"
        " it.",
    ),
    worker_config(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        True,
        None,
        "Whether the controller moves leadership back to preferred replicas automatically, at"
        " intervals of leader.imbalance.check.interval.seconds.",
    ),
    worker_config(
        "broker.heartbeat.interval.ms",
        INT,
        2000,
        Range(1),
        "Interval between two heartbeats of a worker to the active controller.",
    ),
    worker_config(
        "broker.session.timeout.ms",
        INT,
        9000,
        Range(1),
        "Time without a heartbeat after which the active controller fences a worker; if the"
        " worker's process ends, which closes its connection, it is fenced earlier.",
    ),
    worker_config(
        "default.replication.factor",
        INT,
        1,
        Range(1, 32_767),
        "Replication factor of topics that are created without one.",
    ),
    worker_config("delete.topic.enable", BOOLEAN, True, None, "Whether topics can be deleted."),
    worker_config(
        "fetch.max.bytes",
        INT,
        57_671_680,
        Range(1024),
        "Maximum bytes of one fetch response, even if the client requests more.",
    ),
    worker_config(
        "log.cleaner.backoff.ms",
        LONG,
        15_000,
        Range(0),
        "Time that the log cleaner sleeps when no log needs compaction.",
        dynamic=True,
    ),
    worker_config(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        134_217_728,
        Range(1 << 20),
        "Memory for the deduplication of keys over all cleaner threads; one key takes 24 bytes.",
        dynamic=True,
    ),
    worker_config("log.cleaner.enable", BOOLEAN, True, None, "Whether the log cleaner runs."),
    worker_config(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        0.9,
        Range(0, 1),
        "Maximum load factor of log.cleaner.dedupe.buffer.size: a higher value compacts more keys"
        " in one pass, with more hash collisions.",
        dynamic=True,
    ),
    worker_config(
        "log.cleaner.io.buffer.size",
        INT,
        524_288,
        Range(0),
        "Memory for the read buffers of the log cleaner over all cleaner threads.",
        dynamic=True,
    ),
    worker_config(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        DOUBLE_MAX,
        Range(0),
        "Maximum rate at which the log cleaner reads and writes, as the sum of both.",
        dynamic=True,
    ),
    worker_config(
        "log.cleaner.threads",
        INT,
        1,
        Range(0),
        "Number of log cleaner threads: logs that are compacted at the same time.",
        dynamic=True,
    ),
    worker_config(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        60_000,
        Range(0),
        "Interval between two writes of the recovery point checkpoints.",
    ),
    worker_config(
        "log.flush.scheduler.interval.ms",
        LONG,
        LONG_MAX,
        Range(1),
        "Interval at which the worker checks whether flush.ms requires the flush of a log.",
    ),
    worker_config(
        "log.retention.check.interval.ms",
        LONG,
        300_000,
        Range(1),
        "Interval at which the worker checks logs for segments that retention can delete.",
    ),
    worker_config(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        Range(1),
        "Interval at which the controller checks whether to elect preferred leaders.",
    ),
    worker_config(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        Range(0),
        "Percentage of the partitions for which a worker is the preferred leader and another worker"
        " leads; above it, the controller elects the preferred leaders.",
    ),
    worker_config(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        Range(0),
        "Maximum number of incremental fetch sessions (KIP-227); 0 for none.",
    ),
    worker_config(
        "controller.quota.window.num",
        INT,
        11,
        Range(1),
        "Number of samples of the controller mutation quota that a client may use in one burst.",
    ),
    worker_config(
        "controller.quota.window.size.seconds",
        INT,
        1,
        Range(1),
        "Duration of each sample of the controller mutation quota.",
    ),
    worker_config(
        "quota.consumer.default",
        LONG,
        LONG_MAX,
        Range(1),
        "Bytes per second that the consumers of one client id may fetch from this worker. Client "
        "quotas that are set dynamically override it.",
    ),
    worker_config(
        "quota.producer.default",
        LONG,
        LONG_MAX,
        Range(1),
        "Bytes per second that the producers of one client id may send to this worker. Client "
        "quotas that are set dynamically override it.",
    ),
    worker_config(
        "quota.window.num",
        INT,
        11,
        Range(1),
        "Number of samples in memory from which the rate of a client quota is computed.",
    ),
    worker_config(
        "quota.window.size.seconds",
        INT,
        1,
        Range(1),
        "Duration of each sample of a client quota.",
    ),
    worker_config(
        "follower.replication.throttled.rate",
        LONG,
        LONG_MAX,
        Range(0),
        "Bytes per second that this worker, as follower, fetches from leaders for the replicas in"
        " follower.replication.throttled.replicas of all topics. In-sync replicas count, but are"
        " never held back. Can be set dynamically only.",
        dynamic_only=True,
    ),
    worker_config(
        "leader.replication.throttled.rate",
        LONG,
        LONG_MAX,
        Range(0),
        "Bytes per second that this worker, as leader, sends to followers for the replicas in"
        " leader.replication.throttled.replicas of all topics. In-sync replicas count, but are"
        " never held back. Can be set dynamically only.",
        dynamic_only=True,
    ),
    worker_config(
        "network.bytes.per.second",
        LONG,
        None,
        Range(1),
        "Bytes per second of this worker's network, in each direction. `mq-admin moves plan` bounds"
        " throttles by the lowest of all workers. Empty: not known.",
    ),
    worker_config(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG,
        LONG_MAX,
        Range(0),
        "Bytes per second that this worker copies when replicas move between its log directories."
        " Can be set dynamically only.",
        dynamic_only=True,
    ),
    worker_config(
        "alter.log.dirs.replication.quota.window.num",
        INT,
        11,
        Range(1),
        "Number of samples in memory from which the rate of copies between log directories is"
        " computed.",
    ),
    worker_config(
        "alter.log.dirs.replication.quota.window.size.seconds",
        INT,
        1,
        Range(1),
        "Duration of each sample of copies between log directories. They may use at once what the"
        " rate allows in one sample.",
    ),
    worker_config(
        "num.replica.alter.log.dirs.threads",
        INT,
        None,
        Range(1),
        "Number of replicas that are copied to another log directory at the same time. If not set:"
        " the number of log directories.",
    ),
    worker_config(
        "replication.quota.window.num",
        INT,
        11,
        Range(1),
        "Number of samples in memory from which the rate of throttled replication is computed. The"
        " excess of in-sync replicas holds others back for at most this number of samples.",
    ),
    worker_config(
        "replication.quota.window.size.seconds",
        INT,
        1,
        Range(1),
        "Duration of each sample of throttled replication, from which its rate is computed.",
    ),
    worker_config(
        "replica.lag.time.max.ms",
        LONG,
        30_000,
        Range(1),
        "Time after which the leader removes a follower from the ISR if the follower has not caught"
        " up to the leader's log end offset.",
    ),
    worker_config(
        "replica.fetch.wait.max.ms",
        INT,
        500,
        Range(0),
        "Maximum time that the leader waits for records before it answers a follower's fetch. Must"
        " be well below replica.lag.time.max.ms, so that the ISR does not shrink for quiet topics.",
    ),
    worker_config(
        "replica.fetch.min.bytes",
        INT,
        1,
        Range(0),
        "Minimum bytes of the response to a follower's fetch; with fewer, the leader waits up to"
        " replica.fetch.wait.max.ms.",
    ),
    worker_config(
        "replica.fetch.max.bytes",
        INT,
        1_048_576,
        Range(0),
        "Maximum bytes that a follower requests for one partition in one fetch. A larger batch is"
        " still returned whole.",
    ),
    worker_config(
        "replica.fetch.response.max.bytes",
        INT,
        10_485_760,
        Range(0),
        "Maximum bytes that a follower requests in one fetch, over all partitions.",
    ),
    worker_config(
        "replica.fetch.backoff.ms",
        INT,
        1000,
        Range(1),
        "Maximum time that a follower waits before it retries a fetch after an error.",
    ),
    worker_config(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5000,
        Range(1),
        "Interval between two writes of the high watermark checkpoints.",
    ),
    worker_config(
        "num.replica.fetchers",
        INT,
        1,
        Range(1, 64),
        "Number of connections over which a worker fetches from each leader.",
    ),
    worker_config(
        "num.partitions",
        INT,
        1,
        Range(1),
        "Number of partitions of topics that are created without one.",
    ),
    worker_config(
        "num.recovery.threads.per.data.dir",
        INT,
        2,
        Range(1),
        "Number of logs in each log directory that are recovered at the same time at start.",
        dynamic=True,
    ),
    worker_config(
        "producer.id.expiration.ms",
        INT,
        86_400_000,
        Range(1),
        "Time after which a partition removes the state of an idle idempotent producer.",
        dynamic=True,
    ),
    worker_config(
        "max.producer.ids.per.client",
        INT,
        100_000,
        Range(2),
        "Number of producer ids, each counted once per partition, that the clients of one principal"
        " at one IP address (of an IPv6 address its /64 network) may bring to the partitions that a"
        " worker leads within producer.id.expiration.ms; half of it at once. Batches of further new"
        " producers are refused with NOT_ENOUGH_REPLICAS, those of known producers never. An id"
        " takes 0.5 to 1.2 kB of memory on each replica.",
        dynamic=True,
    ),
)
