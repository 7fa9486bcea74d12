"""Commit of decisions in batches: decide, propose, wait for the commit, answer.

Decisions are made one at a time on the *decided* image: the committed image plus all records that
this controller has proposed but not yet seen committed. So the next decision already sees a topic
that is being created. Because uncommitted state must not be disclosed, an answer without records of
its own ("exists already") waits for the proposal before it.

    decide on `_decided` -> records -> replay into `_decided` -> propose at its old end offset
         ^                                                             |
         |  a proposal that does not take effect: all proposals after  v
         '-- it miss their offset too; return to the committed image, and decide those again

Commits need no lock: many decisions are in flight together and share the quorum's fsync. The loader
receives the replayed image, so that it need not replay the same records again.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, Generic, TypeVar

import trio

from metaquorum.metadata.batch import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    SLICE_RECORDS,
    BatchTooLargeError,
)
from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import MetadataRecord, RecordEncoder
from metaquorum.metadata.replay import Replay
from metaquorum.metadata.replicated_log import (
    NotCommittedError,
    OutcomeUnknownError,
    Proposal,
    Quorum,
)
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.features import found_cluster
from metaquorum.runtime.interfaces import Clock
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen

T = TypeVar("T")
W = TypeVar("W")

MAX_ATTEMPTS: Final = 5  # attempts per decision if its proposals keep missing their offset
# Batch size of a divisible decision; bounds the records replayed at once at the end of a batch.
DIVISIBLE_BATCH_RECORDS: Final = 1000
SLICE_S: Final = 0.003
_CLOCK_RECORDS: Final = 32  # records encoded between two clock readings
_DECISION_RECORDS: Final = 3  # cost of one decision, in records
SLICE_SPECS: Final = 1000  # specs answered between two checkpoints of the event loop


@frozen
class Committed(Generic[T]):
    """Answer of a committed decision.

    `end_offset` is the end offset of the metadata that includes the change; 0 without a change.
    """

    answer: T
    end_offset: int


@frozen
class _Pending(Generic[T]):
    """Decision in flight. Its answer waits for `proposals`, in order."""

    answer: T
    end_offset: int
    generation: int
    proposals: tuple[Proposal, ...]


class Proposer:
    """Decisions of this controller while it is active."""

    def __init__(
        self,
        quorum: Quorum,
        loader: MetadataLoader,
        clock: Clock,
        first_records: Sequence[MetadataRecord] = (),
    ) -> None:
        """Create the proposer. `first_records` are the initial records of a new cluster."""
        self._first_records = first_records
        self._quorum = quorum
        self._loader = loader
        self._clock = clock
        self._deciding = trio.Lock()
        self._decided = loader.image
        self._last: Proposal | None = None  # last proposal included in `_decided`
        self._term = -1
        self._generation = 0

    async def decided(self) -> MetadataImage:
        """Return the decided image. Raises KafkaError if this controller is not active."""
        async with self._deciding:
            await self._rebase()
            return self._decided

    async def change(self, decide: Callable[[MetadataImage], Decision[T]]) -> Committed[T]:
        """Decide, and return the answer once it is committed. Raises KafkaError if it cannot be."""
        try:
            pending: _Pending[T] | NotCommittedError = await self._start(decide)
        except NotCommittedError as error:
            pending = error
        return await self._finish(decide, pending)

    async def change_all(
        self,
        specs: Sequence[W],
        decide: Callable[[MetadataImage, W], Decision[T]],
        refused: Callable[[W, KafkaError], T],
    ) -> Committed[list[T]]:
        """Decide the specs in order and return their answers; specs of a slice share a batch.

        `refused` turns the KafkaError of a spec into its answer.
        """
        decisions = [partial(_decide, decide, spec) for spec in specs]
        started: list[_Pending[T] | KafkaError | NotCommittedError] = []
        while len(started) < len(decisions):
            try:
                started += await self._start_some(decisions, len(started))
            except (KafkaError, NotCommittedError) as error:
                started.append(error)
        answers: list[T] = []
        end_offset = 0
        committed: set[Proposal] = set()
        for number, (spec, pending) in enumerate(zip(specs, started, strict=True)):
            if number % SLICE_SPECS == 0:
                await trio.lowlevel.checkpoint()
            try:
                changed = await self._finish(decisions[number], pending, committed)
            except KafkaError as error:
                answers.append(refused(spec, error))
            else:
                answers.append(changed.answer)
                end_offset = max(end_offset, changed.end_offset)
        return Committed(answers, end_offset)

    async def _start_some(
        self, decisions: Sequence[Callable[[MetadataImage], Decision[T]]], first: int
    ) -> list[_Pending[T] | KafkaError]:
        """Propose the decisions from `first` on that fit one time slice, in one batch.

        Raises KafkaError or NotCommittedError if none of them is proposed.
        """
        async with self._deciding:
            await self._rebase()
            with trio.CancelScope(shield=True):
                group: _Group[T] = _Group(self._decided, self._clock)
                answers = [each async for each in group.decided(islice(decisions, first, None))]
                if group.encoded:
                    self._send(group.encoded, group.image, group.delta)
            proposals = () if self._last is None else (self._last,)
            return [
                each
                if isinstance(each, KafkaError)
                else _Pending(each.answer, self._decided.end_offset, self._generation, proposals)
                for each in answers
            ]

    async def _start(self, decide: Callable[[MetadataImage], Decision[T]]) -> _Pending[T]:
        """Decide and propose. Raises KafkaError or NotCommittedError if nothing is proposed."""
        async with self._deciding:
            await self._rebase()
            decision = decide(self._decided)
            with trio.CancelScope(shield=True):  # complete even if the caller is cancelled
                proposals = await self._propose(decision)
            if not proposals and self._last is not None:
                proposals = [self._last]  # the answer was read from uncommitted records
            return _Pending(
                decision.answer, self._decided.end_offset, self._generation, tuple(proposals)
            )

    async def _rebase(self) -> None:
        """Reset `_decided` to the committed image if no proposal of this term is in flight.

        Raises KafkaError (NOT_CONTROLLER) if this controller is not active.
        """
        status = self._quorum.status
        if not status.is_active:
            known = "no" if status.leader_id is None else f"{status.leader_id} is the"
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER, f"Not the active controller; {known} leader of the quorum"
            )
        committed = self._loader.image
        if status.term != self._term:
            self._term = status.term
            self._forget_pending()
        elif committed.end_offset >= self._decided.end_offset:
            self._decided, self._last = committed, None
        if not self._decided.features:
            await self._propose(found_cluster(self._decided, self._first_records))

    def _forget_pending(self) -> None:
        self._decided, self._last = self._loader.image, None
        self._loader.discard_speculation()
        self._generation += 1

    async def _propose(self, decision: Decision[T]) -> list[Proposal]:
        """Propose the decision's records, and replay them into `_decided`."""
        packing = _Packing(decision, self._decided, _TimeSlice(self._clock))
        proposals: list[Proposal] = []
        while True:
            steps = Replay(self._decided)
            try:
                encoded = await packing.next_batch(steps)
            except ValueError as error:  # for example a string that is too long for the record
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{error}.") from None
            if not encoded:
                return proposals
            proposals.append(self._send(encoded, *steps.finish()))
            if not decision.divisible:
                return proposals

    def _send(
        self, encoded: Sequence[bytes], image: MetadataImage, delta: MetadataDelta
    ) -> Proposal:
        """Propose one batch and update `_decided`. Raises NotCommittedError or KafkaError."""
        try:
            proposal = self._quorum.propose(self._term, self._decided.end_offset, encoded)
        except BatchTooLargeError as error:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"Too large: {error}.") from None
        self._decided, self._last = image, proposal
        self._loader.speculate(self._term, b"".join(encoded), image, delta)
        return proposal

    async def _finish(
        self,
        decide: Callable[[MetadataImage], Decision[T]],
        pending: _Pending[T] | KafkaError | NotCommittedError,
        committed: set[Proposal] | None = None,
    ) -> Committed[T]:
        """Wait until the decision is committed and return its answer; decide again on a conflict.

        `committed` holds proposals known to be committed; proposals waited for are added to it.
        """
        committed = set() if committed is None else committed
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                if isinstance(pending, Exception):
                    raise pending
                for proposal in pending.proposals:
                    if proposal not in committed:
                        await proposal.wait()
                        committed.add(proposal)
            except OutcomeUnknownError as error:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, f"The change may or may not be committed: {error}."
                ) from None
            except NotCommittedError as error:
                if isinstance(pending, _Pending) and pending.generation == self._generation:
                    self._forget_pending()
                if not error.retry or attempt == MAX_ATTEMPTS:
                    raise KafkaError(error.code, f"The change is not committed: {error}.") from None
            else:
                return Committed(pending.answer, pending.end_offset)
            try:
                pending = await self._start(decide)
            except NotCommittedError as error:
                pending = error
        raise AssertionError("the last attempt returns or raises")


