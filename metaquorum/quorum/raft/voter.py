"""A voter: the guarded protocol (`core.py`) with a disk, a clock and peers.

Three tasks, and one more for each slow operation in progress:

    driver   waits for a message, a proposal or a deadline
             -> passes all of them to the core, which stages the state to be made durable
             -> syncs the journal once for all of it (group commit)
             -> only then sends messages to peers and lets committed entries be applied
    applier  applies committed entries to the state machine in order and completes their
             proposals; a slow state machine does not delay the driver's responses
    alarm    wakes the driver at its next deadline

Proposals and messages that arrive during a sync wait for the next one. Separate tasks write
snapshots, read them for peers, and receive them; `receiving.py` describes the installation.

If the disk is full, only entries are refused: a leader refuses the proposals, which no peer has
received; a follower requests the entries again later. If there is no space for a vote or a
truncation, or if the disk fails in another way, the voter stops.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

import trio

from metaquorum.metadata.batch import Batch, decode_batch
from metaquorum.metadata.replicated_log import (
    Leadership,
    NotCommittedError,
    OutcomeUnknownError,
    QuorumStatus,
    RaftFatalError,
    StateMachine,
    VoterStatus,
)
from metaquorum.quorum.raft.alarm import Alarm
from metaquorum.quorum.raft.barriers import Barriers
from metaquorum.quorum.raft.core import RaftCore
from metaquorum.quorum.raft.inbox import Inbox, InboxEvent
from metaquorum.quorum.raft.log import MAX_LOG_BYTES, RaftLog
from metaquorum.quorum.raft.messages import (
    ChunkStatus,
    SnapshotChunk,
    SnapshotChunkResponse,
    encode_message,
)
from metaquorum.quorum.raft.peers import Peers
from metaquorum.quorum.raft.progress import Transfer
from metaquorum.quorum.raft.proposals import Proposals, RaftProposal, reject_offset_mismatch
from metaquorum.quorum.raft.receiving import SnapshotReceiver, finish_installs
from metaquorum.quorum.raft.sending import read_piece
from metaquorum.quorum.raft.state import DiskState
from metaquorum.quorum.raft.timings import RaftTimings
from metaquorum.quorum.storage.journal import Journal, JournalFullError, JournalWaitError
from metaquorum.quorum.storage.journal_ops import LogPosition
from metaquorum.quorum.storage.snapshot import SnapshotName
from metaquorum.runtime.interfaces import Clock, Disk, StorageError, is_out_of_descriptors, sleep
from metaquorum.wire.primitives.errors import ErrorCode

logger = logging.getLogger(__name__)

SNAPSHOT_INTERVAL_BYTES: Final = 16 << 20  # applied batches between two snapshots
READ_ENTRIES: Final = 64  # journal entries per read at the start
APPLIED_PER_TURN: Final = 32  # entries applied between two checkpoints of the event loop
DEFAULT_TIMINGS: Final = RaftTimings()
# Attempts to write a vote, or to install a snapshot, while the process has no descriptor left; the
# node ends after them.
DESCRIPTOR_TRIES: Final = 60
DESCRIPTOR_RETRY_S: Final = 0.5


class _Install:
    """Completely received snapshot that the driver has to install."""

    def __init__(self, name: SnapshotName) -> None:
        self.name = name
        self.done = trio.Event()


class RaftVoter:
    """One voter: call `start`, then `run` in a task, then `close` after it."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        random: Random,
        directory: str,
        state_machine: StateMachine,
        node_id: int,
        voters: tuple[int, ...],
        peers: Peers,
        timings: RaftTimings = DEFAULT_TIMINGS,
        *,
        snapshot_interval_bytes: int = SNAPSHOT_INTERVAL_BYTES,
        journal: Journal | None = None,
    ) -> None:
        """Create a voter in the metadata directory. `state_machine` must be empty."""
        assert node_id in voters
        self._disk = disk
        self._clock = clock
        self._random = random
        self._directory = directory
        self._machine = state_machine
        self._node_id = node_id
        self._voters = tuple(sorted(voters))
        self._peers = peers
        self._timings = timings
        self._snapshot_interval_bytes = snapshot_interval_bytes
        cluster_id = state_machine.image.cluster_id
        self._journal = journal or Journal(disk, directory, cluster_id)
        self._state = DiskState(disk, directory, state_machine)
        self._receiver = SnapshotReceiver(disk, directory, cluster_id)
        self._receiving: Final = trio.Lock()
        self._to_install: _Install | None = None
        self._core: RaftCore | None = None
        self._nursery: trio.Nursery | None = None
        self._inbox = Inbox(node_id, self._voters, self._wake)
        self._alarm = Alarm(clock, self._wake)
        self._proposals = Proposals()
        self._lose_proposals_at = math.inf
        self._sequence = 0
        self._tail_offset = 0  # end offset of the metadata after all appended batches
        self._active_term: int | None = None
        self._published = Leadership(None, 0, is_active=False)
        self._committed_index = 0  # committed entries that are durable on this disk
        self._installing = False  # the log is reset to a snapshot, and cannot be applied yet
        self._installed: SnapshotName | None = None  # installed snapshot to load
        self._barriers = Barriers()
        self._snapshotting = False
        self._unneeded: LogPosition | None = None  # end of the journal entries that can be deleted
        self._kick = trio.Event()
        self._commit_moved = trio.Event()
        self._changed: Final = trio.lowlevel.ParkingLot()  # leadership or applied index
        self._failure: Exception | None = None
        peers.attach(self._inbox)

    def _wake(self) -> None:
        self._kick.set()

    # Status

    @property
    def is_active(self) -> bool:
        core = self._core
        return (
            core is not None
            and core.is_leader
            and self._active_term == core.term
            and self._failure is None
        )

    @property
    def status(self) -> QuorumStatus:
        core, (leader_id, term, is_active) = self._core, self.leadership
        return QuorumStatus(
            node_id=self._node_id,
            voters=self._voters,
            leader_id=leader_id,
            term=term,
            commit_index=self._committed_index,
            end_offset=self._machine.image.end_offset,
            is_active=is_active,
            replicas=() if core is None or not core.is_leader else self._replicas(core),
        )

    def _replicas(self, core: RaftCore) -> tuple[VoterStatus, ...]:
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        own = VoterStatus(self._node_id, self._journal.durable.index, 0, now_ms, now_ms)
        others = core.replication.statuses(now, now_ms)
        return tuple(sorted((own, *others), key=lambda each: each.voter_id))

    def end_offset_at(self, index: int) -> int:
        core = self._core
        if core is None:
            return -1
        log = core.log
        for number in range(min(index, log.last.index), log.anchor.index, -1):
            if payload := log.entry(number).payload:  # an empty entry only begins a term
                return decode_batch(payload).end_offset
        return 0 if not log.anchor.index else -1

    @property
    def leadership(self) -> Leadership:
        core = self._core
        if core is None or self._failure is not None:
            return Leadership(None, 0 if core is None else core.term, is_active=False)
        return Leadership(core.leader_id, core.term, self.is_active)

    async def wait_active(self) -> int:
        while not (known := self.leadership).is_active:
            await self.wait_change(known)
        await trio.lowlevel.checkpoint()
        return known.term

    async def wait_change(self, known: Leadership) -> Leadership:
        while self.leadership == known:
            await self._changed.park()
        await trio.lowlevel.checkpoint()
        return self.leadership

    async def read_barrier(self) -> int:
        await trio.lowlevel.checkpoint()
        core = self._core
        if core is None or not self.is_active:
            raise OutcomeUnknownError("this node is not the leader of the quorum")
        barrier = self._barriers.add(core.replication.request_round(), core.commit_index)
        self._wake()
        await barrier.wait()
        while self._state.applied.index < barrier.commit_index:
            if self._failure is not None:
                raise OutcomeUnknownError("the Raft voter of this node has stopped")
            await self._changed.park()
        return self._machine.image.end_offset

    def propose(self, term: int, expected_offset: int, records: Sequence[bytes]) -> RaftProposal:
        core = self._core
        if core is None or not self.is_active or term != core.term:
            raise NotCommittedError(
                ErrorCode.NOT_CONTROLLER, f"this node is not the quorum leader of term {term}"
            )
        if core.log.size_bytes > MAX_LOG_BYTES:
            raise NotCommittedError(
                ErrorCode.KAFKA_STORAGE_ERROR, "the metadata log is full; no snapshot was written"
            )
        self._sequence += 1
        batch = Batch(
            term, self._node_id, self._sequence, expected_offset, len(records), b"".join(records)
        )
        proposal = RaftProposal(batch)
        self._proposals.offer(proposal)
        self._wake()
        return proposal

    # Starting

    async def start(self) -> None:
        """Load the newest snapshot and the journal; a single voter becomes active.

        Raises StorageError if the disk fails or its contents are inconsistent.
        """
        await self._disk.run(self._journal.open)
        if self._journal.torn_bytes:
            logger.warning(
                "the journal in %s ends with an incomplete frame; its %d bytes are truncated."
                " Normally the process or the machine stopped during the write, and no peer relies"
                " on the frame; if the file was truncated later, entries of this voter are lost",
                self._directory,
                self._journal.torn_bytes,
            )
        try:
            await self._disk.run(
                lambda: finish_installs(self._disk, self._directory, self._journal.base)
            )
            await self._state.load_newest(self._journal)
        except OSError as error:
            raise StorageError(
                f"cannot use the metadata directory {self._directory}: {error}"
            ) from error
        log = await self._read_log()
        now = self._clock.monotonic()
        core = RaftCore(self._node_id, self._voters, log, self._timings, self._random, now)
        self._core = core
        self._committed_index = core.commit_index
        if core.is_alone:
            await self._round(core)
            await self._apply_committed(core)
            assert self.is_active

    async def _read_log(self) -> RaftLog:
        log, journal = RaftLog(self._journal, self._state.applied), self._journal
        if journal.term_at(log.anchor.index) != log.anchor.term:
            raise StorageError(
                f"entry {log.anchor.index} in {self._directory} has another term in the journal"
                " than in the snapshot; restore the directory from a backup"
            )
        while (first := log.last.index + 1) <= journal.last.index:
            last = min(first + READ_ENTRIES - 1, journal.last.index)
            log.load(await self._disk.run(lambda first=first, last=last: journal.read(first, last)))  # type: ignore[misc]
        return log

    # Running

    async def run(self) -> None:
        """Vote, lead and follow until cancelled.

        Raises StorageError or RaftFatalError if the voter cannot continue.
        """
        core = self._core
        assert core is not None, "not started"
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._alarm.run)
                for task in (self._drive, self._apply):
                    nursery.start_soon(self._until_failure, lambda task=task: task(core), nursery)
            if self._failure is not None:
                raise self._failure
        finally:
            self._nursery = None
            self._stopped()

    async def _until_failure(
        self, task: Callable[[], Awaitable[None]], nursery: trio.Nursery
    ) -> None:
        try:
            await task()
        except (StorageError, RaftFatalError) as error:
            self._failure = self._failure or error
            nursery.cancel_scope.cancel()

    def _stopped(self) -> None:
        self._failure = self._failure or StorageError("the Raft voter of this node was stopped")
        self._active_term = None
        self._proposals.refuse_queued("the Raft voter of this node has stopped")
        self._proposals.lose_appended("the Raft voter stopped before the commit was confirmed")
        self._barriers.fail()
        self._changed.unpark_all()

    async def close(self) -> None:
        """Discard a snapshot transfer and close the journal."""
        self._receiver.abandon()
        await self._journal.close()

    # The driver

    async def _drive(self, core: RaftCore) -> None:
        self._wake()
        while True:
            await self._kick.wait()
            self._kick = trio.Event()
            await self._round(core)

    async def _round(self, core: RaftCore) -> None:
        """Handle all input, make the results durable, and only then send messages."""
        now = self._clock.monotonic()
        self._take_inbox(core, now)
        core.tick(now)
        self._note_leadership(now)
        self._stage_proposals(core)
        install = self._stage_install(core)
        await self._sync(core, now)
        if install is not None:
            await self._finish_install(core, install)
        if core.is_alone:
            core.tick(now)  # commit the entries that are on its own disk
        core.replicate(now)
        self._send(core)
        self._start_transfers(core, now)
        if core.is_leader:
            self._barriers.confirm(core.replication.confirmed_round)
        self._publish(core)
        self._start_snapshot_if_due(core)
        await self._drop_unneeded(core)
        self._alarm.set(min(core.deadline, self._lose_proposals_at))

    def _take_inbox(self, core: RaftCore, now: float) -> None:
        for voter_id, news in self._inbox.take():
            if news is InboxEvent.CONNECTED:
                core.connected(voter_id, now)
            elif news is InboxEvent.DISCONNECTED:
                core.disconnected(voter_id, now)
            else:
                core.received(voter_id, news, now)

    def _note_leadership(self, now: float) -> None:
        """End pending proposals and barriers if this voter has lost leadership."""
        if self._active_term is not None and not self.is_active:
            self._active_term = None
            self._proposals.refuse_queued("the leader of the quorum changed")
            self._barriers.fail()
            if self._proposals.has_appended:
                self._lose_proposals_at = now + self._timings.outcome_s
        if now >= self._lose_proposals_at:
            self._lose_proposals_at = math.inf
            self._proposals.lose_appended("the leader of the quorum changed")

    def _stage_proposals(self, core: RaftCore) -> None:
        if not self._proposals.has_queued:
            return
        for proposal in self._proposals.next_group():
            if proposal.batch.expected_offset == self._tail_offset:
                self._proposals.appended(core.append(proposal.payload), proposal)
                self._tail_offset = proposal.batch.end_offset
            else:
                reject_offset_mismatch(proposal)
        if self._proposals.has_queued:
            self._wake()

    async def _sync(self, core: RaftCore, now: float) -> None:
        try:
            await self._with_descriptor(self._journal.sync)
        except JournalFullError as error:
            logger.warning("%s; metadata changes are refused until an append succeeds", error)
            last_index = self._journal.last.index
            core.storage_full(last_index)
            unwritten = self._proposals.unwritten(last_index)
            if unwritten:
                self._tail_offset = unwritten[0].batch.expected_offset
            for proposal in unwritten:
                proposal.refuse(ErrorCode.KAFKA_STORAGE_ERROR, error.reason)
            if core.is_leader and core.term_start_index > last_index:
                core.resign(now)  # not even the first entry of its term could be written

    async def _with_descriptor(self, step: Callable[[], Awaitable[object]]) -> None:
        """Call `step`; again, if there was no descriptor for its files. Raises its other errors.

        Meanwhile the voter waits, as on a slow disk: a vote must be durable before its message.
        """
        for _ in range(DESCRIPTOR_TRIES):
            try:
                await step()
            except (OSError, StorageError) as error:
                if not isinstance(error, JournalWaitError) and not is_out_of_descriptors(error):
                    raise
            else:
                return
            await sleep(self._clock, DESCRIPTOR_RETRY_S)
        await step()

    def _send(self, core: RaftCore) -> None:
        outbox, core.outbox = core.outbox, []
        for voter_id, message in outbox:
            self._peers.send(voter_id, encode_message(message))

    def _publish(self, core: RaftCore) -> None:
        if self.leadership != self._published:
            self._published = self.leadership
            self._changed.unpark_all()
        if core.commit_index > self._committed_index:
            self._committed_index = core.commit_index
            self._commit_moved.set()

    async def _drop_unneeded(self, core: RaftCore) -> None:
        position, self._unneeded = self._unneeded, None
        if position is not None:
            core.log.forget(position)
            await self._journal.drop_prefix(position.index)

    # The applier

    async def _apply(self, core: RaftCore) -> None:
        while True:
            await self._apply_committed(core)
            await self._commit_moved.wait()
            self._commit_moved = trio.Event()

    async def _apply_committed(self, core: RaftCore) -> None:
        """Apply all committed entries, and wake waiting tasks."""
        count = 0
        while True:
            if self._installed is not None:
                await self._load_installed()
            elif self._state.applied.index < self._committed_index and not self._installing:
                entry = core.log.entry(self._state.applied.index + 1)
                took_effect = await self._state.apply(entry)
                self._proposals.applied(entry, took_effect=took_effect)
                count += 1
                if count % APPLIED_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
            else:
                break
        self._note_active(core)
        self._changed.unpark_all()
        self._start_snapshot_if_due(core)

    def _note_active(self, core: RaftCore) -> None:
        is_caught_up = self._state.applied.index >= core.term_start_index
        if core.is_leader and is_caught_up and self._active_term != core.term:
            self._active_term = core.term
            self._proposals.lose_appended("the leader of the quorum changed")
            self._lose_proposals_at = math.inf
            self._tail_offset = self._machine.image.end_offset

    # Own snapshots

    def _start_snapshot_if_due(self, core: RaftCore) -> None:
        is_due = self._state.bytes_since_snapshot >= self._snapshot_interval_bytes
        is_possible = self._nursery is not None and not self._snapshotting
        if is_possible and (is_due or core.replication.damaged_snapshots):
            assert self._nursery is not None
            core.replication.damaged_snapshots = False
            self._snapshotting = True
            self._nursery.start_soon(self._write_snapshot)

    async def _write_snapshot(self) -> None:
        try:
            kept = await self._state.write()
            self._unneeded = self._state.journal_not_needed(kept)
        except OSError as error:
            # The journal has all entries; the next interval tries again.
            logger.warning(
                "cannot write a metadata snapshot to %s: %s;"
                " the next attempt comes after more changes",
                self._directory,
                error,
            )
        finally:
            self._snapshotting = False
        self._wake()

    # Snapshot transfers

    def _start_transfers(self, core: RaftCore, now: float) -> None:
        if self._nursery is None:
            return
        for voter_id, transfer in core.replication.wanted_pieces(now):
            self._nursery.start_soon(self._send_piece, core, voter_id, transfer)
        pieces, core.pieces = core.pieces, []
        for voter_id, piece in pieces:
            self._nursery.start_soon(self._take_piece, core, voter_id, piece)

    async def _send_piece(self, core: RaftCore, voter_id: int, transfer: Transfer) -> None:
        try:
            piece = await self._disk.run(lambda: read_piece(self._disk, self._directory, transfer))
        except OSError as error:
            logger.warning(
                "cannot read a snapshot for voter %d: %s; the transfer restarts", voter_id, error
            )
            piece = None
        if core.replication.is_wanted(voter_id, transfer):
            if piece is None:
                core.replication.fail_transfer(voter_id, self._clock.monotonic())
            else:
                core.send(voter_id, piece._replace(term=core.term))
        self._wake()

    async def _take_piece(self, core: RaftCore, voter_id: int, piece: SnapshotChunk) -> None:
        async with self._receiving:
            answer = await self._receiver.take(voter_id, piece)
            if answer is None:
                assert self._receiver.received is not None
                self._to_install = install = _Install(self._receiver.received)
                self._wake()
                await install.done.wait()
                answer = ChunkStatus.HAVE, core.commit_index
        core.send(voter_id, SnapshotChunkResponse(core.term, piece.transfer, *answer))
        self._wake()

    def _stage_install(self, core: RaftCore) -> _Install | None:
        install, self._to_install = self._to_install, None
        if install is not None and not core.install(install.name.position):
            install.done.set()  # the log has these entries already
            return None
        self._installing = install is not None
        return install

    async def _finish_install(self, core: RaftCore, install: _Install) -> None:
        """Give the snapshot its final name and schedule its load; the log reset is durable."""
        try:
            await self._with_descriptor(self._receiver.keep)
        except OSError as error:
            raise StorageError(
                f"cannot rename the received snapshot {install.name.path}: {error}"
            ) from error
        self._installed, self._installing = install.name, False
        self._proposals.covered(install.name.position.index)
        install.done.set()
        self._committed_index = core.commit_index
        self._commit_moved.set()

    async def _load_installed(self) -> None:
        name, self._installed = self._installed, None
        assert name is not None
        await self._with_descriptor(lambda: self._state.load(name))
