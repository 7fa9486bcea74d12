"""Transactional writes and markers in the runtime of coordinators, live and while loading."""

from collections.abc import Sequence

import pytest

from metaquorum.dataplane.coordinators import hosted_shard
from metaquorum.dataplane.coordinators import runtime as runtime_module
from metaquorum.dataplane.coordinators.client_budget import COORDINATOR, UNKNOWN
from metaquorum.dataplane.coordinators.hosted_shard import HostedShard, PendingBatch, State
from metaquorum.dataplane.coordinators.loading import ShardLoader, read_chunk
from metaquorum.dataplane.coordinators.runtime import CoordinatorRuntime
from metaquorum.dataplane.coordinators.shard import CoordinatorRecord, TransactionOf, Write
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, Steps, pause
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.records import Record, encode_batch
from tests.dataplane.coordinators.test_runtime import (
    TOPIC,
    Answer,
    Coordinator,
    Register,
    coordinating,
)
from tests.dataplane.replication.together import Together, run_together, together
from tests.dataplane.serving import Simulated, append_unvalidated, run_simulated, simulated
from tests.dataplane.stepped import stepped


class Transactions(Register):
    """A register with values that wait for markers; a marker takes two steps and more."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.open: dict[int, list[CoordinatorRecord]] = {}
        self.ended: list[TransactionMarker] = []

    def appended_in_transaction(
        self, records: Sequence[CoordinatorRecord], producer_id: int
    ) -> None:
        self.appended(records)

    def replay_transactional(
        self, record: CoordinatorRecord, producer_id: int, now: float
    ) -> Steps[None] | None:
        if self.is_loaded:
            self.in_flight -= 1
        self.open.setdefault(producer_id, []).append(record)
        return None

    def replay_marker(self, marker: TransactionMarker, now: float) -> Steps[None] | None:
        records = self.open.pop(marker.producer_id, [])
        return self._end(marker, records) if records else None

    async def _end(self, marker: TransactionMarker, records: list[CoordinatorRecord]) -> None:
        for record in records:
            if marker.is_commit:
                self.values[record.key] = record.value or b""
            await pause()
        self.ended.append(marker)


class TransactionalCoordinator(Coordinator):
    def __init__(self, worker: object, time_limit_s: float = 5.0) -> None:
        self.worker = worker
        self.runtime: CoordinatorRuntime[Transactions] = CoordinatorRuntime(  # type: ignore[assignment]
            TOPIC,
            worker,  # type: ignore[arg-type]
            worker.replica_manager,  # type: ignore[attr-defined]
            Transactions,
            load_bytes=1 << 20,
            time_limit_s=lambda: time_limit_s,
        )
        self.runtime.look()

    def begin(
        self,
        producer_id: int,
        *rows: tuple[bytes, bytes],
        epoch: int = 0,
        verification: object = hosted_shard,
    ) -> Answer:
        """Write the rows in the transaction of a producer."""
        answer = Answer()
        producer = TransactionOf(producer_id, epoch)
        if verification is None:
            producer = TransactionOf(producer_id, epoch, None)
        records = [CoordinatorRecord(*row) for row in rows]
        write = Write(records, b"written", None, producer)
        self.runtime.call(0, lambda _: write, answer, answer)
        return answer

    def end(
        self, producer_id: int, *, epoch: int = 0, coordinator_epoch: int = 0, commit: bool = True
    ) -> Answer:
        answer = Answer()
        marker = TransactionMarker(producer_id, epoch, coordinator_epoch, commit)
        self.runtime.append_marker(0, marker, lambda: answer(b"ended"), answer)
        return answer

    @property
    def shard(self) -> Transactions:
        return self.runtime.shard(0)


@together()
async def test_the_records_of_a_transaction_take_effect_at_its_marker_in_the_order_of_the_log(
    cluster: Together,
) -> None:
    await cluster.create(TOPIC, (1, 2, 3))
    one = TransactionalCoordinator(cluster.worker(1))
    async with coordinating(one):
        await cluster.until(lambda: one.state == "ACTIVE")
        written = [one.begin(7, (b"a", b"1"), (b"b", b"1")), one.begin(8, (b"c", b"1"))]
        await cluster.until(lambda: all(each.values for each in written))
        assert one.values == {}
        assert one.shard.in_flight == 0
        aborted = one.end(8, commit=False)
        committed = one.end(7)
        after = one.put(b"a", b"2")
        assert not committed.values  # followers have not fetched the marker yet
        await cluster.until(lambda: after.values)
        assert (aborted.values, committed.values) == ([b"ended"], [b"ended"])
        assert one.values == {b"a": b"2", b"b": b"1"}
        assert one.shard.in_flight == 0
        assert one.runtime.pending_bytes == 0


@together()
async def test_with_one_replica_a_short_transaction_ends_at_once(cluster: Together) -> None:
    await cluster.create(TOPIC, (1,))
    one = TransactionalCoordinator(cluster.worker(1))
    async with coordinating(one):
        await cluster.until(lambda: one.state == "ACTIVE")
        assert one.begin(7, (b"a", b"1")).values == [b"written"]
        assert one.end(9).values == [b"ended"]  # its producer has no records
        ended = one.end(7)
        await cluster.until(lambda: ended.values)
        assert one.values == {b"a": b"1"}


@together()
async def test_the_next_leader_loads_open_transactions_and_those_that_have_ended(
    cluster: Together,
) -> None:
    await cluster.create(TOPIC, (1, 2, 3))
    first = TransactionalCoordinator(cluster.worker(1))
    second = TransactionalCoordinator(cluster.worker(2))
    async with coordinating(second):
        async with coordinating(first):
            await cluster.until(lambda: first.state == "ACTIVE")
            first.begin(1, (b"committed", b"1"), (b"both", b"1"))
            first.begin(2, (b"aborted", b"1"))
            first.begin(3, (b"open", b"1"))
            first.end(2, commit=False)
            first.begin(1, (b"more", b"1"))
            first.end(1)
            last = first.begin(2, (b"open too", b"1"))
            await cluster.until(lambda: last.values)
        await cluster.kill(1)
        await cluster.until(lambda: second.state == "ACTIVE")
        assert sorted(second.values) == [b"both", b"committed", b"more"]
        assert sorted(second.shard.open) == [2, 3]
        assert [each[:4] for each in second.shard.ended] == [(2, 0, 0, False), (1, 0, 0, True)]
        ended = [second.end(3), second.end(2, commit=False)]
        await cluster.until(lambda: all(each.values for each in ended))
        assert sorted(second.values) == [b"both", b"committed", b"more", b"open"]


@together()
async def test_what_the_log_refuses_is_answered_with_its_error(cluster: Together) -> None:
    await cluster.create(TOPIC, (1,))
    one = TransactionalCoordinator(cluster.worker(1))
    async with coordinating(one):
        with pytest.raises(KafkaError) as refused:
            one.end(7)
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await cluster.until(lambda: one.state == "ACTIVE")
        not_verified = one.begin(7, (b"a", b"1"), verification=None)
        assert not_verified.values == [ErrorCode.INVALID_TXN_STATE]
        assert one.begin(7, (b"a", b"1"), epoch=3).values == [b"written"]
        old = one.begin(7, (b"a", b"1"), epoch=2)
        assert old.values == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert one.end(7, epoch=2).values == [ErrorCode.INVALID_PRODUCER_EPOCH]
        ended = one.end(7, epoch=3, coordinator_epoch=5)
        await cluster.until(lambda: ended.values == [b"ended"])
        fenced = one.end(7, epoch=3, coordinator_epoch=4)
        assert fenced.values == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
        assert one.values == {b"a": b"1"}


@together()
async def test_a_marker_in_flight_at_the_end_of_leadership_is_refused_and_not_replayed(
    cluster: Together,
) -> None:
    await cluster.create(TOPIC, (1, 2))
    one = TransactionalCoordinator(cluster.worker(1))
    async with coordinating(one):
        await cluster.until(lambda: one.state == "ACTIVE")
        written = one.begin(7, (b"a", b"1"))
        await cluster.until(lambda: written.values)
        shard = one.shard
        ended = one.end(7)
        cluster.replica(1, TOPIC).retire()
        one.runtime.look()
        await cluster.until(lambda: ended.values == [ErrorCode.NOT_COORDINATOR])
        assert shard.values == {}
        assert one.runtime.pending_bytes == 0


@together()
async def test_a_shard_without_transactions_takes_transactional_records_as_any_others(
    cluster: Together,
) -> None:
    await cluster.create(TOPIC, (1,))
    one = Coordinator(cluster.worker(1))
    async with coordinating(one):
        await cluster.until(lambda: one.state == "ACTIVE")
        answer = Answer()
        marker = TransactionMarker(7, 0, 0, True)
        one.runtime.append_marker(0, marker, lambda: answer(b"ended"), answer)
        assert answer.values == [b"ended"]
        assert one.put(b"a", b"1").values == [b"1"]


def test_markers_are_replayed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_shard, "REPLAYED_AT_ONCE", 2 * hosted_shard.MARKER_RECORDS)

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        await client.create(TOPIC)
        partition = node.worker.replica_manager.by_name(TOPIC, 0)
        hosted = HostedShard(partition, Transactions(0))
        hosted.state = State.ACTIVE
        for number in range(5):
            marker = TransactionMarker(number, 0, 0, is_commit=True)
            hosted.appended(PendingBatch((), number + 1, 100, 0.0, None, None, number, marker))
        append_unvalidated(partition, encode_batch([Record(i, 1, b"", b"") for i in range(5)]))
        assert [hosted.replay(0.0) for _ in range(4)] == [200, 200, 100, 0]

    run_simulated(scenario)


@simulated()
async def test_markers_are_loaded_in_pieces(node: Simulated) -> None:
    client = await node.connect()
    await client.create(TOPIC)
    partition = node.worker.replica_manager.by_name(TOPIC, 0)
    log, count = partition.log, 8 * PIECE_ROWS
    for number in range(count):
        log.append_marker(TransactionMarker(number, 0, 0, False), partition.leader_epoch, 1)
    hosted = HostedShard(partition, Transactions(0))
    loader = ShardLoader(node.worker, node.worker.partition_failed, hosted, 1 << 20)
    chunk = await read_chunk(log, node.worker.disk, 0, count, 1 << 30)
    assert len(list(stepped(loader._replayed(chunk)))) >= 8


def test_clients_leave_room_for_markers_and_other_writes_of_the_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also those whose name is not known, as after a load."""
    monkeypatch.setattr(runtime_module, "MAX_PENDING_BYTES", 40_000)

    async def scenario(cluster: Together) -> None:
        await cluster.create(TOPIC, (1, 2))
        one = TransactionalCoordinator(cluster.worker(1))
        async with coordinating(one):
            await cluster.until(lambda: one.state == "ACTIVE")
            begun = one.begin(7, (b"a", b"1"))
            await cluster.until(lambda: begun.values)
            clients = [UNKNOWN] * 20 + [f"{number}" for number in range(4)]
            flood = [one.put(b"k", bytes(4000), client=client) for client in clients]
            assert [ErrorCode.COORDINATOR_NOT_AVAILABLE] in [each.values for each in flood]
            own = one.put(b"b", b"2", client=COORDINATOR)
            marker = one.end(7)
            assert (own.values, marker.values) == ([], [])
            await cluster.until(lambda: own.values and marker.values)
            assert (own.values, marker.values) == ([b"2"], [b"ended"])

    run_together(scenario)
