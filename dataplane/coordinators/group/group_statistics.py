"""Counts and times of one worker's groups since its start, for metrics. Plain state."""

from metaquorum.dataplane.instruments.histogram import Histogram


class GroupStatistics:
    """Counts of the coordinator: shared by all shards, and kept when a shard is unloaded."""

    __slots__ = (
        "committed_count",
        "deleted_count",
        "expired_count",
        "load_times",
        "rebalance_times",
    )

    def __init__(self) -> None:
        self.committed_count = 0  # offsets in commits
        self.expired_count = 0  # offsets, by retention
        self.deleted_count = 0  # offsets, by requests and with their topics
        self.rebalance_times = Histogram()  # completed rebalances
        self.load_times = Histogram()  # loaded partitions
