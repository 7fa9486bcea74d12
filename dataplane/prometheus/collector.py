"""Collection of the metrics of one node, in slices of the event loop.

The collector counts nothing: partitions, the server and the request meter keep their own counts,
and the collector reads them for each page. A page of 10,000 partitions has some 70,000 lines; after
each `SLICE_PARTITIONS` partitions other tasks run, so the values of one page are not from one
moment.

The page is bounded: partitions, topics and quotas beyond the limits below appear in the sums only,
and `metaquorum_metrics_left_out` gives their number. So it is with the lags of groups.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import Final

from metaquorum.dataplane.handlers.request_meter import RequestMeter
from metaquorum.dataplane.instruments.error_counts import ErrorCounts, name_of
from metaquorum.dataplane.log.dirs.dir_steps import UnresponsiveError
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.dataplane.network.login_counts import LoginCounts
from metaquorum.dataplane.network.server import Server
from metaquorum.dataplane.partition.partition import NO_TRAFFIC, Partition, Traffic
from metaquorum.dataplane.prometheus.elections import ElectionCounts
from metaquorum.dataplane.prometheus.exposition import Page, label_text
from metaquorum.dataplane.prometheus.group_lags import GroupLags
from metaquorum.dataplane.prometheus.groups import add_groups
from metaquorum.dataplane.prometheus.log_dir_moves import add_log_dir_moves
from metaquorum.dataplane.prometheus.move_plans import add_move_plans
from metaquorum.dataplane.prometheus.replication_quotas import add_replication_quotas
from metaquorum.dataplane.prometheus.slices import Slices
from metaquorum.dataplane.prometheus.transactions import add_transactions
from metaquorum.dataplane.quotas.quota_status import QuotaStatus, QuotaUsage
from metaquorum.dataplane.worker.context import Worker
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.quota_lookup import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    OBSERVED_CONSUMER_BYTE_RATE,
    OBSERVED_PRODUCER_BYTE_RATE,
    OBSERVED_REQUEST_PERCENTAGE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from metaquorum.quorum.controller_server import ControllerRole
from metaquorum.runtime import Clock, Disk
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.protocol.apis import APIS, ApiKey

SLICE_PARTITIONS: Final = 250  # some 2 ms
MAX_PARTITIONS: Final = 20_000
MAX_TOPICS: Final = 5_000
MAX_QUOTAS: Final = 1_000  # per kind: the quotas with the highest utilization
MAX_QUOTAS_LOOKED_AT: Final = 20_000
SLICE_QUOTAS: Final = 100
# Beyond transaction.max.timeout.ms: the coordinator should have ended the transaction by then.
LATE_AFTER_MS: Final = 300_000
# By quota config: Kafka's resource label and the metric of the rate.
RESOURCES: Final[Mapping[str, tuple[str, str]]] = {
    PRODUCER_BYTE_RATE: ("Produce", "kafka_server_quota_byte_rate"),
    CONSUMER_BYTE_RATE: ("Fetch", "kafka_server_quota_byte_rate"),
    REQUEST_PERCENTAGE: ("Request", "kafka_server_quota_request_time"),
    OBSERVED_PRODUCER_BYTE_RATE: ("ObservedProduce", "kafka_server_quota_byte_rate"),
    OBSERVED_CONSUMER_BYTE_RATE: ("ObservedFetch", "kafka_server_quota_byte_rate"),
    OBSERVED_REQUEST_PERCENTAGE: ("ObservedRequest", "kafka_server_quota_request_time"),
}
_MUTATIONS: Final = "ControllerMutation"
RUNNING, LEAVING = 3, 6  # Kafka's BrokerState

_TRAFFIC: Final = "kafka_server_brokertopicmetrics_"
_REQUESTS: Final = "kafka_network_requestmetrics_"
_SOCKETS: Final = "kafka_server_socket_server_metrics_"
_REPLICAS: Final = "kafka_server_replicamanager_"
_CONTROLLER: Final = "kafka_controller_kafkacontroller_"
_RAFT: Final = "kafka_server_raft_metrics_"


@frozen
class WorkerParts:
    """Parts of a worker node that the collector reads."""

    worker: Worker
    server: Server
    log_dirs: LogDirs
    group_lags: GroupLags


class Collector:
    """Collector of one node's metrics; `controller` and `parts` are None until they start."""

    def __init__(self, cluster_id: str, node_id: int, loader: MetadataLoader, clock: Clock) -> None:
        self.meter = RequestMeter(clock)
        self.errors = ErrorCounts()
        self.elections = ElectionCounts()
        self._cluster_id = cluster_id
        self._loader = loader
        self.controller: ControllerRole | None = None
        self.parts: WorkerParts | None = None
        self._node_id = node_id
        self._clock = clock
        self._version = _version()
        self._collect_s = 0.0
        # Values of the process_* metrics, by metric name.
        self.process: Callable[[], Mapping[str, float]] = dict

    def serves(self, worker: Worker, server: Server, log_dirs: LogDirs) -> None:
        """Add the metrics of a worker that accepts clients."""
        self.parts = WorkerParts(worker, server, log_dirs, GroupLags(worker))

    async def collect(self) -> Page:
        page = Page()
        slices = Slices(self._clock)
        page.add(
            "metaquorum_build_info",
            1,
            version=self._version,
            cluster_id=self._cluster_id,
            node_id=self._node_id,
        )
        page.add(
            "kafka_server_broker_metadata_metrics_last_applied_record_offset",
            self._loader.image.end_offset - 1,
        )
        for name, value in self.process().items():
            page.add(name, value)
        if self.parts is not None:
            self._add_requests(page, self.parts)
            self._add_logs(page, self.parts)
            await _add_disks(page, self.parts)
            await add_partitions(page, self.parts.worker, slices)
            add_replication_quotas(page, self.parts.worker.isr_manager)
            add_log_dir_moves(page, self.parts.worker.log_dir_mover)
            await _add_quotas(page, self.parts.worker, slices)
            await add_groups(page, self.parts.worker, self.parts.group_lags, slices)
            add_transactions(page, self.parts.worker)
        if self.controller is not None:
            self._add_quorum(page, self.controller)
            for name, count in (
                ("electionfromeligibleleaderreplicas_total", self.elections.from_eligible),
                ("uncleanleaderelections_total", self.elections.unclean),
            ):
                page.add("kafka_controller_controllerstats_" + name, count)
            _add_mutations(page, self.controller, self._loader.image, self._clock.monotonic())
            await _add_cluster(page, self._loader.image, slices)
            await add_move_plans(page, self._loader.image, slices)
        page.add("metaquorum_metrics_collect_seconds", round(self._collect_s, 6))
        self._collect_s = slices.end()
        return page

    def _add_requests(self, page: Page, parts: WorkerParts) -> None:
        now, meter = self._clock.monotonic(), self.meter
        meter.time_next()
        for key, api_version, count in meter.counts():
            page.add(
                "kafka_network_requestmetrics_requests_total",
                count,
                request=APIS[key].name,
                version=api_version,
            )
        for key, times in sorted(meter.times.items()):
            page.add_times(
                "kafka_network_requestmetrics_totaltimems", times, now, request=APIS[key].name
            )
        for api_key, local in sorted(meter.local_times.items()):
            page.add_times(_REQUESTS + "localtimems", local, now, request=APIS[api_key].name)
        for api_key, remote in sorted(meter.remote_times.items()):
            page.add_times(_REQUESTS + "remotetimems", remote, now, request=APIS[api_key].name)
        for (api_key, code), count in sorted(self.errors.by_code.items()):
            of = {"request": APIS[api_key].name, "error": name_of(code)}
            page.add(_REQUESTS + "errors_total", count, **of)
        failed = self.errors.of
        page.add(_TRAFFIC + "failedproducerequests_total", failed(ApiKey.PRODUCE))
        page.add(_TRAFFIC + "failedfetchrequests_total", failed(ApiKey.FETCH))
        page.add(_TRAFFIC + "totalproducerequests_total", meter.count(ApiKey.PRODUCE))
        page.add(_TRAFFIC + "totalfetchrequests_total", meter.count(ApiKey.FETCH))
        sockets = _SOCKETS + "connection_"
        counts = parts.server.connections_by_listener()
        for listener, accepted_count in parts.server.accepted_counts.items():
            of_listener = {"listener": listener, "networkProcessor": 0}
            page.add(sockets + "count", counts[listener], **of_listener)
            page.add(sockets + "creation_total", accepted_count, **of_listener)
            logins = parts.server.logins[listener]
            for name in LoginCounts.__slots__:
                page.add(_SOCKETS + name, getattr(logins, name), **of_listener)
        page.add(
            "kafka_server_kafkaserver_brokerstate", LEAVING if parts.worker.stopping else RUNNING
        )

    def _add_logs(self, page: Page, parts: WorkerParts) -> None:
        context, cleaner = parts.worker.isr_manager.context, parts.worker.cleaner
        now = self._clock.monotonic()
        page.add_times("kafka_log_logflushstats_logflushrateandtimems", context.flush_times, now)
        page.add("kafka_log_logmanager_offlinelogdirectorycount", len(parts.log_dirs.offline_ids))
        page.add(
            "kafka_log_logcleanermanager_uncleanable_partitions_count",
            cleaner.uncleanable_partitions_count,
        )
        for name in ("max_clean_time_secs", "max_compaction_delay_secs"):
            page.add(f"kafka_log_logcleaner_{name}", getattr(cleaner, name))
        page.add(_REPLICAS + "isrshrinks_total", context.isr_shrinks)
        page.add(_REPLICAS + "isrexpands_total", context.isr_expands)
        lag = parts.worker.fetchers.max_lag()
        page.add("kafka_server_replicafetchermanager_maxlag", lag, clientId="Replica")

    def _add_quorum(self, page: Page, role: ControllerRole) -> None:
        status = role.quorum.status
        page.add(_CONTROLLER + "activecontrollercount", int(status.is_active))
        leader = -1 if status.leader_id is None else status.leader_id
        page.add(_RAFT + "current_leader", leader)
        page.add(_RAFT + "current_epoch", status.term)
        page.add(_RAFT + "high_watermark", status.commit_index)
        state = "leader" if leader == status.node_id else "follower" if leader >= 0 else "candidate"
        page.add(_RAFT + "current_state_info", 1, state=state)


