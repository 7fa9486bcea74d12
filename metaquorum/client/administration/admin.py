"""Administration of a cluster: topics, configs, offsets, users, quotas, nodes and log directories.

Methods that take several resources return a mapping from each resource to its value or to the
BrokerError with which a broker refused it. Every method may also raise an error that concerns the
whole call: UnreachableError (no broker answered in time), NotServedError (the cluster does not
serve the API), InterruptedChangeError (a change may have been made), and BrokerError if the method
is about a single resource.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from metaquorum.client.administration.health import ClusterHealth, PartitionHealth
from metaquorum.client.administration.quorum import (
    DRAIN,
    REMOVE,
    RETURN,
    alter_worker,
    describe_quorum,
    describe_workers,
    raise_features,
    unregister_worker,
)
from metaquorum.client.administration.quotas import (
    Wanted,
    alter_client_quotas,
    describe_client_quotas,
)
from metaquorum.client.administration.replicas import (
    describe_cluster_health,
    describe_eligible,
    describe_health,
    describe_truncations,
    with_moves,
)
from metaquorum.client.administration.users import (
    DEFAULT_MECHANISM,
    Credentials,
    delete_credentials,
    describe_users,
    set_password,
)
from metaquorum.client.cluster import ANY_BROKER, CONTROLLER, Cluster, TopicPartition
from metaquorum.client.connection import VersionRange
from metaquorum.client.errors import AdminError, BrokerError, broker_error
from metaquorum.client.usage.coordinator_memory import (
    CoordinatorMemory,
    describe_coordinator_memory,
)
from metaquorum.client.usage.log_dirs import describe_log_dirs
from metaquorum.client.usage.quota_use import QuotaClient, WorkerQuotaUse, describe_quota_use
from metaquorum.client.values import (
    BROKER_DEFAULT,
    ApiSupport,
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    CreatedTopic,
    Eligible,
    Ledger,
    LogDir,
    NewTopic,
    OffsetAtTime,
    Partition,
    Quorum,
    ResourceType,
    Topic,
    WorkerDescription,
)
from metaquorum.metadata.quota_lookup import CLIENT_ID, IP, USER, QuotaEntity, SpecialName
from metaquorum.runtime.whole_numbers import whole_number
from metaquorum.security.scram import DEFAULT_ITERATIONS
from metaquorum.wire.messages.metadata import MetadataResponseTopic
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.types import ZERO_UUID, uuid_to_text
from metaquorum.wire.schema.message import Message

EARLIEST: Final = -2
LATEST: Final = -1
MAX_TIMESTAMP: Final = -3
HIGH_WATERMARK: Final = -1  # for `delete_records`: all committed records
# First version of CreateTopics in which -1 means the default of the broker (KIP-464).
_BROKER_DEFAULT_FROM: Final = 4


class AdminClient:
    """Administration of one cluster; see the module for shapes and errors."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    # The cluster

    async def describe_cluster(self) -> ClusterDescription:
        """Return the cluster id, the controller, the nodes, and the finalized feature levels."""
        cluster = self.cluster
        await cluster.refresh()
        connection = await cluster.connection(ANY_BROKER, cluster.deadline())
        nodes = [cluster.nodes[node_id] for node_id in sorted(cluster.nodes)]
        controller = cluster.controller_id if cluster.controller_id >= 0 else None
        return ClusterDescription(cluster.cluster_id, controller, nodes, connection.features)

    async def apis(self, node_id: int | None = None) -> list[ApiSupport]:
        """Return the APIs that the node (None: any node) serves, in the order of their keys."""
        to = ANY_BROKER if node_id is None else node_id
        connection = await self.cluster.connection(to, self.cluster.deadline())
        return [_api_support(key, served) for key, served in sorted(connection.versions.items())]

    async def describe_quorum(self) -> Quorum:
        """Return the state of the metadata quorum. Raises BrokerError if the cluster refuses."""
        return await describe_quorum(self.cluster)

    async def workers(self) -> list[WorkerDescription]:
        """Return all registered workers, including fenced ones, in the order of their ids."""
        return await describe_workers(self.cluster)

    async def describe_health(self, topics: Iterable[Topic]) -> list[PartitionHealth]:
        """Return the health of each partition of `topics`: its problems and their causes."""
        return await describe_health(self.cluster, topics)

    async def describe_eligible(self, topics: Iterable[str]) -> dict[TopicPartition, Eligible]:
        """Return the eligible leader replicas of the partitions of `topics` that have any."""
        return await describe_eligible(self.cluster, topics)

    async def describe_cluster_health(self, topics: Iterable[Topic]) -> ClusterHealth:
        """Return the health of all workers, and of the partitions of `topics`."""
        return await describe_cluster_health(self.cluster, topics)

    async def describe_truncations(
        self, node_id: int, topics: Sequence[str] | None = None
    ) -> Ledger:
        """Return the truncation ledger of node `node_id` for `topics` (None: for all topics)."""
        return await describe_truncations(self.cluster, node_id, topics)

    async def unregister_worker(self, worker_id: int) -> None:
        """Remove the registration of a worker. Raises BrokerError if the cluster refuses."""
        await unregister_worker(self.cluster, worker_id)

    async def drain_worker(self, worker_id: int) -> None:
        """Keep new replicas and leaderships away from a worker, until it returns.

        Other workers lead its partitions where they may; its replicas stay. Raises BrokerError if
        the cluster refuses.
        """
        await alter_worker(self.cluster, worker_id, DRAIN)

    async def return_worker(self, worker_id: int) -> None:
        """End the drain of a worker. Raises BrokerError if the cluster refuses."""
        await alter_worker(self.cluster, worker_id, RETURN)

    async def remove_worker(self, worker_id: int) -> None:
        """Remove the registration of a stopped worker that has no replica.

        Raises BrokerError if the cluster refuses.
        """
        await alter_worker(self.cluster, worker_id, REMOVE)

    async def raise_features(
        self, levels: Mapping[str, int], *, validate_only: bool = False
    ) -> None:
        """Raise feature levels of the cluster, all or none. Raises BrokerError on refusal."""
        await raise_features(self.cluster, levels, validate_only=validate_only)

    async def alter_replica_log_dirs(
        self, node_id: int, partitions: Sequence[tuple[str, int]], path: str
    ) -> None:
        """Move replicas of node `node_id` to its log directory at `path`.

        Raises BrokerError for the first replica that the node refuses to move.
        """
        from metaquorum.wire.messages.alter_replica_log_dirs import (
            AlterReplicaLogDir,
            AlterReplicaLogDirsRequest,
            AlterReplicaLogDirsResponse,
            AlterReplicaLogDirTopic,
        )

        topics: dict[str, AlterReplicaLogDirTopic] = {}
        for topic, index in partitions:
            row = topics.setdefault(topic, AlterReplicaLogDirTopic(name=topic))
            row.partitions.append(index)
        asked = AlterReplicaLogDir(path=path, topics=list(topics.values()))
        await self.cluster.refresh()
        response: AlterReplicaLogDirsResponse = await self.cluster.call(
            AlterReplicaLogDirsRequest(dirs=[asked]), to=node_id
        )
        for result in response.results:
            for partition in result.partitions:
                if partition.error_code:
                    subject = (
                        f"{result.topic_name}-{partition.partition_index}, log directory {path}"
                    )
                    raise broker_error(partition.error_code, None, subject)

    async def describe_log_dirs(self, node_ids: Sequence[int] | None = None) -> list[LogDir]:
        """Return the log directories of these nodes (None: of all nodes), by node and path.

        Sizes are in bytes. Raises BrokerError if a node refuses.
        """
        await self.cluster.refresh()
        found: list[LogDir] = []
        for node_id in sorted(self.cluster.nodes) if node_ids is None else node_ids:
            found += await describe_log_dirs(self.cluster, node_id)
        return found

    # Topics

    async def topics(self) -> list[Topic]:
        """Return all topics by name, including internal ones.

        Topics whose metadata contains an error are left out.
        """
        found = await self.cluster.refresh(None)
        topics = [_topic(topic) for topic in found if not topic.error_code]
        return await with_moves(self.cluster, sorted(topics, key=lambda topic: topic.name))

    async def describe_topics(self, names: Iterable[str]) -> dict[str, Topic | BrokerError]:
        """Return for each name the topic, or the error UNKNOWN_TOPIC_OR_PARTITION or another."""
        names = list(dict.fromkeys(names))
        found = {topic.name: topic for topic in await self.cluster.refresh(names)}
        known = [_topic(topic) for topic in found.values() if not topic.error_code]
        topics = {topic.name: topic for topic in await with_moves(self.cluster, known)}
        described: dict[str, Topic | BrokerError] = {}
        for name in names:
            topic = found.get(name)
            code = topic.error_code if topic else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            text = "there is no such topic" if code == _UNKNOWN_TOPIC else None
            described[name] = topics.get(name) or broker_error(code, text, f"topic {name}")
        return described

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic | BrokerError]:
        """Create topics, or with `validate_only` only check whether they could be created."""
        from metaquorum.wire.messages.create_topics import (
            CreatableTopic,
            CreatableTopicConfig,
            CreateTopicsRequest,
            CreateTopicsResponse,
        )

        asked = {topic.name: topic for topic in topics}
        if any(
            BROKER_DEFAULT in (topic.partitions, topic.replication_factor)
            for topic in asked.values()
        ):
            await self._check_broker_defaults()
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic.name,
                    num_partitions=topic.partitions,
                    replication_factor=topic.replication_factor,
                    configs=[
                        CreatableTopicConfig(name=name, value=value)
                        for name, value in topic.configs.items()
                    ],
                )
                for topic in asked.values()
            ],
            timeout_ms=self._timeout_ms(),
            validate_only=validate_only,
        )
        response: CreateTopicsResponse = await self._change(request)
        return {
            result.name: broker_error(
                result.error_code, result.error_message, f"topic {result.name}"
            )
            if result.error_code
            else CreatedTopic(
                result.name,
                _id_text(result.topic_id),
                result.num_partitions,
                result.replication_factor,
            )
            for result in response.topics
        }

    async def _check_broker_defaults(self) -> None:
        from metaquorum.wire.messages.create_topics import CreateTopicsRequest

        connection = await self.cluster.connection(CONTROLLER, self.cluster.deadline())
        if connection.version_of(CreateTopicsRequest) < _BROKER_DEFAULT_FROM:
            raise AdminError(
                "this cluster is too old to choose the number of partitions and the replication "
                "factor: specify both"
            )

    async def delete_topics(self, names: Iterable[str]) -> dict[str, BrokerError | None]:
        """Delete topics; the value of a deleted topic is None."""
        from metaquorum.wire.messages.delete_topics import (
            DeleteTopicsRequest,
            DeleteTopicsResponse,
            DeleteTopicState,
        )

        names = list(dict.fromkeys(names))
        connection = await self.cluster.connection(CONTROLLER, self.cluster.deadline())
        by_state = connection.version_of(DeleteTopicsRequest) >= 6
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in names] if by_state else [],
            topic_names=[] if by_state else names,
            timeout_ms=self._timeout_ms(),
        )
        response: DeleteTopicsResponse = await self._change(request)
        return {
            result.name or "": broker_error(
                result.error_code, result.error_message, f"topic {result.name}"
            )
            if result.error_code
            else None
            for result in response.responses
        }

    async def create_partitions(
        self, name: str, count: int, *, validate_only: bool = False
    ) -> None:
        """Increase the number of partitions of a topic to `count`.

        Raises BrokerError if the broker refuses.
        """
        from metaquorum.wire.messages.create_partitions import (
            CreatePartitionsRequest,
            CreatePartitionsResponse,
            CreatePartitionsTopic,
        )

        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)],
            timeout_ms=self._timeout_ms(),
            validate_only=validate_only,
        )
        response: CreatePartitionsResponse = await self._change(request)
        for result in response.results:
            if result.error_code:
                raise broker_error(result.error_code, result.error_message, f"topic {name}")

    # Offsets and records

    async def list_offsets(
        self,
        timestamps_ms: Mapping[TopicPartition, int],
        *,
        read_committed: bool = False,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, OffsetAtTime | BrokerError]:
        """Return for each partition the first offset whose record has the timestamp or a later one.

        Timestamps are milliseconds since 1970 UTC, or EARLIEST, LATEST or MAX_TIMESTAMP. With
        `read_committed`, LATEST is the last stable offset instead of the high watermark.
        """
        from metaquorum.wire.messages.list_offsets import (
            ListOffsetsPartition,
            ListOffsetsRequest,
            ListOffsetsResponse,
            ListOffsetsTopic,
        )

        deadline = self.cluster.deadline(timeout_s)

        async def ask(
            node_id: int, led: list[TopicPartition]
        ) -> dict[TopicPartition, OffsetAtTime | BrokerError]:
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(read_committed),
                topics=[
                    ListOffsetsTopic(
                        name=name,
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=where.partition, timestamp=timestamps_ms[where]
                            )
                            for where in partitions
                        ],
                    )
                    for name, partitions in _by_topic(led).items()
                ],
                timeout_ms=self._timeout_ms(),
            )
            response: ListOffsetsResponse = await self.cluster.call(
                request, to=node_id, deadline=deadline
            )
            return {
                (where := TopicPartition(topic.name, partition.partition_index)): broker_error(
                    partition.error_code, None, f"partition {where}"
                )
                if partition.error_code
                else OffsetAtTime(partition.offset, partition.timestamp, partition.leader_epoch)
                for topic in response.topics
                for partition in topic.partitions
            }

        return await self.cluster.ask_leaders(timestamps_ms, ask, deadline)

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | BrokerError]:
        """Delete the records before an offset; return the new log start offset of each partition.

        HIGH_WATERMARK as an offset means all committed records.
        """
        from metaquorum.wire.messages.delete_records import (
            DeleteRecordsPartition,
            DeleteRecordsRequest,
            DeleteRecordsResponse,
            DeleteRecordsTopic,
        )

        deadline = self.cluster.deadline()

        async def ask(
            node_id: int, led: list[TopicPartition]
        ) -> dict[TopicPartition, int | BrokerError]:
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=name,
                        partitions=[
                            DeleteRecordsPartition(
                                partition_index=where.partition, offset=before[where]
                            )
                            for where in partitions
                        ],
                    )
                    for name, partitions in _by_topic(led).items()
                ],
                timeout_ms=self._timeout_ms(),
            )
            # The request is idempotent, so that it may be sent again.
            response: DeleteRecordsResponse = await self.cluster.call(
                request, to=node_id, deadline=deadline
            )
            return {
                (where := TopicPartition(topic.name, partition.partition_index)): broker_error(
                    partition.error_code, None, f"partition {where}"
                )
                if partition.error_code
                else partition.low_watermark
                for topic in response.topics
                for partition in topic.partitions
            }

        return await self.cluster.ask_leaders(before, ask, deadline)

    # Configs

    async def describe_configs(
        self,
        resource: ConfigResource,
        names: Sequence[str] | None = None,
        *,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> list[ConfigEntry]:
        """Return the named configs (None: all) of a resource, sorted by name.

        Raises BrokerError if the resource does not exist.
        """
        from metaquorum.wire.messages.describe_configs import (
            DescribeConfigsRequest,
            DescribeConfigsResource,
            DescribeConfigsResponse,
        )

        to = self._node_of(resource)
        connection = await self.cluster.connection(to, self.cluster.deadline())
        documented = connection.version_of(DescribeConfigsRequest) >= 3
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configuration_keys=None if names is None else list(names),
                )
            ],
            include_synonyms=synonyms,
            include_documentation=documentation and documented,
        )
        response: DescribeConfigsResponse = await self.cluster.call(request, to=to)
        (result,) = response.results
        if result.error_code:
            raise broker_error(result.error_code, result.error_message, str(resource))
        entries = [
            ConfigEntry(
                name=config.name,
                value=config.value,
                source=_member(ConfigSource, config.config_source, ConfigSource.UNKNOWN),
                read_only=config.read_only,
                is_sensitive=config.is_sensitive,
                type=_member(ConfigType, config.config_type, ConfigType.UNKNOWN),
                documentation=config.documentation,
                synonyms=[
                    ConfigSynonym(
                        synonym.name,
                        synonym.value,
                        _member(ConfigSource, synonym.source, ConfigSource.UNKNOWN),
                    )
                    for synonym in config.synonyms
                ],
            )
            for config in result.configs
        ]
        return sorted(entries, key=lambda entry: entry.name)

    async def alter_configs(
        self,
        resource: ConfigResource,
        changes: Iterable[ConfigChange],
        *,
        validate_only: bool = False,
    ) -> None:
        """Apply all `changes` to the configs of a resource, or none of them.

        Raises BrokerError, without a change, if the broker refuses one of them.
        """
        from metaquorum.wire.messages.incremental_alter_configs import (
            AlterableConfig,
            AlterConfigsResource,
            IncrementalAlterConfigsRequest,
            IncrementalAlterConfigsResponse,
        )

        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configs=[
                        AlterableConfig(
                            name=change.name,
                            config_operation=change.operation,
                            value=change.value,
                        )
                        for change in changes
                    ],
                )
            ],
            validate_only=validate_only,
        )
        to = self._node_of(resource)
        response: IncrementalAlterConfigsResponse = await self._change(
            request, to=CONTROLLER if to == ANY_BROKER else to
        )
        for result in response.responses:
            if result.error_code:
                raise broker_error(result.error_code, result.error_message, str(resource))

    # Users

    async def describe_users(
        self, names: Sequence[str] | None = None
    ) -> dict[str, Credentials | BrokerError]:
        """Return by user name (None: for all users) the iterations of each SCRAM mechanism."""
        return await describe_users(self.cluster, names)

    async def set_password(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Sequence[str] = (DEFAULT_MECHANISM,),
        iterations: int = DEFAULT_ITERATIONS,
    ) -> None:
        """Set the password of a new or existing user for these SCRAM mechanisms.

        Raises ValueError if a mechanism is unknown, and BrokerError if the broker refuses.
        """
        await set_password(self.cluster, user, password, mechanisms, iterations)

    async def delete_credentials(self, user: str, mechanisms: Sequence[str]) -> None:
        """Delete the credentials of a user for these SCRAM mechanisms.

        Raises ValueError if a mechanism is unknown, and BrokerError if the broker refuses.
        """
        await delete_credentials(self.cluster, user, mechanisms)

    # Client quotas

    async def describe_client_quotas(
        self,
        *,
        user: Wanted = SpecialName.ABSENT,
        client_id: Wanted = SpecialName.ABSENT,
        ip: Wanted = SpecialName.ABSENT,
        strict: bool = False,
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas of the entities that match: a value by quota key.

        An entity matches if it has the requested parts: a name, SpecialName.DEFAULT, or Match.ANY
        for both. With `strict`, it must not have other parts. Bandwidth quotas are bytes per
        second; request_percentage is a percentage of one thread.
        """
        wanted = {USER: user, CLIENT_ID: client_id, IP: ip}
        return await describe_client_quotas(self.cluster, wanted, strict=strict)

    async def alter_client_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
    ) -> dict[QuotaEntity, BrokerError | None]:
        """Set quotas of entities; None as a value removes a quota, and other quotas stay unchanged.

        All changes of one entity are applied (None in the result) or refused (BrokerError).
        """
        return await alter_client_quotas(self.cluster, changes, validate_only=validate_only)

    async def describe_quota_use(
        self,
        worker: int,
        clients: Sequence[QuotaClient] = (),
        *,
        most_used: int = 0,
        include_muted: bool = False,
    ) -> WorkerQuotaUse:
        """Return the quota use of `clients` and the `most_used` quotas on one worker.

        `most_used`: number of quotas, those with the highest utilization. Raises NotServedError if
        the cluster is Apache Kafka.
        """
        return await describe_quota_use(
            self.cluster, worker, clients, most_used=most_used, include_muted=include_muted
        )

    async def describe_coordinator_memory(
        self,
        worker: int,
        *,
        most_used: int = 0,
        budget: str | None = None,
        client: str | None = None,
        most_names: int = 0,
    ) -> CoordinatorMemory:
        """Return the memory of the groups, offsets and transactional ids on one worker.

        `most_used`: clients of each budget, those with the most. With `budget`, the name of its
        config, and `client`, also up to `most_names` groups or transactional ids of that client.
        Raises NotServedError if the cluster is Apache Kafka.
        """
        return await describe_coordinator_memory(
            self.cluster,
            worker,
            most_used=most_used,
            budget=budget,
            client=client,
            most_names=most_names,
        )

    def _node_of(self, resource: ConfigResource) -> int:
        """Return the node to call: a node describes its own configs, any node all others."""
        if resource.type not in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
            return ANY_BROKER
        if not resource.name:
            return ANY_BROKER
        node_id = whole_number(resource.name, 2**31 - 1)
        if node_id is None:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, "the name of a node must be its node id", str(resource)
            )
        return node_id

    # Changes

    def _timeout_ms(self) -> int:
        return int(self.cluster.timeout_s * 1000)

    async def _change(self, request: Message, *, to: int = CONTROLLER) -> Any:
        """Send `request` at most once, to the controller or the node `to`."""
        return await self.cluster.call(request, to=to, changes=True)


_UNKNOWN_TOPIC: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    grouped: dict[str, list[TopicPartition]] = {}
    for where in partitions:
        grouped.setdefault(where.topic, []).append(where)
    return grouped


def _topic(topic: MetadataResponseTopic) -> Topic:
    partitions = [
        Partition(
            partition.partition_index,
            partition.leader_id if partition.leader_id >= 0 else None,
            partition.leader_epoch,
            partition.replica_nodes,
            partition.isr_nodes,
            partition.offline_replicas,
        )
        for partition in sorted(topic.partitions, key=lambda p: p.partition_index)
    ]
    return Topic(topic.name or "", _id_text(topic.topic_id), topic.is_internal, partitions)


def _id_text(topic_id: bytes) -> str:
    """Return the topic id as text; empty if the broker is too old to have topic ids."""
    return "" if topic_id == ZERO_UUID else uuid_to_text(topic_id)


E = TypeVar("E", ConfigSource, ConfigType)


def _member(kind: type[E], value: int, unknown: E) -> E:
    try:
        return kind(value)
    except ValueError:  # the broker is newer than this client
        return unknown


def _api_support(key: int, served: VersionRange) -> ApiSupport:
    from metaquorum.client.administration.api_names import API_NAMES, supported_range

    return ApiSupport(key, API_NAMES.get(key, f"API {key}"), served, supported_range(key))
