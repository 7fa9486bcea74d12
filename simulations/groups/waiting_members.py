"""Members whose JoinGroup or SyncGroup waits: the coordinator must not end their sessions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from metaquorum.dataplane.coordinators.group.sessions import Sessions
from metaquorum.simulations.kernel.mutation import swapped
from metaquorum.simulations.replication.replica_checkers import WatchingChecker


class WaitingMembersStay(WatchingChecker):
    """No session ends while a JoinGroup or SyncGroup of its member waits for its answer.

    The member sends nothing meanwhile; its connection shows that it is alive. Otherwise members are
    expelled while their leader computes an assignment, and the group rebalances again and again.
    """

    invariant = "G7"

    def timed_out(self, member_id: str, waits_for: str, *, is_expelled: bool) -> None:
        """Check a session timer that ran out while a request of the member waited."""
        self.world.count(f"sessions kept by a waiting {waits_for}", not is_expelled)
        self.compare(
            not is_expelled, "the session of {} ends while its {} waits", member_id, waits_for
        )


@contextmanager
def watched_waits() -> Iterator[list[WaitingMembersStay]]:
    """Report session timers of waiting members to the checkers in the list while the block runs."""
    checkers: list[WaitingMembersStay] = []

    def times_out(right: Any) -> Any:
        def _session_ended(self: Sessions, member_id: str, now: float) -> None:
            members = self._members
            member = members.by_id[member_id]
            waits_for = (
                "JoinGroup" if member.join is not None else "SyncGroup" if member.sync else ""
            )
            right(self, member_id, now)
            if waits_for:
                for checker in checkers:
                    checker.timed_out(member_id, waits_for, is_expelled=member_id not in members)

        return _session_ended

    with swapped(Sessions, "_session_ended", times_out):
        yield checkers
