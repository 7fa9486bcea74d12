"""Mutants of quotas that have an effect only with replicas or with consumer groups."""

from contextlib import AbstractContextManager
from typing import Any, Final

from metaquorum.dataplane.coordinators.group.members import GroupMember
from metaquorum.dataplane.fetch.throttled_reads import ThrottledReads
from metaquorum.dataplane.handlers.fetch import handler
from metaquorum.dataplane.handlers.produce_outcome import Outcome
from metaquorum.dataplane.quotas.replication_quota import ReplicationQuota
from metaquorum.dataplane.replication.throttle import FollowerThrottle, is_throttled
from metaquorum.simulations.kernel.mutation import Mutant, swapped


def _replication_throttled() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def allowed(worker: Any, request: Any, message: Any, quotas: Any = None) -> Any:
            return right(worker, request, message)

        return allowed

    return swapped(handler, "FetchAllowance", wrong)


def _awaited_commits_not_charged() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def __init__(  # noqa: N807
            self: Any, worker: Any, client: Any, header: Any, size_bytes: int, *rest: Any
        ) -> None:
            right(self, worker, client, header, 0, *rest)

        return __init__

    return swapped(Outcome, "__init__", wrong)


def _mutes_counted_for_sessions() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def session_ends_at(self: Any, now: float) -> Any:
            return self.heard_at + self.session_timeout_ms / 1000

        return session_ends_at

    return swapped(GroupMember, "session_ends_at", wrong)


def _in_sync_omitted_by_leader() -> AbstractContextManager[None]:
    return swapped(ThrottledReads, "_is_in_sync", lambda _: lambda *_: False)


def _in_sync_left_out_by_follower() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def limits(self: Any, partition: Any, *, is_caught_up: bool) -> bool:
            return is_throttled(partition)

        return limits

    return swapped(FollowerThrottle, "limits", wrong)


def _throttle_ignored() -> AbstractContextManager[None]:
    return swapped(ReplicationQuota, "is_exceeded", lambda _: lambda *_: False)


THROTTLING_MUTANTS: Final = tuple(
    Mutant(name, about, scenario, found_as, apply)
    for name, about, scenario, found_as, apply in (
        (
            "replication-throttled",
            "the quota of all clients limits the fetches of followers, too",
            "throttled-replicas",
            ("Q5",),
            _replication_throttled,
        ),
        (
            "in-sync-omitted-by-leader",
            "the leader omits throttled partitions of in-sync followers, too",
            "throttled-replication",
            ("Q5",),
            _in_sync_omitted_by_leader,
        ),
        (
            "in-sync-left-out-by-follower",
            "a follower leaves throttled partitions out although it is in sync",
            "throttled-replication",
            ("Q5",),
            _in_sync_left_out_by_follower,
        ),
        (
            "throttle-ignored",
            "the replication quota is counted, but holds nothing back",
            "throttled-replication",
            ("Q1",),
            _throttle_ignored,
        ),
        (
            "awaited-commits-not-charged",
            "batches with acks=all that wait for followers are not counted",
            "throttled-replicas",
            ("Q1",),
            _awaited_commits_not_charged,
        ),
        (
            "mutes-counted-for-sessions",
            "the session of a member ends while a quota mutes its connection",
            "throttled-members",
            ("Q6",),
            _mutes_counted_for_sessions,
        ),
    )
)
