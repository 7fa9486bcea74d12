"""One node (process): start and stop of its roles in a safe order.

    data directory opened              cluster id and node id checked; another node's is refused
    listeners bound                    a port in use is reported before anything is written
    controller: journal replayed       from now on the controller votes and answers other nodes
    links to the other controllers
    node without the controller role:  follows the metadata of the active controller
    worker                             see `worker_server`

Stopping runs in reverse; the controller stops last, because a worker needs it for its controlled
shutdown.
"""

import errno
import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import trio

from metaquorum.dataplane.node_config import Address, NodeConfig
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.replicated_log import RaftFatalError
from metaquorum.quorum.channel.endpoint import Endpoint
from metaquorum.quorum.channel.identity import ChannelIdentity, SecretError
from metaquorum.quorum.rpc.follower import MetadataFollower
from metaquorum.quorum.rpc.links import QuorumLinks
from metaquorum.quorum.storage.bootstrap_records import read_first_records
from metaquorum.quorum.storage.data_dir import DirWatch, Storage, open_storage
from metaquorum.runtime import Listener, Runtime, StorageError, is_out_of_descriptors, sleep
from metaquorum.security.tls_context import TlsFilesError, keep_reloading
from metaquorum.wire.primitives.errors import KafkaError
from metaquorum.wire.primitives.types import random_uuid

if TYPE_CHECKING:  # a role is imported by the nodes that have it
    from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
    from metaquorum.dataplane.prometheus.endpoint import MetricsEndpoint
    from metaquorum.dataplane.worker.context import Worker
    from metaquorum.dataplane.worker_server import WorkerRole
    from metaquorum.quorum.controller_server import ControllerRole

log = logging.getLogger(__name__)

DATA_DIR_LOOK_S: Final = 1.0  # interval of the checks whether the data directory still exists
_LISTEN_ADVICE: Final = {
    errno.EADDRINUSE: "stop the process that listens there, or choose another",
    errno.EADDRNOTAVAIL: "this machine does not have that address; choose another",
    errno.EACCES: "ports below 1024 need rights that this user does not have; choose another",
}


class NodeError(Exception):
    """Raised if the node cannot start or continue; the message is one sentence for operators."""


_REPORTED: Final = (StorageError, KafkaError, SecretError, TlsFilesError, RaftFatalError, NodeError)


