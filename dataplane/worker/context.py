"""State shared by the handlers of one worker: identity, metadata, partitions."""

import logging
from typing import NamedTuple, cast
from uuid import UUID

import trio

from metaquorum.config.resolution import Configs, WorkerLayers
from metaquorum.dataplane.config.worker import WorkerConfigs
from metaquorum.dataplane.coordinators.group.group_coordinator import (
    CoordinatorConfigs,
    GroupCoordinator,
)
from metaquorum.dataplane.coordinators.partitioning import partition_of
from metaquorum.dataplane.coordinators.transaction.configs import TransactionConfigs
from metaquorum.dataplane.coordinators.transaction.transaction_coordinator import (
    TransactionCoordinator,
)
from metaquorum.dataplane.fetch.long_polls import LongPolls
from metaquorum.dataplane.fetch.replica_selector import RACK_AWARE_SELECTOR
from metaquorum.dataplane.fetch.sessions import FetchSessions
from metaquorum.dataplane.instruments.error_counts import ErrorCounts
from metaquorum.dataplane.instruments.log_levels import LogLevels
from metaquorum.dataplane.log.compaction.compaction import CleanerStatistics
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.delayed import Timers
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.partition.pending_deletes import PendingDeletes
from metaquorum.dataplane.quotas.client_quota_manager import ClientQuotas
from metaquorum.dataplane.quotas.replication_quota import PlanLimits
from metaquorum.dataplane.replication.fetchers import Fetchers
from metaquorum.dataplane.replication.isr_manager import IsrManager
from metaquorum.dataplane.replication.log_dir_mover import LogDirMover
from metaquorum.dataplane.replication.replica_authentication import ReplicaAuthenticator
from metaquorum.dataplane.replication.replica_manager import ReplicaManager
from metaquorum.dataplane.scheduling.time_slices import TimeSlicer
from metaquorum.dataplane.worker.internal_topics import InternalTopics
from metaquorum.dataplane.worker.leadership_check import LeadershipCheck
from metaquorum.dataplane.worker.marker_writer import EndsGroupTransactions, MarkerWriter
from metaquorum.dataplane.worker.metadata_cache import MetadataCache
from metaquorum.dataplane.worker.producer_ids import ProducerIds
from metaquorum.dataplane.worker.recently_fenced import RecentlyFenced
from metaquorum.dataplane.worker.transaction_states import TransactionStates
from metaquorum.dataplane.worker.transaction_verifier import (
    NO_WORKER,
    TransactionVerifier,
)
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.internal_topics import TRANSACTION_STATE
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.quorum.rpc.controller_client import ControllerClient
from metaquorum.quorum.rpc.methods import RequestContext
from metaquorum.quorum.rpc.session import WorkerSession
from metaquorum.runtime import Clock, Disk, Runtime, StorageError

log = logging.getLogger(__name__)


class Request(NamedTuple):
    """Header of a request: version and client. The message is the handler's other argument."""

    version: int
    client_id: str | None
    client: Client

    @property
    def context(self) -> RequestContext:
        """Principal, client id and host of the client, for requests to the controller."""
        return RequestContext(self.client.principal, self.client_id, self.client.address[0])


