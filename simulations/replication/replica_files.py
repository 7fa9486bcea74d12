"""The files of replicas, once all is over: what a clean stop leaves on each worker's disk."""

from typing import Final

from dataplane.log.segments.names import parse_partition_folder
from simulations.checkers.log_files import ScansLogs, naive_segments
from simulations.cluster.cluster_state import Member
from simulations.replication.replica_checkers import WatchingChecker
from simulations.replication.replica_faults import DATA, topic_id_of
from simulations.replication.replicas import Held, PartitionStory
from simulations.replication.replicated_cluster import WatchedNation

_INTERVAL: Final = "index.interval.bytes"
_INTERVAL_BYTES: Final = 4096  # by default


class ReplicaIndexIsScan(ScansLogs, WatchingChecker):
    """After a clean stop the segments of every replica are sound, and indexed as a scan would.

    Also where it has been cut, began anew, was compacted, or is another process's by now.
    """

    invariant = "L5"

    def stopped(self, story: PartitionStory, held: Held, folder: str) -> None:
        name = f"worker {held.worker_id}: {story}"
        segments = naive_segments(held.machine.storage, folder)
        configs = self.nation.settings.configs
        interval = story.configs.get(_INTERVAL, configs.get(f"log.{_INTERVAL}", _INTERVAL_BYTES))
        end = self.scan(
            name,
            segments,
            may_skip=story.compacts,
            sparse_bytes=int(interval),
            restarts=held.machine.runs + held.cuts,
        )
        if segments:
            self.compare(
                end == held.end and segments[0].base_offset <= held.start,
                "{} has {} to {} on disk, and had {} to {}",
                name,
                segments[0].base_offset,
                end,
                held.start,
                held.end,
            )
        if held.cuts:
            self.nation.world.count("logs scanned that had been cut")


def scan_replicas(nation: WatchedNation) -> None:
    """Every log of each worker that has stopped, and whose disk did nothing wrong to it."""
    if nation.world.violations:
        return
    for member in nation.workers:
        if not member.kept.impaired:
            _scan_worker(nation, member)


def _scan_worker(nation: WatchedNation, member: Member) -> None:
    checker = nation.checker(ReplicaIndexIsScan)
    storage, worker_id = member.kept.machine.storage, member.config.node_id
    for name in sorted(storage.folder(DATA).entries):
        at, folder = parse_partition_folder(name), f"{DATA}/{name}"
        topic_id = None if at is None else topic_id_of(storage, folder)
        if at is None or topic_id is None:
            continue
        story = nation.chronicle.story(topic_id, at[1])
        held = story.held.get(worker_id)
        if held is not None and held.storage is storage and not held.damaged:
            checker.stopped(story, held, folder)
