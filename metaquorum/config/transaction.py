"""Worker configs of transactions, and of the topic that stores their state."""

from typing import Final

from metaquorum.config.definition import BOOLEAN, INT, LONG, ConfigKey, Range, worker_config

TRANSACTION_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    worker_config(
        "transaction.max.timeout.ms",
        INT,
        900_000,
        Range(1),
        "Maximum transaction timeout that a producer may request. An open transaction holds back"
        " consumers that read committed records only.",
    ),
    worker_config(
        "transactional.id.expiration.ms",
        INT,
        604_800_000,
        Range(1),
        "Time without a change of its transaction after which a transactional id is removed. One"
        " with an open transaction is kept.",
    ),
    worker_config(
        "transaction.memory.max.bytes",
        LONG,
        268_435_456,
        Range(1 << 20),
        "Memory for the transactional ids that a worker coordinates, above which clients cannot"
        " create more; an id of 50 characters takes 550 bytes. Above half of it, one client (a"
        " principal, or an address without authentication) can have a quarter of what is left."
        " Known ids can add partitions to their transactions in as much memory again.",
    ),
    worker_config(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        10_000,
        Range(1),
        "Interval at which a coordinator aborts transactions that have timed out.",
    ),
    worker_config(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        3_600_000,
        Range(1),
        "Interval at which a coordinator removes transactional ids that have expired.",
    ),
    worker_config(
        "transaction.partition.verification.enable",
        BOOLEAN,
        True,
        None,
        "Whether a leader asks the coordinator if a partition is part of the transaction, before it"
        " writes the first record of the transaction to it.",
        dynamic=True,
    ),
    worker_config(
        "transaction.state.log.num.partitions",
        INT,
        50,
        Range(1, 10_000),
        "Number of partitions of the topic of transactions (__transaction_state). Applies when the"
        " topic is created, on the first use of a transactional id; it cannot be changed"
        " afterwards.",
    ),
    worker_config(
        "transaction.state.log.replication.factor",
        INT,
        3,
        Range(1, 32_767),
        "Maximum replication factor of the topic of transactions. If fewer workers are live when"
        " the topic is created, each of them gets a replica.",
    ),
    worker_config(
        "transaction.state.log.min.isr",
        INT,
        2,
        Range(1),
        "min.insync.replicas of the topic of transactions when it is created. As for every topic,"
        " no more are required than there are replicas.",
    ),
    worker_config(
        "transaction.state.log.segment.bytes",
        INT,
        104_857_600,
        Range(1 << 20),
        "segment.bytes of the topic of transactions when it is created. Smaller segments are"
        " compacted sooner, and load faster.",
    ),
    worker_config(
        "transaction.state.log.load.buffer.size",
        INT,
        5_242_880,
        Range(1),
        "Bytes that a coordinator reads at once when it loads the state of transactions. A larger"
        " record batch is still read whole.",
    ),
    worker_config(
        "producer.id.expiration.check.interval.ms",
        INT,
        600_000,
        Range(1),
        "Interval at which a worker removes the state of producers that producer.id.expiration.ms"
        " permits to remove.",
    ),
)
