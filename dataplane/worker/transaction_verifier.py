"""Questions to transaction coordinators: is this partition part of that transaction (KIP-890)?

    adds=False    the coordinator answers whether the client has added the partitions
    adds=True     it adds them: clients of transaction.version 2 do not add partitions themselves

One request is under way to each other worker at a time. Questions that come meanwhile go
into the next one, together. A coordinator on this worker is asked in process, each transaction by
itself, as its answers do not have to wait for a connection.

At most `MAX_PLACES` partitions are in a request, and `MAX_WAITING` of one client wait. Clients have
no limit together: those of one cannot refuse the others.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Protocol, TypeAlias

import trio

from metaquorum.dataplane.instruments.histogram import Histogram
from metaquorum.dataplane.quotas.client_state import ClientShare, QuotaClient, share_of
from metaquorum.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from metaquorum.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.schema.message import Message

MAX_PLACES: Final = 2_000
MAX_WAITING: Final = 20_000  # partitions for which the clients of one share wait
MAX_PLACES_AT_ONCE: Final = 64  # answered in the step that asks
# Seconds that a coordinator has for its answer.
ANSWER_S: Final = 10.0
NO_WORKER: Final = -1

# Topic name and partition index.
Place: TypeAlias = tuple[str, int]
Codes: TypeAlias = dict[Place, ErrorCode]
VerifyHere: TypeAlias = Callable[
    [str, int, int, Collection[Place]], Mapping[Place, ErrorCode] | None
]
ConfirmedHere: TypeAlias = Callable[[str, int, int], Collection[Place]]


class CoordinatesTransactions(Protocol):
    """The transaction coordinator of this worker."""

    def add_partitions(
        self, request: AddPartitionsToTxnRequest
    ) -> Awaitable[AddPartitionsToTxnResponse]:
        """Answer a request of version 4 or later."""

    def list_transactions(
        self, request: ListTransactionsRequest
    ) -> Awaitable[ListTransactionsResponse]: ...


class AsksWorkers(Protocol):
    async def ask(self, worker_id: int, request: Message, *, timeout_s: float) -> Any:
        """Send the request and return the response. Raises KafkaError."""


class _Asked:
    """A transaction that waits for its coordinator's answer."""

    __slots__ = ("codes", "count", "transaction")

    def __init__(self, transaction: AddPartitionsToTxnTransaction, count: int) -> None:
        self.transaction = transaction
        self.count = count
        self.codes: Codes | ErrorCode | None = None


