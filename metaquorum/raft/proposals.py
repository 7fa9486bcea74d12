"""Batches on their way, and what becomes of them.

    queued     taken, but in no log                        the leader is gone: refused
    appended   in the leader's log, and perhaps in others  decided when an entry is applied at its
                                                           index: it is this one, or it never will
                                                           be; not decided in time: lost

A batch in a log that is no longer the leader's may still be committed, by any voter that has it and
is elected. Only another entry committed in its place rules that out.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from metaquorum.metadata.batch import Batch
from metaquorum.metadata.replicated_log import NotCommittedError, OutcomeUnknownError
from metaquorum.storage.journal_ops import Entry
from wire.primitives.errors import ErrorCode

MAX_PENDING_PROPOSALS: Final = 10_000
MAX_PENDING_BYTES: Final = 64 << 20
MAX_GROUP_PROPOSALS: Final = 1_000  # that share one sync


class RaftProposal:
    """As in `Quorum`."""

    __slots__ = ("_done", "_error", "batch", "payload")

    def __init__(self, batch: Batch) -> None:
        """BatchTooLargeError."""
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
        """It has not taken effect and never will."""
        self._error = lambda: NotCommittedError(code, reason, retry=retry)
        self._done.set()

    def lose(self, reason: str) -> None:
        """Nobody knows."""
        self._error = lambda: OutcomeUnknownError(reason)
        self._done.set()


class Proposals:
    """All that have no outcome yet, in order."""

    def __init__(self) -> None:
        self._queued: deque[RaftProposal] = deque()
        self._appended: deque[tuple[int, RaftProposal]] = deque()  # (index, ...), rising
        self._size_bytes = 0

    @property
    def has_queued(self) -> bool:
        return bool(self._queued)

    @property
    def has_appended(self) -> bool:
        return bool(self._appended)

    def offer(self, proposal: RaftProposal) -> None:
        """It is queued; NotCommittedError where too many are under way."""
        if (
            len(self._queued) + len(self._appended) >= MAX_PENDING_PROPOSALS
            or self._size_bytes + len(proposal.payload) > MAX_PENDING_BYTES
        ):
            raise NotCommittedError(
                ErrorCode.REQUEST_TIMED_OUT, "too many changes of metadata are under way"
            )
        self._queued.append(proposal)
        self._size_bytes += len(proposal.payload)

    def next_group(self) -> list[RaftProposal]:
        """Those queued first; each is to be refused, or handed back by `appended`."""
        count = min(len(self._queued), MAX_GROUP_PROPOSALS)
        group = [self._queued.popleft() for _ in range(count)]
        self._size_bytes -= sum(len(proposal.payload) for proposal in group)
        return group

    def appended(self, index: int, proposal: RaftProposal) -> None:
        self._appended.append((index, proposal))
        self._size_bytes += len(proposal.payload)

    def applied(self, entry: Entry, *, took_effect: bool) -> None:
        """That entry is committed, and was replayed here."""
        while self._appended and self._appended[0][0] <= entry.index:
            index, proposal = self._appended[0]
            self._pop(0)
            if index < entry.index:
                proposal.lose("a snapshot took its place")
            elif proposal.batch.term != entry.term:
                _never_committed(proposal)
            elif took_effect:
                proposal.succeed()
            else:
                reject_offset_mismatch(proposal)

    def covered(self, index: int) -> None:
        """A snapshot stands for everything up to `index`; what it holds cannot be told."""
        while self._appended and self._appended[0][0] <= index:
            self._pop(0).lose("a snapshot took its place")

    def unwritten(self, last_index: int) -> list[RaftProposal]:
        """Those behind `last_index`, which stand in no log at all; they are the caller's."""
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
        ErrorCode.NOT_CONTROLLER, "another leader's change was committed instead", retry=True
    )


def reject_offset_mismatch(proposal: RaftProposal) -> None:
    """It was decided on another state than it came upon."""
    proposal.refuse(ErrorCode.REQUEST_TIMED_OUT, "others changed the metadata first", retry=True)
