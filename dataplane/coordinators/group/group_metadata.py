"""Metadata of a group in the log: a generation, its members and their assignments.

`record_formats` encodes these values as Kafka's GroupMetadataValue.
"""

from wire.primitives.frozen import frozen


@frozen
class PersistedMember:
    """A member; `subscription` is its metadata for the protocol that the group has selected."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int  # -1 in records of old versions: the session timeout
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@frozen
class GroupMetadata:
    """A generation of a group; a group without members is Empty, any other one is Stable."""

    protocol_type: str | None
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int  # wall clock of the last change of state; -1 if it is unknown
    members: tuple[PersistedMember, ...]
