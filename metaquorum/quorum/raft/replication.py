"""The leader's side of replication: the messages for each peer, and their time.

Every message of a term has a unique number, its *round*, which responses repeat. A majority that
has answered round n was in this leader's term at that time: a reader waits for a round that begins
after its request (ReadIndex; Raft thesis, 6.4).
"""

import math
from collections.abc import Callable, Collection
from typing import Final

from metaquorum.metadata.replicated_log import VoterStatus
from metaquorum.quorum.raft.log import RaftLog
from metaquorum.quorum.raft.messages import (
    MAX_ENTRIES,
    MAX_ENTRIES_BYTES,
    AppendEntries,
    AppendResponse,
    ChunkStatus,
    Heartbeat,
    LogMatch,
    Message,
    SnapshotChunkResponse,
)
from metaquorum.quorum.raft.progress import Progress, Sending, Transfer
from metaquorum.quorum.raft.timings import RaftTimings


class Replication:
    """Replication of one voter, active from `begin` to `end` while it leads."""

    def __init__(
        self,
        peers: Collection[int],
        log: RaftLog,
        timings: RaftTimings,
        send: Callable[[int, Message], None],
    ) -> None:
        self._peers: Final = tuple(peers)
        self._log = log
        self._timings = timings
        self._send = send
        self._term = 0
        self._round = 0
        self._round_wanted = False
        self._heartbeat_at = math.inf
        self.progress: dict[int, Progress] = {}
        self.damaged_snapshots = False  # a peer reported that a snapshot of this voter is damaged

    @property
    def deadline(self) -> float:
        """Time of the next heartbeat or snapshot retry."""
        retries = [
            each.transfer.wait_until
            for each in self.progress.values()
            if each.transfer is not None and each.transfer.is_piece_wanted
        ]
        return min(self._heartbeat_at, *retries) if retries else self._heartbeat_at

    @property
    def confirmed_round(self) -> int:
        """Last round that a majority, including this leader, has answered."""
        answered = sorted((each.answered_round for each in self.progress.values()), reverse=True)
        needed = (len(self._peers) + 1) // 2
        return answered[needed - 1] if needed else self._round + 1

    def begin(self, term: int, connected: Collection[int], now: float) -> None:
        """Start to lead in `term`; the last entry of the log is the first one of the term."""
        start_index = self._log.last.index
        self._term = term
        self._heartbeat_at = now
        self.progress = {peer: Progress(start_index) for peer in self._peers}
        for peer in connected:
            self.progress[peer].connected(start_index)

    def end(self) -> None:
        self._heartbeat_at = math.inf
        self.progress = {}

    def connected(self, voter_id: int) -> None:
        if voter_id in self.progress:
            self.progress[voter_id].connected(self._log.last.index + 1)

    def disconnected(self, voter_id: int) -> None:
        if voter_id in self.progress:
            self.progress[voter_id].disconnected()

    def statuses(self, now: float, now_ms: int) -> list[VoterStatus]:
        """Return the status of all peers; `now_ms` is the wall-clock time of `now`."""

        def wall_ms(at: float | None) -> int:
            return -1 if at is None else now_ms - round((now - at) * 1000)

        last_index = self._log.last.index
        return [
            VoterStatus(
                voter_id,
                each.matched_index,
                max(last_index - each.matched_index, 0),
                wall_ms(each.answered_at),
                wall_ms(each.caught_up_at),
            )
            for voter_id, each in self.progress.items()
        ]

    def request_round(self) -> int:
        """Request messages to all peers; return the first round whose responses follow the call."""
        self._round_wanted = True
        return self._round + 1

    # Sending

    def replicate(self, commit_index: int, now: float) -> None:
        """Send to every connected peer the entries and heartbeats that are due."""
        is_due = now >= self._heartbeat_at or self._round_wanted
        if is_due:
            self._heartbeat_at = now + self._timings.heartbeat_s if self._peers else math.inf
            self._round_wanted = False
        for voter_id, progress in self.progress.items():
            if progress.is_connected:
                if is_due:
                    progress.may_retry()
                self._replicate_to(voter_id, progress, commit_index, is_due=is_due)

    def _replicate_to(
        self, voter_id: int, progress: Progress, commit_index: int, *, is_due: bool
    ) -> None:
        log = self._log
        if progress.state is not Sending.SNAPSHOT and progress.next_index <= log.anchor.index:
            progress.needs_snapshot(self._next_round())
        has_sent = False
        while progress.may_send and (
            progress.next_index <= log.last.index or progress.state is Sending.PROBE
        ):
            self._append(voter_id, progress, commit_index)
            has_sent = True
        if has_sent:
            return
        if progress.state is Sending.REPLICATE:
            if is_due or progress.sent_commit_index < commit_index:
                self._append(voter_id, progress, commit_index, is_empty=True)
        elif is_due:
            self._send(voter_id, Heartbeat(self._term, self._next_round()))

    def _append(
        self, voter_id: int, progress: Progress, commit_index: int, *, is_empty: bool = False
    ) -> None:
        log, first = self._log, progress.next_index
        entries = []
        if not is_empty and first <= log.last.index:
            entries = log.entries(first, MAX_ENTRIES, MAX_ENTRIES_BYTES)
        number = self._next_round()
        message = AppendEntries(
            self._term,
            number,
            first - 1,
            log.term_at(first - 1),
            commit_index,
            tuple((entry.term, entry.payload) for entry in entries),
        )
        size_bytes = sum(len(entry.payload) for entry in entries)
        progress.sent(number, size_bytes, len(entries), commit_index)
        self._send(voter_id, message)

    def _next_round(self) -> int:
        self._round += 1
        return self._round

    # Responses of this term

    def answered(self, voter_id: int, message: AppendResponse, now: float) -> int | None:
        """Handle a response; return the index before which the peer's log matches, or None."""
        progress, last_index = self.progress[voter_id], self._log.last.index
        if message.round > self._round or message.next_index > last_index + 1:
            return None  # no valid response can have these values
        says_more = progress.answered(message.round, now)
        if progress.state is Sending.SNAPSHOT:
            says_more = False
        if message.match is LogMatch.MATCHED:
            if says_more:
                progress.matched(message.next_index)
            progress.note_caught_up(last_index, now)
            # Valid even if late: a follower keeps matching entries for the whole term.
            return message.next_index
        if message.match is LogMatch.REFUSED and says_more:
            progress.refused(message.next_index, self._round + 1)
        progress.note_caught_up(last_index, now)
        return None

    def piece_answered(
        self, voter_id: int, message: SnapshotChunkResponse, now: float
    ) -> int | None:
        """Handle a response to a snapshot chunk; return as `answered` does."""
        progress = self.progress[voter_id]
        progress.answered_at = now
        transfer = progress.transfer
        if transfer is None or transfer.number != message.transfer:
            return None
        match message.taken:
            case ChunkStatus.CONTINUE:
                transfer.offset, transfer.is_piece_wanted = message.value, True
            case ChunkStatus.HAVE if message.value <= self._log.last.index:
                progress.took_snapshot(message.value)
                return message.value + 1
            case ChunkStatus.FAILED | ChunkStatus.DAMAGED:
                self.damaged_snapshots |= message.taken is ChunkStatus.DAMAGED
                self.fail_transfer(voter_id, now)
        return None

    # Snapshot transfers

    def wanted_pieces(self, now: float) -> list[tuple[int, Transfer]]:
        """Return the transfers whose next chunk is due now, each once per chunk."""
        found = []
        for voter_id, progress in self.progress.items():
            transfer = progress.transfer
            if (
                progress.is_connected
                and transfer is not None
                and transfer.is_piece_wanted
                and now >= transfer.wait_until
            ):
                transfer.is_piece_wanted = False
                found.append((voter_id, transfer))
        return found

    def is_wanted(self, voter_id: int, transfer: Transfer) -> bool:
        """Return whether this transfer is still in progress."""
        progress = self.progress.get(voter_id)
        return progress is not None and progress.transfer is transfer

    def fail_transfer(self, voter_id: int, now: float) -> None:
        """Restart the peer's transfer after `snapshot_retry_s`."""
        wait_until = now + self._timings.snapshot_retry_s
        self.progress[voter_id].restart_transfer(self._next_round(), wait_until)
