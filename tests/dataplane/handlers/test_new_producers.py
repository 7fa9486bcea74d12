"""Batches of producers that a partition does not know: forged ids, and the shares of clients."""

from pathlib import Path

import pytest

from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.replication.test_deposed_leaders import cut_off
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import (
    PRODUCE_VERSION,
    RawClient,
    batch_of,
    in_trio,
    produce_message,
    serving,
)

FORGED = ErrorCode.INVALID_PRODUCER_ID_MAPPING
LATER = ErrorCode.NOT_ENOUGH_REPLICAS
SIZES = [10, 300_000]  # appended in place, and in a worker thread


def batch(producer_id: int, sequence: int = 0, size_bytes: int = 10) -> bytearray:
    return batch_of(
        bytes(size_bytes), producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )


async def new_id(client: RawClient) -> int:
    answer = await client.call(
        ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None)
    )
    assert answer.error_code == ErrorCode.NONE
    return int(answer.producer_id)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_a_share_that_is_used_up_refuses_new_producers_and_no_known_one(
    tmp_path: Path, size_bytes: int
) -> None:
    @in_trio
    async def scenario() -> None:
        async with serving(tmp_path, max_producer_ids_per_client=8) as served:
            client = await served.connect()
            await client.create("t", 2)
            for producer_id in range(4):
                await client.produce("t", batch(producer_id, size_bytes=size_bytes))
            row = await client.produce("t", batch(4, size_bytes=size_bytes), error=LATER)
            assert "keep producers instead of creating new ones" in row.error_message
            # The same producer in another partition takes memory, too.
            await client.produce("t", batch(0, size_bytes=size_bytes), partition=1, error=LATER)
            again = await client.produce("t", batch(0, size_bytes=size_bytes))
            assert again.base_offset == 0  # a duplicate
            await client.produce("t", batch(0, 1, size_bytes=size_bytes))
            await client.produce("t", batch_of(b"of no producer"))
            # Not overtaken: a later batch of the refused producer comes after it.
            await client.produce("t", batch(4, 1, size_bytes=size_bytes), error=LATER)
            partition = served.worker.replica_manager.by_name("t", 0)
            assert sorted(partition.log.producers.entries) == [0, 1, 2, 3]

    scenario()


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("size_bytes", SIZES)
def test_a_producer_id_that_is_not_given_out_is_refused_for_good(
    tmp_path: Path, size_bytes: int, acks: int
) -> None:
    @in_trio
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            client = await served.connect()
            await client.create("t")
            first = await new_id(client)
            for producer_id in (first + 10**6, 2**63 - 1):
                forged = batch(producer_id, size_bytes=size_bytes)
                row = await client.produce("t", forged, acks=acks, error=FORGED)
                assert str(producer_id) in row.error_message
            await client.produce("t", batch(first, size_bytes=size_bytes), acks=acks)
            assert len(await client.values("t")) == 1
            quotas = served.worker.quotas.producers
            assert (quotas.forged_count, quotas.refused_count) == (2, 0)

    scenario()


@in_trio
async def test_a_forged_producer_id_with_acks_0_closes_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t")
        asked = produce_message("t", batch(10**6), acks=0)
        await client.ask(ApiKey.PRODUCE, asked, PRODUCE_VERSION)
        assert await client.is_closed()


@pytest.mark.parametrize("size_bytes", SIZES)
@together()
async def test_an_id_of_a_block_that_the_leader_does_not_know_yet_is_not_forged(
    cluster: Together, size_bytes: int
) -> None:
    """The leader's metadata are behind: it must not finally refuse an id that is only new to it."""
    await cluster.create("t")
    client, giver = await cluster.connect(1), await cluster.connect(2)
    known = cluster.worker(1).quotas.producers.next_producer_id
    cut_off(cluster, 1)
    while (producer_id := await new_id(giver)) < known:
        pass  # the ids that are left of the giver's block
    for sequence in range(2):
        asked = produce_message("t", batch(producer_id, sequence, size_bytes))
        await client.ask(ApiKey.PRODUCE, asked, PRODUCE_VERSION)
    assert cluster.worker(1).quotas.producers.next_producer_id == known
    cluster.world.internet.heal_all()
    for _ in range(2):  # the second one must not overtake the first
        answer = await client.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
        code = answer.responses[0].partition_responses[0].error_code
        assert code in (LATER, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    producers = cluster.worker(1).quotas.producers
    await cluster.until(lambda: producers.next_producer_id > producer_id)
    for sequence in range(2):
        await client.produce("t", batch(producer_id, sequence, size_bytes))
    assert producers.forged_count == 0


@together()
async def test_a_leader_that_is_cut_off_sends_new_producers_elsewhere(cluster: Together) -> None:
    await cluster.create("t")
    client = await cluster.connect(1)
    cut_off(cluster, 1)
    await client.produce("t", batch(10**6), error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