class Node:
    """One metaquorum process with its roles; all I/O goes through `runtime`."""

    def __init__(
        self,
        config: NodeConfig,
        runtime: Runtime,
        owner: str = "a node",
        process: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """Create a node that `run` starts; `process` returns the values of the process_* metrics.

        `owner` names this process in the lock file of the data directory, for error messages.
        """
        self.config = config
        self._owner = owner
        self._process = process
        # The first client listener; on a node without the worker role, the quorum address.
        self.address: Address = config.listen
        self.addresses: dict[str, Address] = {}  # client listeners by name
        self.quorum_address: Address | None = None
        self.metrics_address: Address | None = None
        self.cluster_id = ""
        self.controller_role: ControllerRole | None = None
        self.worker_role: WorkerRole | None = None
        self._runtime = runtime
        self._incarnation_id = random_uuid(runtime.random)
        self._serving = False
        self._stop = trio.Event()

    @property
    def worker(self) -> "Worker | None":
        return None if self.worker_role is None else self.worker_role.worker

    def stop(self) -> None:
        """Start the shutdown; `run` returns after it."""
        self._stop.set()

    async def run(self, started: Callable[["Node"], None] = lambda _: None) -> None:
        """Run the node until `stop`; call `started` when clients can connect.

        Raises NodeError if the node cannot start or continue.
        """
        try:
            async with AsyncExitStack() as stack:
                await self._run(stack, started)
        except _REPORTED as error:
            raise NodeError(_sentence(error)) from error
        except BaseExceptionGroup as errors:
            known, others = errors.split(_REPORTED)
            if known is None or others is not None:
                raise
            raise NodeError(_sentence(known)) from errors

    async def _run(self, stack: AsyncExitStack, started: Callable[["Node"], None]) -> None:
        config, runtime = self.config, self._runtime
        disk, random = runtime.disk, runtime.random
        storage = await disk.run(
            lambda: open_storage(
                disk,
                config.data_dir,
                config.node_id,
                random,
                owner=self._owner,
                cluster_id=config.cluster_id,
                may_found=config.founds_cluster,
            )
        )
        stack.callback(storage.close)
        self.cluster_id = storage.properties.cluster_id
        loader = MetadataLoader(self.cluster_id)
        metrics = await self._listen_for_metrics(stack, loader)
        endpoint = self._endpoint()
        listeners: list[Listener] = []
        log_dirs: LogDirs | None = None
        if config.is_worker:
            # Imported before the controller runs: the slow import would delay its heartbeats.
            from metaquorum.dataplane.worker_server import WorkerRole

            option = "address in listeners" if config.listeners else "--listen"
            for asked in config.client_listeners:
                listeners.append(await self._listen(asked.bind, option))
                stack.callback(listeners[-1].close)
                self.addresses[asked.name] = listeners[-1].address
            self.address = listeners[0].address
            log_dirs = await self._open_log_dirs(storage)
            stack.callback(log_dirs.abandon)
        if storage.is_new:
            log.info("formatted %s, which was empty, for a new node", config.data_dir)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_starting, nursery.cancel_scope)
            own = await self._start_controller(nursery, storage, endpoint, loader)
            if metrics is not None:
                metrics.collector.controller = own
                nursery.start_soon(metrics.run)
            links = self._links(endpoint)
            nursery.start_soon(links.run)
            if endpoint is not None:
                nursery.start_soon(keep_reloading, runtime.clock, endpoint.contexts)
            if own is None:
                nursery.start_soon(MetadataFollower(runtime, links, loader).run)
            elif self.quorum_address is not None:
                nursery.start_soon(own.introduce, links, self._incarnation_id, self.quorum_address)
            # A worker whose data directory is one of several log directories lives without it.
            if config.is_controller or config.data_dir not in self._log_dir_paths:
                nursery.start_soon(self._watch_data_dir, storage)
            if log_dirs is not None:
                self.worker_role = WorkerRole(
                    config,
                    runtime,
                    log_dirs,
                    loader,
                    links,
                    endpoint,
                    self._incarnation_id,
                    listeners,
                    None if metrics is None else metrics.collector,
                )
                await self.worker_role.run(lambda: self._started(started), self._stop)
            else:
                nursery.start_soon(loader.run)
                self._started(started)
                await self._stop.wait()
            nursery.cancel_scope.cancel()
        if self.controller_role is not None and self._serving:
            await self.controller_role.close()

    @property
    def _log_dir_paths(self) -> tuple[str, ...]:
        if not self.config.is_worker:
            return ()
        return self.config.log_dirs or (self.config.data_dir,)

    async def _watch_data_dir(self, storage: Storage) -> None:
        """Raise StorageError when the data directory is removed; of log directories, see `LogDirs`.

        What is written to it from then on, such as votes, is lost at the next start.
        """
        disk = self._runtime.disk
        watch = DirWatch(disk, storage.data_dir, storage.identity)
        while True:
            await sleep(self._runtime.clock, DATA_DIR_LOOK_S)
            if (error := await disk.run(watch.look)) is not None:
                raise error

    async def _open_log_dirs(self, storage: Storage) -> "LogDirs":
        from metaquorum.dataplane.log.dirs.log_dirs import LogDirs

        disk, random = self._runtime.disk, self._runtime.random
        paths = self._log_dir_paths
        most = self.config.max_log_files

        def opened() -> LogDirs:
            return LogDirs.open(
                disk, storage, paths, random, owner=self._owner, max_open_files=most
            )

        return await disk.run(opened)

    def _started(self, started: Callable[["Node"], None]) -> None:
        self._serving = True
        started(self)

    async def _stop_starting(self, everything: trio.CancelScope) -> None:
        """Cancel the start on `stop`; a node that does not serve yet needs no clean shutdown."""
        await self._stop.wait()
        if not self._serving:
            log.info("the node was stopped before its start was complete")
            everything.cancel()

    def _endpoint(self) -> Endpoint | None:
        """Return this node's endpoint for streams between nodes; None for a single-node cluster.

        Raises SecretError if the node has no cluster secret.
        """
        config = self.config
        if config.is_alone:
            if not config.is_controller:
                raise NodeError("a worker without a controller needs the controllers' addresses")
            return None
        if config.secret is None:
            raise SecretError(
                "nodes of a cluster authenticate each other with a shared secret: give all nodes"
                " the same secret file"
            )
        identity = ChannelIdentity(self.cluster_id, config.node_id, config.secret, config.tls)
        return Endpoint(self._runtime, identity)

    async def _start_controller(
        self,
        nursery: trio.Nursery,
        storage: Storage,
        endpoint: Endpoint | None,
        loader: MetadataLoader,
    ) -> "ControllerRole | None":
        """Start the controller role and its tasks; return None on a node without that role."""
        config = self.config
        if not config.is_controller:
            return None
        from metaquorum.quorum.controller_server import ControllerRole

        own = self.controller_role = ControllerRole(
            self._runtime,
            storage.metadata_dir,
            config.node_id,
            config.controllers or {config.node_id: ("", 0)},
            endpoint,
            loader,
            config.configs,
            await self._runtime.disk.run(
                lambda: read_first_records(self._runtime.disk, storage.data_dir)
            ),
        )
        if endpoint is not None:
            address = config.quorum_listen or config.controllers[config.node_id]
            try:
                self.quorum_address = await own.listen(*address)
            except (OSError, ValueError) as error:
                raise _cannot_listen(address, error, "quorum address") from None
            if not config.is_worker:
                self.address = self.quorum_address
        await own.start()
        nursery.start_soon(own.run)
        return own

    def _links(self, endpoint: Endpoint | None) -> QuorumLinks:
        config, own = self.config, self.controller_role
        others = dict(config.controllers)
        if own is not None:
            others.pop(config.node_id, None)
        return QuorumLinks(
            self._runtime,
            endpoint,
            others,
            None if own is None else own.service,
            config.node_id,
            self._incarnation_id if config.is_worker else None,
        )

    async def _listen_for_metrics(
        self, stack: AsyncExitStack, loader: MetadataLoader
    ) -> "MetricsEndpoint | None":
        """Bind the metrics endpoint; return None if it is not configured."""
        address = self.config.metrics_listen
        if address is None:
            return None
        from metaquorum.dataplane.prometheus.collector import Collector
        from metaquorum.dataplane.prometheus.endpoint import MetricsEndpoint

        listener = await self._listen(address, "--metrics-listen")
        stack.callback(listener.close)
        host, port = self.metrics_address = listener.address
        log.info("metrics at http://%s:%d/metrics", f"[{host}]" if ":" in host else host, port)
        collector = Collector(self.cluster_id, self.config.node_id, loader, self._runtime.clock)
        collector.process = self._process
        if self.config.is_controller:
            loader.register(collector.elections)
        return MetricsEndpoint(self._runtime, listener, collector)

    async def _listen(self, address: Address, option: str) -> Listener:
        try:
            return await self._runtime.network.listen(*address)
        except (OSError, ValueError) as error:  # ValueError: malformed host name
            raise _cannot_listen(address, error, option) from None


def _cannot_listen(address: Address, error: Exception, option: str) -> NodeError:
    reason, advice = str(error), "choose another"
    if isinstance(error, OSError):
        reason = error.strerror or reason
        advice = _LISTEN_ADVICE.get(error.errno or 0, advice)
    host, port = address
    if isinstance(error, socket.gaierror):
        advice = f"{host!r} must be an address or host name of this machine; choose another"
    elif isinstance(error, OSError) and error.errno == errno.EINVAL and "%" not in host:
        advice = "add the interface to a link-local address, as in fe80::1%eth0, or choose another"
    text = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return NodeError(f"cannot listen on {text}: {reason}; {advice} {option}")


def _sentence(error: BaseException) -> str:
    """Return the message of the first error; the others are its consequences."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if is_out_of_descriptors(error) and "limit of open files" not in str(error):
        return f"{error}; raise the limit of open files (ulimit -n, fs.file-max)"
    return error.message if isinstance(error, KafkaError) else str(error)
