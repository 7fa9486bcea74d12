"""Mutants of the quorum, each of which removes one rule of Raft's guard, and of clusters.

The first five restore the behaviour of the library, PySyncObj; `metaquorum/quorum/raft/core.py`
explains what the guard does in each case.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from math import inf
from typing import Any, Final

import trio

from metaquorum.config.definition import Scope
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import ConfigRecord
from metaquorum.metadata.replay import Replay
from metaquorum.quorum.controller.heartbeats import WorkerSessions
from metaquorum.quorum.raft.core import RaftCore
from metaquorum.quorum.raft.messages import AppendEntries
from metaquorum.quorum.raft.progress import Sending
from metaquorum.quorum.raft.replication import Replication
from metaquorum.quorum.raft.state import DiskState
from metaquorum.quorum.raft.voter import RaftVoter
from metaquorum.quorum.rpc.controller_client import ControllerClient
from metaquorum.quorum.storage import journal, snapshot
from metaquorum.quorum.storage.framing import HEADER_BYTES, Frame, frame_bytes
from metaquorum.quorum.storage.journal import Journal
from metaquorum.quorum.storage.journal_ops import HardState, decode_ops
from metaquorum.runtime.interfaces import StorageError
from metaquorum.simulations.cluster.voter_group import WatchedLoader
from metaquorum.simulations.kernel.mutation import Mutant, WithoutEffect, swapped


@contextmanager
def _both(*mutations: AbstractContextManager[None]) -> Iterator[None]:
    with ExitStack() as stack:
        for apply in mutations:
            stack.enter_context(apply)
        yield


def sends_again() -> AbstractContextManager[None]:
    """Let a leader repeat an entry at times, as PySyncObj's does; that alone is not a bug."""

    def wrong(right: Any) -> Any:
        def replicate_to(
            self: Any, voter_id: int, progress: Any, commit_index: int, *, is_due: bool
        ) -> None:
            right(self, voter_id, progress, commit_index, is_due=is_due)
            log, index = self._log, progress.matched_index
            if is_due and progress.state is Sending.REPLICATE and index > log.anchor.index:
                entry, number = log.entry(index), self._next_round()
                again = ((entry.term, entry.payload),)
                before = log.term_at(index - 1)
                self._send(
                    voter_id,
                    AppendEntries(self._term, number, index - 1, before, commit_index, again),
                )

        return replicate_to

    return swapped(Replication, "_replicate_to", wrong)


def _append_truncates() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def append_matching(
            self: Any, voter_id: int, message: Any, previous: Any, entries: list[Any]
        ) -> None:
            end = previous.index + len(entries)
            self._answering, self._matched_next_index = message, end + 1
            try:
                self._library.append(
                    voter_id,
                    message.term,
                    previous.index,
                    previous.term,
                    min(message.commit_index, end),
                    entries,
                )
            finally:
                self._answering = self._matched_next_index = None

        return append_matching

    return _both(sends_again(), swapped(RaftCore, "_append_matching", wrong))


def _commit_by_snapshot_on_its_way() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def piece(self: Any, voter_id: int, piece: Any) -> None:
            right(self, voter_id, piece)
            known = min(piece.last_index, self.log.last.index)
            self._library.commit_index = max(self.commit_index, known)

        return piece

    return swapped(RaftCore, "_piece", wrong)


def prefers_snapshots() -> AbstractContextManager[None]:
    """Let a leader send a snapshot to every voter that reconnects; that alone is not a bug."""

    def wrong(right: Any) -> Any:
        def connected(self: Any, voter_id: int) -> None:
            right(self, voter_id)
            if voter_id in self.progress and self._log.anchor.index:
                self.progress[voter_id].needs_snapshot(self._next_round())

        return connected

    return swapped(Replication, "connected", wrong)


def _snapshot_clears_log() -> AbstractContextManager[None]:
    def wrong_piece(_: Any) -> Any:
        def piece(self: Any, voter_id: int, piece: Any) -> None:
            self.pieces = [(voter_id, piece)]

        return piece

    def wrong_install(_: Any) -> Any:
        def install(self: Any, position: Any) -> bool:
            self.log.reset(position)
            self._library.commit_index = position.index
            return True

        return install

    return _both(
        prefers_snapshots(),
        swapped(RaftCore, "_piece", wrong_piece),
        swapped(RaftCore, "install", wrong_install),
    )


