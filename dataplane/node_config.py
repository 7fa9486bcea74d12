"""What a node is told when it starts; everything else it learns from the metadata log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

CONTROLLER: Final = "controller"
WORKER: Final = "worker"
ALL_ROLES: Final = frozenset((CONTROLLER, WORKER))


@dataclass(frozen=True, slots=True)
class NodeConfig:
    node_id: int
    data_dir: str  # absolute
    listen: tuple[str, int]  # port 0: any free one
    advertise: tuple[str, int | None]  # None: the port that was bound
    # Absolute; none: the data directory is the only one.
    log_dirs: tuple[str, ...] = ()
    roles: frozenset[str] = ALL_ROLES
    quorum: tuple[int, ...] = ()
    host: str = "localhost"  # the machine, for placement
    rack: str | None = None
    # Kafka's worker configs, as text; checked by whoever read them.
    configs: Mapping[str, str] = field(default_factory=dict)
