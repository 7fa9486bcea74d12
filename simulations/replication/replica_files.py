"""Checker of the files that a clean stop at the end of a run leaves on each worker's disk."""

from typing import Final

from metaquorum.dataplane.log.segments.names import parse_partition_folder
from metaquorum.simulations.checkers.log_files import ScansLogs, naive_segments
from metaquorum.simulations.cluster.cluster_state import Member
from metaquorum.simulations.harness.node import topic_id_of
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replicas import PartitionHistory, ReplicaLog
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState

_INTERVAL: Final = "index.interval.bytes"
_INTERVAL_BYTES: Final = 4096  # default


class ReplicaIndexIsScan(ScansLogs, WatchingChecker):
    """After a clean stop all segments of a replica are intact, and their indexes match a scan.

    This includes logs that were truncated, emptied, compacted, or opened by a later process.
    """

    invariant = "L5"

    def stopped(self, history: PartitionHistory, replica: ReplicaLog, folder: str) -> None:
        name = f"worker {replica.worker_id}: {history}"
        segments = naive_segments(replica.machine.storage, folder)
        configs = self.cluster_state.settings.configs
        interval = history.configs.get(_INTERVAL, configs.get(f"log.{_INTERVAL}", _INTERVAL_BYTES))
        end = self.scan(
            name,
            segments,
            may_skip=history.compacts,
            sparse_bytes=int(interval),
            restarts=replica.machine.runs + replica.cuts,
        )
        if segments:
            self.compare(
                end == replica.end and segments[0].base_offset <= replica.start,
                "{} has offsets {} to {} on disk, but had {} to {} before the stop",
                name,
                segments[0].base_offset,
                end,
                replica.start,
                replica.end,
            )
        if replica.cuts:
            self.cluster_state.world.count("logs scanned that had been cut")


def scan_replicas(cluster_state: ReplicatedClusterState) -> None:
    """Scan every log of the workers whose disks had no fault; all workers have stopped."""
    if cluster_state.world.violations:
        return
    for member in cluster_state.workers:
        if not member.supervisor.impaired:
            _scan_worker(cluster_state, member)


def log_folders(member: Member) -> list[str]:
    """Return the paths of everything in the log directories of a worker."""
    storage = member.supervisor.machine.storage
    return [
        f"{path}/{name}"
        for path in member.log_dirs
        if path[1:] in storage.folder("/").entries
        for name in sorted(storage.folder(path).entries)
    ]


def _scan_worker(cluster_state: ReplicatedClusterState, member: Member) -> None:
    checker = cluster_state.checker(ReplicaIndexIsScan)
    storage, worker_id = member.supervisor.machine.storage, member.config.node_id
    for folder in log_folders(member):
        at = parse_partition_folder(folder.rsplit("/", 1)[1])
        topic_id = None if at is None else topic_id_of(storage, folder)
        if at is None or topic_id is None:
            continue
        history = cluster_state.cluster_history.history(topic_id, at[1])
        replica = history.replicas.get(worker_id)
        if replica is not None and replica.storage is storage and not replica.damaged:
            checker.stopped(history, replica, folder)
