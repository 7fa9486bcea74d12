"""Checkers of losses: the truncation ledger records them, and damage of a disk does not spread."""

from collections.abc import Sequence
from typing import Final

from metaquorum.dataplane.log.segments.names import parse_partition_folder
from metaquorum.dataplane.replication.truncation_ledger import (
    FILE_NAME,
    OLD_FILE_NAME,
    Acknowledged,
    Reason,
    decode_lines,
)
from metaquorum.dataplane.replication.truncation_ledger import Entry as Line
from metaquorum.metadata.records import RegisterWorkerRecord
from metaquorum.simulations.cluster.cluster_state import ClusterChecker, ClusterState
from metaquorum.simulations.kernel.storage import Inode, Storage
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replicas import Name, PartitionHistory, ReplicaLog, Role

_DATA: Final = "/data"
_OF_UNCLEAN_ELECTIONS: Final = (Reason.UNCLEAN_ELECTION, Reason.LEADER_LOST_IT)


class LedgerChecker(WatchingChecker):
    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self._known: dict[Inode, tuple[int, list[Line]]] = {}

    def _lines(self, storage: Storage) -> list[Line]:
        """Return the ledger lines that are synced, and so would survive a loss of power."""
        files = storage.durable_files(_DATA)
        found: list[Line] = []
        for name in (OLD_FILE_NAME, FILE_NAME):
            inode = files.get(name)
            if inode is None:
                continue
            known = self._known.get(inode)
            if known is None or known[0] != inode.version:
                known = inode.version, decode_lines(bytes(inode.durable))[0]
                self._known[inode] = known
            found += known[1]
        return found


class LossesAreRecorded(LedgerChecker):
    """Every loss of records is in the truncation ledger.

    The entry of a truncation is synced before the log is truncated, that of a leader's loss by the
    end of the run.
    """

    invariant = "R9"

    def cut(
        self, history: PartitionHistory, replica: ReplicaLog, names: Sequence[Name], role: Role
    ) -> None:
        if not names or self.cluster_state.members[replica.worker_id].supervisor.impaired:
            return
        lines = self._lines(replica.machine.storage)
        lacks = [name for name in names if not any(_covers(line, history, name) for line in lines)]
        self.compare(
            not lacks,
            "{}: worker {} truncates {}, which its ledger does not have",
            history,
            replica.worker_id,
            lacks[:3],
        )

    def finals(self) -> None:
        """Check that the ledger of the leader that lost a committed record has that record."""
        for history in self.cluster_history.histories.values():
            if self.cluster_history.state(history) is None:
                continue
            for name, (worker_id, storage) in history.gone.items():
                supervisor = self.cluster_state.members[worker_id].supervisor
                if supervisor.machine.storage is not storage or name.offset < history.deleted_to:
                    continue  # the ledger was lost with the disk, or a client deleted the record
                led = [
                    epoch
                    for epoch, term in history.terms.items()
                    if term.worker_id == worker_id and epoch > name.leader_epoch
                ]
                if not led:
                    continue  # the worker was elected, but stopped before it led
                lines = self._lines(storage)
                # Power was perhaps lost before its entry was synced: a later leader has one then.
                for epoch, term in history.terms.items():
                    if epoch > min(led) and term.worker_id != worker_id:
                        later = self.cluster_state.members[term.worker_id].supervisor
                        lines = [*lines, *self._lines(later.machine.storage)]
                self.compare(
                    any(
                        _covers(line, history, name) and line.acknowledged is not Acknowledged.NO
                        for line in lines
                    ),
                    "{}: {} was committed, worker {} led without it, but its ledger has only {}",
                    history,
                    name,
                    worker_id,
                    [line.range_text for line in lines if line.topic_id == history.place.topic_id],
                )


