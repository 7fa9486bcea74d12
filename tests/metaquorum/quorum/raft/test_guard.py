"""Rules that the guard enforces for pysyncobj, one by one, by messages received and sent."""

from random import Random

import pytest

from metaquorum.metadata.replicated_log import RaftFatalError
from metaquorum.quorum.raft import core as core_module
from metaquorum.quorum.raft.core import RaftCore
from metaquorum.quorum.raft.log import RaftLog
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
from metaquorum.quorum.raft.progress import Sending
from metaquorum.quorum.raft.timings import RaftTimings
from metaquorum.quorum.storage.journal import Journal
from metaquorum.quorum.storage.journal_ops import HardState, LogPosition
from tests.metaquorum.quorum.storage.crash_disk import CrashDisk

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"


class Voter:
    """Voter 1 of three, connected to the others; `log` holds the terms of its entries."""

    def __init__(self, log: list[int] | None = None, anchor: LogPosition | None = None) -> None:
        self.journal = Journal(CrashDisk(), "/data/metadata", CLUSTER)
        self.journal.open()
        anchor = anchor or LogPosition(0, 0)
        if anchor.index:
            self.journal.reset(anchor)
        raft_log = RaftLog(self.journal, anchor)
        for term in log or []:
            raft_log.append(b"%d" % term, term)
        self.core = RaftCore(1, (1, 2, 3), raft_log, RaftTimings(), Random(1), 0.0)
        self.now = 0.0
        self.core.connected(2, 0.0)
        self.core.connected(3, 0.0)

    def gets(self, sender: int, message: Message) -> list[tuple[int, Message]]:
        """Deliver a message and return the messages sent in response."""
        self.core.outbox.clear()
        self.core.received(sender, message, self.now)
        return list(self.core.outbox)

    def terms(self) -> list[int]:
        log = self.core.log
        return [log.term_at(i) for i in range(log.anchor.index + 1, log.last.index + 1)]

    def lead(self) -> int:
        """Let the voter be elected by voter 2, and return its term."""
        self.now += 5
        self.core.tick(self.now)
        term = self.core.term + 1
        self.gets(2, PreVoteResponse(self.core.term, term, is_granted=True))
        self.gets(2, VoteResponse(term))
        assert self.core.is_leader
        self.core.outbox.clear()
        self.core.replicate(self.now)
        return term


def append(
    term: int,
    previous: tuple[int, int],
    commit: int = 0,
    terms: tuple[int, ...] = (),
    number: int = 1,
) -> AppendEntries:
    return AppendEntries(
        term, number, *previous, commit, tuple((each, b"%d" % each) for each in terms)
    )


def matched(term: int, next_index: int, number: int = 1) -> AppendResponse:
    return AppendResponse(term, number, LogMatch.MATCHED, next_index)


def refused(term: int, next_index: int, number: int = 1) -> AppendResponse:
    return AppendResponse(term, number, LogMatch.REFUSED, next_index)


def test_an_append_that_comes_late_takes_nothing_back() -> None:
    voter = Voter([1])
    assert voter.gets(2, append(1, (1, 1), terms=(1, 1, 1))) == [(2, matched(1, 5))]
    assert voter.gets(2, append(1, (1, 1), terms=(1,))) == [(2, matched(1, 3))]
    assert voter.gets(2, append(1, (1, 1))) == [(2, matched(1, 2))]
    assert voter.terms() == [1, 1, 1, 1]


def test_only_what_contradicts_is_cut_off() -> None:
    voter = Voter([1, 1, 1, 1])
    assert voter.gets(2, append(2, (1, 1), terms=(1, 2))) == [(2, matched(2, 4))]
    assert voter.terms() == [1, 1, 2]


def test_an_answer_says_no_more_than_what_is_known_to_match() -> None:
    voter = Voter([1, 1, 1, 1])
    assert voter.gets(2, append(2, (2, 1), commit=9)) == [(2, matched(2, 3))]
    assert voter.core.commit_index == 2
    assert voter.terms() == [1, 1, 1, 1]