def late_before_ms(worker: Worker) -> int:
    """Return the time before which the last batch of an open transaction makes it late."""
    return worker.clock.now_ms() - worker.transaction_configs.max_timeout_ms - LATE_AFTER_MS


async def add_partitions(page: Page, worker: Worker, slices: Slices) -> None:
    """Add the metrics of the worker's replicas, and their sums."""
    partitions = worker.replica_manager
    total, sums = partitions.departed, _Sums(late_before_ms(worker))
    by_topic: dict[str, Traffic] = {}
    for partition in partitions:
        traffic = partition.traffic
        total = total.plus(traffic)
        topic = partition.topic
        by_topic[topic] = by_topic.get(topic, NO_TRAFFIC).plus(traffic)
        if sums.count(partition) <= MAX_PARTITIONS:
            _add_partition(page, partition)
        if sums.all % SLICE_PARTITIONS == 0:
            await slices.rest()
    _add_traffic(page, total)
    page.add(_TRAFFIC + "replicationbytesin_total", total.replicated_bytes_in)
    page.add(_TRAFFIC + "replicationbytesout_total", total.replicated_bytes_out)
    context = worker.isr_manager.context
    page.add(_TRAFFIC + "reassignmentbytesin_total", context.reassignment_bytes_in)
    page.add(_TRAFFIC + "reassignmentbytesout_total", context.reassignment_bytes_out)
    for topic, traffic in list(by_topic.items())[:MAX_TOPICS]:
        _add_traffic(page, traffic, topic=topic)
    left_out = "metaquorum_metrics_left_out"
    page.add(left_out, max(0, sums.all - MAX_PARTITIONS), what="partitions")
    page.add(left_out, max(0, len(by_topic) - MAX_TOPICS), what="topics")
    offline = partitions.offline_count
    page.add(_REPLICAS + "partitioncount", sums.all - sums.offline + offline)
    page.add(_REPLICAS + "leadercount", sums.led)
    page.add(_REPLICAS + "offlinereplicacount", offline)
    page.add(_REPLICAS + "underreplicatedpartitions", sums.under_replicated)
    page.add(_REPLICAS + "reassigningpartitions", sums.reassigning)
    page.add(_REPLICAS + "underminisrpartitioncount", sums.under_min_isr)
    page.add(_REPLICAS + "atminisrpartitioncount", sums.at_min_isr)
    page.add(_REPLICAS + "produceridcount", sums.producer_ids)
    page.add(_REPLICAS + "partitionswithlatetransactionscount", sums.late_transactions)


