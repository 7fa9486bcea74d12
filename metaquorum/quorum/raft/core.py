"""The guard around pysyncobj: the Raft protocol of one voter as plain state, without I/O.

Unguarded, pysyncobj loses committed entries; `library.py` lists the parts in use. The guard is
between the library and the peers, and enforces these rules of Raft that the library violates:

    rule                                                            consequence of a violation
    --------------------------------------------------------------  -------------------------------
    An append truncates only conflicting entries; it skips entries  a late append removes entries
    that the log already has, keeps a longer log, and acknowledges  that were acknowledged
    only entries that match.
    The commit index moves only over entries known to match those   lost writes count as committed
    of the leader; never because of a heartbeat or an unfinished
    snapshot.
    A snapshot replaces the log only if the log does not hold the   a longer, acknowledged log is
    snapshot's last entry; otherwise it is answered as installed.   lost
    A committed entry is never truncated: the voter stops instead.  replicas differ silently
    Answers carry the term, and count only in that term. A later    entries of a dead leader count
    term in an answer makes its receiver step down.                 as replicated; a voter is stuck
    Only one vote per voter and term counts.                        two leaders in a term
    A voter follows one leader per term: messages of a second one   the same
    are ignored.
    No message is sent, and no entry counts as stored here, before  the same, after a power loss
    the journal has synced it (`voter.py`).
    A voter holds a pre-vote before it becomes a candidate          every network partition deposes
    (`election.py`).                                                the leader

The owner calls `connected`, `disconnected`, `received`, `tick` and `append`; then syncs the
journal; then calls `replicate`, and sends the messages in `outbox`.
"""

import logging
from random import Random

from metaquorum.metadata.replicated_log import RaftFatalError
from metaquorum.quorum.raft.election import Election
from metaquorum.quorum.raft.library import Library
from metaquorum.quorum.raft.log import MAX_LOG_BYTES, RaftLog
from metaquorum.quorum.raft.messages import (
    AppendEntries,
    AppendResponse,
    ChunkStatus,
    Heartbeat,
    LogMatch,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    SnapshotChunk,
    SnapshotChunkResponse,
    VoteRequest,
    VoteResponse,
)
from metaquorum.quorum.raft.replication import Replication
from metaquorum.quorum.raft.timings import RaftTimings
from metaquorum.quorum.storage.journal_ops import LogPosition

logger = logging.getLogger(__name__)


