"""Records of the metadata log, and their encoding.

A record is a frozen dataclass with one row in `SCHEMAS`: its id, its newest version, and for each
field its type and the version that added it. On disk and between nodes it is the msgpack array
`[id, version, field...]`. Ids are never reused. A new version only adds fields at the end, with a
default for older records. A record version may be written only if every node can read it, which
the cluster's level of metadata.version guarantees (`Schema.levels`).

Decoding is strict: types, ranges and lengths are checked. A record of a newer version raises
NewerVersionError, because skipping it would make replicas differ.
"""

import math
from collections.abc import Callable, Container, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from metaquorum.metadata.quota_lookup import CLIENT_ID, IP, USER, EntityPart
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.primitives.frozen import frozen

METADATA_VERSION: Final = "metadata.version"
ELIGIBLE_LEADERS: Final = "eligible.leader.replicas.version"
TRANSACTION_VERSION: Final = "transaction.version"

MAX_REPLICAS: Final = 128
MAX_ENDPOINTS: Final = 64
MAX_LOG_DIRS: Final = 64
MAX_FEATURES: Final = 256
MAX_ENTITY_PARTS: Final = 3
MAX_TOPIC_CHARS: Final = 249
MAX_TEXT_CHARS: Final = 32_767
MAX_SALT_BYTES: Final = 1024
MAX_KEY_BYTES: Final = 64
MAX_PARTITION: Final = 2**31 - 1
MAX_PLANNED_MOVES: Final = 100  # in one record
MAX_BATCH_MOVES: Final = 500  # partitions that one plan moves at the same time
MAX_STOPS: Final = 20  # stopped moves that a plan remembers: the last ones
MAX_REASON_CHARS: Final = 300

# States of a plan of moves; the last two are final.
LOADING: Final = "loading"  # its moves are being sent
RUNNING: Final = "running"
PAUSED: Final = "paused"  # begins no move; those that have begun continue
CANCELLING: Final = "cancelling"
COMPLETE: Final = "complete"
CANCELLED: Final = "cancelled"
PLAN_STATES: Final = (LOADING, RUNNING, PAUSED, CANCELLING, COMPLETE, CANCELLED)
FINAL_STATES: Final = (COMPLETE, CANCELLED)
_EPOCH_MAX: Final = 2**31 - 1
_OFFSET_MAX: Final = 2**63 - 1
UUID_BYTES: Final = 16

# msgpack allocates arrays of the claimed length, at every level of nesting, before it reads the
# items. So the limits are the largest values that records need.
UNPACK_LIMITS: Final[Mapping[str, Any]] = {
    "use_list": False,
    "max_array_len": 256,
    "max_map_len": 0,
    "max_str_len": 4 * MAX_TEXT_CHARS,
    "max_bin_len": 1024,
    "max_ext_len": 0,
}


class RecordError(WireError):
    """Raised if bytes are not a valid metadata record."""


class NewerVersionError(RecordError):
    """Raised if a record or a format was written by a newer version."""


class Endpoint(NamedTuple):
    """Advertised listener of a worker."""

    listener: str
    host: str
    port: int
    security_protocol: str


class FeatureRange(NamedTuple):
    """Levels of a feature that a node supports, both included."""

    name: str
    least: int
    most: int


@frozen
class FeatureLevelRecord:
    """Sets the cluster's level of a feature; level 0 disables it."""

    name: str
    level: int


@frozen
class TopicRecord:
    """Creates a topic. Its partitions follow in the same batch, from 0 without a gap."""

    name: str
    topic_id: bytes


@frozen
class PartitionRecord:
    """Sets the whole state of a partition; `leader` is -1 if there is none.

    `offline`: replicas in failed log directories. `blank`: replicas that restarted with an empty
    log and have not been in sync since. `unclean_epoch`: the last leader epoch that began with a
    possible loss of committed records, or -1. `elr`: eligible leader replicas, which are no longer
    in sync but have all committed records. `last_leader`: the last leader while the partition has
    none, or -1. `adding`, `removing`: replicas that a move adds or removes; `replicas` has the
    target of the move first, then the replicas that it removes. `plan`: the plan that this move is
    part of, or 0.
    """

    topic_id: bytes
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    offline: tuple[int, ...] = ()
    blank: tuple[int, ...] = ()
    unclean_epoch: int = -1
    elr: tuple[int, ...] = ()
    last_leader: int = -1
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    plan: int = 0


