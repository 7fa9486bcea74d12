"""Bounds of proposals without an outcome."""

import pytest

from metaquorum.metadata.batch import Batch
from metaquorum.metadata.replicated_log import NotCommittedError
from metaquorum.quorum.raft import proposals
from metaquorum.quorum.raft.proposals import Proposals, RaftProposal
from metaquorum.quorum.storage.journal_ops import Entry


def proposal(size_bytes: int = 1000) -> RaftProposal:
    return RaftProposal(Batch(1, 1, 1, 0, 1, bytes(size_bytes)))


def offered_until_full(pending: Proposals) -> int:
    for count in range(100):
        try:
            pending.offer(proposal())
        except NotCommittedError:
            return count
    pytest.fail("there is no bound")


@pytest.mark.parametrize(
    "end", ["refused", "taken", "applied", "lost", "unwritten", "replaced by a snapshot"]
)
@pytest.mark.parametrize("bound", ["count", "bytes"])
def test_what_has_an_outcome_counts_no_longer(
    end: str, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bound == "count":
        monkeypatch.setattr(proposals, "MAX_PENDING_PROPOSALS", 10)
    else:
        monkeypatch.setattr(proposals, "MAX_PENDING_BYTES", 10 * len(proposal().payload))
    pending = Proposals()
    assert offered_until_full(pending) == 10
    if end == "refused":
        pending.refuse_queued("no leader")
    else:
        group = pending.next_group()
        if end != "taken":
            for index, each in enumerate(group, 1):
                pending.appended(index, each)
            assert offered_until_full(pending) == 0
    match end:
        case "applied":
            for index in range(1, 11):
                pending.applied(Entry(index, 1, b""), took_effect=True)
        case "lost":
            pending.lose_appended("no leader")
        case "unwritten":
            assert len(pending.unwritten(0)) == 10
        case "replaced by a snapshot":
            pending.covered(10)
    assert offered_until_full(pending) == 10
