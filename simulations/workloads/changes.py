"""Changes that an administrator makes to configs, partition counts and log start offsets."""

from random import Random
from typing import Final

from metaquorum.simulations.checkers.configs import (
    ALL_WORKERS,
    TOPIC,
    WORKER,
    ConfigsInForce,
    ConfigsStay,
    Resource,
)
from metaquorum.simulations.checkers.deletion import DeletedStaysDeleted
from metaquorum.simulations.checkers.metadata import AcknowledgedChangesStay
from metaquorum.simulations.harness.client import ClientConnection
from metaquorum.simulations.harness.environment import Environment
from metaquorum.simulations.harness.history import Topic
from metaquorum.simulations.workloads.consumer import EARLIEST, LATEST, list_offset
from metaquorum.wire.messages import alter_configs, incremental_alter_configs
from metaquorum.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from metaquorum.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from metaquorum.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from metaquorum.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from metaquorum.wire.messages.metadata import MetadataRequest
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.records import Record, encode_batch

TIMEOUT_MS: Final = 5000
NODE_ID: Final = "1"
# Topic that is used only to test which limit is in force.
LIMITED: Final = "limited"
LIMIT_DEFAULT: Final = 1_048_588
# Config source in DescribeConfigs of values set on the topic or the worker itself.
_OWN: Final = {(TOPIC, ""): 1, (WORKER, NODE_ID): 2, (WORKER, ALL_WORKERS): 3}
_MORE_PARTITIONS_MAX: Final = 5
_SET, _DELETE = 0, 1

# Each is valid for every topic at any time: none changes an assumption of another checker.
_TOPIC_CONFIGS: Final[dict[str, tuple[str, ...]]] = {
    "flush.messages": ("1", "9223372036854775807"),
    "flush.ms": ("0", "100", "60000"),
    "segment.ms": ("50", "1000", "604800000"),
    "segment.jitter.ms": ("0", "100"),
    "file.delete.delay.ms": ("0", "300", "60000"),
    "compression.type": ("producer", "lz4", "uncompressed"),
    "max.compaction.lag.ms": ("100", "9223372036854775807"),
}
_RETENTION_CONFIGS: Final[dict[str, tuple[str, ...]]] = {
    "retention.ms": ("200", "2000", "300000", "-1"),
    "retention.bytes": ("0", "3000", "30000", "-1"),
}
_WORKER_CONFIGS: Final[dict[str, tuple[str, ...]]] = {
    "message.max.bytes": ("150", "400", "900"),
    "log.segment.delete.delay.ms": ("0", "200", "60000"),
    "log.flush.interval.ms": ("100", "5000"),
    "log.cleaner.backoff.ms": ("20", "500"),
    "max.connections.per.ip": ("1000", "2000"),
}
_LIMITED_CONFIGS: Final[dict[str, tuple[str, ...]]] = {"max.message.bytes": ("100", "300", "700")}


async def topic_ids(connection: ClientConnection) -> dict[str, bytes]:
    message = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    response = await connection.call(ApiKey.METADATA, message)
    return {topic.name: bytes(topic.topic_id) for topic in response.topics}


