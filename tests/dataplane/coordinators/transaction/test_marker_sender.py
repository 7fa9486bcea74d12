"""The sender of markers, with other workers that answer as the test says."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from metaquorum.dataplane.coordinators.transaction.marker_sender import (
    MAX_AT_ONCE,
    MAX_LOCAL,
    MAX_PLACES,
    MAX_RELEASED,
    MAX_RETRY_S,
    NO_LEADER,
    RETRY_S,
    MarkerSender,
)
from metaquorum.dataplane.coordinators.transaction.transaction import Place, State, Transaction
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.dataplane.scheduling.time_slices import TimeSlicer
from metaquorum.runtime.system import real_runtime
from metaquorum.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.dataplane.serving import in_trio

HERE, LOST, NEXT = 1, 2, 3
NONE = ErrorCode.NONE


class _Partitions:
    """The partitions of a topic in the metadata."""

    def __init__(self, workers: "Workers", name: str, count: int) -> None:
        self._workers, self._name, self._count = workers, name, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        leader = self._workers.leaders.get((self._name, index), self._workers.leader)
        return SimpleNamespace(leader=leader)


class Workers:
    """The leaders of all partitions, and what they are asked; LOST answers only with errors.

    `leaders` has other leaders than `leader` by partition. `answer` may replace the error code of a
    place; None leaves it out of the response.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.leader = LOST
        self.leaders: dict[Place, int] = {}
        self.partition_counts: dict[str, int | None] = {}  # None: the topic does not exist
        self.asked: list[tuple[int, list[int]]] = []
        self.requests: list[tuple[int, WriteTxnMarkersRequest]] = []
        self.delays: list[float] = []
        self.completed: list[str] = []
        self.was_asked, self.may_fail = trio.Event(), trio.Event()
        self.may_answer = trio.Event()
        self.may_answer.set()
        self.answer: Callable[[int, Place], ErrorCode | int | None] = lambda worker_id, place: NONE
        self.must_wait = True  # markers of this worker's partitions
        self.written: list[tuple[TransactionMarker, list[Place]]] = []  # without a wait
        self.wrong_responses = 0  # the first ones have another producer id
        self._nursery = nursery
        self.looks = self.most_looks = 0  # at leaders: in this step of a task, and the most in one
        self._slicer = TimeSlicer(self.cpu_s, call_after=self.call_after)
        parts: Any = SimpleNamespace(
            worker_id=HERE,
            image=self,
            timers=self,
            slicer=self._slicer,
            clock=real_runtime().clock,
        )
        client: Any = self
        self.shard: Any = SimpleNamespace(is_unloaded=False, coordinator_epoch=5)
        self.sender = MarkerSender(parts, client, self, self.complete)
        nursery.start_soon(self.sender.run)

    def cpu_s(self) -> float:
        return self.looks / 1_000_000

    def topic(self, name: str) -> Any:
        self.looks += 1
        count = self.partition_counts.get(name, MAX_PLACES)
        if count is None:
            return None
        return SimpleNamespace(partitions=_Partitions(self, name, count))

    def call_after(self, delay_s: float, work: Any) -> None:
        async def run() -> None:
            await trio.lowlevel.checkpoint()
            work()
            self.step_ends()

        if delay_s:
            self.delays.append(delay_s)
        self._nursery.start_soon(run)

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        return await self._take(HERE, request)

    def write_now(
        self, marker: TransactionMarker, places: Sequence[Place]
    ) -> list[ErrorCode] | None:
        if self.must_wait or any(self.leaders.get(each, self.leader) != HERE for each in places):
            return None
        self.written.append((marker, list(places)))
        return [ErrorCode(self.answer(HERE, place) or NONE) for place in places]

    async def ask(
        self, worker_id: int, request: WriteTxnMarkersRequest, *, timeout_s: float
    ) -> Any:
        return await self._take(worker_id, request)

    async def _take(
        self, worker_id: int, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        self.asked.append((worker_id, [marker.producer_id for marker in request.markers]))
        self.requests.append((worker_id, request))
        self.was_asked.set()
        if worker_id == LOST:
            await self.may_fail.wait()
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "no answer")
        await self.may_answer.wait()
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id + (len(self.requests) <= self.wrong_responses),
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(
                                    partition_index=index, error_code=code
                                )
                                for index in topic.partition_indexes
                                if (code := self.answer(worker_id, (topic.name, index))) is not None
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    def complete(self, shard: Any, transactional_id: str) -> None:
        self.completed.append(transactional_id)

    def send(
        self,
        producer_id: int,
        count: int = 1,
        *,
        topic: str = "t",
        name: str | None = None,
        version: int = 0,
        state: State = State.PREPARE_COMMIT,
    ) -> None:
        begun = Transaction(producer_id, 0, 1000, 0).with_partitions(
            [(topic, index) for index in range(count)], 0, version
        )
        prepared = begun.prepared(state, version, 0)
        self.sender.send(self.shard, name or str(producer_id), prepared)

    def places(self) -> list[tuple[int, str, int]]:
        """Return worker, topic and partition of all markers, in the order of the requests."""
        return [
            (worker_id, topic.name, index)
            for worker_id, request in self.requests
            for marker in request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        ]

    def step_ends(self) -> None:
        self.most_looks = max(self.most_looks, self.looks)
        self.looks = 0

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await trio.lowlevel.checkpoint()

    async def settled(self) -> None:
        """Let all other tasks run until each waits for something."""
        await trio.testing.wait_all_tasks_blocked()


