"""State of replicas: health, eligible leaders, follower lag and the truncation ledger.

Only metaquorum serves DescribeReplicas (follower lag) and DescribeTruncations (the ledger).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from metaquorum.client.administration.health import (
    REPLICATION_CONFIGS,
    ClusterHealth,
    PartitionHealth,
    Trouble,
    internal_topic_warnings,
    needs_look,
    partition_health,
)
from metaquorum.client.administration.quorum import describe_workers
from metaquorum.client.cluster import ANY_BROKER, Cluster, TopicPartition
from metaquorum.client.errors import (
    AdminError,
    BrokerError,
    NotServedError,
    UnreachableError,
    broker_error,
)
from metaquorum.client.usage.coordinator_memory import describe_coordinator_memory, memory_warnings
from metaquorum.client.usage.log_dirs import (
    LARGEST_BATCH_BYTES,
    describe_log_dirs,
    is_full,
    log_dir_warning,
)
from metaquorum.client.values import (
    Eligible,
    FollowerView,
    Ledger,
    LogDir,
    Partition,
    PartitionView,
    ResourceType,
    Topic,
    Truncation,
)
from metaquorum.wire.primitives.types import uuid_to_text


async def describe_truncations(
    cluster: Cluster, node_id: int, topics: Sequence[str] | None = None
) -> Ledger:
    """Return the truncation ledger of one worker.

    Raises NotServedError if the cluster is Apache Kafka, and BrokerError if the worker refuses.
    """
    from metaquorum.wire.messages.describe_truncations import (
        DescribeTruncationsRequest,
        DescribeTruncationsResponse,
    )

    request = DescribeTruncationsRequest(topics=None if topics is None else list(topics))
    response: DescribeTruncationsResponse = await cluster.call(request, to=node_id)
    if response.error_code:
        raise broker_error(response.error_code, response.error_message, f"node {node_id}")
    return Ledger(
        node_id,
        [
            Truncation(
                node_id,
                row.time_ms,
                row.topic,
                uuid_to_text(row.topic_id),
                row.partition,
                row.reason,
                row.offset,
                row.end_offset if row.end_offset >= 0 else None,
                row.last_epoch if row.last_epoch >= 0 else None,
                row.leader_id if row.leader_id >= 0 else None,
                row.leader_epoch if row.leader_epoch >= 0 else None,
                row.high_watermark if row.high_watermark >= 0 else None,
                row.acknowledged,
                row.detail or None,
            )
            for row in response.truncations
        ],
        response.has_forgotten,
    )


async def describe_health(cluster: Cluster, topics: Iterable[Topic]) -> list[PartitionHealth]:
    """Return the health of each partition of `topics`.

    Fields that the cluster does not report are None or empty.
    """
    topics = list(topics)
    ill = [(topic, one) for topic in topics for one in topic.partitions if needs_look(one)]
    min_isr = await min_insync_replicas(cluster, [topic.name for topic in topics])
    workers = {}
    views: Mapping[TopicPartition, PartitionView] = {}
    eligible: Mapping[TopicPartition, Eligible] = {}
    if ill:
        eligible = await describe_eligible(cluster, {topic.name for topic, _ in ill})
        workers = {one.worker_id: one for one in await describe_workers(cluster)}
        views = await describe_replicas(cluster, ill)
    return [
        partition_health(
            topic,
            partition,
            min_isr.get(topic.name),
            workers,
            views.get(TopicPartition(topic.name, partition.index)),
            eligible.get(TopicPartition(topic.name, partition.index)),
        )
        for topic in topics
        for partition in topic.partitions
    ]


async def describe_cluster_health(cluster: Cluster, topics: Iterable[Topic]) -> ClusterHealth:
    """Return the health of all workers, and of the partitions of `topics`."""
    workers = await describe_workers(cluster)
    topics = list(topics)
    ill = [topic for topic in topics if any(map(needs_look, topic.partitions))]
    counts: Counter[Trouble] = Counter()
    for partition in await describe_health(cluster, ill):
        counts.update(partition.troubles)
    live = [worker.worker_id for worker in workers if not worker.is_fenced]
    draining = sum(bool(each.is_draining) and not each.is_fenced for each in workers)
    log_dirs: list[tuple[LogDir, int]] = []
    of_dirs: list[str] = []
    for worker in live:
        try:
            own = await _log_dirs(cluster, worker)
        except (NotServedError, UnreachableError, BrokerError) as error:
            of_dirs.append(f"the log directories of worker {worker} are not known: {error}")
            continue
        log_dirs += own
        of_dirs += [text for each in own if (text := log_dir_warning(*each)) is not None]
    return ClusterHealth(
        len(live),
        len(workers),
        sum(len(topic.partitions) for topic in topics),
        {trouble: counts[trouble] for trouble in Trouble},
        sum(is_full(*each) for each in log_dirs),
        sum(bool(log_dir.error) for log_dir, _ in log_dirs),
        [*of_dirs, *await _warnings(cluster, topics, live, draining)],
    )


async def _log_dirs(cluster: Cluster, worker: int) -> list[tuple[LogDir, int]]:
    """Return the worker's log directories, each with the size of the largest batch.

    Raises BrokerError, NotServedError or UnreachableError if they are not known.
    """
    log_dirs = await describe_log_dirs(cluster, worker, ())
    name = "message.max.bytes"
    configs = await reported_configs(cluster, ResourceType.BROKER, [str(worker)], name, worker)
    largest = configs.get(str(worker), "")
    room_bytes = int(largest) if largest.isdigit() else LARGEST_BATCH_BYTES
    return [(log_dir, room_bytes) for log_dir in log_dirs]


async def _warnings(
    cluster: Cluster, topics: Sequence[Topic], live: Sequence[int], draining: int
) -> Sequence[str]:
    warnings: list[str] = []
    for topic in topics:
        name = REPLICATION_CONFIGS.get(topic.name)
        if name is None or not live:
            continue
        of_topic = await topic_config(cluster, [topic.name], "cleanup.policy")
        of_worker = await reported_configs(
            cluster, ResourceType.BROKER, [str(live[0])], name, live[0]
        )
        factor = of_worker.get(str(live[0]), "")
        warnings += internal_topic_warnings(
            topic,
            len(live) - draining,
            int(factor) if factor.isdigit() else None,
            of_topic.get(topic.name),
        )
    for worker in live:
        with suppress(NotServedError, UnreachableError, BrokerError):
            found = await describe_coordinator_memory(cluster, worker)
            warnings += memory_warnings(found.budgets)
    return warnings


# Most resources in one request.
MAX_RESOURCES: Final = 500


async def min_insync_replicas(cluster: Cluster, topics: Sequence[str]) -> dict[str, int]:
    """Return min.insync.replicas of the topics for which the cluster reports a value."""
    found = await topic_config(cluster, topics, "min.insync.replicas")
    return {topic: int(value) for topic, value in found.items() if value.isdigit()}


async def topic_config(cluster: Cluster, topics: Sequence[str], name: str) -> dict[str, str]:
    """Return the value of one config for the topics for which the cluster reports a value.

    Raises AdminError if no broker answers.
    """
    return await reported_configs(cluster, ResourceType.TOPIC, topics, name, ANY_BROKER)


async def reported_configs(
    cluster: Cluster, kind: ResourceType, names: Sequence[str], config_name: str, to: int
) -> dict[str, str]:
    """Return the value of one config for the resources for which the node `to` reports a value.

    Raises AdminError if no broker answers.
    """
    from metaquorum.wire.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    found: dict[str, str] = {}
    for start in range(0, len(names), MAX_RESOURCES):
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=[config_name]
                )
                for name in names[start : start + MAX_RESOURCES]
            ]
        )
        response: DescribeConfigsResponse = await cluster.call(request, to=to)
        for result in response.results:
            for config in result.configs:
                if not result.error_code and config.value is not None:
                    found[result.resource_name] = config.value
    return found


async def with_moves(cluster: Cluster, topics: Iterable[Topic]) -> list[Topic]:
    """Return the topics with the replicas that moves add to their partitions, or remove.

    The cluster is asked only if replicas are out of sync. Returns the topics as they are if it does
    not serve ListPartitionReassignments, or refuses.
    """
    from metaquorum.wire.messages.list_partition_reassignments import (
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
    )

    topics = list(topics)
    if not any(topic.under_replicated for topic in topics):
        return topics
    try:
        response: ListPartitionReassignmentsResponse = await cluster.call(
            ListPartitionReassignmentsRequest(topics=None), to=ANY_BROKER
        )
    except NotServedError:
        return topics
    moves = {
        TopicPartition(topic.name, row.partition_index): row
        for topic in response.topics
        for row in topic.partitions
    }
    if not moves:
        return topics

    def with_move(topic: Topic, partition: Partition) -> Partition:
        move = moves.get(TopicPartition(topic.name, partition.index))
        if move is None or set(move.replicas) != set(partition.replicas):
            return partition
        return replace(partition, adding=move.adding_replicas, removing=move.removing_replicas)

    return [
        replace(topic, partitions=[with_move(topic, one) for one in topic.partitions])
        for topic in topics
    ]


async def describe_eligible(
    cluster: Cluster, topics: Iterable[str]
) -> dict[TopicPartition, Eligible]:
    """Return the eligible leader replicas of the partitions that have any.

    Returns an empty mapping if the cluster does not serve DescribeTopicPartitions.
    """
    from metaquorum.wire.messages.describe_topic_partitions import (
        DescribeTopicPartitionsRequest,
        DescribeTopicPartitionsResponse,
        TopicRequest,
    )

    found: dict[TopicPartition, Eligible] = {}
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=n) for n in sorted(topics)])
    while True:
        try:
            response: DescribeTopicPartitionsResponse = await cluster.call(request, to=ANY_BROKER)
        except NotServedError:
            return found
        for topic in response.topics:
            for row in topic.partitions:
                if row.eligible_leader_replicas or row.last_known_elr:
                    last = row.last_known_elr[0] if row.last_known_elr else None
                    at = TopicPartition(topic.name or "", row.partition_index)
                    found[at] = Eligible(tuple(row.eligible_leader_replicas or ()), last)
        if response.next_cursor is None:
            return found
        request = replace(request, cursor=response.next_cursor)


async def describe_replicas(
    cluster: Cluster, partitions: Iterable[tuple[Topic, Partition]]
) -> dict[TopicPartition, PartitionView]:
    """Return the follower states of `partitions` at their leaders.

    Returns an empty mapping if the cluster is Apache Kafka, and leaves out leaders that fail.
    """
    by_leader: dict[int, dict[str, list[int]]] = {}
    for topic, partition in partitions:
        if partition.leader is not None:
            by_leader.setdefault(partition.leader, {}).setdefault(topic.name, []).append(
                partition.index
            )
    views: dict[TopicPartition, PartitionView] = {}
    for leader, led in by_leader.items():
        try:
            views |= await _ask_leader(cluster, leader, led)
        except NotServedError:
            break
        except (AdminError, BrokerError):
            continue  # this leader has just failed; the other leaders may answer
    return views


async def _ask_leader(
    cluster: Cluster, leader: int, led: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, PartitionView]:
    from metaquorum.wire.messages.describe_replicas import (
        DescribeReplicasRequest,
        DescribeReplicasResponse,
        DescribeReplicasTopic,
    )

    request = DescribeReplicasRequest(
        topics=[
            DescribeReplicasTopic(name=name, partitions=list(indexes))
            for name, indexes in led.items()
        ]
    )
    response: DescribeReplicasResponse = await cluster.call(request, to=leader)
    return {
        TopicPartition(topic.name, row.partition): PartitionView(
            row.leader_epoch,
            row.high_watermark,
            row.log_end_offset,
            [
                FollowerView(
                    one.replica_id,
                    one.in_sync,
                    _known_or_none(one.log_end_offset),
                    _known_or_none(one.fetched_ms_ago),
                    _known_or_none(one.caught_up_ms_ago),
                )
                for one in row.followers
            ],
        )
        for topic in response.topics
        for row in topic.partitions
        if not row.error_code
    }


def _known_or_none(value: int) -> int | None:
    return None if value < 0 else value