def test_entries_that_do_not_follow_on_are_refused_with_a_place_to_try() -> None:
    assert Voter([1, 1]).gets(2, append(1, (5, 1), terms=(1,))) == [(2, refused(1, 3))]
    voter = Voter([1, 1])
    assert voter.gets(2, append(3, (2, 2), commit=9, terms=(3,))) == [(2, refused(3, 1))]
    assert voter.core.commit_index == 0
    assert voter.terms() == [1, 1]


def test_what_a_snapshot_holds_matches_without_being_looked_at() -> None:
    voter = Voter([2], anchor=LogPosition(10, 2))
    assert voter.gets(2, append(2, (7, 1), terms=(2, 2, 2, 2, 2))) == [(2, matched(2, 13))]
    assert voter.gets(2, append(2, (7, 1), terms=(2,))) == [(2, matched(2, 9))]
    assert voter.terms() == [2, 2]


def test_what_was_committed_is_never_cut_off() -> None:
    voter = Voter([1, 1])
    voter.gets(2, append(1, (2, 1), commit=2))
    with pytest.raises(RaftFatalError):
        voter.gets(3, append(2, (1, 1), terms=(2,)))


def test_a_heartbeat_commits_nothing() -> None:
    voter = Voter([1, 1])
    assert voter.gets(2, Heartbeat(1, 7)) == [(2, AppendResponse(1, 7, LogMatch.HEARD, 0))]
    assert voter.core.commit_index == 0
    assert voter.core.leader_id == 2


def test_a_leader_of_an_earlier_term_is_told_of_the_later_one() -> None:
    voter = Voter([5])
    assert voter.gets(2, append(4, (1, 5), terms=(4,))) == [
        (2, AppendResponse(5, 1, LogMatch.HEARD, 0))
    ]
    assert voter.terms() == [5]
    assert voter.core.leader_id is None


def test_a_leader_that_hears_of_a_later_term_gives_way() -> None:
    voter = Voter([1])
    term = voter.lead()
    voter.gets(3, AppendResponse(term + 3, 0, LogMatch.HEARD, 0))
    assert not voter.core.is_leader
    assert voter.journal.hard_state == HardState(term + 3, -1)


def test_a_second_leader_in_a_term_is_passed_over() -> None:
    voter = Voter([1])
    voter.gets(2, append(1, (1, 1)))
    assert voter.gets(3, append(1, (1, 1), terms=(1,))) == []
    assert voter.terms() == [1]
    assert voter.core.leader_id == 2


def test_one_vote_of_each_voter_counts() -> None:
    journal = Journal(CrashDisk(), "/data/metadata", CLUSTER)
    journal.open()
    log = RaftLog(journal, LogPosition(0, 0))
    core = RaftCore(1, (1, 2, 3, 4, 5), log, RaftTimings(), Random(1), 0.0)
    for peer in (2, 3, 4, 5):
        core.connected(peer, 0.0)
    core.tick(5.0)
    core.received(2, PreVoteResponse(0, 1, is_granted=True), 5.0)
    core.received(3, PreVoteResponse(0, 1, is_granted=True), 5.0)
    assert core.term == 1
    for _ in range(3):
        core.received(2, VoteResponse(1), 5.0)
    assert not core.is_leader
    core.received(3, VoteResponse(0), 5.0)
    assert not core.is_leader
    core.received(3, VoteResponse(1), 5.0)
    assert core.is_leader


def test_a_vote_and_its_term_are_staged_before_the_answer() -> None:
    voter = Voter([1])
    assert voter.gets(2, VoteRequest(4, 1, 1)) == [(2, VoteResponse(4))]
    assert voter.journal.hard_state == HardState(4, 2)
    assert voter.gets(3, VoteRequest(4, 9, 4)) == []
    assert voter.gets(3, VoteRequest(5, 0, 0)) == []
    assert voter.journal.hard_state == HardState(5, -1)


