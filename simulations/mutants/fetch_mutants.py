"""Mutants of waiting fetches: a wake-up is lost."""

from contextlib import AbstractContextManager
from typing import Any, Final

from metaquorum.dataplane.fetch.sessions import SessionPartition
from metaquorum.dataplane.partition.waiting import FetchWaiter
from metaquorum.simulations.kernel.mutation import Mutant, swapped


def _poll_heard_once() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def note(self: Any, new_bytes: int) -> bool:
            right(self, new_bytes)
            return False

        return note

    return swapped(FetchWaiter, "note", wrong)


def _session_poll_not_woken() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def note(self: Any, new_bytes: int) -> bool:
            self.session.news[self] = None
            return self.session.waiter is not None

        return note

    return swapped(SessionPartition, "note", wrong)


FETCH_MUTANTS: Final = tuple(
    Mutant(name, about, "long-polls", ("liveness",), apply)
    for name, about, apply in (
        (
            "poll-heard-once",
            "a long poll that still needs bytes after an append is not woken by the next append",
            _poll_heard_once,
        ),
        (
            "session-poll-not-woken",
            "an append marks partitions of a fetch session, but wakes no waiting fetch of it",
            _session_poll_not_woken,
        ),
    )
)