def _decide(
    decide: Callable[[MetadataImage, W], Decision[T]], spec: W, image: MetadataImage
) -> Decision[T]:
    return decide(image, spec)


class _TimeSlice:
    """Work and time spent since the last checkpoint of the event loop."""

    __slots__ = ("_clock", "_end", "_left")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start()

    def _start(self) -> None:
        self._left = SLICE_RECORDS
        self._end = self._clock.monotonic() + SLICE_S

    def charge(self, records: int) -> bool:
        """Charge decided and encoded records, and return whether the slice is used up."""
        self._left -= records
        return self._left <= 0 or self._clock.monotonic() >= self._end

    async def pause(self) -> None:
        await trio.lowlevel.checkpoint()
        self._start()


class _Group(Generic[T]):
    """Small decisions for one batch, each made on the image after the previous one."""

    def __init__(self, image: MetadataImage, clock: Clock) -> None:
        self.image = image
        self.delta = MetadataDelta.none(image)
        self.encoded: list[bytes] = []
        self._clock = clock
        self._turn = _TimeSlice(clock)

    async def decided(
        self, decisions: Iterable[Callable[[MetadataImage], Decision[T]]]
    ) -> AsyncIterator[Decision[T] | KafkaError]:
        """Yield the result of each decision until the time slice or the batch is full."""
        size_bytes = 0
        for decide in decisions:
            try:
                decision = decide(self.image)
                steps = Replay(self.image)
                encoded = await _Packing(decision, self.image, self._turn).next_batch(steps)
            except KafkaError as error:
                yield error
            except ValueError as error:
                yield KafkaError(ErrorCode.INVALID_REQUEST, f"{error}.")
            else:
                size_bytes += sum(map(len, encoded))
                if self.encoded and (
                    size_bytes > MAX_BATCH_BYTES
                    or len(self.encoded) + len(encoded) > MAX_BATCH_RECORDS
                ):
                    return  # the next batch decides it again
                if encoded:
                    self.image, delta = steps.finish()
                    self.delta = self.delta.then(delta)
                    self.encoded += encoded
                yield decision
            if self._turn.charge(_DECISION_RECORDS) or len(self.encoded) >= SLICE_RECORDS:
                return


