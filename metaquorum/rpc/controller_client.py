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
from metaquorum.controller.proposer import Committed
from metaquorum.controller.topics import MAX_SPECS, TOO_MANY, NewTopic, TopicOutcome
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.rpc.links import QuorumLinks
from metaquorum.rpc.methods import (
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
from wire.primitives.errors import ErrorCode, KafkaError

Q = TypeVar("Q")
A = TypeVar("A")
W = TypeVar("W")
T = TypeVar("T")

SLICE_SPECS: Final = 500  # refused before the loop gets its turn
RETRY_LEAST_S: Final = 0.01
RETRY_MOST_S: Final = 0.25


class ControllerClient:
    """Calls of the active controller, by the rows of `rpc.methods`.

    A query, or a change that need not be visible here: `ask`. A change: `change`. A change of many
    parts: `change_each`, which never raises what it answers for each. Topics have methods of their
    own, since what is refused names its topic.
    """

    def __init__(self, runtime: Runtime, links: QuorumLinks, loader: MetadataLoader) -> None:
        self._clock = runtime.clock
        self._random = runtime.random
        self._links = links
        self._loader = loader

    async def ask(self, method: Method[Q, A], request: Q, *, timeout_s: float) -> A:
        """The active controller's answer; nothing of it need be visible here. KafkaError."""
        return await self._ask(method, request, self._clock.monotonic() + timeout_s)

    async def change(self, method: Method[Q, Committed[T]], request: Q, *, timeout_s: float) -> T:
        """The answer; what it says is visible here. KafkaError; REQUEST_TIMED_OUT: it may be so."""
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
        """For each of the specs None, or why nothing of it was changed; in order.

        `request`: makes the request for some of them. What met the end of a controller's term is
        asked of the next controller, without the others.
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

    async def catch_up(self, *, timeout_s: float) -> None:
        """All that was committed before this call is visible here. KafkaError."""
        deadline = self._clock.monotonic() + timeout_s
        end_offset = await self._ask(READ_END, ReadEnd(), deadline)
        await self._seen(end_offset, deadline)
        if self._loader.visible.end_offset < end_offset:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "This node is behind the metadata log.")

    async def _ask(self, method: Method[Q, A], request: Q, deadline: float) -> A:
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
                changed = await self._ask(method, request(part), deadline)
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
