"""Reading of what a plan of moves needs: replicas, sizes, inbound rates and limits of a cluster.

The rate of a partition is the growth of its leader's log in several samples of DescribeLogDirs,
which any Kafka-compatible cluster serves.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from metaquorum.client.administration.admin import AdminClient
from metaquorum.client.cluster import Cluster
from metaquorum.client.errors import NotServedError, UnreachableError, broker_error
from metaquorum.client.values import (
    ConfigResource,
    LogDir,
    Partition,
    ResourceType,
    Topic,
    WorkerDescription,
)
from metaquorum.metadata.moves.cluster_state import (
    ClusterState,
    PartitionState,
    WorkerState,
    measured_rates,
)
from metaquorum.metadata.moves.estimate import RESPONSE_CONFIG, Limits

NETWORK_CONFIG: Final = "network.bytes.per.second"
WINDOW_CONFIGS: Final = ("replication.quota.window.num", "replication.quota.window.size.seconds")
# An interval in which retention deletes from a log does not count, so there are several.
_INTERVALS: Final = 4


async def measured_state(admin: AdminClient, measure_s: float) -> ClusterState:
    """Return the workers and partitions of the cluster, with rates measured over `measure_s`.

    With 0 the rates are 0. If a live worker does not answer, other replicas have the sizes of its
    partitions. Raises UnreachableError if there are no others, and BrokerError if the cluster
    refuses a request.
    """
    cluster = admin.cluster
    workers = await admin.workers()
    topics = await admin.topics()
    moving = await _moving(cluster)
    partitions = [(topic, each) for topic in topics for each in topic.partitions]
    leaders = {(topic.name, each.index): each.leader for topic, each in partitions}
    samples = _Samples(admin, leaders)
    await samples.take()
    start = samples.taken_at[0]
    for number in range(1, _INTERVALS + 1) if measure_s > 0 else ():
        await cluster.transport.sleep_until(start + measure_s * number / _INTERVALS)
        await samples.take()
    sources = {
        (topic.name, each.index): source
        for topic, each in partitions
        if (source := samples.source(topic.name, each)) is not None
    }
    _check_known(samples.silent, partitions, sources)
    sizes = [samples.sizes(number, sources) for number in range(len(samples.taken_at))]
    rates = measured_rates(list(zip(samples.taken_at, sizes, strict=True)))
    return ClusterState(
        tuple(_worker(each, samples) for each in workers),
        tuple(_partitions(topics, sizes[-1], rates, moving)),
    )


class _Samples:
    """Sizes of replicas at several times: the leaders, and all if the leader does not answer.

    A worker that does not answer is not asked again.
    """

    def __init__(self, admin: AdminClient, leaders: Mapping[tuple[str, int], int | None]) -> None:
        self._admin = admin
        self._leaders = leaders
        self.taken_at: list[float] = []
        self.silent: dict[int, UnreachableError] = {}
        self.free_bytes: dict[int, int | None] = {}  # by worker
        # The sizes in each sample, by worker, and by topic and partition.
        self._sizes: list[dict[int, dict[tuple[str, int], int]]] = []

    async def take(self) -> None:
        sample: dict[int, dict[tuple[str, int], int]] = {}
        for node_id in await self._admin.cluster.live_nodes():
            if node_id in self.silent:
                continue
            try:
                log_dirs = await self._admin.describe_log_dirs([node_id])
            except UnreachableError as error:
                self.silent[node_id] = error
                continue
            self.free_bytes[node_id] = free_bytes(log_dirs)
            sample[node_id] = {
                (replica.topic, replica.partition): replica.size_bytes
                for log_dir in log_dirs
                for replica in log_dir.replicas
                if not replica.is_future and (replica.topic, replica.partition) in self._leaders
            }
        for node_id, sizes in sample.items():
            sample[node_id] = {
                where: size
                for where, size in sizes.items()
                if (leader := self._leaders[where]) == node_id or leader not in sample
            }
        self._sizes.append(sample)
        self.taken_at.append(self._admin.cluster.transport.monotonic())

    def source(self, topic: str, partition: Partition) -> int | None:
        """Return the worker whose sizes count: the leader, or else that with the largest log."""
        where = topic, partition.index
        sample = self._sizes[-1]
        last = {
            node_id: sample[node_id][where]
            for node_id in partition.replicas
            if node_id in sample and where in sample[node_id]
        }
        if partition.leader in last:
            return partition.leader
        return max(last, key=last.__getitem__, default=None)

    def sizes(
        self, number: int, sources: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], int]:
        """Return the sizes of one sample at these workers."""
        sample = self._sizes[number]
        return {
            where: size
            for where, node_id in sources.items()
            if (size := sample.get(node_id, {}).get(where)) is not None
        }


def _check_known(
    silent: Mapping[int, UnreachableError],
    partitions: Iterable[tuple[Topic, Partition]],
    known: Collection[tuple[str, int]],
) -> None:
    """Raise UnreachableError if only workers that do not answer have a partition."""
    unknown: dict[int, list[str]] = {}
    for topic, each in partitions:
        if (topic.name, each.index) not in known:
            for worker_id in silent.keys() & each.replicas:
                unknown.setdefault(worker_id, []).append(f"{topic.name}-{each.index}")
    if unknown:
        worker_id, names = next(iter(unknown.items()))
        others = f" and {len(names) - 1} others" if len(names) > 1 else ""
        raise UnreachableError(
            f"{silent[worker_id]}; the plan needs the size of {names[0]}{others}, which no other"
            f" worker has: restart worker {worker_id}, or use a longer --timeout",
            [silent[worker_id]],
        )


def free_bytes(log_dirs: Iterable[LogDir]) -> int | None:
    """Return the free space of a worker's log directories; None if one does not report it.

    Directories with the same sizes are on the same volume.
    """
    volumes = {(each.total_bytes, each.usable_bytes) for each in log_dirs if not each.error}
    if any(usable < 0 for _, usable in volumes):
        return None
    return sum(usable for _, usable in volumes)


def _worker(worker: WorkerDescription, samples: _Samples) -> WorkerState:
    is_leaving = worker.is_shutting_down or worker.is_draining
    return WorkerState(
        worker.worker_id,
        worker.rack,
        worker.host,
        not worker.is_fenced and not is_leaving,
        worker.worker_id not in samples.silent,
        samples.free_bytes.get(worker.worker_id),
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


async def _moving(cluster: Cluster) -> set[tuple[str, int]]:
    from metaquorum.wire.messages.list_partition_reassignments import (
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


async def described_limits(
    admin: AdminClient, network_bytes_per_s: float | None, silent: Collection[int] = ()
) -> Limits:
    """Return the limits of the live workers' configs: of each the one that permits least.

    `network_bytes_per_s` overrides the config network.bytes.per.second. `silent` workers, which
    do not answer, are not asked.
    """
    await admin.cluster.refresh()
    described = []
    for node_id in sorted(admin.cluster.nodes.keys() - set(silent)):
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
