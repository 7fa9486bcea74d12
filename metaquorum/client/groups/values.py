"""Results of the operations on groups: plain values with Kafka's names."""

from collections.abc import Mapping, Sequence
from typing import Final

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.groups.consumer_protocol import (
    CONSUMER_PROTOCOL,
    Assignment,
    Subscription,
)
from metaquorum.wire.primitives.frozen import frozen

# States and types by Kafka's names. The last three states are those of the new protocols (KIP-848).
STATES: Final = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Assigning",
    "Reconciling",
    "NotReady",
)
TYPES: Final = ("classic", "consumer", "share", "streams")
# Groups in these states have no members.
WITHOUT_MEMBERS: Final = frozenset({"Empty", "Dead"})


@frozen
class GroupListing:
    """A group in the list of its coordinator. None: the broker is too old to report the field."""

    group: str
    protocol_type: str  # empty: no member has joined, offsets were committed without members
    state: str | None
    type: str | None
    coordinator: int


@frozen
class GroupList:
    """Groups by name. `failures`: nodes that listed no groups, and the errors.

    `lost_partitions`: partitions of __consumer_offsets without a leader, whose groups are missing.
    """

    groups: Sequence[GroupListing]
    failures: Mapping[int, Exception]
    lost_partitions: Sequence[int] = ()


@frozen
class MemberDescription:
    """A member of a group. None: the bytes are not of the consumer protocol, or are malformed.

    `metadata_bytes`, `assignment_bytes`: sizes of what the member and its leader sent.
    """

    member_id: str
    instance_id: str | None  # None: a dynamic member (KIP-345)
    client_id: str
    client_host: str
    subscription: Subscription | None
    assignment: Assignment | None
    metadata_bytes: int
    assignment_bytes: int

    @property
    def host(self) -> str:
        """Address of the client, without the slash that Kafka puts before it."""
        return self.client_host.removeprefix("/")

    @property
    def name(self) -> str:
        """Client id and host, by which an operator finds the program."""
        return f"{self.client_id or self.member_id} ({self.host})"


@frozen
class GroupDescription:
    """State and members of a group. `protocol`: the assignor, empty without a generation."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: int
    members: Sequence[MemberDescription]

    @property
    def is_of_consumers(self) -> bool:
        """Whether its members are consumers, and not for example workers of Kafka Connect."""
        return self.protocol_type == CONSUMER_PROTOCOL

    def owners(self) -> dict[TopicPartition, MemberDescription]:
        """Return the member that each partition is assigned to."""
        return {
            where: member
            for member in self.members
            if member.assignment is not None
            for where in member.assignment.partitions
        }


@frozen
class GroupMetadata:
    """Member of a group for which a transaction commits offsets (KIP-447).

    The defaults, of a program without a member, are not checked by the coordinator.
    """

    group: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


@frozen
class CommittedOffset:
    """A committed offset: of the next record to read. `leader_epoch` -1: not known."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@frozen
class PartitionLag:
    """Progress of a group in one partition. None: not known, or (`committed`) no commit.

    `owner`: the member that the partition is assigned to.
    """

    where: TopicPartition
    committed: CommittedOffset | None
    log_start: int | None
    log_end: int | None
    owner: MemberDescription | None

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the high watermark.

        Negative if the log ends before the committed offset, as after the loss of records or
        the deletion and creation of the topic.
        """
        if self.committed is None or self.log_end is None:
            return None
        return self.log_end - self.committed.offset


@frozen
class GroupLag:
    """Progress of a group. `state` None: the coordinator does not describe this type of group."""

    group: str
    state: str | None
    partitions: Sequence[PartitionLag]

    @property
    def total(self) -> int | None:
        """Sum of the known lags; None if none is known."""
        known = [each.lag for each in self.partitions if each.lag is not None]
        return sum(known) if known else None
