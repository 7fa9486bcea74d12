"""Partitions with replicas, without a worker."""

from metaquorum.dataplane.partition.partition import Partition, ReplicaContext
from metaquorum.metadata.image import PartitionImage


class Setting:
    """Context of a worker's partitions: a manual clock, and the ids of ineligible replicas."""

    def __init__(self, worker_id: int = 1, *, lag_s: float = 10.0) -> None:
        self.now = 0.0
        self.ineligible: set[int] = set()
        self.due: list[Partition] = []
        self.context = ReplicaContext(
            worker_id,
            lambda: 100 + worker_id,
            lambda: self.now,
            lag_s,
            lambda replica_id, _: replica_id not in self.ineligible,
            {},
            self.due.append,
        )


def state(
    leader: int,
    leader_epoch: int,
    replicas: tuple[int, ...] = (1,),
    isr: tuple[int, ...] | None = None,
    partition_epoch: int | None = None,
) -> PartitionImage:
    return PartitionImage(
        replicas,
        replicas if isr is None else isr,
        leader,
        leader_epoch,
        leader_epoch if partition_epoch is None else partition_epoch,
    )
