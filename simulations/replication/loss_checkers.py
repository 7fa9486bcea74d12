"""What replicas lose is written down, and what is damaged on one disk gets no further."""

from collections.abc import Sequence
from typing import Final

from dataplane.log.segments.names import parse_partition_folder
from dataplane.replication.truncation_ledger import (
    FILE_NAME,
    OLD_FILE_NAME,
    Acknowledged,
    Reason,
    decode_lines,
)
from dataplane.replication.truncation_ledger import Entry as Line
from metaquorum.metadata.records import RegisterWorkerRecord
from simulations.cluster.cluster_state import ClusterChecker, ClusterState
from simulations.kernel.storage import Inode, Storage
from simulations.replication.replica_checkers import WatchingChecker
from simulations.replication.replicas import Name, PartitionHistory, ReplicaLog, Role

_DATA: Final = "/data"
_OF_UNCLEAN_ELECTIONS: Final = (Reason.UNCLEAN_ELECTION, Reason.LEADER_LOST_IT)


class LedgerChecker(WatchingChecker):
    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self._known: dict[Inode, tuple[int, list[Line]]] = {}

    def _lines(self, storage: Storage) -> list[Line]:
        """As a loss of power would leave them."""
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
    """The truncation ledger has every cut before it is made, and every loss of a leader in time."""

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
            "{}: worker {} cuts {}, of which its ledger says nothing",
            history,
            replica.worker_id,
            lacks[:3],
        )

    def finals(self) -> None:
        """All is well again: what was committed and is gone was said to be so by who leads."""
        for history in self.cluster_history.histories.values():
            if self.cluster_history.state(history) is None:
                continue
            for name, (worker_id, storage) in history.gone.items():
                supervisor = self.cluster_state.members[worker_id].supervisor
                if supervisor.machine.storage is not storage or name.offset < history.deleted_to:
                    continue  # the ledger went with the disk; somebody deleted it
                if not any(
                    term.worker_id == worker_id and epoch > name.leader_epoch
                    for epoch, term in history.terms.items()
                ):
                    continue  # it was elected, and fell before it led
                lines = self._lines(storage)
                self.compare(
                    any(
                        _covers(line, history, name) and line.acknowledged is not Acknowledged.NO
                        for line in lines
                    ),
                    "{}: {} was committed, worker {} led without it, and its ledger has only {}",
                    history,
                    name,
                    worker_id,
                    [line.range_text for line in lines if line.topic_id == history.place.topic_id],
                )


class RecordedWasLost(LedgerChecker):
    """The ledgers tell of no loss of acknowledged records where nobody can have lost any.

    A process that was paused, cut off, killed, stopped or unregistered has lost nothing of what it
    wrote. A replica may, whose machine has lost power or its disk, or failed to sync, since the
    replica is there; and one of which bits have changed on the disk. An election that was unclean
    excuses entries of such elections, and of what their leaders had not, and no others.

    Excused are entries of lost logs of which nothing was noted (a new directory cannot tell of a
    partition that it was given before its first checkpoint that no other directory had it), and of
    torn tails that were perhaps acknowledged (a process can be killed within a write).
    """

    invariant = "R9"

    def finals(self) -> None:
        for history in self.cluster_history.histories.values():
            at = history.topic, history.place.partition
            if any(
                replica.may_have_lost or (worker_id, at) in self.cluster_history.moved_away
                for worker_id, replica in history.replicas.items()
            ):
                continue
            recorded = [
                (supervisor.name, line.reason.value, line.range_text, line.detail)
                for supervisor in (
                    self.cluster_state.members[worker_id].supervisor
                    for worker_id in history.replicas
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
                "{}: nobody can have lost anything, and ledgers tell of {}",
                history,
                recorded,
            )


def _is_torn_tail(line: Line) -> bool:
    """A write that a kill interrupted, of which nobody was told that it is there.

    The ledger says "perhaps" of it, as recovery looks at the log alone: it does not ask yet whether
    the machine has been up since (start marks), in which case the tail was acknowledged to nobody.
    """
    return line.reason is Reason.RECOVERY and line.acknowledged is Acknowledged.PERHAPS


class LiveWorkersStay(WatchingChecker):
    """Nobody unregisters a worker that may lead, or be in sync."""

    invariant = "R12"

    def unregistered(self, worker: RegisterWorkerRecord) -> None:
        self.compare(
            worker.fenced, "worker {} is unregistered, and is not fenced", worker.worker_id
        )


def _covers(line: Line, history: PartitionHistory, name: Name) -> bool:
    return (
        (line.topic_id, line.partition) == history.place
        and line.offset <= name.offset
        and (line.end_offset < 0 or name.offset < line.end_offset)
    )


class DamageStaysWhereItIs(WatchingChecker):
    """No replica takes over damaged records, and nobody reads any but from a damaged disk."""

    invariant = "L4"

    def took(self, history: PartitionHistory, replica: ReplicaLog, damaged: Sequence[int]) -> None:
        self.compare(
            not damaged,
            "{}: worker {} takes damaged batches at {}",
            history,
            replica.worker_id,
            damaged,
        )

    def read_damaged(self, history: PartitionHistory, offset: int, who: str) -> None:
        self.cluster_state.world.count("damaged batches read")
        self.compare(
            any(replica.damaged for replica in history.replicas.values()),
            "{}: {} reads a damaged batch at {}, and no disk has changed it",
            history,
            who,
            offset,
        )


class SoundLogsOpen(WatchingChecker):
    """A log that a process does not open lies on a disk that has changed it, or refuses to read it.

    Or on one that has lost power, or its process, after it failed to sync: what was to be durable
    then may be gone in parts.
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
            "worker {} refuses {}, whose disk did nothing wrong: {}",
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
