"""What a handler may touch of its worker: one Protocol for each part that several families share.

A handler's parameter `worker` names the parts that it, and what it calls, may touch: one of these,
or a Protocol at the head of the handler's module that joins some of them with what only that family
needs. `dataplane.worker.context.Worker` has all of them; the dispatcher, which alone knows the
whole worker, passes it on, and mypy proves that it has what each handler asks for. Nothing of this
costs anything when a request is handled: a handler gets the worker itself.

`Has...` is one part; the others are what several families do. All parts are read-only: a handler
may change what a part lets it change, and cannot put another in its place. To let a family touch
more, add a base to its Protocol. Tests: `tests/dataplane/worker/test_capabilities.py`.
"""

from typing import Protocol

import trio

from dataplane.partition.partition import Partition
from dataplane.quotas.client_quota_manager import ClientQuotas
from dataplane.scheduling.time_slices import TimeSlicer
from metaquorum.config.resolution import WorkerLayers
from metaquorum.metadata.image import MetadataImage
from metaquorum.rpc.controller_client import ControllerClient
from metaquorum.runtime import Clock, Disk, StorageError
from wire.primitives.types import Uuid


class HasImage(Protocol):
    @property
    def image(self) -> MetadataImage:
        """The metadata as all parts of this worker have taken it in."""


class HasWorkerId(Protocol):
    @property
    def worker_id(self) -> int: ...


class HasControllerClient(Protocol):
    @property
    def controller_client(self) -> ControllerClient:
        """How the active controller is asked, for changes and for what only it knows."""


class HasSlicer(Protocol):
    @property
    def slicer(self) -> TimeSlicer:
        """Does long work in slices, with turns for others between them."""


class HasClock(Protocol):
    @property
    def clock(self) -> Clock: ...


class HasDisk(Protocol):
    @property
    def disk(self) -> Disk: ...


class HasLayers(Protocol):
    @property
    def layers(self) -> WorkerLayers:
        """What configs are in force for topics that have none of their own."""


class HasQuotas(Protocol):
    @property
    def quotas(self) -> ClientQuotas: ...


class PartitionLookup(Protocol):
    """The partitions of this worker, for requests that name them; nothing is added or removed."""

    def by_name(self, topic: str, index: int) -> Partition: ...

    def by_id(self, topic_id: Uuid, index: int) -> Partition: ...


class HasPartitions(Protocol):
    @property
    def replica_manager(self) -> PartitionLookup: ...


class FailsPartitions(Protocol):
    def partition_failed(self, partition: Partition, error: StorageError) -> None:
        """The partition's log directory has failed under a request: it goes offline."""


class OpensBatches(HasDisk, Protocol):
    """May decompress batches in a worker thread."""

    @property
    def opening_batch(self) -> trio.Lock:
        """Held meanwhile: one batch may decompress to a hundred megabytes."""


class ReadsMetadata(HasImage, HasSlicer, Protocol):
    """May read the metadata, of as many rows as there are."""


class ReadsPartitions(HasPartitions, HasSlicer, Protocol):
    """May look up partitions, as many as a request names."""


class AsksController(HasControllerClient, HasSlicer, Protocol):
    """May ask the active controller, for as many changes as a request names."""
