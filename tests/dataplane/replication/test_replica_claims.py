"""Three nodes, and a client that claims to be a replica: its fetches must have no effect.

`metaquorum.dataplane.replication.replica_authentication` has the rules. These tests speak only the
wire protocol.
"""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from metaquorum.metadata.quota_lookup import CLIENT_ID, EntityPart
from metaquorum.quorum.controller.quota_changes import (
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaChange,
    QuotaOp,
)
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from metaquorum.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.changes import change_quotas
from tests.dataplane.replication.test_replicas import delete_records, fill, latest
from tests.dataplane.replication.together import Together, run_together, together
from tests.dataplane.serving import RawClient, batch_of, produce_message

E = ErrorCode
LEADER = 1
FOLLOWERS = (2, 3)
FUTURE_EPOCH = 2**62
BY_NAME, BY_STATE = 12, 17  # versions of Fetch: with ReplicaId, and with ReplicaState


async def claim(
    client: RawClient,
    cluster: Together,
    replica_id: int,
    *,
    epoch: int | None = None,
    version: int = BY_STATE,
    offset: int = 0,
    log_start_offset: int = 0,
    **others: int,
) -> Any:
    """Return the response to a fetch as that replica; `epoch` None is the real, public one."""
    state = ReplicaState(replica_id=replica_id)
    registered = cluster.worker(LEADER).image.workers.get(replica_id)
    if epoch is not None:
        state.replica_epoch = epoch
    elif registered is not None:
        state.replica_epoch = registered.broker_epoch
    topic = cluster.worker(LEADER).image.topic("t")
    message = FetchRequest(
        replica_id=replica_id if version < 15 else -1,
        replica_state=state if version >= 15 else None,
        max_wait_ms=0,
        min_bytes=0,
        session_epoch=others.get("session_epoch", -1),
        session_id=others.get("session_id", 0),
        topics=[
            FetchTopic(
                topic="t",
                topic_id=topic.topic_id,
                partitions=[
                    FetchPartition(
                        partition=0,
                        fetch_offset=offset,
                        log_start_offset=log_start_offset,
                        partition_max_bytes=1 << 20,
                    )
                ],
            )
        ],
    )
    return await client.call(ApiKey.FETCH, message, version)


def row_of(answer: Any) -> Any:
    return answer.responses[0].partitions[0]


def without_followers(
    scenario: Callable[[Together, RawClient, RawClient], Awaitable[None]], **options: object
) -> None:
    """Run `scenario` with two clients of a leader whose followers, with ten records, are down."""

    async def whole(cluster: Together) -> None:
        await cluster.create("t", (LEADER, *FOLLOWERS), min_insync_replicas=2)
        client, liar = await cluster.connect(LEADER), await cluster.connect(LEADER)
        await fill(client, "t", 10)
        await cluster.until(lambda: cluster.replica(3, "t").high_watermark == 10)
        for follower in FOLLOWERS:
            cluster.world.internet.cut(f"node-{follower}", f"node-{LEADER}")
        await scenario(cluster, client, liar)

    run_together(whole, **options)


@pytest.mark.parametrize(
    ("version", "epoch"), [(BY_STATE, FUTURE_EPOCH), (BY_STATE, None), (BY_STATE, -1), (BY_NAME, 0)]
)
def test_fetches_in_the_followers_names_commit_nothing(version: int, epoch: int | None) -> None:
    """Attack 02_forged_acks: 50 of 50 acknowledged records were lost with the leader."""

    async def scenario(cluster: Together, client: RawClient, liar: RawClient) -> None:
        message = produce_message("t", batch_of(b"not replicated"), acks=-1)
        message.timeout_ms = 1000
        await client.ask(ApiKey.PRODUCE, message, 9)
        await cluster.until(lambda: cluster.replica(LEADER, "t").log.log_end_offset == 11)
        claims = [
            await claim(liar, cluster, follower, epoch=epoch, version=version, offset=11)
            for follower in FOLLOWERS * 5
        ]
        answer = await client.answer(ApiKey.PRODUCE, 9)
        row = answer.responses[0].partition_responses[0]
        assert row.error_code != E.NONE
        assert cluster.replica(LEADER, "t").high_watermark == 10
        for answer in claims:
            assert row_of(answer).error_code == E.TOPIC_AUTHORIZATION_FAILED
            assert not row_of(answer).records
            assert not answer.session_id

    without_followers(scenario)


