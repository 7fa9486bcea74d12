"""What clients did and saw, as the checkers need it: facts about the world, not about the node."""

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True, eq=False)
class Topic:
    name: str
    topic_id: bytes
    partitions: int
    configs: dict[str, str]
    # From here on it may be gone: somebody asked for its deletion.
    delete_asked: bool = False

    @property
    def flushes_every_message(self) -> bool:
        return self.configs.get("flush.messages") == "1"

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "")

    @property
    def has_retention(self) -> bool:
        return any(
            self.configs.get(key, "-1") != "-1" for key in ("retention.ms", "retention.bytes")
        )

    def __str__(self) -> str:
        return f"{self.name}/{self.topic_id.hex()[:6]}"


class PartitionOf(NamedTuple):
    topic_id: bytes
    partition: int


@dataclass(slots=True, eq=False)
class Attempt:
    """One record that a client tried to produce. Values are unique in a world."""

    topic: Topic
    partition: int
    producer: str
    # Which of its producer ids it was sent with; order holds within one.
    incarnation: int
    # Counts this producer's records of this partition.
    number: int
    value: bytes
    timestamp_ms: int
    acks: int
    idempotent: bool
    # A deletion carries its unique value in a header.
    key: bytes | None = None
    is_deletion: bool = False
    times_sent: int = 0
    # By a version without topic ids: it may land in the topic that has the name by then.
    sent_by_name: bool = False
    first_sent_at: float = 0.0
    acked_at: float | None = None
    offset: int | None = None

    @property
    def place(self) -> PartitionOf:
        return PartitionOf(self.topic.topic_id, self.partition)

    def __str__(self) -> str:
        return (
            f"{self.producer}'s record {self.number} of {self.topic}-{self.partition} "
            f"(acks {self.acks}, offset {self.offset}, acknowledged at {self.acked_at})"
        )


class Read(NamedTuple):
    """One record as a client read it."""

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

    @property
    def place(self) -> PartitionOf:
        return PartitionOf(self.topic.topic_id, self.partition)


@dataclass(slots=True)
class Final:
    """One partition when all is over: everything that can be read, from start to end."""

    topic: Topic
    partition: int
    log_start_offset: int
    log_end_offset: int
    reads: list[Read] = field(default_factory=list)
    began_at: float = 0.0
    ended_at: float = 0.0


@dataclass(slots=True)
class History:
    attempts: dict[bytes, Attempt] = field(default_factory=dict)
    topics: dict[bytes, Topic] = field(default_factory=dict)
    finals: dict[PartitionOf, Final] = field(default_factory=dict)

    def attempts_by_place(self) -> dict[PartitionOf, list[Attempt]]:
        places: dict[PartitionOf, list[Attempt]] = {}
        for attempt in self.attempts.values():
            places.setdefault(attempt.place, []).append(attempt)
        return places
