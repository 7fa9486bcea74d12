"""Check with the active controller that this worker still leads its partitions.

A replaced leader may learn late that another worker leads, while producers already write to its
successor. Its own appends are never committed, so they do no harm. But if a producer returns to the
old leader, that leader would answer OUT_OF_ORDER_SEQUENCE_NUMBER, which is fatal for the producer.
So before it answers with that error, the worker asks the active controller for the end offset of
the metadata log and waits until it has applied the metadata up to there. A question that arrives
while a request to the controller is in flight waits for the next request, because the controller
may have answered the current one already.

The same question decides whether a producer id is given out
(`metaquorum.dataplane.quotas.producer_admission`).
"""

from collections.abc import Callable
from typing import Final

import trio

from metaquorum.quorum.rpc.controller_client import ControllerClient
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

# Clients retry; a quorum that does not answer within a second may be unavailable for long.
ASK_TIMEOUT_S: Final = 1.0


class LeadershipQuestion:
    """One pending leadership check; its end calls `done` unless it was cancelled."""

    __slots__ = ("_done", "is_caught_up", "is_current")

    def __init__(self, done: Callable[[], object]) -> None:
        self._done: Callable[[], object] | None = done
        # Whether the applied metadata was at least as new as the question.
        self.is_current = False
        # The same, but False if the controller is too old to be asked.
        self.is_caught_up = False

    def cancel(self) -> None:
        self._done = None

    def answer(self, *, is_current: bool, is_caught_up: bool) -> None:
        self.is_current = is_current
        self.is_caught_up = is_caught_up
        if self._done is not None:
            self._done()


class LeadershipCheck:
    def __init__(self, controller_client: ControllerClient) -> None:
        self._controller_client = controller_client
        self._questions: list[LeadershipQuestion] = []
        self._asked = trio.Event()

    def ask(self, done: Callable[[], object]) -> LeadershipQuestion:
        question = LeadershipQuestion(done)
        self._questions.append(question)
        self._asked.set()
        return question

    async def run(self) -> None:
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            questions, self._questions = self._questions, []
            error = await self._catch_up()
            # An older controller does not know the request: continue without the check.
            is_current = error in (None, ErrorCode.UNSUPPORTED_VERSION)
            for question in questions:
                question.answer(is_current=is_current, is_caught_up=error is None)

    async def _catch_up(self) -> ErrorCode | None:
        try:
            await self._controller_client.catch_up(timeout_s=ASK_TIMEOUT_S)
        except KafkaError as error:
            return error.code
        return None
