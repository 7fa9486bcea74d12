"""Three nodes: requests that wait at a replica while it moves to another worker."""

from typing import Any

from metaquorum.metadata.image import PartitionImage
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.fetch.test_replica_selector import OPTIONS, begin, fetch
from tests.dataplane.replication.moves.moving import move, start
from tests.dataplane.replication.test_replicas import fill
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import PRODUCE_VERSION, RawClient, batch_of, produce_message

E = ErrorCode
NEWEST = 16  # the first version of Fetch that names the leader
SOON_S = 2.0  # less than it takes to fence a worker, and than any timeout


class Fetches:
    """Fetches of a consumer with topic ids, with or without a session."""

    def __init__(self, cluster: Together, client: RawClient, *topics: str) -> None:
        image = cluster.worker(1).image
        self._ids = {topic: image.topic(topic).topic_id for topic in topics}
        self._client = client

    async def ask(self, offset: int, session: tuple[int, int] = (0, -1), wait_ms: int = 0) -> None:
        topics = [
            FetchTopic(
                topic_id=topic_id,
                partitions=[
                    FetchPartition(
                        partition=0,
                        fetch_offset=offset,
                        partition_max_bytes=1 << 20,
                        current_leader_epoch=-1,
                    )
                ],
            )
            for topic_id in self._ids.values()
        ]
        message = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=session[0],
            session_epoch=session[1],
            topics=topics if session[1] <= 0 else [],
        )
        await self._client.ask(ApiKey.FETCH, message, NEWEST)

    async def answer(self) -> tuple[int, dict[str, Any]]:
        answer = await self._client.answer(ApiKey.FETCH, NEWEST)
        names = {topic_id: topic for topic, topic_id in self._ids.items()}
        rows = {names[topic.topic_id]: topic.partitions[0] for topic in answer.responses}
        assert bool(answer.node_endpoints) == any(row.error_code for row in rows.values())
        return answer.session_id, rows


@together()
async def test_produce_requests_that_wait_at_a_leader_that_is_removed_are_answered(
    cluster: Together,
) -> None:
    await cluster.create("t", (1, 2))
    client = await cluster.connect(1)
    await fill(client, "t", 3)
    await cluster.kill(2)
    message = produce_message("t", batch_of(b"waits"))
    await client.ask(ApiKey.PRODUCE, message, PRODUCE_VERSION)
    await cluster.until(lambda: cluster.replica(1, "t").commit_waiters)
    await start(cluster, "t", 3)
    began = cluster.world.now
    answer = await client.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
    row = answer.responses[0].partition_responses[0]
    assert row.error_code == E.NOT_LEADER_OR_FOLLOWER
    assert cluster.world.now - began < SOON_S
    await cluster.until(lambda: cluster.state("t", 3).replicas == (3,))
    await client.produce("t", batch_of(b"late"), error=E.NOT_LEADER_OR_FOLLOWER)
    await (await cluster.connect(3)).produce("t", batch_of(b"new"))


@together()
async def test_fetches_that_wait_at_a_leader_that_is_removed_are_sent_to_the_next(
    cluster: Together,
) -> None:
    for topic in ("t", "u"):
        await cluster.create(topic, (1, 2))
    with_session = Fetches(cluster, await cluster.connect(1), "t", "u")
    without = Fetches(cluster, await cluster.connect(1), "t")
    await with_session.ask(0, (0, 0))
    session, _ = await with_session.answer()
    await with_session.ask(0, (session, 1), wait_ms=60_000)
    await without.ask(0, wait_ms=60_000)
    led = cluster.replica(1, "t")
    await cluster.until(lambda: len(led.waiters) == 2)
    began = cluster.world.now
    await move(cluster, "t", 3)
    for each in (with_session, without):
        _, rows = await each.answer()
        assert rows.keys() == {"t"}
        assert rows["t"].error_code == E.NOT_LEADER_OR_FOLLOWER
        assert rows["t"].current_leader.leader_id == 3
    assert cluster.world.now - began < SOON_S
    assert not led.waiters
    await with_session.ask(0, (session, 2))
    _, rows = await with_session.answer()
    assert (rows["t"].error_code, rows["t"].current_leader.leader_id) == (6, 3)
    await move(cluster, "t", 1)
    await fill(await cluster.connect(1), "t", 1)
    await with_session.ask(0, (session, 3))
    _, rows = await with_session.answer()
    assert (rows["t"].error_code, bool(rows["t"].records)) == (0, True)


@together(**OPTIONS)
async def test_a_consumer_that_reads_from_a_follower_is_sent_away_when_that_is_removed(
    cluster: Together,
) -> None:
    leader, _ = await begin(cluster)
    _, row = await fetch(leader, 5, rack="b")
    assert row.preferred_read_replica == 2
    near = Fetches(cluster, await cluster.connect(2), "t")
    await near.ask(5, wait_ms=60_000)
    await cluster.until(lambda: cluster.replica(2, "t").waiters)
    began = cluster.world.now
    await move(cluster, "t", 1, 3)
    _, rows = await near.answer()
    assert rows["t"].error_code == E.NOT_LEADER_OR_FOLLOWER
    assert rows["t"].current_leader.leader_id == 1
    assert cluster.world.now - began < SOON_S
    await cluster.until(lambda: cluster.state("t", 1).replicas == (1, 3))
    await fill(leader, "t", 1)
    _, row = await fetch(leader, 5, rack="b")
    assert row.preferred_read_replica == 3


@together()
async def test_the_high_watermark_does_not_wait_for_a_replica_that_is_removed(
    cluster: Together,
) -> None:
    await cluster.create("t", (1, 2, 3))
    client = await cluster.connect(1)
    await fill(client, "t", 3)
    await cluster.kill(3)
    message = produce_message("t", batch_of(b"waits"))
    await client.ask(ApiKey.PRODUCE, message, PRODUCE_VERSION)
    await cluster.until(lambda: cluster.replica(1, "t").commit_waiters)
    assert 3 in cluster.state("t", 1).isr
    began = cluster.world.now
    await start(cluster, "t", 1, 2)
    answer = await client.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
    assert answer.responses[0].partition_responses[0].error_code == E.NONE
    assert cluster.world.now - began < SOON_S


@together()
async def test_clients_see_all_replicas_of_a_partition_that_moves(cluster: Together) -> None:
    await cluster.create("t", (1, 2))
    await cluster.kill(3)
    await cluster.until(lambda: cluster.worker(1).image.workers[3].fenced)
    await start(cluster, "t", 3, 2)
    state: PartitionImage = cluster.state("t", 1)
    assert (state.adding, state.removing) == ((3,), (1,))
    row = await cluster.described(1, "t")
    assert (row.replica_nodes, row.isr_nodes, row.leader_id) == ([3, 2, 1], [2, 1], 1)
    assert row.offline_replicas == [3]