@frozen
class RemoveTopicRecord:
    """Deletes a topic with its partitions and configs."""

    topic_id: bytes


@frozen
class ConfigRecord:
    """Sets a config of a resource; the value None removes it.

    `resource_type` is a `config.Scope`; the worker name "" means all workers.
    """

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@frozen
class RegisterWorkerRecord:
    """Registers a worker process. `broker_epoch` is the offset of this record.

    `previous_broker_epoch`: until the worker is unfenced for the first time, the broker epoch that
    the start marks of its log directories may still have although no record is lost; otherwise
    None. `draining`: the worker receives no new replicas, and leads only where no other may.
    """

    worker_id: int
    incarnation_id: bytes
    broker_epoch: int
    endpoints: tuple[Endpoint, ...]
    host: str
    rack: str | None
    log_dirs: tuple[bytes, ...]
    features: tuple[FeatureRange, ...]
    fenced: bool
    in_controlled_shutdown: bool = False
    previous_broker_epoch: int | None = None
    draining: bool = False


@frozen
class UnregisterWorkerRecord:
    """Unregisters a worker."""

    worker_id: int
    broker_epoch: int


@frozen
class ProducerIdsRecord:
    """Allocates the block of producer ids before `next_producer_id` to a worker."""

    worker_id: int
    broker_epoch: int
    next_producer_id: int


@frozen
class WorkerChangeRecord:
    """Changes the state of a registered worker; None keeps a value."""

    worker_id: int
    broker_epoch: int
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None
    draining: bool | None = None


@frozen
class RegisterControllerRecord:
    """Registers a controller process and its quorum address."""

    controller_id: int
    incarnation_id: bytes
    host: str
    port: int
    features: tuple[FeatureRange, ...]


@frozen
class ClientQuotaRecord:
    """Sets the quota `key` of an entity; the value None removes it."""

    entity: tuple[EntityPart, ...]
    key: str
    value: float | None


@frozen
class ScramCredentialRecord:
    """Sets a user's credential for one mechanism; `mechanism` is a `scram.ScramMechanism`."""

    name: str
    mechanism: int
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


@frozen
class RemoveScramCredentialRecord:
    """Removes a user's credential for one mechanism.

    Authentication as that user still returns `salt` and `iterations` of the deleted credential, so
    that clients cannot detect the deletion. A record with an empty salt ends this.
    """

    name: str
    mechanism: int
    salt: bytes = b""
    iterations: int = 0


# Reasons that replay adds for moves that other changes stop. Replicas of other versions add the
# same ones, so the texts must not change.
STOPPED_BY_DELETION: Final = "its topic was deleted"
STOPPED_BY_CANCEL: Final = "another client cancelled its move"
STOPPED_BY_REQUEST: Final = "another client requested other replicas"


class StoppedMove(NamedTuple):
    """Move of a plan that was cancelled or given up, and why.

    `topic` is empty if the topic was deleted before the turn of the move.
    """

    topic: str
    partition: int
    reason: str


class PlannedMove(NamedTuple):
    """Move of one partition in a plan; `size_bytes` is what it copies, as the plan estimates."""

    topic_id: bytes
    partition: int
    replicas: tuple[int, ...]
    size_bytes: int


@frozen
class MovePlanRecord:
    """Sets the whole state of a plan of moves, except its moves.

    `owner`, `client_id`: who started it. `state`: one of `PLAN_STATES`. `rate_bytes_per_s`: limit
    for throttled replication of each worker on each side, while it has a replica of a partition
    that the plan moves. `batch_size`: partitions that move at the same time. `moves`,
    `size_bytes`: of the whole plan. `estimate_s`: how long it takes by the plan, or -1. `begun`:
    number of moves that have begun or were given up, from the first on. `done`, `stopped`: number
    of moves that have ended at their target, and otherwise; each later record of a partition that
    ends its move counts as well. `stops`: the last of the moves that have ended otherwise, except
    those that ended because the whole plan is cancelled.
    """

    plan_id: int
    owner: str
    client_id: str
    state: str
    rate_bytes_per_s: int | None
    batch_size: int
    moves: int
    size_bytes: int
    estimate_s: int
    created_ms: int
    ended_ms: int = 0
    begun: int = 0
    done: int = 0
    stopped: int = 0
    stops: tuple[StoppedMove, ...] = ()


