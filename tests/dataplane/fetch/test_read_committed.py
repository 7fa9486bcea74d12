"""Fetches with read_committed: last stable offset, aborted transactions, long polls, sessions."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from metaquorum.dataplane.fetch import reader
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.records import Record, encode_batch
from tests.dataplane.fetch.test_sessions import SessionClient, in_session
from tests.dataplane.serving import (
    FETCH_VERSION,
    RawClient,
    Simulated,
    append_unvalidated,
    fetch_message,
    records_of,
    run_simulated,
)

COMMITTED: Any = {"isolation_level": 1}


class Transactions:
    """Transactions of producers in one partition, without a coordinator."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._sequences: dict[int, int] = {}

    def send(self, producer_id: int, value: bytes = b"v", timestamp: int = 1000) -> int:
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + 1
        offset = self.partition.log.log_end_offset
        batch = encode_batch(
            [Record(0, timestamp, None, value)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        append_unvalidated(self.partition, bytearray(batch))
        return offset

    def end(self, producer_id: int, *, commit: bool) -> None:
        partition = self.partition
        marker = TransactionMarker(producer_id, 0, 0, commit, 0)
        partition.log.append_marker(marker, partition.leader_epoch, 2000)
        partition.appended(78)


def world(scenario: Callable[[Simulated, RawClient, Transactions], Awaitable[None]]) -> None:
    async def whole(sim: Simulated) -> None:
        client = await sim.connect()
        await client.create("t")
        await scenario(sim, client, Transactions(sim.worker.replica_manager.by_name("t", 0)))

    run_simulated(whole)


def test_reads_end_at_the_last_stable_offset_and_list_aborted_transactions() -> None:
    async def scenario(sim: Simulated, client: RawClient, log: Transactions) -> None:
        log.send(1)  # 0
        log.send(2)  # 1
        log.end(1, commit=False)  # 2
        log.send(1)  # 3
        row = await client.fetch("t", **COMMITTED)
        assert (row.high_watermark, row.last_stable_offset) == (4, 1)
        assert [record.offset for record in records_of(row)] == [0]
        assert [(a.producer_id, a.first_offset) for a in row.aborted_transactions] == [(1, 0)]
        row = await client.fetch("t")
        assert [record.offset for record in records_of(row)][-1] == 3
        assert (row.last_stable_offset, row.aborted_transactions) == (1, None)
        for offset in (1, 3, 4):  # at the last stable offset, and beyond it
            row = await client.fetch("t", offset, **COMMITTED)
            assert (row.error_code, bytes(row.records or b"")) == (0, b"")
            assert row.aborted_transactions == []
        log.end(2, commit=True)  # 4
        log.end(1, commit=False)  # 5
        row = await client.fetch("t", 2, **COMMITTED)
        assert row.last_stable_offset == 6
        assert [(a.producer_id, a.first_offset) for a in row.aborted_transactions] == [
            (1, 0),
            (1, 3),
        ]
        row = await client.fetch("t", 4, **COMMITTED)
        assert [a.first_offset for a in row.aborted_transactions] == [3]

    world(scenario)


@pytest.mark.parametrize("in_a_session", [False, True])
def test_a_long_poll_waits_for_the_last_stable_offset(in_a_session: bool) -> None:
    async def scenario(sim: Simulated, client: RawClient, log: Transactions) -> None:
        log.send(1)
        other = await sim.connect()
        message = fetch_message({"t": [(0, 0)]}, **COMMITTED)
        if in_a_session:
            message.session_epoch = 0
            answer = await other.call(ApiKey.FETCH, message, FETCH_VERSION)
            message = fetch_message({}, **COMMITTED)
            message.session_id, message.session_epoch = answer.session_id, 1
        message.max_wait_ms = 9000
        began = sim.now
        await other.ask(ApiKey.FETCH, message, FETCH_VERSION)
        await client.fetch("t", 99_999, max_wait_ms=0)  # the poll has begun
        for _ in range(3):
            log.send(2)  # the high watermark moves, the last stable offset does not
            await client.fetch("t")
        polls = sim.worker.long_polls
        assert len(polls) == 1
        log.end(1, commit=True)
        answer = await other.answer(ApiKey.FETCH, FETCH_VERSION)
        assert sim.now - began < 1
        (row,) = answer.responses[0].partitions
        assert [record.offset for record in records_of(row)] == [0]
        assert (row.high_watermark, row.last_stable_offset) == (5, 1)
        assert not log.partition.stable_waiters or in_a_session
        assert not log.partition.waiters or in_a_session

    world(scenario)


def test_a_session_tells_a_new_high_watermark_without_a_new_last_stable_offset() -> None:
    async def scenario(sim: Simulated, client: RawClient, session: SessionClient) -> None:
        log = Transactions(sim.worker.replica_manager.by_name("t", 0))
        log.send(1)
        rows = await session.fetch({("t", 0): 0}, **COMMITTED)
        assert rows["t", 0].last_stable_offset == 0
        assert await session.fetch(**COMMITTED) == {}
        log.send(2)
        rows = await session.fetch(**COMMITTED)
        assert (rows["t", 0].high_watermark, rows["t", 0].last_stable_offset) == (2, 0)
        assert await session.fetch(**COMMITTED) == {}
        rows = await session.fetch()  # read_uncommitted from now on
        assert len(records_of(rows["t", 0])) == 2
        assert rows["t", 0].aborted_transactions is None
        assert not log.partition.stable_waiters
        rows = await session.fetch({("t", 0): 0}, **COMMITTED)
        assert rows == {}  # nothing that the client does not know
        log.end(1, commit=False)
        rows = await session.fetch(**COMMITTED)
        assert rows["t", 0].last_stable_offset == 1
        assert [a.producer_id for a in rows["t", 0].aborted_transactions] == [1]

    in_session(scenario)


def test_many_aborted_transactions_are_answered_in_several_responses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "MAX_ABORTED", 20)

    async def scenario(sim: Simulated, client: RawClient, log: Transactions) -> None:
        for _ in range(100):
            log.send(1)
            log.end(1, commit=False)
        offset = responses = 0
        while offset < 200:
            row = await client.fetch("t", offset, **COMMITTED)
            assert len(row.aborted_transactions) <= 20
            firsts = [a.first_offset for a in row.aborted_transactions]
            assert firsts == [r.offset for r in records_of(row) if r.value == b"v"]
            offset = records_of(row)[-1].offset + 1
            responses += 1
        assert responses == 5

    world(scenario)


def test_offsets_with_read_committed_are_below_the_last_stable_offset() -> None:
    async def scenario(sim: Simulated, client: RawClient, log: Transactions) -> None:
        async def find(timestamp: int, level: int) -> tuple[int, int]:
            message = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=level,
                topics=[
                    ListOffsetsTopic(
                        name="t",
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=0, current_leader_epoch=-1, timestamp=timestamp
                            )
                        ],
                    )
                ],
            )
            answer = await client.call(ApiKey.LIST_OFFSETS, message, 11)
            (row,) = answer.topics[0].partitions
            assert row.error_code == 0
            return row.offset, row.timestamp

        log.send(1, timestamp=1000)
        log.end(1, commit=True)
        log.send(2, timestamp=5000)
        log.send(3, timestamp=6000)
        assert [await find(-1, level) for level in (0, 1)] == [(4, -1), (2, -1)]
        assert [await find(5000, level) for level in (0, 1)] == [(2, 5000), (-1, -1)]
        assert [await find(-3, level) for level in (0, 1)] == [(3, 6000), (-1, -1)]
        for timestamp in (-2, -4, -5, -6):
            assert await find(timestamp, 0) == await find(timestamp, 1)
        log.end(2, commit=True)
        log.end(3, commit=False)
        assert (await find(-1, 1), await find(-3, 1)) == ((6, -1), (3, 6000))

    world(scenario)