def with_workers(test: Callable[[Workers], Any]) -> Callable[[], None]:
    @in_trio
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await test(Workers(nursery))
            nursery.cancel_scope.cancel()

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@with_workers
async def test_markers_behind_a_request_that_failed_are_sent_to_the_leaders_of_that_time(
    workers: Workers,
) -> None:
    """Each request to a worker that has hung would else wait for its whole timeout."""
    workers.send(7, MAX_PLACES)
    await workers.was_asked.wait()
    workers.send(8, MAX_PLACES)
    workers.send(9, 1)
    workers.leader = NEXT
    workers.may_fail.set()
    await workers.until(lambda: len(workers.completed) == 3)
    assert [worker_id for worker_id, _ in workers.asked if worker_id == LOST] == [LOST]
    assert sorted(workers.completed) == ["7", "8", "9"]
    assert len(workers.sender) == 0


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_marker_has_the_epochs_and_the_decision_of_its_transaction(
    state: State, version: int
) -> None:
    async def test(workers: Workers) -> None:
        workers.leader = NEXT
        workers.send(7, 3, version=version, state=state)
        await workers.until(lambda: workers.completed == ["7"])
        ((worker_id, request),) = workers.requests
        (marker,) = request.markers
        assert worker_id == NEXT
        assert (marker.producer_id, marker.producer_epoch) == (7, 1 if version == 2 else 0)
        assert marker.transaction_result is (state is State.PREPARE_COMMIT)
        assert (marker.coordinator_epoch, marker.transaction_version) == (5, version)
        assert [topic.partition_indexes for topic in marker.topics] == [[0, 1, 2]]

    with_workers(test)()


# This worker's partitions


@with_workers
async def test_markers_of_this_worker_that_need_not_wait_are_written_without_a_request(
    workers: Workers,
) -> None:
    workers.leader, workers.must_wait = HERE, False
    workers.send(7, 3, version=2, state=State.PREPARE_ABORT)
    workers.send(8, MAX_AT_ONCE)
    assert not workers.written  # not in the step that prepares: its client gets the answer first
    await workers.until(lambda: workers.completed == ["7", "8"])
    assert not workers.requests
    assert workers.written == [
        (TransactionMarker(7, 1, 5, False, 2), [("t", index) for index in range(3)]),
        (TransactionMarker(8, 0, 5, True), [("t", index) for index in range(MAX_AT_ONCE)]),
    ]
    assert len(workers.sender) == 0


