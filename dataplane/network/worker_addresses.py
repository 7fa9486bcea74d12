"""Where clients reach the workers of the cluster, as the metadata says.

A client is sent on by listeners of the same name as the one by which it came: workers without such
a listener are not named to it.
"""

from collections.abc import Iterator

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import RegisterWorkerRecord
from wire.primitives.frozen import frozen


@frozen
class WorkerAddress:
    """Where clients reach a worker of the cluster."""

    worker_id: int
    host: str
    port: int
    rack: str | None

    @classmethod
    def of(cls, record: RegisterWorkerRecord, listener: str) -> "WorkerAddress | None":
        """None: it has no listener of that name."""
        for endpoint in record.endpoints:
            if endpoint.listener == listener:
                return cls(record.worker_id, endpoint.host, endpoint.port, record.rack)
        return None


def live_workers(image: MetadataImage, listener: str) -> Iterator[WorkerAddress]:
    """Workers that are not fenced and that clients of a listener of that name can reach."""
    for record in image.workers.values():
        if not record.fenced and (address := WorkerAddress.of(record, listener)) is not None:
            yield address


def live_worker_ids(image: MetadataImage) -> Iterator[int]:
    """Workers that are not fenced."""
    return (record.worker_id for record in image.workers.values() if not record.fenced)