class _Packing(Generic[T]):
    """Encoder of one decision's records, batch by batch."""

    def __init__(self, decision: Decision[T], image: MetadataImage, turn: _TimeSlice) -> None:
        self._records: Iterator[MetadataRecord | None] = iter(decision.records)
        self._most_records = DIVISIBLE_BATCH_RECORDS if decision.divisible else MAX_BATCH_RECORDS
        self._divisible = decision.divisible
        self._encode = RecordEncoder(image.features).encode
        self._turn = turn
        # Record that did not fit into the previous batch.
        self._left: tuple[MetadataRecord, bytes] | None = None

    async def next_batch(self, steps: Replay) -> list[bytes]:
        """Encode the next batch and replay it into `steps`; empty after the last record.

        All records of an indivisible decision are in the first batch, regardless of its size.
        """
        encoded: list[bytes] = []
        part: list[MetadataRecord] = []
        size_bytes = 0
        if self._left is not None:
            first, packed = self._left
            self._left = None
            part.append(first)
            encoded.append(packed)
            size_bytes = len(packed)
        for record in self._records:
            if record is not None:
                packed = self._encode(record)
                size_bytes += len(packed)
                if self._divisible and size_bytes > MAX_BATCH_BYTES:
                    self._left = record, packed
                    break
                part.append(record)
                encoded.append(packed)
                if len(encoded) == self._most_records and self._divisible:
                    break
                if len(part) < _CLOCK_RECORDS:
                    continue
            steps.apply(part)
            if self._turn.charge(len(part)) or record is None:
                await self._turn.pause()
            part.clear()
        steps.apply(part)
        return encoded
