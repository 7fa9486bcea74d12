"""The active controller: decide, propose, await the commit, answer.

Decisions are made one after the other, each on the *decided* image: the committed one with
everything on top that this controller has proposed and not yet seen committed. A topic whose
creation is under way therefore exists already for the next decision. Since nothing uncommitted may
be told, an answer without records of its own ("exists already") waits for the proposal before it.

    decide on `_decided` -> records -> replay into `_decided` -> propose at its old end offset
         ^                                                             |
         |  a proposal that did not take effect: everything proposed   v
         '-- behind it misses its offset too; back to the committed image, decide those anew

Committing needs no lock: many decisions are on their way together and share the quorum's fsync.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from random import Random
from typing import Final, Generic, TypeVar

import trio

from metaquorum.batch import MAX_BATCH_RECORDS, SLICE_RECORDS, BatchTooLargeError
from metaquorum.config_changes import ResourceChange, change_configs
from metaquorum.config_layers import Configs, WorkerLayers
from metaquorum.decisions import (
    ControllerRegistration,
    Decision,
    MorePartitions,
    NewTopic,
    ProducerIdBlock,
    TopicDefaults,
    TopicOutcome,
    WorkerRegistration,
    allocate_producer_ids,
    create_partitions,
    create_topic,
    delete_topic,
    found_cluster,
    register_worker,
)
from metaquorum.features import FeatureUpdate, check_features
from metaquorum.image import MetadataImage, Replay
from metaquorum.loader import MetadataLoader
from metaquorum.quorum import NotCommittedError, OutcomeUnknownError, Proposal, Quorum
from metaquorum.records import MetadataRecord, encode_record
from metaquorum.runtime.seams import Clock
from metaquorum.worker_sessions import HeartbeatAnswer, WorkerHeartbeat
from wire.errors import ErrorCode, KafkaError

T = TypeVar("T")
W = TypeVar("W")

MAX_ATTEMPTS: Final = 5  # of one decision, when its proposals keep missing their offset


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """An answer, and where the metadata ends that shows what it says; 0 where nothing changed."""

    answer: T
    end_offset: int


@dataclass(frozen=True, slots=True)
class _Pending(Generic[T]):
    """A decision on its way. `proposals` are those that its answer waits for, in order."""

    answer: T
    end_offset: int
    generation: int
    proposals: tuple[Proposal, ...]


class Controller:
    """Everything that changes the metadata. Its methods raise KafkaError where they return none."""

    def __init__(
        self,
        quorum: Quorum,
        loader: MetadataLoader,
        clock: Clock,
        random: Random,
        static_configs: Mapping[str, str],
    ) -> None:
        self._quorum = quorum
        self._loader = loader
        self._clock = clock
        self._random = random
        self._static_configs = static_configs
        self._deciding = trio.Lock()
        self._decided = loader.image
        self._last: Proposal | None = None  # the one that brings the log to `_decided`
        self._term = -1
        self._generation = 0

    async def start(self) -> None:
        """The cluster is founded; KafkaError (UNSUPPORTED_VERSION) when it runs at newer levels."""
        await self._quorum.wait_active()
        check_features(self._loader.image)
        await self._change(found_cluster)

    async def run(self) -> None:
        """Workers that are gone are fenced, while this is the active controller; for ever."""
        await trio.sleep_forever()

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Changed[list[TopicOutcome]]:
        """One outcome for each name: created and committed; or why not.

        With `validate_only` nothing is made, and outcomes have no topic id.
        """
        counts: dict[str, int] = {}
        for topic in topics:
            counts[topic.name] = counts.get(topic.name, 0) + 1
        twice = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        refused = [TopicOutcome.refused(twice, name) for name in counts if counts[name] > 1]
        unique = [topic for topic in topics if counts[topic.name] == 1]

        def decide(image: MetadataImage, topic: NewTopic) -> Decision[TopicOutcome]:
            return create_topic(image, topic, self._defaults(image), self._random)

        if validate_only:
            made = [_unmade(decide(self._decided, topic).answer) for topic in unique]
            return Changed(refused + made, 0)
        changed = await self._change_all(
            unique, decide, lambda topic, error: TopicOutcome.refused(error, topic.name)
        )
        return Changed(refused + changed.answer, changed.end_offset)

    async def delete_topics(
        self, topics: Sequence[tuple[str | None, bytes | None]]
    ) -> Changed[list[TopicOutcome]]:
        """One outcome for each (name, None) or (None, topic id): gone, or why not."""
        if not self._configs(self._decided).boolean("delete.topic.enable"):
            disabled = KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
            return Changed([TopicOutcome.refused(disabled, *topic) for topic in topics], 0)

        return await self._change_all(
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

        if validate_only:
            return Changed([decide(self._decided, wish).answer for wish in wishes], 0)
        return await self._change_all(wishes, decide, lambda _, error: error)

    async def change_configs(
        self, resources: Sequence[ResourceChange], *, validate_only: bool = False
    ) -> Changed[list[KafkaError | None]]:
        """For each resource: None once all of its changes are committed; or why none is."""
        if validate_only:
            answers = [change_configs(self._decided, resource).answer for resource in resources]
            return Changed(answers, 0)
        return await self._change_all(resources, change_configs, lambda _, error: error)

    async def register_worker(self, worker: WorkerRegistration) -> Changed[int]:
        """The worker is registered; its broker epoch. What it led has a new leader epoch."""
        changed = await self._change(lambda image: register_worker(image, worker))
        known = self._loader.image.workers.get(worker.worker_id)
        if known is None or known.incarnation_id != worker.incarnation_id:
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"Another process registered as worker {worker.worker_id} meanwhile.",
            )
        return Changed(known.broker_epoch, changed.end_offset)

    async def heartbeat(self, heartbeat: WorkerHeartbeat) -> HeartbeatAnswer:
        """The worker's session goes on; what the controller makes of it."""
        await trio.lowlevel.checkpoint()
        return HeartbeatAnswer(
            is_fenced=False,
            is_caught_up=True,
            should_shut_down=heartbeat.wants_shutdown,
            end_offset=self._loader.image.end_offset,
        )

    def connected(self, worker_id: int, incarnation_id: bytes) -> None:
        """That process has a connection to this controller."""

    def disconnected(self, worker_id: int, incarnation_id: bytes) -> None:
        """That process's last connection to this controller has closed."""

    async def unregister_worker(self, worker_id: int) -> Changed[None]:
        """The worker is forgotten."""
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "This version cannot do that yet.")

    async def register_controller(self, controller: ControllerRegistration) -> Changed[None]:
        """It is known which feature levels the controller can run at."""
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "This version cannot do that yet.")

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> Changed[None]:
        """The cluster runs at all of these levels; KafkaError where at none of them."""
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "This version cannot do that yet.")

    async def allocate_producer_ids(
        self, worker_id: int, broker_epoch: int
    ) -> Changed[ProducerIdBlock]:
        """Producer ids that nobody else ever gets."""
        return await self._change(
            lambda image: allocate_producer_ids(image, worker_id, broker_epoch)
        )

    def _configs(self, image: MetadataImage) -> Configs:
        return WorkerLayers(
            self._static_configs, dynamic_default=image.worker_configs(None)
        ).worker_configs()

    def _defaults(self, image: MetadataImage) -> TopicDefaults:
        configs = self._configs(image)
        return TopicDefaults(
            configs.integer("num.partitions"), configs.integer("default.replication.factor")
        )

    async def _change_all(
        self,
        wishes: Sequence[W],
        decide: Callable[[MetadataImage, W], Decision[T]],
        refused: Callable[[W, KafkaError], T],
    ) -> Changed[list[T]]:
        """An answer for each wish, decided in order and committed together."""
        decisions = [partial(_decide, decide, wish) for wish in wishes]
        started: list[_Pending[T] | KafkaError | NotCommittedError] = []
        for decision in decisions:
            try:
                started.append(await self._start(decision))
            except (KafkaError, NotCommittedError) as error:
                started.append(error)
        answers: list[T] = []
        visible_offset = 0
        for wish, decision, pending in zip(wishes, decisions, started, strict=True):
            try:
                answer, end_offset = await self._finish(decision, pending)
            except KafkaError as error:
                answers.append(refused(wish, error))
            else:
                answers.append(answer)
                visible_offset = max(visible_offset, end_offset)
        return Changed(answers, visible_offset)

    async def _change(self, decide: Callable[[MetadataImage], Decision[T]]) -> Changed[T]:
        """The answer, once what it says is committed."""
        try:
            pending: _Pending[T] | NotCommittedError = await self._start(decide)
        except NotCommittedError as error:
            pending = error
        return Changed(*await self._finish(decide, pending))

    async def _start(self, decide: Callable[[MetadataImage], Decision[T]]) -> _Pending[T]:
        """Decided, and on its way. KafkaError, NotCommittedError."""
        async with self._deciding:
            self._rebase()
            decision = decide(self._decided)
            proposals = await self._propose(decision)
            if not proposals and self._last is not None:
                proposals = [self._last]  # what the answer was read from is not committed yet
            return _Pending(
                decision.answer, self._decided.end_offset, self._generation, tuple(proposals)
            )

    def _rebase(self) -> None:
        """Decide on the committed image wherever nothing of this term is on its way."""
        status = self._quorum.status
        if not status.is_active:
            known = "no" if status.leader_id is None else f"{status.leader_id} is the"
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER, f"Not the active controller; {known} leader of the quorum"
            )
        committed = self._loader.image
        if status.term != self._term:
            self._term = status.term
            self._forget_pending()
        elif committed.end_offset >= self._decided.end_offset:
            self._decided, self._last = committed, None

    def _forget_pending(self) -> None:
        self._decided, self._last = self._loader.image, None
        self._generation += 1

    async def _propose(self, decision: Decision[T]) -> list[Proposal]:
        """The decision's records are on their way, and `_decided` holds them."""
        proposals: list[Proposal] = []
        records = iter(decision.records)
        while True:
            limit = MAX_BATCH_RECORDS if decision.divisible else None
            steps = Replay(self._decided)
            try:
                encoded = await _encode_in_slices(steps, islice(records, limit))
            except ValueError as error:  # a text longer than records hold, for one
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{error}.") from None
            if not encoded:
                return proposals
            expected_offset = self._decided.end_offset
            try:
                self._last = self._quorum.propose(self._term, expected_offset, encoded)
            except BatchTooLargeError as error:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, f"Too large: {error}.") from None
            self._decided, _ = steps.finish()
            proposals.append(self._last)
            if not decision.divisible:
                return proposals

    async def _finish(
        self,
        decide: Callable[[MetadataImage], Decision[T]],
        pending: _Pending[T] | KafkaError | NotCommittedError,
    ) -> tuple[T, int]:
        """The answer and the end offset of its change, committed; decided anew where need be."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                if isinstance(pending, Exception):
                    raise pending
                for proposal in pending.proposals:
                    await proposal.wait()
            except OutcomeUnknownError as error:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, f"The change may or may not be made: {error}."
                ) from None
            except NotCommittedError as error:
                if isinstance(pending, _Pending) and pending.generation == self._generation:
                    self._forget_pending()
                if not error.retry or attempt == MAX_ATTEMPTS:
                    raise KafkaError(error.code, f"The change is not made: {error}.") from None
            else:
                return pending.answer, pending.end_offset
            try:
                pending = await self._start(decide)
            except NotCommittedError as error:
                pending = error
        raise AssertionError("the last attempt returns or raises")


def _decide(
    decide: Callable[[MetadataImage, W], Decision[T]], wish: W, image: MetadataImage
) -> Decision[T]:
    return decide(image, wish)


async def _encode_in_slices(steps: Replay, records: Iterable[MetadataRecord]) -> list[bytes]:
    """The bytes of every record; they are replayed into `steps`."""
    encoded: list[bytes] = []
    rest = iter(records)
    while True:
        part = list(islice(rest, SLICE_RECORDS))
        encoded += [encode_record(record) for record in part]
        steps.apply(part)
        if len(part) < SLICE_RECORDS:
            return encoded
        await trio.lowlevel.checkpoint()


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