@frozen
class PlannedMovesRecord:
    """Appends moves to a plan. A plan that has ended forgets them."""

    plan_id: int
    moves: tuple[PlannedMove, ...]


@frozen
class RemoveMovePlanRecord:
    """Removes a plan that has ended."""

    plan_id: int


MetadataRecord: TypeAlias = (
    FeatureLevelRecord
    | TopicRecord
    | PartitionRecord
    | RemoveTopicRecord
    | ConfigRecord
    | RegisterWorkerRecord
    | UnregisterWorkerRecord
    | ProducerIdsRecord
    | WorkerChangeRecord
    | RegisterControllerRecord
    | ClientQuotaRecord
    | ScramCredentialRecord
    | RemoveScramCredentialRecord
    | MovePlanRecord
    | PlannedMovesRecord
    | RemoveMovePlanRecord
)

# A kind converts an unpacked value to the value of a field, or raises ValueError with the expected
# type. Kinds are plain objects, so that tests can generate values for every row of `SCHEMAS`.
Kind: TypeAlias = Callable[[Any], Any]


class Integer:
    __slots__ = ("least", "most")

    def __init__(self, least: int, most: int) -> None:
        self.least = least
        self.most = most

    def __call__(self, value: Any) -> int:
        # Enumerations are rejected too: the image must be the same whether a record is replayed
        # before encoding or from its bytes.
        if type(value) is not int or not self.least <= value <= self.most:
            raise ValueError(f"is not an integer from {self.least} to {self.most}")
        return value


class Text:
    __slots__ = ("max_chars",)

    def __init__(self, max_chars: int) -> None:
        self.max_chars = max_chars

    def __call__(self, value: Any) -> str:
        if type(value) is not str or len(value) > self.max_chars:
            raise ValueError(f"is not a string of at most {self.max_chars} characters")
        return value


class OneOf:
    __slots__ = ("texts",)

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def __call__(self, value: Any) -> str:
        if type(value) is not str or value not in self.texts:
            raise ValueError(f"is not one of {', '.join(self.texts)}")
        return value


class Positive:
    __slots__ = ()

    def __call__(self, value: Any) -> float:
        if type(value) is not float or not 0 < value < math.inf:
            raise ValueError("is not a finite number above zero")
        return value


class Nullable:
    __slots__ = ("kind",)

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def __call__(self, value: Any) -> Any:
        return None if value is None else self.kind(value)


class Uuid:
    __slots__ = ()

    def __call__(self, value: Any) -> bytes:
        if type(value) is not bytes or len(value) != UUID_BYTES:
            raise ValueError(f"is not {UUID_BYTES} bytes")
        return value


class Data:
    __slots__ = ("max_bytes",)

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes

    def __call__(self, value: Any) -> bytes:
        if type(value) is not bytes or len(value) > self.max_bytes:
            raise ValueError(f"is not at most {self.max_bytes} bytes")
        return value


class Boolean:
    __slots__ = ()

    def __call__(self, value: Any) -> bool:
        if type(value) is not bool:
            raise ValueError("is not true or false")
        return value


class Array:
    __slots__ = ("kind", "max_items")

    def __init__(self, kind: Kind, max_items: int) -> None:
        self.kind = kind
        self.max_items = max_items

    def __call__(self, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple) or len(value) > self.max_items:
            raise ValueError(f"is not an array of at most {self.max_items} items")
        kind = self.kind
        return tuple([kind(item) for item in value])


class Struct:
    __slots__ = ("kinds", "make")

    def __init__(self, make: Callable[..., Any], *kinds: Kind) -> None:
        self.make = make
        self.kinds = kinds

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, tuple) or len(value) != len(self.kinds):
            raise ValueError(f"is not an array of {len(self.kinds)} items")
        return self.make(*[kind(item) for kind, item in zip(self.kinds, value, strict=True)])


@frozen
class Field:
    """Field of a record. Records older than version `since` are decoded with `default`.

    Dumps and logs hide the value if `is_secret`.
    """

    name: str
    kind: Kind
    since: int = 0
    default: object = None
    is_secret: bool = False


