"""Whether this worker still leads what it thinks it leads, by the quorum's word.

A leader that was replaced may not hear of it for a while, and its clients may hear of it no sooner:
what they wrote meanwhile was taken by its successor. Mostly it can do no harm: what it appends is
never committed. But of a producer's next batch it would say that a sequence is missing, upon which
producers give up. So before it says that, it asks the active controller where the metadata ends,
and waits until it has taken in all of that. Whoever asks while a question is under way, which may
have been answered before, shares the next one.
"""

from collections.abc import Callable
from typing import Final

import trio

from metaquorum.rpc.controller_client import ControllerClient
from wire.primitives.errors import ErrorCode, KafkaError

# Clients try again; a quorum that is away for longer may be for long.
ASK_TIMEOUT_S: Final = 1.0


class LeadershipQuestion:
    """`done` is called when it is answered, unless it was dropped."""

    __slots__ = ("_done", "is_current")

    def __init__(self, done: Callable[[], object]) -> None:
        self._done: Callable[[], object] | None = done
        # What this worker knew when it was answered was no older than the question.
        self.is_current = False

    def cancel(self) -> None:
        self._done = None

    def answer(self, *, is_current: bool) -> None:
        self.is_current = is_current
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
            is_current = await self._catch_up()
            for question in questions:
                question.answer(is_current=is_current)

    async def _catch_up(self) -> bool:
        try:
            await self._controller_client.catch_up(timeout_s=ASK_TIMEOUT_S)
        except KafkaError as error:
            # A controller of an earlier version cannot be asked: it is as without all this.
            return error.code is ErrorCode.UNSUPPORTED_VERSION
        return True
