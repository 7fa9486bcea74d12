"""The table of what controllers can be asked by other nodes, and the requests that it takes.

A row says what the active controller executes: a rule of `metaquorum.controller` through
`Controller.change` or `Controller.change_each`, or a method of `Controller` that does more. The
answers of changes are the controller's own. A request whose meaning changes is a new method; a new
field goes to the end, with the default that stands for its absence.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

from metaquorum.controller.alter_partition import PartitionChange
from metaquorum.controller.config_changes import ResourceChange
from metaquorum.controller.controller import Controller
from metaquorum.controller.elect_leaders import ElectionSpec, elect_leader
from metaquorum.controller.features import FeatureUpdate
from metaquorum.controller.heartbeats import HeartbeatAnswer, WorkerHeartbeat
from metaquorum.controller.mutation_quotas import MutationsTaken, MutationUse
from metaquorum.controller.proposer import Committed
from metaquorum.controller.quota_changes import QuotaChange, change_quotas
from metaquorum.controller.scram_changes import UserScramChange, change_scram_credentials
from metaquorum.controller.topics import (
    NewPartitions,
    NewTopic,
    ProducerIdBlock,
    TopicOutcome,
    allocate_producer_ids,
)
from metaquorum.controller.worker_registration import (
    ControllerRegistration,
    WorkerRegistration,
    register_controller,
)
from metaquorum.rpc.codec import Codec
from wire.primitives.errors import ErrorCode, KafkaError
from wire.primitives.frozen import frozen

Q = TypeVar("Q")
A = TypeVar("A")

ANONYMOUS: Final = "User:ANONYMOUS"


@frozen
class RequestContext:
    """On whose behalf a node asks: a client of it."""

    principal: str = ANONYMOUS
    client_id: str | None = None
    host: str = ""  # where the client is, as the node sees it

    @property
    def user(self) -> str:
        """As quotas know it."""
        return self.principal.removeprefix("User:")


@frozen
class CreateTopics:
    """No name may be in it twice."""

    context: RequestContext
    topics: Sequence[NewTopic]
    validate_only: bool = False


@frozen
class DeleteTopics:
    """Each by its name, or by its id."""

    context: RequestContext
    topics: Sequence[tuple[str | None, bytes | None]]


@frozen
class CreatePartitions:
    """No topic may be in it twice."""

    context: RequestContext
    specs: Sequence[NewPartitions]
    validate_only: bool = False


@frozen
class ChangeConfigs:
    context: RequestContext
    resources: Sequence[ResourceChange]
    validate_only: bool = False


@frozen
class ChangeQuotas:
    context: RequestContext
    changes: Sequence[QuotaChange]
    validate_only: bool = False


@frozen
class TakeMutations:
    """Asks whether a client may create and delete so many partitions with each of its wishes."""

    context: RequestContext
    counts: Sequence[int]
    is_strict: bool


@frozen
class DescribeMutations:
    """Asks what a client has of its controller_mutation_rate.

    `most_used` not 0: instead, of so many that are nearest to their quota or beyond.
    """

    user: str
    client_id: str | None
    most_used: int = 0


@frozen
class ChangeScramCredentials:
    """No user may be in it twice."""

    context: RequestContext
    users: Sequence[UserScramChange]


@frozen
class UpdateFeatures:
    """All of the levels are changed, or none."""

    context: RequestContext
    updates: Sequence[FeatureUpdate]
    validate_only: bool = False


@frozen
class UnregisterWorker:
    context: RequestContext
    worker_id: int


@frozen
class ElectLeaders:
    context: RequestContext
    specs: Sequence[ElectionSpec]


@frozen
class AlterPartitions:
    """A leader asks for other ISRs: a code for each. It learns of what is made as metadata."""

    worker_id: int
    broker_epoch: int
    changes: Sequence[PartitionChange]


@frozen
class ReportLostLogs:
    """A worker has lost logs, by topic id and partition. `recreated`: it has empty ones instead."""

    worker_id: int
    broker_epoch: int
    logs: Sequence[tuple[bytes, int]]
    recreated: bool


@frozen
class AllocateProducerIds:
    """A worker asks for a block of producer ids, which no other ever gets."""

    worker_id: int
    broker_epoch: int


@frozen
class QuorumView:
    """What one controller knows of the quorum. `leader_id` None: of no leader.

    `is_active`: it is the active controller itself, in `term`.
    """

    node_id: int
    leader_id: int | None
    term: int
    is_active: bool
    end_offset: int


@frozen
class WatchQuorum:
    """Asks for the view once it is another than `known` (None: at once), or after `wait_ms`.

    `incarnation_id`: of the asking worker's process. It counts as connected to this controller for
    as long as the stream lasts.
    """

    known: QuorumView | None
    wait_ms: int
    incarnation_id: bytes | None = None


@frozen
class DescribeQuorum:
    """Asks the active controller how far everybody is."""


@frozen
class ReadEnd:
    """Asks the active controller where the metadata ends, after a round through its quorum."""


@frozen
class ReplicaView:
    """How far a node has the metadata log, as the active controller knows. -1: not known.

    Times are its wall clock's, in milliseconds: when the node was heard last, and when it had all.
    """

    node_id: int
    end_offset: int
    heard_ms: int
    caught_up_ms: int


@frozen
class WorkerView:
    """What the active controller knows of a worker beside its registration. -1: nothing yet."""

    worker_id: int
    applied_offset: int
    heard_ms_ago: int
    connections: int
    why_fenced: str


@frozen
class QuorumDescription:
    """`observers` are the nodes that follow the log and do not vote on it."""

    leader_id: int
    term: int
    end_offset: int  # of what is committed
    voters: Sequence[ReplicaView]
    observers: Sequence[ReplicaView]
    workers: Sequence[WorkerView]


@frozen
class FetchMetadata:
    """Asks for committed batches from `offset` on, once there are some or after `wait_ms`.

    `term`: of the batch that ends at `offset`, where the asker knows. `snapshot`: its end offset
    and the number of the part that is asked for, while one is under way.
    """

    offset: int
    term: int | None
    wait_ms: int
    max_bytes: int
    snapshot: tuple[int, int] | None = None


@frozen
class SnapshotPart:
    """Some of a snapshot's records, packed; part 0 is the first."""

    end_offset: int
    number: int
    records: bytes
    is_last: bool