@with_workers
async def test_very_many_markers_of_this_worker_are_not_written_in_one_step(
    workers: Workers,
) -> None:
    workers.leader, workers.must_wait = HERE, False
    workers.send(7, MAX_AT_ONCE + 1)
    workers.send(8)
    await workers.until(lambda: len(workers.completed) == 2)
    assert [marker.producer_id for marker, _ in workers.written] in ([8], [])
    assert sorted(workers.completed) == ["7", "8"]


@with_workers
async def test_few_markers_are_written_in_the_step_that_releases_them(workers: Workers) -> None:
    workers.leader, workers.must_wait = HERE, False
    workers.sender.hold()
    workers.send(7, MAX_RELEASED)
    assert not workers.written
    workers.sender.release()
    assert workers.completed == ["7"]
    workers.sender.hold()
    workers.sender.release()
    assert len(workers.written) == 1


@pytest.mark.parametrize("prepared", [(MAX_RELEASED + 1,), (1, 1)])
def test_other_held_markers_are_written_in_a_later_step(prepared: tuple[int, ...]) -> None:
    @with_workers
    async def scenario(workers: Workers) -> None:
        workers.leader, workers.must_wait = HERE, False
        workers.sender.hold()
        for producer_id, count in enumerate(prepared):
            workers.send(producer_id, count)
        workers.sender.release()
        assert not workers.written
        await workers.until(lambda: len(workers.completed) == len(prepared))
        assert not workers.requests

    scenario()


@with_workers
async def test_held_markers_that_must_wait_are_sent_in_a_request(workers: Workers) -> None:
    workers.leader = HERE
    workers.sender.hold()
    workers.send(7)
    workers.sender.release()
    await workers.until(lambda: workers.completed == ["7"])
    assert workers.asked == [(HERE, [7])]


@with_workers
async def test_only_the_places_of_this_worker_that_failed_are_attempted_again(
    workers: Workers,
) -> None:
    workers.leader, workers.must_wait = HERE, False
    failed = [("t", 1)]
    workers.answer = lambda _, place: (
        ErrorCode.NOT_ENOUGH_REPLICAS if failed and place == failed[0] else NONE
    )
    workers.send(7, 3)
    await workers.until(lambda: len(workers.written) == 1)
    failed.clear()
    await workers.until(lambda: workers.completed == ["7"])
    assert [places for _, places in workers.written] == [
        [("t", 0), ("t", 1), ("t", 2)],
        [("t", 1)],
    ]
    assert workers.delays == [RETRY_S]


@with_workers
async def test_no_marker_of_this_worker_is_written_after_the_end_of_the_leadership(
    workers: Workers,
) -> None:
    workers.leader, workers.must_wait = HERE, False
    workers.send(7, 3)
    workers.shard.is_unloaded = True
    await workers.settled()
    assert not workers.written
    assert not workers.completed
    assert len(workers.sender) == 0


@with_workers
async def test_a_transaction_without_partitions_is_complete_at_once(workers: Workers) -> None:
    workers.send(7, 0)
    assert workers.completed == ["7"]
    assert len(workers.sender) == 0


@with_workers
async def test_what_is_prepared_during_a_request_goes_into_the_next(workers: Workers) -> None:
    workers.leader, workers.may_answer = NEXT, trio.Event()
    workers.send(0)
    await workers.was_asked.wait()
    for producer_id in range(1, 11):
        workers.send(producer_id, 2)
    await workers.settled()
    assert workers.asked == [(NEXT, [0])]
    workers.may_answer.set()
    await workers.until(lambda: len(workers.completed) == 11)
    assert workers.asked == [(NEXT, [0]), (NEXT, list(range(1, 11)))]


@with_workers
async def test_a_request_has_a_limited_number_of_places(workers: Workers) -> None:
    workers.leader, workers.may_answer = NEXT, trio.Event()
    workers.send(0)
    await workers.was_asked.wait()
    for producer_id in (1, 2):
        workers.send(producer_id, MAX_PLACES - 1)
        await workers.settled()
    workers.may_answer.set()
    await workers.until(lambda: len(workers.completed) == 3)
    assert workers.asked == [(NEXT, [0]), (NEXT, [1, 2]), (NEXT, [2])]
    assert len(workers.places()) == 1 + 2 * (MAX_PLACES - 1)
    assert workers.completed == ["0", "1", "2"]


