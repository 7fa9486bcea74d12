"""History of the clients' requests and reads, which the checkers compare; no state of the node."""

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True, eq=False)
class Topic:
    name: str
    topic_id: bytes
    partitions: int
    # Configs at the topic's creation; `ConfigsStay` records later changes.
    configs: dict[str, str]
    # Whether its deletion was requested: the topic may no longer exist.
    delete_asked: bool = False
    # Time since which every record is flushed before its acknowledgement; None if uncertain.
    flushes_since: float | None = None
    # Whether a retention config was set after the creation.
    may_expire: bool = False

    def __post_init__(self) -> None:
        if self.configs.get("flush.messages") == "1":
            self.flushes_since = 0.0

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "")

    @property
    def has_retention(self) -> bool:
        return self.may_expire or any(
            self.configs.get(key, "-1") != "-1" for key in ("retention.ms", "retention.bytes")
        )

    @property
    def has_append_time(self) -> bool:
        """Whether records get the time of the node instead of the producer's."""
        return self.configs.get("message.timestamp.type") == "LogAppendTime"

    def __str__(self) -> str:
        return f"{self.name}/{self.topic_id.hex()[:6]}"


class PartitionOf(NamedTuple):
    topic_id: bytes
    partition: int


@dataclass(slots=True, eq=False)
class Attempt:
    """Record that a client tried to produce. Values are unique in a world."""

    topic: Topic
    partition: int
    producer: str
    # Producer id of the record; order is guaranteed only between records with the same id.
    incarnation: int
    # Number of the record among those of this producer in this partition, from 0.
    number: int
    value: bytes
    timestamp_ms: int
    acks: int
    idempotent: bool
    # A deletion carries its unique value in a header.
    key: bytes | None = None
    is_deletion: bool = False
    times_sent: int = 0
    # Whether its producer gave up: this batch, or one before it, was refused with a final error.
    given_up: bool = False
    # Whether a version without topic ids was used: the record may reach a later topic of that name.
    sent_by_name: bool = False
    first_sent_at: float = 0.0
    acked_at: float | None = None
    offset: int | None = None
    # Whether the topic's configs required a flush before the acknowledgement.
    flush_promised: bool = False

    @property
    def place(self) -> PartitionOf:
        return PartitionOf(self.topic.topic_id, self.partition)

    def __str__(self) -> str:
        return (
            f"{self.producer}'s record {self.number} of {self.topic}-{self.partition} "
            f"(acks {self.acks}, offset {self.offset}, acknowledged at {self.acked_at})"
        )


class Read(NamedTuple):
    """Record that a client read."""

    offset: int
    leader_epoch: int
    timestamp_ms: int
    value: bytes
    key: bytes | None = None


class Fetched(NamedTuple):
    """One partition of one fetch response."""

    topic: Topic
    partition: int
    fetch_offset: int
    high_watermark: int
    log_start_offset: int
    reads: list[Read]
    time: float
    # Time of the request, and the run of the node at that time.
    asked_at: float = 0.0
    asked_run: int = 0

    @property
    def place(self) -> PartitionOf:
        return PartitionOf(self.topic.topic_id, self.partition)


@dataclass(slots=True)
class Final:
    """Partition at the end of the run: all records that can be read."""

    topic: Topic
    partition: int
    log_start_offset: int
    log_end_offset: int
    reads: list[Read] = field(default_factory=list)
    began_at: float = 0.0
    ended_at: float = 0.0


class Rot(NamedTuple):
    """Batch with a bit flipped on disk, in the part that its checksum covers."""

    first_offset: int
    last_offset: int
    in_header: bool


@dataclass(slots=True)
class History:
    attempts: dict[bytes, Attempt] = field(default_factory=dict)
    topics: dict[bytes, Topic] = field(default_factory=dict)
    finals: dict[PartitionOf, Final] = field(default_factory=dict)
    # Damage done to the disk: batches by partition, and paths of segments with a damaged index.
    rotten: dict[PartitionOf, list[Rot]] = field(default_factory=dict)
    rotten_indexes: set[str] = field(default_factory=set)

    @property
    def live_topics(self) -> list[Topic]:
        return [topic for topic in self.topics.values() if not topic.delete_asked]

    def is_rotten(self, place: PartitionOf, offset: int) -> bool:
        return any(
            rot.first_offset <= offset <= rot.last_offset for rot in self.rotten.get(place, ())
        )

    def attempts_by_place(self) -> dict[PartitionOf, list[Attempt]]:
        places: dict[PartitionOf, list[Attempt]] = {}
        for attempt in self.attempts.values():
            places.setdefault(attempt.place, []).append(attempt)
        return places
