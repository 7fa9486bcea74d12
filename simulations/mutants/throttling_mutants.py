"""Mutants of quotas that have an effect only with replicas."""

from contextlib import AbstractContextManager
from typing import Any, Final

from dataplane.handlers import fetch
from dataplane.handlers.produce_outcome import Outcome
from simulations.kernel.mutation import Mutant, swapped


def _replication_throttled() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def allowed(worker: Any, request: Any, message: Any, *, is_limited: bool) -> Any:
            return right(worker, request, message, is_limited=True)

        return allowed

    return swapped(fetch, "_Allowed", wrong)


def _awaited_commits_not_charged() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def __init__(  # noqa: N807
            self: Any, worker: Any, client: Any, header: Any, size_bytes: int, *rest: Any
        ) -> None:
            right(self, worker, client, header, 0, *rest)

        return __init__

    return swapped(Outcome, "__init__", wrong)


THROTTLING_MUTANTS: Final = tuple(
    Mutant(name, about, "throttled-replicas", found_as, apply)
    for name, about, found_as, apply in (
        (
            "replication-throttled",
            "the quota of all clients limits the fetches of followers, too",
            ("Q5",),
            _replication_throttled,
        ),
        (
            "awaited-commits-not-charged",
            "batches with acks=all that wait for followers are not counted",
            ("Q1",),
            _awaited_commits_not_charged,
        ),
    )
)
