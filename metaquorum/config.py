"""Every config there is, in one table: what parses, checks, describes and documents them.

A config lives in a *scope*: of topics, or of workers; `config_layers` finds the value in force.
Only what works is listed: an unknown name is refused rather than kept and ignored. Values are text
where Kafka's are (in requests, files and metadata records) and typed once parsed.

Source: names, types, defaults and ranges of Apache Kafka 4.3 (LogConfig, KafkaConfig).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, TypeAlias

from wire.errors import ErrorCode, KafkaError

ConfigValue: TypeAlias = bool | int | float | str | tuple[str, ...] | None
Check: TypeAlias = "Range | Levels | OneOf | None"

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
DOUBLE_MAX: Final = 1.7976931348623157e308
MAX_VALUE_CHARS: Final = 32_767  # of one config's text: what a short string of the protocol holds


class ConfigType(IntEnum):
    """As DescribeConfigs numbers them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class Scope(IntEnum):
    """The resource a config belongs to, numbered as the protocol's ConfigResource.Type."""

    TOPIC = 2
    WORKER = 4


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `least` to `most`, both included."""

    least: int
    most: int | None = None

    def complaint(self, value: ConfigValue) -> str | None:
        assert isinstance(value, int | float)
        if value < self.least:
            return f"Value must be at least {self.least}"
        if self.most is not None and value > self.most:
            return f"Value must be no more than {self.most}"
        return None

    def __str__(self) -> str:
        return f"[{self.least},...{'' if self.most is None else f',{self.most}'}]"


@dataclass(frozen=True, slots=True)
class Levels:
    """Numbers from `least` to `most`, and `also`, which stands for a default."""

    least: int
    most: int
    also: int

    def complaint(self, value: ConfigValue) -> str | None:
        assert isinstance(value, int)
        if self.least <= value <= self.most or value == self.also:
            return None
        return f"Value must be between {self.least} and {self.most} or equal to {self.also}"

    def __str__(self) -> str:
        return f"[{self.least},...,{self.most}] or {self.also}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of `values` (every item of a list); the `refused` are Kafka's, but do not work here."""

    values: tuple[str, ...]
    refused: tuple[str, ...] = ()

    def complaint(self, value: ConfigValue) -> str | None:
        items = value if isinstance(value, tuple) else (value,)
        for item in items:
            if item in self.refused:
                return f"{item} is not supported by this version"
            if item not in self.values:
                return f"String must be one of: {', '.join(self.values)}"
        return None

    def __str__(self) -> str:
        return f"[{', '.join(self.values)}]"


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One config. `synonyms`: the worker names that give a topic's value, with their factors.

    `dynamic`: it can be changed while nodes run; else only by starting one with another value.
    """

    name: str
    type: ConfigType
    default: ConfigValue
    check: Check
    scope: Scope
    dynamic: bool
    doc: str
    synonyms: tuple[tuple[str, int], ...] = ()
    internal: bool = False  # works when given, but is shown nowhere
    per_listener: bool = False  # also as listener.name.<listener>.<name>
    per_mechanism: bool = False  # also as listener.name.<listener>.<mechanism>.<name>

    @property
    def is_secret(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def default_text(self) -> str | None:
        return to_text(self.default)


_BOOLEAN, _STRING, _INT, _LONG, _FLOAT, _LIST, _PASSWORD = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
    ConfigType.PASSWORD,
)
_WEEK_MS: Final = 604_800_000
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000


def _topic(
    name: str,
    type_: ConfigType,
    default: ConfigValue,
    check: Check,
    doc: str,
    *,
    worker: str,
    coarser: tuple[tuple[str, int, int | None], ...] = (),
    internal: bool = False,
) -> list[ConfigKey]:
    """A topic's config and the worker's ones that stand for it; `coarser`: (name, factor, default).

    With coarser units the worker's own finest one has no default, so that theirs can show through.
    """
    synonyms = ((worker, 1), *((unit, factor) for unit, factor, _ in coarser))
    of_workers = f"{doc} For topics without {name}."
    rows = [
        ConfigKey(name, type_, default, check, Scope.TOPIC, True, doc, synonyms, internal),
        ConfigKey(
            worker,
            type_,
            None if coarser else default,
            check,
            Scope.WORKER,
            True,
            of_workers,
            internal=internal,
        ),
    ]
    for unit, _, unit_default in coarser:
        rows.append(ConfigKey(unit, _INT, unit_default, check, Scope.WORKER, False, of_workers))
    return rows


def _worker(
    name: str,
    type_: ConfigType,
    default: ConfigValue,
    check: Check,
    doc: str,
    *,
    dynamic: bool = False,
) -> list[ConfigKey]:
    return [ConfigKey(name, type_, default, check, Scope.WORKER, dynamic, doc)]


def _listener(
    name: str,
    type_: ConfigType,
    default: ConfigValue,
    check: Check,
    doc: str,
    *,
    dynamic: bool = False,
    per_mechanism: bool = False,
) -> list[ConfigKey]:
    """A worker's config that a listener may have of its own."""
    return [
        ConfigKey(
            name,
            type_,
            default,
            check,
            Scope.WORKER,
            dynamic,
            doc,
            per_listener=True,
            per_mechanism=per_mechanism,
        )
    ]


