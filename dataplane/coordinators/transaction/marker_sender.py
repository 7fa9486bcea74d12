"""Sends the markers of prepared transactions to the leaders of their partitions.

    prepared --> places by leader --> WriteTxnMarkers, several transactions in one request
                    ^      | topic deleted: dropped                         |
                    '------+---- after a time: no leader, other leader, <---+---> written
                                 too few replicas, no answer

A transaction is complete once no place is left. One request at a time is sent to each other worker;
what is prepared meanwhile goes into the next. The partitions of this worker need no connection:
their markers are appended in one step, or if one must wait, a request is written in process.
If they are few, that is the step in which the decision is committed.

A marker may be written twice, after an answer was lost or another worker has loaded the
coordinator's partition: the second one ends nothing. A log that refuses the marker's epoch with
INVALID_PRODUCER_EPOCH has a newer one of the producer: nothing that this marker could end is open
there, and the place is done. Kafka sends no more markers then, and the transaction stays prepared
until its partition is loaded again. That happens after a loss of `__transaction_state`, whose
epochs are given again.
Source: TransactionMarkerChannelManager of Apache Kafka 4.3.1, KIP-98, KIP-890.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final, Protocol

import trio

from metaquorum.dataplane.coordinators.transaction.transaction import (
    PREPARE_COMMIT,
    Place,
    Transaction,
)
from metaquorum.dataplane.coordinators.transaction.transaction_shard import TransactionShard
from metaquorum.dataplane.instruments.histogram import Histogram
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.dataplane.network.delayed import Timers
from metaquorum.dataplane.replication.worker_client import WorkerClient
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, TimeSlicer, in_order, pause
from metaquorum.metadata.image import MetadataImage
from metaquorum.runtime import Clock
from metaquorum.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

# Partitions in one request.
MAX_PLACES: Final = 2_000
# Requests that are written in process at the same time.
MAX_LOCAL: Final = 64
# Partitions of one transaction whose markers are appended in one step.
MAX_AT_ONCE: Final = PIECE_ROWS
# Partitions of a transaction whose markers are appended before its client gets the answer.
MAX_RELEASED: Final = 8
# Partitions of a large transaction that are queued in one step, and attempted again together.
QUEUED_AT_ONCE: Final = 1_000
ANSWER_S: Final = 30.0
# Seconds until the first and the last attempts after a failure.
RETRY_S: Final = 0.05
MAX_RETRY_S: Final = 1.0
NO_LEADER: Final = -1
_new_tuple: Final = tuple.__new__  # creates a NamedTuple without the call of its own __new__


class WritesMarkers(Protocol):
    """Writer of the markers in the partitions that this worker leads."""

    def write(self, request: WriteTxnMarkersRequest) -> Awaitable[WriteTxnMarkersResponse]: ...

    def write_now(
        self, marker: TransactionMarker, places: Sequence[Place]
    ) -> Sequence[ErrorCode] | None:
        """Append the marker to each partition; None, without an append, if one must wait."""


class SenderParts(Protocol):
    """Parts of the worker that the sender uses."""

    @property
    def worker_id(self) -> int: ...

    @property
    def image(self) -> MetadataImage: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def timers(self) -> Timers: ...

    @property
    def slicer(self) -> TimeSlicer: ...


class _Ending:
    """A prepared transaction, and the partitions without its marker."""

    __slots__ = ("attempts", "began", "places", "prepared", "shard", "transactional_id")

    def __init__(
        self, shard: TransactionShard, transactional_id: str, prepared: Transaction, began: float
    ) -> None:
        self.began = began
        self.shard = shard
        self.transactional_id = transactional_id
        self.prepared = prepared
        self.places: set[Place] = set()  # empty until they are queued
        self.attempts = 0


class _Destination:
    """Places whose leader is one worker, in the order in which they are sent."""

    __slots__ = ("is_running", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[tuple[_Ending, list[Place]]] = deque()
        self.is_running = 0


class MarkerSender:
    """Sender of the markers of all transactions that this worker coordinates."""

    def __init__(
        self,
        parts: SenderParts,
        client: WorkerClient,
        writer: WritesMarkers,
        complete: Callable[[TransactionShard, str], object],
        times: Histogram | None = None,
    ) -> None:
        """Create the sender; `complete` is called once the markers of a transaction are written.

        `times` gets the time from `send` until then.
        """
        self.retry_count = 0
        self.leaderless_count = 0  # queued again until their partitions have a leader
        self._times = times or Histogram()
        self._parts = parts
        self._client = client
        self._writer = writer
        self._complete = complete
        self._destinations: dict[int, _Destination] = {}
        self._endings: dict[_Ending, None] = {}
        self._prepared: deque[_Ending] = deque()  # not queued yet
        self._is_held = False  # `release` looks at those that are prepared meanwhile
        self._wanted: deque[int] = deque()
        self._has_wanted = trio.Event()

    def __len__(self) -> int:
        """Return the number of transactions whose markers are not all written."""
        return len(self._endings)

    def send(self, shard: TransactionShard, transactional_id: str, prepared: Transaction) -> None:
        """Send the markers of a transaction, until all are written or the leadership ends."""
        now = self._parts.clock.monotonic()
        ending = _Ending(shard, transactional_id, prepared, now)
        self._endings[ending] = None
        if len(prepared.partitions) > PIECE_ROWS:
            self._parts.slicer.finish_in_background(self._queue_all(ending))
            return
        if not prepared.partitions:
            self._check(ending)
            return
        self._prepared.append(ending)
        if not self._is_held:
            self._has_wanted.set()

    def hold(self) -> None:
        """Let transactions that are prepared before `release`, in this step, wait for it."""
        self._is_held = True

    def release(self) -> None:
        """Append the markers of what was prepared since `hold` now, if they are few.

        Waking the task that appends the others takes as long as two of their appends.
        """
        self._is_held = False
        prepared = self._prepared
        if not prepared:
            return
        if len(prepared) == 1 and len(prepared[0].prepared.partitions) <= MAX_RELEASED:
            self._write_or_queue(prepared.popleft())
        else:
            self._has_wanted.set()

    async def _queue_all(self, ending: _Ending) -> None:
        """Queue the places of a large transaction, in pieces."""
        ending.places.update(ending.prepared.partitions)
        places = await in_order(ending.prepared.partitions)
        while some := list(islice(places, QUEUED_AT_ONCE)):
            if self._has_ended(ending):
                return
            self._queue(ending, some)
            await pause()
        self._check(ending)

    def _queue(self, ending: _Ending, places: Iterable[Place]) -> None:
        """Queue the places by leader; drop those that were deleted."""
        image = self._parts.image
        by_leader: dict[int, list[Place]] = {}
        name = topic = None
        for place in places:
            if place[0] != name:
                name = place[0]
                topic = image.topic(name)
            if topic is None or not 0 <= place[1] < len(topic.partitions):
                ending.places.discard(place)
                continue
            leader = topic.partitions[place[1]].leader
            by_leader.setdefault(leader, []).append(place)
        for leader, some in by_leader.items():
            if leader == NO_LEADER:
                self.leaderless_count += 1
                self._retry(ending, some, is_leaderless=True)
                continue
            destination = self._destinations.setdefault(leader, _Destination())
            waiting = destination.waiting
            if (
                waiting
                and waiting[-1][0] is ending
                and len(waiting[-1][1]) + len(some) <= MAX_PLACES
            ):
                waiting[-1][1].extend(some)
            else:
                waiting.append((ending, some))
            self._wanted.append(leader)
            self._has_wanted.set()

    def _retry(self, ending: _Ending, places: list[Place], *, is_leaderless: bool = False) -> None:
        self.retry_count += 1
        delay_s = min(RETRY_S * 2 ** min(ending.attempts, 10), MAX_RETRY_S)
        ending.attempts += 1
        self._parts.timers.call_after(delay_s, partial(self._again, ending, places, is_leaderless))

    def _again(self, ending: _Ending, places: list[Place], is_leaderless: bool) -> None:
        self.leaderless_count -= is_leaderless
        if not self._has_ended(ending):
            self._queue(ending, places)
            self._check(ending)

    def _has_ended(self, ending: _Ending) -> bool:
        """Return whether the transaction is not this worker's to complete any longer."""
        if ending.shard.is_unloaded:
            self._endings.pop(ending, None)
        return ending not in self._endings

    def _check(self, ending: _Ending) -> None:
        if not ending.places and not self._has_ended(ending):
            self._end(ending)

    def _end(self, ending: _Ending) -> None:
        """Complete the transaction: all its markers are written."""
        del self._endings[ending]
        now = self._parts.clock.monotonic()
        self._times.record(now - ending.began, now)
        self._complete(ending.shard, ending.transactional_id)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                await self._has_wanted.wait()
                self._has_wanted = trio.Event()
                await self._queue_prepared()
                while self._wanted:
                    leader = self._wanted.popleft()
                    destination = self._destinations.get(leader)
                    if destination is None or not destination.waiting:
                        continue
                    if leader == self._parts.worker_id:
                        await self._write_now(destination)
                        if not destination.waiting:
                            self._forget(leader, destination)
                            continue
                    most = MAX_LOCAL if leader == self._parts.worker_id else 1
                    if destination.is_running < most:
                        destination.is_running += 1
                        nursery.start_soon(self._run_one, leader, destination)

    async def _queue_prepared(self) -> None:
        self._parts.slicer.start()
        while self._prepared:
            self._write_or_queue(self._prepared.popleft())
            if self._prepared:  # `pause` is a system call
                await pause()

    def _write_or_queue(self, ending: _Ending) -> None:
        if self._has_ended(ending):
            return
        places = sorted(ending.prepared.partitions)
        if not self._write_at_once(ending, places):
            ending.places.update(places)
            self._queue(ending, places)
            self._check(ending)

    def _write_at_once(self, ending: _Ending, places: list[Place]) -> bool:
        """Append all markers if none has to wait; return False if `_queue` is to sort them out.

        Nearly always true on a single node, where it takes half of the time of the other way.
        """
        codes = self._writer.write_now(_appended_marker(ending), places)
        if codes is None:
            return False
        if any(codes):
            ending.places.update(places)
            self._answered_now(ending, places, codes)
        else:
            self._end(ending)
        return True

    async def _run_one(self, leader: int, destination: _Destination) -> None:
        """Send what waits for one worker."""
        try:
            while batch := self._take(destination):
                if not await self._send(leader, batch):
                    await self._retry_waiting(destination)
        finally:
            destination.is_running -= 1
        self._forget(leader, destination)

    def _forget(self, leader: int, destination: _Destination) -> None:
        if not destination.is_running and not destination.waiting:
            self._destinations.pop(leader, None)

    async def _write_now(self, destination: _Destination) -> None:
        """Append the markers of this worker's partitions, until those of a transaction must wait.

        Without a task, a request and a response of their own they take half of the time.
        """
        self._parts.slicer.start()
        while destination.waiting:
            ending, places = destination.waiting[0]
            if self._has_ended(ending):
                destination.waiting.popleft()
                continue
            if len(places) > MAX_AT_ONCE:
                return
            codes = self._writer.write_now(_appended_marker(ending), places)
            if codes is None:
                return
            destination.waiting.popleft()
            if any(codes):
                self._answered_now(ending, places, codes)
            else:
                ending.places.difference_update(places)
                self._check(ending)
            if destination.waiting:
                await pause()

    def _answered_now(
        self, ending: _Ending, places: Sequence[Place], codes: Sequence[ErrorCode]
    ) -> None:
        producer_id = ending.prepared.producer_id
        by_place = zip(places, codes, strict=True)
        self._answered(ending, places, {(producer_id, *place): code for place, code in by_place})

    def _take(self, destination: _Destination) -> list[tuple[_Ending, list[Place]]]:
        batch: list[tuple[_Ending, list[Place]]] = []
        left = MAX_PLACES
        producers: set[int] = set()
        while destination.waiting and left > 0:
            ending, places = destination.waiting[0]
            if self._has_ended(ending):
                destination.waiting.popleft()
                continue
            if ending.prepared.producer_id in producers:
                break  # results are by producer id
            producers.add(ending.prepared.producer_id)
            if len(places) > left:
                destination.waiting[0] = ending, places[left:]
                places = places[:left]
            else:
                destination.waiting.popleft()
            batch.append((ending, places))
            left -= len(places)
        return batch

    async def _retry_waiting(self, destination: _Destination) -> None:
        """Queue again, soon, what waits for a worker that did not answer.

        Its partitions may have other leaders by now.
        """
        for number in range(len(destination.waiting)):
            if not destination.waiting:  # another task has taken the rest
                return
            ending, places = destination.waiting.popleft()
            if not self._has_ended(ending):
                self._retry(ending, places)
            if number % PIECE_ROWS == PIECE_ROWS - 1:
                await trio.lowlevel.checkpoint()

    async def _send(self, leader: int, batch: list[tuple[_Ending, list[Place]]]) -> bool:
        """Send one request and handle its answer; return False if there is none."""
        request = WriteTxnMarkersRequest(markers=[_marker(*each) for each in batch])
        try:
            if leader == self._parts.worker_id:
                response = await self._writer.write(request)
            else:
                response = await self._client.ask(leader, request, timeout_s=ANSWER_S)
        except KafkaError as error:
            log.debug("markers for worker %d are sent again: %s", leader, error)
            for ending, places in batch:
                if not self._has_ended(ending):
                    self._retry(ending, places)
            return False
        codes = {
            (marker.producer_id, topic.name, each.partition_index): each.error_code
            for marker in response.markers
            for topic in marker.topics
            for each in topic.partitions
        }
        for ending, places in batch:
            self._answered(ending, places, codes)
        return True

    def _answered(
        self, ending: _Ending, places: Sequence[Place], codes: Mapping[tuple[int, str, int], int]
    ) -> None:
        if self._has_ended(ending):
            return
        again: list[Place] = []
        newer: list[Place] = []
        for place in places:
            code = codes.get((ending.prepared.producer_id, *place), ErrorCode.NETWORK_EXCEPTION)
            if code == ErrorCode.NONE:
                ending.places.discard(place)
            elif code == ErrorCode.INVALID_PRODUCER_EPOCH:
                ending.places.discard(place)
                newer.append(place)
            elif code == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                log.warning(
                    "markers of transactional id %r are not sent any longer: %s-%d has seen a newer"
                    " coordinator",
                    ending.transactional_id,
                    *place,
                )
                self._endings.pop(ending, None)
                return
            else:
                again.append(place)
        if newer:
            log.warning(
                "transactional id %r: %d partitions, the first is %s-%d, have a newer epoch of"
                " producer %d than the marker's, %d, and do not take it; if readers wait there, see"
                " 'mq-admin transactions explain %s'",
                ending.transactional_id,
                len(newer),
                *newer[0],
                ending.prepared.producer_id,
                ending.prepared.producer_epoch,
                newer[0][0],
            )
        if again:
            self._retry(ending, again)
        self._check(ending)


def _appended_marker(ending: _Ending) -> TransactionMarker:
    prepared = ending.prepared
    return _new_tuple(
        TransactionMarker,
        (
            prepared.producer_id,
            prepared.producer_epoch,
            ending.shard.coordinator_epoch,
            prepared.state is PREPARE_COMMIT,
            prepared.client_version,
        ),
    )


def _marker(ending: _Ending, places: list[Place]) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for topic, index in places:
        topics.setdefault(topic, []).append(index)
    prepared = ending.prepared
    return WritableTxnMarker(
        producer_id=prepared.producer_id,
        producer_epoch=prepared.producer_epoch,
        transaction_result=prepared.state is PREPARE_COMMIT,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ],
        coordinator_epoch=ending.shard.coordinator_epoch,
        transaction_version=prepared.client_version,
    )
