"""Consumers directed by leaders to followers, which serve committed records."""

from typing import Any

from metaquorum.dataplane.fetch.replica_selector import RACK_AWARE_SELECTOR
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import RawClient, batch_of

E = ErrorCode
RACKS = {1: "a", 2: "b", 3: "b"}
OPTIONS: dict[str, Any] = {
    "node_options": lambda number: {"rack": RACKS[number]},
    "replica_selector_class": RACK_AWARE_SELECTOR,
}


async def fetch(
    client: RawClient,
    offset: int = 0,
    *,
    rack: str = "",
    version: int = 12,
    wait_ms: int = 0,
    epoch: int = -1,
    session: tuple[int, int] = (0, -1),
) -> tuple[Any, Any]:
    """Return the response, and its first row or None."""
    asked = FetchPartition(
        partition=0,
        fetch_offset=offset,
        partition_max_bytes=1 << 20,
        current_leader_epoch=epoch,
    )
    message = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic="t", partitions=[asked])],
        rack_id=rack,
    )
    answer = await client.call(ApiKey.FETCH, message, version)
    rows = [row for topic in answer.responses for row in topic.partitions]
    return answer, rows[0] if rows else None


async def begin(cluster: Together) -> tuple[RawClient, RawClient]:
    """Commit five records; return connections to worker 1, which leads, and to worker 2."""
    await cluster.create("t", (1, 2, 3))
    leader, follower = await cluster.connect(1), await cluster.connect(2)
    for number in range(5):
        await leader.produce("t", batch_of(b"%d" % number))
    await cluster.until(lambda: cluster.replica(2, "t").high_watermark == 5)
    return leader, follower


@together(**OPTIONS)
async def test_leaders_send_consumers_to_a_replica_in_their_rack(cluster: Together) -> None:
    leader, _ = await begin(cluster)
    _, row = await fetch(leader, rack="b")
    assert (row.error_code, row.preferred_read_replica) == (E.NONE, 2)
    assert not row.records
    assert row.high_watermark == 5
    for rack, version in (("a", 12), ("c", 12), ("", 12), ("b", 10)):
        _, row = await fetch(leader, rack=rack, version=version)
        assert row.preferred_read_replica == -1, (rack, version)
        assert row.records
    await cluster.kill(2)
    await cluster.until(lambda: cluster.state("t", 1).isr == (1, 3))
    _, row = await fetch(leader, rack="b")
    assert row.preferred_read_replica == 3
    await cluster.kill(3)


@together(**OPTIONS)
async def test_sessions_hear_of_it_too(cluster: Together) -> None:
    leader, _ = await begin(cluster)
    answer, row = await fetch(leader, 5, rack="b", session=(0, 0), wait_ms=60_000)
    assert (row.preferred_read_replica, answer.session_id > 0) == (2, True)
    _, row = await fetch(leader, 5, rack="b", session=(answer.session_id, 1), wait_ms=60_000)
    assert row.preferred_read_replica == 2, "as often as it asks"


@together(node_options=OPTIONS["node_options"])
async def test_without_the_selector_leaders_serve_everybody(cluster: Together) -> None:
    leader, _ = await begin(cluster)
    _, row = await fetch(leader, rack="b")
    assert row.preferred_read_replica == -1
    assert row.records


@together(**OPTIONS)
async def test_followers_serve_consumers_what_is_committed_and_nobody_else(
    cluster: Together,
) -> None:
    leader, follower = await begin(cluster)
    _, row = await fetch(follower, 3)
    assert (row.error_code, row.high_watermark) == (E.NONE, 5)
    assert row.records
    _, row = await fetch(follower, 3, version=10)
    assert row.error_code == E.NOT_LEADER_OR_FOLLOWER
    _, row = await fetch(follower, 9)
    assert row.error_code == E.OFFSET_OUT_OF_RANGE
    _, row = await fetch(follower, 3, epoch=5)
    assert row.error_code == E.UNKNOWN_LEADER_EPOCH
    await cluster.kill(3)
    cluster.world.internet.cut("node-2", "node-1")  # worker 2 cannot send
    await leader.produce("t", batch_of(b"x"), acks=1)
    await cluster.until(lambda: cluster.replica(2, "t").log.log_end_offset == 6)
    _, row = await fetch(follower, 5)
    assert (row.error_code, row.high_watermark) == (E.NONE, 5)
    assert not row.records
    cluster.world.internet.heal_all()


@together(**OPTIONS)
async def test_who_waits_at_a_follower_hears_soon_of_what_is_committed(cluster: Together) -> None:
    leader, follower = await begin(cluster)
    began = cluster.world.now
    correlation = await follower.ask(
        ApiKey.FETCH,
        FetchRequest(
            max_wait_ms=60_000,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[
                FetchTopic(
                    topic="t",
                    partitions=[
                        FetchPartition(partition=0, fetch_offset=5, partition_max_bytes=1 << 20)
                    ],
                )
            ],
        ),
        12,
    )
    assert correlation
    await cluster.world.sleep(0.1)
    await leader.produce("t", batch_of(b"x"))
    answer = await follower.answer(ApiKey.FETCH, 12)
    assert answer.responses[0].partitions[0].records
    assert cluster.world.now - began < 0.25, "long before the follower's poll is over"


@together(**OPTIONS)
async def test_a_consumer_of_an_old_epoch_is_fenced_at_a_follower(cluster: Together) -> None:
    _, follower = await begin(cluster)
    await cluster.kill(1)
    await cluster.until(lambda: cluster.state("t", 2).leader_epoch > 0)
    third = await cluster.connect(3)
    for client in (follower, third):
        _, row = await fetch(client, 3, epoch=0)
        assert row.error_code == E.FENCED_LEADER_EPOCH
