"""Responses of a replaced leader, which does not know its successor, to idempotent producers."""

import pytest

from metaquorum.dataplane.worker.leadership_check import ASK_TIMEOUT_S
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.replication.together import NODES, Together, together
from tests.dataplane.serving import PRODUCE_VERSION, RawClient, batch_of, produce_message

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
LARGE_BYTES = 300_000


def produced(sequence: int, *, size_bytes: int = 10) -> bytearray:
    return batch_of(
        bytes(size_bytes), producer_id=7, producer_epoch=0, base_sequence=sequence, timestamp=-1
    )


def cut_off(cluster: Together, node: int) -> None:
    """Cut the node's links to the other nodes; clients still reach it."""
    for other in set(NODES) - {node}:
        cluster.world.internet.cut(f"node-{node}", f"node-{other}")
        cluster.world.internet.cut(f"node-{other}", f"node-{node}")


async def deposed(cluster: Together) -> RawClient:
    """Return a client of worker 1, the former leader of `t`, which does not know its successor."""
    await cluster.create("t")
    client = await cluster.connect(1)
    await client.produce("t", produced(0))
    cut_off(cluster, 1)
    await cluster.until(lambda: cluster.state("t", 2).leader != 1)
    other = await cluster.connect(cluster.state("t", 2).leader)
    await other.produce("t", produced(1))
    assert cluster.state("t", 1).leader == 1
    return client


@pytest.mark.parametrize("size_bytes", [10, LARGE_BYTES])
@together(broker_session_timeout_ms=2000)
async def test_a_deposed_leader_does_not_say_that_a_sequence_is_missing(
    cluster: Together, size_bytes: int
) -> None:
    client = await deposed(cluster)
    row = await client.produce("t", produced(2, size_bytes=size_bytes), error=NOT_LEADER)
    assert "t-0" in row.error_message
    cluster.world.internet.heal_all()
    await cluster.until(lambda: cluster.state("t", 1).leader != 1)
    await client.produce("t", produced(2, size_bytes=size_bytes), error=NOT_LEADER)
    leader = await cluster.connect(cluster.state("t", 2).leader)
    await leader.produce("t", produced(2, size_bytes=size_bytes))


@together(broker_session_timeout_ms=2000)
async def test_it_hears_that_it_is_deposed_before_it_answers(cluster: Together) -> None:
    client = await deposed(cluster)
    await client.ask(ApiKey.PRODUCE, produce_message("t", produced(2)), PRODUCE_VERSION)
    await cluster.world.sleep(0.1)
    cluster.world.internet.heal_all()
    answer = await client.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
    assert answer.responses[0].partition_responses[0].error_code == NOT_LEADER


@pytest.mark.parametrize("size_bytes", [10, LARGE_BYTES])
@together()
async def test_who_leads_says_so_at_once_when_a_sequence_is_missing(
    cluster: Together, size_bytes: int
) -> None:
    await cluster.create("t")
    client = await cluster.connect(1)
    await client.produce("t", produced(0))
    for api_version in (PRODUCE_VERSION, 3):
        began = cluster.world.now
        message = produce_message("t", produced(5, size_bytes=size_bytes))
        answer = await client.call(ApiKey.PRODUCE, message, api_version)
        assert answer.responses[0].partition_responses[0].error_code == OUT_OF_ORDER
        assert cluster.world.now - began < ASK_TIMEOUT_S / 2
    await client.produce("t", produced(1))
