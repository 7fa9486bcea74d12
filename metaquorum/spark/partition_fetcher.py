"""Fetcher of one partition: from its leader, or from the replica that the leader prefers.

One request is in flight at a time. `prefetch` sends it while the caller still decodes the previous
response; `fetch` receives the response. After a temporary failure (an election, a broken
connection) the fetcher refreshes the metadata and retries until the cluster's timeout is over.

Throttling (KIP-13, KIP-219): after a response with a throttle time, the next request waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.errors import BrokerError, UnreachableError, broker_error
from metaquorum.client.transport import BROKEN
from metaquorum.spark.errors import LoadError
from metaquorum.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from metaquorum.wire.primitives.errors import ErrorCode, WireError
from metaquorum.wire.primitives.types import ZERO_UUID

if TYPE_CHECKING:
    from metaquorum.client.connection import BrokerConnection

MAX_WAIT_MS: Final = 500
# Time that a broker may take for one response in addition to the long poll of MAX_WAIT_MS; less if
# the cluster's timeout is shorter. It ends the wait for a broker whose host has lost power.
ANSWER_TIMEOUT_S: Final = 30.0
# Time until the leader is asked again for the preferred read replica.
PREFERRED_REPLICA_S: Final = 300.0
# Time during which only the leader is read from after another replica failed.
AVOID_REPLICAS_S: Final = 30.0
# Time for which a topic may be missing in the metadata of a broker that has just started.
MISSING_TOPIC_S: Final = 5.0
_NAMES_UNTIL: Final = 12  # Fetch 13 and later name topics by id
_NO_SESSION_EPOCH: Final = -1
_GONE: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)


class OutOfRangeError(Exception):
    """The offset is outside the leader's log."""


class TopicGoneError(LoadError):
    """The topic was deleted since the plan was made; a new topic may have its name."""


