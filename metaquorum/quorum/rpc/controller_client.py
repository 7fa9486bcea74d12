"""Client of the active controller for the request handlers of a worker.

    no active controller known    wait for one
    certainly not executed        retry with the controller that is active then
    unknown                       retry if the method is repeatable, else REQUEST_TIMED_OUT
    committed                     wait until this node has applied the change, then return

All of this happens within the timeout of the request, after which parts without an answer get
REQUEST_TIMED_OUT. The wait at the end exists because a client expects that the worker that
acknowledged a change also shows the change.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import trio

from metaquorum.metadata.loader import MetadataLoader
from metaquorum.quorum.channel.rpc_client import CallLostError, CallNotSentError
from metaquorum.quorum.channel.timing import Backoff, within
from metaquorum.quorum.controller.proposer import Committed
from metaquorum.quorum.controller.topics import MAX_SPECS, TOO_MANY, NewTopic, TopicOutcome
from metaquorum.quorum.rpc.links import QuorumLinks
from metaquorum.quorum.rpc.methods import (
    CREATE_TOPICS,
    DELETE_TOPICS,
    READ_END,
    CreateTopics,
    DeleteTopics,
    Method,
    ReadEnd,
    RequestContext,
)
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

Q = TypeVar("Q")
A = TypeVar("A")
W = TypeVar("W")
T = TypeVar("T")

SLICE_SPECS: Final = 500  # specs refused between two checkpoints
RETRY_LEAST_S: Final = 0.01
RETRY_MOST_S: Final = 0.25


class ControllerClient:
    """Calls to the active controller, by the rows of `rpc.methods`.

    `ask` sends a query, or a change that need not be visible on this node. `change` sends a change.
    `change_each` sends a change of many parts and returns, never raises, the error of each part.
    Topics have methods of their own, since their errors name the topic.
    """

    def __init__(self, runtime: Runtime, links: QuorumLinks, loader: MetadataLoader) -> None:
        self._clock = runtime.clock
        self._random = runtime.random
        self._links = links
        self._loader = loader

    async def ask(self, method: Method[Q, A], request: Q, *, timeout_s: float) -> A:
        """Return the answer of the active controller without waiting for this node to catch up.

        Raises KafkaError if the controller refuses the request; REQUEST_TIMED_OUT: after
        `timeout_s` seconds, or the outcome is unknown.
        """
        return await self._ask(method, request, self._clock.monotonic() + timeout_s)

    async def change(self, method: Method[Q, Committed[T]], request: Q, *, timeout_s: float) -> T:
        """Make a change, wait until the change is visible on this node, and return the answer.

        Raises KafkaError if the controller refuses the change; with REQUEST_TIMED_OUT the change
        may have been committed.
        """
        deadline = self._clock.monotonic() + timeout_s
        changed = await self._ask(method, request, deadline)
        await self._seen(changed.end_offset, deadline)
        return changed.answer

    async def change_each(
        self,
        method: Method[Q, Committed[list[KafkaError | None]]],
        specs: Sequence[W],
        request: Callable[[Sequence[W]], Q],
        *,
        timeout_s: float,
    ) -> list[KafkaError | None]:
        """Make a change of many parts; return None or the error for each spec, in order.

        `request` makes the request for some of the specs. Specs that failed because the controller
        lost its leadership are sent again to the next controller.
        """
        return await self._each(method, specs, request, lambda _, error: error, _code, timeout_s)

    async def create_topics(
        self,
        context: RequestContext,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        timeout_s: float,
    ) -> list[TopicOutcome]:
        """Create topics; return one outcome for each, in order. Topic names must be distinct."""
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
        """Delete topics; return one outcome for each (name, None) or (None, topic id), in order."""
        return await self._each(
            DELETE_TOPICS,
            topics,
            lambda part: DeleteTopics(context, part),
            lambda topic, error: TopicOutcome.refused(error, *topic),
            lambda outcome: outcome.code,
            timeout_s,
        )

    async def catch_up(self, *, timeout_s: float) -> None:
        """Wait until all metadata committed before this call is visible on this node.

        Raises KafkaError if that takes longer than `timeout_s` seconds.
        """
        deadline = self._clock.monotonic() + timeout_s
        end_offset = await self._ask(READ_END, ReadEnd(), deadline)
        await self._seen(end_offset, deadline)
        if self._loader.visible.end_offset < end_offset:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                "This node has not caught up with the metadata log in time.",
            )

    async def _ask(self, method: Method[Q, A], request: Q, deadline: float) -> A:
        """Return the active controller's answer. Raises KafkaError at the clock's `deadline`."""
        backoff = Backoff(self._random, RETRY_LEAST_S, RETRY_MOST_S)
        why: Exception | str = "the timeout had passed before the request was sent"
        while (left_s := deadline - self._clock.monotonic()) > 0:
            try:
                controller_term = await within(
                    self._clock, left_s, self._links.wait_controller_term
                )
            except TimeoutError:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"Not executed: no active controller is known ({self._links.status_text}).",
                ) from None
            try:
                left_s = deadline - self._clock.monotonic()
                return await controller_term.call(method, request, max(0.0, left_s))
            except CallNotSentError as error:
                why = error
            except CallLostError as error:
                if not method.is_repeatable:
                    raise KafkaError(
                        ErrorCode.REQUEST_TIMED_OUT,
                        f"The change may or may not have been committed: {error}.",
                    ) from None
                why = error
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
                why = error
            await self._pause(backoff, deadline)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"Not executed in time: {why}.")

    async def _pause(self, backoff: Backoff, deadline: float) -> None:
        left_s = deadline - self._clock.monotonic()
        await sleep(self._clock, max(0.0, min(backoff.next_s(), left_s)))

    async def _each(
        self,
        method: Method[Q, Committed[list[T]]],
        specs: Sequence[W],
        request: Callable[[Sequence[W]], Q],
        refused: Callable[[W, KafkaError], T],
        code: Callable[[T], ErrorCode],
        timeout_s: float,
    ) -> list[T]:
        """Return an answer for each spec, in order; retry those that got NOT_CONTROLLER."""
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
                changed = await self._ask(method, request(part), deadline)
            except KafkaError as error:
                changed = Committed([refused(spec, error) for spec in part], 0)
            end_offset = max(end_offset, changed.end_offset)
            answers |= zip(left, changed.answer, strict=True)
            left = [n for n in left if code(answers[n]) is ErrorCode.NOT_CONTROLLER]
            if left and self._clock.monotonic() >= deadline:
                late = KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, "Not executed: no active controller."
                )
                answers |= {number: refused(specs[number], late) for number in left}
                break
            if left:
                await self._pause(backoff, deadline)
        await self._seen(end_offset, deadline)
        return [answers[number] for number in range(len(specs))]

    async def _seen(self, end_offset: int, deadline: float) -> None:
        """Wait until the metadata up to `end_offset` is visible here, or until `deadline`.

        A timeout is not an error, since the metadata is committed in either case.
        """
        if self._loader.visible.end_offset < end_offset:
            left_s = max(0.0, deadline - self._clock.monotonic())
            with suppress(TimeoutError):
                await within(self._clock, left_s, lambda: self._loader.wait_visible(end_offset))


async def _refuse_all(specs: Sequence[W], refused: Callable[[W, KafkaError], T]) -> list[T]:
    """Refuse all specs, as the controller would after it had decoded them."""
    answers: list[T] = []
    for first in range(0, len(specs), SLICE_SPECS):
        answers += [refused(spec, TOO_MANY) for spec in specs[first : first + SLICE_SPECS]]
        await trio.lowlevel.checkpoint()
    return answers


def _code(error: KafkaError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.code