def _restart_wipes_journal() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def load_newest(self: Any, journal: Any) -> None:
            await right(self, journal)
            if journal.base.index < self.applied.index:
                journal.reset(self.applied)
                await journal.sync()

        return load_newest

    return swapped(DiskState, "load_newest", wrong)


def _nothing_synced() -> AbstractContextManager[None]:
    return _deaf_append(lambda frame: True)


def _vote_not_synced() -> AbstractContextManager[None]:
    def is_vote(frame: bytes) -> bool:
        ops = decode_ops(memoryview(frame)[HEADER_BYTES:])
        return all(isinstance(op, HardState) for op in ops)

    return _deaf_append(is_vote)


def _deaf_append(chosen: Any) -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def append_frame(self: Any, frame: bytes) -> None:
            file = self._file
            if chosen(frame):
                self._file = WithoutEffect(file, "sync")
            try:
                right(self, frame)
            finally:
                self._file = file

        return append_frame

    return swapped(Journal, "_append_frame", wrong)


def _told_before_sync() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def sync(self: Any, core: Any, now: float) -> None:
            self._send(core)
            await right(self, core, now)

        return sync

    return swapped(RaftVoter, "_sync", wrong)


def _ack_before_quorum() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def publish(self: Any, core: Any) -> None:
            right(self, core)
            if core.is_leader and self._committed_index < core.log.last.index:
                self._committed_index = core.log.last.index
                self._commit_moved.set()

        return publish

    return swapped(RaftVoter, "_publish", wrong)


def _stale_controller_accepted() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def propose(self: Any, term: int, expected_offset: int, records: Any) -> Any:
            core = self._core
            known = term if core is None or not self.is_active else core.term
            return right(self, known, expected_offset, records)

        return propose

    return swapped(RaftVoter, "propose", wrong)


def _another_replay() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def apply(self: Any, term: int, batch: Any) -> Any:
            took_effect = await right(self, term, batch)
            if took_effect and self._voter_id == 2 and batch.sequence % 20 == 0:
                name = next(iter(self.image.topics), None)
                if name is not None:
                    steps = Replay(self.image)
                    steps.apply([ConfigRecord(Scope.TOPIC, name, "segment.ms", "1")])
                    self._image, _ = steps.finish(self.image.end_offset)
            return took_effect

        return apply

    return swapped(WatchedLoader, "apply", wrong)


def _old_reads() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        async def read_barrier(self: Any) -> int:
            return int(self._machine.image.end_offset)

        return read_barrier

    return swapped(RaftVoter, "read_barrier", wrong)


def _rot_believed() -> AbstractContextManager[None]:
    def read_frame(magic: bytes, data: Any, position: int) -> Frame | None:
        view = memoryview(data)
        header = view[position : position + HEADER_BYTES]
        size = frame_bytes(magic, header)
        if size is None or position + size > len(view):
            return None
        sequence = int.from_bytes(header[8:16], "little")
        body = view[position + HEADER_BYTES : position + size]
        return Frame(sequence, body, position + size)

    return _both(
        swapped(journal, "read_frame", lambda _: read_frame),
        swapped(snapshot, "read_frame", lambda _: read_frame),
    )


def _round_of_before() -> AbstractContextManager[None]:
    return swapped(Replication, "request_round", lambda right: lambda self: right(self) - 1)


class _NotesFailedReads:
    def __init__(self, disk: Any) -> None:
        self._disk = disk
        self.has_failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def read_file(self, path: str) -> bytes:
        try:
            return bytes(self._disk.read_file(path))
        except OSError:
            self.has_failed = True
            raise


