"""Fetch responses of one partition: from its leader, or from a replica that the leader prefers.

One request is in flight at a time. `prefetch` sends it while the caller still decodes the response
before it; `fetch` takes its answer. What may pass (a leader that moves or dies, a connection that
breaks) is tried again, after a look at who leads now, for as long as the cluster's timeout.

Throttling (KIP-13, KIP-219): after a response with a throttle time the next request waits it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.errors import BrokerError, UnreachableError, broker_error
from metaquorum.client.transport import BROKEN
from metaquorum.spark.errors import LoadError
from wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from wire.primitives.errors import ErrorCode, WireError
from wire.primitives.types import ZERO_UUID

if TYPE_CHECKING:
    from metaquorum.client.connection import BrokerConnection

MAX_WAIT_MS: Final = 500
# How long a broker may take for one answer beyond the wait that it was asked for.
ANSWER_TIMEOUT_S: Final = 30.0
# After it the leader is asked again which replica is nearest.
PREFERRED_REPLICA_S: Final = 300.0
# For which only the leader is read from, when another replica failed.
AVOID_REPLICAS_S: Final = 30.0
# For which a topic may be missing in the metadata of a broker that has only begun.
MISSING_TOPIC_S: Final = 5.0
_NAMES_UNTIL: Final = 12  # from Fetch 13 on, topics are named by their ids
_NO_SESSION_EPOCH: Final = -1
_GONE: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)


class OutOfRangeError(Exception):
    """The partition's leader has no such offset."""


class TopicGoneError(LoadError):
    """The topic was deleted since the plan was made; perhaps another has its name now."""


class PartitionFetcher:
    """`throttled_ms`, `fetches` and `fetched_bytes` count over all responses so far."""

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
        """`topic_id` ZERO_UUID: the plan knew none, and the topic's name is all there is."""
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
        self._stale = True  # metadata has to be asked for
        self._not_before = 0.0

    async def prefetch(self, offset: int) -> None:
        """The request for `offset` is on its way, unless a throttle time is not over yet."""
        if self._cluster.transport.monotonic() < self._not_before or self._in_flight is not None:
            return
        try:
            await self._send(offset)
        except (UnreachableError, BrokerError, *BROKEN):
            self.close()  # `fetch` sends it again

    async def fetch(self, offset: int) -> PartitionData:
        """The partition's records from `offset` on, as views that the next fetch makes void.

        Empty if none came in MAX_WAIT_MS. OutOfRangeError; TopicGoneError; BrokerError and
        UnreachableError once trying again has not helped for the cluster's timeout.
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
        """Nothing is in flight: a connection with an answer to come is dropped."""
        if self._in_flight is not None:
            self._cluster.drop(self._in_flight[0])
            self._in_flight = None

    @property
    def is_from_replica(self) -> bool:
        """The next fetch goes to a replica that the leader prefers."""
        return self._preferred is not None

    def use_leader(self) -> None:
        """The next fetch goes to the leader, whoever that is now."""
        self._forget_replica()

    async def check_topic(self) -> None:
        """TopicGoneError unless the topic is there, with the id that the plan has."""
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
                    text = f"topic {where.topic} does not exist any more"
                    raise TopicGoneError(text) from None
                attempt += 1
        if ZERO_UUID not in (self._topic_id, topic.topic_id) and topic.topic_id != self._topic_id:
            raise TopicGoneError(
                f"topic {where.topic} was deleted and made again since the plan was made: "
                "its offsets name other records now"
            )
        self._stale = False

    # One exchange

    async def _exchange(self, offset: int) -> PartitionData | None:
        """The answer to a fetch; None of a broker that throttles, which may give nothing at all."""
        if self._in_flight is not None and self._in_flight[1] != offset:
            self.close()
        if self._in_flight is None:
            await self._cluster.transport.sleep_until(self._not_before)
            await self._send(offset)
        assert self._in_flight is not None
        connection, _ = self._in_flight
        response: FetchResponse = await connection.receive(
            self._cluster.deadline(ANSWER_TIMEOUT_S + MAX_WAIT_MS / 1000)
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
            assert not hasattr(data.records, "size_bytes")  # holes are only ever encoded
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
            text = "no leader at this time"
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
        raise WireError("a fetch response without the partition that was asked for")

    def _is_redirected(self, data: PartitionData) -> bool:
        """Whether the leader has named another replica, instead of records (KIP-392)."""
        if data.preferred_read_replica < 0 or data.records or self._preferred is not None:
            return False
        self._preferred = data.preferred_read_replica
        self._preferred_until = self._cluster.transport.monotonic() + PREFERRED_REPLICA_S
        return True

    async def _refused(self, error_code: int) -> BrokerError:
        """The error, if asking again may help; otherwise it is raised."""
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
