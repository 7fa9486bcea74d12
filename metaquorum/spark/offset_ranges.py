"""Which records a load reads: offset ranges of partitions, and the plan that fixes them.

Plain values that go through JSON, so that a plan can be kept in a file and used again. No address
and no credential is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wire.primitives.frozen import frozen
from wire.primitives.types import ZERO_UUID

UNKNOWN: Final = -1


@frozen
class OffsetRange:
    """The records of one partition with `start` <= offset < `end`."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes = ZERO_UUID  # 16 bytes; ZERO_UUID where the cluster has no topic ids
    leader_epoch: int = UNKNOWN  # of the leader that reported the end of the partition
    bytes_estimate: int = UNKNOWN  # what the range takes in the log

    @property
    def name(self) -> str:
        """Unique in a plan, and sorted as the ranges of a partition are."""
        return f"{self.topic}-{self.partition}-{self.start:020}-{self.end:020}"


@frozen
class TopicFacts:
    """What the plan knows of a topic. `is_compacted` None: the cluster did not tell."""

    topic_id: bytes
    is_compacted: bool | None


@frozen
class ReadPlan:
    """Ranges by topic, partition and start; those of a partition are contiguous."""

    cluster_id: str | None
    read_committed: bool
    ranges: tuple[OffsetRange, ...]
    topics: Mapping[str, TopicFacts]
    made_at_ms: int  # milliseconds since 1970 UTC

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError  # being written

    @classmethod
    def from_json(cls, data: Any) -> ReadPlan:
        """ValueError says what is wrong; a format of a newer version is refused."""
        raise NotImplementedError  # being written