def test_answers_of_another_term_do_not_count() -> None:
    voter = Voter([1])
    term = voter.lead()
    last_index = voter.core.log.last.index
    voter.gets(2, matched(term - 1, last_index + 1))
    voter.core.tick(voter.now)
    assert voter.core.commit_index == 0
    voter.gets(2, matched(term, last_index + 1))
    voter.core.tick(voter.now)
    assert voter.core.commit_index == last_index


def test_an_answer_beyond_the_end_of_the_log_does_not_count() -> None:
    voter = Voter([1])
    term = voter.lead()
    voter.gets(2, matched(term, 99))
    voter.core.tick(voter.now)
    assert voter.core.commit_index == 0


def test_entries_of_an_earlier_term_are_committed_only_by_one_of_the_leaders_own() -> None:
    voter = Voter([1, 1])
    term = voter.lead()
    voter.gets(2, matched(term, 3))
    voter.core.tick(voter.now)
    assert voter.core.commit_index == 0
    voter.gets(2, matched(term, 4, number=2))
    voter.core.tick(voter.now)
    assert voter.core.commit_index == 3


def test_whoever_has_a_leader_would_vote_for_nobody_else() -> None:
    voter = Voter([1])
    voter.gets(2, append(1, (1, 1)))
    ask = PreVoteRequest(2, 1, 1)
    assert voter.gets(3, ask) == [(3, PreVoteResponse(1, 2, is_granted=False))]
    voter.core.disconnected(2, voter.now)
    assert voter.gets(3, ask) == [(3, PreVoteResponse(1, 2, is_granted=True))]
    voter.core.connected(2, voter.now)
    voter.now = 0.6
    assert voter.gets(3, ask) == [(3, PreVoteResponse(1, 2, is_granted=True))]
    assert voter.gets(3, PreVoteRequest(2, 0, 0)) == [(3, PreVoteResponse(1, 2, is_granted=False))]
    assert voter.journal.hard_state == HardState(0, -1)


def test_a_voter_that_is_asking_changes_nothing_until_a_majority_agrees() -> None:
    voter = Voter([1])
    voter.now = 5.0
    voter.core.tick(voter.now)
    asked = [(2, PreVoteRequest(2, 1, 1)), (3, PreVoteRequest(2, 1, 1))]
    assert voter.core.outbox == asked
    assert voter.gets(2, PreVoteResponse(1, 2, is_granted=False)) == []
    assert voter.core.term == 1
    answers = voter.gets(3, PreVoteResponse(1, 2, is_granted=True))
    assert sorted(answers) == [(2, VoteRequest(2, 1, 1)), (3, VoteRequest(2, 1, 1))]
    assert voter.journal.hard_state == HardState(2, 1)


def test_of_two_that_ask_at_once_one_stands_back() -> None:
    voter = Voter([1])  # its id is 1
    voter.now = 5.0
    voter.core.tick(voter.now)
    assert voter.gets(2, PreVoteRequest(2, 1, 1)) == [(2, PreVoteResponse(1, 2, is_granted=True))]
    assert voter.gets(3, PreVoteResponse(1, 2, is_granted=True)) == []
    assert voter.core.deadline > 5.0
    longer = Voter([1, 1])
    longer.now = 5.0
    longer.core.tick(longer.now)
    assert longer.gets(2, PreVoteRequest(2, 1, 1)) == [(2, PreVoteResponse(1, 2, is_granted=False))]
    assert longer.gets(3, PreVoteResponse(1, 2, is_granted=True))[0] == (2, VoteRequest(2, 2, 1))


def piece(index: int, term: int = 1, leader_term: int = 1) -> SnapshotChunk:
    return SnapshotChunk(leader_term, 7, index, term, 50, 10, 0, b"0123456789")


def test_a_snapshot_of_what_is_here_already_replaces_nothing() -> None:
    voter = Voter([1, 1, 1])
    assert voter.gets(2, piece(2)) == [(2, SnapshotChunkResponse(1, 7, ChunkStatus.HAVE, 2))]
    assert not voter.core.install(LogPosition(2, 1))
    voter.gets(2, append(1, (3, 1), commit=3))
    assert voter.gets(2, piece(1)) == [(2, SnapshotChunkResponse(1, 7, ChunkStatus.HAVE, 3))]
    assert not voter.core.install(LogPosition(1, 1))
    assert voter.terms() == [1, 1, 1]