def _unreadable_journal_begun_anew() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def open_(self: Journal) -> None:
            disk = self._disk
            self._disk = noting = _NotesFailedReads(disk)
            try:
                right(self)
            except StorageError:
                if not noting.has_failed:
                    raise
                for name in disk.list(self._directory):
                    if name.endswith(journal.SUFFIX):
                        disk.remove(f"{self._directory}/{name}")
                Journal.__init__(self, disk, self._directory, self._cluster_id, self._segment_bytes)
                right(self)
            finally:
                self._disk = disk

        return open_

    return swapped(Journal, "open", wrong)


QUORUM_MUTANTS: Final = tuple(
    Mutant(name, about, "quorum", found_as, apply)
    for name, about, found_as, apply in (
        (
            "append-truncates",
            "an append truncates all later entries, even matching ones",
            ("M1", "M2", "M3"),
            _append_truncates,
        ),
        (
            "commit-by-snapshot-on-its-way",
            "the commit index advances to a snapshot that has not arrived",
            ("M2", "M3", "M4"),
            _commit_by_snapshot_on_its_way,
        ),
        (
            "snapshot-clears-log",
            "a snapshot replaces a log that has all its entries and more",
            ("M2", "M3"),
            _snapshot_clears_log,
        ),
        (
            "restart-wipes-journal",
            "a start between a snapshot and the trimming of the journal wipes the journal",
            ("M2", "M3"),
            _restart_wipes_journal,
        ),
        (
            "quorum-journal-not-synced",
            "votes and entries are acknowledged before they are durable",
            ("M1", "M2", "M3"),
            _nothing_synced,
        ),
        ("vote-not-synced", "a vote is sent before it is durable", ("M1",), _vote_not_synced),
        (
            "told-before-sync",
            "messages of a round are sent before its journal entries are synced",
            ("M1", "M2", "M3"),
            _told_before_sync,
        ),
        (
            "ack-before-quorum",
            "a leader treats entries on its own disk as committed",
            ("M2", "M3"),
            _ack_before_quorum,
        ),
        (
            "stale-controller-accepted",
            "a change that was decided in an earlier term is proposed",
            ("M3", "M5"),
            _stale_controller_accepted,
        ),
        (
            "another-replay",
            "one voter replays a batch differently",
            ("M4",),
            _another_replay,
        ),
        (
            "old-reads",
            "a leader reads without confirming that it still leads",
            ("M5",),
            _old_reads,
        ),
        (
            "rot-believed",
            "checksums of journal frames are not verified",
            ("L4", "M2", "M4"),
            _rot_believed,
        ),
        (
            "round-of-before",
            "a read is confirmed by responses that were sent before the read was requested",
            ("M5",),
            _round_of_before,
        ),
        (
            "unreadable-journal-begun-anew",
            "a voter whose journal cannot be read at a start creates an empty one",
            ("M1", "M2", "M3"),
            _unreadable_journal_begun_anew,
        ),
    )
)


def _answered_before_visible() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        async def seen(self: Any, end_offset: int, deadline: float) -> None:
            await trio.lowlevel.checkpoint()

        return seen

    return swapped(ControllerClient, "_seen", wrong)


def _snapshot_loses_a_record() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def load(self: Any, records: Any) -> None:
            await right(self, list(records)[1:])

        return load

    return swapped(MetadataLoader, "load", wrong)


def _fenced_workers_awaited() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def _least_applied(self: Any) -> float:
            return min(
                (
                    session.applied_offset
                    for session in self._sessions.values()
                    if not session.worker.in_controlled_shutdown
                ),
                default=inf,
            )

        return _least_applied

    return swapped(WorkerSessions, "_least_applied", wrong)


CLUSTER_MUTANTS: Final = tuple(
    Mutant(name, about, "cluster", found_as, apply)
    for name, about, found_as, apply in (
        (
            "answered-before-visible",
            "a worker responds to CreateTopics before its metadata has the topic",
            ("M3",),
            _answered_before_visible,
        ),
        (
            "snapshot-loses-a-record",
            "a node that loads a snapshot skips its first record",
            ("M4",),
            _snapshot_loses_a_record,
        ),
        (
            "fenced-workers-awaited",
            "a controlled shutdown also waits for fenced workers, which apply no metadata",
            ("R15",),
            _fenced_workers_awaited,
        ),
    )
)
