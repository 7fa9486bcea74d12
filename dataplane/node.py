"""One node: its quorum, its logs, its listener, put together in the order that is safe.

    identity of the data directory     whose cluster, which node; refused if it is another's
    listener bound                     a port in use is told before anything is written
    quorum, journal replayed           the image stands
    worker registered                  what it led, it leads in a new epoch (KAFKA-10527)
    logs opened and recovered
    image published to the partitions  now they lead
    serving

Stopping goes the other way: no new connection, answers to what was read, logs synced and marked.
"""

import errno
import logging
from collections.abc import Callable
from typing import Final

import trio

from dataplane.dispatch import Dispatcher
from dataplane.log.log_dirs import LogDirs
from dataplane.node_config import NodeConfig
from dataplane.partitions import Partitions
from dataplane.server import Server, ServerLimits
from dataplane.upkeep import Upkeep
from dataplane.worker import Worker
from dataplane.worker_configs import WorkerConfigs
from metaquorum.config_layers import Configs
from metaquorum.controller import Controller
from metaquorum.gateway import Gateway
from metaquorum.loader import MetadataLoader
from metaquorum.records import Endpoint
from metaquorum.registrations import WorkerRegistration
from metaquorum.runtime import Listener, Runtime, StorageError
from metaquorum.single_voter import SingleVoter
from metaquorum.storage import Storage, open_storage
from metaquorum.worker_sessions import WorkerHeartbeat
from wire.errors import KafkaError
from wire.types import random_uuid

log = logging.getLogger(__name__)

LISTENER_NAME: Final = "PLAINTEXT"
# queued.max.request.bytes where it is -1: no limit in Kafka, but memory has one.
DEFAULT_QUEUED_BYTES: Final = 512 << 20

_LISTEN_ADVICE: Final = {
    errno.EADDRINUSE: "stop what is listening there or choose another --listen",
    errno.EADDRNOTAVAIL: "it is not an address of this machine; choose another --listen",
    errno.EACCES: "ports below 1024 need rights that this user lacks; choose another --listen",
}


class NodeError(Exception):
    """The node cannot start or go on; the message is one sentence for whoever runs it."""