def test_a_snapshot_of_something_else_replaces_the_log_once_it_is_whole() -> None:
    voter = Voter([1, 1, 1])
    voter.gets(2, piece(2, term=2, leader_term=3))
    assert voter.core.pieces == [(2, piece(2, term=2, leader_term=3))]
    assert voter.core.commit_index == 0
    assert voter.terms() == [1, 1, 1]
    assert voter.core.install(LogPosition(2, 2))
    assert voter.terms() == []
    assert voter.core.commit_index == 2
    assert voter.gets(2, append(3, (2, 2), terms=(3,))) == [(2, matched(3, 4))]


def test_refusals_of_what_was_sent_before_the_retry_are_passed_over() -> None:
    voter = Voter([1] * 10)
    term = voter.lead()
    progress = voter.core.replication.progress[2]
    voter.gets(2, refused(term, 4))
    assert progress.next_index == 4
    voter.core.replicate(voter.now)
    assert progress.next_index == 12
    voter.gets(2, refused(term, 4))
    assert progress.next_index == 12
    assert progress.state is Sending.PROBE


def test_a_peer_that_refuses_twice_is_asked_again_with_the_next_heartbeat() -> None:
    voter = Voter([1] * 10)
    term = voter.lead()
    for number in (1, 3):
        voter.gets(2, refused(term, 4, number))
        voter.core.outbox.clear()
        voter.core.replicate(voter.now)
    assert [each for each in voter.core.outbox if each[0] == 2] == []
    voter.core.replicate(voter.now + 0.2)
    sent = [message for peer, message in voter.core.outbox if peer == 2]
    assert len(sent) == 1
    assert isinstance(sent[0], AppendEntries)
    assert len(sent[0].entries) == 8


def test_a_new_connection_begins_where_the_peer_was_known_to_be() -> None:
    voter = Voter([1] * 5)
    term = voter.lead()
    voter.gets(2, matched(term, 7))
    voter.core.append(b"more")
    voter.core.replicate(voter.now)
    voter.core.disconnected(2, voter.now)
    voter.core.connected(2, voter.now)
    voter.core.outbox.clear()
    voter.core.replicate(voter.now)
    sent = [message for peer, message in voter.core.outbox if peer == 2]
    assert [(each.previous_index, len(each.entries)) for each in sent] == [(6, 1)]  # type: ignore[union-attr]


def test_a_log_that_is_full_takes_no_entries_and_still_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    voter = Voter([1, 1, 1])
    monkeypatch.setattr(core_module, "MAX_LOG_BYTES", 100)
    answers = voter.gets(2, append(1, (2, 1), commit=3, terms=(1, 1)))
    assert answers == [(2, matched(1, 4)), (2, refused(1, 4))]
    assert voter.core.commit_index == 3
    assert voter.terms() == [1, 1, 1]


def test_what_was_answered_before_a_read_was_asked_for_does_not_confirm_it() -> None:
    """Such responses may be older than a successor's election and its acknowledged entries."""
    voter = Voter([1])
    term = voter.lead()
    sent = [
        message
        for _, message in voter.core.outbox
        if isinstance(message, AppendEntries | Heartbeat)
    ]
    wanted = voter.core.replication.request_round()
    for message in sent:
        for peer in (2, 3):
            voter.gets(peer, AppendResponse(term, message.round, LogMatch.MATCHED, 2))
    assert voter.core.replication.confirmed_round < wanted
    voter.core.outbox.clear()
    voter.core.replicate(voter.now)
    _, asked = next(each for each in voter.core.outbox if each[0] == 3)
    assert isinstance(asked, AppendEntries | Heartbeat)
    voter.gets(3, AppendResponse(term, asked.round, LogMatch.MATCHED, 2))
    assert voter.core.replication.confirmed_round >= wanted