_ROWS: Final[tuple[list[ConfigKey], ...]] = (
    _topic(
        "cleanup.policy",
        _LIST,
        ("delete",),
        OneOf(("compact", "delete")),
        "What becomes of old records: delete removes segments by age or size, compact keeps the "
        "last record of each key.",
        worker="log.cleanup.policy",
    ),
    _topic(
        "compression.type",
        _STRING,
        "producer",
        OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
        "The codec of stored batches: producer keeps the one they came with.",
        worker="compression.type",
    ),
    _topic(
        "compression.gzip.level",
        _INT,
        -1,
        Levels(1, 9, also=-1),
        "How hard gzip tries, if compression.type asks for it; -1 for its own default.",
        worker="compression.gzip.level",
    ),
    _topic(
        "compression.lz4.level",
        _INT,
        9,
        Range(1, 17),
        "How hard lz4 tries, if compression.type asks for it.",
        worker="compression.lz4.level",
    ),
    _topic(
        "compression.zstd.level",
        _INT,
        3,
        Range(-131072, 22),
        "How hard zstd tries, if compression.type asks for it.",
        worker="compression.zstd.level",
    ),
    _topic(
        "delete.retention.ms",
        _LONG,
        86_400_000,
        Range(0),
        "How long compaction keeps a deletion (a key without a value), for readers to learn of it.",
        worker="log.cleaner.delete.retention.ms",
    ),
    _topic(
        "file.delete.delay.ms",
        _LONG,
        60_000,
        Range(0),
        "How long a deleted segment's files stay before they are removed.",
        worker="log.segment.delete.delay.ms",
    ),
    _topic(
        "flush.messages",
        _LONG,
        LONG_MAX,
        Range(1),
        "Fsync a partition's log after so many records.",
        worker="log.flush.interval.messages",
    ),
    _topic(
        "flush.ms",
        _LONG,
        LONG_MAX,
        Range(0),
        "Fsync a partition's log when records have waited so long.",
        worker="log.flush.interval.ms",
    ),
    _topic(
        "index.interval.bytes",
        _INT,
        4096,
        Range(0),
        "About how many bytes of log lie between two entries of the offset index.",
        worker="log.index.interval.bytes",
    ),
    _topic(
        "max.compaction.lag.ms",
        _LONG,
        LONG_MAX,
        Range(1),
        "How long a record may wait at most until compaction may look at it.",
        worker="log.cleaner.max.compaction.lag.ms",
    ),
    _topic(
        "max.message.bytes",
        _INT,
        1_048_588,
        Range(0),
        "The largest record batch taken (after compression).",
        worker="message.max.bytes",
    ),
    _topic(
        "message.timestamp.after.max.ms",
        _LONG,
        _HOUR_MS,
        Range(0),
        "How far in the future a record's timestamp may lie (CreateTime only).",
        worker="log.message.timestamp.after.max.ms",
    ),
    _topic(
        "message.timestamp.before.max.ms",
        _LONG,
        LONG_MAX,
        Range(0),
        "How far in the past a record's timestamp may lie (CreateTime only).",
        worker="log.message.timestamp.before.max.ms",
    ),
    _topic(
        "message.timestamp.type",
        _STRING,
        "CreateTime",
        OneOf(("CreateTime", "LogAppendTime")),
        "Whose time records carry: the producer's, or the worker's at the append.",
        worker="log.message.timestamp.type",
    ),
    _topic(
        "min.cleanable.dirty.ratio",
        _FLOAT,
        0.5,
        Range(0, 1),
        "The share of bytes not compacted yet above which a log is compacted.",
        worker="log.cleaner.min.cleanable.ratio",
    ),
    _topic(
        "min.compaction.lag.ms",
        _LONG,
        0,
        Range(0),
        "How long a record is safe from compaction.",
        worker="log.cleaner.min.compaction.lag.ms",
    ),
    _topic(
        "min.insync.replicas",
        _INT,
        1,
        Range(1),
        "With acks=all, how many replicas must have a record before it is acknowledged.",
        worker="min.insync.replicas",
    ),
    _topic(
        "retention.bytes",
        _LONG,
        -1,
        None,
        "How large a partition may grow before its oldest segments go; -1 for any size.",
        worker="log.retention.bytes",
    ),
    _topic(
        "retention.ms",
        _LONG,
        _WEEK_MS,
        Range(-1),
        "How old a segment may grow before it goes; -1 for any age.",
        worker="log.retention.ms",
        coarser=(
            ("log.retention.minutes", _MINUTE_MS, None),
            ("log.retention.hours", _HOUR_MS, 168),
        ),
    ),
    _topic(
        "segment.bytes",
        _INT,
        1 << 30,
        Range(1 << 20),
        "How large a segment may grow before the next one begins.",
        worker="log.segment.bytes",
    ),
    _topic(
        "internal.segment.bytes",
        _INT,
        None,
        Range(14),
        "segment.bytes without its lower limit, for tests.",
        worker="internal.log.segment.bytes",
        internal=True,
    ),
    _topic(
        "segment.index.bytes",
        _INT,
        10 << 20,
        Range(4),
        "How large a segment's index may grow before the next segment begins.",
        worker="log.index.size.max.bytes",
    ),
    _topic(
        "segment.jitter.ms",
        _LONG,
        0,
        Range(0),
        "Segments begin up to so much earlier than segment.ms asks, so that not all do at once.",
        worker="log.roll.jitter.ms",
        coarser=(("log.roll.jitter.hours", _HOUR_MS, 0),),
    ),
    _topic(
        "segment.ms",
        _LONG,
        _WEEK_MS,
        Range(1),
        "How old a segment may grow before the next one begins.",
        worker="log.roll.ms",
        coarser=(("log.roll.hours", _HOUR_MS, 168),),
    ),
    _topic(
        "unclean.leader.election.enable",
        _BOOLEAN,
        False,
        None,
        "Whether a replica that is not in sync leads where none in sync is left; what only those "
        "had is lost.",
        worker="unclean.leader.election.enable",
    ),
    _worker("node.id", _INT, 1, Range(0), "This node's number, unique in the cluster."),
    _worker(
        "process.roles",
        _LIST,
        ("broker", "controller"),
        None,
        "What this node does: serve clients (broker), keep the metadata log (controller), or both"
        " (--roles).",
    ),
    _worker(
        "controller.quorum.voters",
        _LIST,
        (),
        None,
        "The controllers, each as id@host:port (--quorum); none: this node alone.",
    ),
    _worker(
        "replica.selector.class",
        _STRING,
        None,
        OneOf(
            (
                "org.apache.kafka.common.replica.LeaderSelector",
                "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            )
        ),
        "Who serves consumers: leaders, or (RackAwareReplicaSelector) a replica in their rack.",
    ),
    _worker("broker.rack", _STRING, None, None, "The rack or zone, for placing replicas (--rack)."),
    _worker(
        "log.dir", _STRING, None, None, "The log directory, where log.dirs does not name several."
    ),
    _worker(
        "log.dirs",
        _LIST,
        None,
        None,
        "Directories for partitions, one on each disk; a new partition goes to the one with the "
        "fewest.",
    ),
    _worker(
        "metrics.listen",
        _STRING,
        None,
        None,
        "Where Prometheus finds /metrics, as host:port (--metrics-listen); none: nowhere.",
    ),
    _worker(
        "metadata.log.dir",
        _STRING,
        None,
        None,
        "The directory of the metadata log (--data-dir); the first log directory if nothing says.",
    ),
    _worker(
        "auto.create.topics.enable",
        _BOOLEAN,
        True,
        None,
        "Whether asking for an unknown topic's metadata creates it, where the client allows it.",
    ),
    _worker(
        "auto.leader.rebalance.enable",
        _BOOLEAN,
        True,
        None,
        "Whether leaders return by themselves to the first of their replicas, once it is in sync.",
    ),
    _worker(
        "broker.heartbeat.interval.ms",
        _INT,
        2000,
        Range(1),
        "How often a worker tells the active controller that it is alive.",
    ),
    _worker(
        "broker.session.timeout.ms",
        _INT,
        9000,
        Range(1),
        "How long the active controller takes a silent worker for alive, if no connection closed.",
    ),
    _worker(
        "connections.max.idle.ms",
        _LONG,
        600_000,
        Range(-1),
        "A connection without a request for so long is closed; -1 for never.",
    ),
    _worker(
        "default.replication.factor",
        _INT,
        1,
        Range(1, 32_767),
        "Replicas of topics created without saying how many.",
    ),
    _worker("delete.topic.enable", _BOOLEAN, True, None, "Whether topics can be deleted at all."),
    _worker(
        "fetch.max.bytes",
        _INT,
        57_671_680,
        Range(1024),
        "The most bytes one fetch response holds, whatever the client asks for.",
    ),
    _worker(
        "log.cleaner.backoff.ms",
        _LONG,
        15_000,
        Range(0),
        "How long the log cleaner waits when no log is to be compacted.",
        dynamic=True,
    ),
    _worker(
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        134_217_728,
        Range(1 << 20),
        "Memory for the keys of the logs being compacted, 24 bytes each; over all threads.",
        dynamic=True,
    ),
    _worker("log.cleaner.enable", _BOOLEAN, True, None, "Whether logs are compacted at all."),
    _worker(
        "log.cleaner.io.buffer.load.factor",
        _FLOAT,
        0.9,
        Range(0, 1),
        "How full the memory for keys may get: higher takes more keys at once, and longer each.",
        dynamic=True,
    ),
    _worker(
        "log.cleaner.io.buffer.size",
        _INT,
        524_288,
        Range(0),
        "How much is read at once from logs being compacted; over all threads.",
        dynamic=True,
    ),
    _worker(
        "log.cleaner.io.max.bytes.per.second",
        _FLOAT,
        DOUBLE_MAX,
        Range(0),
        "How fast the log cleaner may read and write, taken together.",
        dynamic=True,
    ),
    _worker(
        "log.cleaner.threads",
        _INT,
        1,
        Range(0),
        "How many logs are compacted at the same time.",
        dynamic=True,
    ),
    _worker(
        "log.flush.offset.checkpoint.interval.ms",
        _INT,
        60_000,
        Range(0),
        "How often recovery points are written down.",
    ),
    _worker(
        "log.flush.scheduler.interval.ms",
        _LONG,
        LONG_MAX,
        Range(1),
        "How often logs are looked at for flush.ms.",
    ),
    _worker(
        "log.retention.check.interval.ms",
        _LONG,
        300_000,
        Range(1),
        "How often logs are looked at for segments to delete.",
    ),
    _worker(
        "leader.imbalance.check.interval.seconds",
        _LONG,
        300,
        Range(1),
        "How often it is looked whether leaders have to return to the first of their replicas.",
    ),
    _worker(
        "leader.imbalance.per.broker.percentage",
        _INT,
        10,
        Range(0),
        "Which share of the partitions that a worker should lead others may lead.",
    ),
    _worker(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        1000,
        Range(0),
        "Clients whose fetches are remembered (KIP-227); 0 for none.",
    ),
    _worker(
        "max.connection.creation.rate",
        _INT,
        INT_MAX,
        Range(1),
        "Client connections taken in a second; more wait until they are.",
        dynamic=True,
    ),
    _worker(
        "max.connections",
        _INT,
        INT_MAX,
        Range(0),
        "Open client connections in all.",
        dynamic=True,
    ),
    _worker(
        "max.connections.per.ip",
        _INT,
        INT_MAX,
        Range(0),
        "Open client connections of one address.",
        dynamic=True,
    ),
    _worker(
        "controller.quota.window.num",
        _INT,
        11,
        Range(1),
        "How many samples of its quota a client that changes the metadata may use at once.",
    ),
    _worker(
        "controller.quota.window.size.seconds",
        _INT,
        1,
        Range(1),
        "How long each of these samples is.",
    ),
    _worker(
        "quota.consumer.default",
        _LONG,
        LONG_MAX,
        Range(1),
        "Bytes a second that consumers of one client id may fetch, where no quota is set for them. "
        "Quotas that are set at run time go before it.",
    ),
    _worker(
        "quota.producer.default",
        _LONG,
        LONG_MAX,
        Range(1),
        "Bytes a second that producers of one client id may send, where no quota is set for them. "
        "Quotas that are set at run time go before it.",
    ),
    _worker(
        "quota.window.num",
        _INT,
        11,
        Range(1),
        "How many samples of a client's use of its quotas are kept.",
    ),
    _worker(
        "quota.window.size.seconds",
        _INT,
        1,
        Range(1),
        "For how long each of these samples is taken.",
    ),
    _worker(
        "replica.lag.time.max.ms",
        _LONG,
        30_000,
        Range(1),
        "Replicas that were not caught up with their leader for so long leave the ISR.",
    ),
    _worker(
        "replica.fetch.wait.max.ms",
        _INT,
        500,
        Range(0),
        "How long a leader may keep a follower's fetch waiting for records; keep it well below"
        " replica.lag.time.max.ms.",
    ),
    _worker(
        "replica.fetch.min.bytes",
        _INT,
        1,
        Range(0),
        "Followers' fetches are answered when so much has come, or their time to wait is over.",
    ),
    _worker(
        "replica.fetch.max.bytes",
        _INT,
        1_048_576,
        Range(0),
        "Records that a follower asks for of one partition at a time; a larger batch comes whole.",
    ),
    _worker(
        "replica.fetch.response.max.bytes",
        _INT,
        10_485_760,
        Range(0),
        "Records that a follower asks for in one fetch, over all partitions.",
    ),
    _worker(
        "replica.fetch.backoff.ms",
        _INT,
        1000,
        Range(1),
        "A follower waits no longer than this before it tries a leader again.",
    ),
    _worker(
        "replica.high.watermark.checkpoint.interval.ms",
        _LONG,
        5000,
        Range(1),
        "How often it is written down up to where logs are committed.",
    ),
    _worker(
        "num.replica.fetchers",
        _INT,
        1,
        Range(1, 64),
        "Connections over which a worker fetches from each leader.",
    ),
    _worker("num.partitions", _INT, 1, Range(1), "Partitions of topics created without a number."),
    _worker(
        "num.recovery.threads.per.data.dir",
        _INT,
        2,
        Range(1),
        "Logs recovered side by side at the start.",
        dynamic=True,
    ),
    _worker(
        "producer.id.expiration.ms",
        _INT,
        86_400_000,
        Range(1),
        "How long a partition remembers an idle idempotent producer.",
        dynamic=True,
    ),
    _worker(
        "queued.max.request.bytes",
        _LONG,
        -1,
        None,
        "Bytes of requests held in memory at once, over all connections; -1 for no limit.",
    ),
    _worker(
        "listeners",
        _LIST,
        None,
        None,
        "Where clients come in, each as NAME://HOST:PORT; none: one listener PLAINTEXT (--listen).",
    ),
    _worker(
        "advertised.listeners",
        _LIST,
        None,
        None,
        "What clients are told instead, each as NAME://HOST:PORT (--advertise).",
    ),
    _worker(
        "listener.security.protocol.map",
        _LIST,
        (
            "PLAINTEXT:PLAINTEXT",
            "SSL:SSL",
            "SASL_PLAINTEXT:SASL_PLAINTEXT",
            "SASL_SSL:SASL_SSL",
        ),
        None,
        "How each listener is secured, as NAME:PROTOCOL.",
    ),
    _worker(
        "inter.broker.listener.name",
        _STRING,
        None,
        None,
        "The listener by which the workers fetch from each other; PLAINTEXT, or the only one.",
    ),
    _listener(
        "ssl.keystore.type",
        _STRING,
        "PEM",
        OneOf(("PEM",), refused=("JKS", "PKCS12")),
        "The form of ssl.keystore.location.",
    ),
    _listener(
        "ssl.keystore.location",
        _STRING,
        None,
        None,
        "A PEM file with this node's key, not encrypted, and its certificate and those between it"
        " and an authority; read again when it is replaced.",
    ),
    _listener(
        "ssl.truststore.type",
        _STRING,
        "PEM",
        OneOf(("PEM",), refused=("JKS", "PKCS12")),
        "The form of ssl.truststore.location.",
    ),
    _listener(
        "ssl.truststore.location",
        _STRING,
        None,
        None,
        "A PEM file with the authorities whose certificates are believed: clients', and other"
        " workers'; read again when it is replaced.",
    ),
    _listener(
        "ssl.client.auth",
        _STRING,
        "none",
        OneOf(("none", "requested", "required")),
        "Whether clients show certificates. Of listeners with SASL only those that have this"
        " config of their own ask for any (KIP-684).",
    ),
    _listener(
        "ssl.principal.mapping.rules",
        _STRING,
        "DEFAULT",
        None,
        "What the owner of a certificate is called: RULE:PATTERN/REPLACEMENT/[LU] or DEFAULT, of"
        " which the first that fits (KIP-371).",
    ),
    _listener(
        "ssl.endpoint.identification.algorithm",
        _STRING,
        "https",
        OneOf(("https", "")),
        "Whether another worker's certificate has to name its host: https, or nothing for no.",
    ),
    _listener(
        "sasl.enabled.mechanisms",
        _LIST,
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        OneOf(
            ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
            refused=("GSSAPI", "OAUTHBEARER"),
        ),
        "By which mechanisms clients may show who they are.",
    ),
    _worker(
        "sasl.mechanism.inter.broker.protocol",
        _STRING,
        "SCRAM-SHA-512",
        OneOf(
            ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
            refused=("GSSAPI", "OAUTHBEARER"),
        ),
        "By which mechanism a worker shows the others who it is.",
    ),
    _listener(
        "sasl.jaas.config",
        _PASSWORD,
        None,
        None,
        "Users and passwords for PLAIN (user_NAME), and this worker's own (username, password):"
        ' MODULE required NAME="VALUE" NAME="VALUE" and so on, ended by a semicolon.',
        per_mechanism=True,
    ),
    _listener(
        "sasl.server.max.receive.size",
        _INT,
        524_288,
        Range(1024),
        "The largest request of a client that has not shown who it is.",
    ),
    _listener(
        "connections.max.reauth.ms",
        _LONG,
        0,
        Range(0),
        "Clients have to show so often who they are, or are cut off (KIP-368); 0: once.",
        per_mechanism=True,
    ),
    _listener(
        "connection.failed.authentication.delay.ms",
        _INT,
        100,
        Range(0, 60_000),
        "How long one who could not show who it is waits for the answer.",
    ),
    _worker("socket.request.max.bytes", _INT, 104_857_600, Range(1), "The largest request taken."),
)

TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = {
    key.name: key for row in _ROWS for key in row if key.scope is Scope.TOPIC
}
WORKER_KEYS: Final[Mapping[str, ConfigKey]] = {
    key.name: key for row in _ROWS for key in row if key.scope is Scope.WORKER
}


COMPACTION_LAGS: Final = ("min.compaction.lag.ms", "max.compaction.lag.ms")


def keys(scope: Scope) -> Mapping[str, ConfigKey]:
    """The configs of a scope by name, those `internal` too."""
    return TOPIC_KEYS if scope is Scope.TOPIC else WORKER_KEYS


_OF_LISTENER: Final = re.compile(
    r"listener\.name\.([a-z0-9_\-]{1,64})\.(?:(plain|scram-sha-256|scram-sha-512)\.)?(.+)"
)


def find_key(scope: Scope, name: str) -> ConfigKey | None:
    """That config, also where a listener has one of its own."""
    known = keys(scope)
    if name in known:
        return known[name]
    if scope is Scope.WORKER and (match := _OF_LISTENER.fullmatch(name)) is not None:
        key = known.get(match[3])
        if key is not None and (key.per_mechanism if match[2] else key.per_listener):
            return replace(key, name=name)
    return None


def is_of_listener(name: str) -> bool:
    """Whether that is a config that one listener has of its own."""
    return name not in WORKER_KEYS and find_key(Scope.WORKER, name) is not None


def key_named(scope: Scope, name: str) -> ConfigKey:
    """That config; KafkaError (INVALID_CONFIG) with the closest name where there is none."""
    if (found := find_key(scope, name)) is not None:
        return found
    known = keys(scope)
    import difflib  # only for a mistake, and costs milliseconds

    what = "topic" if scope is Scope.TOPIC else "worker"
    names = sorted(each for each, key in known.items() if not key.internal)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown {what} config name: {name}{hint}")


# Text as Java's parsers take it, which is narrower than Python's (no underscores, ASCII only).
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_DOUBLE: Final = re.compile(r"([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)[dDfF]?")
_LIMITS: Final = {
    ConfigType.SHORT: 2**15,
    ConfigType.INT: 2**31,
    ConfigType.LONG: 2**63,
}


def _boolean(_: ConfigType, text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError("Expected value to be either true or false")
    return lowered == "true"


def _integer(type_: ConfigType, text: str) -> int:
    limit = _LIMITS[type_]
    if _INTEGER.fullmatch(text) is None or not -limit <= int(text) < limit:
        raise ValueError(f"Not a number of type {type_.name}")
    return int(text)


def _double(_: ConfigType, text: str) -> float:
    match = _DOUBLE.fullmatch(text)
    if match is None:
        raise ValueError("Not a number of type DOUBLE")
    return float(match[1])


def _list(_: ConfigType, text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


def _string(_: ConfigType, text: str) -> str:
    return text


_PARSERS: Final[Mapping[ConfigType, Callable[[ConfigType, str], ConfigValue]]] = {
    ConfigType.BOOLEAN: _boolean,
    ConfigType.STRING: _string,
    ConfigType.SHORT: _integer,
    ConfigType.INT: _integer,
    ConfigType.LONG: _integer,
    ConfigType.DOUBLE: _double,
    ConfigType.LIST: _list,
    ConfigType.PASSWORD: _string,
}


def parse(key: ConfigKey, text: str) -> ConfigValue:
    """The value that `text` says, checked; KafkaError (INVALID_CONFIG) in Kafka's words."""
    text = text.strip()
    shown = text if len(text) <= 100 else text[:100] + "..."
    if key.is_secret:
        shown = "[hidden]"
    try:
        if len(text) > MAX_VALUE_CHARS:
            raise ValueError(f"Longer than {MAX_VALUE_CHARS} characters")
        value = _PARSERS[key.type](key.type, text)
        complaint = None if key.check is None else key.check.complaint(value)
        if complaint is not None:
            raise ValueError(complaint)
    except ValueError as error:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {shown} for configuration {key.name}: {error}",
        ) from None
    return value


def parse_all(scope: Scope, texts: Mapping[str, str]) -> dict[str, ConfigValue]:
    """Every value of `texts` by name; KafkaError (INVALID_CONFIG) for the first that is wrong."""
    values = {name: parse(key_named(scope, name), text) for name, text in texts.items()}
    if scope is Scope.TOPIC:
        check_topic_values(values)
    return values


def check_topic_values(values: Mapping[str, ConfigValue]) -> None:
    """KafkaError (INVALID_CONFIG) when a topic's own values contradict each other."""
    least, most = (values.get(name, TOPIC_KEYS[name].default) for name in COMPACTION_LAGS)
    assert isinstance(least, int)
    assert isinstance(most, int)
    if least > most:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({least}) > "
            f"max.compaction.lag.ms ({most})",
        )


def to_text(value: ConfigValue) -> str | None:
    """The text that `parse` turns into `value`; None for a config without a value."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return str(value).replace("e+", "E").replace("e", "E")
    return str(value)


def shown_keys(scope: Scope) -> Iterable[ConfigKey]:
    """Those for DescribeConfigs, help and reference pages, by name."""
    return (key for _, key in sorted(keys(scope).items()) if not key.internal)