@frozen
class MetadataPart:
    """Committed batches, each as it was proposed; or part of a snapshot, from an empty image on."""

    batches: Sequence[bytes]
    end_offset: int  # of the controller's image
    snapshot: SnapshotPart | None = None


class AllowedCallers(Enum):
    """Who may call a method."""

    CLUSTER = "a node of the cluster, or a tool that has its secret"
    ITSELF = "the node that the request is about"


@dataclass(frozen=True)
class Method(Generic[Q, A]):
    """One row: what is asked, what is answered, and what the active controller executes.

    `action` None: `ControllerService` executes the method, with state of its own. `is_repeatable`:
    it may be called again where nobody knows whether it was executed.
    """

    name: str
    request: type[Q]
    answer: Any  # the type A, as a hint
    action: Callable[[Controller, Q], Awaitable[A]] | None
    callers: AllowedCallers = AllowedCallers.CLUSTER
    needs_active: bool = True
    is_repeatable: bool = False

    @cached_property
    def requests(self) -> Codec[Q]:
        return Codec(self.request, self.name)

    @cached_property
    def answers(self) -> Codec[A]:
        return Codec(self.answer, f"{self.name} answer")


_OUTCOMES: Final = Committed[list[TopicOutcome]]
_ERRORS: Final = Committed[list[KafkaError | None]]
_NOTHING: Final = Committed[None]