class Changes:
    def __init__(self, environment: Environment, draw: Random) -> None:
        self.environment = environment
        self._draw = draw
        self._configs = environment.checker(ConfigsStay)
        self._in_force = environment.checker(ConfigsInForce)
        self._deleted = environment.checker(DeletedStaysDeleted)
        self._kept = environment.checker(AcknowledgedChangesStay)

    async def make_one(self, connection: ClientConnection) -> None:
        """Make a change that no other administrator makes meanwhile. Raises EOFError on failure."""
        chosen = self._draw.choice(
            [
                self._change_config,
                self._change_config,
                self._add_partitions,
                self._delete_records,
                self._try_limit,
            ]
        )
        await chosen(connection)

    async def compare(self, connection: ClientConnection) -> None:
        """Compare the configs of one resource with the acknowledged ones."""
        await self._describe(connection, self._draw.choice(self._resources()))

    def _resources(self) -> list[Resource]:
        topics = [Resource(TOPIC, topic.name) for topic in self.environment.history.live_topics]
        return [*topics, Resource(WORKER, NODE_ID), Resource(WORKER, ALL_WORKERS)]

    def _say(self, text: str) -> None:
        self.environment.world.say("admin", text)

    # Configs

    async def _describe(self, connection: ClientConnection, resource: Resource) -> None:
        asked = DescribeConfigsResource(
            resource_type=resource.kind, resource_name=resource.name, configuration_keys=None
        )
        run = self.environment.node.runs
        message = DescribeConfigsRequest(resources=[asked])
        answer = (await connection.call(ApiKey.DESCRIBE_CONFIGS, message)).results[0]
        if answer.error_code:
            raise EOFError(f"describe {resource}: {ErrorCode(answer.error_code).name}")
        own = _OWN[resource.kind, "" if resource.kind == TOPIC else resource.name]
        shown = {row.name: row.value for row in answer.configs if row.config_source == own}
        self._configs.seen(resource, shown, run)

    async def _change_config(self, connection: ClientConnection) -> None:
        draw = self._draw
        topics = self.environment.history.live_topics
        choices = [(Resource(WORKER, name), _WORKER_CONFIGS) for name in (NODE_ID, ALL_WORKERS)]
        choices.append((Resource(TOPIC, LIMITED), _LIMITED_CONFIGS))
        if topics:
            configs = dict(_TOPIC_CONFIGS)
            if self.environment.settings.retention:
                configs |= _RETENTION_CONFIGS
            choices += [(Resource(TOPIC, draw.choice(topics).name), configs)] * 3
        resource, configs = draw.choice(choices)
        if resource.name == LIMITED:
            await self._make_limited(connection)
        key = draw.choice(sorted(configs))
        value = draw.choice([None, *configs[key]])
        topic = next((topic for topic in topics if topic.name == resource.name), None)
        if topic is not None and topic.is_compacted and key == "compression.type":
            return
        await self._set(connection, resource, topic, key, value)

    async def _set(
        self,
        connection: ClientConnection,
        resource: Resource,
        topic: Topic | None,
        key: str,
        value: str | None,
    ) -> None:
        if topic is not None and key.startswith("retention"):
            topic.may_expire = True
        if topic is not None and key == "flush.messages":
            topic.flushes_since = None
        own = self._configs.own(resource)
        self._configs.asked(resource, key, value)
        # AlterConfigs replaces all configs of the resource, so it needs the current ones.
        whole = own is not None and self._draw.random() < 0.2
        if whole:
            assert own is not None
            wanted = {name: text for name, text in own.items() if name != key}
            code = await self._replace(connection, resource, wanted, key, value)
        else:
            code = await self._alter(connection, resource, key, value)
        self._say(f"{resource.name or 'all workers'}: {key}={value}: {code.name} (whole: {whole})")
        done = code is ErrorCode.NONE
        if done or code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST):
            self._configs.answered(resource, key, value, done=done)
        if not done:
            self.environment.world.count(f"config refused: {code.name}")
            raise EOFError(f"config: {code.name}")
        self.environment.world.count("configs changed")
        if topic is not None and key == "flush.messages" and value == "1":
            topic.flushes_since = self.environment.world.now

    async def _alter(
        self, connection: ClientConnection, resource: Resource, key: str, value: str | None
    ) -> ErrorCode:
        config = incremental_alter_configs.AlterableConfig(
            name=key, config_operation=_DELETE if value is None else _SET, value=value
        )
        message = incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[
                incremental_alter_configs.AlterConfigsResource(
                    resource_type=resource.kind, resource_name=resource.name, configs=[config]
                )
            ]
        )
        answer = await connection.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, message)
        return ErrorCode(answer.responses[0].error_code)

    async def _replace(
        self,
        connection: ClientConnection,
        resource: Resource,
        wanted: dict[str, str],
        key: str,
        value: str | None,
    ) -> ErrorCode:
        if value is not None:
            wanted[key] = value
        message = alter_configs.AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=resource.kind,
                    resource_name=resource.name,
                    configs=[
                        alter_configs.AlterableConfig(name=name, value=text)
                        for name, text in wanted.items()
                    ],
                )
            ]
        )
        answer = await connection.call(ApiKey.ALTER_CONFIGS, message)
        return ErrorCode(answer.responses[0].error_code)

    # Limits in force

    async def _make_limited(self, connection: ClientConnection) -> None:
        self._kept.create_asked(LIMITED)
        topic = CreatableTopic(name=LIMITED, num_partitions=1, replication_factor=1)
        message = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        code = (await connection.call(ApiKey.CREATE_TOPICS, message)).topics[0].error_code
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise EOFError(f"create: {ErrorCode(code).name}")

    async def _try_limit(self, connection: ClientConnection) -> None:
        """Produce a batch, which the first layer with a value of the config accepts or refuses."""
        layers = (
            (Resource(TOPIC, LIMITED), "max.message.bytes"),
            (Resource(WORKER, NODE_ID), "message.max.bytes"),
            (Resource(WORKER, ALL_WORKERS), "message.max.bytes"),
        )
        limit, source = LIMIT_DEFAULT, "by default"
        for resource, key in layers:
            values = self._configs.may_be(resource, key)
            if len(values) > 1:
                return
            (value,) = values
            if value is not None:
                limit, source = int(value), f"{key} of {resource.name or 'all workers'}"
                break
        await self._make_limited(connection)
        size = self._draw.choice([0, 60, 150, 400, 900])
        batch = encode_batch([Record(0, 0, None, bytes(size), ())])
        topic_id = (await topic_ids(connection))[LIMITED]
        data = PartitionProduceData(index=0, records=batch)
        message = ProduceRequest(
            transactional_id=None,
            acks=1,
            timeout_ms=TIMEOUT_MS,
            topic_data=[TopicProduceData(name=LIMITED, topic_id=topic_id, partition_data=[data])],
        )
        answer = await connection.call(ApiKey.PRODUCE, message)
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if code not in (ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE):
            raise EOFError(f"produce: {code.name}")
        self._in_force.tried(len(batch), limit, source, code is ErrorCode.NONE)

    # Partitions and records

    async def _add_partitions(self, connection: ClientConnection) -> None:
        topics = self.environment.history.live_topics
        if not topics:
            return
        topic = self._draw.choice(topics)
        count = topic.partitions + self._draw.randint(1, 2)
        if count > _MORE_PARTITIONS_MAX:
            return
        self._kept.partitions_asked(topic.name, count)
        request = CreatePartitionsTopic(name=topic.name, count=count, assignments=None)
        message = CreatePartitionsRequest(topics=[request], timeout_ms=TIMEOUT_MS)
        answer = (await connection.call(ApiKey.CREATE_PARTITIONS, message)).results[0]
        code = ErrorCode(answer.error_code)
        self._say(f"{topic} grows to {count} partitions: {code.name}")
        if code is not ErrorCode.NONE:
            raise EOFError(f"partitions: {code.name}")
        topic.partitions = count
        self.environment.world.count("partitions added")

    async def _delete_records(self, connection: ClientConnection) -> None:
        topics = self.environment.history.live_topics
        if not topics:
            return
        topic = self._draw.choice(topics)
        partition = self._draw.randrange(topic.partitions)
        start = await self._list(connection, topic, partition, EARLIEST)
        end = await self._list(connection, topic, partition, LATEST)
        if end == start:
            return
        # Usually some of the oldest records only, so that some are left to read.
        upto = self._draw.choice([start + (end - start) // 3, self._draw.randint(start, end), -1])
        if upto == -1 and self._draw.random() < 0.7:
            upto = start + 1
        self._deleted.asked(topic.name, partition, None if upto == -1 else upto)
        row = DeleteRecordsPartition(partition_index=partition, offset=upto)
        message = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic.name, partitions=[row])], timeout_ms=TIMEOUT_MS
        )
        answer = (await connection.call(ApiKey.DELETE_RECORDS, message)).topics[0].partitions[0]
        code = ErrorCode(answer.error_code)
        self._say(f"{topic}-{partition} records before {upto}: {code.name} {answer.low_watermark}")
        if code is ErrorCode.NONE:
            self._deleted.answered(topic.topic_id, topic.name, partition, answer.low_watermark)
            self.environment.world.count("records deleted")

    async def _list(
        self, connection: ClientConnection, topic: Topic, partition: int, timestamp: int
    ) -> int:
        offset = await list_offset(connection, topic, partition, timestamp)
        if offset is None:
            raise EOFError(f"list offsets of {topic}-{partition}")
        return offset