@together(replica_lag_time_max_ms=2000)
async def test_a_fetch_with_a_future_broker_epoch_takes_nothing_from_the_true_follower(
    cluster: Together,
) -> None:
    """Attack 01_epoch_poison: the real follower's fetches were ignored until a new election."""
    await cluster.create("t", (LEADER, *FOLLOWERS), min_insync_replicas=3)
    client, liar = await cluster.connect(LEADER), await cluster.connect(LEADER)
    await fill(client, "t", 1)
    for follower in FOLLOWERS:
        await claim(liar, cluster, follower, epoch=FUTURE_EPOCH)
    for _ in range(5):
        await cluster.world.sleep(1.0)
        await client.produce("t", batch_of(b"x"))
    assert cluster.state("t", LEADER).isr == (1, 2, 3)


def test_records_are_not_deleted_everywhere_because_a_client_says_so() -> None:
    """DeleteRecords waits for the log start offsets in followers' fetches."""

    async def scenario(cluster: Together, client: RawClient, liar: RawClient) -> None:
        for follower in FOLLOWERS:
            await claim(liar, cluster, follower, offset=10, log_start_offset=7)
        row = await delete_records(client, "t", 7, timeout_ms=500)
        assert (row.error_code, row.low_watermark) == (E.REQUEST_TIMED_OUT, 0)

    without_followers(scenario)


@together()
async def test_made_up_replica_ids_leave_nothing_behind(cluster: Together) -> None:
    """Attack 06_exhaust heard: 400,000 replica ids occupied 45 MB."""
    await cluster.create("t", (LEADER, *FOLLOWERS))
    liar = await cluster.connect(LEADER)
    for number in range(1000):
        message = FetchRequest(replica_id=1000 + number, max_wait_ms=0, session_epoch=-1)
        await liar.call(ApiKey.FETCH, message, BY_NAME)
    await claim(liar, cluster, 5000)
    assert set(cluster.worker(LEADER).isr_manager.context.heard) <= set(FOLLOWERS)


@pytest.mark.parametrize("version", [4, 6, 7, BY_NAME, BY_STATE])
@together()
async def test_a_false_replica_that_asks_for_very_much_gets_a_small_answer(
    cluster: Together, version: int
) -> None:
    await cluster.create("t", (LEADER, *FOLLOWERS))
    liar = await cluster.connect(LEADER)
    topic_id = cluster.worker(LEADER).image.topic("t").topic_id
    rows = [FetchPartition(partition=0, partition_max_bytes=1 << 20)] * 5000
    message = FetchRequest(
        replica_id=2 if version < 15 else -1,
        replica_state=ReplicaState(replica_id=2) if version >= 15 else None,
        topics=[FetchTopic(topic="t", topic_id=topic_id, partitions=rows)],
    )
    answer = await liar.call(ApiKey.FETCH, message, version)
    assert not answer.responses
    if version >= 7:
        assert answer.error_code == E.TOPIC_AUTHORIZATION_FAILED


async def set_quota(cluster: Together, key: str, value: float) -> None:
    change = QuotaChange((EntityPart(CLIENT_ID, None),), [QuotaOp(key, value)])
    await change_quotas(cluster.worker(LEADER).controller_client, change)
    await cluster.world.sleep(0.5)


@together()
async def test_a_client_that_says_it_is_a_replica_keeps_its_fetch_quota(cluster: Together) -> None:
    await cluster.create("t", (LEADER, *FOLLOWERS))
    client, liar = await cluster.connect(LEADER), await cluster.connect(LEADER)
    await client.produce("t", batch_of(bytes(50_000)))
    await set_quota(cluster, CONSUMER_BYTE_RATE, 1000.0)
    for version in (BY_NAME, BY_STATE):
        assert not row_of(await claim(liar, cluster, 2, version=version)).records
    assert row_of(await claim(liar, cluster, -1)).records
    assert (await claim(liar, cluster, -1)).throttle_time_ms > 0


