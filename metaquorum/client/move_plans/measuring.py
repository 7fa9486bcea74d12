"""Reading of what a plan of moves needs: replicas, sizes, inbound rates and limits of a cluster.

The rate of a partition is the growth of its leader's log in several samples of DescribeLogDirs,
which any Kafka-compatible cluster serves.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from metaquorum.client.admin import AdminClient
from metaquorum.client.cluster import Cluster
from metaquorum.client.errors import NotServedError, broker_error
from metaquorum.client.values import ConfigResource, ResourceType, Topic, WorkerDescription
from metaquorum.moves.cluster_state import (
    ClusterState,
    PartitionState,
    WorkerState,
    measured_rates,
)
from metaquorum.moves.estimate import RESPONSE_CONFIG, Limits

NETWORK_CONFIG: Final = "network.bytes.per.second"
WINDOW_CONFIGS: Final = ("replication.quota.window.num", "replication.quota.window.size.seconds")
# An interval in which retention deletes from a log does not count, so there are several.
_INTERVALS: Final = 4


async def measured_state(admin: AdminClient, measure_s: float) -> ClusterState:
    """Return the workers and partitions of the cluster, with rates measured over `measure_s`.

    With 0 the rates are 0. Raises BrokerError if the cluster refuses a request.
    """
    cluster = admin.cluster
    workers = await admin.workers()
    topics = await admin.topics()
    moving = await _moving(cluster)
    leaders = {(t.name, p.index): p.leader for t in topics for p in t.partitions}
    samples = [await _sample(admin, leaders)]
    if measure_s > 0:
        start = samples[0][0]
        for number in range(1, _INTERVALS + 1):
            await cluster.transport.sleep_until(start + measure_s * number / _INTERVALS)
            samples.append(await _sample(admin, leaders))
    rates = measured_rates(samples)
    sizes = samples[-1][1]
    return ClusterState(
        tuple(map(_worker, workers)),
        tuple(_partitions(topics, sizes, rates, moving)),
    )


def _worker(worker: WorkerDescription) -> WorkerState:
    is_leaving = worker.is_shutting_down or worker.is_draining
    return WorkerState(
        worker.worker_id, worker.rack, worker.host, not worker.is_fenced and not is_leaving
    )


def _partitions(
    topics: Iterable[Topic],
    sizes: dict[tuple[str, int], int],
    rates: dict[tuple[str, int], float],
    moving: set[tuple[str, int]],
) -> Iterable[PartitionState]:
    for topic in topics:
        for each in topic.partitions:
            where = (topic.name, each.index)
            if each.replicas:
                yield PartitionState(
                    topic.name,
                    each.index,
                    tuple(each.replicas),
                    each.leader,
                    sizes.get(where, 0),
                    rates.get(where, 0.0),
                    where in moving,
                )


async def _sample(
    admin: AdminClient, leaders: dict[tuple[str, int], int | None]
) -> tuple[float, dict[tuple[str, int], int]]:
    """Return the time, and the size of each log: at its leader, or the largest if it has none."""
    sizes: dict[tuple[str, int], int] = {}
    for log_dir in await admin.describe_log_dirs():
        for replica in log_dir.replicas:
            where = (replica.topic, replica.partition)
            if replica.is_future or where not in leaders:
                continue
            if leaders[where] == log_dir.node_id:
                sizes[where] = replica.size_bytes
            elif leaders[where] is None:
                sizes[where] = max(sizes.get(where, 0), replica.size_bytes)
    return admin.cluster.transport.monotonic(), sizes


async def _moving(cluster: Cluster) -> set[tuple[str, int]]:
    from wire.messages.list_partition_reassignments import (
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
    )

    request = ListPartitionReassignmentsRequest(timeout_ms=int(cluster.timeout_s * 1000))
    try:
        response: ListPartitionReassignmentsResponse = await cluster.call(request)
    except NotServedError:  # a cluster that cannot move partitions
        return set()
    if response.error_code:
        raise broker_error(response.error_code, response.error_message, "the list of moves")
    return {
        (topic.name, each.partition_index) for topic in response.topics for each in topic.partitions
    }


async def described_limits(admin: AdminClient, network_bytes_per_s: float | None) -> Limits:
    """Return the limits of the live workers' configs: of each the one that permits least.

    `network_bytes_per_s` overrides the config network.bytes.per.second.
    """
    await admin.cluster.refresh()
    described = []
    for node_id in sorted(admin.cluster.nodes):
        entries = await admin.describe_configs(
            ConfigResource(ResourceType.BROKER, str(node_id)),
            [NETWORK_CONFIG, RESPONSE_CONFIG, *WINDOW_CONFIGS],
        )
        described.append({entry.name: int(entry.value) for entry in entries if entry.value})
    return limits_of(described, network_bytes_per_s)


def limits_of(
    described: Iterable[Mapping[str, int]], network_bytes_per_s: float | None = None
) -> Limits:
    """Return the limits from the configs of each worker; older ones do not describe all of them."""
    networks, responses, windows = [], [], []
    for values in described:
        if NETWORK_CONFIG in values:
            networks.append(values[NETWORK_CONFIG])
        if RESPONSE_CONFIG in values:
            responses.append(values[RESPONSE_CONFIG])
        if all(name in values for name in WINDOW_CONFIGS):
            windows.append(values[WINDOW_CONFIGS[0]] * values[WINDOW_CONFIGS[1]])
    network = min(networks, default=None) if network_bytes_per_s is None else network_bytes_per_s
    return Limits(network, max(responses, default=None), min(windows, default=None))
