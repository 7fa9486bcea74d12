"""Reading of one fetch request: a response row per partition, within the client's limits."""

from typing import Final, Protocol

from metaquorum.dataplane.fetch.replica_selector import nearest_replica
from metaquorum.dataplane.fetch.throttled_reads import ThrottledReads, may_throttle
from metaquorum.dataplane.log.segments.files import ColdError
from metaquorum.dataplane.log.segments.slices import LogSlice
from metaquorum.dataplane.network.worker_addresses import live_workers
from metaquorum.dataplane.partition.partition import (
    NO_ERROR,
    NOT_LEADER,
    NotLeaderOrFollowerError,
    Partition,
)
from metaquorum.dataplane.partition.waiting import Watcher
from metaquorum.dataplane.quotas.replication_quota import ReplicationQuotas
from metaquorum.metadata.image import MetadataImage
from metaquorum.runtime import StorageError
from metaquorum.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

READ_COMMITTED: Final = 1
UNKNOWN_EPOCH: Final = -1
# A row with about this many aborted transactions, some 2 ms of work, gets fewer records instead of
# more transactions.
MAX_ABORTED: Final = 2000
_UNLIMITED: Final = 1 << 62
_LEADER_ELSEWHERE: Final = frozenset(
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
)
# Errors that do not end the wait of a long poll: a client that does not know yet that a topic was
# deleted would otherwise fetch without a pause.
_UNKNOWN: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_UNHURRIED: Final = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID))


class FetchedWorker(Protocol):
    """Parts of the worker that a fetch uses, besides its partitions.

    A fetch changes the worker only by reporting a failed partition.
    """

    @property
    def image(self) -> MetadataImage: ...

    @property
    def selects_replicas(self) -> bool:
        """Whether consumers are directed to replicas in their rack (KIP-392)."""

    def partition_failed(self, partition: Partition, error: StorageError) -> None: ...


def replica_of(message: FetchRequest) -> int:
    if message.replica_state is not None:
        return message.replica_state.replica_id
    return message.replica_id


def waiters_for(message: FetchRequest, partition: Partition) -> set[Watcher]:
    """Return the watchers of the offset at which the reads of this request end."""
    if replica_of(message) >= 0:
        return partition.end_waiters
    if message.isolation_level == READ_COMMITTED:
        return partition.stable_waiters
    return partition.waiters


