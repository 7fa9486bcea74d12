"""Protocols for the parts of a worker that handlers may use.

The type of a handler's parameter `worker` lists the parts that the handler and its helpers may
use: one of these Protocols, or a Protocol at the head of the handler's module that joins some of
them with parts that only that family needs. `metaquorum.dataplane.worker.context.Worker` has all
parts; only the dispatcher has the whole type, and mypy proves that `Worker` satisfies each handler.
There is no cost at run time: a handler gets the worker itself.

A `Has...` Protocol is one part; the others join parts for a task of several families. All parts are
read-only attributes: a handler may call methods of a part, but cannot replace the part. To give a
family another part, add a base to its Protocol.
Tests: `tests/dataplane/worker/test_capabilities.py`.
"""

from typing import Protocol

import trio

from metaquorum.config.resolution import WorkerLayers
from metaquorum.dataplane.instruments.log_levels import LogLevels
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.quotas.client_quota_manager import ClientQuotas
from metaquorum.dataplane.scheduling.time_slices import TimeSlicer
from metaquorum.metadata.image import MetadataImage
from metaquorum.quorum.rpc.controller_client import ControllerClient
from metaquorum.runtime import Clock, Disk, StorageError
from metaquorum.wire.primitives.types import Uuid


class HasImage(Protocol):
    @property
    def image(self) -> MetadataImage:
        """Metadata image that all parts of this worker have applied."""


class HasWorkerId(Protocol):
    @property
    def worker_id(self) -> int: ...


class HasLogLevels(Protocol):
    @property
    def log_levels(self) -> LogLevels:
        """Levels of the loggers of this worker's process."""


class HasControllerClient(Protocol):
    @property
    def controller_client(self) -> ControllerClient:
        """Client for requests to the active controller."""


class HasSlicer(Protocol):
    @property
    def slicer(self) -> TimeSlicer:
        """Runner of long work in slices, between which other tasks run."""


class HasClock(Protocol):
    @property
    def clock(self) -> Clock: ...


class HasDisk(Protocol):
    @property
    def disk(self) -> Disk: ...


class HasLayers(Protocol):
    @property
    def layers(self) -> WorkerLayers:
        """Configs in force for topics that do not override them."""


class HasQuotas(Protocol):
    @property
    def quotas(self) -> ClientQuotas: ...


class PartitionLookup(Protocol):
    """Read-only lookup of this worker's partitions."""

    def by_name(self, topic: str, index: int) -> Partition: ...

    def by_id(self, topic_id: Uuid, index: int) -> Partition: ...


class HasPartitions(Protocol):
    @property
    def replica_manager(self) -> PartitionLookup: ...


class FailsPartitions(Protocol):
    def partition_failed(self, partition: Partition, error: StorageError) -> None:
        """Take `partition` offline after its log directory failed during a request."""


class OpensBatches(HasDisk, Protocol):
    """Parts for decompressing batches in a worker thread."""

    @property
    def opening_batch(self) -> trio.Lock:
        """Lock held during decompression: one batch may decompress to a hundred megabytes."""


class ReadsMetadata(HasImage, HasSlicer, Protocol):
    """Parts for reading any number of metadata rows."""


class ReadsPartitions(HasPartitions, HasSlicer, Protocol):
    """Parts for looking up any number of partitions."""


class AsksController(HasControllerClient, HasSlicer, Protocol):
    """Parts for sending any number of changes to the active controller."""
