"""What an administrator gives and gets: plain values, named as Kafka names them."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from typing import Final

from metaquorum.client.cluster import Node
from metaquorum.client.connection import VersionRange
from wire.primitives.frozen import frozen

BROKER_DEFAULT: Final = -1  # partitions or replication factor: as the cluster is configured


@frozen
class NewTopic:
    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


@frozen
class CreatedTopic:
    """As the broker answered; before Kafka 2.4 it told no numbers: -1."""

    name: str
    topic_id: str
    partitions: int
    replication_factor: int


@frozen
class Partition:
    index: int
    leader: int | None
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int]


@frozen
class Eligible:
    """Who may lead a partition without being in sync (KIP-966)."""

    replicas: Sequence[int] = ()  # they have all that is committed
    last_leader: int | None = None  # of a partition that nobody leads


@frozen
class Topic:
    name: str
    topic_id: str
    is_internal: bool
    partitions: Sequence[Partition]

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)

    @property
    def under_replicated(self) -> int:
        """How many partitions have replicas that are not in sync."""
        return sum(len(p.isr) < len(p.replicas) for p in self.partitions)


@frozen
class OffsetAtTime:
    """`offset` -1: there is none at or after that time."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@frozen
class ClusterDescription:
    cluster_id: str | None
    controller: int | None
    nodes: Sequence[Node]
    features: Mapping[str, int]


@frozen
class ApiSupport:
    """One API: the versions that a node serves and those spoken here; None: not at all."""

    key: int
    name: str
    served: VersionRange | None
    spoken: VersionRange | None


@frozen
class QuorumReplica:
    """A node that has the metadata log, as the leader knows. None: it did not tell."""

    node_id: int
    end_offset: int | None
    heard_ms: int | None  # when it was heard last, in milliseconds since 1970
    caught_up_ms: int | None  # when it had all that the leader has
    address: str | None


@frozen
class Quorum:
    """`committed_offset`: the metadata before it can no longer be lost."""

    leader: int
    term: int
    committed_offset: int
    voters: Sequence[QuorumReplica]
    observers: Sequence[QuorumReplica]


@frozen
class WorkerDescription:
    """A worker (Kafka's broker), alive or not. None: the cluster does not tell."""

    worker_id: int
    address: str
    rack: str | None
    is_fenced: bool
    why_fenced: str | None
    host: str | None  # the machine, as placement sees it
    broker_epoch: int | None
    is_shutting_down: bool | None
    metadata_offset: int | None  # it has taken in the metadata before
    heard_ms_ago: int | None


@frozen
class FollowerView:
    """A follower as its leader sees it. None: it has not shown."""

    node: int
    in_sync: bool
    log_end_offset: int | None
    fetched_ms_ago: int | None
    caught_up_ms_ago: int | None


@frozen
class PartitionView:
    """What the leader of a partition knows."""

    leader_epoch: int
    high_watermark: int
    log_end_offset: int
    followers: Sequence[FollowerView]


@frozen
class Truncation:
    """Offsets from `offset` up to `end_offset` are gone from that node's replica. None: unknown."""

    node_id: int
    time_ms: int
    topic: str
    topic_id: str
    partition: int
    reason: str
    offset: int
    end_offset: int | None
    last_epoch: int | None
    leader: int | None
    leader_epoch: int | None
    high_watermark: int | None  # as the replica knew it before
    acknowledged: str  # by all in sync: yes, no or perhaps
    detail: str | None


@frozen
class Ledger:
    """`has_forgotten`: there may have been others before."""

    node_id: int
    truncations: Sequence[Truncation]
    has_forgotten: bool


class ResourceType(IntEnum):
    """What has configs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from; the first that has one decides (KIP-226)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    DYNAMIC_CLIENT_METRICS = 7
    DYNAMIC_GROUP = 8


class ConfigType(IntEnum):
    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@frozen
class ConfigResource:
    """`name` is a topic's, a node's number or, empty, the default of all nodes."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        kind = self.type.name.lower().replace("_", "-")
        return f"{kind} {self.name or 'default'}"


@frozen
class ConfigSynonym:
    name: str
    value: str | None
    source: ConfigSource


@frozen
class ConfigEntry:
    """`value` None: a secret, which no broker tells, or no value."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    is_sensitive: bool
    type: ConfigType
    documentation: str | None
    synonyms: Sequence[ConfigSynonym]


class ConfigOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@frozen
class ConfigChange:
    name: str
    operation: ConfigOperation
    value: str | None = None


@frozen
class ReplicaOnDisk:
    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool


@frozen
class LogDir:
    """`error` is empty when the directory is in order; sizes of the volume are -1 if not told."""

    node_id: int
    path: str
    error: str
    total_bytes: int
    usable_bytes: int
    replicas: Sequence[ReplicaOnDisk]

    @property
    def size_bytes(self) -> int:
        return sum(replica.size_bytes for replica in self.replicas)