class _Coordinator:
    """Questions to one other worker."""

    __slots__ = ("sending", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[_Asked, None] = {}
        self.sending = trio.Lock()


class TransactionVerifier:
    """Asks coordinators whether partitions are part of transactions, and has them added."""

    def __init__(
        self,
        worker_id: int,
        client: AsksWorkers,
        coordinator_of: Callable[[str], int],
        add_partitions: Callable[
            [AddPartitionsToTxnRequest], Awaitable[AddPartitionsToTxnResponse]
        ],
        monotonic: Callable[[], float],
        verify_here: VerifyHere | None = None,
        confirmed_here: ConfirmedHere | None = None,
    ) -> None:
        """Create the verifier of one worker.

        `coordinator_of` returns the worker that coordinates a transactional id, or NO_WORKER;
        `add_partitions` asks the coordinator of this worker, `verify_here` does so without a wait,
        and returns None if this worker does not coordinate the id; `confirmed_here` returns
        the partitions for which it then finds no error.
        """
        self._confirmed_here = confirmed_here
        self._verify_here = verify_here
        self.failed_count = 0  # partitions whose verification failed
        self.times = Histogram()  # verifications of one transaction, failed ones included
        self._monotonic = monotonic
        self._worker_id = worker_id
        self._client = client
        self._coordinator_of = coordinator_of
        self._add_partitions = add_partitions
        self._coordinators: dict[int, _Coordinator] = {}
        self._waiting: Counter[ClientShare] = Counter()

    def confirmed(
        self, transactional_id: str, producer_id: int, producer_epoch: int
    ) -> Collection[Place]:
        """Return the partitions that the coordinator confirms now, if it is in this worker.

        For a partition that is not among them, ask `verify_now` or `verify`, which count failures.
        """
        if self._confirmed_here is None:
            return ()
        places = self._confirmed_here(transactional_id, producer_id, producer_epoch)
        if places:
            self.times.record_none()
        return places

    def verify_now(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        places: Collection[Place],
    ) -> Mapping[Place, ErrorCode] | None:
        """Return the answers of `verify` at once; None if another worker coordinates the id.

        None also for many partitions, whose answers take long.
        """
        verify_here = self._verify_here
        if verify_here is None or len(places) > MAX_PLACES_AT_ONCE:
            return None
        codes = verify_here(transactional_id, producer_id, producer_epoch, places)
        if codes is None:
            return None
        if any(codes.values()):
            codes = {place: _code(code) for place, code in codes.items()}
        self.times.record_none()
        self.failed_count += sum(map(bool, codes.values()))
        return codes

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        places: Collection[Place],
        client: QuotaClient,
        *,
        adds: bool,
    ) -> Codes:
        """Return the coordinator's answer for each of at most `MAX_PLACES` partitions.

        An error of its own is COORDINATOR_NOT_AVAILABLE (no coordinator, or the clients of the
        share of `client` ask too much) or NETWORK_EXCEPTION. PRODUCER_FENCED becomes
        INVALID_PRODUCER_EPOCH, as in Kafka: the client then asks the coordinator whether it was
        fenced.
        """
        began = self._monotonic()
        codes = await self._verify(
            transactional_id, producer_id, producer_epoch, places, share_of(client), adds
        )
        now = self._monotonic()
        self.times.record(now - began, now)
        self.failed_count += sum(map(bool, codes.values()))
        return codes

    async def _verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        places: Collection[Place],
        share: ClientShare,
        adds: bool,
    ) -> Codes:
        assert len(places) <= MAX_PLACES
        worker_id = self._coordinator_of(transactional_id)
        if worker_id == NO_WORKER or self._waiting[share] + len(places) > MAX_WAITING:
            return dict.fromkeys(places, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        asked = _Asked(
            AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                verify_only=not adds,
                topics=[
                    AddPartitionsToTxnTopic(name=name, partitions=[index for _, index in rows])
                    for name, rows in groupby(sorted(places), itemgetter(0))
                ],
            ),
            len(places),
        )
        self._waiting[share] += asked.count
        try:
            if worker_id == self._worker_id:
                _take([asked], await self._add_partitions(_request([asked])))
            else:
                await self._ask(worker_id, asked)
        finally:
            self._waiting[share] -= asked.count
            if not self._waiting[share]:
                del self._waiting[share]
        codes = asked.codes
        if isinstance(codes, ErrorCode):
            return dict.fromkeys(places, codes)
        assert codes is not None
        return {place: codes.get(place, ErrorCode.NETWORK_EXCEPTION) for place in places}

    async def _ask(self, worker_id: int, asked: _Asked) -> None:
        """Wait for the answer; send what waits for this worker if no other task does.

        If a task is cancelled that sends for others, one of those sends all again.
        """
        coordinator = self._coordinators.setdefault(worker_id, _Coordinator())
        coordinator.waiting[asked] = None
        try:
            async with coordinator.sending:
                while asked.codes is None:
                    await self._send(worker_id, coordinator.waiting)
        finally:
            coordinator.waiting.pop(asked, None)

    async def _send(self, worker_id: int, waiting: dict[_Asked, None]) -> None:
        batch = _next_batch(waiting)
        try:
            response = await self._client.ask(worker_id, _request(batch), timeout_s=ANSWER_S)
        except KafkaError as error:
            # Those behind would wait as long for the same outcome. Their clients try again.
            for each in waiting:
                each.codes = error.code
            waiting.clear()
            return
        _take(batch, response)
        for each in batch:
            waiting.pop(each, None)


def _next_batch(waiting: dict[_Asked, None]) -> list[_Asked]:
    """Return the first of those that wait; an answer names a transactional id once."""
    batch: dict[str, _Asked] = {}
    count = 0
    for each in waiting:
        count += each.count
        if batch and count > MAX_PLACES:
            break
        if each.transaction.transactional_id not in batch:
            batch[each.transaction.transactional_id] = each
    return list(batch.values())


def _request(batch: list[_Asked]) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(transactions=[each.transaction for each in batch])


def _take(batch: list[_Asked], response: AddPartitionsToTxnResponse) -> None:
    """Give each transaction its part of the response."""
    whole = _code(response.error_code)
    if whole is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        whole = ErrorCode.INVALID_TXN_STATE  # as in Kafka: the client cannot know that error
    if whole:
        for each in batch:
            each.codes = whole
        return
    results = {result.transactional_id: result for result in response.results_by_transaction}
    for each in batch:
        result = results.get(each.transaction.transactional_id)
        each.codes = {
            (topic.name, row.partition_index): _code(row.partition_error_code)
            for topic in (() if result is None else result.topic_results)
            for row in topic.results_by_partition
        }


def _code(number: int) -> ErrorCode:
    try:
        code = ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code