@with_workers
async def test_two_transactions_of_one_producer_id_are_in_two_requests(workers: Workers) -> None:
    """Results are by producer id; after a loss of the coordinator's log, an id may be reused."""
    workers.leader, workers.may_answer = NEXT, trio.Event()
    workers.send(0)
    await workers.was_asked.wait()
    workers.send(7, name="a")
    workers.send(7, name="b")
    workers.may_answer.set()
    await workers.until(lambda: len(workers.completed) == 3)
    assert workers.asked == [(NEXT, [0]), (NEXT, [7]), (NEXT, [7])]


@with_workers
async def test_a_transaction_of_very_many_partitions_is_divided_in_short_steps(
    workers: Workers,
) -> None:
    """Its places were sorted and queued in one step, and several at a time are replayed."""
    workers.leader = NEXT
    workers.partition_counts["t"] = 1
    begun = Transaction(7, 0, 1000, 0).with_partitions(
        [(f"t-{number}", 0) for number in range(20_000)], 0, 0
    )
    prepared = begun.prepared(State.PREPARE_COMMIT, 0, 0)
    workers.sender.send(workers.shard, "x", prepared)
    assert len(workers.sender) == 1
    workers.step_ends()
    await workers.until(lambda: workers.completed == ["x"])
    assert len(workers.places()) == len(set(workers.places())) == 20_000
    assert workers.most_looks <= MAX_PLACES


@with_workers
async def test_a_transaction_of_very_many_deleted_partitions_is_complete(workers: Workers) -> None:
    workers.partition_counts["t"] = None
    workers.send(7, 20_000)
    await workers.until(lambda: workers.completed == ["7"])
    assert len(workers.sender) == 0


@with_workers
async def test_no_marker_is_queued_after_the_end_of_the_leadership(workers: Workers) -> None:
    workers.leader, workers.may_answer = NEXT, trio.Event()
    workers.partition_counts["t"] = 20_000
    workers.send(7, 20_000)
    workers.shard.is_unloaded = True
    await workers.settled()
    assert not workers.requests
    assert len(workers.sender) == 0


# Errors, after which the leaders of that time are asked


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        12_345,
        None,
    ],
)
def test_only_a_partition_that_refused_is_asked_again_at_its_new_leader(
    code: ErrorCode | int | None,
) -> None:
    """None: the response does not name the partition."""

    async def test(workers: Workers) -> None:
        workers.leader = NEXT

        def answer(worker_id: int, place: Place) -> ErrorCode | int | None:
            if worker_id == NEXT and place == ("t", 1):
                workers.leaders[place] = HERE
                return code
            return NONE

        workers.answer = answer
        workers.send(7, 3)
        await workers.until(lambda: workers.completed == ["7"])
        assert workers.places() == [(NEXT, "t", 0), (NEXT, "t", 1), (NEXT, "t", 2), (HERE, "t", 1)]
        assert workers.sender.retry_count == 1

    with_workers(test)()


@with_workers
async def test_the_time_between_attempts_grows_to_its_limit(workers: Workers) -> None:
    workers.leader = NEXT
    workers.answer = lambda worker_id, place: (
        NONE if len(workers.requests) > 8 else ErrorCode.NOT_ENOUGH_REPLICAS
    )
    workers.send(7)
    await workers.until(lambda: workers.completed == ["7"])
    assert workers.delays[:3] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
    assert len(workers.delays) == 8
    assert workers.delays[-1] == MAX_RETRY_S


@with_workers
async def test_many_attempts_do_not_overflow_the_time_between_them(workers: Workers) -> None:
    workers.leader = NEXT
    workers.answer = lambda worker_id, place: (
        NONE if len(workers.requests) > 3000 else ErrorCode.NOT_ENOUGH_REPLICAS
    )
    workers.send(7)
    await workers.until(lambda: workers.completed == ["7"])
    assert max(workers.delays) == MAX_RETRY_S