class _Sums:
    def __init__(self, late_before_ms: int) -> None:
        self._late_before_ms = late_before_ms
        self.producer_ids = self.late_transactions = 0
        self.all = self.led = self.offline = 0
        self.reassigning = self.under_replicated = self.under_min_isr = self.at_min_isr = 0

    def count(self, partition: Partition) -> int:
        """Add `partition` to the sums; return the number of partitions counted so far."""
        self.all += 1
        self.offline += partition.offline is not None
        producers = partition.log.producers
        if partition.offline is None:
            self.producer_ids += len(producers)
        if partition.is_leader:
            in_sync, least = len(partition.isr), partition.least_isr
            self.led += 1
            self.reassigning += partition.state.is_moving
            self.under_replicated += partition.is_under_replicated
            self.under_min_isr += in_sync < least
            self.at_min_isr += in_sync == least
            self.late_transactions += producers.has_late_transaction(self._late_before_ms)
        return self.all


def _add_traffic(page: Page, traffic: Traffic, **of: str) -> None:
    page.add(_TRAFFIC + "messagesin_total", traffic.records_in, **of)
    page.add(_TRAFFIC + "bytesin_total", traffic.bytes_in, **of)
    page.add(_TRAFFIC + "bytesout_total", traffic.bytes_out, **of)


