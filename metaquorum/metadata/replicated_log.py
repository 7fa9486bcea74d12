"""Interface of the replicated metadata log to the rest of a node: propose, follow, read.

One voter is the leader of each term and may propose batches. A batch is *committed* once it can no
longer be lost; every voter then passes it to its `StateMachine`, in log order. The state machine
applies the batch or drops it, by rules that are the same on all voters (`batch.py`).

A proposal has three distinct outcomes:

    returned            committed, replayed here, and applied
    NotCommittedError   not applied, now or later; it is safe to decide again
    OutcomeUnknownError may be applied, now or later; only the log shows which
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from metaquorum.metadata.batch import Batch
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import MetadataRecord
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.frozen import frozen


class NotCommittedError(Exception):
    """Raised if a batch is not applied, now or later.

    `retry`: deciding again at once may succeed. Otherwise `code` is the answer to the client.
    """

    def __init__(self, code: ErrorCode, reason: str, *, retry: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.retry = retry


class OutcomeUnknownError(Exception):
    """Raised if a batch may or may not be applied."""


class RaftFatalError(Exception):
    """Raised if a voter finds a state that Raft excludes; the voter stops."""


class Leadership(NamedTuple):
    """Leader of the quorum, as one voter knows it.

    `is_active`: this voter is the active controller.
    """

    leader_id: int | None
    term: int
    is_active: bool


@frozen
class VoterStatus:
    """Replication progress of a voter, as the leader knows it, in the leader's wall-clock time."""

    voter_id: int
    last_index: int  # last entry that is durable on the voter and matches the leader's log
    lag: int  # entries of the leader's log that the voter does not have
    answered_ms: int  # time of its last answer; -1: none in this term
    caught_up_ms: int  # last time at which it had the leader's whole log; -1: never


@frozen
class QuorumStatus:
    """Status of this voter. `leader_id` is None if it knows no leader.

    `is_active`: this voter leads in `term` and has replayed all entries of earlier terms, so its
    controller may make decisions. `replicas`: all voters if this voter leads, otherwise empty.
    """

    node_id: int
    voters: tuple[int, ...]
    leader_id: int | None
    term: int
    commit_index: int
    end_offset: int  # end offset of this node's image
    is_active: bool
    replicas: tuple[VoterStatus, ...] = ()

    @property
    def leadership(self) -> Leadership:
        return Leadership(self.leader_id, self.term, self.is_active)


class StateMachine(Protocol):
    """Receiver of committed batches. One task makes all calls, one after the other."""

    @property
    def image(self) -> MetadataImage:
        """Metadata after all applied batches; the source of snapshots."""

    async def apply(self, term: int, batch: Batch) -> bool:
        """Replay the batch, committed in `term`; return False if it is dropped."""

    def begin_load(self) -> None:
        """Begin to load a snapshot, which replaces the whole image."""

    async def load(self, records: Iterable[MetadataRecord]) -> None:
        """Load the next records of the snapshot."""

    def end_load(self, end_offset: int) -> None:
        """Replace the image with that of the snapshot, which ends at `end_offset`."""


class Proposal(Protocol):
    """Proposed batch."""

    async def wait(self) -> None:
        """Wait until the batch is committed and applied here. For errors see the module.

        May be called any number of times. Cancelling a wait does not withdraw the proposal.
        """


class Quorum(Protocol):
    """This node's voter."""

    @property
    def status(self) -> QuorumStatus: ...

    def propose(self, term: int, expected_offset: int, records: Sequence[bytes]) -> Proposal:
        """Propose the encoded `records` as one batch, after all earlier proposals.

        `term` is the term of the decision. Raises NotCommittedError if this voter does not lead in
        that term or has too many proposals in flight, and BatchTooLargeError.
        """

    async def wait_active(self) -> int:
        """Wait until this voter is active, and return the term."""

    async def wait_change(self, known: Leadership) -> Leadership:
        """Wait until the leadership differs from `known`, and return it."""

    def end_offset_at(self, index: int) -> int:
        """Return the end offset of the metadata up to the log entry `index`; -1 if unknown.

        For display only: an entry that is not applied yet may be a batch that will be dropped.
        """

    async def read_barrier(self) -> int:
        """Wait until everything committed before the call is replayed here; return the end offset.

        Raises OutcomeUnknownError if a majority of the voters cannot be reached.
        """
