"""Parameters and results of the admin client: plain values with Kafka's names."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from typing import Final

from metaquorum.client.cluster import Node
from metaquorum.client.connection import VersionRange
from metaquorum.wire.primitives.frozen import frozen

BROKER_DEFAULT: Final = -1  # partitions or replication factor: the default of the cluster


@frozen
class NewTopic:
    """Topic to create. `configs`: values by config name."""

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


@frozen
class CreatedTopic:
    """Result of a creation. Kafka before 2.4 does not report the numbers: -1."""

    name: str
    topic_id: str
    partitions: int
    replication_factor: int


@frozen
class Partition:
    """Metadata of a partition; replicas are node ids. `leader` None: no leader.

    While the partition moves, `adding` and `removing` are those of its replicas that will stay and
    leave.
    """

    index: int
    leader: int | None
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int]
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()

    @property
    def is_under_replicated(self) -> bool:
        """Whether replicas are out of sync, except as many as a move adds (KIP-352)."""
        return len(self.isr) < len(self.replicas) - len(self.adding)


@frozen
class Eligible:
    """Eligible leader replicas of a partition, which are not in sync (KIP-966)."""

    replicas: Sequence[int] = ()  # node ids; these replicas have all committed records
    last_leader: int | None = None  # last known leader of a partition without a leader


@frozen
class Topic:
    """Metadata of a topic. `topic_id`: 22 characters of URL-safe base64; empty: not supported."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: Sequence[Partition]

    @property
    def replication_factor(self) -> int:
        """Largest number of replicas of a partition, except those that a move adds."""
        return max((len(each.replicas) - len(each.adding) for each in self.partitions), default=0)

    @property
    def under_replicated(self) -> int:
        """Number of partitions with replicas that are not in sync."""
        return sum(partition.is_under_replicated for partition in self.partitions)


@frozen
class OffsetAtTime:
    """Result of `list_offsets`. `offset` -1: no record has this timestamp or a later one."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@frozen
class ClusterDescription:
    """Cluster id, controller, nodes, and levels by feature. `controller` None: not known."""

    cluster_id: str | None
    controller: int | None
    nodes: Sequence[Node]
    features: Mapping[str, int]


@frozen
class ApiSupport:
    """Versions of one API that a node serves and that this client supports (None: none)."""

    key: int
    name: str
    served: VersionRange | None
    spoken: VersionRange | None


@frozen
class QuorumReplica:
    """A replica of the metadata log, as the leader knows it. None: not known."""

    node_id: int
    end_offset: int | None
    heard_ms: int | None  # time of its last fetch or heartbeat, milliseconds since 1970 UTC
    caught_up_ms: int | None  # last time it had caught up, milliseconds since 1970 UTC
    address: str | None


@frozen
class Quorum:
    """State of the quorum. `committed_offset`: high watermark of the metadata log."""

    leader: int
    term: int
    committed_offset: int
    voters: Sequence[QuorumReplica]
    observers: Sequence[QuorumReplica]


@frozen
class WorkerDescription:
    """A registered worker (broker), fenced or not. None: the cluster does not report the field."""

    worker_id: int
    address: str
    rack: str | None
    is_fenced: bool
    why_fenced: str | None
    host: str | None  # name of its machine, used by replica placement
    broker_epoch: int | None
    is_shutting_down: bool | None
    metadata_offset: int | None  # end offset of the metadata that it has applied
    heard_ms_ago: int | None  # milliseconds since its last heartbeat
    is_draining: bool | None = None


@frozen
class FollowerView:
    """A follower as its leader sees it. None: the follower has not fetched yet."""

    node: int
    in_sync: bool
    log_end_offset: int | None
    fetched_ms_ago: int | None
    caught_up_ms_ago: int | None


@frozen
class PartitionView:
    """State of a partition at its leader."""

    leader_epoch: int
    high_watermark: int
    log_end_offset: int
    followers: Sequence[FollowerView]


@frozen
class Truncation:
    """Loss of the offsets from `offset` up to `end_offset` on one node's replica. None: unknown."""

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
    high_watermark: int | None  # high watermark of the replica before the loss
    acknowledged: str  # whether all in-sync replicas had the records: yes, no or perhaps
    detail: str | None


@frozen
class Ledger:
    """Truncation ledger of one node. `has_forgotten`: older truncations may have been dropped."""

    node_id: int
    truncations: Sequence[Truncation]
    has_forgotten: bool


class ResourceType(IntEnum):
    """Types of resources that have configs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Origin of a config value; KIP-226 defines the precedence."""

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
    """Type of a config value."""

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
    """Resource with configs. `name`: topic name or node id; empty: the default of all nodes."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        kind = self.type.name.lower().replace("_", "-")
        return f"{kind} {self.name or 'default'}"


@frozen
class ConfigSynonym:
    """A config that supplies the value if those with higher precedence do not."""

    name: str
    value: str | None
    source: ConfigSource


@frozen
class ConfigEntry:
    """One config of a resource. `value` None: no value, or a sensitive one, which is not shown."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    is_sensitive: bool
    type: ConfigType
    documentation: str | None
    synonyms: Sequence[ConfigSynonym]


class ConfigOperation(IntEnum):
    """Operations of `alter_configs`; APPEND and SUBTRACT are for list values."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@frozen
class ConfigChange:
    """Change of one config. `value` None: for DELETE."""

    name: str
    operation: ConfigOperation
    value: str | None = None


@frozen
class ReplicaOnDisk:
    """A replica in a log directory. `offset_lag`: offsets by which it is behind."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool


@frozen
class LogDir:
    """Log directory of one node.

    `error` is empty if the directory is online. `total_bytes` and `usable_bytes` are sizes of the
    volume; -1: not reported.
    """

    node_id: int
    path: str
    error: str
    total_bytes: int
    usable_bytes: int
    replicas: Sequence[ReplicaOnDisk]

    @property
    def size_bytes(self) -> int:
        """Size of all replicas in the directory."""
        return sum(replica.size_bytes for replica in self.replicas)