def _add_partition(page: Page, partition: Partition) -> None:
    log, is_leader = partition.log, partition.is_leader
    where = f'{{topic="{label_text(partition.topic)}",partition="{partition.index}"}}'
    adding = partition.state.adding
    replicas = len(partition.replicas) - len(adding) if is_leader else 0
    in_sync = len(partition.isr) if is_leader else 0
    for name, value in (
        ("kafka_log_log_size", log.size_bytes),
        ("kafka_log_log_logstartoffset", log.log_start_offset),
        ("kafka_log_log_logendoffset", log.log_end_offset),
        ("kafka_log_log_numlogsegments", log.segment_count),
        ("kafka_cluster_partition_replicascount", replicas),
        ("kafka_cluster_partition_insyncreplicascount", in_sync),
        ("kafka_cluster_partition_underreplicated", int(partition.is_under_replicated)),
        (
            "metaquorum_partition_bytesin_total",
            partition.bytes_in + partition.replicated_bytes_in,
        ),
    ):
        page.lines(name).append(f"{name}{where} {value}")


async def _add_cluster(page: Page, image: MetadataImage, slices: Slices) -> None:
    """Add the cluster-wide counts from the metadata image."""
    fenced = sum(worker.fenced for worker in image.workers.values())
    page.add(_CONTROLLER + "activebrokercount", len(image.workers) - fenced)
    page.add(_CONTROLLER + "fencedbrokercount", fenced)
    draining = {worker_id for worker_id, worker in image.workers.items() if worker.draining}
    page.add("metaquorum_draining_workers", len(draining))
    partitions = offline = imbalanced = topics = leaving = 0
    for topic in image.topics.each():
        topics += 1
        if topics % SLICE_PARTITIONS == 0:
            await slices.rest()
        for state in topic.partitions:
            partitions += 1
            offline += state.leader < 0
            imbalanced += state.leader != state.replicas[0]
            if draining:
                leaving += sum(replica in draining for replica in state.replicas)
    page.add("metaquorum_draining_replicas", leaving)
    page.add(_CONTROLLER + "globaltopiccount", topics)
    page.add(_CONTROLLER + "globalpartitioncount", partitions)
    page.add(_CONTROLLER + "offlinepartitionscount", offline)
    page.add(_CONTROLLER + "preferredreplicaimbalancecount", imbalanced)