@together()
async def test_a_client_that_says_it_is_a_replica_keeps_its_request_quota(
    cluster: Together,
) -> None:
    await cluster.create("t", (LEADER, *FOLLOWERS))
    liar = await cluster.connect(LEADER)
    await set_quota(cluster, REQUEST_PERCENTAGE, 0.01)
    answers = [await claim(liar, cluster, 2, epoch=FUTURE_EPOCH) for _ in range(300)]
    assert any(answer.throttle_time_ms for answer in answers)


def test_a_debugging_consumer_reads_no_further_than_the_high_watermark() -> None:
    """Replica id -2 is a consumer's, as in Kafka; here so are all other negative ids."""

    async def scenario(cluster: Together, client: RawClient, liar: RawClient) -> None:
        await fill(client, "t", 3, acks=1)
        assert cluster.replica(LEADER, "t").log.log_end_offset == 13
        for replica_id in (-1, -2, -3, -(2**31)):
            assert (await latest(client, "t", replica_id)).offset == 10
            for version in (BY_NAME, BY_STATE):
                answer = await claim(liar, cluster, replica_id, version=version, offset=10)
                assert (row_of(answer).error_code, row_of(answer).high_watermark) == (E.NONE, 10)
                assert not row_of(answer).records

    without_followers(scenario)


async def epoch_end(client: RawClient, replica_id: int) -> Any:
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    message = OffsetForLeaderEpochRequest(
        replica_id=replica_id, topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])]
    )
    answer = await client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, message)
    return answer.topics[0].partitions[0]


def test_offsets_are_not_told_to_a_client_as_a_replica() -> None:
    """ListOffsets answers as it does a consumer; kafka-python 3.0.0 to 3.0.11 send replica id 0."""

    async def scenario(cluster: Together, client: RawClient, liar: RawClient) -> None:
        await fill(client, "t", 3, acks=1)
        for replica_id in (*FOLLOWERS, LEADER, 77, 0):
            row = await latest(liar, "t", replica_id)
            assert (row.error_code, row.offset) == (E.NONE, 10)  # the log ends at 13
            row = await epoch_end(liar, replica_id)
            assert (row.error_code, row.end_offset) == (E.TOPIC_AUTHORIZATION_FAILED, -1)
        for replica_id in (-1, -2):
            row = await epoch_end(liar, replica_id)
            assert (row.error_code, row.end_offset) == (E.NONE, 13)

    without_followers(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_random_claims_never_move_a_high_watermark(seed: int) -> None:
    """Random claims also do not change an ISR, complete DeleteRecords or end other sessions."""
    draw = Random(seed)

    async def scenario(cluster: Together, client: RawClient, liar: RawClient) -> None:
        await fill(client, "t", 3, acks=1)
        partition = cluster.replica(LEADER, "t")
        followers = {
            one.replica_id: (one.log_end_offset, one.log_start_offset, one.broker_epoch)
            for one in partition.leader_state.followers  # type: ignore[union-attr]
        }
        replica_ids = (*FOLLOWERS * 3, LEADER, 0, 77, 2**31 - 1)
        for _ in range(200):
            answer = await claim(
                liar,
                cluster,
                draw.choice(replica_ids),
                epoch=draw.choice((None, None, -1, 0, draw.getrandbits(8), FUTURE_EPOCH)),
                version=draw.choice((draw.randrange(4, 19), BY_STATE)),
                offset=draw.choice((0, 10, 11, 13, 2**40)),
                log_start_offset=draw.choice((-1, 0, 7, 13, 2**40)),
                session_epoch=draw.choice((-1, 0, 0, 1, 5)),
                session_id=draw.choice((0, 0, draw.getrandbits(31))),
            )
            assert answer.error_code or row_of(answer).error_code
            assert partition.high_watermark == 10
            assert followers == {
                one.replica_id: (one.log_end_offset, one.log_start_offset, one.broker_epoch)
                for one in partition.leader_state.followers  # type: ignore[union-attr]
            }
            if not cluster.worker(LEADER).replica_manager.by_name("t", 0).is_leader:
                break  # the others have elected another leader by now
        for follower in FOLLOWERS:
            cluster.world.internet.heal(f"node-{follower}", f"node-{LEADER}")
        await cluster.until(lambda: set(cluster.state("t", 2).isr) == {1, 2, 3})

    without_followers(scenario)
