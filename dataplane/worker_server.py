"""The worker role of a node: start and stop in a safe order.

    listeners bound                    a port in use is reported before anything is written
    registered with the quorum         the worker's partitions get other leaders or none
                                       (KAFKA-10527); after an unclean shutdown it leaves the ISRs
    image holds that registration      so that state of an earlier process is not taken for its own
    logs opened and recovered          heartbeats keep the registration meanwhile
    image published to the partitions  the controller learns which logs were recreated empty
    unfenced                           from now on the worker can lead
    serving

Stopping runs in reverse: controlled shutdown, no new connections, responses to the requests already
read, logs flushed and marked clean.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import trio

from metaquorum.config.addresses import counts_by_address
from metaquorum.config.resolution import Configs, ListenerConfigs, WorkerLayers
from metaquorum.dataplane.config.worker import WorkerConfigs
from metaquorum.dataplane.handlers.dispatcher import Dispatcher
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.dataplane.maintenance.background_tasks import BackgroundTasks
from metaquorum.dataplane.network.connection import ListenerContext
from metaquorum.dataplane.network.connection_limits import PeerListener
from metaquorum.dataplane.network.listener_tls import ListenerTls, context_for_dialing
from metaquorum.dataplane.network.login_counts import LoginCounts
from metaquorum.dataplane.network.replies import Handle
from metaquorum.dataplane.network.sasl_authenticator import SaslAuthenticator
from metaquorum.dataplane.network.server import Server, ServerLimits
from metaquorum.dataplane.node_config import NodeConfig
from metaquorum.dataplane.partition.plan_throttles import PlanThrottles
from metaquorum.dataplane.quotas.client_quota_manager import ClientQuotas
from metaquorum.dataplane.replication.isr_manager import IsrManager
from metaquorum.dataplane.replication.replica_authentication import ReplicaAuthenticator
from metaquorum.dataplane.replication.replica_manager import ReplicaManager
from metaquorum.dataplane.replication.truncation_ledger import TruncationLedger
from metaquorum.dataplane.worker.context import Worker
from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import Endpoint
from metaquorum.quorum.channel import Endpoint as ChannelEndpoint
from metaquorum.quorum.controller.features import SUPPORTED_FEATURES
from metaquorum.quorum.controller.worker_registration import WorkerRegistration
from metaquorum.quorum.rpc.controller_client import ControllerClient
from metaquorum.quorum.rpc.links import QuorumLinks
from metaquorum.quorum.rpc.session import WorkerSession
from metaquorum.runtime import Listener, Runtime
from metaquorum.security.decoy_key import derived_decoy_key, kept_decoy_key
from metaquorum.security.tls_context import ReloadedContext, keep_reloading

if TYPE_CHECKING:
    from metaquorum.dataplane.prometheus.collector import Collector

log = logging.getLogger(__name__)

# Used if queued.max.request.bytes is -1: unlimited in Kafka, but memory is not.
DEFAULT_QUEUED_BYTES: Final = 512 << 20
CONTROLLED_SHUTDOWN_S: Final = 10.0


class WorkerRole:
    """The worker of one node; `run` starts it, serves, and stops it."""

    def __init__(
        self,
        config: NodeConfig,
        runtime: Runtime,
        log_dirs: LogDirs,
        loader: MetadataLoader,
        links: QuorumLinks,
        endpoint: ChannelEndpoint | None,
        incarnation_id: bytes,
        listeners: Sequence[Listener],
        metrics: "Collector | None" = None,
    ) -> None:
        """Create the role; `listeners` are the bound listeners of the config, in its order.

        `endpoint` holds the cluster's secret; None in a single-node cluster.
        """
        self.worker: Worker | None = None
        self._config = config
        self._runtime = runtime
        self._log_dirs = log_dirs
        self._loader = loader
        self._links = links
        self._endpoint = endpoint
        self._metrics = metrics
        self._listeners = tuple(zip(config.client_listeners, listeners, strict=True))
        self._contexts: list[ReloadedContext] = []
        self.logins: dict[str, LoginCounts] = {}
        static = WorkerLayers(config.configs).worker_configs()
        self.session = WorkerSession(
            runtime,
            links,
            loader,
            self._registration(incarnation_id),
            static.integer("broker.heartbeat.interval.ms") / 1000,
            lambda: log_dirs.offline_ids,
            log_dirs.note_start,
        )

    async def run(self, started: Callable[[], None], stop: trio.Event) -> None:
        """Start the worker, call `started`, serve until `stop`, then close the logs cleanly."""
        async with trio.open_nursery() as nursery:
            registered_at = await self.session.register()
            await self._loader.wait_applied(registered_at)
            nursery.start_soon(self.session.run)
            configs = WorkerConfigs(
                self._config.node_id,
                self._config.configs,
                self._loader.image,
                ignores_connection_limits=self._config.ignores_connection_limits,
            )
            quotas = ClientQuotas(
                self._loader.image, self._runtime.clock, self._runtime.random, configs.own
            )
            partitions = await self._open_logs(configs)
            replication = partitions.replication
            configs.call(replication.quotas.limit)
            self._loader.register(self.session.guard)
            self._loader.register(configs)
            self._loader.register(quotas)
            self._loader.register(PlanThrottles(replication.context, replication.quotas))
            self._loader.register(partitions)
            self._loader.register(replication)
            self._loader.register(self)
            self._loader.register(self.session)
            async with trio.open_nursery() as writing:
                if len(self._log_dirs) > 1:
                    writing.start_soon(self._log_dirs.run)
                writing.start_soon(partitions.replication.run)
                writing.start_soon(self._loader.run)
                await self._loader.wait_visible(self._loader.image.end_offset)
                await self.session.wait_unfenced()
                await self._loader.wait_visible(self._loader.image.end_offset)
                upkeep = await self._serve(partitions, configs, quotas, started, stop)
                # Cancelled first, so that no task writes to a log that is being closed.
                writing.cancel_scope.cancel()
            await self._log_dirs.close(
                upkeep.high_watermarks(), broker_epoch=self.session.broker_epoch
            )
            nursery.cancel_scope.cancel()

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Let the coordinators follow the partitions that this worker leads."""
        if self.worker is not None:
            await self.worker.recently_fenced.publish(delta, image)
            await self.worker.groups.publish(delta, image)
            await self.worker.transactions.publish(delta, image)

    async def _open_logs(self, configs: WorkerConfigs) -> ReplicaManager:
        runtime, loader = self._runtime, self._loader
        ledger = await runtime.disk.run(
            lambda: TruncationLedger.open(runtime.disk, self._config.data_dir)
        )
        replication = IsrManager(
            self.session,
            runtime,
            loader,
            configs.own,
            self._config.between_workers,
            self._dialing(),
            self._endpoint,
            ControllerClient(runtime, self._links, loader),
            ledger,
        )
        partitions = ReplicaManager(
            self._config.node_id,
            runtime.clock,
            runtime.random,
            configs,
            self._log_dirs,
            replication,
        )
        await self._log_dirs.load(
            lambda topic: partitions.topic_config(loader.image, topic).log,
            runtime.clock.now_ms(),
            concurrent=configs.own.integer("num.recovery.threads.per.data.dir"),
        )
        return partitions

    async def _serve(
        self,
        partitions: ReplicaManager,
        configs: WorkerConfigs,
        quotas: ClientQuotas,
        started: Callable[[], None],
        stop: trio.Event,
    ) -> BackgroundTasks:
        """Serve clients until `stop`, then answer the requests already read.

        Returns the background tasks, which know the high watermarks for the clean shutdown.
        """
        worker = self.worker = Worker(
            self._config.node_id,
            self._runtime,
            self._loader,
            ControllerClient(self._runtime, self._links, self._loader),
            self.session,
            partitions,
            configs,
            quotas,
            self._config.inline_append_bytes,
            self._replica_authenticator(),
        )
        upkeep = BackgroundTasks(worker, self._runtime, self._log_dirs)
        names = tuple(asked.name for asked, _ in self._listeners)
        limits = _limits(worker.configs, names, self._config.max_connections)
        decoy_key = await self._decoy_key()
        handle = Dispatcher(worker, self._metrics.meter if self._metrics else None).handle
        server = Server(
            self._runtime,
            self._listener_contexts(worker, handle, decoy_key),
            limits,
            quotas.meter,
            quotas.connections,
            self._peers(worker),
            worker.slicer,
        )
        if self._metrics is not None:
            self._metrics.serves(worker, server, self._log_dirs)
            worker.errors = self._metrics.errors
        configs.call(
            lambda changed: server.limit(_limits(changed, names, self._config.max_connections))
        )
        if len(self._listeners) > 1:
            quotas.connections.own_listener = self._config.between_workers.listener
        configs.call(quotas.connections.limit)
        quotas.connections.ignores_quotas = self._config.ignores_connection_limits
        configs.call(quotas.producers.update)
        worker.slicer.slice_this_task()
        try:
            async with trio.open_nursery() as serving:
                serving.start_soon(server.serve)
                serving.start_soon(upkeep.run)
                serving.start_soon(keep_reloading, self._runtime.clock, self._contexts)
                serving.start_soon(worker.timers.run)
                serving.start_soon(worker.isr_manager.context.wakes.run)
                serving.start_soon(worker.leadership_check.run)
                serving.start_soon(worker.log_dir_mover.run)
                serving.start_soon(worker.groups.run)
                serving.start_soon(worker.transactions.run)
                serving.start_soon(worker.isr_manager.earlier_followers.run)
                serving.start_soon(self._log_dirs.wait_none_left)
                started()
                await stop.wait()
                log.info("stopping: answering pending requests, then flushing the logs")
                worker.stop_waiting()
                if not await self.session.shut_down(CONTROLLED_SHUTDOWN_S):
                    log.warning(
                        "controlled shutdown not confirmed by the controller; stopping anyway: the"
                        " controller fences this worker when its session times out"
                    )
                await server.drain()
                serving.cancel_scope.cancel()
        finally:
            worker.slicer.close()
        return upkeep

    def _replica_authenticator(self) -> ReplicaAuthenticator:
        name = self._config.between_workers.listener
        address = next(
            (each.host, each.port)
            for each in self.session.registration.endpoints
            if each.listener == name
        )
        return ReplicaAuthenticator(self._endpoint, name, address, self._runtime.clock.monotonic)

    def _peers(self, worker: Worker) -> PeerListener:
        return PeerListener(
            self._config.between_workers.listener,
            is_shared=len(self._listeners) == 1,
            are_any=lambda: len(worker.image.workers) > 1,
        )

    def _listener_contexts(
        self, worker: Worker, handle: Handle, decoy_key: bytes
    ) -> list[tuple[Listener, ListenerContext]]:
        listener_contexts: list[tuple[Listener, ListenerContext]] = []
        for asked, listener in self._listeners:
            tls = None if asked.tls is None else ListenerTls(asked.tls)
            if tls is not None:
                self._contexts.append(tls.context)
            logins = self.logins[asked.name] = LoginCounts()
            listener_context = ListenerContext(asked.name, handle, tls=tls, logins=logins)
            if asked.sasl is not None:
                gate = SaslAuthenticator(
                    self._runtime,
                    asked.sasl,
                    lambda: worker.image,
                    handle,
                    decoy_key,
                    logins,
                )
                listener_context = ListenerContext(
                    asked.name, gate.handle, asked.sasl.max_message_bytes, tls, logins
                )
            listener_contexts.append((listener, listener_context))
        return listener_contexts

    def _dialing(self) -> ReloadedContext | None:
        """Return the TLS context for connections to other workers; None without TLS."""
        files = self._config.between_workers.tls
        if files is None:
            return None
        self._contexts.append(context_for_dialing(files))
        return self._contexts[-1]

    async def _decoy_key(self) -> bytes:
        """Return the key for decoy SCRAM credentials; empty if no listener uses SASL.

        Raises StorageError if the data directory fails.
        """
        if not any(asked.sasl for asked, _ in self._listeners):
            return b""
        secret = self._config.secret
        if secret is not None:
            return derived_decoy_key(secret)
        disk, random = self._runtime.disk, self._runtime.random
        return await disk.run(lambda: kept_decoy_key(disk, self._config.data_dir, random))

    def _registration(self, incarnation_id: bytes) -> WorkerRegistration:
        endpoints = tuple(
            Endpoint(
                asked.name,
                asked.advertise[0],
                asked.advertise[1] or listener.address[1],
                asked.protocol.name,
            )
            for asked, listener in self._listeners
        )
        return WorkerRegistration(
            self._config.node_id,
            incarnation_id,
            endpoints,
            self._config.host,
            self._config.rack,
            self._log_dirs.ids,
            features=SUPPORTED_FEATURES,
            previous_broker_epoch=self._log_dirs.previous_broker_epoch,
            newest_broker_epoch=self._log_dirs.newest_broker_epoch,
        )


def _limits(configs: Configs, listeners: Iterable[str], descriptors: int | None) -> ServerLimits:
    by_listener = {}
    for listener in listeners:
        most = ListenerConfigs(configs, listener).find("max.connections", inherits=False)
        assert isinstance(most, int)
        by_listener[listener] = most
    queued = configs.integer("queued.max.request.bytes")
    return ServerLimits(
        max_request_bytes=configs.integer("socket.request.max.bytes"),
        max_queued_request_bytes=queued if queued > 0 else DEFAULT_QUEUED_BYTES,
        max_connections=configs.integer("max.connections"),
        max_descriptors=descriptors,
        max_connections_per_ip=configs.integer("max.connections.per.ip"),
        max_idle_ms=configs.integer("connections.max.idle.ms"),
        max_connections_by_listener=by_listener,
        max_connections_by_ip=counts_by_address(configs.text("max.connections.per.ip.overrides")),
    )
