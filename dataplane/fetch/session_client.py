"""Follower's side of a fetch session: a full request first, then incremental requests.

The counterpart of `metaquorum.dataplane.fetch.sessions`. One request is in flight at a time:

    full request, epoch 0 --session id--> incremental, epoch 1, 2 ... --session error, or the
         ^   ^-- no session given: full again                             connection ends--+
         '---------------------------------------------------------------------------------'

Plain state. Source: KIP-227.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from metaquorum.dataplane.fetch.sessions import INITIAL_EPOCH, NO_SESSION, next_epoch
from metaquorum.dataplane.partition.leader_state import BrokerEpoch
from metaquorum.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.types import Uuid

Key: TypeAlias = tuple[Uuid, int]  # topic id, partition index

_SESSION_ERRORS: Final = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
)


class RequestedPartition(NamedTuple):
    """Fetch parameters of one partition."""

    topic_id: Uuid
    partition: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchLimits(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int


class FetchSessionClient:
    """One follower's session with one leader; unchanged partitions are not sent again."""

    def __init__(self, replica_id: int, broker_epoch: BrokerEpoch, limits: FetchLimits) -> None:
        self._broker_epoch: Final = broker_epoch
        self._replica = ReplicaState(replica_id=replica_id, replica_epoch=broker_epoch())
        self._limits = limits
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._wanted: dict[Key, RequestedPartition] = {}
        # Changes since the last request; the leader's session holds all other partitions.
        self._changed: dict[Key, RequestedPartition] = {}
        self._forgotten: dict[Key, None] = {}

    @property
    def is_open(self) -> bool:
        return self._id != NO_SESSION

    def __len__(self) -> int:
        """Return the number of fetched partitions."""
        return len(self._wanted)

    def want(self, want: RequestedPartition) -> None:
        """Fetch the partition of `want` with these parameters from now on."""
        key = want.topic_id, want.partition
        known = self._wanted.get(key)
        if known != want:
            if known is not None:  # move it to the end of full requests: others are read first
                del self._wanted[key]
            self._wanted[key] = self._changed[key] = want

    def drop(self, key: Key) -> None:
        """Stop fetching the partition."""
        if self._wanted.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._forgotten[key] = None

    def restart(self) -> None:
        """Make the next request a full one."""
        self._id, self._epoch = NO_SESSION, INITIAL_EPOCH

    def request(self, max_wait_ms: int | None = None) -> FetchRequest:
        """Return the next request, with `max_wait_ms` if given.

        A changed broker epoch starts a new session: the old one belongs to the old registration.
        """
        known = self._replica
        if known.replica_epoch != (broker_epoch := self._broker_epoch()):
            self.restart()
            self._replica = ReplicaState(replica_id=known.replica_id, replica_epoch=broker_epoch)
        changed: Iterable[RequestedPartition] = self._wanted.values()
        forgotten: Sequence[Key] = ()
        if self.is_open:
            changed = self._changed.values()
            forgotten = [key for key in self._forgotten if key not in self._wanted]
        request = FetchRequest(
            replica_state=self._replica,
            max_wait_ms=self._limits.max_wait_ms if max_wait_ms is None else max_wait_ms,
            min_bytes=self._limits.min_bytes,
            max_bytes=self._limits.max_bytes,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=_topics(changed),
            forgotten_topics_data=_forgotten(forgotten),
        )
        self._changed.clear()
        self._forgotten.clear()
        return request

    def answered(self, response: FetchResponse) -> ErrorCode:
        """Apply the response's session id; return its error, which restarts the session."""
        if response.error_code:
            self.restart()
            return ErrorCode(response.error_code)
        if self.is_open:
            self._epoch = next_epoch(self._epoch)
        elif response.session_id != NO_SESSION:
            self._id, self._epoch = response.session_id, next_epoch(INITIAL_EPOCH)
        return ErrorCode.NONE


def is_session_error(code: ErrorCode) -> bool:
    """Return whether an immediate full request resolves the error."""
    return code in _SESSION_ERRORS


def _topics(wanted: Iterable[RequestedPartition]) -> list[FetchTopic]:
    return [
        FetchTopic(topic_id=topic_id, partitions=[_partition(want) for want in of_topic])
        for topic_id, of_topic in groupby(wanted, key=lambda want: want.topic_id)
    ]


def _partition(want: RequestedPartition) -> FetchPartition:
    return FetchPartition(
        partition=want.partition,
        current_leader_epoch=want.leader_epoch,
        fetch_offset=want.fetch_offset,
        last_fetched_epoch=want.last_fetched_epoch,
        log_start_offset=want.log_start_offset,
        partition_max_bytes=want.max_bytes,
    )


def _forgotten(keys: Sequence[Key]) -> list[ForgottenTopic]:
    return [
        ForgottenTopic(topic_id=topic_id, partitions=[index for _, index in of_topic])
        for topic_id, of_topic in groupby(keys, key=lambda key: key[0])
    ]


def rows_of(response: FetchResponse) -> Iterator[tuple[Key, PartitionData]]:
    for topic in response.responses:
        for row in topic.partitions:
            yield (topic.topic_id, row.partition_index), row
