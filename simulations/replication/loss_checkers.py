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
from simulations.cluster.cluster_state import ClusterChecker, Nation
from simulations.kernel.storage import Inode, Storage
from simulations.replication.replica_checkers import WatchingChecker
from simulations.replication.replicas import Held, Name, PartitionStory, Role

_DATA: Final = "/data"
_OF_UNCLEAN_ELECTIONS: Final = (Reason.UNCLEAN_ELECTION, Reason.LEADER_LOST_IT)


class LedgerChecker(WatchingChecker):
    def __init__(self, nation: Nation) -> None:
        super().__init__(nation)
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

    def cut(self, story: PartitionStory, held: Held, names: Sequence[Name], role: Role) -> None:
        if not names or self.nation.members[held.worker_id].kept.impaired:
            return
        lines = self._lines(held.machine.storage)
        lacks = [name for name in names if not any(_covers(line, story, name) for line in lines)]
        self.compare(
            not lacks,
            "{}: worker {} cuts {}, of which its ledger says nothing",
            story,
            held.worker_id,
            lacks[:3],
        )

    def finals(self) -> None:
        """All is well again: what was committed and is gone was said to be so by who leads."""
        for story in self.chronicle.stories.values():
            if self.chronicle.state(story) is None:
                continue
            for name, (worker_id, storage) in story.gone.items():
                kept = self.nation.members[worker_id].kept
                if kept.machine.storage is not storage or name.offset < story.deleted_to:
                    continue  # the ledger went with the disk; somebody deleted it
                lines = self._lines(storage)
                self.compare(
                    any(
                        _covers(line, story, name) and line.acknowledged is not Acknowledged.NO
                        for line in lines
                    ),
                    "{}: {} was committed, worker {} led without it, and its ledger has only {}",
                    story,
                    name,
                    worker_id,
                    [line.range_text for line in lines if line.topic_id == story.place.topic_id],
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
        for story in self.chronicle.stories.values():
            at = story.topic, story.place.partition
            if any(
                held.may_have_lost or (worker_id, at) in self.chronicle.moved_away
                for worker_id, held in story.held.items()
            ):
                continue
            told = [
                (kept.name, line.reason.value, line.range_text, line.detail)
                for kept in (self.nation.members[worker_id].kept for worker_id in story.held)
                for line in self._lines(kept.machine.storage)
                if (line.topic_id, line.partition) == story.place
                and line.acknowledged is not Acknowledged.NO
                and not (line.reason is Reason.LOST_LOG and line.high_watermark < 0)
                and not (story.was_unclean and line.reason in _OF_UNCLEAN_ELECTIONS)
                and not _is_torn_tail(line)
            ]
            self.compare(
                not told, "{}: nobody can have lost anything, and ledgers tell of {}", story, told
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


def _covers(line: Line, story: PartitionStory, name: Name) -> bool:
    return (
        (line.topic_id, line.partition) == story.place
        and line.offset <= name.offset
        and (line.end_offset < 0 or name.offset < line.end_offset)
    )


class DamageStaysWhereItIs(WatchingChecker):
    """No replica takes over damaged records, and nobody reads any but from a damaged disk."""

    invariant = "L4"

    def took(self, story: PartitionStory, held: Held, damaged: Sequence[int]) -> None:
        self.compare(
            not damaged,
            "{}: worker {} takes damaged batches at {}",
            story,
            held.worker_id,
            damaged,
        )

    def read_damaged(self, story: PartitionStory, offset: int, who: str) -> None:
        self.nation.world.count("damaged batches read")
        self.compare(
            any(held.damaged for held in story.held.values()),
            "{}: {} reads a damaged batch at {}, and no disk has changed it",
            story,
            who,
            offset,
        )


class SoundLogsOpen(WatchingChecker):
    """A log that a process does not open lies on a disk that has changed it, or refuses to read it.

    Or on one that has lost power, or its process, after it failed to sync: what was to be durable
    then may be gone in parts.
    """

    invariant = "L4"

    def opened(self, story: PartitionStory, held: Held, missing: Sequence[Name]) -> None:
        self.compare(True, "")

    def refused(self, worker_id: int, folder: str, reason: str) -> None:
        kept = self.nation.members[worker_id].kept
        at = parse_partition_folder(folder.rsplit("/", 1)[1])
        replicas = [
            held
            for story in self.chronicle.stories.values()
            if (story.topic, story.place.partition) == at
            and (held := story.held.get(worker_id)) is not None
        ]
        has_changed = any(
            held.damaged or held.rotten or held.sync_failures > held.earlier_sync_failures
            for held in replicas
        )
        self.compare(
            has_changed or kept.impaired,
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
