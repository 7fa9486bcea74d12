"""Start configuration of a node; all other settings come from the metadata log."""

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from metaquorum.dataplane.log.segments.files import LEAST_OPEN_FILES, MAX_OPEN_FILES
from metaquorum.dataplane.network.listeners import (
    DEFAULT_NAME,
    ClientListener,
    ReplicationListener,
    SecurityProtocol,
)
from metaquorum.security.tls_context import TlsFiles
from metaquorum.wire.primitives.frozen import frozen

CONTROLLER: Final = "controller"
WORKER: Final = "worker"
ALL_ROLES: Final = frozenset((CONTROLLER, WORKER))
# Largest batch under the default message.max.bytes: its write to the page cache takes 0.2 ms, and
# a switch to a worker thread would take as long.
INLINE_APPEND_BYTES: Final = 1024 * 1024 + 12

# Descriptors that are neither files of logs nor connections of clients, and not more than this part
# of a low limit: the metadata log, checkpoints, syncs, and connections to other nodes.
OTHER_OPEN_FILES: Final = 256
_SHARE: Final = 4

Address = tuple[str, int]


@frozen
class NodeConfig:
    node_id: int
    data_dir: str  # absolute
    listen: Address  # for clients of a worker; port 0: any free port
    advertise: tuple[str, int | None]  # host and port for clients; port None: the bound one
    # Client listeners; empty: one PLAINTEXT listener at `listen`.
    listeners: tuple[ClientListener, ...] = ()
    replicating: ReplicationListener | None = None  # None: the default listener
    # Absolute paths; empty: the data directory is the only log directory.
    log_dirs: tuple[str, ...] = ()
    roles: frozenset[str] = ALL_ROLES
    # Quorum addresses of all controllers, by node id; empty: a single-node cluster.
    controllers: Mapping[int, Address] = field(default_factory=dict)
    # Address at which a controller listens to other nodes; None: its own address in `controllers`.
    quorum_listen: Address | None = None
    cluster_id: str | None = None  # None: the data directory's, or a new id for a new cluster
    secret: bytes | None = field(default=None, repr=False)  # the cluster's; None in a single node
    tls: TlsFiles | None = None  # for connections between nodes
    host: str = "localhost"  # name of the machine, for the placement of replicas
    rack: str | None = None
    metrics_listen: Address | None = None  # address of the metrics endpoint; None: disabled
    # Whether limits of connections in the metadata log are ignored: a way in if they refuse all.
    ignores_connection_limits: bool = False
    inline_append_bytes: int = INLINE_APPEND_BYTES  # larger appends run in a worker thread
    # Limit of open files of this process, of which logs and connections have a share each; None: no
    # limit. Without these shares, clients could take the last descriptor of a log's next segment.
    open_files: int | None = None
    # Kafka's worker configs as text, validated by the reader of the file.
    configs: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def max_log_files(self) -> int:
        """Most files of logs that are open at a time, in all log directories."""
        directories = max(1, len(self.log_dirs))
        most = max(MAX_OPEN_FILES, LEAST_OPEN_FILES * directories)
        if self.open_files is None:
            return most
        return max(directories, min(most, self.open_files // _SHARE))

    @property
    def max_connections(self) -> int | None:
        """Most connections of clients for which there are descriptors; None: no limit."""
        if self.open_files is None:
            return None
        others = min(OTHER_OPEN_FILES, self.open_files // _SHARE)
        return max(1, self.open_files - self.max_log_files - others)

    @property
    def client_listeners(self) -> tuple[ClientListener, ...]:
        plain = SecurityProtocol.PLAINTEXT
        return self.listeners or (ClientListener(DEFAULT_NAME, plain, self.listen, self.advertise),)

    @property
    def between_workers(self) -> ReplicationListener:
        return self.replicating or ReplicationListener(DEFAULT_NAME, SecurityProtocol.PLAINTEXT)

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.roles

    @property
    def is_worker(self) -> bool:
        return WORKER in self.roles

    @property
    def is_alone(self) -> bool:
        """Whether the node is a single-node cluster that no other node can join."""
        return not self.controllers

    @property
    def founds_cluster(self) -> bool:
        """Whether an empty data directory may become a new cluster: this node is the only voter."""
        return self.is_controller and set(self.controllers) <= {self.node_id}