class RecordedWasLost(LedgerChecker):
    """The ledgers have no loss of acknowledged records if no replica can have lost any.

    A process that was paused, cut off, killed, stopped or unregistered keeps all that it wrote. A
    replica may lose records if, after its creation, its machine lost power or its disk, a sync
    failed, or bits of its files changed on the disk. An unclean election excuses entries with the
    reason UNCLEAN_ELECTION or LEADER_LOST_IT, and no others.

    Two kinds of entries are excused: lost logs without a known high watermark (before its first
    checkpoint, a new directory does not know whether another directory had the partition), and
    torn tails that were perhaps acknowledged (a process can be killed within a write).
    """

    invariant = "R9"

    def finals(self) -> None:
        for history in self.cluster_history.histories.values():
            at = history.topic, history.place.partition
            replicas = [*history.removed.items(), *history.replicas.items()]
            if any(
                replica.may_have_lost or (worker_id, at) in self.cluster_history.moved_away
                for worker_id, replica in replicas
            ):
                continue
            recorded = [
                (supervisor.name, line.reason.value, line.range_text, line.detail)
                for supervisor in (
                    self.cluster_state.members[worker_id].supervisor
                    for worker_id in {worker_id: None for worker_id, _ in replicas}
                )
                for line in self._lines(supervisor.machine.storage)
                if (line.topic_id, line.partition) == history.place
                and line.acknowledged is not Acknowledged.NO
                and not (line.reason is Reason.LOST_LOG and line.high_watermark < 0)
                and not (history.was_unclean and line.reason in _OF_UNCLEAN_ELECTIONS)
                and not _is_torn_tail(line)
            ]
            self.compare(
                not recorded,
                "{}: no replica can have lost records, but the ledgers have {}",
                history,
                recorded,
            )


def _is_torn_tail(line: Line) -> bool:
    """Return whether the line is of a write that a kill interrupted before it was acknowledged.

    The ledger marks it as perhaps acknowledged, as recovery reads only the log. Recovery does not
    yet check the boot markers: if the machine has stayed up, the tail was not acknowledged.
    """
    return line.reason is Reason.RECOVERY and line.acknowledged is Acknowledged.PERHAPS


class LiveWorkersStay(WatchingChecker):
    """Only fenced workers are unregistered; they can neither lead nor be in sync."""

    invariant = "R12"

    def unregistered(self, worker: RegisterWorkerRecord) -> None:
        self.compare(
            worker.fenced, "worker {} is unregistered while it is not fenced", worker.worker_id
        )


def _covers(line: Line, history: PartitionHistory, name: Name) -> bool:
    return (
        (line.topic_id, line.partition) == history.place
        and line.offset <= name.offset
        and (line.end_offset < 0 or name.offset < line.end_offset)
    )


class DamageStaysWhereItIs(WatchingChecker):
    """No follower appends damaged batches; clients read them only from a damaged disk."""

    invariant = "L4"

    def took(self, history: PartitionHistory, replica: ReplicaLog, damaged: Sequence[int]) -> None:
        self.compare(
            not damaged,
            "{}: worker {} appends damaged batches at {}",
            history,
            replica.worker_id,
            damaged,
        )

    def read_damaged(self, history: PartitionHistory, offset: int, who: str) -> None:
        self.cluster_state.world.count("damaged batches read")
        self.compare(
            any(replica.damaged for replica in history.replicas.values()),
            "{}: {} reads a damaged batch at {}, but no disk is damaged",
            history,
            who,
            offset,
        )


class SoundLogsOpen(WatchingChecker):
    """A process refuses to open a log only after a fault of its disk.

    The disk has changed bytes, fails reads, or failed a sync before the machine lost power or its
    process was killed: data that was not synced may be partly lost then.
    """

    invariant = "L4"

    def opened(
        self, history: PartitionHistory, replica: ReplicaLog, missing: Sequence[Name]
    ) -> None:
        self.compare(True, "")

    def refused(self, worker_id: int, folder: str, reason: str) -> None:
        supervisor = self.cluster_state.members[worker_id].supervisor
        at = parse_partition_folder(folder.rsplit("/", 1)[1])
        replicas = [
            replica
            for history in self.cluster_history.histories.values()
            if (history.topic, history.place.partition) == at
            and (replica := history.replicas.get(worker_id)) is not None
        ]
        has_changed = any(
            replica.damaged
            or replica.rotten
            or replica.sync_failures > replica.earlier_sync_failures
            for replica in replicas
        )
        self.compare(
            has_changed or supervisor.impaired,
            "worker {} refuses {}, but its disk had no fault: {}",
            worker_id,
            folder,
            reason,
        )


LOSS_CHECKERS: Final[tuple[type[ClusterChecker], ...]] = (
    LossesAreRecorded,
    RecordedWasLost,
    LiveWorkersStay,
    DamageStaysWhereItIs,
    SoundLogsOpen,
)
