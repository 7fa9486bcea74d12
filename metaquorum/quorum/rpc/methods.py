"""Table of the RPC methods of controllers, and their request types.

A row names what the active controller executes: a rule of `metaquorum.quorum.controller` through
`Controller.change` or `Controller.change_each`, or a method of `Controller`. Changes return the
answer types of the controller. A request whose meaning changes becomes a new method; a new field is
appended, with the default that means its absence.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

from metaquorum.quorum.controller.config_changes import ResourceChange
from metaquorum.quorum.controller.controller import Controller
from metaquorum.quorum.controller.features import FeatureUpdate
from metaquorum.quorum.controller.heartbeats import HeartbeatAnswer, WorkerHeartbeat
from metaquorum.quorum.controller.internal_topics import CreateInternalTopic
from metaquorum.quorum.controller.leaders.alter_partition import PartitionChange
from metaquorum.quorum.controller.leaders.elect_leaders import ElectionSpec, elect_leader
from metaquorum.quorum.controller.mutation_quotas import MutationsTaken, MutationUse
from metaquorum.quorum.controller.plans.move_plans import (
    MovePlanChange,
    MovePlanPart,
    NewMovePlan,
    append_moves,
    change_plan,
)
from metaquorum.quorum.controller.proposer import Committed
from metaquorum.quorum.controller.quota_changes import QuotaChange, change_quotas
from metaquorum.quorum.controller.reassignment import Reassignment, reassign
from metaquorum.quorum.controller.scram_changes import UserScramChange, change_scram_credentials
from metaquorum.quorum.controller.topics import (
    NewPartitions,
    NewTopic,
    ProducerIdBlock,
    TopicOutcome,
    allocate_producer_ids,
)
from metaquorum.quorum.controller.worker_registration import (
    ControllerRegistration,
    WorkerRegistration,
    register_controller,
)
from metaquorum.quorum.rpc.codec import Codec
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen

Q = TypeVar("Q")
A = TypeVar("A")

ANONYMOUS: Final = "User:ANONYMOUS"


@frozen
class RequestContext:
    """Client on whose behalf a node sends a request."""

    principal: str = ANONYMOUS
    client_id: str | None = None
    host: str = ""  # address of the client, as the node sees it

    @property
    def user(self) -> str:
        """Name of the user in quotas: the principal without its type."""
        return self.principal.removeprefix("User:")


@frozen
class CreateTopics:
    """Request to create topics. Topic names must be distinct."""

    context: RequestContext
    topics: Sequence[NewTopic]
    validate_only: bool = False


@frozen
class DeleteTopics:
    """Request to delete topics, each given by its name or by its id."""

    context: RequestContext
    topics: Sequence[tuple[str | None, bytes | None]]


@frozen
class CreatePartitions:
    """Request to add partitions. Topics must be distinct."""

    context: RequestContext
    specs: Sequence[NewPartitions]
    validate_only: bool = False


@frozen
class ReassignPartitions:
    """Request to move partitions, or cancel their moves, in this order."""

    context: RequestContext
    reassignments: Sequence[Reassignment]


@frozen
class CreateMovePlan:
    """Request to create a plan of moves, without its moves."""

    context: RequestContext
    plan: NewMovePlan


@frozen
class AppendMoves:
    """Request to append moves to plans that are loading."""

    context: RequestContext
    parts: Sequence[MovePlanPart]


@frozen
class ChangeMovePlans:
    """Request to start, pause, resume, cancel or throttle plans of moves."""

    context: RequestContext
    changes: Sequence[MovePlanChange]


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
    """Request to charge created and deleted partitions to a client's controller_mutation_rate.

    `counts`: number of partitions of each spec of the client's request.
    """

    context: RequestContext
    counts: Sequence[int]
    is_strict: bool


@frozen
class DescribeMutations:
    """Request for the use of a client's controller_mutation_rate quota.

    If `most_used` is not 0, the answer is instead about that number of clients: those nearest to
    their quotas or above them.
    """

    user: str
    client_id: str | None
    most_used: int = 0


@frozen
class ChangeScramCredentials:
    """Request to change SCRAM credentials. Users must be distinct."""

    context: RequestContext
    users: Sequence[UserScramChange]


@frozen
class UpdateFeatures:
    """Request to change feature levels. All of the levels change, or none."""

    context: RequestContext
    updates: Sequence[FeatureUpdate]
    validate_only: bool = False


@frozen
class UnregisterWorker:
    context: RequestContext
    worker_id: int


@frozen
class AlterWorker:
    """Request to drain, return or remove a worker; `action` is a `WorkerAction`."""

    context: RequestContext
    worker_id: int
    action: int


@frozen
class ElectLeaders:
    context: RequestContext
    specs: Sequence[ElectionSpec]


@frozen
class AlterPartitions:
    """Request of a leader to change ISRs.

    The answer is an error code for each partition; the leader receives the new ISRs as metadata.
    """

    worker_id: int
    broker_epoch: int
    changes: Sequence[PartitionChange]


@frozen
class ReportLostLogs:
    """Report of a worker that it has lost logs, each a topic id and a partition.

    `recreated`: the worker has created empty logs in their place.
    """

    worker_id: int
    broker_epoch: int
    logs: Sequence[tuple[bytes, int]]
    recreated: bool


@frozen
class ReportDoubtfulLogs:
    """Report of a restarted worker that it may have lost the end of logs, not yet unfenced.

    Each log is a topic id and a partition.
    """

    worker_id: int
    broker_epoch: int
    logs: Sequence[tuple[bytes, int]]


@frozen
class AllocateProducerIds:
    """Request of a worker for a block of producer ids that no other worker receives."""

    worker_id: int
    broker_epoch: int


@frozen
class QuorumView:
    """State of the quorum as one controller knows it. `leader_id` is None without a known leader.

    `is_active`: the controller itself is the active controller in `term`.
    """

    node_id: int
    leader_id: int | None
    term: int
    is_active: bool
    end_offset: int


@frozen
class WatchQuorum:
    """Long poll for the quorum view: answered when it differs from `known`, or after `wait_ms`.

    If `known` is None, the controller answers immediately. `incarnation_id` identifies the process
    of the requesting worker, which is connected to this controller while the stream lasts.
    """

    known: QuorumView | None
    wait_ms: int
    incarnation_id: bytes | None = None


@frozen
class DescribeQuorum:
    """Request for the log end offsets of voters, observers and workers."""


@frozen
class ReadEnd:
    """Request for the end offset of the committed metadata, confirmed by a quorum."""


@frozen
class ReplicaView:
    """Replication state of a node, as the active controller knows it. -1: not known.

    Times are milliseconds of the active controller's wall clock: the last fetch or heartbeat of the
    node (`heard_ms`), and the last time at which it had the whole log (`caught_up_ms`).
    """

    node_id: int
    end_offset: int
    heard_ms: int
    caught_up_ms: int


@frozen
class WorkerView:
    """State of a worker, besides its registration, at the active controller. -1: not known yet."""

    worker_id: int
    applied_offset: int
    heard_ms_ago: int
    connections: int
    why_fenced: str


@frozen
class QuorumDescription:
    """State of the quorum. `observers` are nodes that follow the log without voting."""

    leader_id: int
    term: int
    end_offset: int  # end of the committed metadata
    voters: Sequence[ReplicaView]
    observers: Sequence[ReplicaView]
    workers: Sequence[WorkerView]


@frozen
class FetchMetadata:
    """Long poll for committed batches from `offset` on, answered after at most `wait_ms`.

    `term`: term of the batch that ends at `offset`, if the follower knows it. `snapshot`: end
    offset of the snapshot that the follower is loading, and the number of the requested part.
    """

    offset: int
    term: int | None
    wait_ms: int
    max_bytes: int
    snapshot: tuple[int, int] | None = None


@frozen
class SnapshotPart:
    """Packed records of one part of a snapshot; part 0 is the first."""

    end_offset: int
    number: int
    records: bytes
    is_last: bool


@frozen
class MetadataPart:
    """Committed batches, encoded as proposed; or one part of a snapshot of the whole image."""

    batches: Sequence[bytes]
    end_offset: int  # end offset of the controller's image
    snapshot: SnapshotPart | None = None


class AllowedCallers(Enum):
    """Callers that are authorized to call a method."""

    CLUSTER = "a node of the cluster, or a tool that has its secret"
    ITSELF = "the node that the request is about"


@dataclass(frozen=True)
class Method(Generic[Q, A]):
    """One row: request type, answer type, and what the active controller executes.

    `action` None: `ControllerService` executes the method, with state of its own. `is_repeatable`:
    a client may retry the method if its outcome is unknown.
    """

    name: str
    request: type[Q]
    answer: Any  # type hint of A
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
REASSIGN_PARTITIONS: Final[Method[ReassignPartitions, Committed[list[KafkaError | None]]]] = Method(
    "reassign_partitions",
    ReassignPartitions,
    _ERRORS,
    lambda controller, request: controller.change_each(request.reassignments, reassign),
)
CREATE_MOVE_PLAN: Final[Method[CreateMovePlan, Committed[int]]] = Method(
    "create_move_plan",
    CreateMovePlan,
    Committed[int],
    lambda controller, request: controller.create_move_plan(request.plan),
)
APPEND_MOVES: Final[Method[AppendMoves, Committed[list[KafkaError | None]]]] = Method(
    "append_moves",
    AppendMoves,
    _ERRORS,
    lambda controller, request: controller.change_each(request.parts, append_moves),
    is_repeatable=True,
)
CHANGE_MOVE_PLANS: Final[Method[ChangeMovePlans, Committed[list[KafkaError | None]]]] = Method(
    "change_move_plans",
    ChangeMovePlans,
    _ERRORS,
    lambda controller, request: controller.change_each(request.changes, change_plan),
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
ALTER_WORKER: Final[Method[AlterWorker, Committed[None]]] = Method(
    "alter_worker",
    AlterWorker,
    _NOTHING,
    lambda controller, request: controller.worker_lifecycle.alter_worker(
        request.worker_id, request.action
    ),
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
    "alter_partitions",  # a change is not applied twice, since it increments the partition epoch
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
REPORT_DOUBTFUL_LOGS: Final[Method[ReportDoubtfulLogs, Committed[list[KafkaError | None]]]] = (
    Method(
        "doubt_logs",
        ReportDoubtfulLogs,
        _ERRORS,
        lambda controller, request: controller.report_doubtful_logs(
            request.worker_id, request.broker_epoch, request.logs
        ),
        AllowedCallers.ITSELF,
        is_repeatable=True,
    )
)
ALLOCATE_PRODUCER_IDS: Final[Method[AllocateProducerIds, Committed[ProducerIdBlock]]] = Method(
    "allocate_producer_ids",  # a block whose answer was lost is never used; there are enough blocks
    AllocateProducerIds,
    Committed[ProducerIdBlock],
    lambda controller, request: controller.change(
        lambda image: allocate_producer_ids(image, request.worker_id, request.broker_epoch)
    ),
    AllowedCallers.ITSELF,
    is_repeatable=True,
)
CREATE_INTERNAL_TOPIC: Final[Method[CreateInternalTopic, Committed[None]]] = Method(
    "create_internal_topic",
    CreateInternalTopic,
    _NOTHING,
    lambda controller, request: controller.create_internal_topic(request),
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
        REASSIGN_PARTITIONS,
        CREATE_MOVE_PLAN,
        APPEND_MOVES,
        CHANGE_MOVE_PLANS,
        CHANGE_CONFIGS,
        CHANGE_QUOTAS,
        TAKE_MUTATIONS,
        DESCRIBE_MUTATIONS,
        CHANGE_SCRAM_CREDENTIALS,
        UPDATE_FEATURES,
        UNREGISTER_WORKER,
        ALTER_WORKER,
        REGISTER_WORKER,
        REGISTER_CONTROLLER,
        HEARTBEAT,
        ALLOCATE_PRODUCER_IDS,
        CREATE_INTERNAL_TOPIC,
        ELECT_LEADERS,
        ALTER_PARTITIONS,
        REPORT_LOST_LOGS,
        REPORT_DOUBTFUL_LOGS,
        WATCH_QUORUM,
        DESCRIBE_QUORUM,
        READ_END,
        FETCH_METADATA,
    )
}