class RaftCore:
    """Protocol state of one voter. Indices are those of the journal; `now` is monotonic seconds."""

    def __init__(
        self,
        node_id: int,
        voters: tuple[int, ...],
        log: RaftLog,
        timings: RaftTimings,
        random: Random,
        now: float,
    ) -> None:
        self.node_id = node_id
        self.voters = voters
        self.log = log
        self.outbox: list[tuple[int, Message]] = []
        self.pieces: list[tuple[int, SnapshotChunk]] = []  # received snapshot chunks, by sender
        self._peers = tuple(each for each in voters if each != node_id)
        self._connected: set[int] = set()
        self._votes: set[int] = set()
        self._votes_term = 0
        self._answering: AppendEntries | None = None
        self._matched_next_index: int | None = None
        self._led_term: int | None = None
        self._term_leader: tuple[int, int] = (0, 0)  # (term, leader) of the last leader message
        self.term_start_index = 0  # index of the first entry of the term that this voter leads
        self.replication = Replication(self._peers, log, timings, self.send)
        self._at(now)
        self._library = Library(node_id, voters, log, timings, self)
        self._election = Election(node_id, voters, timings, random, now)

    @property
    def term(self) -> int:
        return self._library.term

    @property
    def is_leader(self) -> bool:
        return self._library.is_leader

    @property
    def leader_id(self) -> int | None:
        return self._library.leader_id

    @property
    def commit_index(self) -> int:
        return self._library.commit_index

    @property
    def is_alone(self) -> bool:
        return not self._peers

    @property
    def deadline(self) -> float:
        """Latest time for the next `tick`."""
        if not self.is_leader:
            return self._election.deadline
        return self.replication.deadline

    def _at(self, now: float) -> None:
        self._now = now
        Library.set_time(now)

    # Calls of the owner

    def connected(self, voter_id: int, now: float) -> None:
        self._at(now)
        self._connected.add(voter_id)
        self._library.connected(voter_id)
        self._election.connected(voter_id, now, self.leader_id)
        self.replication.connected(voter_id)

    def disconnected(self, voter_id: int, now: float) -> None:
        self._at(now)
        self._connected.discard(voter_id)
        self._library.disconnected(voter_id)
        self._election.disconnected(voter_id, now, self.leader_id)
        self.replication.disconnected(voter_id)

    def received(self, voter_id: int, message: Message, now: float) -> None:
        """Handle a message. Raises RaftFatalError if it contradicts a committed entry."""
        self._at(now)
        match message:
            case PreVoteRequest():
                self._pre_vote(voter_id, message, now)
            case PreVoteResponse():
                self._pre_vote_answer(voter_id, message, now)
            case VoteRequest():
                self._library.vote_requested(
                    voter_id, message.term, message.last_index, message.last_term
                )
            case VoteResponse():
                self._vote(voter_id, message)
            case AppendEntries() | Heartbeat() | SnapshotChunk():
                if self._is_from_leader(voter_id, message):
                    self._from_leader(voter_id, message, now)
            case AppendResponse() | SnapshotChunkResponse():
                if message.term > self.term:
                    self._library.step_down(message.term)
                elif message.term == self.term and self.is_leader:
                    self._from_follower(voter_id, message, now)
        self._note_role(now)

    def tick(self, now: float) -> None:
        """Do everything that is due by `now`."""
        self._at(now)
        if not self.is_leader and now >= self._election.deadline:
            self._seek_votes(now)
        else:
            self._library.tick()
        self._note_role(now)

    def append(self, payload: bytes) -> int:
        """Stage the next entry of the log and return its index. Only the leader may call this."""
        assert self.is_leader
        return self.log.append(payload, self.term)

    def replicate(self, now: float) -> None:
        """Put the messages for the peers into the outbox, if this voter leads.

        The whole log must be synced.
        """
        if self.is_leader:
            self.replication.replicate(self.commit_index, now)

    def storage_full(self, last_index: int) -> None:
        """Drop entries after `last_index`, which could not be written and were not acknowledged."""
        self.log.cut(last_index)
        self._library.commit_index = min(self.commit_index, last_index)
        answered: dict[int, AppendResponse] = {}
        for voter_id, message in self.outbox:
            if isinstance(message, AppendResponse) and message.match is LogMatch.MATCHED:
                answered[voter_id] = message
        self.outbox = [
            (voter_id, message)
            for voter_id, message in self.outbox
            if not (isinstance(message, AppendResponse) and message.match is LogMatch.MATCHED)
        ]
        for voter_id, answer in answered.items():
            refusal = AppendResponse(answer.term, answer.round, LogMatch.REFUSED, last_index + 1)
            self.outbox.append((voter_id, refusal))

    def resign(self, now: float) -> None:
        """Step down, and let other voters try to become leader first."""
        self._at(now)
        self._library.step_down(self.term)
        self._note_role(now)

    def install(self, position: LogPosition) -> bool:
        """Stage the replacement of the log by a snapshot; False if the log already includes it."""
        if position.index <= self.commit_index or self._holds(position):
            return False
        self.log.reset(position)
        self._library.commit_index = position.index
        return True

    def send(self, voter_id: int, message: Message) -> None:
        self.outbox.append((voter_id, message))

    # Elections

    def _seek_votes(self, now: float) -> None:
        self._library.step_down(self.term)  # forget the previous leader
        if self._election.ask(now):
            self._library.campaign()
        elif self._election.can_win:
            last = self.log.last
            for peer in sorted(self._connected):
                self.send(peer, PreVoteRequest(self.term + 1, last.index, last.term))

    def _pre_vote(self, voter_id: int, message: PreVoteRequest, now: float) -> None:
        last, election = self.log.last, self._election
        theirs = (message.last_term, message.last_index, voter_id)
        ours = (last.term, last.index, self.node_id if election.is_asking else -1)
        is_granted = (
            message.term > self.term
            and theirs > ours
            and not election.has_leader(self.leader_id, now)
        )
        if is_granted:
            election.yield_to_candidate(now)
        self.send(voter_id, PreVoteResponse(self.term, message.term, is_granted))

    def _pre_vote_answer(self, voter_id: int, message: PreVoteResponse, now: float) -> None:
        if message.term > self.term:
            self._library.step_down(message.term)
        elif (
            message.is_granted
            and message.asked_term == self.term + 1
            and not self.is_leader
            and self._election.agreed(voter_id, now)
        ):
            self._library.campaign()

    def _vote(self, voter_id: int, message: VoteResponse) -> None:
        if message.term != self.term:
            return
        if self._votes_term != message.term:
            self._votes_term, self._votes = message.term, set()
        if voter_id not in self._votes:
            self._votes.add(voter_id)
            self._library.voted(voter_id, message.term)

    # Output of the library

    def request_vote(self, voter_id: int) -> None:
        last = self.log.last
        self.send(voter_id, VoteRequest(self.term, last.index, last.term))

    def grant_vote(self, voter_id: int) -> None:
        self._election.postpone(self._now)
        self.send(voter_id, VoteResponse(self.term))

    def acknowledge(self, voter_id: int, next_index: int) -> None:
        message = self._answering
        assert message is not None
        if self._matched_next_index is not None:
            next_index = self._matched_next_index
        self.send(voter_id, AppendResponse(self.term, message.round, LogMatch.MATCHED, next_index))

    # Following

    def _is_from_leader(
        self, voter_id: int, message: AppendEntries | Heartbeat | SnapshotChunk
    ) -> bool:
        if message.term < self.term:
            # A deposed leader may not know the later term; the answer makes it step down.
            number = 0 if isinstance(message, SnapshotChunk) else message.round
            self.send(voter_id, AppendResponse(self.term, number, LogMatch.HEARD, 0))
            return False
        term, leader_id = self._term_leader
        if (message.term == term and voter_id != leader_id) or self._leads_in(message.term):
            logger.error(
                "voters %d and %d both lead in term %d; messages of the second one are ignored; a "
                "voter may have lost its vote with its data directory",
                leader_id,
                voter_id,
                term,
            )
            return False
        self._term_leader = (message.term, voter_id)
        return True

    def _leads_in(self, term: int) -> bool:
        return self.is_leader and self.term == term

    def _from_leader(
        self, voter_id: int, message: AppendEntries | Heartbeat | SnapshotChunk, now: float
    ) -> None:
        self._election.heard_leader(now)
        match message:
            case AppendEntries():
                self._append(voter_id, message)
            case Heartbeat():
                self._library.heard(voter_id, message.term)
                self.send(voter_id, AppendResponse(self.term, message.round, LogMatch.HEARD, 0))
            case SnapshotChunk():
                self._library.heard(voter_id, message.term)
                self._piece(voter_id, message)

    def _append(self, voter_id: int, message: AppendEntries) -> None:
        log, entries = self.log, list(message.entries)
        previous = LogPosition(message.previous_index, message.previous_term)
        if previous.index < log.anchor.index:
            # All entries up to the anchor are committed, so they match.
            skipped = log.anchor.index - previous.index
            if len(entries) < skipped:
                self._library.heard(voter_id, message.term)
                self._answer(voter_id, message, LogMatch.MATCHED, previous.index + len(entries) + 1)
                return
            previous, entries = log.anchor, entries[skipped:]
        if previous.index > log.last.index or log.term_at(previous.index) != previous.term:
            self._library.heard(voter_id, message.term)
            hint = min(log.last.index, max(self.commit_index, log.anchor.index)) + 1
            if previous.index > log.last.index:
                hint = log.last.index + 1
            self._answer(voter_id, message, LogMatch.REFUSED, hint)
            return
        self._append_matching(voter_id, message, previous, entries)

    def _append_matching(
        self,
        voter_id: int,
        message: AppendEntries,
        previous: LogPosition,
        entries: list[tuple[int, bytes]],
    ) -> None:
        log = self.log
        known = 0
        while (
            known < len(entries)
            and previous.index + known < log.last.index
            and log.term_at(previous.index + known + 1) == entries[known][0]
        ):
            known += 1
        matched_index, rest = previous.index + known, entries[known:]
        if rest and matched_index < self.commit_index:
            raise RaftFatalError(
                f"leader {voter_id} of term {message.term} sent an entry"
                f" {matched_index + 1} that differs from the entry committed here"
            )
        is_full = bool(rest) and log.size_bytes > MAX_LOG_BYTES
        if is_full:
            rest = []  # committed entries must be applied first, to shrink the log
        # If there is no entry to add, a longer log is not truncated.
        base_index = matched_index if rest else log.last.index
        commit_index = min(message.commit_index, matched_index + len(rest))
        self._answering = message
        self._matched_next_index = matched_index + len(rest) + 1
        try:
            self._library.append(
                voter_id, message.term, base_index, log.term_at(base_index), commit_index, rest
            )
        finally:
            self._answering = self._matched_next_index = None
        if is_full:
            self._answer(voter_id, message, LogMatch.REFUSED, matched_index + 1)

    def _answer(
        self, voter_id: int, message: AppendEntries, match: LogMatch, next_index: int
    ) -> None:
        self.send(voter_id, AppendResponse(self.term, message.round, match, next_index))

    def _holds(self, position: LogPosition) -> bool:
        log = self.log
        return (
            log.anchor.index <= position.index <= log.last.index
            and log.term_at(position.index) == position.term
        )

    def _piece(self, voter_id: int, piece: SnapshotChunk) -> None:
        position = LogPosition(piece.last_index, piece.last_term)
        if position.index <= self.commit_index:
            self.send(
                voter_id,
                SnapshotChunkResponse(
                    self.term, piece.transfer, ChunkStatus.HAVE, self.commit_index
                ),
            )
        elif self._holds(position):
            self.send(
                voter_id,
                SnapshotChunkResponse(self.term, piece.transfer, ChunkStatus.HAVE, position.index),
            )
        else:
            self.pieces = [(voter_id, piece)]  # only one transfer is in progress at a time

    # Leading

    def _note_role(self, now: float) -> None:
        if self.is_leader and self._led_term != self.term:
            self._led_term = self.term
            self.term_start_index = self.log.last.index
            self.replication.begin(self.term, self._connected, now)
        elif not self.is_leader and self._led_term is not None:
            self._led_term = None
            self.replication.end()
            self._election.postpone(now)

    def _from_follower(
        self, voter_id: int, message: AppendResponse | SnapshotChunkResponse, now: float
    ) -> None:
        match message:
            case AppendResponse():
                next_index = self.replication.answered(voter_id, message, now)
            case SnapshotChunkResponse():
                next_index = self.replication.piece_answered(voter_id, message, now)
        self._library.answered(voter_id, next_index)
