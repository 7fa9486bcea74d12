"""One partition as its worker sees it: leadership, high watermark, and who waits for records.

Plain state around the log. While a partition has one replica, its high watermark is its log's end:
every record is in sync as soon as it is appended. Replication moves it by followers' fetches.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import trio

from dataplane.log.partition_log import PartitionLog
from dataplane.topic_config import TopicConfig
from wire.errors import ErrorCode, KafkaError
from wire.types import Uuid

# Members of an enum are slow to look up by name (Python 3.11), so hot paths keep theirs at hand.
NO_ERROR: Final = ErrorCode.NONE


class Watcher(Protocol):
    """Who is told what happens to a partition."""

    def note(self, new_bytes: int) -> bool:
        """So much more can be read, or (0) less from the log's start; False to hear no more."""

    def wake(self) -> None:
        """Something else has happened."""


class FetchWaiter:
    """A long poll: woken when enough bytes have come, over all partitions it watches."""

    __slots__ = ("missing_bytes", "woken")

    def __init__(self, missing_bytes: int) -> None:
        self.missing_bytes = missing_bytes
        self.woken = trio.Event()

    def note(self, new_bytes: int) -> bool:
        self.missing_bytes -= new_bytes
        if self.missing_bytes <= 0:
            self.woken.set()
        return True

    def wake(self) -> None:
        self.woken.set()


class Partition:
    __slots__ = (
        "appending",
        "config",
        "high_watermark",
        "index",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "offline",
        "replicas",
        "topic",
        "topic_id",
        "waiters",
        "worker_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: Uuid,
        index: int,
        worker_id: int,
        log: PartitionLog,
        config: TopicConfig,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.worker_id = worker_id
        self.log = log
        self.config = config
        self.leader_id = -1
        self.leader_epoch = -1
        self.replicas: Sequence[int] = ()
        self.isr: Sequence[int] = ()
        self.high_watermark = log.log_end_offset
        self.offline: str | None = None  # why, when its log directory failed
        self.waiters: set[Watcher] = set()
        # Held through appends that do not finish within one slice of the loop.
        self.appending = trio.Lock()

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.worker_id

    @property
    def is_served(self) -> bool:
        return self.leader_id == self.worker_id and self.offline is None

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed stops: no transaction is ever open while there are none."""
        return self.high_watermark

    def lead(
        self, leader_id: int, leader_epoch: int, replicas: Sequence[int], isr: Sequence[int]
    ) -> None:
        """Leadership is as the metadata log says."""
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.replicas = replicas
        self.isr = isr
        self.wake_waiters()

    def configure(self, config: TopicConfig) -> None:
        """The partition, and its log, do as `config` says from now on."""
        self.config = config
        self.log.configure(config.log)

    def leader_error(self, current_leader_epoch: int = -1) -> ErrorCode:
        """Why the asker may not be served here; NONE when it may.

        `current_leader_epoch` is the asker's, or -1. Source: KIP-320.
        """
        if self.offline is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if current_leader_epoch >= 0:
            if current_leader_epoch < self.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if current_leader_epoch > self.leader_epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
        if self.leader_id != self.worker_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return NO_ERROR

    def check_append(self, acks: int) -> None:
        """KafkaError unless a producer may append here now."""
        if self.leader_id != self.worker_id or self.offline is not None:
            raise KafkaError(self.leader_error(), f"{self} is not led or not usable here")
        if acks == -1 and len(self.isr) < self.config.min_insync_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} replicas of {self} are in sync, "
                f"min.insync.replicas is {self.config.min_insync_replicas}",
            )

    def appended(self, size_bytes: int) -> None:
        """The log has grown: the high watermark moves and readers are told."""
        self.high_watermark = self.log.log_end_offset
        if self.waiters:
            self._note(size_bytes)

    def log_start_moved(self) -> None:
        """Records at the start of the log are gone."""
        self._note(0)

    def _note(self, new_bytes: int) -> None:
        done = [waiter for waiter in self.waiters if not waiter.note(new_bytes)]
        if done:
            self.waiters.difference_update(done)

    def fail(self, reason: str) -> None:
        """The log directory cannot be used any more."""
        self.offline = reason
        self.wake_waiters()

    def wake_waiters(self) -> None:
        for waiter in self.waiters:
            waiter.wake()
