"""Answers of operations on shards that may come later, for one waiting task. No I/O."""

from typing import Generic, TypeVar

import trio

from metaquorum.wire.primitives.errors import ErrorCode

T = TypeVar("T")


class Asked(Generic[T]):
    """An answer that may come later."""

    __slots__ = ("_answered", "_answers")

    def __init__(self) -> None:
        self._answers: list[T | ErrorCode] = []
        self._answered: trio.Event | None = None

    def take(self, answer: T | ErrorCode) -> None:
        self._answers.append(answer)
        if self._answered is not None:
            self._answered.set()

    async def wait(self) -> T | ErrorCode:
        if not self._answers:
            self._answered = trio.Event()
            await self._answered.wait()
        return self._answers[0]
