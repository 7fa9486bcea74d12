"""Values of a group's record: what a coordinator knows of a group that another one has led."""

from wire.primitives.frozen import frozen


@frozen
class PersistedMember:
    """A member, as recorded with the assignment of its generation.

    `subscription` are the bytes of its metadata for the protocol of the generation.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@frozen
class GroupMetadata:
    """A group's generation; an empty group has no protocol, leader or members."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int  # time of the last change of state; -1 if unknown
    members: tuple[PersistedMember, ...]