@frozen
class Schema:
    """Encoding of one record type.

    `levels`: version n of the record may be written if the cluster's level of metadata.version is
    at least `levels[n]`. `features`: (version, feature) pairs; the cluster must also have that
    feature enabled for the version to be written.
    """

    id: int
    version: int
    record: type[MetadataRecord]
    fields: tuple[Field, ...]
    levels: tuple[int, ...] = (0,)
    features: tuple[tuple[int, str], ...] = ()

    def version_at(self, level: int, features: Container[str] = ()) -> int:
        """Return the newest version that every node of a cluster with these levels can read.

        Raises ValueError if there is none; the record must not be written in such a cluster.
        """
        for version in range(self.version, -1, -1):
            needed = [feature for of_version, feature in self.features if of_version == version]
            if self.levels[version] <= level and all(each in features for each in needed):
                return version
        raise ValueError(
            f"{self.record.__name__} needs level {self.levels[0]} of metadata.version;"
            f" the cluster runs at {level}"
        )


_WORKER_ID: Final = Integer(0, 2**31 - 1)
_LEADER: Final = Integer(-1, 2**31 - 1)
_EPOCH: Final = Integer(0, _EPOCH_MAX)
_OFFSET: Final = Integer(0, _OFFSET_MAX)
_NAME: Final = Text(MAX_TOPIC_CHARS)
_MECHANISM: Final = Integer(1, 2)
_LONG_TEXT: Final = Text(MAX_TEXT_CHARS)
_REPLICAS: Final = Array(_WORKER_ID, MAX_REPLICAS)
_LEVEL: Final = Integer(0, 32_767)
_ENDPOINT: Final = Struct(Endpoint, _NAME, _NAME, Integer(0, 65_535), _NAME)
_FEATURE: Final = Struct(FeatureRange, _NAME, _LEVEL, _LEVEL)
_COUNT: Final = Integer(0, 2**31 - 1)
_PLAN_ID: Final = Integer(1, 2**31 - 1)
_PLANNED_MOVE: Final = Struct(
    PlannedMove, Uuid(), Integer(0, MAX_PARTITION), _REPLICAS, Integer(0, _OFFSET_MAX)
)
_STOPPED_MOVE: Final = Struct(StoppedMove, _NAME, Integer(0, MAX_PARTITION), Text(MAX_REASON_CHARS))
_ENTITY_PART: Final = Struct(EntityPart, OneOf(USER, CLIENT_ID, IP), Nullable(_LONG_TEXT))

