"""Requests to the coordinator of a group, with answers that may come later.

A JoinGroup waits for the other members, and every change for the in-sync replicas of the
coordinator's log. Such a request holds no task: its `GroupResponse` is completed by the
coordinator.
"""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from metaquorum.dataplane.coordinators.group.group_coordinator import GroupCoordinator
from metaquorum.dataplane.coordinators.group.group_shard import GroupShard
from metaquorum.dataplane.coordinators.shard import Write
from metaquorum.dataplane.network.delayed import DelayedResponse
from metaquorum.dataplane.scheduling.time_slices import Steps
from metaquorum.dataplane.worker.capabilities import HasClock, HasImage
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.schema.message import Message

T = TypeVar("T")
Answer: TypeAlias = Message | Steps[Message]

# KIP-430, without ACLs all are allowed: READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS.
GROUP_OPERATIONS: Final = sum(1 << bit for bit in (3, 6, 8, 10, 11))


class HasGroups(Protocol):
    @property
    def groups(self) -> GroupCoordinator:
        """Coordinator of the groups whose partition this worker leads."""


class CoordinatesGroups(HasGroups, HasImage, HasClock, Protocol):
    """Capability to run operations on groups; the image has the ids of topics."""


class GroupResponse(DelayedResponse):
    """The response to a request that the coordinator answers later.

    `on_drop` is called if the connection ends before.
    """

    __slots__ = ("_answer", "on_drop")

    def __init__(self, *, may_outlast_idle: bool = False) -> None:
        super().__init__(may_outlast_idle=may_outlast_idle)
        self.on_drop: Callable[[], object] | None = None
        self._answer: Answer | None = None

    def answer(self, answer: Answer) -> None:
        """Give the answer, once."""
        self._answer = answer
        self.ready()

    def complete(self) -> Answer:
        assert self._answer is not None
        return self._answer

    def cancel(self) -> None:
        if isinstance(self._answer, Coroutine):
            self._answer.close()
        if not self.is_ready and self.on_drop is not None:
            self.on_drop()


def ask(
    worker: HasGroups,
    group_id: str,
    operation: Callable[[GroupShard], T | Write[T | None] | None],
    answered: Callable[[T], Answer],
    failed: Callable[[ErrorCode], Answer],
    response: GroupResponse | None = None,
) -> Answer | GroupResponse:
    """Run an operation on the group; return the response, which may have to wait.

    `failed` returns the response for an error of the coordinator: it is not the right one, it is
    loading, or its log cannot be written. `response`: the one to complete, if the operation itself
    completes it later.
    """
    asked = _Asked(answered, failed, GroupResponse() if response is None else response)
    try:
        worker.groups.call(group_id, operation, asked.succeed, asked.fail)
    except KafkaError as error:
        return failed(error.code)
    waiting = asked.response
    return waiting.complete() if waiting.is_ready else waiting


class _Asked(Generic[T]):
    """Makes the response to a request from its outcome. A closure for each costs more time."""

    __slots__ = ("_answered", "_failed", "response")

    def __init__(
        self,
        answered: Callable[[T], Answer],
        failed: Callable[[ErrorCode], Answer],
        response: GroupResponse,
    ) -> None:
        self._answered = answered
        self._failed = failed
        self.response = response

    def succeed(self, answer: T) -> None:
        self.response.answer(self._answered(answer))

    def fail(self, code: ErrorCode) -> None:
        self.response.answer(self._failed(code))


async def settled(outcome: Answer | GroupResponse) -> Message | GroupResponse:
    """Return the outcome of `ask`, for a handler that is work itself."""
    if isinstance(outcome, Message | GroupResponse):
        return outcome
    return await outcome


def drop(worker: HasGroups, group_id: str, operation: Callable[[GroupShard], None]) -> None:
    """Run `operation`, which drops a waiting request, unless the group has moved on."""
    with suppress(KafkaError):
        worker.groups.call(group_id, operation, _ignore, _ignore)


def _ignore(answer: object) -> None: ...
