"""Responses to producers with acks=all; the test plays the other replica."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from metaquorum.dataplane.partition.partition import Partition
from metaquorum.metadata.quota_lookup import CLIENT_ID, EntityPart
from metaquorum.quorum.controller.quota_changes import QuotaChange, QuotaOp
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.changes import change_quotas
from tests.dataplane.replication.replicas import state
from tests.dataplane.serving import (
    PRODUCE_VERSION,
    RawClient,
    Served,
    batch_of,
    in_trio,
    produce_message,
    serving,
)

OTHER = 2


@asynccontextmanager
async def replicated(folder: Path) -> AsyncIterator[tuple[Served, RawClient, Partition]]:
    """Run worker 1 as leader of t-0 in epoch 1; worker 2 is in sync and has no records."""
    async with serving(folder) as served:
        client = await served.connect()
        await client.create("t")
        partition = served.worker.replica_manager.by_name("t", 0)
        partition.assign(state(1, 1, (1, OTHER)))
        yield served, client, partition


def holds(partition: Partition, offset: int) -> None:
    """Fetch as the other replica, which has all records before `offset`."""
    leadership = partition.leader_state
    assert leadership is not None
    leadership.fetched(OTHER, -1, offset, 0, partition.log.log_end_offset, trio.current_time())
    partition.advance()


async def until_waiting(partition: Partition, count: int = 1) -> None:
    while len(partition.commit_waiters) < count:
        await trio.sleep(0)  # the request is on its way through the kernel


@in_trio
async def test_what_was_appended_in_one_epoch_is_not_acknowledged_in_another(
    tmp_path: Path,
) -> None:
    """Another worker led in between: other records may be committed at these offsets."""
    async with replicated(tmp_path) as (_, client, partition):
        await client.ask(ApiKey.PRODUCE, produce_message("t", batch_of(b"x")), PRODUCE_VERSION)
        await until_waiting(partition)
        partition.assign(state(OTHER, 2, (1, OTHER)))
        partition.assign(state(1, 3, (1, OTHER)))
        holds(partition, 1)
        assert partition.high_watermark == 1
        answer = await client.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
        row = answer.responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@in_trio
async def test_a_move_that_ends_with_the_same_leader_refuses_no_batch(tmp_path: Path) -> None:
    """A removed replica begins a new leader epoch; the leader has all records of the one before."""
    async with replicated(tmp_path) as (_, client, partition):
        await client.ask(ApiKey.PRODUCE, produce_message("t", batch_of(b"x")), PRODUCE_VERSION)
        await until_waiting(partition)
        partition.assign(state(1, 2, (1, OTHER)))
        assert len(partition.commit_waiters) == 1
        holds(partition, 1)
        answer = await client.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
        row = answer.responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (ErrorCode.NONE, 0)


@in_trio
async def test_a_batch_that_is_sent_again_waits_as_the_first_one_did(tmp_path: Path) -> None:
    async with replicated(tmp_path) as (_, client, partition):
        batch = batch_of(b"x", producer_id=5, producer_epoch=0, base_sequence=0)
        message = produce_message("t", batch)
        message.timeout_ms = 0
        for _ in range(2):
            answer = await client.call(ApiKey.PRODUCE, message, PRODUCE_VERSION)
            row = answer.responses[0].partition_responses[0]
            assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        message.timeout_ms = 10_000
        await client.ask(ApiKey.PRODUCE, message, PRODUCE_VERSION)
        await until_waiting(partition)
        holds(partition, 1)
        answer = await client.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
        row = answer.responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (ErrorCode.NONE, 0)


@in_trio
async def test_a_batch_that_queued_while_the_leader_changed_is_not_appended(
    tmp_path: Path,
) -> None:
    """Batches queue while another append runs, and so does the change of the leader."""
    async with replicated(tmp_path) as (_, client, partition):
        async with partition.appending:
            await client.ask(ApiKey.PRODUCE, produce_message("t", batch_of(b"x")), PRODUCE_VERSION)
            while not partition.appending.statistics().tasks_waiting:
                await trio.sleep(0)  # the request is on its way through the kernel
            partition.assign(state(OTHER, 2, (1, OTHER)))
        answer = await client.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
        row = answer.responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.log.log_end_offset == 0


@in_trio
async def test_an_answer_that_had_to_wait_is_charged_to_the_quota(tmp_path: Path) -> None:
    async with replicated(tmp_path) as (served, client, partition):
        change = QuotaChange(
            (EntityPart(CLIENT_ID, None),), [QuotaOp("producer_byte_rate", 1000.0)]
        )
        await change_quotas(served.worker.controller_client, change)
        message = produce_message("t", batch_of(bytes(50_000)))
        await client.ask(ApiKey.PRODUCE, message, PRODUCE_VERSION)
        await until_waiting(partition)
        holds(partition, 1)
        answer = await client.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        assert answer.throttle_time_ms > 0
