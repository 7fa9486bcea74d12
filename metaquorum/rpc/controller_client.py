"""The quorum as a worker's handlers see it: changes are asked of the active controller, wherever.

    no active controller known    wait for one
    surely not executed           ask again, whoever is the active controller then
    nobody knows                  REQUEST_TIMED_OUT; never asked again, where twice is not once
    committed                     wait until this node's own parts have taken it in; answer

All of it within the time that the client gives, after which what has no answer gets
REQUEST_TIMED_OUT. A client expects to find what it was told of at the worker that told it, hence
the wait at the end.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import trio

from metaquorum.channel.rpc_client import CallLostError, CallNotSentError
from metaquorum.channel.timing import Backoff, within
from metaquorum.controller.alter_partition import PartitionChange
from metaquorum.controller.config_changes import ResourceChange
from metaquorum.controller.elect_leaders import ElectionSpec
from metaquorum.controller.features import FeatureUpdate
from metaquorum.controller.mutation_quotas import MutationsTaken, MutationUse
from metaquorum.controller.proposer import Committed
from metaquorum.controller.quota_changes import QuotaChange
from metaquorum.controller.scram_changes import UserScramChange
from metaquorum.controller.topics import (
    MAX_SPECS,
    TOO_MANY,
    NewPartitions,
    NewTopic,
    ProducerIdBlock,
    TopicOutcome,
)
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.rpc.links import QuorumLinks
from metaquorum.rpc.methods import (
    ALLOCATE_PRODUCER_IDS,
    ALTER_PARTITIONS,
    CHANGE_CONFIGS,
    CHANGE_QUOTAS,
    CHANGE_SCRAM_CREDENTIALS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_MUTATIONS,
    DESCRIBE_QUORUM,
    ELECT_LEADERS,
    READ_END,
    REPORT_LOST_LOGS,
    TAKE_MUTATIONS,
    UNREGISTER_WORKER,
    UPDATE_FEATURES,
    AllocateProducerIds,
    AlterPartitions,
    ChangeConfigs,
    ChangeQuotas,
    ChangeScramCredentials,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DescribeMutations,
    DescribeQuorum,
    ElectLeaders,
    Method,
    QuorumDescription,
    ReadEnd,
    ReportLostLogs,
    RequestContext,
    TakeMutations,
    UnregisterWorker,
    UpdateFeatures,
)
from metaquorum.runtime.interfaces import Runtime, sleep
from wire.primitives.errors import ErrorCode, KafkaError

Q = TypeVar("Q")
A = TypeVar("A")
W = TypeVar("W")
T = TypeVar("T")

SLICE_SPECS: Final = 500  # refused before the loop gets its turn
RETRY_LEAST_S: Final = 0.01
RETRY_MOST_S: Final = 0.25


class ControllerClient:
    """Everything that changes the metadata. What is answered for each wish is never raised."""

    def __init__(self, runtime: Runtime, links: QuorumLinks, loader: MetadataLoader) -> None:
        self._clock = runtime.clock
        self._random = runtime.random
        self._links = links
        self._loader = loader

    async def create_topics(
        self,
        context: RequestContext,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        timeout_s: float,
    ) -> list[TopicOutcome]:
        """One outcome for each topic, in order. No name may be in it twice."""
        return await self._each(
            CREATE_TOPICS,
            topics,
            lambda part: CreateTopics(context, part, validate_only),
            lambda topic, error: TopicOutcome.refused(error, topic.name),
            lambda outcome: outcome.code,
            timeout_s,
        )

    async def delete_topics(
        self,
        context: RequestContext,
        topics: Sequence[tuple[str | None, bytes | None]],
        *,
        timeout_s: float,
    ) -> list[TopicOutcome]:
        """One outcome for each (name, None) or (None, topic id), in order."""
        return await self._each(
            DELETE_TOPICS,
            topics,
            lambda part: DeleteTopics(context, part),
            lambda topic, error: TopicOutcome.refused(error, *topic),
            lambda outcome: outcome.code,
            timeout_s,
        )

    async def create_partitions(
        self,
        context: RequestContext,
        specs: Sequence[NewPartitions],
        *,
        validate_only: bool = False,
        timeout_s: float,
    ) -> list[KafkaError | None]:
        """For each wish None, or why it was refused. No topic may be in it twice."""
        return await self._each(
            CREATE_PARTITIONS,
            specs,
            lambda part: CreatePartitions(context, part, validate_only),
            lambda _, error: error,
            _code,
            timeout_s,
        )

    async def change_configs(
        self,
        context: RequestContext,
        resources: Sequence[ResourceChange],
        *,
        validate_only: bool = False,
        timeout_s: float,
    ) -> list[KafkaError | None]:
        """For each resource None, or why nothing of it was changed."""
        return await self._each(
            CHANGE_CONFIGS,
            resources,
            lambda part: ChangeConfigs(context, part, validate_only),
            lambda _, error: error,
            _code,
            timeout_s,
        )

    async def change_quotas(
        self,
        context: RequestContext,
        changes: Sequence[QuotaChange],
        *,
        validate_only: bool = False,
        timeout_s: float,
    ) -> list[KafkaError | None]:
        """For each entity None, or why nothing of it was changed."""
        return await self._each(
            CHANGE_QUOTAS,
            changes,
            lambda part: ChangeQuotas(context, part, validate_only),
            lambda _, error: error,
            _code,
            timeout_s,
        )

    async def change_scram_credentials(
        self, context: RequestContext, users: Sequence[UserScramChange], *, timeout_s: float
    ) -> list[KafkaError | None]:
        """For each user None, or why nothing was changed. No user may be in it twice."""
        return await self._each(
            CHANGE_SCRAM_CREDENTIALS,
            users,
            lambda part: ChangeScramCredentials(context, part),
            lambda _, error: error,
            _code,
            timeout_s,
        )

    async def elect_leaders(
        self, context: RequestContext, specs: Sequence[ElectionSpec], *, timeout_s: float
    ) -> list[KafkaError | None]:
        """For each wish None, or why the partition is not led so."""
        return await self._each(
            ELECT_LEADERS,
            specs,
            lambda part: ElectLeaders(context, part),
            lambda _, error: error,
            _code,
            timeout_s,
        )

    async def alter_partitions(
        self,
        worker_id: int,
        broker_epoch: int,
        changes: Sequence[PartitionChange],
        *,
        timeout_s: float,
    ) -> Sequence[ErrorCode]:
        """A code for each. The leader learns of what is made like everybody else. KafkaError."""
        request = AlterPartitions(worker_id, broker_epoch, changes)
        deadline = self._clock.monotonic() + timeout_s
        return (await self.ask(ALTER_PARTITIONS, request, deadline)).answer

    async def report_lost_logs(
        self,
        worker_id: int,
        broker_epoch: int,
        logs: Sequence[tuple[bytes, int]],
        *,
        recreated: bool = False,
        timeout_s: float,
    ) -> Sequence[KafkaError | None]:
        """For each None once everybody is told that this worker has lost that log. KafkaError."""
        request = ReportLostLogs(worker_id, broker_epoch, logs, recreated)
        deadline = self._clock.monotonic() + timeout_s
        return (await self.ask(REPORT_LOST_LOGS, request, deadline)).answer

    async def update_features(
        self,
        context: RequestContext,
        updates: Sequence[FeatureUpdate],
        *,
        validate_only: bool = False,
        timeout_s: float,
    ) -> None:
        """All are done; KafkaError: none is."""
        request = UpdateFeatures(context, updates, validate_only)
        await self._change(UPDATE_FEATURES, request, timeout_s)

    async def unregister_worker(
        self, context: RequestContext, worker_id: int, *, timeout_s: float
    ) -> None:
        """The worker is forgotten; KafkaError."""
        await self._change(UNREGISTER_WORKER, UnregisterWorker(context, worker_id), timeout_s)

    async def describe_quorum(self, *, timeout_s: float) -> QuorumDescription:
        """How far everybody is, as the active controller knows. KafkaError."""
        deadline = self._clock.monotonic() + timeout_s
        return await self.ask(DESCRIBE_QUORUM, DescribeQuorum(), deadline)

    async def catch_up(self, *, timeout_s: float) -> None:
        """All that was committed before this call is visible here. KafkaError."""
        deadline = self._clock.monotonic() + timeout_s
        end_offset = await self.ask(READ_END, ReadEnd(), deadline)
        await self._seen(end_offset, deadline)
        if self._loader.visible.end_offset < end_offset:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "This node is behind the metadata log.")

    async def take_mutations(
        self, context: RequestContext, counts: Sequence[int], *, is_strict: bool, timeout_s: float
    ) -> MutationsTaken:
        """How many of such wishes are within the client's quota. KafkaError."""
        deadline = self._clock.monotonic() + timeout_s
        return await self.ask(TAKE_MUTATIONS, TakeMutations(context, counts, is_strict), deadline)

    async def describe_mutations(
        self, user: str, client_id: str | None, *, most_used: int = 0, timeout_s: float
    ) -> list[MutationUse]:
        """What the client has of its quota, nothing where it is not limited; or of so many that
        have used most of theirs. KafkaError."""
        request = DescribeMutations(user, client_id, most_used)
        return await self.ask(DESCRIBE_MUTATIONS, request, self._clock.monotonic() + timeout_s)

    async def allocate_producer_ids(
        self, worker_id: int, broker_epoch: int, *, timeout_s: float
    ) -> ProducerIdBlock:
        """Ids that nobody else ever gets. Nothing of it need be visible here. KafkaError."""
        request = AllocateProducerIds(worker_id, broker_epoch)
        deadline = self._clock.monotonic() + timeout_s
        return (await self.ask(ALLOCATE_PRODUCER_IDS, request, deadline)).answer

    async def ask(self, method: Method[Q, A], request: Q, deadline: float) -> A:
        """The active controller's answer, by the clock's `deadline`. KafkaError."""
        backoff = Backoff(self._random, RETRY_LEAST_S, RETRY_MOST_S)
        why: Exception | str = "no time was left"
        while (left_s := deadline - self._clock.monotonic()) > 0:
            try:
                controller_term = await within(
                    self._clock, left_s, self._links.wait_controller_term
                )
            except TimeoutError:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"Not done: no controller is known to be active ({self._links.status_text}).",
                ) from None
            try:
                left_s = deadline - self._clock.monotonic()
                return await controller_term.call(method, request, max(0.0, left_s))
            except CallNotSentError as error:
                why = error
            except CallLostError as error:
                if not method.is_repeatable:
                    raise KafkaError(
                        ErrorCode.REQUEST_TIMED_OUT, f"It may be done, or not: {error}."
                    ) from None
                why = error
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
                why = error
            await self._pause(backoff, deadline)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"Not done in time: {why}.")

    async def _pause(self, backoff: Backoff, deadline: float) -> None:
        left_s = deadline - self._clock.monotonic()
        await sleep(self._clock, max(0.0, min(backoff.next_s(), left_s)))

    async def _change(self, method: Method[Q, Committed[T]], request: Q, timeout_s: float) -> T:
        deadline = self._clock.monotonic() + timeout_s
        changed = await self.ask(method, request, deadline)
        await self._seen(changed.end_offset, deadline)
        return changed.answer

    async def _each(
        self,
        method: Method[Q, Committed[list[T]]],
        specs: Sequence[W],
        request: Callable[[Sequence[W]], Q],
        refused: Callable[[W, KafkaError], T],
        code: Callable[[T], ErrorCode],
        timeout_s: float,
    ) -> list[T]:
        """An answer for each wish, in order. What met a controller's fall is asked of the next."""
        if len(specs) > MAX_SPECS:
            return await _refuse_all(specs, refused)
        deadline = self._clock.monotonic() + timeout_s
        backoff = Backoff(self._random, RETRY_LEAST_S, RETRY_MOST_S)
        answers: dict[int, T] = {}
        left = list(range(len(specs)))
        end_offset = 0
        while left:
            part = [specs[number] for number in left]
            try:
                changed = await self.ask(method, request(part), deadline)
            except KafkaError as error:
                changed = Committed([refused(spec, error) for spec in part], 0)
            end_offset = max(end_offset, changed.end_offset)
            answers |= zip(left, changed.answer, strict=True)
            left = [n for n in left if code(answers[n]) is ErrorCode.NOT_CONTROLLER]
            if left and self._clock.monotonic() >= deadline:
                late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "Not done: no active controller.")
                answers |= {number: refused(specs[number], late) for number in left}
                break
            if left:
                await self._pause(backoff, deadline)
        await self._seen(end_offset, deadline)
        return [answers[number] for number in range(len(specs))]

    async def _seen(self, end_offset: int, deadline: float) -> None:
        """What is committed is visible here, or the deadline has come; it is committed anyway."""
        if self._loader.visible.end_offset < end_offset:
            left_s = max(0.0, deadline - self._clock.monotonic())
            with suppress(TimeoutError):
                await within(self._clock, left_s, lambda: self._loader.wait_visible(end_offset))


async def _refuse_all(specs: Sequence[W], refused: Callable[[W, KafkaError], T]) -> list[T]:
    """The controller would, too; it is not sent what it would have to read first."""
    answers: list[T] = []
    for first in range(0, len(specs), SLICE_SPECS):
        answers += [refused(spec, TOO_MANY) for spec in specs[first : first + SLICE_SPECS]]
        await trio.lowlevel.checkpoint()
    return answers


def _code(error: KafkaError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.code
