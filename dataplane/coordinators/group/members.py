"""Members of one group: their protocols, static ids and waiting requests. Plain state.

A member is known by its member id, a *static* member also by its instance id (KIP-345), which
outlives its process: another process with that instance id takes the member's place and gets a new
member id, and requests with the old one are fenced.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from metaquorum.dataplane.coordinators.client_budget import ClientBudget, Refusal, text_bytes
from metaquorum.dataplane.coordinators.group.record_formats import (
    MemberMetadata,
    encode_member_head,
)
from metaquorum.dataplane.coordinators.group.requests import (
    NO_MEMBER,
    JoinAnswer,
    JoinCallback,
    JoinRequest,
    Protocol,
    SyncAnswer,
    SyncCallback,
)
from metaquorum.dataplane.scheduling.time_slices import FORGOTTEN_ROWS, PIECE_ROWS, emptied, pause
from metaquorum.wire.primitives.errors import ErrorCode

# Memory of a member without its ids, protocols and assignment.
MEMBER_BYTES: Final = 1000
NEVER: Final = float("-inf")
# Metadata of all members of a group, for all protocols: the leader's JoinGroup is answered with all
# of it for one protocol. That has to fit one record, by default of 1 MB.
MAX_METADATA_BYTES: Final = 8 << 20


def never_muted(now: float) -> float:
    return NEVER


def metadata_bytes(protocols: Sequence[Protocol]) -> int:
    return sum([len(each.metadata) for each in protocols])


def protocols_bytes(protocols: Sequence[Protocol]) -> int:
    """Return the memory of the protocols of a member."""
    return sum([text_bytes(each.name) + len(each.metadata) + 100 for each in protocols])


def _metadata_by_name(protocols: Sequence[Protocol]) -> dict[str, bytes]:
    """Return the protocols in their order; of those with the same name, the first."""
    found: dict[str, bytes] = {}
    for each in protocols:
        found.setdefault(each.name, each.metadata)
    return found


class GroupMember:
    """One member, with the requests of it that wait for the others."""

    __slots__ = (
        "admitted_bytes",
        "assignment",
        "client",
        "client_host",
        "client_id",
        "head",
        "heard_at",
        "instance_id",
        "is_new",
        "join",
        "member_id",
        "metadata_bytes",
        "muted_until",
        "principal",
        "protocols",
        "protocols_bytes",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync",
    )

    def __init__(self, member_id: str, request: JoinRequest) -> None:
        self.member_id = member_id
        self.instance_id = request.instance_id
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.client = request.client  # in the budget
        self.admitted_bytes = 0  # a part of its memory; the rest is growth
        self.principal = request.principal  # empty: has sent no request to this coordinator
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms
        self.support(request.protocols)
        self.assignment = b""
        self.is_new = True  # has no generation yet
        self.join: JoinCallback | None = None
        self.sync: SyncCallback | None = None
        self.heard_at = NEVER
        # Returns, at a time, until when a quota mutes, or muted, the connection.
        self.muted_until: Callable[[float], float] = never_muted
        self.encode_head()

    @classmethod
    def restored(
        cls, persisted: MemberMetadata, protocol_type: str, protocol: str
    ) -> "GroupMember":
        """Return the member of a generation that another coordinator has led."""
        request = JoinRequest(
            "",
            persisted.member_id,
            persisted.group_instance_id,
            persisted.client_id,
            persisted.client_host,
            # Version 0 of the record has only the session timeout.
            max(persisted.rebalance_timeout, persisted.session_timeout),
            persisted.session_timeout,
            protocol_type,
            (Protocol(protocol, persisted.subscription),),
        )
        member = cls(persisted.member_id, request)
        member.assignment = persisted.assignment
        member.is_new = False
        return member

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_waiting(self) -> bool:
        return self.join is not None or self.sync is not None

    def session_ends_at(self, now: float) -> float:
        """Return the monotonic seconds at which the session ends without another request.

        No request of a muted connection is handled, so that time does not count.
        """
        return max(self.heard_at, self.muted_until(now)) + self.session_timeout_ms / 1000

    @property
    def size_bytes(self) -> int:
        texts = sum(map(text_bytes, (self.member_id, self.client_id, self.instance_id or "")))
        texts += len(self.head)
        return MEMBER_BYTES + texts + self.protocols_bytes + len(self.assignment)

    def metadata_of(self, protocol: str | None) -> bytes:
        return b"" if protocol is None else self.protocols.get(protocol, b"")

    def matches(self, request: JoinRequest) -> bool:
        """Return whether the protocols of the member are those of the request, in its order.

        Of those with the same name, only the first counts, as everywhere.
        """
        requested = _metadata_by_name(request.protocols)
        return list(self.protocols.items()) == list(requested.items())

    def answer_sync(self, answer: SyncAnswer) -> None:
        sync, self.sync = self.sync, None
        if sync is not None:
            sync(answer)

    def support(self, protocols: tuple[Protocol, ...]) -> None:
        # Metadata by name, in the order of preference: any of many protocols is found at once.
        self.protocols = _metadata_by_name(protocols)
        # Counted once: members with many protocols may leave together.
        self.protocols_bytes = protocols_bytes(protocols)
        self.metadata_bytes = metadata_bytes(protocols)

    def encode_head(self) -> None:
        """Encode the fields of the member's record that rarely change, after a change of one."""
        self.head = encode_member_head(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
        )


