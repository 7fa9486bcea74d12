"""Sessions of the members of one group, and ids given to new members. Plain state.

    event                                       the member
    its request, for the first time             has a session
    no request for its session timeout          has ended, unless a quota mutes it, or a JoinGroup
                                                or SyncGroup of it waits: it is alive as long as its
                                                connection
    a new member without an id joins            has an id, and is *pending* until it joins again
                                                with that id (KIP-394)
    it does not for its session timeout         is forgotten

Source: KIP-62, 394, and the behaviour of Kafka 4.3.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from metaquorum.dataplane.coordinators.client_budget import ClientBudget, text_bytes
from metaquorum.dataplane.coordinators.group.members import GroupMember, GroupMembers
from metaquorum.dataplane.coordinators.group.timeouts import Timeout, Timeouts

# Memory of an id that was given to a new member, without its characters.
PENDING_BYTES: Final = 600


class PendingMember(NamedTuple):
    """A new member that has been given an id, until `ends`."""

    client_host: str
    client: str  # in the budget
    ends: Timeout


def pending_bytes(member_id: str) -> int:
    """Return the memory of an id that was given to a new member."""
    return PENDING_BYTES + text_bytes(member_id)


class Sessions:
    """Sessions of one group."""

    def __init__(
        self,
        members: GroupMembers,
        budget: ClientBudget,
        timeouts: Timeouts,
        on_ended: Callable[[float, str], object],
        on_pending_ended: Callable[[float], object],
    ) -> None:
        """Create the sessions of `members`.

        `on_ended` is called with the time and the id of a member whose session has ended, and
        `on_pending_ended` with the time after a pending member was forgotten.
        """
        # Ids given to new members that have not joined with them.
        self.pending: dict[str, PendingMember] = {}
        self._pending_of: Counter[str] = Counter()  # by client
        self._members = members
        self._budget = budget
        self._timeouts = timeouts
        self._on_ended = on_ended
        self._on_pending_ended = on_pending_ended
        self._sessions: dict[str, Timeout] = {}

    def hear(self, now: float, member: GroupMember) -> None:
        """Note a request of the member, and watch its session, whose timeout may have changed."""
        member.heard_at = now
        session = self._sessions.get(member.member_id)
        # A timeout that is due earlier is moved then. Muting only makes the session longer.
        if session is not None and session.due <= now + member.session_timeout_ms / 1000:
            return
        ends_at = member.session_ends_at(now)
        if session is not None:
            if session.due <= ends_at:
                return
            session.cancel()
        self._sessions[member.member_id] = self._timeouts.at(
            ends_at, partial(self._session_ended, member.member_id)
        )

    def forget(self, member_id: str) -> None:
        """End the session of a member that is removed. Idempotent."""
        if (session := self._sessions.pop(member_id, None)) is not None:
            session.cancel()

    def _session_ended(self, member_id: str, now: float) -> None:
        del self._sessions[member_id]
        member = self._members.by_id[member_id]
        ends_at = member.session_ends_at(now)
        if member.is_waiting:
            ends_at = now + member.session_timeout_ms / 1000
        if ends_at > now:
            self._sessions[member_id] = self._timeouts.at(
                ends_at, partial(self._session_ended, member_id)
            )
            return
        self._on_ended(now, member_id)

    # Pending members

    def may_add_pending(self, client: str, most: int) -> bool:
        """Return whether the client may have one more: as many as it leaves free of `most`."""
        return self._pending_of[client] + len(self.pending) + 2 <= most

    def add_pending(
        self, now: float, member_id: str, host: str, client: str, timeout_ms: int
    ) -> None:
        """Wait for the member to join with the id that it was given."""
        ends = self._timeouts.at(now + timeout_ms / 1000, partial(self.end_pending, member_id))
        self.pending[member_id] = PendingMember(host, client, ends)
        self._pending_of[client] += 1
        self._budget.use(client, pending_bytes(member_id))

    def end_pending(self, member_id: str, now: float) -> None:
        """Forget a pending member that does not join."""
        self.forget_pending(member_id)
        self._on_pending_ended(now)

    def forget_pending(self, member_id: str) -> None:
        """Forget a pending member. Idempotent."""
        pending = self.pending.pop(member_id, None)
        if pending is not None:
            pending.ends.cancel()
            self._pending_of[pending.client] -= 1
            if not self._pending_of[pending.client]:
                del self._pending_of[pending.client]
            self._budget.use(pending.client, -pending_bytes(member_id))

    def forget_all_pending(self) -> None:
        """Forget the ids that were given and not used yet: their owners join as new members."""
        for member_id in list(self.pending):
            self.forget_pending(member_id)

    def close(self) -> None:
        """End all sessions, without a call."""
        for timeout in self._sessions.values():
            timeout.cancel()
        self._sessions.clear()
        self.forget_all_pending()

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        assert self._sessions.keys() <= self._members.by_id.keys()
        assert not self.pending.keys() & self._members.by_id.keys()