class PartitionFetcher:
    """Fetcher of one partition; `throttled_ms`, `fetches` and `fetched_bytes` are totals."""

    def __init__(
        self,
        cluster: Cluster,
        where: TopicPartition,
        topic_id: bytes,
        *,
        read_committed: bool,
        max_bytes: int,
        rack: str = "",
    ) -> None:
        """Create a fetcher; with `topic_id` ZERO_UUID the topic is identified by name only."""
        self.throttled_ms = 0
        self.fetches = 0
        self.fetched_bytes = 0
        self._cluster = cluster
        self._where = where
        self._topic_id = topic_id
        self._read_committed = read_committed
        self._max_bytes = max_bytes
        self._rack = rack
        self._preferred: int | None = None  # replica to fetch from instead of the leader
        self._preferred_until = 0.0
        self._leader_only_until = 0.0
        self._in_flight: tuple[BrokerConnection, int] | None = None
        self._stale = True  # whether metadata must be refreshed
        self._not_before = 0.0

    async def prefetch(self, offset: int) -> None:
        """Send the request for `offset`, unless a throttle time is not over yet."""
        if self._cluster.transport.monotonic() < self._not_before or self._in_flight is not None:
            return
        try:
            await self._send(offset)
        except (UnreachableError, BrokerError, *BROKEN):
            self.close()  # `fetch` sends it again

    async def fetch(self, offset: int) -> PartitionData:
        """Return the partition's records from `offset` on, as views valid until the next fetch.

        The records are empty if none arrived in MAX_WAIT_MS. Raises OutOfRangeError if the leader
        does not have the offset, TopicGoneError if the topic was deleted, BrokerError for an error
        that a retry cannot help, and BrokerError or UnreachableError if retries failed until the
        cluster's timeout.
        """
        cluster = self._cluster
        patience = cluster.deadline()
        attempt = 0
        while True:
            failure: Exception
            try:
                data = await self._exchange(offset)
                if data is None:
                    patience = cluster.deadline()
                    continue
            except (UnreachableError, *BROKEN) as error:
                self.close()
                self._forget_replica()
                failure = error
            except BrokerError as error:
                if not error.retriable and error.code not in _GONE:
                    raise
                self._forget_replica()
                failure = error
            else:
                if data.error_code == ErrorCode.NONE:
                    if self._is_redirected(data):
                        continue
                    return data
                failure = await self._refused(data.error_code)
            if not await cluster.back_off(attempt, patience):
                if isinstance(failure, BrokerError | UnreachableError):
                    raise failure
                raise UnreachableError(f"partition {self._where}: {failure}") from failure
            attempt += 1

    def close(self) -> None:
        """Cancel the request in flight, if any, by dropping its connection."""
        if self._in_flight is not None:
            self._cluster.drop(self._in_flight[0])
            self._in_flight = None

    @property
    def is_from_replica(self) -> bool:
        """Whether the next fetch goes to a replica that the leader prefers."""
        return self._preferred is not None

    def use_leader(self) -> None:
        """Send the next fetch to the current leader."""
        self._forget_replica()

    async def check_topic(self) -> None:
        """Raise TopicGoneError unless the topic exists with the id that the plan has."""
        where = self._where
        patience = self._cluster.deadline(MISSING_TOPIC_S)
        attempt = 0
        while True:
            try:
                topic = await self._cluster.topic(where.topic, refresh=True)
                break
            except BrokerError as error:
                if error.code not in _GONE:
                    raise
                if not await self._cluster.back_off(attempt, patience):
                    text = f"topic {where.topic} no longer exists"
                    raise TopicGoneError(text) from None
                attempt += 1
        if ZERO_UUID not in (self._topic_id, topic.topic_id) and topic.topic_id != self._topic_id:
            raise TopicGoneError(
                f"topic {where.topic} was deleted and created again since the plan was made: "
                "its offsets are those of other records now"
            )
        self._stale = False

    # One exchange

    async def _exchange(self, offset: int) -> PartitionData | None:
        """Return the response's partition; None if a throttling broker returned no partition."""
        if self._in_flight is not None and self._in_flight[1] != offset:
            self.close()
        if self._in_flight is None:
            await self._cluster.transport.sleep_until(self._not_before)
            await self._send(offset)
        assert self._in_flight is not None
        connection, _ = self._in_flight
        response: FetchResponse = await connection.receive(
            self._cluster.deadline(
                min(ANSWER_TIMEOUT_S, self._cluster.timeout_s) + MAX_WAIT_MS / 1000
            )
        )
        self._in_flight = None
        self.fetches += 1
        if response.throttle_time_ms > 0:
            self.throttled_ms += response.throttle_time_ms
            now = self._cluster.transport.monotonic()
            self._not_before = now + response.throttle_time_ms / 1000
        if response.error_code:
            raise broker_error(response.error_code, None, f"partition {self._where}")
        if response.throttle_time_ms > 0 and not response.responses:
            return None
        data = self._partition_of(response)
        if data.records:
            assert not hasattr(data.records, "size_bytes")  # a received buffer has no holes
            self.fetched_bytes += len(data.records)
        return data

    async def _send(self, offset: int) -> None:
        cluster = self._cluster
        if self._stale:
            await self.check_topic()
        deadline = cluster.deadline()
        found = await cluster.partition(self._where)
        node_id = found.leader_id
        now = cluster.transport.monotonic()
        rack = self._rack if now >= self._leader_only_until else ""
        if self._preferred is not None and now >= self._preferred_until:
            self._preferred = None
        if self._preferred is not None:
            if self._preferred in cluster.nodes:
                node_id = self._preferred
            else:
                rack = ""
        if node_id < 0 or node_id not in cluster.nodes:
            text = "the partition has no leader at this time"
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, text, f"partition {self._where}")
        connection = await cluster.connection(node_id, deadline)
        topic = FetchTopic(
            topic=self._where.topic,
            topic_id=self._topic_id,
            partitions=[
                FetchPartition(
                    partition=self._where.partition,
                    fetch_offset=offset,
                    partition_max_bytes=self._max_bytes,
                )
            ],
        )
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=self._max_bytes,
            isolation_level=int(self._read_committed),
            session_epoch=_NO_SESSION_EPOCH,
            topics=[topic],
            rack_id=rack,
        )
        self._in_flight = connection, offset
        max_version = _NAMES_UNTIL if self._topic_id == ZERO_UUID else None
        await connection.send(request, deadline, max_version=max_version)

    def _partition_of(self, response: FetchResponse) -> PartitionData:
        for topic in response.responses:
            if topic.topic in ("", self._where.topic):
                for data in topic.partitions:
                    if data.partition_index == self._where.partition:
                        return data
        raise WireError("the fetch response does not have the requested partition")

    def _is_redirected(self, data: PartitionData) -> bool:
        """Return whether the leader named a preferred replica instead of records (KIP-392)."""
        if data.preferred_read_replica < 0 or data.records or self._preferred is not None:
            return False
        self._preferred = data.preferred_read_replica
        self._preferred_until = self._cluster.transport.monotonic() + PREFERRED_REPLICA_S
        return True

    async def _refused(self, error_code: int) -> BrokerError:
        """Return the error if a retry may help, and raise it otherwise."""
        error = broker_error(error_code, None, f"partition {self._where}")
        was_leader = self._preferred is None
        self._forget_replica()
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if was_leader:
                raise OutOfRangeError
        elif not error.retriable and error.code not in _GONE:
            raise error
        return error

    def _forget_replica(self) -> None:
        if self._preferred is not None:
            self._preferred = None
            self._leader_only_until = self._cluster.transport.monotonic() + AVOID_REPLICAS_S
        self._stale = True