# Error for a new member. Clients retry the second, until memory is free, and not the first.
REFUSED: Final = {
    Refusal.SHARE: ErrorCode.GROUP_MAX_SIZE_REACHED,
    Refusal.FULL: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


class GroupMembers:
    """The members of one group, in the order in which they joined."""

    def __init__(self, budget: ClientBudget) -> None:
        self._budget = budget
        self.by_id: dict[str, GroupMember] = {}
        self.static_ids: dict[str, str] = {}  # member ids by instance id
        self.protocol_type: str | None = None
        self.leader: str | None = None
        self.joined_count = 0  # members whose JoinGroup waits
        self.version = 0  # changes with the members and their protocols
        self.metadata_bytes = 0  # in the protocols of the members
        self._supported: dict[str, int] = {}  # number of members by protocol name

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[GroupMember]:
        return iter(list(self.by_id.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.by_id

    @property
    def rebalance_timeout_s(self) -> float:
        return max((each.rebalance_timeout_ms for each in self.by_id.values()), default=0) / 1000

    def wait_join(self, member: GroupMember, join: JoinCallback) -> None:
        """Keep a JoinGroup waiting; earlier requests of the member must be sent again."""
        self.answer_join(member, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.answer_sync(SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        member.join = join
        self.joined_count += 1

    def answer_join(self, member: GroupMember, answer: JoinAnswer) -> None:
        join, member.join = member.join, None
        if join is not None:
            self.joined_count -= 1
            join(answer)

    def drop_join(self, member: GroupMember) -> None:
        """Drop the waiting JoinGroup of a member whose connection has ended."""
        if member.join is not None:
            member.join = None
            self.joined_count -= 1

    def refuse(self, member: GroupMember, code: ErrorCode) -> None:
        """Answer the waiting requests of a member with an error."""
        member_id = NO_MEMBER if code is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
        self.answer_join(member, JoinAnswer(code, member_id))
        member.answer_sync(SyncAnswer(code))

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return the error for a request with these ids; NONE if they are those of a member."""
        if instance_id is not None:
            known = self.static_ids.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        elif member_id not in self.by_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def supports(self, request: JoinRequest, *, is_empty: bool) -> bool:
        """Return whether the request's protocols fit to those of the members.

        A group that is not in the state EMPTY keeps its type of protocol, also without members.
        """
        if not request.protocol_type or not request.protocols:
            return False
        if is_empty:
            return True
        everyone = len(self.by_id)
        return request.protocol_type == self.protocol_type and any(
            self._supported.get(each.name, 0) == everyone for each in request.protocols
        )

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all of them support.

        A member votes for the first such protocol of its list. Of several with as many votes, the
        one that was voted for first is selected.
        """
        everyone = len(self.by_id)
        first = next(iter(self.by_id.values()))
        candidates = {name for name in first.protocols if self._supported[name] == everyone}
        if len(candidates) == 1:
            return candidates.pop()
        is_candidate = candidates.__contains__
        votes = Counter(
            [next(filter(is_candidate, member.protocols)) for member in self.by_id.values()]
        )
        return max(votes, key=votes.__getitem__)

    def add(self, member: GroupMember, protocol_type: str) -> None:
        if not self.by_id:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        self._count(member, 1)

    def remove(self, member_id: str) -> GroupMember | None:
        """Remove a member; another one becomes leader in its place."""
        member = self.by_id.pop(member_id, None)
        if member is None:
            return None
        self._count(member, -1)
        self.joined_count -= member.join is not None
        if member.instance_id is not None and self.static_ids[member.instance_id] == member_id:
            del self.static_ids[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.by_id), None)
        return member

    def replace(self, instance_id: str, member_id: str) -> GroupMember:
        """Give a static member a new member id; requests that wait with the old one are fenced."""
        old_id = self.static_ids[instance_id]
        member = self.by_id.pop(old_id)
        self._count(member, -1)
        self.refuse(member, ErrorCode.FENCED_INSTANCE_ID)
        member.member_id = member_id
        member.encode_head()
        self.by_id[member_id] = member
        self.static_ids[instance_id] = member_id
        self._count(member, 1)
        if self.leader == old_id:
            self.leader = member_id
        return member

    def update(self, member: GroupMember, request: JoinRequest) -> None:
        self._count(member, -1)
        member.support(request.protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        member.principal = request.principal
        member.encode_head()
        self._count(member, 1)
        self.taken_over(member, request.client)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Give all members their assignments, empty ones to those that are not named."""
        for client, size_bytes in self.growth_of(assignments).items():
            self._budget.use(client, 0, size_bytes)
        for member_id, member in self.by_id.items():
            member.assignment = assignments.get(member_id, b"")

    def growth_of(self, assignments: Mapping[str, bytes]) -> dict[str, int]:
        """Return by how many bytes the members of each client grow with these assignments."""
        growth: dict[str, int] = {}
        for member_id, member in self.by_id.items():
            added = len(assignments.get(member_id, b"")) - len(member.assignment)
            growth[member.client] = growth.get(member.client, 0) + added
        return growth

    def taken_over(self, member: GroupMember, client: str) -> None:
        """Count the member for the client that uses it, if that has room."""
        if client != member.client:
            grown = member.size_bytes - member.admitted_bytes
            member.client = self._budget.take_over(
                member.client, client, member.admitted_bytes, grown
            )

    def elect_leader(self) -> bool:
        """Make a member that has joined the leader; return False if none has."""
        leader = self.by_id.get(self.leader or "")
        if leader is not None and leader.join is not None:
            return True
        joined = next((each for each in self.by_id.values() if each.join is not None), None)
        if joined is None:
            return False
        self.leader = joined.member_id
        return True

    def has_room_for(self, request: JoinRequest) -> bool:
        """Return whether the metadata of the request's member, in place of its last, fits."""
        known = self.by_id.get(request.member_id)
        if known is None and request.instance_id is not None:
            known = self.by_id.get(self.static_ids.get(request.instance_id, ""))
        before = 0 if known is None else known.metadata_bytes
        after = metadata_bytes(request.protocols)
        return self.metadata_bytes - before + after <= MAX_METADATA_BYTES

    def _count(self, member: GroupMember, by: int) -> None:
        self.version += 1
        size_bytes = member.size_bytes
        if by > 0 and not 0 < member.admitted_bytes <= size_bytes:
            member.admitted_bytes = size_bytes
        self._use(member, by)
        self.metadata_bytes += by * member.metadata_bytes
        supported = self._supported
        for name in member.protocols:
            count = supported.get(name, 0) + by
            if count:
                supported[name] = count
            else:
                del supported[name]

    def _use(self, member: GroupMember, by: int) -> None:
        admitted = member.admitted_bytes
        self._budget.use(member.client, by * admitted, by * (member.size_bytes - admitted))

    async def clear(self) -> None:
        """Free the memory of all members, which must have no waiting requests, in pieces."""
        for number, member in enumerate(self):
            self._use(member, -1)
            if number % PIECE_ROWS == PIECE_ROWS - 1:
                await pause()
        if len(self) > FORGOTTEN_ROWS:
            await emptied(self.by_id)
        self.by_id.clear()
        self.static_ids.clear()
        self._supported.clear()
        self.leader = None

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        assert all(member.member_id == member_id for member_id, member in self.by_id.items())
        statics = {m.instance_id: m.member_id for m in self if m.instance_id is not None}
        assert statics == self.static_ids, (statics, self.static_ids)
        assert self.leader is None or self.leader in self.by_id
        assert self.joined_count == sum(member.join is not None for member in self)
        assert self.metadata_bytes == sum(member.metadata_bytes for member in self)
        supported = Counter(name for member in self for name in member.protocols)
        assert supported == self._supported, (supported, self._supported)
