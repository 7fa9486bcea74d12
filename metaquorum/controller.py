"""The active controller: everything that changes the metadata.

Its rules are plain functions (`decisions`, `registrations`, `features`, `config_changes`); what
they decide goes through `proposer`. What it knows of its workers beside the log is in
`worker_sessions`. Every voter of the quorum has a controller; all but the active one refuse.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from math import inf
from random import Random
from typing import Final, TypeVar

import trio

from metaquorum.config_changes import (
    ResourceChange,
    change_configs,
    may_need_fewer,
    prepare_configs,
)
from metaquorum.config_layers import Configs, WorkerLayers
from metaquorum.decisions import (
    MAX_PARTITIONS_PER_TOPIC,
    USE_DEFAULT,
    Decision,
    MorePartitions,
    NewTopic,
    ProducerIdBlock,
    TopicDefaults,
    TopicOutcome,
    allocate_producer_ids,
    check_epoch,
    create_partitions,
    create_topic,
    delete_topic,
)
from metaquorum.effects import Effects, tell
from metaquorum.eligible_leaders import for_all_workers
from metaquorum.features import (
    FeatureUpdate,
    check_features,
    nodes_with_features,
    update_features,
)
from metaquorum.image import MetadataImage
from metaquorum.isr_changes import PartitionChange, alter_partition
from metaquorum.leader_balance import keep_balance
from metaquorum.leader_election import LeaderWish, elect_leader
from metaquorum.loader import MetadataLoader
from metaquorum.mutation_quotas import MutationQuotas, MutationsTaken, MutationUse
from metaquorum.proposer import Changed, Proposer
from metaquorum.quorum import Quorum
from metaquorum.quota_changes import QuotaChange, change_quotas
from metaquorum.records import MetadataRecord
from metaquorum.registrations import (
    ControllerRegistration,
    WorkerRegistration,
    elect_leaders,
    fence_workers,
    lose_log,
    register_controller,
    register_worker,
    shut_down_worker,
    unfence_worker,
    unregister_worker,
)
from metaquorum.runtime.seams import Clock
from metaquorum.scram_changes import UserScramChange, change_scram_credentials
from metaquorum.worker_sessions import (
    HeartbeatAnswer,
    Step,
    WorkerHeartbeat,
    WorkerSessions,
    WorkerStatus,
)
from wire.errors import ErrorCode, KafkaError

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_WISHES: Final = 10_000  # in one request; Kafka's bound of records by one operation
MAX_STEPS: Final = 4  # of one heartbeat: at most SHUT_DOWN, FENCE, and what others did between
SLICE_WISHES: Final = 100  # looked at before the loop gets its turn
TRY_AGAIN_S: Final = 0.5  # after a change of the controller's own that failed
UNCLEAN_ELECTIONS: Final = "unclean.leader.election.enable"
ROLL_CALL_LOOKS: Final = 75  # for 1.5 s in all: a new term's grace, and the fencing
ROLL_CALL_LOOK_S: Final = 0.02
STANDSTILL_S: Final = 0.2  # by which this process is late, before it blames itself


class Controller:
    """Everything that changes the metadata. Its methods raise KafkaError where they return none.

    Those that wait may be called on any voter; on one that is not active they raise
    NOT_CONTROLLER. Nobody waits here until a change is visible to anybody.
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
        """`first_records` are what a new cluster has from its beginning."""
        self._quorum = quorum
        self._loader = loader
        self._clock = clock
        self._random = random
        self._static_configs = static_configs
        first_records = (for_all_workers(static_configs), *first_records)
        self._proposer = Proposer(quorum, loader, clock, first_records)
        configs = self._configs(loader.image)
        self.mutations = MutationQuotas(
            configs.integer("controller.quota.window.num"),
            float(configs.integer("controller.quota.window.size.seconds")),
        )
        timeout_ms = self._configs(loader.image).integer("broker.session.timeout.ms")
        self._sessions = WorkerSessions(timeout_ms / 1000)
        self._sessions_term = -1
        self._defaults_of: object = None
        self._topic_defaults = TopicDefaults()
        self._unclean_of: object = None
        self._is_unclean_default = False
        self._wants_election = False  # a worker came, and not all that it may lead was given it
        self._tend_again = trio.Event()

    async def start(self) -> None:
        """This is the active controller, and the cluster is founded.

        KafkaError (UNSUPPORTED_VERSION) when the cluster runs at levels this version cannot.
        """
        await self._quorum.wait_active()
        check_features(self._loader.image)
        await self._proposer.change(lambda _: Decision(None))

    async def run(self) -> None:
        """While this is the active controller, workers that are gone are fenced; for ever.

        KafkaError (UNSUPPORTED_VERSION) when the cluster runs at levels this version cannot.
        """
        while True:
            term = await self._quorum.wait_active()
            check_features(self._loader.image)
            configs = self._configs(self._loader.image)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tend)
                nursery.start_soon(keep_balance, self._proposer, self._clock, configs)
                known = self._quorum.status.leadership
                while known.is_active and known.term == term:
                    known = await self._quorum.wait_change(known)
                nursery.cancel_scope.cancel()
            await trio.lowlevel.checkpoint()

    # Topics and configs

    async def take_mutations(
        self, user: str, client_id: str | None, counts: Sequence[int], *, is_strict: bool
    ) -> MutationsTaken:
        """So many of the wishes for so many partitions each are within the client's quota."""
        image = await self._proposer.decided()
        now = self._clock.monotonic()
        return self.mutations.take(
            image.client_quotas, user, client_id, counts, now, is_strict=is_strict
        )

    async def describe_mutations(
        self, user: str, client_id: str | None, most_used: int = 0
    ) -> list[MutationUse]:
        """What the client has of its quota, nothing where it is not limited; or who has least."""
        image = await self._proposer.decided()
        now = self._clock.monotonic()
        if most_used > 0:
            return self.mutations.most_used(image.client_quotas, most_used, now)
        use = self.mutations.use(image.client_quotas, user, client_id, now)
        return [] if use is None else [use]

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Changed[list[TopicOutcome]]:
        """One outcome for each name: created and committed; or why not.

        With `validate_only` nothing is made, and outcomes have no topic id.
        """
        image = await self._proposer.decided()
        if excess := _excess(topics, image, self._defaults(image)):
            names = dict.fromkeys([topic.name for topic in topics])
            return Changed([TopicOutcome.refused(excess, name) for name in names], 0)
        counts: dict[str, int] = {}
        for topic in topics:
            counts[topic.name] = counts.get(topic.name, 0) + 1
        twice = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        refused = [TopicOutcome.refused(twice, name) for name in counts if counts[name] > 1]
        unique = [topic for topic in topics if counts[topic.name] == 1]

        def decide(image: MetadataImage, topic: NewTopic) -> Decision[TopicOutcome]:
            return create_topic(image, topic, self._defaults(image), self._random)

        if validate_only:
            made = [_unmade(decide(image, topic).answer) async for topic in _in_slices(unique)]
            return Changed(refused + made, 0)
        changed = await self._proposer.change_all(
            unique, decide, lambda topic, error: TopicOutcome.refused(error, topic.name)
        )
        return Changed(refused + changed.answer, changed.end_offset)

    async def delete_topics(
        self, topics: Sequence[tuple[str | None, bytes | None]]
    ) -> Changed[list[TopicOutcome]]:
        """One outcome for each (name, None) or (None, topic id): gone, or why not."""
        image = await self._proposer.decided()
        error = _too_many(topics)
        if not self._configs(image).boolean("delete.topic.enable"):
            error = KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
        if error is not None:
            return Changed([TopicOutcome.refused(error, *topic) for topic in topics], 0)
        return await self._proposer.change_all(
            topics,
            lambda image, topic: delete_topic(image, *topic),
            lambda topic, error: TopicOutcome.refused(error, *topic),
        )

    async def create_partitions(
        self, wishes: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> Changed[list[KafkaError | None]]:
        """For each wish: None once its partitions are made; or why there are none.

        No topic may be in it twice.
        """

        def decide(image: MetadataImage, wish: MorePartitions) -> Decision[KafkaError | None]:
            return create_partitions(image, wish, self._random)

        return await self._change_each(wishes, decide, validate_only)

    async def change_configs(
        self, resources: Sequence[ResourceChange], *, validate_only: bool = False
    ) -> Changed[list[KafkaError | None]]:
        """For each resource: None once all of its changes are committed; or why none is."""
        if not validate_only and any(map(may_need_fewer, resources)):
            try:
                await self._proposer.change(lambda image: prepare_configs(image, resources))
            except KafkaError as error:
                return Changed([error for _ in resources], 0)
        changed = await self._change_each(resources, change_configs, validate_only)
        if not validate_only and any(map(_may_allow_unclean, resources)):
            self._wants_election = True
            self._tend_again.set()
        return changed

    async def change_quotas(
        self, changes: Sequence[QuotaChange], *, validate_only: bool = False
    ) -> Changed[list[KafkaError | None]]:
        """For each entity: None once all of its changes are committed; or why none is."""
        return await self._change_each(changes, change_quotas, validate_only)

    async def change_scram_credentials(
        self, users: Sequence[UserScramChange]
    ) -> Changed[list[KafkaError | None]]:
        """For each user: None once all that was asked is committed; or why nothing is."""
        return await self._change_each(users, change_scram_credentials, validate_only=False)

    async def _change_each(
        self,
        wishes: Sequence[T],
        decide: Callable[[MetadataImage, T], Decision[KafkaError | None]],
        validate_only: bool,
    ) -> Changed[list[KafkaError | None]]:
        image = await self._proposer.decided()
        if (error := _too_many(wishes)) is not None:
            return Changed([error for _ in wishes], 0)
        if validate_only:
            return Changed([decide(image, wish).answer async for wish in _in_slices(wishes)], 0)
        return await self._proposer.change_all(wishes, decide, lambda _, error: error)

    async def alter_partitions(
        self, worker_id: int, broker_epoch: int, changes: Sequence[PartitionChange]
    ) -> Changed[list[ErrorCode]]:
        """A code for each wish of a leader for another ISR; NONE once it is committed.

        REQUEST_TIMED_OUT: nobody knows.
        """
        return await self._proposer.change_all(
            changes,
            lambda image, change: alter_partition(image, worker_id, broker_epoch, change),
            lambda _, error: error.code,
        )

    async def lose_logs(
        self,
        worker_id: int,
        broker_epoch: int,
        logs: Sequence[tuple[bytes, int]],
        *,
        begun_anew: bool = False,
    ) -> Changed[list[KafkaError | None]]:
        """For each (topic id, partition): None once it is known that the worker lacks that log.

        `begun_anew`: it had lost it before it started, and has an empty one.
        """
        if (error := _too_many(logs)) is not None:
            return Changed([error for _ in logs], 0)
        changed = await self._proposer.change_all(
            logs,
            lambda image, at: lose_log(
                image,
                worker_id,
                broker_epoch,
                at,
                began_anew=begun_anew,
                may_be_unclean=self._may_be_unclean,
            ),
            lambda _, error: error,
        )
        told = changed.answer.count(None)
        if told:
            how = "has lost" if begun_anew else "cannot use"
            logger.warning("worker %d %s its logs of %d partitions", worker_id, how, told)
        return changed

    async def elect_leaders(self, wishes: Sequence[LeaderWish]) -> Changed[list[KafkaError | None]]:
        """For each wish: None once the partition is led so; or why it is not."""
        return await self._change_each(wishes, elect_leader, validate_only=False)

    async def allocate_producer_ids(
        self, worker_id: int, broker_epoch: int
    ) -> Changed[ProducerIdBlock]:
        """Producer ids that nobody else ever gets."""
        return await self._proposer.change(
            lambda image: allocate_producer_ids(image, worker_id, broker_epoch)
        )

    # Who is in the cluster

    async def register_worker(self, worker: WorkerRegistration) -> Changed[int]:
        """The worker is registered, and fenced until it is caught up; its broker epoch.

        What it led is led by others, or by none.
        """

        identity = worker.worker_id, worker.incarnation_id

        def decide(image: MetadataImage) -> Decision[Effects]:
            is_held = self._sessions.is_held(*identity, self._clock.monotonic())
            committed = self._loader.image
            # One that is not committed yet is another process's, and that is alive.
            is_coming = image.broker_epoch(identity[0]) != committed.broker_epoch(identity[0])
            return register_worker(
                image,
                worker,
                is_held=is_held or is_coming,
                may_be_unclean=self._may_be_unclean,
            )

        self._follow()
        self._sessions.seen(*identity, self._clock.monotonic())
        known = self._loader.image.workers.get(worker.worker_id)
        if known is None or known.incarnation_id != worker.incarnation_id:
            await self._wait_roll_call(worker.worker_id)
        self._follow()
        changed = await self._proposer.change(decide)
        tell(f"worker {worker.worker_id} is another process", changed.answer, quietly=True)
        self._follow()
        self._sessions.seen(*identity, self._clock.monotonic())
        known = self._loader.image.workers.get(worker.worker_id)
        if known is None or known.incarnation_id != worker.incarnation_id:
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"Another process registered as worker {worker.worker_id} meanwhile.",
            )
        return Changed(known.broker_epoch, changed.end_offset)

    async def _wait_roll_call(self, worker_id: int) -> None:
        """It is known who of the others has survived the last reign, or long enough was waited."""
        for _ in range(ROLL_CALL_LOOKS):
            self._follow()
            if not self._sessions.awaits_others(worker_id):
                return
            await self._clock.sleep_until(self._clock.monotonic() + ROLL_CALL_LOOK_S)

    async def heartbeat(self, heartbeat: WorkerHeartbeat) -> HeartbeatAnswer:
        """The worker's session goes on; what the controller makes of it."""
        await trio.lowlevel.checkpoint()
        self._check(heartbeat)
        self._sessions.heard(heartbeat, self._clock.monotonic())
        for _ in range(MAX_STEPS):
            if (step := self._sessions.step(heartbeat)) is Step.NONE:
                break
            await self._take(step, heartbeat.worker_id, heartbeat.broker_epoch)
            self._check(heartbeat)
        return self._sessions.answer(heartbeat, self._loader.image.end_offset)

    def connected(self, worker_id: int, incarnation_id: bytes) -> None:
        """That process has one more connection to this controller, active or not."""
        self._sessions.connected(worker_id, incarnation_id, self._clock.monotonic())

    def disconnected(self, worker_id: int, incarnation_id: bytes) -> None:
        """That process has one connection less to this controller."""
        self._sessions.disconnected(worker_id, incarnation_id, self._clock.monotonic())
        self._tend_again.set()

    def peer_came(self, voter_id: int) -> None:
        """The process of another voter, which may be a worker, too, is there."""
        self._sessions.peer_came(voter_id)

    def peer_closed(self, voter_id: int) -> None:
        """Its process has closed its stream to this one, or is no more."""
        self._sessions.peer_closed(voter_id, self._clock.monotonic())
        self._tend_again.set()

    async def unregister_worker(self, worker_id: int) -> Changed[None]:
        """The worker is forgotten; where it is alive, it will have to register anew."""
        changed = await self._proposer.change(
            lambda image: unregister_worker(image, worker_id, self._may_be_unclean)
        )
        tell(f"worker {worker_id} is unregistered", changed.answer)
        return Changed(None, changed.end_offset)

    async def register_controller(self, controller: ControllerRegistration) -> Changed[None]:
        """It is known which feature levels the controller can run at."""
        return await self._proposer.change(lambda image: register_controller(image, controller))

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> Changed[None]:
        """The cluster runs at all of these levels; KafkaError where at none of them."""
        status = self._quorum.status

        def decide(image: MetadataImage) -> Decision[None]:
            nodes = nodes_with_features(image, status.node_id, status.voters)
            return update_features(image, updates, nodes, self._static_configs)

        if validate_only:
            decide(await self._proposer.decided())
            return Changed(None, 0)
        return await self._proposer.change(decide)

    async def worker_statuses(self) -> list[WorkerStatus]:
        """What is known of every worker beside its registration."""
        await trio.lowlevel.checkpoint()
        self._follow()
        return list(self._sessions.statuses(self._clock.monotonic()))

    # Sessions

    def _follow(self) -> None:
        """Sessions are of this term, and of the workers that are registered. KafkaError."""
        status, image, now = self._quorum.status, self._loader.image, self._clock.monotonic()
        if not status.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "Not the active controller.")
        if status.term != self._sessions_term:
            self._sessions_term = status.term
            self._sessions.begin(image.workers, image.end_offset, now)
        else:
            self._sessions.follow(image.workers, image.end_offset, now)

    def _check(self, heartbeat: WorkerHeartbeat) -> None:
        """Sessions are as they should be, and it is the worker's current registration."""
        self._follow()
        check_epoch(self._loader.image, heartbeat.worker_id, heartbeat.broker_epoch)

    async def _take(self, step: Step, worker_id: int, broker_epoch: int) -> None:
        """The step is taken, and committed."""
        if step is Step.UNFENCE:
            try:
                changed = await self._proposer.change(
                    lambda image: unfence_worker(
                        image, worker_id, broker_epoch, self._may_be_unclean
                    )
                )
            except KafkaError:
                self._wants_election = True
                raise
            finally:
                self._tend_again.set()
            tell(f"worker {worker_id} is live", changed.answer)
        elif step is Step.SHUT_DOWN:
            changed = await self._proposer.change(
                lambda image: shut_down_worker(image, worker_id, broker_epoch, self._may_be_unclean)
            )
            tell(f"worker {worker_id} shuts down, and leads nothing any more", changed.answer)
        elif step is Step.FENCE:
            await self._proposer.change(
                lambda image: fence_workers(image, {worker_id}, self._may_be_unclean)
            )
            logger.info("worker %d has shut down", worker_id)

    async def _tend(self) -> None:
        """Overdue workers are fenced, and what can be led is; until cancelled."""
        self._wants_election = True
        while True:
            again = self._tend_again = trio.Event()
            try:
                await self._tend_once()
                deadline = self._sessions.next_deadline()
            except KafkaError as error:
                logger.warning("the controller cannot tend its workers: %s", error.message)
                deadline = self._clock.monotonic() + TRY_AGAIN_S
            async with trio.open_nursery() as nursery:
                if deadline < inf:
                    nursery.start_soon(self._wake_at, deadline)
                await again.wait()
                nursery.cancel_scope.cancel()

    async def _wake_at(self, deadline: float) -> None:
        await self._clock.sleep_until(deadline)
        late = self._clock.monotonic() - deadline
        if late > STANDSTILL_S:
            self._sessions.postpone(late)
        self._tend_again.set()

    async def _tend_once(self) -> None:
        self._follow()
        if self._wants_election:
            self._wants_election = False
            try:
                changed = await self._proposer.change(
                    lambda image: elect_leaders(image, self._may_be_unclean)
                )
            except BaseException:
                self._wants_election = True
                raise
            tell("leaders were looked for", changed.answer, quietly=True)
            self._follow()
        if overdue := self._overdue():
            changed = await self._proposer.change(
                lambda image: fence_workers(image, overdue & self._overdue(), self._may_be_unclean)
            )
            self._follow()
            self._tell_fenced(sorted(overdue & self._loader.image.fenced_workers()), changed.answer)

    def _tell_fenced(self, worker_ids: Sequence[int], effects: Effects) -> None:
        for worker_id in worker_ids:
            why = self._sessions.why_fenced(worker_id)
            logger.warning("worker %d is fenced: %s", worker_id, why)
        if worker_ids:
            one = len(worker_ids) == 1
            tell(f"without {'it' if one else 'them'}", effects, quietly=True)

    def _overdue(self) -> set[int]:
        return set(self._sessions.overdue(self._clock.monotonic()))

    def _configs(self, image: MetadataImage) -> Configs:
        return WorkerLayers(
            self._static_configs, dynamic_default=image.worker_configs(None)
        ).worker_configs()

    def _may_be_unclean(self, image: MetadataImage, topic: str) -> bool:
        """Whether any replica of the topic may lead where none in sync is left."""
        own = image.topic_configs(topic)
        if not own and image.configs is self._unclean_of:
            return self._is_unclean_default
        configs = WorkerLayers(
            self._static_configs,
            dynamic=image.worker_configs(self._quorum.status.node_id),
            dynamic_default=image.worker_configs(None),
        ).topic_configs(own)
        answer = configs.boolean(UNCLEAN_ELECTIONS)
        if not own:  # as of most topics, all of which a restart asks for
            self._unclean_of, self._is_unclean_default = image.configs, answer
        return answer

    def _defaults(self, image: MetadataImage) -> TopicDefaults:
        if image.configs is not self._defaults_of:
            configs = self._configs(image)
            self._topic_defaults = TopicDefaults(
                configs.integer("num.partitions"), configs.integer("default.replication.factor")
            )
            self._defaults_of = image.configs
        return self._topic_defaults


async def _in_slices(wishes: Sequence[T]) -> AsyncIterator[T]:
    """Each of them, and the loop gets its turn between."""
    for number, wish in enumerate(wishes, 1):
        yield wish
        if number % SLICE_WISHES == 0:
            await trio.lowlevel.checkpoint()


def _may_allow_unclean(resource: ResourceChange) -> bool:
    return resource.replace or any(c.name == UNCLEAN_ELECTIONS for c in resource.changes)


def _too_many(wishes: Sequence[object]) -> KafkaError | None:
    if len(wishes) <= MAX_WISHES:
        return None
    return KafkaError(
        ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
    )


def _excess(
    topics: Sequence[NewTopic], image: MetadataImage, defaults: TopicDefaults
) -> KafkaError | None:
    """Why one request may not have so many partitions (KIP-599), or topics."""
    if (error := _too_many(topics)) is not None:
        return error
    partitions = 0
    for topic in topics:
        count = len(topic.assignments) if topic.assignments else topic.partitions
        if count <= MAX_PARTITIONS_PER_TOPIC:  # else it is refused alone
            partitions += defaults.partitions if count == USE_DEFAULT else max(0, count)
    if partitions > MAX_WISHES:
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
