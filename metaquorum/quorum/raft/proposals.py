"""Proposed batches and their outcomes.

    queued     accepted, but in no log                     refused if leadership is lost
    appended   in the leader's log, and perhaps in others  decided when the entry at its index is
                                                           applied: either it is this batch, or the
                                                           batch is never committed; if this takes
                                                           too long, the outcome is unknown

After this voter has lost leadership, a batch in its log may still be committed by any voter that
has it and is elected. Only another entry committed at its index rules that out.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from metaquorum.metadata.batch import Batch
from metaquorum.metadata.replicated_log import NotCommittedError, OutcomeUnknownError
from metaquorum.quorum.storage.journal_ops import Entry
from metaquorum.wire.primitives.errors import ErrorCode

MAX_PENDING_PROPOSALS: Final = 10_000
MAX_PENDING_BYTES: Final = 64 << 20
MAX_GROUP_PROPOSALS: Final = 1_000  # proposals that share one sync


class RaftProposal:
    """Proposal of the `Quorum` interface."""

    __slots__ = ("_done", "_error", "batch", "payload")

    def __init__(self, batch: Batch) -> None:
        """Create a proposal. Raises BatchTooLargeError."""
        self.batch = batch
        self.payload = batch.encode()
        self._done = trio.Event()
        self._error: Callable[[], Exception] | None = None

    async def wait(self) -> None:
        await self._done.wait()
        if self._error is not None:
            raise self._error()

    def succeed(self) -> None:
        self._done.set()

    def refuse(self, code: ErrorCode, reason: str, *, retry: bool = False) -> None:
        """Set the outcome: not applied, now or later."""
        self._error = lambda: NotCommittedError(code, reason, retry=retry)
        self._done.set()

    def lose(self, reason: str) -> None:
        """Set the outcome: unknown."""
        self._error = lambda: OutcomeUnknownError(reason)
        self._done.set()


class Proposals:
    """Proposals without an outcome, in order."""

    def __init__(self) -> None:
        self._queued: deque[RaftProposal] = deque()
        self._appended: deque[tuple[int, RaftProposal]] = deque()  # (index, proposal), ascending
        self._size_bytes = 0

    @property
    def has_queued(self) -> bool:
        return bool(self._queued)

    @property
    def has_appended(self) -> bool:
        return bool(self._appended)

    def offer(self, proposal: RaftProposal) -> None:
        """Queue a proposal. Raises NotCommittedError if too many are in flight."""
        if (
            len(self._queued) + len(self._appended) >= MAX_PENDING_PROPOSALS
            or self._size_bytes + len(proposal.payload) > MAX_PENDING_BYTES
        ):
            raise NotCommittedError(
                ErrorCode.REQUEST_TIMED_OUT, "too many metadata changes are in flight"
            )
        self._queued.append(proposal)
        self._size_bytes += len(proposal.payload)

    def next_group(self) -> list[RaftProposal]:
        """Remove and return the oldest queued proposals; the caller refuses or appends each."""
        count = min(len(self._queued), MAX_GROUP_PROPOSALS)
        group = [self._queued.popleft() for _ in range(count)]
        self._size_bytes -= sum(len(proposal.payload) for proposal in group)
        return group

    def appended(self, index: int, proposal: RaftProposal) -> None:
        self._appended.append((index, proposal))
        self._size_bytes += len(proposal.payload)

    def applied(self, entry: Entry, *, took_effect: bool) -> None:
        """Set the outcome of proposals up to an entry that is committed and replayed here."""
        while self._appended and self._appended[0][0] <= entry.index:
            index, proposal = self._appended[0]
            self._pop(0)
            if index < entry.index:
                proposal.lose("a snapshot replaced its log entry")
            elif proposal.batch.term != entry.term:
                _never_committed(proposal)
            elif took_effect:
                proposal.succeed()
            else:
                reject_offset_mismatch(proposal)

    def covered(self, index: int) -> None:
        """Set outcomes up to `index` to unknown: a snapshot replaced these entries."""
        while self._appended and self._appended[0][0] <= index:
            self._pop(0).lose("a snapshot replaced its log entry")

    def unwritten(self, last_index: int) -> list[RaftProposal]:
        """Remove and return proposals after `last_index`, which no log has."""
        found = []
        while self._appended and self._appended[-1][0] > last_index:
            found.append(self._pop(-1))
        return found[::-1]

    def refuse_queued(self, reason: str) -> None:
        for proposal in self._queued:
            self._size_bytes -= len(proposal.payload)
            proposal.refuse(ErrorCode.NOT_CONTROLLER, reason)
        self._queued.clear()

    def lose_appended(self, reason: str) -> None:
        while self._appended:
            self._pop(0).lose(reason)

    def _pop(self, end: int) -> RaftProposal:
        _, proposal = self._appended.pop() if end else self._appended.popleft()
        self._size_bytes -= len(proposal.payload)
        return proposal


def _never_committed(proposal: RaftProposal) -> None:
    proposal.refuse(
        ErrorCode.NOT_CONTROLLER,
        "another leader committed a different entry at its index",
        retry=True,
    )


def reject_offset_mismatch(proposal: RaftProposal) -> None:
    """Refuse a proposal that was decided on another end offset than that of the log."""
    proposal.refuse(
        ErrorCode.REQUEST_TIMED_OUT, "another change of the metadata came first", retry=True
    )
