"""The sender of markers, with other workers that answer as the test says."""

from types import SimpleNamespace
from typing import Any

import trio

from dataplane.coordinators.transaction.marker_sender import MAX_PLACES, MarkerSender
from dataplane.coordinators.transaction.transaction import State, Transaction
from metaquorum.runtime.system import real_runtime
from tests.dataplane.serving import in_trio
from wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from wire.primitives.errors import ErrorCode, KafkaError

HERE, LOST, NEXT = 1, 2, 3


class Workers:
    """The leaders of all partitions, and what they are asked; LOST answers only with errors."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.leader = LOST
        self.asked: list[tuple[int, list[int]]] = []
        self.completed: list[str] = []
        self.was_asked, self.may_fail = trio.Event(), trio.Event()
        self.is_complete = trio.Event()
        self._nursery = nursery
        parts: Any = SimpleNamespace(
            worker_id=HERE, image=self, timers=self, clock=real_runtime().clock
        )
        client: Any = self
        unused: Any = None
        self.shard: Any = SimpleNamespace(is_unloaded=False, coordinator_epoch=0)
        self.sender = MarkerSender(parts, client, unused, self.complete)
        nursery.start_soon(self.sender.run)

    def topic(self, name: str) -> Any:
        return SimpleNamespace(partitions=[SimpleNamespace(leader=self.leader)] * MAX_PLACES)

    def call_after(self, delay_s: float, work: Any) -> None:
        async def run() -> None:
            work()

        self._nursery.start_soon(run)

    async def ask(
        self, worker_id: int, request: WriteTxnMarkersRequest, *, timeout_s: float
    ) -> Any:
        self.asked.append((worker_id, [marker.producer_id for marker in request.markers]))
        self.was_asked.set()
        if worker_id == LOST:
            await self.may_fail.wait()
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "no answer")
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(partition_index=index)
                                for index in topic.partition_indexes
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
        if len(self.completed) == 3:
            self.is_complete.set()

    def send(self, producer_id: int, count: int) -> None:
        begun = Transaction(producer_id, 0, 1000, 0).with_partitions(
            [("t", index) for index in range(count)], 0, 0
        )
        prepared = begun.prepared(State.PREPARE_COMMIT, 0, 0)
        self.sender.send(self.shard, str(producer_id), prepared)


@in_trio
async def test_markers_behind_a_request_that_failed_are_sent_to_the_leaders_of_that_time() -> None:
    """Each request to a worker that has hung would else wait for its whole timeout."""
    async with trio.open_nursery() as nursery:
        workers = Workers(nursery)
        workers.send(7, MAX_PLACES)
        await workers.was_asked.wait()
        workers.send(8, MAX_PLACES)
        workers.send(9, 1)
        workers.leader = NEXT
        workers.may_fail.set()
        await workers.is_complete.wait()
        assert [worker_id for worker_id, _ in workers.asked if worker_id == LOST] == [LOST]
        assert sorted(workers.completed) == ["7", "8", "9"]
        assert len(workers.sender) == 0
        nursery.cancel_scope.cancel()