SCHEMAS: Final[tuple[Schema, ...]] = (
    Schema(1, 0, FeatureLevelRecord, (Field("name", _NAME), Field("level", _LEVEL))),
    Schema(2, 0, TopicRecord, (Field("name", _NAME), Field("topic_id", Uuid()))),
    Schema(
        3,
        4,
        PartitionRecord,
        (
            Field("topic_id", Uuid()),
            Field("partition", Integer(0, MAX_PARTITION)),
            Field("replicas", _REPLICAS),
            Field("isr", _REPLICAS),
            Field("leader", _LEADER),
            Field("leader_epoch", _EPOCH),
            Field("partition_epoch", _EPOCH),
            Field("offline", _REPLICAS, since=1, default=()),
            Field("blank", _REPLICAS, since=2, default=()),
            Field("unclean_epoch", Integer(-1, _EPOCH_MAX), since=2, default=-1),
            Field("elr", _REPLICAS, since=3, default=()),
            Field("last_leader", _LEADER, since=3, default=-1),
            Field("adding", _REPLICAS, since=4, default=()),
            Field("removing", _REPLICAS, since=4, default=()),
            Field("plan", _COUNT, since=4, default=0),
        ),
        levels=(0, 0, 0, 0, 4),  # all nodes at level 1 read version 3
        features=((3, ELIGIBLE_LEADERS),),
    ),
    Schema(4, 0, RemoveTopicRecord, (Field("topic_id", Uuid()),)),
    Schema(
        5,
        0,
        ConfigRecord,
        (
            Field("resource_type", Integer(0, 127)),
            Field("resource_name", _NAME),
            Field("name", _NAME),
            Field("value", Nullable(_LONG_TEXT)),
        ),
    ),
    Schema(
        6,
        3,
        RegisterWorkerRecord,
        (
            Field("worker_id", _WORKER_ID),
            Field("incarnation_id", Uuid()),
            Field("broker_epoch", _OFFSET),
            Field("endpoints", Array(_ENDPOINT, MAX_ENDPOINTS)),
            Field("host", _NAME),
            Field("rack", Nullable(_NAME)),
            Field("log_dirs", Array(Uuid(), MAX_LOG_DIRS)),
            Field("features", Array(_FEATURE, MAX_FEATURES)),
            Field("fenced", Boolean()),
            Field("in_controlled_shutdown", Boolean(), since=1, default=False),
            Field("previous_broker_epoch", Nullable(_OFFSET), since=2, default=None),
            Field("draining", Boolean(), since=3, default=False),
        ),
        levels=(0, 0, 2, 4),  # all nodes at level 1 read version 1
    ),
    Schema(
        7,
        0,
        UnregisterWorkerRecord,
        (Field("worker_id", _WORKER_ID), Field("broker_epoch", _OFFSET)),
    ),
    Schema(
        8,
        0,
        ProducerIdsRecord,
        (
            Field("worker_id", _WORKER_ID),
            Field("broker_epoch", _OFFSET),
            Field("next_producer_id", _OFFSET),
        ),
    ),
    Schema(
        9,
        1,
        WorkerChangeRecord,
        (
            Field("worker_id", _WORKER_ID),
            Field("broker_epoch", _OFFSET),
            Field("fenced", Nullable(Boolean())),
            Field("in_controlled_shutdown", Nullable(Boolean())),
            Field("draining", Nullable(Boolean()), since=1, default=None),
        ),
        levels=(0, 4),
    ),
    Schema(
        10,
        0,
        RegisterControllerRecord,
        (
            Field("controller_id", _WORKER_ID),
            Field("incarnation_id", Uuid()),
            Field("host", _NAME),
            Field("port", Integer(0, 65_535)),
            Field("features", Array(_FEATURE, MAX_FEATURES)),
        ),
    ),
    Schema(
        11,
        0,
        ClientQuotaRecord,
        (
            Field("entity", Array(_ENTITY_PART, MAX_ENTITY_PARTS)),
            Field("key", _NAME),
            Field("value", Nullable(Positive())),
        ),
    ),
    Schema(
        12,
        0,
        ScramCredentialRecord,
        (
            Field("name", _NAME),
            Field("mechanism", _MECHANISM),
            Field("salt", Data(MAX_SALT_BYTES), is_secret=True),
            Field("iterations", Integer(1, 2**31 - 1)),
            Field("stored_key", Data(MAX_KEY_BYTES), is_secret=True),
            Field("server_key", Data(MAX_KEY_BYTES), is_secret=True),
        ),
    ),
    Schema(
        13,
        1,
        RemoveScramCredentialRecord,
        (
            Field("name", _NAME),
            Field("mechanism", _MECHANISM),
            Field("salt", Data(MAX_SALT_BYTES), since=1, default=b"", is_secret=True),
            Field("iterations", Integer(0, 2**31 - 1), since=1, default=0),
        ),
        levels=(0, 2),
    ),
    Schema(
        14,
        0,
        MovePlanRecord,
        (
            Field("plan_id", _PLAN_ID),
            Field("owner", _LONG_TEXT),
            Field("client_id", _LONG_TEXT),
            Field("state", OneOf(*PLAN_STATES)),
            Field("rate_bytes_per_s", Nullable(Integer(1, _OFFSET_MAX))),
            Field("batch_size", Integer(1, MAX_BATCH_MOVES)),
            Field("moves", _COUNT),
            Field("size_bytes", Integer(0, _OFFSET_MAX)),
            Field("estimate_s", Integer(-1, 2**31 - 1)),
            Field("created_ms", Integer(0, _OFFSET_MAX)),
            Field("ended_ms", Integer(0, _OFFSET_MAX)),
            Field("begun", _COUNT),
            Field("done", _COUNT),
            Field("stopped", _COUNT),
            Field("stops", Array(_STOPPED_MOVE, MAX_STOPS)),
        ),
        levels=(4,),
    ),
    Schema(
        15,
        0,
        PlannedMovesRecord,
        (
            Field("plan_id", _PLAN_ID),
            Field("moves", Array(_PLANNED_MOVE, MAX_PLANNED_MOVES)),
        ),
        levels=(4,),
    ),
    Schema(16, 0, RemoveMovePlanRecord, (Field("plan_id", _PLAN_ID),), levels=(4,)),
)

_BY_ID: Final[Mapping[int, Schema]] = {schema.id: schema for schema in SCHEMAS}
_BY_TYPE: Final[Mapping[type, Schema]] = {schema.record: schema for schema in SCHEMAS}