async def _add_quotas(page: Page, worker: Worker, slices: Slices) -> None:
    status = QuotaStatus(worker.quotas)
    muted = Counter(mute.key for mute in worker.quotas.mutes)
    left_out = 0
    for kind in worker.quotas.kinds:
        resource, name = RESOURCES[kind.key]
        uses: list[QuotaUsage] = []
        for number, use in enumerate(islice(status.uses(kind.key), MAX_QUOTAS_LOOKED_AT), 1):
            uses.append(use)
            if number % SLICE_QUOTAS == 0:
                await slices.rest()
        uses.sort(key=lambda use: -use.rate / use.quota)
        for use in uses[:MAX_QUOTAS]:
            _add_quota(page, use, resource, name)
        unseen = max(0, len(kind) - MAX_QUOTAS_LOOKED_AT)
        left_out += max(0, len(uses) - MAX_QUOTAS) + unseen
        page.add("metaquorum_muted_connections", muted[kind.key], resource=resource)
    page.add("metaquorum_metrics_left_out", left_out, what="quotas")
    mutations = muted[CONTROLLER_MUTATION_RATE]
    page.add("metaquorum_muted_connections", mutations, resource=_MUTATIONS)
    throttled = worker.quotas.connections.throttled
    page.add("metaquorum_connections_throttled_total", throttled)
    admission = worker.quotas.producers
    for reason, count in (("share", admission.refused_count), ("forged", admission.forged_count)):
        page.add("metaquorum_new_producers_refused_total", count, reason=reason)


def _add_quota(page: Page, use: QuotaUsage, resource: str, name: str) -> None:
    sharers = use.rule.sharers
    of = {"resource": resource}
    if sharers.user is not None:
        of["user"] = sharers.user
    if sharers.client_id is not None:
        of["clientId"] = sharers.client_id
    page.add(name, round(use.rate, 3), **of)
    page.add("kafka_server_quota_throttle_time", round(use.throttle_recent_s * 1000, 3), **of)
    page.add("metaquorum_quota_value", use.quota, **of)
    page.add("metaquorum_quota_utilization", round(use.rate / use.quota, 6), **of)
    page.add("metaquorum_quota_throttles_total", use.throttle_count, **of)


def _add_mutations(page: Page, role: ControllerRole, image: MetadataImage, now: float) -> None:
    """Add the tokens of `controller_mutation_rate`; only the active controller has them."""
    if not role.quorum.status.is_active:
        return
    mutations = role.controller.mutations
    for sharers, tokens in islice(mutations.tokens(image.client_quotas, now), MAX_QUOTAS):
        of = {"resource": _MUTATIONS}
        if sharers.user is not None:
            of["user"] = sharers.user
        if sharers.client_id is not None:
            of["clientId"] = sharers.client_id
        page.add("kafka_server_quota_tokens", round(tokens, 3), **of)


async def _add_disks(page: Page, parts: WorkerParts) -> None:
    disk = parts.worker.disk
    for log_dir in list(parts.log_dirs.online):
        path = log_dir.path
        try:
            space = partial(disk.run, partial(_space, disk, path))
            total, free = await parts.log_dirs.do(log_dir, space)
        except (OSError, UnresponsiveError):
            continue
        page.add("metaquorum_log_dir_free_bytes", free, directory=path)
        page.add("metaquorum_log_dir_total_bytes", total, directory=path)


def _space(disk: Disk, path: str) -> tuple[int, int]:
    return disk.total_bytes(path), disk.free_bytes(path)


def _version() -> str:
    try:
        return version("metaquorum")
    except PackageNotFoundError:
        return "unknown"
