"""A quorum of one voter: committed is what its own disk holds.

One task drives it:

    wait for proposals -> stage them all -> one sync for all -> replay each -> tell their proposers

What is proposed during a sync waits for the next one (group commit). Every start is a term of its
own, durable before anything is proposed in it, so that a batch says which process proposed it.
Entries that are found at the start are committed, whether or not their proposer was ever told.

A snapshot is written beside the loop each time the journal has grown by so much; journal segments
that not even the older of two snapshots needs are then removed.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import trio

from metaquorum.batch import Batch, decode_batch
from metaquorum.framing import DamagedError
from metaquorum.image import MetadataImage
from metaquorum.journal import Journal, JournalFullError
from metaquorum.journal_ops import Entry, LogPosition
from metaquorum.quorum import (
    Leadership,
    NotCommittedError,
    OutcomeUnknownError,
    QuorumStatus,
    StateMachine,
)
from metaquorum.records import RecordError
from metaquorum.runtime.seams import Disk, StorageError
from metaquorum.snapshot import (
    SNAPSHOTS_KEPT,
    SnapshotName,
    SnapshotReader,
    set_aside,
    tidy_up,
    write_snapshot,
)
from wire.errors import ErrorCode

logger = logging.getLogger(__name__)

SNAPSHOT_INTERVAL_BYTES: Final = 16 << 20  # of batches committed
MAX_PENDING_PROPOSALS: Final = 10_000
MAX_PENDING_BYTES: Final = 64 << 20
MAX_GROUP_PROPOSALS: Final = 1_000  # that share one sync
READ_ENTRIES: Final = 64  # of the journal at a time, at the start


class SingleProposal:
    """A batch on its way to disk."""

    __slots__ = ("_done", "_error", "batch", "payload")

    def __init__(self, batch: Batch, payload: bytes) -> None:
        self.batch = batch
        self.payload = payload
        self._done = trio.Event()
        self._error: Callable[[], Exception] | None = None

    async def wait(self) -> None:
        await self._done.wait()
        if self._error is not None:
            raise self._error()

    @property
    def is_decided(self) -> bool:
        return self._done.is_set()

    def succeed(self) -> None:
        self._done.set()

    def refuse(self, code: ErrorCode, reason: str, *, retry: bool = False) -> None:
        """It has not taken effect and never will."""
        self._error = lambda: NotCommittedError(code, reason, retry=retry)
        self._done.set()

    def lose(self, reason: str) -> None:
        """Nobody knows."""
        self._error = lambda: OutcomeUnknownError(reason)
        self._done.set()


class SingleVoter:
    """The only voter. `start`, then `run` in a task; `close` after that has ended."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        state_machine: StateMachine,
        node_id: int,
        snapshot_interval_bytes: int = SNAPSHOT_INTERVAL_BYTES,
        journal: Journal | None = None,
    ) -> None:
        """`directory` is the metadata's own; `state_machine` is empty yet."""
        self._disk = disk
        self._directory = directory
        self._machine = state_machine
        self._node_id = node_id
        self._snapshot_interval_bytes = snapshot_interval_bytes
        self._journal = journal or Journal(disk, directory, state_machine.image.cluster_id)
        self._term = 0
        self._active = False
        self._applied = LogPosition(0, 0)
        self._sequence = 0
        self._pending: deque[SingleProposal] = deque()
        self._pending_bytes = 0
        self._bytes_since_snapshot = 0
        self._snapshotting = False
        self._unneeded_index = 0  # the journal up to here can go
        self._kick = trio.Event()
        self._became_active = trio.Event()
        self._leadership_changed = trio.lowlevel.ParkingLot()

    @property
    def status(self) -> QuorumStatus:
        return QuorumStatus(
            node_id=self._node_id,
            voters=(self._node_id,),
            leader_id=self._node_id if self._active else None,
            term=self._term,
            commit_index=self._applied.index,
            end_offset=self._machine.image.end_offset,
            is_active=self._active,
        )

    async def wait_active(self) -> int:
        await self._became_active.wait()
        return self._term

    async def wait_change(self, known: Leadership) -> Leadership:
        while (leadership := self.status.leadership) == known:
            await self._leadership_changed.park()
        return leadership

    async def read_barrier(self) -> int:
        """As in `Quorum`; here whatever is acknowledged has been replayed before."""
        await trio.lowlevel.checkpoint()
        if not self._active:
            raise OutcomeUnknownError("the quorum is not running")
        return self._machine.image.end_offset

    def propose(self, term: int, expected_offset: int, records: Sequence[bytes]) -> SingleProposal:
        if not self._active or term != self._term:
            raise NotCommittedError(
                ErrorCode.NOT_CONTROLLER, f"this node does not lead the quorum in term {term}"
            )
        self._sequence += 1
        batch = Batch(
            term, self._node_id, self._sequence, expected_offset, len(records), b"".join(records)
        )
        proposal = SingleProposal(batch, batch.encode())
        if (
            len(self._pending) == MAX_PENDING_PROPOSALS
            or self._pending_bytes + len(proposal.payload) > MAX_PENDING_BYTES
        ):
            raise NotCommittedError(
                ErrorCode.REQUEST_TIMED_OUT, "too many changes of metadata are under way"
            )
        self._pending.append(proposal)
        self._pending_bytes += len(proposal.payload)
        self._kick.set()
        return proposal

    # Starting

    async def start(self) -> None:
        """The state machine is as the disk says, and a new term has begun. StorageError."""
        await self._disk.run(self._journal.open)
        if self._journal.torn_bytes:
            logger.warning(
                "cut off %d bytes of the journal that were never synced", self._journal.torn_bytes
            )
        try:
            await self._load_snapshot()
        except OSError as error:
            raise StorageError(f"{self._directory} cannot be used: {error}") from error
        await self._replay_journal()
        self._term = self._journal.hard_state.term + 1
        self._journal.set_hard_state(self._term, self._node_id)
        await self._journal.sync()
        self._active = True
        self._became_active.set()
        self._leadership_changed.unpark_all()

    async def _load_snapshot(self) -> None:
        """The newest snapshot that is not damaged, if there is one, is in the state machine."""
        for name in await self._disk.run(lambda: tidy_up(self._disk, self._directory)):
            try:
                await self._load(name)
            except DamagedError as error:
                logger.warning("%s; it is set aside, and an older one tried", error)
                await self._disk.run(lambda path=name.path: set_aside(self._disk, path))  # type: ignore[misc]
                continue
            self._applied = name.position
            break
        journal = self._journal
        if journal.base.index > self._applied.index:
            raise StorageError(
                f"{self._directory} has no readable snapshot of entry {journal.base.index} or"
                " later, where its journal begins; restore the folder from a backup"
            )
        if journal.last.index < self._applied.index:
            raise StorageError(
                f"the journal in {self._directory} ends at entry {journal.last.index}, before its"
                f" snapshot of entry {self._applied.index}; restore the folder from a backup"
            )

    async def _load(self, name: SnapshotName) -> None:
        reader = await self._disk.run(lambda: SnapshotReader(self._disk, name.path))
        try:
            image, header = self._machine.image, reader.header
            if header.cluster_id != image.cluster_id:
                raise StorageError(
                    f"{name.path} belongs to cluster {header.cluster_id}, not {image.cluster_id}"
                )
            if (header.end_offset, header.position) != (name.end_offset, name.position):
                raise DamagedError(f"{name.path} is damaged: it is not what its name says")
            self._machine.begin_load()
            while (records := await self._disk.run(reader.next_records)) is not None:
                await self._machine.load(records)
            self._machine.end_load(header.end_offset)
        finally:
            reader.close()

    async def _replay_journal(self) -> None:
        last_index = self._journal.last.index
        while (first_index := self._applied.index + 1) <= last_index:
            until = min(first_index + READ_ENTRIES - 1, last_index)
            for entry in await self._disk.run(
                lambda first=first_index, last=until: self._journal.read(first, last)  # type: ignore[misc]
            ):
                await self._apply(entry)

    async def _apply(self, entry: Entry) -> bool:
        """The entry is replayed, as it is on every replica; whether it took effect."""
        took_effect = False
        if entry.payload:  # else it only marks the beginning of a term
            try:
                batch = decode_batch(entry.payload)
                took_effect = await self._machine.apply(entry.term, batch)
            except RecordError as error:
                raise StorageError(f"entry {entry.index} in {self._directory}: {error}") from None
        self._applied = LogPosition(entry.index, entry.term)
        self._bytes_since_snapshot += len(entry.payload)
        return took_effect

    # Running

    async def run(self) -> None:
        """Proposals are committed, for ever. StorageError: this voter can do no more."""
        failure: StorageError | None = None
        try:
            async with trio.open_nursery() as nursery:
                try:
                    await self._drive(nursery)
                except StorageError as error:
                    failure = error
                    nursery.cancel_scope.cancel()
            assert failure is not None
            raise failure
        finally:
            self._active = False
            for proposal in self._pending:
                proposal.refuse(ErrorCode.NOT_CONTROLLER, "the quorum's voter has stopped")
            self._pending.clear()

    async def _drive(self, nursery: trio.Nursery) -> None:
        while True:
            await self._kick.wait()
            self._kick = trio.Event()
            while self._pending:
                await self._commit(self._next_group())
                if self._is_snapshot_due():
                    self._snapshotting = True
                    nursery.start_soon(self._snapshot, self._machine.image, self._applied)
            if self._unneeded_index:
                index, self._unneeded_index = self._unneeded_index, 0
                await self._journal.drop_prefix(index)

    def _next_group(self) -> list[SingleProposal]:
        group = [
            self._pending.popleft() for _ in range(min(len(self._pending), MAX_GROUP_PROPOSALS))
        ]
        self._pending_bytes -= sum(len(proposal.payload) for proposal in group)
        return group

    async def _commit(self, group: list[SingleProposal]) -> None:
        """Each of the group has its outcome; what took effect is durable and replayed."""
        entries: list[tuple[Entry, SingleProposal]] = []
        end_offset = self._machine.image.end_offset
        for proposal in group:
            if proposal.batch.expected_offset == end_offset:
                end_offset = proposal.batch.end_offset
                entry = Entry(self._journal.last.index + 1, self._term, proposal.payload)
                self._journal.append(entry)
                entries.append((entry, proposal))
            else:
                proposal.refuse(
                    ErrorCode.REQUEST_TIMED_OUT, "others changed the metadata first", retry=True
                )
        try:
            try:
                await self._journal.sync()
            except JournalFullError as error:
                logger.warning("%s: changes of metadata are refused", error)
                self._refuse_unwritten(entries, "the metadata log's disk is full")
            for entry, proposal in entries:
                if entry.index <= self._journal.durable.index:
                    assert await self._apply(entry), "an entry of ours was dropped"
                    proposal.succeed()
        finally:
            for proposal in group:
                if not proposal.is_decided:
                    proposal.lose("the voter stopped before it was known to be on disk")

    def _refuse_unwritten(self, entries: list[tuple[Entry, SingleProposal]], reason: str) -> None:
        for entry, proposal in entries:
            if entry.index > self._journal.durable.index:
                proposal.refuse(ErrorCode.KAFKA_STORAGE_ERROR, reason)

    def _is_snapshot_due(self) -> bool:
        return (
            not self._snapshotting and self._bytes_since_snapshot >= self._snapshot_interval_bytes
        )

    async def _snapshot(self, image: MetadataImage, position: LogPosition) -> None:
        self._bytes_since_snapshot = 0
        try:
            await self._disk.run(
                lambda: write_snapshot(self._disk, self._directory, image, position)
            )
            self._note_snapshots(await self._disk.run(lambda: tidy_up(self._disk, self._directory)))
        except OSError as error:
            # The journal has it all; the next interval tries again.
            logger.warning("no snapshot could be written to %s: %s", self._directory, error)
        finally:
            self._snapshotting = False
        self._kick.set()

    def _note_snapshots(self, names: list[SnapshotName]) -> None:
        if len(names) == SNAPSHOTS_KEPT:
            self._unneeded_index = names[-1].position.index

    async def close(self) -> None:
        """The journal is closed in good order."""
        await self._journal.close()