def schema_of(record: MetadataRecord) -> Schema:
    return _BY_TYPE[type(record)]


def is_written(kind: type[MetadataRecord], name: str, features: Mapping[str, int]) -> bool:
    """Return whether records of a kind have this field at the cluster's feature levels.

    If not, the field must have its default, in images too: a snapshot does not have the field.
    """
    schema = _BY_TYPE[kind]
    (since,) = (field.since for field in schema.fields if field.name == name)
    return schema.version_at(features.get(METADATA_VERSION, 0), features) >= since


def encode_record(record: MetadataRecord, version: int | None = None) -> bytes:
    """Encode the record in `version`, by default its newest version.

    Raises ValueError if a field is invalid, or if `version` does not have a field that differs from
    its default. So decoding always returns the same record.
    """
    schema = _BY_TYPE[type(record)]
    written = schema.version if version is None else version
    row: list[object] = [schema.id, written]
    for field in schema.fields:
        value = getattr(record, field.name)
        try:
            field.kind(value)
        except ValueError as error:
            raise ValueError(f"{type(record).__name__}.{field.name} {error}") from None
        if field.since <= written:
            row.append(value)
        elif value != field.default:
            raise ValueError(
                f"{type(record).__name__}.{field.name} does not exist in version {written}"
            )
    packed = msgpack.packb(row)
    assert isinstance(packed, bytes)
    return packed


class RecordEncoder:
    """Encoder that writes record versions which every node of a cluster can read."""

    __slots__ = ("_features", "_versions")

    def __init__(self, features: Mapping[str, int]) -> None:
        """Create an encoder for the cluster's feature levels."""
        self._features = features
        self._versions: dict[type, int] = {}

    def encode(self, record: MetadataRecord) -> bytes:
        """Encode a record. Raises ValueError also if the cluster's level is too low for it."""
        kind = type(record)
        version = self._versions.get(kind)
        if version is None:
            level = self._features.get(METADATA_VERSION, 0)
            version = _BY_TYPE[kind].version_at(level, self._features)
            self._versions[kind] = version
        return encode_record(record, version)


def record_from(row: object) -> MetadataRecord:
    """Return the record of an unpacked row. Raises RecordError if it is invalid."""
    if type(row) is not tuple or len(row) < 2 or type(row[0]) is not int:
        raise RecordError("metadata record: not an array of id, version and fields")
    schema = _BY_ID.get(row[0])
    if schema is None:
        raise NewerVersionError(
            f"metadata record: id {row[0]} is unknown, probably written by a newer version"
        )
    name, version = schema.record.__name__, row[1]
    if type(version) is not int or version < 0:
        raise RecordError(f"{name}: the version is not a number from 0 on")
    if version > schema.version:
        raise NewerVersionError(
            f"{name}: version {version} was written by a newer version;"
            f" this version reads up to {schema.version}"
        )
    fields = schema.fields
    if version < schema.version:
        fields = tuple(field for field in fields if field.since <= version)
    if len(row) != len(fields) + 2:
        raise RecordError(f"{name}: {len(row) - 2} fields instead of {len(fields)}")
    values = []
    for field, value in zip(fields, row[2:], strict=True):
        try:
            values.append(field.kind(value))
        except ValueError as error:
            raise RecordError(f"{name}.{field.name} {error}") from None
    values += [field.default for field in schema.fields[len(fields) :]]
    return schema.record(*values)


def decode_record(data: bytes | memoryview) -> MetadataRecord:
    """Decode the record that fills `data`. Raises RecordError if it is invalid."""
    return record_from(unpack(data))


def unpack(data: bytes | memoryview) -> object:
    """Unpack the msgpack value that fills `data`; arrays become tuples. Raises RecordError."""
    try:
        return msgpack.unpackb(data, **UNPACK_LIMITS)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise RecordError(f"metadata record: not msgpack ({error})") from None


def record_text(record: MetadataRecord) -> str:
    """Return one readable line for dumps and logs: `Topic name=a topic_id=...`."""
    schema = schema_of(record)
    words = [type(record).__name__.removesuffix("Record")]
    for field in schema.fields:
        value = getattr(record, field.name)
        if field.is_secret:
            value = "[hidden]"
        words.append(f"{field.name}={value.hex() if isinstance(value, bytes) else value}")
    return " ".join(words)