class Node:
    """A process's worth of metaquorum, in both roles, on the machine that `runtime` is."""

    def __init__(self, config: NodeConfig, runtime: Runtime, owner: str = "a node") -> None:
        """`owner` is whom the data directory's lock file names, for people to find."""
        self.config = config
        self._owner = owner
        self.address: tuple[str, int] = config.listen
        self.cluster_id = ""
        self.worker: Worker | None = None
        self._runtime = runtime
        self._stop = trio.Event()

    def stop(self) -> None:
        """`run` will return once everything is closed in good order."""
        self._stop.set()

    async def run(self, started: Callable[["Node"], None] = lambda _: None) -> None:
        """Serve until `stop`; `started` is called when clients can connect. NodeError."""
        try:
            await self._run(started)
        except (StorageError, KafkaError) as error:
            raise NodeError(_sentence(error)) from error
        except BaseExceptionGroup as errors:
            known, others = errors.split((StorageError, KafkaError, NodeError))
            if known is None or others is not None:
                raise
            raise NodeError(_sentence(known)) from errors

    async def _run(self, started: Callable[["Node"], None]) -> None:
        disk, random = self._runtime.disk, self._runtime.random
        storage = await disk.run(
            lambda: open_storage(
                disk, self.config.data_dir, self.config.node_id, random, owner=self._owner
            )
        )
        try:
            self.cluster_id = storage.properties.cluster_id
            listener = await self._listen()
            try:
                paths = self.config.log_dirs or (self.config.data_dir,)
                log_dirs = await disk.run(
                    lambda: LogDirs.open(disk, storage, paths, random, owner=self._owner)
                )
                try:
                    async with trio.open_nursery() as nursery:
                        await self._serve(nursery, storage, log_dirs, listener, started)
                        nursery.cancel_scope.cancel()
                finally:
                    log_dirs.abandon()
            finally:
                listener.close()
        finally:
            storage.close()

    async def _listen(self) -> Listener:
        host, port = self.config.listen
        try:
            listener = await self._runtime.network.listen(host, port)
        except (OSError, ValueError) as error:  # ValueError: no host can be called that
            reason, advice = str(error), "choose another --listen"
            if isinstance(error, OSError):
                reason = error.strerror or reason
                advice = _LISTEN_ADVICE.get(error.errno or 0, advice)
            raise NodeError(f"cannot listen on {host}:{port}: {reason}; {advice}") from None
        self.address = listener.address
        return listener

    async def _serve(
        self,
        nursery: trio.Nursery,
        storage: Storage,
        log_dirs: LogDirs,
        listener: Listener,
        started: Callable[["Node"], None],
    ) -> None:
        loader = MetadataLoader(self.cluster_id)
        quorum = SingleVoter(self._runtime.disk, storage.metadata_dir, loader, self.config.node_id)
        await quorum.start()
        nursery.start_soon(quorum.run)
        controller = Controller(
            quorum, loader, self._runtime.clock, self._runtime.random, self.config.configs
        )
        await controller.start()
        gateway = Gateway(controller, loader)
        broker_epoch = await gateway.register_worker(self._registration(log_dirs))
        configs = WorkerConfigs(self.config.node_id, self.config.configs, loader.image)
        partitions = Partitions(
            self.config.node_id, self._runtime.clock, self._runtime.random, configs, log_dirs
        )
        await log_dirs.load(
            lambda topic: partitions.topic_config(loader.image, topic).log,
            self._runtime.clock.now_ms(),
            concurrent=configs.own.integer("num.recovery.threads.per.data.dir"),
        )
        loader.register(configs)
        loader.register(partitions)
        nursery.start_soon(loader.run)
        await loader.wait_visible(loader.image.end_offset)
        nursery.start_soon(controller.run)
        await self._beat(gateway, loader, broker_epoch)  # after which clients may be sent here
        await loader.wait_visible(loader.image.end_offset)
        worker = self.worker = Worker(
            self.config.node_id,
            broker_epoch,
            self._runtime,
            loader,
            gateway,
            partitions,
            configs,
        )
        upkeep = Upkeep(worker, self._runtime, log_dirs)
        server = Server(self._runtime, listener, Dispatcher(worker).handle, _limits(worker.configs))
        configs.call(lambda changed: server.limit(_limits(changed)))
        async with trio.open_nursery() as serving:
            serving.start_soon(server.serve)
            serving.start_soon(upkeep.run)
            serving.start_soon(log_dirs.wait_none_left)
            serving.start_soon(self._keep_beating, gateway, loader, broker_epoch, worker.configs)
            started(self)
            await self._stop.wait()
            log.info("stopping: answering what was asked, then syncing")
            worker.stop_waiting()
            await server.drain()
            serving.cancel_scope.cancel()
        await log_dirs.close(upkeep.high_watermarks(), broker_epoch=broker_epoch)
        await quorum.close()

    async def _beat(self, gateway: Gateway, loader: MetadataLoader, broker_epoch: int) -> None:
        """The controller knows that this worker is alive, and how far it is. KafkaError."""
        await gateway.heartbeat(
            WorkerHeartbeat(self.config.node_id, broker_epoch, loader.visible.end_offset)
        )

    async def _keep_beating(
        self, gateway: Gateway, loader: MetadataLoader, broker_epoch: int, configs: Configs
    ) -> None:
        interval_s = configs.integer("broker.heartbeat.interval.ms") / 1000
        clock = self._runtime.clock
        while True:
            await clock.sleep_until(clock.monotonic() + interval_s)
            try:
                await self._beat(gateway, loader, broker_epoch)
            except KafkaError as error:
                log.warning("a heartbeat was not taken: %s", error.message)

    def _registration(self, log_dirs: LogDirs) -> WorkerRegistration:
        host, port = self.config.advertise
        endpoint = Endpoint(LISTENER_NAME, host, port or self.address[1], "PLAINTEXT")
        return WorkerRegistration(
            self.config.node_id,
            random_uuid(self._runtime.random),
            (endpoint,),
            self.config.host,
            self.config.rack,
            log_dirs.ids,
        )


def _limits(configs: Configs) -> ServerLimits:
    queued = configs.integer("queued.max.request.bytes")
    return ServerLimits(
        max_request_bytes=configs.integer("socket.request.max.bytes"),
        max_queued_request_bytes=queued if queued > 0 else DEFAULT_QUEUED_BYTES,
        max_connections=configs.integer("max.connections"),
        max_connections_per_ip=configs.integer("max.connections.per.ip"),
        max_idle_ms=configs.integer("connections.max.idle.ms"),
    )


def _sentence(error: BaseException) -> str:
    """The first of what went wrong; the rest follows from it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.message if isinstance(error, KafkaError) else str(error)