class FetchReader:
    __slots__ = (
        "_given",
        "broker_epoch",
        "cold",
        "from_followers",
        "is_committed",
        "is_first",
        "left_bytes",
        "listener",
        "may_block",
        "must_answer",
        "names_leaders",
        "rack",
        "replica_id",
        "replication_quotas",
        "size_bytes",
        "throttled",
        "worker",
    )

    def __init__(
        self,
        worker: FetchedWorker,
        listener: str,
        message: FetchRequest,
        max_bytes: int,
        *,
        from_followers: bool = False,
        replication_quotas: ReplicationQuotas | None = None,
    ) -> None:
        """Create the reader of one request from a client of `listener` (a listener's name).

        `from_followers`: whether the consumer may read from followers (KIP-392).
        `replication_quotas` limit a follower's reads of throttled partitions; None for a consumer.
        """
        self.replication_quotas = replication_quotas
        self.worker = worker
        self.listener = listener
        self.from_followers = from_followers
        self.rack = message.rack_id if from_followers and worker.selects_replicas else ""
        # Whether this is the first read of the request; a read after a wait carries no new
        # progress of the follower.
        self.is_first = True
        self.replica_id = replica_of(message)
        state = message.replica_state
        self.broker_epoch = UNKNOWN_EPOCH if state is None else state.replica_epoch
        self.is_committed = message.isolation_level == READ_COMMITTED and self.replica_id < 0
        # Reads that need a worker thread before the positions of all records are known.
        self.cold: list[ColdError] = []
        self.may_block = False
        self.left_bytes = max_bytes
        self.size_bytes = 0
        self._given: list[tuple[Partition, int]] = []
        # Whether to answer without a wait: after an error or a diverging epoch, and if waiting
        # cannot add records, as the response is full or was read from an older segment.
        self.must_answer = False
        self.names_leaders = False
        # Reads of throttled partitions, if the request has any.
        self.throttled: ThrottledReads | None = None

    def end_offset(self, partition: Partition) -> int:
        """Return the end offset of the readable records.

        A debugging consumer (replica id -2) reads like a consumer, as in Kafka.
        """
        if self.replica_id >= 0:
            return partition.log.log_end_offset
        if self.is_committed:
            return partition.last_stable_offset
        return partition.high_watermark

    def read(
        self, asked: FetchPartition, partition: Partition | None, absent: KafkaError | None
    ) -> PartitionData:
        """Return the row of one partition; `absent` is the error if its lookup found none."""
        if partition is None:
            assert absent is not None
            known = absent if isinstance(absent, NotLeaderOrFollowerError) else None
            return self._refuse(asked, known, absent.code)
        code = partition.leader_error(asked.current_leader_epoch)
        if code is not NO_ERROR and not (
            code is NOT_LEADER and self.from_followers and partition.is_hosted
        ):
            return self._refuse(asked, partition, code)
        try:
            return self._read(asked, partition)
        except KafkaError as error:
            return self._refuse(asked, partition, error.code)
        except StorageError as error:
            self.worker.partition_failed(partition, error)
            return self._refuse(asked, partition, ErrorCode.KAFKA_STORAGE_ERROR)

    def count_given(self) -> None:
        """Add the bytes of the response to the partitions' traffic."""
        for partition, size_bytes in self._given:
            if self.replica_id >= 0:
                partition.replicated_out(self.replica_id, size_bytes)
            else:
                partition.bytes_out += size_bytes

    def endpoints(self) -> list[NodeEndpoint]:
        """Return the endpoints of all live workers if a row names a leader (KIP-951)."""
        if not self.names_leaders:
            return []
        return [
            NodeEndpoint(node_id=w.worker_id, host=w.host, port=w.port, rack=w.rack)
            for w in live_workers(self.worker.image, self.listener)
        ]

    def _refuse(
        self,
        asked: FetchPartition,
        known: Partition | NotLeaderOrFollowerError | None,
        code: ErrorCode,
    ) -> PartitionData:
        """Return the row of an error; `known` has the leader, if it is known."""
        if code not in _UNHURRIED:
            self.must_answer = True
        answer = PartitionData(
            partition_index=asked.partition,
            error_code=code,
            high_watermark=-1,
            aborted_transactions=[] if code in _UNKNOWN else None,  # as in Kafka
            records=b"",
        )
        if known is not None and code in _LEADER_ELSEWHERE:
            self.names_leaders = True
            answer.current_leader = LeaderIdAndEpoch(
                leader_id=known.leader_id, leader_epoch=known.leader_epoch
            )
        return answer

    def _read(self, asked: FetchPartition, partition: Partition) -> PartitionData:
        log = partition.log
        stable_offset = partition.last_stable_offset
        answer = PartitionData(
            partition_index=asked.partition,
            error_code=0,
            high_watermark=partition.high_watermark,
            last_stable_offset=stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if self.is_committed else None,
            records=b"",
        )
        if asked.last_fetched_epoch >= 0 and (diverging := diverging_epoch(partition, asked)):
            self.must_answer = True
            answer.diverging_epoch = diverging
            answer.aborted_transactions = None
            return answer
        end_offset = stable_offset if self.is_committed else self.end_offset(partition)
        if self.rack and partition.leader_state is not None:
            offset = asked.fetch_offset
            nearest = nearest_replica(partition, self.rack, offset, self.worker.image)
            if nearest is not None:
                self.must_answer = True
                answer.preferred_read_replica = nearest
                answer.aborted_transactions = None
                return answer
        if self.replica_id >= 0 and self.is_first:
            self._note_follower(asked, partition)
            answer.high_watermark = partition.high_watermark
        if (
            self.replication_quotas is not None
            and may_throttle(partition)
            and log.log_start_offset <= asked.fetch_offset < end_offset
            and self._throttled_reads(self.replication_quotas).omits(partition)
        ):
            return answer
        read = log.read if self.may_block else log.read_hot
        most_bytes = min(asked.partition_max_bytes, self.left_bytes)
        if self.throttled is not None:
            most_bytes = min(most_bytes, self.throttled.room_bytes(partition))
        try:
            piece = read(
                asked.fetch_offset,
                most_bytes,
                end_offset,
                # The first partition with records returns a batch of any size (KIP-74).
                min_one=not self.size_bytes,
                is_whole=self.replica_id >= 0,
            )
            if self.is_committed and piece.size_bytes and log.has_aborted_since(asked.fetch_offset):
                piece = self._add_aborted(answer, asked, partition, piece, end_offset)
        except ColdError as cold:
            self.cold.append(cold)
            return answer
        if piece.size_bytes:
            self.size_bytes += piece.size_bytes
            self.left_bytes -= piece.size_bytes
            answer.records = piece
            self._given.append((partition, piece.size_bytes))
            if self.throttled is not None:
                self.throttled.add(partition, piece.size_bytes)
            if asked.fetch_offset < log.active_segment_offset:
                self.must_answer = True
        elif asked.fetch_offset < end_offset:
            self.must_answer = True
        return answer

    def _throttled_reads(self, quotas: ReplicationQuotas) -> ThrottledReads:
        if self.throttled is None:
            self.throttled = ThrottledReads(quotas.leader, self.replica_id, quotas.monotonic())
        return self.throttled

    def _add_aborted(
        self,
        answer: PartitionData,
        asked: FetchPartition,
        partition: Partition,
        piece: LogSlice,
        end_offset: int,
    ) -> LogSlice:
        """Add the aborted transactions in `piece` to the row, and return the slice to answer with.

        That is a shorter one if there are too many of them. Raises ColdError and StorageError.
        """
        log = partition.log
        find = log.aborted_in if self.may_block else log.aborted_in_hot
        found, end = find(piece, end_offset, MAX_ABORTED)
        if end < end_offset:
            read = log.read if self.may_block else log.read_hot
            max_bytes = min(asked.partition_max_bytes, self.left_bytes)
            shorter = read(asked.fetch_offset, max_bytes, end, min_one=not self.size_bytes)
            if shorter.size_bytes:
                piece = shorter
            else:  # compaction removed the batches before `end`
                found, _ = find(piece, end_offset, _UNLIMITED)
        if found:
            answer.aborted_transactions = [
                AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                for first_offset, producer_id in found
            ]
        return piece

    def _note_follower(self, asked: FetchPartition, partition: Partition) -> None:
        """Record that the follower holds all records before its fetch offset.

        Raises KafkaError (NOT_LEADER_OR_FOLLOWER) if the fetching worker is not a replica.
        """
        offset = asked.fetch_offset
        if not partition.log.log_start_offset <= offset <= partition.log.log_end_offset:
            return  # the read answers OFFSET_OUT_OF_RANGE
        if not partition.fetched_by(
            self.replica_id, self.broker_epoch, offset, asked.log_start_offset
        ):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"worker {self.replica_id} is not a replica of {partition}",
            )


def size_of(answer: PartitionData) -> int:
    """Return the bytes of records in the row."""
    return answer.records.size_bytes if isinstance(answer.records, LogSlice) else 0


def diverging_epoch(partition: Partition, asked: FetchPartition) -> EpochEndOffset | None:
    """Return the epoch, and its end offset, after which the follower's log diverges (KIP-595).

    Returns None if the logs match. Raises KafkaError (OFFSET_OUT_OF_RANGE) if this log has no epoch
    up to the follower's last one.
    """
    epoch, end_offset = partition.log.epochs.end_offset_for(
        asked.last_fetched_epoch, partition.log.log_end_offset
    )
    if epoch < 0:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition} has no leader epoch up to {asked.last_fetched_epoch}",
        )
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None
