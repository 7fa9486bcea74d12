"""Settings of a consumer in a group, with the defaults of Kafka's consumer."""

from enum import Enum

from metaquorum.client.groups.assignors import ASSIGNORS, COOPERATIVE_STICKY, RANGE
from metaquorum.wire.primitives.frozen import frozen


class OffsetReset(Enum):
    """Position in a partition without a committed offset, or whose offset is out of range.

    NONE: `poll` raises an error instead.
    """

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


@frozen
class GroupConfig:
    """Settings of one consumer; durations are in seconds. Names and defaults are Kafka's.

    `instance_id`: of a static member (group.instance.id), which keeps its partitions through a
    restart within the session timeout. `session_timeout_s`: without a heartbeat for that long, the
    coordinator removes the member. `max_poll_interval_s`: without a poll for that long, it leaves;
    a rebalance waits for a member at most that long (rebalance timeout). `assignors`: names, in the
    order of preference; the group uses one that all members have. The protocol is cooperative if
    all of them are. `auto_commit_interval_s`: None commits only by `commit`. `max_poll_records`:
    most records that one poll returns. `read_committed`: skip records of open and aborted
    transactions. `rack`: sent to the leader of the group, for its assignor.
    """

    group: str
    instance_id: str | None = None
    session_timeout_s: float = 45.0
    heartbeat_interval_s: float = 3.0
    max_poll_interval_s: float = 300.0
    assignors: tuple[str, ...] = (RANGE, COOPERATIVE_STICKY)
    auto_offset_reset: OffsetReset = OffsetReset.LATEST
    auto_commit_interval_s: float | None = 5.0
    max_poll_records: int = 500
    metadata_max_age_s: float = 300.0
    read_committed: bool = False
    rack: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        if not self.group:
            raise ValueError("the group needs a name")
        if self.instance_id == "":
            raise ValueError("the instance id is empty")
        unknown = [name for name in self.assignors if name not in ASSIGNORS]
        if unknown or not self.assignors:
            there = ", ".join(ASSIGNORS)
            raise ValueError(f"assignors are some of {there}, not {', '.join(unknown) or 'none'}")
        if not 0 < self.heartbeat_interval_s < self.session_timeout_s:
            raise ValueError("the heartbeat interval must be below the session timeout")
        if self.max_poll_interval_s <= 0 or self.max_poll_records < 1:
            raise ValueError("max_poll_interval_s and max_poll_records must be positive")
