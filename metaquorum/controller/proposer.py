"""From decisions to committed batches: decide, propose, await the commit, answer.

Decisions are made one after the other, each on the *decided* image: the committed one with
everything on top that this controller has proposed and not yet seen committed. A topic whose
creation is under way therefore exists already for the next decision. Since nothing uncommitted may
be told, an answer without records of its own ("exists already") waits for the proposal before it.

    decide on `_decided` -> records -> replay into `_decided` -> propose at its old end offset
         ^                                                             |
         |  a proposal that did not take effect: everything proposed   v
         '-- behind it misses its offset too; back to the committed image, decide those anew

Committing needs no lock: many decisions are on their way together and share the quorum's fsync.
What was replayed to decide further is handed to the loader, which need not replay it once more.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, Generic, TypeVar

import trio

from metaquorum.controller.decision import Decision
from metaquorum.controller.features import found_cluster
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
from metaquorum.runtime.interfaces import Clock
from wire.primitives.errors import ErrorCode, KafkaError
from wire.primitives.frozen import frozen

T = TypeVar("T")
W = TypeVar("W")

MAX_ATTEMPTS: Final = 5  # of one decision, when its proposals keep missing their offset
# Of a decision that may be cut up: what is replayed in one slice at the end of a batch is bounded.
DIVISIBLE_BATCH_RECORDS: Final = 1000
SLICE_S: Final = 0.003
_CLOCK_RECORDS: Final = 32  # encoded between two looks at the clock
_DECISION_RECORDS: Final = 3  # what deciding costs, counted in records
SLICE_SPECS: Final = 1000  # answered without a wait


@frozen
class Committed(Generic[T]):
    """An answer, and where the metadata ends that shows what it says; 0 where nothing changed."""

    answer: T
    end_offset: int


@frozen
class _Pending(Generic[T]):
    """A decision on its way. `proposals` are those that its answer waits for, in order."""

    answer: T
    end_offset: int
    generation: int
    proposals: tuple[Proposal, ...]


class Proposer:
    """The decisions of this controller, for as long as it is the active one."""

    def __init__(
        self,
        quorum: Quorum,
        loader: MetadataLoader,
        clock: Clock,
        first_records: Sequence[MetadataRecord] = (),
    ) -> None:
        """`first_records` are what a new cluster has from its beginning."""
        self._first_records = first_records
        self._quorum = quorum
        self._loader = loader
        self._clock = clock
        self._deciding = trio.Lock()
        self._decided = loader.image
        self._last: Proposal | None = None  # the one that brings the log to `_decided`
        self._term = -1
        self._generation = 0

    async def decided(self) -> MetadataImage:
        """What the next decision would be made on. KafkaError when this is not the active one."""
        async with self._deciding:
            await self._rebase()
            return self._decided

    async def change(self, decide: Callable[[MetadataImage], Decision[T]]) -> Committed[T]:
        """The answer, once what it says is committed. KafkaError."""
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
        """An answer for each wish, decided in order; those of one slice are committed as one."""
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
        """Of the decisions from `first` on, what a slice of the loop takes, in one batch.

        KafkaError, NotCommittedError: none of these is made.
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
        """Decided, and on its way. KafkaError, NotCommittedError."""
        async with self._deciding:
            await self._rebase()
            decision = decide(self._decided)
            with trio.CancelScope(shield=True):  # whole, also where whoever asked is gone
                proposals = await self._propose(decision)
            if not proposals and self._last is not None:
                proposals = [self._last]  # what the answer was read from is not committed yet
            return _Pending(
                decision.answer, self._decided.end_offset, self._generation, tuple(proposals)
            )

    async def _rebase(self) -> None:
        """Decide on the committed image wherever nothing of this term is on its way."""
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
        """The decision's records are on their way, and `_decided` holds them."""
        packing = _Packing(decision, self._decided, _TimeSlice(self._clock))
        proposals: list[Proposal] = []
        while True:
            steps = Replay(self._decided)
            try:
                encoded = await packing.next_batch(steps)
            except ValueError as error:  # a text longer than records hold, for one
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{error}.") from None
            if not encoded:
                return proposals
            proposals.append(self._send(encoded, *steps.finish()))
            if not decision.divisible:
                return proposals

    def _send(
        self, encoded: Sequence[bytes], image: MetadataImage, delta: MetadataDelta
    ) -> Proposal:
        """The records are on their way, and in `_decided`. NotCommittedError, KafkaError."""
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
        """The answer and the end offset of its change, committed; decided anew where need be.

        `committed`: those known to be; what is waited for joins them.
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
                    ErrorCode.REQUEST_TIMED_OUT, f"The change may or may not be made: {error}."
                ) from None
            except NotCommittedError as error:
                if isinstance(pending, _Pending) and pending.generation == self._generation:
                    self._forget_pending()
                if not error.retry or attempt == MAX_ATTEMPTS:
                    raise KafkaError(error.code, f"The change is not made: {error}.") from None
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
    """How long the loop has been kept since it last had its turn."""

    __slots__ = ("_clock", "_end", "_left")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start()

    def _start(self) -> None:
        self._left = SLICE_RECORDS
        self._end = self._clock.monotonic() + SLICE_S

    def charge(self, records: int) -> bool:
        """So many records were decided and encoded since; whether the turn is over."""
        self._left -= records
        return self._left <= 0 or self._clock.monotonic() >= self._end

    async def pause(self) -> None:
        await trio.lowlevel.checkpoint()
        self._start()


class _Group(Generic[T]):
    """Small decisions, each on the image that the ones before lead to, for one batch."""

    def __init__(self, image: MetadataImage, clock: Clock) -> None:
        self.image = image
        self.delta = MetadataDelta.none(image)
        self.encoded: list[bytes] = []
        self._clock = clock
        self._turn = _TimeSlice(clock)

    async def decided(
        self, decisions: Iterable[Callable[[MetadataImage], Decision[T]]]
    ) -> AsyncIterator[Decision[T] | KafkaError]:
        """What becomes of each, up to the end of the slice, or of what a batch takes."""
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
                    return  # it begins the next batch, decided anew
                if encoded:
                    self.image, delta = steps.finish()
                    self.delta = self.delta.then(delta)
                    self.encoded += encoded
                yield decision
            if self._turn.charge(_DECISION_RECORDS) or len(self.encoded) >= SLICE_RECORDS:
                return


class _Packing(Generic[T]):
    """The records of one decision, encoded batch by batch."""

    def __init__(self, decision: Decision[T], image: MetadataImage, turn: _TimeSlice) -> None:
        self._records: Iterator[MetadataRecord | None] = iter(decision.records)
        self._most_records = DIVISIBLE_BATCH_RECORDS if decision.divisible else MAX_BATCH_RECORDS
        self._divisible = decision.divisible
        self._encode = RecordEncoder(image.features).encode
        self._turn = turn
        # What did not fit the batch before.
        self._left: tuple[MetadataRecord, bytes] | None = None

    async def next_batch(self, steps: Replay) -> list[bytes]:
        """The bytes of the next records, which are replayed into `steps`; none: that was all.

        Those of an indivisible decision are all in the first batch, be it as large as it may.
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
