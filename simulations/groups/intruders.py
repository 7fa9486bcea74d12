"""A client that tries to change `__consumer_offsets`, which belongs to the coordinators alone."""

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final, TypeAlias

from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.groups.group_clients import GroupClient
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from metaquorum.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from metaquorum.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from metaquorum.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.types import ZERO_UUID
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.records import Record, encode_batch

SHARE: Final = 0.4  # share of the worlds with an intruder
_CONFIGS: Final = (
    ("cleanup.policy", "delete"),
    ("cleanup.policy", "compact,delete"),
    ("unclean.leader.election.enable", "true"),
    ("max.message.bytes", "0"),
    ("internal.segment.bytes", "14"),
    ("min.insync.replicas", "3"),
    ("segment.index.bytes", "4"),
)
_TOPIC: Final = 2  # type of a resource
_TIMEOUT_MS: Final = 2000
_STATES_SINCE: Final = 6  # version of DeleteTopics
Attempt: TypeAlias = Callable[[ClientConnection], Coroutine[Any, Any, None]]


class InternalTopicsAreProtected(WatchingChecker):
    """No request of a client changes the records, partitions or configs of an internal topic."""

    invariant = "G6"

    def answered(self, api: ApiKey, what: str, code: ErrorCode) -> None:
        self.compare(
            code is not ErrorCode.NONE,
            "a client changes {} by {}: {}",
            CONSUMER_OFFSETS,
            api.name,
            what,
        )


class Intruder(GroupClient):
    """Asks for every change of `__consumer_offsets` that a client could ask for."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        self._topic_id = ZERO_UUID
        self._index = 0

    async def run(self, runtime: Runtime) -> None:
        attempts: list[Attempt] = [
            self._produce,
            self._produce,
            self._delete_records,
            self._delete_topic,
            self._add_partitions,
            self._configure,
        ]
        while not self.cluster_state.closing and not self.cluster_state.calm:
            try:
                async with self.connected(runtime, self._leader()) as connection:
                    await self._draw.choice(attempts)(connection)
            except BROKEN as error:
                self.say(repr(error))
            await sleep(runtime.clock, RETRY_S + self._draw.random() * 0.3)
        self.done = True

    def _leader(self) -> int:
        """Return the leader of a partition of the topic. Raises EOFError before it exists."""
        topic = self.cluster_state.cluster_history.image.topic(CONSUMER_OFFSETS)
        if topic is None:
            raise EOFError("the topic does not exist")
        self._topic_id = topic.topic_id
        self._index = self._draw.randrange(len(topic.partitions))
        return topic.partitions[self._index].leader

    def _answered(self, api: ApiKey, what: str, code: int) -> None:
        found = ErrorCode(code)
        self.say(f"{api.name}, {what}: {found.name}")
        self.cluster_state.world.count("intrusions refused", found is not ErrorCode.NONE)
        self.cluster_state.checker(InternalTopicsAreProtected).answered(api, what, found)

    async def _produce(self, connection: ClientConnection) -> None:
        data = encode_batch([Record(0, 1, b"intruder", b"")])
        row = PartitionProduceData(index=self._index, records=data)
        topic = TopicProduceData(
            name=CONSUMER_OFFSETS, topic_id=self._topic_id, partition_data=[row]
        )
        message = ProduceRequest(
            transactional_id=None, acks=1, timeout_ms=_TIMEOUT_MS, topic_data=[topic]
        )
        response = await connection.call(ApiKey.PRODUCE, message)
        code = response.responses[0].partition_responses[0].error_code
        version = connection.version(ApiKey.PRODUCE)
        self._answered(ApiKey.PRODUCE, f"a record, in version {version}", code)

    async def _delete_records(self, connection: ClientConnection) -> None:
        row = DeleteRecordsPartition(partition_index=self._index, offset=-1)
        topic = DeleteRecordsTopic(name=CONSUMER_OFFSETS, partitions=[row])
        message = DeleteRecordsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        response = await connection.call(ApiKey.DELETE_RECORDS, message)
        code = response.topics[0].partitions[0].error_code
        self._answered(ApiKey.DELETE_RECORDS, "all records", code)

    async def _delete_topic(self, connection: ClientConnection) -> None:
        has_states = connection.version(ApiKey.DELETE_TOPICS) >= _STATES_SINCE
        message = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=CONSUMER_OFFSETS)] if has_states else [],
            topic_names=[] if has_states else [CONSUMER_OFFSETS],
            timeout_ms=_TIMEOUT_MS,
        )
        response = await connection.call(ApiKey.DELETE_TOPICS, message)
        self._answered(ApiKey.DELETE_TOPICS, "the topic", response.responses[0].error_code)

    async def _add_partitions(self, connection: ClientConnection) -> None:
        topic = CreatePartitionsTopic(name=CONSUMER_OFFSETS, count=50, assignments=None)
        message = CreatePartitionsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        response = await connection.call(ApiKey.CREATE_PARTITIONS, message)
        self._answered(ApiKey.CREATE_PARTITIONS, "more partitions", response.results[0].error_code)

    async def _configure(self, connection: ClientConnection) -> None:
        name, value = self._draw.choice(_CONFIGS)
        config = AlterableConfig(name=name, config_operation=0, value=value)
        resource = AlterConfigsResource(
            resource_type=_TOPIC, resource_name=CONSUMER_OFFSETS, configs=[config]
        )
        message = IncrementalAlterConfigsRequest(resources=[resource])
        response = await connection.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, message)
        code = response.responses[0].error_code
        self._answered(ApiKey.INCREMENTAL_ALTER_CONFIGS, f"{name}={value}", code)
