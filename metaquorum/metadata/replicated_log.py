"""What the rest of a node knows of the replicated log: propose, follow, read.

One of the voters leads, in a term of its own. It may propose batches; a batch is *committed* once
it can no longer be lost, and every voter then hands it to its `StateMachine`, in the log's order.
The state machine decides, by rules that are the same everywhere, whether the batch takes effect or
is dropped (`batch.py`).

Outcomes of a proposal, which must not be mixed up:

    returned            committed, replayed here, and took effect
    NotCommittedError   it has not taken effect and never will; deciding anew is safe
    OutcomeUnknownError it may take effect, now or later; only reading the log can tell
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from metaquorum.metadata.batch import Batch
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import MetadataRecord
from wire.primitives.errors import ErrorCode
from wire.primitives.frozen import frozen


class NotCommittedError(Exception):
    """The batch did not take effect and never will.

    `retry`: deciding anew, at once, may well succeed. Else `code` is for whoever asked.
    """

    def __init__(self, code: ErrorCode, reason: str, *, retry: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.retry = retry


class OutcomeUnknownError(Exception):
    """The batch may or may not take effect."""


class RaftFatalError(Exception):
    """The voter found what cannot be in a quorum that keeps its rules; it stops."""


class Leadership(NamedTuple):
    """Who leads, as one voter knows it; `is_active`: that voter does, and may decide."""

    leader_id: int | None
    term: int
    is_active: bool


@frozen
class VoterStatus:
    """How far a voter has followed the leader, as the leader knows. Times are its wall clock's."""

    voter_id: int
    last_index: int  # durable there, and as in the leader's log
    lag: int  # entries that the leader has and it has not
    answered_ms: int  # when it was heard last; -1: never in this term
    caught_up_ms: int  # when it was known to have all of the leader's log; -1: never


@frozen
class QuorumStatus:
    """Where this voter stands. `leader_id` None: it knows of none.

    `is_active`: it leads in `term`, and has replayed all that earlier terms left; it may decide.
    `replicas`: of all voters where this one leads, else none.
    """

    node_id: int
    voters: tuple[int, ...]
    leader_id: int | None
    term: int
    commit_index: int
    end_offset: int  # of the image here
    is_active: bool
    replicas: tuple[VoterStatus, ...] = ()

    @property
    def leadership(self) -> Leadership:
        return Leadership(self.leader_id, self.term, self.is_active)


class StateMachine(Protocol):
    """What committed batches are handed to. One task calls, and awaits each call."""

    @property
    def image(self) -> MetadataImage:
        """The metadata after everything handed over so far; what a snapshot is made of."""

    async def apply(self, term: int, batch: Batch) -> bool:
        """The batch, committed in `term`, has been replayed; False: it was one to drop."""

    def begin_load(self) -> None:
        """A snapshot follows, which replaces everything."""

    async def load(self, records: Iterable[MetadataRecord]) -> None:
        """The next records of the snapshot."""

    def end_load(self, end_offset: int) -> None:
        """That was all of it: the image is the snapshot's, and ends at `end_offset`."""


class Proposal(Protocol):
    """A batch on its way."""

    async def wait(self) -> None:
        """The batch is committed, was replayed here and took effect. See the errors above.

        May be called any number of times. Cancelling a wait does not call the proposal back.
        """


class Quorum(Protocol):
    """This node's voter."""

    @property
    def status(self) -> QuorumStatus: ...

    def propose(self, term: int, expected_offset: int, records: Sequence[bytes]) -> Proposal:
        """The encoded `records` are on their way as one batch, behind all proposed before.

        `term` is the one this was decided in. NotCommittedError: not leading in it, or too much
        is under way; BatchTooLargeError.
        """

    async def wait_active(self) -> int:
        """The term in which this voter is active, once it is."""

    async def wait_change(self, known: Leadership) -> Leadership:
        """What this voter knows of the leadership, once it is something else than `known`."""

    def end_offset_at(self, index: int) -> int:
        """Where the metadata ends that the log has up to the entry at `index`; -1: not known.

        For people: what is not applied yet may be a batch that will be dropped.
        """

    async def read_barrier(self) -> int:
        """Everything committed before the call has been replayed here; the image's end offset.

        OutcomeUnknownError when the quorum cannot be asked.
        """
