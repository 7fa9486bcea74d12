"""Members of one group: protocols, static instance ids, leader, waiting requests, memory.

    pending    has a member id (KIP-394), but has not joined with it yet
    joining    waits for the answer of JoinGroup, until all members have joined
    syncing    waits for the answer of SyncGroup, until the leader's assignment is stored
    unsynced   was answered in this generation, and has not sent SyncGroup yet

A static member has an instance id (KIP-345), which maps to its current member id. A protocol is a
candidate if all members support it; each member votes for the first candidate in its list.

Plain state: `deadline` is monotonic seconds. No method decides about the state of the group.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from dataplane.coordinators.group.group_metadata import PersistedMember
from dataplane.coordinators.group.requests import (
    CompleteJoin,
    CompleteSync,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    Protocol,
    SyncAnswer,
)
from wire.primitives.errors import ErrorCode
from wire.primitives.frozen import frozen

# Bytes of a member's objects in memory, apart from its strings and metadata; measured.
MEMBER_BYTES: Final = 1_200
PENDING_BYTES: Final = 200
# A client that requests member ids and never joins must not fill the memory. The oldest one is
# forgotten, so a client that was slow gets UNKNOWN_MEMBER_ID and requests an id again.
MOST_PENDING: Final = 10_000


@frozen
class Replacement:
    """A restart of a static member in a stable group, until its record is committed."""

    old_member_id: str
    old_protocols: tuple[Protocol, ...]
    old_rebalance_timeout_ms: int
    old_session_timeout_ms: int
    old_leader: str | None
    supports_skip_assignment: bool


@dataclass(slots=True, eq=False)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    is_new: bool = False  # has not completed a join: it cannot send heartbeats yet
    deadline: float = inf  # the session ends then, unless a waiting request holds it
    joining: CompleteJoin | None = None
    syncing: CompleteSync | None = None
    replacement: Replacement | None = None

    @property
    def holds_session(self) -> bool:
        """Whether a waiting request keeps the session. That of a new member does not."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    @property
    def size_bytes(self) -> int:
        names = len(self.member_id) + len(self.client_id) + len(self.client_host)
        metadata = sum(len(row.name) + len(row.metadata) for row in self.protocols)
        return MEMBER_BYTES + names + len(self.instance_id or "") + metadata + len(self.assignment)

    def metadata(self, protocol: str | None) -> bytes:
        return next((row.metadata for row in self.protocols if row.name == protocol), b"")

    def persisted(self, protocol: str | None, assignment: bytes) -> PersistedMember:
        """Return what the log stores of this member."""
        return PersistedMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            assignment,
        )


