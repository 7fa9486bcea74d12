"""Reads with read_committed from followers (KIP-392): their own last stable offset and lists."""

from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.fetch.test_read_committed import COMMITTED, Transactions
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import FETCH_VERSION, fetch_message, records_of


@together()
async def test_a_follower_answers_with_its_own_last_stable_offset_and_aborted_transactions(
    nodes: Together,
) -> None:
    await nodes.create("t", (1, 2))
    leader, follower = nodes.replica(1, "t"), nodes.replica(2, "t")
    await nodes.until(lambda: leader.is_leader and follower.leader_id == 1)
    log = Transactions(leader)
    log.send(1)  # 0
    log.send(2)  # 1
    log.end(1, commit=False)  # 2
    await nodes.until(lambda: follower.high_watermark == 3)
    assert (leader.last_stable_offset, follower.last_stable_offset) == (1, 1)
    client = await nodes.connect(2)
    row = await client.fetch("t", **COMMITTED)
    assert (row.error_code, row.high_watermark, row.last_stable_offset) == (0, 3, 1)
    assert [record.offset for record in records_of(row)] == [0]
    assert [(a.producer_id, a.first_offset) for a in row.aborted_transactions] == [(1, 0)]

    # A long poll at the follower ends when its own last stable offset moves.
    message = fetch_message({"t": [(0, 1)]}, max_wait_ms=20_000, **COMMITTED)
    began = nodes.world.now
    await client.ask(ApiKey.FETCH, message, FETCH_VERSION)
    await nodes.until(lambda: follower.stable_waiters)
    log.send(3)  # 3
    await nodes.until(lambda: follower.high_watermark == 4)
    assert follower.stable_waiters
    log.end(2, commit=True)  # 4
    answer = await client.answer(ApiKey.FETCH, FETCH_VERSION)
    assert nodes.world.now - began < 10
    (row,) = answer.responses[0].partitions
    assert row.last_stable_offset == 3
    assert [record.offset for record in records_of(row)] == [1, 2]
    assert [a.first_offset for a in row.aborted_transactions] == [0]
