"""Counts and times of one worker's transactions since its start, for metrics. Plain state."""

from metaquorum.dataplane.instruments.histogram import Histogram


class TransactionStatistics:
    """Counts of the coordinator: shared by all shards, and kept when a shard is unloaded."""

    __slots__ = (
        "aborted_count",
        "committed_count",
        "load_times",
        "marker_times",
        "timed_out_count",
    )

    def __init__(self) -> None:
        self.committed_count = 0  # decisions whose record is committed, by this coordinator
        self.aborted_count = 0
        self.timed_out_count = 0  # transactions aborted because they were open for too long
        self.marker_times = Histogram()  # from the decision until all markers were written
        self.load_times = Histogram()  # loaded partitions