class GroupMembers:
    """The members of one group, by member id."""

    __slots__ = (
        "_instances",
        "_joining",
        "_members",
        "_pending",
        "_support",
        "_unsynced",
        "leader",
        "protocol_type",
        "size_bytes",
    )

    def __init__(self) -> None:
        self.leader: str | None = None
        self.protocol_type: str | None = None
        self.size_bytes = 0  # bytes of members and pending member ids in memory
        self._members: dict[str, Member] = {}
        self._instances: dict[str, str] = {}  # instance id -> member id
        self._pending: dict[str, float] = {}  # member id -> deadline, the oldest first
        self._unsynced: set[str] = set()
        self._support: Counter[str] = Counter()  # protocol -> members that support it
        self._joining = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def of_instance(self, instance_id: str | None) -> Member | None:
        """Return the static member with this instance id."""
        return None if instance_id is None else self.get(self._instances.get(instance_id, ""))

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Check that a request is from a member, and not from a replaced static one."""
        if instance_id is not None:
            current = self._instances.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID

    # Members

    def add(self, member: Member, protocol_type: str | None) -> None:
        """Add a member; the first one sets the protocol type and leads."""
        self.remove_pending(member.member_id)
        if not self._members:
            self.protocol_type = protocol_type
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._support.update(_names(member.protocols))
        self.size_bytes += member.size_bytes

    def remove(self, member: Member) -> None:
        """Remove a member; another one leads if this one did. Its requests are the caller's."""
        del self._members[member.member_id]
        if self._instances.get(member.instance_id or "") == member.member_id:
            del self._instances[member.instance_id or ""]
        self._withdraw(member.protocols)
        self._unsynced.discard(member.member_id)
        self._joining -= member.joining is not None
        self.size_bytes -= member.size_bytes
        if self.leader == member.member_id:
            self.leader = next(iter(self._members), None)

    def replace(self, old: Member, member_id: str) -> Member:
        """Replace a static member by one with another id; its requests must not wait any longer."""
        assert old.instance_id is not None
        assert old.joining is None
        assert old.syncing is None
        was_leader = self.leader == old.member_id
        new = Member(
            member_id,
            old.instance_id,
            old.client_id,
            old.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocols,
            old.assignment,
        )
        self.remove(old)
        self.add(new, self.protocol_type)
        if was_leader:
            self.leader = member_id
        return new

    def update(
        self,
        member: Member,
        protocols: tuple[Protocol, ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """Set what a member has sent with its join."""
        self.size_bytes -= member.size_bytes
        self._withdraw(member.protocols)
        self._support.update(_names(protocols))
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self.size_bytes += member.size_bytes

    def assign(self, member: Member, assignment: bytes) -> None:
        self.size_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    # Waiting requests

    def wait_join(self, member: Member, complete: CompleteJoin) -> None:
        """Let a join wait; an earlier one that still waits must join again.

        A client sends the second one after the first has timed out. Kafka drops the first one.
        """
        self.answer_join(member, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.joining = complete
        self._joining += 1

    def answer_join(self, member: Member, answer: JoinAnswer) -> None:
        """Answer the waiting join, if there is one."""
        complete, member.joining = member.joining, None
        if complete is not None:
            self._joining -= 1
            complete(answer)

    def wait_sync(self, member: Member, complete: CompleteSync) -> None:
        """Let a sync wait; an earlier one that still waits is answered as `wait_join` does."""
        self.answer_sync(member, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        member.syncing = complete
        self.synced(member.member_id)

    def answer_sync(self, member: Member, answer: SyncAnswer) -> bool:
        """Answer the waiting sync, if there is one. Returns whether there was one."""
        complete, member.syncing = member.syncing, None
        if complete is not None:
            complete(answer)
        return complete is not None

    def answer_all(self, member: Member, error: ErrorCode, member_id: str) -> None:
        """Answer what waits for a member with an error."""
        self.answer_join(member, JoinAnswer(error, member_id))
        self.answer_sync(member, SyncAnswer(error))

    @property
    def joining(self) -> int:
        """Number of members whose joins wait."""
        return self._joining

    @property
    def all_joined(self) -> bool:
        return self._joining == len(self._members) and not self._pending

    def not_joined(self) -> list[Member]:
        return [member for member in self if member.joining is None]

    def elect_joined_leader(self) -> bool:
        """Make a member lead that has joined; False if none has."""
        leader = self.get(self.leader or "")
        if leader is None or leader.joining is None:
            joined = next((member for member in self if member.joining is not None), None)
            if joined is None:
                return False
            self.leader = joined.member_id
        return True

    # Members that have not sent SyncGroup

    def await_syncs(self) -> None:
        """Wait for SyncGroup of all members."""
        self._unsynced = set(self._members)

    def synced(self, member_id: str) -> None:
        self._unsynced.discard(member_id)

    def clear_syncs(self) -> None:
        self._unsynced.clear()

    def unsynced(self) -> list[Member]:
        return [member for member in self if member.member_id in self._unsynced]

    # Pending members

    @property
    def pending(self) -> int:
        return len(self._pending)

    def is_pending(self, member_id: str) -> bool:
        return member_id in self._pending

    def add_pending(self, member_id: str, deadline: float) -> None:
        """Remember an id that its client must join with by `deadline`."""
        if len(self._pending) >= MOST_PENDING:
            self.remove_pending(next(iter(self._pending)))
        self._pending[member_id] = deadline
        self.size_bytes += PENDING_BYTES + len(member_id)

    def remove_pending(self, member_id: str) -> None:
        if self._pending.pop(member_id, None) is not None:
            self.size_bytes -= PENDING_BYTES + len(member_id)

    # Sessions

    def expired_pending(self, now: float) -> list[str]:
        return [name for name, deadline in self._pending.items() if deadline <= now]

    def expired(self, now: float) -> list[Member]:
        """Return the members whose sessions have ended."""
        return [member for member in self if member.deadline <= now and not member.holds_session]

    def next_deadline(self) -> float:
        """Return when the first session ends, of members without waiting requests and new ones."""
        deadlines = (member.deadline for member in self if not member.holds_session)
        return min(min(deadlines, default=inf), min(self._pending.values(), default=inf))

    def rebalance_timeout_s(self) -> float:
        """Return how long a rebalance waits: as long as the most patient member wants."""
        return max((member.rebalance_timeout_ms for member in self), default=0) / 1000

    # Protocols

    def supports(self, protocol_type: str, protocols: Iterable[Protocol]) -> bool:
        """Return whether a member with these could join: all members support one of them."""
        size = len(self._members)
        return protocol_type == self.protocol_type and any(
            self._support[name] == size for name in _names(protocols)
        )

    def select_protocol(self) -> str:
        """Return the candidate with most votes; of equal ones the one with the first vote."""
        size = len(self._members)
        candidates = {name for name, count in self._support.items() if count == size}
        votes = Counter(
            next(row.name for row in member.protocols if row.name in candidates) for member in self
        )
        return max(votes, key=lambda name: votes[name])

    def joined_members(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """Return what the leader receives to assign partitions."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self
        )

    def _withdraw(self, protocols: Iterable[Protocol]) -> None:
        for name in _names(protocols):
            self._support[name] -= 1
            if not self._support[name]:
                del self._support[name]  # names of clients that have left


def _names(protocols: Iterable[Protocol]) -> set[str]:
    """Return the names; a client may repeat one."""
    return {row.name for row in protocols}


def member_of(request: JoinRequest, member_id: str) -> Member:
    """Return a new member that joins with `member_id`."""
    return Member(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        rebalance_timeout_of(request),
        request.session_timeout_ms,
        request.protocols,
        is_new=True,
    )


def restored(row: PersistedMember, protocol: str | None) -> Member:
    """Return a member as the log has it: it supports the selected protocol only."""
    timeout_ms = row.rebalance_timeout_ms
    return Member(
        row.member_id,
        row.instance_id,
        row.client_id,
        row.client_host,
        row.session_timeout_ms if timeout_ms < 0 else timeout_ms,
        row.session_timeout_ms,
        (Protocol(protocol or "", row.subscription),),
        row.assignment,
    )


def rebalance_timeout_of(request: JoinRequest) -> int:
    """Return the rebalance timeout in ms; version 0 has none, and the session timeout counts."""
    timeout_ms = request.rebalance_timeout_ms
    return request.session_timeout_ms if timeout_ms < 0 else timeout_ms
