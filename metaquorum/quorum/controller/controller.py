"""The active controller: all changes of the metadata.

The rules are pure functions (`topics`, `worker_registration`, `features`, `config_changes`);
`proposer` commits their decisions. A rule that needs only the image and the request has no method
here: its row in `metaquorum.quorum.rpc.methods` passes it to `change` or `change_each`.
`worker_lifecycle` registers, fences and unfences workers. Every voter of the quorum has a
controller; all but the active one answer with NOT_CONTROLLER.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from random import Random
from typing import Final, TypeVar

import trio

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import MetadataRecord
from metaquorum.metadata.replicated_log import Quorum
from metaquorum.quorum.controller.config_changes import (
    UNCLEAN_ELECTIONS,
    ResourceChange,
    change_configs,
    may_need_fewer,
    prepare_configs,
)
from metaquorum.quorum.controller.controller_configs import ControllerConfigs
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.features import (
    FeatureUpdate,
    check_features,
    nodes_with_features,
    update_features,
)
from metaquorum.quorum.controller.internal_topics import CreateInternalTopic, create_internal_topic
from metaquorum.quorum.controller.leaders.alter_partition import PartitionChange, alter_partition
from metaquorum.quorum.controller.leaders.eligible_leaders import for_all_workers
from metaquorum.quorum.controller.mutation_quotas import MutationQuotas, MutationsTaken, MutationUse
from metaquorum.quorum.controller.plans.execution import PlanExecution
from metaquorum.quorum.controller.plans.move_plans import NewMovePlan, create_plan
from metaquorum.quorum.controller.preferred_leaders import keep_balance
from metaquorum.quorum.controller.proposer import Committed, Proposer
from metaquorum.quorum.controller.topics import (
    MAX_PARTITIONS_PER_TOPIC,
    MAX_SPECS,
    TOO_MANY,
    USE_DEFAULT,
    NewPartitions,
    NewTopic,
    TopicDefaults,
    TopicOutcome,
    create_partitions,
    create_topic,
    delete_topic,
)
from metaquorum.quorum.controller.worker_lifecycle import WorkerLifecycle
from metaquorum.quorum.controller.worker_registration import doubt_log, lose_log
from metaquorum.runtime.interfaces import Clock
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

T = TypeVar("T")
W = TypeVar("W")

logger = logging.getLogger(__name__)

SLICE_SPECS: Final = 100  # specs decided between two checkpoints of the event loop


class Controller:
    """All changes of the metadata. Methods that return no error raise KafkaError.

    The async methods may be called on any voter; an inactive controller raises NOT_CONTROLLER. They
    return once a change is committed, and do not wait until a worker has applied it.
    """

    def __init__(
        self,
        quorum: Quorum,
        loader: MetadataLoader,
        clock: Clock,
        random: Random,
        static_configs: Mapping[str, str],
        first_records: Sequence[MetadataRecord] = (),
    ) -> None:
        """Create the controller. `first_records` are the initial records of a new cluster."""
        self._quorum = quorum
        self._loader = loader
        self._clock = clock
        self._random = random
        first_records = (for_all_workers(static_configs), *first_records)
        self._proposer = Proposer(quorum, loader, clock, first_records)
        self._configs = ControllerConfigs(quorum.status.node_id, static_configs)
        configs = self._configs.of(loader.image)
        self.mutations = MutationQuotas(
            configs.integer("controller.quota.window.num"),
            float(configs.integer("controller.quota.window.size.seconds")),
        )
        self.worker_lifecycle: Final = WorkerLifecycle(
            quorum, loader, self._proposer, clock, self._configs
        )

    async def start(self) -> None:
        """Wait until this controller is active, and bootstrap a new cluster.

        Raises KafkaError (UNSUPPORTED_VERSION) if this version does not support a feature level of
        the cluster.
        """
        await self._quorum.wait_active()
        check_features(self._loader.image)
        await self._proposer.change(lambda _: Decision(None))

    async def run(self) -> None:
        """Fence overdue workers and rebalance leaders whenever this controller is active.

        Runs until cancelled. Raises KafkaError (UNSUPPORTED_VERSION) if this version does not
        support a feature level of the cluster.
        """
        while True:
            term = await self._quorum.wait_active()
            check_features(self._loader.image)
            configs = self._configs.of(self._loader.image)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.worker_lifecycle.run_maintenance)
                nursery.start_soon(keep_balance, self._proposer, self._clock, configs)
                plans = PlanExecution(self._proposer, self._loader, self._clock)
                nursery.start_soon(plans.run)
                known = self._quorum.status.leadership
                while known.is_active and known.term == term:
                    known = await self._quorum.wait_change(known)
                nursery.cancel_scope.cancel()
            await trio.lowlevel.checkpoint()

    # Rules that need only the image and the request

    async def change(self, decide: Callable[[MetadataImage], Decision[T]]) -> Committed[T]:
        """Decide, wait until the decision's records are committed, and return its answer."""
        return await self._proposer.change(decide)

    async def change_each(
        self,
        specs: Sequence[W],
        decide: Callable[[MetadataImage, W], Decision[KafkaError | None]],
        *,
        validate_only: bool = False,
    ) -> Committed[list[KafkaError | None]]:
        """Decide and commit each spec; the answer holds None or the error for each of them."""
        image = await self._proposer.decided()
        if (error := _too_many(specs)) is not None:
            return Committed([error for _ in specs], 0)
        if validate_only:
            return Committed([decide(image, spec).answer async for spec in _in_slices(specs)], 0)
        return await self._proposer.change_all(specs, decide, lambda _, error: error)

    # Topics and configs

    async def take_mutations(
        self, user: str, client_id: str | None, counts: Sequence[int], *, is_strict: bool
    ) -> MutationsTaken:
        """Charge the partition mutations of a request to the client's quota (KIP-599).

        `counts` are the partitions that each topic of the request creates or deletes.
        """
        image = await self._proposer.decided()
        now = self._clock.monotonic()
        return self.mutations.take(
            image.client_quotas, user, client_id, counts, now, is_strict=is_strict
        )

    async def describe_mutations(
        self, user: str, client_id: str | None, most_used: int = 0
    ) -> list[MutationUse]:
        """Return the client's use of its mutation quota; empty if the client has no quota.

        With `most_used` above 0, return that many clients with the smallest share of tokens left.
        """
        image = await self._proposer.decided()
        now = self._clock.monotonic()
        if most_used > 0:
            return self.mutations.most_used(image.client_quotas, most_used, now)
        use = self.mutations.use(image.client_quotas, user, client_id, now)
        return [] if use is None else [use]

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Committed[list[TopicOutcome]]:
        """Create topics, and return one outcome for each name once they are committed.

        With `validate_only` no topic is created, and outcomes have no topic id.
        """
        image = await self._proposer.decided()
        if excess := _excess(topics, image, self._configs.topic_defaults(image)):
            names = dict.fromkeys([topic.name for topic in topics])
            return Committed([TopicOutcome.refused(excess, name) for name in names], 0)
        counts: dict[str, int] = {}
        for topic in topics:
            counts[topic.name] = counts.get(topic.name, 0) + 1
        twice = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        refused = [TopicOutcome.refused(twice, name) for name in counts if counts[name] > 1]
        unique = [topic for topic in topics if counts[topic.name] == 1]

        def decide(image: MetadataImage, topic: NewTopic) -> Decision[TopicOutcome]:
            return create_topic(image, topic, self._configs.topic_defaults(image), self._random)

        if validate_only:
            made = [_unmade(decide(image, topic).answer) async for topic in _in_slices(unique)]
            return Committed(refused + made, 0)
        changed = await self._proposer.change_all(
            unique, decide, lambda topic, error: TopicOutcome.refused(error, topic.name)
        )
        return Committed(refused + changed.answer, changed.end_offset)

    async def create_internal_topic(self, request: CreateInternalTopic) -> Committed[None]:
        """Create an internal topic for a worker, unless it exists. Raises KafkaError if refused."""
        return await self._proposer.change(
            lambda image: create_internal_topic(image, request, self._random)
        )

    async def delete_topics(
        self, topics: Sequence[tuple[str | None, bytes | None]]
    ) -> Committed[list[TopicOutcome]]:
        """Delete topics, given as (name, None) or (None, topic id); return an outcome for each."""
        image = await self._proposer.decided()
        error = _too_many(topics)
        if not self._configs.of(image).boolean("delete.topic.enable"):
            error = KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
        if error is not None:
            return Committed([TopicOutcome.refused(error, *topic) for topic in topics], 0)
        return await self._proposer.change_all(
            topics,
            lambda image, topic: delete_topic(image, *topic),
            lambda topic, error: TopicOutcome.refused(error, *topic),
        )

    async def create_partitions(
        self, specs: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> Committed[list[KafkaError | None]]:
        """Add partitions to topics; the answer holds None or the error for each spec.

        `specs` must not name a topic twice.
        """

        def decide(image: MetadataImage, spec: NewPartitions) -> Decision[KafkaError | None]:
            return create_partitions(image, spec, self._random)

        return await self.change_each(specs, decide, validate_only=validate_only)

    async def change_configs(
        self, resources: Sequence[ResourceChange], *, validate_only: bool = False
    ) -> Committed[list[KafkaError | None]]:
        """Change configs; the answer holds None or the error for each resource."""
        if not validate_only and any(map(may_need_fewer, resources)):
            try:
                await self._proposer.change(lambda image: prepare_configs(image, resources))
            except KafkaError as error:
                return Committed([error for _ in resources], 0)
        changed = await self.change_each(resources, change_configs, validate_only=validate_only)
        if not validate_only and any(map(_may_allow_unclean, resources)):
            self.worker_lifecycle.elect_soon()
        return changed

    async def alter_partitions(
        self, worker_id: int, broker_epoch: int, changes: Sequence[PartitionChange]
    ) -> Committed[list[ErrorCode]]:
        """Change ISRs as a leader requests; the answer holds one error code for each change.

        NONE means committed; after REQUEST_TIMED_OUT the change may or may not be committed.
        """
        return await self._proposer.change_all(
            changes,
            lambda image, change: alter_partition(image, worker_id, broker_epoch, change),
            lambda _, error: error.code,
        )

    async def report_lost_logs(
        self,
        worker_id: int,
        broker_epoch: int,
        logs: Sequence[tuple[bytes, int]],
        *,
        recreated: bool = False,
    ) -> Committed[list[KafkaError | None]]:
        """Record that a worker has lost logs; the answer holds None or the error for each log.

        A log is given as (topic id, partition). With `recreated` the worker found the log missing
        at its start and has created an empty log in its place.
        """
        if (error := _too_many(logs)) is not None:
            return Committed([error for _ in logs], 0)
        changed = await self._proposer.change_all(
            logs,
            lambda image, at: lose_log(
                image,
                worker_id,
                broker_epoch,
                at,
                was_recreated=recreated,
                may_be_unclean=self._configs.may_be_unclean,
            ),
            lambda _, error: error,
        )
        reported = changed.answer.count(None)
        if reported:
            how = "lost and recreated" if recreated else "took offline"
            logger.warning(
                "worker %d %s its replicas of %d partitions; its log has the cause",
                worker_id,
                how,
                reported,
            )
        return changed

    async def report_doubtful_logs(
        self, worker_id: int, broker_epoch: int, logs: Sequence[tuple[bytes, int]]
    ) -> Committed[list[KafkaError | None]]:
        """Record that a worker may have lost the end of logs; answers as `report_lost_logs`."""
        if (error := _too_many(logs)) is not None:
            return Committed([error for _ in logs], 0)
        changed = await self._proposer.change_all(
            logs,
            lambda image, at: doubt_log(
                image, worker_id, broker_epoch, at, may_be_unclean=self._configs.may_be_unclean
            ),
            lambda _, error: error,
        )
        if reported := changed.answer.count(None):
            logger.warning(
                "worker %d may miss records of %d partitions; its log has the cause",
                worker_id,
                reported,
            )
        return changed

    async def create_move_plan(self, plan: NewMovePlan) -> Committed[int]:
        """Create a plan of moves, and return its id. Raises KafkaError if it is refused."""
        now_ms = self._clock.now_ms()
        return await self._proposer.change(lambda image: create_plan(image, plan, now_ms))

    # The cluster

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> Committed[None]:
        """Set the cluster's feature levels, all or none. Raises KafkaError if one is invalid."""
        status = self._quorum.status

        def decide(image: MetadataImage) -> Decision[None]:
            nodes = nodes_with_features(image, status.node_id, status.voters)
            return update_features(image, updates, nodes, self._configs.static)

        if validate_only:
            decide(await self._proposer.decided())
            return Committed(None, 0)
        return await self._proposer.change(decide)


async def _in_slices(specs: Sequence[T]) -> AsyncIterator[T]:
    """Yield each spec, with a checkpoint after every `SLICE_SPECS` specs."""
    for number, spec in enumerate(specs, 1):
        yield spec
        if number % SLICE_SPECS == 0:
            await trio.lowlevel.checkpoint()


def _may_allow_unclean(resource: ResourceChange) -> bool:
    return resource.replace or any(c.name == UNCLEAN_ELECTIONS for c in resource.changes)


def _too_many(specs: Sequence[object]) -> KafkaError | None:
    if len(specs) <= MAX_SPECS:
        return None
    return TOO_MANY


def _excess(
    topics: Sequence[NewTopic], image: MetadataImage, defaults: TopicDefaults
) -> KafkaError | None:
    """Return the error if one request creates too many topics or partitions (KIP-599)."""
    if (error := _too_many(topics)) is not None:
        return error
    partitions = 0
    for topic in topics:
        count = len(topic.assignments) if topic.assignments else topic.partitions
        if count <= MAX_PARTITIONS_PER_TOPIC:  # a larger topic is rejected on its own
            partitions += defaults.partitions if count == USE_DEFAULT else max(0, count)
    if partitions > MAX_SPECS:
        return KafkaError(
            ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."
        )
    return None


def _unmade(outcome: TopicOutcome) -> TopicOutcome:
    return TopicOutcome(
        outcome.name,
        None,
        outcome.code,
        outcome.message,
        outcome.partitions,
        outcome.replication_factor,
        outcome.configs,
    )
