"""Replication of the metadata log to a node that is not a controller, by fetches.

    offset of our image --fetch_metadata--> batches  -> applied one by one, as on every replica
                                        `-> snapshot -> loaded part by part, takes effect at the end

The fetch is a long poll at the active controller. If the active controller changes, the node
fetches from the new one. All applied metadata is committed. A controller whose log ends earlier, or
has a different batch at that offset, therefore belongs to a quorum that has lost acknowledged
metadata: the node stops instead of mixing two histories.
"""

import logging
from typing import Final

from metaquorum.metadata.batch import Batch, decode_batch
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import RecordError
from metaquorum.quorum.channel.rpc_client import CallError
from metaquorum.quorum.channel.timing import Backoff
from metaquorum.quorum.rpc.links import ControllerTerm, QuorumLinks
from metaquorum.quorum.rpc.methods import FETCH_METADATA, FetchMetadata, MetadataPart, SnapshotPart
from metaquorum.quorum.storage.snapshot import unpack_records
from metaquorum.runtime.interfaces import Runtime, StorageError, sleep
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

WAIT_MS: Final = 20_000
ANSWER_GRACE_S: Final = 5.0  # added to WAIT_MS before the fetch times out
FETCH_BYTES: Final = 1 << 20
RETRY_LEAST_S: Final = 0.02
RETRY_MOST_S: Final = 1.0


class DivergedError(StorageError):
    """Raised if the metadata log of the quorum differs from what this node has applied."""


class MetadataFollower:
    """Fetches committed metadata and applies it through a loader. `run` it in a task."""

    def __init__(self, runtime: Runtime, links: QuorumLinks, loader: MetadataLoader) -> None:
        self._clock = runtime.clock
        self._random = runtime.random
        self._links = links
        self._loader = loader
        self._term: int | None = None  # term of the last applied batch; None after a snapshot
        self._snapshot: tuple[int, int] | None = None  # its end offset, and the next part to fetch
        self.snapshots_loaded = 0

    async def run(self) -> None:
        """Fetch and apply committed metadata until cancelled.

        Raises DivergedError if the quorum has lost committed metadata, and StorageError if it
        sends malformed metadata.
        """
        backoff = Backoff(self._random, RETRY_LEAST_S, RETRY_MOST_S)
        while True:
            controller_term = await self._links.wait_controller_term()
            try:
                answer = await controller_term.during(lambda to=controller_term: self._ask(to))  # type: ignore[misc]
            except (CallError, KafkaError) as error:
                self._check(error)
                log.debug("cannot fetch metadata from %s: %s", controller_term, error)
                await sleep(self._clock, backoff.next_s())
                continue
            if answer is None:
                self._snapshot = None  # the next controller sends a snapshot of its own
                continue
            backoff.reset()
            try:
                await self._take(answer)
            except RecordError as error:
                raise StorageError(
                    f"cannot apply the metadata from {controller_term}: {error}"
                ) from None

    async def _ask(self, controller_term: ControllerTerm) -> MetadataPart:
        request = FetchMetadata(
            self._loader.image.end_offset, self._term, WAIT_MS, FETCH_BYTES, self._snapshot
        )
        return await controller_term.call(FETCH_METADATA, request, WAIT_MS / 1000 + ANSWER_GRACE_S)

    def _check(self, error: CallError | KafkaError) -> None:
        """Raise DivergedError if `error` is OFFSET_OUT_OF_RANGE."""
        self._snapshot = None
        if isinstance(error, KafkaError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            raise DivergedError(
                f"the quorum has lost committed metadata: {error.message} This node keeps its data"
                " and stops; restore the data directories of the controllers"
            )

    async def _take(self, answer: MetadataPart) -> None:
        """Apply the batches or the snapshot part. Raises RecordError if they are malformed."""
        if answer.snapshot is not None:
            await self._load(answer.snapshot)
        for encoded in answer.batches:
            await self._apply(decode_batch(encoded))

    async def _apply(self, batch: Batch) -> None:
        if not await self._loader.apply(batch.term, batch):
            raise RecordError(
                f"received a batch for offset {batch.expected_offset}, expected offset"
                f" {self._loader.image.end_offset}"
            )
        self._term = batch.term

    async def _load(self, part: SnapshotPart) -> None:
        if part.number == 0:
            log.info("loading a metadata snapshot up to offset %d", part.end_offset)
            self._loader.begin_load()
        elif self._snapshot != (part.end_offset, part.number):
            raise RecordError(f"received part {part.number} of a snapshot that was not requested")
        await self._loader.load(unpack_records(part.records))
        self._snapshot = part.end_offset, part.number + 1
        if part.is_last:
            self._loader.end_load(part.end_offset)
            self._snapshot, self._term = None, None
            self.snapshots_loaded += 1