CREATE_TOPICS: Final[Method[CreateTopics, Committed[list[TopicOutcome]]]] = Method(
    "create_topics",
    CreateTopics,
    _OUTCOMES,
    lambda controller, request: controller.create_topics(
        request.topics, validate_only=request.validate_only
    ),
)
DELETE_TOPICS: Final[Method[DeleteTopics, Committed[list[TopicOutcome]]]] = Method(
    "delete_topics",
    DeleteTopics,
    _OUTCOMES,
    lambda controller, request: controller.delete_topics(request.topics),
)
CREATE_PARTITIONS: Final[Method[CreatePartitions, Committed[list[KafkaError | None]]]] = Method(
    "create_partitions",
    CreatePartitions,
    _ERRORS,
    lambda controller, request: controller.create_partitions(
        request.specs, validate_only=request.validate_only
    ),
)
CHANGE_CONFIGS: Final[Method[ChangeConfigs, Committed[list[KafkaError | None]]]] = Method(
    "change_configs",
    ChangeConfigs,
    _ERRORS,
    lambda controller, request: controller.change_configs(
        request.resources, validate_only=request.validate_only
    ),
)
CHANGE_QUOTAS: Final[Method[ChangeQuotas, Committed[list[KafkaError | None]]]] = Method(
    "change_quotas",
    ChangeQuotas,
    _ERRORS,
    lambda controller, request: controller.change_each(
        request.changes, change_quotas, validate_only=request.validate_only
    ),
)
TAKE_MUTATIONS: Final[Method[TakeMutations, MutationsTaken]] = Method(
    "take_mutations",
    TakeMutations,
    MutationsTaken,
    lambda controller, request: controller.take_mutations(
        request.context.user, request.context.client_id, request.counts, is_strict=request.is_strict
    ),
    is_repeatable=True,
)
DESCRIBE_MUTATIONS: Final[Method[DescribeMutations, list[MutationUse]]] = Method(
    "describe_mutations",
    DescribeMutations,
    list[MutationUse],
    lambda controller, request: controller.describe_mutations(
        request.user, request.client_id, request.most_used
    ),
    is_repeatable=True,
)
CHANGE_SCRAM_CREDENTIALS: Final[
    Method[ChangeScramCredentials, Committed[list[KafkaError | None]]]
] = Method(
    "change_scram_credentials",
    ChangeScramCredentials,
    _ERRORS,
    lambda controller, request: controller.change_each(request.users, change_scram_credentials),
)
UPDATE_FEATURES: Final[Method[UpdateFeatures, Committed[None]]] = Method(
    "update_features",
    UpdateFeatures,
    _NOTHING,
    lambda controller, request: controller.update_features(
        request.updates, validate_only=request.validate_only
    ),
)
UNREGISTER_WORKER: Final[Method[UnregisterWorker, Committed[None]]] = Method(
    "unregister_worker",
    UnregisterWorker,
    _NOTHING,
    lambda controller, request: controller.worker_lifecycle.unregister_worker(request.worker_id),
)
REGISTER_WORKER: Final[Method[WorkerRegistration, Committed[int]]] = Method(
    "register_worker",
    WorkerRegistration,
    Committed[int],
    lambda controller, request: controller.worker_lifecycle.register_worker(request),
    AllowedCallers.ITSELF,
    is_repeatable=True,
)
REGISTER_CONTROLLER: Final[Method[ControllerRegistration, Committed[None]]] = Method(
    "register_controller",
    ControllerRegistration,
    _NOTHING,
    lambda controller, request: controller.change(
        lambda image: register_controller(image, request)
    ),
    AllowedCallers.ITSELF,
    is_repeatable=True,
)
HEARTBEAT: Final[Method[WorkerHeartbeat, HeartbeatAnswer]] = Method(
    "heartbeat",
    WorkerHeartbeat,
    HeartbeatAnswer,
    lambda controller, request: controller.worker_lifecycle.heartbeat(request),
    AllowedCallers.ITSELF,
    is_repeatable=True,
)
ELECT_LEADERS: Final[Method[ElectLeaders, Committed[list[KafkaError | None]]]] = Method(
    "elect_leaders",
    ElectLeaders,
    _ERRORS,
    lambda controller, request: controller.change_each(request.specs, elect_leader),
)
ALTER_PARTITIONS: Final[Method[AlterPartitions, Committed[list[ErrorCode]]]] = Method(
    "alter_partitions",  # what was made is not made twice: the partition epoch is another then
    AlterPartitions,
    Committed[list[ErrorCode]],
    lambda controller, request: controller.alter_partitions(
        request.worker_id, request.broker_epoch, request.changes
    ),
    AllowedCallers.ITSELF,
    is_repeatable=True,
)
REPORT_LOST_LOGS: Final[Method[ReportLostLogs, Committed[list[KafkaError | None]]]] = Method(
    "lose_logs",
    ReportLostLogs,
    _ERRORS,
    lambda controller, request: controller.report_lost_logs(
        request.worker_id, request.broker_epoch, request.logs, recreated=request.recreated
    ),
    AllowedCallers.ITSELF,
    is_repeatable=True,
)
ALLOCATE_PRODUCER_IDS: Final[Method[AllocateProducerIds, Committed[ProducerIdBlock]]] = Method(
    "allocate_producer_ids",  # a block that nobody was told of is lost, and there are enough
    AllocateProducerIds,
    Committed[ProducerIdBlock],
    lambda controller, request: controller.change(
        lambda image: allocate_producer_ids(image, request.worker_id, request.broker_epoch)
    ),
    AllowedCallers.ITSELF,
    is_repeatable=True,
)
WATCH_QUORUM: Final[Method[WatchQuorum, QuorumView]] = Method(
    "watch_quorum", WatchQuorum, QuorumView, None, needs_active=False, is_repeatable=True
)
DESCRIBE_QUORUM: Final[Method[DescribeQuorum, QuorumDescription]] = Method(
    "describe_quorum", DescribeQuorum, QuorumDescription, None, is_repeatable=True
)
READ_END: Final[Method[ReadEnd, int]] = Method("read_end", ReadEnd, int, None, is_repeatable=True)
FETCH_METADATA: Final[Method[FetchMetadata, MetadataPart]] = Method(
    "fetch_metadata", FetchMetadata, MetadataPart, None, needs_active=False, is_repeatable=True
)

METHODS: Final[dict[str, Method[Any, Any]]] = {
    method.name: method
    for method in (
        CREATE_TOPICS,
        DELETE_TOPICS,
        CREATE_PARTITIONS,
        CHANGE_CONFIGS,
        CHANGE_QUOTAS,
        TAKE_MUTATIONS,
        DESCRIBE_MUTATIONS,
        CHANGE_SCRAM_CREDENTIALS,
        UPDATE_FEATURES,
        UNREGISTER_WORKER,
        REGISTER_WORKER,
        REGISTER_CONTROLLER,
        HEARTBEAT,
        ALLOCATE_PRODUCER_IDS,
        ELECT_LEADERS,
        ALTER_PARTITIONS,
        REPORT_LOST_LOGS,
        WATCH_QUORUM,
        DESCRIBE_QUORUM,
        READ_END,
        FETCH_METADATA,
    )
}