class Worker:
    """State of one worker, built by `metaquorum.dataplane.worker_server`.

    Handlers use it through the narrower types of `metaquorum.dataplane.worker.capabilities`.
    """

    def __init__(
        self,
        worker_id: int,
        runtime: Runtime,
        loader: MetadataLoader,
        controller_client: ControllerClient,
        session: WorkerSession,
        partitions: ReplicaManager,
        configs: WorkerConfigs,
        quotas: ClientQuotas,
        inline_append_bytes: int,
        replica_authenticator: ReplicaAuthenticator,
    ) -> None:
        self.worker_id = worker_id
        self.clock: Clock = runtime.clock
        self.disk: Disk = runtime.disk
        self.loader = loader
        self.controller_client = controller_client
        self.session = session
        self.replica_manager = partitions
        self._configs = configs
        self.quotas = quotas
        self.replica_authenticator = replica_authenticator
        self.inline_append_bytes = inline_append_bytes  # larger appends run in a worker thread
        # Static configs: they do not change while the node runs.
        self.fetch_max_bytes = self.configs.integer("fetch.max.bytes")
        self.selects_replicas = self.configs["replica.selector.class"] == RACK_AWARE_SELECTOR
        self.auto_create_topics = self.configs.boolean("auto.create.topics.enable")
        self.log_levels = LogLevels(runtime.clock.monotonic)
        self.producer_ids = ProducerIds(controller_client, session)
        self.internal_topics = InternalTopics(controller_client, session, loader, configs)
        self.leadership_check = LeadershipCheck(controller_client)
        # Decompress one batch at a time: a batch may grow to a hundred megabytes.
        self.opening_batch = trio.Lock()
        self.metadata_cache = MetadataCache()
        self.recently_fenced = RecentlyFenced(runtime.clock)
        self.timers = Timers(runtime.clock)
        self.long_polls = LongPolls(self.timers)
        self.slicer = TimeSlicer(runtime.clock.cpu_s, call_after=self.timers.call_after)
        self.timers.slicer = self.slicer
        self.fetch_sessions = FetchSessions(
            self.configs.integer("max.incremental.fetch.session.cache.slots"),
            runtime.random,
            finish_in_background=self.slicer.finish_in_background,
        )
        self.cleaner = CleanerStatistics()
        self.pending_deletes = PendingDeletes(runtime.clock)
        concurrent = self.configs["num.replica.alter.log.dirs.threads"]
        self.log_dir_mover = LogDirMover(
            runtime,
            partitions,
            partitions.replication.quotas.alter_log_dirs,
            concurrent if isinstance(concurrent, int) else len(partitions.log_dirs.ids),
        )
        random = runtime.random
        group_configs = CoordinatorConfigs()
        configs.call(group_configs.update)
        self.groups = GroupCoordinator(
            self,
            partitions,
            group_configs,
            lambda: str(UUID(int=random.getrandbits(128), version=4)),
        )
        self.transaction_configs = TransactionConfigs()
        configs.call(self.transaction_configs.update)
        self._verifying = partitions.replication.new_worker_client()
        self.transaction_states = TransactionStates(
            worker_id,
            self._verifying,
            lambda: self.image,
            lambda request: self.transactions.list_transactions(request),
        )
        self.marker_writer = MarkerWriter(
            partitions,
            cast(EndsGroupTransactions, self.groups),
            self.clock,
            self.disk,
            self.slicer,
            self.partition_failed,
        )
        self.transactions = TransactionCoordinator(
            self,
            partitions,
            self.transaction_configs,
            partitions.replication.new_worker_client(),
            self.marker_writer,
            self.producer_ids.take,
        )
        self.transaction_verifier = TransactionVerifier(
            worker_id,
            self._verifying,
            self._transaction_coordinator,
            self.transactions.add_partitions,
            runtime.clock.monotonic,
            self.transactions.verify,
            self.transactions.confirmed,
        )
        self.stopping = False
        self.errors: ErrorCounts | None = None  # None: metrics are disabled

    @property
    def verifies_transactions(self) -> bool:
        """The config `transaction.partition.verification.enable`."""
        return self.transaction_configs.verifies_partitions

    @property
    def isr_manager(self) -> IsrManager:
        return self.replica_manager.replication

    @property
    def fetchers(self) -> Fetchers:
        return self.isr_manager.fetchers

    @property
    def plan_limits(self) -> tuple[PlanLimits, ...]:
        """Rates at which plans of moves limit this worker now."""
        return self.isr_manager.quotas.plan_limits

    @property
    def configs(self) -> Configs:
        """This worker's configs currently in force."""
        return self._configs.own

    @property
    def layers(self) -> WorkerLayers:
        """Configs currently in force for topics that do not override them."""
        return self._configs.layers

    @property
    def image(self) -> MetadataImage:
        """Metadata image that all parts of this worker have applied."""
        return self.loader.visible

    async def wait_applied(self) -> None:
        """Wait until all parts of this worker have applied the metadata that is known now."""
        await self.loader.wait_visible(self.loader.image.end_offset)

    def _transaction_coordinator(self, transactional_id: str) -> int:
        """Return the worker that coordinates the transactional id, or NO_WORKER."""
        topic = self.image.topic(TRANSACTION_STATE)
        if topic is None:
            return NO_WORKER
        return topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader

    def stop_waiting(self) -> None:
        """Answer all requests that wait for others now; later requests do not wait."""
        self.stopping = True
        self.groups.close()
        self.transactions.close()
        self._verifying.close()
        self.long_polls.close()

    def partition_failed(self, partition: Partition, error: StorageError) -> None:
        """Take `partition` offline after its log directory failed during a request."""
        self.replica_manager.fail(partition, error)
