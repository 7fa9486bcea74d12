"""Addresses of the cluster's workers for clients, from the metadata.

A client receives the addresses of the listeners with the same name as the listener it is connected
to, but none of workers without a listener of that name.
"""

from collections.abc import Iterator, Set

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import RegisterWorkerRecord
from metaquorum.wire.primitives.frozen import frozen


@frozen
class WorkerAddress:
    """Advertised address of a worker on one listener."""

    worker_id: int
    host: str
    port: int
    rack: str | None

    @classmethod
    def of(cls, record: RegisterWorkerRecord, listener: str) -> "WorkerAddress | None":
        """Return the worker's address on `listener`; None if it has no listener of that name."""
        for endpoint in record.endpoints:
            if endpoint.listener == listener:
                return cls(record.worker_id, endpoint.host, endpoint.port, record.rack)
        return None


def live_workers(
    image: MetadataImage, listener: str, also: Set[int] = frozenset()
) -> Iterator[WorkerAddress]:
    """Yield the addresses of unfenced workers, and of `also`, with a listener of that name."""
    for record in image.workers.values():
        if (not record.fenced or record.worker_id in also) and (
            address := WorkerAddress.of(record, listener)
        ) is not None:
            yield address


def live_worker_ids(image: MetadataImage) -> Iterator[int]:
    """Return an iterator over the ids of unfenced workers."""
    return (record.worker_id for record in image.workers.values() if not record.fenced)