@with_workers
async def test_a_partition_without_a_leader_is_asked_once_it_has_one(workers: Workers) -> None:
    workers.leader = NEXT
    workers.leaders["t", 1] = NO_LEADER
    workers.send(7, 2)
    await workers.until(lambda: len(workers.delays) > 3)
    assert workers.places() == [(NEXT, "t", 0)]
    assert not workers.completed
    workers.leaders["t", 1] = HERE
    await workers.until(lambda: workers.completed == ["7"])
    assert workers.places() == [(NEXT, "t", 0), (HERE, "t", 1)]


@with_workers
async def test_an_error_of_this_worker_itself_is_followed_by_another_attempt(
    workers: Workers,
) -> None:
    workers.leader = HERE
    workers.answer = lambda worker_id, place: (
        NONE if len(workers.requests) > 2 else ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    workers.send(7)
    await workers.until(lambda: workers.completed == ["7"])
    assert workers.asked == [(HERE, [7])] * 3


@with_workers
async def test_markers_of_this_worker_are_written_beside_each_other(workers: Workers) -> None:
    """One that waits for replicas does not hold up the others, up to a limit."""
    workers.leader, workers.may_answer = HERE, trio.Event()
    for producer_id in range(MAX_LOCAL + 10):
        workers.send(producer_id)
        await workers.settled()
    assert len(workers.requests) == MAX_LOCAL
    workers.may_answer.set()
    await workers.until(lambda: len(workers.completed) == MAX_LOCAL + 10)


# Topics that are deleted, or made again


@with_workers
async def test_a_transaction_is_complete_once_the_topics_without_its_marker_are_deleted(
    workers: Workers,
) -> None:
    workers.leader = NEXT
    workers.answer = lambda worker_id, place: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    workers.send(7, 3)
    await workers.until(lambda: workers.sender.retry_count > 1)
    workers.partition_counts["t"] = None
    await workers.until(lambda: workers.completed == ["7"])


@with_workers
async def test_a_deleted_topic_needs_no_marker(workers: Workers) -> None:
    workers.partition_counts["t"] = None
    workers.send(7, 3)
    await workers.until(lambda: workers.completed == ["7"])
    assert not workers.requests


@with_workers
async def test_a_topic_that_was_made_again_with_fewer_partitions_gets_the_markers_of_those(
    workers: Workers,
) -> None:
    workers.leader = NO_LEADER
    workers.send(7, 3)
    await workers.until(lambda: workers.sender.retry_count > 1)
    workers.leader = NEXT
    workers.partition_counts["t"] = 1
    await workers.until(lambda: workers.completed == ["7"])
    assert workers.places() == [(NEXT, "t", 0)]


# Refusals of the log that are final


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("leader", [NEXT, HERE])
def test_a_partition_with_a_newer_epoch_of_the_producer_is_done(
    version: int, leader: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Without that, the transaction would stay prepared, and its client wait, until a restart."""

    async def test(workers: Workers) -> None:
        workers.leader = leader
        workers.answer = lambda worker_id, place: (
            ErrorCode.INVALID_PRODUCER_EPOCH if place == ("t", 1) else NONE
        )
        workers.send(7, 3, name="x", version=version)
        await workers.until(lambda: workers.completed == ["x"])
        assert len(workers.places()) == 3
        assert len(workers.sender) == workers.sender.retry_count == 0

    with_workers(test)()
    (message,) = [each.getMessage() for each in caplog.records]
    assert "'x'" in message
    assert "t-1" in message
    assert f"producer 7 than the marker's, {1 if version == 2 else 0}" in message


def test_many_partitions_with_a_newer_epoch_are_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was a line for each of 2,000 partitions, in one step."""

    async def test(workers: Workers) -> None:
        workers.leader = NEXT
        workers.answer = lambda worker_id, place: ErrorCode.INVALID_PRODUCER_EPOCH
        workers.send(7, MAX_PLACES)
        await workers.until(lambda: workers.completed == ["7"])

    with_workers(test)()
    messages = [each.getMessage() for each in caplog.records]
    assert 1 <= len(messages) <= 2  # one for each request
    assert "partitions, the first is t-0, have a newer epoch of producer 7" in messages[0]


@with_workers
async def test_other_partitions_are_still_asked_after_one_with_a_newer_epoch(
    workers: Workers,
) -> None:
    workers.leader = NEXT
    codes = {0: ErrorCode.INVALID_PRODUCER_EPOCH, 1: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    workers.answer = lambda worker_id, place: codes.pop(place[1], NONE)
    workers.send(7, 3)
    await workers.until(lambda: workers.completed == ["7"])
    assert workers.places()[3:] == [(NEXT, "t", 1)]


@with_workers
async def test_a_partition_that_has_seen_a_newer_coordinator_stops_this_one(
    workers: Workers,
) -> None:
    """The newer one has loaded the transaction, and completes it."""
    workers.leader = NEXT
    workers.leaders["t", 0] = NO_LEADER
    fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    codes = {1: ErrorCode.NOT_LEADER_OR_FOLLOWER, 2: fenced}
    workers.answer = lambda worker_id, place: codes.get(place[1], NONE)
    workers.send(7, MAX_PLACES)
    workers.send(8, 2)
    await workers.until(lambda: len(workers.sender) == 1)
    del codes[1]
    workers.leader = workers.leaders["t", 0] = HERE
    await workers.until(lambda: workers.completed == ["8"])
    await workers.settled()
    assert workers.completed == ["8"]
    assert all(ids == [8] for worker_id, ids in workers.asked if worker_id == HERE)
    assert len(workers.sender) == 0


# A shard that this worker does not lead any longer


@with_workers
async def test_answers_after_the_end_of_the_leadership_complete_nothing(workers: Workers) -> None:
    workers.leader, workers.may_answer = NEXT, trio.Event()
    workers.send(7)
    await workers.was_asked.wait()
    workers.send(8)  # waits behind it
    workers.shard.is_unloaded = True
    workers.may_answer.set()
    await workers.settled()
    assert workers.asked == [(NEXT, [7])]
    assert not workers.completed
    assert len(workers.sender) == 0


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE])
def test_no_attempt_follows_the_end_of_the_leadership(code: ErrorCode) -> None:
    async def test(workers: Workers) -> None:
        workers.leader, workers.may_answer = NEXT, trio.Event()
        workers.leaders["t", 1] = NO_LEADER
        workers.answer = lambda worker_id, place: code
        workers.send(7, 2)
        await workers.was_asked.wait()
        workers.shard.is_unloaded = True
        workers.may_answer.set()
        await workers.settled()
        assert len(workers.requests) == 1
        assert not workers.completed
        assert len(workers.sender) == 0

    with_workers(test)()


@with_workers
async def test_a_lost_answer_after_the_end_of_the_leadership_is_not_followed_by_attempts(
    workers: Workers,
) -> None:
    workers.send(7, MAX_PLACES)
    await workers.was_asked.wait()
    workers.send(8)
    workers.shard.is_unloaded = True
    workers.may_fail.set()
    await workers.settled()
    assert workers.asked == [(LOST, [7])]
    assert workers.sender.retry_count == 0
    assert len(workers.sender) == 0


@with_workers
async def test_another_shard_of_this_worker_goes_on_after_one_has_ended(workers: Workers) -> None:
    """The transaction that this worker has loaded again is another one for the sender."""
    workers.leader, workers.may_answer = NEXT, trio.Event()
    workers.send(7)
    await workers.was_asked.wait()
    workers.shard.is_unloaded = True
    workers.shard = type(workers.shard)(is_unloaded=False, coordinator_epoch=6)
    workers.send(7)
    workers.may_answer.set()
    await workers.until(lambda: workers.completed == ["7"])
    epochs = [marker.coordinator_epoch for _, each in workers.requests for marker in each.markers]
    assert epochs == [5, 6]
    assert len(workers.sender) == 0


@with_workers
async def test_an_answer_that_names_other_producers_and_partitions_is_not_believed(
    workers: Workers,
) -> None:
    workers.leader = NEXT
    workers.wrong_responses = 1
    workers.send(7)
    await workers.until(lambda: workers.completed == ["7"])
    assert len(workers.requests) == 2
