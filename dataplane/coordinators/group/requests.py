"""Requests of members and their answers, without the versions of the protocol."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from metaquorum.dataplane.coordinators.client_budget import UNKNOWN
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.frozen import frozen

NO_GENERATION: Final = -1
NO_MEMBER: Final = ""
NO_ERROR: Final = ErrorCode.NONE
# Characters of a client's name in the ids and the history of its members. A name may have 32 kB:
# with more of it, a member id would not fit a response, neither its own nor the leader's.
NAME_LENGTH: Final = 255


def member_id_of(name: str, drawn: str) -> str:
    """Return the id of a new member; `name`: its instance id or client id, of which the beginning.

    `drawn` is a text that is used once.
    """
    return f"{name[:NAME_LENGTH]}-{drawn}"


@frozen
class Protocol:
    """A protocol that a member supports, and the member's metadata for it."""

    name: str
    metadata: bytes


@frozen
class JoinRequest:
    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    reason: str = ""
    # Id of the member if it is new, never used before; the shard draws one if it is empty.
    new_member_id: str = ""
    # Whether a new member only receives its id, with which it joins again (KIP-394).
    needs_member_id: bool = True
    # Whether the answer to a static leader may be to keep the assignment (KIP-814).
    may_skip_assignment: bool = True
    principal: str = ""
    client: str = UNKNOWN  # name of the client in the budget


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinedMembers(Sequence[JoinedMember]):
    """Members for the leader: each is created when it is read.

    They may be thousands, and a rebalance is one step; the response is built in several.
    """

    __slots__ = ("_columns",)

    def __init__(
        self,
        member_ids: Sequence[str],
        instance_ids: Sequence[str | None],
        metadata: Sequence[bytes],
    ) -> None:
        self._columns = (member_ids, instance_ids, metadata)

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[JoinedMember]:
        return map(JoinedMember._make, zip(*self._columns, strict=True))

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


@dataclass(slots=True)
class JoinAnswer:
    """The answer to a JoinGroup; `members` is only for the leader."""

    code: ErrorCode = NO_ERROR
    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = field(default_factory=list)


@frozen
class SyncRequest:
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: dict[str, bytes]  # by member id; empty but for the leader
    client: str = UNKNOWN


@dataclass(slots=True)
class SyncAnswer:
    code: ErrorCode = NO_ERROR
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@frozen
class LeavingMember:
    """A member to remove: by its id, or by its instance id alone."""

    member_id: str
    instance_id: str | None
    reason: str = ""


JoinCallback: TypeAlias = Callable[[JoinAnswer], object]
SyncCallback: TypeAlias = Callable[[SyncAnswer], object]
