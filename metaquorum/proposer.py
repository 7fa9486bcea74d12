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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

import trio

from metaquorum.batch import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    SLICE_RECORDS,
    BatchTooLargeError,
)
from metaquorum.decisions import Decision
from metaquorum.features import METADATA_VERSION, found_cluster
from metaquorum.image import MetadataImage, Replay
from metaquorum.loader import MetadataLoader
from metaquorum.quorum import NotCommittedError, OutcomeUnknownError, Proposal, Quorum
from metaquorum.records import MetadataRecord, RecordEncoder
from metaquorum.runtime.seams import Clock
from wire.errors import ErrorCode, KafkaError

T = TypeVar("T")
W = TypeVar("W")

MAX_ATTEMPTS: Final = 5  # of one decision, when its proposals keep missing their offset
# Of a decision that may be cut up: what is replayed in one slice at the end of a batch is bounded.
DIVISIBLE_BATCH_RECORDS: Final = 1000
SLICE_S: Final = 0.003
_CLOCK_RECORDS: Final = 32  # encoded between two looks at the clock


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """An answer, and where the metadata ends that shows what it says; 0 where nothing changed."""

    answer: T
    end_offset: int


@dataclass(frozen=True, slots=True)
class _Pending(Generic[T]):
    """A decision on its way. `proposals` are those that its answer waits for, in order."""

    answer: T
    end_offset: int
    generation: int
    proposals: tuple[Proposal, ...]


class Proposer:
    """The decisions of this controller, for as long as it is the active one."""

    def __init__(self, quorum: Quorum, loader: MetadataLoader, clock: Clock) -> None:
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

    async def change(self, decide: Callable[[MetadataImage], Decision[T]]) -> Changed[T]:
        """The answer, once what it says is committed. KafkaError."""
        try:
            pending: _Pending[T] | NotCommittedError = await self._start(decide)
        except NotCommittedError as error:
            pending = error
        return await self._finish(decide, pending)

    async def change_all(
        self,
        wishes: Sequence[W],
        decide: Callable[[MetadataImage, W], Decision[T]],
        refused: Callable[[W, KafkaError], T],
    ) -> Changed[list[T]]:
        """An answer for each wish, decided in order and committed together."""
        decisions = [partial(_decide, decide, wish) for wish in wishes]
        started: list[_Pending[T] | KafkaError | NotCommittedError] = []
        for decision in decisions:
            try:
                started.append(await self._start(decision))
            except (KafkaError, NotCommittedError) as error:
                started.append(error)
        answers: list[T] = []
        end_offset = 0
        for wish, decision, pending in zip(wishes, decisions, started, strict=True):
            try:
                changed = await self._finish(decision, pending)
            except KafkaError as error:
                answers.append(refused(wish, error))
            else:
                answers.append(changed.answer)
                end_offset = max(end_offset, changed.end_offset)
        return Changed(answers, end_offset)

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
            await self._propose(found_cluster(self._decided))

    def _forget_pending(self) -> None:
        self._decided, self._last = self._loader.image, None
        self._loader.forget_foreseen()
        self._generation += 1

    async def _propose(self, decision: Decision[T]) -> list[Proposal]:
        """The decision's records are on their way, and `_decided` holds them."""
        packing = _Packing(decision, self._decided, self._clock)
        proposals: list[Proposal] = []
        while True:
            steps = Replay(self._decided)
            try:
                encoded = await packing.next_batch(steps)
            except ValueError as error:  # a text longer than records hold, for one
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{error}.") from None
            if not encoded:
                return proposals
            expected_offset = self._decided.end_offset
            try:
                self._last = self._quorum.propose(self._term, expected_offset, encoded)
            except BatchTooLargeError as error:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, f"Too large: {error}.") from None
            self._decided, delta = steps.finish()
            self._loader.foresee(self._term, b"".join(encoded), self._decided, delta)
            proposals.append(self._last)
            if not decision.divisible:
                return proposals

    async def _finish(
        self,
        decide: Callable[[MetadataImage], Decision[T]],
        pending: _Pending[T] | KafkaError | NotCommittedError,
    ) -> Changed[T]:
        """The answer and the end offset of its change, committed; decided anew where need be."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                if isinstance(pending, Exception):
                    raise pending
                for proposal in pending.proposals:
                    await proposal.wait()
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
                return Changed(pending.answer, pending.end_offset)
            try:
                pending = await self._start(decide)
            except NotCommittedError as error:
                pending = error
        raise AssertionError("the last attempt returns or raises")


def _decide(
    decide: Callable[[MetadataImage, W], Decision[T]], wish: W, image: MetadataImage
) -> Decision[T]:
    return decide(image, wish)


class _Packing(Generic[T]):
    """The records of one decision, encoded batch by batch."""

    def __init__(self, decision: Decision[T], image: MetadataImage, clock: Clock) -> None:
        self._records: Iterator[MetadataRecord | None] = iter(decision.records)
        self._most_records = DIVISIBLE_BATCH_RECORDS if decision.divisible else MAX_BATCH_RECORDS
        self._divisible = decision.divisible
        self._encode = RecordEncoder(image.features.get(METADATA_VERSION, 0)).encode
        self._clock = clock
        # What did not fit the batch before.
        self._left: tuple[MetadataRecord, bytes] | None = None

    async def next_batch(self, steps: Replay) -> list[bytes]:
        """The bytes of the next records, which are replayed into `steps`; none: that was all.

        Those of an indivisible decision are all in the first batch, be it as large as it may.
        """
        encoded: list[bytes] = []
        part: list[MetadataRecord] = []
        size_bytes = 0
        slice_end = self._clock.monotonic() + SLICE_S
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
                if len(part) % _CLOCK_RECORDS or (
                    len(part) < SLICE_RECORDS and self._clock.monotonic() < slice_end
                ):
                    continue
            steps.apply(part)
            part.clear()
            await trio.lowlevel.checkpoint()
            slice_end = self._clock.monotonic() + SLICE_S
        steps.apply(part)
        return encoded
